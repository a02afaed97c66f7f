"""MLflow's file store and SQLite store, as MLflow wrote them and damaged."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajscope.errors import ReadError
from trajscope.history import Run
from trajscope.readers import ReadOptions, read_run, scan_runs
from trajscope.readers.mlflow import READER

DATA = Path(__file__).parent / "data" / "trackers" / "mlflow"
META = "artifact_uri: file:///x\nlifecycle_stage: active\nrun_id: abc\nrun_name: nice\nstart_time: 1\nstatus: 3\n"


def store(tmp_path: Path, metrics: dict[str, str | bytes], meta: str = META) -> Path:
    run = tmp_path / "mlruns" / "0" / "abc"
    for name, content in metrics.items():
        path = run / "metrics" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    run.mkdir(parents=True, exist_ok=True)
    if meta:
        (run / "meta.yaml").write_text(meta)
    return tmp_path / "mlruns"


def codes(run: Run) -> list[str]:
    return [p.code for p in run.problems]


def database(path: Path, rows: list[tuple[Any, ...]], runs: tuple[str, ...] = ("abc",)) -> Path:
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("CREATE TABLE runs (run_uuid TEXT, name TEXT, start_time INTEGER, status TEXT)")
        base.execute("CREATE TABLE metrics (key TEXT, value, timestamp, run_uuid TEXT, step, is_nan)")
        base.execute("CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT)")
        base.executemany("INSERT INTO runs VALUES (?, 'n', 0, 'FINISHED')", [(r,) for r in runs])
        base.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
        base.execute("INSERT INTO params VALUES ('lr', '0.5', 'abc')")
    return path


class TestRecorded:
    def check(self, runs: list[Run]) -> None:
        assert len(runs) == 2
        for k, run in enumerate(sorted(runs, key=lambda r: len(r.channels["loss"]))):
            loss = run.channels["loss"]
            expected = 2.5 * np.exp(-np.arange(30) / 10) + k
            np.testing.assert_allclose(loss.values[:30], expected, rtol=1e-15)
            assert loss.steps.tolist() == list(range(33 if k else 30))
            if k:
                np.testing.assert_array_equal(loss.values[30:], [np.nan, np.inf, -np.inf])
            assert loss.wall_time is not None
            assert loss.wall_time[:2].tolist() == [1.7e9, 1.7e9 + 1]
            assert run.channels["val/loss"].steps.tolist() == [0, 5, 10, 15, 20, 25]
            assert dict(run.config) == {"lr": 0.1 * (k + 1), "opt": "sgd"}
            assert run.summary["_run"]["name"] == f"arm{k}"

    def test_file_store(self) -> None:
        scan = scan_runs(DATA / "mlruns")
        self.check(list(scan))
        assert scan.ignored == []
        assert scan.problems == []

    def test_sqlite_store(self, tmp_path: Path) -> None:
        path = tmp_path / "mlflow.db"
        path.write_bytes(gzip.decompress((DATA / "mlflow.db.gz").read_bytes()))
        before = path.read_bytes()
        runs = list(scan_runs(path))
        self.check(runs)
        assert runs[0].id.startswith("mlflow.db#")
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["mlflow.db"]


class TestFileStore:
    def test_lines_of_every_age(self, tmp_path: Path) -> None:
        root = store(
            tmp_path,
            {
                "three": "1700000000000 1.5 0\n1700000001000 2.5 10\n",
                "five": "1700000000000 1.5 3 name digest\n1700000001000 2.5 4 name digest\n",
                "two": "1700000000000 0.5\n1700000001000 0.4\n",
                "a/b/c": "1700000000000 7 1\n",
            },
        )
        [run] = scan_runs(root)
        assert run.id == "0/abc"
        assert run.channels["three"].steps.tolist() == [0, 10]
        assert run.channels["five"].steps.tolist() == [3, 4]
        assert run.channels["a/b/c"].values.tolist() == [7]
        assert run.channels["two"].steps.tolist() == [0, 1]
        assert codes(run) == ["no-step"]
        assert run.summary["_run"]["name"] == "nice"
        [written] = scan_runs(root, resume="keep-all")
        assert written.channels["two"].steps.tolist() == [0, 0]

    def test_the_largest_double_stands_for_infinity(self, tmp_path: Path) -> None:
        values = ["nan", "inf", "1.7976931348623157e+308", "-1.7976931348623157e308"]
        text = "".join(f"170000000000{s} {v} {s}\n" for s, v in enumerate(values))
        [run] = scan_runs(store(tmp_path, {"x": text}))
        np.testing.assert_array_equal(run.channels["x"].values, [np.nan, np.inf, np.inf, -np.inf])
        assert codes(run) == ["largest-as-infinity"]

    def test_one_bad_file_does_not_take_the_run_down(self, tmp_path: Path) -> None:
        metrics = {"empty": "", "one": "1700000000000\n", "junk": b"\xff\xfe\x00\n", "good": "1700000000000 1.5 0\n"}
        [run] = scan_runs(store(tmp_path, metrics))
        assert list(run.channels) == ["good"]
        assert sorted(codes(run)) == ["empty-file", "ragged-row", "ragged-row"]

    def test_two_metrics_with_the_same_content_are_no_copies(self, tmp_path: Path) -> None:
        line = "1700000000000 1.5 0\n1700000001000 2.5 1\n"
        [run] = scan_runs(store(tmp_path, {"acc": line, "accuracy": line}))
        assert sorted(run.channels) == ["acc", "accuracy"]

    def test_a_run_without_meta_is_found_by_its_lines(self, tmp_path: Path) -> None:
        [run] = scan_runs(store(tmp_path, {"x": "1700000000000 1.5 0\n"}, meta=""))
        assert run.id == "0/abc"

    def test_a_directory_called_metrics_is_not_enough(self, tmp_path: Path) -> None:
        assert list(scan_runs(store(tmp_path, {"x": "hello world\n"}, meta=""))) == []

    def test_a_run_without_metrics(self, tmp_path: Path) -> None:
        [run] = scan_runs(store(tmp_path, {}))
        assert (len(run.channels), codes(run)) == (0, ["no-scalars"])

    def test_one_metric_alone(self, tmp_path: Path) -> None:
        root = store(tmp_path, {"a": "1700000000000 1.5 0\n", "b/c": "1700000000000 2.5 0\n"})
        run = read_run(root / "0" / "abc" / "metrics" / "b" / "c")
        assert list(run.channels) == ["b/c"]

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        root = store(tmp_path, {"a": "1700000000000 1.5 0\n"})
        secret = tmp_path / "secret"
        secret.write_text("1700000000000 9.5 0\n")
        (root / "0" / "abc" / "metrics" / "b").symlink_to(secret)
        (root / "0" / "abc" / "params").mkdir()
        (root / "0" / "abc" / "params" / "p").symlink_to(secret)
        [run] = scan_runs(root)
        assert list(run.channels) == ["a"]
        assert dict(run.config) == {}

    def test_a_filter_spares_the_other_files(self, tmp_path: Path) -> None:
        [run] = scan_runs(store(tmp_path, {"a": "1700000000000 1 0\n", "bad": "x\n"}), channels=["a"])
        assert (list(run.channels), codes(run)) == (["a"], [])

    def test_a_rewind_is_seen_in_every_metric(self, tmp_path: Path) -> None:
        steps = [*range(40), *range(20, 50)]
        loss = "".join(f"{1700000000000 + i} {i}.5 {s}\n" for i, s in enumerate(steps))
        val = "".join(f"{1700000000000 + i} {i}.5 {s}\n" for i, s in enumerate(steps) if s % 10 == 0)
        [run] = scan_runs(store(tmp_path, {"loss": loss, "val": val}))
        assert [s.kind for s in run.segments] == ["start", "supersedes"]
        assert run.channels["val"].values.tolist() == [0.5, 10.5, 40.5, 50.5, 60.5]

    def test_cut_anywhere_nothing_earlier_is_lost(self, tmp_path: Path) -> None:
        whole = b"".join(b"%d %d.25 %d\n" % (1700000000000 + s, s, s + 100) for s in range(4))
        ends = [i + 1 for i, c in enumerate(whole) if c == 10]
        for cut in range(len(whole)):
            root = store(tmp_path, {"x": whole[:cut]})
            [source] = READER.sources([root / "0" / "abc" / "meta.yaml"], "", ReadOptions(root))
            complete = sum(cut >= end for end in ends)
            values = source.series["x"].values.tolist() if "x" in source.series else []
            assert values == [s + 0.25 for s in range(complete)]

    @settings(max_examples=80, deadline=None)
    @given(st.binary(max_size=200))
    def test_any_bytes(self, tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
        root = store(tmp_path_factory.mktemp("m"), {"x": b"1700000000000 1.5 0\n" + junk})
        [source] = READER.sources([root / "0" / "abc" / "meta.yaml"], "", ReadOptions(root))
        assert source.series["x"].values[0] == 1.5


class TestDatabase:
    def test_nan_infinity_and_rows_that_are_none(self, tmp_path: Path) -> None:
        rows = [
            ("x", 1.0, 1700000000000, "abc", 0, 0),
            ("x", 0.0, 1700000001000, "abc", 1, 1),
            ("x", 1.7976931348623157e308, 1700000002000, "abc", 2, 0),
            ("x", "text", 1700000003000, "abc", 3, 0),
            ("x", None, 1700000003000, "abc", 4, 0),
            ("x", 5.0, 1700000003000, "other", 4, 0),
        ]
        run = read_run(database(tmp_path / "m.db", rows))
        np.testing.assert_array_equal(run.channels["x"].values, [1, np.nan, np.inf])
        assert dict(run.config) == {"lr": 0.5}
        assert sorted(codes(run)) == ["bad-cell", "largest-as-infinity"]

    def test_several_runs(self, tmp_path: Path) -> None:
        rows = [("x", 1.0, 0, r, s, 0) for s in range(3) for r in ("b", "a")]
        path = database(tmp_path / "m.db", rows, ("b", "a"))
        assert [r.id for r in scan_runs(path)] == ["m.db#a", "m.db#b"]
        assert read_run(path, run="a").channels["x"].steps.tolist() == [0, 1, 2]

    def test_another_database_is_no_log(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "o.db")) as base, base:
            base.execute("CREATE TABLE metrics (a)")
        scan = scan_runs(tmp_path)
        assert list(scan) == []
        assert scan.ignored == ["o.db"]

    def test_a_write_ahead_log_is_mentioned(self, tmp_path: Path) -> None:
        path = database(tmp_path / "m.db", [("x", 1.0, 0, "abc", 0, 0)])
        (tmp_path / "m.db-wal").write_bytes(b"x" * 40)
        assert "write-ahead-log" in codes(read_run(path))

    def test_damage_is_one_sentence(self, tmp_path: Path) -> None:
        rows = [("x", float(s), 0, "abc", s, 0) for s in range(3000)]
        whole = database(tmp_path / "m.db", rows).read_bytes()
        path = tmp_path / "d.db"
        rng = np.random.default_rng(0)
        for _ in range(30):
            damaged = bytearray(whole)
            for at in rng.integers(100, len(whole), 200):
                damaged[at] ^= int(rng.integers(1, 256))
            path.write_bytes(bytes(damaged[: int(rng.integers(100, len(whole)))]))
            for run in scan_runs(path):
                try:
                    _ = run.channels
                except ReadError as problem:
                    assert "\n" not in str(problem)  # noqa: PT017

    def test_a_schema_whose_error_is_no_text(self, tmp_path: Path) -> None:
        whole = database(tmp_path / "m.db", [("x", 1.0, 0, "abc", 0, 0)]).read_bytes()
        assert b"CREATE TABLE params" in whole
        (tmp_path / "m.db").write_bytes(whole.replace(b"CREATE TABLE params (", b"CREATE TABLE params \xfa"))
        scan = scan_runs(tmp_path)
        assert list(scan) == []
        assert scan.ignored == ["m.db"]

    def test_a_path_with_question_marks(self, tmp_path: Path) -> None:
        folder = tmp_path / "a?mode=rwc#b%20"
        folder.mkdir()
        shutil.copy(database(tmp_path / "m.db", [("x", 1.0, 0, "abc", 0, 0)]), folder / "m.db")
        assert len(read_run(folder / "m.db").channels["x"]) == 1


def test_nasty_store(shared_data: Path) -> None:
    scan = scan_runs(shared_data / "nasty" / "mlflow")
    runs = {r.id: r for r in scan}
    assert list(runs) == ["mlruns/0/run1", "mlruns/0/run2"]
    first, second = runs.values()
    assert {n: len(c) for n, c in first.channels.items()} == {"loss": 50, "val/loss": 5}
    np.testing.assert_array_equal(second.channels["naninf"].values, [np.nan, np.inf, np.inf])
    # MLflow's meaning of two fields is step 0; as written with keep-all, else numbered from there so that none is lost.
    assert second.channels["old_two_fields"].values.tolist() == [0.5, 0.4]
    assert second.channels["old_two_fields"].steps.tolist() == [0, 1]
    written = read_run(shared_data / "nasty" / "mlflow", run="mlruns/0/run2", resume="keep-all")
    assert written.channels["old_two_fields"].steps.tolist() == [0, 0]
    assert scan.problems == []
