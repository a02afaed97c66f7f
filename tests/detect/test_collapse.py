"""Collapse: known falls, calibration on flat and learning series, invariances, the labelled and recorded runs."""

from __future__ import annotations

from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import binom

from trajscope.detect._drawdown import drawdown
from trajscope.detect.collapse import KINDS, RECOVERIES, collapse
from trajscope.errors import InputError

matplotlib.use("Agg")


def ar(rng: np.random.Generator, phi: float, n: int) -> np.ndarray:
    e = rng.normal(size=n + 200) * np.sqrt(1 - phi**2)
    return lfilter([1], [1, -phi], e)[200:]


def run_of(
    fall_at: int = 120, back_at: int | None = None, n: int = 300, noise: float = 0.01, seed: int = 0
) -> np.ndarray:
    y = 0.9 - 0.8 * np.exp(-np.arange(n) / 20.0)
    y[fall_at : n if back_at is None else back_at] = 0.2
    return y + np.random.default_rng(seed).normal(0, noise, n)


def test_irrecoverable_collapse_is_dated():
    found = collapse(run_of(120), steps=np.arange(300) * 5)
    assert (found.kind, found.recovery, found.recovered_step) == ("collapse", "irrecoverable", None)
    assert abs(found.onset - 600) <= 5
    assert found.onset <= found.confirmed <= 600 + 5 * 6
    assert 0.7 < found.depth < 1.1
    assert found.kind in KINDS
    assert found.recovery in RECOVERIES
    frame = found.to_frame()
    assert len(frame) == 1
    assert frame.onset[0] == found.onset
    assert "600" in found.summary()
    assert found.to_dict()["kind"] == "collapse"


@pytest.mark.parametrize(("length", "recovery"), [(8, "transient"), (30, "lingering"), (140, "irrecoverable")])
def test_recovery_classes(length, recovery):
    found = collapse(run_of(120, 120 + length))
    assert (found.kind, found.recovery) == ("collapse", recovery)
    assert found.recovered_step is not None
    assert abs(found.recovered_step - (120 + length)) <= 4


def test_tail_too_short_is_undetermined():
    assert collapse(run_of(270)).recovery == "undetermined"
    last = collapse(run_of(297))  # three rows: not yet confirmed
    assert (last.kind, last.recovery, last.confirmed) == ("cannot tell", "undetermined", None)


def test_all_episodes_are_kept_and_the_worst_is_named():
    y = run_of(120, 128)
    y[200:] = 0.1 + np.random.default_rng(3).normal(0, 0.01, 100)
    found = collapse(y)
    assert [e.recovery for e in found.episodes] == ["transient", "irrecoverable"]
    assert found.recovery == "irrecoverable"
    assert abs(found.onset - 200) <= 1


def test_loss_divergence_and_minus_log():
    rng = np.random.default_rng(0)
    loss = np.exp(1 - np.minimum(np.arange(300) / 60, 2) + rng.normal(0, 0.02, 300))
    loss[200:] = np.exp(rng.normal(8, 0.1, 100))
    found = collapse(loss, mode="min")
    assert (found.kind, found.recovery, found.unit) == ("divergence", "irrecoverable", "-log")
    assert abs(found.onset - 200) <= 1
    found = collapse(loss - 50, mode="min")  # not positive: -loss
    assert found.unit == "-value"
    assert abs(found.onset - 200) <= 1


def test_a_run_that_only_gets_worse_diverges():
    rng = np.random.default_rng(0)
    loss = np.exp(np.r_[np.zeros(150), np.full(150, 3.0)] + rng.normal(0, 0.05, 300))
    found = collapse(loss, mode="min")
    assert (found.kind, found.recovery) == ("divergence", "irrecoverable")
    assert abs(found.onset - 150) <= 1


def test_nonfinite_is_an_event():
    y = run_of(299)
    y[150] = np.nan
    found = collapse(y)
    assert (found.kind, found.recovery, found.onset, found.recovered_step) == ("non-finite", "transient", 150, 151)
    y[250:] = np.inf
    found = collapse(y)
    assert (found.kind, found.recovery, found.onset) == ("non-finite", "irrecoverable", 250)
    assert len(found.episodes) == 2
    assert found.n_nonfinite == 51


def test_a_fall_that_ends_in_nan_is_one_episode():
    y = run_of(120, n=300)
    y[160:] = np.nan
    found = collapse(y)
    assert (found.kind, found.recovery, len(found.episodes)) == ("non-finite", "irrecoverable", 1)
    assert abs(found.onset - 120) <= 1


def test_negative_returns_and_affine_invariance():
    y = run_of(120, 150)
    base = collapse(y, floor=1e-12)
    for a, b in ((1, -1000.0), (500, -3.0), (1e-6, 0)):
        other = collapse(a * y + b, floor=1e-12 * a)
        assert (other.kind, other.onset, other.confirmed, other.recovery, other.recovered_step) == (
            base.kind, base.onset, base.confirmed, base.recovery, base.recovered_step,
        )  # fmt: skip
        assert other.depth == pytest.approx(base.depth, rel=1e-6)


def test_confirmation_is_causal():
    y = run_of(120, 150)
    full = collapse(y)
    cut = int(full.confirmed) + 1
    part = collapse(y[:cut])
    assert part.confirmed == full.confirmed
    z = y.copy()
    z[cut:] = 0.9
    assert collapse(z).confirmed == full.confirmed


