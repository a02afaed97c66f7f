r"""Who moved first: the order in which channels left their bands around an event.

For each channel, on its own rows and the scale of its role, the band is frozen at the first row of the search window
:math:`[T - b, T + a)`, so that the move itself cannot widen it: the level is that of `trajscope.detect._predict`, the
scale the larger of its scale of innovations and of the robust spread about a line of the rows before (an AR(0.9) series
wanders 2.3 times as far as its innovations), times the weight of its tail. A channel has **moved** at the first row of
the window from which :math:`|y - m| > c\,s` for *q* = 2 rows in a row (one row suffices beyond 2c). One that only comes
near (0.75c) has not moved for sure and has not stayed for sure: no other is called first before it.

When it began to move is less certain than that. On the rows from the start of the window to two behind that row, a step
and ramps that grow as the root, linearly and as the square of time are fitted at every row, each beside a constant. The
interval holds the rows whose residual sum of squares lies within the 99 % bound of the best one's (6.63 for a ramp,
whose start enters smoothly, 10.6 for the step), in units of the long-run variance
of the noise: the larger of that before the window and of what the best shape leaves. It reaches back to the row before,
since nothing is known between two rows.

Two channels are tied when their intervals overlap. The order is then judged against a null: the event time is moved to
random other places of the run (at least a window away), the same search is made there, and the statistic is the share
of channels that move inside the window,

.. math:: p = (1 + \#\{k^* \ge k\}) / (1 + B).

A channel that wanders out by chance just before the event would be called first, so the same windows also tell how
often any channel leaves its band at least as far as the first one did (in its first three rows outside); the larger of
the two p-values counts. The order means something when it is at most ``alpha`` and the first channel's interval ends
before that of any other begins. Otherwise the verdict is "cannot tell", with the reason, and the order is still carried
along.

Limits: an order is not a cause. Published orders differ (update norm before loss before gradient norm; gradient norm
four iterations before the loss peak; loss scale thirty), and leads are usually a few steps, below common intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
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

_Z = 5.25
"""Threshold at which the weight of the tail is measured, robust sd (as in `trajscope.spikes`)."""
_BEHIND = 2
"""Rows behind the first one outside that tell a step from a ramp; later the move may be over."""
_MOST_ROWS, _HISTORY = 400, 200
"""Rows over which a beginning is looked for, and rows before the window that tell the noise."""
_POWERS = (0.0, 0.5, 1.0, 2.0)
"""Shapes of a beginning move: the power of the time since its start; 0 is a step."""
_NEAR = 0.75
"""Share of the half width of the band beyond which a channel may have moved: noise alone seldom comes there."""
_STEP_CUT, _RAMP_CUT = 10.6, 6.63
"""Fall of twice the log likelihood within which a step's place, and a ramp's start, stays likely: 99 %, so that the
order of a handful of channels holds at 95 %."""


@dataclass(frozen=True)
class Move:
    """How one channel left its band.

    Attributes
    ----------
    channel : str
    moved : bool
    step : float or None
        First row outside its band.
    low, high : float or None
        99 % interval (low, high] of the step at which it began to move; also of a channel that came near the edge of
        its band and may have moved.
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
    traces : mapping of str to (steps, z)
        Each channel that could be judged, in the window and half of it before: distance from the frozen level in frozen
        robust sd.
    """

    plot_name = "first_mover"

    event: float
    verdict: str
    first: tuple[str, ...]
    moves: tuple[Move, ...]
    p_value: float
    n_null: int
    reason: str
    traces: Mapping[str, tuple[NDArray[Any], Floats]] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """One row a channel, columns as the attributes of `Move`."""
        import pandas as pd

        columns = [f.name for f in fields(Move)]
        return pd.DataFrame([[getattr(m, c) for c in columns] for m in self.moves], columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without the traces."""
        return {f.name: jsonable(getattr(self, f.name)) for f in fields(self) if f.name != "traces"}

    def summary(self) -> str:
        """One or two sentences."""
        return self.reason


