r"""One-step robust prediction of a logged series, and how surprising each row is.

For a series *y* (already on the scale of its role: log, asinh or as logged), everything at row *t* from rows before it:

.. math::

    m_t &= \mathrm{med}_{20}(y) + 10.5\,\hat b_t\,\Bigl(1 - 2\,\tfrac{\mathrm{se}^2}{d_t^2}\Bigr)_+ ,\quad
           d_t = \mathrm{med}_{10}(y)_t - \mathrm{med}_{10}(y)_{t-10},\quad \hat b_t = d_t/10 \\
    r_t &= y_t - m_t, \qquad e_t = r_t - \hat\varphi_t\, \psi(r_{t-1}) \\
    s_t &= \max\{1.4826\,\mathrm{MAD}_{100}(e),\; 0.8 \cdot 1.4826\,\mathrm{MAD}_{20}(e),\;
           0.6\,\mathrm{rms}_{100}(e),\; \text{floor}\} \\
    T_t &= z \cdot \max\{1,\; q / (1.1 \cdot 2.33)\}^3

* the slope between two half windows corrects the lag of the median; it is shrunk to nothing (positive-part
  James-Stein) where it is not distinguishable from noise, so that white noise pays little for it;
* :math:`\hat\varphi` is the lag-1 autocorrelation of *r*, from MADs of :math:`r_t \pm r_{t-1}` (Gnanadesikan and
  Kettenring 1972), so that under AR(0.9) a spike is judged against the innovations, 0.44 of the marginal sd;
  :math:`\psi` clips at 2 s, so that a spike does not predict another one;
* *e* is the residual about the causal trend, whitened, so its MAD needs no correction for autocorrelation;
* *q* is the 99 % quantile of :math:`-e/s` over the last 1,000 rows, that is of the side on which spikes are not
  looked for: it measures the tail of the noise without being inflated by the spikes themselves (less its standard
  error). It is 2.33 for normal noise and 3.9 for t(3), where z = 5.25 becomes 18. Two-sided search takes the tail of
  \|e\|;
* with fewer than 20 residuals the scale is at least their root mean square; with fewer than 100 the threshold is at
  least the 1 - 1e-5 quantile of Student's t on max(min(n, 7), n/3) degrees of freedom, since neither scale nor tail
  is known yet: with 5 rows only a jump of some 20 sd counts, with 20 rows one of 10.

Rows beyond 4.5 s are left out of the history and the pass is repeated until they stay the same; a run of more than
`LONG_RUN` of them is a new level, which enters the history (a frozen reference would flag for ever). That a run ends
is known up to five rows later: this is the one look ahead, and it touches only which earlier rows count as history.

Limits: a change of variance is learned within about ten rows; noise with tails like t(3) on both sides still gives
about one flag in a thousand rows (``tests/proofs/spikes.py`` states the rates).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from trajscope._core.rolling import (
    MAD_TO_SD,
    by_numpy,
    trailing_count,
    trailing_mean_std,
    trailing_median,
    trailing_median_mad,
    trailing_quantile,
)

__all__ = ["LONG_RUN", "Surprise", "surprise"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

LONG_RUN = 5
"""Flagged rows in a row from which they are a new level and enter the history."""

_HALF = 10  # rows of a half window of the location
_SHORT = 20  # residuals below which the short-history rule holds
_YOUNG = 100  # residuals below which the tail of the noise is not known yet
_SHORT_LEVEL = 1e-5  # one-sided level of a row under the short-history rule
_RMS_SHARE = 0.6  # of the root mean square below which a MAD is not believed (quantised series have MAD 0)
_TAIL_PROB = 0.99
_NORMAL_TAIL = 2.326  # P(N <= 2.326) = 0.99
_TAIL_ERROR = 1.6  # relative sd of a 99 % quantile of n normals, times sqrt(n)
_TAIL_FREE = 1.1  # tails up to this many times a normal's pass for normal
_TAIL_POWER = 3
_SUSPECT = 4.5  # robust sd from which a row is left out of the history
_PASSES = 6
_CELLS_A_ROW = 500  # of all the rolling windows behind a residual


@dataclass(frozen=True, eq=False)
class Surprise:
    """What was predicted and how far each row lies from it; all arrays of shape (n_steps,).

    Attributes
    ----------
    location : ndarray
        Prediction of the level, m.
    residual : ndarray
        Whitened residual e; NaN at rows that are not finite or have no history.
    scale : ndarray
        s.
    threshold : ndarray
        T: row t stands out where ``residual > threshold * scale``; infinite where there is not enough history.
    flagged : ndarray of bool
    history : ndarray of int
        Residuals behind the scale, up to the window.
    judged : ndarray of bool
        Whether a row has a value and enough history to stand out.
    """

    location: Floats
    residual: Floats
    scale: Floats
    threshold: Floats
    flagged: Bools
    history: NDArray[np.int64]
    judged: Bools

    @property
    def z(self) -> Floats:
        """Residual in units of the scale."""
        out: Floats = np.full(self.scale.size, np.nan)
        np.divide(self.residual, self.scale, out=out, where=self.scale > 0)
        return out


def _location(y: Floats) -> Floats:
    """Trailing median of 20 with a shrunken correction for its lag."""
    middle = trailing_median(y, 2 * _HALF, min_count=1)
    half = trailing_median(y, _HALF, min_count=_HALF // 2)
    earlier = np.concatenate([np.full(_HALF, np.nan), half[:-_HALF]]) if y.size > _HALF else np.full(y.size, np.nan)
    steps = np.diff(y, prepend=np.nan)
    noise = MAD_TO_SD * trailing_median_mad(steps, 5 * _HALF, min_count=_HALF)[1] / np.sqrt(2)
    d = half - earlier
    se2 = 1.57 * noise**2 * 2 / _HALF  # variance of a median: pi/2 of that of a mean
    shrink = np.clip(1 - 2 * np.divide(se2, d**2, out=np.ones(y.size), where=d != 0), 0, 1)
    drift = np.nan_to_num(d / _HALF * (_HALF + 0.5) * shrink)
    out: Floats = middle + drift
    return out


def _lag_one(r: Floats, window: int) -> Floats:
    """Robust lag-1 autocorrelation of the trailing window, 0 where it is within noise."""
    before = np.concatenate([[np.nan], r[:-1]])
    plus = trailing_median_mad(r + before, window, min_count=_SHORT)[1] ** 2
    minus = trailing_median_mad(r - before, window, min_count=_SHORT)[1] ** 2
    total = plus + minus
    phi = np.divide(plus - minus, total, out=np.zeros(r.size), where=total > 0)
    n = np.maximum(trailing_count(r, window), 1)
    phi[np.abs(phi) < 2 / np.sqrt(n)] = 0.0
    clipped: Floats = np.clip(phi, -0.95, 0.95)
    return clipped


def _beyond(e: Floats, level: Floats, side: str) -> Bools:
    with np.errstate(invalid="ignore"):
        out: Bools = e > level if side == "up" else e < -level if side == "down" else np.abs(e) > level
    return out & np.isfinite(level)


def _tail_weight(u: Floats, tail_window: int, side: str) -> Floats:
    """Factor on the threshold for noise with heavy tails, from standardised residuals."""
    if side == "both":
        tail = trailing_quantile(np.abs(u), tail_window, 2 * _TAIL_PROB - 1, min_count=_SHORT)
    else:
        tail = trailing_quantile(-u if side == "up" else u, tail_window, _TAIL_PROB, min_count=_SHORT)
    error = 1 + _TAIL_ERROR / np.sqrt(np.maximum(trailing_count(u, tail_window), 1))
    weight: Floats = np.fmax(tail / (_NORMAL_TAIL * _TAIL_FREE * error), 1.0) ** _TAIL_POWER
    return weight


@dataclass(frozen=True)
class _Options:
    z: float
    window: int
    tail_window: int | None
    min_points: int
    floor: float
    side: str
    only_standing_out: bool


def _predicted(y: Floats, left_out: Bools, window: int) -> tuple[Floats, Floats, Floats, Ints, Ints]:
    """Location, residual, the kept part of it, counts of rows and of kept residuals in the window."""
    if y.size and not by_numpy(_CELLS_A_ROW * y.size):
        from trajscope.detect._predict_kernel import predict

        return predict(y, left_out, window, _HALF, _SHORT)
    kept = np.where(left_out, np.nan, y)
    location = _location(kept)
    r = y - location
    r_kept = kept - location
    rough = MAD_TO_SD * trailing_median_mad(r_kept, window, min_count=3)[1]
    phi = _lag_one(r_kept, window)
    bound = 2 * np.nan_to_num(rough, nan=0.0)
    carried = np.clip(np.nan_to_num(np.concatenate([[0.0], r_kept[:-1]])), -bound, bound)
    e = r - phi * carried
    e_kept = np.where(left_out, np.nan, e)
    return location, e, e_kept, trailing_count(kept, window), trailing_count(e_kept, window)


def _one_pass(y: Floats, left_out: Bools, o: _Options) -> tuple[Surprise, Bools]:
    location, e, e_kept, points, history = _predicted(y, left_out, o.window)
    mean, std = trailing_mean_std(e_kept, o.window, min_count=1)
    judged = (points >= o.min_points) & (history >= o.min_points - 2)
    rms = np.where(history < _SHORT, 1.0, _RMS_SHARE) * np.hypot(mean, std)
    least = np.fmax(rms, o.floor)
    if o.only_standing_out and not np.any(judged & _beyond(e, min(o.z, _SUSPECT) * least, o.side)):
        nothing = np.zeros(y.size, dtype=bool)
        unknown = np.full(y.size, np.nan)
        return Surprise(location, e, unknown, unknown, nothing, history, judged), nothing
    long = MAD_TO_SD * trailing_median_mad(e_kept, o.window, min_count=3)[1]
    short = 0.8 * MAD_TO_SD * trailing_median_mad(e_kept, _SHORT, min_count=3)[1]
    scale = np.fmax(np.fmax(long, short), least)
    threshold = np.full(y.size, float(o.z))
    if o.tail_window is not None and not (o.only_standing_out and not np.any(judged & _beyond(e, o.z * scale, o.side))):
        u = np.divide(e_kept, scale, out=np.full(y.size, np.nan), where=(scale > 0) & (history >= _SHORT))
        threshold *= _tail_weight(u, o.tail_window, o.side)
    few = history < _YOUNG
    freedom = np.maximum(np.minimum(history[few], _SHORT // 3 + 1), history[few] / 3)
    threshold[few] = np.maximum(threshold[few], stats.t.ppf(1 - _SHORT_LEVEL, np.maximum(freedom, 1)))
    threshold[~judged] = np.inf
    level = threshold * scale
    flagged = _beyond(e, level, o.side)
    suspect = _beyond(e, np.where(np.isfinite(level), np.minimum(_SUSPECT * scale, level), np.inf), o.side)
    return Surprise(location, e, scale, threshold, flagged, history, judged), suspect


def short_runs(flagged: Bools, longest: int) -> Bools:
    """Flags that belong to runs of at most ``longest`` rows.

    >>> short_runs(np.array([True, False, True, True, True, False]), 2).astype(int)
    array([1, 0, 0, 0, 0, 0])
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flagged, [False]]).astype(np.int8)))
    start, stop = edges[::2], edges[1::2]
    out = flagged.copy()
    for a, b in zip(start[stop - start > longest].tolist(), stop[stop - start > longest].tolist(), strict=True):
        out[a:b] = False
    return out


