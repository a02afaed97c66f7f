"""Monitors never look ahead, thresholds hold their rate, and a replay says what the whole log says."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from trajscope.errors import InputError, NotEnoughData, ReadError
from trajscope.history.run import Run, RunData, named_channel
from trajscope.inference.calibrate import Thresholds, _joint, calibrate, run_alarms
from trajscope.inference.monitors import MONITORS, monitor_scores
from trajscope.inference.replay import cut_off, replay
from trajscope.simulate import ar, training_log


def make(seed, rows=600, event=None, every=1, kind="loss"):
    """A run with the channels of supervised training; at `event` its loss and gradients jump."""
    rng = np.random.default_rng(seed)
    t = np.arange(rows)
    noise = ar(rows, 0.5, 6, rng=rng)
    log_loss = np.log(0.4 + 2 * np.exp(-t / 150)) + 0.05 * noise[:, 0]
    log_grad = np.log(0.3 + np.exp(-t / 100)) + 0.1 * noise[:, 1]
    accuracy = 0.95 - 0.8 * np.exp(-t / 120) + 0.01 * noise[:, 2]
    if event is not None:
        log_loss[event:] += 1.5
        log_grad[event:] += 1.5
        accuracy[event:] -= 0.5
    parts = {
        "loss": np.exp(log_loss),
        "grad_norm": np.exp(log_grad),
        "update_norm": np.exp(log_grad - 3 + 0.05 * noise[:, 3]),
        "grad_cos": np.clip(0.3 + 0.1 * noise[:, 4], -1, 1),
        "lr": np.full(rows, 1e-3),
    }
    channels = {n: named_channel(n, t * every, v) for n, v in parts.items()}
    channels["val/accuracy"] = named_channel("val/accuracy", t[::5] * every, accuracy[::5])
    return Run(f"r{seed}", RunData(channels))


def test_the_future_changes_nothing():
    run = make(0, event=400)
    whole = monitor_scores(run)
    assert {"loss_z", "grad_z", "update_z", "x_inst", "x_grad", "fall", "variance", "lag1", "dev", "D", "Q"} <= set(
        whole
    )
    for t in (60, 249, 250, 251, 320, 401, 402, 500):
        seen = monitor_scores(cut_off(run, t))
        pd.testing.assert_frame_equal(seen, whole.loc[:t, list(seen.columns)], rtol=1e-9, atol=1e-12)
        assert whole.loc[:t].drop(columns=list(seen.columns)).isna().all(axis=None)


def test_poison_in_the_future_changes_nothing():
    run, at = make(1), 450
    poisoned = run.replace(
        channels={
            n: named_channel(n, c.steps, np.where(c.steps > at, np.where(c.steps % 2, 1e9, np.nan), c.values))
            for n, c in run.channels.items()
        }
    )
    one, two = monitor_scores(run).loc[:at], monitor_scores(poisoned).loc[:at]
    pd.testing.assert_frame_equal(one, two[one.columns], rtol=1e-9)


@pytest.mark.parametrize("kind", ["healthy", "spike", "collapse", "drift", "divergence"])
def test_replay_says_what_the_whole_log_says(kind):
    def run_of(seed, kind):
        log = training_log(600, kind, rng=seed)
        parts = {n: named_channel(n, log.steps, log.values[:, i]) for i, n in enumerate(log.names)}
        return Run(f"{kind}{seed}", RunData(parts))

    thresholds = calibrate([run_of(s, "healthy") for s in range(39)])
    run = run_of(99, kind)
    batch = run_alarms(run, thresholds)
    assert list(replay(run, thresholds, moments=23)) == batch
    if kind in ("collapse", "divergence"):
        assert batch
        assert min(a.step for a in batch) >= 360


def test_the_joint_threshold_holds_its_rate():
    """Twelve monitors, heavy tails, dependent: new healthy runs raise any alarm at about alpha."""
    rng = np.random.default_rng(0)
    repeats, fired, alone = 400, 0, 0
    mixing = rng.normal(size=(12, 12)) * 0.3 + np.eye(12)
    for _ in range(repeats):
        maxima = 3 * np.abs(rng.standard_t(4, size=(40, 12)) @ mixing)
        fired += bool(np.any(maxima[-1] > _joint(maxima[:-1], 0.05)))
        alone += bool(np.any(maxima[-1] > np.sort(maxima[:-1], axis=0)[-2]))
    assert fired <= binom.ppf(
        0.999, repeats, 0.065
    )  # the scale is shared with the calibration runs: a little above 5 %
    assert fired >= binom.ppf(0.001, repeats, 0.015)
    assert alone > 3 * fired  # what watching each at its own 5 % would do


def test_calibrated_runs_are_quiet_and_events_are_not():
    thresholds = calibrate([make(s) for s in range(24)])
    assert thresholds.certified
    assert thresholds.n_calibration == 24
    quiet = [run_alarms(make(100 + s), thresholds) for s in range(20)]
    assert sum(map(bool, quiet)) <= 5
    alarms = run_alarms(make(200, event=400), thresholds)
    assert alarms
    assert 400 < min(a.step for a in alarms) <= 410
    assert all(a.certified for a in alarms)
    longer = run_alarms(make(300, rows=1200, event=900), thresholds)
    assert not any(a.certified for a in longer if a.step > 600)
    assert "unknown false-alarm rate" in next(a for a in longer if a.step > 600).sentence()


def test_round_trip(tmp_path):
    made = calibrate([make(s) for s in range(20)])
    read = Thresholds.read(made.write(tmp_path / "deep" / "t.toml"))
    assert read.thresholds == made.thresholds
    assert read.sources == made.sources == {"fall": "val/accuracy:max", "x_grad": "logged"}
    assert (read.alpha, read.warmup, read.run_length, read.persistence) == (0.05, 50.0, 599.0, 3)
    assert "20 healthy runs" in read.summary()
    assert set(made.to_frame().columns) == {"value", "alone", "n_calibration"}


def test_too_few_runs():
    with pytest.raises(NotEnoughData, match="19 are needed"):
        calibrate([make(s) for s in range(18)])
    assert calibrate([make(s) for s in range(9)], alpha=0.1).certified
    with pytest.raises(NotEnoughData, match="0 healthy runs"):
        calibrate([Run("x", RunData({"foo": named_channel("foo", np.arange(3), np.ones(3))}))])


def test_a_monitor_that_some_runs_lack_is_left_out_and_named():
    runs = [make(s) for s in range(20)]
    runs[3] = runs[3].replace(channels={n: c for n, c in runs[3].channels.items() if n != "grad_cos"})
    thresholds = calibrate(runs)
    assert "different sources" in thresholds.skipped["monitor x_grad"]
    assert "x_grad" not in thresholds.to_frame().index
    runs[3] = runs[3].replace(channels={n: c for n, c in runs[3].channels.items() if n != "val/accuracy"})
    assert "different sources" in calibrate(runs).skipped["monitor fall"]
    runs[3] = runs[3].replace(channels={n: c for n, c in runs[3].channels.items() if n != "update_norm"})
    assert "1 of 20 runs" in calibrate(runs).skipped["monitor update_z"]


def test_another_source_of_coherence_is_not_judged():
    thresholds = calibrate([make(s) for s in range(20)], monitors=["x_grad"])
    assert thresholds.sources == {"x_grad": "logged"}
    run = make(60)
    jump = run.channels["grad_cos"].values.copy()
    jump[400:] -= 0.9
    moved = run.replace(channels={**run.channels, "grad_cos": named_channel("grad_cos", np.arange(600), jump)})
    assert [a.monitor for a in run_alarms(moved, thresholds)] == ["x_grad"]
    other = run.replace(channels={n: c for n, c in moved.channels.items() if n != "grad_cos"})
    assert run_alarms(other, thresholds) == []


def test_nonfinite_alarms_where_healthy_runs_never_had_any():
    thresholds = calibrate([make(s) for s in range(20)], monitors=["nonfinite", "loss_z"])
    run = make(50)
    values = run.channels["loss"].values.copy()
    values[300:310] = np.nan
    bad = run.replace(channels={**run.channels, "loss": named_channel("loss", run.channels["loss"].steps, values)})
    alarm = next(a for a in run_alarms(bad, thresholds) if a.monitor == "nonfinite")
    assert alarm.step == 302
    assert math.isinf(alarm.score)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("x = [", ReadError, "not valid TOML"),
        ("x = 1\n", InputError, "schema_version None"),
        ("schema_version = 1\n", InputError, "no .monitor.NAME."),
        ("schema_version = 1\n[monitor.los_z]\nvalue = 1\n", InputError, "Did you mean 'loss_z'"),
        ("schema_version = 1\n[monitor.loss_z]\nvalue = 'a'\n", InputError, "value = 'a'"),
        (
            "schema_version = 1\n[monitor.loss_z]\nvalue = 1\nalone = 1\nn_calibration = 20\n",
            InputError,
            "alpha = None",
        ),
    ],
)
def test_bad_files(tmp_path, text, error, message):
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(error, match=message):
        Thresholds.read(tmp_path / "t.toml")
    with pytest.raises(ReadError, match="cannot be opened"):
        Thresholds.read(tmp_path / "none.toml")


def test_unknown_monitor():
    with pytest.raises(InputError, match="Did you mean 'x_inst'"):
        monitor_scores(make(0), ["x_ins"])
    with pytest.raises(InputError, match="unknown"):
        calibrate([make(0)], monitors=["zzz"])
    assert len(set(MONITORS)) == len(MONITORS)


def test_an_empty_run():
    nothing = Run("e", RunData({}))
    assert monitor_scores(nothing).empty
    thresholds = calibrate([make(s) for s in range(20)])
    assert run_alarms(nothing, thresholds) == []
    assert list(replay(nothing, thresholds)) == []
