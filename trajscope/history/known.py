"""Known events: what somebody did to runs on purpose, and when.

A CSV (or TSV) with the columns ``run`` (an id, its end, or ``*`` for all runs), ``step``, ``kind`` and ``note``; the
last two may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from trajscope.errors import InputError, ReadError

__all__ = ["KnownEvent", "events_of", "read_events"]


@dataclass(frozen=True)
class KnownEvent:
    """One declared event; ``run`` is ``*`` for all runs."""

    run: str
    step: float
    kind: str
    note: str


def read_events(path: str | Path) -> tuple[KnownEvent, ...]:
    """Read a table of known events.

    Raises
    ------
    ReadError
        If the file cannot be read as a table.
    InputError
        If it has no column ``run`` or ``step``, no row, or a step that is not a number.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "events.csv"
    >>> _ = file.write_text("run,step,kind\\n*,500,learning rate\\n")
    >>> read_events(file)[0].step
    500.0
    """
    file = Path(path)
    try:
        table = pd.read_csv(file, sep="\t" if file.suffix == ".tsv" else ",", dtype=str, keep_default_na=False)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as problem:
        raise ReadError(
            f"{file}: not a table of events ({problem}); a CSV with columns run, step, kind, note"
        ) from problem
    table.columns = [str(c).strip() for c in table.columns]
    missing = [c for c in ("run", "step") if c not in table]
    if missing:
        raise InputError(f"{file}: no column {missing[0]!r}; expected run, step, kind, note (run may be *)")
    if table.empty:
        raise InputError(f"{file}: no event in it")
    steps = pd.to_numeric(table["step"], errors="coerce")
    bad = steps.isna() | ~steps.abs().lt(float("inf"))
    if bad.any():
        row = int(bad.to_numpy().argmax())
        raise InputError(f"{file}: row {row + 2}: step is {table['step'].iloc[row]!r}; expected a number")
    kinds = table["kind"] if "kind" in table else pd.Series("", index=table.index)
    notes = table["note"] if "note" in table else pd.Series("", index=table.index)
    return tuple(
        KnownEvent(str(r).strip(), float(s), str(k), str(n))
        for r, s, k, n in zip(table["run"], steps, kinds, notes, strict=True)
    )


def events_of(run: str, events: Sequence[KnownEvent]) -> tuple[KnownEvent, ...]:
    """The events of one run: of all runs, of its id, or of the end of its id after a ``/`` or ``#``."""
    return tuple(e for e in events if e.run in ("*", run) or run.endswith((f"/{e.run}", f"#{e.run}")))
