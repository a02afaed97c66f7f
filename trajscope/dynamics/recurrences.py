r"""Recurrence quantification: how often, and for how long, a trajectory comes back to where it was.

Two rows recur when their distance is at most :math:`\varepsilon`; :math:`\varepsilon` is set so that a fixed share of
all pairs further apart in time than the Theiler window recurs (a fixed distance would measure the variance of the log).
Then (Marwan et al. 2007), over lines of at least ``min_line`` rows:

- RR, share of pairs that recur (fixed by construction but for ties);
- DET, share of recurrent pairs that lie on diagonal lines: stretches that run in parallel, as deterministic ones do;
- L_mean, L_max, mean and longest diagonal; ENTR, Shannon entropy (nats) of the lengths of diagonals;
- LAM, TT, share of recurrent points on vertical lines, and their mean length: standing still.

The Theiler window holds back pairs closer than that many rows from RR and diagonal lines, and not from vertical lines,
which are about staying. Distances are Euclidean in units of each channel's sd. Memory: tiles of distances and the list
of recurrent pairs, never the square matrix; 5,000 rows at a rate of 5 % keep 0.6 million pairs. Lines end at gaps and
at segment boundaries. Noise gives DET well above 0 (for white noise near 2 RR); a value means something beside that of
surrogates of the same data, which ``n_surrogates`` adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope._core.surrogates import as_generator, phase_randomise
from trajscope.dynamics._rows import as_rows, thinned
from trajscope.errors import InputError, NotEnoughData
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MEASURES", "Recurrence", "line_lengths", "recurrence", "recurrent_pairs"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MEASURES = ("RR", "DET", "L_mean", "L_max", "ENTR", "LAM", "TT")
"""What is measured, in the order of the table."""

_TILE = 1 << 21
"""Distances in memory at a time."""
_BINS = 4096


def _tiles(vectors: Floats, place: Ints, theiler: int) -> Any:
    """Upper triangle of distances in tiles: first row, distances (NaN where not a pair), columns from that row on."""
    from scipy.spatial.distance import cdist

    n = vectors.shape[0]
    start = 0
    while start < n:
        rows = max(1, _TILE // (n - start))
        stop = min(start + rows, n)
        d = np.asarray(cdist(vectors[start:stop], vectors[start:]))
        near = place[None, start:] - place[start:stop, None] <= theiler
        yield start, d, near
        start = stop


def recurrent_pairs(
    vectors: ArrayLike, rate: float, *, place: Ints | None = None, theiler: int = 1
) -> tuple[float, Ints, Ints, Ints, Ints, int]:
    """Pairs at most epsilon apart, with epsilon such that a share ``rate`` of all distant pairs is.

    Parameters
    ----------
    vectors : array_like, shape (n, k)
    rate : float
        Share of the pairs more than ``theiler`` apart in time.
    place : ndarray of int, shape (n,), optional
        Ascending positions in time; row numbers by default.
    theiler : int
        Pairs at most so far apart are not counted; 1 leaves out direct successors, 0 only a row with itself.

    Returns
    -------
    epsilon : float
    first, second : ndarray of int
        Recurrent pairs more than ``theiler`` apart, first < second.
    close_first, close_second : ndarray of int
        Recurrent pairs within ``theiler``, for vertical lines.
    n_pairs : int
        Pairs more than ``theiler`` apart.

    Examples
    --------
    >>> eps, first, second, _, _, n = recurrent_pairs(np.array([[0.0], [5.0], [0.1], [9.0]]), 0.2, theiler=0)
    >>> n, first.tolist(), second.tolist()
    (6, [0], [2])
    """
    x = np.asarray(vectors, dtype=np.float64)
    at = np.arange(x.shape[0], dtype=np.int64) if place is None else place
    # epsilon is an order statistic of the distances: a histogram, then the cells of one bin
    top = float(np.linalg.norm(np.ptp(x, axis=0)))
    if not top > 0:
        raise NotEnoughData("all rows are the same; recurrence needs a channel that varies.")
    scale = _BINS / (top * (1 + 1e-9))
    histogram = np.zeros(_BINS, dtype=np.int64)
    for _, d, near in _tiles(x, at, theiler):
        histogram += np.bincount((d[~near] * scale).astype(np.int64), minlength=_BINS)[:_BINS]
    total = int(histogram.sum())
    if total == 0:
        raise NotEnoughData(f"no two rows are more than {theiler} apart; lower theiler or give more rows.")
    wanted = max(1, int(np.floor(rate * total)))
    below = np.cumsum(histogram)
    cell = int(np.searchsorted(below, wanted))
    left = wanted - (int(below[cell - 1]) if cell else 0)
    inside = [v[(v * scale).astype(np.int64) == cell] for v in (d[~near] for _, d, near in _tiles(x, at, theiler))]
    epsilon = float(np.partition(np.concatenate(inside), left - 1)[left - 1])
    parts: list[tuple[Ints, Ints]] = []
    close: list[tuple[Ints, Ints]] = []
    for start, d, near in _tiles(x, at, theiler):
        hit = d <= epsilon
        for keep, into in ((hit & ~near, parts), (hit & near, close)):
            i, j = np.nonzero(keep)
            after = j > i
            into.append((i[after] + start, j[after] + start))
    first, second = (np.concatenate([p[i] for p in parts]).astype(np.int64) for i in (0, 1))
    c1, c2 = (np.concatenate([p[i] for p in close]).astype(np.int64) for i in (0, 1))
    return epsilon, first, second, c1, c2, total


def line_lengths(line: Ints, position: Ints) -> Ints:
    """Lengths of runs of successive positions, line by line.

    Parameters
    ----------
    line, position : ndarray of int, shape (n_points,)
        Which line a point lies on, and where.

    Examples
    --------
    >>> line_lengths(np.array([0, 0, 0, 1]), np.array([1, 2, 4, 5])).tolist()
    [2, 1, 1]
    """
    if not line.size:
        return np.empty(0, dtype=np.int64)
    order = np.lexsort((position, line))
    a, b = line[order], position[order]
    new = np.concatenate([[True], (np.diff(a) != 0) | (np.diff(b) != 1)])
    return np.diff(np.append(np.flatnonzero(new), a.size)).astype(np.int64)


def _lines(lengths: Ints, least: int) -> tuple[float, float, float, float]:
    """Share of points on lines, mean and longest line, entropy of the lengths."""
    if not lengths.size:
        return 0.0, 0.0, 0.0, 0.0
    long = lengths[lengths >= least]
    if not long.size:
        return 0.0, 0.0, float(lengths.max()), 0.0
    share = np.bincount(long) / long.size
    share = share[share > 0]
    return (
        float(long.sum() / lengths.sum()), float(long.mean()), float(lengths.max()),
        float(-(share * np.log(share)).sum()) + 0.0,
    )  # fmt: skip


def _measures(x: Floats, place: Ints, rate: float, theiler: int, least: int) -> tuple[float, dict[str, float]]:
    epsilon, first, second, c1, c2, total = recurrent_pairs(x, rate, place=place, theiler=theiler)
    p, q = place[first], place[second]
    det, mean, longest, entropy = _lines(line_lengths(q - p, p), least)
    own = np.arange(x.shape[0], dtype=np.int64)
    column = np.concatenate([first, second, c1, c2, own])
    row = np.concatenate([place[v] for v in (second, first, c2, c1, own)])
    lam, trapped, _, _ = _lines(line_lengths(column, row), least)
    values = (first.size / total, det, mean, longest, entropy, lam, trapped)
    return epsilon, dict(zip(MEASURES, values, strict=True))


@dataclass(frozen=True, eq=False)
class Recurrence(Result):
    """Recurrence measures; returned by `recurrence`.

    Attributes
    ----------
    measures : mapping of str to float
        `MEASURES`; lengths in rows that were used (``every`` rows of the log each).
    null_low, null_high : mapping of str to float
        2.5 % and 97.5 % points over surrogates; empty without them.
    epsilon : float
        In sd.
    rate : float
        Recurrence rate asked for.
    theiler, min_line : int
    n_rows, every : int
        Rows used, one in so many.
    stride : float
        Steps between the rows used.
    names : tuple of str
    points : ndarray, shape (n_rows, n_channels)
        Rows used, in sd, for the plot.
    steps : ndarray, shape (n_rows,)
    status : {"ok", "cannot tell"}
    reason : str
        Why it is not "ok", or why there are no surrogates.
    """

    plot_name = "recurrence"

    measures: dict[str, float]
    null_low: dict[str, float]
    null_high: dict[str, float]
    epsilon: float
    rate: float
    theiler: int
    min_line: int
    n_rows: int
    every: int
    stride: float
    names: tuple[str, ...]
    points: Floats = field(repr=False)
    steps: NDArray[Any] = field(repr=False)
    status: str
    reason: str

    def to_frame(self) -> pd.DataFrame:
        """One row a measure: value and band of the surrogates."""
        import pandas as pd

        rows = [
            (self.measures.get(m, np.nan), self.null_low.get(m, np.nan), self.null_high.get(m, np.nan))
            for m in MEASURES
        ]
        return pd.DataFrame(rows, index=pd.Index(MEASURES, name="measure"), columns=["value", "null_low", "null_high"])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without the rows."""
        return {k: jsonable(v) for k, v in self.__dict__.items() if k not in ("points", "steps", "provenance")}

    def summary(self) -> str:
        """One sentence or two."""
        if self.status != "ok":
            return f"Recurrence: cannot tell, {self.reason}."
        m = self.measures
        text = (
            f"At a recurrence rate of {m['RR']:.1%} over {self.n_rows} rows: determinism {m['DET']:.2f}, laminarity"
            f" {m['LAM']:.2f}, longest diagonal {m['L_max']:.0f} rows, entropy {m['ENTR']:.2f}."
        )
        if not self.null_high:
            why = f" ({self.reason})" if self.reason else ""
            return text + f" Without surrogates{why} nothing says what of this is more than correlation."
        out = [k for k in ("DET", "LAM", "ENTR") if m[k] > self.null_high[k] or m[k] < self.null_low[k]]
        return text + (
            f" Outside the band of phase surrogates: {', '.join(out)}."
            if out
            else " Phase surrogates, linear and as correlated, give the same."
        )


