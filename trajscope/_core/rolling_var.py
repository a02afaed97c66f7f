r"""Vector autoregressions of trailing windows: every row its own matrix, in constant time whatever the window.

For the model :math:`x_t = c + A x_{t-1} + e_t` the matrix of the window is

.. math:: \hat A_\ell = S_{0\ell}\, S_{1\ell}^{-1}, \qquad
          S_{ij} = \sum_t (x_{t-i} - \bar x_i)(x_{t-j} - \bar x_j)^\top

over the tuples :math:`(x_t, \dots, x_{t-\ell})` that lie in the window whole. With :math:`\ell = 1` this is least
squares. With :math:`\ell = 2` the regressor is instrumented by the row before it: white noise on the observations
drops out of both products, while it pulls the eigenvalues of least squares towards zero (for one channel
:math:`\rho_2/\rho_1` against :math:`\rho_1`).

Rows are laid out in blocks as long as the number of tuples of a window, so that each window is a suffix of one block
and a prefix of the next: sums are never added and taken away again. Products are taken about the mean of the earlier
block. The answer at a row is the same to the last bit whatever follows.

Arrays are ``(n_steps, n_channels)``; NaN is missing, and a row that misses one channel makes no pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "VarWindows",
    "eigenvalue_order",
    "lagged_products",
    "overall_products",
    "rolling_eigenvalues",
    "rolling_var",
    "solve_var",
    "sorted_eigenvalues",
]

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]

_CELLS = 1 << 19
"""Cells of one product worked on at a time: memory stays bounded, the cache warm."""

MAX_CONDITION = 1e10
"""1-norm condition of the scaled matrix beyond which channels are collinear in the window and no matrix is given."""


@dataclass(frozen=True, eq=False)
class VarWindows:
    """Matrices of windows.

    Attributes
    ----------
    rows : ndarray of int, shape (m,)
        Last row of each window.
    matrix : ndarray, shape (m, k, k)
        NaN where the window has too few tuples, a channel does not vary, or channels are collinear.
    count : ndarray, shape (m,)
        Tuples behind each.
    products : dict of (int, int) to ndarray, shape (m, k, k)
        The centred sums :math:`S_{ij}` that were asked for.
    """

    rows: Ints
    matrix: Floats
    count: Floats
    products: dict[tuple[int, int], Floats]


def _tuples(x: Floats, lag: int, linked: Bools | None) -> Bools:
    """Rows at which x_t, ..., x_{t-lag} are all seen and follow each other."""
    n = x.shape[0]
    seen: Bools = np.asarray(np.isfinite(x).all(axis=1))
    follows = np.ones(n, dtype=bool) if linked is None else np.asarray(linked, dtype=bool).copy()
    valid: Bools = seen.copy()
    valid[:lag] = False
    for i in range(lag):
        valid[lag:] &= seen[lag - i - 1 : n - i - 1] & follows[lag - i : n - i]
    return valid


def _laid(values: Floats, length: int, count: int) -> Floats:
    """(n, k) into (k, count, length), NaN after the last row."""
    n, k = values.shape
    out = np.full((k, count * length), np.nan)
    out[:, :n] = values.T
    return out.reshape(k, count, length)


def _over_window(old: Floats, new: Floats) -> Floats:
    """Sums over the window that ends with each row of the new block; the last axis is the block."""
    out = np.cumsum(new, axis=-1)
    out[..., :-1] += np.cumsum(old[..., :0:-1], axis=-1)[..., ::-1]
    return out


def lagged_products(
    x: Floats,
    window: int,
    pairs: Sequence[tuple[int, int]] = ((0, 0), (0, 1), (1, 1)),
    *,
    linked: Bools | None = None,
    rows: Ints | None = None,
) -> tuple[Floats, dict[tuple[int, int], Floats]]:
    """Centred sums of lagged products over trailing windows.

    Parameters
    ----------
    x : ndarray, shape (n_steps, n_channels)
        NaN is missing.
    window : int
        Rows of a window, its last row included; more than the largest lag.
    pairs : sequence of (int, int)
        Lags *i, j*: the sum of :math:`x_{t-i} x_{t-j}^T`. All of them use the same tuples, those of the largest lag.
    linked : ndarray of bool, shape (n_steps,), optional
        Whether row *t* follows row *t - 1* (no gap, no boundary).
    rows : ndarray of int, shape (m,), optional
        Ascending last rows of the windows that are wanted; all by default.

    Returns
    -------
    count : ndarray, shape (m,)
        Tuples in each window, at most ``window - lag``.
    products : dict of (int, int) to ndarray, shape (m, k, k)

    Examples
    --------
    >>> count, s = lagged_products(np.array([[1.0], [2.0], [4.0]]), 3)
    >>> count.tolist(), s[0, 1][-1].tolist()
    ([0.0, 1.0, 2.0], [[1.0]])
    """
    n, k = x.shape
    lag = max(max(p) for p in pairs)
    wanted = np.arange(n) if rows is None else np.asarray(rows, dtype=np.intp)
    length = window - lag
    valid = _tuples(x, lag, linked) if n > lag else np.zeros(n, dtype=bool)
    counts = np.zeros(wanted.size)
    out = {p: np.zeros((wanted.size, k, k)) for p in pairs}
    if not valid.any():
        return counts, out
    blocks = -(-n // length)
    first = int(np.argmax(valid))
    origin = x[first]
    sides: dict[int, Floats] = {}
    for side in {s for p in pairs for s in p}:
        moved = np.full((n, k), np.nan)
        moved[lag:] = x[lag - side : n - side]
        moved[~valid] = np.nan
        # one empty block before the first, so that each has a predecessor
        sides[side] = np.concatenate([np.full((k, 1, length), np.nan), _laid(moved, length, blocks)], axis=1)
    seen = np.concatenate(
        [np.zeros((1, length)), np.pad(valid.astype(np.float64), (0, blocks * length - n)).reshape(blocks, length)]
    )
    reference = _references(sides[min(sides)], seen, origin)
    step = max(1, _CELLS // (k * length))
    for start in range(0, blocks, step):
        stop = min(start + step, blocks)
        low, high = np.searchsorted(wanted, [start * length, stop * length])
        if low == high:
            continue
        place = wanted[low:high] - start * length
        number = _over_window(seen[start:stop], seen[start + 1 : stop + 1]).reshape(-1)[place]
        counts[low:high] = number
        safe = np.maximum(number, 1.0)
        parts: dict[int, tuple[Floats, Floats]] = {}
        sums: dict[int, Floats] = {}
        for side, laid in sides.items():
            both = [laid[:, start + o : stop + o] - reference[:, start:stop, None] for o in (0, 1)]
            for z in both:
                z[np.isnan(z)] = 0.0
            parts[side] = both[0], both[1]
            sums[side] = _over_window(*both).reshape(k, -1)[:, place]
        for i, j in pairs:
            target = out[i, j][low:high]
            for a in range(k):
                for b in range(a if i == j else 0, k):
                    total = _over_window(parts[i][0][a] * parts[j][0][b], parts[i][1][a] * parts[j][1][b])
                    raw = total.reshape(-1)[place]
                    value = raw - sums[i][a] * sums[j][b] / safe
                    if i == j and a == b:  # this far below the raw sum there is only rounding
                        value[value <= 1e-13 * raw] = 0.0
                    target[:, a, b] = value
                    if i == j:
                        target[:, b, a] = value
    return counts, out


def overall_products(
    x: Floats, pairs: Sequence[tuple[int, int]], *, linked: Bools | None = None
) -> tuple[float, dict[tuple[int, int], Floats]]:
    """As `lagged_products` of one window over all rows, by matrix products; each of shape (k, k).

    Examples
    --------
    >>> count, s = overall_products(np.array([[1.0], [2.0], [4.0]]), [(0, 1)])
    >>> count, s[0, 1].tolist()
    (2.0, [[1.0]])
    """
    lag, k = max(max(p) for p in pairs), x.shape[1]
    at = np.flatnonzero(_tuples(x, lag, linked)) if x.shape[0] > lag else np.empty(0, dtype=np.intp)
    if not at.size:
        return 0.0, {p: np.zeros((k, k)) for p in pairs}
    sides = {i: x[at - i] for i in {s for p in pairs for s in p}}
    centred = {i: rows - rows.mean(axis=0) for i, rows in sides.items()}
    return float(at.size), {(i, j): centred[i].T @ centred[j] for i, j in pairs}


def _references(laid: Floats, seen: Floats, origin: Floats) -> Floats:
    """What each pair of blocks is measured from, (k, n_blocks): the mean of the earlier, or of the last not empty."""
    count = laid.shape[1]
    number = seen.sum(axis=1)[: count - 1]
    total = np.where(np.isnan(laid[:, :-1]), 0.0, laid[:, :-1] - origin[:, None, None]).sum(axis=-1)
    mean = origin[:, None] + total / np.maximum(number, 1.0)
    latest = np.maximum.accumulate(np.where(number > 0, np.arange(count - 1), -1))
    return np.where(latest >= 0, mean[:, np.maximum(latest, 0)], origin[:, None])


def solve_var(top: Floats, bottom: Floats, scale: Floats | None = None) -> Floats:
    """``top @ inv(bottom)`` for stacks of matrices; NaN where the scaled ``bottom`` is singular or nearly so.

    Parameters
    ----------
    top, bottom : ndarray, shape (m, k, k)
    scale : ndarray, shape (m, k), optional
        Sizes of the channels; roots of the absolute diagonal of ``bottom`` by default.

    Examples
    --------
    >>> solve_var(np.eye(2)[None], 2 * np.eye(2)[None])[0].tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    k = bottom.shape[-1]
    size = np.sqrt(np.abs(np.diagonal(bottom, axis1=1, axis2=2))) if scale is None else scale
    bad: Bools = np.asarray(~(np.isfinite(size) & (size > 0)).all(axis=1))
    size = np.where(bad[:, None], 1.0, size)
    scaled = bottom / (size[:, :, None] * size[:, None, :])
    bad |= ~np.isfinite(scaled).all(axis=(1, 2))
    scaled[bad] = np.eye(k)
    bad |= np.linalg.det(scaled) == 0
    scaled[bad] = np.eye(k)
    inverse = np.linalg.inv(scaled)
    norm = np.abs(scaled).sum(axis=1).max(axis=1) * np.abs(inverse).sum(axis=1).max(axis=1)
    bad |= ~(norm < MAX_CONDITION)
    out: Floats = (top / size[:, None, :]) @ inverse / size[:, None, :]
    out[bad] = np.nan
    return out


