"""Archives of the Neptune exporter: ``<project>_<digest>/<run>_part_<n>.parquet``, a long table.

Columns: project_id, run_id, attribute_path, attribute_type, step (decimal with six places), timestamp (milliseconds,
UTC), int_value, float_value, string_value, bool_value, datetime_value and structures for files and histograms. Rows of
type ``float_series`` become channels; single values become the configuration (under ``parameters`` and the like) or the
summary; the rest is counted. An export without part 0 was not finished.

Format: the schema in the exporter's public source (``src/neptune_exporter/model.py``, Apache-2.0).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trajscope.errors import ReadError
from trajscope.history import Problem, Series, Source
from trajscope.readers._parquet_footer import footer
from trajscope.readers.base import Reader, ReadOptions

__all__ = ["READER", "NeptuneReader"]

_PART = re.compile(r"^(?P<run>.+)_part_(?P<number>\d+)\.parquet$")
_NEEDED = frozenset({"run_id", "attribute_path", "attribute_type", "step", "float_value"})
_SETTINGS = ("parameters", "params", "config", "hyperparameters", "hparams", "args")
_SINGLE = {"int": "int_value", "float": "float_value", "string": "string_value", "bool": "bool_value"}


class NeptuneReader(Reader):
    """Parquet archives of Neptune runs."""

    name = "neptune"
    title = "Neptune export (Parquet)"
    priority = 70

    def can_read(self, path: Path, head: bytes) -> bool:
        """Whether the columns are those of the exporter."""
        if head[:4] != b"PAR1":
            return False
        schema = footer(path)
        return schema is not None and set(schema.names) >= _NEEDED

    def group(self, files: Sequence[Path]) -> list[list[Path]]:
        """The parts of one run together, in order."""
        runs: dict[str, list[tuple[int, Path]]] = {}
        for f in files:
            match = _PART.match(f.name)
            runs.setdefault(match["run"] if match else f.name, []).append((int(match["number"]) if match else 0, f))
        return [[f for _, f in sorted(parts)] for parts in runs.values()]

    def keys(self, files: Sequence[Path], options: ReadOptions) -> list[str]:
        """The runs in the file; the exporter writes one a file."""
        found: set[str] = set()
        for f in files:
            try:
                found |= _run_ids(f, options)
            except ReadError:
                if len(files) == 1:
                    raise  # of several parts the damaged one is reported when the run is read
        return sorted(found) if len(found) > 1 else [""]

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """One source: the parts are slices of one export."""
        return [_source(files, key, options)]


READER = NeptuneReader()


def _run_ids(path: Path, options: ReadOptions) -> set[str]:
    """Runs in a file, from the statistics in its footer where they decide it."""
    found: set[str] = set()
    with _readable(path, options), pq.ParquetFile(path) as file:
        column = file.schema_arrow.get_field_index("run_id")
        for g in range(file.metadata.num_row_groups):
            statistics = file.metadata.row_group(g).column(column).statistics
            if statistics is None or not statistics.has_min_max or statistics.min != statistics.max:
                table = file.read(["run_id"])
                return {str(v) for v in pc.unique(table["run_id"]).to_pylist() if v is not None}
            found.add(str(statistics.min))
    return found


@contextmanager
def _readable(path: Path, options: ReadOptions) -> Iterator[None]:
    """Turn Arrow's errors into one sentence."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as problem:
        reason = (str(problem).splitlines() or [""])[0]
        raise ReadError(f"{options.label(path)}: the Parquet file is damaged ({reason})") from problem


def _table(path: Path, columns: Sequence[str], options: ReadOptions) -> Any:
    with _readable(path, options):
        have = set(pq.read_schema(path).names)
        return pq.read_table(path, columns=[c for c in columns if c in have])


