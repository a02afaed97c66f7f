"""What lies under a path, as a table: every run's channels with their ranges and sizes, nothing else kept."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trajscope.errors import TrajscopeError
from trajscope.history import Channel, Run

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "contents"]

#: Columns of the table and their types; integers stay integers where a run has no channel.
COLUMNS = {
    "run": "str", "format": "str", "bytes": "int64", "channel": "str", "role": "str", "points": "int64",
    "missing": "int64", "non_finite": "int64", "first_step": "float64", "last_step": "float64", "low": "float64",
    "high": "float64", "problems": "int64", "error": "str",
}  # fmt: skip
_NOTHING: dict[str, Any] = {c: {"str": "", "int64": 0, "float64": np.nan}[kind] for c, kind in COLUMNS.items()}


def contents(runs: Iterable[Run], root: Path) -> pd.DataFrame:
    """Read runs one after the other and keep of each what fits into a few numbers.

    Parameters
    ----------
    runs : iterable of Run
        Consumed one by one; each is let go before the next is read.
    root : Path
        Against which the file names of the runs' provenance are resolved.

    Returns
    -------
    DataFrame
        One row a channel, in the order of the runs, with `COLUMNS`. A run without channels is one row without a
        channel, a run that cannot be read is one row with its ``error``.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for run in runs:
        head = {**_NOTHING, "run": run.id, "format": run.format}
        try:
            data = run.data
        except TrajscopeError as problem:
            rows.append({**head, "error": str(problem)})
            continue
        files = [root if root.is_file() else root / str(f) for f in data.provenance.get("files", ())]
        head |= {"bytes": sum(f.stat().st_size for f in files if f.is_file()), "problems": len(data.problems)}
        rows.extend({**head, **_channel(c)} for c in data.channels.values())
        if not data.channels:
            rows.append(head)
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _channel(channel: Channel) -> dict[str, Any]:
    finite = channel.values[np.isfinite(channel.values)]
    row: dict[str, Any] = {
        "channel": channel.name,
        "role": channel.role,
        "points": len(channel),
        "missing": channel.n_missing,
        "non_finite": len(channel) - int(finite.size),
    }
    if len(channel):
        row |= {"first_step": float(channel.steps.min()), "last_step": float(channel.steps.max())}
    if finite.size:
        row |= {"low": float(finite.min()), "high": float(finite.max())}
    return row
