"""Dissociation: exact against scipy, calibrated on cohorts with a known association, and not fooled by two traps."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from trajscope.errors import InputError, NotEnoughData
from trajscope.history.run import Run, RunData, named_channel
from trajscope.inference._rank_bootstrap import Ranked, draw_weights, fisher_mean, left_out_weights
from trajscope.inference.dissociation import dissociation, measure_table


def cohort(rho, n=100, strata=1, seed=0, shift=0.0):
    """Bivariate normal runs with Spearman's correlation `rho` within each stratum; strata shifted in both."""
    rng = np.random.default_rng(seed)
    r = 2 * math.sin(math.pi * rho / 6)
    parts = []
    for k in range(strata):
        x = rng.normal(size=n)
        y = r * x + math.sqrt(1 - r * r) * rng.normal(size=n)
        parts.append(
            pd.DataFrame({"final": x + k * shift, "calm": y + k * shift, "stratum": f"s{k}", "seed": range(n)})
        )
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("ties", [False, True])
def test_weighted_ranks_are_those_of_the_sample_written_out(ties):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=40), rng.normal(size=40)
    if ties:
        x, y = np.round(x), np.round(y, 1)
    ranked = Ranked(x, y)
    for weights in draw_weights(np.arange(40), 60, rng):
        for w, ours in zip(weights.astype(int), ranked.spearman(weights), strict=True):
            theirs = stats.spearmanr(np.repeat(x, w), np.repeat(y, w)).statistic
            assert ours == pytest.approx(theirs, abs=1e-12)
    left = ranked.spearman(left_out_weights(np.arange(40)))
    assert left[7] == pytest.approx(stats.spearmanr(np.delete(x, 7), np.delete(y, 7)).statistic, abs=1e-12)


def test_clusters_are_drawn_whole():
    clusters = np.array([0, 0, 0, 1, 1, 2])
    w = np.concatenate(list(draw_weights(clusters, 500, np.random.default_rng(0))))
    assert np.all(w[:, 0] == w[:, 2])
    assert np.all(w[:, 3] == w[:, 4])
    assert np.all(w[:, 0] + w[:, 3] + w[:, 5] == 3)


def test_estimates_equal_scipy():
    table = cohort(0.3, n=50, strata=3, seed=2)
    found = dissociation(table, stability=["calm"], n_boot=200).to_frame().set_index("stratum")
    rhos, taus = [], []
    for s in ("s0", "s1", "s2"):
        part = table[table["stratum"] == s]
        rhos.append(stats.spearmanr(part["final"], part["calm"]).statistic)
        taus.append(stats.kendalltau(part["final"], part["calm"]).statistic)
        assert found.loc[s, "rho"] == pytest.approx(rhos[-1], abs=1e-12)
        assert found.loc[s, "tau"] == pytest.approx(taus[-1], abs=1e-12)
    assert found.loc["(within strata)", "rho"] == pytest.approx(np.tanh(np.mean(np.arctanh(rhos))), abs=1e-12)
    assert found.loc["(pooled)", "rho"] == pytest.approx(stats.spearmanr(table["final"], table["calm"]).statistic)
    assert found.loc["(without s1)", "rho"] == pytest.approx(np.tanh((np.arctanh(rhos[0]) + np.arctanh(rhos[2])) / 2))
    assert fisher_mean(np.array([[0.5, np.nan]]), np.array([10.0, 99.0]))[0] == pytest.approx(0.5)


def test_intervals_cover_and_verdicts_hold_their_rates():
    """A small version of the proof: 60 cohorts each."""
    covered = dissociated_04 = dissociated_0 = 0
    for seed in range(60):
        for rho in (0.0, 0.4):
            row = dissociation(cohort(rho, seed=seed), stability=["calm"], n_boot=600, rng=seed).to_frame().iloc[-1]
            covered += row["low"] <= rho <= row["high"]
            dissociated_04 += rho > 0 and row["verdict"] == "dissociated"
            dissociated_0 += rho == 0 and row["verdict"] == "dissociated"
    assert stats.binom.ppf(0.001, 120, 0.93) <= covered
    assert dissociated_04 <= stats.binom.ppf(0.999, 60, 0.05)
    assert dissociated_0 >= stats.binom.ppf(0.001, 60, 0.75)


def test_simpson_is_caught_by_name():
    found = dissociation(cohort(0.0, n=60, strata=4, shift=3.0), stability=["calm"], n_boot=500).to_frame()
    found = found.set_index("stratum")
    assert found.loc["(pooled)", "rho"] > 0.7
    assert "Simpson" in found.loc["(pooled)", "reason"]
    assert "Simpson" in found.loc["(within strata)", "reason"]
    assert found.loc["(within strata)", "verdict"] == "dissociated"
    honest = dissociation(cohort(0.6, n=60, strata=4), stability=["calm"], n_boot=500).to_frame()
    assert not honest["reason"].str.contains("Simpson").any()


