"""Delimited text: Lightning, Keras, timm, Ultralytics, AlgoPerf, SB3 and Spinning Up progress, and any other table.

One file is one run. Exceptions:

* *Long format* (columns for tag, step and value): a channel a tag, a run a value of the run column.
* *TensorBoard's CSV export* (``Wall time,Step,Value``): one channel, named after the file; sampled by the web page.
* *W&B API history* (``_step`` and ``_timestamp`` under an unnamed index): sampled where it has exactly 500 rows.
* *tensorboard-reducer* (lines of tags and of statistics above ``step``): ``tag/mean``, ...; sampled by that program.
* *Keras* writes arrays as ``"[a, b]"``: a channel an entry.
* *AlgoPerf*: ``eval_measurements.csv`` repeats rows of ``measurements.csv`` beside it; the two are one run.

A table with neither a step-like nor a metric-like column is a data set, not a log: a directory scan passes it over, and
it is read (by row number) when it is named.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from trajscope.history import Source
from trajscope.readers._bytes import head_text, load_text
from trajscope.readers._cells import parse_number
from trajscope.readers._csvparse import parse_delimited
from trajscope.readers._csvstream import stream_table
from trajscope.readers._dialect import Dialect, sniff, split_line
from trajscope.readers._gzip import plain_head, plain_path, read_head, read_start
from trajscope.readers._lists import expand_lists
from trajscope.readers._merge import select_rows, work_in
from trajscope.readers._table import Column, Table, looks_like_log, normal_name, table_source
from trajscope.readers._yaml import parse_yaml
from trajscope.readers.base import HEAD_BYTES, Reader, ReadOptions

__all__ = ["READER", "Delimited"]

_SUFFIXES = (".csv", ".tsv", ".tab")
_TEXT_SUFFIXES = ("", ".txt", ".log", ".dat", ".out")
_TAG_NAMES = ("tag", "metric", "channel", "key", "metric_name", "variable", "name")
_RUN_NAMES = ("run", "run_id", "run_name", "run_uuid", "trial", "seed")
_API_ROWS = 500
_CONFIG_FILES = ("hparams.yaml", "args.yaml", "hparams.json", "config.json")
_CONFIG_LIMIT = 1 << 20
#: What tensorboard-reducer computes over runs.
_STATISTICS = frozenset({"mean", "std", "min", "max", "median", "var", "sum"})
#: Its three header lines are looked for in so many bytes.
_REDUCED_HEAD = 1 << 18


class Delimited(Reader):
    """Reader of delimited text."""

    name = "delimited"
    title = "delimited text (CSV, TSV)"
    priority = -10
    sidecars = ("hparams.yaml", "hparams.json", "args.yaml", "meta_data_*.json", "config.json", "config.yaml")

    def can_read(self, path: Path, head: bytes) -> bool:
        """CSV and TSV by their names; other text where a header and numbers under it show a table."""
        suffix = plain_path(path).suffix.lower()
        head = plain_head(path, head) if suffix in (*_SUFFIXES, *_TEXT_SUFFIXES) else head
        if suffix in _SUFFIXES:
            return not head.strip(b"\0") or bool(head_text(head))
        if suffix not in _TEXT_SUFFIXES or not head:
            return False
        text = head_text(head)
        if text and head.count(b"\n") < 2 and len(head) == HEAD_BYTES:
            text = head_text(read_start(path))
        dialect = sniff(text) if text else None
        if dialect is None or dialect.width < 2 or not dialect.header or dialect.consistent < 0.9:
            return False
        return looks_like_log(dialect.header) and _plain(dialect.header) and _numbers_below(text, dialect)

    def group(self, files: Sequence[Path]) -> list[list[Path]]:
        """One run a file; AlgoPerf's evaluation table goes with the full one."""
        names = {f.name: f for f in files}
        full, evaluation = names.get("measurements.csv"), names.get("eval_measurements.csv")
        groups = [[f] for f in files if f not in (full, evaluation) or full is None or evaluation is None]
        if full is not None and evaluation is not None:
            groups.append([full, evaluation])
        return groups

    def keys(self, files: Sequence[Path], options: ReadOptions) -> list[str]:
        """None for a data set that was not named; the runs of a long table; else one."""
        head = read_start(files[0])
        if not head.strip(b"\0 \r\n") or _reduced(read_head(files[0], _REDUCED_HEAD)) is not None:
            return [""]
        dialect = sniff(head_text(head))
        if dialect is None:
            return [""]
        if _long_columns(dialect.header) and _run_column(dialect.header):
            table = _table(files[0], options, keep=True)
            return _runs_of(table, _run_column(dialect.header)) or [""]
        log = looks_like_log(dialect.header) if dialect.header else _counts_up(head_text(head), dialect)
        return [""] if log or options.explicit or options.step else []

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """One writer: the file, with AlgoPerf's second table worked in."""
        table = _table(files[0], options, keep=bool(key))
        file = options.label(files[0])
        names = [c.name for c in table.columns]
        tag = _long_columns(names)
        if tag:
            source = _long(table, file, key, options)
        elif [normal_name(n) for n in names] == ["wall_time", "step", "value"]:
            source = _web_export(table, file, plain_path(files[0]).stem, options)
        else:
            source = self._wide(table, file, options)
            if _reduced(read_head(files[0], _REDUCED_HEAD)) is not None:
                source.sampled = "tensorboard-reducer keeps at most 10,000 points a tag; these are statistics over runs"
        for other in files[1:]:
            work_in(
                source, self._wide(_table(other, options), options.label(other), options), f"{other.name} repeats rows"
            )
        source.config = sidecar_config(files[0])
        return [source]

    @staticmethod
    def _wide(table: Table, file: str, options: ReadOptions) -> Source:
        columns = table.columns
        names = {c.name for c in columns}
        drop: list[str] = []
        if columns and _is_index(columns[0], table):
            drop.append(columns[0].name)
        source = table_source(table, file, step=options.step, wants=options.wants, drop=drop)
        if "_step" in names and names & {"_timestamp", "_runtime"} and len(table) == _API_ROWS:
            source.sampled = f"W&B's history() returns {_API_ROWS} rows unless scan_history() is used"
        return source


