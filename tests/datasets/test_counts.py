"""The datasheet says what is there, and what is there is enough for what stands on it."""

from __future__ import annotations

from pathlib import Path

import count
import numpy as np
import pytest
from recorder import exports, store


def test_datasheet_is_counted_off_the_data(datasets: Path) -> None:
    assert count.report(datasets) in (datasets / "README.md").read_text()


@pytest.mark.parametrize(
    "stratum", ["digits/mlp64/sgd_momentum", "digits/mlp64/adam", "digits/mlp64/rmsprop", "cartpole/ac64/ppo"]
)
def test_enough_controls_and_harmed_runs(datasets: Path, stratum: str) -> None:
    frame = count.load(datasets)
    own = frame[frame["stratum"].eq(stratum) & frame["purpose"].eq("arms")]
    assert own["control"].sum() >= 40
    assert (own["control"] & own["held"]).sum() >= 20
    assert own["harmed"].sum() >= 30
    assert (own["harmed"] & own["held"]).sum() >= 15


@pytest.mark.parametrize(("domain", "failed"), [("digits", 30), ("transformer", 30), ("cartpole", 20)])
def test_enough_failures_from_within(datasets: Path, domain: str, failed: int) -> None:
    frame = count.load(datasets)
    ramps = frame[frame["domain"].eq(domain) & frame["within"]]
    assert ramps["harmed"].sum() >= failed
    assert (~ramps["harmed"]).sum() >= failed


def test_grids_buffering_and_size(datasets: Path) -> None:
    frame = count.load(datasets)
    grid = frame[frame["purpose"].eq("grid")].groupby("algorithm").size()
    assert set(grid.index) == {"adam", "rmsprop", "sgd_momentum"}
    assert grid.min() >= 100
    noise = frame[frame["purpose"].eq("buffering") & frame["domain"].eq("digits")]
    assert noise.groupby("grad_noise")["seed"].nunique().tolist() == [20] * 5
    entropy = frame[frame["purpose"].eq("buffering") & frame["domain"].eq("cartpole")]
    assert entropy.groupby("entropy_bonus")["seed"].nunique().tolist() == [10] * 4
    assert sum(p.stat().st_size for p in datasets.glob("*/*.parquet")) < 40e6


def test_exports_hold_the_recorded_values(datasets: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    recorded = {}
    for path in store.data_files(datasets):
        meta = store.read_meta(path)["runs"]
        if any((datasets / "exports/csv" / run).exists() for run in meta):
            recorded |= {r: store.series(t) for r, t in store.read_tables(path)}
    folders = sorted((datasets / "exports/tensorboard").iterdir())
    assert folders
    for folder in folders:
        run = {c: v for c, v in recorded[folder.name].items() if c != "rollout/episode_return"}
        read = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
        read.Reload()
        assert set(read.Tags()["scalars"]) == set(run)
        for channel, (steps, values) in run.items():
            events = read.Scalars(channel)
            np.testing.assert_array_equal([e.step for e in events], steps)
            np.testing.assert_array_equal(np.array([e.value for e in events], np.float32), values)
        text = (datasets / "exports/csv" / folder.name / "metrics.csv").read_text().splitlines()
        assert text[0].split(",") == ["step", *run]
        assert text[1:] == [
            ",".join([str(step), *(exports.shortest(row[c]) if c in row else "" for c in run)])
            for step, row in exports.rows(run)
        ]
