"""What does not fit is said: integers beyond int64, numbers beyond a float, names that meet, holes, wide encodings."""

from __future__ import annotations

import json
from pathlib import Path

import log_samples
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trajscope.errors import InputError
from trajscope.history import Run
from trajscope.readers import read_run, scan_runs
from trajscope.readers._csvstream import SMALLEST

BIG = 2**53 + 1


def _written(path: Path, text: str) -> Run:
    path.write_text(text)
    return read_run(path)


def _counts(run: Run, code: str) -> list[int]:
    return [p.count for p in run.problems if p.code == code]


def _csv(cells: list[object]) -> str:
    return "step,n\n" + "".join(f"{i},{c}\n" for i, c in enumerate(cells))


def _jsonl(cells: list[object]) -> str:
    return "".join(json.dumps({"step": i, "n": c}) + "\n" for i, c in enumerate(cells))


@pytest.mark.parametrize("write", [_csv, _jsonl])
@pytest.mark.parametrize(
    ("cells", "rounded"),
    [
        ([2**63 + i for i in range(10)], 9),  # 2**63 itself is a float
        ([10**30 + i for i in range(10)], 10),
        ([BIG, 0.5, BIG + 2], 2),
        ([2**53, 0.5, 1e20, 10**20], 0),
    ],
)
def test_integers_that_are_rounded_are_counted(
    tmp_path: Path, write: object, cells: list[object], rounded: int
) -> None:
    name = "a.csv" if write is _csv else "a.jsonl"
    run = _written(tmp_path / name, (_csv if write is _csv else _jsonl)(cells))
    assert _counts(run, "inexact-integers") == ([rounded] if rounded else [])
    assert run.channels["n"].values.tolist() == [float(c) for c in cells]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_integers_that_int64_holds_stay_exact(tmp_path: Path, name: str) -> None:
    run = _written(tmp_path / name, (_csv if name == "a.csv" else _jsonl)([BIG, BIG + 1, 2**63 - 1]))
    assert run.channels["n"].values.tolist() == [BIG, BIG + 1, 2**63 - 1]
    assert not run.problems


def test_rounded_integers_of_a_large_table_are_counted(tmp_path: Path) -> None:
    n = SMALLEST // 20
    run = _written(tmp_path / "a.csv", _csv([10**20 + 1 + 2**40 * i for i in range(n)]))
    assert _counts(run, "inexact-integers") == [n]


def test_a_number_of_400_digits_is_an_overflow(tmp_path: Path) -> None:
    run = _written(tmp_path / "a.csv", _csv([1, "9" * 400, -2, "-" + "9" * 400]))
    assert run.channels["n"].values.tolist() == [1.0, np.inf, -2.0, -np.inf]
    assert _counts(run, "overflow") == [2]


def test_overflows_beside_numbers_in_strings_are_counted(tmp_path: Path) -> None:
    text = '{"step":0,"n":1e400}\n{"step":1,"n":"NaN"}\n{"step":2,"n":Infinity}\n{"step":3,"n":"0.5"}\n'
    run = _written(tmp_path / "a.jsonl", text + '{"step":4,"n":' + "9" * 5000 + "}\n")
    assert np.isinf(run.channels["n"].values).tolist() == [True, False, True, False, True]
    assert _counts(run, "overflow") == [2]


def test_overflows_in_a_text_log_are_counted(tmp_path: Path) -> None:
    run = _written(
        tmp_path / "a.log", "".join(f"step={i} loss={v}\n" for i, v in enumerate(["1", "inf", "1e400", "2"]))
    )
    assert run.channels["loss"].values.tolist() == [1.0, np.inf, np.inf, 2.0]
    assert _counts(run, "overflow") == [1]


def test_unsigned_integers_do_not_turn_negative(tmp_path: Path) -> None:
    large = pa.array([2**64 - 1, 2**63, None, 5], pa.uint64())
    small = pa.array([1, 2, 3, 2**63 - 1], pa.uint64())
    pq.write_table(pa.table({"_step": pa.array(range(4)), "n": large, "m": small}), tmp_path / "a.parquet")
    run = read_run(tmp_path / "a.parquet")
    assert run.channels["n"].values.tolist() == [2.0**64, 2.0**63, 5.0]
    assert run.channels["m"].values.tolist() == [1, 2, 3, 2**63 - 1]
    assert _counts(run, "inexact-integers") == [1]


