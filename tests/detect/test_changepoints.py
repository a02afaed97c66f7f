"""`change_points`: what it finds, what it leaves alone, what it says, and what it refuses."""

from __future__ import annotations

import json
from types import SimpleNamespace

import matplotlib
import numpy as np
import pandas as pd
import pytest
from scipy.signal import lfilter
from scipy.stats import binom

from trajscope.detect.changepoints import change_points
from trajscope.errors import InputError

matplotlib.use("Agg")


def ar(n, phi, rng, *, heavy=False):
    e = rng.standard_t(3, n + 300) / np.sqrt(3) if heavy else rng.standard_normal(n + 300)
    return lfilter([1.0], [1.0, -phi], e)[300:] * np.sqrt(1 - phi**2)


def stepped(seed=0, n=800, at=(300, 550), sizes=(3.0, -4.0), phi=0.4):
    rng = np.random.default_rng(seed)
    y = ar(n, phi, rng)
    for row, size in zip(at, sizes, strict=True):
        y[row:] += size
    return y


NULLS = {
    "iid": lambda n, rng: rng.standard_normal(n),
    "t3": lambda n, rng: rng.standard_t(3, n),
    "ar5": lambda n, rng: ar(n, 0.5, rng),
    "ar9": lambda n, rng: ar(n, 0.9, rng),
    "power": lambda n, rng: 30 * (1 + np.arange(n) / (n / 100)) ** -0.5 + ar(n, 0.8, rng),
    "exponential": lambda n, rng: 30 * np.exp(-np.arange(n) / (n / 5)) + ar(n, 0.8, rng),
    "logarithm": lambda n, rng: -5 * np.log1p(np.arange(n)) + ar(n, 0.5, rng),
    "cosine": lambda n, rng: 10 * np.cos(np.pi * np.arange(n) / n) + ar(n, 0.5, rng),
    "epochs": lambda n, rng: 2 * np.sin(40 * np.pi * np.arange(n) / n) + rng.standard_normal(n),
}


@pytest.mark.parametrize("name", list(NULLS))
def test_nothing_is_found_where_nothing_changes(name):
    repeats = 40
    hits = sum(len(change_points(NULLS[name](400, np.random.default_rng([3, r])))) > 0 for r in range(repeats))
    # 5 % may fire; the bound is the 99.9 % point, so that nine families rarely fail by chance.
    assert hits <= binom.ppf(0.999, repeats, 0.05)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("level", lambda x, t, s: x + 1.5 * (t >= s)),
        ("variance", lambda x, t, s: x * np.where(t >= s, 2.0, 1.0)),
        ("slope", lambda x, t, s: x + 0.02 * t - 0.02 * np.maximum(t - s, 0)),
    ],
)
def test_a_change_is_found_placed_named_and_covered(kind, make):
    near = covered = named = 0
    repeats = 16
    for r in range(repeats):
        rng = np.random.default_rng([5, r])
        t = np.arange(2000)
        s = int(rng.integers(600, 1400))
        found = change_points(make(ar(2000, 0.5, rng), t, s))
        if len(found):
            i = int(np.argmin(np.abs(found.rows - s)))
            near += abs(int(found.rows[i]) - s) <= 50
            covered += found.intervals[i][0] <= s < found.intervals[i][1]
            named += found.kind[i] == kind
    assert near >= 0.8 * repeats
    assert named >= 0.8 * repeats
    assert covered >= 0.8 * repeats


def test_a_variance_change_reports_its_factor():
    rng = np.random.default_rng(2)
    y = rng.normal(size=3000)
    y[1500:] *= 3
    found = change_points(y)
    assert found.kind == ("variance",)
    assert 2 < found.sizes[0] < 4


def test_slopes_that_break_several_times():
    rng = np.random.default_rng(4)
    slopes = np.repeat([0.05, -0.03, 0.04, 0.0], [600, 700, 800, 900])
    found = change_points(np.cumsum(slopes) + ar(3000, 0.5, rng))
    assert set(found.kind) == {"slope"}
    np.testing.assert_allclose(found.rows, [600, 1300, 2100], atol=50)


