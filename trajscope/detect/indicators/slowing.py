r"""One score for an approaching loss of stability, built so that what fools single indicators does not fool it.

A channel near a bifurcation is better predicted from its own past: with :math:`R^2` the share of variance that the
AR(2) of the window explains, :math:`f = -\tfrac12 \log(1 - R^2)` grows whatever the sign (a fold, a flip) or the angle
(Neimark-Sacker) of the dominant root. Three contrasts, each the window of row *t* against the mean over all windows
that ended before it began, in standard errors:

- *a*, of :math:`f`, with :math:`\mathrm{var} f = R^2 / (n (1 - R^2))`;
- *v*, of :math:`\log` variance, with :math:`\frac{2}{n} \frac{1 + \rho_1^2}{1 - \rho_1^2}`;
- *b*, of :math:`\log q`, :math:`q = (\sum_{k=1}^{6} \rho_k^2 - 6/n) / (\rho_1^2 - 1/n)`, with
  :math:`4 / (n \rho_1^2)`: the ratio of lags on the modulus. White observation noise scales all :math:`\rho_k` alike
  and cancels; of one real root :math:`q = (1 - \lambda^{12})/(1 - \lambda^2)`.

.. math:: S = \min(a, \max(v, b)).

Growing noise raises *v* alone; fading observation noise raises *a* alone; slowing down raises *a* and, unless other
noise hides it, *v* and *b*. The reference has windows of the same length, so the small-sample bias of
autocorrelations cancels.

**Jump guard.** A change of mean inside the window looks like slowing down to every indicator. :math:`G` is twice the
log likelihood ratio of the best step in the window, AR(2) fitted with and without it; from :math:`G \ge 24` on (a
stationary window of 250 rows reaches 15 in 1 of 50) the row has no evidence: NaN, and its window joins no reference.
A step with :math:`G \ge 28` disqualifies until both window and baseline have forgotten it: near the ends of a window it
cannot be told from noise, and a baseline that is still on its way is as slow as slowing down.

Limits: needs two windows of history; level by itself is no evidence (use ``dev_modulus`` against other runs); noise
that grows while observation noise fades is called slowing down; momentum hides the precursor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["GUARD", "LATCH", "N_LAGS", "mean_shift", "predictability", "slowing_score"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

GUARD = 24.0
"""Twice the log likelihood ratio of a step from which a window is disqualified."""

LATCH = 28.0
"""The same, from which later windows are disqualified until the step has left them and the baseline."""

N_LAGS = 6
"""Lags of the noise-free ratio: more add noise at rates of 0.5 to 0.8, fewer tell less of a rise beyond."""

_CELLS = 1 << 18


def mean_shift(z: Floats, window: int, rows: NDArray[np.intp]) -> tuple[Floats, NDArray[np.intp]]:
    """Twice the log likelihood ratio of the best step in each window, and the first row after it; (m, n_steps) each.

    Parameters
    ----------
    z : ndarray, shape (m, n_steps)
        NaN is missing.
    window : int
    rows : ndarray of int
        Rows to be valued, each ``>= window - 1``; the others are NaN, and those with fewer than 8 cells to fit.

    Examples
    --------
    >>> z = np.random.default_rng(0).normal(size=(1, 200))
    >>> z[0, 150:] += 4
    >>> found, place = mean_shift(z, 100, np.array([140, 199]))
    >>> bool(found[0, 140] < 20 < found[0, 199]), place[0, 199].item()
    (True, 150)
    """
    out, place = np.full(z.shape, np.nan), np.zeros(z.shape, dtype=np.intp)
    if window < 12 or not rows.size:
        return out, place
    step = max(1, _CELLS // window)
    for series, values, where in zip(z, out, place, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(series, window)
        for start in range(0, rows.size, step):
            at = rows[start : start + step]
            values[at], inside = _step_gain(windows[at - window + 1])
            where[at] = at - window + 1 + inside
    return out, place


def _step_gain(w: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """For windows (b, w): regress each row on the two before it, then on a step at every row; gain and place."""
    y, a, b = w[:, 2:].copy(), w[:, 1:-1].copy(), w[:, :-2].copy()
    seen = ~(np.isnan(y) | np.isnan(a) | np.isnan(b))
    n = np.count_nonzero(seen, axis=1)
    for v in (y, a, b):
        v[~seen] = 0.0
        v -= v.sum(axis=1, keepdims=True) / np.maximum(n, 1)[:, None]
        v[~seen] = 0.0

    def dot(p: Floats, q: Floats) -> Floats:
        return np.asarray(np.einsum("ij,ij->i", p, q), dtype=np.float64)

    def off(p: Floats, q: Floats) -> Floats:
        size = dot(q, q)
        return p - (np.where(size > 0, dot(p, q) / np.where(size > 0, size, 1.0), 0.0))[:, None] * q

    def later(p: Floats) -> Floats:
        return np.cumsum(p[:, ::-1], axis=1)[:, ::-1]

    b = off(b, a)
    u = off(off(y, a), b)
    rss = dot(u, u)
    # the step from row s on: its part that neither a level nor the past explains has squared length `free`
    after = later(seen.astype(np.float64))
    free = after * (1 - after / np.maximum(n, 1)[:, None])
    for past in (a, b):
        size = dot(past, past)[:, None]
        free -= np.where(size > 0, later(past) ** 2 / np.where(size > 0, size, 1.0), 0.0)
    usable = free[:, 1:] > 0.5  # less than half a row of its own: a step that the past mimics
    gains = np.where(usable, later(u)[:, 1:] ** 2 / np.where(usable, free[:, 1:], 1.0), 0.0)
    best = np.argmax(gains, axis=1)
    gain = gains[np.arange(best.size), best]
    ok = (n >= 8) & (rss > 0)
    left = np.maximum(rss - gain, 1e-12 * np.maximum(rss, 1e-300))
    return np.where(ok, n * np.log(np.where(ok, rss, 1.0) / np.where(ok, left, 1.0)), np.nan), best + 3


def predictability(rho1: Floats, rho2: Floats) -> tuple[Floats, Floats]:
    """-log(1 - R^2) / 2 of the AR(2) with these autocorrelations, and R^2."""
    with np.errstate(invalid="ignore", divide="ignore"):
        second = (rho2 - rho1 * rho1) / (1 - rho1 * rho1)
        share = np.clip(1 - (1 - rho1 * rho1) * (1 - second * second), 0.0, 0.999)
    return -0.5 * np.log(1 - share), share


class Reference:
    """Means over the usable windows that ended before the window of each row began.

    The mean of *k* overlapping windows counts as that of one window of *k + window - 1* rows.
    """

    def __init__(self, use: Bools, window: int) -> None:
        self._use, self._window = use, window
        self._count = self._before(use.astype(np.float64))
        with np.errstate(invalid="ignore", divide="ignore"):
            self._shrink = window / (self._count + window - 1)

    def _before(self, values: Floats) -> Floats:
        out = np.zeros(values.shape)
        out[:, self._window :] = np.cumsum(values, axis=1)[:, : -self._window]
        return out

    def mean(self, values: Floats) -> Floats:
        """NaN where there is no such window."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self._before(np.where(self._use, values, 0.0)) / self._count

    def errors(self, now: Floats, then: Floats, n: Floats) -> Floats:
        """Standard error of a difference, from the variances of one window. 1/n is what neither can be known better."""
        return np.sqrt(now + then * self._shrink + 1 / n)

    def contrast(self, f: Floats, variance: Floats, n: Floats) -> Floats:
        """Difference to the mean in standard errors."""
        return (f - self.mean(f)) / self.errors(variance, self.mean(variance), n)


