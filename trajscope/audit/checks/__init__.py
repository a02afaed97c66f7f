"""The catalogue of checks: every rule, and what it found in one run."""

from __future__ import annotations

from trajscope.audit.checks import data, gradient, level, numeric, other, rl, schedule
from trajscope.audit.checks.base import RESULTS, Check, Facts, Found, Rule, run_rule
from trajscope.audit.checks.guides import GUIDES
from trajscope.audit.checks.own import plugin_rules, settings_rules

__all__ = ["GUIDES", "RESULTS", "RULES", "Check", "Facts", "Found", "Rule", "run_checks"]

#: Every rule, in the order in which equal results are shown.
RULES: tuple[Rule, ...] = (
    *level.RULES[:4],
    *numeric.RULES,
    *gradient.RULES,
    *schedule.RULES,
    *data.RULES,
    *rl.RULES,
    *other.RULES,
    *level.RULES[4:],
)


def run_checks(facts: Facts) -> tuple[Check, ...]:
    """All checks, those of users included, the worst first."""
    rules = (*settings_rules(facts.settings), *plugin_rules(), *RULES)
    return tuple(sorted((run_rule(rule, facts) for rule in rules), key=lambda c: RESULTS.index(c.result)))