@pytest.mark.parametrize("shift", [-1e6, 7.0])
def test_shift_invariance(shift):
    y = stepped()
    np.testing.assert_array_equal(change_points(y + shift).steps, change_points(y).steps)


@pytest.mark.parametrize("scale", [1e-8, 3.0, 1e9])
def test_scale_invariance(scale):
    a, b = change_points(stepped()), change_points(stepped() * scale)
    np.testing.assert_array_equal(a.steps, b.steps)
    np.testing.assert_allclose(a.p_values, b.p_values, rtol=1e-6)
    np.testing.assert_allclose(b.sizes, a.sizes * scale, rtol=1e-6)


def test_sign_invariance():
    a, b = change_points(stepped()), change_points(-stepped())
    np.testing.assert_array_equal(a.steps, b.steps)
    np.testing.assert_allclose(a.sizes, -b.sizes)


def test_channel_order_invariance():
    rng = np.random.default_rng(8)
    y = np.column_stack([stepped(1), ar(800, 0.5, rng), stepped(3, at=(500,), sizes=(5.0,))])
    names = ["a", "b", "c"]
    forward = change_points(pd.DataFrame(y, columns=names))
    backward = change_points(pd.DataFrame(y[:, ::-1], columns=names[::-1]))
    np.testing.assert_array_equal(forward.steps, backward.steps)
    assert [set(c) for c in forward.channels] == [set(c) for c in backward.channels]


def test_time_reversal_mirrors_the_places_with_the_guard_off():
    y = stepped()
    forward = change_points(y, onset_guard=False).rows
    backward = change_points(y[::-1], onset_guard=False).rows
    np.testing.assert_allclose(np.sort(800 - backward), forward, atol=3)


def test_a_block_of_missing_values_moves_nothing():
    y = stepped()
    gap = y.copy()
    gap[400:430] = np.nan
    gap[10] = np.inf
    np.testing.assert_allclose(change_points(gap).steps, change_points(y).steps, atol=2)


def test_a_spike_is_no_change_and_is_reported():
    y = stepped()
    spiky = y.copy()
    spiky[200:202] += 60
    found = change_points(spiky)
    np.testing.assert_allclose(found.steps, change_points(y).steps, atol=2)
    assert {200, 201} <= set(found.spikes["x"].tolist())


def test_steps_renumbered():
    y = stepped()
    found = change_points(y, np.arange(800) * 25 + 1000)
    np.testing.assert_array_equal(found.steps, change_points(y).rows * 25 + 1000)
    np.testing.assert_array_equal(found.intervals, change_points(y).intervals * 25 + 1000)


def test_a_trend_over_a_gap_in_the_steps_is_no_jump():
    rng = np.random.default_rng(1)
    steps = np.concatenate([np.arange(400), np.arange(900, 1300)])
    y = -0.03 * steps + 0.5 * rng.normal(size=800)
    assert len(change_points(y)) > 0  # on rows the gap looks like a jump of 15
    assert len(change_points(y, steps)) == 0
    y[500:] += 4
    assert change_points(y, steps).steps.tolist() == [1000]


def test_input_is_not_touched():
    y = stepped()
    copy = y.copy()
    y.setflags(write=False)
    change_points(y)
    np.testing.assert_array_equal(y, copy)


def test_same_seed_same_bytes():
    y = np.concatenate([np.zeros(20), np.ones(20)]) + 0.1 * np.random.default_rng(0).normal(size=40)
    first, second = change_points(y, rng=3), change_points(y, rng=3)
    assert json.dumps(first.to_dict()) == json.dumps(second.to_dict())
    assert first.steps.tolist() == [20]
    assert first.provenance.seed == 3


def test_short_series_pass_an_exact_test_or_say_so():
    few = change_points([1.0, 2.0, 9.0])
    assert len(few) == 0
    assert "not enough history" in few.not_tested[0]
    alone = change_points(np.random.default_rng(0).normal(size=30))
    assert len(alone) == 0


