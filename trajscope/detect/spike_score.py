r"""Spike score of OLMo 2: the share of points that lie far above the mean of the points before.

.. math:: \text{score} = \tfrac1n\,\#\{t : x_t \ge \bar x_{t-W..t-1} + 7\,\mathrm{sd}(x_{t-W..t-1})\}, \quad W = 1000

Source: arXiv 2501.00656. It is a companion, not a detector: the standard deviation of the window is inflated by the
descent of the loss and by earlier spikes, and the score depends on stride and window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope._core.rolling import trailing_mean_std
from trajscope.detect._inputs import as_series
from trajscope.detect._scale import stride_of, transform

__all__ = ["SpikeScore", "spike_score"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SpikeScore:
    """Share of points that lie at least ``threshold`` sd above the mean of the ``window`` before.

    Attributes
    ----------
    raw, log : float
        Score on the values as logged and on their logs; NaN where nothing can be scored (too short, not positive).
    threshold : float
    window : int
        Rows; the first rows that are scored have at least half of it before them.
    stride : float
        Median distance of steps: a score is only comparable at the same stride.
    n : int
        Rows scored.
    """

    raw: float
    log: float
    threshold: float
    window: int
    stride: float
    n: int


def spike_score(
    values: ArrayLike, steps: ArrayLike | None = None, *, threshold: float = 7.0, window: int = 1000
) -> SpikeScore:
    """Share of points at least ``threshold`` sd above the mean of the ``window`` points before (OLMo 2).

    Parameters
    ----------
    values : array_like, shape (n_steps,)
    steps : array_like, shape (n_steps,), optional
    threshold : float, default 7
    window : int, default 1000
        Shorter logs use what is there, but never fewer than 64 rows: inside n rows no z can exceed (n-1)/sqrt(n).

    Returns
    -------
    SpikeScore

    Examples
    --------
    >>> x = np.ones(2000) + 0.01 * np.sin(np.arange(2000))
    >>> x[1500] = 5
    >>> score = spike_score(x)
    >>> round(score.raw * score.n), score.stride
    (1, 1.0)
    """
    series = as_series(values, steps)
    x = series.values
    least = min(window, max(64, window // 2))
    stride = stride_of(series.steps)

    def share(y: Floats) -> tuple[float, int]:
        mean, std = trailing_mean_std(y, window, min_count=least)
        judged = np.isfinite(y) & np.isfinite(std)
        n = int(np.count_nonzero(judged))
        if n == 0:
            return math.nan, 0
        # sums of squares round at 1e-16 of the level squared: a flat window must not turn dust into sd
        std = np.maximum(std, 1e-9 * np.abs(mean))
        high = judged & (y - mean >= threshold * std) & (y > mean)
        return float(np.count_nonzero(high)) / n, n

    raw, n = share(x)
    finite = x[np.isfinite(x)]
    logs = math.nan
    if finite.size and finite.min() > 0:
        logs = share(transform(x, scale="log")[0])[0]
    return SpikeScore(raw, logs, threshold, window, stride, n)
