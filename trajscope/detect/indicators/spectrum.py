r"""Largest value of the Welch spectrum of a trailing window.

Segments of 40 rows (the window, where that is shorter), half overlapping, from the first row of the window on; each
loses its mean, is tapered by a Hann window *h* and gives :math:`|{\rm FFT}|^2/(\sum h)^2`; the segments' spectra are
averaged (Welch 1967) and the largest of all two-sided frequencies is taken. A channel that slows down gathers its power
at frequency 0, a flip at 1/2, a Neimark-Sacker bifurcation in between; the height grows in each case.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["SEGMENT", "welch_max"]

Floats = NDArray[np.float64]

SEGMENT = 40
"""Rows of a segment: frequencies 0.025 cycles a row apart, and 11 segments in a window of 240."""


def welch_max(z: Floats, window: int, rows: NDArray[np.intp]) -> Floats:
    """Largest of the Welch spectrum, shape (m, n_steps), at the given rows; a segment with a hole is left out.

    Examples
    --------
    >>> wave = np.cos(np.pi * np.arange(80.0))[None]
    >>> round(float(welch_max(wave, 80, np.array([79]))[0, -1]), 6)
    1.0
    """
    m, n = z.shape
    out = np.full((m, n), np.nan)
    length = min(SEGMENT, window)
    hop = length - length // 2
    starts = np.arange(0, window - length + 1, hop)
    taper = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    chunk = max(1, 20_000 // m)
    for first in range(0, rows.size, chunk):
        ends = rows[first : first + chunk]
        low, high = ends[0] - window + 1, ends[-1] + 1
        pieces = np.lib.stride_tricks.sliding_window_view(z[:, low:high], length, axis=1)
        # only segments that some window uses: their starts are congruent to the windows' starts
        used = np.unique((ends - window + 1 - low)[:, None] + starts[None, :])
        part = pieces[:, used]
        power = np.abs(np.fft.rfft((part - part.mean(axis=-1, keepdims=True)) * taper, axis=-1)) ** 2 / taper.sum() ** 2
        good = ~np.isnan(power[..., 0])
        power[~good] = 0.0
        total = np.zeros((m, ends.size, power.shape[-1]))
        count = np.zeros((m, ends.size))
        for start in starts:
            at = np.searchsorted(used, ends - window + 1 - low + start)
            total += power[:, at]
            count += good[:, at]
        with np.errstate(invalid="ignore", divide="ignore"):
            out[:, ends] = np.where(count > 0, total.max(axis=-1) / count, np.nan)
    return out
