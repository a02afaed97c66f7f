"""Delimited text: each writer's shape, every spelling of a cell, damage, and what is no log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trajscope.errors import InputError
from trajscope.history import Run
from trajscope.readers import read_run, scan_runs
from trajscope.readers._bytes import clean_bytes
from trajscope.readers._cells import parse_number
from trajscope.readers._csvparse import parse_delimited
from trajscope.readers._dialect import sniff

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write text or bytes to a file of the temporary directory."""

    def inner(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return inner


def codes(run: Run) -> list[str]:
    return [p.code for p in run.problems]


def table(rows: int, *, start: int = 0, columns: str = "step,loss,lr", end: str = "\n", sep: str = ",") -> str:
    body = [sep.join((str(i), f"{2.5 / (i + 1):.6f}", f"{0.001 * (i + 1):.6f}")) for i in range(start, start + rows)]
    return end.join([columns.replace(",", sep), *body]) + end


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (table(30).encode(), None),
        (table(30, sep="\t").encode(), None),
        (table(30, sep=";").encode(), None),
        (table(30, sep="|").encode(), None),
        (table(30, sep="  ").encode(), None),
        (table(30, end="\r\n").encode("utf-8-sig"), None),
        (table(30).encode("utf-16"), None),
        (table(30).encode("utf-16-be"), None),
        (table(30).encode("utf-32"), None),
        (table(30, sep=";").replace(".", ",").encode(), None),
        (table(30).encode() + bytes(512), "zero-tail"),
        (table(30).encode() + b"30,0.4", "half-line"),
        (("# a note\n" + table(30)).encode(), None),
        (table(30).replace("step", "step#").replace("step#,loss", "#step,loss").encode(), None),
    ],
)
def test_shapes_of_a_file_read_to_the_same_numbers(write: Write, content: bytes, note: str | None) -> None:
    run = read_run(write("a.csv", content))
    loss = run.channels["loss"]
    assert loss.steps.tolist() == list(range(30))
    np.testing.assert_array_equal(loss.values, [float(f"{2.5 / (i + 1):.6f}") for i in range(30)])
    assert codes(run) == ([note] if note else [])


def test_numbers_are_read_exactly(write: Write) -> None:
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, 2.2250738585072014e-308, 123456789.123456789]
    run = read_run(write("a.csv", "step,x\n" + "".join(f"{i},{v!r}\n" for i, v in enumerate(values))))
    assert run.channels["x"].values.tolist() == values


def test_integers_beyond_2_to_the_53_stay_exact(write: Write) -> None:
    run = read_run(write("a.csv", f"step,n\n{2**62},{2**53 + 1}\n{2**62 + 1},7\n"))
    channel = run.channels["n"]
    assert channel.values.dtype == np.int64
    assert channel.values.tolist() == [2**53 + 1, 7]
    assert channel.steps.tolist() == [2**62, 2**62 + 1]


def test_cell_spellings(write: Write) -> None:
    cells = [
        "NaN", "nan", "inf", "-inf", "Infinity", "-Infinity", "", "None", "null", "N/A", "1e400", "1.5e-3",
        "tensor(0.25, device='cuda:0')", "[0.1]", '"0,5"', "1_000", "True", "12.5%",
    ]  # fmt: skip
    body = "".join(f'{i},"{c}"\n' if "," in c and c[0] != '"' else f"{i},{c}\n" for i, c in enumerate(cells))
    run = read_run(write("a.csv", "step,value\n" + body))
    channel = run.channels["value"]
    assert channel.counts == {"finite": 5, "nan": 2, "posinf": 3, "neginf": 2, "missing": 6}
    assert channel.values[np.isfinite(channel.values)].tolist() == [1.5e-3, 0.25, 0.1, 1.0, 12.5]
    assert {"bad-cell", "overflow", "wrapped-number", "unit-stripped"} <= set(codes(run))


@pytest.mark.parametrize(
    ("cell", "comma", "value"),
    [
        ("11,633", False, 11633.0),
        ("11,633", True, 11.633),
        ("1.234,5", True, 1234.5),
        ("0,5", False, None),
        ("-1.#IND", False, np.nan),
        ("∞", False, np.inf),
        ("np.float64(0.5)", False, 0.5),
        ("array([0.5], dtype=float32)", False, 0.5),
        ("2024-01-01", False, None),
        ("x" * 1000, False, None),
        ("1" * 400, False, float("inf")),
        ("1" * 2000, False, None),
    ],
)
def test_parse_number(cell: str, comma: bool, value: float | None) -> None:
    found, _ = parse_number(cell, decimal_comma=comma)
    if value is None:
        assert found is None
    else:
        assert found == value or (found != found and value != value)


