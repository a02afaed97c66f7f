"""MLflow: the file store (``mlruns/<experiment>/<run>/metrics/...``) and the SQLite store (``mlflow.db``).

File store: one text file a metric, subdirectories for slashes in its name, a line ``timestamp_ms value step`` a call
(further fields, such as a data set's digest, are left alone; before 2019 ``timestamp value``). SQLite store: table
``metrics`` with NaN as ``is_nan`` and infinities as the largest double, which therefore reads as infinity here in both
stores. MLflow gives the step 0 to whatever is logged without one; a metric whose points all have one step is numbered
in the order of the calls.

The database is opened read-only and immutable; nothing is written beside it.
"""

from __future__ import annotations

import os
import re
import sqlite3
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.errors import ReadError
from trajscope.history import Problem, Series, Source
from trajscope.readers._yaml import read_yaml
from trajscope.readers.base import Reader, ReadOptions, Rejected, Tree

__all__ = ["READER", "MlflowReader"]

_LINE = re.compile(rb"\s*\d{9,16} (\S+)(?: -?\d+)?(?: [^\n]*)?(?:\n|$)")
_SQLITE = b"SQLite format 3\x00"
_LARGEST = float(np.finfo(np.float64).max)
#: What a damaged database raises; the second where SQLite's own message quotes damaged bytes.
_DAMAGE = (sqlite3.Error, UnicodeDecodeError)
_META_LIMIT = 1024 * 1024
_DEPTH = 16


class MlflowReader(Reader):
    """MLflow's two local stores."""

    name = "mlflow"
    title = "MLflow file store and SQLite store"
    priority = 40
    sidecars = ("meta.yaml",)

    def can_read(self, path: Path, head: bytes) -> bool:
        """Whether the file is a metric, a run's ``meta.yaml`` or a tracking database."""
        if head[:16] == _SQLITE:
            return _is_tracking(path)
        if path.name == "meta.yaml":
            return _is_run(head)
        return "metrics" in path.parent.parts and _LINE.match(head) is not None

    def trees(self, directory: Path, files: Sequence[Path], directories: Sequence[Path]) -> list[Tree]:
        """A run directory: its metrics lie in subdirectories."""
        meta = [f for f in files if f.name == "meta.yaml" and _is_run(_head(f))]
        inner = {d.name: d for d in directories if d.name in ("metrics", "params", "tags")}
        if meta:
            return [Tree(directory, (meta[0],), tuple(inner.values()))]
        if "metrics" not in inner:
            return []
        found = [f for f in _metric_files(inner["metrics"]) if _LINE.match(_head(f))]
        return [Tree(directory, (found[0],), tuple(inner.values()))] if found else []

    def keys(self, files: Sequence[Path], options: ReadOptions) -> list[str]:
        """Identities of the runs in a database; a file store holds one run a directory."""
        if _head(files[0])[:16] != _SQLITE:
            return [""]
        with closing(_connect(files[0], options)) as base, _readable(files[0], options):
            return [str(row[0]) for row in base.execute("SELECT run_uuid FROM runs ORDER BY start_time, run_uuid")]

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """One source: the run."""
        if _head(files[0])[:16] == _SQLITE:
            return [_from_database(files[0], key, options)]
        return [_from_files(files[0], options)]


READER = MlflowReader()


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(4096)
    except OSError:
        return b""


def _is_run(head: bytes) -> bool:
    return b"artifact_uri:" in head and (b"run_id:" in head or b"run_uuid:" in head)


