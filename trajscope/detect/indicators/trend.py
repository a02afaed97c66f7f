r"""Does an indicator rise or fall by more than it would by itself? Kendall's tau against surrogates.

Values of a rolling indicator overlap, so tau wanders: in stationary AR(1) noise its naive test at 5 % rejects in 90 %.
So the channel is replaced by what it could have been had nothing changed, and goes through the same baseline, windows
and indicators; :math:`p = (1 + \#\{|\tau^*| \ge |\tau|\}) / (n + 1)`.

A surrogate is :math:`s + r^*`: the slow course of the channel, and noise that is stationary by construction. The slow
course *s* (least squares on powers of time and of log time, `slow_course`) stays, since a baseline that
lags behind a steep early fall leaves a trend in every indicator, in the surrogates as in the log. The noise is

- ``ar1``: Gaussian AR(1) with the lag-1 autocorrelation of the residual, corrected for its bias (Kendall 1954:
  :math:`(1 + 3 \hat\rho)/n` for the mean; about :math:`(1 + \hat\rho)/n` for each regressor of *s*), and its kicks;
- ``iaaft``: same values, nearly the same spectrum (Schreiber & Schmitz 1996);
- ``block``: circular blocks of three correlation times, 10 rows or more (Politis & Romano 1992).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trajscope._core.surrogates import fill_gaps, iaaft
from trajscope.result import Result

__all__ = ["KINDS", "Trend", "kendall", "kendall_all", "noise_like", "slow_course"]

Floats = NDArray[np.float64]

KINDS = ("ar1", "iaaft", "block")

_ROUNDS = 12
"""Iterations of the surrogates that keep values and spectrum: their order hardly changes after ten."""


@dataclass(frozen=True, eq=False)
class Trend(Result):
    """Trends of indicators; returned by `EarlyWarning.trend`.

    Attributes
    ----------
    table : DataFrame
        One row an indicator (and channel, where there are several): ``tau`` over all rows in range, ``p_<kind>`` for
        each kind of surrogate, ``p`` the largest of them, ``n_values`` rows with a value, ``n_points`` of them that the
        test used.
    side : {"both", "up", "down"}
        What counts as extreme.
    n : int
        Surrogates of each kind.
    start, stop : float
        Range of steps.
    """

    plot_name = ""

    table: pd.DataFrame
    side: str
    n: int
    start: float
    stop: float

    def to_frame(self) -> pd.DataFrame:
        """One row an indicator."""
        return self.table

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        from trajscope.result import jsonable

        return {
            "table": jsonable(self.table.reset_index().to_dict("records")),
            "side": self.side,
            "n": self.n,
            "start": jsonable(self.start),
            "stop": jsonable(self.stop),
            "provenance": jsonable(self.provenance),
        }

    def summary(self) -> str:
        """One sentence: how many trends the surrogates do not explain."""
        p = self.table["p"].dropna()
        if p.empty:
            return "Cannot tell: no indicator has enough values for a trend."
        low = p[p <= 0.05].sort_values(kind="stable")
        tau = self.table["tau"][low.index]
        names = ", ".join(
            f"{' of '.join(str(k) for k in (key if isinstance(key, tuple) else (key,)))} (tau {t:+.2f}, p {value:.3g})"
            for (key, value), t in zip(list(low.items())[:6], tau, strict=False)
        )
        return (
            f"{len(low)} of {len(p)} trends have p <= 0.05 against {self.n} surrogates, one by one and not corrected "
            f"for their number{': ' + names if names else ''}."
        )


def kendall(y: Floats) -> Floats:
    """Kendall's tau-b of each series with its row number, shape (m,); NaN with fewer than three values.

    Examples
    --------
    >>> kendall(np.array([[1.0, 2.0, 3.0, 2.5], [3.0, 2.0, np.nan, 1.0]])).round(3).tolist()
    [0.667, -1.0]
    """
    m, n = y.shape
    columns = np.ascontiguousarray(y.T)
    up, down, total = np.zeros(m), np.zeros(m), np.full(m, n * (n - 1) / 2)
    plain = not np.isnan(y).any() and bool((np.diff(np.sort(columns, axis=0), axis=0) > 0).all())
    for d in range(1, n):
        up += np.add.reduce(columns[d:] > columns[:-d], axis=0)
        if not plain:
            down += np.add.reduce(columns[d:] < columns[:-d], axis=0)
    if plain:
        down = total - up
    else:
        known = np.count_nonzero(~np.isnan(y), axis=1)
        total = known * (known - 1) / 2
    score, tied = up - down, total - up - down
    with np.errstate(invalid="ignore", divide="ignore"):
        tau: Floats = score / np.sqrt(total * (total - tied))
    tau[total < 3] = np.nan
    return tau


def kendall_all(values: Floats) -> float:
    """Kendall's tau-b of all values with their order."""
    if values.size < 3:
        return math.nan
    from scipy.stats import kendalltau

    return float(kendalltau(np.arange(values.size), values).statistic)