def contrast_of_lags(rho: list[Floats], reference: Reference, n: Floats) -> Floats:
    """Contrast of log q; that of the reference is the ratio of its means, since a ratio of noises is biased."""
    top = np.sum([r * r for r in rho], axis=0) - len(rho) / n
    bottom = rho[0] * rho[0] - 1 / n
    logs, variances = [], []
    for above, below in ((top, bottom), (reference.mean(top), reference.mean(bottom))):
        floor = np.maximum(below, 1 / n)
        logs.append(np.log(np.maximum(above, 1 / n) / floor))
        variances.append(4 / (n * floor))
    return np.asarray((logs[0] - logs[1]) / reference.errors(variances[0], variances[1], n), dtype=np.float64)


def slowing_score(
    rho: list[Floats],
    variance: Floats,
    count: Floats,
    shift: Floats,
    place: NDArray[np.intp],
    whole: Bools,
    window: int,
    memory: int = 0,
) -> Floats:
    """The score of one stretch; see the module.

    Parameters
    ----------
    rho : list of ndarray, each of shape (m, n_steps)
        Autocorrelations at lags 1 to `N_LAGS`.
    variance, count : ndarray, shape (m, n_steps)
        Of every window, and its pairs at lag 1.
    shift, place : ndarray, shape (m, n_steps)
        `mean_shift`, NaN where it was not computed; rows counted from the first of the stretch.
    whole : ndarray of bool, shape (n_steps,)
        Rows whose window is whole.
    window : int
    memory : int
        Rows after which the baseline has forgotten a step.

    Returns
    -------
    ndarray, shape (m, n_steps)
        NaN without reference, without `shift`, and where the guard disqualifies.
    """
    m, n_steps = variance.shape
    out = np.full((m, n_steps), np.nan)
    if n_steps <= window:
        return out
    # between the rows at which the guard was computed, its latest value decides what joins the reference
    latest = np.maximum.accumulate(np.where(np.isnan(shift), -1, np.arange(n_steps)), axis=1)
    held = np.where(latest >= 0, np.take_along_axis(shift, np.maximum(latest, 0), axis=1), np.inf)
    until = np.maximum.accumulate(np.where(shift >= LATCH, place + window + memory - 1, -1), axis=1)
    held[np.arange(n_steps) < until] = np.inf
    n = np.maximum(count, 1.0)
    known = whole & (variance > 0) & ~np.isnan(rho[0]) & ~np.isnan(rho[1])
    use = known & (held < GUARD)
    r1 = np.clip(rho[0], -0.999, 0.999)
    f, share = predictability(r1, rho[1])
    squared = r1 * r1
    squared = r1 * r1
    reference = Reference(use, window)
    with np.errstate(divide="ignore", invalid="ignore"):
        a = reference.contrast(f, share / (1 - share) / n, n)
        v = reference.contrast(np.log(variance), 2 / n * (1 + squared) / (1 - squared), n)
        b = contrast_of_lags([np.nan_to_num(r) for r in rho], reference, n)
    good = use & ~np.isnan(shift)
    out[good] = np.minimum(a, np.fmax(v, b))[good]
    return out
