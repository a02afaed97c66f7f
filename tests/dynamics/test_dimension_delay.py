"""Intrinsic dimension and delay embedding: known answers, the obvious loop, refusals."""

from __future__ import annotations

import dynamics_systems as systems
import numpy as np
import pytest

from trajscope.dynamics import delay_embedding, intrinsic_dimension
from trajscope.dynamics.delay import autocorrelation, embed, mutual_information, nearest_neighbours
from trajscope.dynamics.intrinsic import covariance_participation, twonn
from trajscope.errors import InputError, NotEnoughData
from trajscope.simulate import ar


@pytest.mark.parametrize(("d", "expected", "tolerance"), [(2, 2.0, 0.1), (5, 4.8, 0.3), (10, 9.43, 0.8)])
def test_twonn_of_spheres(d, expected, tolerance):
    """METHODS: 2.00, 4.80, 9.43 at n = 5000, low in high dimensions."""
    found = np.mean([twonn(systems.sphere(5000, d, seed)).dimension for seed in range(2)])
    assert found == pytest.approx(expected, abs=tolerance)


def test_twonn_is_its_formula():
    x = np.random.default_rng(0).normal(size=(200, 3))
    d = np.sort(np.linalg.norm(x[:, None] - x[None], axis=2), axis=1)
    log_mu = np.log(d[:, 2] / d[:, 1])
    assert twonn(x).dimension == pytest.approx(199 / log_mu.sum())
    # frozen: scikit-dimension 0.5.0 fits a line through the origin instead; both are near 3 on 2,000 points


def test_twonn_interval_covers():
    """95 % nominal; an interval that takes ratios for independent covers 87 %: 150 draws, P(X < 133 | 0.94) = 0.006."""
    hit = 0
    for seed in range(150):
        got = twonn(systems.sphere(400, 2, 1000 + seed))
        hit += got.low <= 2 <= got.high
    assert hit >= 133


def test_duplicates_are_dropped_and_counted():
    x = systems.sphere(500, 2, 0)
    repeated = np.concatenate([x, x[:300]])
    got = twonn(repeated)
    assert (got.n_duplicates, got.n_rows) == (300, 500)
    assert got.dimension == pytest.approx(twonn(x).dimension)
    np.testing.assert_array_equal(repeated[:500], x)


def test_a_finely_sampled_curve_is_thinned_first():
    orbit = systems.orbit(systems.lorenz_field, [1.0, 1.0, 20.0], 0.01, 5000, 1000, 2)
    got = intrinsic_dimension(orbit, n_boot=0)
    assert got.thinning >= 4
    assert got.twonn.dimension == pytest.approx(2.06, abs=0.3)
    assert got.by_thinning[0][1].temporal > 0.3
    # a random walk never comes back often enough
    walk = np.cumsum(np.random.default_rng(0).normal(size=(2000, 12)), axis=0)
    assert intrinsic_dimension(walk, n_boot=0).status == "cannot tell"


def test_participation_ratio_known_answers():
    white = np.random.default_rng(0).normal(size=(1000, 20))
    assert covariance_participation(white) == pytest.approx(19.61, abs=0.1)
    one = np.outer(np.arange(50.0), [1.0, 2.0, 3.0])
    assert covariance_participation(one) == pytest.approx(1.0)
    walks = np.cumsum(np.random.default_rng(0).normal(size=(3000, 12)), axis=0)
    got = intrinsic_dimension(walks, rng=0)
    assert got.participation[0] < 6 < 11 < got.participation_differences
    assert got.participation[1] < got.participation[0] < got.participation[2]
    assert got.to_dict()["participation"] == intrinsic_dimension(walks, rng=0).to_dict()["participation"]


