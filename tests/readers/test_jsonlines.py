"""JSON records: flattening, literals, dialects of known loggers, damage; the fast path against the patient one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from trajscope.history import Run
from trajscope.readers import read_run, scan_runs
from trajscope.readers._jsonlines import fast_table, parse_records, records_table

Write = Callable[[str, Any], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write text, or objects one a line."""

    def inner(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return inner


def codes(run: Run) -> list[str]:
    return [p.code for p in run.problems]


def rows(n: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"step": i, "loss": 2.5 / (i + 1)} for i in range(start, start + n)]


def test_literals_and_strings_are_four_different_things(write: Write) -> None:
    lines = ["NaN", "Infinity", "-Infinity", '"NaN"', '"Infinity"', "null", "1e400", "0.5", '"0.25"']
    run = read_run(write("a.jsonl", "".join(f'{{"step": {i}, "loss": {v}}}\n' for i, v in enumerate(lines))))
    channel = run.channels["loss"]
    assert channel.counts == {"finite": 2, "nan": 2, "posinf": 3, "neginf": 1, "missing": 1}
    assert channel.steps.tolist() == [0, 1, 2, 3, 4, 6, 7, 8]


@pytest.mark.parametrize("filler", [0.5, None], ids=["fast path", "patient path"])
def test_numbers_beyond_a_float_are_infinite_and_counted(write: Write, filler: float | None) -> None:
    texts = ["1" + "0" * 400, "-1" + "0" * 400, "1e400", "1" + "0" * 70, "9" * 5000, "0.5"]
    lines = (f'{{"step": {i}, "loss": {v}, "other": {json.dumps(filler)}}}\n' for i, v in enumerate(texts))
    run = read_run(write("a.jsonl", "".join(lines)))
    np.testing.assert_array_equal(run.channels["loss"].values, [np.inf, -np.inf, np.inf, 1e70, np.inf, 0.5])
    said = [(p.code, p.severity, p.count, p.file) for p in run.problems]
    assert said == [("overflow", "info", 4, "a.jsonl"), ("inexact-integers", "info", 1, "a.jsonl")]


@pytest.mark.parametrize("values", [["Infinity", "0.5"], ["Infinity", "NaN"], ["-Infinity", "1" + "0" * 70, "3"]])
def test_written_infinities_are_no_overflow(write: Write, values: list[str]) -> None:
    lines = (f'{{"step": {i}, "loss": {v}}}\n' for i, v in enumerate(values))
    run = read_run(write("a.jsonl", "".join(lines)))
    np.testing.assert_array_equal(run.channels["loss"].values, [float(v) for v in values])
    assert not [p for p in run.problems if p.code != "inexact-integers"]


def test_nested_objects_lists_settings_and_media(write: Write) -> None:
    record = {
        "loss": {"total": 1.5, "parts": [1.0, 2.0]}, "info": {"learner": {"kl": 0.01}}, "date": "2024-01-01",
        "done": False, "config": {"lr": 0.1}, "picture": {"_type": "image-file", "size": 3}, "ok": True,
    }  # fmt: skip
    growing = [{**record, "step": i, "returns": list(range(i))} for i in range(5)]
    run = read_run(write("a.jsonl", growing))
    assert sorted(run.channels) == ["info/learner/kl", "loss/parts/0", "loss/parts/1", "loss/total", "ok"]
    assert run.config == {"lr": 0.1}
    assert "not-a-scalar" in codes(run)


def test_absent_is_not_missing_and_null_is(write: Write) -> None:
    run = read_run(write("a.jsonl", [{"step": 0, "a": 1, "b": 1}, {"step": 1, "a": 2}, {"step": 2, "a": 3, "b": None}]))
    assert run.channels["b"].n_missing == 1
    assert len(run.channels["b"]) == 1


def test_big_integers_stay_exact(write: Write) -> None:
    run = read_run(write("a.jsonl", [{"step": 2**62 + 1, "n": 2**53 + 1}, {"step": 2**62 + 3, "n": 1}]))
    assert run.channels["n"].steps.tolist() == [2**62 + 1, 2**62 + 3]
    assert run.channels["n"].values.tolist() == [2**53 + 1, 1]
    huge = read_run(write("b.jsonl", '{"step": 0, "n": 1' + "0" * 400 + '}\n{"step": 1, "n": 2}\n'))
    assert huge.channels["n"].counts["posinf"] == 1


def test_half_line_bad_line_and_glued_records(write: Write) -> None:
    text = '{"step": 0, "loss": 3}{"step": 1, "loss": 2}\n{"step": 2, "lo!!\n{"step": 3, "loss": 1}\n{"step": 4, "lo'
    run = read_run(write("a.jsonl", text))
    assert run.channels["loss"].steps.tolist() == [0, 1, 3]
    assert {p.code: p.place for p in run.problems} == {"half-line": "line 4", "skipped-records": "line 2"}