@dataclass(frozen=True, eq=False)
class _Band:
    """A channel on its scale, with causal level, scale of innovations and weight of the tail at every row."""

    series: Series
    y: Floats
    level: Floats
    scale: Floats
    tail: Floats
    window: int

    def frozen(self, row: int) -> float:
        """Half width of one robust sd at a row, from the rows before; NaN where there is not enough history."""
        if not np.isfinite(self.scale[row]):
            return math.nan
        spread = _noise(self.y[max(0, row - self.window) : row])[0]
        return float(max(self.scale[row], spread) * self.tail[row])


def _band(series: Series, window: int) -> _Band:
    y, scale = transform(series.values, series.role)
    floor = default_floor(y, scale)
    found = surprise(y, z=_Z, window=window, floor=floor, side="both")
    usable = np.isfinite(found.threshold)
    level = np.where(usable, found.location, np.nan)
    innovations = np.where(usable, np.maximum(found.scale, floor), np.nan)
    return _Band(series, y, level, innovations, np.maximum(found.threshold / _Z, 1.0), window)


@dataclass(frozen=True)
class _Exit:
    """Row of the first move (None: none), largest |z| of it and the `_BEHIND` rows after, of the window; a note.

    `near` is the row at which it came near the edge, where it did not move.
    """

    row: int | None
    z: float
    top: float
    note: str = ""
    near: int | None = None


def _leave(band: _Band, start: float, stop: float, c: float) -> _Exit:
    """The first move inside [start, stop)."""
    steps = band.series.steps
    a, b = int(np.searchsorted(steps, start)), int(np.searchsorted(steps, stop))
    if b - a < 1:
        return _Exit(None, math.nan, math.nan, "no row near the event")
    scale = band.frozen(a) if a else math.nan
    if math.isnan(scale):
        return _Exit(None, math.nan, math.nan, "not enough history before the event")
    z = (band.y[a:b] - band.level[a]) / scale
    size = np.where(np.isfinite(z), np.abs(z), np.inf)
    out = size > c
    lasting = out & (np.append(out[1:], out[-1]) | (size > 2 * c))
    hits = np.flatnonzero(lasting)
    top = float(size.max())
    if not hits.size:
        return _Exit(None, math.nan, top, near=a + int(np.argmax(size > _NEAR * c)) if top > _NEAR * c else None)
    return _Exit(a + int(hits[0]), float(size[hits[0] : hits[0] + _BEHIND + 1].max()), top)


def _began(y: Floats, a: int, row: int) -> tuple[int, int]:
    """First and last row at which a move seen at `row` can have begun; `a` is the first row of the window."""
    start, stop = max(a, row - _MOST_ROWS), min(row + _BEHIND + 1, y.size)
    bad = np.flatnonzero(~np.isfinite(y[start:stop]))
    before = bad[bad < row - start]
    start += int(before[-1]) + 1 if before.size else 0
    after = bad[bad >= row - start]
    if after.size or row - start < 2:  # what turns non-finite does so at once
        return row, row
    w, t = y[start:stop], np.arange(stop - start, dtype=np.float64)
    places = t[1 : row - start + 1, None]
    gains = []
    since = np.maximum(t - places + 1, 0.0)
    for power in _POWERS:
        shape = (since > 0).astype(np.float64) if power == 0 else since**power
        shape = shape - shape.mean(axis=1, keepdims=True)
        gains.append((shape @ w) ** 2 / np.sum(shape**2, axis=1))
    best = max(float(g.max()) for g in gains)
    _, variance, r = _noise(y[max(0, a - _HISTORY) : a])
    left = float(np.sum((w - w.mean()) ** 2)) - best  # what the best shape leaves, where none fits, widens the interval
    noise = max(variance, left / max(w.size - 3, 1)) * (1 + r) / (1 - r)  # long-run variance of an AR(1)
    inside = np.zeros(places.size, dtype=bool)
    for power, gain in zip(_POWERS, gains, strict=True):
        inside |= gain >= best - (_STEP_CUT if power == 0 else _RAMP_CUT) * max(noise, 1e-12 * best)
    rows = np.flatnonzero(inside)
    return start + 1 + int(rows[0]), start + 1 + int(rows[-1])


