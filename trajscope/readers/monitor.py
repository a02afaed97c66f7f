"""``monitor.csv`` of Stable-Baselines3 and OpenAI baselines: one row an episode, one file an environment.

The file has no step. As the libraries' own plots do, the step of an episode is the number of environment steps of all
episodes finished by then: the cumulative sum of ``l`` over the episodes of all environments in order of wall time
(``t_start + t``). Files of one directory are one run where they were started within an hour of each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.history import Problem, Series, Source
from trajscope.readers._bytes import load_text
from trajscope.readers._csvparse import parse_delimited
from trajscope.readers._gzip import plain_head, plain_path, read_head
from trajscope.readers._table import Table, exact_steps
from trajscope.readers.base import HEAD_BYTES, Reader, ReadOptions

__all__ = ["READER", "Monitor"]

_SAME_RUN = 3600.0
#: Neither an episode nor a run is longer (in steps, in seconds); a damaged cell must not move the whole axis.
_LONGEST = 1e12
#: Sessions of one file that are looked for.
_MOST_SESSIONS = 1000


class Monitor(Reader):
    """Reader of monitor files."""

    name = "monitor"
    title = "Stable-Baselines3 monitor.csv"
    priority = 30

    def can_read(self, path: Path, head: bytes) -> bool:
        """A first line of JSON after ``#``, then a header that begins with r, l and t in any order."""
        named = plain_path(path).name.lower().endswith(("monitor.csv", "monitor.json.csv"))
        head = plain_head(path, head) if named else head
        if not named and not head.startswith(b"#{"):
            return False
        lines = head.lstrip(b"\xef\xbb\xbf").split(b"\n")
        start = 1 if lines[0].startswith(b"#") else 0
        if len(lines) <= start:
            return False
        names = {c.strip().strip(b'"') for c in lines[start].split(b",")}
        return {b"r", b"l", b"t"} <= names

    def group(self, files: Sequence[Path]) -> list[list[Path]]:
        """Files that were started within an hour of each other are environments of one run."""
        started = sorted(((_started(f) or 0.0, f) for f in files), key=lambda p: (p[0], p[1].name))
        groups: list[list[Path]] = []
        for i, (moment, file) in enumerate(started):
            if i and moment - started[i - 1][0] <= _SAME_RUN:
                groups[-1].append(file)
            else:
                groups.append([file])
        return [sorted(g) for g in groups]

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """One writer: the episodes of all environments in order of time."""
        label = options.label(files[0]) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
        source = Source(label, step_name="cumulative l")
        parts: dict[str, list[NDArray[np.float64]]] = {}
        times: list[NDArray[np.float64]] = []
        for k, path in enumerate(files):
            table, header, later, problems = _read(path, options.label(path))
            source.problems.extend(problems)
            source.config.update({n: v for n, v in header.items() if n != "t_start"})
            start = header.get("t_start")
            begin = float(start) if isinstance(start, int | float) else 0.0
            source.started = begin if source.started is None else min(begin, source.started)
            usable = _usable(table, source, options.label(path))
            for column in table.columns:
                if column.text is None and column.name != "t":
                    parts.setdefault(column.name, [np.full(n.size, np.nan) for n in times]).append(
                        column.filled(len(table))[usable]
                    )
            t = table.get("t")
            clock = np.zeros(0) if t is None else t.filled(len(table))[usable]
            line = table.line[usable]
            starts = np.array([begin, *later.values()])[np.searchsorted(np.array([*later]), line)]
            moments, appended = _unfolded(clock, starts)
            if appended.size:
                sentence = (
                    f"The clock starts again {appended.size} times: later sessions were appended; their times are"
                    " counted on from the episode before"
                )
                place = f"line {int(line[appended[0]])}"
                source.problems.append(
                    Problem("appended-session", "info", sentence, options.label(path), place, int(appended.size))
                )
            times.append(moments)
            for columns in parts.values():
                if len(columns) <= k:
                    columns.append(np.full(times[-1].size, np.nan))
        if len(files) > 1:
            source.config["n_envs"] = len(files)
        _fill(source, parts, times, options)
        return [source]