def test_quantised_and_few_rows():
    coarse = np.round(np.random.default_rng(0).normal(size=(1000, 2)), 1)
    got = intrinsic_dimension(coarse, n_boot=0)
    assert got.status == "cannot tell"
    assert "quantised" in got.summary()
    levels = np.tile([[0.0, 1.0], [1.0, 0.0]], (50, 1))
    assert "distinct" in intrinsic_dimension(levels, n_boot=0).reason
    with pytest.raises(NotEnoughData, match="at least 10"):
        intrinsic_dimension(np.arange(5.0))
    with pytest.raises(NotEnoughData, match="no channel varies"):
        intrinsic_dimension(np.ones((50, 2)))
    with pytest.raises(NotEnoughData, match="distinct rows"):
        twonn(np.ones((50, 2)))
    with pytest.raises(InputError, match="finite"):
        twonn(np.full((50, 2), np.nan))
    with pytest.raises(InputError, match="thinning 0"):
        intrinsic_dimension(np.arange(50.0), thinning=0)
    assert intrinsic_dimension(systems.sphere(300, 2, 0), thinning=2).thinning == 2


def test_embedding_never_reaches_over_a_break():
    x = np.arange(10.0)
    linked = np.ones(10, dtype=bool)
    linked[[0, 5]] = False
    vectors, rows = embed(x, 3, 2, linked)
    assert rows.tolist() == [4, 9]
    assert vectors.tolist() == [[4.0, 2.0, 0.0], [9.0, 7.0, 5.0]]
    x[7] = np.nan
    assert embed(x, 2, 1, linked)[1].tolist() == [1, 2, 3, 4, 6, 9]


def test_information_and_autocorrelation_have_closed_forms():
    rho = 0.8
    x = ar(100_000, rho, rng=0)[:, 0]
    np.testing.assert_allclose(autocorrelation(x, 3), rho ** np.arange(4), atol=0.02)
    np.testing.assert_allclose(mutual_information(x, 2)[1:], -0.5 * np.log(1 - rho ** (2 * np.arange(1, 3))), atol=0.03)
    assert np.isnan(mutual_information(np.arange(5.0), 2)).all()


def test_neighbours_against_the_obvious_loop():
    x = np.random.default_rng(0).normal(size=(60, 2))
    x[7] = x[20]
    place = np.arange(60)
    usable = np.random.default_rng(1).random(60) < 0.8
    index, distance = nearest_neighbours(x, place, 4, usable)
    for i in range(60):
        d = [np.linalg.norm(x[i] - x[j]) if usable[j] and abs(i - j) > 4 else np.inf for j in range(60)]
        d = [v if v > 0 else np.inf for v in d]
        assert index[i] == int(np.argmin(d))
        assert distance[i] == pytest.approx(min(d))


def test_dimensions_of_known_systems():
    henon = delay_embedding(systems.henon(2000))
    assert (henon.delay, henon.dimension, henon.dimension_neighbours) == (1, 2, 2)
    lorenz = delay_embedding(systems.orbit(systems.lorenz_field, [1.0, 1.0, 20.0], 0.05, 2000, 400, 5)[:, 0])
    assert lorenz.delay in (3, 4, 5)
    assert lorenz.dimension in (3, 4)
    assert lorenz.dimension_neighbours == 3
    assert [d for d, _, _ in lorenz.sensitivity] == [lorenz.delay // 2, lorenz.delay, 2 * lorenz.delay]
    assert "at a delay of" in lorenz.summary()


@pytest.mark.parametrize("kind", ["white", "ar", "walk", "constant", "short"])
def test_no_dimension_for_noise(kind):
    rng = np.random.default_rng(0)
    x = {
        "white": rng.normal(size=1000),
        "ar": ar(1000, 0.9, rng=0)[:, 0],
        "walk": np.cumsum(rng.normal(size=1000)),
        "constant": np.ones(300),
        "short": rng.normal(size=50),
    }[kind]
    got = delay_embedding(x)
    assert got.status == "cannot tell"
    assert got.dimension == 0
    assert got.reason in got.summary()
    got.to_frame()
    got.to_dict()


def test_bad_arguments():
    with pytest.raises(InputError, match="name one: channel"):
        delay_embedding(np.zeros((200, 2)))
    with pytest.raises(InputError, match="rule is 'mi'"):
        delay_embedding(np.zeros(200), rule="mi")
    with pytest.raises(InputError, match="most 1"):
        delay_embedding(np.zeros(200), most=1)
    with pytest.raises(InputError, match="one channel"):
        embed(np.zeros((9, 2)), 2)
    with pytest.raises(InputError, match="delay 0"):
        embed(np.zeros(9), 2, 0)
