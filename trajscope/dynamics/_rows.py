"""What the methods of this room look at: complete, finite rows, each knowing whether it follows the row before.

A trajectory, a run, a DataFrame, a meta-state (the array of ``transform``) or a plain array becomes rows in which
every channel was logged. Between two of them there may be a gap, or the boundary of a segment after a resume; neither
is bridged: `Rows.linked` is True only where a row comes exactly one stride after the one before it, in the same
segment. The stride is the commonest distance of successive complete rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope.errors import InputError, nearest

__all__ = ["LARGEST", "Rows", "as_rows", "numbers", "thinned"]

Floats = NDArray[np.float64]

LARGEST = 1e60
"""Finite values are cut here: their squares and products must not overflow."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Complete rows.

    Attributes
    ----------
    x : ndarray, shape (n_rows, n_channels)
        Finite.
    steps : ndarray, shape (n_rows,)
    linked : ndarray of bool, shape (n_rows,)
        Whether the row follows the one before at one stride; False for the first.
    segment : ndarray of int, shape (n_rows,)
    names : tuple of str
    stride : float
        Steps between linked rows; NaN with fewer than two rows.
    n_dropped : int
        Rows left out because a channel was missing or not finite.
    """

    x: Floats
    steps: NDArray[Any]
    linked: NDArray[np.bool_]
    segment: NDArray[np.int64]
    names: tuple[str, ...]
    stride: float
    n_dropped: int

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def pieces(self) -> Iterator[slice]:
        """Rows of each segment."""
        edges = np.flatnonzero(np.diff(self.segment)) + 1
        bounds = [0, *edges.tolist(), len(self)]
        for start, stop in pairwise(bounds):
            if stop > start:
                yield slice(start, stop)

    def position(self) -> NDArray[np.int64]:
        """Place of each row on a time line on which only linked rows are neighbours."""
        return np.arange(len(self)) + np.cumsum(~self.linked)

    def select(self, keep: NDArray[Any]) -> Rows:
        """Some of the rows; rows that are no longer neighbours are no longer linked."""
        chosen = np.arange(len(self))[keep]
        steps, segment = self.steps[chosen], self.segment[chosen]
        stride = _stride(steps, segment)
        return Rows(self.x[chosen], steps, _linked(steps, segment, stride), segment, self.names, stride, self.n_dropped)


def as_rows(
    source: Any, steps: ArrayLike | None = None, channels: Sequence[str] | None = None, *, where: str = "x"
) -> Rows:
    """Turn what a user has into rows.

    Parameters
    ----------
    source : Run, Trajectory, DataFrame, or array_like of shape (n_steps,) or (n_steps, n_channels)
        The index of a numeric DataFrame is its steps. Of a trajectory only logged, finite cells count.
    steps : array_like, shape (n_steps,), optional
        Steps of an array, increasing; row numbers by default.
    channels : sequence of str, optional
        Channels to use; all by default.
    where : str
        What to call the argument in errors.

    Raises
    ------
    InputError
        For what is not numbers, for other shapes, steps that do not increase, unknown channels.
    """
    names: tuple[str, ...] = ()
    segment: NDArray[Any] | None = None
    if hasattr(source, "channels") and hasattr(source, "segments"):
        from trajscope.history.trajectory import align

        source, channels = align(source, channels), None
    if hasattr(source, "observed") and hasattr(source, "segment"):
        names, segment = tuple(source.names), np.asarray(source.segment)
        steps, source = (source.steps if steps is None else steps), source.observed
    elif hasattr(source, "columns") and hasattr(source, "to_numpy"):
        names = tuple(str(c) for c in source.columns)
        index = np.asarray(source.index)
        if steps is None and np.issubdtype(index.dtype, np.number):
            steps = index
        source = source.to_numpy()
    values = _table(source, where)
    if not names:
        names = (where,) if values.shape[1] == 1 else tuple(f"{where}{i}" for i in range(values.shape[1]))
    if channels is not None:
        values, names = _choose(values, names, [channels] if isinstance(channels, str) else list(channels))
    n = values.shape[0]
    positions = np.arange(n) if steps is None else np.asarray(steps)
    if positions.shape != (n,) or not np.issubdtype(positions.dtype, np.number):
        raise InputError(
            f"steps have shape {positions.shape} and dtype {positions.dtype} for {n} rows; expected one number a row."
        )
    part = np.zeros(n, dtype=np.int64) if segment is None else segment.astype(np.int64)
    bad = np.flatnonzero(~(np.diff(positions) > 0) & (np.diff(part) == 0))
    if bad.size:
        at = int(bad[0])
        raise InputError(
            f"steps go from {positions[at]} to {positions[at + 1]} at row {at + 1}; expected them to increase within a"
            " segment. Read the log with read_run and align it: resumes become segments."
        )
    whole = np.isfinite(values).all(axis=1)
    x = np.clip(values[whole], -LARGEST, LARGEST)
    positions, part = positions[whole], part[whole]
    stride = _stride(positions, part)
    return Rows(x, positions, _linked(positions, part, stride), part, names, stride, int(n - whole.sum()))


def numbers(source: Any, where: str, shape: str = "(n_steps,) or (n_steps, n_channels)") -> Floats:
    """An array of floats; masked cells are NaN. InputError for what is complex or not numeric."""
    try:
        raw = np.asarray(np.ma.filled(source.astype(np.float64), np.nan) if np.ma.isMA(source) else source)
        if np.iscomplexobj(raw):
            raise InputError(f"{where} is complex; expected real numbers.")
        return np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where} is not numeric ({error}); expected shape {shape}.") from None


def _table(source: Any, where: str) -> Floats:
    values = numbers(source, where)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or values.shape[1] == 0:
        raise InputError(f"{where} has shape {values.shape}; expected (n_steps,) or (n_steps, n_channels).")
    return values


def _choose(values: Floats, names: tuple[str, ...], channels: list[str]) -> tuple[Floats, tuple[str, ...]]:
    for name in channels:
        if name not in names:
            raise InputError(f"there is no channel {name!r}. {nearest(name, names)}")
    if not channels:
        raise InputError("channels is empty; expected at least one name.")
    return values[:, [names.index(c) for c in channels]], tuple(channels)


def _stride(steps: NDArray[Any], segment: NDArray[np.int64]) -> float:
    inside = np.diff(steps)[np.diff(segment) == 0]
    if not inside.size:
        return float("nan")
    distance, count = np.unique(inside, return_counts=True)
    return float(distance[np.argmax(count)])  # ties go to the smallest


def _linked(steps: NDArray[Any], segment: NDArray[np.int64], stride: float) -> NDArray[np.bool_]:
    out = np.zeros(steps.shape[0], dtype=bool)
    if steps.shape[0] > 1:
        out[1:] = (np.abs(np.diff(steps) - stride) <= 1e-6 * abs(stride)) & (np.diff(segment) == 0)
    return out


def thinned(rows: Rows, most: int) -> tuple[Rows, int]:
    """Every m-th row, so that at most ``most`` are left, and m; rows stay evenly spaced."""
    every = max(1, -(-len(rows) // most))
    return (rows, 1) if every == 1 else (rows.select(np.arange(0, len(rows), every)), every)
