"""Thresholds from healthy runs: rank by hand, level under exchangeability, and what cannot be certified."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from trajscope._core.conformal import conformal_p, conformal_threshold, needed_runs, upper_rate
from trajscope.errors import InputError


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.2, 0.5, 0.07])
def test_needed_runs_is_the_edge(alpha):
    n = needed_runs(alpha)
    assert math.isfinite(conformal_threshold(np.arange(n), alpha))
    assert conformal_threshold(np.arange(n - 1), alpha) == math.inf
    assert upper_rate(n - 1, alpha) == 1.0


@pytest.mark.parametrize("n", [19, 39, 99])
def test_false_alarms_of_new_runs(n):
    rng = np.random.default_rng(n)
    repeats = 4000
    draws = rng.standard_t(2, (repeats, n + 1))
    fired = sum(row[-1] > conformal_threshold(row[:-1], 0.05) for row in draws)
    k = math.ceil((n + 1) * 0.95 - 1e-9)
    rate = 1 - k / (n + 1)  # exact for continuous scores
    assert binom.ppf(1e-4, repeats, rate) <= fired <= binom.ppf(1 - 1e-4, repeats, rate)


def test_upper_rate_bounds_the_rate_given_the_runs():
    rng = np.random.default_rng(3)
    repeats = 4000
    rates = [1 - conformal_threshold(rng.random(39), 0.05) for _ in range(repeats)]  # the rate of a uniform score
    over = np.sum(np.array(rates) > upper_rate(39, 0.05, 0.9))
    assert binom.ppf(1e-4, repeats, 0.1) <= over <= binom.ppf(1 - 1e-4, repeats, 0.1)


def test_p_value_agrees_with_the_threshold():
    maxima = np.random.default_rng(0).normal(size=40)
    h = conformal_threshold(maxima, 0.05)
    assert conformal_p(maxima, h) > 0.05
    assert conformal_p(maxima, np.nextafter(h, np.inf)) <= 0.05


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5])
def test_bad_alpha(alpha):
    with pytest.raises(InputError, match="between 0 and 1"):
        conformal_threshold([1.0], alpha)


def test_a_run_without_a_score_is_not_left_out():
    with pytest.raises(InputError, match="no largest score"):
        conformal_threshold([1.0, math.nan], 0.5)
