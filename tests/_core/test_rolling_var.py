"""Rolling autoregressions against the obvious loop, and their causality to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from trajscope._core.rolling_var import lagged_products, rolling_eigenvalues, rolling_var, solve_var, sorted_eigenvalues

WINDOW = 60


@pytest.fixture(scope="module")
def gappy() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a = np.array([[0.8, 0.3, 0.0], [0.0, 0.5, 0.1], [0.0, -0.2, 0.6]])
    x = np.zeros((400, 3))
    for t in range(1, 400):
        x[t] = a @ x[t - 1] + rng.normal(size=3)
    x += 1e4
    x[rng.random(400) < 0.1, 1] = np.nan
    return x, rng.random(400) > 0.05


def obvious(x: np.ndarray, linked: np.ndarray, t: int, lag: int) -> tuple[int, np.ndarray]:
    ends = [
        s
        for s in range(max(lag, t - WINDOW + 1 + lag), t + 1)
        if np.isfinite(x[s - lag : s + 1]).all() and linked[s - lag + 1 : s + 1].all()
    ]
    at = np.array(ends)
    now, before, instrument = (v - v.mean(axis=0) for v in (x[at], x[at - 1], x[at - lag]))
    return len(ends), (now.T @ instrument) @ np.linalg.inv(before.T @ instrument)


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_every_window_is_the_regression_on_its_own_tuples(gappy, lag):
    x, linked = gappy
    found = rolling_var(x, WINDOW, lag=lag, linked=linked, min_count=20)
    for t in range(WINDOW - 1, 400, 13):
        count, matrix = obvious(x, linked, t, lag)
        assert found.count[t] == count
        assert np.isfinite(found.matrix[t]).all() == (count >= 20)
        if count >= 20:
            np.testing.assert_allclose(found.matrix[t], matrix, atol=1e-8)


@pytest.mark.parametrize("lag", [1, 2])
def test_later_rows_change_nothing_and_thinned_rows_are_the_same(gappy, lag):
    x, linked = gappy
    full = rolling_var(x, WINDOW, lag=lag, linked=linked).matrix
    poisoned = x.copy()
    poisoned[200:] = 1e9
    np.testing.assert_array_equal(rolling_var(poisoned, WINDOW, lag=lag, linked=linked).matrix[:200], full[:200])
    np.testing.assert_array_equal(rolling_var(x[:151], WINDOW, lag=lag, linked=linked[:151]).matrix, full[:151])
    rows = np.arange(3, 400, 7)
    np.testing.assert_array_equal(rolling_var(x, WINDOW, lag=lag, linked=linked, rows=rows).matrix, full[rows])


def test_a_value_that_left_the_window_leaves_nothing_behind():
    x = np.random.default_rng(0).normal(size=(400, 2))
    spiked = x.copy()
    spiked[100] = 1e9
    np.testing.assert_allclose(
        rolling_var(spiked, 50).matrix[250:], rolling_var(x, 50).matrix[250:], rtol=1e-9, atol=1e-12
    )


def test_collinear_constant_and_short_windows_have_no_matrix():
    x = np.random.default_rng(0).normal(size=(100, 2))
    assert np.isnan(rolling_var(np.column_stack([x[:, 0], 2 * x[:, 0]]), 40).matrix).all()
    assert np.isnan(rolling_var(np.column_stack([x[:, 0], np.full(100, 7.0)]), 40).matrix).all()
    assert np.isnan(rolling_var(x, 40, min_count=41).matrix).all()
    assert rolling_var(x[:0], 40).matrix.shape == (0, 2, 2)
    assert np.isnan(rolling_var(np.full((50, 2), np.nan), 40).matrix).all()
    count, products = lagged_products(x[:1], 10)
    assert (count.tolist(), products[0, 1].tolist()) == ([0.0], [[[0.0, 0.0], [0.0, 0.0]]])
    assert np.isnan(solve_var(np.eye(2)[None], np.array([[[1.0, 1.0], [1.0, 1.0]]]))).all()


def test_eigenvalues_are_ordered_by_modulus_and_pairs_by_imaginary_part():
    matrix = np.array([np.diag([0.2, -0.9, 0.5]), np.full((3, 3), np.nan)])
    got = sorted_eigenvalues(matrix)
    np.testing.assert_allclose(got[0], [-0.9, 0.5, 0.2])
    assert np.isnan(got[1]).all()
    turn = 0.9 * np.array([[[np.cos(1), -np.sin(1)], [np.sin(1), np.cos(1)]]])
    np.testing.assert_allclose(sorted_eigenvalues(turn)[0], 0.9 * np.exp([1j, -1j]))


def test_the_instrument_sees_through_observation_noise():
    from scipy.signal import lfilter

    rng = np.random.default_rng(1)
    state = lfilter([1], [1, -0.9], rng.normal(size=100_000))
    seen = (state + rng.normal(size=state.size) * state.std())[:, None]
    last = np.array([state.size - 1])
    plain = rolling_eigenvalues(seen, state.size, lag=1, rows=last)[0, 0]
    instrument = rolling_eigenvalues(seen, state.size, lag=2, rows=last)[0, 0]
    assert plain == pytest.approx(0.45, abs=0.01)
    assert instrument == pytest.approx(0.9, abs=0.02)
