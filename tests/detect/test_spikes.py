"""Spikes, their classes and score; coincidence over runs; deliberate resets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import binom

from trajscope._core import rolling
from trajscope.detect._predict import surprise
from trajscope.detect.coincidence import coincident_spikes
from trajscope.detect.reset import deliberate_reset
from trajscope.detect.spike_score import spike_score
from trajscope.detect.spikes import CLASSES, spikes
from trajscope.errors import InputError, NotEnoughData

matplotlib.use("Agg")

NANOGPT = Path("/work/shared/data/labelled/nanogpt")


def loss(n: int = 600, seed: int = 0, sd: float = 0.05) -> np.ndarray:
    return 3 + np.random.default_rng(seed).normal(0, sd, n)


def test_isolated_spikes_are_found_and_sized():
    x = loss()
    x[[150, 400]] += [1.0, 2.0]
    found = spikes(x, steps=np.arange(600) * 10)
    assert found.steps.tolist() == [1500, 4000]
    assert found.recovery == ("fast", "fast")
    np.testing.assert_allclose(found.sizes, [1.0, 2.0], atol=0.25)
    assert found.stride == 10
    assert (found.to_frame()["step"] == found.steps).all()
    assert "2 events" in found.summary()


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        (np.full(400, 1.0), "new level"),
        (np.exp(-np.arange(400) / 20.0), "slow"),
        (np.r_[2.0, np.full(399, 0.5)], "partial"),
    ],
)
def test_classes(shape, kind):
    x = loss(600)
    x[200:] += shape
    found = spikes(x)
    assert found.steps[0] == 200
    assert found.recovery[0] == kind
    assert kind in CLASSES
    assert len(found) <= 2


def test_divergence_and_undetermined():
    x = np.exp(-np.arange(300) / 100) + 3 + np.random.default_rng(0).normal(0, 0.02, 300)
    x[250:] = np.exp(np.linspace(2, 8, 50))
    assert spikes(x).recovery[0] == "divergence"
    x = loss(300)
    x[200] = 9.0
    x[201:] = np.nan
    found = spikes(x)
    assert found.recovery == ("divergence",)
    assert found.nonfinite_steps.size == 99
    x = loss(300)
    x[-1] = 6
    assert spikes(x).recovery == ("undetermined",)


def test_sides_follow_the_role():
    up = loss()
    up[300] += 2
    down = loss()
    down[300] -= 2
    assert len(spikes(up)) == 1
    assert len(spikes(down)) == 0
    assert len(spikes(down, role="accuracy")) == 1
    assert spikes(down, role="accuracy").sizes[0] < 0
    assert len(spikes(down, side="both")) == 1
    assert len(spikes(up, side="down")) == 0


def test_short_history_rule():
    x = np.r_[3.0, 3.1, 2.9, 3.0, 3.05, 3.02, 400.0, 3.0, 3.1]
    assert spikes(x).steps.tolist() == [6]
    few = spikes(x[:4])
    assert not few.enough_history
    assert "not enough history" in few.summary()
    assert len(spikes([])) == 0


def test_a_spike_under_strong_autocorrelation_is_judged_by_innovations():
    rng = np.random.default_rng(0)
    y = lfilter([1], [1, -0.95], rng.normal(size=1200))[200:]
    y[600] += 12  # 3.7 marginal sd, 12 innovation sd
    assert 600 in spikes(y, scale="none").steps


def test_flags_do_not_depend_on_later_rows():
    x = loss(400)
    x[[100, 250]] += 1.5
    full = surprise(np.log(x))
    part = surprise(np.log(x[:251]))
    np.testing.assert_array_equal(full.flagged[:251], part.flagged)


def test_invariances():
    x = loss()
    x[[150, 400]] += 1.0
    base = spikes(x)
    assert spikes(7.5 * x).rows.tolist() == base.rows.tolist()  # log scale: any unit
    z = spikes(x - 50, scale="none", floor=1e-9)
    assert spikes(3 * (x - 50) + 11, scale="none", floor=3e-9).rows.tolist() == z.rows.tolist()
    again = spikes(x, steps=np.arange(600) + 10_000)
    assert (again.rows == base.rows).all()
    x.setflags(write=False)
    assert spikes(x).to_dict() == base.to_dict()


def test_known_events_are_marked():
    x = loss()
    x[[150, 400]] += 1.0
    assert spikes(x, known_events=[399]).known.tolist() == [False, True]


NULLS = {
    "iid": lambda rng, n: rng.normal(size=n),
    "ar5": lambda rng, n: lfilter([1], [1, -0.5], rng.normal(size=n + 100))[100:],
    "ar9": lambda rng, n: lfilter([1], [1, -0.9], rng.normal(size=n + 100))[100:],
    "decay": lambda rng, n: (
        30 * np.exp(-8 * np.arange(n) / n) + lfilter([1], [1, -0.8], rng.normal(size=n + 100))[100:]
    ),
}


@pytest.mark.parametrize("name", sorted(NULLS))
def test_false_spikes_are_rare(name):
    rng = np.random.default_rng(7)
    replicates = 80
    hit = sum(len(spikes(NULLS[name](rng, 400), scale="none", side="up")) > 0 for _ in range(replicates))
    assert hit <= binom.ppf(0.999, replicates, 0.05)


def test_spike_score_against_the_obvious_loop():
    x = loss(700)
    x[[300, 500]] += 3
    got = spike_score(x, threshold=7, window=200)
    hits = n = 0
    for t in range(100, 700):
        past = x[max(0, t - 200) : t]
        n += 1
        hits += x[t] >= past.mean() + 7 * past.std()
    assert (got.n, got.window, got.stride) == (n, 200, 1.0)
    assert got.raw == pytest.approx(hits / n)
    assert got.log > 0
    assert np.isnan(spike_score(-x).log)
    assert np.isnan(spike_score(x[:10]).raw)
    assert spikes(x).score(7, window=200).raw == got.raw
    assert spike_score(np.full(700, 3.3)).raw == 0


def test_bad_arguments():
    for match, options in (("side is", {"side": "upp"}), ("scale is", {"scale": "ln"}), ("out of range", {"z": 0})):
        with pytest.raises(InputError, match=match):
            spikes(loss(), **options)
    with pytest.raises(InputError, match="needs positive values"):
        spikes(loss() - 10, scale="log")
    with pytest.raises(InputError, match="single series"):
        spikes(loss(), channel="loss")


def test_run_wrapper():
    x = loss()
    x[300] += 1
    channel = SimpleNamespace(name="train/loss", steps=np.arange(600), values=x, role="loss", role_confidence=1.0)
    run = SimpleNamespace(id="r", channels={"train/loss": channel})
    assert spikes(run).channel == "train/loss"
    assert spikes(run).steps.tolist() == [300]
    with pytest.raises(InputError, match="no channel 'los'"):
        spikes(run, channel="los")
    with pytest.raises(InputError, match="role 'loss'"):
        spikes(SimpleNamespace(channels={}))


# --- several runs


def cohort(k: int, shared_sd: float, own_sd: float, n: int = 800, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 3 + rng.normal(0, shared_sd, n) + rng.normal(0, own_sd, (k, n))


def test_shared_and_own_jumps_are_told_apart():
    x = cohort(5, 0.05, 0.01)
    x[:, 300] += 0.6
    x[1, 500] += 0.3  # below what the run alone could show
    found = coincident_spikes({f"r{i}": row for i, row in enumerate(x)})
    assert found.shared_steps.tolist() == [300]
    assert [(s, r) for s, k, r in zip(found.steps, found.kind, found.run, strict=True) if k == "own"] == [(500, "r1")]
    assert found.p_values[found.steps == 300][0] <= 0.01
    assert len(found.to_frame()) == 2
    assert "1 step" in found.summary()


def test_independent_runs_share_nothing():
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(20):
        x = 3 + rng.normal(0, 0.05, (4, 400))
        for row in x:
            row[rng.choice(np.arange(60, 400), 3, replace=False)] += 1.0
        hits += len(coincident_spikes(list(x), n_permutations=39).shared_steps) > 0
    assert hits <= binom.ppf(0.999, 20, 0.05)


def test_different_lengths_offsets_and_seed():
    x = cohort(3, 0.02, 0.02)
    x[:, 300] += 1
    series = [(np.arange(800), x[0]), (np.arange(800) - 1, x[1]), (np.arange(500), x[2][:500])]
    found = coincident_spikes(series, offsets=[0, 1, 0], rng=1)
    assert found.shared_steps.tolist() == [300]
    assert found.to_dict() == coincident_spikes(series, offsets=[0, 1, 0], rng=1).to_dict()
    assert coincident_spikes(series, offsets=[0, 1, 0], known_events=[300]).known[0]
    with pytest.raises(NotEnoughData, match="at least two runs"):
        coincident_spikes(series[:1])
    with pytest.raises(InputError, match="offsets for"):
        coincident_spikes(series, offsets=[1])


def test_reset_needs_loss_and_schedule():
    t = np.arange(400) % 200
    rng = np.random.default_rng(0)
    x = 3 * np.exp(-t / 30) + 0.5 + rng.normal(0, 0.01, 400)
    warm = np.minimum(t / 10, 1) * (1 + np.cos(np.pi * t / 200)) / 2
    found = deliberate_reset(x, warm)
    assert (found.verdict, found.steps.tolist()) == ("reset", [200])
    assert len(found.to_frame()) == 1
    steady = (1 + np.cos(np.pi * np.arange(400) / 400)) / 2
    assert deliberate_reset(x, steady).verdict == "none"  # the loss alone came back: that is a failure
    assert deliberate_reset(x).verdict == "cannot tell"
    assert deliberate_reset(3 * np.exp(-np.arange(400) / 60) + 0.5, warm).verdict == "none"
    with pytest.raises(InputError, match="lr_ratio"):
        deliberate_reset(x, warm, lr_ratio=1)


@pytest.mark.skipif(not NANOGPT.exists(), reason="shared data absent")
def test_injected_jumps_in_a_real_run():
    table = np.genfromtxt(NANOGPT / "2024-12-04_ValueEmbed__00008ea0.csv", delimiter=",", names=True)
    x = table["train_loss"][1:].copy()
    at = np.array([200, 450, 700, 1000, 1300])
    x[at] += [0.8, 1.0, 1.2, 1.4, 0.9]
    found = spikes(x, table["step"][1:], role="loss")
    assert np.isin(table["step"][1:][at], found.steps).mean() >= 0.8
    real = {918, 946, 1105}
    assert len(set(found.steps.tolist()) - set(table["step"][1:][at].tolist()) - real) <= 1


def test_known_events_take_pairs_as_change_points_do():
    x = np.random.default_rng(0).normal(3, 0.05, 400)
    x[200] += 2
    assert spikes(x, known_events=[(199, "new data")]).known.tolist() == [True]
    with pytest.raises(InputError, match="known_events"):
        spikes(x, known_events=["new data"])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_steps_that_are_no_numbers_are_refused(bad):
    steps = np.arange(100.0)
    steps[-1] = bad
    with pytest.raises(InputError, match="without a step"):
        spikes(np.zeros(100), steps)


def test_a_shared_shift_has_no_echo_before_it():
    rng = np.random.default_rng(0)
    runs = [3 + rng.normal(0, 0.05, 600) for _ in range(4)]
    for x in runs:
        x[300:] += 0.6
    steps = coincident_spikes(runs).steps
    assert steps.min() == 300


@pytest.mark.parametrize("values", [[], [1.0], np.full(50, np.nan), np.zeros(50)])
def test_a_result_without_events_is_drawn(values):
    ax = spikes(values).plot()
    ax.figure.canvas.draw()
    plt.close(ax.figure)


def test_the_plot_marks_every_class_and_quotes_the_name():
    x = np.random.default_rng(0).normal(3, 0.05, 400)
    x[200] += 2
    x[300:] += 2
    x[350] = np.nan
    channel = SimpleNamespace(steps=np.arange(400), values=x, name=r"$\\loss{", role="loss")
    ax = spikes(channel, known_events=[200]).plot()
    ax.figure.canvas.draw()
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["fast (known)", "divergence", "non-finite"]
    assert ax.get_ylabel() == channel.name
    plt.close(ax.figure)


@pytest.mark.parametrize("side", ["up", "both"])
@pytest.mark.parametrize("n", [1, 12, 130, 900])
def test_both_paths_of_the_prediction_give_the_same_bits(n, side, monkeypatch):
    rng = np.random.default_rng(n)
    y = np.cumsum(rng.normal(size=n)) * 0.1 + rng.standard_t(3, n)
    y[rng.random(n) < 0.05] = np.nan
    y[rng.random(n) < 0.02] += 30
    monkeypatch.setattr(rolling, "_cells_so_far", 0.0)
    plain = surprise(y, side=side)
    rolling.use_kernels()
    compiled = surprise(y, side=side)
    for name in ("location", "residual", "scale", "threshold", "flagged", "history", "judged"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(compiled, name))


def test_leaving_out_what_does_not_stand_out_changes_no_flag():
    rng = np.random.default_rng(3)
    for size in (0.0, 5.0, 30.0):
        y = rng.normal(size=600)
        y[[200, 420]] += size
        whole, part = surprise(y, side="both"), surprise(y, side="both", only_standing_out=True)
        np.testing.assert_array_equal(whole.flagged, part.flagged)
        np.testing.assert_array_equal(whole.z[whole.flagged], part.z[whole.flagged])
        np.testing.assert_array_equal(whole.location, part.location)
