"""Sacred's file storage as Sacred wrote it, PyMARL's series, tensors that are never unpickled, and damage."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajscope.history import Run
from trajscope.readers import ReadOptions, read_run, scan_runs
from trajscope.readers.sacred import READER

DATA = Path(__file__).parent / "data" / "trackers" / "sacred"


def storage(kind: str, layout: str, values: list[float]) -> str:
    """The bytes of a one-dimensional storage in torch's old layout: a pickled description, the length, the elements."""
    body = b"\x80\x02ctorch\n" + kind.encode() + b"\nq\x01." + struct.pack("<q", len(values))
    return base64.b64encode(body + struct.pack("<" + layout * len(values), *values)).decode()


def tensor(
    kind: str = "FloatStorage", layout: str = "f", values: tuple[float, ...] = (0.25,), **changes: Any
) -> dict[str, Any]:
    load = {"py/function": "torch.storage._load_from_bytes"}
    inner = {"py/reduce": [load, {"py/tuple": [{"py/b64": storage(kind, layout, list(values))}]}]}
    arguments = [inner, changes.get("offset", 0), {"py/tuple": changes.get("size", [])}, {"py/tuple": []}, False, {}]
    function = changes.get("function", "torch._utils._rebuild_tensor_v2")
    return {"py/reduce": [{"py/function": function}, {"py/tuple": arguments}]}


def directory(tmp_path: Path, metrics: Any = None, info: Any = None, name: str = "1") -> Path:
    here = tmp_path / name
    here.mkdir(exist_ok=True)
    (here / "run.json").write_text('{"status": "COMPLETED", "start_time": "2026-01-01T00:00:00"}')
    (here / "config.json").write_text('{"lr": 0.5}')
    for file, content in (("metrics.json", metrics), ("info.json", info)):
        if content is not None:
            (here / file).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return here


def codes(run: Run) -> list[str]:
    return [p.code for p in run.problems]


def test_what_sacred_wrote() -> None:
    scan = scan_runs(DATA)
    [run] = scan
    assert run.id == "1"
    loss = run.channels["train.loss"]
    assert loss.steps.tolist() == list(range(0, 110, 5))
    np.testing.assert_allclose(loss.values[:20], 2.5 * np.exp(-np.arange(20) / 10), rtol=1e-15)
    np.testing.assert_array_equal(loss.values[20:], [np.nan, np.inf])
    assert loss.wall_time is not None
    assert 1.79e9 < loss.wall_time[0] < 1.80e9
    assert run.channels["val.acc"].values.tolist() == [0, 0.25, 0.5, 0.75]
    assert run.channels["return_mean"].values.tolist() == [0, 1.5, 3, 4.5]
    assert run.channels["return_mean"].steps.tolist() == [0, 100, 200, 300]
    assert run.config["lr"] == 0.1
    assert run.summary["_run"] == {**run.summary["_run"], "status": "COMPLETED", "experiment": "sample", "result": 0.25}
    assert scan.ignored == []


def test_numbered_directories_are_runs(tmp_path: Path) -> None:
    for k in (1, 2, 10):
        directory(tmp_path, {"x": {"steps": [0, 1], "values": [k, k], "timestamps": []}}, name=str(k))
    assert {r.id: r.channels["x"].values[0] for r in scan_runs(tmp_path)} == {"1": 1, "10": 10, "2": 2}


def test_missing_values_strings_and_large_integers(tmp_path: Path) -> None:
    metrics = {
        "x": {"steps": [0, 1, 2, 3], "values": [1.5, None, "nan", {"a": 1}]},
        "big": {"steps": [0, 1], "values": [2**60 + 1, 2**53 + 1]},
        "half": {"steps": [0.5, 1.5], "values": [1, 2]},
    }
    run = read_run(directory(tmp_path, metrics))
    assert run.channels["x"].counts == {"finite": 1, "nan": 1, "posinf": 0, "neginf": 0, "missing": 1}
    assert run.channels["big"].values.tolist() == [2**60 + 1, 2**53 + 1]
    assert run.channels["half"].steps.tolist() == [0.5, 1.5]
    assert codes(run) == ["not-a-scalar"]


@pytest.mark.parametrize(
    ("kind", "layout", "value"),
    [("FloatStorage", "f", 0.25), ("DoubleStorage", "d", 0.1), ("LongStorage", "q", 7), ("HalfStorage", "e", 1.5)],
)
def test_the_number_of_a_pickled_tensor_is_taken_without_unpickling(
    tmp_path: Path, kind: str, layout: str, value: float
) -> None:
    info = {"grad_norm": [tensor(kind, layout, (value,))] * 2, "grad_norm_T": [10, 20]}
    run = read_run(directory(tmp_path, {}, info))
    assert run.channels["grad_norm"].values.tolist() == [value, value]
    assert run.problems == ()