def _unfolded(clock: NDArray[np.float64], starts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Times of the episodes, and the rows at which a session begins whose start nobody wrote down.

    In append mode SB3 writes no second header, and ``t`` counts from the start of the new process: it falls to less
    than half and does not come back at once, as it does where two processes write to one file.
    """
    moments = clock + starts
    folded: list[int] = []
    first, base = 0, float(starts[0]) if starts.size else 0.0  # of the session: its first row and its start
    while len(folded) < _MOST_SESSIONS:
        part = moments[first:] - base
        top = np.maximum.accumulate(part)
        following = np.append(part[1:], part[-1:])
        begins = (part[1:] < 0.5 * top[:-1]) & (part[1:] < part[:-1]) & (following[1:] < top[:-1])
        if not begins.any():
            break
        first += int(np.argmax(begins)) + 1
        base = float(moments[first - 1])
        alike = starts[first:] == starts[first]
        moments[first:][alike] += base - starts[first]
        folded.append(first)
    return moments, np.array(folded, dtype=np.int64)


def _fill(
    source: Source, parts: dict[str, list[NDArray[np.float64]]], times: list[NDArray[np.float64]], options: ReadOptions
) -> None:
    wall = np.concatenate(times) if times else np.zeros(0)
    order = np.argsort(wall, kind="stable")
    lengths = np.concatenate(parts["l"])[order] if "l" in parts else np.ones(wall.size)
    steps = exact_steps(np.cumsum(lengths))
    absolute = bool(source.started and source.started > 6e8)
    row = np.arange(wall.size, dtype=np.int64)
    for name, columns in parts.items():
        values = np.concatenate(columns)[order]
        kept = np.ones(values.size, dtype=bool) if name in ("r", "l") else ~np.isnan(values)
        if options.wants(name):
            source.series[name] = Series(
                steps[kept], values[kept], wall[order][kept] if absolute else None, row[kept], int((~kept).sum())
            )


def _usable(table: Table, source: Source, file: str) -> NDArray[np.bool_]:
    """Episodes with a length and a time; the others cannot be placed."""
    usable = np.ones(len(table), dtype=bool)
    for name in ("l", "t"):
        column = table.get(name)
        if column is None or column.text is not None:
            return np.zeros(len(table), dtype=bool)
        cells = column.filled(len(table))
        usable &= np.isfinite(cells) & (cells >= 0) & (cells < _LONGEST)
    lost = int(np.count_nonzero(~usable))
    if lost:
        place = f"line {int(table.line[int(np.argmax(~usable))])}"
        source.problems.append(
            Problem(
                "skipped-records",
                "warning",
                f"{lost} episodes have no length or time and are left out",
                file,
                place,
                lost,
            )
        )
    return usable


def _read(path: Path, label: str) -> tuple[Table, dict[str, Any], dict[int, float], list[Problem]]:
    """The episodes, the first line's object, and by line the start of every later session that has such a line."""
    data, problems = load_text(path, label, lines=True)
    header = _header(data[:HEAD_BYTES])
    later: dict[int, float] = {}
    if b"\n#" in data:
        lines = data.split(b"\n")
        names = next((line for line in lines if line and not line.startswith(b"#")), b"")
        for i, line in enumerate(lines):
            if i and line.startswith(b"#"):
                start = _header(line).get("t_start")
                later |= {i + 1: float(start)} if isinstance(start, int | float) else {}
                lines[i] = names  # a header that repeats: a new session
        data = b"\n".join(lines)
    table = parse_delimited(data, label)
    return table, header, later, [*problems, *table.problems]


def _header(head: bytes) -> dict[str, Any]:
    """The JSON object of the first line; empty where it is damaged."""
    first = head.split(b"\n", 1)[0].lstrip(b"\xef\xbb\xbf# ").decode("utf-8", errors="replace")
    try:
        found = json.loads(first)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _started(path: Path) -> float | None:
    start = _header(read_head(path, HEAD_BYTES)).get("t_start")
    return float(start) if isinstance(start, int | float) else None


READER = Monitor()
