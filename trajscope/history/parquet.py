"""Runs and trajectories as Parquet: the one file form of our own.

Runs are stored long: columns ``run`` (dictionary), ``segment`` (int16), ``channel`` (dictionary), ``step`` (int64, or
float64 where a step is fractional), ``wall_time`` (float64, null where unknown) and ``value`` (float32 where every
channel is, else float64), one row group a run, sorted by run and channel. Integers beyond 2^53 stand in an additional
column ``value_int``; points of dead branches carry ``superseded = true``. File metadata under the key ``trajscope`` is
JSON::

    {"schema_version": 1,
     "runs": {run: {"config": {}, "summary": {}, "format": "", "segments": [], "problems": [], "provenance": {}}},
     "channels": {channel: {"role": "", "dtype": "float32", "step_dtype": "int64", "sampled": false, ...}}}

Channel entries that differ between runs stand under ``runs -> run -> channels``.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trajscope.errors import InputError, ReadError, SeveralRuns, nearest
from trajscope.history.run import Channel, Problem, Run, RunData, Segment, named_channel
from trajscope.history.trajectory import Trajectory
from trajscope.result import jsonable

__all__ = ["parquet_run_ids", "read_parquet_run", "read_trajectory", "write_runs", "write_trajectory"]

SCHEMA_VERSION = 1
_KEY = b"trajscope"
_TRAJECTORY_KEY = b"trajscope.trajectory"
_EXACT = 2**53
_COLUMNS = ("run", "segment", "channel", "step", "wall_time", "value")


def write_runs(runs: Run | Iterable[Run], path: str | Path) -> Path:
    """Write runs to one Parquet file, one row group a run; the file appears only when it is complete.

    Parameters
    ----------
    runs : Run or iterable of Run
    path : path
        Target; a temporary file beside it is renamed at the end.

    Returns
    -------
    Path
    """
    listed = [runs] if isinstance(runs, Run) else list(runs)
    ids = [r.id for r in listed]
    if len(set(ids)) < len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise InputError(f"two runs are called {twice!r}; a file needs a name for each (Run.replace(id=...))")
    target = Path(path)
    every = [c for r in listed for c in (*r.channels.values(), *r.superseded.values())]
    float_step = any(c.steps.dtype.kind == "f" for c in every)
    narrow = bool(every) and all(c.values.dtype in (np.float32, np.float16) for c in every)
    wide_int = any(_wide(c.values) for c in every)
    wide_step = float_step and any(_wide(c.steps) for c in every)
    dead = any(len(r.superseded) for r in listed)
    text = pa.dictionary(pa.int32(), pa.string())
    fields = [
        pa.field("run", text),
        pa.field("segment", pa.int16()),
        pa.field("channel", text),
        pa.field("step", pa.float64() if float_step else pa.int64()),
        pa.field("wall_time", pa.float64()),
        pa.field("value", pa.float32() if narrow else pa.float64()),
    ]
    if wide_int:
        fields.append(pa.field("value_int", pa.int64()))
    if wide_step:
        fields.append(pa.field("step_int", pa.int64()))
    if dead:
        fields.append(pa.field("superseded", pa.bool_()))
    meta: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "runs": {r.id: _run_meta(r) for r in listed},
        "channels": {},
    }
    schema = pa.schema(fields, metadata={_KEY: json.dumps(jsonable(meta)).encode()})
    partial = target.with_name(target.name + ".partial")
    try:
        with pq.ParquetWriter(partial, schema, compression="zstd", use_dictionary=["run", "channel"]) as writer:
            for run in listed:
                writer.write_table(_run_table(run, schema), row_group_size=1 << 30)
        _opened.cache_clear()  # a file that is still open cannot be replaced everywhere
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _wide(numbers: NDArray[Any]) -> bool:
    """Whether an integer array holds numbers that float64 cannot."""
    if numbers.dtype.kind not in "iu" or not numbers.size:
        return False
    return bool(numbers.max() > _EXACT or (numbers.dtype.kind == "i" and numbers.min() < -_EXACT))


def _run_meta(run: Run) -> dict[str, Any]:
    def describe(c: Channel) -> dict[str, Any]:
        return {
            "role": c.role,
            "role_confidence": c.role_confidence,
            "dtype": str(c.values.dtype),
            "step_dtype": str(c.steps.dtype),
            "sampled": c.sampled,
            "n_missing": c.n_missing,
            "n_duplicates": c.n_duplicates,
        }

    return {
        "format": run.format,
        "path": run.path,
        "config": dict(run.config),
        "summary": dict(run.summary),
        "segments": [asdict(s) for s in run.segments],
        "problems": [asdict(p) for p in run.problems],
        "provenance": dict(run.provenance),
        "channels": {c.name: describe(c) for c in run.channels.values()},
        "superseded": {c.name: describe(c) for c in run.superseded.values()},
    }


def _run_table(run: Run, schema: pa.Schema) -> pa.Table:
    parts = [(c, False) for c in run.channels.values()] + [(c, True) for c in run.superseded.values()]
    tables = []
    for c, superseded in parts:
        n = len(c)
        columns: dict[str, Any] = {
            "run": pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), [run.id]),
            "segment": c.segment,
            "channel": pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), [c.name]),
            "step": c.steps,
            "wall_time": pa.nulls(n, pa.float64()) if c.wall_time is None else pa.array(c.wall_time, from_pandas=True),
            "value": c.values.astype(np.float64) if c.values.dtype != np.float32 else c.values,
            "value_int": c.values if c.values.dtype.kind in "iu" else pa.nulls(n, pa.int64()),
            "step_int": c.steps if c.steps.dtype.kind in "iu" else pa.nulls(n, pa.int64()),
            "superseded": np.full(n, superseded),
        }
        arrays = [
            column
            if isinstance(column, pa.Array) and column.type == f.type
            else pa.array(column).cast(f.type, safe=False)
            for f in schema
            for column in [columns[f.name]]
        ]
        tables.append(pa.Table.from_arrays(arrays, schema=schema))
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks() if tables else schema.empty_table()


@dataclass(eq=False)
class _Opened:
    """A file of ours: its metadata, the row groups of each run, and the file itself."""

    meta: dict[str, Any]
    groups: dict[str, list[int]]
    file: Any


def _open(path: str | Path) -> _Opened:
    """Open a file, or take it as it was opened for the run before.

    The last few files stay open: to parse the footer anew for each of thousands of runs would take time quadratic in
    their number. `write_runs` lets go of them.
    """
    try:
        state = Path(path).stat()
    except OSError as problem:
        raise ReadError(f"{path}: cannot be opened ({problem.strerror})") from problem
    return _opened(Path(path), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _opened(path: Path, modified: int, size: int) -> _Opened:
    try:
        file = pq.ParquetFile(path)
        raw = (file.schema_arrow.metadata or {}).get(_KEY)
        if raw is None:
            raise ReadError(f"{path}: Parquet, but not written by trajscope (no 'trajscope' entry in its metadata)")
        meta = json.loads(raw)
        if not isinstance(meta, dict) or meta.get("schema_version") != SCHEMA_VERSION:
            found = meta.get("schema_version") if isinstance(meta, dict) else None
            raise ReadError(f"{path}: schema version {found!r}, this trajscope reads version {SCHEMA_VERSION}")
        if not isinstance(meta.get("runs"), dict):
            raise ReadError(f"{path}: its metadata list no runs")
        lacking = [c for c in _COLUMNS if c not in file.schema_arrow.names]
        if lacking:
            raise ReadError(f"{path}: column {lacking[0]!r} is missing; expected {', '.join(_COLUMNS)}")
        return _Opened(meta, _groups(file, list(meta["runs"])), file)
    except ReadError:
        raise
    except (pa.ArrowException, OSError, ValueError, RecursionError) as problem:
        raise ReadError(f"{path}: not a readable Parquet file ({_first_line(problem)})") from problem


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]


def _groups(file: pq.ParquetFile, runs: list[str]) -> dict[str, list[int]]:
    """Row groups that may hold rows of each run, by the statistics of the run column."""
    column = file.schema_arrow.get_field_index("run")
    ordered = sorted(runs)
    found: dict[str, list[int]] = {r: [] for r in runs}
    for g in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(g).column(column).statistics
        if statistics is None or not statistics.has_min_max:
            low, high = 0, len(ordered)
        else:
            low, high = bisect_left(ordered, statistics.min), bisect_right(ordered, statistics.max)
        for r in ordered[low:high]:
            found[r].append(g)
    return found


def parquet_run_ids(path: str | Path) -> list[str]:
    """Identities of the runs in a file that `write_runs` (or the recorder) wrote."""
    return list(_open(path).meta["runs"])


def read_parquet_run(path: str | Path, run: str | None = None) -> Run:
    """Read one run; only its row groups are read.

    Parameters
    ----------
    path : path
    run : str, optional
        Identity; needed where the file holds several.

    Raises
    ------
    ReadError
        If the file is none of ours, is damaged, or has no such run.
    SeveralRuns
        If ``run`` is None and the file holds more than one.
    """
    import pyarrow.compute as pc  # a tenth of a second that writing does not need

    opened = _open(path)
    meta = opened.meta
    ids = list(meta["runs"])
    if run is None:
        if len(ids) != 1:
            raise SeveralRuns(f"{path}: holds {len(ids)} runs; name one of {', '.join(ids[:8])}")
        run = ids[0]
    if run not in meta["runs"]:
        raise ReadError(f"{path}: holds no run {run!r}. {nearest(run, ids)}")
    try:
        table = opened.file.read_row_groups(opened.groups[run], use_threads=False)
        own = pc.equal(table["run"], run)
        if not pc.all(own, min_count=0).as_py():
            table = table.filter(own)
        data = _run_data(table, meta, run)
    except (pa.ArrowException, OSError) as problem:
        raise ReadError(f"{path}: the data of run {run!r} are damaged ({_first_line(problem)})") from problem
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ReadError(f"{path}: what the file says about run {run!r} cannot be used ({problem})") from problem
    return Run(run, data, path=str(path), format=meta["runs"][run].get("format") or "parquet")


def _run_data(table: pa.Table, meta: dict[str, Any], run: str) -> RunData:
    entry = meta["runs"][run]
    live = {**meta.get("channels", {}), **entry.get("channels", {})}
    described = {False: live, True: {**live, **entry.get("superseded", {})}}
    table = table.unify_dictionaries().combine_chunks()
    column = table["channel"].combine_chunks()
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if isinstance(column, pa.ChunkedArray):  # a table without rows has no chunk to combine
        column = pa.array([], pa.dictionary(pa.int32(), pa.string()))
    names = [str(n) for n in column.dictionary.to_pylist()]
    code = column.indices.to_numpy(zero_copy_only=False)
    n = code.size
    dead = np.zeros(n, dtype=bool)
    if "superseded" in table.column_names:
        dead = table["superseded"].to_numpy().astype(bool)
    key = code.astype(np.int64) + len(names) * dead
    if bool(np.any(np.diff(key) != 0)) and np.unique(key).size - 1 < np.count_nonzero(np.diff(key)):
        order = np.argsort(key, kind="stable")  # a file of another writer, not sorted by channel
        table, key, code, dead = table.take(pa.array(order)), key[order], code[order], dead[order]
    arrays = {c: table[c].to_numpy() for c in ("step", "wall_time", "value", "segment")}
    exact = {c: table[c] for c in ("value_int", "step_int") if c in table.column_names}
    channels: dict[str, Channel] = {name: _channel(name, live, None) for name in entry.get("channels", {})}
    superseded: dict[str, Channel] = {}
    bounds = [0, *(np.flatnonzero(np.diff(key) != 0) + 1).tolist(), n]
    for low, high in itertools.pairwise(bounds):
        if high == low:
            continue
        name = names[code[low]]
        facts = described[bool(dead[low])]
        part = slice(low, high)

        held = arrays["wall_time"][part]
        clock = None if np.isnan(held).all() else held
        own = facts.get(name, {})
        columns = (
            _typed(arrays["step"], exact.get("step_int"), part, own.get("step_dtype")),
            _typed(arrays["value"], exact.get("value_int"), part, own.get("dtype")),
            clock,
            arrays["segment"][part].astype(np.int16),
        )
        (superseded if dead[low] else channels)[name] = _channel(name, facts, columns)
    segments = tuple(Segment(**s) for s in entry.get("segments", []))
    return RunData(
        channels,
        entry.get("config", {}),
        entry.get("summary", {}),
        segments or _one_segment(channels),
        superseded,
        tuple(Problem(**p) for p in entry.get("problems", [])),
        entry.get("provenance", {}),
    )


def _typed(column: NDArray[Any], exact: Any, part: slice, kind: str | None) -> NDArray[Any]:
    """A stretch of a column in its own precision; integers from the exact column where there is one."""
    dtype = np.dtype(kind or column.dtype)
    whole = exact is not None and dtype.kind in "iu"
    numbers: NDArray[Any] = exact.slice(part.start, part.stop - part.start).to_numpy() if whole else column[part]
    return numbers.astype(dtype)


def _one_segment(channels: dict[str, Channel]) -> tuple[Segment, ...]:
    """The segment of a run that was recorded without interruption (the recorder lists none)."""
    filled = [c for c in channels.values() if len(c)]
    if not filled or any(c.segment.any() for c in filled):
        return ()
    first, last = min(float(c.steps[0]) for c in filled), max(float(c.steps[-1]) for c in filled)
    return (Segment(0, "start", 0, first, last),)


def _channel(name: str, described: dict[str, Any], arrays: tuple[Any, ...] | None) -> Channel:
    facts = described.get(name, {})
    if arrays is None:
        empty = np.zeros(0, dtype=np.int64)
        arrays = (
            empty.astype(facts.get("step_dtype", "int64")),
            np.zeros(0, dtype=facts.get("dtype", "float64")),
            None,
            np.zeros(0, dtype=np.int16),
        )
    channel = named_channel(
        name,
        arrays[0],
        arrays[1],
        wall_time=arrays[2],
        segment=arrays[3],
        sampled=bool(facts.get("sampled", False)),
        n_missing=int(facts.get("n_missing", 0)),
        n_duplicates=int(facts.get("n_duplicates", 0)),
    )
    if "role" in facts:
        channel = replace(channel, role=facts["role"], role_confidence=float(facts.get("role_confidence", 1.0)))
    return channel


def write_trajectory(trajectory: Trajectory, path: str | Path) -> None:
    """Write a trajectory: a row a step, a column a channel, its codes beside it."""
    columns: dict[str, Any] = {"step": trajectory.steps, "segment": trajectory.segment}
    for k in range(len(trajectory.names)):
        columns[f"value_{k}"] = trajectory.values[:, k]
        columns[f"code_{k}"] = trajectory.codes[:, k]
    meta = {
        "schema_version": SCHEMA_VERSION,
        "names": trajectory.names,
        "roles": trajectory.roles,
        "stride": trajectory.stride,
        "x": trajectory.x,
        "run": trajectory.run,
    }
    table = pa.table(columns).replace_schema_metadata({_TRAJECTORY_KEY: json.dumps(jsonable(meta)).encode()})
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    try:
        pq.write_table(table, partial, compression="zstd")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def read_trajectory(path: str | Path) -> Trajectory:
    """Read what `write_trajectory` wrote."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as problem:
        raise ReadError(f"{path}: not a readable Parquet file ({problem})") from problem
    raw = (table.schema.metadata or {}).get(_TRAJECTORY_KEY)
    if raw is None:
        raise ReadError(f"{path}: Parquet, but not a trajectory written by Trajectory.to_parquet")
    try:
        return _trajectory(table, json.loads(raw))
    except (KeyError, TypeError, ValueError) as problem:
        raise ReadError(f"{path}: what the file says about its trajectory cannot be used ({problem})") from problem


def _trajectory(table: pa.Table, meta: dict[str, Any]) -> Trajectory:
    width: Sequence[int] = range(len(meta["names"]))
    shape = (table.num_rows, len(meta["names"]))
    codes = np.stack([table[f"code_{k}"].to_numpy() for k in width], axis=1) if shape[1] else np.zeros(shape, np.int8)
    values = np.stack([table[f"value_{k}"].to_numpy() for k in width], axis=1) if shape[1] else np.zeros(shape)
    return Trajectory(
        values,
        table["step"].to_numpy(),
        tuple(meta["names"]),
        tuple(meta["roles"]),
        codes != 4,
        codes,
        table["segment"].to_numpy(),
        tuple(float(s) for s in meta["stride"]),
        meta["x"],
        meta["run"],
    )
