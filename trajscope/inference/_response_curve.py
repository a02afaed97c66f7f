r"""One response: a channel's deviation from what it would have been, and its size, course and rest.

With the channel on the scale of its role, a reference :math:`y^{ref}_t` and the noise :math:`s` of the rows before the
injection (1.4826 MAD about a line through them),

.. math:: \delta_t = (y_t - y^{ref}_t) / s .

The reference is the same-seed control, or a **causal forecast**: level and slope of a robust line through the last rows
before the injection, the slope dying out over half of them (:math:`\tau`),

.. math:: y^{ref}_{t} = a + b\,\tau\,(1 - e^{-h/\tau}),

since a line drawn on for ever says little about a training curve.

The top is where the running median of three of :math:`|\delta|` is largest. A maximum of noisy rows comes late and is
too large by one to two noise sd, so time and size of the peak are read off a curve through many rows: the exponential
fitted to the rows after the top,

.. math:: \delta_\tau = c + A e^{-k\tau}, \qquad \text{half-life } \ln 2 / k,

by least squares (*c* and *A* are linear given *k*; *k* by a grid that is refined), where that curve beats a constant
(F test at 1 %, rows counted as :math:`n (1-r_1)/(1+r_1)` for their lag-1 autocorrelation) and takes back at least a
fifth of the peak within the rows seen; the peak is where a straight rise meets it (least squares over the rows up to
the top). What does not relax has no half-life: its peak is the median of a plateau, or the largest running median of
15, and its time the first row with nine tenths of that. The permanent shift is the median over the last tenth of the
rows, the area the integral over the steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope._core.rolling import MAD_TO_SD
from trajscope.errors import InputError

__all__ = ["Curve", "Shape", "baseline_noise", "describe", "exponential", "forecast"]

Floats = NDArray[np.float64]

_SMOOTH = 15
_MOST_ROWS = 4_000
_LEAST_SHARE = 0.2
_ALPHA = 0.01
_UNBIASED = 2.4


@dataclass(frozen=True, eq=False)
class Curve:
    """A response: steps since the injection, deviation in baseline sd, and how it was referred.

    Attributes
    ----------
    offsets, delta : ndarray, shape (n_rows,)
        From the injection on; finite rows only.
    noise : float
        s, on the scale of the channel's role.
    reference : {"control", "forecast"}
    n_nonfinite : int
        Rows left out because they are no number.
    """

    offsets: Floats
    delta: Floats
    noise: float
    reference: str
    n_nonfinite: int = 0


@dataclass(frozen=True)
class Shape:
    """Numbers of one response; NaN where there is none.

    Attributes
    ----------
    peak : float
        Signed, baseline sd.
    largest : float
        Largest row as it stands, signed.
    time_to_peak : float
        Steps since the injection; for a response that stays, the first row with nine tenths of the peak.
    half_life : float
        Steps; NaN where it does not relax.
    shift : float
        Median over the last tenth of the rows.
    area : float
        Sd times steps.
    """

    peak: float
    largest: float
    time_to_peak: float
    half_life: float
    shift: float
    area: float


def _line(steps: Floats, y: Floats) -> tuple[float, float, Floats]:
    """Level and slope at the mean step of a line without its outliers, and the residuals of all rows."""
    x = steps - steps.mean()
    keep = np.ones(y.size, dtype=bool)
    level, slope = float(np.median(y)), 0.0
    for _ in range(3):
        var = float(np.sum((x[keep] - x[keep].mean()) ** 2))
        slope = float(np.sum((x[keep] - x[keep].mean()) * y[keep]) / var) if var > 0 else 0.0
        level = float(y[keep].mean() - slope * x[keep].mean())
        rest = y - level - slope * x
        keep = np.abs(rest) <= 4 * MAD_TO_SD * np.median(np.abs(rest))
        if keep.sum() < 3:
            keep = np.ones(y.size, dtype=bool)
    out: Floats = y - level - slope * x
    return level, slope, out


def baseline_noise(steps: ArrayLike, y: ArrayLike, at: float, *, window: int = 100, least: int = 10) -> float:
    """Noise sd of a channel before ``at``: 1.4826 MAD about a line through its last ``window`` rows, times 1 + 2.4/n.

    The factor makes responses in units of it unbiased: the mean of 1/s is then 1/sigma within 0.5 % for normal noise of
    10 to 400 rows (simulated). With an autocorrelation of 0.9 the unit stays a fifth too small.

    Parameters
    ----------
    steps, y : array_like, shape (n_rows,)
    at : float
        Rows before this step are used.
    window, least : int
        Rows used, and rows needed.

    Returns
    -------
    float
        NaN with fewer than ``least`` finite rows; at least 1e-3 of the absolute median and 1e-12.
    """
    where, values = _before(steps, y, at, window)
    if values.size < least:
        return math.nan
    _, _, rest = _line(where, values)
    floor = max(1e-12, 1e-3 * abs(float(np.median(values))))
    scale = MAD_TO_SD * float(np.median(np.abs(rest)))
    return max((scale if scale > floor else float(np.std(rest))) * (1 + _UNBIASED / values.size), floor)


def _before(steps: ArrayLike, y: ArrayLike, at: float, window: int) -> tuple[Floats, Floats]:
    where, values = np.asarray(steps, dtype=np.float64), np.asarray(y, dtype=np.float64)
    keep = (where < at) & np.isfinite(values)
    return where[keep][-window:], values[keep][-window:]


def forecast(steps: ArrayLike, y: ArrayLike, at: float, to: ArrayLike, *, window: int = 100, least: int = 10) -> Floats:
    """What the rows before ``at`` lead to at the steps ``to``.

    Returns
    -------
    ndarray, shape (n_to,)
        NaN with fewer than ``least`` finite rows before ``at``.

    Examples
    --------
    >>> steps = np.arange(40.0)
    >>> bool(abs(forecast(steps, 2 * steps, 40, [40])[0] - 80) < 0.1)
    True
    """
    where, values = _before(steps, y, at, window)
    target = np.asarray(to, dtype=np.float64)
    if values.size < least:
        return np.full(target.size, np.nan)
    level, slope, _ = _line(where, values)
    last = where[-1]
    damping = max((last - where[0]) / 2, 1e-12)
    start = level + slope * (last - where.mean())
    out: Floats = start + slope * damping * (1 - np.exp(-np.maximum(target - last, 0) / damping))
    return out


def exponential(x: ArrayLike, y: ArrayLike) -> tuple[float, float, float, float]:
    """Least squares of c + A exp(-k x) for x from 0 on.

    Parameters
    ----------
    x, y : array_like, shape (n_rows,)

    Returns
    -------
    c, A, half_life, p : float
        ``p`` is that of the F test against a constant, rows discounted for the lag-1 autocorrelation of the residuals.
        NaN with fewer than 6 rows.

    Examples
    --------
    >>> x = np.arange(60.0)
    >>> c, a, half, p = exponential(x, 1 + 8 * 0.5 ** (x / 7))
    >>> round(c, 3), round(a, 3), round(half, 3)
    (1.0, 8.0, 7.0)
    """
    t, v = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if t.shape != v.shape or t.ndim != 1:
        raise InputError(f"x has shape {t.shape} and y {v.shape}; two arrays of shape (n_rows,) are expected.")
    thin = max(1, -(-t.size // _MOST_ROWS))
    if thin > 1:
        t, v = np.concatenate([t[:200], t[200::thin]]), np.concatenate([v[:200], v[200::thin]])
    n = t.size
    if n < 6 or not t[-1] > 0:
        return math.nan, math.nan, math.nan, math.nan
    gap = float(np.median(np.diff(t)))
    grid = np.geomspace(0.4 * gap, 1.5 * t[-1], 40)
    best = (math.inf, math.nan, math.nan, math.nan)
    for _ in range(6):
        e = np.exp(-math.log(2) * t[:, None] / grid)
        centred, level = e - e.mean(axis=0), v - v.mean()
        var = np.maximum((centred**2).sum(axis=0), 1e-300)
        a = level @ centred / var
        rest = (level**2).sum() - a**2 * var
        i = int(np.argmin(rest))
        if rest[i] <= best[0]:
            best = (float(rest[i]), float(v.mean() - a[i] * e[:, i].mean()), float(a[i]), float(grid[i]))
        grid = np.geomspace(grid[max(i - 1, 0)], grid[min(i + 1, grid.size - 1)], 12)
    sse, c, amplitude, half = best
    sse = max(sse, 0.0)
    total = float(np.sum((v - v.mean()) ** 2))
    residual = v - c - amplitude * np.exp(-math.log(2) * t / half)
    power = float(residual @ residual)
    r1 = float(residual[1:] @ residual[:-1]) / power if power > 0 else 0.0
    rows = max(n * (1 - max(r1, 0.0)) / (1 + max(r1, 0.0)), 3.5)
    if sse <= 1e-20 * max(total, 1e-300):
        return c, amplitude, half, 0.0 if total > 0 else 1.0
    from scipy.stats import f as f_distribution

    ratio = (total - sse) / 2 / (sse / (rows - 3))
    return c, amplitude, half, float(f_distribution.sf(ratio, 2, rows - 3))


def _running_median(y: Floats, width: int) -> Floats:
    """Centred; shorter at the ends."""
    half = width // 2
    padded = np.concatenate([np.full(half, np.nan), y, np.full(half, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    inner = np.median(windows[half : max(y.size - half, half)], axis=1) if y.size > 2 * half else np.empty(0)
    if inner.size == 0:
        return np.array([np.nanmedian(w) for w in windows])
    ends = [np.nanmedian(w) for w in (*windows[:half], *windows[y.size - half :])]
    out: Floats = np.concatenate([ends[:half], inner, ends[half:]])
    return out


def describe(offsets: ArrayLike, delta: ArrayLike, *, tail: float = 0.1) -> Shape:
    """Peak, course and rest of a response.

    Parameters
    ----------
    offsets, delta : array_like, shape (n_rows,)
        Steps since the injection (0 or more, increasing) and deviations, all finite.
    tail : float, default 0.1
        Share of the rows whose median is the permanent shift.

    Returns
    -------
    Shape
        All NaN without rows.
    """
    t, d = np.asarray(offsets, dtype=np.float64), np.asarray(delta, dtype=np.float64)
    if not t.size:
        return Shape(*[math.nan] * 6)
    smooth = _running_median(d, 3)
    top = int(np.argmax(np.abs(smooth)))
    largest = float(d[np.argmax(np.abs(d))])
    shift = float(np.median(d[-max(1, math.ceil(tail * d.size)) :]))
    area = float(np.sum((d[1:] + d[:-1]) / 2 * np.diff(t))) if t.size > 1 else 0.0
    when = float(t[top])
    if not smooth[top]:
        return Shape(0.0, largest, when, math.nan, shift, area)
    for skip in (1, 0):  # the row of the peak was chosen because it is large: leave it out where there are others
        c, a, half, p = exponential(t[top + skip :] - t[top], d[top + skip :])
        relaxes = p < _ALPHA and half <= t[-1] - t[top] and a * smooth[top] > 0
        if relaxes and abs(a) >= _LEAST_SHARE * abs(c + a) and abs(c + a) < 3 * abs(largest):
            fitted = c + a * np.exp(-math.log(2) * (t[: top + 1] - t[top]) / half)
            row = _turn(t[: top + 1], d[: top + 1], fitted)
            return Shape(float(fitted[row]), largest, float(t[row]), half, shift, area)
    wide = _running_median(d, _SMOOTH)
    peak = float(wide[np.argmax(np.abs(wide))])
    first = int(np.argmax(smooth * np.sign(peak) >= 0.5 * abs(peak)))
    if not exponential(t[first:] - t[first], d[first:])[3] < _ALPHA:
        peak = float(np.median(d[first:]))  # a plateau: its level, not its largest row
    reached = np.flatnonzero(smooth * np.sign(peak) >= 0.9 * abs(peak))
    return Shape(peak, largest, float(t[reached[0]]) if reached.size else when, math.nan, shift, area)


def _turn(t: Floats, d: Floats, fitted: Floats) -> int:
    """Row at which a straight rise meets the curve fitted to what follows, by least squares over the rows given."""
    rest = np.append(np.cumsum(((d - fitted) ** 2)[::-1])[::-1], 0.0)
    best, row = math.inf, t.size - 1
    for p in range(t.size):
        before, rise = t[:p] - t[p], d[:p] - fitted[p]
        slope = float(before @ rise) / float(before @ before) if p else 0.0
        error = float(np.sum((rise - slope * before) ** 2)) + float(rest[p])
        if error < best:
            best, row = error, p
    return row
