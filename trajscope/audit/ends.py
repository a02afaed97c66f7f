"""Events that need no long history: how the loss ends, jumps in short logs, and what was done on purpose.

Most runs that blow up do so within a few rows and are then stopped, before a window of a hundred rows has filled. Three
rules need less:

* **explosion**: the loss ends at ten times the largest of its first five values or more (in 624 recorded control runs
  and 20 AlgoPerf controls: never);
* **descent lost**: the last tenth of the training loss has given back more than half of the descent, and the descent
  was five sd of the noise from row to row at least (recorded control runs: once, at a rate that is too high);
* **jump in a short log**: below 25 rows, a value that lies 8 robust sd above the median of all rows before it on the
  logarithmic scale, with a floor of 0.02 for the sd (the short rule of a public watcher), or 1.4 times the lowest.

Losses of reinforcement learning follow the values that are being learned and may grow; the first two leave them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trajscope.audit.events import Event, number
from trajscope.detect.reset import deliberate_reset
from trajscope.history import Channel, Run

__all__ = ["end_events", "reset_events", "short_events", "soften"]

#: Roles that say that a loss belongs to reinforcement learning.
LEARNED_VALUES = ("return", "eval_return", "td_error", "q_value", "policy_loss", "value_loss", "entropy", "kl")
EXPLODED = 10.0
"""Times the largest of the first values."""
FIRST = 5
LOST = 0.5
"""Share of the descent."""
DESCENT_SD = 5.0
ENOUGH = 40
"""Rows from which the end of a descent is judged."""
SHORT = 25
"""Rows below which `trajscope.spikes` has too little to predict from."""
SHORT_SD = 8.0
SHORT_FLOOR = 0.02
SHORT_TIMES = 1.4
"""Times the lowest value so far, for a rise that is too slow to be a jump."""
REACH = 10
"""Rows on each side of a known event or reset that belong to it."""


def end_events(run: Run) -> list[Event]:
    """Losses that end in an explosion or with their descent lost."""
    if any(run.by_role(role) for role in LEARNED_VALUES):
        return []
    events = []
    for role in ("loss", "val_loss"):
        for channel in run.by_role(role)[:1]:
            good = np.isfinite(channel.values)
            y, steps = channel.values[good].astype(np.float64), channel.steps[good]
            event = _explosion(channel.name, y, steps)
            if event is None and role == "loss":
                event = _lost(channel.name, y, steps)
            if event is not None:
                events.append(event)
    return events


def _explosion(name: str, y: NDArray[np.float64], steps: NDArray[np.generic]) -> Event | None:
    if y.size < 2 * FIRST:
        return None
    bound = EXPLODED * float(np.abs(y[:FIRST]).max())
    if not y[-1] >= bound > 0:
        return None
    below = np.flatnonzero(y < bound)
    step = float(steps[below[-1] + 1])
    text = (
        f"{name} explodes at step {number(step)}: it ends at {number(float(y[-1]))}, after {number(bound / EXPLODED)}"
    )
    return Event(step, "divergence", name, "fail", f"{text} at most in its first rows.", detail={"bound": bound})


def _lost(name: str, y: NDArray[np.float64], steps: NDArray[np.generic]) -> Event | None:
    if y.size < ENOUGH:
        return None
    tenth = max(FIRST, y.size // 10)
    start, end = float(np.median(y[:FIRST])), float(np.median(y[-tenth:]))
    best = float(np.median(np.partition(y, tenth)[:tenth]))
    noise = float(np.median(np.abs(np.diff(y)))) / 0.6745 / np.sqrt(2)
    if not (start - best > DESCENT_SD * noise and end - best > LOST * (start - best)):
        return None
    half = best + LOST * (start - best)
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(np.pad(y, 2, mode="edge"), 5), axis=1)
    low = np.flatnonzero(smooth <= half)
    if low.size and low[-1] == y.size - 1:
        return None  # on its way down again
    row = int(low[-1]) + 1 if low.size else 0
    row += int(np.argmax(y[row:] > half))  # the median of five turns two rows early
    step, share = float(steps[row]), (end - best) / (start - best)
    text = f"{name} diverges at step {number(step)} and stays up: its last tenth has lost {min(share, 9.99):.0%}"
    strength = (end - best) / noise if noise > 0 else float("nan")
    return Event(step, "divergence", name, "fail", f"{text} of its descent.", None, strength, {"share": share})


def short_events(channel: Channel) -> list[Event]:
    """Jumps of a loss or a gradient norm in a log too short for `trajscope.spikes`."""
    good = np.isfinite(channel.values) & (channel.values > 0)
    y, steps = np.log(channel.values[good].astype(np.float64)), channel.steps[good]
    if not 3 <= y.size < SHORT:
        return []
    lows, size = np.minimum.accumulate(y), np.zeros(y.size)
    for i in range(2, y.size):
        middle = float(np.median(y[:i]))
        spread = max(1.4826 * float(np.median(np.abs(y[:i] - middle))), SHORT_FLOOR)
        size[i] = (y[i] - middle) / spread
    rises = (y - lows > np.log(SHORT_TIMES)) & (np.arange(y.size) >= 3)
    rows = np.flatnonzero((size > SHORT_SD) | rises)
    if not rows.size:
        return []
    i = int(rows[0])
    step, severity = float(steps[i]), "watch" if channel.role in ("loss", "val_loss") else "info"
    times = float(np.exp(y[i] - lows[i]))
    more = f" and on {rows.size - 1} more rows" if rows.size > 1 else ""
    text = f"{channel.name} jumps to {number(float(np.exp(y[i])))} at step {number(step)}{more}"
    text += f", {times:.3g} times its lowest before ({y.size} rows)."
    return [Event(step, "spike", channel.name, severity, text, None, float(size[i]), {"rows": y.size, "times": times})]


def reset_events(run: Run, events: Sequence[Event]) -> list[Event]:
    """Places at which loss and schedule start again together; asked only where something is worth a look."""
    judged = any(e.severity != "info" for e in events) and run.by_role("lr") and run.by_role("loss")
    if not judged or any(run.by_role(role) for role in LEARNED_VALUES):
        return []
    found = deliberate_reset(run)
    if found.verdict != "reset":
        return []
    places = [float(step) for step in found.steps if _starts_again(run, float(step))]
    return [
        Event(
            step,
            "reset",
            "",
            "watch",
            f"Loss and learning-rate schedule start again together at step {number(step)}, as in a deliberate reset;"
            " declare it as a known event if it is one.",
        )
        for step in places
    ]


def _starts_again(run: Run, step: float) -> bool:
    """Whether the rate stays up for a hundred rows and the loss comes down again: no spike of the rate, no collapse."""
    rate, loss = run.by_role("lr")[0], run.by_role("loss")[0]
    good = np.isfinite(loss.values)
    y, steps = loss.values[good], loss.steps[good]
    before, after = y[steps < step], y[steps > step]
    row = int(np.searchsorted(rate.steps, step)) - REACH
    later = rate.values[row + 2 * REACH : row + 100]
    if row < 1 or later.size < 3 * REACH or before.size < FIRST or after.size < FIRST:
        return False
    stays = float(np.nanmedian(later)) >= 2 * float(np.nanmedian(rate.values[max(0, row - REACH) : row]))
    half = (float(np.median(before[:FIRST])) + float(np.min(before))) / 2
    return stays and float(np.median(after[-max(FIRST, after.size // 10) :])) <= half


def soften(events: Sequence[Event], places: Sequence[float], rows: float, words: str) -> list[Event]:
    """What lies beside a place where something was done on purpose is information.

    Parameters
    ----------
    events : sequence of Event
    places : sequence of float
    rows : float
        Longest distance between two rows of the judged channels, in steps; what begins within ten of them belongs to
        the place.
    words : str
        What lies there, for the sentence.
    """
    reach = REACH * rows
    out = []
    for e in events:
        beside = any(-rows <= e.step - p <= reach for p in places)
        if beside and e.severity != "info" and e.kind in ("collapse", "divergence", "change", "spike", "dip", "reset"):
            e = replace(e, severity="info", sentence=f"{e.sentence.rstrip('.')}, where {words} lies.")
        out.append(e)
    return out
