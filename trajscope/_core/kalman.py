r"""Linear-Gaussian state space: exact filter, smoother and likelihood with gaps, as banded linear algebra.

.. math:: z_0 \sim N(0, P_0), \quad z_{t+1} = A z_t + w_t,\; w \sim N(0, Q), \quad x_t = C z_t + v_t,\; v \sim N(0,
\mathrm{diag}(r)),

any cell of *x* may be missing. Rather than step through time in Python, the joint posterior of all states is
written by its precision matrix, which is block tridiagonal: diagonal blocks

.. math:: D_t = C_o^\top R_o^{-1} C_o + (Q^{-1}\ \text{or}\ P_0^{-1}) + A^\top Q^{-1} A\,[t < T-1],

coupling :math:`-Q^{-1}A`, right-hand side :math:`b_t = C_o^\top R_o^{-1} x_o` (*o*: the cells that were seen). Its
Cholesky factor in time order, one LAPACK call (``pbtrf``), *is* the information filter: eliminating the past of row
*t* leaves the precision :math:`S_t = P_{t|t}^{-1} + A^\top Q^{-1} A`. So

- forward substitution gives filtered means, and no later row enters (causal to the last bit);
- back substitution gives smoothed means; covariances follow :math:`\Sigma_t = W_t + H_t \Sigma_{t+1} H_t^\top`,
  with :math:`W = L^{-\top}L^{-1}`, :math:`H = -L^{-\top} O^\top` (*L* diagonal, *O* lower block of the factor),
  itself a banded triangular system in the k(k+1)/2 distinct entries; :math:`\mathrm{Cov}(z_t, z_{t+1}) = H_t
  \Sigma_{t+1}`;
- the likelihood needs only :math:`\sum\log\mathrm{diag} L` and the norm of the forward solution.

Rounding: a relative error of about 1e-16 :math:`|P|/|Q|` (precisions are subtracted), so *Q* has to be definite.
Sources: Durbin & Koopman (2012), ch. 4; Fahrmeir & Kaufmann (1991) for the block factorisation. Cost per row
:math:`O(k^3)` for means, :math:`O(k^4)` for covariances, independent of the number of channels but for one product.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack, solve_discrete_lyapunov

from trajscope.errors import InputError

__all__ = [
    "Filtered",
    "Model",
    "Smoothed",
    "band_factor",
    "filter_from",
    "kalman_filter",
    "kalman_smoother",
    "posterior_covariances",
    "simulate_states",
    "spectral_radius",
    "stationary_covariance",
    "triangular_inverse",
]

Floats = NDArray[np.float64]

LOG_2PI = float(np.log(2 * np.pi))

FILTER_ROWS = 1 << 16
"""Rows filtered at a time; the next piece starts from the last state of the one before, so the result is the
same."""


def spectral_radius(a: Floats) -> float:
    """Largest absolute eigenvalue; 0 for an empty matrix."""
    return float(np.abs(np.linalg.eigvals(a)).max()) if a.size else 0.0


def stationary_covariance(a: Floats, q: Floats) -> Floats:
    """Solve ``P = A P A' + Q``; A has to be stable."""
    if a.size == 0:
        return np.zeros((0, 0))
    if spectral_radius(a) >= 1:
        raise InputError(
            f"A has spectral radius {spectral_radius(a):.6g}; a stationary covariance exists below 1 only."
            " Give P0 instead."
        )
    k = a.shape[0]
    if k <= 8:  # vec P = (I - A x A)^-1 vec Q: for few states quicker than the general solver, and as exact
        power = (a[:, None, :, None] * a[None, :, None, :]).reshape(k * k, k * k)
        p = np.linalg.solve(np.eye(k * k) - power, q.ravel()).reshape(k, k)
    else:
        p = solve_discrete_lyapunov(a, q)
    return np.asarray((p + p.T) / 2, dtype=np.float64)


@dataclass(frozen=True)
class Model:
    """Parameters of a linear-Gaussian state space.

    Attributes
    ----------
    a : ndarray, shape (k, k)
    c : ndarray, shape (n_channels, k)
    q : ndarray, shape (k, k), positive definite
    r : ndarray, shape (n_channels,), positive
    p0 : ndarray, shape (k, k), positive definite
        Covariance of the first state; its mean is 0.
    """

    a: Floats
    c: Floats
    q: Floats
    r: Floats
    p0: Floats

    @property
    def k(self) -> int:
        """Number of states."""
        return int(self.a.shape[0])

    @classmethod
    def stationary(cls, a: Floats, c: Floats, q: Floats, r: Floats) -> Model:
        """A model that starts in its stationary distribution."""
        return cls(a, c, q, r, stationary_covariance(a, q))


