"""Where one writer went back: falls of its channels' steps, merged over channels.

A channel *falls* where its step goes back by more than ``reorder`` of its own rows, or where it goes back less and its
next three points (two at the end of the log) are steps logged shortly before, in order. Anything smaller is disorder,
as asynchronous loggers leave it. Two falls of different channels are one rewind unless a channel that falls has logged
since the rewind before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOST", "rewinds"]

#: Rewinds of one writer beyond which its step is no counter (and beyond which nobody need count them).
MOST = 1000

#: Rows looked at first; doubled until a fall is found, so that the cost is linear however many there are.
_WINDOW = 4096


def rewinds(series: Sequence[tuple[NDArray[Any], NDArray[np.int64]]], reorder: int) -> list[int]:
    """Rows of the file at which the writer went back.

    Parameters
    ----------
    series : sequence of (steps, rows)
        For each channel the steps in the order of writing and the row of each in the file, increasing.
    reorder : int
        Rows of a channel by which its step may go back before that counts.

    Returns
    -------
    list of int
        Increasing; each is the first row of a new stretch.

    Examples
    --------
    >>> import numpy as np
    >>> rewinds([(np.array([0, 1, 2, 3, 1, 2, 3, 4]), np.arange(8))], reorder=10)
    [4]
    """
    cuts: list[int] = []
    for row, before in sorted(fall for steps, rows in series for fall in _falls(steps, rows, reorder)):
        # A channel that follows has its last point before the cut; one that was seen since goes back a second time.
        if not cuts or before >= cuts[-1]:
            cuts.append(row)
    return cuts


def _falls(steps: NDArray[Any], rows: NDArray[np.int64], reorder: int) -> list[tuple[int, int]]:
    """Rows where one channel falls, each with the row of the point before."""
    if steps.size < 2 or bool(np.all(steps[1:] >= steps[:-1])):
        return []
    found: list[tuple[int, int]] = []
    start = 0
    while start < steps.size - 1 and len(found) <= MOST:
        cut = _next_fall(steps[start:], reorder)
        if cut < 0:
            break
        start += cut
        found.append((int(rows[start]), int(rows[start - 1])))
    return found


def _next_fall(steps: NDArray[Any], reorder: int) -> int:
    window = _WINDOW
    while True:
        cut = _first_fall(steps, min(window, steps.size), reorder)
        if cut >= 0 or window >= steps.size:
            return cut
        window *= 2


def _first_fall(steps: NDArray[Any], window: int, reorder: int) -> int:
    """Index, below ``window``, of the first point that falls; -1 where there is none."""
    part = steps[:window]
    peak = np.maximum.accumulate(part)
    low = np.flatnonzero(part < peak)
    if not low.size:
        return -1
    back = low - np.searchsorted(peak, part[low], side="right")
    far = np.flatnonzero(back > reorder)
    end = int(low[far[0]]) if far.size else -1
    near = low if end < 0 else low[low < end]
    opens = near[np.diff(near, prepend=-2) > 1]
    opens = opens[opens + 1 < steps.size]
    if opens.size:
        third = np.minimum(opens + 2, steps.size - 1)  # where the log ends after two, the second stands in
        following = steps[opens], steps[opens + 1], steps[third]
        rising = (following[1] > following[0]) & ((following[2] > following[1]) | (third == opens + 1))
        again = np.zeros((3, opens.size), dtype=bool)
        for distance in range(1, 2 * reorder + 3):
            earlier = steps[np.maximum(opens - distance, 0)]
            for which in range(3):
                again[which] |= following[which] == earlier
        repeats = np.flatnonzero(rising & again.all(axis=0))
        if repeats.size:
            return int(opens[repeats[0]])
    return end
