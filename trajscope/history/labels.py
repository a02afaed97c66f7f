"""Labels that a user gives to runs, as a table with one row a run.

The columns are those of `COLUMNS`; only ``run`` must be there. Unknown columns are kept, absent ones are null. Rows and
runs are matched by run id, or by the end of the id where that is unique (``seed3`` for ``sweep/seed3`` or
``sweep.parquet#seed3``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from trajscope.errors import InputError, ReadError, nearest

__all__ = ["COLUMNS", "check_labels", "match_runs", "read_labels"]

#: Column -> kind of its values; the order in which they are written.
COLUMNS: dict[str, str] = {
    "run": "text",
    "stratum": "text",
    "algorithm": "text",
    "seed": "integer",
    "axis": "text",
    "perturbation": "text",
    "severity": "number",
    "level": "number",
    "injection_step": "number",
    "twin": "text",
    "outcome": "text",
    "onset_step": "number",
    "confirmed_step": "number",
    "split": "text",
}

#: So many runs that were not found come with the nearest names.
HINTS = 20


def read_labels(path: str | Path) -> pd.DataFrame:
    """Read a labels table from CSV (``.csv``, ``.tsv``) or Parquet.

    Parameters
    ----------
    path : path

    Returns
    -------
    DataFrame
        The columns of `COLUMNS` in their order, then those that only the file has, in its order.

    Raises
    ------
    ReadError
        If the file cannot be read as a table.
    InputError
        If it has no column ``run``, a run twice, no row, or a value that is not of its column's kind.
    """
    path = Path(path)
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            table = pd.read_parquet(path)
        else:
            table = pd.read_csv(
                path, sep="\t" if path.suffix.lower() == ".tsv" else ",", dtype={"run": str, "twin": str}
            )
    except FileNotFoundError as problem:
        raise ReadError(f"{path}: no such file; a labels table (CSV or Parquet) is expected") from problem
    except (OSError, ValueError) as problem:  # pandas' parser errors and pyarrow's are ValueErrors
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise ReadError(f"{path}: cannot be read as a labels table ({reason}); CSV or Parquet is expected") from problem
    return check_labels(table, str(path))


def check_labels(table: pd.DataFrame, where: str = "labels") -> pd.DataFrame:
    """Check a labels table and bring it into form; see `read_labels`. The input is not changed."""
    if "run" not in table.columns:
        raise InputError(f"{where}: no column 'run'. {nearest('run', [str(c) for c in table.columns])}")
    if table.empty:
        raise InputError(f"{where}: holds no row; one row a run is expected")
    missing = table["run"].isna() | (table["run"].astype(str).str.strip() == "")
    if missing.any():
        raise InputError(f"{where}: row {int(missing.to_numpy().argmax()) + 1} names no run")
    twice = table["run"][table["run"].duplicated()]
    if not twice.empty:
        raise InputError(f"{where}: run {twice.iloc[0]!r} stands in more than one row; one row a run is expected")
    columns = {name: _typed(table[name], kind, where) for name, kind in COLUMNS.items() if name in table}
    columns |= {
        name: pd.Series(pd.NA, index=table.index, dtype="string" if kind == "text" else "Float64")
        for name, kind in COLUMNS.items()
        if name not in table
    }
    own = {name: columns[name] for name in COLUMNS}
    rest = {str(name): table[name] for name in table.columns if name not in COLUMNS}
    return pd.DataFrame(own | rest).reset_index(drop=True)


def _typed(column: pd.Series[Any], kind: str, where: str) -> pd.Series[Any]:
    """A column as text or as numbers, null where it is empty."""
    if kind == "text":
        return column.astype("string").astype(object).where(column.notna(), None).astype("string")
    numbers = pd.to_numeric(column, errors="coerce")
    bad = numbers.isna() & column.notna()
    if bad.any():
        row = int(bad.to_numpy().argmax())
        raise InputError(f"{where}: column {column.name!r}, row {row + 1}: {column.iloc[row]!r} is not a number")
    if kind == "integer":
        whole = numbers.dropna() % 1 == 0
        if not whole.all():
            raise InputError(
                f"{where}: column {column.name!r} holds {numbers.dropna()[~whole].iloc[0]!r}; integers are expected"
            )
        return numbers.astype("Float64").astype("Int64")
    return numbers.astype("Float64")


def match_runs(names: Iterable[str], found: Iterable[str]) -> tuple[Mapping[str, str], list[str]]:
    """Match the runs that labels name to the ids of the runs that were found.

    Parameters
    ----------
    names : iterable of str
        Runs named in a labels table.
    found : iterable of str
        Ids of runs that were found.

    Returns
    -------
    matched : mapping
        Name in the table -> id found.
    problems : list of str
        One line for each name without a match (with the nearest ids), or with several.

    Examples
    --------
    >>> match_runs(["seed1", "sed2"], ["sweep/seed1", "sweep/seed2"])
    ({'seed1': 'sweep/seed1'}, ["run 'sed2' of the labels was not found. Did you mean 'seed2'?"])
    """
    ids = list(found)
    exact = set(ids)
    ends: dict[str, list[str]] = {}
    for run in ids:
        # a file that holds several runs names them after "#"
        for first in (i + 1 for i, mark in enumerate(run) if mark in "/#"):
            ends.setdefault(run[first:], []).append(run)
    matched: dict[str, str] = {}
    problems: list[str] = []
    for name in names:
        candidates = [name] if name in exact else ends.get(name.replace("\\", "/"), [])
        if len(candidates) == 1:
            matched[name] = candidates[0]
        elif candidates:
            shown = ", ".join(repr(c) for c in candidates[:3])
            problems.append(
                f"run {name!r} of the labels is one of {len(candidates)} runs found ({shown}); name it in full"
            )
        else:
            # looking for the nearest of very many names takes longer than anybody reads the lines
            hint = nearest(name, [*exact, *ends]) if len(problems) < HINTS else ""
            problems.append(f"run {name!r} of the labels was not found. {hint}".rstrip())
    return matched, problems