def test_array_of_objects_and_a_cut_one(write: Write) -> None:
    text = json.dumps(rows(20))
    assert len(read_run(write("a.json", text)).channels["loss"]) == 20
    cut = read_run(write("b.json", text[: text.rindex("{") + 5]))
    assert len(cut.channels["loss"]) == 19
    assert codes(cut) == ["truncated-tail"]


@pytest.mark.parametrize("indent", [None, 2, 4])
def test_an_array_however_it_is_printed(write: Write, tmp_path: Path, indent: int | None) -> None:
    write("history.json", json.dumps(rows(6), indent=indent))
    write("packages.json", json.dumps([{"name": "numpy", "version": "2.0"}] * 3, indent=indent))
    (run,) = scan_runs(tmp_path)
    assert run.channels["loss"].values.tolist() == [r["loss"] for r in rows(6)]


def test_tensorboard_web_export(write: Write) -> None:
    run = read_run(write("run-x-tag-acc.json", json.dumps([[1.7e9, 0, 0.5], [1.7e9 + 1, 1, 0.75]])))
    assert run.channels["acc"].values.tolist() == [0.5, 0.75]
    assert run.sampled


def test_resume_overlap_is_superseded(write: Write) -> None:
    run = read_run(write("a.jsonl", rows(40) + rows(30, 30)))
    assert len(run.channels["loss"]) == 60
    assert len(run.superseded["loss"]) == 10


def test_fairseq_prefix_strings_and_counters_of_validation(write: Write) -> None:
    lines = [
        f'2024-01-01 00:00:0{i} | INFO | train_inner | {{"epoch": 1, "loss": "{3 - i}.5", "num_updates": "{10 * i}"}}'
        for i in range(3)
    ]
    lines.insert(0, "2024-01-01 00:00:00 | INFO | fairseq_cli.train | task: LanguageModelingTask")
    lines.append('2024-01-01 00:00:09 | INFO | valid | {"epoch": 1, "valid_loss": "2.5", "valid_num_updates": "20"}')
    run = read_run(write("train.log", "\n".join(lines) + "\n"))
    assert run.channels["loss"].values.tolist() == [3.5, 2.5, 1.5]
    assert run.channels["valid_loss"].steps.tolist() == [20]
    assert run.channels["loss"].wall_time is not None
    assert run.channels["loss"].wall_time[0] == 1704067200.0


def mmengine() -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for epoch in (1, 2):
        for i in (1, 2, 3):
            n = 3 * (epoch - 1) + i
            out.append({"lr": 0.1, "loss": 3.0 / n, "time": 0.5, "epoch": epoch, "iter": n, "step": n})
        out.append({"accuracy/top1": 40.0 + epoch, "time": 0.1, "step": epoch})
    return out


def test_mmengine_validation_rows_have_an_axis_of_their_own(write: Write) -> None:
    write("vis_data/scalars.json", mmengine())
    runs = list(scan_runs(write("vis_data/20230605_200941.json", mmengine()).parent))
    assert len(runs) == 1
    run = runs[0]
    assert run.channels["val/accuracy/top1"].steps.tolist() == [3, 6]
    assert run.channels["val/time"].values.tolist() == [0.1, 0.1]
    assert run.channels["time"].steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert {"duplicate-file", "validation-axis"} <= set(codes(run))


def test_mmdetection_mode_and_iterations_inside_an_epoch(write: Write) -> None:
    lines: list[dict[str, Any]] = [{"env_info": "linux", "seed": 1}]
    for epoch in (1, 2, 3):
        lines += [{"mode": "train", "epoch": epoch, "iter": i, "lr": 0.1, "loss": 1.0} for i in (50, 100)]
        lines.append({"mode": "val", "epoch": epoch, "iter": 31, "lr": 0.1, "bbox_mAP": 0.1 * epoch})
    run = read_run(write("20200101_000000.log.json", lines))
    assert run.config["env_info"] == "linux"
    assert run.channels["loss"].steps.tolist() == [50, 100, 150, 200, 250, 300]
    assert run.channels["val/bbox_mAP"].steps.tolist() == [100, 200, 300]


@pytest.mark.parametrize(
    ("name", "records", "step", "channel"),
    [
        (
            "log.txt",
            [{"train_loss": 1.0, "test_coco": [0.1, 0.2], "epoch": e} for e in range(3)],
            "epoch",
            "test_coco/1",
        ),
        ("metrics.json", [{"iteration": 20 * i, "total_loss": 1.0} for i in range(3)], "iteration", "total_loss"),
        (
            "trainer_log.jsonl",
            [{"current_steps": i, "total_steps": 9, "loss": 1.0, "elapsed_time": "0:00:10"} for i in range(3)],
            "current_steps",
            "loss",
        ),
        ("wandb-history.jsonl", [{"_step": i, "_timestamp": 1.7e9, "loss": 1.0} for i in range(3)], "_step", "loss"),
    ],
)
def test_step_of_known_loggers(write: Write, name: str, records: list[dict[str, Any]], step: str, channel: str) -> None:
    run = read_run(write(name, records))
    assert run.provenance["step"] == [step]
    assert len(run.channels[channel]) == 3


