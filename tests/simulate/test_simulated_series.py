"""What is promised of simulated series holds: closed forms, truth, same seed same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from trajscope import simulate
from trajscope._core.kalman import stationary_covariance
from trajscope.errors import InputError


def lag1(x: np.ndarray) -> float:
    x = x - x.mean()
    return float((x[1:] * x[:-1]).sum() / (x**2).sum())


def test_autoregression_and_ornstein_uhlenbeck() -> None:
    x = simulate.ar(200_000, 0.9, 2, rng=0)
    assert x.shape == (200_000, 2)
    np.testing.assert_allclose(x.var(axis=0), 1, rtol=0.04)
    assert lag1(x[:, 0]) == pytest.approx(0.9, abs=0.005)
    first = np.array([simulate.ar(1, 0.9, rng=s)[0, 0] for s in range(4000)])
    assert first.var() == pytest.approx(1, rel=0.1)  # stationary from its first row on
    x = simulate.ornstein_uhlenbeck(400_000, 0.5, 0.3, 0.2, rng=1)[:, 0]
    assert lag1(x) == pytest.approx(np.exp(-0.1), abs=0.003)
    assert x.var() == pytest.approx(0.3**2 / (2 * 0.5), rel=0.03)


@pytest.mark.parametrize("a", [1.0, 0.25])
def test_fold_around_its_equilibrium(a: float) -> None:
    # autocorrelation over one time unit: .135 at a = 1, .368 at .25
    x = simulate.fold(30_000, a, sigma=0.05, dt=1.0, substeps=40, rng=2)
    assert x.mean() == pytest.approx(np.sqrt(a), abs=0.01)
    assert lag1(x) == pytest.approx(np.exp(-2 * np.sqrt(a)), abs=0.02)
    assert x.var() == pytest.approx(0.05**2 / (4 * np.sqrt(a)), rel=0.06)


def test_fold_escapes_when_its_equilibrium_vanishes() -> None:
    x = simulate.fold(400, np.linspace(1, -1, 400), rng=3)
    assert np.isfinite(x[:150]).all()
    assert np.isnan(x[-1])
    gone = np.flatnonzero(np.isnan(x))[0]
    assert np.isnan(x[gone:]).all()


@pytest.mark.parametrize("rate", [0.7, -0.7])
def test_linear_map(rate: float) -> None:
    x = simulate.linear_map(100_000, rate, rng=4)
    assert lag1(x) == pytest.approx(rate, abs=0.01)
    assert x.var() == pytest.approx(1 / (1 - rate**2), rel=0.03)


def test_rotation_has_its_modulus_and_angle() -> None:
    x = simulate.neimark_sacker(50_000, 0.9, 0.3 * np.pi, rng=5)
    a = np.linalg.lstsq(x[:-1], x[1:], rcond=None)[0].T
    value = np.linalg.eigvals(a)[0]
    assert abs(value) == pytest.approx(0.9, abs=0.01)
    assert abs(np.angle(value)) == pytest.approx(0.3 * np.pi, abs=0.01)


def test_state_space_is_its_model() -> None:
    x, z, model = simulate.state_space(60_000, (0.9, -0.5), 6, signal_to_noise=2.0, rng=6)
    np.testing.assert_allclose(stationary_covariance(model.a, model.q), np.eye(2), atol=1e-12)
    np.testing.assert_allclose([lag1(z[:, 0]), lag1(z[:, 1])], [0.9, -0.5], atol=0.02)
    np.testing.assert_allclose(np.cov(x.T), model.c @ model.c.T + np.eye(6), atol=0.15)
    assert np.trace(model.c @ model.c.T) / 6 == pytest.approx(2.0)


def test_gaps() -> None:
    x = np.ones((1000, 3))
    out = simulate.with_gaps(x, 0.2, [1, 10, 2], rng=7)
    assert not np.isnan(x).any()
    share = np.isnan(out).mean(axis=0)
    np.testing.assert_allclose(share, [0.2, 0.92, 0.6], atol=0.05)
    assert np.isnan(out[1:10, 1]).all()


@pytest.mark.parametrize("kind", ["healthy", "spike", "collapse", "drift", "divergence"])
def test_logs(kind: str) -> None:
    log = simulate.training_log(800, kind, stride=5, rng=8)  # type: ignore[arg-type]
    calm = simulate.training_log(800, rng=8)
    assert log.values.shape == (800, len(log.names))
    assert log.steps[-1] == 799 * 5
    loss = log.names.index("loss")
    if kind == "healthy":
        assert log.onset is None
        np.testing.assert_array_equal(log.values, calm.values)
        assert log.values[700:, loss].mean() < 0.3 * log.values[:50, loss].mean()
        return
    assert log.onset == 480
    np.testing.assert_array_equal(log.values[:480], calm.values[:480])
    lift = np.log(log.values[:, loss]) - np.log(calm.values[:, loss])
    if kind == "spike":
        np.testing.assert_allclose(lift[480:490], 0.5)
        np.testing.assert_allclose(lift[490:], 0, atol=1e-12)
    elif kind == "collapse":
        np.testing.assert_allclose(lift[480:], 0.5)
    elif kind == "drift":
        assert lift[480] == pytest.approx(0)
        assert lift[-1] == pytest.approx(0.5)
        assert (np.diff(lift[480:]) > -1e-12).all()
    else:
        assert np.isnan(log.values[-1, loss])


def test_same_seed_same_bytes() -> None:
    makers = [
        lambda r: simulate.ar(50, 0.5, rng=r),
        lambda r: simulate.fold(50, 1.0, rng=r),
        lambda r: simulate.linear_map(50, 0.5, rng=r),
        lambda r: simulate.neimark_sacker(50, 0.5, rng=r),
        lambda r: simulate.state_space(50, rng=r)[0],
        lambda r: simulate.with_gaps(np.ones((50, 2)), 0.3, rng=r),
        lambda r: simulate.training_log(50, rng=r).values,
    ]
    for make in makers:
        np.testing.assert_array_equal(make(3), make(np.random.default_rng(3)))
        assert not np.array_equal(make(3), make(4), equal_nan=True)


def test_arguments() -> None:
    with pytest.raises(InputError, match="between -1 and 1"):
        simulate.ar(10, 1.0)
    with pytest.raises(InputError, match="at least 1"):
        simulate.ar(0, 0.5)
    with pytest.raises(InputError, match="sigma is 0"):
        simulate.ornstein_uhlenbeck(5, 1, 0, 1)
    with pytest.raises(InputError, match="only above 0"):
        simulate.fold(5, 0.0)
    with pytest.raises(InputError, match="at most n_channels"):
        simulate.state_space(5, (0.5, 0.5), 1)
    with pytest.raises(InputError, match="probability"):
        simulate.with_gaps(np.ones((2, 2)), 1.5)
    with pytest.raises(InputError, match="Did you mean 'collapse'"):
        simulate.training_log(100, "colapse")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="from 1 to n_steps - 1"):
        simulate.training_log(100, "spike", onset=100)
    with pytest.raises(InputError, match="at least 20 rows"):
        simulate.training_log(5)
