r"""Does noise that was assigned to runs protect them? Collapse and recovery against the level of noise.

At least three assigned levels :math:`\nu` (entropy bonus, action noise, dropout, 1 / batch size). Levels enter as ranks
0, 1, 2, ... (``scale="rank"``), as they are, or as logarithms. Within strata (task, algorithm):

* **logistic slope** of collapse on the level, one intercept a stratum,
  :math:`\operatorname{logit} P = a_s + b\,\nu`, by penalised likelihood (Firth 1993, Biometrika 80), which is finite
  where levels separate the outcomes; interval by profile of the penalised likelihood (Heinze & Schemper 2002).
  Negative: noise protects;
* **trend test**: Cochran-Armitage over strata, exact by permutation of the levels within strata;
* **quadratic term** of the same model: too little and too much may both harm;
* **Jonckheere-Terpstra** trend of a continuous outcome (depth of the fall, half-life of the relaxation) over the
  levels, by permutation within strata.

The verdict is ``buffers`` (slope interval below 0 and permutation p below alpha), ``harms``, ``no effect`` (the 90 %
interval of the difference in collapse probability between lowest and highest level lies inside +-0.1), else ``cannot
tell``. Logged entropy is an outcome, not an assignment: with ``assigned=False`` the words are "goes with", never
"protects".

Source: DEFINITIONS of this project (11). Limits: noise also hides excursions from the rules that look for them; repeat
with a scale that does not contain it (`depth` in units of a noise-free run).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import chi2

from trajscope._core.resample import proportion_interval
from trajscope._core.surrogates import as_generator
from trajscope.errors import InputError, NotEnoughData, nearest
from trajscope.result import Result, make_provenance

__all__ = ["Buffering", "buffering", "firth_slope", "jonckheere"]

Floats = NDArray[np.float64]

#: Difference of collapse probabilities that does not matter.
MARGIN = 0.1
#: Runs below which nothing is fitted.
LEAST = 12


@dataclass(frozen=True, eq=False)
class Buffering(Result):
    """What `buffering` found.

    Attributes
    ----------
    table : DataFrame
        One row a level: ``level, n, collapsed, share, low, high`` (exact interval).
    slope, low, high : float
        Log odds of collapse a step of the level (95 % profile interval).
    p_trend : float
        Exact by permutation.
    quadratic, p_quadratic : float
        Coefficient of the squared level and its p-value (likelihood ratio).
    difference, difference_low, difference_high : float
        Collapse probability at the highest level less that at the lowest, strata weighted alike, and its 90 % interval.
    outcomes : DataFrame
        Jonckheere trend of each continuous outcome: ``outcome, n, statistic, p, direction``.
    verdict : {"buffers", "harms", "no effect", "cannot tell"}
    reason : str
    assigned : bool
    """

    plot_name = "buffering"

    table: pd.DataFrame
    slope: float
    low: float
    high: float
    p_trend: float
    quadratic: float
    p_quadratic: float
    difference: float
    difference_low: float
    difference_high: float
    outcomes: pd.DataFrame
    verdict: str
    reason: str
    assigned: bool
    level: str

    def to_frame(self) -> pd.DataFrame:
        """One row a level."""
        return self.table

    def summary(self) -> str:
        """One or two sentences."""
        word = {
            "buffers": "more of it protects" if self.assigned else "more of it goes with fewer collapses",
            "harms": "more of it harms" if self.assigned else "more of it goes with more collapses",
            "no effect": "it makes no difference that matters",
            "cannot tell": "cannot tell",
        }[self.verdict]
        return (
            f"{self.level} at {len(self.table)} levels, {int(self.table['n'].sum())} runs: {word}. Log odds of "
            f"collapse {self.slope:+.2f} a level [{self.low:.2f}, {self.high:.2f}], trend p = {self.p_trend:.3g}"
            + (f"; {self.reason}." if self.reason else ".")
        )


def buffering(
    source: pd.DataFrame,
    *,
    level: str = "level",
    collapsed: str = "collapsed",
    strata: str | None = "stratum",
    outcomes: list[str] | None = None,
    scale: str = "rank",
    assigned: bool = True,
    alpha: float = 0.05,
    n_null: int = 9999,
    rng: int | np.random.Generator | None = None,
) -> Buffering:
    """Collapse against the level of noise.

    Parameters
    ----------
    source : DataFrame
        One row a run.
    level : str
        Column of the assigned level, at least three distinct ones.
    collapsed : str
        Column that is true (or 1) where the run collapsed; null runs are left out.
    strata : str or None
        Column of the stratum; none where the table lacks it.
    outcomes : list of str, optional
        Continuous outcomes for the Jonckheere trend; default ``max_deficit``, ``depth``, ``half_life`` where they are
        there. Null where there is none: such runs leave that test alone.
    scale : {"rank", "value", "log"}
        How levels enter the slope. Ranks: a dose that is doubled at each level is not taken for a line.
    assigned : bool
        False for a level that the run itself set (logged entropy): an association only.
    alpha : float
    n_null : int
        Permutations.
    rng : int or Generator, optional
        Default 0.

    Raises
    ------
    InputError
        For unknown columns, fewer than three levels, levels that cannot be logged.
    NotEnoughData
        For fewer than 12 runs.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> table = pd.DataFrame({"level": np.repeat([0.0, 0.1, 0.2, 0.4], 25)})
    >>> table["collapsed"] = rng.random(100) < np.repeat([0.9, 0.6, 0.4, 0.1], 25)
    >>> buffering(table, n_null=999).verdict
    'buffers'
    """
    generator = as_generator(rng)
    if scale not in ("rank", "value", "log"):
        raise InputError(f"scale is {scale!r}; 'rank', 'value' or 'log' is expected")
    for name in (level, collapsed):
        if name not in source:
            raise InputError(f"the table has no column {name!r}. {nearest(name, [str(c) for c in source.columns])}")
    table = source[source[level].notna() & source[collapsed].notna()].reset_index(drop=True)
    nu = pd.to_numeric(table[level], errors="coerce").to_numpy(dtype=float)
    if np.isnan(nu).any():
        raise InputError(f"column {level!r} holds {table[level][np.isnan(nu)].iloc[0]!r}; a number is expected")
    y = table[collapsed].astype(bool).to_numpy()
    levels = np.unique(nu)
    if levels.size < 3:
        raise InputError(f"column {level!r} has {levels.size} levels; three or more are needed to see a trend")
    if y.size < LEAST:
        raise NotEnoughData(f"{y.size} runs have a level and an outcome; {LEAST} or more are needed")
    if scale == "log" and levels[0] <= 0:
        raise InputError(f"scale 'log': the lowest level is {levels[0]:g}; use 'rank'")
    x = {"rank": np.searchsorted(levels, nu).astype(float), "value": nu, "log": np.log(np.maximum(nu, 1e-300))}[scale]
    groups = (
        table[strata].astype(str).to_numpy() if strata is not None and strata in table else np.zeros(y.size, dtype=str)
    )
    codes = np.unique(groups, return_inverse=True)[1]
    slope, low, high = firth_slope(x, y, codes)
    quadratic, p_quadratic = _quadratic(x, y, codes)
    p_trend = _trend(x, y, codes, n_null, generator)
    difference, dlow, dhigh = _difference(nu, y, codes, levels, generator)
    rows = []
    for v in levels:
        hits, n = int(y[nu == v].sum()), int(np.sum(nu == v))
        rows.append((float(v), n, hits, hits / n, *proportion_interval(hits, n)))
    names = [c for c in ("max_deficit", "depth", "half_life") if c in table] if outcomes is None else outcomes
    trends = []
    for name in names:
        if name not in table:
            raise InputError(f"the table has no column {name!r}. {nearest(name, [str(c) for c in table.columns])}")
        value = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=float)
        known = ~np.isnan(value)
        if known.sum() >= LEAST and np.unique(nu[known]).size >= 3:
            j, p = jonckheere(nu[known], value[known], codes[known], n_null=n_null, rng=generator)
            trends.append((name, int(known.sum()), j, p, "up" if j > 0 else "down"))
    verdict, reason = _verdict(low, high, p_trend, dlow, dhigh, alpha, y)
    if verdict != "no effect" and not math.isnan(p_quadratic) and p_quadratic < alpha:
        reason = "; ".join(filter(None, [reason, f"the effect bends (quadratic term, p = {p_quadratic:.3g})"]))
    return Buffering(
        pd.DataFrame(rows, columns=["level", "n", "collapsed", "share", "low", "high"]),
        slope, low, high, p_trend, quadratic, p_quadratic, difference, dlow, dhigh,
        pd.DataFrame(trends, columns=["outcome", "n", "statistic", "p", "direction"]),
        verdict, reason, assigned, level,
        provenance=make_provenance(
            "buffering",
            {"level": level, "collapsed": collapsed, "scale": scale, "alpha": alpha, "n_null": n_null}, nu, y,
            seed=rng if isinstance(rng, int) else 0 if rng is None else None,
        ),
    )  # fmt: skip


def _verdict(
    low: float, high: float, p: float, dlow: float, dhigh: float, alpha: float, y: NDArray[np.bool_]
) -> tuple[str, str]:
    if y.all() or not y.any():
        return "cannot tell", f"{'every' if y.all() else 'no'} run collapsed"
    if high < 0 and p < alpha:
        return "buffers", ""
    if low > 0 and p < alpha:
        return "harms", ""
    if dlow > -MARGIN and dhigh < MARGIN:
        return "no effect", ""
    return "cannot tell", "the interval holds both a benefit and a harm that would matter"


def _design(x: Floats, codes: NDArray[np.intp], more: list[Floats]) -> Floats:
    intercepts = (codes[:, None] == np.arange(codes.max() + 1)[None, :]).astype(float)
    return np.column_stack([intercepts, *more, x])


def _penalised(design: Floats, y: Floats, offset: Floats) -> tuple[Floats, float]:
    """Firth's estimate by Fisher scoring with step halving, and its penalised log likelihood."""
    beta = np.zeros(design.shape[1])

    def value(b: Floats) -> float:
        eta = design @ b + offset
        w = 1 / (2 + np.exp(np.clip(eta, -500, 500)) + np.exp(np.clip(-eta, -500, 500)))
        sign, logdet = np.linalg.slogdet(design.T @ (design * w[:, None]))
        return float(np.sum(y * eta - np.logaddexp(0, eta)) + (0.5 * logdet if sign > 0 else -np.inf))

    best = value(beta)
    for _ in range(100):
        eta = design @ beta + offset
        p = 1 / (1 + np.exp(-np.clip(eta, -500, 500)))
        w = p * (1 - p)
        information = design.T @ (design * w[:, None])
        inverse = np.linalg.pinv(information)
        hat = np.einsum("ij,jk,ik->i", design, inverse, design) * w
        step = inverse @ (design.T @ (y - p + hat * (0.5 - p)))
        size = 1.0
        while size > 1e-6 and value(beta + size * step) < best - 1e-12:
            size /= 2
        beta = beta + size * step
        now = value(beta)
        if abs(now - best) < 1e-10 and np.max(np.abs(size * step)) < 1e-7:
            return beta, now
        best = now
    return beta, best


