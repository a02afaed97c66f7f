"""What a check is: a rule of the catalogue, the facts it looks at, and what it found.

A rule names the roles it needs. Where one of them is not in the log the check is "not observable", never a pass; a rule
that scalars cannot show at all has no function and says what would have to be logged. Results of the catalogue's rules
are shown; only what was calibrated on healthy runs (collapse, non-finite values, changes, spikes, the level at the end)
moves the verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajscope.audit.events import Event
from trajscope.audit.meta import Meta
from trajscope.config import Settings
from trajscope.detect.collapse import Collapse
from trajscope.history import Channel, Run
from trajscope.inference.calibrate import Thresholds
from trajscope.inference.reference import ReferenceBand

__all__ = [
    "BLIND",
    "RESULTS",
    "Check",
    "Facts",
    "Found",
    "Rule",
    "finite",
    "first",
    "from_events",
    "median_of",
    "run_rule",
]

Floats = NDArray[np.float64]

#: Result of a rule that no log of scalars can answer.
BLIND = "cannot be seen in logs"

#: Results, worst first: the order in which a report shows them.
RESULTS = ("fail", "watch", "info", "pass", "not enough history", "not observable", BLIND)

#: Steps of evidence that a check keeps.
MOST_STEPS = 20


@dataclass(frozen=True)
class Check:
    """Outcome of one check.

    Attributes
    ----------
    id, title : str
    axis : str
        Axis of perturbation that a failure would point to: optimization, environment/data, parametric, learning
        signal; empty where it says nothing about it.
    result : str
        One of `RESULTS`.
    found, expected : str
        For a person.
    steps : tuple of float
        Where the evidence lies.
    advice : str
        What to log next time, where the log could not answer.
    """

    id: str
    title: str
    axis: str
    result: str
    found: str
    expected: str
    steps: tuple[float, ...] = ()
    advice: str = ""


@dataclass(frozen=True, eq=False)
class Facts:
    """Everything the checks and the verdict look at."""

    run: Run
    settings: Settings
    performance: Channel | None
    mode: str
    judged: tuple[Channel, ...]
    collapse: Collapse | None
    deficit: float
    events: tuple[Event, ...]
    meta: Meta
    thresholds: Thresholds | None = None
    known: tuple[float, ...] = ()
    reference: ReferenceBand | None = None

    def of(self, *kinds: str) -> list[Event]:
        """Events of the given kinds."""
        return [e for e in self.events if e.kind in kinds]


@dataclass(frozen=True)
class Found:
    """What a rule saw: result, sentence, steps."""

    result: str
    text: str
    steps: tuple[float, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One row of the catalogue.

    Attributes
    ----------
    id : str
    title : str
    group : str
        Numeric health, level, gradient and parameters, schedule, data, reinforcement learning, other.
    axis : str
    needs : tuple of tuple of str
        Of each inner tuple at least one role has to be in the log.
    definition : str
        What is looked for, with its constants.
    expected : str
    source : str
    fails_by : str
        How it raises a false alarm.
    look : callable or None
        Facts -> Found; None where logs cannot show it.
    advice : str
        What to log so that it can be seen.
    """

    id: str
    title: str
    group: str
    axis: str
    needs: tuple[tuple[str, ...], ...]
    definition: str
    expected: str
    source: str
    fails_by: str
    look: Callable[[Facts], Found] | None
    advice: str = ""


def run_rule(rule: Rule, facts: Facts) -> Check:
    """Apply a rule to one run."""
    advice = rule.advice
    absent = next((roles for roles in rule.needs if first(facts.run, *roles) is None), None)
    if rule.look is None:
        found = Found(BLIND, rule.definition)
    elif absent is not None:
        wanted = " or ".join(role.replace("_", " ") for role in absent)
        found, advice = Found("not observable", f"{wanted}: not in the log"), advice or f"log the {wanted}"
    else:
        found = rule.look(facts)
        advice = advice if found.result in ("not observable", "not enough history") else ""
    steps = tuple(float(s) for s in found.steps[:MOST_STEPS])
    return Check(rule.id, rule.title, rule.axis, found.result, found.text, rule.expected, steps, advice)


def first(run: Run, *roles: str) -> Channel | None:
    """The first channel of the first of the roles that has a value."""
    for role in roles:
        for channel in run.by_role(role):
            if len(channel):
                return channel
    return None


def finite(channel: Channel) -> tuple[Floats, NDArray[np.float64]]:
    """Finite values of a channel and their steps."""
    values = channel.values.astype(np.float64)
    good = np.isfinite(values)
    return values[good], channel.steps[good].astype(np.float64)


def median_of(values: Floats) -> float:
    """Median, NaN without values."""
    return float(np.median(values)) if values.size else float("nan")


def from_events(events: list[Event], none: str) -> Found:
    """As bad as the worst event."""
    if not events:
        return Found("pass", none)
    worst = next((s for s in ("fail", "watch", "info") if any(e.severity == s for e in events)), "info")
    shown = [e for e in events if e.severity == worst]
    more = f" (and {len(shown) - 1} more)" if len(shown) > 1 else ""
    return Found(worst, shown[0].sentence + more, tuple(e.step for e in shown))
