"""Wall times in logs: Unix seconds in any unit, or ISO 8601 text; no zone means UTC."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["WALL_NAMES", "iso_seconds", "iso_time", "unix_seconds"]

#: Names of wall-time columns (`trajscope.readers._table.normal_name`), best first.
WALL_NAMES = ("wall_time", "walltime", "timestamp", "unix_time", "datetime", "date_time", "time", "date", "created_at")


def unix_seconds(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Seconds since 1970 from numbers of a size that only an absolute time has."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None
    size = float(np.median(finite))
    for scale in (1.0, 1e3, 1e6, 1e9):
        if 6e8 <= size / scale <= 6e9:
            return values / scale
    return None


def iso_seconds(cells: Sequence[str | None]) -> NDArray[np.float64] | None:
    """Seconds since 1970 from ISO 8601 text; None unless most cells are of that form."""
    seconds = np.array([iso_time(c) for c in cells], dtype=np.float64)
    known = seconds[np.isfinite(seconds)]
    if known.size * 2 <= seconds.size or (known.size > 2 and bool((known == known[0]).all())):
        return None  # a date alone, or none: no time axis
    return seconds


def iso_time(text: str | None) -> float:
    """Unix seconds of an ISO 8601 time (no zone means UTC), NaN where it is none.

    >>> iso_time("1970-01-02 00:00:00"), iso_time("1970-01-01T00:00:01.5Z")
    (86400.0, 1.5)
    """
    if not text or not text[0].isdigit():
        return float("nan")
    try:
        moment = datetime.datetime.fromisoformat(text.strip().replace("/", "-").replace(",", "."))
    except ValueError:
        return float("nan")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()
