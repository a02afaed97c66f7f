"""Cells that hold a list of numbers (``"[0.1, 0.2]"``, as Keras' CSVLogger writes arrays): a column an entry.

As with records of JSON, a column is expanded where every cell that is there holds the same number of numbers, at most
`LONGEST`; any other column of lists stays text and is listed as no series.
"""

from __future__ import annotations

import re

import numpy as np

from trajscope.readers._cells import parse_number
from trajscope.readers._table import Column, Table

__all__ = ["LONGEST", "expand_lists"]

#: A list of more numbers is a distribution and no handful of series.
LONGEST = 64
_LIST = re.compile(r"[\"']?\s*\[\s*([^\[\]]+?)\s*,?\s*\]\s*[\"']?")
_BETWEEN = re.compile(r"\s*,\s*|\s+")


def expand_lists(table: Table) -> None:
    """Replace columns of equally long lists by a column an entry, named ``name/0``, ``name/1``, ...

    >>> cells = Column("w", np.zeros(0), text=["[1, 2]", None, '"[3, nan]"'])
    >>> table = Table([cells], np.arange(3))
    >>> expand_lists(table)
    >>> [(c.name, c.values.tolist(), c.missing) for c in table.columns]
    [('w/0', [1.0, 3.0], 1), ('w/1', [2.0, nan], 1)]
    """
    columns: list[Column] = []
    for column in table.columns:
        columns.extend(_entries(column) or [column])
    table.columns = columns


def _entries(column: Column) -> list[Column]:
    """The columns of one column of lists; empty where it is none."""
    if column.text is None:
        return []
    valid = np.zeros(len(column.text), dtype=bool)
    rows: list[list[float]] = []
    for i, cell in enumerate(column.text):
        if cell is None or parse_number(cell)[1] == "missing":
            continue
        found = _LIST.fullmatch(cell.strip())
        numbers = [parse_number(n)[0] for n in _BETWEEN.split(found[1])] if found else []
        known = [float(n) for n in numbers if n is not None]
        if not numbers or len(known) < len(numbers) or len(numbers) > LONGEST or (rows and len(rows[0]) != len(known)):
            return []
        rows.append(known)
        valid[i] = True
    if not rows:
        return []
    full = np.zeros((valid.size, len(rows[0])))
    full[valid] = rows
    return [Column.masked(f"{column.name}/{k}", np.ascontiguousarray(full[:, k]), valid) for k in range(full.shape[1])]
