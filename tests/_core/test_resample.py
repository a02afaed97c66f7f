"""Bootstrap by cluster: what is drawn, and intervals against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from trajscope._core.resample import (
    bca_interval,
    cluster_draws,
    cluster_means,
    percentile_interval,
    proportion_interval,
)
from trajscope.errors import InputError


def test_clusters_stay_whole_and_strata_keep_their_number():
    clusters = np.array([3, 3, 3, 1, 1, 7, 8, 9])
    strata = np.array(["a"] * 5 + ["b"] * 3)
    for rows in cluster_draws(clusters, 200, np.random.default_rng(0), strata):
        counts = np.bincount(rows, minlength=8)
        assert counts[0] == counts[1] == counts[2]
        assert counts[3] == counts[4]
        assert counts[0] + counts[3] == 2
        assert counts[5:].sum() == 3


def test_a_cluster_in_two_strata_is_refused():
    with pytest.raises(InputError, match="more than one stratum"):
        next(cluster_draws([1, 1], 1, np.random.default_rng(0), ["a", "b"]))


def test_nothing_to_draw():
    with pytest.raises(InputError, match="no rows"):
        next(cluster_draws([], 1, np.random.default_rng(0)))


def test_single_rows_are_the_plain_bootstrap():
    rows = np.array(list(cluster_draws(np.arange(6), 6000, np.random.default_rng(1))))
    share = np.bincount(rows.ravel(), minlength=6) / rows.size
    assert np.allclose(share, 1 / 6, atol=0.01)
    distinct = np.mean([len(set(row)) for row in rows.tolist()])
    assert distinct == pytest.approx(6 * (1 - (5 / 6) ** 6), abs=0.05)


def test_bca_against_scipy():
    x = np.random.default_rng(5).exponential(size=30)
    draws = [x[rows].mean() for rows in cluster_draws(np.arange(30), 20_000, np.random.default_rng(6))]
    left_out = [(x.sum() - v) / 29 for v in x]
    ours = bca_interval(float(x.mean()), draws, left_out)
    theirs = stats.bootstrap(
        (x,), np.mean, n_resamples=20_000, method="BCa", random_state=np.random.default_rng(7)
    ).confidence_interval
    assert ours == pytest.approx(tuple(theirs), abs=0.02)


def test_degenerate_draws():
    assert bca_interval(2.0, [2.0] * 50, [2.0] * 5) == (2.0, 2.0)
    assert all(map(math.isnan, bca_interval(math.nan, [1.0], [1.0])))
    assert all(map(math.isnan, percentile_interval([math.nan])))
    with pytest.raises(InputError, match="coverage"):
        percentile_interval([1.0], 95)


@pytest.mark.parametrize(("count", "n"), [(0, 10), (3, 10), (10, 10), (85, 88)])
def test_proportion_against_scipy(count, n):
    theirs = stats.binomtest(count, n).proportion_ci(0.95, method="exact")
    assert proportion_interval(count, n) == pytest.approx((theirs.low, theirs.high))


def test_proportion_edges():
    assert proportion_interval(0, 0) == (0.0, 1.0)
    with pytest.raises(InputError, match="no proportion"):
        proportion_interval(3, 2)


def test_means_of_clusters_have_the_distribution_of_draws() -> None:
    rng = np.random.default_rng(11)
    x, clusters = rng.normal(size=(40, 2)), rng.integers(0, 9, 40)
    slow = np.array([x[rows].mean(axis=0) for rows in cluster_draws(clusters, 20_000, rng)])
    fast = cluster_means(x, clusters, 20_000, rng)
    np.testing.assert_allclose(
        np.quantile(fast, [0.05, 0.5, 0.95], axis=0), np.quantile(slow, [0.05, 0.5, 0.95], axis=0), atol=0.02
    )
    with pytest.raises(InputError, match="nothing to resample"):
        cluster_means([], [], 5, rng)
