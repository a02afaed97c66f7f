"""Exponents of maps and flows with known answers, of fitted matrices, and from data with refusals."""

from __future__ import annotations

import dynamics_systems as systems
import numpy as np
import pytest

from trajscope.dynamics import (
    finite_time_lyapunov,
    flow_exponents,
    jacobian_exponents,
    lyapunov,
    map_exponents,
)
from trajscope.dynamics.divergence import divergence_curves, linear_region
from trajscope.dynamics.tangent import finite_time_exponents
from trajscope.errors import InputError
from trajscope.simulate import ar


def test_logistic_map_is_log_two():
    starts = np.random.default_rng(0).uniform(0.1, 0.9, (400, 1))
    got = map_exponents(systems.logistic_step, systems.logistic_jacobian, starts, 2000)
    assert got.values[0] == pytest.approx(systems.LOG2, abs=1e-3)
    assert got.error[0] < 5e-4


def test_henon_map_and_its_sum():
    starts = np.random.default_rng(0).uniform(-0.1, 0.1, (400, 2))
    got = map_exponents(systems.henon_step, systems.henon_jacobian, starts, 1500)
    np.testing.assert_allclose(got.values, [0.41922, -1.62319], atol=2e-3)
    assert got.values.sum() == pytest.approx(np.log(0.3), abs=1e-9)


def test_lorenz_flow():
    """1,000 units of time in all, as METHODS: .9056, 0, -14.5723; the sum is -13.6667 whatever the orbit."""
    starts = np.random.default_rng(1).normal([0.0, 0.0, 20.0], 1.0, size=(200, 3))
    got = flow_exponents(systems.lorenz_field, systems.lorenz_jacobian, starts, 0.01, 1000, n_transient=1500)
    tolerance = np.maximum(0.01, 3 * got.error)
    assert (np.abs(got.values - [0.9056, 0.0, -14.5723]) < tolerance).all()
    assert got.values.sum() == pytest.approx(-13.6667, abs=2e-3)


def test_rossler_flow():
    starts = np.random.default_rng(1).uniform(-3, 3, (100, 3)) * [1, 1, 0]
    got = flow_exponents(systems.rossler_field, systems.rossler_jacobian, starts, 0.025, 4000, n_transient=1500)
    assert (np.abs(got.values - [0.0714, 0.0, -5.3943]) < np.maximum(0.005, 3 * got.error)).all()


def test_jacobians_of_a_constant_matrix_have_its_moduli():
    a = np.array([[0.9, 0.4], [-0.4, 0.9]]) @ np.diag([1.0, 1.0])
    got = jacobian_exponents(np.repeat(a[None], 500, axis=0))
    np.testing.assert_allclose(got, np.log(np.abs(np.linalg.eigvals(a))), atol=1e-9)
    stretched = np.repeat(np.diag([1e200, 1e-200])[None], 40, axis=0)
    np.testing.assert_allclose(finite_time_exponents(stretched, 40)[-1], np.log(1e200))


def test_finite_time_exponent_is_the_singular_value_of_the_product():
    j = np.random.default_rng(0).normal(size=(60, 3, 3))
    for horizon in (1, 2, 5, 7, 16):
        got = finite_time_exponents(j, horizon)
        assert np.isnan(got[: horizon - 1]).all()
        for t in range(horizon - 1, 60, 11):
            product = np.eye(3)
            for matrix in j[t - horizon + 1 : t + 1]:
                product = matrix @ product
            assert got[t] == pytest.approx(np.log(np.linalg.norm(product, 2)) / horizon, abs=1e-10)
    j[30] = np.nan
    got = finite_time_exponents(j, 5)
    assert np.isnan(got[30:35]).all()
    assert np.isfinite(got[35:]).all()


def test_finite_time_along_fits_is_said_beside_its_null():
    x = ar(1500, 0.8, 2, rng=0)
    got = finite_time_lyapunov(x, 200, 20, n_surrogates=9, rng=1)
    inside = (got.values >= got.null_low) & (got.values <= got.null_high)
    assert inside[np.isfinite(got.values)].mean() > 0.8
    # biased upwards, as documented: the truth is log 0.8
    assert np.nanmedian(got.values) > np.log(0.8)
    assert "stationary VAR(1)" in got.summary()
    np.testing.assert_array_equal(got.values, finite_time_lyapunov(x, 200, 20, n_surrogates=0).values)
    again = finite_time_lyapunov(x, 200, 20, n_surrogates=9, rng=1)
    assert (again.null_low, again.null_high) == (got.null_low, got.null_high)