def test_a_field_and_a_dotted_column_of_one_name_are_both_kept(tmp_path: Path) -> None:
    columns = {"_step": pa.array([0, 1]), "a": pa.array([{"b": 1.0}, {"b": 2.0}]), "a.b": pa.array([3.0, 4.0])}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    run = read_run(tmp_path / "a.parquet")
    assert {n: c.values.tolist() for n, c in run.channels.items()} == {"a.b": [1.0, 2.0], "a.b#2": [3.0, 4.0]}
    assert _counts(run, "duplicate-column") == [1]


def test_unsigned_steps_of_an_archive_do_not_turn_negative(tmp_path: Path) -> None:
    steps = np.array([1, 2**63, 2**64 - 2**12], dtype=np.uint64)
    np.savez(tmp_path / "evaluations.npz", timesteps=steps, results=np.ones((3, 2)))
    run = read_run(tmp_path / "evaluations.npz")
    assert run.channels["results/0"].steps.tolist() == [1.0, 2.0**63, 2.0**64 - 2**12]
    assert [p.code for p in run.problems] == ["inexact-steps"]


def test_an_array_without_dimension_is_no_damage(tmp_path: Path) -> None:
    np.save(tmp_path / "loss.npy", np.float64(3))
    assert [p.code for p in read_run(tmp_path / "loss.npy").problems if p.code != "no-scalars"] == ["not-a-scalar"]


def test_a_numbered_column_does_not_meet_one_of_that_name(tmp_path: Path) -> None:
    run = _written(tmp_path / "a.csv", "step,loss,loss,loss#2\n0,1,2,3\n1,4,5,6\n")
    assert {n: c.values.tolist() for n, c in run.channels.items()} == {
        "loss": [1.0, 4.0],
        "loss#3": [2.0, 5.0],
        "loss#2": [3.0, 6.0],
    }


@pytest.mark.parametrize(
    ("record", "name", "value"),
    [
        ('{"step":%d,"loss":1,"loss":2}', "loss", 2.0),
        ('{"step":%d,"a":{"b":1},"a/b":2}', "a/b", 2.0),
        ('{"step":%d,"a":[1,2],"a/0":7}', "a/0", 1.0),
    ],
)
def test_a_key_that_a_record_holds_twice_is_said(tmp_path: Path, record: str, name: str, value: float) -> None:
    run = _written(tmp_path / "a.jsonl", "".join(record % i + "\n" for i in range(3)))
    assert run.channels[name].values.tolist() == [value] * 3
    assert _counts(run, "repeated-key") == [3]


def test_a_list_and_a_key_of_one_name_in_different_records_are_one_channel(tmp_path: Path) -> None:
    run = _written(tmp_path / "a.jsonl", '{"step":0,"a":{"0":5}}\n{"step":1,"a":[6]}\n{"step":2,"a":{"0":7}}\n')
    assert run.channels["a/0"].values.tolist() == [5.0, 6.0, 7.0]
    assert not _counts(run, "repeated-key")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("lines", [3, 4000])
def test_a_text_log_in_a_wide_encoding(tmp_path: Path, encoding: str, lines: int) -> None:
    """Windows PowerShell's ``>`` writes UTF-16."""
    (tmp_path / "a.log").write_bytes("".join(f"step: {i} loss: {i * 0.5}\n" for i in range(lines)).encode(encoding))
    run = read_run(tmp_path / "a.log")
    assert run.channels["loss"].values.tolist() == [i * 0.5 for i in range(lines)]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.log"])
def test_a_hole_near_the_beginning_costs_only_itself(tmp_path: Path, name: str) -> None:
    lines = {
        "a.csv": ["step,loss\n", *(f"{i},{i}\n" for i in range(20))],
        "a.jsonl": [f'{{"step":{i},"loss":{i}}}\n' for i in range(20)],
        "a.log": [f"step={i} loss={i}\n" for i in range(20)],
    }[name]
    (tmp_path / name).write_bytes(("".join(lines[:5]) + "\0" * 512 + "".join(lines[5:])).encode())
    run = read_run(tmp_path / name)
    assert run.channels["loss"].values.tolist() == [float(i) for i in range(20)]
    assert _counts(run, "zero-hole") == [512]