def test_a_date_column_is_text_and_not_a_number(write: Write) -> None:
    run = read_run(write("a.csv", "step,date,loss\n0,2024-01-01,1\n1,2024-01-02,2\n2,2024-01-03,3\n"))
    assert list(run.channels) == ["loss"]


def test_sparse_rows_become_series_with_their_own_steps(write: Write) -> None:
    lines = ["epoch,step,train_loss_step,train_loss_epoch,val_loss"]
    for epoch in range(5):
        lines += [f"{epoch},{10 * epoch + i},{3 - i / 10},," for i in range(10)]
        lines += [f"{epoch},{10 * epoch + 9},,,{2.5 - epoch}", f"{epoch},{10 * epoch + 9},,{2 - epoch},"]
    path = write("lightning_logs/version_0/metrics.csv", "\n".join(lines) + "\n")
    write("lightning_logs/version_0/hparams.yaml", "lr: 1.0e-05\nnet:\n  layers: [64, 64]\n")
    run = read_run(path)
    assert {n: len(c) for n, c in run.channels.items()} == {
        "epoch": 50, "train_loss_step": 50, "train_loss_epoch": 5, "val_loss": 5,
    }  # fmt: skip
    assert run.channels["val_loss"].steps.tolist() == [9, 19, 29, 39, 49]
    assert run.channels["val_loss"].n_missing == 55
    assert run.config == {"lr": 1e-05, "net": {"layers": [64, 64]}}
    assert len(run.segments) == 1


def test_log_that_begins_in_a_later_epoch_says_so(write: Write) -> None:
    assert codes(read_run(write("metrics.csv", "epoch,step,loss\n10,500,1\n10,501,2\n"))) == ["late-start"]
    assert codes(read_run(write("metrics.csv", "epoch,step,loss\n0,0,1\n1,1,2\n"))) == []


def test_repeated_header_is_dropped_and_its_overlap_superseded(write: Write) -> None:
    run = read_run(write("a.csv", table(20, columns="epoch,loss,lr") + table(10, start=15, columns="epoch,loss,lr")))
    assert len(run.channels["loss"]) == 25
    assert len(run.superseded["loss"]) == 5
    assert [s.first_step for s in run.segments] == [0, 15]
    assert "repeated-header" in codes(run)


def test_grown_header_opens_new_columns(write: Write) -> None:
    grown = "step,val_loss,loss,lr\n" + "".join(f"{i},{i},{2 * i},{3 * i}\n" for i in range(20, 30))
    run = read_run(write("a.csv", table(20) + grown))
    assert len(run.channels["loss"]) == 30
    assert run.channels["val_loss"].steps.tolist() == list(range(20, 30))
    assert run.channels["lr"].values[-1] == 87
    assert "grown-header" in codes(run)


def test_epoch_that_starts_again_is_a_restart_and_nothing_is_merged(write: Write) -> None:
    body = "".join(f"{e},{k}\n" for k in (0, 1) for e in range(20))
    run = read_run(write("training.log", "epoch,loss\n" + body))
    assert len(run.channels["loss"]) == 40
    assert [s.kind for s in run.segments] == ["start", "restart"]
    offset = read_run(write("training.log", "epoch,loss\n" + body), resume="offset")
    assert offset.channels["loss"].steps.tolist() == list(range(40))


def test_batch_that_starts_again_in_every_epoch_is_a_position_in_it(write: Write) -> None:
    body = "".join(f"{e},{b},{e + b}\n" for e in range(3) for b in range(0, 100, 10))
    run = read_run(write("a.csv", "epoch,batch,loss\n" + body))
    assert run.channels["loss"].steps.tolist() == list(range(0, 300, 10))
    assert "step-derived" in codes(run)
    assert run.provenance["step"] == ["epoch+batch"]


