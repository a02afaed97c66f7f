r"""Causal rolling location and scale over trailing windows, aware of missing values.

At row *t* a trailing window of ``window`` rows is

.. math:: [t - \text{window},\; t) \quad\text{or, with ``include=True``,}\quad (t - \text{window},\; t],

so nothing later than *t* is ever used. The first rows see a shorter window. Non-finite cells are missing: they take
a place in the window but no part in the statistic; a window with fewer than ``min_count`` finite cells gives NaN.

Median and median absolute deviation come from a sorted copy of the window: for little work the windows are laid side
by side and sorted (numpy, no compilation), for much work one sorted buffer is updated row by row by binary search
(numba, :math:`O(n\,w)` moves of memory but one pass, about 0.3 s per million rows at ``window=100``). Given the
sorted window, the k-th smallest :math:`|x_i - m|` is found by bisection on how many come from the left of *m*.

Mean and standard deviation use block sums: a window of *w* rows is a suffix of one block of *w* rows and a prefix of
the next, both taken relative to a reference inside the blocks, so that no long-gone outlier is ever added and
subtracted again (a running sum over a spike of 1e9 leaves 1e-7 behind for ever).
"""

from __future__ import annotations

import bisect
import heapq
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope.errors import InputError

__all__ = [
    "MAD_TO_SD",
    "by_numpy",
    "expanding_median",
    "trailing_count",
    "trailing_mean_std",
    "trailing_median",
    "trailing_median_mad",
    "trailing_quantile",
    "use_kernels",
]

Floats = NDArray[np.float64]

MAD_TO_SD = 1.4826
"""1 / Phi^-1(3/4): makes the median absolute deviation estimate the standard deviation of a normal."""

_NUMPY_LIMIT = 4_000_000
"""Cells (rows x window) of one call up to which numpy does it: about 0.15 s, less than loading a cached kernel."""

_WARM_LIMIT = 60_000_000
"""Cells of all calls of this process after which numpy has cost more than even a compilation would: from then on the
kernel does everything. Both give the same bits."""

_LIST_WINDOW = 64
"""Window from which one sorted list is quicker than sorting every window."""

_HEAP_CELLS = 80
"""Cells of a rolling window that cost as much as one row of the expanding median in plain Python: about 2 us."""

_SUM_CELLS = 40
"""The same for the trailing mean and standard deviation in numpy."""


_cells_so_far = 0.0


def use_kernels() -> None:
    """Take the compiled kernel from now on: for who knows that much is to come."""
    global _cells_so_far
    _cells_so_far = float("inf")


def by_numpy(cells: int) -> bool:
    """Whether numpy should do a call of so many cells (rows x window), or a kernel that is compiled or loaded."""
    global _cells_so_far
    _cells_so_far += cells
    return cells <= _NUMPY_LIMIT and _cells_so_far <= _WARM_LIMIT


def _check(x: ArrayLike, window: int, min_count: int) -> Floats:
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1:
        raise InputError(f"x has shape {values.shape}; a rolling statistic takes one channel, shape (n_steps,).")
    if window < 1:
        raise InputError(f"window is {window}; expected a number of rows, at least 1.")
    if not 1 <= min_count <= window:
        raise InputError(f"min_count is {min_count}; expected 1 to window ({window}).")
    return values


def _windows(values: Floats, window: int, include: bool) -> Floats:
    """Lay the trailing window of every row side by side: a read-only view of shape (n_steps, window)."""
    lead = window - 1 if include else window
    padded = np.concatenate([np.full(lead, np.nan), values])
    return np.lib.stride_tricks.sliding_window_view(padded, window)[: values.size]


