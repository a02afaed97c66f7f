"""Labels tables: what is read, what is refused, and how runs are matched."""

from __future__ import annotations

import pandas as pd
import pytest

from trajscope.errors import InputError, ReadError
from trajscope.history.labels import COLUMNS, check_labels, match_runs, read_labels


def test_csv_and_parquet_agree(tmp_path):
    table = pd.DataFrame({"run": ["a/1", "a/2"], "seed": [1, None], "mine": ["x", "y"], "onset_step": [3.5, None]})
    table.to_csv(tmp_path / "l.csv", index=False)
    table.to_parquet(tmp_path / "l.parquet")
    table.to_csv(tmp_path / "l.tsv", index=False, sep="\t")
    one, two, three = (read_labels(tmp_path / f"l.{kind}") for kind in ("csv", "parquet", "tsv"))
    for other in (two, three):
        pd.testing.assert_frame_equal(one.astype(object), other.astype(object), check_dtype=False)
    assert list(one.columns) == [*COLUMNS, "mine"]
    assert one["seed"].tolist()[0] == 1
    assert one["seed"].isna().tolist() == [False, True]
    assert one["axis"].isna().all()


def test_numbers_as_run_names_stay_text(tmp_path):
    (tmp_path / "l.csv").write_text("run,twin\n007,001\n")
    table = read_labels(tmp_path / "l.csv")
    assert table["run"].tolist() == ["007"]
    assert table["twin"].tolist() == ["001"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rnu,seed\na,1\n", "no column 'run'.*'rnu'"),
        ("run\n", "no row"),
        ("run\na\na\n", "'a' stands in more than one row"),
        ("run,seed\na,x\n", "column 'seed', row 1: 'x' is not a number"),
        ("run,seed\na,1.5\n", "integers are expected"),
        ("run,seed\n,1\n", "row 1 names no run"),
    ],
)
def test_bad_tables(tmp_path, text, message):
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_labels(tmp_path / "l.csv")


@pytest.mark.parametrize("content", [None, b"", b"\x00\xff" * 40, b'a,"b\nc'])
@pytest.mark.parametrize("name", ["l.csv", "l.parquet"])
def test_unreadable(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((ReadError, InputError), match=r"l\.(csv|parquet)"):
        read_labels(tmp_path / name)


def test_input_is_not_changed():
    table = pd.DataFrame({"seed": ["1"], "run": ["a"]})
    before = table.copy()
    check_labels(table)
    pd.testing.assert_frame_equal(table, before)


def test_a_run_of_a_file_that_holds_several_is_found_by_its_own_name() -> None:
    matched, problems = match_runs(["seed1", "f.parquet#seed2"], ["x/f.parquet#seed1", "x/f.parquet#seed2"])
    assert matched == {"seed1": "x/f.parquet#seed1", "f.parquet#seed2": "x/f.parquet#seed2"}
    assert problems == []


def test_matching():
    matched, problems = match_runs(["x/a", "b", "c", "d"], ["x/a", "y/b", "y/c", "z/c", "y/a"])
    assert matched == {"x/a": "x/a", "b": "y/b"}
    assert len(problems) == 2
    assert "one of 2" in problems[0]
    assert "was not found" in problems[1]