def rolling_var(
    x: Floats,
    window: int,
    *,
    lag: int = 1,
    min_count: int | None = None,
    linked: Bools | None = None,
    rows: Ints | None = None,
    pairs: Sequence[tuple[int, int]] = (),
) -> VarWindows:
    """Matrix of every trailing window, by least squares (``lag=1``) or the lagged instrument (``lag=2``).

    Parameters
    ----------
    x : ndarray, shape (n_steps, n_channels)
        NaN is missing.
    window : int
        Rows of a window.
    lag : int, default 1
        Lag of the instrument.
    min_count : int, optional
        Tuples needed for a matrix; half of a full window by default, and never fewer than ``2 k + 2``.
    linked : ndarray of bool, shape (n_steps,), optional
        Whether row *t* follows row *t - 1*.
    rows : ndarray of int, optional
        Last rows of the windows that are wanted.
    pairs : sequence of (int, int)
        Further products to hand back.

    Returns
    -------
    VarWindows

    Examples
    --------
    >>> x = 0.5 ** np.arange(12.0)[:, None]
    >>> float(rolling_var(x, 10).matrix[-1, 0, 0].round(9))
    0.5
    """
    k = x.shape[1]
    least = max(2 * k + 2, (window - lag + 1) // 2 if min_count is None else min_count)
    needed = dict.fromkeys([(0, lag), (1, lag), *pairs])
    place = np.arange(x.shape[0]) if rows is None else np.asarray(rows, dtype=np.intp)
    count, products = lagged_products(x, window, list(needed), linked=linked, rows=place)
    matrix = np.full((place.size, k, k), np.nan)
    enough = count >= least
    if enough.any():
        size = None
        if lag != 1 and (1, 1) in products:
            size = np.sqrt(np.diagonal(products[1, 1][enough], axis1=1, axis2=2))
        matrix[enough] = solve_var(products[0, lag][enough], products[1, lag][enough], size)
    return VarWindows(place, matrix, count, products)


def sorted_eigenvalues(matrix: Floats) -> Complexes:
    """Eigenvalues of a stack of matrices, largest modulus first; of a conjugate pair the one above the axis first.

    Moduli that agree within 1e-9 are ordered by real, then imaginary part, so that rounding does not decide.

    Parameters
    ----------
    matrix : ndarray, shape (m, k, k)
        A matrix with NaN gives NaN.

    Examples
    --------
    >>> sorted_eigenvalues(np.array([[[0.2, 0.0], [1.0, -0.9]]])).real.round(9).tolist()
    [[-0.9, 0.2]]
    """
    m, k = matrix.shape[:2]
    out = np.full((m, k), np.nan + 0j)
    good = np.isfinite(matrix).all(axis=(1, 2))
    if not good.any():
        return out
    if k == 1:
        out[good] = matrix[good][:, :, 0]
        return out
    out[good] = np.asarray(np.linalg.eigvals(matrix[good]), dtype=np.complex128)
    order = eigenvalue_order(out)
    return np.take_along_axis(out, order, axis=1)


def eigenvalue_order(values: Complexes) -> Ints:
    """The order of `sorted_eigenvalues`, shape (m, k)."""
    modulus = np.abs(values)
    largest = np.nanmax(modulus, axis=1, keepdims=True, initial=0.0)
    tied = np.round(modulus / np.where(largest > 0, largest, 1.0), 9)
    return np.lexsort((-values.imag, -np.round(values.real, 9), -tied), axis=1).astype(np.intp)


def rolling_eigenvalues(
    x: Floats,
    window: int,
    *,
    lag: int = 1,
    min_count: int | None = None,
    linked: Bools | None = None,
    rows: Ints | None = None,
) -> Complexes:
    """Eigenvalues of `rolling_var`, shape (m, k), largest modulus first; the dominant one is column 0.

    Examples
    --------
    >>> x = (-0.8) ** np.arange(20.0)[:, None]
    >>> bool(np.isclose(rolling_eigenvalues(x, 10)[-1, 0], -0.8))
    True
    """
    found = rolling_var(x, window, lag=lag, min_count=min_count, linked=linked, rows=rows)
    return sorted_eigenvalues(found.matrix)
