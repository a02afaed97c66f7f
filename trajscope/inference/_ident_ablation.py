r"""Part 6: does the meta-state hang on one channel?

Every channel is dropped in turn, together with channels that repeat it, the state is fitted anew, and the deviation *D*
of all rows is compared with that of the whole by rank correlation. Flagged beside it:

- *duplicates*: channels whose correlation is above .98 in absolute value. What two copies share is not shared by two
  measurements;
- *drivers*: channels with a leverage :math:`[L (L^\top L)^{-1} L^\top]_{cc}` above .8. Leverage is the squared cosine
  between the channel and the space of the loadings, whatever the coordinates of the states; at 1 a direction of the
  state *is* that channel.

The part passes where every rank correlation is at least .8 and no channel drives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from trajscope._core.linalg import Moments
from trajscope.errors import TrajscopeError
from trajscope.inference._ident_rows import Rows, counted, refit

__all__ = ["LEAST_RANK", "Ablation", "ablation"]

Floats = NDArray[np.float64]

LEAST_RANK = 0.8
_SAME = 0.98
_DRIVES = 0.8


@dataclass(frozen=True, eq=False)
class Ablation:
    """What is left of D without each channel.

    Attributes
    ----------
    names : tuple of str
    rank_correlation : ndarray, shape (n_channels,)
        NaN where the state could not be fitted without the channel.
    leverage : ndarray, shape (n_channels,)
    duplicates : list of tuple of str
        Groups of channels that repeat each other.
    drivers : list of str
    """

    names: tuple[str, ...]
    rank_correlation: Floats
    leverage: Floats
    duplicates: list[tuple[str, ...]]
    drivers: list[str]

    @property
    def passed(self) -> bool:
        """D stays without any of them, and none drives."""
        return not self.drivers and bool(np.nan_to_num(self.rank_correlation).min() >= LEAST_RANK)


def _groups(correlation: Floats) -> list[list[int]]:
    """Channels joined by correlations above `_SAME` (connected components), singles too."""
    p = correlation.shape[0]
    label = np.arange(p)
    for i in range(p):
        for j in range(i):
            if abs(correlation[i, j]) > _SAME:
                label[label == label[i]] = label[j]
    return [np.flatnonzero(label == v).tolist() for v in dict.fromkeys(label.tolist())]


def _deviation(model: Any, xs: list[Floats]) -> Floats:
    return np.asarray(model.deviation(xs)["D"].to_numpy(), dtype=np.float64)


def ablation(estimator: Any, rows: Rows, *, report: Callable[[str, int, int], None]) -> Ablation | str:
    """Part 6, or why it cannot be tested."""
    k, p = rows.k, rows.n_channels
    if k == 0:
        return "the estimator found no component"
    covariance = Moments.of(rows.xs).covariance()
    sd = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    groups = _groups(covariance / np.outer(sd, sd))
    if len(groups) <= k:
        return f"{len(groups)} channels that differ carry {k} components; without one nothing is left to compare"
    try:
        whole = refit(estimator, rows.xs, k, quick=True)
        full = _deviation(whole, rows.xs)
    except TrajscopeError as problem:
        return f"the estimator could not be fitted ({problem})"
    basis = np.linalg.svd(whole.loadings_, full_matrices=False)[0]
    leverage = (basis**2).sum(axis=1)
    found = np.full(p, np.nan)
    for i in counted(len(groups), "ablation", report):
        kept = np.setdiff1d(np.arange(p), groups[i])
        try:
            xs = [x[:, kept] for x in rows.xs]
            less = _deviation(refit(estimator, xs, min(k, kept.size), quick=True), xs)
        except (TrajscopeError, np.linalg.LinAlgError):
            continue
        good = np.isfinite(full) & np.isfinite(less)
        if good.sum() > 2:
            found[groups[i]] = np.corrcoef(rankdata(full[good]), rankdata(less[good]))[0, 1]
    together = np.array([leverage[g].sum() for g in groups])
    drivers = [rows.names[c] for g, h in zip(groups, together, strict=True) if h > _DRIVES for c in g]
    doubles = [tuple(rows.names[c] for c in g) for g in groups if len(g) > 1]
    return Ablation(rows.names, found, leverage, doubles, drivers)
