"""Aggregates: equal to scipy's building blocks (and to rliable where it is installed), and intervals that cover."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from trajscope.errors import InputError
from trajscope.inference.profiles import (
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    stratified_interval,
)


def groups(seed, sizes=(10, 10, 10), shift=0.0):
    rng = np.random.default_rng(seed)
    return {f"t{i}": np.round(rng.normal(shift, 1, n), 1) for i, n in enumerate(sizes)}


@pytest.mark.parametrize("n", [4, 5, 7, 8, 30, 31])
def test_interquartile_mean_is_a_trimmed_mean(n):
    x = np.random.default_rng(n).normal(size=n)
    assert interquartile_mean(x) == pytest.approx(stats.trim_mean(x, 0.25), abs=1e-14)


def test_probability_of_improvement_is_a_mann_whitney_statistic():
    a, b = groups(0, (10, 7, 5)), groups(1, (4, 9, 5), 0.3)
    theirs = np.mean([stats.mannwhitneyu(a[t], b[t]).statistic / (len(a[t]) * len(b[t])) for t in a])
    assert probability_of_improvement(a, b) == pytest.approx(theirs, abs=1e-14)
    assert probability_of_improvement(a, a) == pytest.approx(0.5)
    assert probability_of_improvement(a, b) + probability_of_improvement(b, a) == pytest.approx(1)


def test_equal_to_rliable():
    metrics = pytest.importorskip("rliable.metrics")
    a, b = groups(2), groups(3)
    x, y = (np.column_stack(list(g.values())) for g in (a, b))  # runs by tasks
    assert interquartile_mean(a) == pytest.approx(metrics.aggregate_iqm(x), abs=1e-12)
    assert probability_of_improvement(a, b) == pytest.approx(metrics.probability_of_improvement(x, y), abs=1e-12)


def test_profile():
    g = {"a": [1.0, 2.0, 3.0, 4.0], "b": [2.0]}
    assert performance_profile(g, [2.0]).tolist() == [0.25]
    level = performance_profile(groups(4), np.linspace(-3, 3, 50))
    assert np.all(np.diff(level) <= 0)


def test_intervals_cover():
    hits = 0
    for seed in range(80):
        low, high = stratified_interval(interquartile_mean, groups(100 + seed, (15, 15)), n_boot=300, rng=seed)
        hits += low <= 0 <= high
    assert hits >= stats.binom.ppf(0.001, 80, 0.92)


def test_strata_keep_their_number():
    sizes = []
    stratified_interval(lambda g: float(sizes.append([len(v) for v in g.values()]) or 0), groups(0, (3, 9)), n_boot=20)
    assert all(s == [3, 9] for s in sizes)


@pytest.mark.parametrize("bad", [{}, [1.0], {"a": []}, {"a": [np.nan]}])
def test_bad_scores(bad):
    with pytest.raises(InputError):
        performance_profile(bad, [0])
    with pytest.raises(InputError, match="tasks"):
        probability_of_improvement({"a": [1.0]}, {"b": [1.0]})
    with pytest.raises(InputError):
        interquartile_mean([])