@dataclass(frozen=True)
class Filtered:
    """What is known at each row from the rows up to it.

    Attributes
    ----------
    mean, covariance : ndarray, shape (n_steps, k) and (n_steps, k, k)
        Of the state given rows up to t.
    predicted, predicted_covariance : ndarray
        Of the state given rows before t.
    log_likelihood : ndarray, shape (n_steps,)
        log p(x_t | rows before t) of the cells that were seen; 0 where none was.
    nis : ndarray, shape (n_steps,)
        e' F^-1 e of the innovation e; NaN where nothing was seen.
    n_seen : ndarray, shape (n_steps,)
    """

    mean: Floats
    covariance: Floats
    predicted: Floats
    predicted_covariance: Floats
    log_likelihood: Floats
    nis: Floats
    n_seen: NDArray[np.int64]


@dataclass(frozen=True)
class Smoothed:
    """What is known at each row from all rows.

    Attributes
    ----------
    mean, covariance : ndarray, shape (n_steps, k) and (n_steps, k, k)
    lagged : ndarray, shape (n_steps - 1, k, k)
        Cov(z_t, z_{t+1}).
    log_likelihood : float
    """

    mean: Floats
    covariance: Floats
    lagged: Floats
    log_likelihood: float


def _information(x: Floats, model: Model) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """``C_o' R_o^-1 C_o`` (n, k, k) and ``C_o' R_o^-1 x_o`` (n, k) of every row, and the mask."""
    k = model.k
    seen = ~np.isnan(x)
    weighted = model.c / model.r[:, None]
    outer = (weighted[:, :, None] * model.c[:, None, :]).reshape(-1, k * k)
    return (
        (seen.astype(np.float64) @ outer).reshape(-1, k, k),
        np.asarray(np.where(seen, x, 0.0) @ weighted),
        seen,
    )


def band_factor(diagonal: Floats, coupling: Floats, first: NDArray[np.bool_]) -> Floats:
    """Cholesky factor of block tridiagonal precisions, in band storage.

    Parameters
    ----------
    diagonal : ndarray, shape (n, k, k)
        Diagonal blocks.
    coupling : ndarray, shape (k, k)
        Block (t+1, t), the same for every t.
    first : ndarray of bool, shape (n,)
        True where a run begins: no coupling to the row before.

    Returns
    -------
    ndarray, shape (n, k, 2k)
        ``band[t, a, d]`` is the factor's entry in column ``t k + a``, d rows below the diagonal.
    """
    n, k, _ = diagonal.shape
    band = np.zeros((n, k, 2 * k))
    linked = ~first[1:]
    for a in range(k):
        band[:, a, : k - a] = diagonal[:, a:, a]
        band[:-1, a, k - a : 2 * k - a] = np.where(linked[:, None], coupling[:, a], 0.0)
    factor, info = lapack.dpbtrf(band.reshape(n * k, 2 * k).T, lower=1, overwrite_ab=1)
    if info != 0:
        raise InputError(
            f"the posterior precision is not positive definite at row {max(info - 1, 0) // max(k, 1)}: Q, P0 or r is"
            " singular or too small against the others. Use fewer components or a larger noise floor."
        )
    return np.asarray(factor.T).reshape(n, k, 2 * k)


def factor_blocks(band: Floats) -> tuple[Floats, Floats]:
    """Diagonal (lower triangular) and sub-diagonal blocks of a factor in band storage, each (n, k, k)."""
    n, k, _ = band.shape
    low, off = np.zeros((n, k, k)), np.empty((n, k, k))
    for a in range(k):
        low[:, a:, a] = band[:, a, : k - a]
        off[:, :, a] = band[:, a, k - a : 2 * k - a]
    return low, off


def band_solve(band: Floats, rhs: Floats, *, transposed: bool = False) -> Floats:
    """Forward (or, transposed, back) substitution with a factor in band storage; rhs has shape (n, k)."""
    n, k, _ = band.shape
    trans = "T" if transposed else "N"
    out, _ = lapack.dtbtrs(band.reshape(n * k, 2 * k).T, rhs.reshape(n * k, 1), uplo="L", trans=trans)
    return np.asarray(out).reshape(n, k)