def test_repeated_steps_are_duplicates_and_no_resume(write: Write) -> None:
    rows = ["global_step,loss,validation/loss"]
    rows += [f"{i},{i},\n{i},{i + 0.5},{i}" if i % 5 == 0 else f"{i},{i}," for i in range(30)]
    run = read_run(write("measurements.csv", "\n".join(rows) + "\n"))
    assert len(run.segments) == 1
    assert run.channels["loss"].n_duplicates == 6
    assert run.channels["loss"].values[5] == 5.5


def test_duplicate_columns_are_numbered(write: Write) -> None:
    run = read_run(write("a.csv", "step,loss,loss,loss\n0,1,2,3\n1,4,5,6\n"))
    assert {n: c.values.tolist() for n, c in run.channels.items()} == {
        "loss": [1, 4], "loss#2": [2, 5], "loss#3": [3, 6],
    }  # fmt: skip
    assert "duplicate-column" in codes(run)


def test_glued_row_is_left_out_and_ragged_tail_is_kept(write: Write) -> None:
    glued = table(10) + "10,0.2,0.0111,0.2,0.012\n" + table(5, start=12).split("\n", 1)[1]
    run = read_run(write("a.csv", glued))
    assert len(run.channels["loss"]) == 15
    assert [p.place for p in run.problems if p.code == "glued-row"] == ["line 12"]
    wider = table(10) + "".join(f"{i},1,2,3\n" for i in range(10, 20))
    run = read_run(write("b.csv", wider))
    assert len(run.channels["loss"]) == 20
    assert run.channels["c3"].steps.tolist() == list(range(10, 20))
    assert [p.count for p in run.problems if p.code == "ragged-row"] == [10]


def test_last_line_without_an_end_is_kept_and_said(write: Write) -> None:
    run = read_run(write("a.csv", "step,loss\n0,1.5\n1,1.2"))
    assert run.channels["loss"].values.tolist() == [1.5, 1.2]
    assert codes(run) == ["unterminated-line"]
    assert codes(read_run(write("b.csv", '"step","loss"\n"0","1.5"\n"1","1.25"'))) == []


def test_short_rows_keep_what_they_have(write: Write) -> None:
    run = read_run(write("a.csv", "step,loss,lr\n0,1,2\n1,3\n2,4,5\n"))
    assert len(run.channels["loss"]) == 3
    assert len(run.channels["lr"]) == 2
    assert "ragged-row" in codes(run)


def test_stray_quote_costs_one_cell_and_not_the_file(write: Write) -> None:
    text = table(100).splitlines()
    text[50] = text[50].replace(",", ',"', 1)
    run = read_run(write("a.csv", "\n".join(text) + "\n"))
    assert len(run.channels["loss"]) == 100


def test_quoted_text_may_hold_delimiters_and_newlines(write: Write) -> None:
    body = "".join(f'{i},{i / 2},"a\nb, {i}"\n' for i in range(5))
    run = read_run(write("a.csv", 'step,loss,"note, free"\n' + body))
    assert run.channels["loss"].values.tolist() == [0, 0.5, 1, 1.5, 2]
    assert [p.message for p in run.problems if p.code == "not-a-scalar"] == [
        "Columns without numbers are no series: note, free"
    ]


def test_latin1_name_is_decoded_with_a_note(write: Write) -> None:
    run = read_run(write("a.csv", "Schritt,Verlust für Größe\n0,1\n1,2\n".encode("cp1252")))
    assert list(run.channels) == ["Verlust für Größe"]
    assert codes(run) == ["mixed-encoding"]


def test_empty_and_header_only_files_are_empty_runs(write: Write) -> None:
    assert codes(read_run(write("empty.csv", ""))) == ["empty-file"]
    assert read_run(write("header.csv", "step,loss\n")).n_points == 0


def test_no_header_gives_numbered_columns(write: Write) -> None:
    run = read_run(write("a.csv", "0,3.0,0.1\n1,2.0,0.1\n2,1.0,0.1\n"))
    assert run.channels["c1"].values.tolist() == [3, 2, 1]
    assert run.provenance["step"] == ["c0"]


def test_data_set_is_passed_over_in_a_scan_and_read_when_named(write: Write) -> None:
    path = write("iris.csv", "sepal_length,species\n5.1,setosa\n4.9,setosa\n")
    scan = scan_runs(path.parent)
    assert list(scan) == []
    assert scan.ignored == ["iris.csv"]
    run = read_run(path)
    assert run.channels["sepal_length"].steps.tolist() == [0, 1]
    assert "no-step-column" in codes(run)
    assert run.provenance["step"] == ["row"]


