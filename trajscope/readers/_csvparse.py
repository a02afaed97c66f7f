"""Delimited text to a `Table`: a fast path for clean files, a patient one that loses nothing for the rest.

Clean files go through pyarrow's parser in one thread: correctly rounded numbers, empty cells apart from NaN. A file
with ragged rows, headers inside, or stray quotes goes line by line instead.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.history import Problem
from trajscope.readers._cells import MISSING, number_cells
from trajscope.readers._dialect import Dialect, is_header, sniff, sniffed_part, split_line
from trajscope.readers._table import Column, Table, unique_names

__all__ = ["doubtful", "parse_delimited", "text_column", "unterminated", "whole_numbers"]

#: Numbers that may be beyond the range of a float, and integers that a float may not hold.
_ENDLESS = re.compile(rb"[eE]\+?\d{3}|\d{300}")
_LONG_INTEGER = re.compile(rb"(?<![\d.])(?:9\d{15}|\d{17,})(?![\d.eE])")
_MAX_QUOTED_LINES = 500
#: Bytes parsed at a time: what stays in the cache. A longer row sends the file to the patient path.
_BLOCK = 1 << 20


def parse_delimited(data: bytes, file: str, dialect: Dialect | None = None) -> Table:
    """Parse delimited text.

    Parameters
    ----------
    data : bytes
        UTF-8 without byte order mark (`trajscope.readers._bytes`).
    file : str
        Label for problems.
    dialect : Dialect, optional
        Default: sniffed from the first 64 KiB, or from as much as holds the header.

    Returns
    -------
    Table
    """
    if b"\n" not in data:
        data = data.replace(b"\r", b"\n")  # line ends of old Macs
    dialect = dialect or sniff(sniffed_part(data).decode("utf-8", errors="replace"))
    if dialect is None or not data or data.isspace():
        return Table()
    table = None
    if dialect.delimiter != " " and dialect.width > 0:
        table = _fast(data, file, dialect)
    if table is None:
        table = _patient(data, file, dialect)
    if (
        data
        and not data.endswith((b"\n", b"\r", b'"'))
        and len(table)
        and not any(p.code == "half-line" for p in table.problems)
    ):
        table.problems.append(unterminated(file, int(table.line[-1])))
    table.headless = not dialect.header and all(re.fullmatch(r"c\d+", c.name) for c in table.columns)
    # A delimiter at the end of every line makes a column without a name and without content.
    unnamed = {c for c, name in zip(table.columns, dialect.header, strict=False) if not name.strip()}
    table.columns = [c for c in table.columns if c.text is not None or c.values.size or c not in unnamed]
    return table


def unterminated(file: str, line: int) -> Problem:
    """The problem that a file does not end with a line end."""
    return Problem(
        "unterminated-line",
        "info",
        "The last line has no line end; if its writer was stopped there, its last value may be cut short",
        file,
        f"line {line}",
    )


def _names(dialect: Dialect, width: int, problems: list[Problem], file: str) -> list[str]:
    names = [*dialect.header, *(f"c{i}" for i in range(len(dialect.header), width))]
    return unique_names(names, problems, file)


def _fast(data: bytes, file: str, dialect: Dialect) -> Table | None:
    """The clean path; None where the file is not clean."""
    import pyarrow as pa
    import pyarrow.csv as pc

    start = 0
    for _ in range(dialect.skip):
        start = data.find(b"\n", start) + 1
        if start == 0:
            start = len(data)
            break
    body = memoryview(data)[start:]
    if not len(body):
        return Table([Column(n, np.zeros(0)) for n in _names(dialect, dialect.width, [], file)])
    quotes = b'"' in data
    if quotes and data.count(b'"') % 2:
        return None
    ragged: list[int] = []

    def note(row: Any) -> str:
        ragged.append(row.number or 0)
        return "error"

    keys = [str(i) for i in range(dialect.width)]
    try:
        found = pc.read_csv(
            pa.BufferReader(pa.py_buffer(body)),
            read_options=pc.ReadOptions(use_threads=False, column_names=keys, block_size=_BLOCK),
            parse_options=pc.ParseOptions(
                delimiter=dialect.delimiter, newlines_in_values=quotes, invalid_row_handler=note
            ),
            convert_options=pc.ConvertOptions(
                null_values=_null_spellings(),
                true_values=[],
                false_values=[],
                strings_can_be_null=False,
                decimal_point="," if dialect.decimal_comma else ".",
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError):
        return None
    if ragged:
        return None
    problems: list[Problem] = []
    names = _names(dialect, dialect.width, problems, file)
    n = found.num_rows
    first_line = dialect.skip + 1
    line = np.arange(first_line, first_line + n, dtype=np.int64)
    columns = []
    for i, name in enumerate(names):
        chunk = found.column(i).combine_chunks()
        if pa.types.is_floating(chunk.type) or pa.types.is_integer(chunk.type):
            columns.append(_arrow_numbers(name, chunk))
            if doubtful(columns[-1].values, data):
                return None
            continue
        if pa.types.is_null(chunk.type):
            columns.append(Column(name, np.zeros(0), np.zeros(0, dtype=np.int64), missing=n))
            continue
        if not dialect.header:
            return None  # a header may stand further below
        cells = [None if c is None else str(c) for c in chunk.to_pylist()]
        if dialect.header and i < len(dialect.header) and dialect.header[i] in cells:
            return None
        columns.append(text_column(name, cells, dialect.decimal_comma, line, problems, file))
    return Table(columns, line, problems=problems)


def doubtful(values: NDArray[Any], data: bytes) -> bool:
    """Whether the patient path must tell overflows from written infinities and find integers that were rounded.

    Parameters
    ----------
    values : ndarray
        Numbers of one column as a fast parser gives them.
    data : bytes
        The text they came from.
    """
    if values.dtype.kind != "f":
        return False
    large = np.abs(values[np.abs(values) >= 2.0**53])
    if large.size and _LONG_INTEGER.search(data):
        return True
    return bool(np.isinf(large).any()) and _ENDLESS.search(data) is not None


def _null_spellings() -> list[str]:
    return sorted({v for m in MISSING for v in (m, m.lower(), m.upper(), m.capitalize())})


def _arrow_numbers(name: str, chunk: Any) -> Column:
    """A numeric Arrow array as a column; integers become float64 unless one is beyond 2**53."""
    rows, missing = None, int(chunk.null_count)
    if missing:
        rows = np.flatnonzero(chunk.is_valid().to_numpy(zero_copy_only=False))
        chunk = chunk.drop_null()
    values = chunk.to_numpy(zero_copy_only=False)
    if values.dtype.kind in "iu":
        values = whole_numbers(values)
    return Column(name, values, rows, missing)


def whole_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Integers as float64, or unchanged where a float64 could not hold one of them."""
    if values.size and (int(values.max()) > 2**53 or int(values.min()) < -(2**53)):
        return values.astype(np.int64)
    return values.astype(np.float64)


