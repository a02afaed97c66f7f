r"""Indicators of one channel over trailing windows.

*z* is the channel less its baseline, *x* the channel itself. The window of row *t* ends with row *t*.

===================  ================================================================================================
variance, sd         unbiased (n - 1)
cv                   sd of *z* over the absolute mean of *x*
skewness, kurtosis   sample skewness and excess kurtosis, corrected for size (Joanes & Gill 1998: :math:`G_1, G_2`);
                     with ``bias=True`` :math:`m_3 / m_2^{3/2}` and :math:`m_4 / m_2^2 - 3`
lag1, lag2, ...      :math:`\rho_k`: Pearson correlation of the pairs k rows apart, each side on its own mean
return_rate          :math:`1 - \rho_1`: how fast a deviation decays, per row
lag_ratio            :math:`\rho_2/\rho_1`: the decay rate whatever the white observation noise (:math:`\rho_1` of AR(1)
                     plus noise is too low by the same factor as :math:`\rho_2`). NaN while :math:`|\rho_1|` is below
                     twice its standard error under white noise, :math:`2/\sqrt n`: a ratio of two noises
spectral_low         share of the periodogram at or below ``low_frequency`` cycles a row: reddening
spectral_max         largest value of the Welch spectrum (segments of 40 rows, Hann, half overlap; two-sided, as power)
dev_modulus          modulus of the dominant root of :math:`\lambda^2 = \phi_1 \lambda + \phi_2`, the AR(2) that has
                     :math:`\rho_1, \rho_2` (Yule-Walker)
dev_angle            its angle in [0, pi]: 0 a fold, pi a flip, between them a Neimark-Sacker bifurcation
permutation_entropy  of the order of three successive rows, over log 6 (Bandt & Pompe 2002)
sample_entropy       -log of the odds that runs of 2 rows alike within 0.2 sd stay alike (Richman & Moorman 2000)
mean_shift           twice the log likelihood ratio of the best step of the mean in the window (`slowing`)
slowing              the score of `slowing`: all of these together, with a guard against jumps; needs two windows
ew_...               exponential weights: variance, sd, cv, skewness, kurtosis, lags, return_rate, lag_ratio, dev_...
===================  ================================================================================================

Order 2 for the root: the smallest with all three ways to lose stability. A rate that is logged every *m* rows appears
as :math:`\lambda^m`, so an even stride hides a flip; the result carries the stride.

Sources: Scheffer et al. 2009, Nature 461:53; Dakos et al. 2012, PLoS ONE 7:e41010; Grziwotz et al. 2023, Sci. Adv.
9:eabq4558 (modulus and angle of the dominant eigenvalue).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling_moments import (
    Moments4,
    Pairs,
    band_power,
    exponential_moments,
    exponential_pairs,
    moments,
    pairs,
)
from trajscope.detect.indicators.entropy import permutation_entropy, sample_entropy
from trajscope.detect.indicators.inputs import Links
from trajscope.detect.indicators.slowing import N_LAGS, mean_shift, slowing_score
from trajscope.detect.indicators.spectrum import welch_max

__all__ = ["WEIGHTED", "WINDOWED", "Windows", "compute", "dominant_root", "is_lag", "knows", "windows_of"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

WEIGHTED = ("variance", "sd", "cv", "skewness", "kurtosis", "return_rate", "lag_ratio", "dev_modulus", "dev_angle")
"""Indicators with an exponentially weighted twin (``ew_`` before the name), besides the lags."""

WINDOWED = (
    *WEIGHTED,
    "spectral_low",
    "spectral_max",
    "permutation_entropy",
    "sample_entropy",
    "mean_shift",
    "slowing",
)

_LAG = re.compile(r"lag([1-9]\d{0,3})")


def is_lag(name: str) -> int | None:
    """The lag of an indicator ``lagK``, else None.

    >>> is_lag("lag12"), is_lag("lag_ratio")
    (12, None)
    """
    found = _LAG.fullmatch(name)
    return int(found[1]) if found else None


def knows(name: str) -> bool:
    """Whether `compute` has an indicator of that name."""
    plain = name.removeprefix("ew_")
    return is_lag(plain) is not None or plain in (WEIGHTED if plain != name else WINDOWED)


@dataclass(frozen=True, eq=False)
class Windows:
    """Series and windows from which indicators are computed; what several of them need is computed once.

    Attributes
    ----------
    z, x : ndarray, shape (m, n_steps)
        Less the baseline, and as it is.
    window : int
        Rows.
    linked : callable
        ``linked(lag)``: where row *t* and row *t - lag* may make a pair, (n_steps,), or None for everywhere.
    bounds : sequence of int
        Stretches: rows ``bounds[i]`` to ``bounds[i + 1]``; no window reaches across.
    whole : ndarray of bool, shape (n_steps,)
        Rows whose window is whole.
    rows : ndarray of int
        Rows at which the costly ones are valued (spectral_max, sample_entropy, mean_shift, slowing), all of them whole.
    memory : int
        Rows after which the baseline has forgotten a step.
    bias : bool
    low_frequency : float
        Cycles a row.
    """

    z: Floats
    x: Floats
    window: int
    whole: Bools
    rows: NDArray[np.intp]
    linked: Callable[[int], Bools | None] = lambda lag: None
    bounds: Sequence[int] = ()
    memory: int = 0
    bias: bool = False
    low_frequency: float = 0.05
    _made: dict[Any, Any] = field(default_factory=dict, repr=False)

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _by_stretch(self, make: Callable[[slice], tuple[Floats, ...]]) -> tuple[Floats, ...]:
        """Weights without end must not reach across a boundary: every stretch by itself."""
        ends = [*self.bounds, self.z.shape[1]] if self.bounds else [0, self.z.shape[1]]
        parts = [make(slice(a, b)) for a, b in pairwise(ends)]
        return tuple(np.concatenate(p, axis=1) for p in zip(*parts, strict=True))

    def moments(self, weighted: bool, order: int = 2) -> Moments4:
        """Moments of *z*."""
        if ("moments", weighted, 4) in self._made:
            order = 4

        def make() -> Moments4:
            if not weighted:
                return moments(self.z, self.window, order)
            got = self._by_stretch(
                lambda part: tuple(vars(exponential_moments(self.z[:, part], self.window, order)).values())
            )
            return Moments4(*got)

        found: Moments4 = self._once(("moments", weighted, order), make)
        return found

    def mean(self, weighted: bool) -> Floats:
        """Mean of *x*."""

        def make() -> Floats:
            if not weighted:
                return moments(self.x, self.window, 2).mean
            return self._by_stretch(lambda part: (exponential_moments(self.x[:, part], self.window, 2).mean,))[0]

        found: Floats = self._once(("mean", weighted), make)
        return found

    def pairs(self, lag: int, weighted: bool) -> Pairs:
        """Lagged products of *z*."""

        def make() -> Pairs:
            linked = self.linked(lag)
            if not weighted:
                return pairs(self.z, self.window, lag, linked)
            got = self._by_stretch(
                lambda part: tuple(
                    vars(
                        exponential_pairs(self.z[:, part], self.window, lag, None if linked is None else linked[part])
                    ).values()
                )
            )
            return Pairs(*got)

        found: Pairs = self._once(("pairs", lag, weighted), make)
        return found

    def rho(self, lag: int, weighted: bool = False) -> Floats:
        """Autocorrelation at a lag."""
        found: Floats = self._once(("rho", lag, weighted), lambda: self.pairs(lag, weighted).correlation())
        return found


def windows_of(
    z: Floats,
    x: Floats,
    chain: Links,
    window: int,
    *,
    min_count: int | None,
    every: int,
    memory: int,
    bias: bool,
    low_frequency: float,
) -> Windows:
    """The windows of series that miss the same cells and hang together in the same way."""
    whole = chain.whole(z[0], window, min_count)
    rows = np.flatnonzero(whole & ((chain.age(z.shape[1]) - window) % every == 0))
    return Windows(z, x, window, whole, rows, chain.linked, chain.bounds, memory, bias, low_frequency)


def dominant_root(rho1: Floats, rho2: Floats) -> tuple[Floats, Floats]:
    r"""Modulus and angle of the dominant root of the AR(2) with these autocorrelations.

    :math:`\phi_1 = \rho_1 (1 - \rho_2) / (1 - \rho_1^2)`, :math:`\phi_2 = (\rho_2 - \rho_1^2) / (1 - \rho_1^2)`. Roots
    are complex where :math:`\phi_1^2 + 4 \phi_2 < 0`; their modulus is then :math:`\sqrt{-\phi_2}`.

    Examples
    --------
    >>> modulus, angle = dominant_root(np.array([0.5, -0.5]), np.array([0.25, 0.25]))
    >>> modulus.tolist(), angle.round(3).tolist()
    ([0.5, 0.5], [0.0, 3.142])
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        rest = 1 - rho1 * rho1
        phi1, phi2 = rho1 * (1 - rho2) / rest, (rho2 - rho1 * rho1) / rest
        inside = phi1 * phi1 / 4 + phi2
        real = inside >= 0
        modulus = np.where(real, np.abs(phi1) / 2 + np.sqrt(np.where(real, inside, 0.0)), np.sqrt(np.maximum(-phi2, 0)))
        angle = np.where(
            real,
            np.where(phi1 < 0, np.pi, 0.0),
            np.arccos(np.clip(phi1 / 2 / np.where(modulus > 0, modulus, 1.0), -1, 1)),
        )
    unknown = np.isnan(phi1) | np.isnan(phi2)
    modulus[unknown] = np.nan
    angle[unknown] = np.nan
    return modulus, angle


