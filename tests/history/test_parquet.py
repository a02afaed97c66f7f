"""Runs and trajectories through Parquet and back: nothing may change, and damage is one sentence."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trajscope.errors import InputError, ReadError, SeveralRuns
from trajscope.history import (
    Channel,
    Problem,
    Run,
    RunData,
    Segment,
    Series,
    Source,
    Trajectory,
    align,
    assemble,
    parquet_run_ids,
    read_parquet_run,
    write_runs,
)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "f" else array


def same_channel(a: Channel, b: Channel) -> None:
    assert (a.name, a.role, a.role_confidence, a.sampled) == (b.name, b.role, b.role_confidence, b.sampled)
    assert (a.n_missing, a.n_duplicates) == (b.n_missing, b.n_duplicates)
    for field in ("steps", "values", "segment"):
        left, right = getattr(a, field), getattr(b, field)
        assert left.dtype == right.dtype, field
        np.testing.assert_array_equal(bits(left), bits(right))
    assert (a.wall_time is None) == (b.wall_time is None)
    if a.wall_time is not None:
        np.testing.assert_array_equal(a.wall_time, b.wall_time)


def same_run(a: Run, b: Run) -> None:
    assert list(a.channels) == list(b.channels)
    assert list(a.superseded) == list(b.superseded)
    for name in a.channels:
        same_channel(a.channels[name], b.channels[name])
    for name in a.superseded:
        same_channel(a.superseded[name], b.superseded[name])
    assert [asdict(s) for s in a.segments] == [asdict(s) for s in b.segments]
    assert a.problems == b.problems
    assert dict(a.config) == dict(b.config)
    assert dict(a.summary) == dict(b.summary)


def rich_run(name: str = "r") -> Run:
    step = np.arange(5, dtype=np.int64)
    payload = np.array([0x7FC01234, 0xFFC00001, 0x3F800000, 0x7F800000, 0xFF800000], dtype=np.uint32).view(np.float32)
    double = np.array([0x7FF8000000001234, 0xFFF8000000000001, 0, 1, 2**63], dtype=np.uint64).view(np.float64)
    channels = {
        "z last": Channel("z last", step, payload, role="loss", role_confidence=1.0, n_missing=3),
        "double": Channel("double", step, double, wall_time=np.array([1.5e9, np.nan, 1.5e9, 1.5e9, np.nan])),
        "tokens": Channel("tokens", step, np.array([2**62, -(2**63), 2**53 + 1, 0, 1], dtype=np.int64)),
        "small": Channel("small", step, np.array([1, 2, 3, 4, 5], dtype=np.int32), n_duplicates=7),
        "flag": Channel("flag", step, np.array([True, False, True, True, False])),
        "half": Channel("half", step, np.array([1, 2, np.nan, np.inf, 5], dtype=np.float16), sampled=True),
        "fraction": Channel("fraction", np.array([0.5, 1.25]), np.array([1.0, 2.0])),
        "far": Channel("far", np.array([2**53 + 1, 2**62], dtype=np.int64), np.array([1.0, 2.0])),
        "empty": Channel("empty", np.zeros(0, np.int64), np.zeros(0, np.float32), n_missing=9),
        "a <b>&\x1b[31m": Channel("a <b>&\x1b[31m", step, np.arange(5.0)),
    }
    dead = {"double": Channel("double", step[3:], double[3:] + 1, segment=np.zeros(2, np.int16))}
    return Run(
        name,
        RunData(
            channels,
            {"lr": 0.1, "net": {"layers": [64, 64]}},
            {"best": 0.5},
            (Segment(0, "start", 0, 0.0, 4.0, "f", 1.5e9), Segment(1, "supersedes", 0, 3.0, 4.0, "g")),
            dead,
            (Problem("truncated-tail", "info", "cut", "f", "byte 12", 2),),
            {"files": ["f"]},
        ),
        format="tensorboard",
    )


def test_a_run_comes_back_bit_for_bit(tmp_path: Path) -> None:
    run = rich_run()
    path = write_runs(run, tmp_path / "r.parquet")
    back = read_parquet_run(path)
    same_run(run, back)
    assert back.format == "tensorboard"
    assert back.provenance["files"] == ["f"]


def test_several_runs_keep_apart(tmp_path: Path) -> None:
    names = ["b", "a", "a10", "a1", "ä"]
    runs = [rich_run(n).replace(config={"name": n}) for n in names]
    path = write_runs(runs, tmp_path / "many.parquet")
    assert parquet_run_ids(path) == names
    assert pq.ParquetFile(path).num_row_groups == len(names)
    for run in runs:
        same_run(run, read_parquet_run(path, run.id))
    with pytest.raises(SeveralRuns, match="holds 5 runs"):
        read_parquet_run(path)
    with pytest.raises(ReadError, match=r"no run 'a11'. Did you mean 'a1"):
        read_parquet_run(path, "a11")


def test_float32_stays_narrow(tmp_path: Path) -> None:
    values = np.float32([0.1, np.nan, 3])
    path = write_runs(Run("r", RunData({"x": Channel("x", np.arange(3), values)})), tmp_path / "r.parquet")
    assert pq.read_schema(path).field("value").type == pa.float32()
    assert read_parquet_run(path).channels["x"].values.dtype == np.float32


def test_a_run_without_channels(tmp_path: Path) -> None:
    path = write_runs([Run("none", RunData()), rich_run("some")], tmp_path / "r.parquet")
    assert len(read_parquet_run(path, "none").channels) == 0
    same_run(rich_run("some"), read_parquet_run(path, "some"))
    assert parquet_run_ids(write_runs([], tmp_path / "empty.parquet")) == []


def test_two_runs_of_one_name_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two runs are called 'r'"):
        write_runs([rich_run(), rich_run()], tmp_path / "r.parquet")
    assert list(tmp_path.iterdir()) == []


def test_an_error_while_writing_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> RunData:
        raise ReadError("gone")

    with pytest.raises(ReadError, match="gone"):
        write_runs([rich_run(), Run("lazy", broken)], tmp_path / "r.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_superseded_branch_survives(tmp_path: Path) -> None:
    first = Series(np.arange(10), np.arange(10.0), np.arange(10.0))
    second = Series(np.arange(6, 12), 100.0 + np.arange(6), 1000.0 + np.arange(6))
    data = assemble([Source("a", {"loss": first}), Source("b", {"loss": second})])
    back = read_parquet_run(write_runs(Run("r", data), tmp_path / "r.parquet"))
    same_run(Run("r", data), back)
    assert back.superseded["loss"].values.tolist() == [6.0, 7.0, 8.0, 9.0]


def test_a_table_of_another_writer_need_not_be_sorted(tmp_path: Path) -> None:
    meta = {"schema_version": 1, "runs": {"a": {}, "b": {"config": {"lr": 1}}}, "channels": {"x": {"role": "loss"}}}
    rows = [("b", "x", 2, 1.0), ("a", "y", 0, 5.0), ("b", "y", 1, 2.0), ("b", "x", 3, 3.0), ("a", "x", 9, 4.0)]
    table = pa.table(
        {
            "run": pa.array([r[0] for r in rows]),
            "segment": pa.array([0] * 5, pa.int16()),
            "channel": pa.array([r[1] for r in rows]),
            "step": pa.array([r[2] for r in rows], pa.int64()),
            "wall_time": pa.nulls(5, pa.float64()),
            "value": pa.array([r[3] for r in rows], pa.float64()),
        }
    ).replace_schema_metadata({"trajscope": json.dumps(meta)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    b = read_parquet_run(tmp_path / "t.parquet", "b")
    assert b.channels["x"].steps.tolist() == [2, 3]
    assert b.channels["x"].role == "loss"
    assert b.channels["y"].values.tolist() == [2.0]
    assert b.segments == (Segment(0, "start", 0, 1.0, 3.0),)
    assert read_parquet_run(tmp_path / "t.parquet", "a").channels["x"].steps.tolist() == [9]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"trajscope": b"{"}, "not a readable Parquet file"),
        ({b"trajscope": b"[1]"}, "schema version None"),
        ({b"trajscope": b'{"schema_version": 2}'}, "schema version 2"),
        ({b"trajscope": b'{"schema_version": 1}'}, "list no runs"),
        ({b"trajscope": b'{"schema_version": 1, "runs": {"r": 3}}'}, "cannot be used"),
        ({b"trajscope": b'{"schema_version": 1, "runs": {"r": {"segments": [{"what": 1}]}}}'}, "cannot be used"),
        ({b"trajscope": b'{"schema_version": 1, "runs": {"r": {"channels": {"x": {"dtype": "wow"}}}}}'}, "cannot be"),
        ({b"other": b""}, "not written by trajscope"),
    ],
)
def test_metadata_that_lie(tmp_path: Path, change: dict[bytes, bytes], message: str) -> None:
    path = write_runs(Run("r", RunData({"x": Channel("x", np.arange(3), np.arange(3.0))})), tmp_path / "r.parquet")
    pq.write_table(pq.read_table(path).replace_schema_metadata(change), path)
    with pytest.raises(ReadError, match=message):
        read_parquet_run(path, "r")


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = write_runs(Run("r", RunData({"x": Channel("x", np.arange(3), np.arange(3.0))})), tmp_path / "r.parquet")
    pq.write_table(pq.read_table(path).drop_columns(["value"]), path)
    with pytest.raises(ReadError, match="column 'value' is missing"):
        read_parquet_run(path)


def test_damage_anywhere_is_one_sentence_or_nothing(tmp_path: Path) -> None:
    run = Run("r", RunData({"x": Channel("x", np.arange(30), np.arange(30.0))}))
    whole = write_runs(run, tmp_path / "r.parquet").read_bytes()
    damaged = tmp_path / "d.parquet"
    flips = [(i, whole[:i] + bytes([whole[i] ^ 0x41]) + whole[i + 1 :]) for i in range(0, len(whole), 7)]
    cuts = [(i, whole[:i]) for i in range(0, len(whole), 11)]
    said = []
    for _, content in flips + cuts:
        damaged.write_bytes(content)
        try:
            read_parquet_run(damaged)
        except (ReadError, SeveralRuns) as problem:
            said.append(str(problem))
    assert len(said) >= len(cuts)
    assert not [text for text in said if "\n" in text]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="No such file"):
        read_parquet_run(tmp_path / "none.parquet")


KINDS = [np.float64, np.float32, np.float16, np.int64, np.int32, np.uint8, np.uint64, np.bool_]


@st.composite
def channels(draw: Any) -> dict[str, Channel]:
    out: dict[str, Channel] = {}
    for name in draw(st.lists(st.text(min_size=1, max_size=5), max_size=4, unique=True)):
        n = draw(st.integers(0, 6))
        kind = draw(st.sampled_from(KINDS))
        values = draw(hnp.arrays(kind, n))
        steps = np.sort(draw(hnp.arrays(draw(st.sampled_from([np.int64, np.float64])), n)))
        steps = steps if not np.isnan(steps.astype(float)).any() else np.arange(n)
        wall = draw(st.none() | hnp.arrays(np.float64, n, elements=st.floats(0, 2e9)))
        out[name] = Channel(name, steps, values, wall_time=wall if n else None, segment=np.zeros(n, np.int16))
    return out


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(channels())
def test_any_channels_come_back(tmp_path: Path, made: dict[str, Channel]) -> None:
    run = Run("r", RunData(made))
    back = read_parquet_run(write_runs(run, tmp_path / "h.parquet"))
    assert list(back.channels) == list(made)
    for name, channel in made.items():
        found = back.channels[name]
        assert found.values.dtype == channel.values.dtype
        assert found.steps.dtype == channel.steps.dtype
        np.testing.assert_array_equal(found.values, channel.values)
        np.testing.assert_array_equal(found.steps, channel.steps)
        if channel.wall_time is not None:
            np.testing.assert_array_equal(found.wall_time, channel.wall_time)


def test_a_trajectory_comes_back(tmp_path: Path) -> None:
    loss = Channel("loss", np.arange(6), np.array([3.0, np.nan, np.inf, -np.inf, 2.0, 1.0]), role="loss")
    val = Channel("val", np.array([1, 4]), np.float32([5, 6]))
    trajectory = align(Run("r", RunData({"loss": loss, "val": val})))
    trajectory.to_parquet(tmp_path / "t.parquet")
    back = Trajectory.from_parquet(tmp_path / "t.parquet")
    for field in ("values", "steps", "mask", "codes", "segment"):
        left, right = getattr(trajectory, field), getattr(back, field)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    assert (back.names, back.roles, back.stride, back.x, back.run) == (
        trajectory.names, trajectory.roles, trajectory.stride, trajectory.x, trajectory.run,
    )  # fmt: skip


def test_a_run_is_no_trajectory_and_the_other_way_round(tmp_path: Path) -> None:
    run = Run("r", RunData({"x": Channel("x", np.arange(3), np.arange(3.0))}))
    write_runs(run, tmp_path / "r.parquet")
    align(run).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ReadError, match="not a trajectory"):
        Trajectory.from_parquet(tmp_path / "r.parquet")
    with pytest.raises(ReadError, match="not written by trajscope"):
        read_parquet_run(tmp_path / "t.parquet")
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(ReadError, match="not a readable Parquet file"):
        Trajectory.from_parquet(tmp_path / "x.parquet")
