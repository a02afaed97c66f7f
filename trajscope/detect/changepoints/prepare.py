"""Channels made fit for the search: tamed in size, centred, holds thinned, coarse values smeared.

* **Size.** Values beyond 1e100 (or all below 1e-100) overflow when squared: such a channel is divided by a power of
  two, which is exact, and its sizes are multiplied back. Single values further out than a million times the distance
  of the quartiles would drown the rest by rounding; they are set there and are still spikes.
* **Holds.** A value that is repeated until the next one is logged is one observation: an independent channel held for
  10 rows has a lag-1 autocorrelation of 0.90 and steps everywhere. A channel whose values stay for a whole multiple of
  k rows, or whose every value is new and stays for two rows or more in the median, is judged at the rows where a new
  value begins.
* **Coarse values.** Medians and MADs of a few distinct values jump between them. Such a channel gets uniform noise as
  wide as its resolution, from a seed that its ranks give: the same draw for a shifted, scaled or moved channel, another
  one for another channel.

A trajectory says by its mask what was held; this is for arrays, which cannot.
"""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.changepoints.inputs import Series

__all__ = ["held_rows", "prepare", "smear", "tame"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_LARGE, _SMALL = 1e100, 1e-100
_FAR = 2e6
_LEAST_RUNS = 8
_NEW = 0.9
"""Share of values that must be new for irregular runs of equal values to pass for holds."""
_COARSE = 0.2
"""Share of distinct values up to which a channel counts as coarse: rounded, counted, or a success of 0 and 1."""
_RESTLESS = 0.05
"""Share of rows that must differ from the row before: a schedule has few values too, but keeps them."""
_USUAL = 0.3
"""Share of rows from which one value among many others (a clip fraction of 0) counts as coarse."""
_LOOK = 8192


def tame(series: Series) -> tuple[Series, Floats]:
    """Channels of extreme size divided by a power of two, and the divisors ``(n_channels,)``."""
    factors = np.ones(len(series.names))
    values = series.values
    for c in range(values.shape[1]):
        own = series.own_rows(c)
        if not own.size:
            continue
        limits = _believable(values[own, c])
        if limits is not None:
            values = values.copy() if values is series.values else values
            values[own, c] = np.clip(values[own, c], *limits)
        largest = float(np.max(np.abs(values[own, c])))
        if largest > _LARGE or 0 < largest < _SMALL:
            factors[c] = 2.0 ** np.frexp(largest)[1] if largest < 1e300 else 2.0**1000
    if np.all(factors == 1) and values is series.values:
        return series, factors
    return replace(series, values=values / factors), factors


def _believable(y: Floats) -> tuple[float, float] | None:
    """A million times the distance of the quartiles around them, where values lie beyond."""
    at = (y.size // 4, y.size - 1 - y.size // 4)
    low, high = np.partition(y, at)[list(at)].tolist()
    reach = _FAR * (high / 2 - low / 2)
    if not 0 < reach < np.inf or (y.min() >= low - reach and y.max() <= high + reach):
        return None
    return low - reach, high + reach


def prepare(series: Series) -> tuple[Series, list[str]]:
    """Centred, thinned and smeared channels, and what is to be said about them."""
    values = series.values.copy()
    notes = []
    for c, name in enumerate(series.names):
        own = series.own_rows(c)
        if not own.size:
            continue
        y = values[own, c]
        y = y - np.median(y)  # a constant becomes exactly 0, and no rounding of its mean passes for noise
        kept = held_rows(y)
        if kept.size < y.size:
            notes.append(
                f"{name}: values are held over several rows; judged at the {kept.size} of {y.size} rows with a new one."
            )
        values[own, c] = np.nan
        values[own[kept], c] = smear(y[kept])
    return replace(series, values=values), notes


def held_rows(y: Floats) -> Ints:
    """Rows at which a value begins; all rows where values are not held.

    >>> held_rows(np.repeat([3.0, 1.0, 2.0, 5.0, 4.0, 9.0, 8.0, 7.0, 6.0], 4)).tolist()
    [0, 4, 8, 12, 16, 20, 24, 28, 32]
    """
    every = np.arange(y.size, dtype=np.int64)
    if y.size < 2 * _LEAST_RUNS or np.mean(y[1 : _LOOK + 1] != y[:_LOOK][: y[1 : _LOOK + 1].size]) > 0.6:
        return every
    begins = np.flatnonzero(y[1:] != y[:-1]) + 1
    if begins.size < _LEAST_RUNS:
        return every
    lengths = np.diff(begins)
    period = int(np.gcd.reduce(lengths))
    if period > 1:
        first = int(begins[0]) % period
        return every[first::period] if first == 0 else np.concatenate([[0], every[first::period]])
    runs = y[np.concatenate([[0], begins])]
    if np.median(lengths) >= 2 and np.unique(runs).size >= _NEW * runs.size:
        return np.concatenate([[0], begins]).astype(np.int64)
    return every


def smear(y: Floats) -> Floats:
    """Coarse values plus uniform noise as wide as the gap to the next value, in the median over rows.

    One value among many, mixed with them (a clip fraction that is mostly 0), is spread as far as the others lie.

    Of 0/1 series with a share of 0.3 and of normal noise rounded to 2 sd, nine in ten got a change point at n = 1,000
    without this.
    """
    sample = y[:: -(-y.size // _LOOK)]
    if np.unique(sample).size > 0.9 * sample.size:
        return y
    distinct, which, counts = np.unique(y, return_inverse=True, return_counts=True)
    if distinct.size < 2:
        return y
    noise = np.random.default_rng(crc32(which.astype("<i4").tobytes())).uniform(-0.5, 0.5, y.size)
    if distinct.size <= _COARSE * y.size:
        if np.mean(y[1:] != y[:-1]) < _RESTLESS:
            return y
        gaps = np.concatenate([[np.inf], np.diff(distinct), [np.inf]])
        return np.asarray(y + float(np.median(np.minimum(gaps[1:], gaps[:-1])[which])) * noise)
    usual = which == np.argmax(counts)
    share = float(np.mean(usual))
    left = np.count_nonzero(usual[:-1] & ~usual[1:])
    if share < _USUAL or left < 0.3 * y.size * share * (1 - share):
        return y
    width = 2 * float(np.median(np.abs(y[~usual] - distinct[np.argmax(counts)])))
    return np.where(usual, y + width * noise, y)
