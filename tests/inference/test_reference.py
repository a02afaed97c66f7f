"""The band of healthy siblings: level, power, floor of noise, what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from trajscope.audit.run import audit
from trajscope.errors import InputError, NotEnoughData
from trajscope.history import Run, RunData, named_channel
from trajscope.inference.reference import ReferenceBand

T = np.arange(200.0)


def sibling(seed: int, shift: Any = 0.0, sd: float = 0.05, name: str = "train/loss") -> Run:
    rng = np.random.default_rng(seed)
    level = 1 + 0.03 * rng.normal() + np.exp(-T / 40)
    values = level * np.exp(sd * rng.normal(size=T.size)) + shift
    return Run(f"r{seed}", RunData({name: named_channel(name, T, values)}))


@pytest.mark.parametrize("n", [4, 8, 20])
def test_healthy_siblings_stay_inside_at_the_level(n: int) -> None:
    outside = 0
    for k in range(100):
        runs = [sibling(1000 * k + i) for i in range(n + 1)]
        outside += ReferenceBand.of(runs[:n], alpha=0.1).test(runs[n]).outside
    assert outside <= binom.ppf(0.999, 100, 0.1)


def test_a_run_that_leaves_is_dated_and_one_that_comes_back_is_a_look() -> None:
    band = ReferenceBand.of([sibling(i) for i in range(8)])
    lasting = band.test(sibling(99, shift=1.5 * (T >= 120)))
    assert lasting.outside
    assert lasting.ends_outside
    assert lasting.step == 120
    passing = band.test(sibling(99, shift=1.5 * ((T >= 120) & (T < 140))))
    assert (passing.outside, passing.ends_outside, passing.step) == (True, False, 120)
    better = band.test(sibling(99, shift=-0.4 * (T >= 120)))
    assert not better.outside
    assert not band.test(sibling(98)).outside


def test_values_that_are_no_numbers_lie_outside() -> None:
    band = ReferenceBand.of([sibling(i) for i in range(8)])
    test = band.test(sibling(99, shift=np.where(T >= 150, np.nan, 0)))
    assert (test.outside, test.ends_outside, test.step) == (True, True, 150)


def test_references_that_agree_have_a_floor() -> None:
    same = [Run(f"r{i}", RunData({"loss": named_channel("loss", T, 1 + np.exp(-T / 40))})) for i in range(5)]
    band = ReferenceBand.of(same)
    close = Run("x", RunData({"loss": named_channel("loss", T, (1 + np.exp(-T / 40)) * 1.00001)}))
    far = Run("y", RunData({"loss": named_channel("loss", T, (1 + np.exp(-T / 40)) * 1.2)}))
    assert not band.test(close).outside
    assert band.test(far).outside


def test_an_order_statistic_where_there_are_enough() -> None:
    band = ReferenceBand.of([sibling(i) for i in range(19)])
    assert band.exact
    assert band.threshold == max(band.own.max(), 3)
    assert not ReferenceBand.of([sibling(i) for i in range(18)]).exact


def test_a_shorter_run_is_held_against_what_it_covers() -> None:
    band = ReferenceBand.of([sibling(i) for i in range(8)])
    whole = sibling(50).channels["train/loss"]
    short = Run("s", RunData({"train/loss": whole.take(np.arange(50))}))
    assert band.test(short).share == pytest.approx(0.25, abs=0.01)


def test_what_it_refuses() -> None:
    with pytest.raises(NotEnoughData, match="4 are needed"):
        ReferenceBand.of([sibling(i) for i in range(3)])
    with pytest.raises(NotEnoughData, match="in common"):
        ReferenceBand.of([sibling(i, name=f"loss_{i}") for i in range(4)])
    with pytest.raises(InputError, match="alpha"):
        ReferenceBand.of([sibling(i) for i in range(4)], alpha=2)
    with pytest.raises(NotEnoughData, match="none of"):
        ReferenceBand.of([sibling(i) for i in range(4)]).test(sibling(9, name="other"))


def test_the_audit_says_it() -> None:
    band = ReferenceBand.of([sibling(i) for i in range(8)])
    bad = audit(sibling(99, shift=1.5 * (T >= 120)), reference=band)
    row = next(c for c in bad.checks if c.id == "R1")
    assert (bad.verdict, row.result, row.steps) == ("not healthy", "fail", (120.0,))
    good = next(c for c in audit(sibling(98), reference=band).checks if c.id == "R1")
    assert good.result == "pass"
    assert "extrapolated" in good.found
    other = next(c for c in audit(sibling(98, name="banana"), reference=band).checks if c.id == "R1")
    assert other.result == "not observable"
    assert next(c for c in audit(sibling(98)).checks if c.id == "R1").advice
