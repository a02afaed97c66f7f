"""The state-space estimator: recovery, calibration of bands, likelihood, choice of dimension."""

from __future__ import annotations

import numpy as np
import pytest
from metastate_systems import ar, punch, random_model, simulate, two_state
from statsmodels.tsa.statespace.mlemodel import MLEModel

from trajscope._core.kalman import Model, kalman_smoother
from trajscope._core.linalg import mean_cos2
from trajscope.errors import InputError
from trajscope.metastate import LinearStateSpace, align_states
from trajscope.metastate.dimension import heldout_dimension


def test_a_two_state_system_is_recovered() -> None:
    rng = np.random.default_rng(0)
    x, z = two_state(rng, 5000)
    model = LinearStateSpace(2, scale="std").fit(punch(rng, x, 0.2))
    np.testing.assert_allclose(np.abs(model.eigenvalues_), [0.97, 0.85], atol=0.02)
    half, rest = slice(0, 2500), slice(2500, None)
    states = model.transform(x)
    fit = align_states(states[half], z[half], kind="linear").apply(states[rest])
    assert (np.corrcoef(fit.T, z[rest].T)[[0, 1], [2, 3]] > 0.9).all()
    assert model.converged_
    assert np.diff(model.log_likelihood_path_).min() > -1e-6


def test_observation_noise_is_not_taken_for_damping() -> None:
    x, _ = two_state(np.random.default_rng(1), 4000, (0.98,), p=4)
    model = LinearStateSpace(1).fit(x)
    scores = x @ model.loadings_
    regression = (scores[1:] * scores[:-1]).sum() / (scores[:-1] ** 2).sum()
    assert model.spectral_radius_ == pytest.approx(0.98, abs=0.012)
    assert regression < 0.95


def test_several_starts_reach_the_same_likelihood() -> None:
    x, _ = two_state(np.random.default_rng(2), 1000)
    fits = [LinearStateSpace(2, n_starts=n, rng=r, tol=1e-9, max_iter=1000).fit(x) for n, r in ((1, 0), (3, 1), (5, 2))]
    values = [m.log_likelihood(x) for m in fits]
    assert np.ptp(values) < 0.05
    assert mean_cos2(fits[0].loadings_, fits[2].loadings_) > 0.9999
    assert fits[1].start_log_likelihoods_.shape == (3,)


def test_log_likelihood_in_the_units_of_the_channels_equals_statsmodels() -> None:
    rng = np.random.default_rng(3)
    x = punch(rng, two_state(rng, 400, p=5)[0] * [1, 10, 0.01, 1, 3] + [0, 5, 1, -100, 0], 0.2)
    model = LinearStateSpace(2, max_iter=30).fit(x)

    class Oracle(MLEModel):
        start_params = np.zeros(0)

    oracle = Oracle(x, k_states=2, k_posdef=2)
    oracle["design"], oracle["transition"] = model.C_, model.A_
    oracle["selection"], oracle["state_cov"], oracle["obs_cov"] = np.eye(2), model.Q_, np.diag(model.R_)
    oracle.ssm.initialize_known(np.zeros(2), np.eye(2))
    oracle["obs_intercept"] = np.nanmean(x, axis=0)
    assert model.log_likelihood(x) == pytest.approx(oracle.ssm.loglike(), rel=1e-8)
    oracle["obs_intercept"] = model.mean_
    assert model.log_likelihood(x, centre="fitted") == pytest.approx(oracle.ssm.loglike(), rel=1e-8)
    cells = (~np.isnan(x)).sum()
    assert model.predictive_score(x) == pytest.approx(oracle.ssm.loglike() / cells, rel=1e-8)
    assert model.score(x) == model.predictive_score(x)


def test_em_step_climbs_on_several_runs_with_gaps() -> None:
    rng = np.random.default_rng(4)
    runs = [punch(rng, two_state(rng, n)[0] + 5 * n, 0.2) for n in (60, 200, 90)]
    model = LinearStateSpace(2)
    model.em_step(runs)  # starts by itself
    path = [model.log_likelihood(runs)]
    for _ in range(15):
        assert model.em_step(runs) is model
        path.append(model.log_likelihood(runs))
    assert (np.diff(path) > 0).all()
    assert sum(model.log_likelihood(r) for r in runs) == pytest.approx(path[-1], rel=1e-10)
    assert model.n_iter_ == 16


