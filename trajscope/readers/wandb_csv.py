"""CSV files that the W&B web page writes: panel exports and the runs table.

*Panel*: ``"<x>","<run or group> - <metric>"``, and after each such column ``... - <metric>__MIN`` and ``...__MAX``.
Every run or group of the panel is a run here; the name is cut at the last " - ". A value is the mean of a bucket
where its minimum and maximum differ: such a panel is sampled, and the extremes are kept as channels. *Runs table*:
one row a run, no time series: each row gives a run without channels whose config and summary are filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from trajscope.history import Problem, Source, guess_role
from trajscope.readers._bytes import head_text, load_text
from trajscope.readers._cells import parse_number
from trajscope.readers._csvparse import parse_delimited
from trajscope.readers._dialect import split_line
from trajscope.readers._gzip import plain_head, read_start
from trajscope.readers._table import Column, Table, table_source
from trajscope.readers.base import Reader, ReadOptions

__all__ = ["READER", "WandbCsv"]

_TABLE_HEAD = ("Name", "State", "Notes", "User", "Tags", "Created", "Runtime", "Sweep")
_ENDS = ("__MIN", "__MAX")


class WandbCsv(Reader):
    """Reader of W&B's CSV exports."""

    name = "wandb-csv"
    title = "W&B CSV export"
    priority = 30

    def can_read(self, path: Path, head: bytes) -> bool:
        """The fixed first columns of a runs table, or quoted ``run - metric`` columns after the x column."""
        head = plain_head(path, head)
        header = _header(head)
        if head.lstrip(b"\xef\xbb\xbf").startswith(b'"'):
            return _is_table(header) or _is_panel(header)
        # Saved again by another program, without quotes: only what is unmistakable.
        return b" - " in head and _is_panel(header) and any(name.endswith(_ENDS) for name in header)

    def keys(self, files: Sequence[Path], options: ReadOptions) -> list[str]:
        """Runs or groups of the panel, or the rows of the table."""
        header = _header(read_start(files[0], 1))
        if _is_table(header):
            return [label for label, _ in _rows(_table(files[0], options))] or [""]
        return list(dict.fromkeys(_cut(name)[0] for name in header[1:] if " - " in name)) or [""]

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """One writer: the columns of one run of the panel, or one row of the table."""
        file = options.label(files[0])
        table = _table(files[0], options)
        if _is_table([c.name for c in table.columns]):
            return [_row_source(table, file, key)]
        return [_panel_source(table, file, key, options)]


def _header(head: bytes) -> list[str]:
    """Cells of the first line; of a line that is longer than the head, the whole cells."""
    text = head_text(head)
    line, newline, _ = text.partition("\n")
    if not newline:
        cut = line.rfind(',"' if line.startswith('"') else ",")
        line = line[:cut] if cut > 0 and not line.endswith('"') else line
    return split_line(line.rstrip("\r"), ",")


def _is_table(header: Sequence[str]) -> bool:
    return tuple(header[:3]) == _TABLE_HEAD[:3] and {"State", "Created", "Runtime"} <= set(header)


def _is_panel(header: Sequence[str]) -> bool:
    rest = header[1:]
    return bool(rest) and " - " not in header[0] and all(" - " in n for n in rest)


def _table(path: Path, options: ReadOptions) -> Table:
    stat = path.stat()
    return _cached(path, options.label(path), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1)
def _cached(path: Path, label: str, size: int, mtime: int) -> Table:
    data, problems = load_text(path, label, lines=True)
    table = parse_delimited(data, label)
    table.problems = [*problems, *table.problems]
    return table


def _cut(name: str) -> tuple[str, str]:
    run, _, metric = name.rpartition(" - ")
    return run, metric


def _panel_source(table: Table, file: str, key: str, options: ReadOptions) -> Source:
    x = table.columns[0]
    mine: dict[str, Column] = {}  # an empty cell only says that another run has a point there: nothing is missing
    for column in table.columns[1:]:
        run, metric = _cut(column.name)
        if run == key:
            mine[metric] = Column(metric, column.values, column.rows, 0, column.text)
    bucketed = False
    for metric in [m for m in mine if not m.endswith(_ENDS)]:
        ends = [mine[metric + e] for e in _ENDS if metric + e in mine]
        if all(_equal(e, mine[metric]) for e in ends):
            for e in _ENDS:
                mine.pop(metric + e, None)
        else:
            bucketed = True
    columns = [x, *mine.values()]
    own = Table(columns, table.line, problems=table.problems)
    source = table_source(own, file, step=options.step, prefer=(x.name,))
    source.series = {n: s for n, s in source.series.items() if options.wants(n)}
    if bucketed or any(m.endswith(_ENDS) for m in mine):
        source.sampled = "the values of a W&B panel are means of buckets (minimum and maximum differ)"
    else:
        source.problems.append(
            Problem(
                "panel-export",
                "info",
                "A W&B panel thins long runs; this one shows no buckets, but may be thinned",
                file,
            )
        )
    return source


def _equal(a: Column, b: Column) -> bool:
    same_rows = (a.rows is None and b.rows is None) or (
        a.rows is not None and b.rows is not None and np.array_equal(a.rows, b.rows)
    )
    return a.text is None and b.text is None and same_rows and bool(np.array_equal(a.values, b.values, equal_nan=True))


def _rows(table: Table) -> list[tuple[str, int]]:
    """A label for each row, unique, and its position."""
    names = table.columns[0].labels(len(table))
    labels: list[tuple[str, int]] = []
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        labels.append((name if seen[name] == 1 else f"{name}~{seen[name]}", i))
    return labels


def _row_source(table: Table, file: str, key: str) -> Source:
    source = Source(file, problems=list(table.problems), step_name="none")
    source.problems.append(
        Problem(
            "runs-table",
            "warning",
            "One row per run: this is a W&B runs table, not a time series; only config and summary were read",
            file,
            count=len(table),
        )
    )
    at = dict(_rows(table)).get(key, 0)
    if not len(table):
        return source
    for column in table.columns:
        cell = column.labels(len(table))[at]
        if cell == "":
            continue
        number, kind = parse_number(cell)
        value = number if kind in ("number", "overflow") else cell
        role, confidence = guess_role(column.name)
        final = "/" in column.name or (
            confidence >= 0.8 and role in ("loss", "val_loss", "accuracy", "val_accuracy", "return")
        )
        target = source.summary if final or column.name in ("State", "Runtime") else source.config
        target[column.name] = value
    return source


READER = WandbCsv()
