r"""Alarms from a score: persistence, first alarm, and what a run's score amounts to at any threshold.

A score is as large as the run looks ill; row *t* uses rows up to *t*. With persistence *q*, the confirmed score is

.. math:: S_t = \min(s_{t-q+1}, \ldots, s_t),

so an alarm is stamped at the row that confirms it: the first with :math:`S_t > h`. Rows without a value (NaN: no whole
window yet, or the channel was not logged there) are no rows of the score: they neither confirm nor interrupt. Plus
infinity always alarms. For a run that is watched from ``start`` and may be warned of in
``[low, high]``, all that matters at any threshold is the largest :math:`S` before the window and inside it
(`extremes`): the first alarm is in the window iff ``before <= h < inside``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope.errors import InputError

__all__ = ["Alarm", "extremes", "first_alarm", "largest", "persistent"]

Floats = NDArray[np.float64]


def persistent(score: ArrayLike, persistence: int = 3) -> Floats:
    """The score that the last `persistence` rows with a value all reached; -inf in a row that has none.

    Parameters
    ----------
    score : (n_steps,) array
    persistence : int
        q, rows. 3: one row, and a pair of rows that share a logger's hiccup, do not alarm (DEFINITIONS 12).

    Returns
    -------
    (n_steps,) array

    >>> persistent([5, 1, 4, 3, 9], 2).tolist()
    [-inf, 1.0, 1.0, 3.0, 3.0]
    """
    if isinstance(persistence, bool) or not isinstance(persistence, int | np.integer) or persistence < 1:
        raise InputError(f"persistence is {persistence!r}; a number of rows, 1 or more, is expected")
    values = np.asarray(score, dtype=np.float64)
    if values.ndim != 1:
        raise InputError(f"a score has shape {values.shape}; one value a row is expected")
    there = ~np.isnan(values)
    values = values[there]
    low = values.copy()
    for lag in range(1, int(persistence)):
        low[lag:] = np.minimum(low[lag:], values[:-lag])
    low[: int(persistence) - 1] = -np.inf
    out = np.full(there.size, -np.inf)
    out[there] = low
    return out


def largest(steps: ArrayLike, confirmed: Floats, start: float, stop: float) -> float:
    """Largest confirmed score at steps in ``[start, stop)``; -inf where there is none."""
    at = np.asarray(steps, dtype=np.float64)
    inside = confirmed[(at >= start) & (at < stop)]
    return float(inside.max()) if inside.size else -np.inf


@dataclass(frozen=True)
class Alarm:
    """An alarm: the step that confirmed it and the confirmed score there."""

    step: float
    score: float


def first_alarm(
    steps: ArrayLike, confirmed: Floats, threshold: float, start: float = -np.inf, stop: float = np.inf
) -> Alarm | None:
    """The first step in ``[start, stop)`` whose confirmed score exceeds the threshold."""
    at = np.asarray(steps, dtype=np.float64)
    hits = np.flatnonzero((confirmed > threshold) & (at >= start) & (at < stop))
    return Alarm(float(at[hits[0]]), float(confirmed[hits[0]])) if hits.size else None


def extremes(
    steps: ArrayLike, confirmed: Floats, start: ArrayLike, low: ArrayLike, high: ArrayLike
) -> tuple[Floats, Floats]:
    """Largest confirmed score in ``[start, low)`` and in ``[low, high]``, for one window or for many at once.

    Both ends of the window belong to it: an alarm exactly one `min_lead` ahead is in time. `steps` rise.
    """
    at = np.asarray(steps, dtype=np.float64)
    begin = np.asarray(start, dtype=np.float64)
    opens = np.maximum(np.asarray(low, dtype=np.float64), begin)
    first, window = np.searchsorted(at, begin), np.searchsorted(at, opens)
    after = np.searchsorted(at, np.asarray(high, dtype=np.float64), side="right")
    return _range_max(confirmed, first, window), _range_max(confirmed, window, after)


def _range_max(values: Floats, first: NDArray[np.intp], stop: NDArray[np.intp]) -> Floats:
    """Largest of ``values[first:stop]`` for each pair; -inf where the range is empty."""
    first, stop = np.broadcast_arrays(first, stop)
    padded = np.append(values, -np.inf)
    pairs = np.stack([first, np.maximum(stop, first)], axis=-1).ravel()
    found = np.maximum.reduceat(padded, pairs)[::2].reshape(first.shape)
    return np.where(stop > first, found, -np.inf)
