"""Compiled kernels of `trajscope._core.rolling`, apart so that small inputs never import numba."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from trajscope._core.rolling import _expanding_median

__all__ = ["expanding_median_kernel", "trailing_order_stats"]

Floats = NDArray[np.float64]

expanding_median_kernel = njit(cache=True)(_expanding_median)


@njit(cache=True)
def _position(buffer: Floats, count: int, value: float) -> int:
    """First index of ``buffer[:count]`` (ascending) whose entry is not below ``value``."""
    low, high = 0, count
    while low < high:
        mid = (low + high) // 2
        if buffer[mid] < value:
            low = mid + 1
        else:
            high = mid
    return low


@njit(cache=True)
def _kth_deviation(buffer: Floats, count: int, centre: float, split: int, k: int) -> float:
    """k-th smallest (from 0) of ``|buffer - centre|``; ``split`` entries lie below ``centre``.

    Left deviations centre - buffer[split-1-i] and right ones buffer[split+j] - centre both ascend: bisect on i, the
    number taken from the left among the k+1 smallest.
    """
    right = count - split
    take = k + 1
    low = max(0, take - right)
    high = min(take, split)
    while low < high:
        i = (low + high) // 2
        j = take - i
        # too few from the left if the next left deviation is below the last right one
        if centre - buffer[split - 1 - i] < buffer[split + j - 1] - centre:
            low = i + 1
        else:
            high = i
    i, j = low, take - low
    best = -np.inf
    if i > 0:
        best = centre - buffer[split - i]
    if j > 0:
        best = max(best, buffer[split + j - 1] - centre)
    return best


@njit(cache=True)
def trailing_order_stats(
    values: Floats, window: int, min_count: int, include: bool, prob: float, want_mad: bool
) -> tuple[Floats, Floats]:
    """Quantile and MAD of trailing windows in one pass; NaN is missing."""
    n = values.size
    location = np.full(n, np.nan)
    mad = np.full(n, np.nan)
    buffer = np.empty(window + 1)
    count = 0
    for t in range(n):
        entering = t if include else t - 1
        leaving = entering - window
        if leaving >= 0 and not np.isnan(values[leaving]):
            at = _position(buffer, count, values[leaving])
            for i in range(at, count - 1):
                buffer[i] = buffer[i + 1]
            count -= 1
        if entering >= 0 and not np.isnan(values[entering]):
            v = values[entering]
            at = _position(buffer, count, v)
            for i in range(count, at, -1):
                buffer[i] = buffer[i - 1]
            buffer[at] = v
            count += 1
        if count < min_count:
            continue
        where = prob * (count - 1)
        low = int(np.floor(where))
        high = min(low + 1, count - 1)
        weight = where - low
        centre = buffer[low] * (1 - weight) + buffer[high] * weight
        location[t] = centre
        if want_mad:
            split = _position(buffer, count, centre)
            k = (count - 1) // 2
            first = _kth_deviation(buffer, count, centre, split, k)
            if count % 2 == 0:
                mad[t] = 0.5 * (first + _kth_deviation(buffer, count, centre, split, k + 1))
            else:
                mad[t] = first
    return location, mad
