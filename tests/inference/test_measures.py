"""Numbers of a run: closed forms, and what is not logged is not a number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trajscope.errors import InputError
from trajscope.history.run import Run, RunData, named_channel
from trajscope.inference.measures import MEASURES, Measures, curve_measures, run_measures


def make(**channels):
    parts = {n: named_channel(n, np.arange(len(v)), np.asarray(v, float)) for n, v in channels.items()}
    return Run("r", RunData(parts))


def test_a_square_dip_by_hand():
    """200 evaluations rise to 1 in the first 20, dip by 0.5 for 18 of the 180 before the tail."""
    y = np.ones(200)
    y[:20] = np.linspace(0, 1, 20)
    y[100:118] = 0.5
    found = curve_measures(y)
    # levels (medians of 5) range from the third value to 1; the dip is the largest 5 % (9 of 175) and more
    spread = 1 - np.median(y[:5])
    assert found["drawdown_cvar"] == pytest.approx(0.5 / spread)
    assert found["dispersion"] == 0.0
    assert found["final"] == found["best"] == 1.0


def test_the_tail_is_not_seen():
    y = np.concatenate([np.linspace(0, 1, 180), np.full(20, -5.0)])
    found = curve_measures(y)
    assert found["drawdown_cvar"] == 0.0
    assert found["final"] == -5.0


def test_invariance_to_shift_and_scale():
    rng = np.random.default_rng(0)
    y = np.cumsum(rng.normal(size=300))
    one, two = curve_measures(y), curve_measures(7 * y - 3)
    for name in ("drawdown_cvar", "dispersion"):
        assert one[name] == pytest.approx(two[name])


def test_dispersion_of_white_noise():
    """IQR of differences of N(0, 1) noise is 2 * 0.6745 * sqrt(2), over the range of medians of five."""
    y = np.random.default_rng(1).normal(size=20_000) + np.linspace(0, 1000, 20_000)
    found = curve_measures(y)
    assert found["dispersion"] == pytest.approx(2 * 0.67449 * math.sqrt(2) / 900, rel=0.02)


@pytest.mark.parametrize("y", [[], [1.0], [np.nan] * 30, np.ones(8)])
def test_too_little(y):
    found = curve_measures(y)
    assert math.isnan(found["drawdown_cvar"])
    assert math.isnan(found["dispersion"])


def test_a_run():
    rng = np.random.default_rng(2)
    loss = 2 * np.exp(-np.arange(1500) / 300) + 0.5 + 0.01 * rng.normal(size=1500)
    loss[1200] += 4
    found = run_measures(make(loss=loss, **{"val/accuracy": np.linspace(0, 0.9, 1500) + 0.01 * rng.normal(size=1500)}))
    assert found.performance == "val/accuracy:max"
    assert found.spike_score == pytest.approx(1 / 850, rel=0.01)  # rows 500 to 1349 have half a window before them
    assert found.loss_ratio == pytest.approx(loss[1200] / loss[:1200].min())
    assert found.collapsed == 0
    assert found.peak_instability > 2
    assert found.final == pytest.approx(0.855, abs=0.01)
    assert set(MEASURES) <= set(Measures.__dataclass_fields__)


def test_a_collapsed_run():
    rng = np.random.default_rng(3)
    accuracy = np.where(np.arange(400) < 200, np.minimum(np.arange(400) / 100, 1) * 0.9, 0.1) + 0.01 * rng.normal(
        size=400
    )
    assert run_measures(make(**{"val/accuracy": accuracy})).collapsed == 1


def test_nothing_logged():
    found = run_measures(make(foo=np.ones(50)))
    assert found.performance == ""
    assert all(math.isnan(getattr(found, name)) for name in MEASURES)
    with pytest.raises(InputError, match="no channel 'bar'"):
        run_measures(make(foo=np.ones(50)), "bar")
