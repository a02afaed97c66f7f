"""Two files that tell of the same points of one writer: one is read, the other checks it and fills what is not
there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.history import Problem, Series, Source

__all__ = ["select_rows", "work_in"]

#: Relative difference up to which two spellings of a number are one (float32 printed short against its float64 form).
TOLERANCE = 1e-6


def select_rows(s: Series, rows: NDArray[Any]) -> Series:
    """The points at ``rows`` (a mask or positions)."""
    wall = None if s.wall_time is None else s.wall_time[rows]
    return Series(s.steps[rows], s.values[rows], wall, s.rows()[rows], 0)


def work_in(source: Source, other: Source, what: str) -> None:
    """Add the points that only the second source has, and report where the two differ.

    Parameters
    ----------
    source : Source
        What is read; its series grow in place.
    other : Source
        The second telling.
    what : str
        Beginning of the sentence of the problem.
    """
    added = conflicts = 0
    first = ""
    for name, s in other.series.items():
        mine = source.series.get(name)
        if mine is None or not mine.steps.size:
            source.series[name] = s
            added += s.steps.size
            continue
        order = np.argsort(mine.steps, kind="stable")
        at = np.searchsorted(mine.steps[order], s.steps, side="right") - 1
        at = order[np.maximum(at, 0)]  # the last write of each step
        new = mine.steps[at] != s.steps
        different = ~new & ~np.isclose(mine.values[at], s.values, rtol=TOLERANCE, atol=0.0, equal_nan=True)
        if different.any() and not first:
            first = f"{name} at step {s.steps[int(np.argmax(different))]:.15g}"
        conflicts += int(np.count_nonzero(different))
        if new.any():
            added += int(np.count_nonzero(new))
            source.series[name] = _merged(mine, select_rows(s, new))
    if added or conflicts:
        sentence = f"{what}: {added} points were only there, {conflicts} have another value"
        if conflicts:
            sentence += f" (first {first}; the value in {source.file} was kept)"
        severity = "warning" if conflicts else "info"
        source.problems.append(Problem("second-file", severity, sentence, other.file, count=added + conflicts))


def _merged(a: Series, b: Series) -> Series:
    """Points of both by step; those of the second take the row of the point before them."""
    steps = np.concatenate([a.steps, b.steps])
    order = np.argsort(steps, kind="stable")
    row = np.concatenate([a.rows(), np.full(b.steps.size, -1, dtype=np.int64)])[order]
    wall = None
    if a.wall_time is not None and b.wall_time is not None:
        wall = np.concatenate([a.wall_time, b.wall_time])[order]
    values = np.concatenate([a.values, b.values])[order]
    return Series(steps[order], values, wall, np.maximum.accumulate(row), a.n_missing)