def _noise(y: Floats) -> tuple[float, float, float]:
    """About a line: robust standard deviation, variance (clipped at 4 of them), lag-1 autocorrelation in [0, 0.95]."""
    y = y[np.isfinite(y)]
    if y.size < 5:
        return 0.0, 0.0, 0.0
    t = np.arange(y.size) - (y.size - 1) / 2
    e = y - y.mean()
    e = e - (e @ t) / (t @ t) * t
    scale = 1.4826 * float(np.median(np.abs(e - np.median(e))))
    e = np.clip(e, -4 * scale, 4 * scale)
    total = float(e @ e)
    r = min(max(float(e[1:] @ e[:-1]) / total, 0.0), 0.95) if total > 0 else 0.0
    return scale, total / e.size, r


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
    exits = [_leave(b, event - before, event + after, c) for b in bands]
    moves = _ranked([_move(b, e, event - before, s) for b, e, s in zip(bands, exits, strides, strict=True)])
    moved = [m for m in moves if m.moved]
    generator = np.random.default_rng(0 if rng is None else rng)
    first = tuple(m.channel for m in moved if m.rank == 1)
    least = min((e.z for b, e in zip(bands, exits, strict=True) if b.series.name in first), default=math.nan)
    p_value, drawn = _null(bands, event, before, after, c, len(moved), least, n_null, generator)
    verdict, reason = _verdict(moves, moved, first, p_value, alpha, event)
    return FirstMover(
        event=float(event),
        verdict=verdict,
        first=first,
        moves=tuple(moves),
        p_value=p_value,
        n_null=drawn,
        reason=reason,
        traces={
            b.series.name: trace for b in bands if (trace := _trace(b, event - before, event + after)) is not None
        },
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


def _move(band: _Band, found: _Exit, start: float, stride: float) -> Move:
    name, steps = band.series.name, band.series.steps
    row = found.near if found.row is None else found.row
    if row is None:
        return Move(name, False, None, None, None, found.top, "", None, stride, found.note)
    a = int(np.searchsorted(steps, start))
    change = band.y[row] - band.level[a]
    direction = "" if not math.isfinite(change) else "up" if change > 0 else "down"
    early, late = _began(band.y, a, row)
    low, high = float(steps[max(early - 1, 0)]), float(steps[late])
    step = None if found.row is None else float(steps[row])
    return Move(name, found.row is not None, step, low, high, found.top, direction, None, stride)


def _trace(band: _Band, start: float, stop: float) -> tuple[NDArray[Any], Floats] | None:
    """Distance from the frozen level in the window and half of it before; None where the band is unknown."""
    steps = band.series.steps
    a, b = int(np.searchsorted(steps, start)), int(np.searchsorted(steps, stop))
    scale = band.frozen(a) if b > a else math.nan
    if math.isnan(scale):
        return None
    first = int(np.searchsorted(steps, start - (stop - start) / 2))
    return steps[first:b], (band.y[first:b] - band.level[a]) / scale


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
    least: float,
    n: int,
    rng: np.random.Generator,
) -> tuple[float, int]:
    """Share of random event times at which as many channels move, or any goes `least` sd out: the larger of the two.

    NaN where the run has no room for them.
    """
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
    many = far = 0
    for offset in at.tolist():
        time = pieces[0][0] + offset
        if offset > pieces[0][1] - pieces[0][0]:
            time = pieces[-1][0] + offset - (pieces[0][1] - pieces[0][0])
        out = [e.z for b in judged if (e := _leave(b, time - before, time + after, c)).row is not None]
        many += len(out) >= observed
        far += max(out, default=0.0) >= least
    return (1 + max(many, far)) / (1 + n), n


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
            f"cannot tell: channels move as much at random times of this run (p = {p:.2g}). Order seen: {order}."
        )
    if len(first) > 1:
        return "cannot tell", f"cannot tell: {' and '.join(first)} moved within one interval. Order seen: {order}."
    high = math.inf if moved[0].high is None else moved[0].high
    maybe = [m for m in moves if not m.moved and m.low is not None and m.low < high]
    if maybe:
        names = " and ".join(m.channel for m in maybe)
        reason = f"cannot tell: {names} came near the edge as early and may have moved. Order seen: {order}."
        return "cannot tell", reason
    return "first", f"{first[0]} moved first, at step {moved[0].step:g} (p = {p:.2g}). Order: {order}."


def _group(moved: list[Move], rank: int) -> str:
    return " = ".join(m.channel for m in moved if m.rank == rank)
