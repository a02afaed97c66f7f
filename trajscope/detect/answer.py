r"""Does a channel answer to a shock? One question about one place, so a small excursion decides it.

A shock (a jump of the learning rate, an excursion of the gradient norm) is seen at row *i*. To the ``before`` rows
ahead of it a line is fitted by least squares, once more without the rows beyond 4 robust sd, and continued over the
``reach`` rows from *i* on. With :math:`r` the residuals about it and :math:`\hat\varphi` their lag-1 autocorrelation (0
where it is not above :math:`2/\sqrt{n}`; 1, that is differences, above 0.3, where a fitted value would be too low),

.. math::

    e_k = r_k - \hat\varphi\, r_{k-1}, \qquad
    S_i = \max_{0 \le k < reach} \frac{e_{i+k}}{s \sqrt{1 + v_k}}, \qquad
    v_k = (1-\hat\varphi)^2 \frac{1+\hat\varphi}{1-\hat\varphi}
          \Bigl(\frac1n + \frac{12\,(k + n/2)^2}{n^3}\Bigr),

where *s* is the larger of 1.4826 MAD and 0.7 standard deviations (clipped at 4 robust sd) of *e* before the shock, and
*v* the error of the continued line. The channel answers where *S* exceeds both the quantile of Student's t on *n*/3
degrees of freedom (a MAD of *n* values knows its scale that well) at level ``alpha / reach``, and every value that *S*
takes at the places ``reach/2`` rows apart before the shock: what the curve does anyway is no answer.

Calibration: at ``alpha = 0.01`` shared among three channels, 5 % of the places in recorded healthy runs of digits
answer in at least one (592 places): the curves bend, and their noise is not normal. `trajscope.audit` therefore uses a
fifth of its level here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student

from trajscope.errors import InputError

__all__ = ["Answer", "answer"]

#: Rows before a shock below which nothing is said.
LEAST_BEFORE = 20

#: Places before the shock at which the statistic is compared.
PLACES = 24


@dataclass(frozen=True)
class Answer:
    """What a channel did right after a shock.

    Attributes
    ----------
    row : int
        First row that answers; that of the largest excursion where none does.
    z : float
        Largest excursion S, in sd of the innovations.
    size : float
        Its distance from the continued line, in the units of ``y``.
    threshold : float
        What S had to exceed.
    """

    row: int
    z: float
    size: float
    threshold: float

    @property
    def answers(self) -> bool:
        """Whether the excursion is more than what the channel does anyway."""
        return self.z > self.threshold


def _line(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least-squares line through y at positions -n .. -1, once more without rows beyond 4 robust sd."""
    x = np.arange(y.size) - float(y.size)
    line = np.polyfit(x, y, 1)
    residual = y - np.polyval(line, x)
    spread = 1.4826 * np.median(np.abs(residual - np.median(residual)))
    near = np.abs(residual) <= 4 * max(float(spread), 1e-12)
    return np.asarray(np.polyfit(x[near], y[near], 1) if near.sum() > 2 else line)


def _innovations(
    y: NDArray[np.float64], row: int, reach: int, before: int, floor: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Standardised innovations of the rows from ``row`` on, and their distance from the continued line."""
    past = y[max(0, row - before) : row]
    n = past.size
    line = _line(past)
    r = past - np.polyval(line, np.arange(n) - float(n))
    spread = 1.4826 * float(np.median(np.abs(r - np.median(r))))
    moving = r[1:] - r[1:].mean(), r[:-1] - r[:-1].mean()
    scale2 = float(np.sqrt((moving[0] ** 2).sum() * (moving[1] ** 2).sum()))
    phi = float((moving[0] * moving[1]).sum()) / scale2 if scale2 > 0 else 0.0
    phi = 0.0 if phi <= 2 / np.sqrt(n) else 1.0 if phi > 0.3 else phi
    e = r[1:] - phi * r[:-1]
    wide = 4 * max(spread, 1e-12)
    sd = max(1.4826 * float(np.median(np.abs(e - np.median(e)))), 0.7 * float(np.clip(e, -wide, wide).std()), floor)
    after = y[row : row + reach] - np.polyval(line, np.arange(min(reach, y.size - row)))
    k = np.arange(after.size)
    extra = 0.0 if phi == 1.0 else (1 - phi) * (1 + phi) * (1 / n + 12 * (k + n / 2) ** 2 / n**3)
    s = (after - phi * np.concatenate([r[-1:], after[:-1]])) / (sd * np.sqrt(1 + extra))
    return s, after


def answer(
    y: ArrayLike, row: int, *, alpha: float = 0.01, reach: int = 10, before: int = 40, floor: float = 1e-3
) -> Answer | None:
    """Whether a channel rises right after a shock by more than it does anyway.

    Parameters
    ----------
    y : array_like, shape (n_steps,)
        Finite values on the scale on which the noise is even, oriented so that up is bad.
    row : int
        First row at or after the shock.
    alpha : float, default 0.01
        Level of the question (see Calibration above).
    reach : int, default 10
        Rows in which an answer counts.
    before : int, default 40
        Rows from which the line and the noise are learned.
    floor : float, default 1e-3
        Smallest scale.

    Returns
    -------
    Answer or None
        None with fewer than 20 rows before the shock or none after it.

    Raises
    ------
    InputError
        If ``y`` is not one-dimensional and finite.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(0, 1, 200)
    >>> y[101] += 8
    >>> found = answer(y, 100)
    >>> found.row, found.answers
    (101, True)
    """
    values = np.asarray(y, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise InputError("y must be one-dimensional and finite; leave the other rows out before asking")
    if min(row, before) < LEAST_BEFORE or row >= values.size:
        return None
    s, distance = _innovations(values, row, reach, before, floor)
    threshold = float(student.isf(alpha / reach, min(row, before) / 3))
    if s.max() > threshold:
        earliest = max(LEAST_BEFORE, row - PLACES * (reach // 2))
        places = range(row - reach, earliest, -(reach // 2))
        threshold = max([threshold, *(float(_innovations(values, r, reach, before, floor)[0].max()) for r in places)])
    at = int(np.argmax(s > threshold)) if s.max() > threshold else int(np.argmax(s))
    return Answer(row + at, float(s.max()), float(distance[int(np.argmax(s))]), threshold)
