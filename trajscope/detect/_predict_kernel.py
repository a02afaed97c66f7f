"""Compiled path of `trajscope.detect._predict`, apart so that small inputs never import numba.

Everything is done in the order of the numpy path, so both give the same bits; logarithms and the like, which libraries
round as they please, stay with numpy.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from trajscope._core._rolling_kernels import trailing_order_stats
from trajscope._core.rolling import MAD_TO_SD

__all__ = ["predict"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_LARGEST = np.finfo(np.float64).max


@njit(cache=True)
def _finite_or_zero(x: float) -> float:
    """`numpy.nan_to_num` of one number."""
    if np.isnan(x):
        return 0.0
    return min(max(x, -_LARGEST), _LARGEST)


@njit(cache=True)
def _counts(values: Floats, window: int) -> Ints:
    out = np.empty(values.size, dtype=np.int64)
    count = 0
    for t in range(values.size):
        out[t] = count
        count += np.isfinite(values[t])
        if t >= window:
            count -= np.isfinite(values[t - window])
    return out


@njit(cache=True, error_model="numpy")
def _location(y: Floats, half: int) -> Floats:
    n = y.size
    middle, _ = trailing_order_stats(y, 2 * half, 1, False, 0.5, False)
    halves, _ = trailing_order_stats(y, half, half // 2, False, 0.5, False)
    steps = np.empty(n)
    steps[0] = np.nan
    for t in range(1, n):
        steps[t] = y[t] - y[t - 1]
    _, deviation = trailing_order_stats(steps, 5 * half, half, False, 0.5, True)
    out = np.empty(n)
    for t in range(n):
        d = halves[t] - halves[t - half] if t >= half else np.nan
        noise = MAD_TO_SD * deviation[t] / np.sqrt(2)
        se2 = 1.57 * (noise * noise) * 2 / half
        shrink = 1 - 2 * (se2 / (d * d) if d != 0 else 1.0)
        if shrink < 0:
            shrink = 0.0
        out[t] = middle[t] + _finite_or_zero(d / half * (half + 0.5) * shrink)
    return out


@njit(cache=True, error_model="numpy")
def predict(
    y: Floats, left_out: NDArray[np.bool_], window: int, half: int, short: int
) -> tuple[Floats, Floats, Floats, Ints, Ints]:
    """Location, whitened residual, the kept part of it, counts of rows and of kept residuals."""
    n = y.size
    kept = y.copy()
    for t in range(n):
        if left_out[t]:
            kept[t] = np.nan
    location = _location(kept, half)
    r_kept = kept - location
    plus, minus = np.empty(n), np.empty(n)
    plus[0] = minus[0] = np.nan
    for t in range(1, n):
        plus[t] = r_kept[t] + r_kept[t - 1]
        minus[t] = r_kept[t] - r_kept[t - 1]
    _, rough = trailing_order_stats(r_kept, window, 3, False, 0.5, True)
    _, plus = trailing_order_stats(plus, window, short, False, 0.5, True)
    _, minus = trailing_order_stats(minus, window, short, False, 0.5, True)
    residuals = _counts(r_kept, window)
    e = np.empty(n)
    e_kept = np.empty(n)
    for t in range(n):
        p, m = plus[t] * plus[t], minus[t] * minus[t]
        total = p + m
        phi = (p - m) / total if total > 0 else 0.0
        if abs(phi) < 2 / np.sqrt(max(residuals[t], 1)):
            phi = 0.0
        phi = min(max(phi, -0.95), 0.95)
        bound = 2 * _finite_or_zero(MAD_TO_SD * rough[t])
        carried = min(max(_finite_or_zero(r_kept[t - 1]) if t > 0 else 0.0, -bound), bound)
        e[t] = y[t] - location[t] - phi * carried
        e_kept[t] = np.nan if left_out[t] else e[t]
    return location, e, e_kept, _counts(kept, window), _counts(e_kept, window)
