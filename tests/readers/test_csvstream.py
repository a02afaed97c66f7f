"""The way of large clean tables: the same to the bit as the general one, and out of the way at the first doubt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trajscope.readers import _csvstream, read_run
from trajscope.readers._csvparse import parse_delimited
from trajscope.readers._csvstream import stream_table
from trajscope.readers._table import Table


@pytest.fixture(autouse=True)
def _no_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_csvstream, "SMALLEST", 0)


def streamed(path: Path, body: str, header: str = "step,loss,acc\n") -> Table | None:
    """The table of a body behind enough plain rows that the look at the file's beginning is not all of it."""
    text = header + "".join(f"{i},{i / 8},0.5\n" for i in range(20_000))
    path.write_bytes((text + body).encode())
    return stream_table(path, path.name)


def same(a: Table, b: Table) -> None:
    assert [c.name for c in a.columns] == [c.name for c in b.columns]
    assert a.line.tolist() == b.line.tolist()
    assert [str(p) for p in a.problems] == [str(p) for p in b.problems]
    for x, y in zip(a.columns, b.columns, strict=True):
        assert (x.values.dtype, x.missing) == (y.values.dtype, y.missing)
        np.testing.assert_array_equal(x.values.view(np.int64), y.values.view(np.int64))
        for rows in (x.rows, y.rows):
            assert rows is None or rows.dtype == np.int64
        assert (x.rows is None) == (y.rows is None)
        assert x.rows is None or y.rows is None or x.rows.tolist() == y.rows.tolist()


CLEAN = [
    "20000,1.5,2.5\n",
    "20000,1.5,2.5",
    "20000,,2.5\n20001,1.5,2\n",
    "20000,-0.0,5e-324\n20001,-0,0\n",
    "20000,2.2250738585072011e-308,0.500000000000000166533453693773481063544750213623046875\n",
    "20000, 1.5 ,+2\n20001,1.,.5\n",
    "20000,1e-5,1E+5\n",
]
DOUBTFUL = [
    "20000,1.5\n",  # short
    "20000,1.5,",
    "20000,1.5,2.5,3.5\n",  # long
    "\n20000,1.5,2.5\n",
    "20000,nan,2.5\n",
    "20000,inf,2.5\n",
    "20000,1e400,2.5\n",
    "20000,NA,2.5\n",
    "20000,True,2.5\n",
    '20000,"1.5",2.5\n',
    "20000,1.5,2.5\r\n",
    "20000,1.5,2.5\0\n",
    "20000,ü,2.5\n",
    "20000,9007199254740993,2.5\n",
    "step,loss,acc\n20000,1.5,2.5\n",
    "20000,tensor(1),2.5\n",
]


@pytest.mark.parametrize("body", CLEAN)
def test_clean_tables_are_the_same_to_the_bit(tmp_path: Path, body: str) -> None:
    found = streamed(tmp_path / "a.csv", body)
    assert found is not None
    same(found, parse_delimited((tmp_path / "a.csv").read_bytes(), "a.csv"))


@pytest.mark.parametrize("body", DOUBTFUL)
def test_doubt_leaves_the_file_to_the_general_way(tmp_path: Path, body: str) -> None:
    assert streamed(tmp_path / "a.csv", body) is None


def test_rows_that_end_in_empty_cells_are_told_from_short_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [f"{i},{i / 8},\n" if i % 3 else f"{i},,0.5\n" for i in range(20_000)]
    path.write_text("step,loss,acc\n" + "".join(rows))
    found = stream_table(path, "a.csv")
    assert found is not None
    same(found, parse_delimited(path.read_bytes(), "a.csv"))
    path.write_text("step,loss,acc\n" + "".join(rows) + "20000,1.5\n")
    assert stream_table(path, "a.csv") is None


def test_a_first_row_longer_than_the_header_is_no_index(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("step,loss\n" + "".join(f"{i},{i / 8},7\n" for i in range(20_000)))
    assert stream_table(path, "a.csv") is None


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_every_delimiter_and_comment_lines(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "a.csv"
    rows = [["step", "loss", "loss"], *([str(i), repr(i / 7), "0.25"] for i in range(20_000))]
    path.write_text("# a run\n" + "".join(delimiter.join(r) + "\n" for r in rows))
    found = stream_table(path, "a.csv")
    assert found is not None
    same(found, parse_delimited(path.read_bytes(), "a.csv"))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(width=64, allow_nan=False) | st.integers(-(2**60), 2**60) | st.none(), min_size=1))
def test_any_numbers_are_read_alike(tmp_path: Path, cells: list[float | int | None]) -> None:
    body = "".join(f"{20_000 + i},{'' if c is None else repr(c)},1\n" for i, c in enumerate(cells))
    found = streamed(tmp_path / "a.csv", body)
    if found is not None:
        same(found, parse_delimited((tmp_path / "a.csv").read_bytes(), "a.csv"))


def test_the_reader_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streamed(tmp_path / "a.csv", "")
    run = read_run(tmp_path / "a.csv")
    monkeypatch.setattr(_csvstream, "SMALLEST", 1 << 40)
    general = read_run(tmp_path / "a.csv")
    assert list(run.channels) == list(general.channels)
    np.testing.assert_array_equal(run.channels["loss"].values, general.channels["loss"].values)
    assert run.provenance == general.provenance