def test_low_reliability_is_caught_by_name():
    table = cohort(0.0)
    row = dissociation(table, stability=["calm"], reliability={"calm": 0.3, "performance": 0.9}, n_boot=500).to_frame()
    row = row.set_index("stratum").loc["(within strata)"]
    assert row["verdict"] == "inconclusive"
    assert "low reliability of calm" in row["reason"]
    strong = dissociation(
        cohort(0.5), stability=["calm"], reliability={"calm": 0.49, "final": 1.0}, n_boot=500
    ).to_frame()
    strong = strong.set_index("stratum").loc["(within strata)"]
    assert strong["verdict"] == "associated"
    assert strong["disattenuated"] == pytest.approx(strong["rho"] / 0.7)


def test_survivorship_is_caught_by_name():
    """Among all runs the unstable ones fail; among the survivors nothing is left."""
    rng = np.random.default_rng(0)
    calm = rng.normal(size=120)
    collapsed = calm < -0.5
    final = np.where(collapsed, -5 + 0.3 * rng.normal(size=120), rng.normal(size=120))
    table = pd.DataFrame({"final": final, "calm": calm, "collapsed": collapsed})
    found = dissociation(table, stability=["calm"], n_boot=500).to_frame().set_index("stratum")
    assert found.loc["(within strata)", "verdict"] == "associated"
    assert "survivorship" in found.loc["(without failed runs)", "reason"]


def test_orientation():
    table = cohort(0.8).rename(columns={"calm": "spike_score"})
    as_unstable = dissociation(table, stability=["spike_score"], n_boot=200).to_frame().iloc[-1]
    as_stable = (
        dissociation(table, stability=["spike_score"], bigger_is_stable={"spike_score": True}, n_boot=200)
        .to_frame()
        .iloc[-1]
    )
    assert as_unstable["rho"] == pytest.approx(-as_stable["rho"])
    assert as_stable["rho"] > 0.6


def test_contrast_of_independent_scores_is_a_quarter():
    found = dissociation(cohort(0.0, n=400, strata=2, seed=3), stability=["calm"], n_boot=100)
    row = found.contrast.iloc[0]
    assert row["top_quartile"] == 200
    assert row["low"] <= 0.25 <= row["high"]
    perfect = cohort(0.0)
    perfect["calm"] = perfect["final"]
    assert dissociation(perfect, stability=["calm"], n_boot=100).contrast.iloc[0]["of_them_least_stable"] == 0


def test_the_seed_matters_and_is_kept():
    table = cohort(0.2, n=30)
    a, b, c = (dissociation(table, stability=["calm"], n_boot=300, rng=r).to_frame() for r in (1, 1, 2))
    pd.testing.assert_frame_equal(a, b)
    assert a["low"].iloc[-1] != c["low"].iloc[-1]


def test_runs_themselves():
    rng = np.random.default_rng(0)
    runs = {}
    for i in range(24):
        t = np.arange(300)
        rough = 0.02 + 0.2 * rng.random()
        y = 1 - np.exp(-t / 40) + rough * rng.normal(size=300)
        runs[f"task/r{i}"] = Run(f"r{i}", RunData({"val/accuracy": named_channel("val/accuracy", t, y)}))
    table, reliable, skipped = measure_table(runs)
    assert table["stratum"].unique().tolist() == ["task"]
    assert reliable["dispersion"] > 0.8  # roughness is a property of these runs
    assert not skipped
    found = dissociation(runs, n_boot=200)
    rows = found.to_frame().set_index(["measure", "stratum"])
    assert rows.loc[("dispersion", "(within strata)"), "reliability_stability"] == pytest.approx(reliable["dispersion"])
    assert "spike_score" in found.skipped  # no training loss


def test_nothing_varies():
    table = pd.DataFrame({"final": np.arange(20.0), "calm": np.ones(20)})
    assert dissociation(table, stability=["calm"], n_boot=100).to_frame().iloc[-1]["verdict"] == "cannot tell"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"stability": ["clam"]}, "Did you mean 'calm'"),
        ({"stability": "calm"}, "a sequence of columns"),
        ({"stability": ["calm"], "performance": "fnal"}, "Did you mean 'final'"),
        ({"stability": ["calm"], "strata": "task"}, "no column 'task'"),
        ({"stability": ["calm"], "strata": ["a"]}, "one a run"),
        ({"stability": ["calm"], "margin": 2}, "margin"),
        ({"stability": ["calm"], "n_boot": 5}, "n_boot"),
        ({"stability": ["seed"], "performance": "stratum"}, "is not a number"),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(InputError, match=message):
        dissociation(cohort(0), **kwargs)


def test_too_few_runs():
    with pytest.raises(NotEnoughData, match="8 runs"):
        dissociation(cohort(0, n=7), stability=["calm"])