_POWERS = (3, 4)
"""Powers of time and of log time in the slow course: exponentials, cosines and power laws to 0.1 % of their range."""


_LEAST = 40
"""Rows a stretch must have for so many regressors."""


def slow_course(y: Floats) -> Floats:
    r"""Least squares of a series, shape (n,), on 1, t, t^2, t^3 and log(1 + t) to its fourth power.

    Eight numbers that follow power laws, exponential decays, warm-ups and cosines, *t* in rows; the mean where there
    are fewer than forty.
    """
    if y.size < _LEAST:
        return np.full(y.size, 0.0 if np.isnan(y).all() else np.nanmean(y))
    y = fill_gaps(y)
    t = np.arange(y.size, dtype=np.float64)
    u, v = t / max(1.0, t[-1]), np.log1p(t) / math.log1p(max(1.0, t[-1]))
    terms = [np.ones_like(u), *(u**k for k in range(1, _POWERS[0] + 1)), *(v**k for k in range(1, _POWERS[1] + 1))]
    basis = np.linalg.qr(np.stack(terms, axis=1))[0]
    return np.asarray(basis @ (basis.T @ y), dtype=np.float64)


def _ar1(r: Floats, n: int, rng: np.random.Generator) -> Floats:
    from scipy.signal import lfilter

    z = r - r.mean()
    size = float(z @ z)
    rho = float(z[1:] @ z[:-1]) / size if size > 0 else 0.0
    kicks = math.sqrt(size / z.size * max(1 - rho * rho, 0.0))
    # the mean costs (1 + 3 rho) / n, each further regressor of the slow course about (1 + rho) / n
    rho = min(max(rho + (1 + 3 * rho + sum(_POWERS) * (1 + rho)) / z.size, -0.999), 0.999)
    noise = rng.normal(size=(n, z.size))
    noise[:, 0] /= math.sqrt(1 - rho * rho)
    return np.asarray(lfilter([kicks], [1.0, -rho], noise, axis=1), dtype=np.float64)


def _iaaft(r: Floats, n: int, rng: np.random.Generator) -> Floats:
    return np.ascontiguousarray(iaaft(np.repeat(r[:, None], n, axis=1), rng, max_iter=_ROUNDS).T)


def _block_length(r: Floats) -> int:
    """Three correlation times, between 10 rows and a quarter of the series."""
    z = r - r.mean()
    size = float(z @ z)
    rho = float(z[1:] @ z[:-1]) / size if size > 0 else 0.0
    memory = -1 / math.log(min(max(abs(rho), 1e-6), 0.9999))
    return int(min(max(10, math.ceil(3 * memory)), max(10, r.size // 4)))


def _blocks(r: Floats, n: int, rng: np.random.Generator) -> Floats:
    return r[block_rows(r.size, _block_length(r), n, rng)]


def block_rows(size: int, length: int, n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Rows of circular blocks drawn with replacement, shape (n, size)."""
    starts = rng.integers(0, size, size=(n, -(-size // length)))
    rows = (starts[:, :, None] + np.arange(length)) % size
    return np.asarray(rows.reshape(n, -1)[:, :size], dtype=np.intp)


_MAKERS: dict[str, Callable[[Floats, int, np.random.Generator], Floats]] = {
    "ar1": _ar1,
    "iaaft": _iaaft,
    "block": _blocks,
}


def noise_like(r: Floats, kind: str, n: int, rng: np.random.Generator) -> Floats:
    """Stationary noise like the series *r*, shape (n, r.size), without its gaps; see the module."""
    return _MAKERS[kind](fill_gaps(r), n, rng)
