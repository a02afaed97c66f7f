r"""Drawdown of a performance series: the arithmetic behind `trajscope.collapse`.

With *y* oriented so that bigger is better (a loss enters as :math:`-\log \ell`, or :math:`-\ell` where some
:math:`\ell \le 0`), over its finite rows:

.. math::

    R_t &= \mathrm{med}(y_{t-w+1..t}), \qquad R_0 = \mathrm{med}(y_{0..w-1}), \qquad P_t = \max_{s \le t-w} R_s \\
    e_s &= y_s - \mathrm{med}(y_{s-25..s-1}), \qquad
    b_s = \tfrac{1}{12} (\mathrm{med}(y_{s-12..s-1}) - \mathrm{med}(y_{s-24..s-13})) \\
    s_t &= 1.4826\; \min(\mathrm{med}_{s<t} |e_s|,\; \mathrm{med}_{s<t} |e_s - 13\, b_s|) \\
    dd_t &= (P_t - R_t)/(P_t - R_0)

:math:`R, P, s` at row *t* use rows up to *t* only. All arrays have shape (n_steps,).

The smaller of two scales: while a run learns, :math:`e` holds 13 strides of trend (the middle of 25 rows lies that far
back), so a log that is mostly learning had a scale of trend, not of noise, and its blow-up passed unseen;
:math:`e - 13 b` is free of a straight trend but noisier where there is none, or where learning comes in bursts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling import MAD_TO_SD, expanding_median, trailing_median

__all__ = ["Drawdown", "drawdown", "orient", "run_starts"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RESIDUAL_WINDOW = 25
"""Evaluations whose median a residual is taken from (DEFINITIONS of the scale s_R)."""


def orient(values: Floats, mode: str) -> tuple[Floats, str]:
    """Turn values so that bigger is better.

    Returns
    -------
    y : ndarray, shape (n_steps,)
        Non-finite values stay non-finite.
    unit : {"value", "-log", "-value"}
        How ``y`` was made.
    """
    if mode == "max":
        return values, "value"
    finite = values[np.isfinite(values)]
    if finite.size and finite.min() > 0:
        y = np.full(values.size, np.nan)
        good = np.isfinite(values)
        y[good] = -np.log(values[good])
        return y, "-log"
    return -values, "-value"


@dataclass(frozen=True, eq=False)
class Drawdown:
    """Causal level, peak, scale and drawdown of a finite series; see the module's formulas."""

    level: Floats  # R
    peak: Floats  # P
    scale: Floats  # s
    ratio: Floats  # dd
    start: float  # R_0


def drawdown(y: Floats, w: int, floor: float) -> Drawdown:
    """Compute the drawdown of a finite, oriented series.

    Parameters
    ----------
    y : ndarray, shape (n_steps,)
        Finite, bigger is better.
    w : int
        Evaluations in the smoothing median.
    floor : float
        Smallest scale.

    Returns
    -------
    Drawdown
        NaN where there is no full window before.
    """
    n = y.size
    level = trailing_median(y, w, min_count=w, include=True)
    start = float(np.median(y[:w])) if n else float("nan")
    peak = np.full(n, np.nan)
    if n > w:
        peak[w:] = np.fmax.accumulate(level[:-w])
    scale = np.maximum(MAD_TO_SD * _spread(y, w), floor)
    scale[: min(n, 2 * w)] = np.nan  # fewer than w residuals are no scale
    room = peak - start
    ratio = np.divide(peak - level, room, out=np.full(n, np.nan), where=room > 0)
    return Drawdown(level, peak, scale, ratio, start)


def _spread(y: Floats, w: int) -> Floats:
    """Median absolute residual of the rows before each, about the median before or the trend before: the smaller."""
    residual = y - trailing_median(y, RESIDUAL_WINDOW, min_count=w)
    half = RESIDUAL_WINDOW // 2
    later = trailing_median(y, half, min_count=2)
    trend = np.zeros(y.size)
    trend[half:] = (later[half:] - later[:-half]) / half
    back = (RESIDUAL_WINDOW + 1) / 2  # from a row to the middle of the window before it
    flat = expanding_median(np.abs(residual))
    sloped = expanding_median(np.abs(residual - back * np.nan_to_num(trend)))
    return np.asarray(np.fmin(flat, sloped))


def run_starts(flag: Bools, length: int) -> Bools:
    """Rows that end ``length`` True rows in a row.

    >>> run_starts(np.array([True, True, False, True, True, True]), 2).astype(int)
    array([0, 1, 0, 0, 1, 1])
    """
    total = np.concatenate([[0], np.cumsum(flag)])
    out = np.zeros(flag.size, dtype=bool)
    if flag.size >= length:
        out[length - 1 :] = total[length:] - total[:-length] == length
    return out
