r"""Single axes: may one coordinate of the state be named, or the space only?

Each estimator orders its axes by a number of its own: variance (principal components), mean squared change (slow
features), :math:`c_j^\top R^{-1} c_j` (state space, canonical form). Where two neighbours are equal, any rotation of
the two serves as well, and sorted estimates always differ. So the gap, :math:`g = |\log(\mu_{j+1}/\mu_j)|`, is
compared with its distribution under equality: the fitted state space is changed so that the two are equal, runs as long
and as gappy are simulated from it, the estimator is refitted. Beside it the direct evidence: single states matched
between fits on disjoint runs (`_ident_refit`). Axes pass where every gap has p <= 5 % and every state is found again
with an absolute correlation of .8.

Refits from other seeds on the same rows tell whether the optimiser finds one maximum. They are no evidence about the
state and decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.kalman import Model, simulate_states
from trajscope.errors import TrajscopeError
from trajscope.inference._ident_refit import LEAST_CORRELATION, Repeat, canonical_directions
from trajscope.inference._ident_rows import Rows, counted, refit
from trajscope.metastate.parallel import centre_run

__all__ = ["Axes", "Seeds", "axes_of", "axis_numbers", "equalised", "seed_refits"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Axes:
    """Gaps between neighbouring axes.

    Attributes
    ----------
    by : {"variance", "slowness", "information", "one state"}
        What orders them.
    gaps, p_values : ndarray, shape (k - 1,)
    limits : ndarray, shape (k - 1,)
        95 % point of the gap under equality.
    found_again : ndarray, shape (k,)
        Mean absolute correlation of each state between fits on disjoint runs; NaN where untested.
    passed : bool
    """

    by: str
    gaps: Floats
    p_values: Floats
    limits: Floats
    found_again: Floats
    passed: bool


@dataclass(frozen=True, eq=False)
class Seeds:
    """Refits of the same rows from other seeds.

    Attributes
    ----------
    log_likelihood : ndarray, shape (n_seeds,)
    canonical : ndarray, shape (k,)
        Smallest canonical correlations of their states with those of the first.
    axis : float
        Smallest correlation of single states.
    eigenvalues : float
        Largest range of an eigenvalue's modulus.
    """

    log_likelihood: Floats
    canonical: Floats
    axis: float
    eigenvalues: float


def axis_numbers(fitted: Any) -> tuple[str, Floats] | None:
    """By what, and the numbers that order the axes of a fitted estimator; None for one that orders by nothing
    known."""
    if hasattr(fitted, "delta_"):
        return "slowness", np.asarray(fitted.delta_, dtype=np.float64)
    if hasattr(fitted, "A_"):
        used = np.asarray(fitted.reference_.used, dtype=bool)
        return "information", np.asarray((fitted.C_[used] ** 2 / fitted.R_[used, None]).sum(axis=0))
    values = getattr(fitted, "eigenvalues_", None)
    if values is not None and not np.iscomplexobj(values):
        return "variance", np.asarray(values[: fitted.n_components_], dtype=np.float64)
    return None


def _gaps(numbers: Floats) -> Floats:
    return np.asarray(np.abs(np.diff(np.log(np.maximum(numbers, 1e-300)))))


def equalised(model: Model, j: int, by: str) -> Model:
    """A model in which axes j and j + 1 are equal; ``model`` is canonical (stationary covariance I)."""
    weight = 1 / model.r if by != "variance" else np.ones_like(model.r)
    order = (model.c.T * weight) @ model.c if by != "slowness" else (model.a + model.a.T) / 2
    turn = np.linalg.eigh(order)[1][:, ::-1]
    a, c = turn.T @ model.a @ turn, model.c @ turn
    pair = slice(j, j + 2)
    gram = (c[:, pair].T * weight) @ c[:, pair]
    values, vectors = np.linalg.eigh(gram)
    half = (vectors / np.sqrt(np.maximum(values, 1e-12 * max(float(values[-1]), 1e-300)))) @ vectors.T
    c[:, pair] = c[:, pair] @ half * np.sqrt(values.mean())
    if by == "slowness":
        rates = np.clip(np.diag(a), -0.9999, 0.9999).copy()
        rates[pair] = rates[pair].mean()
        a = np.diag(rates)
    return Model.stationary(a, c, np.eye(model.k) - a @ a.T, model.r)


def _simulated(model: Model, xs: list[Floats], rng: np.random.Generator) -> list[Floats]:
    """Runs of a model, as long and as gappy as those given."""
    out = []
    for x in xs:
        made = simulate_states(model, x.shape[0], rng) @ model.c.T + rng.normal(size=x.shape) * np.sqrt(model.r)
        out.append(centre_run(np.where(np.isnan(x), np.nan, made)))
    return out


def axes_of(
    estimator: Any,
    rows: Rows,
    model: Model,
    repeat: Repeat | None,
    *,
    n_boot: int,
    rng: np.random.Generator,
    report: Callable[[str, int, int], None],
) -> Axes | str:
    """The gap test, or why it cannot be made."""
    k = rows.k
    if k == 0:
        return "the estimator found no component"
    again = np.full(k, np.nan) if repeat is None else np.mean([s.axes for s in repeat.splits], axis=0)
    nothing = np.zeros(0)
    if k == 1:
        if repeat is None:
            return "one state: its axis is the space, and whether that is found again could not be tested"
        return Axes("one state", nothing, nothing, nothing, again, repeat.passed)
    found = axis_numbers(refit(estimator, rows.xs, k))
    if found is None or found[1].size < k:
        return f"{type(estimator).__name__} does not order its axes by variance, slowness or information"
    if model.k < k:
        return "the loadings span fewer dimensions than there are states"
    by, numbers = found
    gaps = _gaps(numbers)[: k - 1]
    null = np.full((n_boot, k - 1), np.nan)
    for i in counted((k - 1) * n_boot, "axes", report):
        j, b = divmod(i, n_boot)
        try:
            made = refit(estimator, _simulated(equalised(model, j, by), rows.xs, rng), k, quick=True)
        except (TrajscopeError, np.linalg.LinAlgError):
            continue
        sample = axis_numbers(made)
        if sample is not None and sample[1].size >= k:
            null[b, j] = _gaps(sample[1])[j]
    n = (~np.isnan(null)).sum(axis=0)
    if n.min() < 19:
        return "fewer than 19 simulated data sets could be fitted; there is no null to compare with"
    p_values = (1 + (null >= gaps).sum(axis=0)) / (1 + n)
    limits = np.nanquantile(null, 0.95, axis=0, method="higher")
    if repeat is None:
        return "single states have to be found again in other runs, which could not be tested"
    passed = bool((p_values <= 0.05).all() and again.min() >= LEAST_CORRELATION)
    return Axes(by, gaps, p_values, limits, again, passed)


def seed_refits(estimator: Any, rows: Rows, *, n_seeds: int, report: Callable[[str, int, int], None]) -> Seeds | None:
    """Refits from other seeds; None for an estimator in which no chance enters."""
    if rows.k == 0 or not {"rng", "n_starts"} <= set(estimator.get_params()):
        return None
    fits = []
    for seed in counted(n_seeds, "seeds", report):
        try:
            one = refit(estimator, rows.xs, rows.k, seed=seed)
        except TrajscopeError:
            return None
        fits.append((one, np.concatenate(one.transform(rows.xs, causal=True))))
    z = fits[0][1]
    good = np.isfinite(z).all(axis=1)
    canonical, axis = np.ones(rows.k), 1.0
    for _, other in fits[1:]:
        left, right = canonical_directions(z[good], other[good])
        u, v = z[good] @ left, other[good] @ right
        canonical = np.minimum(canonical, [abs(np.corrcoef(u[:, j], v[:, j])[0, 1]) for j in range(rows.k)])
        table = np.abs(np.corrcoef(z[good].T, other[good].T)[: rows.k, rows.k :])
        axis = min(axis, float(table.max(axis=1).min()))
    sizes = np.array([np.sort(np.abs(m.eigenvalues_)) for m, _ in fits])
    likelihood = np.array([m.log_likelihood(rows.xs) for m, _ in fits])
    return Seeds(likelihood, np.asarray(canonical), axis, float(np.ptp(sizes, axis=0).max()))
