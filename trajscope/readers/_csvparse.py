"""Delimited text to a `Table`: a fast path for clean files, a patient one that loses nothing for the rest.

The delimiter (comma, tab, semicolon, pipe, runs of blanks) is the one that cuts most of the first lines into the same
number of cells as the header, outside quotes. A decimal comma is assumed only where the comma is not the delimiter, a
cell such as ``0,50`` (not of thousands' form) occurs and no cell has a decimal point.

Clean files go through pyarrow's parser in one thread: correctly rounded numbers, empty cells apart from NaN. A file
with ragged rows, headers inside, or stray quotes goes line by line instead.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.history import Problem
from trajscope.readers._cells import MISSING, number_cells, parse_number
from trajscope.readers._table import Column, Table, unique_names

__all__ = ["Dialect", "parse_delimited", "sniff"]

_DELIMITERS = (",", "\t", ";", "|", " ")
_SNIFF_LINES = 60
_COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+\Z")
_COMMA_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+\Z")
_POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?\Z")
_HUGE_EXPONENT = re.compile(rb"[eE]\+?\d{3}")
_MAX_QUOTED_LINES = 500
#: Bytes parsed at a time: what stays in the cache. A longer row sends the file to the patient path.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Dialect:
    """How a delimited file is written.

    Attributes
    ----------
    delimiter : str
        One character; a blank stands for runs of blanks.
    decimal_comma : bool
    header : tuple of str
        Column names as written; empty where the file has no header.
    skip : int
        Lines before the first data line (comments, header).
    width : int
        Number of columns.
    consistent : float
        Share of the sniffed data lines that have ``width`` cells.
    """

    delimiter: str
    decimal_comma: bool
    header: tuple[str, ...]
    skip: int
    width: int
    consistent: float


def split_line(line: str, delimiter: str) -> list[str]:
    """Cut one line into cells, honouring quotes; a blank as delimiter stands for runs of blanks.

    >>> split_line('1,"a, b",2', ",")
    ['1', 'a, b', '2']
    """
    if delimiter == " ":
        return line.split()
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return line.split(delimiter)


def sniff(text: str) -> Dialect | None:
    """Find out how a text is delimited from its first lines; None where it does not look delimited.

    >>> sniff("step;loss\\n0;1,50\\n1;1,25\\n").decimal_comma
    True
    """
    lines = text.split("\n")
    if len(lines) > 2 and not text.endswith("\n"):
        lines = lines[:-1]  # the head may end inside a line
    lines = [line.rstrip("\r") for line in lines[:_SNIFF_LINES]]
    skip = 0
    comments: list[str] = []
    while skip < len(lines) and (not lines[skip].strip() or lines[skip].lstrip().startswith("#")):
        comments.append(lines[skip])
        skip += 1
    body = [line for line in lines[skip:] if line.strip()]
    if not body:
        return _commented_header(comments, skip)
    best: tuple[float, int, int, str] | None = None
    for rank, delimiter in enumerate(_DELIMITERS):
        width = len(split_line(body[0], delimiter))
        if width < 2 or (delimiter == " " and best is not None):
            continue
        same = sum(len(split_line(line, delimiter)) == width for line in body[1:])
        share = same / max(len(body) - 1, 1) if len(body) > 1 else 1.0
        key = (round(share, 1), width, -rank, delimiter)
        if best is None or key[:3] > best[:3]:
            best = key
    if best is None:
        delimiter, width, share = ",", 1, 1.0
    else:
        share, width, _, delimiter = best
    rows = [split_line(line, delimiter) for line in body]
    comma = delimiter not in (",", " ") and _has_decimal_comma(rows[1:] or rows)
    header = rows[0]
    if not _is_header(header, decimal_comma=comma):
        named = _commented_header(comments, skip, delimiter)
        header = list(named.header) if named is not None and named.width == width else []
        return Dialect(delimiter, comma, tuple(header), skip, width, share)
    return Dialect(delimiter, comma, tuple(header), skip + 1, width, share)


def _commented_header(comments: Sequence[str], skip: int, delimiter: str = "") -> Dialect | None:
    """A header in the last comment line (``# step loss``)."""
    if not comments or "{" in comments[-1]:
        return None
    line = comments[-1].lstrip("# \t")
    for candidate in (delimiter,) if delimiter else _DELIMITERS:
        cells = split_line(line, candidate)
        if len(cells) > 1 and _is_header(cells):
            return Dialect(candidate, False, tuple(cells), skip, len(cells), 1.0)
    return None


def _is_header(cells: Sequence[str], *, decimal_comma: bool = False) -> bool:
    """Whether cells are names: some are no numbers, and none is a bare number unless most are names."""
    kinds = [parse_number(c, decimal_comma=decimal_comma)[1] for c in cells]
    names = sum(k in ("bad", "unit") for k in kinds)
    numbers = sum(k not in ("bad", "missing", "unit") for k in kinds)
    return names > 0 and numbers <= names


def _has_decimal_comma(rows: Sequence[Sequence[str]]) -> bool:
    cells = [c.strip() for row in rows for c in row]
    half = sum(bool(_COMMA_NUMBER.match(c)) and not _COMMA_THOUSANDS.match(c) for c in cells)
    point = sum(bool(_POINT_NUMBER.match(c)) for c in cells)
    return half > 0 and point == 0


def parse_delimited(data: bytes, file: str, dialect: Dialect | None = None) -> Table:
    """Parse delimited text.

    Parameters
    ----------
    data : bytes
        UTF-8 without byte order mark (`trajscope.readers._bytes`).
    file : str
        Label for problems.
    dialect : Dialect, optional
        Default: sniffed from the first 64 KiB.

    Returns
    -------
    Table
    """
    dialect = dialect or sniff(data[:65536].decode("utf-8", errors="replace"))
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
        table.problems.append(
            Problem(
                "unterminated-line",
                "info",
                "The last line has no line end; if its writer was stopped there, its last value may be cut short",
                file,
                f"line {int(table.line[-1])}",
            )
        )
    table.headless = not dialect.header
    return table


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
            if np.isinf(columns[-1].values).any() and _HUGE_EXPONENT.search(data):
                return None  # the patient path tells an overflow from an infinity that was written
            continue
        if pa.types.is_null(chunk.type):
            columns.append(Column(name, np.zeros(0), np.zeros(0, dtype=np.int64), missing=n))
            continue
        cells = [None if c is None else str(c) for c in chunk.to_pylist()]
        if dialect.header and i < len(dialect.header) and dialect.header[i] in cells:
            return None
        columns.append(text_column(name, cells, dialect.decimal_comma, line, problems, file))
    return Table(columns, line, problems=problems)


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
    return Column.masked(name, read.values, read.valid, boolean=boolean)


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
    return shared * 2 >= min(len(cells), len(names)) and shared > 0 and _is_header(cells)


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
