"""`change_points` on what logs do to it: held and coarse channels, relaxations, resumes, extreme values; the scores."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import binom

from trajscope.detect.changepoints import change_points
from trajscope.detect.changepoints.contest import smooth_lead
from trajscope.detect.changepoints.inputs import Series
from trajscope.detect.changepoints.locate import locate_relaxation, profile, relaxation
from trajscope.detect.changepoints.prepare import held_rows, smear, tame
from trajscope.errors import InputError


def ar(n, phi, rng):
    return lfilter([1.0], [1.0, -phi], rng.standard_normal(n + 300))[300:] * np.sqrt(1 - phi**2)


NULLS = {
    "held for 10 rows": lambda rng: np.repeat(rng.standard_normal(80), 10),
    "held for 3 to 11 rows": lambda rng: np.repeat(rng.standard_normal(100), rng.integers(3, 12, 100)),
    "held and coarse": lambda rng: np.repeat(rng.binomial(20, 0.8, 80), 10),
    "zero in 70 %": lambda rng: rng.binomial(1, 0.3, 600) * np.abs(rng.standard_normal(600)),
    "counts and a huge one": lambda rng: np.where(rng.random(600) < 0.002, 1000, rng.poisson(1, 600)),
    "warm-up bump": lambda rng: 5 * np.exp(-0.5 * ((np.arange(400) / 400 - 0.15) / 0.1) ** 2) + ar(400, 0.5, rng),
}


@pytest.mark.parametrize("name", list(NULLS))
def test_what_logs_hold_is_no_change(name):
    hits = sum(len(change_points(NULLS[name](np.random.default_rng([6, r])))) > 0 for r in range(40))
    assert hits <= binom.ppf(0.999, 40, 0.05)


def test_held_values_are_judged_once_and_it_is_said():
    rng = np.random.default_rng(0)
    y = np.r_[rng.normal(size=60), rng.normal(size=60) + 5]
    found = change_points(np.repeat(y, 10))
    assert found.rows.tolist() == [600]
    assert "120 of 1200 rows" in found.not_tested[0]
    assert held_rows(y).size == 120
    assert held_rows(np.repeat([1.0, 2.0, 3.0], 40)).size == 120  # a schedule of three values is no hold


def test_a_schedule_and_a_smooth_channel_are_not_smeared():
    steps = np.repeat([0.1, 0.01, 0.001], 100)
    assert smear(steps) is steps
    smooth = np.random.default_rng(0).normal(size=300)
    assert smear(smooth) is smooth
    coarse = np.random.default_rng(0).binomial(1, 0.4, 500).astype(float)
    spread = smear(coarse)
    assert np.max(np.abs(spread - coarse)) <= 0.5
    np.testing.assert_allclose(smear(7 * coarse + 3) - (7 * coarse + 3), 7 * (spread - coarse), atol=1e-12)
    assert np.corrcoef(spread - coarse, smear(1 - coarse) - (1 - coarse))[0, 1] < 0.2


@pytest.mark.parametrize("tau", [3.0, 8.0])
def test_relaxation_against_least_squares(tau):
    rng = np.random.default_rng(1)
    y = rng.normal(size=90)
    t = np.arange(90.0)
    gain, size = relaxation(y, tau)
    line = np.column_stack([np.ones(90), t])
    base = np.sum((y - line @ np.linalg.lstsq(line, y, rcond=None)[0]) ** 2)
    for at in (5, 30, 48):
        x = np.column_stack([line, np.where(t >= at, 1 - np.exp(-(t - at) / tau), 0.0)])
        fit = np.linalg.lstsq(x, y, rcond=None)[0]
        np.testing.assert_allclose(gain[at], base - np.sum((y - x @ fit) ** 2), rtol=1e-8)
        np.testing.assert_allclose(size[at], fit[2], rtol=1e-8)
    assert gain[-10:].max() == 0  # not over by the end: as good as a kink


def test_a_relaxation_is_dated_at_its_start_and_leaves_no_further_change():
    starts, extra = [], 0
    t = np.arange(1000)
    for seed in range(15):
        y = -8 * (t >= 500) * (1 - np.exp(-(t - 500) / 40)) + ar(1000, 0.5, np.random.default_rng(seed))
        found = change_points(y)
        if len(found):
            starts.append(int(found.rows[np.argmin(np.abs(found.rows - 500))]))
            extra += len(found) - 1
    assert len(starts) >= 11
    assert abs(np.median(starts) - 500) <= 12  # a step would be set some 25 rows later
    assert extra <= 3
    clear = -8 * (t >= 500) * (1 - np.exp(-(t - 500) / 40)) + 0.3 * np.random.default_rng(0).normal(size=1000)
    place, tau = locate_relaxation(clear, 200, 900, 0.09, 600)
    assert abs(place.row - 500) <= 8
    assert 25 < tau < 65  # the grid has a ratio of 1.6


def test_the_contest_knows_a_step_from_a_sigmoid():
    rng = np.random.default_rng(2)
    t = np.arange(400.0)
    step, slow = 6.0 * (t >= 200), 3 * np.tanh((t - 200) / 40)
    for curve, smooth in ((step, False), (slow, True)):
        y = curve + rng.normal(size=400)
        assert (smooth_lead(y, float(profile(y, "level")[0].max()), 1.0) > 3) == smooth


def test_resumes_explain_what_lies_at_them():
    y = np.random.default_rng(3).normal(size=400)
    y[150:] += 5
    y[300:] -= 6
    segment = np.repeat([0, 1], [150, 250])
    run = SimpleNamespace(values=y[:, None], steps=np.arange(400) * 5, names=("loss",), segment=segment)
    found = change_points(run)
    assert found.rows.tolist() == [150, 300]
    assert found.explained == ("resume at step 750", None)
    named = change_points(run, known_events=[(750, "new data")])
    assert named.explained[0] == "new data"


def test_a_resumed_run_that_counts_anew_is_searched_on_its_rows():
    y = np.random.default_rng(3).normal(size=400)
    y[250:] += 5
    steps = np.r_[np.arange(200), np.arange(100, 300)]
    run = SimpleNamespace(values=y[:, None], steps=steps, names=("loss",), segment=np.repeat([0, 1], 200))
    found = change_points(run)
    assert found.rows.tolist() == [250]
    assert found.steps.tolist() == [150]


@pytest.mark.parametrize("scale", [1e150, 1.5e307, 1e-200, 1e-310])
def test_extreme_values_change_nothing(scale):
    y = np.random.default_rng(4).normal(size=300)
    y[150:] += 5
    found = change_points(y * scale)
    assert found.rows.tolist() == [150]
    np.testing.assert_allclose(found.sizes[0] / scale, change_points(y).sizes[0], rtol=1e-6)
    np.testing.assert_allclose(found.segments[1].level / scale, change_points(y).segments[1].level, rtol=1e-6)


def test_one_absurd_value_hides_nothing():
    y = np.random.default_rng(4).normal(size=300)
    y[150:] += 5
    y[60] = 1e200
    found = change_points(y)
    assert found.rows.tolist() == [150]
    assert 60 in found.spikes["x"].tolist()
    plain = Series(y[:50, None], np.arange(50), ("x",))
    assert tame(plain)[0] is plain


def test_a_masked_array_is_missing_where_masked():
    y = np.random.default_rng(4).normal(size=300)
    y[150:] += 5
    holes = np.ma.masked_array(y.copy(), mask=np.arange(300) % 7 == 0)
    holes.data[::7] = 1e9
    np.testing.assert_allclose(change_points(holes).rows, [150], atol=1)


def test_no_p_value_is_printed_as_zero():
    y = np.random.default_rng(4).normal(size=300)
    y[150:] += 500
    found = change_points(y)
    assert found.p_values[0] > 0
    assert "p < 1e-12" in found.summary()
    assert "p = 0" not in found.summary()


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": "a"}, {"alpha": None}, {"alpha": True}, {"alpha": [0.05]}, {"alpha": np.nan}, {"rng": "x"},
        {"rng": -1}, {"rng": 1.5}, {"method": "pelt", "penalty": "a"}, {"method": "pelt", "penalty": np.nan},
    ],
)  # fmt: skip
def test_options_that_are_no_numbers_are_one_error(options):
    with pytest.raises(InputError, match=f"{list(options)[-1]} is .*expected"):
        change_points(np.arange(30.0), **options)


def test_a_run_is_refused_with_what_to_do():
    with pytest.raises(InputError, match=r"pass align\(run\) or one of run.channels"):
        change_points(SimpleNamespace(channels={"loss": 1}))


KNOWN = {  # rows and kinds by seed; what makes the search quicker must not move them
    0: ([1195], ["variance"]),
    1: ([360, 694, 1199], ["level", "slope", "variance"]),
    2: ([414, 937, 1205], ["level", "level", "variance"]),
    3: ([1205], ["variance"]),
    4: ([603, 1197], ["level", "variance"]),
    5: ([1004, 1201], ["level", "variance"]),
    6: ([1202], ["variance"]),
    7: ([945, 1199], ["level", "variance"]),
}


def test_results_do_not_move():
    for seed, (rows, kinds) in KNOWN.items():
        found = change_points(mixed(seed))
        assert (found.rows.tolist(), list(found.kind)) == (rows, kinds)


def mixed(seed):
    rng = np.random.default_rng([9, seed])
    t = np.arange(1500)
    y = ar(1500, 0.5, rng) * np.where(t >= 1200, 2.5, 1.0) + 20 * (1 + t / 30) ** -0.5
    for at in rng.integers(300, 1100, seed % 3):
        y[at:] += rng.choice([-1, 1]) * rng.uniform(2, 5)
    if seed % 2:
        y += 0.02 * np.maximum(t - 700, 0)
    return y


def test_published_series_reach_the_scores_asked(shared_data):
    """TCPD (van den Burg & Williams 2020): above the best defaults there are, by the proof's own scores."""
    root = shared_data / "changepoints"
    if not (root / "annotations.json").exists():
        pytest.skip("the series are not on this machine")
    path = Path(__file__).parents[1] / "proofs" / "changepoints.py"
    spec = importlib.util.spec_from_file_location("changepoints_proof", path)
    proof = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(proof)
    f1, cover = np.mean(list(proof.tcpd_scores(root).values()), axis=0)
    assert f1 > 0.673
    assert cover > 0.614
    f1, cover = np.mean(list(proof.tcpd_scores(root, sensitivity="annotation").values()), axis=0)
    assert f1 > 0.80
    assert cover > 0.72
