"""The files: one tidy Parquet a batch of runs, one row group a run, checksums beside them.

Columns ``run, segment, channel, step, wall_time, value``, sorted by run, channel and step. The key ``trajscope`` of
the file's metadata holds the runs' configurations and the channels' roles, the key ``recorder`` the versions.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sklearn

from recorder.monitor import ROLES, Log

TEXT = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        ("run", TEXT),
        ("segment", pa.int16()),
        ("channel", TEXT),
        ("step", pa.int64()),
        ("wall_time", pa.float64()),
        ("value", pa.float32()),
    ]
)
CHECKSUMS = "checksums.sha256"
LABELS = "labels.parquet"

Series = dict[str, tuple[np.ndarray, np.ndarray]]  # channel -> (steps, values)


def versions(**more: str) -> dict[str, str]:
    """What the bits of a recording depend on."""
    config: Any = np.show_config(mode="dicts")
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "blas": f"{config['Build Dependencies']['blas']['name']} {config['Build Dependencies']['blas']['version']}",
        "simd": ",".join(config["SIMD Extensions"].get("found", [])),
        "machine": f"{platform.system()} {platform.machine()}, {cpu_model()}",
        **more,
    }


def cpu_model() -> str:
    """Processor name as Linux gives it, else what `platform` knows."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def run_table(run: str, log: Log) -> pa.Table:
    """The rows of one run."""
    arrays = log.arrays()
    names = sorted(arrays)
    lengths = [len(arrays[c][0]) for c in names]
    n = sum(lengths)
    return pa.table(
        [
            pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), pa.array([run])),
            pa.array(np.zeros(n, np.int16)),
            pa.DictionaryArray.from_arrays(np.repeat(np.arange(len(names), dtype=np.int32), lengths), pa.array(names)),
            pa.array(np.concatenate([arrays[c][0] for c in names])),
            pa.nulls(n, pa.float64()),
            pa.array(np.concatenate([arrays[c][1] for c in names])),
        ],
        schema=SCHEMA,
    )


def write_runs(
    path: Path,
    tables: Iterable[tuple[str, pa.Table]],
    configs: dict[str, dict[str, Any]],
    recorded_with: dict[str, str],
    roles: dict[str, str] = ROLES,
) -> None:
    """Write runs, already in the order of their ids, to one file; renamed into place when complete."""
    meta = {
        "schema_version": 1,
        "runs": {run: {"config": configs[run], "name": run} for run in sorted(configs)},
        "channels": {c: {"role": role, "dtype": "float32"} for c, role in roles.items()},
    }
    text = {"trajscope": json.dumps(meta, separators=(",", ":")), "recorder": json.dumps(recorded_with)}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with pq.ParquetWriter(
        partial,
        SCHEMA.with_metadata(text),
        compression="zstd",
        compression_level=19,
        use_dictionary=["run", "channel", "segment"],
        column_encoding={"step": "DELTA_BINARY_PACKED", "value": "BYTE_STREAM_SPLIT"},
    ) as writer:
        for _, table in tables:
            writer.write_table(table, row_group_size=len(table))
    partial.replace(path)


def read_tables(path: Path) -> Iterator[tuple[str, pa.Table]]:
    """(run id, rows) of every row group of a file."""
    with pq.ParquetFile(path) as file:
        for k in range(file.num_row_groups):
            table = file.read_row_group(k)
            yield table["run"][0].as_py(), table


def assemble(
    parts: list[Path],
    path: Path,
    thin: Callable[[Path, str, pa.Table], pa.Table | None] = lambda _part, _run, table: table,
) -> None:
    """Join files of runs into one, sorted by run id, with the metadata of the first.

    ``thin`` is given the part, the run and its rows, and may leave rows out, or the run (None).
    """
    read = ((run, thin(part, run, table)) for part in parts for run, table in read_tables(part))
    tables = {run: table for run, table in read if table is not None}
    metas = [read_meta(part) for part in parts]
    configs = {run: entry["config"] for meta in metas for run, entry in meta["runs"].items() if run in tables}
    roles = {c: entry["role"] for meta in metas for c, entry in meta["channels"].items()}
    write_runs(path, sorted(tables.items()), configs, read_meta(parts[0], "recorder"), roles)


def read_meta(path: Path, key: str = "trajscope") -> dict[str, Any]:
    """A JSON entry of the file's metadata."""
    found: dict[str, Any] = json.loads(pq.read_schema(path).metadata[key.encode()])
    return found


def series(table: pa.Table) -> Series:
    """Channel -> (steps, values) of one run's rows."""
    codes = table["channel"].combine_chunks()
    names, index = codes.dictionary.to_pylist(), codes.indices.to_numpy()
    steps, values = table["step"].to_numpy(), table["value"].to_numpy()
    return {name: (steps[index == k], values[index == k]) for k, name in enumerate(names)}


def series_equal(a: Series, b: Series, before: int | None = None) -> bool:
    """Whether two runs are the same to the bit, up to a step (exclusive) where one is given."""
    if a.keys() != b.keys():
        return False
    for channel in a:
        (steps, values), (other_steps, other_values) = a[channel], b[channel]
        if before is not None:
            values, other_values = values[steps < before], other_values[other_steps < before]
            steps, other_steps = steps[steps < before], other_steps[other_steps < before]
        if not np.array_equal(steps, other_steps) or values.tobytes() != other_values.tobytes():
            return False
    return True


def data_files(root: Path) -> list[Path]:
    """The Parquet files of runs under ``datasets/``, sorted."""
    return sorted(p for p in root.glob("*/*.parquet") if not p.parent.name.startswith("."))


def write_checksums(root: Path) -> None:
    """SHA-256 of the data files and the labels, in the format of ``sha256sum``."""
    files = [*data_files(root), *([root / LABELS] if (root / LABELS).exists() else [])]
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(root).as_posix()}" for p in files]
    (root / CHECKSUMS).write_text("\n".join(lines) + "\n")
