r"""What an indicator is computed from: a channel less its baseline.

Causal (row *t* uses rows up to *t*; the baseline is a forecast from the rows before *t*):

- ``"ewma"``: :math:`z_t = x_t - m_{t-1}`, with :math:`m` the exponentially weighted mean of the rows so far
  (:math:`\alpha = 2 / (\mathrm{span} + 1)`, weights normalised, so the first rows need no start value).
- ``"local"``: :math:`z_t = x_t - \hat x_t`, the straight line through the ``span`` rows before *t*, carried on to *t*.
  Follows a ramp without lag.

For description only, since row *t* sees later rows (``"gaussian"``, ``"lowess"``): the smoothers of the literature
(Dakos et al. 2012, PLoS ONE 7:e41010), over the whole series. A Gaussian whose quartiles lie at a quarter of
``span``, so :math:`\sigma = \mathrm{span} \cdot 0.25 / 0.675`, ends reflected; LOWESS (Cleveland 1979) with ``span``
rows.

A baseline never reaches across a boundary: every stretch is detrended by itself. Missing rows are NaN in, NaN out, and
lend no weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling_moments import trailing_line

__all__ = ["CAUSAL", "METHODS", "baseline", "residuals"]

Floats = NDArray[np.float64]

CAUSAL = ("ewma", "local", "none")
METHODS = (*CAUSAL, "gaussian", "lowess")

QUARTILE = 0.25 / 0.675
"""Standard deviation of the Gaussian, in units of its span."""


def baseline(x: Floats, method: str, span: float) -> Floats:
    """Baseline of each series.

    Parameters
    ----------
    x : ndarray, shape (m, n_steps)
        One stretch without boundaries; NaN is missing.
    method : str
        One of `METHODS`.
    span : float
        Rows.

    Returns
    -------
    ndarray, shape (m, n_steps)
        NaN where there is none yet (the first rows of a causal one).

    Examples
    --------
    >>> ramp = np.arange(8.0)[None]
    >>> baseline(ramp, "local", 3)[0].round(9).tolist()
    [nan, nan, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    """
    if method == "none":
        return np.zeros_like(x)
    if method == "ewma":
        return _ewma(x, span)
    if method == "local":
        return _local(x, round(span))
    if method == "gaussian":
        return _gaussian(x, span)
    return _lowess(x, span)


def residuals(x: Floats, method: str, span: float, bounds: Sequence[int]) -> Floats:
    """Series less their baselines, stretch by stretch; shape (m, n_steps)."""
    if method == "none":
        return x
    ends = [*bounds, x.shape[1]]
    out = np.full_like(x, np.nan)
    for start, stop in pairwise(ends):
        if stop > start:
            part = x[:, start:stop]
            out[:, start:stop] = part - baseline(part, method, span)
    return out


def _ewma(x: Floats, span: float) -> Floats:
    """Weighted mean of all rows before each."""
    from scipy.signal import lfilter

    keep = 1 - 2 / (span + 1)
    seen = ~np.isnan(x)
    first = x[np.arange(x.shape[0]), np.argmax(seen, axis=1)][:, None]
    origin = np.where(np.isnan(first), 0.0, first)  # a large level would cost digits
    both = np.stack([np.where(seen, x - origin, 0.0), seen.astype(np.float64)])
    total, weight = lfilter([0.0, 1.0], [1.0, -keep], both, axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        out: Floats = total / weight + origin
    return out


def _local(x: Floats, span: int) -> Floats:
    """Straight line through the rows before, at the row after them."""
    ahead = np.full_like(x, np.nan)
    ahead[:, 1:] = trailing_line(x, span, 1)[:, :-1]
    return ahead


def _gaussian(x: Floats, span: float) -> Floats:
    from scipy.ndimage import gaussian_filter1d

    sigma = QUARTILE * span
    seen = ~np.isnan(x)
    if seen.all():
        return np.asarray(gaussian_filter1d(x, sigma, axis=-1, mode="reflect"), dtype=np.float64)
    total = gaussian_filter1d(np.where(seen, x, 0.0), sigma, axis=-1, mode="reflect")
    weight = gaussian_filter1d(seen.astype(np.float64), sigma, axis=-1, mode="reflect")
    with np.errstate(invalid="ignore", divide="ignore"):
        out: Floats = np.where(seen, total / weight, np.nan)
    return out


def _lowess(x: Floats, span: float) -> Floats:
    from statsmodels.nonparametric.smoothers_lowess import lowess

    out = np.full_like(x, np.nan)
    rows = np.arange(x.shape[1], dtype=np.float64)
    for series, fitted in zip(x, out, strict=True):
        seen = ~np.isnan(series)
        if np.count_nonzero(seen) > 2:
            share = min(1.0, span / np.count_nonzero(seen))
            fitted[seen] = lowess(series[seen], rows[seen], frac=share, return_sorted=False)
    return out
