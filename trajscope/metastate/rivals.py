r"""What a meta-state has to beat: distance over all raw channels, and the best single channel.

`RawMahalanobis`: :math:`D_t^2 = x_o^\top S_{oo}^{-1} x_o` over the channels that were seen, *S* the baseline
covariance, its eigenvalues not below 1e-6 of the largest, so that a singular one stays usable.

`BestChannel`: :math:`D_t = |x_{c,t}|` of one channel. Which one is best has to be chosen on calibration runs
(`choose`), never on the runs that are judged; without a choice it is the channel with the largest baseline
autocorrelation at lag 1, the one whose departures last longest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from trajscope._core.linalg import psd_eigh
from trajscope.errors import InputError, nearest
from trajscope.metastate._base import MetaState
from trajscope.metastate.parallel import centre_run

__all__ = ["BestChannel", "RawMahalanobis"]

Floats = NDArray[np.float64]

_RIDGE = 1e-6


class RawMahalanobis(MetaState):
    """Mahalanobis distance of all channels from the baseline: no reduction at all.

    The states are the standardised channels; ``Q`` is 0, since nothing is left out. ``D`` of a row with gaps is
    taken over the channels that were seen and scaled to all of them (by n_channels / n_seen, in D squared).

    Parameters
    ----------
    reference, scale : as in `PCAState`

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(300, 3))
    >>> round(float((RawMahalanobis().fit(x).deviation(x)["D"] ** 2).mean()), 1)
    3.0
    """

    def __init__(self, *, reference: Any = "level", scale: Literal["mad", "std"] | None = "mad") -> None:
        self.reference = reference
        self.scale = scale

    n_components = "all"
    rng = None

    def _needs_rows(self) -> bool:
        return False

    def _fit_model(self, xs: list[Floats], covariance: Floats) -> None:
        used = self.reference_.used
        self.n_components_ = self.n_features_in_
        self.loadings_ = np.eye(self.n_features_in_)
        values, vectors = psd_eigh(covariance[np.ix_(used, used)])
        values = np.maximum(values, _RIDGE * values[0])
        self.eigenvalues_ = values
        self.explained_ = np.diag(covariance) / max(float(np.trace(covariance)), 1e-300)
        self.covariance_ = (vectors * values) @ vectors.T

    def _states(self, x: Floats, causal: bool) -> Floats:
        return x

    def _off(self, x: Floats, z: Floats) -> Floats:
        return np.where(np.isnan(x).all(axis=1), np.nan, 0.0)

    def _distance(self, z: Floats) -> Floats:
        z = z[:, self.reference_.used]
        p = z.shape[1]
        gone = np.isnan(z)
        filled = np.where(gone, 0.0, z)
        out = np.asarray((filled @ np.linalg.inv(self.covariance_) * filled).sum(axis=1))
        out[gone.all(axis=1)] = np.nan
        gappy = np.flatnonzero(gone.any(axis=1) & ~gone.all(axis=1))
        batch = max(1, (1 << 20) // (p * p))
        for start in range(0, gappy.size, batch):
            rows = gappy[start : start + batch]
            missing = gone[rows]
            system = np.where(missing[:, :, None] | missing[:, None, :], 0.0, self.covariance_)
            system[:, np.arange(p), np.arange(p)] += missing
            solved = np.linalg.solve(system, filled[rows][:, :, None])[:, :, 0]
            out[rows] = (filled[rows] * solved).sum(axis=1) * (p / (~missing).sum(axis=1))
        return np.asarray(np.sqrt(np.maximum(out, 0.0)))


class BestChannel(MetaState):
    """The best single channel as a meta-state of dimension 1.

    Parameters
    ----------
    channel : str, int or None, default None
        Name or index. None: the channel with the largest lag-1 autocorrelation on the baseline, until `choose` says
        better.
    reference, scale : as in `PCAState`

    Attributes
    ----------
    channel_ : int

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(300, 3))
    >>> BestChannel(channel=1).fit(x).transform(x).shape
    (300, 1)
    """

    n_components = 1
    rng = None

    def __init__(
        self,
        channel: str | int | None = None,
        *,
        reference: Any = "level",
        scale: Literal["mad", "std"] | None = "mad",
    ) -> None:
        self.channel = channel
        self.reference = reference
        self.scale = scale

    def _needs_rows(self) -> bool:
        return self.channel is None

    def _fit_model(self, xs: list[Floats], covariance: Floats) -> None:
        used = np.flatnonzero(self.reference_.used)
        if self.channel is None:
            memory = np.nan_to_num(_lag1([centre_run(x) for x in xs]), nan=-1.0)
            self.channel_ = int(used[np.argmax(memory[used])])
        elif isinstance(self.channel, str):
            names = self._channel_names()
            if self.channel not in names:
                raise InputError(f"there is no channel {self.channel!r}. {nearest(self.channel, names)}")
            self.channel_ = names.index(self.channel)
        else:
            if not isinstance(self.channel, int | np.integer):
                raise InputError(f"channel is {self.channel!r}; expected a name, a whole number or None.")
            self.channel_ = int(self.channel)
            if not 0 <= self.channel_ < self.n_features_in_:
                raise InputError(f"channel is {self.channel}; expected 0 to {self.n_features_in_ - 1}.")
        if self.channel_ not in used:
            name = self._channel_names()[self.channel_]
            raise InputError(f"channel {name!r} never moves on the baseline; choose another one.")
        self._publish(covariance)

    def _publish(self, covariance: Floats) -> None:
        self.n_components_ = 1
        self.loadings_ = np.eye(self.n_features_in_)[:, [self.channel_]]
        self.eigenvalues_ = covariance[self.channel_, [self.channel_]]
        self.explained_ = self.eigenvalues_ / max(float(np.trace(covariance)), 1e-300)
        self._variances = covariance

    def choose(self, X: Any, score: Callable[[Sequence[Floats]], float]) -> Self:
        """Take the channel whose deviation scores best on calibration runs.

        Parameters
        ----------
        X : list of runs
            Calibration runs, none of which is judged later.
        score : callable
            Given the deviation |x_c| of every run, a list of ndarray, returns a number; the largest wins, ties go
            to the first channel.

        The baseline of D and Q stays that of `fit`: calibration runs may hold the very departures to be seen.
        """
        xs = [self._prepared(r) for r in self._runs_like_fitted(X)]
        used = np.flatnonzero(self.reference_.used)
        values = [score([np.abs(x[:, c]) for x in xs]) for c in used]
        if np.isnan(values).all():
            raise InputError("score gave NaN for every channel; expected a number that is larger for a better one.")
        self.channel_ = int(used[int(np.nanargmax(values))])
        self._publish(self._variances)
        self.__dict__.update(self._baselines[self.channel_])
        return self

    def _calibrate(self, xs: list[Floats]) -> None:
        """The baseline of every channel, so that `choose` can change channel without it; then that of this one."""
        mine, names = self.channel_, ("mu_", "_whiten", "state_covariance_", "bounds_", "freeze_bound_")
        self._baselines: dict[int, dict[str, Any]] = {}
        for c in np.flatnonzero(self.reference_.used):
            self.channel_ = int(c)
            self._publish(self._variances)
            super()._calibrate([x.copy() for x in xs])
            self._baselines[self.channel_] = {name: getattr(self, name) for name in names}
        self.channel_ = mine
        self._publish(self._variances)
        self.__dict__.update(self._baselines[mine])

    def _states(self, x: Floats, causal: bool) -> Floats:
        return x[:, [self.channel_]]


def _lag1(runs: list[Floats]) -> Floats:
    """Lag-1 autocorrelation of every channel over the pairs of rows that were both seen."""
    top, low = np.zeros(runs[0].shape[1]), np.zeros(runs[0].shape[1])
    for x in runs:
        a, b = x[:-1], x[1:]
        both = ~np.isnan(a) & ~np.isnan(b)
        top += np.where(both, a * b, 0.0).sum(axis=0)
        low += np.where(both, (a * a + b * b) / 2, 0.0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(top / low)