def _table(path: Path, options: ReadOptions, *, keep: bool = False) -> Table:
    """The parsed file. A table of several runs is kept until the next one, since they are read one after the other."""
    stat = path.stat()
    parse = _cached if keep else _cached.__wrapped__
    return parse(path, options.label(path), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1)
def _cached(path: Path, label: str, size: int, mtime: int) -> Table:
    streamed = stream_table(path, label) if plain_path(path) == path else None
    if streamed is not None:
        return streamed
    data, problems = load_text(path, label, lines=True)
    table = parse_delimited(data, label, _reduced(data[:_REDUCED_HEAD]))
    expand_lists(table)
    table.problems = [*problems, *table.problems]
    return table


def _reduced(head: bytes) -> Dialect | None:
    """The dialect of tensorboard-reducer's table: a line of tags, a line of statistics, a line with ``step`` alone."""
    lines = head.decode("utf-8", errors="replace").split("\n")[:3]
    if len(lines) < 3 or not lines[0].startswith(",") or lines[2].strip().rstrip(",") != "step":
        return None
    tags, statistics = (split_line(line.rstrip("\r"), ",") for line in lines[:2])
    if len(tags) != len(statistics) or not set(statistics[1:]) <= _STATISTICS:
        return None
    names = ["step", *(f"{tag}/{statistic}" for tag, statistic in zip(tags[1:], statistics[1:], strict=True))]
    return Dialect(",", False, tuple(names), 3, len(names), 1.0)


def _plain(header: Sequence[str]) -> bool:
    """Whether header cells are short names and no prose."""
    return all(len(c) <= 120 and len(c.split()) <= 4 for c in header)


def _data_lines(text: str, dialect: Dialect) -> list[list[str]]:
    lines = text.split("\n")[dialect.skip : dialect.skip + 5]
    return [split_line(line.rstrip("\r"), dialect.delimiter) for line in lines if line.strip()]


