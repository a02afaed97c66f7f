r"""Who moved first: the order in which channels left their bands around an event.

For each channel, on its own rows and the scale of its role, the band is frozen before the event: level and scale are
those of `trajscope.detect._predict` at the first row of the search window :math:`[T - b, T + a)`, so that the move
itself cannot widen it. A channel has **moved** at the first row of the window from which :math:`|y - m| > c\,s` for
*q* = 2 rows in a row (one row suffices beyond 2c). Its interval reaches from the last row that was still inside
*c/2* to that row: within it the channel was leaving. Where the channel's stride is coarser than the move, the interval
is one stride wide, since nothing is known between two rows.

Two channels are tied when their intervals overlap. The order is then judged against a null: the event time is moved to
random other places of the run (at least a window away), the same search is made there, and the statistic is the share
of channels that move inside the window,

.. math:: p = (1 + \#\{k^* \ge k\}) / (1 + B).

The order means something when that p-value is at most ``alpha`` and the first channel's interval ends before that of
any other begins. Otherwise the verdict is "cannot tell", with the reason, and the order is still carried along.

Limits: an order is not a cause. Published orders differ (update norm before loss before gradient norm; gradient norm
four iterations before the loss peak; loss scale thirty), and leads are usually a few steps, below common intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.detect._inputs import Series, as_series, is_run
from trajscope.detect._predict import surprise
from trajscope.detect._scale import default_floor, stride_of, transform
from trajscope.errors import InputError, nearest
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FirstMover", "Move", "first_mover"]

Floats = NDArray[np.float64]

_IGNORED_ROLES = frozenset(
    {"step", "epoch", "tokens", "elapsed", "system", "memory", "throughput", "step_time", "batch_size"}
)
"""Counters and clocks: they move, but not because of the run's dynamics."""

_PERSIST = 2


@dataclass(frozen=True)
class Move:
    """How one channel left its band.

    Attributes
    ----------
    channel : str
    moved : bool
    step : float or None
        First row outside; the end of the interval.
    low, high : float or None
        Interval in which it left, steps.
    z : float
        Largest absolute residual inside the window, in frozen robust sd; NaN where the channel could not be judged.
    direction : {"up", "down", ""}
    rank : int or None
        1 for the first; tied channels share a rank.
    stride : float
    note : str
        Why it could not be judged, else empty.
    """

    channel: str
    moved: bool
    step: float | None
    low: float | None
    high: float | None
    z: float
    direction: str
    rank: int | None
    stride: float
    note: str = ""


