"""Resampling by cluster and the intervals made from it.

Runs, not rows, are what is drawn: rows of one run depend on each other, and so may the runs of one seed. The BCa
interval (Efron 1987, JASA 82, eqs. 3.8-3.10) takes the percentiles

    alpha_i = Phi(z0 + (z0 + z_i) / (1 - a (z0 + z_i))),

with z0 = Phi^-1(share of draws below the estimate) and a = sum d^3 / (6 (sum d^2)^1.5) for the jackknife deviations
d = mean - value. Clopper & Pearson (1934) bound a proportion.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta, norm

from trajscope.errors import InputError

__all__ = ["bca_interval", "cluster_draws", "cluster_means", "percentile_interval", "proportion_interval"]

Floats = NDArray[np.float64]


def _level(level: float) -> float:
    if not 0 < level < 1:
        raise InputError(f"level is {level!r}; the coverage of an interval lies between 0 and 1")
    return level


def cluster_draws(
    clusters: ArrayLike, n_draws: int, rng: np.random.Generator, strata: ArrayLike | None = None
) -> Iterator[NDArray[np.intp]]:
    """Row indices of bootstrap samples that draw whole clusters with replacement, within strata.

    Parameters
    ----------
    clusters : (n,) array
        Cluster of each row (a run, a seed); any values that `numpy.unique` sorts.
    n_draws : int
        How many samples.
    rng : numpy.random.Generator
    strata : (n,) array, optional
        Each stratum keeps its number of clusters; a cluster lies in one stratum.

    Yields
    ------
    (m,) int array
        Rows of one sample; m varies where clusters differ in size.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> [rows.tolist() for rows in cluster_draws(["a", "a", "b"], 3, rng)]
    [[2, 2], [2, 0, 1], [0, 1, 0, 1]]
    """
    names, labels = np.unique(np.asarray(clusters), return_inverse=True)
    if not names.size:
        raise InputError("nothing to resample: there are no rows")
    order = np.argsort(labels, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(labels))[:-1])
    groups = [np.arange(names.size)]
    if strata is not None:
        stratum = np.unique(np.asarray(strata), return_inverse=True)[1]
        first = stratum[[rows[0] for rows in members]]
        split = [str(names[labels[i]]) for i in np.flatnonzero(stratum != first[labels])]
        if split:
            raise InputError(f"cluster {split[0]!r} lies in more than one stratum; a cluster is drawn as a whole")
        groups = [np.flatnonzero(first == s) for s in np.unique(first)]
    alone = len(order) == names.size
    for _ in range(n_draws):
        drawn = np.concatenate([group[rng.integers(0, group.size, group.size)] for group in groups])
        yield order[drawn] if alone else np.concatenate([members[i] for i in drawn])


def cluster_means(values: ArrayLike, clusters: ArrayLike, n_draws: int, rng: np.random.Generator) -> Floats:
    """Means over bootstrap samples that draw whole clusters with replacement: what `cluster_draws` is for, at once.

    Parameters
    ----------
    values : (n,) or (n, d) array
    clusters : (n,) array
    n_draws : int
    rng : numpy.random.Generator

    Returns
    -------
    (n_draws,) or (n_draws, d) array

    Examples
    --------
    >>> means = cluster_means([0.0, 0.0, 1.0], ["a", "a", "b"], 1000, np.random.default_rng(0))
    >>> sorted({round(float(m), 3) for m in means})
    [0.0, 0.333, 1.0]
    """
    x = np.asarray(values, dtype=np.float64)
    names, labels = np.unique(np.asarray(clusters), return_inverse=True)
    if not names.size:
        raise InputError("nothing to resample: there are no rows")
    sums = np.zeros((names.size, *x.shape[1:]))
    np.add.at(sums, labels, x)
    counts = rng.multinomial(names.size, np.full(names.size, 1 / names.size), size=n_draws)
    sizes = counts @ np.bincount(labels)
    return np.asarray((counts @ sums) / (sizes if x.ndim == 1 else sizes[:, None]))


def percentile_interval(draws: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Equal-tailed interval of bootstrap draws, NaN draws left out; (nan, nan) where none is left.

    >>> [round(end, 6) for end in percentile_interval(range(101), 0.9)]
    [5.0, 95.0]
    """
    values = np.asarray(draws, dtype=float).ravel()
    values = values[~np.isnan(values)]
    if not values.size:
        return math.nan, math.nan
    tail = (1 - _level(level)) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def bca_interval(estimate: float, draws: ArrayLike, jackknife: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Bias-corrected and accelerated bootstrap interval.

    Parameters
    ----------
    estimate : float
        Value on the data.
    draws : (n_draws,) array
        Values on bootstrap samples; NaN are left out.
    jackknife : (n_clusters,) array
        Values with one cluster left out each.
    level : float
        Coverage.

    Returns
    -------
    (low, high)
        (nan, nan) where no draw is finite; the estimate itself, twice, where all draws equal it.
    """
    values = np.asarray(draws, dtype=float).ravel()
    values = values[~np.isnan(values)]
    if not values.size or math.isnan(estimate):
        return math.nan, math.nan
    # ties count half: a statistic on few values would otherwise look biased
    below = (np.count_nonzero(values < estimate) + 0.5 * np.count_nonzero(values == estimate)) / values.size
    below = min(max(below, 0.5 / values.size), 1 - 0.5 / values.size)
    z0 = norm.ppf(below)
    left = np.asarray(jackknife, dtype=float).ravel()
    left = left[~np.isnan(left)]
    deviation = left.mean() - left if left.size else np.zeros(1)
    spread = float(np.sum(deviation**2))
    a = float(np.sum(deviation**3)) / (6 * spread**1.5) if spread > 0 else 0.0
    z = z0 + norm.ppf([(1 - _level(level)) / 2, (1 + level) / 2])
    low, high = np.quantile(values, norm.cdf(z0 + z / (1 - a * z)))
    return float(low), float(high)


def proportion_interval(count: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Exact binomial interval of `count` in `n`; (0, 1) for n = 0.

    >>> low, high = proportion_interval(85, 88)
    >>> round(low, 3), round(high, 3)
    (0.904, 0.993)
    """
    if not 0 <= count <= n:
        raise InputError(f"{count} of {n} is no proportion; a count between 0 and n is expected")
    tail = (1 - _level(level)) / 2
    low = float(beta.ppf(tail, count, n - count + 1)) if count else 0.0
    high = float(beta.ppf(1 - tail, count + 1, n - count)) if count < n else 1.0
    return low, high
