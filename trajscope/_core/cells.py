"""Cell means on a dyadic pyramid, and linear contrasts of them at all positions.

A series is halved again and again: level ``j`` holds the means of ``2**j`` neighbouring rows. A contrast that spans
``2 M`` cells, evaluated at every cell boundary of every level, costs ``O(n M)`` over all levels, since the levels
shrink geometrically. Every contrast here is a least-squares coefficient in a small regression on the window, so it
is a fixed weight vector: the coefficient of the regressor after the nuisance polynomial has been projected out.

Shapes: a level is ``(n_cells,)``; filters are ``(2 M, n_filters)``; contrasts ``(n_cells - 2 M + 1, n_filters)``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

__all__ = ["cell_autocovariance", "halve", "sliding_contrasts", "studentised_contrasts", "window_filter"]

Floats = NDArray[np.float64]
_CHUNK = 8192
_LONG = 30_000


def halve(level: Floats) -> Floats:
    """Means of neighbouring pairs along the first axis; an odd last cell is dropped.

    >>> halve(np.array([1.0, 3.0, 5.0, 7.0, 9.0]))
    array([2., 6.])
    """
    even = level.shape[0] // 2 * 2
    return np.asarray(0.5 * (level[0:even:2] + level[1:even:2]))


@lru_cache(maxsize=4096)
def window_filter(left: int, right: int, degree: int, shape: str) -> Floats:
    """Weights of the least-squares coefficient of a step or a kink inside a window of ``left + right`` cells.

    Parameters
    ----------
    left, right : int
        Cells before and after the place of the change.
    degree : int
        Degree of the nuisance polynomial that is projected out.
    shape : {"step", "kink"}
        Regressor: the indicator of the right part, or ``max(x, 0)`` with ``x`` in cells (a change of slope).

    Returns
    -------
    ndarray, (left + right,)
        Weights ``w`` with ``w @ y`` the coefficient; read-only.

    Examples
    --------
    >>> w = window_filter(8, 8, 1, "step")
    >>> x = np.arange(16) - 7.5
    >>> round(float(w @ (3 + 2 * x + 5 * (x > 0))), 9)
    5.0
    """
    x = np.arange(left + right) - left + 0.5
    centred = 2 * np.arange(left + right) / max(left + right - 1, 1) - 1
    nuisance = np.polynomial.legendre.legvander(centred, degree)
    target = (x > 0).astype(float) if shape == "step" else np.maximum(x, 0.0)
    target = target - nuisance @ np.linalg.lstsq(nuisance, target, rcond=None)[0]
    weights = target / (target @ target)
    weights.setflags(write=False)
    return np.asarray(weights)


def sliding_contrasts(level: Floats, filters: Floats, stride: int = 1) -> Floats:
    """Apply each column of `filters` at every `stride`-th position of a level.

    Row ``i`` of the answer belongs to the window that begins at cell ``i * stride``.
    """
    width = filters.shape[0]
    if level.shape[0] < width:
        return np.empty((0, filters.shape[1]))
    windows = sliding_window_view(level, width)[::stride].T
    out = np.empty((windows.shape[1], filters.shape[1]))
    for start in range(0, windows.shape[1], _CHUNK):  # a copy with long rows: quicker to make and to multiply
        out[start : start + _CHUNK] = (filters.T @ np.ascontiguousarray(windows[:, start : start + _CHUNK])).T
    return out


def cell_autocovariance(autocovariance: Floats) -> Floats:
    """Autocovariance of pair means from that of the rows: lag ``k`` is ``(2 c(2k) + c(2k-1) + c(2k+1)) / 4``.

    >>> cell_autocovariance(np.array([1.0, 0.0, 0.0, 0.0]))
    array([0.5, 0. ])
    """
    c = np.concatenate([autocovariance, [0.0]])
    lags = np.arange((autocovariance.shape[0] + 1) // 2)
    return np.asarray((2 * c[2 * lags] + c[np.abs(2 * lags - 1)] + c[2 * lags + 1]) / 4)


_KERNEL: list[Callable[..., None]] = []


def studentised_contrasts(level: Floats, sums: Floats, filters: Floats, deviation: Floats, stride: int) -> Floats:
    """Contrasts at every `stride`-th position over their standard deviation.

    Parameters
    ----------
    level : ndarray, (n_cells,)
    sums : ndarray, (n_cells + 1,)
        Cumulative sum of the cells' variances, from 0.
    filters : ndarray, (width, 2)
    deviation : ndarray, (2,)
        Standard deviation of each contrast for unit noise.
    stride : int

    Returns
    -------
    ndarray, (n_windows, 2)

    Notes
    -----
    Long levels go through a compiled loop (one pass, no copies of windows); short ones do not wait for the compiler.
    """
    width = filters.shape[0]
    count = max(level.shape[0] - width, -1) // stride + 1
    if count >= _LONG:
        if not _KERNEL:
            from trajscope._core._cells_kernel import contrast_kernel

            _KERNEL.append(contrast_kernel)
        out = np.empty((count, 2))
        columns = np.ascontiguousarray(filters.T)
        _KERNEL[0](level, sums, columns[0] / deviation[0], columns[1] / deviation[1], stride, out)
        return out
    raw = sliding_contrasts(level, filters, stride)
    first = np.arange(raw.shape[0]) * stride
    scale = np.sqrt(np.maximum((sums[first + width] - sums[first]) / width, 1e-300))
    return np.asarray(raw / (scale[:, None] * deviation))
