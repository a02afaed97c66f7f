r"""Aggregate performance over runs and tasks: interquartile mean, profiles, probability of improvement.

Definitions of Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice" (NeurIPS;
arXiv 2108.13264), as their library rliable computes them:

* **interquartile mean**: mean of the middle half of all scores (a quarter of the values, rounded down, is cut at each
  end);
* **performance profile**: share of scores above :math:`\tau`, for every :math:`\tau`;
* **probability of improvement** of *X* over *Y*: mean over tasks of :math:`P(X > Y) + \frac12 P(X = Y)`;
* **stratified bootstrap**: runs are drawn with replacement within each task.

Scores are a mapping of task to the scores of its runs: tasks may have different numbers of runs, which rliable's
matrix cannot hold. Where they have as many, the numbers are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope._core.resample import percentile_interval
from trajscope._core.surrogates import as_generator
from trajscope.errors import InputError

__all__ = ["interquartile_mean", "performance_profile", "probability_of_improvement", "stratified_interval"]

Floats = NDArray[np.float64]
Scores = Mapping[str, ArrayLike]


def _tasks(scores: Scores, name: str) -> dict[str, Floats]:
    if not isinstance(scores, Mapping) or not scores:
        raise InputError(
            f"{name} is {type(scores).__name__}; a mapping of task to scores, with a task or more, is expected"
        )
    out = {str(task): np.asarray(values, dtype=np.float64).ravel() for task, values in scores.items()}
    for task, values in out.items():
        if not values.size or np.isnan(values).any():
            raise InputError(f"{name}: task {task!r} has no scores, or NaN among them; leave such runs out and say so")
    return out


def interquartile_mean(scores: Scores | ArrayLike) -> float:
    """Mean of the middle half of all scores.

    >>> interquartile_mean([0, 1, 2, 3, 4, 5, 6, 100])
    3.5
    """
    parts = _tasks(scores, "scores").values() if isinstance(scores, Mapping) else [np.asarray(scores, float).ravel()]
    values = np.sort(np.concatenate(list(parts)))
    if not values.size or np.isnan(values).any():
        raise InputError("scores: there are none, or NaN among them")
    cut = int(0.25 * values.size)
    return float(values[cut : values.size - cut].mean())


def performance_profile(scores: Scores, levels: ArrayLike) -> Floats:
    """Share of scores above each level, averaged over tasks.

    >>> performance_profile({"a": [1, 2], "b": [3, 4]}, [0, 1.5, 3.5]).tolist()
    [1.0, 0.75, 0.25]
    """
    at = np.asarray(levels, dtype=np.float64)
    shares = [np.mean(values[None, :] > at[:, None], axis=1) for values in _tasks(scores, "scores").values()]
    return np.asarray(np.mean(shares, axis=0))


def probability_of_improvement(first: Scores, second: Scores) -> float:
    """Mean over tasks of the probability that a run of the first group beats one of the second; ties count half.

    >>> probability_of_improvement({"a": [2, 3]}, {"a": [1, 3]})
    0.625
    """
    x, y = _tasks(first, "first"), _tasks(second, "second")
    if set(x) != set(y):
        raise InputError(f"the groups have different tasks ({sorted(set(x) ^ set(y))[:3]}); the same ones are expected")
    return float(np.mean([_beats(x[task], y[task]) for task in sorted(x)]))


def _beats(x: Floats, y: Floats) -> float:
    ordered = np.sort(y)
    below, upto = np.searchsorted(ordered, x, "left"), np.searchsorted(ordered, x, "right")
    return float(np.mean(below + 0.5 * (upto - below)) / y.size)


def stratified_interval(
    statistic: Callable[..., float],
    *groups: Scores,
    n_boot: int = 10_000,
    level: float = 0.95,
    rng: int | np.random.Generator | None = None,
) -> tuple[float, float]:
    """Percentile interval of a statistic of one or several groups; runs are drawn within each task.

    Parameters
    ----------
    statistic : callable
        Takes as many mappings as there are groups.
    *groups : mapping of task to scores
    n_boot, level
    rng : int or Generator, optional
        Default 0.
    """
    generator = as_generator(rng)
    tables = [_tasks(g, "scores") for g in groups]
    draws = np.empty(n_boot)
    for i in range(n_boot):
        sample: Sequence[dict[str, Floats]] = [
            {task: v[generator.integers(0, v.size, v.size)] for task, v in table.items()} for table in tables
        ]
        draws[i] = statistic(*sample)
    return percentile_interval(draws, level)
