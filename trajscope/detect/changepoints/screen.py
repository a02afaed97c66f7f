"""Which scales of a series may hold a candidate: the compiled first look of `scan.scan_scales`.

Most scales of most series hold nothing, and finding nothing in numpy takes a few hundred calls. The kernel forms the
contrasts of all scales at once, with an error bound, and stops at the first scale where something may pass; only
there numpy decides, so what is found is the same to the bit whether or not there was a first look.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.changepoints.filters import confirming, lags, searching

__all__ = ["Screen"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_LEAST_CELLS = 4
"""Fewest cells on one side of a cut window."""
_MOST_CELLS = 23
"""Most cells on one side."""


@lru_cache(maxsize=1)
def _tables(most: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Searching filters, their lagged products and sums of absolute weights, and confirming filters.

    By cells on the left and on the right, ``(most + 1, most + 1, n_filters, 2 most)``; the sums without the last axis.
    """
    width = 2 * most
    search = np.zeros((most + 1, most + 1, 2, width))
    confirm = np.zeros((most + 1, most + 1, 4, width))
    for left in range(_LEAST_CELLS, most + 1):
        for right in range(_LEAST_CELLS, most + 1):
            search[left, right] = searching(left, right, width).T
            confirm[left, right] = confirming(left, right, width).T
    products = np.ascontiguousarray(lags(np.swapaxes(search, -1, -2)))
    return search, products, np.abs(search).sum(axis=-1), confirm


class Screen:
    """The first look at one series.

    Parameters
    ----------
    y, variance : ndarray, (n,)
        Values and local variances.
    covariance : ndarray
        Autocorrelation of the noise.
    grid : ndarray of int, (n_scales, 2)
        Level and cells of each scale.
    limits : ndarray, (2, n_scales, 4)
        For level and slope what the contrast, its two confirmations and their ratio must reach.
    """

    def __init__(self, y: Floats, variance: Floats, covariance: Floats, grid: Ints, limits: Floats) -> None:
        from trajscope.detect.changepoints._screen_kernel import next_scale, pyramid

        self._next = next_scale
        self._grid, self._limits = grid, limits
        self._pyramid = pyramid(y, variance, covariance, int(grid[-1, 0]) + 1 if grid.size else 0)

    def level(self, scale: int) -> tuple[Floats, Floats, Floats, int, Floats]:
        """Cells, cell variances, autocovariance, rows a cell and cumulative variances of the level of a scale."""
        mean, own, sums, lagged, begin = self._pyramid
        j = int(self._grid[scale, 0])
        cells = slice(begin[0, j], begin[0, j + 1])
        cumulative = sums[begin[1, j] : begin[1, j + 1]]
        return mean[cells], own[cells], lagged[begin[2, j] : begin[2, j + 1]], 1 << j, cumulative

    def cells(self, scale: int) -> int:
        """Cells on each side of a scale."""
        return int(self._grid[scale, 1])

    def next(
        self, first: int, edges: Sequence[int], onset: float, least_rows: int, min_windows: int, spread: Floats
    ) -> tuple[int, int]:
        """The first scale from `first` on that may hold a candidate, and the last one up to it that was measured.

        -1 where there is none. `spread` is the noise that was measured before, or anything less.
        """
        mean, _, sums, lagged, begin = self._pyramid
        scale, measured = self._next(
            mean,
            sums,
            lagged,
            begin,
            self._grid,
            first,
            np.array(edges, dtype=np.int64),
            float(onset),
            least_rows,
            min_windows,
            self._limits,
            *_tables(_MOST_CELLS),
            spread,
        )
        return int(scale), int(measured)
