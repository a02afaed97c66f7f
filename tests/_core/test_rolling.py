"""Rolling statistics against the obvious loop, both paths against each other, and invariances."""

from __future__ import annotations

import numpy as np
import pytest

from trajscope._core import rolling
from trajscope.errors import InputError


def _series(n: int = 600) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    x[rng.random(n) < 0.1] = np.nan
    x[100:160] = np.nan
    x[200:300] = np.round(x[200:300], 1)  # ties
    x[350] = np.inf
    return x


@pytest.mark.parametrize("window", [1, 2, 5, 20, 101])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_median_and_mad_equal_the_obvious_loop(window, include, compiled, monkeypatch):
    if compiled:
        monkeypatch.setattr(rolling, "_NUMPY_LIMIT", 0)
    x = _series()
    least = min(3, window)
    median, mad = rolling.trailing_median_mad(x, window, min_count=least, include=include)
    high = rolling.trailing_quantile(x, window, 0.9, min_count=least, include=include)
    for t in range(x.size):
        seen = x[max(0, t + include - window) : t + include]
        seen = seen[np.isfinite(seen)]
        if seen.size < least:
            assert np.isnan(median[t])
            assert np.isnan(mad[t])
            continue
        centre = np.median(seen)
        assert median[t] == pytest.approx(centre, abs=1e-14)
        assert mad[t] == pytest.approx(np.median(np.abs(seen - centre)), abs=1e-14)
        assert high[t] == pytest.approx(np.quantile(seen, 0.9), abs=1e-12)


@pytest.mark.parametrize("window", [1, 3, 50, 1000])
@pytest.mark.parametrize("include", [False, True])
def test_mean_and_std_equal_the_obvious_loop(window, include):
    x = _series()
    mean, std = rolling.trailing_mean_std(x, window, min_count=1, include=include)
    count = rolling.trailing_count(x, window, include=include)
    for t in range(x.size):
        seen = x[max(0, t + include - window) : t + include]
        seen = seen[np.isfinite(seen)]
        assert count[t] == seen.size
        if seen.size:
            assert mean[t] == pytest.approx(seen.mean(), abs=1e-12)
            assert std[t] == pytest.approx(seen.std(), abs=1e-7)
        else:
            assert np.isnan(mean[t])


def test_a_long_gone_outlier_leaves_nothing_behind():
    x = np.random.default_rng(1).normal(size=500)
    clean = rolling.trailing_mean_std(x, 20)
    x[40] = 1e12
    dirty = rolling.trailing_mean_std(x, 20)
    np.testing.assert_allclose(dirty[0][80:], clean[0][80:], rtol=0, atol=1e-12)
    np.testing.assert_allclose(dirty[1][80:], clean[1][80:], rtol=0, atol=1e-7)


@pytest.mark.parametrize("compiled", [False, True])
def test_expanding_median_equals_the_obvious_loop(compiled, monkeypatch):
    if compiled:
        monkeypatch.setattr(rolling, "_NUMPY_LIMIT", 0)
    x = _series(400)
    got = rolling.expanding_median(x)
    assert np.isnan(got[0])
    for t in range(1, x.size):
        seen = x[:t][np.isfinite(x[:t])]
        if seen.size:
            assert got[t] == pytest.approx(np.median(seen), abs=1e-14)


def test_later_rows_change_nothing_before():
    x = _series()
    y = x.copy()
    y[400:] += 100
    for f in (rolling.trailing_median, rolling.trailing_median_mad, rolling.trailing_mean_std):
        np.testing.assert_array_equal(np.atleast_2d(f(x, 30))[..., :401], np.atleast_2d(f(y, 30))[..., :401])


def test_input_is_not_touched_and_empty_is_empty():
    x = _series()
    before = x.copy()
    rolling.trailing_median_mad(x, 10)
    rolling.trailing_mean_std(x, 10)
    np.testing.assert_array_equal(x, before)
    assert rolling.trailing_median([], 5).size == 0
    assert rolling.trailing_mean_std([], 5)[0].size == 0
    assert rolling.expanding_median([]).size == 0


def test_bad_arguments():
    with pytest.raises(InputError, match="one channel"):
        rolling.trailing_median(np.zeros((2, 2)), 3)
    with pytest.raises(InputError, match="window is 0"):
        rolling.trailing_median([1.0], 0)
    with pytest.raises(InputError, match="min_count is 4"):
        rolling.trailing_median([1.0], 3, min_count=4)
    with pytest.raises(InputError, match="between 0 and 1"):
        rolling.trailing_quantile([1.0], 3, 1.5)


def test_kernel_and_numpy_give_the_same_bits(monkeypatch):
    """From a certain amount of work on the kernel does everything, so results must not depend on what came before."""
    rng = np.random.default_rng(0)
    x = rng.standard_t(2, 700)
    x[rng.random(700) < 0.1] = np.nan
    x[300:330] = 1.5
    found = []
    for spent in (0.0, float("inf")):
        monkeypatch.setattr(rolling, "_cells_so_far", spent)
        for window in (5, 64, 100):
            for include in (False, True):
                found.append((*rolling.trailing_median_mad(x, window, include=include),))
                found.append((rolling.trailing_quantile(x, window, 0.9, include=include),))
    half = len(found) // 2
    for one, two in zip(found[:half], found[half:], strict=True):
        for a, b in zip(one, two, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("window", [1, 2, 7, 20, 100, 1000])
@pytest.mark.parametrize("n", [1, 3, 19, 700])
def test_both_paths_give_the_same_bits(n, window, monkeypatch):
    rng = np.random.default_rng(n + window)
    x = np.round(rng.normal(size=n), 2) * 10.0 ** rng.integers(-2, 9, n)
    x[rng.random(n) < 0.2] = np.nan
    least = min(5, window)

    def everything():
        return [
            *rolling.trailing_median_mad(x, window, min_count=least),
            *rolling.trailing_median_mad(x, window, min_count=least, include=True),
            rolling.trailing_quantile(x, window, 0.99, min_count=least, include=True),
            *rolling.trailing_mean_std(x, window, min_count=least),
            *rolling.trailing_mean_std(x, window, min_count=least, include=True),
            rolling.expanding_median(x),
        ]

    monkeypatch.setattr(rolling, "_cells_so_far", 0.0)
    plain = everything()
    rolling.use_kernels()
    for a, b in zip(plain, everything(), strict=True):
        np.testing.assert_array_equal(a, b)