def firth_slope(
    x: Floats, y: NDArray[np.bool_], codes: NDArray[np.intp], level: float = 0.95
) -> tuple[float, float, float]:
    """Slope of a logistic model with an intercept a stratum: Firth's penalised likelihood, profile interval.

    Parameters
    ----------
    x : (n,) array
    y : (n,) bool array
    codes : (n,) int array
        Stratum, 0 to k - 1.
    level : float

    Returns
    -------
    slope, low, high : float
        NaN where x does not vary.
    """
    if np.ptp(x) == 0:
        return math.nan, math.nan, math.nan
    outcome = y.astype(float)
    design = _design(x, codes, [])
    beta, best = _penalised(design, outcome, np.zeros(x.size))
    slope = float(beta[-1])
    target = best - chi2.ppf(level, 1) / 2

    def drop(b: float) -> float:
        # the penalty stays that of the full model: only the slope is held
        return _held(design, outcome, b) - target

    return slope, _edge(drop, slope, -1), _edge(drop, slope, 1)


def _held(design: Floats, y: Floats, slope: float) -> float:
    """Largest penalised likelihood of the full model at a fixed slope."""
    inner, column = design[:, :-1], design[:, -1]
    beta = np.zeros(inner.shape[1])

    def value(b: Floats) -> float:
        eta = inner @ b + column * slope
        w = 1 / (2 + np.exp(np.clip(eta, -500, 500)) + np.exp(np.clip(-eta, -500, 500)))
        sign, logdet = np.linalg.slogdet(design.T @ (design * w[:, None]))
        return float(np.sum(y * eta - np.logaddexp(0, eta)) + (0.5 * logdet if sign > 0 else -np.inf))

    best = value(beta)
    for _ in range(100):
        eta = inner @ beta + column * slope
        p = 1 / (1 + np.exp(-np.clip(eta, -500, 500)))
        w = p * (1 - p)
        hat = np.einsum("ij,jk,ik->i", design, np.linalg.pinv(design.T @ (design * w[:, None])), design) * w
        step = np.linalg.pinv(inner.T @ (inner * w[:, None])) @ (inner.T @ (y - p + hat * (0.5 - p)))
        size = 1.0
        while size > 1e-6 and value(beta + size * step) < best - 1e-12:
            size /= 2
        beta = beta + size * step
        now = value(beta)
        if abs(now - best) < 1e-9:
            break
        best = now
    return best


