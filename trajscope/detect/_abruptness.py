r"""How abrupt a fall was: a jump against a drift.

Around a fall, with *y* bigger-is-better, every ramp

.. math:: g_{a,k}(t) = \mathrm{clip}((t - a)/k,\, 0,\, 1)

(high until row *a*, low from row *a + k* on) is fitted by least squares with free levels on both sides; *k = 1* is a
jump between two rows. Profiling over *a*, normal errors give the log likelihood :math:`-\tfrac n2 \log \mathrm{RSS}_k`,
the width is the *k* of the best ramp, its interval holds the *k* within :math:`\chi^2_1(0.95)/2` of it, and

.. math:: \text{jump\_lr} = \ell(k = 1) - \max_{k \ge 3} \ell(k)

is the log likelihood ratio of a jump against a drift of at least three strides (both have the same number of
parameters once *k* is given). Positive: a jump explains the fall better.

Limits: errors are taken as independent, so under autocorrelation the interval is too narrow; a fall that overshoots
and comes back is neither; more than `MAX_ROWS` rows are averaged in bins, and widths are multiples of the bin then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Abruptness", "abruptness"]

MAX_ROWS = 160
"""Rows of the fitted window; longer ones are binned, so the grid stays at 160^2/2 ramps."""

_HALF_CHI2 = 1.92  # chi2_1(0.95) / 2
_DRIFT = 3  # strides from which a ramp is called a drift


@dataclass(frozen=True)
class Abruptness:
    """Width of a fall in rows with its 95 % profile interval, and the log likelihood ratio of jump against drift."""

    width: float
    low: float
    high: float
    jump_lr: float


def abruptness(y: NDArray[np.float64]) -> Abruptness | None:
    """Fit ramps to a window that starts before a fall and ends after it.

    Parameters
    ----------
    y : ndarray, shape (n_steps,)
        Finite values.

    Returns
    -------
    Abruptness or None
        None with fewer than eight rows: nothing can be told.

    Examples
    --------
    >>> jump = abruptness(np.r_[np.ones(12), np.zeros(12)] + 0.01 * np.cos(np.arange(24.0)))
    >>> jump.width, jump.jump_lr > 10
    (1.0, True)
    """
    bin_rows = -(-y.size // MAX_ROWS)
    if bin_rows > 1:
        keep = y.size // bin_rows * bin_rows
        y = y[y.size - keep :].reshape(-1, bin_rows).mean(axis=1)
    n = y.size
    if n < 8:
        return None
    largest = float(np.max(np.abs(y)))
    if largest > 1e100:  # the fit has no unit; its squares would overflow
        y = y / largest
    centred = y - y.mean()
    total = float(centred @ centred)
    floor = 1e-12 * total + 1e-300  # a perfect fit has no likelihood ratio; keep it finite
    rows = np.arange(n)
    widths = np.arange(1, n - 2)
    log_lik = np.full(widths.size, -np.inf)
    for at, k in enumerate(widths):
        starts = np.arange(0, n - 1 - k + 1)  # at least one row on each side
        ramp = np.clip((rows[None, :] - starts[:, None]) / k, 0.0, 1.0)
        ramp -= ramp.mean(axis=1, keepdims=True)
        explained = (ramp @ centred) ** 2 / np.einsum("ij,ij->i", ramp, ramp)
        log_lik[at] = -0.5 * n * np.log(max(total - float(explained.max()), floor))
    best = int(np.argmax(log_lik))
    near = widths[log_lik >= log_lik[best] - _HALF_CHI2]
    jump_lr = float(log_lik[0] - log_lik[_DRIFT - 1 :].max())
    return Abruptness(float(widths[best] * bin_rows), float(near[0] * bin_rows), float(near[-1] * bin_rows), jump_lr)