def _metric_files(directory: Path, depth: int = 0) -> Iterator[Path]:
    """Regular files under ``metrics``, links left out, sorted."""
    try:
        entries = sorted(os.scandir(directory), key=lambda e: e.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink():
            continue
        if entry.is_file(follow_symlinks=False):
            yield Path(entry.path)
        elif entry.is_dir(follow_symlinks=False) and depth < _DEPTH:
            yield from _metric_files(Path(entry.path), depth + 1)


def _from_files(first: Path, options: ReadOptions) -> Source:
    if first.name == "meta.yaml":
        run = first.parent
    else:
        run = next((p.parent for p in first.parents if p.name == "metrics"), first.parent)
    alone = options.explicit and first.name != "meta.yaml"
    source = Source(options.label(first if alone else run))
    collected = _Collected(source)
    for path in [first] if alone else list(_metric_files(run / "metrics")):
        base = run / "metrics"
        name = path.relative_to(base).as_posix() if path.is_relative_to(base) else path.name
        if options.wants(name):
            collected.read(path, name, options.label(path))
    collected.finish()
    meta = _small(run / "meta.yaml")
    found = read_yaml(meta) if meta else None
    tags = dict(_texts(run / "tags"))
    source.config = {name: _plain(text) for name, text in _texts(run / "params")}
    facts = found if isinstance(found, dict) else {}
    source.summary = _run_facts({**facts, "name": facts.get("run_name") or tags.get("mlflow.runName") or ""})
    if not source.series:
        source.problems.append(Problem("no-scalars", "info", "The run holds no metrics", source.file))
    return source


def _small(path: Path) -> str:
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _META_LIMIT:
            return ""
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _texts(directory: Path) -> Iterator[tuple[str, str]]:
    for path in _metric_files(directory):
        yield path.relative_to(directory).as_posix(), _small(path).strip()


def _plain(text: str) -> Any:
    """A parameter: MLflow keeps texts; numbers and truth values are turned back."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"True": True, "False": False, "None": None}.get(text, text)


def _run_facts(facts: dict[str, Any]) -> dict[str, Any]:
    wanted = ("run_id", "run_uuid", "name", "experiment_id", "status", "lifecycle_stage", "start_time", "end_time")
    kept = {k: facts[k] for k in wanted if facts.get(k) not in (None, "")}
    if "run_id" in kept:
        kept.pop("run_uuid", None)
    return {"_run": kept} if kept else {}


class _Collected:
    """Metrics of one run, with what was wrong over all of them."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._largest = 0
        self._stepless: list[str] = []

    def add(self, name: str, clock: NDArray[Any], value: NDArray[Any], step: NDArray[np.int64], row: Any) -> None:
        """Enter one metric: milliseconds, values, steps and the order of the calls over all metrics."""
        large = np.abs(value) >= _LARGEST
        large &= np.isfinite(value)
        if large.any():
            value = np.where(large, np.copysign(np.inf, value), value)
            self._largest += int(np.count_nonzero(large))
        if step.size > 1 and bool(np.all(step == step[0])):
            self._stepless.append(name)
        self._source.series[name] = Series(step, value, clock / 1000.0, row)

    def read(self, path: Path, name: str, label: str) -> None:
        """Read one metric file."""
        problems = self._source.problems
        try:
            data = path.read_bytes()
        except OSError as problem:
            problems.append(Problem("unreadable", "error", f"Metric cannot be read: {problem.strerror}", label))
            return
        if not data.strip():
            problems.append(Problem("empty-file", "info", f"Metric {name} is empty", label))
            return
        clock, value, step, bad = _lines(data)
        if bad:
            lost = len(bad)
            half = bad == [data.count(b"\n")] and not data.endswith(b"\n")
            what = "half a line" if half else f"{lost} lines that are no 'timestamp value step'"
            problems.append(
                Problem(
                    "half-line" if half else "ragged-row",
                    "info" if half else "warning",
                    f"Metric {name} ends in {what}, which was left out"
                    if half
                    else f"Metric {name} holds {what}; skipped",
                    label,
                    f"line {bad[0] + 1}",
                    lost,
                )
            )
        if value.size:
            # A file a metric: the time of the call is the only order that metrics share.
            self.add(name, clock, value, step, np.maximum.accumulate(clock))

    def finish(self) -> None:
        """Say what was read otherwise than it stands."""
        problems, file = self._source.problems, self._source.file
        if self._largest:
            text = f"{self._largest} values are the largest double, which stands for infinity in MLflow"
            problems.append(Problem("largest-as-infinity", "info", text, file, count=self._largest))
        if self._stepless:
            shown = ", ".join(self._stepless[:3]) + (", ..." if len(self._stepless) > 3 else "")
            text = (
                f"All points of {shown} have one step (none was logged, which MLflow writes as 0); they are numbered in"
                " order unless resume='keep-all'"
            )
            self._source.unstepped = tuple(self._stepless)
            problems.append(Problem("no-step", "warning", text, file, count=len(self._stepless)))


def _lines(data: bytes) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], list[int]]:
    """Times, values, steps and the numbers of the lines that are damaged."""
    clock: list[int] = []
    value: list[float] = []
    step: list[int] = []
    bad: list[int] = []
    last = data.count(b"\n")
    for number, line in enumerate(data.split(b"\n")):
        if not line.strip(b" \r\t\0"):
            continue
        parts = line.split()
        try:
            at, what = int(parts[0]), float(parts[1])
            where = int(parts[2]) if len(parts) > 2 else 0
            # A line without its end may have lost digits of its last field, and MLflow ends every line.
            if number == last or not (abs(at) < 2**63 and abs(where) < 2**63):
                raise ValueError
        except (ValueError, IndexError):
            bad.append(number)
            continue
        clock.append(at)
        value.append(what)
        step.append(where)
    return np.array(clock, np.int64), np.array(value, np.float64), np.array(step, np.int64), bad