def _edge(drop: Callable[[float], float], at: float, direction: int) -> float:
    """Where the profile falls to its target on one side; infinite where it does not within 60 units."""
    reach = 0.5
    while reach < 60:
        if drop(at + direction * reach) < 0:
            return float(brentq(drop, at, at + direction * reach, xtol=1e-4))
        reach *= 2
    return direction * math.inf


def _quadratic(x: Floats, y: NDArray[np.bool_], codes: NDArray[np.intp]) -> tuple[float, float]:
    """Coefficient of the squared, centred level, and p of its penalised likelihood ratio."""
    centred = x - x.mean()
    design = _design(centred**2 - np.mean(centred**2), codes, [centred])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return math.nan, math.nan
    beta, best = _penalised(design, y.astype(float), np.zeros(x.size))
    ratio = 2 * (best - _held(design, y.astype(float), 0.0))
    return float(beta[-1]), float(chi2.sf(max(ratio, 0.0), 1))


def _trend(x: Floats, y: NDArray[np.bool_], codes: NDArray[np.intp], n: int, rng: np.random.Generator) -> float:
    """Two-sided permutation p of the stratified Cochran-Armitage statistic."""
    null = np.zeros(n)
    seen = expected = 0.0
    for s in range(codes.max() + 1):
        own = codes == s
        xs, hits = x[own], int(y[own].sum())
        seen += float(x[own & y].sum())
        expected += hits * float(xs.mean())
        if 0 < hits < xs.size:
            order = np.argsort(rng.random((n, xs.size)), axis=1)[:, :hits]
            null += xs[order].sum(axis=1)
        else:
            null += hits * float(xs.mean())
    return float((1 + np.sum(np.abs(null - expected) >= abs(seen - expected) - 1e-9)) / (n + 1))


