r"""Slow feature analysis: the directions in which channels change least from row to row.

With the covariance :math:`C_0` and the covariance of differences over *lag* rows :math:`C_d = E[(x_{t+\tau} -
x_t)(x_{t+\tau} - x_t)^\top]`,

.. math:: C_d\, a = \mu\, C_0\, a, \qquad a^\top C_0\, a = 1

(Wiskott & Sejnowski 2002; the same directions as symmetrised time-lagged independent components, Pérez-Hernández et
al. 2013). A small :math:`\mu` is slow: :math:`\mu = 2(1 - \lambda)` with the autocorrelation :math:`\lambda` of the
feature at the lag, and its time-scale is :math:`-\tau/\ln|\lambda|` rows. Both moments are taken over the rows that
form a pair, so that :math:`|\lambda| \le 1`. Runs are pooled, no pair crosses from one into the next.

``expansion="quadratic"`` adds all products of two channels, ``delays=d`` the d rows before (causal). Gaps: moments
pairwise over the pairs of rows in which both were seen; a row with gaps is completed by its conditional mean under
the Gaussian with covariance :math:`C_0`.

*Gap test.* Directions with equal :math:`\mu` are known as a plane only, and sorted values always differ. So the gap
between neighbours is compared with the gaps that the two would show if they were equally slow: the sampling
deviations of their 2 x 2 moment matrix, from a block bootstrap with the directions held fixed, about the common
value. Axes are told apart where the gap exceeds the 95 % point of these (`gap` times it), else neighbours are
reported as one group (`groups_`). Intervals of time-scales come from the same bootstrap.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from trajscope._core.linalg import CHUNK, fix_signs, psd_eigh
from trajscope._core.surrogates import as_generator
from trajscope.errors import InputError, NotEnoughData
from trajscope.metastate._base import MetaState
from trajscope.metastate.parallel import centre_run

__all__ = ["SlowFeatures", "block_moments", "expand", "slow_directions", "time_scale"]

Floats = NDArray[np.float64]

MAX_BLOCKS = 100


def time_scale(autocorrelation: Any, lag: int = 1) -> Any:
    """``-lag / ln|autocorrelation|`` in rows; 0 for none, inf for 1 and beyond.

    Examples
    --------
    >>> round(float(time_scale(np.exp(-0.1))), 6)
    10.0
    """
    size = np.clip(np.abs(np.asarray(autocorrelation, dtype=np.float64)), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        return np.where(size >= 1, np.inf, np.where(size > 0, -lag / np.log(np.where(size > 0, size, 0.5)), 0.0))


def expand(x: Floats, *, quadratic: bool = False, delays: int = 0) -> Floats:
    """Channels with their past and, after that, with all products of two of these.

    Parameters
    ----------
    x : ndarray, shape (n_steps, n_channels)
    quadratic : bool, default False
    delays : int, default 0
        Rows before t that are appended; the first rows have NaN there.

    Examples
    --------
    >>> expand(np.array([[1.0], [2.0]]), quadratic=True, delays=1)
    array([[ 1., nan,  1., nan, nan],
           [ 2.,  1.,  4.,  2.,  1.]])
    """
    parts = [x]
    for d in range(1, delays + 1):
        past = np.full_like(x, np.nan)
        past[d:] = x[:-d]
        parts.append(past)
    linear = np.concatenate(parts, axis=1) if delays else x
    if not quadratic:
        return linear
    i, j = np.triu_indices(linear.shape[1])
    return np.concatenate([linear, linear[:, i] * linear[:, j]], axis=1)


def block_moments(runs: list[Floats], lag: int, n_blocks: int) -> tuple[Floats, Floats, Floats]:
    """Sums over pairs of rows (t, t + lag), block by block.

    Parameters
    ----------
    runs : list of ndarray, each (n_steps, n_features), centred
    lag : int
    n_blocks : int
        Blocks that all pairs are cut into; a block never crosses runs.

    Returns
    -------
    level, difference : ndarray, shape (blocks, n_features, n_features)
        Sums of (x x' + y y')/2 and (y - x)(y - x)' for the two rows of a pair.
    pairs : ndarray, shape (blocks, n_features, n_features)
        How many pairs had both features in both rows.
    """
    p = runs[0].shape[1]
    total = sum(max(0, x.shape[0] - lag) for x in runs)
    size = max(1, -(-total // max(1, n_blocks)))
    level, difference, pairs = [], [], []
    for x in runs:
        n = x.shape[0] - lag
        for start in range(0, n, size):
            stop = min(start + size, n)
            low, moved, count = np.zeros((p, p)), np.zeros((p, p)), np.zeros((p, p))
            for begin in range(start, stop, CHUNK):
                end = min(begin + CHUNK, stop)
                a, b = x[begin:end], x[begin + lag : end + lag]
                d = b - a
                seen = d == d
                if seen.all():
                    count += end - begin
                    if lag == 1 and end - begin > 1:
                        # a and b overlap but for one row: one product serves both
                        inner = x[begin + 1 : end]
                        own = inner.T @ inner
                        low += own + (np.outer(a[0], a[0]) + np.outer(b[-1], b[-1])) / 2
                    else:
                        low += (a.T @ a + b.T @ b) / 2
                    moved += d.T @ d
                    continue
                ones = seen.astype(np.float32)
                count += ones.T @ ones
                gone = ~seen
                d[gone] = 0.0
                moved += d.T @ d
                # x x' + y y' = (s s' + d d')/2 with s = x + y: one product instead of two
                s = a + b
                s[gone] = 0.0
                low += (s.T @ s) / 4
                low += (d.T @ d) / 4
            level.append(low)
            difference.append(moved)
            pairs.append(count)
    return np.array(level), np.array(difference), np.array(pairs)


def slow_directions(level: Floats, difference: Floats) -> tuple[Floats, Floats]:
    """Solve the generalised eigenproblem: mu ascending and directions as columns, in the space that has
    variance."""
    values, vectors = psd_eigh(level)
    rank = int((values > 1e-10 * max(values[0], 1e-300)).sum())
    white = vectors[:, :rank] / np.sqrt(values[:rank])
    moved = white.T @ difference @ white
    mu, turn = eigh((moved + moved.T) / 2)
    return np.clip(mu, 0.0, None), np.asarray(white @ turn)


def _ratio(sums: Floats, pairs: Floats) -> Floats:
    return np.where(pairs > 0, sums / np.maximum(pairs, 1), 0.0)


class SlowFeatures(MetaState):
    """Slow features of one or several runs, with gaps.

    Parameters
    ----------
    n_components : int or "auto", default "auto"
        ``"auto"``: parallel analysis of the channels against circular shifts (95 %); may give 0. Where channels
        repeat each other there are fewer features than asked for: `n_components_`.
    lag : int, default 1
        Rows over which change is measured.
    expansion : {"linear", "quadratic"}, default "linear"
    delays : int, default 0
        Rows before t that serve as further channels.
    gap : float, default 1.3
        Neighbours are reported as axes where their gap exceeds this many times the 95 % point under equal slowness.
        The directions are themselves chosen to be slowest, which widens gaps: at 1, equally slow pairs in ten
        channels pass in 8 to 15 % of cases, at 1.3 in 1 to 5 %.
    n_boot : int, default 200
        Bootstrap draws for intervals and gaps.
    reference, scale : as in `PCAState`
    rng : int, Generator or None, default None (seed 0)

    Attributes
    ----------
    loadings_ : ndarray, shape (n_channels, n_components)
        Covariance of channels with features, in standardised units: what a feature of size 1 looks like (with an
        expansion: its best linear rebuilding).
    weights_ : ndarray, shape (n_features, n_components)
        Directions *a* in the expanded space; features have variance 1.
    delta_ : ndarray, shape (n_components,)
        Mean squared difference over the lag, ascending.
    eigenvalues_ : ndarray, shape (n_components,)
        Autocorrelations at the lag, 1 - delta/2.
    timescales_, timescale_intervals_ : ndarray, shape (n_components,) and (n_components, 2)
        In rows; 95 %.
    gaps_ : ndarray, shape (n_components,)
        mu_{j+1} - mu_j over the 95 % point under equal slowness; the last compares with the first feature left out.
    groups_ : list of tuple of int
        Features that cannot be told apart share a group: the space they span is known, their axes are not. One group
        of all where the test could not be made (`gaps_` is NaN then).
    explained_ : ndarray, shape (n_components,)
        Share of the variance of the standardised channels that each feature carries.

    Examples
    --------
    >>> t = np.linspace(0, 4 * np.pi, 4000)
    >>> x = np.stack([np.sin(t) + np.cos(11 * t) ** 2, np.cos(11 * t)], axis=1)
    >>> z = SlowFeatures(1, expansion="quadratic", scale=None).fit_transform(x)
    >>> bool(abs(np.corrcoef(z[:, 0], np.sin(t))[0, 1]) > 0.99999)
    True
    """

    def __init__(
        self,
        n_components: int | Literal["auto"] = "auto",
        *,
        lag: int = 1,
        expansion: Literal["linear", "quadratic"] = "linear",
        delays: int = 0,
        gap: float = 1.3,
        n_boot: int = 200,
        reference: Any = "level",
        scale: Literal["mad", "std"] | None = "mad",
        rng: int | np.random.Generator | None = None,
    ) -> None:
        self.n_components = n_components
        self.lag = lag
        self.expansion = expansion
        self.delays = delays
        self.gap = gap
        self.n_boot = n_boot
        self.reference = reference
        self.scale = scale
        self.rng = rng

    @property
    def _memory(self) -> bool:  # type: ignore[override]
        return self.delays > 0

    def _expand(self, x: Floats) -> Floats:
        used = self.reference_.used
        return expand(x if used.all() else x[:, used], quadratic=self.expansion == "quadratic", delays=self.delays)

    def _fit_model(self, xs: list[Floats], covariance: Floats) -> None:
        if self.expansion not in ("linear", "quadratic"):
            raise InputError(f"expansion is {self.expansion!r}; expected 'linear' or 'quadratic'.")
        counts = (self.lag, self.delays, self.n_boot)
        if not all(isinstance(v, int | np.integer) for v in counts) or min(self.lag - 1, self.delays, self.n_boot) < 0:
            raise InputError(
                f"lag is {self.lag!r}, delays {self.delays!r}, n_boot {self.n_boot!r}; expected lag >= 1, others >= 0,"
                " whole numbers."
            )
        longest = max(x.shape[0] for x in xs)
        if longest <= self.lag + self.delays:
            raise NotEnoughData(
                f"the longest run has {longest} rows; a lag of {self.lag} with {self.delays} delays needs at least"
                f" {self.lag + self.delays + 1}."
            )
        used = self.reference_.used
        first = self._expand(xs[0][:1])
        k = self._dimension(xs, first.shape[1])
        runs = [centre_run(self._expand(x - self.centre_)) for x in xs]
        means = [_sums(self._expand(x - self.centre_)) for x in xs] if self.expansion == "quadratic" else []
        self._shift = np.zeros(first.shape[1])
        if means:
            self._shift = sum(m[0] for m in means) / np.maximum(sum(m[1] for m in means), 1)
        level, moved, pairs = block_moments(runs, self.lag, MAX_BLOCKS if self.n_boot else 1)
        count = pairs.sum(axis=0)
        c0, cd = _ratio(level.sum(axis=0), count), _ratio(moved.sum(axis=0), count)
        mu, a = slow_directions(c0, cd)
        k = min(k, mu.size)
        direct = c0[: int(used.sum())] @ a  # covariance of channels with features
        sign = fix_signs(direct)
        a, direct = a * sign, direct * sign
        self.n_components_ = k
        self.weights_ = a[:, :k]
        self.loadings_ = np.zeros((self.n_features_in_, k))
        self.loadings_[used] = direct[:, :k]
        self._covariance = c0
        self.delta_ = mu[:k]
        self.eigenvalues_ = 1 - mu[:k] / 2
        self.timescales_ = time_scale(self.eigenvalues_, self.lag)
        total = float(np.diag(c0)[: int(used.sum())].sum())
        self.explained_ = (direct[:, :k] ** 2).sum(axis=0) / max(total, 1e-300)
        self._uncertainty(level, moved, pairs, a[:, : k + 1])

    def _uncertainty(self, level: Floats, moved: Floats, pairs: Floats, a: Floats) -> None:
        """Block bootstrap with the directions held fixed: intervals of time-scales, gap test, groups."""
        k = self.n_components_
        self.timescale_intervals_ = np.full((k, 2), np.nan)
        self.gaps_ = np.full(k, np.nan)
        self.groups_ = [tuple(range(k))] if k else []
        # blocks of ten time-scales, that of the features being shortened by noise; twenty blocks at least
        longest = float(np.max(self.timescales_, initial=0.0))
        rows = float(pairs.sum(axis=0).max())
        wanted = int(np.clip(rows / max(10 * longest, 1.0), 20, MAX_BLOCKS))
        level, moved, pairs = (_merge(m, wanted) for m in (level, moved, pairs))
        n = level.shape[0]
        if k == 0 or self.n_boot < 20 or n < 10:
            return
        rng = as_generator(self.rng)
        draws = rng.multinomial(n, np.full(n, 1 / n), size=self.n_boot).astype(np.float64)
        # moments of every draw in the coordinates of the features, each entry divided by its own number of pairs
        sums = [np.tensordot(draws, m, axes=1) for m in (level, moved, pairs)]
        low, up = (a.T @ _ratio(s, sums[2]) @ a for s in sums[:2])
        own = np.diagonal(up, axis1=1, axis2=2) / np.maximum(np.diagonal(low, axis1=1, axis2=2), 1e-300)
        scales = time_scale(1 - own[:, :k] / 2, self.lag)
        self.timescale_intervals_ = np.quantile(scales, [0.025, 0.975], axis=0, method="inverted_cdf").T
        mu = np.diag(a.T @ _ratio(moved.sum(axis=0), pairs.sum(axis=0)) @ a)
        self.gaps_[:] = np.inf
        for j in range(min(k, a.shape[1] - 1)):
            pair = slice(j, j + 2)
            null = _null_gaps(low[:, pair, pair], up[:, pair, pair], mu[pair])
            self.gaps_[j] = (mu[j + 1] - mu[j]) / max(float(np.quantile(null, 0.95)), 1e-300)
        groups: list[tuple[int, ...]] = [(0,)]
        for j in range(1, k):
            if self.gaps_[j - 1] > self.gap:
                groups.append((j,))
            else:
                groups[-1] = (*groups[-1], j)
        self.groups_ = groups

    def _states(self, x: Floats, causal: bool) -> Floats:
        if self.n_components_ == 0:
            return np.zeros((x.shape[0], 0))
        out = np.empty((x.shape[0], self.n_components_))
        lead = self.delays
        for start in range(0, x.shape[0], CHUNK):
            begin = max(0, start - lead)
            e = self._expand(x[begin : start + CHUNK])[start - begin :] - self._shift
            out[start : start + CHUNK] = _project(e, self.weights_, self._covariance)
        return out

    def _more_summary(self) -> list[str]:
        lines = []
        for j in range(self.n_components_):
            low, high = self.timescale_intervals_[j]
            interval = "" if np.isnan(low) else f" [{low:.3g}, {high:.3g}]"
            lines.append(f"Time-scale {j + 1}: {self.timescales_[j]:.3g} rows{interval}.")
        if self.n_components_ and np.isnan(self.gaps_).all():
            lines.append(
                "Too few rows or bootstrap draws for intervals and for the gap test (10 blocks, n_boot >= 20): whether"
                " axes can be told apart is not known."
            )
            return lines
        for group in self.groups_:
            if len(group) > 1:
                who = ", ".join(str(j + 1) for j in group)
                lines.append(
                    f"Features {who} are too close in slowness to tell apart: the space they span is known,"
                    " their axes are not."
                )
        return lines


def _merge(blocks: Floats, wanted: int) -> Floats:
    """Neighbouring blocks added up until about ``wanted`` are left."""
    size = max(1, blocks.shape[0] // max(1, wanted))
    return np.add.reduceat(blocks, np.arange(0, blocks.shape[0], size), axis=0)


def _null_gaps(low: Floats, up: Floats, mu: Floats) -> Floats:
    """Gaps that two features of equal slowness would show: bootstrap deviations about their common value."""
    values, vectors = np.linalg.eigh(low)  # pairwise moments of a draw need not be definite
    half = vectors / np.sqrt(np.maximum(values, 1e-3))[:, None, :]
    moved = half.transpose(0, 2, 1) @ up @ half
    # back to the orientation of the features: symmetric square root
    moved = vectors @ moved @ vectors.transpose(0, 2, 1)
    moved = moved - np.diag(mu) + mu.mean() * np.eye(2)
    values = np.linalg.eigvalsh((moved + moved.transpose(0, 2, 1)) / 2)
    return np.asarray(values[:, 1] - values[:, 0])


def _sums(x: Floats) -> tuple[Floats, Floats]:
    seen = ~np.isnan(x)
    return np.where(seen, x, 0.0).sum(axis=0), seen.sum(axis=0).astype(np.float64)


def _project(e: Floats, weights: Floats, covariance: Floats) -> Floats:
    """Features of rows, gaps filled by E[missing | seen] under N(0, covariance); rows without any value are NaN.

    With *P* the precision, the conditional mean solves ``P_mm e_m = -P_ms e_s``: one small system a row, batched.
    """
    seen = ~np.isnan(e)
    if seen.all():
        return np.asarray(e @ weights)
    p = e.shape[1]
    values, vectors = psd_eigh(covariance)
    precision = (vectors / np.maximum(values, 1e-8 * max(values[0], 1e-300))) @ vectors.T
    filled = np.where(seen, e, 0.0)
    right = -filled @ precision
    rows = np.flatnonzero(~seen.all(axis=1) & seen.any(axis=1))
    batch = max(1, (1 << 20) // (p * p))
    for start in range(0, rows.size, batch):
        chosen = rows[start : start + batch]
        gone = ~seen[chosen]
        system = np.where(gone[:, :, None] & gone[:, None, :], precision, 0.0)
        system[:, np.arange(p), np.arange(p)] += ~gone
        filled[chosen] += np.linalg.solve(system, np.where(gone, right[chosen], 0.0)[:, :, None])[:, :, 0]
    out = filled @ weights
    out[~seen.any(axis=1)] = np.nan
    return np.asarray(out)
