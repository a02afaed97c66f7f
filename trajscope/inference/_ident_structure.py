r"""Part 2: which parameters can be known at all, however long the runs.

The second moments of a state space, :math:`\Gamma_0, \ldots, \Gamma_{2k}` with :math:`\Gamma_j = C A^j P C^\top` (and
*R* added at j = 0), are all that Gaussian data tell. Their Jacobian in (A, C, Q, R) has a null space: directions that
change the parameters and nothing that can be seen. A change of the coordinates of the states is one, so the null space
has :math:`k^2` dimensions at least; the model is locally identified up to GL(k) when it has no more. A state that no
channel shows, or that another doubles, adds to it.

*Tolerance.* Derivatives are exact, so what is zero comes out at rounding, 1e-16 to 1e-13 of the largest singular value,
and what is not stays above 1e-8 for any state that a run could show. Dropped is what lies below 1e-10. An *estimated*
loading is never zero, though. So a state counts as unobserved where its signal-to-noise over its own memory,
:math:`s\,a` with :math:`s = c^\top R^{-1} c` and :math:`a = (1 + |\rho|)/(1 - |\rho|)`, lies below what the leading
eigenvalue of pure noise reaches with as many effective rows, :math:`2\sqrt{pa/N} + pa/N` (Marchenko & Pastur 1967). Its
loadings are then set to zero before the rank is taken.

The *Fisher spectrum* stands beside it: eigenvalues of the information in all parameters, in a time-domain record of N
rows (Whittle's formula), over those that are identified. Many decades between largest and smallest: "sloppy", some
directions are known far less well than others, though identified. Source: Whittle (1953); Gutenkunst et al. (2007).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajscope._core.kalman import Model, stationary_covariance
from trajscope._core.kalman_em import canonical

__all__ = ["RANK_TOLERANCE", "Structure", "fisher_information", "moment_jacobian", "n_parameters", "structure_of"]

Floats = NDArray[np.float64]

RANK_TOLERANCE = 1e-10
_FREQUENCIES = 192


def n_parameters(k: int, p: int) -> int:
    """Free entries of A, C, Q and a diagonal R."""
    return k * k + p * k + k * (k + 1) // 2 + p


@dataclass(frozen=True, eq=False)
class Structure:
    """Structural identifiability of a fitted model.

    Attributes
    ----------
    null_space : int
        Dimensions of the null space of the moment Jacobian; k^2 for a model identified up to GL(k).
    k : int
    singular_values : ndarray
        Of the Jacobian, over the largest, descending.
    observability, reachability : ndarray, shape (k,)
        Singular values of [C; CA; ...] in units of the noise and of [L, AL, ...] with Q = LL'.
    signal : ndarray, shape (k,)
        Signal-to-noise of every (canonical) state over its own memory.
    edge : ndarray, shape (k,)
        What pure noise reaches.
    fisher : ndarray
        Eigenvalues of the Fisher information that are not zero, descending.
    """

    null_space: int
    k: int
    singular_values: Floats
    observability: Floats
    reachability: Floats
    signal: Floats
    edge: Floats
    fisher: Floats

    @property
    def passed(self) -> bool:
        """Identified up to an invertible map of the states, observable and reachable."""
        ranks = (s[-1] > RANK_TOLERANCE * max(s[0], 1e-300) for s in (self.observability, self.reachability))
        return self.null_space == self.k**2 and all(ranks)

    @property
    def unobserved(self) -> list[int]:
        """Canonical states that no channel shows beyond noise."""
        return np.flatnonzero(self.signal <= self.edge).tolist()

    @property
    def sloppiness(self) -> float:
        """Decades between the best and the worst known direction."""
        return float(np.log10(self.fisher[0] / self.fisher[-1])) if self.fisher.size else float("nan")


def _symmetric(k: int) -> list[Floats]:
    out = []
    for i in range(k):
        for j in range(i, k):
            e = np.zeros((k, k))
            e[i, j] = e[j, i] = 1.0
            out.append(e)
    return out


def moment_jacobian(model: Model) -> Floats:
    """Derivatives of all second moments, in units of the channels' noise, by all parameters.

    Columns: entries of A; of C over the noise sd; of Q; logarithms of R. Exact (no differences are taken).
    """
    k, p = model.k, model.c.shape[0]
    a, q = model.a, model.q
    c = model.c / np.sqrt(model.r)[:, None]
    cov = stationary_covariance(a, q)
    i, j = np.triu_indices(p)

    def lyapunov(source: Floats) -> Floats:
        return stationary_covariance_of(a, source)

    powers = [np.eye(k)]
    for _ in range(2 * k):
        powers.append(a @ powers[-1])

    def moved(da: Floats, dc: Floats, dq: Floats, dr: Floats) -> Floats:
        dp = lyapunov(da @ cov @ a.T + a @ cov @ da.T + dq)
        out = []
        dpower = np.zeros((k, k))
        for lag, power in enumerate(powers):
            if lag:
                dpower = da @ powers[lag - 1] + a @ dpower
            g = dc @ power @ cov @ c.T + c @ dpower @ cov @ c.T + c @ power @ dp @ c.T + c @ power @ cov @ dc.T
            if lag == 0:
                out.append((g + np.diag(dr))[i, j])
            else:
                out.append(g.ravel())
        return np.concatenate(out)

    no_a, no_c, no_r = np.zeros((k, k)), np.zeros((p, k)), np.zeros(p)
    columns = [moved(e.reshape(k, k), no_c, no_a, no_r) for e in np.eye(k * k)]
    columns += [moved(no_a, e.reshape(p, k), no_a, no_r) for e in np.eye(p * k)]
    columns += [moved(no_a, no_c, s, no_r) for s in _symmetric(k)]
    columns += [moved(no_a, no_c, no_a, e) for e in np.eye(p)]
    return np.array(columns).T


def stationary_covariance_of(a: Floats, source: Floats) -> Floats:
    """Solve ``P = A P A' + source`` for any symmetric source."""
    k = a.shape[0]
    power = (a[:, None, :, None] * a[None, :, None, :]).reshape(k * k, k * k)
    return np.asarray(np.linalg.solve(np.eye(k * k) - power, source.ravel()).reshape(k, k))


