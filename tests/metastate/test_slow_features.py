"""Slow features: published known answer, autocorrelations, expansions, the gap test."""

from __future__ import annotations

import numpy as np
import pytest
from deeptime.decomposition import TICA
from metastate_systems import ar, orthonormal, punch, two_state

from trajscope._core.linalg import mean_cos2
from trajscope.errors import InputError, NotEnoughData
from trajscope.metastate import SlowFeatures
from trajscope.metastate.slow import block_moments, expand, time_scale


def test_the_example_of_wiskott_and_sejnowski() -> None:
    t = np.linspace(0, 2 * np.pi, 5000, endpoint=False)
    x = np.stack([np.sin(t) + np.cos(11 * t) ** 2, np.cos(11 * t)], axis=1)
    model = SlowFeatures(2, expansion="quadratic", scale=None).fit(x)
    z = model.transform(x)
    assert abs(np.corrcoef(z[:, 0], np.sin(t))[0, 1]) > 0.99999
    assert abs(np.corrcoef(z[:, 1], np.cos(11 * t))[0, 1]) > 0.9999
    np.testing.assert_allclose(model.delta_ / t[1] ** 2, [1.0, 121.0], rtol=1e-3)
    np.testing.assert_allclose(z.var(axis=0), 1, rtol=1e-3)
    linear = SlowFeatures(1, scale=None).fit_transform(x)
    assert abs(np.corrcoef(linear[:, 0], np.sin(t))[0, 1]) == pytest.approx(0.894, abs=1e-3)


def test_eigenvalues_are_those_of_reversible_tica() -> None:
    x = two_state(np.random.default_rng(0), 3000)[0]
    for lag in (1, 7):
        ours = SlowFeatures(10, lag=lag, scale=None).fit(x)
        # TICA symmetrises over the pair of rows but centres on their mean; so do we, up to the ends
        theirs = TICA(lagtime=lag, dim=10).fit(x).fetch_model().singular_values
        np.testing.assert_allclose(ours.eigenvalues_, np.sort(theirs)[::-1], atol=2e-3)


def test_time_scales_and_their_intervals() -> None:
    hits, scales = 0, []
    truth = -1 / np.log(0.9)
    for seed in range(100):
        x = ar(np.random.default_rng(seed), 4000, 0.9, 1)
        model = SlowFeatures(1).fit(np.hstack([x, ar(np.random.default_rng(seed + 1000), 4000, 0.2)]))
        low, high = model.timescale_intervals_[0]
        hits += low <= truth <= high
        scales.append(model.timescales_[0])
    assert np.median(scales) == pytest.approx(truth, rel=0.03)
    assert 86 <= hits <= 100  # 95 %, binomial 99.9 % bounds, a bootstrap of few blocks being a little narrow
    np.testing.assert_allclose(time_scale([0.0, 1.0, -np.exp(-0.5)]), [0, np.inf, 2])


def test_expansion_orders_and_counts() -> None:
    x = np.random.default_rng(0).normal(size=(6, 3))
    both = expand(x, quadratic=True, delays=1)
    assert both.shape == (6, 6 + 21)
    np.testing.assert_array_equal(both[1:, 3:6], x[:-1])
    i, j = np.triu_indices(6)
    np.testing.assert_array_equal(both[2, 6:], both[2, i] * both[2, j])


@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_block_moments_are_the_plain_sums(lag: int, share: float) -> None:
    rng = np.random.default_rng(1)
    runs = [punch(rng, rng.normal(size=(n, 3)), share) for n in (40, 25, lag)]
    level, moved, pairs = (m.sum(axis=0) for m in block_moments(runs, lag, 6))
    expected = np.zeros((3, 3, 3))
    for x in runs:
        for a, b in zip(x[:-lag], x[lag:], strict=True):
            d = b - a
            for i in range(3):
                for j in range(3):
                    if not np.isnan(d[i] + d[j]):
                        expected[:, i, j] += [(a[i] * a[j] + b[i] * b[j]) / 2, d[i] * d[j], 1]
    if share == 0 or lag:
        np.testing.assert_allclose([level, moved, pairs], expected, atol=1e-12)


