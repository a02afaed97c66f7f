"""Large clean tables of numbers, straight from the file through pandas' C parser.

This is the way of files of which nothing needs to be said: ASCII without quotes, zero bytes or carriage returns, every
cell empty or a finite number, every row as long as the header. The bytes are looked at piece by piece as the parser
takes them and are never held whole. At the first doubt the answer is None, and `trajscope.readers._csvparse` reads the
file: it counts losses, knows spellings and repairs. The values are the same to the bit.
"""

from __future__ import annotations

import io
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from trajscope.history import Problem
from trajscope.readers._csvparse import unterminated, whole_numbers
from trajscope.readers._dialect import Dialect, sniff, sniffed_part
from trajscope.readers._table import Column, Table, unique_names

__all__ = ["SMALLEST", "stream_table"]

#: Below this many bytes the parser's start costs more than it wins.
SMALLEST = 1 << 20
_HEAD = 1 << 17
#: Comment lines and header above the data.
_MOST_SKIPPED = 64
#: Literals that only a correctly rounding parser gets right: halfway cases, subnormals, many digits.
_HARD = (
    "2.2250738585072011e-308", "5e-324", "1.7976931348623157e308", "9007199254740993.0", "8.5e22", "1e23",
    "6.2503875484759406e-79", "0.500000000000000166533453693773481063544750213623046875", "123456789012345678901.5",
)  # fmt: skip


def stream_table(path: Path, file: str) -> Table | None:
    """Read a table of numbers; None where the file is not as plain as that, or is small.

    Parameters
    ----------
    path : Path
    file : str
        Label for problems.

    Returns
    -------
    Table or None
    """
    if path.stat().st_size < SMALLEST or not _rounds_correctly():
        return None
    with path.open("rb", buffering=0) as stream:
        head = stream.read(_HEAD)
        part = sniffed_part(head)
        if not _plain(head) or head.count(b"\n") <= _MOST_SKIPPED or len(part) == len(head):
            return None
        dialect = sniff(part.decode("ascii"))
        if dialect is None or not dialect.header or len(dialect.header) != dialect.width or dialect.width < 2:
            return None
        if dialect.decimal_comma or dialect.delimiter == " ":
            return None
        start = 0
        if dialect.skip >= _MOST_SKIPPED:
            return None
        for _ in range(dialect.skip):
            start = head.index(b"\n", start) + 1
        if head[start : head.index(b"\n", start)].count(dialect.delimiter.encode()) != dialect.width - 1:
            return None  # pandas would take the first cells of such rows for an index
        stream.seek(start)
        # A short row leaves the last cells empty; it is told from a row that ends in empty cells by counting.
        counts = f"{dialect.delimiter}\n" in part.decode("ascii")
        return _parsed(_Feed(stream, dialect.delimiter, counts=counts), dialect, file)


def _parsed(feed: _Feed, dialect: Dialect, file: str) -> Table | None:
    import pandas as pd

    keys = list(range(dialect.width))
    source: Any = feed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of columns with numbers and text: they end the attempt below
            frame = pd.read_csv(
                source,
                sep=dialect.delimiter,
                header=None,
                names=keys,
                keep_default_na=False,
                na_values=[""],
                skip_blank_lines=False,
                engine="c",
            )
    except (ValueError, _Doubt):
        return None
    n = len(frame)
    if not n:
        return None
    if feed.delimiters != n * (dialect.width - 1) if feed.counts else frame[keys[-1]].isna().any():
        return None  # a row shorter than the header (a blank line is one), or perhaps one
    problems: list[Problem] = []
    columns = []
    for key, name in zip(keys, unique_names(list(dialect.header), problems, file), strict=True):
        column = _column(name, frame[key].to_numpy())
        if column is None:
            return None
        columns.append(column)
    line = np.arange(dialect.skip + 1, dialect.skip + 1 + n, dtype=np.int64)
    if not feed.ended:
        problems.append(unterminated(file, int(line[-1])))
    return Table(columns, line, problems=problems)


def _column(name: str, values: Any) -> Column | None:
    """A column of numbers; None where it holds anything that the parser may have read in its own way."""
    if values.dtype == np.int64:
        return Column(name, whole_numbers(values))
    if values.dtype != np.float64:
        return None
    low, high = values.min(), values.max()
    rows = None
    if low != low:  # `nan` in the file is text here, so that these are the empty cells
        rows = np.flatnonzero(values == values)
        missing = int(values.size - rows.size)
        values = values[rows]
        low, high = values.min(initial=0.0), values.max(initial=0.0)
    if not (low > -(2.0**53) and high < 2.0**53):
        return None  # an infinity, a number beyond a float, or an integer that a float does not hold
    return Column(name, values, rows, 0 if rows is None else missing)


@lru_cache(maxsize=1)
def _rounds_correctly() -> bool:
    """Whether this pandas reads every number correctly rounded (from version 3 on)."""
    import pandas as pd

    frame = pd.read_csv(io.StringIO("x\n" + "\n".join(_HARD) + "\n"))
    return frame["x"].tolist() == [float(text) for text in _HARD]


def _plain(data: bytes) -> bool:
    """Whether bytes are ASCII without quotes, zero bytes and carriage returns."""
    return data.isascii() and b"\0" not in data and b'"' not in data and b"\r" not in data


class _Doubt(Exception):
    """The file is not plain after all."""


class _Feed:
    """Hands out a file piece by piece, looking at each piece while it is in the cache."""

    def __init__(self, stream: Any, delimiter: str, *, counts: bool) -> None:
        self._stream = stream
        self._delimiter = ord(delimiter)
        self.counts = counts
        self.delimiters = 0
        self.ended = True

    def read(self, size: int = -1) -> bytes:
        """The next piece (for the parser)."""
        data: bytes = self._stream.read(size)
        if not _plain(data):
            raise _Doubt
        if self.counts:
            codes = np.frombuffer(data, dtype=np.uint8)
            self.delimiters += int(np.count_nonzero(codes == self._delimiter))
        if data:
            self.ended = data.endswith(b"\n")
        return data

    def __iter__(self) -> _Feed:
        """The parser asks for a file, and a file can be iterated over."""
        return self

    def __next__(self) -> bytes:
        raise StopIteration