def _frequencies(n: int = _FREQUENCIES) -> tuple[Floats, Floats]:
    """Frequencies in (0, pi), dense near 0 where slow states have their power, and weights that sum to one."""
    u = (np.arange(n) + 0.5) / n
    return np.pi * u**2, 2 * u / n


def spectrum_moves(model: Model, omega: Floats, *, free_c: bool = True) -> tuple[NDArray[np.complex128], Floats]:
    """Derivatives of the spectral density by all parameters, whitened on both sides by it.

    Parameters as in `moment_jacobian`, but Q moves as ``L exp(E) L'`` (L its Cholesky factor), so that every step keeps
    it positive definite.

    Returns
    -------
    moves : ndarray, shape (n_frequencies, n_parameters, p * p)
    logdet : ndarray, shape (n_frequencies,)
        Log-determinant of the spectral density.
    """
    k, p = model.k, model.c.shape[0]
    sd = np.sqrt(model.r)
    h = np.linalg.inv(np.exp(1j * omega)[:, None, None] * np.eye(k) - model.a)
    g = model.c @ h
    s = g @ model.q @ g.conj().transpose(0, 2, 1) + np.diag(model.r)
    low = np.linalg.cholesky(s)
    white = np.linalg.inv(low)
    wg = white @ g  # (f, p, k)
    right = h @ model.q @ g.conj().transpose(0, 2, 1) @ white.conj().transpose(0, 2, 1)  # (f, k, p)
    n_f = omega.size
    parts = []
    # dA: G dA (H Q G*) and its conjugate transpose
    outer = np.einsum("fpi,fjq->fijpq", wg, right).reshape(n_f, k * k, p, p)
    parts.append(outer + outer.conj().transpose(0, 1, 3, 2))
    if free_c:
        outer = np.einsum("fpc,c,fjq->fcjpq", white, sd, right).reshape(n_f, p * k, p, p)
        parts.append(outer + outer.conj().transpose(0, 1, 3, 2))
    root = wg @ np.linalg.cholesky(model.q)
    sym = np.array(_symmetric(k))
    parts.append(np.einsum("fpi,eij,fqj->fepq", root, sym, root.conj()))
    parts.append(np.einsum("fpc,c,fqc->fcpq", white, model.r, white.conj()))
    moves = np.concatenate(parts, axis=1).reshape(n_f, -1, p * p)
    return moves, 2 * np.log(np.abs(np.diagonal(low, axis1=1, axis2=2))).sum(axis=1)


def fisher_information(model: Model, n_rows: float, *, free_c: bool = True) -> Floats:
    """Expected information of n_rows rows in all parameters (Whittle), shape (n_parameters, n_parameters)."""
    omega, weight = _frequencies()
    moves, _ = spectrum_moves(model, omega, free_c=free_c)
    scaled = moves * np.sqrt(weight)[:, None, None]
    flat = scaled.transpose(1, 0, 2).reshape(moves.shape[1], -1)
    return np.asarray(n_rows / 2 * (flat @ flat.conj().T).real)


def structure_of(model: Model, n_rows: float) -> Structure:
    """Judge a fitted model; ``n_rows`` is what it was fitted on, for the tolerance."""
    model = canonical(model)
    k, p = model.k, model.c.shape[0]
    rho = np.clip(np.abs(np.diag(model.a)), 0.0, 1 - 1e-6)
    memory = (1 + rho) / (1 - rho)
    ratio = p * memory / max(n_rows, 1.0)
    signal = (model.c**2 / model.r[:, None]).sum(axis=0) * memory
    edge = 2 * np.sqrt(ratio) + ratio
    seen = Model(model.a, np.where(signal > edge, model.c, 0.0), model.q, model.r, model.p0)
    size = np.linalg.svd(moment_jacobian(seen), compute_uv=False)
    relative = size / max(float(size[0]), 1e-300)
    rank = int((relative > RANK_TOLERANCE).sum())
    looks, reaches = [seen.c / np.sqrt(model.r)[:, None]], [np.linalg.cholesky(model.q)]
    for _ in range(k - 1):
        looks.append(looks[-1] @ model.a)
        reaches.append(model.a @ reaches[-1])
    fisher = np.linalg.eigvalsh(fisher_information(model, n_rows))[::-1]
    fisher = fisher[: n_parameters(k, p) - k * k]
    fisher = fisher[fisher > 1e-12 * max(float(fisher[0]), 1e-300)]
    return Structure(
        n_parameters(k, p) - rank,
        k,
        np.asarray(relative, dtype=np.float64),
        np.linalg.svd(np.concatenate(looks), compute_uv=False),
        np.linalg.svd(np.concatenate(reaches, axis=1), compute_uv=False),
        signal,
        edge,
        np.asarray(fisher),
    )