def test_step_column_can_be_named(write: Write) -> None:
    path = write("a.csv", "step,tokens,loss\n0,100,3\n1,200,2\n")
    assert read_run(path, step="tokens").channels["loss"].steps.tolist() == [100, 200]
    with pytest.raises(InputError, match=r"no column 'token' for the step\. Did you mean 'tokens'"):
        read_run(path, step="token")
    with pytest.raises(InputError, match="holds no numbers"):
        read_run(write("b.csv", "step,name\n0,a\n1,b\n"), step="name")


def test_channel_filter(write: Write) -> None:
    assert list(read_run(write("a.csv", table(3)), channels=["l?"]).channels) == ["lr"]


def test_wall_time_in_every_unit(write: Write) -> None:
    for name, cells in {
        "timestamp": ("1700000000", "1700000001.5"),
        "wall_time": ("1700000000000", "1700000001500"),
        "time": ("2023-11-14T22:13:20Z", "2023-11-14 22:13:21.500"),
    }.items():
        run = read_run(write("a.csv", f"step,{name},loss\n0,{cells[0]},1\n1,{cells[1]},2\n"))
        assert list(run.channels) == ["loss"]
        wall = run.channels["loss"].wall_time
        assert wall is not None
        assert wall.tolist() == [1700000000.0, 1700000001.5]


def test_relative_time_stays_a_channel(write: Write) -> None:
    run = read_run(write("a.csv", "step,time,loss\n0,0.5,1\n1,1.5,2\n"))
    assert run.channels["loss"].wall_time is None
    assert len(run.channels["time"]) == 2


def test_tensorboard_web_export_is_sampled(write: Write) -> None:
    run = read_run(write("run-a_b-tag-loss.csv", "Wall time,Step,Value\n1700000000.5,0,3.0\n1700000001.5,1,2.0\n"))
    assert list(run.channels) == ["loss"]
    assert run.sampled
    assert "sampled-source" in codes(run)


def test_wandb_api_history_with_500_rows_is_sampled(write: Write) -> None:
    def history(n: int) -> str:
        rows = "".join(f"{i},{2 * i},{i}.5,{1700000000 + i},{i}\n" for i in range(n))
        return ",_step,_runtime,_timestamp,loss\n" + rows

    full = read_run(write("a.csv", history(499)))
    assert list(full.channels) == ["_runtime", "loss"]
    assert not full.sampled
    assert read_run(write("b.csv", history(500))).sampled


def test_long_format_gives_a_run_a_value_and_a_channel_a_tag(write: Write) -> None:
    rows = "".join(f"r{k},{tag},{i},{i + k}\n" for k in range(2) for tag in ("loss", "acc") for i in range(5))
    path = write("long.csv", "run,tag,step,value\n" + rows)
    runs = {r.id: r for r in scan_runs(path)}
    assert sorted(runs) == ["long.csv#r0", "long.csv#r1"]
    assert runs["long.csv#r1"].channels["loss"].values.tolist() == [1, 2, 3, 4, 5]
    assert read_run(path, run="r0").channels["acc"].values.tolist() == [0, 1, 2, 3, 4]


def test_algoperf_evaluation_table_is_worked_in(write: Write) -> None:
    full = "global_step,loss,validation/loss\n0,3,\n1,2,1.5\n2,1,\n"
    write("trial_1/measurements.csv", full)
    write("trial_1/eval_measurements.csv", "global_step,validation/loss\n1,1.5\n3,1.25\n")
    runs = list(scan_runs(write("trial_1/hparams.json", '{"lr": 0.1}').parent))
    assert len(runs) == 1
    assert runs[0].channels["validation/loss"].steps.tolist() == [1, 3]
    assert runs[0].config == {"lr": 0.1}
    assert "second-file" in codes(runs[0])


def test_padded_ultralytics_header(write: Write) -> None:
    rows = "".join(f"{e:>23},{3 - e / 10:>23.5g},{'inf' if e == 3 else e:>23}\n" for e in range(10))
    header = f"{'epoch':>23},{'train/box_loss':>23},{'val/box_loss':>23}\n"
    run = read_run(write("results.csv", header + rows))
    assert list(run.channels) == ["train/box_loss", "val/box_loss"]
    assert run.channels["val/box_loss"].counts["posinf"] == 1


