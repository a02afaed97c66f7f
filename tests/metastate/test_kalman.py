"""The filter and smoother against the joint normal, a textbook filter and statsmodels; EM against its own promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metastate_systems import joint_gaussian, punch, random_model, simulate, textbook_filter
from statsmodels.tsa.statespace.mlemodel import MLEModel

from trajscope._core import kalman
from trajscope._core.kalman import Model, kalman_filter, kalman_smoother, stationary_covariance
from trajscope._core.kalman_em import Panel, Statistics, canonical, em_step, expectations
from trajscope.errors import InputError

SIZES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 12))


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 0.8]))
def test_smoother_equals_the_joint_normal(sizes: tuple[int, int, int], seed: int, share: float) -> None:
    k, p, n = sizes
    rng = np.random.default_rng(seed)
    model = random_model(rng, k, p)
    x = punch(rng, simulate(rng, model, n)[0], share)
    mean, cov, lagged, loglik = joint_gaussian(x, model)
    out = kalman_smoother(x, model)
    scale = 1 + np.abs(model.p0).max() / np.linalg.eigvalsh(model.q)[0]
    np.testing.assert_allclose(out.mean, mean, atol=1e-11 * scale)
    np.testing.assert_allclose(out.covariance, cov, atol=1e-11 * scale)
    np.testing.assert_allclose(out.lagged, lagged, atol=1e-11 * scale)
    assert out.log_likelihood == pytest.approx(loglik, rel=1e-9, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 0.8]))
def test_filter_equals_the_textbook(sizes: tuple[int, int, int], seed: int, share: float) -> None:
    k, p, n = sizes
    rng = np.random.default_rng(seed)
    model = random_model(rng, k, p)
    x = punch(rng, simulate(rng, model, n)[0], share)
    mean, loglik, nis = textbook_filter(x, model)
    out = kalman_filter(x, model)
    scale = 1 + np.abs(model.p0).max() / np.linalg.eigvalsh(model.q)[0]
    np.testing.assert_allclose(out.mean, mean, atol=1e-11 * scale)
    np.testing.assert_allclose(out.log_likelihood, loglik, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(out.nis, nis, rtol=1e-8, atol=1e-8)


class _Oracle(MLEModel):
    """The same model in statsmodels' general state space."""

    def __init__(self, x: np.ndarray, model: Model) -> None:
        super().__init__(x, k_states=model.k, k_posdef=model.k)
        self["design"], self["transition"] = model.c, model.a
        self["selection"], self["state_cov"] = np.eye(model.k), model.q
        self["obs_cov"] = np.diag(model.r)
        self.ssm.initialize_known(np.zeros(model.k), model.p0)

    @property
    def start_params(self) -> np.ndarray:
        return np.zeros(0)


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize(("k", "p", "n"), [(1, 3, 200), (3, 8, 500), (4, 4, 300)])
def test_log_likelihood_and_smoother_equal_statsmodels(k: int, p: int, n: int, share: float) -> None:
    rng = np.random.default_rng(k * 100 + p)
    model = random_model(rng, k, p)
    x = punch(rng, simulate(rng, model, n)[0], share)
    oracle = _Oracle(x, model)
    expected = oracle.ssm.loglike()
    assert expectations(Panel([x]), model).log_likelihood == pytest.approx(expected, rel=1e-8)
    assert kalman_smoother(x, model).log_likelihood == pytest.approx(expected, rel=1e-8)
    assert kalman_filter(x, model).log_likelihood.sum() == pytest.approx(expected, rel=1e-8)
    smoothed = oracle.ssm.smooth()
    ours = kalman_smoother(x, model)
    np.testing.assert_allclose(ours.mean, smoothed.smoothed_state.T, atol=1e-8)
    np.testing.assert_allclose(ours.covariance, smoothed.smoothed_state_cov.transpose(2, 0, 1), atol=1e-8)


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_em_never_lowers_the_likelihood(share: float) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        truth = random_model(rng, 2, 6)
        # short runs: the first states weigh, where the closed form of the M-step alone could step down
        runs = [punch(rng, simulate(rng, truth, int(n))[0], share) for n in rng.integers(5, 60, size=8)]
        model = random_model(rng, 2, 6)
        panel = Panel(runs)
        path = []
        for _ in range(60):
            model, value = em_step(panel, model)
            path.append(value)
        assert np.diff(path).min() >= -1e-9 * abs(path[0])
        assert path[-1] > path[0] + 1
        assert kalman.spectral_radius(model.a) < 1


