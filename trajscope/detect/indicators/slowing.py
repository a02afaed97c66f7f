r"""One score for an approaching loss of stability, built so that what fools single indicators does not fool it.

A channel near a bifurcation is better predicted from its own past: with :math:`R^2` the share of variance that the
AR(2) of the window explains, :math:`f = -\tfrac12 \log(1 - R^2)` grows whatever the sign (a fold, a flip) or the angle
(Neimark-Sacker) of the dominant root. Three contrasts, each the window of row *t* against the mean over all windows
that ended before it began, in standard errors:

- *a*, of :math:`f`, with :math:`\mathrm{var} f = R^2 / (n (1 - R^2))`;
- *v*, of :math:`\log` variance, with :math:`\frac{2}{n} \frac{1 + \rho_1^2}{1 - \rho_1^2}`;
- *b*, of :math:`\log q`, :math:`q = (\sum_{k=1}^{6} \rho_k^2 - 6/n) / \rho_1^2`, with :math:`4 / (n \rho_1^2)`: the
  ratio of lags on the modulus. White observation noise scales all :math:`\rho_k` alike and cancels; of one real root
  :math:`q = (1 - \lambda^{12})/(1 - \lambda^2)`.

.. math:: S = \min(a, \max(v, b)).

Growing noise raises *v* alone; fading observation noise raises *a* alone; slowing down raises *a* and, unless other
noise hides it, *v* and *b*. The reference has windows of the same length, so the small-sample bias of
autocorrelations cancels.

**Jump guard.** A change of mean inside the window looks like slowing down to every indicator. :math:`G` is twice the
log likelihood ratio of the best step in the window, AR(2) fitted with and without it; from :math:`G \ge 20` on (a
stationary window of 250 rows reaches 15 in 1 of 50) the row has no evidence: NaN, and its window joins no reference.

Limits: needs two windows of history; level by itself is no evidence (use ``dev_modulus`` against other runs); noise
that grows while observation noise fades is called slowing down; momentum hides the precursor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["GUARD", "N_LAGS", "contrast", "mean_shift", "predictability", "slowing_score", "spread_of_lags"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

GUARD = 20.0
"""Twice the log likelihood ratio of a step from which a window is disqualified."""

N_LAGS = 6
"""Lags of the noise-free ratio: more add noise at rates of 0.5 to 0.8, fewer tell less of a rise beyond."""

_CELLS = 1 << 18


def mean_shift(z: Floats, window: int, rows: NDArray[np.intp]) -> Floats:
    """Twice the log likelihood ratio of the best step in each window, of shape (m, n_steps).

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
    >>> found = mean_shift(z, 100, np.array([140, 199]))
    >>> bool(found[0, 140] < 20 < found[0, 199])
    True
    """
    out = np.full(z.shape, np.nan)
    if window < 12:
        return out
    step = max(1, _CELLS // window)
    for series, values in zip(z, out, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(series, window)
        for start in range(0, rows.size, step):
            at = rows[start : start + step]
            values[at] = _step_gain(windows[at - window + 1])
    return out


def _step_gain(w: Floats) -> Floats:
    """For windows (b, w): regress each row on the two before it, then on a step at every row."""
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
    gain = np.where(usable, later(u)[:, 1:] ** 2 / np.where(usable, free[:, 1:], 1.0), 0.0).max(axis=1)
    ok = (n >= 8) & (rss > 0)
    left = np.maximum(rss - gain, 1e-12 * np.maximum(rss, 1e-300))
    return np.where(ok, n * np.log(np.where(ok, rss, 1.0) / np.where(ok, left, 1.0)), np.nan)


def predictability(rho1: Floats, rho2: Floats) -> tuple[Floats, Floats]:
    """-log(1 - R^2) / 2 of the AR(2) with these autocorrelations, and R^2."""
    with np.errstate(invalid="ignore", divide="ignore"):
        second = (rho2 - rho1 * rho1) / (1 - rho1 * rho1)
        share = np.clip(1 - (1 - rho1 * rho1) * (1 - second * second), 0.0, 0.999)
    return -0.5 * np.log(1 - share), share


def spread_of_lags(rho: list[Floats], n: Floats) -> Floats:
    """log q: squared autocorrelations over that of lag 1, less what noise puts into each."""
    with np.errstate(invalid="ignore", divide="ignore"):
        q = (np.sum([r * r for r in rho], axis=0) - len(rho) / n) / np.maximum(rho[0] ** 2, 1e-3)
    return np.asarray(np.log(np.maximum(q, 0.3)), dtype=np.float64)  # q is 1 or more but for noise


def contrast(f: Floats, variance: Floats, use: Bools, window: int, n: Floats) -> Floats:
    """The window of each row against the mean of the usable ones that ended before it began, in standard errors.

    NaN while there is none. The mean of *k* overlapping windows counts as one window of *k + window - 1* rows. 1/n is
    added: what a standard error that is estimated to be near 0 cannot be below.
    """
    count = np.zeros(f.shape)
    means = []
    for values in (f, variance):
        total = np.zeros(f.shape)
        total[:, window:] = np.cumsum(np.where(use, values, 0.0), axis=1)[:, :-window]
        means.append(total)
    count[:, window:] = np.cumsum(use, axis=1)[:, :-window]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean, its_variance = means[0] / count, means[1] / count * window / (count + window - 1)
        return (f - mean) / np.sqrt(variance + its_variance + 1 / n)


def slowing_score(
    rho: list[Floats], variance: Floats, count: Floats, shift: Floats, whole: Bools, window: int
) -> Floats:
    """The score of one stretch; see the module.

    Parameters
    ----------
    rho : list of ndarray, each of shape (m, n_steps)
        Autocorrelations at lags 1 to `N_LAGS`.
    variance, count : ndarray, shape (m, n_steps)
        Of every window, and its pairs at lag 1.
    shift : ndarray, shape (m, n_steps)
        `mean_shift`, NaN where it was not computed.
    whole : ndarray of bool, shape (n_steps,)
        Rows whose window is whole.
    window : int

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
    n = np.maximum(count, 1.0)
    known = whole & (variance > 0) & ~np.isnan(rho[0]) & ~np.isnan(rho[1])
    use = known & (held < GUARD)
    r1 = np.clip(rho[0], -0.999, 0.999)
    f, share = predictability(r1, rho[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.log(variance)
    squared = r1 * r1
    a = contrast(f, share / (1 - share) / n, use, window, n)
    v = contrast(size, 2 / n * (1 + squared) / (1 - squared), use, window, n)
    clean = [np.nan_to_num(r) for r in rho]
    b = contrast(spread_of_lags(clean, n), 4 / (n * np.maximum(squared, 4 / n)), use, window, n)
    good = use & ~np.isnan(shift)
    out[good] = np.minimum(a, np.fmax(v, b))[good]
    return out
