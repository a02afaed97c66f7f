r"""What a meta-state is measured against: :math:`x_t = (y_t - r_t) / s_c`.

The scale :math:`s_c` is frozen on the baseline: a trailing window would follow a slow drift and never see it. The
reference :math:`r_t` is one of

- ``"level"``: a constant, the mean of the baseline (its median where ``robust``). For channels without a trend.
- ``"siblings"``: the median over the baseline runs at the same step (at least five runs). For healthy trends that
  are alike in every run. Between two steps of the curve the last one holds; after its end the last value holds.
- ``"trend"``: a one-step-ahead causal local-linear forecast of the channel itself. The line is fitted to the rows
  before *t* with weights :math:`\gamma^{t-s}`, :math:`\gamma = 1 - 2/(w+1)` (discounted least squares: Brown 1963),
  so a row never takes part in its own reference; before two rows are known it is the first value. While the
  deviation *D* exceeds 1.25 times all that the baseline showed, the level of the forecast is frozen and what is seen
  is not learnt: otherwise the reference would follow the departure that it is there to show. The margin matters,
  since a healthy run that is frozen by chance may never come back: frozen at the 95 % bound, 24 % of healthy rows
  lie above that bound with AR(0.9) noise in 8 channels and 70 % with AR(0.98); at the baseline's largest *D*, 9 and
  22 % (2 and 15 of 100 runs locked out); at 1.25 times it, 7 and 11 % (0 and 3). The price: a shift of all
  channels that the forecast can follow is shown for a shorter time.

A frozen level would make *D* grow in every healthy run of a channel that has a trend; that is why ``"auto"`` takes
``"siblings"`` from five runs on and ``"trend"`` below.

Scale: ``"mad"``, :math:`\max(1.4826\,\mathrm{MAD}, \text{floor})` of the residual :math:`y - r` over baseline rows,
where the floor is max(1e-12, 1e-3 of the absolute median); a channel whose MAD lies under the floor (it rests most
of the time) takes its standard deviation if that is larger; ``"std"``, the standard deviation; ``None``, 1. A
channel that never moves on the baseline has no scale: it is set aside (``used`` is False there) and takes no part
in the meta-state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from trajscope._core.linalg import Moments
from trajscope._core.rolling import MAD_TO_SD
from trajscope.errors import InputError, NotEnoughData, nearest
from trajscope.metastate._runs import RunData

__all__ = ["MIN_CHANNELS", "MIN_SIBLINGS", "Reference", "baseline_rows", "local_linear_forecast"]

Floats = NDArray[np.float64]
Kind = Literal["level", "siblings", "trend", "auto"]

MIN_SIBLINGS = 5
"""Baseline runs from which on their median is a reference (below, one odd run moves it)."""

MIN_CHANNELS = 3
"""Channels below which an audit forms no meta-state: the channels themselves say it better."""

_SCALE_ROWS = 5_000
"""Rows, evenly spaced, from which a MAD is taken: its sampling error is then below 2 %."""


def baseline_rows(n_rows: int, start: float = 0.05, stop: float = 0.25) -> slice:
    """Baseline of a single run: the rows from 5 % to 25 % of it, fixed in advance and never chosen by later events.

    Examples
    --------
    >>> baseline_rows(2000)
    slice(100, 500, None)
    """
    if not 0 <= start < stop <= 1:
        raise InputError(f"baseline from {start} to {stop}; expected 0 <= start < stop <= 1 (fractions of the run).")
    return slice(int(np.floor(start * n_rows)), int(np.ceil(stop * n_rows)))


class Watch(Protocol):
    """Says of standardised rows whether they lie outside what the baseline showed."""

    def outside(self, x: Floats) -> NDArray[np.bool_]:
        """One answer a row, (n_steps,), for rows that follow those advanced over; nothing is remembered."""
        ...

    def advance(self, x: Floats) -> None:
        """Remember rows (a filter moves on)."""
        ...


class _Line:
    """Discounted least-squares line of every channel: sums over s of g^(t-s) (1, h, h^2, y, h y) with h = s - t."""

    def __init__(self, n_channels: int, window: int) -> None:
        self.decay = 1.0 - 2.0 / (window + 1.0)
        self.sums = np.zeros((5, n_channels))
        self.seen = np.zeros(n_channels)

    def forecast(self, y: Floats, known: NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
        """References of rows to come if each is learnt: (n, p); sums (5, n, p) and counts (n, p) after each of them.

        Ageing by one row moves h to h - 1 and shrinks all weights, so every sum is a first-order recursion.
        """
        ones = known.astype(np.float64)
        sums = np.empty((5, *y.shape))
        before = np.empty_like(sums)

        def run(i: int, inflow: Floats) -> None:
            """sums[i][t] = g sums[i][t - 1] + inflow[t]."""
            start = self.decay * self.sums[i][None, :]
            sums[i] = lfilter([1.0], [1.0, -self.decay], inflow, axis=0, zi=start)[0]

        def last(i: int) -> Floats:
            before[i, 0] = self.sums[i]
            before[i, 1:] = sums[i, :-1]
            out: Floats = before[i]
            return out

        g = self.decay
        run(0, ones)
        run(1, -g * last(0))
        run(2, g * (last(0) - 2 * last(1)))
        run(3, np.where(known, y, 0.0))
        run(4, -g * last(3))
        counts = self.seen + np.cumsum(ones, axis=0)
        s0, s1, s2, s3, s4 = g * before[0], sums[1], sums[2], g * before[3], sums[4]
        seen = counts - ones
        det = s0 * s2 - s1 * s1
        with np.errstate(invalid="ignore", divide="ignore"):
            line, level = (s3 * s2 - s1 * s4) / det, s3 / s0
        # two rows make a line through both that doubles every error: a level until there are five
        fit = (seen >= 5) & (det > 1e-9 * s0 * np.maximum(s2, 1e-300))
        return np.asarray(np.where(seen > 0, np.where(fit, line, level), np.nan)), sums, counts

    def take(self, y: Floats, known: NDArray[np.bool_]) -> None:
        """Learn rows."""
        if y.shape[0]:
            _, sums, counts = self.forecast(y, known)
            self.sums, self.seen = sums[:, -1], counts[-1]


def local_linear_forecast(
    y: Floats, window: int = 100, watch: Watch | None = None, scale: Floats | float = 1.0
) -> tuple[Floats, NDArray[np.bool_]]:
    """One-step-ahead causal local-linear forecast of every channel.

    Parameters
    ----------
    y : ndarray, shape (n_steps, n_channels)
        NaN where nothing was logged.
    window : int, default 100
        Span w of the weights, in rows; the default of trailing windows throughout.
    watch : Watch, optional
        Asked about ``(y_t - r_t) / scale``; while it says "outside", the reference stays where it was and rows are not
        learnt.
    scale : ndarray, shape (n_channels,), or float

    Returns
    -------
    forecast : ndarray, shape (n_steps, n_channels)
        Row t uses rows before t only; NaN until a channel was seen once.
    frozen : ndarray of bool, shape (n_steps,)

    Examples
    --------
    >>> forecast, _ = local_linear_forecast(np.arange(20.0)[:, None])
    >>> bool(np.allclose(forecast[6:, 0], np.arange(6.0, 20.0)))
    True
    """
    n, p = y.shape
    line = _Line(p, window)
    known = ~np.isnan(y)
    frozen = np.zeros(n, dtype=bool)
    if watch is None:
        return line.forecast(y, known)[0], frozen
    forecast = np.empty((n, p))
    held: Floats | None = None
    # rows are taken in pieces that grow while nothing happens: what follows an event has to be computed anew
    at, size = 0, 64
    while at < n:
        rows = slice(at, min(at + size, n))
        if held is None:
            reference, sums, counts = line.forecast(y[rows], known[rows])
            flags = watch.outside((y[rows] - reference) / scale)
            event = int(np.argmax(flags)) if flags.any() else flags.size
            done = min(event + 1, flags.size)
            if event > 0:
                line.sums, line.seen = sums[:, event - 1], counts[event - 1]
            if event < flags.size:
                frozen[at + event] = True
                held = reference[event].copy()
                held = _learn_new(line, held, y[at + event], known[at + event])
        else:
            # a channel first seen during an excursion has nothing to be held at: the piece ends there
            new = np.flatnonzero((known[rows] & np.isnan(held)).any(axis=1))
            stop = at + int(new[0]) + 1 if new.size else rows.stop
            rows = slice(at, min(rows.stop, stop))
            reference = np.broadcast_to(held, (rows.stop - at, p))
            flags = watch.outside((y[rows] - reference) / scale)
            event = int(np.argmin(flags)) if not flags.all() else flags.size
            done = min(event + 1, flags.size)
            frozen[at : at + event] = True
            nothing = np.zeros((done, p), dtype=bool)
            if event < flags.size:
                nothing[-1] = known[at + event]
                line.take(y[at : at + done], nothing)
                held = None
            else:
                line.take(y[at : at + done - 1], nothing[1:])
                held = _learn_new(line, held, y[at + done - 1], known[at + done - 1])
        watch.advance((y[at : at + done] - reference[:done]) / scale)
        forecast[at : at + done] = reference[:done]
        at += done
        size = min(2 * size, 1024) if done == flags.size else max(size // 2, 16)
    return forecast, frozen


def _learn_new(line: _Line, held: Floats, y: Floats, known: NDArray[np.bool_]) -> Floats:
    """Age the line by one frozen row, of which it learns channels it never saw; those are held at their first value."""
    fresh = known & np.isnan(held)
    line.take(y[None], fresh[None])
    return np.where(fresh, y, held)


def _median_scale(residual: Floats, level: Floats) -> tuple[Floats, Floats]:
    """Robust scale with its floor, and the standard deviation, of every channel."""
    p = residual.shape[1]
    scale, spread = np.zeros(p), np.zeros(p)
    rows = residual[:: max(1, residual.shape[0] // _SCALE_ROWS)]
    for c in range(p):
        v = rows[:, c]
        v = v[~np.isnan(v)]
        if v.size == 0:
            continue
        spread[c] = v.std()
        middle = np.median(v)
        floor = max(1e-12, 1e-3 * abs(level[c]))
        mad = MAD_TO_SD * float(np.median(np.abs(v - middle)))
        scale[c] = max(mad, floor) if mad > 1e-12 else max(spread[c], floor)
    return scale, spread


@dataclass
class Reference:
    """Reference and frozen scale, learnt on baseline rows.

    Parameters
    ----------
    kind : {"level", "siblings", "trend", "auto"}, default "auto"
        See the top of this module; ``"auto"`` is ``"siblings"`` from five baseline runs on, else ``"trend"``.
    scale : {"mad", "std", None}, default "mad"
    window : int, default 100
        Span of the local-linear forecast, in rows.
    robust : bool, default False
        Median instead of mean as the level.

    Attributes
    ----------
    level : ndarray, shape (n_channels,)
        Mean (or median) of the baseline in the units of the channels; what ``"level"`` subtracts.
    sd : ndarray, shape (n_channels,)
        The frozen scale s_c.
    used : ndarray of bool, shape (n_channels,)
        False for channels that never move on the baseline.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = 3 + 2 * rng.normal(size=(500, 3))
    >>> reference = Reference("level", scale="std").fit([RunData(y, np.arange(500), ())])
    >>> np.allclose(reference.residual(RunData(y, np.arange(500), ())).std(axis=0), 1)
    True
    """

    kind: Kind = "auto"
    scale: Literal["mad", "std"] | None = "mad"
    window: int = 100
    robust: bool = False

    def __post_init__(self) -> None:
        kinds = ("level", "siblings", "trend", "auto")
        if self.kind not in kinds:
            raise InputError(f"reference is {self.kind!r}. {nearest(str(self.kind), kinds)}")
        if self.scale not in ("mad", "std", None):
            raise InputError(f"scale is {self.scale!r}; expected 'mad', 'std' or None.")
        if self.window < 3:
            raise InputError(f"window is {self.window}; a local line needs at least 3 rows.")

    def fit(self, runs: Sequence[RunData], moments: Moments | None = None) -> Reference:
        """Learn level, curve and scale on baseline runs; ``moments`` of the same runs spare a pass."""
        if self.kind == "auto":
            self.kind = "siblings" if len(runs) >= MIN_SIBLINGS else "trend"
        if self.kind == "siblings" and len(runs) < MIN_SIBLINGS:
            raise NotEnoughData(
                f"reference 'siblings' needs at least {MIN_SIBLINGS} baseline runs, got {len(runs)}; use 'trend'."
            )
        p = runs[0].x.shape[1]
        moments = moments or Moments.of([r.x for r in runs])
        self.level: Floats = moments.mean()
        if np.isnan(self.level).all():
            raise NotEnoughData("no baseline row holds a finite value in any channel; nothing can be learnt from it.")
        spread = np.sqrt(np.clip(np.diag(moments.covariance()), 0.0, None))
        if self.robust:
            self.level = _medians(np.concatenate([_thin(r.x) for r in runs]))
        if self.kind == "siblings":
            self.curve_steps, self.curve = _sibling_curve(runs)
        self.sd = spread
        if self.kind != "level" or self.scale == "mad":
            residual = np.concatenate([self._baseline_residual(runs, i) for i in range(len(runs))])
            mad, spread = _median_scale(residual, self.level)
            self.sd = mad if self.scale == "mad" else spread
        still = ~(spread > 1e-12 * np.maximum(1.0, np.abs(np.nan_to_num(self.level))))
        self.used: NDArray[np.bool_] = ~still
        self.sd = np.where(self.used, self.sd if self.scale else 1.0, 1.0)
        if not self.used.any():
            raise NotEnoughData(
                f"none of the {p} channels moves on the baseline (all constant or never logged);"
                " a meta-state needs one that does."
            )
        return self

    def _baseline_residual(self, runs: Sequence[RunData], i: int) -> Floats:
        """Residual of a baseline run, thinned; its own rows do not enter a sibling median (leave one out)."""
        run = runs[i]
        if self.kind == "siblings":
            others = [r for j, r in enumerate(runs) if j != i]
            steps, curve = _sibling_curve(others)
            return run.x - _hold(steps, curve, run.steps)
        if self.kind == "trend":
            return run.x - local_linear_forecast(run.x, self.window)[0]
        x = _thin(run.x)
        return x - _medians(x)

    def residual(self, run: RunData, watch: Watch | None = None) -> Floats:
        """``(y - r) / s`` of a run, shape (n_steps, n_channels); channels that were set aside are NaN.

        Row t depends on rows up to t only. ``watch`` may freeze a reference that is a forecast (see
        `local_linear_forecast`); what it is asked about has set-aside channels as NaN too.
        """
        y = run.x
        if self.kind == "level":
            x = y - self.level
        elif self.kind == "siblings":
            x = y - _hold(self.curve_steps, self.curve, run.steps)
        else:
            scale = np.where(self.used, self.sd, np.nan)
            x = y - local_linear_forecast(y, self.window, watch, scale)[0]
        return self._scaled(x)

    def _scaled(self, x: Floats) -> Floats:
        x /= self.sd
        if not self.used.all():
            x[:, ~self.used] = np.nan
        return x


def _thin(x: Floats) -> Floats:
    return x[:: max(1, x.shape[0] // _SCALE_ROWS)]


def _medians(x: Floats) -> Floats:
    """Median of every channel without its gaps; NaN for an empty one."""
    ordered = np.sort(x, axis=0)  # NaN last
    n = np.sum(~np.isnan(x), axis=0)
    low, high = np.maximum((n - 1) // 2, 0), n // 2
    columns = np.arange(x.shape[1])
    with np.errstate(invalid="ignore"):
        middle = (ordered[low, columns] + ordered[np.minimum(high, x.shape[0] - 1), columns]) / 2
    return np.where(n > 0, middle, np.nan)


def _sibling_curve(runs: Sequence[RunData]) -> tuple[NDArray[np.float64], Floats]:
    """Median over runs at every step that any of them has; a step needs three runs with the channel, else NaN."""
    steps = np.unique(np.concatenate([np.asarray(r.steps, dtype=np.float64) for r in runs]))
    p = runs[0].x.shape[1]
    stack = np.full((len(runs), steps.size, p), np.nan)
    for i, run in enumerate(runs):
        stack[i, np.searchsorted(steps, np.asarray(run.steps, dtype=np.float64))] = run.x
    ordered = np.sort(stack, axis=0)
    n = np.sum(~np.isnan(stack), axis=0)
    low, high = np.maximum((n - 1) // 2, 0), np.minimum(n // 2, len(runs) - 1)
    middle = np.take_along_axis(ordered, np.stack([low, high]), axis=0).mean(axis=0)
    return steps, np.where(n >= 3, middle, np.nan)


def _hold(steps: NDArray[np.float64], curve: Floats, at: NDArray[np.float64]) -> Floats:
    """The curve at the given steps: the last known value at or before each; NaN before its start."""
    known = np.where(np.isnan(curve), -1, np.arange(steps.size)[:, None])
    last = np.maximum.accumulate(known, axis=0)
    row = np.searchsorted(steps, np.asarray(at, dtype=np.float64), side="right") - 1
    index = np.where(row[:, None] >= 0, last[np.maximum(row, 0)], -1)
    value = np.take_along_axis(curve, np.maximum(index, 0), axis=0)
    return np.where(index >= 0, value, np.nan)
