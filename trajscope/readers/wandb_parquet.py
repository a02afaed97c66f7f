"""History of a W&B run as Parquet: the files of a ``wandb-history`` artifact, or a history frame written by pandas.

One row a step, a column a metric, empty where a metric was not logged at that step; nested keys are dotted columns or
structs. ``_step`` may be stored as a float. Files ``0000.parquet``, ``0001.parquet``, ... of one directory are parts of
one history.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trajscope.errors import ReadError
from trajscope.history import Problem, Source
from trajscope.readers._cells import inexact
from trajscope.readers._parquet_footer import footer
from trajscope.readers._table import Column, Table, table_source, unique_names
from trajscope.readers.base import Reader, ReadOptions

__all__ = ["READER", "WandbParquetReader", "arrow_column"]

_MARKS = ("_step", "_timestamp", "_runtime")


class WandbParquetReader(Reader):
    """W&B's Parquet history."""

    name = "wandb-parquet"
    title = "W&B history (Parquet)"
    priority = 60

    def can_read(self, path: Path, head: bytes) -> bool:
        """Whether the file's columns are those of a W&B history."""
        if head[:4] != b"PAR1":
            return False
        schema = footer(path)
        return schema is not None and any(mark in schema.names for mark in _MARKS)

    def group(self, files: Sequence[Path]) -> list[list[Path]]:
        """Numbered files are parts of one history, any other file is a run."""
        parts = sorted((f for f in files if f.stem.isdigit()), key=lambda f: int(f.stem))
        others = [[f] for f in files if not f.stem.isdigit()]
        return ([parts] if parts else []) + others

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """One source a file."""
        return [_source(f, options) for f in files]


READER = WandbParquetReader()


def _source(path: Path, options: ReadOptions) -> Source:
    label = options.label(path)
    problems: list[Problem] = []
    try:
        table = pq.read_table(path)
        while any(pa.types.is_struct(t) for t in table.schema.types):
            table = table.flatten()
        names = table.column_names
        if len(set(names)) < len(names):  # a struct's field and a column with a dot in its name
            names = unique_names(names, problems, label)
        found = [(n, arrow_column(n, values)) for n, values in zip(names, table.columns, strict=True)]
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise ReadError(f"{label}: the Parquet file is damaged ({str(problem).splitlines()[0]})") from problem
    columns = [column for _, column in found if column is not None]
    other = [n for n, c in found if c is None and not (n.startswith("_") or n.endswith("._type"))]
    if other:
        shown = ", ".join(other[:3]) + (f" and {len(other) - 3} more" if len(other) > 3 else "")
        text = f"Columns that are no numbers were passed over: {shown}"
        problems.append(Problem("not-a-scalar", "info", text, label, count=len(other)))
    rows = np.arange(table.num_rows, dtype=np.int64)
    return table_source(
        Table(columns, rows, problems=problems), label, step=options.step, wants=options.wants, prefer=("_step",)
    )


def arrow_column(name: str, values: Any) -> Column | None:
    """The numbers of an Arrow column and where they stand; None for a column of another kind."""
    kind = values.type
    boolean = pa.types.is_boolean(kind)
    rounded = 0
    if pa.types.is_dictionary(kind):
        return arrow_column(name, values.cast(kind.value_type))
    if pa.types.is_timestamp(kind):
        values, kind = values.cast(pa.timestamp("us")).cast(pa.int64()), pa.int64()
    if not (boolean or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return None
    valid = values.is_valid().to_numpy()
    numbers = values.drop_null()
    if boolean or pa.types.is_decimal(kind):
        numbers = numbers.cast(pa.float64())
    elif kind.equals(pa.uint64()) and numbers.to_numpy().max(initial=0) >= 2**63:
        rounded = inexact(numbers.to_pylist())
        numbers = numbers.cast(pa.float64(), safe=False)
    elif pa.types.is_integer(kind):
        numbers = numbers.cast(pa.int64())
    found = numbers.to_numpy()
    if valid.all():
        return Column(name, found, boolean=boolean, rounded=rounded)
    rows = np.flatnonzero(valid)
    return Column(name, found, rows, int(valid.size - rows.size), boolean=boolean, rounded=rounded)