def test_abruptness_tells_a_jump_from_a_drift():
    n = 300
    jump = collapse(run_of(150, n=n))
    y = 0.9 - 0.8 * np.exp(-np.arange(n) / 20.0)
    y[150:190] -= np.linspace(0, 0.7, 40)
    y[190:] -= 0.7
    drift = collapse(y + np.random.default_rng(0).normal(0, 0.01, n))
    assert jump.episodes[0].width <= 2
    assert jump.episodes[0].jump_lr > 0
    assert drift.episodes[0].jump_lr < -5
    assert drift.episodes[0].width_low <= 40 <= drift.episodes[0].width_high + 4


def test_short_and_empty_series_cannot_be_told():
    for y in ([], [1.0], np.arange(12.0), np.full(50, np.nan)[:0]):
        assert collapse(y).kind == "cannot tell"
    assert collapse(np.full(50, np.nan)).kind == "non-finite"
    assert collapse(np.zeros(200)).kind == "not learned"


@pytest.mark.parametrize("n", [200, 1000])
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("rise", [0.0, 4.0, 20.0])
def test_false_collapses_stay_below_five_percent(n, phi, rise):
    rng = np.random.default_rng([n, int(10 * phi), int(rise)])
    replicates = 120 if n == 200 else 60
    trend = rise * (1 - np.exp(-np.arange(n) / (0.08 * n)))
    false = sum(collapse(trend + ar(rng, phi, n)).kind not in ("none", "not learned") for _ in range(replicates))
    assert false <= binom.ppf(0.999, replicates, 0.05)


def test_onset_error_is_within_a_stride():
    rng = np.random.default_rng(5)
    errors = []
    for _ in range(60):
        at = int(rng.integers(80, 200))
        y = run_of(at, noise=0.02, seed=int(rng.integers(1 << 30)))
        errors.append(abs(collapse(y).onset - at))
    assert np.median(errors) <= 1


def test_run_wrapper_picks_performance():
    steps = np.arange(300) * 2
    loss = SimpleNamespace(name="l", steps=steps, values=np.exp(-run_of(299)), role="loss", role_confidence=0.9)
    acc = SimpleNamespace(name="a", steps=steps, values=run_of(120), role="val_accuracy", role_confidence=0.8)
    odd = SimpleNamespace(name="o", steps=steps, values=run_of(120), role="grad_norm", role_confidence=0.8)
    run = SimpleNamespace(channels={"l": loss, "a": acc, "o": odd})
    assert (collapse(run).channel, collapse(run).mode, collapse(run).kind) == ("a", "max", "collapse")
    assert (collapse(run, performance="l").mode, collapse(run, performance="l").kind) == ("min", "none")
    assert collapse(run, performance="a:min").mode == "min"
    assert collapse(run, performance="o:max").kind == "collapse"
    with pytest.raises(InputError, match="says nothing about better or worse"):
        collapse(run, performance="o")
    with pytest.raises(InputError, match="no channel 'b'"):
        collapse(run, performance="b")
    with pytest.raises(InputError, match="measures performance"):
        collapse(SimpleNamespace(channels={"o": odd}))


def test_input_is_not_touched_and_same_input_same_result():
    y = run_of()
    y.setflags(write=False)
    assert collapse(y).to_dict() == collapse(y).to_dict()


def test_bad_arguments():
    y = run_of()
    for match, options in (
        ("mode is", {"mode": "up"}),
        ("dd is", {"dd": 0}),
        ("names a channel", {"performance": "a"}),
    ):
        with pytest.raises(InputError, match=match):
            collapse(y, **options)
    with pytest.raises(InputError, match="one channel"):
        collapse(np.zeros((3, 3)))
    with pytest.raises(InputError, match="go back"):
        collapse([1.0, 2.0, 3.0], steps=[0, 2, 1])
    with pytest.raises(InputError, match="not numeric"):
        collapse(["a", "b"])
    with pytest.raises(InputError, match="one step a value"):
        collapse([1.0, 2.0], steps=[1])


@pytest.mark.parametrize("w", [2.5, 26])
def test_a_window_that_is_no_count_is_refused(w):
    with pytest.raises(InputError, match="w at most 25"):
        collapse(np.arange(100.0), w=w)


def test_the_plot_shows_each_episode():
    rng = np.random.default_rng(0)
    rise, high = np.linspace(0.1, 0.9, 200), np.full(200, 0.9)
    y = np.r_[rise, high, np.full(60, 0.3), high, np.full(120, 0.2)]
    found = collapse(y + rng.normal(0, 0.01, y.size))
    ax = found.plot()
    ax.figure.canvas.draw()
    shown = [t.get_text() for t in ax.texts]
    assert [t for t in shown if "," in t] == [f"{e.kind}, {e.recovery}" for e in found.episodes]
    assert len(found.episodes) == 2
    plt.close(ax.figure)
    empty = collapse([]).plot()
    empty.figure.canvas.draw()
    plt.close(empty.figure)


def test_a_blow_up_of_a_log_that_is_mostly_learning_is_found():
    """A scale with the trend of learning in it called this run "not learned" or "none"."""
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        row = np.arange(100)
        log_loss = 0.8 + 0.5 * np.exp(-row / 15) + rng.normal(0, 0.01, 100)
        log_loss[51:] += 1.8 * np.exp(-np.arange(49) / 60)
        result = collapse(np.exp(log_loss), mode="min")
        found += result.kind in ("collapse", "divergence") and result.onset == 51
    assert found >= 19


def test_the_scale_is_the_noise_under_a_trend_too():
    row = np.arange(400.0)
    noise = np.random.default_rng(0).normal(size=400)
    scales = [drawdown(noise + slope * row, 5, 1e-12).scale[-1] for slope in (0.0, 0.2, -0.2, 5.0)]
    np.testing.assert_allclose(scales[0], 1.05, atol=0.1)
    np.testing.assert_array_less(scales, 2.1)  # noisier by the slope's error, never by the slope
    np.testing.assert_array_less(1.0, scales)
