"""Rows, splits, surrogates and refits that all parts of `identifiability` share.

The reference of the estimator is fitted once, on all runs, channel by channel: it cannot make channels agree. What is
left over, in units of the baseline and centred run by run, is what every refit sees, and what surrogates are made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from trajscope._core.surrogates import SURROGATES, fill_gaps
from trajscope.errors import InputError, NotEnoughData
from trajscope.metastate import MIN_CHANNELS
from trajscope.metastate._runs import as_runs
from trajscope.metastate.parallel import centre_run

__all__ = ["NULLS", "Rows", "halves", "instrument", "limit_rank", "prepare", "refit", "surrogate_of"]

Floats = NDArray[np.float64]

NULLS = ("circular", "phase")
"""Surrogates that stand for "channels share nothing"; the larger threshold of the two counts."""

_LEAST_ROWS = 20
_QUICK_STEPS = 25


@dataclass(frozen=True, eq=False)
class Rows:
    """What is examined.

    Attributes
    ----------
    xs : list of ndarray, each (n_steps, n_channels)
        One a run: standardised, centred, NaN where nothing is known; channels that move only.
    names : tuple of str
    fitted : estimator
        Fitted on all runs.
    k : int
    pieces : list of ndarray
        What splits are made of: the runs, or consecutive blocks of them.
    split : {"run", "block"}
    """

    xs: list[Floats]
    names: tuple[str, ...]
    fitted: Any
    k: int
    pieces: list[Floats]
    split: str

    @property
    def n_channels(self) -> int:
        """Channels that move."""
        return int(self.xs[0].shape[1])


def prepare(estimator: Any, runs: Any, split: str, n_blocks: int) -> Rows:
    """Fit the estimator on all runs and take its reference off them."""
    if split not in ("run", "block"):
        raise InputError(f"split is {split!r}; expected 'run' (whole runs) or 'block' (consecutive parts of runs).")
    if n_blocks < 2:
        raise InputError(f"n_blocks is {n_blocks}; a run is cut into 2 blocks at least.")
    missing = [name for name in ("fit", "transform", "deviation", "get_params") if not hasattr(estimator, name)]
    if missing:
        raise InputError(
            f"{type(estimator).__name__} has no {missing[0]}; expected a meta-state estimator (trajscope.PCAState,"
            " SlowFeatures, LinearStateSpace, or one with the same interface)."
        )
    given = as_runs(runs, "runs")
    fitted = clone(estimator).fit(runs)
    reference = fitted.reference_
    used = np.asarray(reference.used, dtype=bool)
    if used.sum() < MIN_CHANNELS:
        raise NotEnoughData(
            f"{int(used.sum())} of {used.size} channels move; a meta-state needs at least {MIN_CHANNELS}."
        )
    xs = [centre_run(reference.residual(r)[:, used]) for r in given]
    xs = [x for x in xs if x.shape[0] >= _LEAST_ROWS and not np.isnan(x).all()]
    if not xs:
        raise NotEnoughData(f"no run has {_LEAST_ROWS} rows; nothing can be said of a state from fewer.")
    labels = given[0].names or tuple(f"x{i}" for i in range(used.size))
    names = tuple(str(n) for n, u in zip(labels, used, strict=True) if u)
    pieces = xs if split == "run" else [b for x in xs for b in _blocks(x, n_blocks)]
    return Rows(xs, names, fitted, int(fitted.n_components_), pieces, split)


def _blocks(x: Floats, n_blocks: int) -> list[Floats]:
    """Consecutive parts of a run, each centred; a run too short for that stays whole."""
    if x.shape[0] < n_blocks * _LEAST_ROWS:
        return [x]
    return [centre_run(b) for b in np.array_split(x, n_blocks)]


def refit(estimator: Any, xs: list[Floats], k: int, *, seed: int = 0, quick: bool = False) -> Any:
    """A clone with k components, fitted on standardised rows.

    ``quick`` (surrogates, simulated data) takes one start and at most 25 iterations where the estimator iterates.
    """
    known = estimator.get_params()
    wanted: dict[str, Any] = {"n_components": k, "reference": "level", "scale": None, "rng": seed, "n_boot": 0}
    if quick:
        wanted |= {"n_starts": 1, "max_iter": min(_QUICK_STEPS, known.get("max_iter") or _QUICK_STEPS), "tol": 1e-6}
    return clone(estimator).set_params(**{n: v for n, v in wanted.items() if n in known}).fit(xs)


def halves(n: int, n_splits: int, rng: np.random.Generator) -> list[tuple[list[int], list[int]]]:
    """Random halves of n pieces, disjoint; with few pieces no split comes twice."""
    out: list[tuple[list[int], list[int]]] = []
    seen: set[tuple[int, ...]] = set()
    for _ in range(20 * n_splits):
        order = rng.permutation(n)
        a, b = sorted(order[: n // 2].tolist()), sorted(order[n // 2 :].tolist())
        key = tuple(a) if n % 2 or 0 in a else tuple(b)
        if key not in seen:
            seen.add(key)
            out.append((a, b))
        if len(out) == n_splits:
            break
    return out


def surrogate_of(kind: str, xs: list[Floats], rng: np.random.Generator) -> list[Floats]:
    """Runs in which every channel keeps its own memory and shares nothing with the others; gaps stay."""
    make: Callable[[Floats, np.random.Generator], Floats] = SURROGATES[kind]
    if kind == "circular":
        return [centre_run(make(x, rng)) for x in xs]
    return [centre_run(np.where(np.isnan(x), np.nan, make(fill_gaps(x), rng))) for x in xs]


def surrogate_pieces(rows: Rows, kind: str, rng: np.random.Generator) -> list[Floats]:
    """Pieces of surrogate runs, cut as those of the data are: what neighbouring blocks share stays shared."""
    made = surrogate_of(kind, rows.xs, rng)
    if rows.split == "run":
        return made
    cut = len(rows.pieces) // len(rows.xs)
    return [b for x in made for b in _blocks(x, cut)]


def limit_rank(n: int) -> int:
    """Which of n sorted surrogate values (from 0) the data exceed with probability 5 % if they are one more of them."""
    return min(n, math.ceil(0.95 * (n + 1))) - 1


def instrument(zs: list[Floats]) -> Floats:
    """Dynamics of states read off with white noise on top: ``C_2 C_1^-1``, lag-2 over lag-1 autocovariance.

    A regression on the past takes such noise for damping; lagged covariances do not see it.
    """
    k = zs[0].shape[1]
    c1, c2 = np.zeros((k, k)), np.zeros((k, k))
    for z in zs:
        w = np.nan_to_num(z - np.nanmean(z, axis=0)) if z.shape[0] > 3 else np.zeros_like(z)
        c1 += w[1:].T @ w[:-1]
        c2 += w[2:].T @ w[:-2]
    return np.asarray(c2 @ np.linalg.pinv(c1))


def counted(items: int, label: str, report: Callable[[str, int, int], None]) -> Iterator[int]:
    """Count through a stage, telling how far it is."""
    for i in range(items):
        report(label, i, items)
        yield i
    report(label, items, items)
