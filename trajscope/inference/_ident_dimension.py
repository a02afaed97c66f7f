"""Part 1: how many dimensions, by rules that ask different questions, and how stable that is over runs.

Rules: parallel analysis against circular shifts and against phase surrogates, held-out one-step prediction by state
spaces of growing order, and the number of directions that fits on disjoint runs agree on (of the k claimed). They agree
when they differ by one at most. Bootstrap: runs are drawn with replacement and the eigenvalues of each sample are held
against the thresholds of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajscope._core.linalg import Moments
from trajscope.errors import NotEnoughData
from trajscope.inference._ident_rows import Rows
from trajscope.metastate.dimension import heldout_dimension
from trajscope.metastate.parallel import parallel_analysis

__all__ = ["Dimension", "dimension_rules"]

Floats = NDArray[np.float64]

AGAIN = "found again"
_BOOT = 500
_BEYOND = 2  # orders tried above the dimension claimed


@dataclass(frozen=True, eq=False)
class Dimension:
    """Rules, and shares of bootstrap samples of runs by dimension.

    Attributes
    ----------
    claimed : int
    rules : dict of str to int
    eigenvalues, thresholds : ndarray, shape (n_channels,)
        Of the correlations; 95 % of circular shifts.
    stability : ndarray
        ``stability[d]``: share of bootstrap samples with d dimensions; empty with one run.
    """

    claimed: int
    rules: dict[str, int]
    eigenvalues: Floats
    thresholds: Floats
    stability: Floats

    @property
    def passed(self) -> bool:
        """The rules agree within one, all see something, and the dimension claimed is one of those that do not start
        from it."""
        low, high = min(self.rules.values()), max(self.rules.values())
        free = [n for name, n in self.rules.items() if name != AGAIN]
        return high - low <= 1 and low >= 1 and min(free) <= self.claimed <= max(free)


def dimension_rules(
    rows: Rows,
    repeated: int | None,
    *,
    n_surrogates: int,
    rng: np.random.Generator,
    report: Callable[[str, int, int], None],
) -> Dimension:
    """All rules; ``repeated`` is the number of directions found again, None where that cannot be tested."""
    n_parallel = max(n_surrogates, 99)
    report("dimension", 0, 3)
    circular = parallel_analysis(rows.xs, n_surrogates=n_parallel, rng=rng)
    report("dimension", 1, 3)
    phase = parallel_analysis(rows.xs, surrogate="phase", n_surrogates=n_parallel, rng=rng)
    report("dimension", 2, 3)
    rules = {"parallel, circular": circular.n_components, "parallel, phase": phase.n_components}
    most = max(rows.k, circular.n_components, phase.n_components) + _BEYOND
    try:
        held = heldout_dimension(rows.xs, n_starts=1, max_iter=25, most=min(most, rows.n_channels), rng=rng)
        rules["held-out prediction"] = held.n_components
    except NotEnoughData:
        pass
    if repeated is not None:
        rules[AGAIN] = repeated
    report("dimension", 3, 3)
    stability = _stability(rows.xs, circular.thresholds, rng) if len(rows.xs) > 1 else np.zeros(0)
    return Dimension(rows.k, rules, circular.eigenvalues, circular.thresholds, stability)


def _stability(xs: list[Floats], thresholds: Floats, rng: np.random.Generator) -> Floats:
    p, n = xs[0].shape[1], len(xs)
    moments = [Moments.of([x]) for x in xs]
    products, pairs = np.array([m.products for m in moments]), np.array([m.pairs for m in moments])
    draws = rng.multinomial(n, np.full(n, 1 / n), size=_BOOT).astype(np.float64)
    covariance = np.tensordot(draws, products, axes=1) / np.maximum(np.tensordot(draws, pairs, axes=1), 1.0)
    sd = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    sd = np.where(sd > 0, sd, 1.0)
    values = np.linalg.eigvalsh(covariance / (sd[:, :, None] * sd[:, None, :]))[:, ::-1]
    above = values > thresholds
    found = np.where(above.all(axis=1), p, np.argmin(above, axis=1))
    return np.asarray(np.bincount(found, minlength=p + 1) / _BOOT)
