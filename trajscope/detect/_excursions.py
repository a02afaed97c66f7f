"""Excursions: flagged rows grouped into events, and how each went on (classes: `trajscope.detect.spikes`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["CLASSES", "excursions"]

Floats = NDArray[np.float64]

CLASSES = ("fast", "slow", "partial", "new level", "divergence", "undetermined")
"""How a spike went on."""


def excursions(
    y: Floats,
    finite: NDArray[np.bool_],
    flagged: NDArray[np.bool_],
    location: Floats,
    scale: Floats,
    residual: Floats,
    fast: int,
    slow: int,
    band: float,
) -> list[tuple[int, int, str, int]]:
    """Group flagged rows into excursions: (first row, most extreme row, class, rows until back or -1)."""
    flags = np.flatnonzero(flagged)
    out: list[tuple[int, int, str, int]] = []
    at = 0
    while at < flags.size:
        first = int(flags[at])
        sign = 1.0 if residual[first] > 0 else -1.0
        level, width = float(location[first]), float(scale[first])
        end = min(first + slow + 1, y.size)
        seen = sign * (y[first:end] - level)
        back = _first_back(seen, band * width)
        stop = first + (back if back is not None else slow)
        inside = flags[(flags >= first) & (flags < max(stop, first + 1))]
        # a level that stays enters the history after some rows; flags that come later are events of their own
        if back is None:
            gap = np.flatnonzero(np.diff(inside) > 2 * fast)
            inside = inside[: int(gap[0]) + 1] if gap.size else inside
        peak = int(inside[np.argmax(sign * residual[inside])])
        out.append(
            (
                first,
                peak,
                _class(seen, finite[first:end], back, y, sign, level, peak, fast, slow),
                -1 if back is None else back,
            )
        )
        at = int(np.searchsorted(flags, inside[-1], side="right"))
    return out


def _first_back(seen: Floats, half_width: float) -> int | None:
    """First row after the event whose running median of three (fewer at the end) is within the band."""
    for k in range(1, seen.size):
        ahead = seen[k : k + 3]
        ahead = ahead[np.isfinite(ahead)]
        if ahead.size and np.median(ahead) <= half_width and np.isfinite(seen[k]) and seen[k] <= half_width:
            return k
    return None


def _class(
    seen: Floats,
    finite: NDArray[np.bool_],
    back: int | None,
    y: Floats,
    sign: float,
    level: float,
    peak: int,
    fast: int,
    slow: int,
) -> str:
    if back is not None:
        return "fast" if back <= fast else "slow"
    after = seen[1:][np.isfinite(seen[1:])]
    if not finite[1:].all() and np.count_nonzero(~finite[1:]) >= after.size:
        return "divergence"
    if after.size < 3:
        return "undetermined"
    jump = sign * (float(y[peak]) - level)
    rest = float(np.median(after[-20:]))
    start = y[np.isfinite(y)][:5]
    if seen.size <= slow and rest >= sign * (float(np.median(start)) - level):
        return "divergence"
    return "new level" if rest >= 0.5 * jump else "partial"
