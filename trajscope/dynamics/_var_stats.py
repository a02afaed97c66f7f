r"""Matrices of windows, by four estimators, and what is read off them with standard errors.

Everything is in units of each channel's sd in the window, which leaves eigenvalues as they are and makes
non-normality independent of the units of a log.

Estimators, from the centred lagged products :math:`S_{ij}` of a window with *n* tuples:

- ``plain``: least squares, :math:`A = S_{01} S_{11}^{-1}`;
- ``instrument``: :math:`A = S_{02} S_{12}^{-1}`; white observation noise drops out;
- ``tls``: total least squares (Dawson et al. 2016, Hemati et al. 2017): :math:`A = U_2 U_1^{-1}` with the leading
  eigenvectors :math:`(U_1; U_2)` of the joint products of :math:`(x_{t-1}; x_t)`;
- ``fb``: forward-backward (Dawson et al. 2016): :math:`(A_f A_b^{-1})^{1/2}`, of each root the one nearer to
  :math:`A_f`.

The last two take all noise to sit on the observations; in noise-driven data they push eigenvalues to modulus 1.

Standard errors by the delta method. With right and left eigenvectors :math:`v_i, w_i` scaled to :math:`w_i^\top v_i =
1`, an error *dA* moves :math:`\lambda_i` by :math:`w_i^\top dA\, v_i`, and a quantity by :math:`\langle G, dA\rangle`:

.. math:: G_{|\lambda|} = \operatorname{Re}\bigl(\tfrac{\bar\lambda}{|\lambda|} w v^\top\bigr), \qquad
          G_\omega = u u^\top, \qquad
          G_H = 2A - 2\operatorname{Re}\textstyle\sum_i \bar\lambda_i w_i v_i^\top

(*u* the leading eigenvector of :math:`(A + A^\top)/2`), and with
:math:`H = G M^{-\top}`, *M* the mean product that was inverted, the variance is

.. math:: n^{-1}\bigl[\operatorname{tr}(H^\top E_0 H Z_0) + 2 \operatorname{tr}(H^\top E_1 H Z_1^\top)\bigr]

with autocovariances :math:`E_j` of the residuals and :math:`Z_j` of the instrument. For least squares residuals are
white and the second term is left out; for the instrument they are a moving average of order one wherever there is
observation noise, and it is kept.

Least squares is biased towards zero. To first order (Nicholls & Pope 1988)

.. math:: \mathrm{E}\hat A - A = -\tfrac1n\, E_0 \bigl[(I - A^\top)^{-1} + A^\top (I - A^{\top 2})^{-1}
          + \textstyle\sum_\lambda \lambda (I - \lambda A^\top)^{-1}\bigr] \Gamma_0^{-1},

for one channel :math:`-(1 + 3\rho)/n`. Intervals of ``plain`` are centred on the estimate with this taken off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from trajscope._core.rolling_var import eigenvalue_order, lagged_products, solve_var, sorted_eigenvalues

__all__ = ["METHODS", "WEAK", "Estimate", "estimate_windows", "instrument_strength", "window_matrices"]

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

METHODS = ("plain", "instrument", "tls", "fb")
"""Estimators by name."""

_PAIRS = {"plain": ((0, 0), (0, 1), (1, 1)), "instrument": ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2))}
WEAK = 2.0
"""Standard errors that the weakest lag-1 correlation must exceed for the instrument to be used."""

CHUNK = 8192
"""Windows worked on at a time."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """What one estimator says of every window; arrays of shape (m,) unless given.

    Attributes
    ----------
    matrix : ndarray, shape (m, k, k)
        In units of each channel's sd in the window.
    eigenvalues : ndarray of complex, shape (m, k)
        Largest modulus first.
    modulus, low, high : ndarray
        Spectral radius per logged row and its interval (NaN for ``tls`` and ``fb``).
    angle : ndarray
        Argument of the dominant eigenvalue, 0 to pi per logged row.
    corrected : ndarray
        ``plain``: spectral radius with the first-order bias taken off; else the same as ``modulus``.
    henrici, henrici_low, henrici_high : ndarray
        Departure from normality :math:`|A|_F^2 - \\sum |\\lambda|^2`; 0 for a normal matrix.
    abscissa, abscissa_low, abscissa_high : ndarray
        Largest eigenvalue of :math:`(A + A^\\top)/2`; above 1, some departures grow before they decay.
    count : ndarray
        Tuples of rows behind each window.
    weak : ndarray of bool
        ``instrument``: some direction of a row says nothing about the next (its canonical correlation is within two
        standard errors of 0), so that the estimator divides by noise; the window then has no estimate.
    """

    matrix: Floats
    eigenvalues: Complexes
    modulus: Floats
    low: Floats
    high: Floats
    angle: Floats
    corrected: Floats
    henrici: Floats
    henrici_low: Floats
    henrici_high: Floats
    abscissa: Floats
    abscissa_low: Floats
    abscissa_high: Floats
    count: Floats
    weak: NDArray[np.bool_]


def _t(a: Floats) -> Floats:
    return np.swapaxes(a, -1, -2)


def _scaled(count: Floats, products: Mapping[tuple[int, int], Floats]) -> tuple[Floats, dict[tuple[int, int], Floats]]:
    """Mean products in units of the sd of each channel; sd is 0 where a channel does not vary."""
    number = np.maximum(count, 1.0)[:, None, None]
    means = {p: s / number for p, s in products.items()}
    sd = np.sqrt(np.diagonal(means[1, 1], axis1=1, axis2=2))
    safe = np.where(sd > 0, sd, np.nan)
    unit = safe[:, :, None] * safe[:, None, :]
    return sd, {p: s / unit for p, s in means.items()}


def window_matrices(method: str, means: Mapping[tuple[int, int], Floats]) -> Floats:
    """Matrix of each window from its scaled mean products; NaN where there is none."""
    k = means[1, 1].shape[-1]
    ones = np.ones(means[1, 1].shape[:2])
    if method == "plain":
        return solve_var(means[0, 1], means[1, 1])
    if method == "instrument":
        return solve_var(means[0, 2], means[1, 2], ones)  # weak instruments: see `instrument_strength`
    out = np.full_like(means[1, 1], np.nan)
    forward = solve_var(means[0, 1], means[1, 1])
    good = np.isfinite(forward).all(axis=(1, 2))
    if not good.any():
        return out
    now, cross, before = (means[p][good] for p in ((0, 0), (0, 1), (1, 1)))
    if method == "tls":
        joint = np.concatenate(
            [np.concatenate([before, _t(cross)], axis=2), np.concatenate([cross, now], axis=2)], axis=1
        )
        leading = np.linalg.eigh(joint)[1][:, :, k:]
        out[good] = solve_var(leading[:, k:], leading[:, :k], np.ones((leading.shape[0], k)))
        return out
    backward = solve_var(_t(cross), now)
    square = solve_var(forward[good], backward, np.ones(backward.shape[:2]))
    fine = np.isfinite(square).all(axis=(1, 2))
    values, vectors = np.linalg.eig(square[fine])
    back = np.linalg.inv(vectors + 1e-300)
    near = np.einsum("mij,mjl,mli->mi", back, forward[good][fine], vectors)
    root = np.sqrt(values.astype(np.complex128))
    root = np.where(np.abs(near - root) <= np.abs(near + root), root, -root)
    whole = np.full(square.shape, np.nan)
    whole[fine] = ((vectors * root[:, None, :]) @ back).real
    out[good] = whole
    return out


def instrument_strength(means: Mapping[tuple[int, int], Floats]) -> Floats:
    """Size of the weakest canonical correlation between a row and the one before it, at most, at least over sqrt k.

    :math:`1/|C^{-1}|_F` with *C* the whitened lag-1 product, by :math:`\\operatorname{tr}(S_{12}^{-1} S_{11}
    S_{12}^{-\\top} S_{11})`.
    """
    unit = np.broadcast_to(np.eye(means[1, 2].shape[-1]), means[1, 2].shape)
    inverse = solve_var(unit, means[1, 2], np.ones(means[1, 2].shape[:2]))
    total = np.einsum("mij,mji->m", inverse @ means[1, 1], _t(inverse) @ means[1, 1])
    return np.asarray(1 / np.sqrt(np.where(total > 0, total, np.nan)))


def _variance(gradient: Floats, inverse: Floats, e: list[Floats], z: list[Floats], count: Floats) -> Floats:
    """Delta-method variance of <G, A> (module docstring)."""
    h = gradient @ _t(inverse)
    total: Floats = np.einsum("mji,mjk,mkl,mli->m", h, e[0], h, z[0], optimize=True)
    if len(e) > 1:
        total = total + 2 * np.einsum("mji,mjk,mkl,mil->m", h, e[1], h, z[1], optimize=True)
    return np.asarray(np.where(total >= 0, total, np.nan) / count)


def pope_bias(matrix: Floats, noise: Floats, values: Complexes, right: Complexes, left: Complexes) -> Floats:
    """First-order bias of least squares times the number of rows; NaN where the matrix is not stable.

    The covariance is the one that the matrix and its noise imply, not that of the window: the two nearly cancel
    close to modulus 1, where an estimate in place of one of them would blow up. Solved in the eigenbasis.
    """
    out = np.full_like(matrix, np.nan)
    stable = np.abs(values).max(axis=1) < 1 - 1e-9
    stable &= np.isfinite(noise).all(axis=(1, 2))
    if not stable.any():
        return out
    lam, v, w, g = values[stable], right[stable], left[stable], noise[stable]
    inner = (w @ g @ _t(w.conj())) / (1 - lam[:, :, None] * lam[:, None, :].conj())
    covariance = (v @ inner @ _t(v.conj())).real
    # in the eigenbasis of A' the bracket is diagonal: 1/(1-l_j) + l_j/(1-l_j^2) + sum_i l_i/(1-l_i l_j)
    ends = 1 / (1 - lam) + lam / (1 - lam**2)
    ends = ends + (lam[:, None, :] / (1 - lam[:, None, :] * lam[:, :, None])).sum(axis=-1)
    bracket = (_t(w) @ (ends[:, :, None] * _t(v))).real
    out[stable] = -solve_var(g @ bracket, covariance)
    return out


def _summary(matrix: Floats) -> tuple[Complexes, Floats, Floats]:
    """Eigenvalues, Henrici's departure and numerical abscissa."""
    values = sorted_eigenvalues(matrix)
    size = (matrix**2).sum(axis=(1, 2))
    henrici = np.maximum(size - (np.abs(values) ** 2).sum(axis=1), 0.0)
    henrici[henrici < 1e-12 * size] = 0.0
    abscissa = np.full(matrix.shape[0], np.nan)
    good = np.isfinite(matrix).all(axis=(1, 2))
    abscissa[good] = np.linalg.eigvalsh((matrix + _t(matrix))[good] / 2)[:, -1]
    return values, henrici, abscissa


