"""Part 5: does the state help to forecast rows that no fit has seen?

One-step log score of every held-out cell, given the rows before it: of the state space that the estimator is read as
(`_ident_model`), fitted on the other half, against two rivals that know each channel's own past only: an autoregression
(order 0 to 5 by BIC, on the channel's own rows) and a random walk. Paired by run (by block where there are few runs);
the part passes where the mean gain over the better rival is above zero in a one-sided 5 % t-test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from trajscope._core.kalman import Model, kalman_filter
from trajscope.errors import TrajscopeError
from trajscope.inference._ident_model import model_of
from trajscope.inference._ident_rows import Rows, counted, halves, refit

__all__ = ["Prediction", "channel_scores", "fit_rivals", "prediction", "state_scores"]

Floats = NDArray[np.float64]

_ORDER = 5
_FEW = 8  # fewer held-out pieces than this are cut further, so that a spread can be told
_LOG_2PI = float(np.log(2 * np.pi))


@dataclass(frozen=True, eq=False)
class Prediction:
    """Mean log score of a held-out cell.

    Attributes
    ----------
    state, autoregression, random_walk : float
    gain : float
        Over the better rival.
    low : float
        One-sided 95 % bound of the gain.
    n : int
        Held-out pieces.
    """

    state: float
    autoregression: float
    random_walk: float
    gain: float
    low: float
    n: int

    @property
    def passed(self) -> bool:
        """The gain is above zero."""
        return self.low > 0


@dataclass(frozen=True, eq=False)
class Rivals:
    """Coefficients and noise variance of the autoregression of every channel, its variance, that of its steps."""

    coefficients: list[Floats]
    noise: Floats
    variance: Floats
    steps: Floats


def _lagged(series: list[Floats], order: int) -> tuple[Floats, Floats]:
    """Past (n, order) and present (n,), the same rows for every order up to `_ORDER`."""
    past, present = [], []
    for y in series:
        if y.size > _ORDER:
            lags = np.arange(_ORDER, y.size)[:, None] - np.arange(1, order + 1)[None, :]
            past.append(y[lags])
            present.append(y[_ORDER:])
    if not present:
        return np.zeros((0, order)), np.zeros(0)
    return np.concatenate(past), np.concatenate(present)


def fit_rivals(xs: list[Floats]) -> Rivals:
    """Autoregressions and random walks of single channels, on the rows in which each was logged."""
    coefficients: list[Floats] = []
    noise, variance, steps = [], [], []
    for c in range(xs[0].shape[1]):
        series = [x[~np.isnan(x[:, c]), c] for x in xs]
        every = np.concatenate(series)
        floor = 1e-9 + 1e-9 * float((every**2).mean()) if every.size else 1e-9
        variance.append(max(float((every**2).mean()), floor) if every.size else 1.0)
        moved = np.concatenate([np.diff(y) for y in series])
        steps.append(max(float((moved**2).mean()), floor) if moved.size else 1.0)
        best, chosen = np.inf, (np.zeros(0, dtype=np.float64), variance[-1])
        for order in range(_ORDER + 1):
            past, present = _lagged(series, order)
            if present.size < 2 * _ORDER + 2:
                break
            phi = np.asarray(np.linalg.lstsq(past, present, rcond=None)[0] if order else np.zeros(0), dtype=np.float64)
            left = max(float(((present - past @ phi) ** 2).mean()), floor)
            bic = present.size * np.log(left) + order * np.log(present.size)
            if bic < best:
                best, chosen = bic, (phi, left)
        coefficients.append(chosen[0])
        noise.append(chosen[1])
    return Rivals(coefficients, np.array(noise), np.array(variance), np.array(steps))


def _density(error: Floats, variance: float | Floats) -> Floats:
    return np.asarray(-0.5 * (_LOG_2PI + np.log(variance) + error**2 / variance))


def channel_scores(x: Floats, rivals: Rivals) -> tuple[Floats, Floats]:
    """Log score of every row (n_steps,), summed over seen cells, by autoregression and by random walk."""
    own, walk = np.zeros(x.shape[0]), np.zeros(x.shape[0])
    for c, phi in enumerate(rivals.coefficients):
        rows = np.flatnonzero(~np.isnan(x[:, c]))
        y = x[rows, c]
        if not y.size:
            continue
        said, spread = np.zeros(y.size), np.full(y.size, rivals.noise[c])
        for j, value in enumerate(phi):
            said[j + 1 :] += value * y[: y.size - j - 1]
        said[: phi.size], spread[: phi.size] = 0.0, rivals.variance[c]
        own[rows] += _density(y - said, spread)
        walk[rows[0]] += _density(y[:1], rivals.variance[c])[0]
        walk[rows[1:]] += _density(np.diff(y), rivals.steps[c])
    return own, walk


def state_scores(x: Floats, model: Model) -> Floats:
    """Log score of every row (n_steps,), summed over seen cells, given the rows before it."""
    return kalman_filter(x, model).log_likelihood


def prediction(
    estimator: Any, rows: Rows, *, rng: np.random.Generator, report: Callable[[str, int, int], None]
) -> Prediction | str:
    """Part 5, or why it cannot be tested."""
    if rows.k == 0:
        return "the estimator found no component"
    n = len(rows.pieces)
    if n < 2:
        return "one run only: what is predicted has to lie in another run (split='block' takes parts of one run)"
    a, b = halves(n, 1, rng)[0]
    sums: list[Floats] = []
    for i in counted(2, "prediction", report):
        train, test = (a, b) if i == 0 else (b, a)
        left = [rows.pieces[j] for j in train]
        try:
            model = model_of(refit(estimator, left, rows.k), left).model
        except (TrajscopeError, np.linalg.LinAlgError) as problem:
            return f"the estimator could not be fitted on half of the runs ({problem})"
        rivals = fit_rivals(left)
        cut = max(1, -(-_FEW // n))
        for j in test:
            x = rows.pieces[j]
            table = np.stack([state_scores(x, model), *channel_scores(x, rivals), (~np.isnan(x)).sum(axis=1)], axis=1)
            sums += [part.sum(axis=0) for part in np.array_split(table, cut)]
    table = np.array(sums)
    cells = np.maximum(table[:, 3], 1.0)
    totals = table[:, :3].sum(axis=0) / table[:, 3].sum()
    rival = 1 if totals[1] >= totals[2] else 2
    gain = (table[:, 0] - table[:, rival]) / cells
    size = gain.size
    spread = float(gain.std(ddof=1)) / np.sqrt(size) if size > 1 else float("inf")
    low = float(gain.mean() - t.ppf(0.95, max(size - 1, 1)) * spread)
    state, own, walk = totals.tolist()
    return Prediction(state, own, walk, float(gain.mean()), low, size)