def text_column(
    name: str,
    cells: Sequence[str | None],
    decimal_comma: bool,
    line: NDArray[np.int64],
    problems: list[Problem],
    file: str,
) -> Column:
    """A column of cells as numbers where at least half of what is not missing is a number, else as text."""
    read = number_cells(cells, decimal_comma=decimal_comma)
    present = len(cells) - read.kinds["missing"]
    if read.kinds["bad"] * 2 > present:
        return Column(name, np.zeros(0), text=cells)
    boolean = present > 0 and read.kinds["bool"] == present
    if read.bad:
        at = read.bad[0]
        problems.append(
            Problem(
                "bad-cell",
                "warning",
                f"Column {name}: {len(read.bad)} cells are no numbers, for example {str(cells[at])[:40]!r};"
                " they count as missing",
                file,
                f"line {int(line[at])}",
                len(read.bad),
            )
        )
    for kind, code, severity, sentence in (
        ("bool", "bad-cell", "warning", "hold True or False and were read as 1 and 0"),
        ("overflow", "overflow", "info", "are beyond the range of a float and were read as infinity"),
        ("wrapped", "wrapped-number", "info", "hold the text of a tensor or list of one number; the number was taken"),
        ("thousands", "thousands-separator", "info", "have thousands separators, which were removed"),
        ("unit", "unit-stripped", "info", "have a unit, which was removed"),
    ):
        if read.kinds[kind] and not (kind == "bool" and boolean):
            problems.append(
                Problem(
                    code, severity, f"Column {name}: {read.kinds[kind]} cells {sentence}", file, count=read.kinds[kind]
                )
            )
    return Column.masked(name, read.values, read.valid, boolean=boolean, rounded=read.rounded)


def _patient(data: bytes, file: str, dialect: Dialect) -> Table:
    """Line by line: ragged rows, glued rows, repeated and grown headers, half lines."""
    rows, problems, marks, names, grown = _rows(data, file, dialect)
    line = np.array([at for at, _ in rows], dtype=np.int64)
    own: list[Problem] = []
    unique = unique_names(names, own, file)
    columns = []
    for i, name in enumerate(unique):
        cells = [row[i] if i < len(row) else None for _, row in rows]
        columns.append(text_column(name, cells, dialect.decimal_comma, line, own, file))
    return Table(columns, line, marks, [*problems, *grown, *own])


