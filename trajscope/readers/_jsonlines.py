"""JSON records to a `Table`: lines, arrays, objects behind a logger's prefix; flattened, with damage reported.

Nested keys are joined by ``/``. A list of numbers that always has the same length (at most 64) becomes one column an
entry; a list that changes its length is a distribution, no scalar. ``null`` is a missing value, ``NaN`` and
``Infinity`` (bare or as text) are values, and numbers in strings are numbers. Media objects (with ``_type``) are
skipped.

Clean files (no null, no settings object) go through pyarrow's JSON parser in one thread.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trajscope.history import Problem
from trajscope.readers._cells import inexact
from trajscope.readers._csvparse import doubtful, text_column, whole_numbers
from trajscope.readers._json_text import Decoder, beyond_float, clipped, overflow
from trajscope.readers._table import Column, Table

__all__ = ["CONFIG_KEYS", "Records", "fast_table", "parse_records", "records_table"]

#: Keys of a record whose object holds settings.
CONFIG_KEYS = frozenset({"config", "hparams", "hyperparameters", "hyper_parameters", "args"})

_LONGEST_LIST = 64
_DEPTH = 24
_PIECE = 1 << 18


@dataclass
class Records:
    """Parsed records in file order.

    Attributes
    ----------
    rows : list of dict
    line : list of int
        Line of each record.
    prefix : list of str
        What stood before the record on its line (a logger's time and name).
    problems : list of Problem
    json : bool
        Whether the values are as `beyond_float` wants them, so that a number beyond the range of a
        float is told from an infinity that was written.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    line: list[int] = field(default_factory=list)
    prefix: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    json: bool = False


def parse_records(data: bytes, file: str) -> Records:
    """Parse records one by one and salvage what can be.

    Parameters
    ----------
    data : bytes
        UTF-8 text: an object a line (perhaps behind a prefix, perhaps several glued together), or one array of objects.
    file : str
        Label for problems.

    Returns
    -------
    Records
    """
    text = data.decode("utf-8", errors="replace")
    if text.lstrip()[:1] == "[":
        return _array(text, file)
    found = Records(json=True)
    decoder = Decoder()
    bad: list[int] = []
    plain = 0
    lines = text.split("\n")
    for i, line in enumerate(lines):
        stripped = line.strip()
        if not stripped:
            continue
        start = stripped.find("{")
        if start < 0:
            plain += 1
            continue
        if not _objects(stripped, start, i + 1, found, decoder):
            if i == len(lines) - 1:
                found.problems.append(
                    Problem(
                        "half-line", "info", "The last line is half written and was left out", file, f"line {i + 1}"
                    )
                )
            elif start == 0:
                bad.append(i + 1)
            else:
                plain += 1
    _say_repeated(decoder.repeated, found.problems, file)
    if not found.rows and text.lstrip()[:1] == "{":
        _whole(text, found, file)
        bad, plain = ([], 0) if found.rows else (bad, plain)
    if bad:
        found.problems.append(
            Problem(
                "skipped-records",
                "warning",
                f"{len(bad)} lines are no JSON and were left out",
                file,
                f"line {bad[0]}",
                len(bad),
            )
        )
    if plain:
        found.problems.append(
            Problem("other-lines", "info", f"{plain} lines hold no record and were passed over", file, count=plain)
        )
    return found


def _say_repeated(repeated: Mapping[str, int], problems: list[Problem], file: str) -> None:
    """Say so where records hold a key more than once."""
    if repeated:
        count = sum(repeated.values())
        shown = ", ".join(sorted(repeated)[:5]) + (", ..." if len(repeated) > 5 else "")
        sentence = f"{count} values stand under a key that their record holds again ({shown}); the last one counts"
        problems.append(Problem("repeated-key", "warning", sentence, file, count=count))


def _objects(text: str, start: int, line: int, found: Records, decoder: Decoder) -> bool:
    """Append the objects of one line; False where it does not parse to its end (what did parse is kept)."""
    prefix = text[:start]
    while start < len(text):
        try:
            value, end = decoder.at(text, start)
        except (ValueError, RecursionError):
            _behind_half(text, start, line, found, decoder)
            return False
        if isinstance(value, dict):
            found.rows.append(value)
            found.line.append(line)
            found.prefix.append(prefix)
        start = text.find("{", end)
        if start < 0:
            break
    return True


def _behind_half(text: str, start: int, line: int, found: Records, decoder: Decoder) -> None:
    """Append the record that a resumed run wrote behind one that it had left half written.

    It begins with the same key as the record before and ends with the line; an object inside the half one does not.
    """
    first = next(iter(found.rows[-1]), None) if found.rows else None
    mark = "{" + json.dumps(first)[:-1] if isinstance(first, str) else ""
    begin = text.find(mark, start + 1) if mark else -1
    if begin < 0:
        return
    try:
        value, end = decoder.at(text, begin)
    except (ValueError, RecursionError):
        return
    if end == len(text):
        found.rows.append(value)
        found.line.append(line)
        found.prefix.append("")


def _whole(text: str, found: Records, file: str) -> None:
    """Objects over several lines; where there is one alone, its longest list of objects holds the records."""
    decoder = Decoder()
    position, line = 0, 1
    while (start := text.find("{", position)) >= 0 and not text[position:start].strip(" \t\r\n,"):
        try:
            value, end = decoder.at(text, start)
        except (ValueError, RecursionError):
            break
        line += text.count("\n", position, start)
        found.rows.append(value)
        found.line.append(line)
        found.prefix.append("")
        line += text.count("\n", start, end)
        position = end
    if found.rows and text[position:].strip():
        sentence = f"The text is damaged or breaks off after {len(found.rows)} records"
        found.problems.append(Problem("truncated-tail", "warning", sentence, file, f"line {line}"))
    _say_repeated(decoder.repeated, found.problems, file)
    if len(found.rows) != 1:
        return
    value = found.rows.pop()
    found.line.clear()
    found.prefix.clear()
    lists = [v for v in value.values() if isinstance(v, list) and v and all(isinstance(r, dict) for r in v)]
    rows = max(lists, key=len, default=[value])
    found.rows.extend(rows)
    found.line.extend(range(1, len(rows) + 1))
    found.prefix.extend([""] * len(rows))


def _array(text: str, file: str) -> Records:
    """An array of objects, or of ``[wall, step, value]`` triples; a cut array gives what is whole."""
    found = Records(json=True)
    decoder = Decoder()
    position = text.index("[") + 1
    line = 1
    seen = other = 0
    while True:
        match = re.compile(r"[\s,]*").match(text, position)
        begin = match.end() if match else position
        line += text.count("\n", position, begin)
        position = begin
        if position >= len(text) or text[position] == "]":
            break
        try:
            value, end = decoder.at(text, position)
        except (ValueError, RecursionError):
            found.problems.append(
                Problem(
                    "truncated-tail",
                    "warning",
                    f"The array breaks off after {len(found.rows)} records",
                    file,
                    f"byte {len(text[:position].encode())}",
                )
            )
            break
        seen += 1
        if isinstance(value, list) and len(value) == 3 and all(isinstance(v, int | float) for v in value):
            value = dict(zip(("wall_time", "step", "value"), value, strict=True))
        if isinstance(value, dict):
            found.rows.append(value)
            found.line.append(max(line, seen))
            found.prefix.append("")
        else:
            other += 1
        line += text.count("\n", position, end)
        position = end
    if other and found.rows:
        sentence = f"{other} entries of the array are no objects and were left out"
        found.problems.append(Problem("skipped-records", "warning", sentence, file, count=other))
    _say_repeated(decoder.repeated, found.problems, file)
    if position >= len(text) and found.rows:
        found.problems.append(
            Problem("truncated-tail", "info", "The array has no closing bracket; all whole records were read", file)
        )
    return found


def records_table(records: Records, file: str) -> tuple[Table, dict[str, Any]]:
    """Flatten records into columns.

    Parameters
    ----------
    records : Records
    file : str

    Returns
    -------
    table : Table
    config : dict
        The last settings object seen.
    """
    config: dict[str, Any] = {}
    cells: dict[str, tuple[list[int], list[Any]]] = {}
    lists: dict[str, tuple[list[int], list[Any]]] = {}
    media: set[str] = set()
    for i, row in enumerate(records.rows):
        for key, value in row.items():
            if key in CONFIG_KEYS and isinstance(value, dict):
                config = value
            elif type(value) is float or type(value) is int:
                _add(cells, key, i, value)
            else:
                _flatten(key, value, i, cells, lists, media, 0)
    problems = list(records.problems)
    _expand(lists, cells, media)
    line = np.array(records.line, dtype=np.int64)
    columns = []
    repeated: Counter[str] = Counter()
    for name, (rows, values) in cells.items():
        if len(set(rows)) < len(rows):  # a nested and a joined name that are the same
            last = dict(zip(rows, values, strict=True))
            repeated[name] = len(rows) - len(last)
            rows, values = list(last), list(last.values())
        columns.append(_column(name, rows, values, line, problems, file, exact=records.json))
    _say_repeated(repeated, problems, file)
    if media:
        shown = ", ".join(sorted(media)[:5]) + (", ..." if len(media) > 5 else "")
        problems.append(
            Problem("not-a-scalar", "info", f"Lists and objects that are no series: {shown}", file, count=len(media))
        )
    return Table(columns, line, problems=problems), config


def _add(cells: dict[str, tuple[list[int], list[Any]]], name: str, row: int, value: Any) -> None:
    found = cells.get(name)
    if found is None:
        cells[name] = ([row], [value])
    else:
        found[0].append(row)
        found[1].append(value)


def _flatten(
    name: str,
    value: Any,
    row: int,
    cells: dict[str, tuple[list[int], list[Any]]],
    lists: dict[str, tuple[list[int], list[Any]]],
    media: set[str],
    depth: int,
) -> None:
    if isinstance(value, Mapping):
        if "_type" in value or depth > _DEPTH:
            media.add(name)
            return
        for key, inner in value.items():
            _flatten(f"{name}/{key}", inner, row, cells, lists, media, depth + 1)
    elif isinstance(value, list):
        _add(lists, name, row, value)
    else:
        _add(cells, name, row, value)


def _expand(
    lists: dict[str, tuple[list[int], list[Any]]], cells: dict[str, tuple[list[int], list[Any]]], media: set[str]
) -> None:
    """Lists of numbers of constant length become one column an entry."""
    for name, (rows, found) in lists.items():
        size = len(found[0])
        if size > _LONGEST_LIST or any(len(v) != size for v in found):
            media.add(name)
            continue
        if not all(isinstance(n, int | float) or n is None for v in found for n in v):
            media.add(name)
            continue
        for k in range(size):
            label = f"{name}/{k}"
            known, values = cells.get(label, ([], []))
            both = [*zip(known, values, strict=True), *zip(rows, (v[k] for v in found), strict=True)]
            both.sort(key=lambda cell: cell[0])
            cells[label] = ([row for row, _ in both], [value for _, value in both])


def _column(
    name: str,
    rows: list[int],
    values: list[Any],
    line: np.ndarray[Any, Any],
    problems: list[Problem],
    file: str,
    *,
    exact: bool,
) -> Column:
    """One column; ``exact`` is `Records.json`."""
    at = np.array(rows, dtype=np.int64)
    kinds = {type(v) for v in values}
    missing = 0
    if type(None) in kinds:
        missing = sum(v is None for v in values)
        at = at[np.array([v is not None for v in values], dtype=bool)]
        values = [v for v in values if v is not None]
        kinds.discard(type(None))
    every = at.size == line.size
    where = None if every else at
    if not kinds <= {int, float, bool}:
        endless = [type(v) in (int, float) and (exact or type(v) is int) and beyond_float(v) for v in values]
        values = [clipped(v) if e else v for v, e in zip(values, endless, strict=True)]
        column = _from_text(name, at, values, line, problems, file, missing)
        if any(endless) and column.text is None:
            problems.append(overflow(name, sum(endless), file))
        return column
    boolean = kinds == {bool}
    numbers = np.array([], dtype=np.float64)
    rounded = 0
    try:
        if kinds == {int}:
            numbers = whole_numbers(np.array(values, dtype=np.int64))
        elif values:
            numbers = np.array(values, dtype=np.float64)
    except OverflowError:
        numbers = np.array([clipped(v) for v in values], dtype=np.float64)
    if numbers.dtype.kind == "f" and bool((np.abs(numbers) >= 2.0**53).any()):
        beyond = sum((exact or isinstance(v, int)) and beyond_float(v) for v in values)
        if beyond:
            problems.append(overflow(name, beyond, file))
        rounded = inexact(values)
    return Column(name, numbers, where, missing, boolean=boolean, rounded=rounded)


def _from_text(
    name: str,
    at: np.ndarray[Any, Any],
    values: Sequence[Any],
    line: np.ndarray[Any, Any],
    problems: list[Problem],
    file: str,
    missing: int,
) -> Column:
    """A column with strings: numbers in strings, or text."""
    cells = [v if isinstance(v, str) else json.dumps(v) for v in values]
    column = text_column(name, cells, False, line[at], problems, file)
    if column.text is not None:
        full: list[str | None] = [None] * int(line.size)
        for i, cell in zip(at.tolist(), cells, strict=True):
            full[i] = cell
        return Column(name, column.values, text=full)
    kept = at if column.rows is None else at[column.rows]
    where = None if kept.size == line.size else kept
    return Column(name, column.values, where, missing + column.missing, None, column.boolean, column.rounded)


def fast_table(data: bytes, file: str) -> Table | None:
    """The clean path through pyarrow; None where the file needs the patient one."""
    import pyarrow as pa
    import pyarrow.json as pj

    if not data.startswith(b"{") or b"[" in data:
        return None  # lists are not expanded here
    lines = _count(data, b"\n") + (not data.endswith(b"\n"))
    if not _shallow(data, lines):
        return None  # deep nesting overflows pyarrow's stack
    try:
        found = pj.read_json(
            pa.BufferReader(pa.py_buffer(data)),
            read_options=pj.ReadOptions(use_threads=False, block_size=min(len(data) + 16, 2**30)),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError):
        return None
    if lines != found.num_rows:
        return None  # blank or glued lines: line numbers would be wrong
    if not CONFIG_KEYS.isdisjoint(found.column_names):
        return None
    line = np.arange(1, found.num_rows + 1, dtype=np.int64)
    problems: list[Problem] = []
    columns: list[Column] = []
    pending = [(n, found.column(i).combine_chunks()) for i, n in reversed(list(enumerate(found.column_names)))]
    while pending:
        name, array = pending.pop()
        kind = array.type
        if pa.types.is_struct(kind):
            if kind.get_field_index("_type") >= 0:
                return None
            inner = array.flatten()
            pending.extend((f"{name}/{kind.field(k).name}", inner[k]) for k in reversed(range(kind.num_fields)))
        elif pa.types.is_floating(kind) or pa.types.is_integer(kind):
            columns.append(_arrow_column(name, array))
            if np.isinf(columns[-1].values).any() or doubtful(columns[-1].values, data):
                return None  # the patient path tells an overflow from an infinity that was written
        elif pa.types.is_boolean(kind):
            columns.append(_arrow_column(name, array.cast(pa.int8()), boolean=True))
        elif pa.types.is_list(kind):
            return None
        else:
            cells = array.to_pylist()
            at = np.array([i for i, c in enumerate(cells) if c is not None], dtype=np.int64)
            columns.append(_from_text(name, at, [str(c) for c in cells if c is not None], line, problems, file, 0))
    if len({c.name for c in columns}) < len(columns):
        return None  # a nested and a joined name that are the same
    if any(len(c.values) < len(line) for c in columns) and b"null" in data:
        return None  # null and a missing key look alike here
    return Table(columns, line, problems=problems)


def _count(data: bytes, byte: bytes) -> int:
    """How often a byte occurs, piece by piece in the cache (`bytes.count` is slow where it occurs often)."""
    codes = np.frombuffer(data, dtype=np.uint8)
    return sum(int(np.count_nonzero(codes[i : i + _PIECE] == byte[0])) for i in range(0, codes.size, _PIECE))


def _shallow(data: bytes, lines: int) -> bool:
    """Whether no object is nested deeper than `_DEPTH` (braces in strings count too, on the safe side)."""
    if _count(data, b"{") <= lines:
        return True
    codes = np.frombuffer(data, dtype=np.uint8)
    braces = codes[(codes == ord("{")) | (codes == ord("}"))]
    depth = np.cumsum(np.where(braces == ord("{"), 1, -1))
    return bool(depth.max() <= _DEPTH and depth.min() >= 0)


def _arrow_column(name: str, array: Any, *, boolean: bool = False) -> Column:
    """A number column; what is not there was not logged and is no missing cell."""
    rows = None
    if array.null_count:
        rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        array = array.drop_null()
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype.kind in "iu":
        values = whole_numbers(values)
    return Column(name, values, rows, boolean=boolean)
