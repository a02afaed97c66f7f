"""Responses to perturbations: closed forms, exact tests by enumeration, coverage, bad input, the study."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, f_oneway

import trajscope as ts
from trajscope.errors import InputError, NotEnoughData
from trajscope.history.run import Run, RunData, named_channel
from trajscope.inference._response_curve import baseline_noise, describe, exponential, forecast
from trajscope.inference._response_groups import (
    collapse_threshold,
    dispersion_ratio,
    mean_over_seeds,
    ordering_test,
    variance_ratio,
)
from trajscope.inference.studies.response import study

N, AT = 600, 300


def run(name: str, seed: int, hurt: float = 0.0, half: float = 20.0, shift: float = 0.0, **config: object) -> Run:
    """A loss, a gradient norm and an accuracy with a known response at AT; noise of the loss is 0.05."""
    rng, t = np.random.default_rng(seed), np.arange(float(N))
    since = np.maximum(t - AT, 0)
    answer = (t >= AT) * (hurt * 0.5 ** (since / half) + shift)
    loss = 2 + 0.05 * rng.normal(size=N) + answer
    norm = np.exp(0.1 * rng.normal(size=N)) * (1 + answer)
    accuracy = 0.9 + 0.005 * rng.normal(size=N) - 0.4 * np.minimum(answer, 2) / 2 - 0.6 * np.exp(-t / 30)
    update = np.exp(0.1 * rng.normal(size=N)) * (1 + answer)
    named = {"loss": loss, "grad_norm": norm, "update_norm": update, "val/accuracy": accuracy}
    parts = {n: named_channel(n, t, v) for n, v in named.items()}
    return Run(name, RunData(parts, config={"seed": seed, **config}))


def test_exponential_is_found_again() -> None:
    t = np.arange(0, 400, 2.0)
    for half in (3, 30, 150):
        y = 1.5 - 4 * 0.5 ** (t / half)
        c, a, found, p = exponential(t, y)
        assert c == pytest.approx(1.5, abs=0.02)
        assert a == pytest.approx(-4, rel=0.01)
        assert found == pytest.approx(half, rel=0.01)
        assert p < 0.01
    assert exponential(t, np.random.default_rng(0).normal(size=t.size))[3] > 0.01


def test_shape_of_known_responses() -> None:
    t = np.arange(300.0)
    rise = np.minimum(t / 10, 1)
    relax = describe(t, 8 * np.where(t < 10, rise, 0.5 ** ((t - 10) / 25)))
    assert relax.peak == pytest.approx(8, rel=0.02)
    assert relax.time_to_peak == 10
    assert relax.half_life == pytest.approx(25, rel=0.02)
    assert abs(relax.shift) < 0.02
    assert relax.area == pytest.approx(8 * (5 + 25 / math.log(2)), rel=0.03)
    stays = describe(t, -3 * rise)
    assert (stays.peak, stays.shift) == (pytest.approx(-3, rel=0.02), -3.0)
    assert math.isnan(stays.half_life)
    assert stays.time_to_peak == pytest.approx(9, abs=1)
    nothing = describe(t, np.zeros(300))
    assert (nothing.peak, nothing.shift, nothing.area) == (0, 0, 0)
    assert math.isnan(describe([], []).peak)


def test_noise_and_forecast_follow_a_line() -> None:
    rng, t = np.random.default_rng(1), np.arange(200.0)
    y = 5 - 0.01 * t + 0.2 * rng.normal(size=200)
    y[50] = 40  # one spike moves neither
    assert baseline_noise(t, y, 200) == pytest.approx(0.2, rel=0.25)
    assert forecast(t, y, 200, [200])[0] == pytest.approx(3, abs=0.1)
    assert forecast(t, y, 200, [1e6])[0] > 5 - 0.01 * 260  # a line is not drawn on for ever
    assert np.isnan(forecast(t, y, 5, [6])).all()
    assert math.isnan(baseline_noise(t, y, 5))


def test_ordering_is_exact_by_enumeration() -> None:
    rows = [("r", 1.0, 2.0, 3.0)] * 4 + [("r", 3.0, 2.0, 1.0)] + [("r", 5.0, 5.0, 9.0)]
    found = ordering_test(rows, 1)
    chances = []
    for _, *times in rows:
        chances.append(np.mean([a < b + 1 and b < c + 1 for a, b, c in itertools.permutations(times)]))
    total = 0.0
    for outcome in itertools.product((0, 1), repeat=len(rows)):
        if sum(outcome) >= found.held:
            total += math.prod(p if o else 1 - p for o, p in zip(outcome, chances, strict=True))
    assert found.held == 5
    assert found.p_value == pytest.approx(total)
    assert found.expected == pytest.approx(np.mean(chances))
    assert ordering_test([("r", math.nan, 1, 2)], 1).reason.startswith("cannot tell")


def test_level_of_the_order_under_exchangeable_times() -> None:
    rng = np.random.default_rng(2)
    rejected = sum(
        ordering_test([("r", *rng.permutation(100)[:3].astype(float)) for _ in range(12)], 1).p_value <= 0.05
        for _ in range(1000)
    )
    assert rejected <= binom.ppf(0.999, 1000, 0.05)


def test_variance_ratio_is_that_of_anova() -> None:
    rng = np.random.default_rng(3)
    groups = [rng.normal(m, 1, n) for m, n in ((0, 5), (1, 8), (0.5, 6))]
    labels = np.repeat([0, 1, 2], [5, 8, 6])
    assert variance_ratio(np.concatenate(groups), labels) == pytest.approx(f_oneway(*groups).statistic)
    assert math.isnan(variance_ratio([1.0, 2.0], [0, 1]))


def test_dispersion_tells_common_from_various() -> None:
    rng = np.random.default_rng(4)
    conditions = [f"c{k}" for k in range(12) for _ in range(6)]
    alike = rng.normal(size=72)
    various = alike + np.repeat(rng.normal(0, 10, 12), 6)
    found = dispersion_ratio(alike, various, conditions, rng)
    assert found.low > 1
    assert found.inst_low > 1
    few = dispersion_ratio(alike[:12], various[:12], conditions[:12], rng)
    assert few.reason.startswith("cannot tell: 2 conditions")


def test_threshold_is_where_half_collapse() -> None:
    levels = np.repeat([1, 10, 100], 10)
    hit = np.r_[np.zeros(10), [1] * 3 + [0] * 7, np.ones(10)].astype(bool)
    found = collapse_threshold(levels, hit, kind="lr")
    assert (found.verdict, found.threshold, found.below) == ("bracketed", 100, 10)
    assert (found.low, found.high) == (10, 100)  # 3 of 10: half is not excluded; 10 of 10: it is
    assert collapse_threshold(levels, np.ones(30, bool), kind="lr").verdict == "not bracketed"
    assert collapse_threshold(levels, np.zeros(30, bool), kind="lr").verdict == "not bracketed"


@pytest.mark.parametrize("n_seeds", [5, 10, 40])
def test_intervals_over_seeds_cover(n_seeds: int) -> None:
    rng = np.random.default_rng(n_seeds)
    hits = 0
    for _ in range(400):
        found = mean_over_seeds(rng.normal(3, 1, n_seeds), range(n_seeds), rng, n_draws=500)
        hits += found.low <= 3 <= found.high
    assert binom.ppf(0.001, 400, 0.935) <= hits <= binom.ppf(0.999, 400, 0.965)
    assert mean_over_seeds([1.0, 2.0], [0, 1], rng).method == "none"


def test_known_response_is_measured() -> None:
    hurt = [run(f"h{s}", s, hurt=2.0, shift=0.3, perturbation="lr", severity=1) for s in range(5)]
    calm = [run(f"c{s}", s + 50) for s in range(5)]
    found = ts.response(hurt, at=AT, control=calm)
    frame = found.to_frame().set_index(["channel", "statistic"])
    noise = np.mean([r.noise for r in found.rows if r.channel == "loss"])
    peak, half, shift = (frame.loc[("loss", k)] for k in ("peak", "half_life", "shift"))
    assert noise == pytest.approx(0.05 / 2, rel=0.15)  # a loss is measured on its logarithm
    assert peak["value"] == pytest.approx(math.log(4.3 / 2) / noise, rel=0.1)
    assert shift["value"] == pytest.approx(math.log(2.3 / 2) / noise, rel=0.2)
    assert 15 < half.low < half["value"] < half.high < 35  # of the logarithm: not quite an exponential
    assert set(found.to_frame().condition) == {"lr 1"}
    assert all(r.reference == "control" for r in found.rows)
    assert "5 runs in 1 conditions" in found.summary()
    assert "share nothing that chance would not give" in found.recovery.reason
    assert found.to_dict()["provenance"]["parameters"]["level"] == 0.95
    again = ts.response(hurt, at=AT, control=calm)
    assert again.to_dict() == found.to_dict()
    ax = found.plot(channel="loss")
    assert "baseline sd" in ax.get_ylabel()


def test_recovery_counts_performance_and_latent_distance() -> None:
    def linked(name: str, seed: int, hurt: float, half: float) -> Run:
        """Three channels that move together, and the accuracy of `run`."""
        plain, common = run(name, seed, hurt=hurt, half=half), np.random.default_rng(seed + 500).normal(size=N)
        t = np.arange(float(N))
        answer = 6 * hurt * (t >= AT) * 0.5 ** (np.maximum(t - AT, 0) / half)
        parts = dict(plain.channels)
        for k, n in enumerate(("grad_norm", "update_norm", "loss")):
            noise = np.random.default_rng([seed, k]).normal(size=N)
            parts[n] = named_channel(n, t, np.exp(0.1 * (common + 0.3 * noise + answer)))
        return plain.replace(channels=parts)

    calm = [linked(f"c{s}", s, 0, 1) for s in range(6)]
    back = [linked(f"b{s}", s + 20, 2, 5) for s in range(3)]
    lost = [linked(f"l{s}", s + 40, 2, 1e6) for s in range(3)]
    found = ts.response([*back, *lost, calm[0]], at=AT, control=[*calm[:3], *calm[3:6], calm[1]]).recovery
    assert (found.both, found.neither, found.untouched) == (3, 3, 1)
    assert found.controls_inside == 1.0


def test_a_value_without_bounds_is_held_and_said() -> None:
    wild = run("a", 1)
    values = wild.channels["update_norm"].values.copy()
    values[AT + 5] = 1e38
    parts = {**wild.channels, "val/accuracy": named_channel("val/accuracy", np.arange(float(N)), values)}
    found = ts.response(wild.replace(channels=parts), at=AT)
    row = next(r for r in found.rows if r.channel == "val/accuracy")
    assert "1 rows lie beyond 1e+09 sd" in row.note
    assert math.isfinite(row.area)


def test_without_control_it_is_a_forecast_and_says_so() -> None:
    found = ts.response(run("a", 1, hurt=1.0), at=AT)
    assert {r.reference for r in found.rows} == {"forecast"}
    assert "against a forecast" in found.summary()
    assert found.recovery.reason.startswith("no latent distance: 0 controls")


def test_a_run_without_performance_still_answers() -> None:
    plain = run("a", 1, hurt=1.0)
    found = ts.response(plain.replace(channels={"norm": plain.channels["grad_norm"]}), at=AT, channels=["norm"])
    assert found.rows[0].peak > 3
    assert found.ordering.unknown == 1
    with pytest.raises(InputError, match="no channel 'acc' to judge"):
        ts.response(plain, at=AT, performance="acc:max")


def test_rows_that_are_no_number_are_counted() -> None:
    bad = run("a", 1, hurt=1.0)
    values = bad.channels["loss"].values.copy()
    values[400:410] = np.nan
    parts = {**bad.channels, "loss": named_channel("loss", bad.channels["loss"].steps, values)}
    found = ts.response(bad.replace(channels=parts), at=AT)
    assert "10 rows are no number" in next(r.note for r in found.rows if r.channel == "loss")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": []}, "at least one Run"),
        ({"at": None}, "no injection step"),
        ({"at": [1, 2]}, "2 entries for 1 runs"),
        ({"channels": ["los"]}, "no channel 'los'"),
        ({"control": [3]}, "is a int"),
        ({"level": 1.5}, "out of range"),
        ({"latent": 3}, "fit_latent"),
    ],
)
def test_bad_arguments(change: dict, message: str) -> None:
    given = {"runs": [run("a", 1)], "at": AT, **change}
    with pytest.raises(InputError, match=message):
        ts.response(given.pop("runs"), **given)


def test_study_on_simulated_runs() -> None:
    runs, rows = {}, []
    for seed in range(6):
        runs[f"c{seed}"] = run(f"c{seed}", seed)
        for severity, size in ((1, 0.5), (2, 2.0)):
            for kind in ("lr", "noise"):
                name = f"{kind}{severity}-{seed}"
                runs[name] = run(name, seed, hurt=size)
                rows.append(
                    {"run": name, "stratum": "toy/a", "perturbation": kind, "severity": severity, "level": size,
                     "seed": seed, "twin": f"c{seed}", "injection_step": AT}
                )  # fmt: skip
    rows.append({**rows[0], "run": "absent"})
    labels = pd.DataFrame(rows)
    found = study(runs.__getitem__, labels)
    assert set(found.tables) == {"claims", "estimates", "ordering", "recovery", "thresholds", "dispersion"}
    assert set(found.tables["claims"]["verdict"]) <= {"supported", "contradicted", "inconclusive", "cannot tell"}
    assert "absent" in found.skipped
    assert found.claim.startswith("24 perturbed runs in 1 domains")
    with pytest.raises(NotEnoughData, match="nothing was perturbed"):
        study(runs.__getitem__, labels.assign(injection_step=math.nan))