def test_em_on_a_random_walk_stays_stable() -> None:
    rng = np.random.default_rng(3)
    x = np.cumsum(rng.normal(size=(80, 1)), axis=0) @ np.ones((1, 4)) + rng.normal(size=(80, 4))
    model = random_model(rng, 2, 4)
    panel = Panel([x - x.mean(axis=0)])
    path = []
    for _ in range(200):
        model, value = em_step(panel, model)
        path.append(value)
        assert kalman.spectral_radius(model.a) < 1
    assert np.diff(path).min() >= -1e-8 * abs(path[0])


def test_pooled_likelihood_is_the_sum_over_runs() -> None:
    rng = np.random.default_rng(1)
    model = random_model(rng, 3, 5)
    runs = [simulate(rng, model, n)[0] for n in (400, 3, 150, 1)]
    runs[1] = punch(rng, runs[1], 0.4)
    runs[2] = punch(rng, runs[2], 0.4)
    alone = sum(kalman_filter(x, model).log_likelihood.sum() for x in runs)
    assert expectations(Panel(runs), model).log_likelihood == pytest.approx(alone, rel=1e-10)


def test_repeated_factor_gives_the_same_sums_as_the_full_one() -> None:
    rng = np.random.default_rng(2)
    model = random_model(rng, 3, 5)
    runs = [simulate(rng, model, n)[0] for n in (500, 800, 4)]
    steady = expectations(Panel(runs), model)  # the last run is too short for it and mixes in
    # a single missing cell sends a run down the general path; here both are computed from the same complete data
    general = Statistics.zero(3, 5)
    from trajscope._core import kalman_em

    first = kalman_em._firsts([500, 800, 4])
    kalman_em._add_general(general, np.concatenate(runs), None, first, model, kalman_em._Blocks(model))
    for name in ("s00", "s11", "s10", "first", "gram", "cross"):
        np.testing.assert_allclose(getattr(steady, name), getattr(general, name), rtol=1e-9, err_msg=name)


def test_em_step_equals_a_step_from_the_smoother() -> None:
    rng = np.random.default_rng(4)
    truth, model = random_model(rng, 2, 4), random_model(rng, 2, 4)
    x = punch(rng, simulate(rng, truth, 300)[0], 0.3)
    out = kalman_smoother(x, model)
    second = out.covariance + out.mean[:, :, None] * out.mean[:, None, :]
    stats = expectations(Panel([x]), model)
    np.testing.assert_allclose(stats.s00, second[:-1].sum(axis=0), rtol=1e-9)
    np.testing.assert_allclose(
        stats.s10, (out.mean[1:, :, None] * out.mean[:-1, None, :]).sum(0) + out.lagged.sum(0).T, rtol=1e-8
    )
    seen = ~np.isnan(x)
    for c in range(4):
        np.testing.assert_allclose(stats.gram[c], second[seen[:, c]].sum(axis=0), rtol=1e-9)
        np.testing.assert_allclose(stats.cross[c], (x[seen[:, c], c, None] * out.mean[seen[:, c]]).sum(0), rtol=1e-8)


