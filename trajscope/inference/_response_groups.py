r"""Many responses: intervals over seeds, the order of three times, dispersion between conditions, collapse by severity.

**Intervals.** Runs of one seed depend on each other, so the seed is the unit: runs are averaged within seeds. Fewer
than three seeds: no interval. Below 30 a t-interval of the mean; from 30 on BCa (Efron 1987), whose coverage with *n*
seeds of a mean is that of a t-interval narrowed by :math:`z\sqrt{(n-1)/n}/t_{n-1}`: 92.9 % at n = 20, 93.6 % at 30.
Half-lives are averaged as logarithms.

**Order.** :math:`T_{grad} \le T_{inst} \le T_{on}` holds in a run where no time is later than the next by a stride or
more. If the three times of a run were exchangeable, each of their six orders would be as likely; the null distribution
of the number of runs in which the order holds is the sum of independent draws with each run's own share of the six
orders that hold (ties counted), computed exactly.

**Dispersion.** :math:`F = MS_{between} / MS_{within}` of one number a run over conditions, the variance ratio of
analysis of variance: about 1 where conditions answer alike up to the noise of seeds. The ratio
:math:`R = F_{inst} / F_{grad}` compares two signals; its interval is a BCa bootstrap of log R over conditions.

**Collapse by severity.** Shares of collapsed seeds are made monotone in severity (pool adjacent violators, weighted).
The threshold is the smallest tested level at which at least half collapse; its interval holds every level at which
"half collapse here, not below" is not rejected: from the first level whose upper Clopper-Pearson bound reaches a half,
to the first whose lower bound does. It is "not bracketed" where no level, or already the first, reaches a half.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope._core.resample import bca_interval, cluster_draws, proportion_interval

__all__ = [
    "MIN_BCA",
    "MIN_SEEDS",
    "Dispersion",
    "Estimate",
    "Ordering",
    "Threshold",
    "collapse_threshold",
    "dispersion_ratio",
    "mean_over_seeds",
    "ordering_test",
    "variance_ratio",
]

Floats = NDArray[np.float64]

MIN_SEEDS, MIN_BCA = 3, 30


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its interval.

    Attributes
    ----------
    condition, channel, statistic : str
    n_seeds : int
    value, low, high : float
        NaN where it cannot be told.
    method : {"BCa", "t", "none"}
    reason : str
        Why this method, or why there is no interval.
    """

    condition: str
    channel: str
    statistic: str
    n_seeds: int
    value: float
    low: float
    high: float
    method: str
    reason: str


def mean_over_seeds(
    values: ArrayLike,
    seeds: Sequence[object],
    rng: np.random.Generator,
    *,
    log: bool = False,
    level: float = 0.95,
    n_draws: int = 2000,
    names: tuple[str, str, str] = ("", "", ""),
) -> Estimate:
    """Mean over seeds of one number a run, NaN left out.

    Parameters
    ----------
    values : array_like, shape (n_runs,)
    seeds : sequence, length n_runs
    rng : Generator
    log : bool
        Average logarithms (positive values): a geometric mean.
    level : float
    n_draws : int
        Bootstrap draws of BCa.
    names : tuple of str
        Condition, channel, statistic.
    """
    raw = np.asarray(values, dtype=np.float64)
    keep = np.isfinite(raw) & (raw > 0) if log else np.isfinite(raw)
    numbers = np.log(raw[keep]) if log else raw[keep]
    labels = [str(s) for s, k in zip(seeds, keep.tolist(), strict=True) if k]
    order = sorted(set(labels))
    groups = np.array([numbers[[i for i, s in enumerate(labels) if s == name]].mean() for name in order])
    n = groups.size
    back = math.exp if log else float
    if n == 0:
        return Estimate(*names, 0, math.nan, math.nan, math.nan, "none", "cannot tell: no run has a value")
    value = float(groups.mean())
    if n < MIN_SEEDS:
        reason = f"cannot tell: {n} seed{'s' if n > 1 else ''}, {MIN_SEEDS} are needed"
        return Estimate(*names, n, back(value), math.nan, math.nan, "none", reason)
    if n < MIN_BCA:
        from scipy.stats import t

        half = float(t.ppf((1 + level) / 2, n - 1)) * float(groups.std(ddof=1)) / math.sqrt(n)
        reason = f"{n} seeds: a bootstrap needs {MIN_BCA} to cover"
        return Estimate(*names, n, back(value), back(value - half), back(value + half), "t", reason)
    draws = groups[rng.integers(0, n, (n_draws, n))].mean(axis=1)
    low, high = bca_interval(value, draws, (groups.sum() - groups) / (n - 1), level)
    return Estimate(*names, n, back(value), back(low), back(high), "BCa", f"{n} seeds, {n_draws} draws")