def test_settings_files_and_lone_objects_are_no_logs(write: Write) -> None:
    write("config.json", '{"lr": 0.1, "epoch": 3, "loss": "mse"}')
    write("final.json", '{"epoch": 3, "loss": 0.5}')
    write("package.json", json.dumps({"name": "x", "loss": 1}, indent=2))
    scan = scan_runs(write("notes.txt", "nothing").parent)
    assert list(scan) == []


def test_settings_in_front_of_a_text_log_do_not_take_the_file(write: Write) -> None:
    lines = "".join(f"step:{i} loss:{i}.5\n" for i in range(9))
    run = read_run(write("train.log", '{"lr": 0.1, "epoch": 3}\n' + lines))
    assert run.format == "text"
    assert len(run.channels["loss"]) == 9
    assert read_run(write("log.txt", [{"epoch": 0, "train_loss": 1.5}])).format == "jsonlines"


def test_deep_nesting_costs_its_line_only(write: Write) -> None:
    deep = '{"step": 1, "a": ' + '{"a":' * 100000 + "1" + "}" * 100000 + "}\n"
    run = read_run(write("a.jsonl", '{"step": 0, "loss": 1}\n' + deep + '{"step": 2, "loss": 3}\n'))
    assert run.channels["loss"].steps.tolist() == [0, 2]


FINITE = st.floats(allow_nan=False, allow_infinity=False)
RECORD = st.fixed_dictionaries(
    {"step": st.integers(0, 2**40), "loss": FINITE},
    optional={"nested": st.fixed_dictionaries({"a": FINITE}), "flag": st.booleans(), "n": st.integers(-(2**60), 2**60)},
)


@settings(max_examples=60, deadline=None)
@given(st.lists(RECORD, min_size=1, max_size=20))
def test_fast_path_equals_patient_path(records: list[dict[str, Any]]) -> None:
    floats = [v for r in records for v in (r["loss"], r.get("nested", {}).get("a", 0.0))]
    # A long integer beside a large float sends the file to the patient path: it may have been rounded.
    assume(max(map(abs, floats)) < 2**53 or all(abs(r.get("n", 0)) < 2**53 for r in records))
    data = "".join(json.dumps(r) + "\n" for r in records).encode()
    fast = fast_table(data, "f")
    assert fast is not None
    slow, _ = records_table(parse_records(data, "f"), "f")
    assert {c.name for c in fast.columns} == {c.name for c in slow.columns}
    for column in fast.columns:
        other = slow.get(column.name)
        assert other is not None
        np.testing.assert_array_equal(column.values, other.values)
        assert column.values.dtype == other.values.dtype
        assert (column.rows is None) == (other.rows is None)
        if column.rows is not None and other.rows is not None:
            np.testing.assert_array_equal(column.rows, other.rows)


def test_fast_path_hands_over_what_it_cannot_tell_apart() -> None:
    for line in (
        b'{"a": null}',
        b'{"config": {"lr": 1}}',
        b'{"m": {"_type": "image"}}',
        b'{"a": [1]}',
        b'{"a": 1',
        b"x",
    ):
        assert fast_table(line + b"\n", "f") is None


DATA = "".join(json.dumps(r) + "\n" for r in rows(12)).encode()


def test_truncation_at_every_byte_keeps_the_records_before(write: Write) -> None:
    whole = [r["loss"] for r in rows(12)]
    for cut in range(len(DATA)):
        run = read_run(write("a.jsonl", DATA[:cut]))
        complete = DATA[:cut].count(b"\n")
        if complete:
            assert run.channels["loss"].values.tolist()[:complete] == whole[:complete]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, len(DATA) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_never_raises_and_costs_at_most_its_line(write: Write, position: int, byte: int) -> None:
    run = read_run(write("a.jsonl", DATA[:position] + bytes([byte]) + DATA[position + 1 :]))
    # a changed newline glues two records, which both stay; anything else concerns one
    assert max(len(c) for c in run.channels.values()) >= 11 or run.superseded


def test_steps_beyond_the_integers_are_said_to_be_inexact(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(f'{{"step": {10**30 + i}, "loss": {i}}}' for i in range(20)))
    assert "inexact-steps" in [p.code for p in read_run(path).problems]


def test_old_wandb_history_has_its_settings_and_summary_beside_it(tmp_path: Path) -> None:
    records = ({"_step": s, "_timestamp": 1.54e9 + s, "_runtime": s, "loss": 1 / (s + 1)} for s in range(3))
    (tmp_path / "wandb-history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (tmp_path / "config.yaml").write_text("wandb_version: 1\n_wandb:\n  value: {}\nlr:\n  desc: null\n  value: 0.1\n")
    (tmp_path / "wandb-summary.json").write_text('{"best": 0.25}')
    run = read_run(tmp_path / "wandb-history.jsonl")
    assert (dict(run.config), dict(run.summary)) == ({"lr": 0.1}, {"best": 0.25})
    wall = run.channels["loss"].wall_time
    assert wall is not None
    assert wall.tolist() == [1.54e9, 1.54e9 + 1, 1.54e9 + 2]
