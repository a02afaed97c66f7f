"""From changes of single channels, in rows, to events of the run, in steps; and the segments between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.changepoints.inputs import Series
from trajscope.detect.changepoints.result import Segment
from trajscope.detect.changepoints.single import Change

__all__ = ["Found", "explanation", "merge", "on_input_rows", "resumed_at", "segments", "step_interval"]


@dataclass(frozen=True)
class Found:
    """A change of one channel on the rows of the input; ``[low, high)`` is its 95 % interval."""

    channel: str
    row: int
    low: int
    high: int
    kind: str
    p_value: float
    size: float
    z: float


def on_input_rows(change: Change, channel: str, own: NDArray[np.int64], n_rows: int) -> Found:
    """Translate rows of a channel to rows of the input."""
    high = int(own[change.high]) if change.high < own.shape[0] else n_rows
    return Found(
        channel, int(own[change.row]), int(own[change.low]), high, change.kind, change.p_value, change.size, change.z
    )


def merge(found: Sequence[Found]) -> list[list[Found]]:
    """Changes of different channels at one place become one event.

    Two changes belong together if each location lies in the other's interval, or if they are within two rows. In an
    event the changes are ordered by evidence; the event's place is that of the narrowest interval, which is put
    first.
    """
    events: list[list[Found]] = []
    for f in sorted(found, key=lambda f: (f.high - f.low, f.p_value, f.row)):
        for event in events:
            lead = event[0]
            near = abs(lead.row - f.row) <= 2 or (f.low <= lead.row < f.high)
            if near and all(f.channel != e.channel for e in event):
                event.append(f)
                break
        else:
            events.append([f])
    ordered = [[e[0], *sorted(e[1:], key=lambda f: (f.p_value, -abs(f.z)))] for e in events]
    return sorted(ordered, key=lambda e: e[0].row)


def step_interval(series: Series, event: Sequence[Found]) -> tuple[float, float]:
    """The lead channel's interval, half-open in steps; beyond the last row, one stride past the last step."""
    steps, lead = series.steps, event[0]
    n = steps.shape[0]
    if lead.high < n:
        high = steps[lead.high]
    else:
        high = steps[-1] + (steps[-1] - steps[-2] if n > 1 else 1)
    return steps[lead.low], high


def explanation(
    interval: Sequence[float] | NDArray[Any], step: float, known: Sequence[tuple[float, str]], stride: float
) -> str | None:
    """Note of the nearest known event in the interval, one stride of grace on both sides; None where there is none."""
    inside = [(abs(s - step), note) for s, note in known if interval[0] - stride <= s <= interval[1] + stride]
    return min(inside)[1] if inside else None


def resumed_at(series: Series, event: Sequence[Found]) -> str | None:
    """The resume at which a change lies, one row of grace on both sides; None where there is none."""
    lead = event[0]
    at = [row for row in series.resumed if lead.low - 1 <= row <= lead.high]
    if not at:
        return None
    row = min(at, key=lambda r: abs(r - lead.row))
    return f"resume at step {series.steps[row]:g}"


def segments(series: Series, found: Sequence[Found]) -> tuple[Segment, ...]:
    """A line through each stretch of each channel between its own changes."""
    out = []
    n = series.steps.shape[0]
    end = float(series.steps[-1] + (series.steps[-1] - series.steps[-2] if n > 1 else 1)) if n else 0.0
    for c, name in enumerate(series.names):
        edges = [0, *sorted({f.row for f in found if f.channel == name}), n]
        for a, b in pairwise(edges):
            y = series.values[a:b, c]
            good = np.isfinite(y)
            count = int(good.sum())
            if count == 0:
                continue
            t = series.steps[a:b][good].astype(float)
            v = y[good]
            centred = t - t.mean()
            sxx = float(centred @ centred)
            slope = float(centred @ v / sxx) if sxx > 0 else 0.0
            rest = v - v.mean() - slope * centred
            sd = float(np.sqrt(rest @ rest / (count - 2))) if count > 2 else float("nan")
            stop = float(series.steps[b]) if b < n else end
            out.append(Segment(name, float(series.steps[a]), stop, count, float(v.mean()), slope, sd))
    return tuple(out)