@dataclass(frozen=True, eq=False)
class FirstMover(Result):
    """Order of channels around an event; returned by `first_mover`.

    Attributes
    ----------
    event : float
        Step of the event.
    verdict : {"first", "cannot tell"}
    first : tuple of str
        Channels of rank 1: one where the verdict is "first", else those that cannot be told apart.
    moves : tuple of Move
        Those that moved, in order, then the others by name.
    p_value : float
        Of the null of shuffled event times; NaN where it could not be formed.
    n_null : int
        Event times drawn.
    reason : str
    """

    event: float
    verdict: str
    first: tuple[str, ...]
    moves: tuple[Move, ...]
    p_value: float
    n_null: int
    reason: str

    def to_frame(self) -> pd.DataFrame:
        """One row a channel, columns as the attributes of `Move`."""
        import pandas as pd

        columns = [f.name for f in fields(Move)]
        return pd.DataFrame([[getattr(m, c) for c in columns] for m in self.moves], columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {f.name: jsonable(getattr(self, f.name)) for f in fields(self)}

    def summary(self) -> str:
        """One or two sentences."""
        return self.reason


@dataclass(frozen=True, eq=False)
class _Band:
    """A channel on its scale with causal level and scale at every row."""

    series: Series
    y: Floats
    level: Floats
    scale: Floats


def _band(series: Series, window: int) -> _Band:
    y, scale = transform(series.values, series.role)
    floor = default_floor(y, scale)
    found = surprise(y, window=window, floor=floor, side="both")
    usable = np.isfinite(found.threshold)
    return _Band(
        series, y, np.where(usable, found.location, np.nan), np.where(usable, np.maximum(found.scale, floor), np.nan)
    )


def _leave(band: _Band, start: float, stop: float, c: float) -> tuple[int | None, int | None, float, str]:
    """Row of the first move inside [start, stop), last row before it inside c/2, largest |z|, note."""
    steps = band.series.steps
    a, b = int(np.searchsorted(steps, start)), int(np.searchsorted(steps, stop))
    if b - a < 1:
        return None, None, math.nan, "no row near the event"
    if a == 0 or not np.isfinite(band.scale[a]):
        return None, None, math.nan, "not enough history before the event"
    z = (band.y[a:b] - band.level[a]) / band.scale[a]
    bad = ~np.isfinite(z)
    size = np.where(bad, np.inf, np.abs(z))
    out = size > c
    lasting = out & (np.append(out[1:], out[-1]) | (size > 2 * c))
    hits = np.flatnonzero(lasting)
    finite = size[~bad]
    top = math.inf if bad.any() else float(finite.max())
    if not hits.size:
        return None, None, top, ""
    row = a + int(hits[0])
    calm = np.flatnonzero(size[: hits[0]] <= c / 2)
    last = a + int(calm[-1]) if calm.size else a - 1
    return row, last, top, ""


def first_mover(
    run: Any,
    event: float,
    *,
    channels: list[str] | None = None,
    before: float | None = None,
    after: float | None = None,
    c: float = 6.0,
    window: int = 100,
    alpha: float = 0.05,
    n_null: int = 199,
    rng: int | np.random.Generator | None = None,
) -> FirstMover:
    """Order the channels of a run by when they left their bands around an event.

    Parameters
    ----------
    run : Run or mapping
        A run, or channel names mapped to channels, arrays, or pairs ``(steps, values)``.
    event : float
        Step of the event, for example the onset of a collapse.
    channels : list of str, optional
        Channels to order; by default all but counters and clocks.
    before, after : float, optional
        Steps searched on each side; by default 50 and 10 strides of the densest channel.
    c : float, default 6
        Half width of the band, robust sd (the default of loss of coherence).
    window : int, default 100
        Rows for the scale.
    alpha : float, default 0.05
        Level of the null.
    n_null : int, default 199
        Event times drawn for it.
    rng : int or Generator, optional
        Default 0.

    Returns
    -------
    FirstMover

    Raises
    ------
    InputError
        For an unknown channel, an event that is not a finite number, or options out of range.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=400) + 10, rng.normal(size=400) + 10
    >>> x[200:] += 30
    >>> y[206:] += 30
    >>> found = first_mover({"update_norm": x, "loss": y}, event=206)
    >>> found.verdict, found.first
    ('first', ('update_norm',))
    """
    if not math.isfinite(event):
        raise InputError(f"event is {event}; expected a step.")
    if c <= 0 or not 0 < alpha < 1 or n_null < 19:
        raise InputError(f"options out of range: c {c} > 0, 0 < alpha {alpha} < 1, n_null {n_null} >= 19 are expected.")
    bands = [_band(s, window) for s in _channels(run, channels)]
    strides = np.array([stride_of(b.series.steps) for b in bands])
    dense = float(np.nanmin(strides)) if np.isfinite(strides).any() else 1.0
    before = 50 * dense if before is None else float(before)
    after = 10 * dense if after is None else float(after)
    if before <= 0 or after <= 0:
        raise InputError(f"before {before} and after {after} are steps on each side; expected positive numbers.")
    moves = _ranked([_move(b, event - before, event + after, c, s) for b, s in zip(bands, strides, strict=True)])
    moved = [m for m in moves if m.moved]
    generator = np.random.default_rng(0 if rng is None else rng)
    p_value, drawn = _null(bands, event, before, after, c, len(moved), n_null, generator)
    first = tuple(m.channel for m in moved if m.rank == 1)
    verdict, reason = _verdict(moves, moved, first, p_value, alpha, event)
    return FirstMover(
        event=float(event),
        verdict=verdict,
        first=first,
        moves=tuple(moves),
        p_value=p_value,
        n_null=drawn,
        reason=reason,
        provenance=make_provenance(
            "first_mover",
            {
                "event": event, "channels": channels, "before": before, "after": after, "c": c, "window": window,
                "alpha": alpha, "n_null": n_null,
            },
            *(b.series.values for b in bands),
            seed=0 if rng is None else rng if isinstance(rng, int) else None,
        ),
    )  # fmt: skip


def _channels(run: Any, names: list[str] | None) -> list[Series]:
    source = run.channels if is_run(run) else run
    if not isinstance(source, Mapping):
        raise InputError(f"expected a run or a mapping of channel names to series, got {type(run).__name__}.")
    for name in names or ():
        if name not in source:
            raise InputError(f"there is no channel {name!r} to order. {nearest(name, list(source))}")
    out = []
    for name in names or list(source):
        item = source[name]
        if names is None and getattr(item, "role", "") in _IGNORED_ROLES:
            continue
        if isinstance(item, tuple) and len(item) == 2:
            out.append(as_series(item[1], item[0], name=name))
        else:
            out.append(as_series(item, name=name))
    return out


def _move(band: _Band, start: float, stop: float, c: float, stride: float) -> Move:
    row, last, top, note = _leave(band, start, stop, c)
    name, steps = band.series.name, band.series.steps
    if row is None:
        return Move(name, False, None, None, None, top, "", None, stride, note)
    change = band.y[row] - band.level[max(row - 1, 0)]
    direction = "" if not math.isfinite(change) else "up" if change > 0 else "down"
    low = float(steps[max(last if last is not None else row - 1, 0)])
    return Move(name, True, float(steps[row]), low, float(steps[row]), top, direction, None, stride)


def _ranked(moves: list[Move]) -> list[Move]:
    """Order by the end of the interval (low, high]; overlapping intervals share a rank."""
    moved = sorted((m for m in moves if m.moved), key=lambda m: (m.high, m.low, m.channel))
    still = sorted((m for m in moves if not m.moved), key=lambda m: m.channel)
    out: list[Move] = []
    rank, group_high = 0, -math.inf
    for m in moved:
        # intervals are half-open (low, high]: leaving strictly after the group's last possible moment is a later rank
        if rank == 0 or (m.low is not None and m.low >= group_high):
            rank = len(out) + 1
            group_high = m.high if m.high is not None else math.inf
        out.append(replace(m, rank=rank))
    return out + still


def _null(
    bands: list[_Band],
    event: float,
    before: float,
    after: float,
    c: float,
    observed: int,
    n: int,
    rng: np.random.Generator,
) -> tuple[float, int]:
    """Share of random event times at which as many channels move; NaN where the run has no room for them."""
    judged = [b for b in bands if np.isfinite(b.scale).any()]
    if not judged or observed == 0:
        return math.nan, 0
    first = max(float(b.series.steps[np.flatnonzero(np.isfinite(b.scale))[0]]) for b in judged) + before
    last = min(float(b.series.steps[-1]) for b in judged) - after
    span = before + after
    pieces = [(first, min(event - span, last)), (max(event + span, first), last)]
    pieces = [(a, b) for a, b in pieces if b > a]
    room = sum(b - a for a, b in pieces)
    if room < span:
        return math.nan, 0
    at = rng.uniform(0, room, n)
    hits = 0
    for offset in at.tolist():
        time = pieces[0][0] + offset
        if offset > pieces[0][1] - pieces[0][0]:
            time = pieces[-1][0] + offset - (pieces[0][1] - pieces[0][0])
        moving = sum(_leave(b, time - before, time + after, c)[0] is not None for b in judged)
        hits += moving >= observed
    return (1 + hits) / (1 + n), n


def _verdict(
    moves: list[Move], moved: list[Move], first: tuple[str, ...], p: float, alpha: float, event: float
) -> tuple[str, str]:
    if len(moves) - sum(bool(m.note) for m in moves) < 2:
        return "cannot tell", f"cannot tell who moved first at step {event:g}: fewer than two channels could be judged."
    if not moved:
        return "cannot tell", f"cannot tell who moved first at step {event:g}: no channel left its band."
    order = ", then ".join(_group(moved, r) for r in sorted({m.rank for m in moved if m.rank}))
    if math.isnan(p):
        return "cannot tell", f"cannot tell: the run is too short to compare with other times. Order seen: {order}."
    if p > alpha:
        return "cannot tell", (
            f"cannot tell: as many channels move at random times of this run (p = {p:.2g}). Order seen: {order}."
        )
    if len(first) > 1:
        return "cannot tell", f"cannot tell: {' and '.join(first)} moved within one interval. Order seen: {order}."
    return "first", f"{first[0]} moved first, at step {moved[0].step:g} (p = {p:.2g}). Order: {order}."


def _group(moved: list[Move], rank: int) -> str:
    return " = ".join(m.channel for m in moved if m.rank == rank)
