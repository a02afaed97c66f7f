"""Runs and trajectories as Parquet: the one file form of our own.

Runs are stored long: columns ``run`` (dictionary), ``segment`` (int16), ``channel`` (dictionary), ``step`` (int64, or
float64 where a step is fractional), ``wall_time`` (float64, null where unknown) and ``value`` (float32 where every
channel is, else float64), one row group a run, sorted by run and channel. Integers beyond 2^53 stand in an additional
column ``value_int``; points of dead branches carry ``superseded = true``. File metadata under the key ``trajscope`` is
JSON::

    {"schema_version": 1,
     "runs": {run: {"config": {}, "summary": {}, "format": "", "segments": [], "problems": [], "provenance": {}}},
     "channels": {channel: {"role": "", "dtype": "float32", "sampled": false, "n_missing": 0, ...}}}

Channel entries that differ between runs stand under ``runs -> run -> channels``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trajscope.errors import ReadError, SeveralRuns
from trajscope.history.run import Channel, Problem, Run, RunData, Segment, named_channel
from trajscope.history.trajectory import Trajectory
from trajscope.result import jsonable

__all__ = ["parquet_run_ids", "read_parquet_run", "read_trajectory", "write_runs", "write_trajectory"]

SCHEMA_VERSION = 1
_KEY = b"trajscope"
_TRAJECTORY_KEY = b"trajscope.trajectory"
_EXACT = 2**53


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
    target = Path(path)
    every = [c for r in listed for c in (*r.channels.values(), *r.superseded.values())]
    float_step = any(c.steps.dtype.kind == "f" for c in every)
    narrow = bool(every) and all(c.values.dtype in (np.float32, np.float16) for c in every)
    wide_int = any(c.values.dtype.kind in "iu" and c.values.size and np.abs(c.values).max() > _EXACT for c in every)
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
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _run_meta(run: Run) -> dict[str, Any]:
    def describe(c: Channel) -> dict[str, Any]:
        return {
            "role": c.role,
            "role_confidence": c.role_confidence,
            "dtype": str(c.values.dtype),
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


def _open(path: str | Path) -> tuple[pq.ParquetFile, dict[str, Any]]:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as problem:
        raise ReadError(f"{path}: not a readable Parquet file ({problem})") from problem
    raw = (file.schema_arrow.metadata or {}).get(_KEY)
    if raw is None:
        raise ReadError(f"{path}: Parquet, but not written by trajscope (no 'trajscope' entry in its metadata)")
    meta = json.loads(raw)
    if meta.get("schema_version") != SCHEMA_VERSION:
        raise ReadError(
            f"{path}: schema version {meta.get('schema_version')!r}, this trajscope reads version {SCHEMA_VERSION}"
        )
    return file, meta


def parquet_run_ids(path: str | Path) -> list[str]:
    """Identities of the runs in a file that `write_runs` (or the recorder) wrote."""
    file, meta = _open(path)
    file.close()
    return list(meta["runs"])


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
        If the file is none of ours or has no such run.
    SeveralRuns
        If ``run`` is None and the file holds more than one.
    """
    file, meta = _open(path)
    ids = list(meta["runs"])
    if run is None:
        if len(ids) != 1:
            raise SeveralRuns(f"{path}: holds {len(ids)} runs; name one of {', '.join(ids[:8])}")
        run = ids[0]
    if run not in meta["runs"]:
        raise ReadError(f"{path}: holds no run {run!r}; it has {', '.join(ids[:8])}")
    column = file.schema_arrow.get_field_index("run")
    groups = []
    for g in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(g).column(column).statistics
        if statistics is None or not statistics.has_min_max or statistics.min <= run <= statistics.max:
            groups.append(g)
    table = file.read_row_groups(groups)
    file.close()
    one = table.filter(pa.compute.equal(table["run"], run)) if len(groups) != 1 or _mixed(table) else table
    return Run(run, _run_data(one, meta, run), path=str(path), format=meta["runs"][run].get("format") or "parquet")


def _mixed(table: pa.Table) -> bool:
    return len(pa.compute.unique(table["run"])) > 1


def _run_data(table: pa.Table, meta: dict[str, Any], run: str) -> RunData:
    entry = meta["runs"][run]
    described = {**meta.get("channels", {}), **entry.get("channels", {})}
    table = table.combine_chunks()
    names = table["channel"].cast(pa.string()).to_numpy(zero_copy_only=False) if table.num_rows else np.zeros(0, object)
    steps = table["step"].to_numpy()
    wall = table["wall_time"].to_numpy()
    values = table["value"].to_numpy()
    segment = table["segment"].to_numpy()
    exact = table["value_int"] if "value_int" in table.column_names else None
    dead = (
        table["superseded"].to_numpy(zero_copy_only=False).astype(bool)
        if "superseded" in table.column_names
        else np.zeros(table.num_rows, dtype=bool)
    )
    channels: dict[str, Channel] = {name: _channel(name, described, None) for name in entry.get("channels", {})}
    superseded: dict[str, Channel] = {}
    change = np.flatnonzero((names[1:] != names[:-1]) | (dead[1:] != dead[:-1])) + 1
    for low, high in zip([0, *change.tolist()], [*change.tolist(), table.num_rows], strict=True):
        if high == low:
            continue
        part = slice(low, high)
        name = str(names[low])
        dtype = np.dtype(described.get(name, {}).get("dtype", "float64"))
        own = values[part]
        if exact is not None and dtype.kind in "iu":
            own = exact.slice(low, high - low).to_numpy()
        held = wall[part]
        target = superseded if dead[low] else channels
        target[name] = _channel(
            name,
            described,
            (steps[part], own.astype(dtype), None if np.isnan(held).all() else held, segment[part].astype(np.int16)),
        )
    return RunData(
        channels,
        entry.get("config", {}),
        entry.get("summary", {}),
        tuple(Segment(**s) for s in entry.get("segments", [])),
        superseded,
        tuple(Problem(**p) for p in entry.get("problems", [])),
        entry.get("provenance", {}),
    )


def _channel(name: str, described: dict[str, Any], arrays: tuple[Any, ...] | None) -> Channel:
    facts = described.get(name, {})
    if arrays is None:
        empty = np.zeros(0, dtype=np.int64)
        arrays = (empty, np.zeros(0, dtype=facts.get("dtype", "float64")), None, np.zeros(0, dtype=np.int16))
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
    if facts.get("role"):
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
    meta = json.loads(raw)
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
