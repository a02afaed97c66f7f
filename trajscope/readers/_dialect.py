"""How a delimited text is written: its delimiter, its header, its decimal mark, found out from its first lines.

The delimiter (comma, tab, semicolon, pipe, runs of blanks) is the one that cuts most of the first lines into the same
number of cells as the header, outside quotes. A decimal comma is assumed only where the comma is not the delimiter, a
cell such as ``0,50`` (not of thousands' form) occurs and no cell has a decimal point.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trajscope.readers._cells import POINT_THOUSANDS, parse_number

__all__ = ["Dialect", "is_header", "sniff", "sniffed_part", "split_line"]

_DELIMITERS = (",", "\t", ";", "|", " ")
_SNIFF_LINES = 60
_COMMA_NUMBER = re.compile(r"[+-]?(?:\d*|[1-9]\d{0,2}(?:\.\d{3})+),\d+\Z")
_COMMA_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+\Z")
_POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?\Z")
_SNIFF_BYTES = 1 << 16
_SEPARATOR = re.compile(r"sep=[,;\t|]\s*\Z")
#: Lines that a title above a table may have.
_TITLE_LINES = 3
#: A quote that is not closed after so many lines is a stray one.
_TALLEST = 32


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
        lines = line.splitlines(keepends=True)
        return next(csv.reader(lines, delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return line.split(delimiter)


def sniffed_part(data: bytes) -> bytes:
    """The first 64 KiB; more where the header and the line under it are longer, since a cut header loses columns.

    >>> len(sniffed_part(b"a," * 50_000 + b"z\\n" + b"1," * 50_000 + b"2\\n" + b"3,"))
    200004
    """
    end = 0
    whole = 0
    while end < len(data) and whole < 2:
        stop = data.find(b"\n", end)
        if stop < 0:
            return data if whole else data[:_SNIFF_BYTES]
        line = data[end : stop + 1].strip()
        whole += bool(line) and not line.startswith(b"#")
        end = stop + 1
    return data[: max(end, _SNIFF_BYTES)]


def sniff(text: str) -> Dialect | None:
    """Find out how a text is delimited from its first lines; None where it does not look delimited.

    >>> sniff("step;loss\\n0;1,50\\n1;1,25\\n").decimal_comma
    True
    """
    lines = text.split("\n" if "\n" in text else "\r")
    if len(lines) > 2 and not text.endswith("\n"):
        lines = lines[:-1]  # the head may end inside a line
    lines = [line.rstrip("\r") for line in lines[:_SNIFF_LINES]]
    skip = 0
    comments: list[str] = []
    while skip < len(lines) and (not lines[skip].strip() or lines[skip].lstrip().startswith("#")):
        comments.append(lines[skip])
        skip += 1
    skip += _preamble(lines[skip:])
    rest, tall = _logical(lines[skip:])
    body = [line for line in rest if line.strip()]
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
    if not is_header(header, decimal_comma=comma):
        named = _commented_header(comments, skip, delimiter)
        header = list(named.header) if named is not None and named.width == width else []
        return Dialect(delimiter, comma, tuple(header), skip, width, share)
    return Dialect(delimiter, comma, tuple(header), skip + tall, width, share)


def _preamble(lines: Sequence[str]) -> int:
    """Lines above the table: Excel's ``sep=;``, a title. Below them the lines have equally many cells, at least two."""
    if lines and _SEPARATOR.match(lines[0]):
        return 1
    first, second = [*lines[:2], "", ""][:2]
    if any(1 < len(split_line(first, d)) == len(split_line(second, d)) for d in _DELIMITERS[:-1]):
        return 0
    for delimiter in _DELIMITERS[:-1]:
        rows = [split_line(line, delimiter) for line in lines[:_TALLEST] if line.strip()]
        title = next((i for i, row in enumerate(rows) if len(row) > 1), 0)
        below = rows[title:]
        even = len(below) > 2 and all(len(row) == len(below[0]) for row in below)
        if not (even and 0 < title <= _TITLE_LINES and is_header(below[0])):
            continue
        if not is_header(below[1], decimal_comma=delimiter != ","):
            return next(i for i, line in enumerate(lines) if line.strip() and len(split_line(line, delimiter)) > 1)
    return 0


def _logical(lines: Sequence[str]) -> tuple[list[str], int]:
    """Lines with those joined that one quoted cell spans, and how many the first one takes."""
    joined: list[str] = []
    first = 1
    i = 0
    while i < len(lines):
        line, height = lines[i], 1
        if line.count('"') % 2:
            quotes = itertools.accumulate(other.count('"') for other in lines[i : i + _TALLEST])
            height = next((k for k, n in enumerate(quotes, 1) if n % 2 == 0), 1)
            line = "\n".join(lines[i : i + height])
        first = height if i == 0 else first
        joined.append(line)
        i += height
    return joined, first


def _commented_header(comments: Sequence[str], skip: int, delimiter: str = "") -> Dialect | None:
    """A header in the last comment line (``# step loss``)."""
    if not comments or "{" in comments[-1]:
        return None
    line = comments[-1].lstrip("# \t")
    for candidate in (delimiter,) if delimiter else _DELIMITERS:
        cells = split_line(line, candidate)
        if len(cells) > 1 and is_header(cells):
            return Dialect(candidate, False, tuple(cells), skip, len(cells), 1.0)
    return None


def is_header(cells: Sequence[str], *, decimal_comma: bool = False) -> bool:
    """Whether cells are names: some are no numbers, and none is a bare number unless most are names."""
    kinds = [parse_number(c, decimal_comma=decimal_comma)[1] for c in cells]
    names = sum(k in ("bad", "unit") for k in kinds)
    numbers = sum(k not in ("bad", "missing", "unit") for k in kinds)
    return names > 0 and numbers <= names


def _has_decimal_comma(rows: Sequence[Sequence[str]]) -> bool:
    cells = [c.strip() for row in rows for c in row]
    half = sum(bool(_COMMA_NUMBER.match(c)) and not _COMMA_THOUSANDS.match(c) for c in cells)
    point = sum(bool(_POINT_NUMBER.match(c)) and not POINT_THOUSANDS.match(c) for c in cells)
    return half > 0 and point == 0