def _source(files: Sequence[Path], key: str, options: ReadOptions) -> Source:
    source = Source(options.label(files[0]))
    columns = ["project_id", "run_id", "attribute_path", "attribute_type", "step", "timestamp", *_SINGLE.values()]
    tables = []
    for f in files:
        try:
            tables.append(_table(f, columns, options))
        except ReadError as problem:
            if len(files) == 1:
                raise
            source.problems.append(Problem("unreadable", "error", f"A part is left out: {problem}", options.label(f)))
    numbers = [int(m["number"]) for m in (_PART.match(f.name) for f in files) if m]
    if numbers and sorted(numbers) != list(range(len(numbers))):
        lacking = sorted(set(range(max(numbers) + 1)) - set(numbers))
        text = f"Part {lacking[0]} of the export is missing; the run may be incomplete"
        source.problems.append(Problem("incomplete-export", "warning", text, source.file, count=len(lacking)))
    if tables:
        with _readable(files[0], options):  # some damage shows only when a column is decoded
            _fill(source, tables, key, options)
    return source


def _fill(source: Source, tables: list[Any], key: str, options: ReadOptions) -> None:
    table = pa.concat_tables(tables, promote_options="permissive")
    if key:
        table = table.filter(pc.equal(table["run_id"], key))
    kinds = table["attribute_type"].cast(pa.string())
    _series(source, table.filter(pc.equal(kinds, "float_series")), options)
    _singles(source, table, kinds)
    counts = {str(c["values"]): int(c["counts"]) for c in pc.value_counts(kinds).to_pylist()}
    rest = {k: n for k, n in counts.items() if k != "float_series" and k not in _SINGLE}
    if rest:
        shown = ", ".join(f"{n} {k}" for k, n in sorted(rest.items()))
        text = f"Attributes that are no series of numbers were passed over: {shown}"
        source.problems.append(Problem("skipped-records", "info", text, source.file, count=sum(rest.values())))
    if not source.series:
        source.problems.append(Problem("no-scalars", "info", "The run holds no series of numbers", source.file))


def _steps(column: Any) -> NDArray[Any]:
    """Decimal steps: int64 where all are whole, float64 where one has a fraction."""
    try:
        whole: NDArray[Any] = column.cast(pa.int64()).to_numpy()
        return whole
    except pa.ArrowInvalid:
        fractional: NDArray[Any] = column.cast(pa.float64()).to_numpy()
        return fractional


def _series(source: Source, table: Any, options: ReadOptions) -> None:
    paths = table["attribute_path"].combine_chunks().dictionary_encode()
    if isinstance(paths, pa.ChunkedArray):
        paths = paths.combine_chunks()
    names = [str(n) for n in paths.dictionary.to_pylist()]
    channel = paths.indices.to_numpy(zero_copy_only=False)
    given = table["step"].is_valid().to_numpy()
    if not given.all():
        lost = int(np.count_nonzero(~given))
        text = f"{lost} points carry no step and were left out"
        source.problems.append(Problem("no-step", "warning", text, source.file, count=lost))
    logged = table["float_value"].is_valid().to_numpy()
    clock = None
    if "timestamp" in table.column_names:
        moment = table["timestamp"].cast(pa.timestamp("ms")).cast(pa.int64())
        clock = moment.cast(pa.float64(), safe=False).to_numpy() / 1000.0
    values = table["float_value"].to_numpy()
    order = np.argsort(channel, kind="stable")
    bounds = np.searchsorted(channel[order], np.arange(len(names) + 1))
    for number, name in enumerate(names):
        if not options.wants(name):
            continue
        rows = order[bounds[number] : bounds[number + 1]]
        rows = rows[given[rows]]
        missing = int(np.count_nonzero(~logged[rows]))
        rows = rows[logged[rows]]
        wall = None if clock is None else clock[rows]
        if wall is not None and not np.isfinite(wall).any():
            wall = None
        # The table is sorted by series, so its rows do not date one channel against another: the steps do.
        source.series[name] = Series(_steps(table["step"].take(rows)), values[rows], wall, None, missing)


def _singles(source: Source, table: Any, kinds: Any) -> None:
    for kind, column in _SINGLE.items():
        if column not in table.column_names:
            continue
        part = table.filter(pc.equal(kinds, kind)).select(["attribute_path", column])
        for path, value in zip(part["attribute_path"].to_pylist(), part[column].to_pylist(), strict=True):
            settings = str(path).split("/", 1)[0] in _SETTINGS
            (source.config if settings else source.summary)[str(path)] = value
    for name in ("project_id", "run_id"):
        if name in table.column_names and table.num_rows:
            source.summary[name] = table[name][0].as_py()