def _skewness(w: Windows, weighted: bool) -> Floats:
    mo = w.moments(weighted, 4)
    with np.errstate(invalid="ignore", divide="ignore"):
        out = mo.m3 / mo.m2**1.5
        if not (w.bias or weighted):
            n = mo.count
            out = out * np.sqrt(n * (n - 1)) / (n - 2)
    return np.where((mo.m2 > 0) & (mo.count > 2), out, np.nan)


def _kurtosis(w: Windows, weighted: bool) -> Floats:
    mo = w.moments(weighted, 4)
    with np.errstate(invalid="ignore", divide="ignore"):
        out = mo.m4 / (mo.m2 * mo.m2) - 3
        if not (w.bias or weighted):
            n = mo.count
            out = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * out + 6)
    return np.where((mo.m2 > 0) & (mo.count > 3), out, np.nan)


def _variance(w: Windows, weighted: bool) -> Floats:
    mo = w.moments(weighted)
    return mo.m2 * mo.correction


def _cv(w: Windows, weighted: bool) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        out = np.sqrt(_variance(w, weighted)) / np.abs(w.mean(weighted))
    out[~np.isfinite(out)] = np.nan
    return out


def _lag_ratio(w: Windows, weighted: bool) -> Floats:
    rho1, rho2 = w.rho(1, weighted), w.rho(2, weighted)
    count = np.minimum(w.pairs(1, weighted).count, w.window)
    with np.errstate(invalid="ignore", divide="ignore"):
        out = rho2 / rho1
        out[np.abs(rho1) * np.sqrt(count) < 2] = np.nan
    return out


