"""Answers to a shock: power, level under noise with memory, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import binom

from trajscope.detect.answer import answer
from trajscope.errors import InputError


def ar(rng: np.random.Generator, n: int, phi: float, tail: bool = False) -> np.ndarray:
    noise = rng.standard_t(4, n) if tail else rng.standard_normal(n)
    return np.asarray(lfilter([1.0], [1.0, -phi], noise))


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("slope", [0.0, -0.02])
def test_places_where_nothing_happened_rarely_answer(phi: float, slope: float) -> None:
    """At level 0.05, with a line of any slope under it; 400 series, bound at 1 % error."""
    rng = np.random.default_rng(1)
    n = 400
    hits = 0
    for _ in range(n):
        y = ar(rng, 160, phi) + slope * np.arange(160)
        found = answer(y, 120, alpha=0.05)
        hits += found is not None and found.answers
    assert hits <= binom.ppf(0.99, n, 0.05)


def test_heavy_tails_do_not_answer() -> None:
    rng = np.random.default_rng(2)
    found = [answer(ar(rng, 160, 0.3, tail=True), 120, alpha=0.05) for _ in range(300)]
    assert sum(f is not None and f.answers for f in found) <= binom.ppf(0.99, 300, 0.05)


def test_a_jump_of_eight_sd_answers_and_is_dated() -> None:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(100):
        y = ar(rng, 160, 0.3)
        y[124:] += 8.0
        found.append(answer(y, 120, alpha=0.05))
    assert sum(f is not None and f.answers for f in found) >= 95
    assert np.median([f.row for f in found if f is not None]) == 124


def test_a_fall_is_no_answer() -> None:
    y = np.random.default_rng(4).standard_normal(160)
    y[121] -= 20
    found = answer(y, 120)
    assert found is not None
    assert not found.answers


def test_it_does_not_look_beyond_its_reach() -> None:
    y = np.random.default_rng(5).standard_normal(300)
    later = y.copy()
    later[130:] = 1e9
    assert answer(y, 120, reach=10) == answer(later, 120, reach=10)


def test_too_little_history_is_no_answer_and_bad_input_is_said() -> None:
    y = np.zeros(50)
    assert answer(y, 10) is None
    assert answer(y, 50) is None
    constant = answer(y, 40)
    assert constant is not None
    assert not constant.answers
    with pytest.raises(InputError, match="one-dimensional and finite"):
        answer([1.0, np.nan], 1)
