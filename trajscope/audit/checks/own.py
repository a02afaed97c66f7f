"""Checks that users bring: ``[[rule]]`` tables of the settings, and plug-ins of the group ``trajscope.checks``."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

from trajscope.audit.checks.base import Facts, Found, Rule, from_events
from trajscope.audit.own import channels_of
from trajscope.config import OwnRule, Settings

__all__ = ["plugin_rules", "settings_rules"]

GROUP = "your own"


def settings_rules(settings: Settings) -> tuple[Rule, ...]:
    """Rules of the settings file, as rows of the audit: ``U1``, ``U2``, ..."""
    return tuple(
        Rule(
            f"U{i}",
            rule.title,
            GROUP,
            rule.axis,
            (),
            _definition(rule),
            "not met",
            "your settings",
            "what you set",
            partial(_look, rule=rule),
            f"log {rule.channel or 'the ' + rule.role.replace('_', ' ')}",
        )
        for i, rule in enumerate(settings.rule, start=1)
    )


def _definition(rule: OwnRule) -> str:
    what = rule.channel or rule.role.replace("_", " ")
    if rule.above is not None:
        how = f"above {rule.above:g}"
    elif rule.below is not None:
        how = f"below {rule.below:g}"
    else:
        how = f"more than {rule.ratio:g} times the median of the hundred rows before"
    return f"{what} {how}" + (f" for {rule.rows} rows" if rule.rows > 1 else "")


def _look(f: Facts, rule: OwnRule) -> Found:
    if not any(len(c) for c in channels_of(f.run, rule)):
        return Found("not observable", f"{rule.channel or rule.role.replace('_', ' ')}: not in the log")
    return from_events([e for e in f.of("rule") if e.detail["rule"] == rule.title], "not met")


@lru_cache(maxsize=1)
def plugin_rules() -> tuple[Rule, ...]:
    """Rules of installed packages: each entry point of ``trajscope.checks`` is a `Rule` or a sequence of them.

    A plug-in that cannot be imported, or is something else, is left out with a warning; a rule that fails on a run says
    so in its row.
    """
    rules: list[Rule] = []
    for entry in importlib.metadata.entry_points(group="trajscope.checks"):
        try:
            found = entry.load()
            listed = [found] if isinstance(found, Rule) else list(found)
            if not all(isinstance(r, Rule) for r in listed):
                raise TypeError("not a Rule")
        except Exception as problem:  # a broken plug-in must not take the audit down
            warnings.warn(f"check {entry.name!r} ({entry.value}) cannot be used: {problem}", stacklevel=2)
            continue
        rules += [r if r.look is None else replace(r, look=_guarded(r.look, entry.name)) for r in listed]
    return tuple(rules)


def _guarded(look: Callable[[Facts], Found], name: str) -> Callable[[Facts], Found]:
    def guarded(facts: Facts) -> Found:
        try:
            return look(facts)
        except Exception as problem:
            return Found("not observable", f"the plug-in {name} failed: {type(problem).__name__}: {problem}")

    return guarded