def recurrence(
    source: Any,
    *,
    rate: float = 0.05,
    theiler: int = 1,
    min_line: int = 2,
    steps: ArrayLike | None = None,
    channels: Sequence[str] | None = None,
    max_points: int = 5_000,
    n_surrogates: int = 0,
    rng: int | np.random.Generator | None = None,
) -> Recurrence:
    """Recurrence quantification at a fixed recurrence rate.

    Parameters
    ----------
    source, steps, channels
        As in `trajscope.dynamics.rolling_var`.
    rate : float, default 0.05
        Share of distant pairs that recur; 1 % to 10 % is usual.
    theiler : int, default 1
        Pairs at most so many rows apart count neither in RR nor on diagonals. Set it to the correlation time.
    min_line : int, default 2
        Shortest line that counts.
    max_points : int, default 5000
        Longer data are thinned evenly.
    n_surrogates : int, default 0
        Phase-randomised surrogates with common phases (same spectra and cross-spectra), for rows without a gap; each
        costs as much as the data. 39 give a band of 95 %.
    rng : int or Generator, default 0

    Returns
    -------
    Recurrence
        "cannot tell" for fewer than 20 rows or constant channels.

    Examples
    --------
    >>> t = 0.2 * np.arange(400)
    >>> found = recurrence(np.column_stack([np.sin(t), np.cos(t)]))
    >>> found.measures["DET"] > 0.95
    True
    """
    if not 0 < rate < 1 or theiler < 0 or min_line < 2 or max_points < 20 or n_surrogates < 0:
        raise InputError(
            f"options out of range: 0 < rate {rate} < 1, theiler {theiler} >= 0, min_line {min_line} >= 2,"
            f" max_points {max_points} >= 20, n_surrogates {n_surrogates} >= 0."
        )
    generator = as_generator(rng)
    rows, every = thinned(as_rows(source, steps, channels), max_points)
    n = len(rows)
    sd = rows.x.std(axis=0) if n else np.zeros(rows.x.shape[1])
    moving = sd > 1e-12 * np.abs(rows.x).max(axis=0, initial=0.0)
    x = rows.x[:, moving] / sd[moving]
    reason = note = ""
    if n < 20:
        reason = f"{n} complete rows, at least 20 are needed"
    elif not moving.any():
        reason = "no channel varies"
    elif theiler >= n - 1:
        reason = f"no two of {n} rows are more than theiler = {theiler} apart"
    epsilon = float("nan")
    measures: dict[str, float] = {}
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    if not reason:
        place = rows.position()
        epsilon, measures = _measures(x, place, rate, theiler, min_line)
        whole = bool(rows.linked[1:].all())
        note = "" if whole or not n_surrogates else "surrogates need rows without a gap, none were drawn"
        if n_surrogates and whole:
            drawn = [
                _measures(phase_randomise(x, generator, common=True), place, rate, theiler, min_line)[1]
                for _ in range(n_surrogates)
            ]
            for m in MEASURES:
                ends = np.quantile([d[m] for d in drawn], [0.025, 0.975])
                low[m], high[m] = float(ends[0]), float(ends[1])
    return Recurrence(
        measures, low, high, epsilon, rate, theiler, min_line, n, every, rows.stride, rows.names, x, rows.steps,
        "cannot tell" if reason else "ok", reason or note,
        provenance=make_provenance(
            "recurrence",
            {
                "rate": rate, "theiler": theiler, "min_line": min_line, "channels": rows.names,
                "max_points": max_points, "n_surrogates": n_surrogates,
            },
            rows.x, rows.steps, seed=rng if isinstance(rng, int) else None if rng is not None else 0,
        ),
    )  # fmt: skip