@pytest.mark.parametrize("constant", [np.zeros(100), np.full(100, 1e100), np.arange(300.0)])
def test_series_without_noise(constant):
    assert len(change_points(constant)) == 0


def test_a_clean_jump_is_found_once():
    assert change_points(np.repeat([0.0, 1.0], [50, 60])).steps.tolist() == [50]


def test_one_of_twenty_and_all_of_twenty():
    rng = np.random.default_rng(0)
    y = np.column_stack([ar(1500, 0.5, rng) for _ in range(20)])
    y[700:, 3] += 3
    found = change_points(y)
    assert found.channels[int(np.argmin(np.abs(found.rows - 700)))][0] == "x3"
    weak = np.column_stack([ar(1500, 0.5, rng) for _ in range(20)])
    weak[900:] += 0.3
    assert np.abs(change_points(weak).rows - 900).min() <= 40
    assert sum(len(change_points(weak[:, c])) > 0 for c in range(4)) <= 2  # hardly one shows it alone


def test_trajectory_mask_and_channels():
    y = np.column_stack([stepped(), stepped(5, at=(600,), sizes=(6.0,))])
    held = np.repeat(y[::4], 4, axis=0)
    mask = np.zeros(held.shape, dtype=bool)
    mask[::4] = True
    trajectory = SimpleNamespace(values=held, steps=np.arange(800), names=("loss", "norm"), mask=mask)
    found = change_points(trajectory, channels="norm")
    np.testing.assert_allclose(found.steps, [600], atol=4)
    assert found.names == ("norm",)
    assert all(s % 4 == 0 for s in found.steps.tolist())  # own rows only


def test_known_events_explain():
    found = change_points(stepped(), known_events=[(300, "learning rate drop"), 9999])
    why = dict(zip(found.steps.tolist(), found.explained, strict=True))
    assert why[min(why, key=lambda s: abs(s - 300))] == "learning rate drop"
    assert why[min(why, key=lambda s: abs(s - 550))] is None
    table = pd.DataFrame({"step": [300], "kind": ["drop"]})
    assert "drop" in change_points(stepped(), known_events=table).explained
    assert "a" in change_points(stepped(), known_events={300: "a"}).explained


def test_result_forms():
    found = change_points(stepped())
    frame = found.to_frame()
    assert list(frame.columns) == ["step", "row", "low", "high", "p_value", "kind", "size", "channels", "explained"]
    assert len(frame) == len(found) == 2
    assert np.all(frame.low <= frame.step) & np.all(frame.step < frame.high)
    assert np.all(np.diff(found.steps) > 0)
    segments = found.segments_frame()
    assert segments.n_rows.sum() == 800
    np.testing.assert_allclose(segments.level, [0, 3, -1], atol=0.5)
    assert "Step" in found.summary()
    assert "level shift" in found.summary()
    json.dumps(found.to_dict())
    ax = found.plot()
    assert ax.get_xlabel() == "step"
    matplotlib.pyplot.close(ax.figure)
    empty = change_points(np.random.default_rng(0).normal(size=200))
    assert empty.to_frame().empty
    assert empty.intervals.shape == (0, 2)
    assert empty.summary().startswith("0 change points in 200 rows")


@pytest.mark.parametrize("method", ["pelt", "binseg", "window", "bottomup", "kernel"])
def test_searches_of_ruptures_by_name(method):
    ruptures = pytest.importorskip("ruptures")
    y = np.repeat([0.0, 4.0, 0.0], 60) + np.random.default_rng(0).normal(size=180)
    found = change_points(y, method=method, penalty=20.0 if method != "kernel" else 5.0)
    if method != "window":  # its score peaks are smeared over the window
        np.testing.assert_allclose(found.rows, [60, 120], atol=6)
    assert min(np.abs(found.rows - 120)) <= 6
    assert np.all(np.isnan(found.p_values))
    if method == "pelt":
        own = ruptures.Pelt(model="l2", min_size=2, jump=1).fit(y).predict(pen=20.0)[:-1]
        assert found.rows.tolist() == own


