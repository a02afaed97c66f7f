"""Readers of training logs: one module a format, all through one door."""

from trajscope.readers.base import Reader, ReadOptions, Rejected
from trajscope.readers.load import readers
from trajscope.readers.scan import Scan, read_run, scan_runs

__all__ = ["ReadOptions", "Reader", "Rejected", "Scan", "read_run", "readers", "scan_runs"]
