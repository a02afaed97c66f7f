"""Thin a series for drawing so that no spike is lost: first, last, smallest and largest point of every bin."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["min_max"]


def min_max(x: NDArray[Any], y: NDArray[Any], bins: int = 800) -> NDArray[np.intp]:
    """Rows to draw, at most four a bin.

    Parameters
    ----------
    x : ndarray, shape (n_points,)
        Positions, not decreasing.
    y : ndarray, shape (n_points,)
        Values; non-finite ones are never chosen as extremes.
    bins : int, default 800
        Bins of equal width; about the pixels of a figure.

    Returns
    -------
    ndarray of intp
        Row numbers, increasing. All rows where there are at most four a bin anyway.

    Examples
    --------
    >>> y = np.zeros(10_000); y[5_000] = 1.0
    >>> rows = min_max(np.arange(10_000), y, bins=100)
    >>> rows.size <= 400, bool(y[rows].max() == 1.0)
    (True, True)
    """
    n = x.size
    if n <= 4 * bins:
        return np.arange(n)
    span = float(x[-1]) - float(x[0])
    scaled = (x - x[0]).astype(np.float64) / (span or 1.0)
    edges = np.searchsorted(scaled, np.arange(1, bins) / bins)
    starts = np.unique(np.concatenate([[0], edges[edges < n]]))
    stops = np.append(starts[1:], n)
    values = y.astype(np.float64)
    low = np.where(np.isfinite(values), values, np.inf)
    high = np.where(np.isfinite(values), values, -np.inf)
    bin_of = np.repeat(np.arange(starts.size), stops - starts)
    smallest, largest = np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)
    chosen = [starts, stops - 1]
    for hits in (np.flatnonzero(low == smallest[bin_of]), np.flatnonzero(high == largest[bin_of])):
        _, first = np.unique(bin_of[hits], return_index=True)
        chosen.append(hits[first])
    return np.unique(np.concatenate(chosen))
