"""Compiled part of `trajscope.detect.changepoints.screen`, apart so that a single series never imports numba.

Sums are formed in whatever order is quick, so no number of this file is a result: it says where one may be.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["next_scale", "pyramid"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_ROUNDING = 1e-13
"""Error of a contrast over (largest cell x sum of absolute weights): 46 products and sums, with room."""
_CLOSE = 1e-8
"""Relative error of what a contrast is divided by, with room."""
_MOST = 20_000


@njit(cache=True)
def pyramid(
    y: Floats, variance: Floats, covariance: Floats, levels: int
) -> tuple[Floats, Floats, Floats, Floats, Ints]:
    """Cells, variances, cumulative variances and autocovariances of all levels, end to end; where each begins.

    The cumulative variances of a level have one entry more than it has cells; beginnings are ``(3, levels + 1)``.
    """
    n, m = y.shape[0], covariance.shape[0]
    begin = np.zeros((3, levels + 1), np.int64)
    for j in range(levels):
        begin[0, j + 1] = begin[0, j] + (n >> j)
        begin[1, j + 1] = begin[1, j] + (n >> j) + 1
        begin[2, j + 1] = begin[2, j] + m
        m = (m + 1) // 2
    mean, own = np.empty(begin[0, levels]), np.empty(begin[0, levels])
    sums, lagged = np.zeros(begin[1, levels]), np.zeros(begin[2, levels])
    mean[:n], own[:n], lagged[: covariance.shape[0]] = y, variance, covariance
    for j in range(levels):
        at, size = begin[0, j], n >> j
        if j > 0:
            above = begin[0, j - 1]
            for i in range(size):
                mean[at + i] = 0.5 * (mean[above + 2 * i] + mean[above + 2 * i + 1])
                own[at + i] = 0.5 * (own[above + 2 * i] + own[above + 2 * i + 1])
            above, stop, here = begin[2, j - 1], begin[2, j], begin[2, j]
            for k in range(begin[2, j + 1] - here):
                before, after = abs(2 * k - 1), 2 * k + 1
                total = 2 * lagged[above + 2 * k]
                total += lagged[above + before] if above + before < stop else 0.0
                total += lagged[above + after] if above + after < stop else 0.0
                lagged[here + k] = total / 4
        total, at2 = 0.0, begin[1, j]
        for i in range(size):
            total += own[at + i]
            sums[at2 + i + 1] = total
    return mean, own, sums, lagged, begin


@njit(cache=True)
def _deviation(lags: Floats, covariance: Floats) -> float:
    total = 0.0
    for k in range(min(lags.shape[0], covariance.shape[0])):
        total += lags[k] * covariance[k]
    return math.sqrt(max(total, 1e-300))


@njit(cache=True)
def _deviation_of(weights: Floats, covariance: Floats) -> float:
    width, total = weights.shape[0], 0.0
    for k in range(min(width, covariance.shape[0])):
        lag = 0.0
        for i in range(width - k):
            lag += weights[i] * weights[i + k]
        total += (lag if k == 0 else 2 * lag) * covariance[k]
    return math.sqrt(max(total, 1e-300))


@njit(cache=True, fastmath={"reassoc", "contract"})
def _products(cells: Floats, start: int, width: int, one: Floats, two: Floats) -> tuple[float, float]:
    a, b = 0.0, 0.0
    for i in range(width):
        x = cells[start + i]
        a += one[i] * x
        b += two[i] * x
    return a, b


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def _even(
    cells: Floats, sums: Floats, half: int, step: int, filters: Floats, split: Floats, inverse: Floats, z: Floats
) -> float:
    """``J1`` and ``K1`` of all even windows, in sd and without sign, into ``z``; the largest inverse scale.

    Window by window a sum over cells is a chain of additions; cell by cell it is one operation on many windows. With
    a step of 2 the even and the odd cells are laid apart (``split``), so that neighbouring windows are neighbours.
    """
    n, width = cells.shape[0], 2 * half
    count = (n - width) // step + 1
    one, two = z[0], z[1]
    one[:count] = 0.0
    two[:count] = 0.0
    if step == 2:
        for i in range((n + 1) // 2):
            split[0, i] = cells[2 * i]
        for i in range(n // 2):
            split[1, i] = cells[2 * i + 1]
    for k in range(half):
        last = width - 1 - k
        # the step's filter is odd and the kink's is even about the middle
        a, b = filters[0, last], filters[1, last]
        if step == 2:
            left, right = split[k % 2, k // 2 : k // 2 + count], split[last % 2, last // 2 : last // 2 + count]
        else:
            left, right = cells[k : k + count], cells[last : last + count]
        for i in range(count):
            x, y = left[i], right[i]
            one[i] += a * (y - x)
            two[i] += b * (y + x)
    largest = 0.0
    for i in range(count):
        start = i * step
        scale = 1 / math.sqrt(max((sums[start + width] - sums[start]) / width, 1e-300))
        one[i] = abs(one[i]) * (scale * inverse[0])
        two[i] = abs(two[i]) * (scale * inverse[1])
        largest = max(largest, scale)
    return largest


@njit(cache=True)
def _absolute_median(values: Floats, count: int, every: int, held: Floats) -> float:
    size = 0
    for i in range(0, count, every):
        held[size] = abs(values[i])
        size += 1
    return float(np.median(held[:size]))


@njit(cache=True)
def _windows(
    n_cells: int,
    q: int,
    cells: int,
    step: int,
    least_rows: int,
    edges: Ints,
    onset: float,
    out: Ints,
    free: NDArray[np.bool_],
) -> tuple[int, int]:
    """Start, left and right of all windows of a scale into ``out``, even ones first: their number, and of all.

    As `scan._plan` lists them.
    """
    count = 0
    possible = max(n_cells - 2 * cells + 1, 0)
    half, stretch = cells * q, q * step
    number = (possible + step - 1) // step
    free[:number] = True
    reach_rows = half if onset >= 1 else math.ceil(half / onset)
    for e in range(edges.shape[0] - 1):
        row = edges[e]
        low = row - half + 1 if row > 0 else 0
        a = max(-((half - low) // stretch), 0)  # ceil((low - half) / stretch)
        b = min(max(-((half - row - reach_rows) // stretch), 0), number)
        for i in range(a, b):
            free[i] = False
    for i in range(number):
        if free[i]:
            out[count, 0], out[count, 1], out[count, 2] = i * step, cells, cells
            count += 1
    even = count
    least = max(cells // 4, -(-least_rows // q))
    reach = math.ceil(cells / onset) if onset < 1 else cells
    for far in range(2):
        for e in range(edges.shape[0] - 1):
            a, b = -(-edges[e] // q), min(edges[e + 1] // q, n_cells)
            for k in range(1, cells if far else reach + 1):
                s = b - k if far else a + k
                if far and s <= a + reach:
                    continue
                left = min(cells, int((s - a) * onset)) if onset < 1 else min(cells, s - a)
                right = min(cells, b - s)
                if onset < 1:
                    right = min(right, 2 * (s - a))
                if min(left, right) < least or max(left, right) < 0.7 * cells or (left == cells and right == cells):
                    continue
                out[count, 0], out[count, 1], out[count, 2] = s - left, left, right
                count += 1
    return even, count


@njit(cache=True)
def _confirmed(
    cells: Floats, sums: Floats, covariance: Floats, window: Ints, sign: float, filters: Floats, limits: Floats
) -> bool:
    """Whether both confirmations of one window may pass."""
    start, left, right = window[0], window[1], window[2]
    width = left + right
    wide, narrow = _products(cells, start, width, filters[0], filters[1])
    bound_wide, bound_narrow, largest = 0.0, 0.0, 0.0
    for i in range(width):
        largest = max(largest, abs(cells[start + i]))
        bound_wide += abs(filters[0, i])
        bound_narrow += abs(filters[1, i])
    bound_wide *= _ROUNDING * largest
    bound_narrow *= _ROUNDING * largest
    if sign * narrow + bound_narrow < limits[3] * (abs(wide) - bound_wide):
        return False
    scale = math.sqrt(max((sums[start + width] - sums[start]) / width, 1e-300)) * (1 - _CLOSE)
    if sign * wide + bound_wide < limits[1] * scale * _deviation_of(filters[0, :width], covariance):
        return False
    return bool(sign * narrow + bound_narrow >= limits[2] * scale * _deviation_of(filters[1, :width], covariance))


@njit(cache=True, error_model="numpy")
def next_scale(
    mean: Floats,
    sums: Floats,
    lagged: Floats,
    begin: Ints,
    grid: Ints,
    first: int,
    edges: Ints,
    onset: float,
    least_rows: int,
    min_windows: int,
    limits: Floats,
    searching: Floats,
    search_lags: Floats,
    search_sizes: Floats,
    confirming: Floats,
    spread: Floats,
) -> tuple[int, int]:
    """The next scale that may hold a candidate, -1 where none does, and the last one whose noise was measured, or -1.

    Parameters
    ----------
    mean, sums, lagged, begin : ndarray
        Of `pyramid`.
    grid : ndarray of int, (n_scales, 2)
        Level and cells of each scale.
    first : int
        Scale to begin at.
    edges : ndarray of int
        0, known changes, n; in rows.
    limits : ndarray, (2, n_scales, 4)
        For level and slope: contrast (infinite where not asked), both confirmations, least ratio.
    searching, search_lags : ndarray, (m, m, 2, 2 m)
        Filters by cells on the left and on the right, and their lagged products.
    search_sizes : ndarray, (m, m, 2)
        Sums of the absolute weights.
    confirming : ndarray, (m, m, 4, 2 m)
    spread : ndarray, (2,)
        Measured noise of both contrasts at the scale before `first`; at least 1.
    """
    most = begin[0, 1] + 4 * edges.shape[0] * searching.shape[0]
    out, free = np.empty((most, 3), np.int64), np.empty(most, np.bool_)
    z, kept, held = np.empty((2, most)), np.empty((2, most)), np.empty(most)
    dense, split = np.empty(begin[0, 1] + 2), np.empty((2, begin[0, 1] // 2 + 1))
    carried = spread.copy()
    kept_count, kept_every, measured = 0, 1, -1
    stale, error, kept_error, top = np.zeros(2, np.bool_), np.zeros(2), np.zeros(2), np.zeros(2)
    inverse = np.empty(2)
    for j in range(first, grid.shape[0]):
        level, cells = grid[j, 0], grid[j, 1]
        q, step = 1 << level, (2 if cells >= 16 else 1)
        own = mean[begin[0, level] : begin[0, level + 1]]
        total = sums[begin[1, level] : begin[1, level + 1]]
        covariance = lagged[begin[2, level] : begin[2, level + 1]]
        n_cells = own.shape[0]
        even, count = _windows(n_cells, q, cells, step, least_rows, edges, onset, out, free)
        if count == 0:
            continue
        largest = 0.0
        for i in range(n_cells):
            largest = max(largest, abs(own[i]))
        largest *= _ROUNDING
        deviation0 = _deviation(search_lags[cells, cells, 0], covariance)
        deviation1 = _deviation(search_lags[cells, cells, 1], covariance)
        top[:] = 0.0
        error[:] = 0.0
        if even > 0:
            inverse[0], inverse[1] = 1 / deviation0, 1 / deviation1
            scale = _even(own, total, cells, step, searching[cells, cells], split, inverse, z)
            error[0] = search_sizes[cells, cells, 0] * scale * inverse[0]
            error[1] = search_sizes[cells, cells, 1] * scale * inverse[1]
            for i in range(even):  # only the free ones, in place: none moves to the right
                at = out[i, 0] // step
                z[0, i], z[1, i] = z[0, at], z[1, at]
                top[0], top[1] = max(top[0], z[0, i]), max(top[1], z[1, i])
        for i in range(even, count):
            start, left, right = out[i, 0], out[i, 1], out[i, 2]
            size = left + right
            a, b = _products(own, start, size, searching[left, right, 0], searching[left, right, 1])
            deviation0 = _deviation(search_lags[left, right, 0], covariance)
            deviation1 = _deviation(search_lags[left, right, 1], covariance)
            scale = 1 / math.sqrt(max((total[start + size] - total[start]) / size, 1e-300))
            z[0, i], z[1, i] = abs(a) * scale / deviation0, abs(b) * scale / deviation1
            error[0] = max(error[0], search_sizes[left, right, 0] * scale / deviation0)
            error[1] = max(error[1], search_sizes[left, right, 1] * scale / deviation1)
            top[0], top[1] = max(top[0], z[0, i]), max(top[1], z[1, i])
        error *= largest
        if even * q * step >= min_windows * 2 * cells * q:
            measured, kept_count, kept_every = j, even, max(even // _MOST, 1)
            stale[:] = True
            kept[:, :even] = z[:, :even]
            kept_error[:] = error
        for kind in range(2):
            limit = limits[kind, j, 0] * (1 - _CLOSE) - error[kind]
            if top[kind] <= limit:
                continue
            if stale[kind]:
                middle = _absolute_median(kept[kind], kept_count, kept_every, held) - kept_error[kind]
                carried[kind] = max(middle / 0.6745 * (1 - _CLOSE), 1.0)
                stale[kind] = False
            limit = limits[kind, j, 0] * carried[kind] * (1 - _CLOSE) - error[kind]
            if top[kind] <= limit:
                continue
            dense[: n_cells + 2] = -1.0
            for i in range(count):
                dense[out[i, 0] + out[i, 1]] = z[kind, i]
            for i in range(count):
                size, place = z[kind, i], out[i, 0] + out[i, 1]
                if size <= limit:
                    continue
                enough = size * (1 + _CLOSE) + 2 * error[kind]
                peak = True
                for k in range(max(place - cells + 1, 0), min(place + cells, n_cells + 2)):
                    if dense[k] > enough:
                        peak = False
                        break
                if not peak:
                    continue
                if kind == 1:
                    before, after = False, False
                    for k in range(max(place - 2 * step + 1, 0), place):
                        before = before or dense[k] >= 0
                    for k in range(place + 1, min(place + 2 * step, n_cells + 2)):
                        after = after or dense[k] >= 0
                    if not (before and after):
                        continue
                left, right = out[i, 1], out[i, 2]
                a, b = _products(own, out[i, 0], left + right, searching[left, right, 0], searching[left, right, 1])
                sign = 1.0 if (a if kind == 0 else b) > 0 else -1.0
                filters = confirming[left, right, 2 * kind : 2 * kind + 2]
                if _confirmed(own, total, covariance, out[i], sign, filters, limits[kind, j]):
                    return j, measured
    return -1, measured
