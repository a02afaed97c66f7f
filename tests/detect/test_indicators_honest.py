"""Trends never without p-values, and the p-values right under the null; the score on the scenario grid, the canary,
chick hearts. The same at size: tests/proofs/early_warning.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, kendalltau

import trajscope as ts
from trajscope.detect.indicators.slowing import mean_shift
from trajscope.detect.indicators.trend import kendall, noise_like, slow_course
from trajscope.errors import InputError, NotEnoughData
from trajscope.simulate import ar, linear_map

_PATH = Path(__file__).resolve().parents[1] / "proofs" / "early_warning.py"
_SPEC = importlib.util.spec_from_file_location("proof_early_warning", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
proof = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(proof)


# ---- trends


def test_kendall_is_that_of_scipy():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(6, 60)).round(1)  # with ties
    y[3, 10:20] = np.nan
    for row, tau in zip(y, kendall(y), strict=True):
        good = ~np.isnan(row)
        assert tau == pytest.approx(kendalltau(np.flatnonzero(good), row[good]).statistic, abs=1e-12)


def test_a_real_trend_is_found_and_the_direction_matters():
    x = linear_map(800, np.linspace(0.2, 0.97, 800), rng=1)
    found = ts.early_warning(x, window=200, indicators=["lag1", "return_rate"])
    table = found.trend(surrogates=("ar1", "iaaft", "block"), rng=1).to_frame()
    assert list(table.columns) == ["tau", "p_ar1", "p_iaaft", "p_block", "p", "n_values", "n_points"]
    assert table.loc["lag1", "tau"] > 0.6
    assert table.loc["lag1", "p"] == table.loc["lag1", ["p_ar1", "p_iaaft", "p_block"]].max() <= 0.05
    assert found.trend("lag1", side="up", rng=1).to_frame().loc["lag1", "p"] <= 0.025
    assert found.trend("lag1", side="down", rng=1).to_frame().loc["lag1", "p"] >= 0.9
    assert "lag1" in found.trend(rng=1).summary()


def test_tau_of_all_rows_in_the_declared_range():
    x = ar(400, 0.5, rng=2)[:, 0]
    steps = np.arange(400) * 10
    found = ts.early_warning(x, steps, window=100, indicators="variance")
    row = found.trend(start=1500, stop=3000, n=19).to_frame().loc["variance"]
    values = found.to_frame()["variance"].loc[1500:3000]
    assert row["n_values"] == len(values) == 151
    assert row["tau"] == pytest.approx(kendalltau(np.arange(151), values).statistic)


def test_rows_after_the_range_do_not_touch_the_test():
    x = ar(400, 0.5, rng=3)[:, 0]
    spoiled = x.copy()
    spoiled[301:] = 1e6
    tables = [
        ts.early_warning(v, window=100, indicators=["lag1", "variance"]).trend(stop=300, n=39, rng=1).to_frame()
        for v in (x, spoiled)
    ]
    assert tables[0].equals(tables[1])


def test_the_same_seed_gives_the_same_p_values_and_gaps_are_kept():
    x = ar(400, 0.5, 2, rng=4)
    x[100:110, 0] = np.nan
    found = ts.early_warning(x, window=100, indicators=["lag1", "variance", "eig_cov"])
    first = found.trend(rng=5, n=39).to_frame()
    assert first.equals(found.trend(rng=5, n=39).to_frame())
    assert first.index.tolist() == [("lag1", "x0"), ("variance", "x0"), ("lag1", "x1"), ("variance", "x1")]
    assert not first.equals(found.trend(rng=6, n=39).to_frame())


@pytest.mark.parametrize("rho", [0.3, 0.9])
def test_surrogates_are_like_the_noise(rho):
    r = ar(4000, rho, rng=6)[:, 0]
    for kind, tolerance in (("ar1", 0.02), ("iaaft", 0.02), ("block", 0.08)):
        made = noise_like(r, kind, 20, np.random.default_rng(0))
        lag1 = np.mean([np.corrcoef(m[1:], m[:-1])[0, 1] for m in made])
        assert lag1 == pytest.approx(rho, abs=tolerance), kind
        assert made.std() == pytest.approx(1.0, rel=0.15)


def test_the_slow_course_follows_what_training_draws():
    t = np.arange(1000.0)
    for curve in ((1 + t) ** -0.5, np.exp(-5 * t / 1000), 0.5 + 0.5 * np.cos(np.pi * t / 1000)):
        assert np.sqrt(np.mean((curve - slow_course(curve)) ** 2)) < 0.002 * np.ptp(curve)


@pytest.mark.parametrize("label", ["AR(1) 0.9", "power law -0.5"])
def test_trend_tests_hold_their_level(label):
    reps, hits = 100, 0
    for k in range(reps):
        rng = np.random.default_rng([7, k])
        found = ts.early_warning(proof.TRENDLESS[label](400, rng), window=100, indicators="lag1")
        hits += found.trend(n=19, rng=rng).to_frame().loc["lag1", "p"] <= 0.05
    assert hits <= binom.ppf(0.999, reps, 0.05)


def test_tau_alone_would_be_wrong():
    # what the p-value is for: half of all stationary runs have |tau| > 0.25
    taus = []
    for k in range(40):
        found = ts.early_warning(ar(400, 0.5, rng=k)[:, 0], window=150, indicators="lag1").to_frame()["lag1"].dropna()
        taus.append(kendalltau(np.arange(len(found)), found).pvalue)
    assert np.mean(np.array(taus) < 0.05) > 0.6


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"surrogates": "ar"}, InputError, "surrogates holds 'ar'"),
        ({"side": "left"}, InputError, "side is 'left'"),
        ({"n": 10}, NotEnoughData, "19 of one"),
        ({"indicators": "variance"}, InputError, "no indicator 'variance'"),
        ({"points": 3}, InputError, "10 or more"),
    ],
)
def test_bad_questions_are_refused(options, error, match):
    found = ts.early_warning(ar(300, 0.5, rng=0)[:, 0], window=50, indicators="lag1")
    with pytest.raises(error, match=match):
        found.trend(**options)


def test_too_short_for_a_trend_has_no_p_value():
    table = ts.early_warning(ar(55, 0.5, rng=0)[:, 0], window=50, indicators="lag1").trend(n=19)
    assert table.to_frame().loc["lag1", "p"] != table.to_frame().loc["lag1", "p"]
    assert "Cannot tell" in table.summary()


# ---- the score


def test_the_jump_guard_is_the_likelihood_ratio_of_the_best_step():
    rng = np.random.default_rng(8)
    z = rng.normal(size=60)
    z[40:] += 1.5
    y, past = z[2:], np.stack([np.ones(58), z[1:-1], z[:-2]], axis=1)

    def rss(design):
        return float(((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2).sum())

    steps = [np.column_stack([past, np.arange(58) >= s]) for s in range(1, 58)]
    expected = 58 * np.log(rss(past) / min(rss(s) for s in steps))
    found, place = mean_shift(z[None], 60, np.array([59]))
    assert found[0, -1] == pytest.approx(expected, rel=1e-9)
    assert place[0, -1] == 3 + np.argmin([rss(s) for s in steps])


def test_a_window_with_a_jump_is_no_evidence_and_joins_no_reference():
    x = linear_map(900, 0.5, rng=9)
    x[500:] += 6
    found = ts.early_warning(x, window=100, indicators=["slowing", "mean_shift"]).to_frame()
    assert found["slowing"].iloc[520:590].isna().all()
    assert found["mean_shift"].iloc[520:540].min() > 24
    after = found["slowing"].iloc[720:]
    assert after.notna().mean() > 0.9
    assert after.max() < 2.5


def test_the_score_on_the_scenario_grid():
    reps = 16
    score = {}
    for number, (name, make) in enumerate({**proof.NULLS, **proof.EVENTS}.items()):
        series = [make(np.random.default_rng([99, number, k])) for k in range(reps)]
        frames = [ts.early_warning(x, window=proof.WINDOW, indicators="slowing").to_frame() for x in series]
        score[name] = np.nan_to_num([f["slowing"].iloc[-1] for f in frames], nan=-np.inf)
    level = 1.5  # of tests/proofs/early_warning.py: at most 8 % of each null
    called = {name: np.mean(v > level) for name, v in score.items()}
    assert max(called[name] for name in proof.NULLS) <= binom.ppf(0.999, reps, 0.08) / reps
    for name, share in proof.ASKED.items():
        assert called[name] >= binom.ppf(0.001, reps, share) / reps


def test_the_canary():
    honest, leaky = proof.canary_scores(200)
    for name, scores in honest.items():
        assert 0.42 <= proof.auroc(*scores) <= 0.58, name
    for name, scores in leaky.items():
        assert proof.auroc(*scores) > 0.7, name


def test_chick_hearts(shared_data):
    folder = shared_data / "earlywarning" / "chick_heart"
    if not folder.is_dir():
        pytest.skip("the records are not on this machine")
    for window in (30, 40, 50, 75, 90):
        flips, quiet = proof.heart_scores(folder, window)
        assert proof.auroc(flips["dev_modulus"], quiet["dev_modulus"]) >= 0.94


@pytest.mark.parametrize(("file", "indicator"), [("circulation.csv", "variance"), ("circulation.csv", "lag1")])
def test_a_known_transition_has_a_trend(shared_data, file, indicator):
    import pandas as pd

    path = shared_data / "earlywarning" / "earlywarnings" / file
    if not path.is_file():
        pytest.skip("the record is not on this machine")
    x = pd.read_csv(path)["x"].to_numpy()
    found = ts.early_warning(x, window=x.size // 2, indicators=indicator, detrend="gaussian")
    row = found.trend(side="up", rng=0).to_frame().loc[indicator]
    assert row["tau"] > 0.7
    assert row["p"] <= 0.05