def _difference(
    nu: Floats, y: NDArray[np.bool_], codes: NDArray[np.intp], levels: Floats, rng: np.random.Generator, n: int = 4000
) -> tuple[float, float, float]:
    """Share collapsed at the highest less the lowest level; 90 % interval from independent Jeffreys posteriors."""
    values, draws = [], []
    for s in range(codes.max() + 1):
        ends = []
        for v in (levels[0], levels[-1]):
            own = (codes == s) & (nu == v)
            if own.any():
                hits, size = int(y[own].sum()), int(own.sum())
                ends.append((hits / size, rng.beta(hits + 0.5, size - hits + 0.5, n)))
        if len(ends) == 2:
            values.append(ends[1][0] - ends[0][0])
            draws.append(ends[1][1] - ends[0][1])
    if not values:
        return math.nan, math.nan, math.nan
    low, high = np.quantile(np.mean(draws, axis=0), [0.05, 0.95])
    return float(np.mean(values)), float(low), float(high)


def jonckheere(
    levels: Floats, values: Floats, codes: NDArray[np.intp] | None = None, *, n_null: int = 9999, rng: Any = None
) -> tuple[float, float]:
    """Jonckheere-Terpstra trend of values over ordered levels, within strata.

    Parameters
    ----------
    levels, values : (n,) arrays
    codes : (n,) int array, optional
        Strata.
    n_null : int
        Permutations of the levels within strata.
    rng : int or Generator, optional

    Returns
    -------
    statistic : float
        Concordant less discordant pairs over all pairs of different levels, -1 to 1 (ties count half).
    p : float
        Two-sided, by permutation.
    """
    generator = as_generator(rng)
    strata = np.zeros(levels.size, dtype=np.intp) if codes is None else codes
    seen = pairs = 0.0
    null = np.zeros(n_null)
    for s in np.unique(strata):
        v, x = values[strata == s], levels[strata == s]
        sign = np.sign(v[None, :] - v[:, None])
        seen += _score(sign, x)
        pairs += float(np.sum(x[:, None] < x[None, :]))
        for i in range(n_null):
            null[i] += _score(sign, generator.permutation(x))
    if not pairs:
        return math.nan, math.nan
    return seen / pairs, float((1 + np.sum(np.abs(null) >= abs(seen) - 1e-9)) / (n_null + 1))


def _score(sign: Floats, levels: Floats) -> float:
    return float(np.sum(sign * (levels[:, None] < levels[None, :])))