def triangular_inverse(low: Floats) -> Floats:
    """Inverse of lower triangular matrices, shape (n, k, k): substitution vectorised over n."""
    k = low.shape[1]
    out = np.zeros_like(low)
    for j in range(k):
        out[:, j, j] = 1.0 / low[:, j, j]
        for i in range(j + 1, k):
            out[:, i, j] = -np.einsum("nm,nm->n", low[:, i, j:i], out[:, j:i, j]) / low[:, i, i]
    return out


def kalman_filter(x: Floats, model: Model) -> Filtered:
    """Filter one run.

    Parameters
    ----------
    x : ndarray, shape (n_steps, n_channels)
        NaN where nothing was logged.
    model : Model

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> out = kalman_filter(np.array([[1.0], [np.nan]]), Model(0.5 * one, one, 0.75 * one, np.ones(1), one))
    >>> out.mean.round(3).tolist(), out.nis.round(3).tolist()
    ([[0.5], [0.25]], [0.5, nan])
    """
    n, k = x.shape[0], model.k
    if k == 0:
        seen = ~np.isnan(x)
        nothing, empty = np.zeros((n, 0)), np.zeros((n, 0, 0))
        return Filtered(nothing, empty, nothing, empty, *_innovation(x, seen, nothing, empty, model))
    if n > FILTER_ROWS:
        pieces = []
        start = (np.zeros(k), model.p0)
        for begin in range(0, n, FILTER_ROWS):
            pieces.append(filter_from(x[begin : begin + FILTER_ROWS], model, *start))
            mean, covariance = pieces[-1].mean[-1], pieces[-1].covariance[-1]
            start = (model.a @ mean, model.a @ covariance @ model.a.T + model.q)
        names = [f.name for f in fields(Filtered)]
        return Filtered(*(np.concatenate([getattr(p, name) for p in pieces]) for name in names))
    return filter_from(x, model, np.zeros(k), model.p0)


def filter_from(x: Floats, model: Model, mean0: Floats, p0: Floats) -> Filtered:
    """Filter rows whose first state is N(mean0, p0)."""
    n, k = x.shape[0], model.k
    info, pull, seen = _information(x, model)
    p0_inv = np.linalg.inv(p0)
    q_inv = np.linalg.inv(model.q)
    ahead = model.a.T @ q_inv @ model.a
    ahead = (ahead + ahead.T) / 2
    # every row, the last one too, carries A'Q^-1A: rows are then treated alike whatever follows
    diagonal = info + (q_inv + ahead)
    diagonal[0] = info[0] + p0_inv + ahead
    pull[0] += p0_inv @ mean0
    first = np.zeros(n, dtype=bool)
    first[0] = True
    band = band_factor(diagonal, -q_inv @ model.a, first)
    forward = band_solve(band, pull)
    low, _ = factor_blocks(band)
    covariance = np.linalg.inv(low @ low.transpose(0, 2, 1) - ahead)
    covariance = (covariance + covariance.transpose(0, 2, 1)) / 2
    mean = (covariance @ (low @ forward[:, :, None]))[:, :, 0]
    predicted = np.empty((n, k))
    predicted[0] = mean0
    predicted[1:] = mean[:-1] @ model.a.T
    predicted_covariance = np.empty((n, k, k))
    predicted_covariance[0] = p0
    predicted_covariance[1:] = model.a @ covariance[:-1] @ model.a.T + model.q
    tail = _innovation(x, seen, predicted, predicted_covariance, model, info)
    return Filtered(mean, covariance, predicted, predicted_covariance, *tail)