def test_keras_text_log_with_na_and_semicolons(write: Write) -> None:
    run = read_run(write("training.log", "epoch;loss;val_loss\n0;1.5;NA\n1;1.25;1.5\n"))
    assert run.channels["val_loss"].n_missing == 1
    assert run.channels["val_loss"].steps.tolist() == [1]


def test_log_that_keras_itself_wrote_and_appended_to() -> None:
    run = read_run(Path(__file__).parent / "data" / "tables" / "keras_training.log")
    assert [s.kind for s in run.segments] == ["start", "restart"]
    assert {n: (len(c), c.n_missing) for n, c in run.channels.items()} == {
        "accuracy": (20, 0), "loss": (20, 0), "val_accuracy": (10, 10), "val_loss": (10, 10),
    }  # fmt: skip
    assert run.channels["val_loss"].role == "val_loss"
    assert run.channels["loss"].values[-1] < run.channels["loss"].values[0]


def test_arrays_in_cells_become_a_channel_an_entry(write: Write) -> None:
    cells = [("[0.5, nan]", "[1]"), ("[0.25, 2.0]", "[1, 2]"), ("NA", "[1, 2]"), ("[0.0, 3]", "[1, 2]")]
    rows = "".join(f'{e},{1.5 - e / 4},"""{a}""","""{b}"""\n' for e, (a, b) in enumerate(cells))
    run = read_run(write("training.log", "epoch,loss,per_class,ragged\n" + rows))
    assert list(run.channels) == ["loss", "per_class/0", "per_class/1"]
    assert run.channels["per_class/0"].values.tolist() == [0.5, 0.25, 0.0]
    assert run.channels["per_class/1"].steps.tolist() == [0, 1, 3]
    assert run.channels["per_class/1"].counts["nan"] == 1
    assert [(p.message, p.count) for p in run.problems if p.code == "not-a-scalar"] == [
        ("Columns without numbers are no series: ragged", 1)
    ]


def test_prose_and_code_are_no_tables(write: Write) -> None:
    write("README.txt", "Hello, world\nthis, that\n")
    write("run.log", "starting, please wait\nloading data, done\n")
    scan = scan_runs(write("LICENSE", "Some licence; some text\nmore; text\n").parent)
    assert list(scan) == []


def test_names_from_the_file_pass_through_as_data(write: Write) -> None:
    name = "<script>alert(1)</script>\x1b[31m"
    run = read_run(write("a.csv", f"step,{name}\n0,1\n1,2\n"))
    assert list(run.channels) == [name]


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_sniffed_delimiter(delimiter: str) -> None:
    dialect = sniff(table(5, sep=delimiter))
    assert dialect is not None
    assert (dialect.delimiter, dialect.width, dialect.header) == (delimiter, 3, ("step", "loss", "lr"))


CLEAN = table(12).encode()


