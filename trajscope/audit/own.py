"""Checks of your own: ``[[rule]]`` tables of the settings file, as events."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling import trailing_median
from trajscope.audit.events import Event, number
from trajscope.config import OwnRule, Settings
from trajscope.history import Channel, Run

__all__ = ["channels_of", "own_events"]

BEFORE = 100
"""Rows whose median a ratio is taken to."""
LEAST = 5


def channels_of(run: Run, rule: OwnRule) -> list[Channel]:
    """Channels that a rule looks at."""
    if rule.channel:
        return [run.channels[rule.channel]] if rule.channel in run.channels else []
    return list(run.by_role(rule.role))


def own_events(run: Run, settings: Settings, known: tuple[float, ...]) -> list[Event]:
    """The first place at which each channel meets a rule, dated at the first of the rows in a row."""
    events = []
    for rule in settings.rule:
        for channel in channels_of(run, rule):
            good = np.isfinite(channel.values)
            y, steps = channel.values[good].astype(np.float64), channel.steps[good]
            starts = _stretches(_met(y, rule), rule.rows)
            if not starts.size:
                continue
            step = float(steps[starts[0]])
            more = f" and {starts.size - 1} more times" if starts.size > 1 else ""
            explained = any(0 <= step - k <= rule.rows for k in known)
            events.append(
                Event(
                    step,
                    "rule",
                    channel.name,
                    "info" if explained else rule.result,
                    f"{rule.title}: {channel.name} is {number(float(y[starts[0]]))} at step {number(step)}{more}.",
                    detail={"rule": rule.title, "times": int(starts.size)},
                )
            )
    return events


def _met(y: NDArray[np.float64], rule: OwnRule) -> NDArray[np.bool_]:
    if rule.above is not None:
        return np.asarray(y > rule.above)
    if rule.below is not None:
        return np.asarray(y < rule.below)
    if y.size <= LEAST or rule.ratio is None:
        return np.zeros(y.size, dtype=bool)
    level = trailing_median(y, BEFORE, min_count=LEAST)
    with np.errstate(invalid="ignore"):
        return np.asarray((y > rule.ratio * level) & (level > 0))


def _stretches(met: NDArray[np.bool_], rows: int) -> NDArray[np.intp]:
    """First rows of stretches of at least ``rows`` rows."""
    edges = np.diff(np.r_[0, met.astype(np.int8), 0])
    first, last = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return first[last - first >= rows]
