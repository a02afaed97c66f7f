r"""Expectation-maximisation for linear-Gaussian state spaces: many runs at once, any cell missing, exact.

E-step: the smoother of `trajscope._core.kalman` on all runs laid end to end, with the coupling cut where a run
begins. A run without gaps has the same covariances as any other: its factor is computed until it no longer changes
(relative 1e-13) and repeated from there, so only means depend on the data (the constant gain of a steady-state
filter, reached by exact Riccati steps).

M-step (Shumway & Stoffer 1982; per channel where cells are missing):

.. math:: c_i = h_i G_i^{-1},\quad r_i = (\textstyle\sum x_i^2 - h_i c_i^\top)/n_i,\quad
   A = S_{10} S_{00}^{-1},\quad Q = (S_{11} - A S_{10}^\top)/(n - n_{runs}),

with :math:`G_i = \sum_{seen} E[z z^\top]`, :math:`h_i = \sum_{seen} x_i E[z]^\top`. The first state of a run is
drawn from the stationary distribution of (A, Q), which the closed form ignores. So the step towards it is shortened
(1, 1/2, 1/4, ...) until the expected log-likelihood *with* the first states has not fallen: a generalised EM step,
which never lowers the likelihood. The log-determinant of the stationary covariance grows without bound as A loses
stability, so A stays stable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajscope._core import kalman
from trajscope._core.kalman import LOG_2PI, Model, spectral_radius
from trajscope._core.linalg import fix_signs

__all__ = ["Panel", "Statistics", "canonical", "em_step", "expectations", "maximise"]

Floats = NDArray[np.float64]

CHUNK = 8192
NOISE_FLOOR = 1e-6
"""Smallest noise variance, as a share of the channel's variance: a channel that the states explain fully has no
bound of its likelihood otherwise."""
STATE_FLOOR = 1e-8
"""Smallest eigenvalue of Q against the mean stationary variance."""
_MOST_STEPS = 2000


@dataclass
class Statistics:
    """What the M-step needs; sums over all rows of all runs."""

    log_likelihood: float
    s00: Floats
    s11: Floats
    s10: Floats
    first: Floats
    gram: Floats
    cross: Floats

    @classmethod
    def zero(cls, k: int, p: int) -> Statistics:
        """Empty sums."""
        square = np.zeros((k, k))
        return cls(0.0, square, square.copy(), square.copy(), square.copy(), np.zeros((p, k, k)), np.zeros((p, k)))


class Panel:
    """Runs prepared once for many E-steps.

    Parameters
    ----------
    runs : sequence of ndarray, each (n_steps, n_channels)
        Centred; NaN where nothing was logged.
    """

    def __init__(self, runs: Sequence[Floats]) -> None:
        self.n_channels = runs[0].shape[1]
        self.whole = [x for x in runs if not np.isnan(x).any()]
        gappy = [x for x in runs if np.isnan(x).any()]
        self.n_runs, self.n_rows = len(runs), sum(x.shape[0] for x in runs)
        self.filled = np.concatenate(gappy) if gappy else np.zeros((0, self.n_channels))
        self.mask = ~np.isnan(self.filled)
        self.filled[~self.mask] = 0.0
        self.first = _firsts([x.shape[0] for x in gappy])
        self.count = self.mask.sum(axis=0) + float(sum(x.shape[0] for x in self.whole))
        self.square = np.einsum("tc,tc->c", self.filled, self.filled)
        for x in self.whole:
            self.square = self.square + np.einsum("tc,tc->c", x, x)


def _firsts(lengths: Sequence[int]) -> NDArray[np.bool_]:
    first = np.zeros(sum(lengths), dtype=bool)
    starts = np.cumsum(lengths) - np.asarray(lengths)
    first[starts.astype(np.int64)] = True
    return first


def expectations(panel: Panel, model: Model) -> Statistics:
    """Log-likelihood of all runs and the moments of their states given all data (E-step)."""
    k, p = model.k, panel.n_channels
    stats = Statistics.zero(k, p)
    seen = panel.count
    stats.log_likelihood = -0.5 * float((seen * (LOG_2PI + np.log(model.r))).sum() + (panel.square / model.r).sum())
    if k == 0:
        return stats
    stats.log_likelihood -= 0.5 * (
        (panel.n_rows - panel.n_runs) * float(np.linalg.slogdet(model.q)[1])
        + panel.n_runs * float(np.linalg.slogdet(model.p0)[1])
    )
    blocks = _Blocks(model)
    steady = blocks.steady(max((x.shape[0] for x in panel.whole), default=0) - 1)
    lead = steady[0].shape[0] if steady is not None else 0
    short = []
    known: dict[int, _SteadyRun] = {}  # runs of one length share all but their values
    for x in panel.whole:
        n = x.shape[0]
        if steady is not None and n > lead:
            if n not in known:
                known[n] = _SteadyRun.of(n, steady)
            _add_steady(stats, x, model, known[n])
        else:
            short.append(x)
    if short:
        _add_general(stats, np.concatenate(short), None, _firsts([x.shape[0] for x in short]), model, blocks)
    if panel.filled.shape[0]:
        _add_general(stats, panel.filled, panel.mask, panel.first, model, blocks)
    return stats


class _Blocks:
    """Blocks of the prior precision, and of a run without gaps."""

    def __init__(self, model: Model) -> None:
        self.q_inv = np.linalg.inv(model.q)
        self.p0_inv = np.linalg.inv(model.p0)
        self.ahead = model.a.T @ self.q_inv @ model.a
        self.coupling = -self.q_inv @ model.a
        self.info = (model.c.T / model.r) @ model.c

    def steady(self, most: int) -> tuple[Floats, Floats, Floats] | None:
        """Factor blocks (low, off) of the first rows of a complete run, the last pair being the limit, and the last
        row's.

        None where the limit is not reached within ``most`` rows (or 2,000: stepping in Python no longer pays).
        """
        middle = self.info + self.q_inv + self.ahead
        s = self.info + self.p0_inv + self.ahead
        lows, offs = [], []
        for _ in range(min(most, _MOST_STEPS)):
            low = np.linalg.cholesky((s + s.T) / 2)
            off = np.linalg.solve(low, self.coupling.T).T
            lows.append(low)
            offs.append(off)
            new = middle - off @ off.T
            if np.abs(new - s).max() <= 1e-13 * np.abs(s).max():
                last = np.linalg.cholesky(self.info + self.q_inv - off @ off.T)
                return np.array(lows), np.array(offs), last
            s = new
        return None


@dataclass(frozen=True, eq=False)
class _SteadyRun:
    """What a run without gaps of a given length has whatever its values: factor, and covariances of its states.

    `total` and `lagged` are sums over rows, `final` and `first` those of the last and of the first row.
    """

    band: Floats
    logdet: float
    total: Floats
    lagged: Floats
    final: Floats
    first: Floats

    @classmethod
    def of(cls, n: int, steady: tuple[Floats, Floats, Floats]) -> _SteadyRun:
        lows, offs, last = steady
        k, lead = last.shape[0], lows.shape[0]
        band = np.zeros((n, k, 2 * k))
        for a in range(k):
            band[:lead, a, : k - a] = lows[:, a:, a]
            band[lead:, a, : k - a] = lows[-1, a:, a]
            band[:lead, a, k - a : 2 * k - a] = offs[:, :, a]
            band[lead:-1, a, k - a : 2 * k - a] = offs[-1, :, a]
            band[-1, a, : k - a] = last[a:, a]
        logdet = np.log(np.diagonal(lows, axis1=1, axis2=2)).sum()
        logdet += (n - 1 - lead) * np.log(np.diag(lows[-1])).sum() + np.log(np.diag(last)).sum()

        # Sigma runs backwards: from the last row to its limit, constant, then through the first rows
        inverse = np.linalg.inv(lows)
        own = inverse.transpose(0, 2, 1) @ inverse
        gain = -(inverse.transpose(0, 2, 1) @ offs.transpose(0, 2, 1))
        end = np.linalg.inv(last)
        sigma = end.T @ end
        total, lagged = sigma.copy(), np.zeros((k, k))
        final, t = sigma, n - 1
        while t > lead:
            new = own[-1] + gain[-1] @ sigma @ gain[-1].T
            settled = np.abs(new - sigma).max() <= 1e-13 * np.abs(new).max()
            repeat = t - lead if settled else 1
            lagged += repeat * (gain[-1] @ sigma)
            total += repeat * new
            sigma, t = new, t - repeat
        for t in range(lead - 1, -1, -1):
            lagged += gain[t] @ sigma
            sigma = own[t] + gain[t] @ sigma @ gain[t].T
            total += sigma
        return cls(band, float(logdet), total, lagged, final, sigma)


def _add_steady(stats: Statistics, x: Floats, model: Model, run: _SteadyRun) -> None:
    """Add one run without gaps."""
    forward = kalman.band_solve(run.band, x @ (model.c / model.r[:, None]))
    mean = kalman.band_solve(run.band, forward, transposed=True)
    stats.log_likelihood += 0.5 * float(np.vdot(forward, forward)) - run.logdet
    _add_moments(stats, mean, run.total, run.lagged, run.final, run.first)
    stats.gram += mean.T @ mean + run.total
    stats.cross += x.T @ mean


def _add_moments(stats: Statistics, mean: Floats, total: Floats, lagged: Floats, final: Floats, first: Floats) -> None:
    """Add the transition sums of one run: means, sum of covariances, of lagged ones, covariances at both ends."""
    second = mean.T @ mean + total
    last, begin = np.outer(mean[-1], mean[-1]) + final, np.outer(mean[0], mean[0]) + first
    stats.s00 += second - last
    stats.s11 += second - begin
    stats.s10 += mean[1:].T @ mean[:-1] + lagged.T
    stats.first += begin


def _add_general(
    stats: Statistics,
    filled: Floats,
    mask: NDArray[np.bool_] | None,
    first: NDArray[np.bool_],
    model: Model,
    blocks: _Blocks,
) -> None:
    """Add runs laid end to end; zeros in ``filled`` where ``mask`` is False."""
    n, k, p = filled.shape[0], model.k, filled.shape[1]
    weighted = model.c / model.r[:, None]
    outer = (weighted[:, :, None] * model.c[:, None, :]).reshape(p, k * k)
    diagonal = np.empty((n, k, k))
    flat = diagonal.reshape(n, k * k)
    for start in range(0, n, CHUNK):
        rows = slice(start, start + CHUNK)
        flat[rows] = blocks.info.ravel() if mask is None else mask[rows].astype(np.float64) @ outer
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], n) - 1
    diagonal += blocks.q_inv + blocks.ahead
    diagonal[starts] += blocks.p0_inv - blocks.q_inv
    diagonal[ends] -= blocks.ahead
    band = kalman.band_factor(diagonal, blocks.coupling, first)
    del diagonal, flat
    forward = kalman.band_solve(band, filled @ weighted)
    mean = kalman.band_solve(band, forward, transposed=True)
    stats.log_likelihood += 0.5 * float(np.vdot(forward, forward)) - float(np.log(band[:, :, 0]).sum())
    covariance, lagged = kalman.posterior_covariances(band)
    del band

    inner = ~first[1:]
    stats.s10 += mean[1:][inner].T @ mean[:-1][inner] + lagged.sum(axis=0).T
    second = covariance
    second += mean[:, :, None] * mean[:, None, :]
    total, begin = second.sum(axis=0), second[starts].sum(axis=0)
    stats.s00 += total - second[ends].sum(axis=0)
    stats.s11 += total - begin
    stats.first += begin
    stats.cross += filled.T @ mean
    if mask is None:
        stats.gram += total
        return
    flat = second.reshape(n, k * k)
    for start in range(0, n, CHUNK):
        rows = slice(start, start + CHUNK)
        stats.gram += (mask[rows].astype(np.float64).T @ flat[rows]).reshape(p, k, k)


def maximise(panel: Panel, model: Model, stats: Statistics) -> Model:
    """Parameters that raise the expected log-likelihood (M-step); A stays stable, r and Q above their floors."""
    k = model.k
    seen = np.maximum(panel.count, 1.0)
    variance = panel.square / seen
    floor = np.maximum(NOISE_FLOOR * variance, 1e-300)
    if k == 0:
        return Model(model.a, model.c, model.q, np.maximum(variance, floor), model.p0)
    # a channel that was never seen keeps loading 0; a ridge far below rounding of the rest keeps its system regular
    ridge = 1e-13 * np.trace(stats.gram, axis1=1, axis2=2)[:, None, None] * np.eye(k) + 1e-300 * np.eye(k)
    c = np.linalg.solve(stats.gram + ridge, stats.cross[:, :, None])[:, :, 0]
    left = panel.square - 2 * (c * stats.cross).sum(axis=1) + np.einsum("pi,pij,pj->p", c, stats.gram, c)
    r = np.where(panel.count > 0, np.maximum(left / seen, floor), model.r)
    a, q, p0 = _transition(model, stats, panel.n_runs, panel.n_rows - panel.n_runs)
    return Model(a, c, q, r, p0)


def _transition(model: Model, stats: Statistics, n_runs: int, n_moves: int) -> tuple[Floats, Floats, Floats]:
    """A, Q and the stationary covariance: as far towards the closed form as the first states allow."""
    if n_moves < 1:
        return model.a, model.q, model.p0
    try:
        best: Floats = np.asarray(np.linalg.solve(stats.s00, stats.s10.T).T, dtype=np.float64)
    except np.linalg.LinAlgError:
        return model.a, model.q, model.p0

    def noise(a: Floats) -> Floats:
        q = (stats.s11 - a @ stats.s10.T - stats.s10 @ a.T + a @ stats.s00 @ a.T) / n_moves
        values, vectors = np.linalg.eigh((q + q.T) / 2)
        smallest = STATE_FLOOR * float(np.trace(model.p0)) / model.k
        return np.asarray((vectors * np.maximum(values, smallest)) @ vectors.T)

    def expected(a: Floats, q: Floats) -> tuple[float, Floats]:
        p0 = kalman.stationary_covariance(a, q)
        moves = stats.s11 - a @ stats.s10.T - stats.s10 @ a.T + a @ stats.s00 @ a.T
        sign_q, logdet_q = np.linalg.slogdet(q)
        sign_p, logdet_p = np.linalg.slogdet(p0)
        if sign_q <= 0 or sign_p <= 0:
            return -np.inf, p0
        value = n_moves * logdet_q + np.trace(np.linalg.solve(q, moves))
        value += n_runs * logdet_p + np.trace(np.linalg.solve(p0, stats.first))
        return -0.5 * float(value), p0

    now, _ = expected(model.a, model.q)
    radius = spectral_radius(best)
    target = best if radius < 0.9999 else best * (0.9999 / radius)
    target_q = noise(target)
    for halvings in range(12):
        share = 0.5**halvings
        a = model.a + share * (target - model.a)
        q = model.q + share * (target_q - model.q)
        if spectral_radius(a) >= 1 - 1e-9:
            continue
        value, p0 = expected(a, q)
        if value >= now:
            return a, q, p0
    return model.a, model.q, model.p0


def em_step(panel: Panel, model: Model) -> tuple[Model, float]:
    """One EM iteration: the new model, and the log-likelihood of the model that was handed in."""
    stats = expectations(panel, model)
    return maximise(panel, model, stats), stats.log_likelihood


def canonical(model: Model) -> Model:
    """The same model in the coordinates in which the stationary covariance is I and C'R^-1C diagonal, descending.

    Fixes all of GL(k) but signs, which make the largest loading of each state positive. The likelihood does not
    change.
    """
    if model.k == 0:
        return model
    values, vectors = np.linalg.eigh(model.p0)
    root = vectors * np.sqrt(np.maximum(values, 1e-300))
    c = model.c @ root
    turn = np.linalg.eigh((c.T / model.r) @ c)[1]
    root = root @ turn[:, ::-1]
    c = model.c @ root
    root = root * fix_signs(c)
    inverse = np.linalg.inv(root)
    q = inverse @ model.q @ inverse.T
    return Model(inverse @ model.a @ root, model.c @ root, (q + q.T) / 2, model.r, np.eye(model.k))
