"""Comparison of groups: bands of unequal lengths, who ends better, keys of failed runs and what is confounded."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from trajscope.errors import InputError, NotEnoughData
from trajscope.history.run import Run, RunData, named_channel
from trajscope.inference._compare_bands import bands, median_ranks
from trajscope.inference._config_keys import flat_config, key_differences
from trajscope.inference.compare import compare


def made(name, y, *, every=1, config=None, channel="val/accuracy"):
    y = np.asarray(y, dtype=float)
    return Run(name, RunData({channel: named_channel(channel, np.arange(y.size) * every, y)}, config or {}))


def group(name, top, n=8, rows=80, seed=0, **more):
    rng = np.random.default_rng(seed)
    t = np.arange(rows)
    return [
        made(f"{name}{i}", (top + 0.1 * rng.normal()) * (1 - np.exp(-t / 15)) + 0.01 * rng.normal(size=rows), **more)
        for i in range(n)
    ]


@pytest.mark.parametrize("n", [3, 6, 9, 12, 20, 41])
def test_interval_of_the_median_covers_what_it_says(n):
    k, covers = median_ranks(n, 0.95)
    x = np.sort(np.random.default_rng(n).normal(size=(4000, n)), axis=1)
    hits = int(np.sum((x[:, k - 1] <= 0) & (x[:, n - k] >= 0)))
    assert stats.binom.ppf(0.0005, 4000, covers) <= hits <= stats.binom.ppf(0.9995, 4000, covers)
    assert covers >= 0.95 or n < 6
    if n >= 6 and k < n // 2:  # the next pair would not do
        assert 1 - 2 * stats.binom.cdf(k, n, 0.5) < 0.95


def test_bands_neither_prolong_nor_cut():
    runs = [made("a", np.arange(10.0)), made("b", np.arange(20.0) + 1), made("c", np.arange(20.0) + 2)]
    table = bands({"g": runs}, "val/accuracy", 0.95).set_index("step")
    assert table.loc[9.0, ["n", "ended", "median"]].tolist() == [3, 0, 10]
    assert table.loc[10.0, ["n", "ended", "median"]].tolist() == [2, 1, 11.5]
    assert table.index[-1] == 19
    assert table.loc[9.0, ["low", "high", "covers"]].tolist() == [9, 11, 0.75]


def test_bands_of_different_strides_hold_the_last_value_and_survive_infinity():
    runs = [made("a", [0, 1, 2], every=10), made("b", [0, np.inf, np.inf], every=10), made("c", np.arange(21.0))]
    table = bands({"g": runs}, "val/accuracy", 0.95).set_index("step")
    assert table.loc[15.0, "median"] == 15
    assert table.loc[15.0, "high"] == np.inf
    assert table.loc[5.0, "median"] == 0


def test_a_better_group_is_named_and_equal_ones_are_not():
    found = compare({"good": group("g", 0.9), "bad": group("b", 0.5, seed=1)}, n_boot=300, n_null=999)
    row = found.to_frame().iloc[0]
    assert (row["verdict"], row["probability"]) == ("good", 1.0)
    assert row["iqm_first"] > row["iqm_second"]
    assert len(found.to_frame()) == 1  # equal lengths: one point of comparison
    same = compare({"a": group("a", 0.7), "b": group("b", 0.7, seed=2)}, n_boot=300, n_null=999)
    assert same.to_frame()["verdict"].tolist() == ["cannot tell"]


def test_direction_of_losses():
    low = group("l", 0.2, channel="val/loss")
    high = group("h", 0.9, channel="val/loss", seed=1)
    row = compare({"low": low, "high": high}, n_boot=300, n_null=999).to_frame().iloc[0]
    assert row["verdict"] == "low"
    assert row["iqm_first"] < row["iqm_second"]


def test_more_training_is_not_mistaken_for_a_better_method():
    """Same process, one group trained for six times as long: better at its own end, not at the common step."""
    long, short = group("l", 0.9, rows=90), group("s", 0.9, rows=15, seed=3)
    table = compare({"long": long, "short": short}, n_boot=300, n_null=999).to_frame().set_index("at")
    assert table.loc["own end", "verdict"] == "long"
    assert table.loc["last common step", "verdict"] == "cannot tell"
    assert table.loc["last common step", "step"] == 14


def test_a_run_that_ends_non_finite_is_worst_and_stays_in():
    bad = [made(f"b{i}", np.r_[np.ones(60), [np.nan] * 20]) for i in range(8)]
    found = compare({"good": group("g", 0.5), "bad": bad}, n_boot=300, n_null=999)
    assert found.to_frame().iloc[0]["probability"] == 1.0
    assert found.groups_frame()["failed"].tolist() == [0, 8]
    assert found.to_frame().iloc[0]["iqm_second"] == -np.inf


def test_null_of_improvement():
    hits = 0
    for seed in range(100):
        a, b = group("a", 0.7, n=6, rows=40, seed=1000 + seed), group("b", 0.7, n=6, rows=40, seed=5000 + seed)
        hits += compare({"a": a, "b": b}, n_boot=100, n_null=199, rng=seed).to_frame().iloc[0]["p"] <= 0.05
    assert hits <= stats.binom.ppf(0.999, 100, 0.05)


def test_tasks_are_compared_within_themselves():
    """The better group has only hard tasks: pooled it looks worse (Simpson)."""
    a = group("ah", 0.4, config={"task": "hard"}) + group("ae", 0.9, n=4, config={"task": "easy"}, seed=1)
    b = group("bh", 0.1, n=4, config={"task": "hard"}, seed=2) + group("be", 0.6, config={"task": "easy"}, seed=3)
    within = compare({"a": a, "b": b}, strata="task", n_boot=300, n_null=999).to_frame().iloc[0]
    assert within["verdict"] == "a"
    with pytest.raises(InputError, match="Did you mean 'task'"):
        compare({"a": a, "b": b}, strata="tsk")


def keys(columns, failed, **more):
    configs = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    rng = np.random.default_rng(0)
    found, left = key_differences(configs, np.asarray(failed), alpha=0.05, n_null=999, rng=rng, **more)
    return {d.key: d for d in found}, left


def test_the_key_that_matters_is_found_and_its_shadow_is_called_one():
    rng = np.random.default_rng(1)
    n = 120
    lr = rng.choice([0.01, 0.1, 1.0], n)
    failed = rng.random(n) < np.where(lr == 1.0, 0.8, 0.05)
    columns = {
        "lr": lr.tolist(),
        "schedule": np.where(lr == 1.0, "hot", "cold").tolist(),  # a function of lr
        "beta": rng.choice([0.9, 0.99], n).tolist(),
        "wd": (lr * np.exp(0.9 * rng.normal(size=n))).tolist(),  # follows lr loosely
        "seed": rng.integers(5, size=n).tolist(),
        "name": [f"run{i}" for i in range(n)],
        "steps": [100] * n,
    }
    found, left = keys(columns, failed)
    assert found["lr"].differs
    assert found["lr"].effect > 0.7
    assert "schedule" in found["lr"].together
    assert "cannot be told apart from schedule" in found["lr"].reason
    assert found["schedule"].together == ("lr",)
    assert found["wd"].explained_by
    assert not found["beta"].differs
    assert not found["seed"].differs
    assert left == {"name": "a different word in every run", "steps": "the same in every run"}


def test_effect_is_that_of_mann_whitney_and_of_cramer():
    rng = np.random.default_rng(2)
    x, failed = rng.normal(size=60).round(1), rng.random(60) < 0.4
    word = rng.choice(["a", "b", "c"], 60)
    found, _ = keys({"x": x.tolist(), "word": word.tolist()}, failed)
    u = stats.mannwhitneyu(x[failed], x[~failed]).statistic / (failed.sum() * (~failed).sum())
    assert found["x"].effect == pytest.approx(u, abs=1e-12)
    table = stats.contingency.crosstab(word, failed).count
    assert found["word"].effect == pytest.approx(stats.contingency.association(table, "cramer"), abs=1e-12)
    assert found["x"].p == pytest.approx(stats.mannwhitneyu(x[failed], x[~failed]).pvalue, abs=0.05)


def test_keys_hold_their_level():
    hits = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        configs = [{"a": float(rng.normal()), "b": str(rng.integers(3)), "c": int(rng.integers(8))} for _ in range(40)]
        found, _ = key_differences(configs, rng.random(40) < 0.4, alpha=0.05, n_null=199, rng=rng)
        hits += any(d.differs for d in found)
    assert hits <= stats.binom.ppf(0.999, 100, 0.05)


def test_nested_configs_and_nulls():
    assert flat_config({"a": {"b": {"c": 1}}, "d": [1]}) == {"a.b.c": 1, "d": "[1]"}
    found, left = keys({"clip": [None, 1.0] * 20, "nothing": [None] * 40}, [False, True] * 20)
    assert found["clip"].kind == "word"
    assert found["clip"].effect == pytest.approx(1)
    assert left == {"nothing": "null in every run"}


def test_no_failure_no_keys_and_the_result_says_so():
    found = compare({"a": group("a", 0.7, config={"lr": 1})}, n_boot=100, n_null=99)
    assert found.keys == ()
    assert "no run failed" in found.summary()
    assert found.to_frame().empty
    assert found.to_dict()["groups"][0]["runs"] == 8


def test_what_is_known_of_failures_is_believed():
    runs = [r.replace(config={"lr": float(i >= 4)}) for i, r in enumerate(group("a", 0.7))]
    found = compare({"a": runs}, failed={f"a{i}": i >= 4 for i in range(8)}, n_null=999)
    assert found.runs["failed"].sum() == 4
    assert found.keys[0].differs


def test_same_seed_same_numbers_and_inputs_untouched():
    groups = {"a": group("a", 0.7), "b": group("b", 0.6, seed=1)}
    before = {n: [r.channels["val/accuracy"].values.copy() for r in own] for n, own in groups.items()}
    one, two = (compare(groups, n_boot=200, n_null=199, rng=5).to_dict() for _ in range(2))
    assert one == two
    assert all(
        np.array_equal(x, r.channels["val/accuracy"].values)
        for n, own in groups.items()
        for x, r in zip(before[n], own, strict=True)
    )


def test_drawn():
    import matplotlib.pyplot as plt

    found = compare({"a": group("a", 0.7, rows=50), "b": group("b", 0.6, seed=1)}, n_boot=100, n_null=99)
    figure = found.plot()
    assert len(figure.axes) == 2
    _, ax = plt.subplots()
    assert found.plot(ax) is ax
    plt.close("all")


@pytest.mark.parametrize(
    ("groups", "options", "error", "message"),
    [
        ({}, {}, InputError, "a group or more"),
        ({"a": [made("a", np.ones(9))]}, {}, NotEnoughData, "two or more"),
        ({"a": group("a", 1)}, {"performance": "val/acc"}, InputError, "Did you mean 'val/accuracy'"),
        ({"a": group("a", 1)}, {"channels": ["los"]}, InputError, "no run has a channel 'los'"),
        ({"a": group("a", 1), "b": group("b", 1, channel="val/loss")}, {}, InputError, "different channels"),
        ({"a": group("a", 1)}, {"level": 2}, InputError, "between 0 and 1"),
        ({"a": group("a", 1)}, {"n_boot": 3}, InputError, "100 draws"),
    ],
)
def test_bad_input(groups, options, error, message):
    with pytest.raises(error, match=message):
        compare(groups, **options)