def test_gaps_bias_nothing() -> None:
    rng = np.random.default_rng(2)
    x, z = two_state(rng, 5000)
    model = SlowFeatures(2, scale="std").fit(punch(rng, x, 0.3))
    whole = SlowFeatures(2, scale="std").fit(x)
    np.testing.assert_allclose(model.eigenvalues_, whole.eigenvalues_, atol=0.03)
    assert mean_cos2(model.loadings_, whole.loadings_) > 0.98
    assert abs(np.corrcoef(model.transform(x)[:, 0], z[:, 0])[0, 1]) > 0.85


def test_delays_find_what_one_row_cannot() -> None:
    # a rotation is invisible in the size of one coordinate; with its past the fast oscillation becomes two axes
    t = np.arange(3000) * 0.7
    rng = np.random.default_rng(3)
    x = np.stack([np.sin(t), 0.1 * rng.normal(size=t.size)], axis=1)
    plain, delayed = SlowFeatures(1, scale="std").fit(x), SlowFeatures(1, scale="std", delays=3).fit(x)
    assert delayed.delta_[0] < plain.delta_[0]
    assert np.isfinite(delayed.transform(x)[3:]).all()


def test_equal_rates_are_reported_as_a_plane_and_unequal_ones_as_axes() -> None:
    def groups(rates: tuple[float, float], seed: int) -> list[tuple[int, ...]]:
        return SlowFeatures(2, scale="std").fit(two_state(np.random.default_rng(seed), 4000, rates)[0]).groups_

    equal = [groups((0.97, 0.97), s) for s in range(40)]
    apart = [groups((0.97, 0.85), s) for s in range(40)]
    assert sum(g == [(0,), (1,)] for g in equal) <= 5  # 5 % in the proof; 98 % bound of 40
    assert sum(g == [(0,), (1,)] for g in apart) >= 29  # 88 % in the proof
    model = SlowFeatures(2, scale="std").fit(two_state(np.random.default_rng(0), 4000, (0.97, 0.97))[0])
    assert "too close in slowness" in model.summary()


def test_the_plane_is_right_where_the_axes_are_not() -> None:
    rng = np.random.default_rng(4)
    w = orthonormal(rng, 10, 2)
    x = ar(rng, 4000, 0.97, 2) @ w.T * np.sqrt(5) + rng.normal(size=(4000, 10))
    model = SlowFeatures(2, scale=None).fit(x)
    assert mean_cos2(model.loadings_, w) > 0.98


def test_pairs_do_not_cross_runs() -> None:
    rng = np.random.default_rng(5)
    runs = [rng.normal(size=(50, 2)) + 100 * i for i in range(4)]
    model = SlowFeatures(1, scale=None).fit(runs)
    assert abs(model.eigenvalues_[0]) < 0.3


def test_what_cannot_be_done_is_said() -> None:
    x = np.random.default_rng(6).normal(size=(30, 2))
    with pytest.raises(NotEnoughData, match="at least 41"):
        SlowFeatures(1, lag=40).fit(x)
    with pytest.raises(InputError, match="'linear' or 'quadratic'"):
        SlowFeatures(1, expansion="cubic").fit(x)
    with pytest.raises(InputError, match="lag >= 1"):
        SlowFeatures(1, lag=0).fit(x)


@pytest.mark.parametrize(("rows", "n_boot"), [(5, 200), (400, 0)])
def test_a_gap_test_that_was_not_made_is_not_reported_as_a_plane(rows: int, n_boot: int) -> None:
    x = np.random.default_rng(0).normal(size=(rows, 3))
    model = SlowFeatures(2, n_boot=n_boot).fit(x)
    assert np.isnan(model.gaps_).all()
    assert "is not known" in model.summary()
    assert "too close" not in model.summary()
    assert "nan" not in model.summary()
