"""Where exactly, how large, how sure: profile least squares of one change on its window.

On rows ``[a, b)`` the model is a line plus one step ``g 1(t >= s)`` or one kink ``g (t - s)+``. For every ``s`` the
fall of the residual sum of squares is ``N(s)^2 / D(s)``, with ``N`` the inner product of the residual about the
line with the regressor and ``D`` the regressor's squared length after the line has been projected out: two
cumulative sums, linear in the window.

After a real event a curve often does not step, it relaxes: ``g (1 - exp(-(t - s) / tau))`` for ``t >= s``. Taken for a
step that is dated too late, and what is left of it is taken for further changes. So a change of level is fitted both
ways, for time constants on a grid of ratio 1.6 that end within the window: linear in the window too, ``N`` by a
recursion and ``D`` in closed form.

Interval: all ``s`` with ``(G(s*) - G(s)) / (long-run variance) <= c``. A step's likelihood ratio has the
distribution ``(1 - exp(-x/2))^2`` (two-sided maximum of a Brownian motion with drift, e.g. Eo & Morley 2015,
Quantitative Economics 6), so ``c = -2 log(1 - sqrt(0.95)) = 7.35``; a kink's location is a regular parameter, ``c =
3.84``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

__all__ = ["Location", "locate", "locate_relaxation", "profile", "relaxation", "time_constants"]

Floats = NDArray[np.float64]
_STEP_CUT = float(-2 * np.log(1 - np.sqrt(0.95)))
_SETTLED = 5.0
"""Time constants after which a relaxation is over."""
_CUT = {"level": _STEP_CUT, "variance": _STEP_CUT, "flat": _STEP_CUT, "slope": 3.841}


@dataclass(frozen=True)
class Location:
    """One located change: row, half-open interval of rows, size (step, or change of slope per row), gain."""

    row: int
    low: int
    high: int
    size: float
    gain: float


def profile(y: Floats, shape: str, edge: int = 2) -> tuple[Floats, Floats]:
    """Fall of the residual sum of squares and fitted size for a change at each row of a window.

    Parameters
    ----------
    y : ndarray, (m,)
    shape : {"level", "slope", "flat"}
        A step or a kink beside a line, or a step alone.
    edge : int
        Rows kept free at both ends (gain 0 there).

    Returns
    -------
    gain, size : ndarray, (m,)
    """
    m = y.shape[0]
    k = np.arange(m, 0, -1.0)  # rows from s to the end
    if shape == "flat":
        n, d = np.cumsum((y - y.mean())[::-1])[::-1], k * (m - k) / m
        usable = np.zeros(m, dtype=bool)
        usable[edge : m - edge + 1] = True
        safe = np.where(usable, d, 1.0)
        return np.where(usable, n * n / safe, 0.0), np.where(usable, n / safe, 0.0)
    x = np.arange(m) - (m - 1) / 2
    sxx = float(x @ x)
    r = y - y.mean()
    r = r - (r @ x / sxx) * x
    tail = np.cumsum(r[::-1])[::-1]
    if shape == "level":
        n = tail
        sum1, square = k, k
        cross = k * ((m - 1) / 2 - (k - 1) / 2)
    else:
        n = np.concatenate([np.cumsum(tail[::-1])[::-1][1:], [0.0]])  # sum over i >= s of (i - s) r_i
        sum1 = k * (k - 1) / 2
        square = (k - 1) * k * (2 * k - 1) / 6
        first = x  # x at s; x_i = x_s + (i - s)
        cross = first * sum1 + square
    d = square - sum1**2 / m - cross**2 / sxx
    usable = np.zeros(m, dtype=bool)
    usable[edge : m - edge + 1] = True
    usable &= d > 1e-9 * np.maximum(square, 1e-300)
    safe = np.where(usable, d, 1.0)
    return np.where(usable, n * n / safe, 0.0), np.where(usable, n / safe, 0.0)


def time_constants(rows: int) -> Floats:
    """Grid of time constants, in rows, of relaxations that are over within `rows` rows after their start."""
    return np.asarray(3 * 1.6 ** np.arange(0, np.log(max(rows / _SETTLED / 3, 1)) / np.log(1.6) + 1e-9))


def relaxation(y: Floats, tau: float, edge: int = 2) -> tuple[Floats, Floats]:
    """Fall of the residual sum of squares and fitted size for a relaxation that starts at each row of a window.

    Parameters
    ----------
    y : ndarray, (m,)
    tau : float
        Time constant in rows.
    edge : int
        Rows kept free at both ends (gain 0 there).

    Returns
    -------
    gain, size : ndarray, (m,)
        Beside a line, as `locate.profile`; `size` is the whole of the fall.
    """
    m = y.shape[0]
    q = float(np.exp(-1 / tau))
    k = np.arange(m, 0, -1.0)  # rows from s to the end
    x = np.arange(m) - (m - 1) / 2
    sxx = float(x @ x)
    r = y - y.mean()
    r = r - (r @ x / sxx) * x
    n = np.cumsum(r[::-1])[::-1] - lfilter([1.0], [1.0, -q], r[::-1])[::-1]
    qk = q**k
    decay = (1 - qk) / (1 - q)  # sums over j < k of q^j, q^2j and j q^j
    square = (1 - qk * qk) / (1 - q * q)
    weighted = q * (1 - k * qk / q + (k - 1) * qk) / (1 - q) ** 2
    sum1 = k - decay
    cross = x * sum1 + k * (k - 1) / 2 - weighted
    d = k - 2 * decay + square - sum1**2 / m - cross**2 / sxx
    usable = np.zeros(m, dtype=bool)
    usable[edge : m - edge + 1] = True
    usable &= (d > 1e-9 * k) & (k >= _SETTLED * tau)  # one that goes on to the end is as good as a kink
    safe = np.where(usable, d, 1.0)
    return np.where(usable, n * n / safe, 0.0), np.where(usable, n / safe, 0.0)


def locate(y: Floats, start: int, stop: int, kind: str, variance: float, near: int, reach: int) -> Location:
    """Best place of one change on rows ``[start, stop)``, within `reach` rows of `near`.

    Parameters
    ----------
    y : ndarray, (n,)
    start, stop : int
        Window, half-open, free of other changes.
    kind : {"level", "slope", "variance", "flat"}
        "flat" is a step between sides without slope. A change of variance is a step of the log innovation, which is
        what `y` must then be.
    variance : float
        Long-run variance of the noise in the window.
    near, reach : int
        Search rows ``near - reach .. near + reach``.
    """
    gain, size = profile(y[start:stop], "level" if kind == "variance" else kind)
    low = max(near - reach - start, 0)
    high = min(near + reach + 1 - start, gain.shape[0])
    best = low + int(np.argmax(gain[low:high]))
    inside = gain >= gain[best] - _CUT[kind] * max(variance, 1e-300)
    inside[:low] = False
    inside[high:] = False
    rows = np.flatnonzero(inside)
    return Location(start + best, start + int(rows[0]), start + int(rows[-1]) + 1, float(size[best]), float(gain[best]))


def locate_relaxation(y: Floats, start: int, stop: int, variance: float, last: int) -> tuple[Location, float]:
    """Best start of a relaxation on rows ``[start, stop)`` not after row `last`, and its time constant in rows.

    The interval is that of a kink's location, the best time constant taken at each row.
    """
    window = y[start:stop]
    m = stop - start
    gain, size = np.zeros(m), np.zeros(m)
    tau = np.zeros(m)
    for constant in time_constants(stop - last):
        g, s = relaxation(window, constant)
        better = g > gain
        gain, size, tau = np.where(better, g, gain), np.where(better, s, size), np.where(better, constant, tau)
    gain[max(last + 1 - start, 0) :] = 0.0
    best = int(np.argmax(gain))
    rows = np.flatnonzero(gain >= gain[best] - _CUT["slope"] * max(variance, 1e-300))
    at = Location(start + best, start + int(rows[0]), start + int(rows[-1]) + 1, float(size[best]), float(gain[best]))
    return at, float(tau[best])
