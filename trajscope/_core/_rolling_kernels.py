"""Compiled kernels of `trajscope._core.rolling`, apart so that small inputs never import numba."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from trajscope._core.rolling import _expanding_median

__all__ = ["expanding_median_kernel", "trailing_mean_std_kernel", "trailing_order_stats"]

Floats = NDArray[np.float64]

expanding_median_kernel = njit(cache=True)(_expanding_median)


@njit(cache=True)
def _slide(ordered: Floats, window: int, leaving: float, entering: float) -> None:
    """Replace one value of an ascending window by another.

    The buffer holds -inf, ``window`` values, +inf; missing values are +inf. Every entry is the median of itself, its
    neighbour and what enters, or stays: one pass without a branch, which the processor does several entries at a time.
    """
    if entering >= leaving:
        for i in range(1, window + 1):
            x, after = ordered[i], ordered[i + 1]
            up = entering if entering < after else after
            up = up if up > x else x
            ordered[i] = x if x < leaving else up
    else:
        for i in range(window, 0, -1):
            x, before = ordered[i], ordered[i - 1]
            down = entering if entering > before else before
            down = down if down < x else x
            ordered[i] = x if x > leaving else down


@njit(cache=True)
def _from_left(ordered: Floats, count: int, centre: float, split: int, take: int, guess: int) -> int:
    """How many of the ``take`` smallest ``|x - centre|`` lie left of ``centre``; ``split`` entries do in all.

    Left deviations and right ones both ascend from the centre. The walk starts at a guess, the number of the row
    before, which a window that has moved by one row leaves almost right.
    """
    low, high = max(0, take - (count - split)), min(take, split)
    i = min(max(guess, low), high)
    # one more from the left while the next left deviation is below the last right one
    while i < high and centre - ordered[split - i] < ordered[split + take - i] - centre:
        i += 1
    while i > low and not centre - ordered[split - i + 1] < ordered[split + take - i + 1] - centre:
        i -= 1
    return i


@njit(cache=True, error_model="numpy")
def trailing_order_stats(
    values: Floats, window: int, min_count: int, include: bool, prob: float, want_mad: bool
) -> tuple[Floats, Floats]:
    """Quantile and MAD of trailing windows in one pass; what is not finite is missing."""
    n = values.size
    location = np.full(n, np.nan)
    mad = np.full(n, np.nan)
    ordered = np.full(window + 2, np.inf)
    ordered[0] = -np.inf
    count, taken = 0, 0
    for t in range(n):
        entering = t if include else t - 1
        leaving = entering - window
        old, new = np.inf, np.inf
        if leaving >= 0 and np.isfinite(values[leaving]):
            old = values[leaving]
            count -= 1
        if entering >= 0 and np.isfinite(values[entering]):
            new = values[entering]
            count += 1
        if old != new:
            _slide(ordered, window, old, new)
        if count < min_count:
            continue
        where = prob * (count - 1)
        low = int(np.floor(where))
        high = min(low + 1, count - 1)
        weight = where - low
        centre = ordered[low + 1] * (1 - weight) + ordered[high + 1] * weight
        location[t] = centre
        if want_mad:
            split = high if weight > 0 else low
            while split > 0 and ordered[split] >= centre:
                split -= 1
            while split < count and ordered[split + 1] < centre:
                split += 1
            take = (count - 1) // 2 + 1
            taken = _from_left(ordered, count, centre, split, take, taken)
            i, j = taken, take - taken
            first = -np.inf
            if i > 0:
                first = centre - ordered[split - i + 1]
            if j > 0:
                first = max(first, ordered[split + j] - centre)
            if count % 2 == 0:
                second = np.inf
                if i < split:
                    second = centre - ordered[split - i]
                if j < count - split:
                    second = min(second, ordered[split + j + 1] - centre)
                mad[t] = 0.5 * (first + second)
            else:
                mad[t] = first
    return location, mad


@njit(cache=True, error_model="numpy")
def trailing_mean_std_kernel(
    values: Floats, reference: Floats, window: int, min_count: int, include: bool
) -> tuple[Floats, Floats]:
    """`trailing_mean_std` block by block, given the reference of each: the same sums in the same order."""
    n = values.size
    mean, std = np.full(n, np.nan), np.full(n, np.nan)
    first, second, counts = np.zeros(window + 1), np.zeros(window + 1), np.zeros(window + 1)
    for block in range(reference.size):
        # windows that begin in the block before and end in this one: a suffix of that and a prefix of this
        start, ref = (block - 1) * window, reference[block]
        for j in range(window - 1, -1, -1):
            i = start + j
            good = 0 <= i < n and np.isfinite(values[i])
            d = values[i] - ref if good else 0.0
            first[j] = first[j + 1] + d
            second[j] = second[j + 1] + d * d
            counts[j] = counts[j + 1] + (1.0 if good else 0.0)
        ahead, ahead2, more = 0.0, 0.0, 0.0
        for j in range(window):
            t = start + window + j  # the window ends before this row
            if 0 <= t - include < n:
                count = counts[j] + more
                if count >= min_count:
                    centre = (first[j] + ahead) / count
                    mean[t - include] = centre + ref
                    std[t - include] = np.sqrt(max((second[j] + ahead2) / count - centre * centre, 0.0))
            if t < n and np.isfinite(values[t]):
                d = values[t] - ref
                ahead += d
                ahead2 += d * d
                more += 1.0
    return mean, std
