"""Contract suites for plug-in authors."""

from trajscope.testing.readers import ContractViolation, check_reader, damaged

__all__ = ["ContractViolation", "check_reader", "damaged"]