def _rows(
    data: bytes, file: str, dialect: Dialect
) -> tuple[list[tuple[int, list[str]]], list[Problem], list[int], list[str], list[Problem]]:
    text = data.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    complete = text.endswith("\n")
    lines = text.split("\n")
    if complete:
        lines.pop()
    names = list(dialect.header) or [f"c{i}" for i in range(dialect.width)]
    place = list(range(len(names)))  # column of each cell of the row, changed by a grown header
    width = len(names)
    rows: list[tuple[int, list[str]]] = []
    problems: list[Problem] = []
    grown: list[Problem] = []
    marks: list[int] = []
    repeated: list[int] = []
    short: list[int] = []
    long: list[tuple[int, list[str]]] = []
    i = dialect.skip
    while i < len(lines):
        at, line = i, lines[i]
        i += 1
        if not line.strip():
            continue
        cells, i = _cells_of(lines, at, dialect.delimiter, len(place))
        cells = [c.strip() for c in cells]
        last = at == len(lines) - 1 and not complete
        if not dialect.header and names[:1] == ["c0"] and len(cells) == width and is_header(cells):
            names[:] = cells
            sentence = "The header stands below the first rows, which were read under its names"
            grown.append(Problem("late-header", "info", sentence, file, f"line {at + 1}"))
            continue
        if dialect.header and _again(cells, names):
            if cells == [n.strip() for n in names]:
                repeated.append(at + 1)
            else:
                place, extra = _grow(cells, names)
                grown.append(
                    Problem(
                        "grown-header",
                        "info",
                        f"A header with {len(cells)} columns begins here"
                        + (f"; new: {', '.join(extra[:5])}" if extra else ""),
                        file,
                        f"line {at + 1}",
                        len(extra),
                    )
                )
                width = len(names)
            marks.append(at + 1)
            continue
        if last and len(cells) < len(place):
            problems.append(
                Problem("half-line", "info", "The last line is half written and was left out", file, f"line {at + 1}")
            )
            continue
        targets = place
        if len(cells) < len(place):
            targets = _without_evaluation(names, len(cells)) or place
            if targets is place:
                short.append(at + 1)
        elif len(cells) > len(place):
            surplus = cells[len(place) :]
            if any(surplus):
                long.append((at + 1, cells))
            else:
                cells = cells[: len(place)]
        row = [""] * width
        for position, cell in zip(targets, cells, strict=False):
            row[position] = cell
        rows.append((at + 1, row))
    rows, names = _surplus(rows, names, long, problems, file)
    for code, severity, found, sentence in (
        ("repeated-header", "info", repeated, "header lines repeat inside the file; a new session begins at each"),
        ("ragged-row", "warning", short, "rows have fewer cells than the header; the last are taken as empty"),
    ):
        if found:
            problems.append(Problem(code, severity, f"{len(found)} {sentence}", file, f"line {found[0]}", len(found)))
    return rows, problems, marks, names, grown


def _without_evaluation(names: list[str], size: int) -> list[int]:
    """Columns of a row that timm wrote without evaluation (it leaves those cells out); empty for any other row."""
    kept = [i for i, n in enumerate(names) if not n.startswith("eval_")]
    return kept if names[:1] == ["epoch"] and len(kept) == size and any(n.startswith("train_") for n in names) else []


def _cells_of(lines: list[str], at: int, delimiter: str, width: int) -> tuple[list[str], int]:
    """Cells of the row that starts at a line, and the line after it; a quoted cell may span lines."""
    line = lines[at]
    if line.count('"') % 2 == 0 or delimiter == " ":
        return split_line(line, delimiter), at + 1
    joined = line
    for k in range(at + 1, min(len(lines), at + _MAX_QUOTED_LINES)):
        joined += "\n" + lines[k]
        if joined.count('"') % 2 == 0:
            cells = next(csv.reader(joined.splitlines(keepends=True), delimiter=delimiter), [])
            if len(cells) == width:
                return cells, k + 1
            break
    return line.replace('"', "").split(delimiter), at + 1


def _again(cells: list[str], names: list[str]) -> bool:
    """Whether a row inside the file is a header: mostly the known names, and no numbers."""
    known = {n.strip() for n in names}
    shared = sum(c in known for c in cells if c)
    return shared * 2 >= min(len(cells), len(names)) and shared > 0 and is_header(cells)


def _grow(cells: list[str], names: list[str]) -> tuple[list[int], list[str]]:
    """Columns of the cells under a new header; names grows in place."""
    extra = [c for c in cells if c and c not in names]
    names.extend(extra)
    return [names.index(c) if c in names else len(names) - 1 for c in cells], extra


def _surplus(
    rows: list[tuple[int, list[str]]],
    names: list[str],
    long: list[tuple[int, list[str]]],
    problems: list[Problem],
    file: str,
) -> tuple[list[tuple[int, list[str]]], list[str]]:
    """Rows with more cells than the header: new columns where several in a row agree, else two rows glued together."""
    if not long:
        return rows, names
    sizes = [len(cells) for _, cells in long]
    common = max(set(sizes), key=sizes.count)
    wider = {at: cells for at, cells in long if len(cells) == common} if sizes.count(common) > 1 else {}
    glued = [at for at, _ in long if at not in wider]
    if wider:
        names = [*names, *(f"c{i}" for i in range(len(names), common))]
        problems.append(
            Problem(
                "ragged-row",
                "warning",
                f"{len(wider)} rows have {common} cells under a header of fewer; cells are taken in order, and if a"
                " column was put in between, the later ones are shifted",
                file,
                f"line {min(wider)}",
                len(wider),
            )
        )
    if glued:
        problems.append(
            Problem(
                "glued-row",
                "warning",
                f"{len(glued)} rows have too many cells (two writers on one file, or a half line written over) and are"
                " left out",
                file,
                f"line {glued[0]}",
                len(glued),
            )
        )
    bad = set(glued)
    kept = [(at, wider.get(at, row)) for at, row in rows if at not in bad]
    return kept, names
