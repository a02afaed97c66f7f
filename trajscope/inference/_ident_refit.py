r"""Part 3: is the state found again in other runs?

Two fits on disjoint halves of the runs, many random halvings. Of each:

- mean :math:`\cos^2` of the principal angles between the loadings;
- held-out canonical correlations: both fits read the same rows; the directions in which the two readings agree best are
  found on one half and their correlation is taken on the other (both ways, mean). The k-th is that of the weakest
  direction: that of the *dimension* claimed;
- MCC: states matched one to one by absolute correlation (Hungarian), as they are and after a rotation fitted on the
  other half. Of axes, not of the space: beside, no criterion;
- spread of the eigenvalues of the dynamics of the states.

Each beside its null: the first half as it is, the second with every channel rotated, or given random Fourier phases, on
its own. Where channels share nothing, the second half is one more of its own surrogates, so the comparison errs in 5 %
whatever the memory of each channel. (Were both halves replaced, the slowest channel alone would be found in both, and
the null would be as good as the truth.) Two independent AR(.98) latents of 500 rows already have a first canonical
correlation of .63. The part passes when the k-th canonical correlation is at least .8 and above the 95 % point of
either null, and the :math:`\cos^2` is too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from trajscope._core.linalg import mean_cos2
from trajscope.errors import TrajscopeError
from trajscope.inference._ident_rows import (
    NULLS,
    Rows,
    counted,
    halves,
    instrument,
    limit_rank,
    refit,
    surrogate_pieces,
)
from trajscope.metastate.align import align_states

__all__ = ["LEAST_CORRELATION", "Agreement", "Repeat", "agreement", "canonical_directions", "repeatability"]

Floats = NDArray[np.float64]

LEAST_CORRELATION = 0.8


@dataclass(frozen=True, eq=False)
class Agreement:
    """Two fits, compared on rows of both halves.

    Attributes
    ----------
    cos2 : float
        Mean squared cosine of the principal angles of the loadings.
    canonical : ndarray, shape (k,)
        Held-out canonical correlations, in the order in which the other half ranks them.
    mcc, aligned : float
        Mean matched absolute correlation of single states, as they are and after a held-out rotation.
    axes : ndarray, shape (k,)
        Absolute correlation of each state with the one it is matched with, as they are.
    eigenvalues : float
        Largest difference in modulus between the eigenvalues of the two dynamics.
    """

    cos2: float
    canonical: Floats
    mcc: float
    aligned: float
    axes: Floats
    eigenvalues: float


@dataclass(frozen=True, eq=False)
class Repeat:
    """Repeatability of the state and what it is without anything to find.

    Attributes
    ----------
    splits : list of Agreement
        One for each halving.
    null : dict of str to list of Agreement
        One for each surrogate, by kind.
    split : str
    n_pieces : int
    cos2, kth : float
        Means over halvings; ``kth`` of the weakest canonical correlation.
    cos2_threshold, kth_threshold : float
        The larger of the 95 % points of the two nulls.
    dimension : int
        Leading canonical correlations that are at least .8 and above their null.
    """

    splits: list[Agreement]
    null: dict[str, list[Agreement]]
    split: str
    n_pieces: int
    cos2: float
    kth: float
    cos2_threshold: float
    kth_threshold: float
    dimension: int

    @property
    def passed(self) -> bool:
        """Whether the state is found again."""
        return bool(self.kth >= LEAST_CORRELATION and self.kth > self.kth_threshold and self.cos2 > self.cos2_threshold)


def _complete(*states: Floats) -> list[Floats]:
    good = np.all([np.isfinite(z).all(axis=1) for z in states], axis=0)
    return [z[good] for z in states]


def canonical_directions(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Directions (columns) of two sets of states in which they correlate most, strongest first."""
    whites = []
    for z in (a, b):
        u, s, vt = np.linalg.svd(z - z.mean(axis=0), full_matrices=False)
        keep = s > 1e-10 * max(float(s[0]), 1e-300)
        whites.append((u[:, keep], vt[keep].T / s[keep]))
    left, _, right = np.linalg.svd(whites[0][0].T @ whites[1][0])
    n = min(left.shape[0], right.shape[0])
    return whites[0][1] @ left[:, :n], whites[1][1] @ right.T[:, :n]


def _correlations(a: Floats, b: Floats) -> Floats:
    """Of matching columns."""
    u, v = a - a.mean(axis=0), b - b.mean(axis=0)
    size = np.sqrt((u**2).sum(axis=0) * (v**2).sum(axis=0))
    return np.asarray((u * v).sum(axis=0) / np.maximum(size, 1e-300))


def _cross(a: Floats, b: Floats) -> Floats:
    """Of every column of a with every column of b, absolute."""
    u, v = a - a.mean(axis=0), b - b.mean(axis=0)
    size = np.outer(np.sqrt((u**2).sum(axis=0)), np.sqrt((v**2).sum(axis=0)))
    return np.asarray(np.abs(u.T @ v) / np.maximum(size, 1e-300))