@dataclass(frozen=True)
class Ordering:
    """Whether coherence leaves its band first, then instability, then performance.

    Attributes
    ----------
    times : tuple of (run, T_grad, T_inst, T_on)
        Runs in which all three are known.
    held : int
        Runs in which the order holds, ties at the stride counted as holding.
    n : int
    share, low, high : float
        Share of runs with its Clopper-Pearson interval.
    expected : float
        Share under exchangeable times.
    p_value : float
        P(at least as many) under exchangeable times; NaN without runs.
    unknown : int
        Runs in which a time is missing.
    reason : str
    """

    times: tuple[tuple[str, float, float, float], ...]
    held: int
    n: int
    share: float
    low: float
    high: float
    expected: float
    p_value: float
    unknown: int
    reason: str


def _holds(a: float, b: float, c: float, stride: float) -> bool:
    return a < b + stride and b < c + stride


def ordering_test(
    times: Sequence[tuple[str, float, float, float]], stride: float | Sequence[float], level: float = 0.95
) -> Ordering:
    """Test T_grad <= T_inst <= T_on over runs, ties at the stride.

    Parameters
    ----------
    times : sequence of (run, T_grad, T_inst, T_on)
        NaN where a signal never left its band; such runs are counted apart.
    stride : float, or one a run
        Differences below it are ties.

    Examples
    --------
    >>> found = ordering_test([("a", 1, 5, 9), ("b", 2, 6, 9), ("c", 1, 4, 8), ("d", 1, 3, 9)], 1)
    >>> found.held, found.expected, round(found.p_value, 5)
    (4, 0.16666666666666666, 0.00077)
    """
    strides = [float(stride)] * len(times) if isinstance(stride, int | float) else [float(s) for s in stride]
    known = [(row, s) for row, s in zip(times, strides, strict=True) if not any(math.isnan(t) for t in row[1:])]
    unknown, n = len(times) - len(known), len(known)
    if not n:
        reason = "cannot tell: in no run are all three times known"
        return Ordering((), 0, 0, math.nan, math.nan, math.nan, math.nan, math.nan, unknown, reason)
    held, chances = 0, []
    for (_, a, b, c), s in known:
        held += _holds(a, b, c, s)
        chances.append(sum(_holds(i, j, k, s) for i, j, k in itertools.permutations((a, b, c))) / 6)
    law = np.array([1.0])
    for p in chances:
        law = np.convolve(law, [1 - p, p])
    low, high = proportion_interval(held, n, level)
    p_value = float(min(law[held:].sum(), 1.0))
    expected = float(np.mean(chances))
    reason = f"the order holds in {held} of {n} runs (by chance {expected:.0%}, p = {p_value:.2g})"
    return Ordering(tuple(row for row, _ in known), held, n, held / n, low, high, expected, p_value, unknown, reason)


@dataclass(frozen=True)
class Dispersion:
    """Spread between conditions against that between seeds, for two signals.

    Attributes
    ----------
    f_grad, f_inst : float
        Variance ratios of coherence and instability.
    ratio, low, high : float
        f_inst / f_grad; NaN bounds where it cannot be told.
    inst_low, inst_high : float
        Interval of f_inst.
    n_conditions, n_runs : int
    reason : str
    """

    f_grad: float
    f_inst: float
    ratio: float
    low: float
    high: float
    inst_low: float
    inst_high: float
    n_conditions: int
    n_runs: int
    reason: str