def test_divergence_curve_against_the_obvious_loop():
    x = np.random.default_rng(0).normal(size=(80, 2))
    place = np.arange(80) + (np.arange(80) >= 40) * 5
    curves, counts = divergence_curves(x, place, 6, 3, blocks=1)
    total = [[] for _ in range(7)]
    for i in range(74):
        if place[i + 6] - place[i] != 6:
            continue
        best, at = np.inf, -1
        for j in range(74):
            if place[j + 6] - place[j] == 6 and abs(place[i] - place[j]) > 3:
                d = np.linalg.norm(x[i] - x[j])
                if d < best:
                    best, at = d, j
        for k in range(7):
            total[k].append(np.log(np.linalg.norm(x[i + k] - x[at + k])))
    np.testing.assert_allclose(curves[0], [np.mean(v) for v in total])
    assert counts[0, 0] == len(total[0])


def test_logistic_and_henon_from_data():
    got = lyapunov(systems.logistic(5000))
    assert got.exponent == pytest.approx(systems.LOG2, rel=0.05)
    assert got.r2 > 0.99
    assert lyapunov(systems.henon(5000)).exponent == pytest.approx(0.41922, rel=0.06)


def test_lorenz_from_one_channel_per_unit_of_time():
    x = systems.orbit(systems.lorenz_field, [1.0, 1.0, 20.0], 0.05, 5000, 400, 5)[:, 0]
    got = lyapunov(x, dimension=5, delay=2, dt=0.05)
    assert got.per_time == pytest.approx(0.9056, rel=0.1)
    assert got.per_step == pytest.approx(got.exponent)
    every_other = lyapunov(x, dimension=5, delay=2, dt=0.025, steps=2 * np.arange(5000))
    assert every_other.per_time == pytest.approx(got.per_time)
    assert "per unit of time" in got.summary()


@pytest.mark.parametrize("kind", ["white", "ar.9", "walk", "sine", "noisy sine", "short", "constant", "gaps"])
def test_refusals(kind):
    rng = np.random.default_rng(0)
    t = np.arange(1500)
    x = {
        "white": rng.normal(size=1500),
        "ar.9": ar(1500, 0.9, rng=0)[:, 0],
        "walk": np.cumsum(rng.normal(size=1500)),
        "sine": np.sin(0.1 * t),
        "noisy sine": np.sin(0.1 * t) + 0.05 * rng.normal(size=1500),
        "short": rng.normal(size=30),
        "constant": np.ones(500),
        "gaps": np.where(t % 7 == 0, np.nan, rng.normal(size=1500)),
    }[kind]
    got = lyapunov(x, dimension=3)
    assert got.status == "cannot tell"
    assert np.isnan(got.exponent)
    assert got.reason in got.summary()
    got.to_frame()
    got.to_dict()


def test_linear_region_is_the_straight_rising_part():
    k = np.arange(30.0)
    flat_after = np.minimum(0.4 * k, 5.0)
    first, last, slope, r2 = linear_region(flat_after)
    assert first == 0
    assert 12 <= last <= 14
    assert (slope, r2) == (pytest.approx(0.4, rel=0.03), pytest.approx(1.0, abs=0.01))
    assert linear_region(0.5 * np.log1p(np.arange(300.0))) is None
    assert linear_region(np.zeros(30)) is None
    assert linear_region(np.r_[0.0, 9.5 + 0.3 * k]) is None  # noise set the first distances
    assert linear_region(np.full(30, np.nan)) is None
    assert linear_region([1.0, 2.0]) is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: lyapunov(np.zeros(100), dimension=0), "dimension 0"),
        (lambda: lyapunov(np.zeros(100), horizon=2), "horizon is 2"),
        (lambda: lyapunov(np.zeros(100), dt=-1.0), "positive time"),
        (lambda: lyapunov("loss"), "not numeric"),
        (lambda: map_exponents(lambda x: x, lambda x: x, [np.nan], 10), "x0"),
        (lambda: map_exponents(lambda x: 1e200 * x, systems.logistic_jacobian, [2.0], 10), "range of floats"),
        (lambda: flow_exponents(lambda x: x, lambda x: x, [1.0], 0.0, 10), "dt is 0"),
        (lambda: jacobian_exponents(np.zeros((3, 2))), "n_steps, k, k"),
        (lambda: jacobian_exponents(np.full((3, 2, 2), np.nan)), "not finite"),
        (lambda: jacobian_exponents([["a"]]), "not numeric"),
        (lambda: finite_time_exponents(np.zeros((3, 2, 2)), 0), "horizon is 0"),
        (lambda: finite_time_lyapunov(np.zeros(30), window=2), "window 2"),
    ],
)
def test_bad_arguments(call, words):
    with np.errstate(all="ignore"), pytest.raises(InputError, match=words):
        call()


def test_finite_time_cannot_tell_on_what_has_no_dynamics():
    for x in (np.ones(300), np.zeros(0), np.arange(10.0), np.full(300, np.nan)):
        got = finite_time_lyapunov(x)
        assert got.status == "cannot tell"
        assert "cannot tell" in got.summary()
        got.to_dict()