def test_canonical_form_keeps_the_likelihood_and_is_canonical() -> None:
    rng = np.random.default_rng(5)
    model = random_model(rng, 3, 6)
    x = simulate(rng, model, 400)[0]
    form = canonical(model)
    same = kalman_filter(x, form).log_likelihood.sum()
    assert same == pytest.approx(kalman_filter(x, model).log_likelihood.sum(), rel=1e-11)
    np.testing.assert_allclose(stationary_covariance(form.a, form.q), np.eye(3), atol=1e-9)
    strength = (form.c.T / form.r) @ form.c
    np.testing.assert_allclose(strength, np.diag(np.diag(strength)), atol=1e-8)
    assert (np.diff(np.diag(strength)) <= 0).all()
    assert (form.c[np.abs(form.c).argmax(axis=0), np.arange(3)] > 0).all()
    # any other coordinates lead to the same form
    turn = rng.normal(size=(3, 3))
    back = np.linalg.inv(turn)
    other = Model(turn @ model.a @ back, model.c @ back, turn @ model.q @ turn.T, model.r, turn @ model.p0 @ turn.T)
    np.testing.assert_allclose(canonical(other).a, form.a, atol=1e-8)


@pytest.mark.parametrize("k", [1, 3, 9])
def test_stationary_covariance_is_stationary(k: int) -> None:
    model = random_model(np.random.default_rng(k), k, 2)
    np.testing.assert_allclose(model.a @ model.p0 @ model.a.T + model.q, model.p0, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(model.p0, model.p0.T)


def test_filter_in_pieces_is_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    model = random_model(rng, 2, 3)
    x = punch(rng, simulate(rng, model, 500)[0], 0.2)
    whole = kalman_filter(x, model)
    monkeypatch.setattr(kalman, "FILTER_ROWS", 77)
    pieces = kalman_filter(x, model)
    np.testing.assert_allclose(pieces.mean, whole.mean, atol=1e-11)
    np.testing.assert_allclose(pieces.log_likelihood, whole.log_likelihood, atol=1e-10)


@pytest.mark.parametrize("k", [0, 2])
def test_filter_is_causal_to_the_last_bit(k: int) -> None:
    rng = np.random.default_rng(7)
    model = random_model(rng, 2, 3)
    if k == 0:
        model = Model(np.zeros((0, 0)), np.zeros((3, 0)), np.zeros((0, 0)), model.r, np.zeros((0, 0)))
    x = rng.normal(size=(60, 3))
    poisoned = x.copy()
    poisoned[31:] = 1e9
    a, b = kalman_filter(x, model), kalman_filter(poisoned, model)
    for name in ("mean", "covariance", "predicted", "log_likelihood", "nis"):
        np.testing.assert_array_equal(getattr(a, name)[:31], getattr(b, name)[:31])


def test_rows_and_runs_of_every_small_length() -> None:
    rng = np.random.default_rng(8)
    model = random_model(rng, 2, 3)
    for n in (1, 2, 3):
        x = simulate(rng, model, n)[0]
        mean, cov, _, loglik = joint_gaussian(x, model)
        out = kalman_smoother(x, model)
        np.testing.assert_allclose(out.mean, mean, atol=1e-10)
        np.testing.assert_allclose(out.covariance, cov, atol=1e-10)
        assert expectations(Panel([x]), model).log_likelihood == pytest.approx(loglik, rel=1e-9)
    empty = np.full((4, 3), np.nan)
    out = kalman_smoother(empty, model)
    np.testing.assert_allclose(out.mean, 0, atol=1e-12)
    np.testing.assert_allclose(out.covariance[2], model.p0, rtol=1e-8)
    assert out.log_likelihood == pytest.approx(0.0, abs=1e-9)


def test_bad_models_are_refused() -> None:
    one = np.ones((1, 1))
    with pytest.raises(InputError, match="spectral radius"):
        Model.stationary(1.1 * one, one, one, np.ones(1))
    with pytest.raises(InputError, match="not positive definite"):
        kalman_filter(np.zeros((5, 1)), Model(0.5 * one, one, -one, np.ones(1), one))