def _sorted_stats(block: Floats, min_count: int, prob: float, want_mad: bool) -> tuple[Floats, Floats]:
    """Quantile ``prob`` (linear between order statistics) and MAD of each row of ``block``; NaN is missing."""
    ordered = np.sort(block, axis=1)  # NaN goes last
    count = np.count_nonzero(~np.isnan(ordered), axis=1)
    rows = np.arange(block.shape[0])
    short = count < min_count
    last = np.maximum(count - 1, 0)
    at = prob * last
    low = np.floor(at).astype(np.intp)
    high = np.minimum(low + 1, last)
    weight = at - low
    location = ordered[rows, low] * (1 - weight) + ordered[rows, high] * weight
    location[short] = np.nan
    if not want_mad:
        return location, location
    deviation = np.sort(np.abs(block - location[:, None]), axis=1)
    mad = 0.5 * (deviation[rows, last // 2] + deviation[rows, last - last // 2])
    mad[short] = np.nan
    return location, mad


def _numpy_stats(
    values: Floats, window: int, min_count: int, include: bool, prob: float, want_mad: bool
) -> tuple[Floats, Floats]:
    windows = _windows(values, window, include)
    location = np.empty(values.size)
    mad = np.empty(values.size)
    step = max(1, 500_000 // window)  # 4 MB a block
    for start in range(0, values.size, step):
        part = slice(start, start + step)
        location[part], mad[part] = _sorted_stats(windows[part], min_count, prob, want_mad)
    return location, mad


def _sorted_list_quantile(values: Floats, window: int, min_count: int, include: bool, prob: float) -> Floats:
    """Quantile by one sorted list that a row enters and leaves by bisection: about 2 us a row whatever the window."""
    listed = values.tolist()
    ordered: list[float] = []
    out = np.full(values.size, np.nan)
    for t, value in enumerate(listed):
        if include and value == value:
            bisect.insort(ordered, value)
        count = len(ordered)
        if count >= min_count:
            at = prob * (count - 1)
            low = int(at)
            weight = at - low
            out[t] = ordered[low] * (1 - weight) + ordered[min(low + 1, count - 1)] * weight
        if not include and value == value:
            bisect.insort(ordered, value)
        leaving = t + include - window
        if leaving >= 0 and listed[leaving] == listed[leaving]:
            del ordered[bisect.bisect_left(ordered, listed[leaving])]
    return out


def _stats(
    x: ArrayLike, window: int, min_count: int, include: bool, prob: float, want_mad: bool
) -> tuple[Floats, Floats]:
    values = _check(x, window, min_count)
    values = np.where(np.isfinite(values), values, np.nan)
    if not values.size:
        return values, values
    if by_numpy(values.size * min(window, values.size)):
        if not want_mad and window >= _LIST_WINDOW:
            location = _sorted_list_quantile(values, window, min_count, include, prob)
            return location, location
        window = max(1, min(window, values.size))
        return _numpy_stats(values, window, min_count, include, prob, want_mad)
    from trajscope._core._rolling_kernels import trailing_order_stats

    return trailing_order_stats(values, window, min_count, include, prob, want_mad)


def trailing_median(x: ArrayLike, window: int, *, min_count: int = 1, include: bool = False) -> Floats:
    """Median of the trailing window.

    Parameters
    ----------
    x : array_like, shape (n_steps,)
        One channel; non-finite cells are missing.
    window : int
        Rows in the window.
    min_count : int, default 1
        Finite cells needed, otherwise NaN.
    include : bool, default False
        Whether the window ends with row *t* itself or with the row before.

    Returns
    -------
    ndarray, shape (n_steps,)
        NaN where the window holds fewer than ``min_count`` finite cells.

    Raises
    ------
    InputError
        If ``x`` is not one-dimensional, or ``window`` or ``min_count`` is out of range.

    Examples
    --------
    >>> trailing_median([1.0, 2.0, 9.0, 3.0], 3)
    array([nan, 1. , 1.5, 2. ])
    """
    return _stats(x, window, min_count, include, 0.5, False)[0]


def trailing_quantile(x: ArrayLike, window: int, prob: float, *, min_count: int = 1, include: bool = False) -> Floats:
    """Quantile ``prob`` of the trailing window, linear between order statistics (arguments: `trailing_median`).

    Examples
    --------
    >>> trailing_quantile([1.0, 2.0, 9.0, 3.0], 3, 1.0)
    array([nan,  1.,  2.,  9.])
    """
    if not 0 <= prob <= 1:
        raise InputError(f"prob is {prob}; expected a probability between 0 and 1.")
    return _stats(x, window, min_count, include, float(prob), False)[0]


def trailing_median_mad(
    x: ArrayLike, window: int, *, min_count: int = 1, include: bool = False
) -> tuple[Floats, Floats]:
    """Median and median absolute deviation of the trailing window (arguments: `trailing_median`).

    The deviation is raw: multiply by `MAD_TO_SD` for a standard deviation.

    Returns
    -------
    median, mad : ndarray, shape (n_steps,)

    Examples
    --------
    >>> m, d = trailing_median_mad([1.0, 2.0, 9.0, 3.0], 3)
    >>> m, d
    (array([nan, 1. , 1.5, 2. ]), array([nan, 0. , 0.5, 1. ]))
    """
    return _stats(x, window, min_count, include, 0.5, True)


def trailing_count(x: ArrayLike, window: int, *, include: bool = False) -> NDArray[np.int64]:
    """Finite cells in the trailing window.

    Examples
    --------
    >>> trailing_count([1.0, float("nan"), 9.0, 3.0], 2)
    array([0, 1, 1, 1])
    """
    values = _check(x, window, 1)
    total = np.concatenate([[0], np.cumsum(np.isfinite(values), dtype=np.int64)])
    stop = np.arange(values.size) + (1 if include else 0)
    counts: NDArray[np.int64] = total[stop] - total[np.maximum(stop - window, 0)]
    return counts


def trailing_mean_std(x: ArrayLike, window: int, *, min_count: int = 2, include: bool = False) -> tuple[Floats, Floats]:
    """Mean and standard deviation (divisor n) of the trailing window (arguments: `trailing_median`).

    Returns
    -------
    mean, std : ndarray, shape (n_steps,)

    Examples
    --------
    >>> m, s = trailing_mean_std([1.0, 3.0, 9.0, 3.0], 2)
    >>> m, s
    (array([nan, nan,  2.,  6.]), array([nan, nan,  1.,  3.]))
    """
    values = _check(x, window, min(min_count, window))
    n = values.size
    if n == 0:
        return np.empty(0), np.empty(0)
    window = min(window, n + 1)
    good = np.isfinite(values)
    clean = np.where(good, values, 0.0)
    # Row t of the answer is the window that ends before position t (+1 if included) of the padded blocks.
    n_blocks = -(-(n + 1) // window)
    size = (n_blocks + 1) * window
    flat_values, flat_good = np.zeros(size), np.zeros(size)
    flat_values[window : window + n] = clean
    flat_good[window : window + n] = good
    v, g = flat_values.reshape(-1, window), flat_good.reshape(-1, window)
    old, new, g_old, g_new = v[:-1], v[1:], g[:-1], g[1:]
    # The reference of a block is the mean of the block before it (the last one that had any finite cell; at first
    # the first finite value), so that not even the rounding depends on later rows.
    n_old = g_old.sum(1)
    usable = n_old > 0
    means = old.sum(1) / np.maximum(n_old, 1.0)
    latest = np.maximum.accumulate(np.where(usable, np.arange(n_old.size), -1))
    start = float(clean[np.argmax(good)])
    reference = np.where(latest >= 0, means[np.maximum(latest, 0)], start)
    if not by_numpy(_SUM_CELLS * n):
        from trajscope._core._rolling_kernels import trailing_mean_std_kernel

        return trailing_mean_std_kernel(values, reference, window, min(min_count, window), include)
    ref = reference[:, None]

    def over_window(a: Floats, b: Floats) -> Floats:
        # entry j: suffix of a from j on, plus prefix of b of length j
        suffix = np.cumsum(a[:, ::-1], axis=1)[:, ::-1]
        prefix = np.zeros_like(b)
        np.cumsum(b[:, :-1], axis=1, out=prefix[:, 1:])
        return (suffix + prefix).ravel()

    count = over_window(g_old, g_new)
    d_old, d_new = (old - ref) * g_old, (new - ref) * g_new
    first = over_window(d_old, d_new)
    second = over_window(d_old**2, d_new**2)
    pick = np.arange(n) + (1 if include else 0)
    count, first, second = count[pick], first[pick], second[pick]
    short = count < min_count
    safe = np.maximum(count, 1.0)
    centre = first / safe
    mean = centre + np.repeat(ref.ravel(), window)[pick]
    std = np.sqrt(np.maximum(second / safe - centre**2, 0.0))
    mean[short] = np.nan
    std[short] = np.nan
    return mean, std


def _expanding_median(values: Any, out: Any) -> Any:
    """Median of all finite ``values[:t]`` at each t, by a heap for each half. Plain Python that numba compiles too."""
    low = [0.0]  # negated: its root is the largest of the lower half
    low.pop()
    high = [0.0]
    high.pop()
    for t in range(values.size):
        if len(low) == 0:
            out[t] = np.nan
        elif len(low) > len(high):
            out[t] = -low[0]
        else:
            out[t] = 0.5 * (high[0] - low[0])
        v = values[t]
        if not np.isfinite(v):
            continue
        if len(low) == 0 or v <= -low[0]:
            heapq.heappush(low, -v)
        else:
            heapq.heappush(high, v)
        # invariant: len(high) <= len(low) <= len(high) + 1
        if len(low) > len(high) + 1:
            heapq.heappush(high, -heapq.heappop(low))
        elif len(high) > len(low):
            heapq.heappush(low, -heapq.heappop(high))
    return out


def expanding_median(x: ArrayLike) -> Floats:
    """Median of all finite rows before *t* (NaN while there are none).

    Parameters
    ----------
    x : array_like, shape (n_steps,)

    Returns
    -------
    ndarray, shape (n_steps,)

    Examples
    --------
    >>> expanding_median([4.0, 2.0, float("nan"), 9.0, 0.0])
    array([nan,  4.,  3.,  3.,  4.])
    """
    values = _check(x, 1, 1)
    if by_numpy(values.size * _HEAP_CELLS):
        out: Floats = _expanding_median(values, np.empty(values.size))
        return out
    from trajscope._core._rolling_kernels import expanding_median_kernel

    out = expanding_median_kernel(values, np.empty(values.size))
    return out