def test_bands_cover_the_truth() -> None:
    known, smooth, causal, more = [], [], [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        truth = random_model(rng, 2, 6)
        x, z = simulate(rng, truth, 400)
        x = punch(rng, x, 0.2)
        model = LinearStateSpace(2, scale=None, n_starts=1, tol=1e-6).fit(x)
        signal = z @ truth.c.T - model.mean_
        for options, where in (
            ({}, smooth),
            ({"causal": True}, causal),
            ({"n_boot": 10} if seed < 4 else {}, more if seed < 4 else []),
        ):
            bands = model.bands(x, of="channels", **options)
            low, high = (bands.xs(s, axis=1, level=1).to_numpy() for s in ("low", "high"))
            where.append(((signal > low) & (signal < high)).mean())
        out = kalman_smoother(x, truth)
        half = 1.959964 * np.sqrt(np.diagonal(out.covariance, axis1=1, axis2=2))
        known.append((np.abs(out.mean - z) < half).mean())
    assert 0.93 < np.mean(known) < 0.97  # parameters known: exact
    assert 0.90 < np.mean(smooth) < 0.97  # parameters estimated and taken as known
    assert 0.90 < np.mean(causal) < 0.97
    assert np.mean(smooth[:4]) < np.mean(more)  # their uncertainty added
    assert 0.91 < np.mean(more) < 0.98


def test_state_bands_have_the_shape_that_is_promised() -> None:
    x, _ = two_state(np.random.default_rng(5), 200)
    model = LinearStateSpace(2, n_starts=1, max_iter=20).fit(x)
    bands = model.bands(x, level=0.5)
    assert list(bands.columns) == [(s, k) for s in ("z1", "z2") for k in ("low", "mean", "high")]
    np.testing.assert_allclose(bands.xs("mean", axis=1, level=1), model.transform(x))
    wide = model.bands([x, x[:50]], level=0.99)
    assert (wide[0][("z1", "high")] > bands[("z1", "high")]).all()
    with pytest.raises(InputError, match="between 0 and 1"):
        model.bands(x, level=95)
    with pytest.raises(InputError, match="'states' or 'channels'"):
        model.bands(x, of="state")
    with pytest.raises(InputError, match="coordinates of their own"):
        model.bands(x, n_boot=20)


def test_the_normalised_innovation_squared_has_its_distribution() -> None:
    rng = np.random.default_rng(6)
    x, _ = two_state(rng, 4000)
    model = LinearStateSpace(2).fit(x)
    nis = model.deviation(x)["NIS"]
    assert nis.mean() == pytest.approx(10, rel=0.03)
    assert nis.var() == pytest.approx(20, rel=0.15)


def test_canonical_form_is_the_one_that_is_promised() -> None:
    x, _ = two_state(np.random.default_rng(7), 800)
    model = LinearStateSpace(2, scale="std").fit(x)
    np.testing.assert_allclose(model.A_ @ model.A_.T + model.Q_, np.eye(2), atol=1e-8)
    strength = (model.C_.T / model.R_) @ model.C_
    assert abs(strength[0, 1]) < 1e-6 * strength[0, 0]
    assert strength[0, 0] > strength[1, 1]
    again = LinearStateSpace(2, scale="std").fit(-x)
    np.testing.assert_allclose(again.loadings_, model.loadings_, atol=1e-6)


def test_dimension_by_held_out_runs() -> None:
    rng = np.random.default_rng(8)
    w = np.linalg.qr(rng.normal(size=(6, 2)))[0] * np.sqrt(3)
    runs = [np.hstack([ar(rng, 250, 0.95), ar(rng, 250, 0.8)]) @ w.T + rng.normal(size=(250, 6)) for _ in range(3)]
    out = heldout_dimension(runs, n_starts=1, max_iter=30)
    assert out.n_components == 2
    assert out.scores[0] < out.scores[1] < out.scores[2]
    assert LinearStateSpace("heldout", n_starts=1).fit(runs).n_components_ == 2
    alone = heldout_dimension([rng.normal(size=(300, 5))], n_starts=1, max_iter=30)
    assert alone.n_components == 0


def test_no_component_is_white_noise() -> None:
    x = np.random.default_rng(9).normal(size=(300, 4)) * [1, 2, 3, 4]
    model = LinearStateSpace().fit(x)
    assert model.n_components_ == 0
    np.testing.assert_allclose(model.R_, x.var(axis=0), rtol=1e-6)
    from scipy.stats import norm

    exact = norm(x.mean(axis=0), x.std(axis=0)).logpdf(x).sum()
    assert model.log_likelihood(x) == pytest.approx(exact, rel=1e-9)


def test_a_model_handed_in_is_kept_exactly() -> None:
    with pytest.raises(InputError, match="n_starts"):
        LinearStateSpace(1, n_starts=0).fit(np.random.default_rng(0).normal(size=(30, 2)))
    with pytest.raises(InputError, match="'run' or 'fitted'"):
        LinearStateSpace(1, max_iter=1).fit(np.random.default_rng(0).normal(size=(30, 2))).log_likelihood(
            np.zeros((3, 2)), centre="mean"
        )
    model = Model.stationary(np.array([[0.5]]), np.ones((2, 1)), np.array([[0.75]]), np.ones(2))
    assert model.p0[0, 0] == pytest.approx(1.0)