@contextmanager
def _readable(path: Path, options: ReadOptions) -> Iterator[None]:
    """Turn SQLite's errors into one sentence."""
    try:
        yield
    except _DAMAGE as problem:
        raise ReadError(f"{options.label(path)}: the MLflow database cannot be read ({problem})") from problem


def _connect(path: Path, options: ReadOptions) -> sqlite3.Connection:
    with _readable(path, options):
        where = urllib.parse.quote(str(path.absolute()))
        base = sqlite3.connect(f"file:{where}?mode=ro&immutable=1", uri=True)
        base.execute("PRAGMA trusted_schema = OFF")
        base.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return base


def _is_tracking(path: Path) -> bool:
    """Whether a database has MLflow's tables of runs and metrics."""
    try:
        with closing(_connect(path, ReadOptions(path))) as base:
            tables = {row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"runs", "metrics"} <= tables:
                return False
            columns = {row[1] for row in base.execute("PRAGMA table_info(metrics)")}
            return {"key", "value", "timestamp", "run_uuid"} <= columns
    except (ReadError, *_DAMAGE) as problem:
        if "mlflow" in path.name.lower():
            raise Rejected(f"The name says MLflow database, but it cannot be read ({problem})") from None
        return False


def _columns(base: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in base.execute(f"PRAGMA table_info({table})")}


def _from_database(path: Path, key: str, options: ReadOptions) -> Source:
    source = Source(options.label(path))
    beside = path.with_name(path.name + "-wal")
    if beside.is_file() and beside.stat().st_size:
        text = "Changes that are still in the write-ahead log beside the database are not read"
        source.problems.append(Problem("write-ahead-log", "warning", text, options.label(beside)))
    collected = _Collected(source)
    with closing(_connect(path, options)) as base, _readable(path, options):
        known = _columns(base, "metrics")
        step = "step" if "step" in known else "0"
        is_nan = "is_nan" if "is_nan" in known else "0"
        names = [row[0] for row in base.execute("SELECT DISTINCT key FROM metrics WHERE run_uuid = ?", (key,))]
        wanted = {str(n) for n in names if options.wants(str(n))}
        query = f"SELECT key, timestamp, value, {step}, {is_nan}, rowid FROM metrics WHERE run_uuid = ? ORDER BY rowid"  # noqa: S608
        rows: dict[str, list[tuple[Any, ...]]] = {n: [] for n in sorted(wanted)}
        for name, *rest in base.execute(query, (key,)):
            if str(name) in wanted:
                rows[str(name)].append(tuple(rest))
        for name, found in rows.items():
            _add_rows(collected, source, name, found)
        for name, value in base.execute("SELECT key, value FROM params WHERE run_uuid = ?", (key,)):
            source.config[str(name)] = _plain(str(value))
        facts = sorted(_columns(base, "runs") & {"run_uuid", "name", "experiment_id", "status", "lifecycle_stage"})
        row = base.execute(f"SELECT {', '.join(facts)} FROM runs WHERE run_uuid = ?", (key,)).fetchone()  # noqa: S608
        source.summary = _run_facts(dict(zip(facts, row or (), strict=False)))
    collected.finish()
    if not source.series:
        source.problems.append(Problem("no-scalars", "info", "The run holds no metrics", source.file))
    return source


def _add_rows(collected: _Collected, source: Source, name: str, rows: list[tuple[Any, ...]]) -> None:
    good: list[tuple[int, float, int, int]] = []
    for clock, value, step, is_nan, row in rows:
        try:
            good.append((int(clock), float("nan") if is_nan else float(value), int(step), int(row)))
        except (TypeError, ValueError, OverflowError):
            continue
    if len(good) < len(rows):
        lost = len(rows) - len(good)
        text = f"{lost} rows of metric {name} hold no number"
        source.problems.append(Problem("bad-cell", "warning", text, source.file, count=lost))
    if good:
        clock_, value_, step_, row_ = zip(*good, strict=True)
        collected.add(
            name,
            np.array(clock_, dtype=np.float64),
            np.array(value_, dtype=np.float64),
            np.array(step_, dtype=np.int64),
            np.array(row_, dtype=np.int64),
        )
