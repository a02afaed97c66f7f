"""What a person would mark: an exact segmentation into lines, judged against noise and range together.

People who mark change points on a plot see a handful of straight stretches, and they weigh a break against the
whole picture, not against the noise alone: a shift of ten noise sd that is a hundredth of the axis is not marked.
So the residual sum of squares of a line on each segment is minimised with the penalty ``3 s^2 log n`` a segment
(three parameters: level, slope, place), where ``s`` is the geometric mean of the short-term noise (MAD of
differences) and the standard deviation of the whole series. There is no error rate.

Optimal partitioning (Jackson et al. 2005), ``best[t] = min_s best[s] + cost(s, t) + penalty``: exact, quadratic,
hence on at most 1,500 cell means; the places are then refined on the rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["annotated_changes", "line_partition"]

Floats = NDArray[np.float64]
_MOST_CELLS = 1500


def line_partition(y: Floats, penalty: float, *, least: int = 3) -> list[int]:
    """First cells of the segments (without 0) that minimise residual sum of squares plus `penalty` a segment.

    Parameters
    ----------
    y : ndarray, (n,)
        Of order one.
    penalty : float
    least : int
        Fewest cells in a segment.
    """
    n = y.shape[0]
    x = (np.arange(n) - 0.5 * (n - 1)) / n
    sums = [np.concatenate([[0.0], np.cumsum(v)]) for v in (y, x * y, y * y, x, x * x)]
    best = np.full(n + 1, np.inf)
    best[0] = -penalty
    last = np.zeros(n + 1, dtype=np.int64)
    for t in range(least, n + 1):
        s = np.arange(0, t - least + 1)
        m = (t - s).astype(float)
        sy, sxy, syy, sx, sxx = (v[t] - v[s] for v in sums)
        cxx, cxy = sxx - sx * sx / m, sxy - sx * sy / m
        cost = np.maximum(syy - sy * sy / m - cxy * cxy / np.maximum(cxx, 1e-15), 0.0)
        total = best[s] + cost + penalty
        i = int(np.argmin(total))
        best[t], last[t] = total[i], s[i]
    cuts: list[int] = []
    t = n
    while t > 0:
        t = int(last[t])
        if t > 0:
            cuts.append(t)
    return cuts[::-1]


def annotated_changes(y: Floats, *, factor: float = 3.0, weight: float = 0.5) -> list[int]:
    """Rows that a person would mark in a series without gaps.

    Parameters
    ----------
    y : ndarray, (n,)
    factor : float
        Penalty over ``s^2 log n``: one for each parameter of a segment.
    weight : float
        Share of the noise in the geometric mean ``s``; 0.5 treats noise and range alike.
    """
    n = y.shape[0]
    if n < 6:
        return []
    spread = float(np.std(y))
    if spread == 0:
        return []
    v = (y - y.mean()) / spread
    difference = np.diff(v)
    noise = float(np.median(np.abs(difference - np.median(difference)))) / 0.6745 / np.sqrt(2)
    scale = max(noise, 1e-3) ** weight
    cells = min(n, _MOST_CELLS)
    bounds = np.linspace(0, n, cells + 1).astype(np.int64)
    means = np.add.reduceat(v, bounds[:-1]) / np.diff(bounds)
    cuts = line_partition(means, factor * scale**2 * np.log(n) * cells / n)
    return [int(bounds[c]) for c in cuts]