def _numbers_below(text: str, dialect: Dialect) -> bool:
    rows = _data_lines(text, dialect)
    cells = [c for row in rows for c in row]
    lists = sum(c.lstrip(' "').startswith("[") for c in cells)
    good = lists + sum(parse_number(c, decimal_comma=dialect.decimal_comma)[1] != "bad" for c in cells if "[" not in c)
    return bool(cells) and good >= 0.6 * len(cells)


def _counts_up(text: str, dialect: Dialect) -> bool:
    """Whether the first column of a table without header counts."""
    firsts = [parse_number(row[0])[0] for row in _data_lines(text, dialect)]
    numbers = [n for n in firsts if n is not None]
    return len(numbers) == len(firsts) > 1 and all(b > a for a, b in itertools.pairwise(numbers))


def _is_index(column: Column, table: Table) -> bool:
    """The unnamed row index that pandas writes."""
    if column.name not in ("c0", "Unnamed: 0") or table.headless or column.values.size != len(table):
        return False
    return bool(np.all(np.diff(column.values) == 1))


def _long_columns(names: Sequence[str]) -> str:
    """Name of the tag column of a long table, empty where the table is not long."""
    normal = {normal_name(n): n for n in names}
    if "value" not in normal or not any(n in normal for n in ("step", "global_step", "iteration", "epoch")):
        return ""
    return next((normal[n] for n in _TAG_NAMES if n in normal), "")


def _run_column(names: Sequence[str]) -> str:
    normal = {normal_name(n): n for n in names}
    return next((normal[n] for n in _RUN_NAMES if n in normal), "")


def _labels(table: Table, name: str) -> list[str]:
    """Cells of a label column as text, also where they happen to be numbers."""
    column = table.get(name)
    return [] if column is None else column.labels(len(table))


def _runs_of(table: Table, run_column: str) -> list[str]:
    return list(dict.fromkeys(_labels(table, run_column)))


def _long(table: Table, file: str, key: str, options: ReadOptions) -> Source:
    """A channel a tag from a long table, for one run of it."""
    names = [c.name for c in table.columns]
    tag, run = _long_columns(names), _run_column(names)
    value = next(c for c in table.columns if normal_name(c.name) == "value")
    inner = table_source(
        Table([c for c in table.columns if c.name not in (tag, run)], table.line, problems=table.problems),
        file,
        step=options.step,
    )
    whole = inner.series.get(value.name)
    source = Source(file, problems=inner.problems, step_name=inner.step_name)
    if whole is None:
        return source
    kept = np.arange(len(table)) if value.rows is None else value.rows
    tags = np.array(_labels(table, tag), dtype=object)[kept]
    mine = np.ones(tags.size, dtype=bool)
    if run:  # also where the name is empty
        mine = np.array(_labels(table, run), dtype=object)[kept] == key
    for name in dict.fromkeys(tags[mine].tolist()):
        if options.wants(name):
            rows = mine & (tags == name)
            source.series[name] = select_rows(whole, rows)
    return source


def _web_export(table: Table, file: str, stem: str, options: ReadOptions) -> Source:
    """TensorBoard's download: one channel whose tag is in the file name."""
    found = re.match(r"(?:run-.*?-)?tag-(?P<tag>.+)\Z", stem) or re.match(r"run-.*-tag-(?P<tag>.+)\Z", stem)
    tag = found["tag"] if found else stem
    source = table_source(table, file, step=options.step)
    source.series = dict(zip([tag], source.series.values(), strict=False)) if options.wants(tag) else {}
    source.sampled = "TensorBoard's web export keeps at most 1,000 points a channel"
    return source


def sidecar_config(path: Path) -> dict[str, Any]:
    """Settings that lie beside a log in a file of a known name, at most 1 MiB; anything unreadable gives nothing."""
    for name in _CONFIG_FILES:
        beside = path.with_name(name)
        if not beside.is_file() or beside.is_symlink() or beside.stat().st_size > _CONFIG_LIMIT:
            continue
        text = beside.read_bytes().decode("utf-8", errors="replace")
        try:
            found = json.loads(text) if name.endswith(".json") else parse_yaml(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and found:
            return {str(k): v for k, v in found.items()}
    return {}


READER = Delimited()
