"""Split-conformal thresholds on per-run maxima.

Let M_1 .. M_n be the largest scores of n healthy calibration runs and M that of a new healthy run, exchangeable with
them. The threshold h is the k-th smallest M_i with k = ceil((n + 1)(1 - alpha)), and P(M > h) <= alpha whatever the
dependence within a run (Vovk, Gammerman & Shafer 2005, ch. 2; Lei et al. 2018, JASA 113, section 2). With k > n no
finite threshold has the guarantee: n must be at least 1/alpha - 1. Given the calibration runs, the false-alarm rate of
continuous scores is distributed as Beta(n + 1 - k, k) (Vovk 2012, section 3), which gives its upper bound.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta

from trajscope.errors import InputError

__all__ = ["conformal_p", "conformal_threshold", "needed_runs", "upper_rate"]


def _rank(n: int, alpha: float) -> int:
    """The rank k of the threshold among n maxima; above n where none has the guarantee."""
    if not 0 < alpha < 1:
        raise InputError(f"alpha is {alpha!r}; a false-alarm rate between 0 and 1 is expected")
    return math.ceil((n + 1) * (1 - alpha) - 1e-9)  # 20 * (1 - 0.05) is a hair above 19 in floating point


def needed_runs(alpha: float) -> int:
    """The fewest calibration runs with which a rate of `alpha` can be certified.

    >>> needed_runs(0.05), needed_runs(0.1), needed_runs(0.01)
    (19, 9, 99)
    """
    _rank(1, alpha)
    return math.ceil(1 / alpha - 1 - 1e-9)


def conformal_threshold(maxima: ArrayLike, alpha: float) -> float:
    """The threshold that a new healthy run exceeds with probability `alpha` at most; inf where not certifiable.

    Parameters
    ----------
    maxima : (n_runs,) array
        Largest score of each healthy calibration run, over the length on which new runs are watched. NaN (a run
        without a score) is refused: leaving it out would break exchangeability.
    alpha : float
        False-alarm rate per run.

    >>> conformal_threshold(range(1, 20), 0.05), conformal_threshold(range(1, 19), 0.05)
    (19.0, inf)
    """
    values: NDArray[np.float64] = np.sort(np.asarray(maxima, dtype=float).ravel())
    if np.isnan(values).any():
        raise InputError(
            "a calibration run has no largest score (NaN): give such a run a score, or say why it is left out"
        )
    k = _rank(values.size, alpha)
    return float(values[k - 1]) if k <= values.size else math.inf


def upper_rate(n: int, alpha: float, confidence: float = 0.9) -> float:
    """Upper bound of the false-alarm rate per run of a threshold from `n` runs, given those runs.

    1 where the threshold is not certifiable.

    >>> round(upper_rate(19, 0.05), 3), upper_rate(10, 0.05)
    (0.114, 1.0)
    """
    k = _rank(n, alpha)
    return float(beta.ppf(confidence, n + 1 - k, k)) if k <= n else 1.0


def conformal_p(maxima: ArrayLike, value: float) -> float:
    """P-value of a new run's largest score against healthy runs: (1 + #{M_i >= value}) / (n + 1).

    >>> conformal_p([1.0, 2.0, 3.0], 2.5)
    0.5
    """
    values = np.asarray(maxima, dtype=float).ravel()
    return float((1 + np.count_nonzero(values >= value)) / (values.size + 1))
