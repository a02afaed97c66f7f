"""No indicator looks ahead: what follows a row changes nothing at it, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trajscope as ts
from trajscope.detect.indicators.joint import JOINT
from trajscope.detect.indicators.univariate import WEIGHTED, WINDOWED
from trajscope.errors import InputError
from trajscope.history.trajectory import Trajectory
from trajscope.simulate import ar

EVERY = [*WINDOWED, "lag1", "lag2", "lag5", *(f"ew_{name}" for name in (*WEIGHTED, "lag1", "lag2"))]
N, WINDOW = 170, 40
POISON = [1e9, -1e9, np.nan, 0.0]


def series(kind, seed):
    rng = np.random.default_rng(seed)
    x = ar(N, 0.6, rng=rng)[:, 0]
    steps = np.arange(N)
    if kind == "gaps":
        x[rng.random(N) < 0.15] = np.nan
    if kind == "level":
        x = 1e4 + x
    if kind == "irregular":
        steps = np.cumsum(rng.integers(1, 4, size=N))
        steps[90:] += 200
    if kind == "jump":
        x[100:] += 8
    return x, steps


def table(x, steps, **options):
    options = {"window": WINDOW, "indicators": EVERY, **options}
    return ts.early_warning(x, steps, **options).to_frame().to_numpy()


@pytest.mark.parametrize("detrend", ["ewma", "local", None])
@pytest.mark.parametrize("kind", ["plain", "gaps", "level", "irregular", "jump"])
def test_a_prefix_gives_the_same_values(detrend, kind):
    x, steps = series(kind, 1)
    whole = table(x, steps, detrend=detrend)
    assert np.isfinite(whole).any(axis=0).sum() >= len(EVERY) - 1
    for t in (39, 40, 41, 79, 81, 99, 103, 120, 159, 168):
        assert np.array_equal(table(x[: t + 1], steps[: t + 1], detrend=detrend), whole[: t + 1], equal_nan=True), t


@given(
    t=st.integers(45, N - 2),
    poison=st.sampled_from(POISON),
    kind=st.sampled_from(["plain", "gaps", "level", "irregular"]),
    detrend=st.sampled_from(["ewma", "local", None]),
    every=st.sampled_from([1, 7]),
    seed=st.integers(0, 50),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_poisoned_future_changes_nothing(t, poison, kind, detrend, every, seed):
    x, steps = series(kind, seed)
    spoiled = x.copy()
    spoiled[t + 1 :] = poison
    expected = table(x, steps, detrend=detrend, every=every)[: t + 1]
    assert np.array_equal(table(spoiled, steps, detrend=detrend, every=every)[: t + 1], expected, equal_nan=True)


@pytest.mark.parametrize("t", [45, 90, 130])
@pytest.mark.parametrize("poison", POISON)
def test_indicators_of_several_channels_do_not_look_ahead(t, poison):
    x = ar(N, 0.6, 3, rng=2)
    x[70, 1] = np.nan
    spoiled = x.copy()
    spoiled[t + 1 :] = poison
    first, second = (
        ts.early_warning(v, window=WINDOW, indicators=list(JOINT)).to_frame().to_numpy()[: t + 1] for v in (x, spoiled)
    )
    cut = ts.early_warning(x[: t + 1], window=WINDOW, indicators=list(JOINT)).to_frame().to_numpy()
    assert np.isfinite(first[-1]).all()
    assert np.array_equal(first, second, equal_nan=True)
    assert np.array_equal(first, cut, equal_nan=True)


@pytest.mark.parametrize("scale", ["log", "asinh", "role"])
def test_scales_do_not_look_ahead(scale):
    x = np.exp(ar(N, 0.6, rng=3)[:, 0])
    spoiled = x.copy()
    spoiled[101:] = -1e9
    first, second = (
        table(v, None, scale=scale, role="loss", indicators=["variance", "lag1"])[:101] for v in (x, spoiled)
    )
    assert np.isfinite(first[-1]).all()
    assert np.array_equal(first, second, equal_nan=True)


def test_a_trajectory_with_segments_does_not_look_ahead():
    x = ar(N, 0.6, 2, rng=4)
    mask = np.ones(x.shape, dtype=bool)
    mask[::2, 1] = False
    segment = (np.arange(N) >= 80).astype(np.int16)

    def values(n):
        t = Trajectory(x[:n], np.arange(n), ("a", "b"), mask=mask[:n], segment=segment[:n])
        return ts.early_warning(t, window=30, indicators=["lag1", "slowing", "eig_cov"]).to_frame().to_numpy()

    whole = values(N)
    for n in (60, 100, 130, 165):
        assert np.array_equal(values(n), whole[:n], equal_nan=True)


@pytest.mark.parametrize("detrend", ["gaussian", "lowess"])
def test_baselines_that_see_later_rows_are_labelled_and_make_no_alarm(detrend):
    x = ar(200, 0.5, rng=5)[:, 0]
    found = ts.early_warning(x, window=50, indicators="lag1", detrend=detrend)
    assert not found.causal
    assert "Not causal" in found.summary()
    with pytest.raises(InputError, match="not causal"):
        found.scores()
    with pytest.raises(InputError, match="looks ahead"):
        ts.early_warning(x, window=50, indicators="lag1", scores={"lag1 of smooth": found})
    import pandas as pd

    labels = pd.DataFrame({"run": ["r"], "onset_step": [150.0]})
    with pytest.raises(InputError, match="not causal"):
        ts.lead_time({"r": found}, labels)
    spoiled = x.copy()
    spoiled[150:] = 50.0
    other = ts.early_warning(spoiled, window=50, indicators="lag1", detrend=detrend)
    early = slice(100, 150)
    assert not np.allclose(found.to_frame()["lag1"].to_numpy()[early], other.to_frame()["lag1"].to_numpy()[early])


def test_scores_of_a_causal_result_feed_lead_time():
    import pandas as pd

    frames, onsets = {}, []
    for k in range(30):
        onset = 500.0 if k >= 22 else None
        x = ar(600, 0.3, rng=k)[:, 0]
        if onset:
            from trajscope.simulate import linear_map

            x = linear_map(600, np.r_[np.full(200, 0.3), np.linspace(0.3, 0.99, 400)], rng=k)
        frames[f"r{k}"] = ts.early_warning(x, window=100, indicators=["slowing", "dev_modulus"])
        onsets.append(onset)
    labels = pd.DataFrame({"run": list(frames), "onset_step": onsets})
    result = ts.lead_time(frames, labels, alpha=0.2, horizon=300, n_boot=50, n_null=19)
    assert result.table.loc["slowing", "sensitivity"] >= 0.5
    pair = {run: np.stack([x.series["x"][1], ar(600, 0.3, rng=1)[:, 0]], axis=1) for run, x in frames.items()}
    many = {run: ts.early_warning(x, window=100, indicators=["slowing", "eig_cov"]) for run, x in pair.items()}
    both = ts.lead_time(many, labels, alpha=0.2, horizon=300, n_boot=50, n_null=19).table
    assert set(both.index) == {"slowing x0", "slowing x1", "eig_cov"}
    assert both.loc["slowing x0", "sensitivity"] == result.table.loc["slowing", "sensitivity"]