def surprise(
    y: Floats,
    *,
    z: float = 5.25,
    window: int = 100,
    tail_window: int | None = 1000,
    min_points: int = 5,
    floor: float = 1e-12,
    side: str = "up",
    only_standing_out: bool = False,
) -> Surprise:
    """Predict each row from those before it and flag the rows that stand out.

    Parameters
    ----------
    y : ndarray, shape (n_steps,)
        One series; non-finite rows are missing.
    z : float, default 5.25
        Threshold in robust sd under normal tails: 1e-7 a row, so that a night of logs stays quiet.
    window, tail_window : int, default 100 and 1000
        Rows for the scale and for the tail; no ``tail_window``, no weight for heavy tails.
    min_points : int, default 5
        Rows needed before any can stand out.
    floor : float
        Smallest scale, in units of ``y``.
    side : {"up", "down", "both"}
    only_standing_out : bool, default False
        Leave scale and threshold NaN, or the threshold as low as it can be, where no row of the series stands out
        anyway. Location, residual, flags and history are the same.

    Returns
    -------
    Surprise

    Examples
    --------
    >>> y = np.sin(np.arange(60.0)) * 0.1
    >>> y[40] += 3
    >>> np.flatnonzero(surprise(y).flagged)
    array([40])
    """
    y = np.where(np.isfinite(y), y, np.nan)
    left_out = np.zeros(y.size, dtype=bool)
    options = _Options(z, window, tail_window, min_points, floor, side, only_standing_out)
    for _ in range(_PASSES):
        found, suspect = _one_pass(y, left_out, options)
        now = short_runs(suspect, LONG_RUN)
        if np.array_equal(now, left_out):
            break
        left_out = now
    return found