@pytest.mark.parametrize(
    "value",
    [
        tensor(values=(1.0, 2.0)),
        tensor(size=[1]),
        tensor(offset=1),
        tensor("IntStorage", "i", (1,)),
        tensor(function="os.system"),
        {"py/reduce": [{"py/function": "torch._utils._rebuild_tensor_v2"}, {"py/tuple": [{}, 0, {"py/tuple": []}]}]},
        {"py/reduce": []},
        {"py/reduce": [{"py/function": "torch._utils._rebuild_tensor_v2"}, None]},
        {"py/object": "os.system", "value": 1.0},
        [[1, 2], [3, 4]],
    ],
)
def test_what_is_no_number_is_counted(tmp_path: Path, value: Any) -> None:
    run = read_run(directory(tmp_path, {}, {"x": [value, 1.5], "x_T": [0, 1]}))
    assert run.channels["x"].values.tolist() == [1.5]
    assert codes(run) == ["not-a-scalar"]


def test_numbers_beyond_a_float_are_infinite_and_counted(tmp_path: Path) -> None:
    text = '{"x": [1%s, 1e400, Infinity, 2.5], "x_T": [0, 1, 2, 3], "y": [1, 2], "y_T": [1%s, 5]}' % (("0" * 400,) * 2)
    run = read_run(directory(tmp_path, {}, text.encode()))
    assert run.channels["x"].values.tolist() == [np.inf, np.inf, np.inf, 2.5]
    assert run.channels["y"].steps.tolist() == [5]
    assert {p.code: p.count for p in run.problems} == {"overflow": 2, "not-a-scalar": 1}


def test_lists_of_unequal_length(tmp_path: Path) -> None:
    run = read_run(directory(tmp_path, {}, {"x": [1.0, 2.0, 3.0], "x_T": [0, 1]}))
    assert run.channels["x"].steps.tolist() == [0, 1]
    assert codes(run) == ["ragged-row"]


def test_a_list_without_steps_is_numbered(tmp_path: Path) -> None:
    run = read_run(directory(tmp_path, {}, {"x": [1.0, 2.0, 3.0], "note": "text", "shape": [[1]]}))
    assert run.channels["x"].steps.tolist() == [0, 1, 2]
    assert codes(run) == ["no-step"]


def test_a_run_without_series(tmp_path: Path) -> None:
    run = read_run(directory(tmp_path, {}))
    assert (len(run.channels), codes(run)) == (0, ["no-scalars"])


def test_other_files_of_that_name_are_left_to_others(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_text('{"iteration": 1, "loss": 2.0}\n')
    assert not READER.can_read(path, path.read_bytes())


def test_cut_anywhere_nothing_earlier_is_lost(tmp_path: Path) -> None:
    metrics = {"a": {"steps": [0, 5], "values": [1.5, 2.5]}, "b": {"values": [3.5, 4.5, 5.5], "steps": [0, 1, 2]}}
    whole = json.dumps(metrics, indent=2).encode()
    behind_a = whole.index(b'"b"')
    for cut in range(1, len(whole)):
        here = directory(tmp_path, whole[:cut])
        scan = list(scan_runs(here))
        run = scan[0]
        if cut >= behind_a:
            assert run.channels["a"].values.tolist() == [1.5, 2.5]
        for name, values in (("a", [1.5, 2.5]), ("b", [3.5, 4.5, 5.5])):
            if name in run.channels:
                got = run.channels[name].values.tolist()
                assert got == values[: len(got)]
        assert "truncated-tail" in codes(run)


def test_a_cut_off_number_is_no_value(tmp_path: Path) -> None:
    run = read_run(directory(tmp_path, b'{"x": {"steps": [0, 1, 2], "values": [1.25, 2.5, 3'))
    assert run.channels["x"].values.tolist() == [1.25, 2.5]


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    here = directory(tmp_path_factory.mktemp("s"), b'{"x": {"steps": [0], "values": [1.5]}' + junk, b"{" + junk)
    [source] = READER.sources([here / "metrics.json"], "", ReadOptions(here))
    assert "x" not in source.series or source.series["x"].steps.size <= 1 + len(junk)


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["steps", "values", "py/reduce", "py/object", "value", "x_T"]), inner, max_size=3
            )
        ),
        max_leaves=12,
    )
)
def test_any_content(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    here = directory(
        tmp_path_factory.mktemp("s"),
        {"x": value, "y": {"steps": value, "values": [value]}},
        {"x": [value], "x_T": value},
    )
    READER.sources([here / "metrics.json"], "", ReadOptions(here))


def test_recorded_runs(shared_data: Path) -> None:
    root = shared_data / "logs" / "sacred"
    runs = list(scan_runs(root))
    assert len(runs) == len(list(root.rglob("info.json"))) == 9
    for run in runs:
        info = json.loads(Path(run.path).with_name("info.json").read_text())
        expected = {n for n in info if f"{n}_T" in info and not n.endswith("_C1")}
        assert set(run.channels) == expected
        for name in expected:
            assert run.channels[name].steps.tolist() == info[f"{name}_T"]
        assert 0 < float(run.channels["grad_norm"].values[0]) < 100 if "grad_norm" in run.channels else True