def _matched(a: Floats, b: Floats) -> Floats:
    table = _cross(a, b)
    row, column = linear_sum_assignment(-table)
    return np.asarray(table[row, column])


def agreement(first: Any, second: Any, a: list[Floats], b: list[Floats]) -> Agreement:
    """Compare two fits; ``a`` are the runs of the first, ``b`` those of the second."""
    k = first.loadings_.shape[1]
    scored = np.zeros(k)
    axes, aligned, moved = np.zeros(k), 0.0, []
    states: list[tuple[Floats, Floats]] = []
    for rows in (a, b):
        read = [np.concatenate(m.transform(rows, causal=True)) for m in (first, second)]
        u, v = _complete(*read)
        states.append((u, v))
    for (fu, fv), (su, sv) in (tuple(states), tuple(states[::-1])):
        left, right = canonical_directions(fu, fv)
        found = np.abs(_correlations(su @ left, sv @ right))
        scored[: found.size] += found / 2
        axes += np.resize(_matched(su, sv), k) / 2
        turned = align_states(fu, fv, kind="procrustes").apply(su)
        aligned += float(_matched(turned, sv).mean()) / 2
    for model, rows in ((first, a), (second, b)):
        values = np.abs(np.linalg.eigvals(instrument(model.transform(rows, causal=True))))
        moved.append(np.sort(np.minimum(values, 1.0))[::-1])
    full = all(np.linalg.matrix_rank(m.loadings_) == k for m in (first, second))
    cos2 = mean_cos2(first.loadings_, second.loadings_) if full else 0.0
    return Agreement(cos2, scored, float(axes.mean()), aligned, axes, float(np.abs(moved[0] - moved[1]).max()))


def _fit(estimator: Any, xs: list[Floats], k: int, quick: bool) -> Any | None:
    """None where it cannot be fitted or has fewer components than asked for."""
    try:
        model = refit(estimator, xs, k, quick=quick)
    except (TrajscopeError, np.linalg.LinAlgError):
        return None
    return model if model.n_components_ == k else None


def repeatability(
    estimator: Any,
    rows: Rows,
    *,
    n_splits: int,
    n_surrogates: int,
    rng: np.random.Generator,
    report: Callable[[str, int, int], None],
) -> Repeat | str:
    """Part 3, or why it cannot be tested."""
    k, n = rows.k, len(rows.pieces)
    if k == 0:
        return "the estimator found no component"
    if n < 2:
        return "one run only: halves have to be different runs (split='block' compares parts of one run)"
    parts = halves(n, n_splits, rng)
    firsts: list[tuple[Any, list[Floats]]] = []
    found: list[Agreement] = []
    for i in counted(len(parts), "halves", report):
        a, b = ([rows.pieces[j] for j in half] for half in parts[i])
        first, second = _fit(estimator, a, k, False), _fit(estimator, b, k, False)
        if first is None or second is None:
            return f"the estimator could not be fitted with {k} components on half of the runs"
        firsts.append((first, a))
        found.append(agreement(first, second, a, b))
    null: dict[str, list[Agreement]] = {kind: [] for kind in NULLS}
    for i in counted(n_surrogates * len(NULLS), "surrogates", report):
        kind, at = NULLS[i % len(NULLS)], (i // len(NULLS)) % len(parts)
        made = surrogate_pieces(rows, kind, rng)
        b = [made[j] for j in parts[at][1]]
        second = _fit(estimator, b, k, True)
        if second is not None:
            null[kind].append(agreement(firsts[at][0], second, firsts[at][1], b))
    if min(len(v) for v in null.values()) < min(n_surrogates, 19):
        return "the estimator could not be fitted on surrogates, so there is no null to compare with"
    canonical = np.mean([s.canonical for s in found], axis=0)
    limits = np.max([_point([s.canonical for s in v]) for v in null.values()], axis=0)
    good = (canonical >= LEAST_CORRELATION) & (canonical > limits)
    cos2, weakest = float(np.mean([s.cos2 for s in found])), float(canonical.min())
    tables = [np.array([[s.cos2, s.canonical.min()] for s in v]) for v in null.values()]
    cos2_limit, limit = np.max([_point(list(t)) for t in tables], axis=0).tolist()
    dimension = int(k if good.all() else np.argmin(good))
    return Repeat(found, null, rows.split, n, cos2, weakest, cos2_limit, limit, dimension)


def _point(values: list[Floats]) -> Floats:
    """95 % point of surrogates, entry by entry, such that one more of them exceeds it in 5 %."""
    table = np.sort(np.array(values), axis=0)
    return np.asarray(table[limit_rank(table.shape[0])])