def test_annotation_marks_more_than_the_calibrated_default():
    y = stepped(n=400, at=(120, 260), sizes=(1.5, -1.5))
    marked = change_points(y, sensitivity="annotation")
    assert len(marked) >= 1
    assert np.all(np.isnan(marked.p_values))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": ["a", "b"]}, "not numeric"),
        ({"x": np.zeros((2, 2, 2))}, "expected \\(n_steps,\\)"),
        ({"x": np.zeros(5), "steps": [0, 1, 1, 2, 3]}, "steps must increase; row 2"),
        ({"x": np.zeros(5), "steps": [0, 1]}, "expected 5 numbers"),
        ({"x": np.zeros(5), "alpha": 0}, "alpha is 0"),
        ({"x": np.zeros(5), "kind": "levle"}, "Did you mean 'level'"),
        ({"x": np.zeros(5), "kind": ()}, "kind is empty"),
        ({"x": np.zeros(5), "method": "pelta"}, "Did you mean 'pelt'"),
        ({"x": np.zeros(5), "penalty": 3}, "penalty belongs to a search"),
        ({"x": np.zeros(5), "method": "pelt", "penalty": -1}, "expected a positive number"),
        ({"x": np.zeros(5), "sensitivity": "high"}, "sensitivity 'high'"),
        ({"x": np.zeros(5), "channels": ["y"]}, "no channel 'y'"),
        ({"x": np.zeros(5), "known_events": pd.DataFrame({"at": [1]})}, "expected 'step'"),
    ],
)
def test_bad_arguments_teach(arguments, message):
    with pytest.raises(InputError, match=message):
        change_points(**arguments)


@pytest.mark.parametrize("value", [0.001, 0.1, 1 / 3, 0.7, -0.3])
@pytest.mark.parametrize("n", [30, 200, 5000])
def test_a_constant_channel_never_changes(value, n):
    assert len(change_points(np.full(n, value))) == 0


COARSE = {
    "success": lambda rng, n: rng.binomial(1, 0.3, n),
    "mean of eight": lambda rng, n: rng.binomial(8, 0.9, n) / 8,
    "rounded": lambda rng, n: np.round(rng.normal(size=n) / 2),
    "counts": lambda rng, n: rng.poisson(1, n),
}


@pytest.mark.parametrize("name", list(COARSE))
def test_coarse_noise_is_no_change(name):
    hits = sum(len(change_points(COARSE[name](np.random.default_rng(i), 400))) > 0 for i in range(40))
    assert hits <= binom.ppf(0.999, 40, 0.05)


def test_a_success_rate_that_changes_is_found():
    rng = np.random.default_rng(0)
    found = change_points(np.r_[rng.binomial(1, 0.2, 400), rng.binomial(1, 0.8, 400)])
    assert len(found) == 1
    assert abs(found.rows[0] - 400) <= 10


def test_unsigned_steps_that_go_back_are_refused():
    with pytest.raises(InputError, match="must increase"):
        change_points(np.arange(30.0), np.arange(30, dtype=np.uint64)[::-1])


@pytest.mark.parametrize("events", [["a"], "abc", object(), [None], [()], [np.nan], [{"at": 3}]])
def test_known_events_without_a_step_are_refused(events):
    with pytest.raises(InputError, match="known_events"):
        change_points(np.arange(30.0), known_events=events)


@pytest.mark.parametrize("options", [{"kind": None}, {"channels": []}, {"channels": 0}])
def test_options_of_another_type_are_refused(options):
    with pytest.raises(InputError, match="expected"):
        change_points(np.arange(30.0), **options)


def test_published_series(shared_data):
    """The calibrated default on the Nile at Aswan (Cobb 1978): one level shift, in 1899 or the year before."""
    path = shared_data / "changepoints" / "nile.json"
    if not path.exists():
        pytest.skip("the series is not on this machine")
    y = np.array(json.loads(path.read_text())["series"][0]["raw"], dtype=float)
    found = change_points(y)
    assert found.rows.tolist() == [28]
    assert found.kind == ("level",)