def test_truncation_at_every_byte_keeps_the_rows_before(write: Write) -> None:
    path = write("a.csv", CLEAN)
    whole = [float(v) for v in read_run(path).channels["loss"].values]
    for cut in range(len(CLEAN)):
        path.write_bytes(CLEAN[:cut])
        run = read_run(path)
        complete = CLEAN[:cut].count(b"\n") - 1
        if complete > 0:
            assert run.channels["loss"].values.tolist()[:complete] == whole[:complete]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, len(CLEAN) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_never_raises_and_costs_at_most_its_row(write: Write, position: int, byte: int) -> None:
    path = write("a.csv", CLEAN[:position] + bytes([byte]) + CLEAN[position + 1 :])
    data = parse_delimited(clean_bytes(path.read_bytes())[0], "a.csv")
    run = read_run(path)
    if position >= CLEAN.index(b"\n") + 1 and byte not in (0x22,):
        assert len(data) >= 10
        assert max((len(c) for c in run.channels.values()), default=0) >= 9


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=400))
def test_any_bytes_called_csv_never_raise(write: Write, content: bytes) -> None:
    for run in scan_runs(write("any.csv", content)):
        _ = run.channels


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_header_longer_than_what_is_sniffed_keeps_all_its_names(write: Write, end: str) -> None:
    names = [*(f"some/long/channel/{i:05d}" for i in range(6000)), "train/loss", "val/accuracy", "step"]
    rows = [",".join([*["1.5"] * 6000, f"{1 / (i + 1)}", "0.5", str(i)]) for i in range(4)]
    path = write("wide.csv", end.join(["# a note", ",".join(names), *rows]) + end)
    [run] = scan_runs(path.parent)  # its only step-like name stands last
    assert list(run.channels) == names[:-1]
    assert run.channels["train/loss"].steps.tolist() == [0, 1, 2, 3]
    assert "ragged-row" not in codes(run)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_header_may_span_lines(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.csv"
    lines = ["step", f'"loss{end}(train)"', '"note, free"']
    body = "".join(f'{i},{i / 2},"a{end}b"{end}' for i in range(4))
    path.write_bytes((",".join(lines) + end + body).encode())
    run = read_run(path)
    assert run.channels["loss\n(train)"].values.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert run.channels["loss\n(train)"].steps.tolist() == [0, 1, 2, 3]
    assert {p.code for p in run.problems} == {"not-a-scalar"}


def test_a_stray_quote_in_the_header_does_not_swallow_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('step,"loss,acc\n' + "".join(f"{i},{i / 2},{i / 4}\n" for i in range(50)))
    assert max(len(c) for c in read_run(path).channels.values()) == 50


@pytest.mark.parametrize(("name", "delimiter"), [("table.txt", ","), ("train.log", "\t")])
def test_a_text_table_with_a_header_beyond_the_first_look(tmp_path: Path, name: str, delimiter: str) -> None:
    names = ["step", *(f"train/layer_{i}/metric" for i in range(400))]
    rows = [names, *([str(i), *[repr(i / 7)] * 400] for i in range(3))]
    (tmp_path / name).write_text("".join(delimiter.join(row) + "\n" for row in rows))
    (run,) = scan_runs(tmp_path)
    assert (run.format, len(run.channels)) == ("delimited", 400)


def test_line_ends_of_old_macs(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"step,loss\r0,1.5\r1,0.5\r")
    (run,) = scan_runs(tmp_path)
    assert run.channels["loss"].values.tolist() == [1.5, 0.5]


def test_points_are_thousands_separators_beside_decimal_commas(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("Schritt;Verlust;Tokens;Muster\n0;3,5;1.000.000;1.234\n1;0,25;12.500;999\n")
    run = read_run(path)
    assert run.channels["Verlust"].values.tolist() == [3.5, 0.25]
    assert run.channels["Tokens"].values.tolist() == [1e6, 12500.0]
    assert run.channels["Muster"].values.tolist() == [1234.0, 999.0]
    assert {(p.code, p.count) for p in run.problems} == {("thousands-separator", 2), ("thousands-separator", 1)}


def test_a_point_is_a_point_where_no_comma_says_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("step;loss\n0;1.234\n1;2.345\n")
    assert read_run(path).channels["loss"].values.tolist() == [1.234, 2.345]


@pytest.mark.parametrize("body", ["0,1.5,\n1,2.5,\n", "0,1.5,\n1,2.5,,,\n"])
def test_a_delimiter_at_the_end_of_the_lines_is_no_column(tmp_path: Path, body: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"step,loss,\n{body}")
    assert list(read_run(path).channels) == ["loss"]


@pytest.mark.parametrize("above", ["sep=;\n", "My experiment\n", "My experiment\nof March\n\n"])
def test_lines_above_the_table(tmp_path: Path, above: str) -> None:
    (tmp_path / "a.csv").write_text(above + "step;loss\n0;1,5\n1;2,5\n2;0,5\n")
    (run,) = scan_runs(tmp_path)
    assert run.channels["loss"].values.tolist() == [1.5, 2.5, 0.5]
    assert run.channels["loss"].steps.tolist() == [0, 1, 2]


def test_a_lone_column_with_decimal_commas_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("loss\n" + "".join(f"{i},5\n" for i in range(9)))
    assert "loss" in read_run(path).channels


def test_a_header_that_comes_late_names_the_rows_above_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [f"{i},{i / 2}\n" for i in range(9)]
    path.write_text("".join(rows[:5]) + "step,loss\n" + "".join(rows[5:]))
    run = read_run(path)
    assert run.channels["loss"].steps.tolist() == list(range(9))
    assert [(p.code, p.place) for p in run.problems] == [("late-header", "line 6")]
