"""Lead times: outcomes by hand, calibration of alarms, nulls that hold, and what cannot be told."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from trajscope.detect.alarms import extremes, first_alarm, largest, persistent
from trajscope.errors import InputError, NotEnoughData
from trajscope.inference._lead_stats import area, kaplan_meier, roc, survival
from trajscope.inference.lead_time import _holm, lead_time


def cohort(n_healthy=40, n_events=10, length=400, onset=300, jump=8.0, ahead=40, seed=0, rho=0.0, **label):
    """Runs with noise, and events whose score rises `ahead` steps before the onset."""
    rng = np.random.default_rng(seed)
    scores, rows = {}, []
    for i in range(n_healthy + n_events):
        noise = rng.normal(size=length)
        for t in range(1, length):
            noise[t] = rho * noise[t - 1] + math.sqrt(1 - rho**2) * noise[t]
        event = i >= n_healthy
        if event:
            noise[onset - ahead :] += jump
        scores[f"r{i}"] = pd.DataFrame({"score": noise})
        split = "calibration" if i < n_healthy // 2 else "heldout"
        rows.append({"run": f"r{i}", "onset_step": onset if event else None, "split": split, **label})
    return scores, pd.DataFrame(rows)


def test_persistence_and_first_alarm():
    s = persistent([0, 5, 5, 5, np.nan, 5, 5, np.inf], 3)
    assert s.tolist() == [-np.inf, -np.inf, 0, 5, -np.inf, 5, 5, 5]
    assert first_alarm(range(8), s, 4).step == 3
    assert first_alarm(range(8), s, 4, start=4).step == 5
    assert first_alarm(range(8), s, 4, start=4, stop=5) is None
    assert largest(range(8), s, 0, 3) == 0
    assert largest(range(8), s, 20, 30) == -np.inf
    assert extremes(range(8), s, 2, 3, 3) == (0.0, 5.0)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, None])
def test_bad_persistence(bad):
    with pytest.raises(InputError, match="persistence"):
        persistent([1.0], bad)


def test_a_score_never_looks_ahead():
    rng = np.random.default_rng(0)
    x = rng.normal(size=50)
    whole = persistent(x, 3)
    for t in range(1, 50):
        assert persistent(x[:t], 3)[-1] == whole[t - 1]


@pytest.mark.parametrize(
    ("alarm_rows", "outcome", "lead"),
    [
        (slice(270, 400), "timely", 28.0),  # confirmed at 272
        (slice(297, 400), "timely", 1.0),  # exactly one stride ahead
        (slice(298, 400), "missed", math.nan),  # confirmed at the onset itself
        (slice(255, 400), "too early", 43.0),  # the horizon is 39.9
        (slice(150, 155), "too early", 148.0),
        (slice(0, 10), "missed", math.nan),  # inside the warm-up
        (slice(270, 272), "missed", math.nan),  # two rows are not confirmed
        (slice(0, 0), "missed", math.nan),
    ],
)
def test_outcomes_by_hand(alarm_rows, outcome, lead):
    scores, labels = cohort(n_events=1)
    values = np.zeros(400)
    values[alarm_rows] = 100
    scores["r40"] = pd.DataFrame({"score": values})
    found = lead_time(scores, labels, n_boot=50, n_null=19)
    row = found.runs[found.runs["run"] == "r40"].iloc[0]
    assert row["outcome"] == outcome
    assert row["lead"] == lead or (math.isnan(lead) and math.isnan(row["lead"]))


def test_alarms_before_an_injection_are_false():
    scores, labels = cohort(n_events=1, ahead=40)
    labels["injection_step"] = [None] * 40 + [280]
    found = lead_time(scores, labels, n_boot=50, n_null=19, horizon=100)
    assert found.runs.set_index("run").loc["r40", "outcome"] == "too early"


def test_misses_stay_in():
    scores, labels = cohort(n_events=10)
    for i in range(6):
        scores[f"r{40 + i}"] = pd.DataFrame({"score": np.zeros(400)})
    found = lead_time(scores, labels, n_boot=200, n_null=19)
    row = found.to_frame().loc["score"]
    assert (row["timely"], row["missed"], row["n_events"]) == (4, 6, 10)
    assert math.isnan(row["median_lead"])
    assert row["mean_lead"] == pytest.approx(0.4 * 38, abs=0.5)
    assert row["sensitivity"] == 0.4
    assert row["mean_lead_low"] < row["mean_lead"] < row["mean_lead_high"]


def test_the_rate_of_false_alarms_is_certified():
    """New healthy runs alarm at alpha at most, on autocorrelated scores."""
    false = total = 0
    for seed in range(25):
        scores, labels = cohort(n_healthy=79, n_events=1, length=200, onset=150, ahead=10, seed=seed, rho=0.95)
        row = lead_time(scores, labels, n_boot=10, n_null=9).to_frame().loc["score"]
        assert row["n_calibration"] == 39
        false += row["false_alarms"]
        total += row["n_healthy"]
    assert false <= binom.ppf(0.9999, total, 0.05) + 10  # runs of one cohort share a threshold
    assert false >= 5


def test_too_few_calibration_runs_are_said():
    scores, labels = cohort(n_healthy=30)
    found = lead_time(scores, labels, n_boot=10, n_null=9)
    assert found.to_frame().loc["score", "verdict"] == "not certifiable"
    assert "19 healthy calibration runs" in found.summary()
    assert set(found.runs["outcome"]) == {"not certifiable"}
    assert lead_time(scores, labels, alpha=0.1, n_boot=10, n_null=19).to_frame().loc["score", "verdict"] == "warns"


def test_strata_have_their_own_thresholds():
    one, la = cohort(seed=1, stratum="a")
    two, lb = cohort(seed=2, stratum="b")
    scores = {f"a{k}": v for k, v in one.items()} | {f"b{k}": v * 1000 for k, v in two.items()}
    labels = pd.concat([la.assign(run="a" + la["run"]), lb.assign(run="b" + lb["run"])], ignore_index=True)
    found = lead_time(scores, labels, n_boot=20, n_null=19)
    row = found.to_frame().loc["score"]
    assert row["sensitivity"] > 0.9
    assert math.isnan(row["threshold"])
    assert found.runs.groupby("stratum")["threshold"].nunique().tolist() == [1, 1]
    assert row["auroc"] > 0.95


def test_a_score_that_is_high_by_the_clock_does_not_pass():
    """The score rises in every run, events or not: neither shifts nor the runs that stayed healthy are fooled."""
    scores, labels = cohort(jump=0.0)
    for k in scores:
        scores[k] = scores[k] + np.linspace(0, 0.5, 400)[:, None]
    row = lead_time(scores, labels, n_boot=20, n_null=99).to_frame().loc["score"]
    assert row["verdict"] == "no better than chance"


def test_nulls_reject_rarely():
    """Scores that know nothing: the corrected p-value is at most 0.05 in about 5 % of cohorts, or fewer."""
    hits = 0
    for seed in range(60):
        scores, labels = cohort(n_healthy=40, n_events=12, jump=0.0, seed=100 + seed, rho=0.8, length=200, onset=150)
        hits += (
            lead_time(scores, labels, alpha=0.3, n_boot=5, n_null=59, rng=seed).to_frame().loc["score", "p_holm"]
            <= 0.05
        )
    assert hits <= binom.ppf(0.999, 60, 0.05)


def test_sides():
    scores, labels = cohort()
    low = {k: -v for k, v in scores.items()}
    both = {k: v if i % 2 else -v for i, (k, v) in enumerate(scores.items())}
    kwargs = {"n_boot": 20, "n_null": 19}
    assert lead_time(low, labels, **kwargs).to_frame().loc["score", "sensitivity"] == 0
    assert lead_time(low, labels, sides="low", **kwargs).to_frame().loc["score", "sensitivity"] > 0.9
    assert lead_time(both, labels, sides={"score": "both"}, **kwargs).to_frame().loc["score", "sensitivity"] > 0.8


def test_forms_of_scores_agree():
    scores, labels = cohort()
    long = pd.concat([v.assign(run=k, step=v.index) for k, v in scores.items()])
    series = {k: v["score"] for k, v in scores.items()}
    tables = [lead_time(s, labels, n_boot=20, n_null=19).to_frame() for s in (scores, long, series)]
    pd.testing.assert_frame_equal(tables[0], tables[1])
    pd.testing.assert_frame_equal(tables[0], tables[2])


def test_same_seed_same_result_and_another_one_differs():
    scores, labels = cohort(jump=3.0)
    a, b, c = (lead_time(scores, labels, n_boot=100, n_null=19, rng=r).to_frame() for r in (1, 1, 2))
    pd.testing.assert_frame_equal(a, b)
    assert a["mean_lead_low"].iloc[0] != c["mean_lead_low"].iloc[0]


def test_half_of_the_healthy_runs_calibrate_where_nothing_is_declared():
    scores, labels = cohort()
    found = lead_time(scores, labels.drop(columns="split"), n_boot=20, n_null=19)
    assert (found.n_calibration, found.n_healthy, found.n_events) == (20, 20, 10)


def test_runs_that_cannot_be_used_are_named():
    scores, labels = cohort()
    del scores["r3"]
    scores["r5"] = scores["r5"].iloc[::-1]
    scores["r6"] = scores["r6"].rename(columns={"score": "other"})
    labels["outcome"] = None
    labels.loc[7, "outcome"] = "not learned"
    labels.loc[8, "outcome"] = "irrecoverable"
    labels.loc[41, "onset_step"] = 20
    labels.loc[42, "outcome"] = "none"
    found = lead_time(scores, labels, n_boot=20, n_null=19)
    assert set(found.skipped) == {"r3", "r5", "r7", "r8", "r41", "r42"}
    table = found.to_frame()
    assert table.loc["score", "without_score"] == 1
    assert table.loc["other", "verdict"] == "not certifiable"
    assert "no scores" in found.skipped["r3"]
    assert "warm-up" in found.skipped["r41"]
    assert "contradicts" in found.skipped["r42"]


def test_paired_comparison():
    scores, labels = cohort(n_events=12)
    rng = np.random.default_rng(5)
    for k, v in scores.items():
        late = v["score"].copy()
        late.iloc[260:285] = rng.normal(size=25)  # the same warning, 25 steps later
        scores[k] = pd.DataFrame({"early": v["score"], "late": late})
    found = lead_time(scores, labels, n_boot=20, n_null=19)
    versus = found.compare("early", "late")
    assert versus.lead == pytest.approx(25, abs=1)
    assert versus.verdict == "leads"
    assert found.compare("late", "early").verdict == "trails"
    same = found.compare("early", "early")
    assert (same.lead, same.verdict) == (0.0, "cannot tell")
    assert "leads" in versus.summary()
    with pytest.raises(NotEnoughData, match="without the test"):
        found.best()
    labels.loc[45:, "split"] = "calibration"
    assert lead_time(scores, labels, n_boot=20, n_null=19).best() == "early"


def test_curves():
    levels, rate, hit = roc([(0.0, 3.0), (0.0, 1.0), (4.0, 5.0)], np.array([0.5, 2.0]))
    at = dict(zip(levels, zip(rate, hit, strict=True), strict=True))
    assert at[np.inf] == (0, 0)
    assert at[2.0] == (0, 1 / 3)
    assert at[0.0] == (1, 2 / 3)
    assert area(np.array([0.0, 0.0, 0.5, 1.0]), np.array([0.0, 0.4, 0.8, 1.0])) == pytest.approx(0.6)
    grid, share = survival(np.array([5.0, 10.0, np.nan, 5.0]))
    assert grid.tolist() == [0, 5, 10]
    assert share.tolist() == [0.75, 0.75, 0.25]
    time, left = kaplan_meier(np.array([1.0, 2.0, 2.0, 3.0]), np.array([True, True, False, False]))
    assert time.tolist() == [0, 1, 2]
    assert left == pytest.approx([1, 0.75, 0.5])


def test_auroc_of_a_perfect_and_of_a_useless_score():
    scores, labels = cohort(jump=20)
    perfect = lead_time(scores, labels, n_boot=20, n_null=19)
    assert perfect.to_frame().loc["score", "auroc"] > 0.99
    assert perfect.curves["risk_set"].query("ahead == 1")["auroc"].iloc[0] == 1.0
    useless, labels = cohort(jump=0, n_events=30, seed=3)
    found = lead_time(useless, labels, n_boot=20, n_null=19)
    assert 0.35 < found.to_frame().loc["score", "auroc"] < 0.65
    risk = found.curves["risk_set"]
    assert risk["auroc"].between(0.3, 0.7).all()


def test_holm():
    assert _holm(np.array([0.01, 0.04, np.nan, 0.03])) == pytest.approx([0.03, 0.06, np.nan, 0.06], nan_ok=True)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"alpha": 5}, "between 0 and 1"),
        ({"horizon": -1}, "horizon"),
        ({"horizon": "x"}, "horizon"),
        ({"min_lead": 50, "horizon": 10}, "beyond the horizon"),
        ({"sides": {"scroe": "low"}}, "Did you mean 'score'"),
        ({"sides": "up"}, "'high', 'low' or 'both'"),
        ({"persistence": 0}, "persistence"),
    ],
)
def test_bad_arguments(kwargs, message):
    scores, labels = cohort(n_healthy=4, n_events=1)
    with pytest.raises(InputError, match=message):
        lead_time(scores, labels, **kwargs)


@pytest.mark.parametrize("scores", [3, [1, 2], {"r0": 5}, pd.DataFrame({"x": [1]}), None])
def test_bad_scores(scores):
    with pytest.raises(InputError, match="scores"):
        lead_time(scores, cohort(n_healthy=2, n_events=0)[1])


def test_bad_labels():
    scores, labels = cohort(n_healthy=4, n_events=1)
    with pytest.raises(InputError, match="labels is a list"):
        lead_time(scores, [1])
    with pytest.raises(InputError, match="split 'train2'"):
        lead_time(scores, labels.assign(split="train2"))
    with pytest.raises(NotEnoughData, match="no scores"):
        lead_time({}, labels)


def test_summary_json_and_plot():
    import json

    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    scores, labels = cohort()
    found = lead_time(scores, labels, n_boot=20, n_null=19)
    assert "10 events and 20 healthy runs" in found.summary()
    assert json.loads(json.dumps(found.to_dict()))["n_events"] == 10
    figure = found.plot()
    assert [a.get_xlabel() for a in figure.axes] == ["false alarms a healthy run", "lead (steps)"]
    plt.close(figure)