def variance_ratio(values: ArrayLike, groups: ArrayLike) -> float:
    """Mean square between groups over that within; NaN with fewer than two groups or none with two values.

    >>> round(variance_ratio([1, 2, 5, 6], [0, 0, 1, 1]), 6)
    32.0
    """
    x, labels = np.asarray(values, dtype=np.float64), np.unique(np.asarray(groups), return_inverse=True)[1]
    sizes = np.bincount(labels)
    k, n = sizes.size, x.size
    if k < 2 or n <= k:
        return math.nan
    means = np.bincount(labels, x) / sizes
    between = float(np.sum(sizes * (means - x.mean()) ** 2)) / (k - 1)
    within = float(np.sum((x - means[labels]) ** 2)) / (n - k)
    return between / within if within > 0 else math.inf if between > 0 else math.nan


def dispersion_ratio(
    grad: ArrayLike,
    inst: ArrayLike,
    conditions: Sequence[str],
    rng: np.random.Generator,
    *,
    level: float = 0.95,
    n_draws: int = 2000,
) -> Dispersion:
    """Compare two signals' spread between conditions over their spread between seeds.

    Parameters
    ----------
    grad, inst : array_like, shape (n_runs,)
        One number a run (the peak of its response); runs where either is NaN are left out, and conditions with one run.
    conditions : sequence of str, length n_runs
    """
    a, b = np.asarray(grad, dtype=np.float64), np.asarray(inst, dtype=np.float64)
    names = np.asarray(list(conditions), dtype=object)
    keep = np.isfinite(a) & np.isfinite(b)
    counts = {c: int(np.sum(names[keep] == c)) for c in set(names[keep].tolist())}
    keep &= np.array([counts.get(c, 0) >= 2 for c in names.tolist()], dtype=bool)
    a, b = a[keep], b[keep]
    labels = np.unique(names[keep].astype(str), return_inverse=True)[1] if keep.any() else np.zeros(0, dtype=int)
    k = int(labels.max()) + 1 if labels.size else 0

    def logs(rows: NDArray[np.intp], own: NDArray[np.intp]) -> tuple[float, float]:
        f1, f2 = variance_ratio(a[rows], own), variance_ratio(b[rows], own)
        good = 0 < f1 < math.inf and 0 < f2 < math.inf
        return (math.log(f2 / f1), math.log(f2)) if good else (math.nan, math.nan)

    f_grad, f_inst = variance_ratio(a, labels), variance_ratio(b, labels)
    every = np.arange(a.size)
    value, of_inst = logs(every, labels) if k >= 2 else (math.nan, math.nan)
    ratio = math.exp(value) if value == value else math.nan
    if k < 4:
        reason = f"cannot tell: {k} conditions with at least two seeds, 4 are needed to bootstrap over them"
        nan = math.nan
        return Dispersion(f_grad, f_inst, ratio, nan, nan, nan, nan, k, a.size, reason)
    members = [np.flatnonzero(labels == c) for c in range(k)]
    draws = []
    for chosen in cluster_draws(np.arange(k), n_draws, rng):
        rows = np.concatenate([members[c] for c in chosen])
        draws.append(logs(rows, np.repeat(np.arange(k), [members[c].size for c in chosen])))
    jackknife = [logs(np.flatnonzero(labels != c), labels[labels != c]) for c in range(k)]
    table, left = np.array(draws), np.array(jackknife)
    low, high = bca_interval(value, table[:, 0], left[:, 0], level)
    inst = bca_interval(of_inst, table[:, 1], left[:, 1], level)
    reason = f"instability spreads over conditions {ratio:.2g} times as much as coherence does, in units of their seeds"
    return Dispersion(
        f_grad, f_inst, ratio, math.exp(low), math.exp(high), math.exp(inst[0]), math.exp(inst[1]), k, a.size, reason
    )


