"""When a series first leaves the band of its own baseline, downwards and upwards."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling import MAD_TO_SD

__all__ = ["departures"]

Floats = NDArray[np.float64]


def departures(
    steps: NDArray[Any], values: Floats, c: float, h: int, smooth: int = 1
) -> tuple[float, float, float | None, float | None]:
    """Baseline median and scale (rows from 5 % to 25 %), first step of h rows below and above its band after it.

    Of the mean of the last ``smooth`` finite rows, where that is more than one.
    """
    least = 0.0
    if smooth > 1:
        steps, values = steps[np.isfinite(values)], values[np.isfinite(values)]
        single = values[int(0.05 * values.size) : int(0.25 * values.size)]
        if single.size:
            # a baseline of a few smoothed rows knows its own scatter badly; it cannot be below that of white rows
            least = MAD_TO_SD * float(np.median(np.abs(single - np.median(single)))) / math.sqrt(smooth)
        total = np.concatenate([[0.0], np.cumsum(values)])
        values = (total[smooth:] - total[:-smooth]) / smooth if values.size >= smooth else np.empty(0)
        steps = steps[smooth - 1 :]
    start, stop = int(0.05 * values.size), int(0.25 * values.size)
    base = values[start:stop][np.isfinite(values[start:stop])]
    if base.size < 10:
        return math.nan, math.nan, None, None
    centre = float(np.median(base))
    scale = max(MAD_TO_SD * float(np.median(np.abs(base - centre))), 1e-3 * abs(centre), 1e-12, least)
    rest, where = values[stop:], steps[stop:]
    keep = np.isfinite(rest)
    rest, where = rest[keep], where[keep]
    found: list[float | None] = []
    for out in (rest < centre - c * scale, rest > centre + c * scale):
        total = np.concatenate([[0], np.cumsum(out)])
        full = np.flatnonzero(total[h:] - total[:-h] == h) if out.size >= h else np.empty(0, dtype=int)
        found.append(float(where[full[0]]) if full.size else None)
    return centre, scale, found[0], found[1]