def _errors(
    method: str, matrix: Floats, means: Mapping[tuple[int, int], Floats], count: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Standard errors of modulus, Henrici and abscissa, and the corrected modulus; all windows have a matrix."""
    k = matrix.shape[-1]
    values, vectors = np.linalg.eig(matrix)
    values, vectors = values.astype(np.complex128), vectors.astype(np.complex128)
    order = eigenvalue_order(values)
    values = np.take_along_axis(values, order, axis=1)
    vectors = np.take_along_axis(vectors, order[:, None, :], axis=2)
    singular = np.abs(np.linalg.det(vectors)) < 1e-12
    vectors[singular] = np.eye(k)
    left = np.linalg.inv(vectors)  # rows: left eigenvectors, already divided by w'v
    # d lambda_i = left_i dA right_i, so its gradient is the outer product of both
    moves = np.einsum("mia,mbi->miab", left, vectors)
    lead = values[:, 0]
    turn = np.where(np.abs(lead) > 0, lead.conj() / np.where(np.abs(lead) > 0, np.abs(lead), 1.0), 1.0)
    g_modulus = (turn[:, None, None] * moves[:, 0]).real
    g_henrici = 2 * matrix - 2 * np.einsum("mi,miab->mab", values.conj(), moves).real
    u = np.linalg.eigh((matrix + _t(matrix)) / 2)[1][:, :, -1]
    g_abscissa = u[:, :, None] * u[:, None, :]
    residual = means[0, 0] - matrix @ _t(means[0, 1]) - means[0, 1] @ _t(matrix) + matrix @ means[1, 1] @ _t(matrix)
    residual = residual * (count / np.maximum(count - k - 1, 1.0))[:, None, None]
    corrected = np.abs(lead)
    if method == "plain":
        inverse = solve_var(np.broadcast_to(np.eye(k), matrix.shape), means[1, 1])
        e, z = [residual], [means[1, 1]]
        bias = pope_bias(matrix, residual, values, vectors, left) / count[:, None, None]
        moved = np.abs(sorted_eigenvalues(matrix - bias)[:, 0])
        # a correction that crosses 1 is beyond its first order (Kilian 1998 stops it there)
        moved = np.minimum(moved, np.maximum(corrected, 1.0))
        corrected = np.where(np.isfinite(moved), moved, corrected)
    else:
        inverse = solve_var(np.broadcast_to(np.eye(k), matrix.shape), means[1, 2], np.ones(matrix.shape[:2]))
        e = [
            residual,
            means[0, 1] - matrix @ means[1, 1] - means[0, 2] @ _t(matrix) + matrix @ means[1, 2] @ _t(matrix),
        ]
        z = [means[1, 1], means[1, 2]]
    errors = []
    for gradient in (g_modulus, g_henrici, g_abscissa):
        variance = _variance(gradient, inverse, e, z, count)
        variance[singular] = np.nan
        errors.append(np.sqrt(variance))
    return errors[0], errors[1], errors[2], corrected


def _windows(
    method: str, count: Floats, means: Mapping[tuple[int, int], Floats], least: int, level: float
) -> dict[str, Any]:
    m, k = means[1, 1].shape[:2]
    matrix = np.full((m, k, k), np.nan)
    enough = count >= max(least, 2 * k + 2)
    weak = np.zeros(m, dtype=bool)
    if enough.any():
        some = {p: s[enough] for p, s in means.items()}
        matrix[enough] = window_matrices(method, some)
        if method == "instrument":
            weak[enough] = ~(instrument_strength(some) > WEAK / np.sqrt(count[enough]))
            matrix[weak] = np.nan
    values, henrici, abscissa = _summary(matrix)
    nothing = np.full(m, np.nan)
    modulus = np.abs(values[:, 0])
    out: dict[str, Any] = {
        "matrix": matrix, "eigenvalues": values, "modulus": modulus, "angle": np.abs(np.angle(values[:, 0])),
        "henrici": henrici, "abscissa": abscissa, "count": count, "corrected": modulus.copy(),
        "weak": weak,
    }  # fmt: skip
    out["angle"] = np.where(np.isnan(modulus), np.nan, out["angle"])
    error = {"": nothing.copy(), "henrici_": nothing.copy(), "abscissa_": nothing.copy()}
    good = np.isfinite(matrix).all(axis=(1, 2))
    if method in _PAIRS and good.any() and level > 0:
        e1, e2, e3, corrected = _errors(method, matrix[good], {p: s[good] for p, s in means.items()}, count[good])
        out["corrected"][good] = corrected
        for name, found in zip(error, (e1, e2, e3), strict=True):
            error[name][good] = found
    z = float(ndtri((1 + level) / 2)) if level > 0 else np.nan
    for name, centre in (("", out["corrected"]), ("henrici_", henrici), ("abscissa_", abscissa)):
        below = centre - z * error[name]
        out[f"{name}low"] = below if name == "abscissa_" else np.maximum(below, 0.0)
        out[f"{name}high"] = centre + z * error[name]
    return out


def estimate_windows(
    x: Floats,
    window: int,
    methods: tuple[str, ...],
    *,
    linked: NDArray[np.bool_] | None = None,
    rows: NDArray[np.intp] | None = None,
    min_count: int | None = None,
    level: float = 0.95,
) -> dict[str, Estimate]:
    """What each estimator says of the windows that end with the given rows.

    Parameters
    ----------
    x : ndarray, shape (n_steps, n_channels)
        NaN is missing.
    window : int
        Rows of a window.
    methods : tuple of str
        Of `METHODS`.
    linked : ndarray of bool, shape (n_steps,), optional
        Whether row *t* follows row *t - 1*.
    rows : ndarray of int, optional
        Last rows of the windows; all by default.
    min_count : int, optional
        Tuples needed; half of a full window by default, and never fewer than ``2 k + 2``.
    level : float, default 0.95
        Coverage of intervals; 0 for none.
    """
    place = np.arange(x.shape[0]) if rows is None else np.asarray(rows, dtype=np.intp)
    least = window // 2 if min_count is None else min_count
    parts: dict[str, list[dict[str, Any]]] = {m: [] for m in methods}
    for start in range(0, max(place.size, 1), CHUNK):
        some = place[start : start + CHUNK]
        for lag, group in (
            (1, [m for m in methods if m != "instrument"]),
            (2, [m for m in methods if m == "instrument"]),
        ):
            if not group:
                continue
            count, products = lagged_products(
                x, window, _PAIRS["plain" if lag == 1 else "instrument"], linked=linked, rows=some
            )
            _, means = _scaled(count, products)
            for method in group:
                parts[method].append(_windows(method, count, means, least, level))
    return {m: Estimate(**{f: np.concatenate([p[f] for p in found]) for f in found[0]}) for m, found in parts.items()}