@dataclass(frozen=True)
class Threshold:
    """Smallest severity at which half of the seeds collapse.

    Attributes
    ----------
    kind : str
    levels : tuple of float
        Tested, in order of severity.
    collapsed, runs : tuple of int
        By level.
    threshold, low, high : float
        NaN where not bracketed or not known; ``high`` is infinite where no level is sure to reach a half.
    below : float
        The next lower level that was tested: the threshold lies above it. NaN where there is none.
    verdict : {"bracketed", "not bracketed", "cannot tell"}
    reason : str
    """

    kind: str
    levels: tuple[float, ...]
    collapsed: tuple[int, ...]
    runs: tuple[int, ...]
    threshold: float
    low: float
    high: float
    below: float
    verdict: str
    reason: str


def _monotone(share: Floats, weight: Floats) -> Floats:
    """Pool adjacent violators: the non-decreasing shares nearest to those given."""
    blocks: list[list[float]] = []
    for s, w in zip(share.tolist(), weight.tolist(), strict=True):
        blocks.append([s, w, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            b, a = blocks.pop(), blocks.pop()
            total = a[1] + b[1]
            blocks.append([(a[0] * a[1] + b[0] * b[1]) / total, total, a[2] + b[2]])
    return np.concatenate([np.full(int(k), s) for s, _, k in blocks])


def collapse_threshold(
    severity: ArrayLike, collapsed: ArrayLike, *, level: float = 0.95, kind: str = "", labels: ArrayLike | None = None
) -> Threshold:
    """Smallest severity at which half of the runs collapse.

    Parameters
    ----------
    severity : array_like, shape (n_runs,)
        Rank or amount, increasing with the insult.
    collapsed : array_like of bool, shape (n_runs,)
    labels : array_like, shape (n_runs,), optional
        Level to report for each run's severity (a factor, an sd); the severity itself by default.

    Examples
    --------
    >>> found = collapse_threshold([1] * 8 + [2] * 8 + [3] * 8, [0] * 8 + [1] * 7 + [0] + [1] * 8)
    >>> found.threshold, found.below, found.verdict
    (2.0, 1.0, 'bracketed')
    """
    x, hit = np.asarray(severity, dtype=np.float64), np.asarray(collapsed, dtype=bool)
    shown = x if labels is None else np.asarray(labels, dtype=np.float64)
    ranks = np.unique(x)
    levels = np.array([float(np.median(shown[x == r])) for r in ranks])
    n = np.array([int(np.sum(x == r)) for r in ranks])
    k = np.array([int(np.sum(hit[x == r])) for r in ranks])
    common = (kind, tuple(levels.tolist()), tuple(k.tolist()), tuple(n.tolist()))
    nothing = (math.nan, math.nan, math.nan, math.nan)
    if ranks.size < 2 or n.min() < 2:
        return Threshold(*common, *nothing, "cannot tell", "cannot tell: two severities with two seeds each are needed")
    share = _monotone(k / n, n.astype(np.float64))
    bounds = [proportion_interval(int(a), int(b), level) for a, b in zip(k, n, strict=True)]
    may = [i for i, (_, high) in enumerate(bounds) if high >= 0.5]
    sure = [i for i, (low, _) in enumerate(bounds) if low >= 0.5]
    low = float(levels[may[0]]) if may else math.inf
    high = float(levels[sure[0]]) if sure else math.inf
    reached = np.flatnonzero(share >= 0.5)
    if not reached.size:
        reason = f"not bracketed: fewer than half collapse even at {levels[-1]:g}"
        return Threshold(*common, math.nan, low, high, float(levels[-1]), "not bracketed", reason)
    first = int(reached[0])
    if first == 0:
        reason = f"not bracketed: half or more collapse already at {levels[0]:g}"
        return Threshold(*common, math.nan, low, high, math.nan, "not bracketed", reason)
    reason = f"half of the seeds collapse from {levels[first]:g} on, not at {levels[first - 1]:g}"
    return Threshold(*common, float(levels[first]), low, high, float(levels[first - 1]), "bracketed", reason)