def _dev(w: Windows, weighted: bool) -> tuple[Floats, Floats]:
    found: tuple[Floats, Floats] = w._once(
        ("dev", weighted), lambda: dominant_root(w.rho(1, weighted), w.rho(2, weighted))
    )
    return found


def _spectral_low(w: Windows) -> Floats:
    n_bins = min(max(1, int(w.low_frequency * w.window + 1e-9)), w.window // 2)
    low, total = band_power(w.z, w.window, n_bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, np.clip(low / total, 0.0, 1.0), np.nan)


def _mean_shift(w: Windows) -> tuple[Floats, NDArray[np.intp]]:
    found: tuple[Floats, NDArray[np.intp]] = w._once("mean_shift", lambda: mean_shift(w.z, w.window, w.rows))
    return found


def _slowing(w: Windows) -> Floats:
    rho = [w.rho(lag) for lag in range(1, N_LAGS + 1)]
    variance, count, (shift, place) = _variance(w, False), w.pairs(1, False).count, _mean_shift(w)

    def score(part: slice) -> tuple[Floats, ...]:
        rho_here, since = [r[:, part] for r in rho], place[:, part] - part.start
        return (
            slowing_score(
                rho_here, variance[:, part], count[:, part], shift[:, part], since, w.whole[part], w.window, w.memory
            ),
        )

    return w._by_stretch(score)[0]


_FORMULAS: dict[str, Callable[[Windows, bool], Floats]] = {
    "variance": _variance,
    "sd": lambda w, weighted: np.sqrt(_variance(w, weighted)),
    "cv": _cv,
    "skewness": _skewness,
    "kurtosis": _kurtosis,
    "return_rate": lambda w, weighted: 1 - w.rho(1, weighted),
    "lag_ratio": _lag_ratio,
    "dev_modulus": lambda w, weighted: _dev(w, weighted)[0],
    "dev_angle": lambda w, weighted: _dev(w, weighted)[1],
    "spectral_low": lambda w, _: _spectral_low(w),
    "spectral_max": lambda w, _: welch_max(w.z, w.window, w.rows),
    "permutation_entropy": lambda w, _: permutation_entropy(w.z, w.window, w.linked(2)),
    "mean_shift": lambda w, _: _mean_shift(w)[0],
    "slowing": lambda w, _: _slowing(w),
    "sample_entropy": lambda w, _: sample_entropy(w.z, w.window, w.rows),
}


def compute(names: Sequence[str], windows: Windows) -> dict[str, Floats]:
    """Values of the named indicators, each of shape (m, n_steps).

    Rows whose window is not whole are for the caller to blank.
    """
    if any(name in ("skewness", "kurtosis") for name in names):
        windows.moments(False, 4)  # the others then take theirs from it
    out = {}
    for name in names:
        plain = name.removeprefix("ew_")
        lag = is_lag(plain)
        out[name] = windows.rho(lag, plain != name) if lag is not None else _FORMULAS[plain](windows, plain != name)
    return out