def test_rows_without_a_run_are_a_run_of_their_own(tmp_path: Path) -> None:
    """And do not take the rows of all others."""
    rows = "".join(f"{run},{s},loss,{s + k}\n" for k, run in enumerate(["a#b", "", "x y"]) for s in range(3))
    (tmp_path / "a.csv").write_text("run,step,tag,value\n" + rows)
    found = {r.id: r.channels["loss"].values.tolist() for r in scan_runs(tmp_path)}
    assert found == {"a.csv#a#b": [0.0, 1.0, 2.0], "a.csv": [1.0, 2.0, 3.0], "a.csv#x y": [2.0, 3.0, 4.0]}


def test_a_record_behind_a_half_one_is_read(tmp_path: Path) -> None:
    """A run was killed in the middle of a line and resumed into the same file."""
    text = '{"step":0,"loss":1}\n{"step":1,"lo{"step":2,"loss":3,"a":{"b":1}}\n{"step":3,"loss":4}\n'
    run = _written(tmp_path / "a.jsonl", text)
    assert run.channels["loss"].steps.tolist() == [0, 2, 3]
    assert run.channels["a/b"].values.tolist() == [1.0]
    assert _counts(run, "skipped-records") == [1]


def test_an_object_inside_a_half_record_is_no_record(tmp_path: Path) -> None:
    run = _written(tmp_path / "a.jsonl", '{"step":0,"loss":1}\n{"step":1,"a":{"loss":7}\n{"step":2,"loss":3}\n')
    assert {n: c.steps.tolist() for n, c in run.channels.items()} == {"loss": [0, 2]}


@pytest.mark.parametrize("cut", [0, 8])
def test_records_over_several_lines(tmp_path: Path, cut: int) -> None:
    text = "".join(json.dumps({"step": i, "loss": i / 2}, indent=2) + "\n" for i in range(5))
    run = _written(tmp_path / "a.jsonl", text[: len(text) - cut])
    assert run.channels["loss"].values.tolist() == [i / 2 for i in range(5 if not cut else 4)]
    assert [p.code for p in run.problems] == (["truncated-tail"] if cut else [])


def test_a_channel_without_a_name_is_kept(tmp_path: Path) -> None:
    run = _written(tmp_path / "a.jsonl", '{"step":0,"":1,"loss":1}\n{"step":1,"":2,"loss":3}\n')
    assert run.channels[""].values.tolist() == [1.0, 2.0]


def test_decimal_commas_beside_points_in_every_cell(tmp_path: Path) -> None:
    run = _written(tmp_path / "a.csv", "step;n\n" + "".join(f"{i};1.{i}00.000,5\n" for i in range(5)))
    assert run.channels["n"].values.tolist() == [1e6 + 1e5 * i + 0.5 for i in range(5)]


@pytest.mark.parametrize("name", sorted(log_samples.SAMPLES))
def test_a_step_that_cannot_be_chosen_is_refused_or_said(tmp_path: Path, name: str) -> None:
    path = log_samples.SAMPLES[name](tmp_path)
    for run in scan_runs(path, step="no such column"):
        try:
            codes = {p.code for p in run.problems}
        except InputError:
            continue
        assert codes & {"step-ignored", "no-step"}


def test_entries_of_an_array_that_are_no_records_are_counted(tmp_path: Path) -> None:
    run = _written(tmp_path / "a.json", '[{"step": 0, "loss": 1},\n5, null, {"step": 1, "loss": 2}]\n')
    assert run.channels["loss"].values.tolist() == [1.0, 2.0]
    assert _counts(run, "skipped-records") == [2]


def test_a_damaged_database_of_mlflow_is_named(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    (tmp_path / "other.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    scan = scan_runs(tmp_path)
    assert list(scan) == []
    assert [(p.code, p.file) for p in scan.problems] == [("not-a-log", "mlflow.db")]