def _innovation(
    x: Floats,
    seen: NDArray[np.bool_],
    predicted: Floats,
    covariance: Floats,
    model: Model,
    info: Floats | None = None,
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """log p(x_t | past), e'F^-1e and the number of seen cells of every row, in k dimensions (Woodbury)."""
    error = np.where(seen, x - predicted @ model.c.T, 0.0)
    n_seen = seen.sum(axis=1)
    weighted = error / model.r
    nis = (weighted * error).sum(axis=1)
    logdet = seen @ np.log(model.r)
    if info is not None:
        k = model.k
        inner = np.eye(k) + covariance @ info
        pull = weighted @ model.c
        nis = nis - (pull * np.linalg.solve(inner, covariance @ pull[:, :, None])[:, :, 0]).sum(axis=1)
        logdet = logdet + np.linalg.slogdet(inner)[1]
    loglik = -0.5 * (n_seen * LOG_2PI + logdet + nis)
    return loglik, np.where(n_seen > 0, nis, np.nan), n_seen


def simulate_states(model: Model, n_steps: int, rng: np.random.Generator) -> Floats:
    """States of a model, shape (n_steps, k): the recursion as one banded triangular system."""
    k = model.k
    if k == 0:
        return np.zeros((n_steps, 0))
    noise = rng.normal(size=(n_steps, k)) @ np.linalg.cholesky(model.q).T
    noise[0] = np.linalg.cholesky(model.p0) @ rng.normal(size=k)
    band = np.zeros((n_steps, k, 2 * k))
    band[:, :, 0] = 1.0
    for a in range(k):
        band[:-1, a, k - a : 2 * k - a] = -model.a[:, a]
    return band_solve(band, noise)


_SOLVE_CELLS = 1 << 18  # entries of the banded system for covariances that are held at a time: stays in cache


def posterior_covariances(band: Floats) -> tuple[Floats, Floats]:
    """Covariances of all states, (n, k, k), and Cov(z_t, z_{t+1}), (n, k, k) (last unused), from a factor."""
    n, k, _ = band.shape
    i, j = np.triu_indices(k)
    m = i.size
    # Sigma_t[i, j] = W[i, j] + sum_{a <= b} (H[i, a] H[j, b] + [a < b] H[i, b] H[j, a]) Sigma_{t+1}[a, b]
    distinct = np.where(i < j, 1.0, 0.0)
    rows = max(2, _SOLVE_CELLS // (2 * m * m))
    row, column = np.arange(m)[:, None], np.arange(m)[None, :]
    covariance, lagged = np.empty((n, k, k)), np.zeros((n, k, k))
    below = np.zeros(m)
    for stop in range(n, 0, -rows):
        start = max(0, stop - rows)
        low, off = factor_blocks(band[start:stop])
        inverse = triangular_inverse(low)
        turned = inverse.transpose(0, 2, 1)
        packed = (turned @ inverse)[:, i, j]
        h = -(turned @ off.transpose(0, 2, 1))
        if stop == n:
            h[-1] = 0.0
        spread = (
            h[:, i[:, None], i[None, :]] * h[:, j[:, None], j[None, :]]
            + distinct * h[:, i[:, None], j[None, :]] * h[:, j[:, None], i[None, :]]
        )
        packed[-1] += spread[-1] @ below
        # unit upper triangular, band[col, (2m - 1) + row - col]; block (t, t+1) sits in the columns of t + 1
        system = np.zeros((stop - start, m, 2 * m))
        system[1:, column, (m - 1) + row - column] = -spread[:-1]
        solved, _ = lapack.dtbtrs(system.reshape(-1, 2 * m).T, packed.reshape(-1, 1), uplo="U", diag="U")
        packed = solved.reshape(-1, m)
        below = packed[0]
        covariance[start:stop, i, j] = packed
        covariance[start:stop, j, i] = packed
        end = min(stop, n - 1)
        lagged[start:end] = h[: end - start] @ covariance[start + 1 : end + 1]
    return covariance, lagged


def kalman_smoother(x: Floats, model: Model) -> Smoothed:
    """Smooth one run; arguments as in `kalman_filter`.

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> out = kalman_smoother(np.array([[np.nan], [1.0]]), Model(0.5 * one, one, 0.75 * one, np.ones(1), one))
    >>> out.mean.round(3).tolist()
    [[0.25], [0.5]]
    """
    n, k = x.shape[0], model.k
    if k == 0:
        out = kalman_filter(x, model)
        return Smoothed(out.mean, out.covariance, out.covariance[1:], float(out.log_likelihood.sum()))
    info, pull, seen = _information(x, model)
    q_inv = np.linalg.inv(model.q)
    diagonal = info + (q_inv + model.a.T @ q_inv @ model.a)
    diagonal[0] += np.linalg.inv(model.p0) - q_inv
    diagonal[-1] -= model.a.T @ q_inv @ model.a
    first = np.zeros(n, dtype=bool)
    first[0] = True
    band = band_factor((diagonal + diagonal.transpose(0, 2, 1)) / 2, -q_inv @ model.a, first)
    forward = band_solve(band, pull)
    mean = band_solve(band, forward, transposed=True)
    covariance, lagged = posterior_covariances(band)
    loglik = -0.5 * (
        seen.sum() * LOG_2PI
        + float((seen @ np.log(model.r)).sum())
        + (n - 1) * np.linalg.slogdet(model.q)[1]
        + np.linalg.slogdet(model.p0)[1]
        + 2 * float(np.log(band[:, :, 0]).sum())
        + float((np.where(seen, x, 0.0) ** 2 / model.r).sum())
        - float((forward**2).sum())
    )
    return Smoothed(mean, covariance, lagged[:-1], float(loglik))
