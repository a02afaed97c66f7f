"""The three Parquet formats: our own, W&B's history, Neptune's export; each takes its own files and no other's."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trajscope.errors import NoLogsFound, ReadError, SeveralRuns
from trajscope.history import Channel, Run, RunData, align, read_parquet_run, write_runs
from trajscope.readers import read_run, scan_runs

NEPTUNE = pa.schema(
    [
        ("project_id", pa.string()),
        ("run_id", pa.string()),
        ("attribute_path", pa.string()),
        ("attribute_type", pa.string()),
        ("step", pa.decimal128(18, 6)),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("int_value", pa.int64()),
        ("float_value", pa.float64()),
        ("string_value", pa.string()),
        ("bool_value", pa.bool_()),
        ("datetime_value", pa.timestamp("ms", tz="UTC")),
        ("string_set_value", pa.list_(pa.string())),
        ("file_value", pa.struct([("path", pa.string())])),
    ]
)


def codes(run: Run) -> list[str]:
    return [p.code for p in run.problems]


def simple(name: str, n: int = 5) -> Run:
    return Run(
        name,
        RunData(
            {
                "loss": Channel("loss", np.arange(n), np.arange(n) / 4),
                "val/acc": Channel("val/acc", np.arange(2), np.ones(2)),
            }
        ),
    )


class TestOwn:
    def test_one_run(self, tmp_path: Path) -> None:
        write_runs(simple("r"), tmp_path / "r.parquet")
        run = read_run(tmp_path / "r.parquet")
        assert (run.id, run.format) == ("r.parquet", "parquet")
        assert run.channels["loss"].values.tolist() == [0, 0.25, 0.5, 0.75, 1]

    def test_several_runs_in_a_file(self, tmp_path: Path) -> None:
        write_runs([simple("a"), simple("b/c")], tmp_path / "r.parquet")
        assert [r.id for r in scan_runs(tmp_path)] == ["r.parquet#a", "r.parquet#b/c"]
        assert read_run(tmp_path / "r.parquet", run="b/c").n_points == 7
        with pytest.raises(SeveralRuns, match="holds 2 runs"):
            read_run(tmp_path / "r.parquet")

    def test_a_filter(self, tmp_path: Path) -> None:
        write_runs(simple("r"), tmp_path / "r.parquet")
        assert list(read_run(tmp_path / "r.parquet", channels=["val/*"]).channels) == ["val/acc"]

    def test_converting_twice_changes_nothing(self, tmp_path: Path) -> None:
        first = write_runs(simple("r"), tmp_path / "a.parquet")
        again = write_runs(read_run(first).replace(id="r"), tmp_path / "b.parquet")
        one, two = read_parquet_run(first), read_parquet_run(again)
        for name, channel in one.channels.items():
            np.testing.assert_array_equal(channel.values, two.channels[name].values)
            assert channel.values.dtype == two.channels[name].values.dtype

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"PAR1", "damaged or cut short"),
            (b"PAR1" + b"x" * 100, "damaged or cut short"),
            (b"", "an empty file called .parquet"),
            (bytes(500), "holds only zeros"),
        ],
    )
    def test_a_file_that_is_none(self, tmp_path: Path, content: bytes, message: str) -> None:
        (tmp_path / "r.parquet").write_bytes(content)
        with pytest.raises(NoLogsFound, match=message):
            read_run(tmp_path / "r.parquet")
        scan = scan_runs(tmp_path)
        assert list(scan) == []
        assert [p.code for p in scan.problems] == ["not-a-log"]

    def test_damage_inside_is_one_sentence(self, tmp_path: Path) -> None:
        whole = bytearray(write_runs(simple("r", 4000), tmp_path / "r.parquet").read_bytes())
        whole[200:3000] = bytes(2800)
        (tmp_path / "r.parquet").write_bytes(bytes(whole))
        with pytest.raises(ReadError, match="the data of run 'r' are damaged"):
            read_run(tmp_path / "r.parquet")

    def test_a_trajectory_is_refused(self, tmp_path: Path) -> None:
        align(simple("r")).to_parquet(tmp_path / "t.parquet")
        with pytest.raises(NoLogsFound, match="an aligned trajectory, not a run"):
            read_run(tmp_path / "t.parquet")

    def test_any_other_table_is_passed_over(self, tmp_path: Path) -> None:
        pd.DataFrame({"age": [1, 2]}).to_parquet(tmp_path / "t.parquet")
        scan = scan_runs(tmp_path)
        assert list(scan) == []
        assert (scan.ignored, scan.problems) == (["t.parquet"], [])


class TestWandbHistory:
    def write(self, path: Path, columns: dict[str, Any]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        return path

    def test_sparse_columns_are_series_of_their_own(self, tmp_path: Path) -> None:
        columns = {
            "_step": pa.array([0.0, 1.0, 2.0, 3.0]),
            "_timestamp": pa.array([1.7e9, 1.7e9 + 1, 1.7e9 + 2, 1.7e9 + 3]),
            "loss": pa.array([1.0, float("nan"), None, float("inf")]),
            "acc": pa.array([None, 1.5, None, 2.5], pa.float32()),
            "n": pa.array([2**60 + 1, None, 3, 4]),
            "flag": pa.array([True, None, False, True]),
            "text": pa.array(["a", "b", "c", "d"]),
        }
        run = read_run(self.write(tmp_path / "history.parquet", columns))
        assert run.format == "wandb-parquet"
        loss = run.channels["loss"]
        assert loss.steps.dtype == np.int64
        assert loss.steps.tolist() == [0, 1, 3]
        assert loss.counts == {"finite": 1, "nan": 1, "posinf": 1, "neginf": 0, "missing": 1}
        assert loss.wall_time is not None
        assert loss.wall_time.tolist() == [1.7e9, 1.7e9 + 1, 1.7e9 + 3]
        assert run.channels["acc"].values.dtype == np.float32
        assert run.channels["n"].values.tolist() == [2**60 + 1, 3, 4]
        assert run.channels["flag"].values.tolist() == [1, 0, 1]
        assert "text" not in run.channels
        assert "not-a-scalar" in codes(run)

    def test_structs_become_dotted_names(self, tmp_path: Path) -> None:
        columns = {"_step": pa.array([0, 1]), "a": pa.array([{"b": {"c": 1.0}}, {"b": None}])}
        run = read_run(self.write(tmp_path / "h.parquet", columns))
        assert run.channels["a.b.c"].values.tolist() == [1.0]

    def test_numbered_files_are_parts_of_one_run(self, tmp_path: Path) -> None:
        for k in (0, 1, 10):
            steps = np.arange(k * 10, k * 10 + 10)
            self.write(tmp_path / "h" / f"{k:04d}.parquet", {"_step": steps, "loss": steps * 1.0})
        [run] = scan_runs(tmp_path)
        assert run.id == "h/0000.parquet"
        assert run.channels["loss"].steps.tolist() == [*range(20), *range(100, 110)]

    def test_a_live_tail_that_overlaps_supersedes(self, tmp_path: Path) -> None:
        for k, low in enumerate((0, 15)):
            steps = np.arange(low, low + 20)
            self.write(tmp_path / f"{k:04d}.parquet", {"_step": steps, "loss": steps + 0.5 * k})
        [run] = scan_runs(tmp_path)
        assert len(run.channels["loss"]) == 35
        assert run.channels["loss"].values[15] == 15.5

    def test_damage_inside_is_one_sentence(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        path = self.write(tmp_path / "h.parquet", {"_step": np.arange(5000), "loss": rng.normal(size=5000)})
        whole = bytearray(path.read_bytes())
        whole[100:9000] = bytes(8900)
        path.write_bytes(bytes(whole))
        with pytest.raises(ReadError, match="the Parquet file is damaged"):
            read_run(path)

    def test_recorded_file(self, shared_data: Path) -> None:
        [run] = scan_runs(shared_data / "logs" / "wandb_parquet")
        frame = pd.read_parquet(shared_data / "logs" / "wandb_parquet" / run.id)
        assert set(run.channels) == set(frame.columns) - {"_step"}
        for name, channel in run.channels.items():
            np.testing.assert_array_equal(channel.values, frame[name].dropna())
            np.testing.assert_array_equal(channel.steps, frame.loc[frame[name].notna(), "_step"])


class TestNeptune:
    def rows(self, run: str, path: str, steps: list[Any], values: list[Any]) -> list[dict[str, Any]]:
        return [
            {
                "project_id": "team/p",
                "run_id": run,
                "attribute_path": path,
                "attribute_type": "float_series",
                "step": None if s is None else Decimal(str(s)),
                "timestamp": 1_700_000_000_000 + 1000 * i,
                "float_value": v,
            }
            for i, (s, v) in enumerate(zip(steps, values, strict=True))
        ]

    def single(self, run: str, path: str, kind: str, value: Any) -> dict[str, Any]:
        return {
            "project_id": "team/p",
            "run_id": run,
            "attribute_path": path,
            "attribute_type": kind,
            f"{kind}_value": value,
        }

    def write(self, path: Path, rows: list[dict[str, Any]]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, NEPTUNE), path, compression="snappy")
        return path

    def test_series_settings_and_the_rest(self, tmp_path: Path) -> None:
        rows = [
            *self.rows("R-1", "metrics/loss", [0, 1, 2, 3], [1.5, float("nan"), None, float("-inf")]),
            *self.rows("R-1", "metrics/half", [0, 0.5, 1], [1.0, 2.0, 3.0]),
            self.single("R-1", "parameters/lr", "float", 0.5),
            self.single("R-1", "parameters/opt", "string", "sgd"),
            self.single("R-1", "sys/name", "string", "nice"),
            self.single("R-1", "sys/running_time", "int", 7),
            {**self.single("R-1", "text", "string", "x"), "attribute_type": "string_series"},
        ]
        self.write(tmp_path / "team_p_abc" / "R-1_part_0.parquet", rows)
        [run] = scan_runs(tmp_path)
        assert run.format == "neptune"
        loss = run.channels["metrics/loss"]
        assert loss.steps.dtype == np.int64
        assert loss.steps.tolist() == [0, 1, 3]
        np.testing.assert_array_equal(loss.values, [1.5, np.nan, -np.inf])
        assert loss.n_missing == 1
        assert loss.wall_time is not None
        assert loss.wall_time.tolist() == [1.7e9, 1.7e9 + 1, 1.7e9 + 3]
        assert run.channels["metrics/half"].steps.tolist() == [0, 0.5, 1]
        assert dict(run.config) == {"parameters/lr": 0.5, "parameters/opt": "sgd"}
        assert run.summary["sys/name"] == "nice"
        assert run.summary["run_id"] == "R-1"
        assert codes(run) == ["skipped-records"]

    def test_parts_of_a_run(self, tmp_path: Path) -> None:
        for k in (0, 1, 2, 10):
            self.write(tmp_path / f"R-1_part_{k}.parquet", self.rows("R-1", "loss", [k * 2, k * 2 + 1], [k, k + 0.5]))
        self.write(tmp_path / "R-2_part_0.parquet", self.rows("R-2", "loss", [0], [9.0]))
        one, two = scan_runs(tmp_path)
        assert one.channels["loss"].steps.tolist() == [0, 1, 2, 3, 4, 5, 20, 21]
        assert "incomplete-export" in codes(one)
        assert two.channels["loss"].values.tolist() == [9.0]
        assert codes(two) == []

    def test_several_runs_in_one_file(self, tmp_path: Path) -> None:
        rows = [*self.rows("R-2", "loss", [0], [2.0]), *self.rows("R-1", "loss", [0, 1], [1.0, 1.5])]
        path = self.write(tmp_path / "export.parquet", rows)
        assert [r.id for r in scan_runs(path)] == ["export.parquet#R-1", "export.parquet#R-2"]
        assert read_run(path, run="R-1").channels["loss"].values.tolist() == [1.0, 1.5]

    def test_points_without_a_step(self, tmp_path: Path) -> None:
        run = read_run(self.write(tmp_path / "R_part_0.parquet", self.rows("R", "loss", [0, None, 2], [1.0, 2.0, 3.0])))
        assert run.channels["loss"].steps.tolist() == [0, 2]
        assert codes(run) == ["no-step"]

    def test_a_run_without_series(self, tmp_path: Path) -> None:
        run = read_run(self.write(tmp_path / "R_part_0.parquet", [self.single("R", "sys/name", "string", "x")]))
        assert codes(run) == ["no-scalars"]

    def test_a_filter(self, tmp_path: Path) -> None:
        rows = [*self.rows("R", "a", [0], [1.0]), *self.rows("R", "b", [0], [2.0])]
        assert list(read_run(self.write(tmp_path / "R_part_0.parquet", rows), channels=["b"]).channels) == ["b"]

    def test_a_damaged_part_leaves_the_others(self, tmp_path: Path) -> None:
        for k in (0, 1):
            self.write(tmp_path / f"R_part_{k}.parquet", self.rows("R", "loss", [k], [float(k)]))
        path = self.write(tmp_path / "R_part_2.parquet", self.rows("R", "loss", list(range(2, 3000)), [0.5] * 2998))
        whole = bytearray(path.read_bytes())
        whole[10 : len(whole) // 2] = bytes(len(whole) // 2 - 10)
        path.write_bytes(bytes(whole))
        [run] = scan_runs(tmp_path)
        assert run.channels["loss"].steps.tolist()[:2] == [0, 1]
        assert [p.severity for p in run.problems if p.code == "unreadable"] == ["error"]


def test_each_format_takes_its_own(tmp_path: Path) -> None:
    write_runs(simple("own"), tmp_path / "a.parquet")
    TestWandbHistory().write(tmp_path / "b.parquet", {"_step": [0, 1], "loss": [1.0, 2.0]})
    TestNeptune().write(tmp_path / "c_part_0.parquet", TestNeptune().rows("c", "loss", [0], [1.0]))
    found = {r.id: r.format for r in scan_runs(tmp_path)}
    assert found == {"a.parquet": "parquet", "b.parquet": "wandb-parquet", "c_part_0.parquet": "neptune"}
