r"""Any meta-state read as a state space, and its likelihood with derivatives.

A fitted `LinearStateSpace` is one. Of any other estimator the loadings *L* are kept and the rest is fitted to the rows,
:math:`x_t = L z_t + v_t`, :math:`z_{t+1} = A z_t + w_t`, by EM with C held at *L*: what is then judged is the subspace
that the estimator found, with the dynamics that fit it best.

*Likelihood.* Every run is centred on its own mean, which takes away frequency zero. Fitted as if the mean were known,
eigenvalues come out :math:`(1 + \lambda)/T` too small per run of *T* rows (a run of 1,000 rows at .97: by .002),
whatever the number of runs. The restricted likelihood drops that frequency,

.. math:: \ell_R = \ell + \tfrac{m}{2} \log|S(0)|, \qquad S(0) = C (I-A)^{-1} Q (I-A)^{-\top} C^\top + R,

with *m* runs (Whittle's form of Patterson & Thompson 1971). Its gradient is exact: Fisher's identity on the moments of
one E-step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.kalman import Model, spectral_radius
from trajscope._core.kalman_em import Panel, Statistics, canonical, expectations, maximise
from trajscope._core.linalg import Moments
from trajscope.inference._ident_rows import instrument
from trajscope.inference._ident_structure import fisher_information, spectrum_moves, stationary_covariance_of

__all__ = ["Reading", "model_of", "read_as_model", "restricted", "step_to"]

Floats = NDArray[np.float64]

_FIRST_RADIUS = 0.98
_ITERATIONS = 25


@dataclass(frozen=True, eq=False)
class Reading:
    """A state space over the channels in use, canonical.

    Attributes
    ----------
    model : Model
    free_c : bool
        Whether the loadings are parameters, or were fixed by another estimator.
    """

    model: Model
    free_c: bool


def model_of(fitted: Any, xs: list[Floats], loadings: Floats | None = None) -> Reading:
    """The state space of a fitted estimator on standardised rows of the channels in use."""
    used = np.asarray(fitted.reference_.used, dtype=bool)
    own = all(hasattr(fitted, name) for name in ("A_", "Q_", "R_"))
    if own:
        sd = fitted.reference_.sd[used]
        r = fitted.R_[used] / sd**2
        model = Model.stationary(fitted.A_, fitted.loadings_[used], fitted.Q_, r)
        return Reading(canonical(model), True)
    kept = fitted.loadings_[used] if loadings is None else loadings
    return Reading(canonical(read_as_model(xs, kept)), False)


def read_as_model(xs: list[Floats], loadings: Floats, *, max_iter: int = _ITERATIONS) -> Model:
    """Dynamics and noise that fit best to states shown through given loadings, shape (n_channels, k)."""
    basis, size, _ = np.linalg.svd(loadings, full_matrices=False)
    basis = basis[:, size > 1e-10 * max(float(size[0]), 1e-300)]
    k = basis.shape[1]
    panel = Panel(xs)
    variance = np.maximum(panel.square / np.maximum(panel.count, 1.0), 1e-12)
    covariance = basis.T @ Moments.of(xs).covariance() @ basis
    a = instrument([np.nan_to_num(x) @ basis for x in xs])
    radius = spectral_radius(a)
    a = a * min(1.0, _FIRST_RADIUS / max(radius, 1e-300))
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    own = (vectors * np.maximum(values, 1e-3 * max(float(values[-1]), 1e-12))) @ vectors.T
    q = own - a @ own @ a.T
    small, axes = np.linalg.eigh((q + q.T) / 2)
    q = (axes * np.maximum(small, 0.05 * np.trace(own) / k)) @ axes.T
    model = Model.stationary(a, basis, q, np.maximum(0.5 * variance, 1e-6 * variance))
    for _ in range(max_iter):
        stats = expectations(panel, model)
        new = maximise(panel, model, stats)
        model = Model(new.a, basis, new.q, _noise(panel, stats, basis, variance), new.p0)
    return model


def _noise(panel: Panel, stats: Statistics, c: Floats, variance: Floats) -> Floats:
    """M-step of R where the loadings are fixed."""
    left = panel.square - 2 * (c * stats.cross).sum(axis=1) + np.einsum("pi,pij,pj->p", c, stats.gram, c)
    return np.asarray(np.maximum(left / np.maximum(panel.count, 1.0), 1e-6 * variance))


def restricted(panel: Panel, model: Model, *, free_c: bool) -> tuple[float, Floats]:
    """Restricted log-likelihood and its gradient in the parameters of `spectrum_moves`."""
    stats = expectations(panel, model)
    moves, logdet = spectrum_moves(model, np.zeros(1), free_c=free_c)
    value = stats.log_likelihood + 0.5 * panel.n_runs * float(logdet[0])
    p = panel.n_channels
    trace = moves[0].reshape(-1, p, p).trace(axis1=1, axis2=2).real
    return value, _score(panel, model, stats, free_c) + 0.5 * panel.n_runs * trace


def _score(panel: Panel, model: Model, stats: Statistics, free_c: bool) -> Floats:
    a, c, q, r, k = model.a, model.c, model.q, model.r, model.k
    q_inv, p_inv = np.linalg.inv(q), np.linalg.inv(model.p0)
    n_moves = panel.n_rows - panel.n_runs
    # first states are drawn from the stationary distribution, which A and Q decide
    pull = -0.5 * (panel.n_runs * p_inv - p_inv @ stats.first @ p_inv)
    back = stationary_covariance_of(a.T, np.asarray(pull, dtype=np.float64))
    moved = stats.s11 - a @ stats.s10.T - stats.s10 @ a.T + a @ stats.s00 @ a.T
    of_a = q_inv @ (stats.s10 - a @ stats.s00) + 2 * back @ a @ model.p0
    of_q = -0.5 * (n_moves * q_inv - q_inv @ moved @ q_inv) + back
    low = np.linalg.cholesky(q)
    inner = low.T @ ((of_q + of_q.T) / 2) @ low
    i, j = np.triu_indices(k)
    of_e = inner[i, j] * np.where(i == j, 1.0, 2.0)
    left = panel.square - 2 * (c * stats.cross).sum(axis=1) + np.einsum("pi,pij,pj->p", c, stats.gram, c)
    of_r = -0.5 * (panel.count - left / r)
    parts = [of_a.ravel()]
    if free_c:
        of_c = (stats.cross - np.einsum("pij,pj->pi", stats.gram, c)) / np.sqrt(r)[:, None]
        parts.append(of_c.ravel())
    return np.concatenate([*parts, of_e, of_r])


def step_to(model: Model, move: Floats, *, free_c: bool) -> Model | None:
    """The model after a move in the parameters of `spectrum_moves`; None where A would not be stable."""
    k, p = model.k, model.c.shape[0]
    a = model.a + move[: k * k].reshape(k, k)
    at = k * k
    c = model.c
    if free_c:
        c = c + np.sqrt(model.r)[:, None] * move[at : at + p * k].reshape(p, k)
        at += p * k
    e = np.zeros((k, k))
    i, j = np.triu_indices(k)
    e[i, j] = e[j, i] = np.clip(move[at : at + i.size], -5, 5)
    r = model.r * np.exp(np.clip(move[at + i.size :], -5, 5))
    if spectral_radius(a) >= 1 - 1e-7:
        return None
    values, vectors = np.linalg.eigh(e)
    root = np.linalg.cholesky(model.q) @ (vectors * np.exp(values / 2))
    return Model.stationary(a, c, root @ root.T, r)


def metric(model: Model, n_rows: float, *, free_c: bool) -> Floats:
    """Pseudo-inverse of the Fisher information: what the coordinates of the states leave open is left alone."""
    information = fisher_information(model, n_rows, free_c=free_c)
    values, vectors = np.linalg.eigh(information)
    keep = values > 1e-10 * max(float(values[-1]), 1e-300)
    if free_c:
        keep[: model.k**2] = False
    return np.asarray((vectors[:, keep] / values[keep]) @ vectors[:, keep].T)
