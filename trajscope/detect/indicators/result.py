"""What `early_warning` returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.surrogates import as_generator
from trajscope.detect.indicators.detrend import residuals
from trajscope.detect.indicators.inputs import Links
from trajscope.detect.indicators.trend import KINDS, Trend, kendall, kendall_all, noise_like, slow_course
from trajscope.detect.indicators.univariate import compute, knows, windows_of
from trajscope.errors import InputError, NotEnoughData, nearest
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ALL", "ChannelNote", "EarlyWarning"]

Floats = NDArray[np.float64]

ALL = "(all)"
"""Channel under which indicators of all channels together stand."""


@dataclass(frozen=True)
class ChannelNote:
    """How a channel was taken.

    Attributes
    ----------
    name, role, scale : str
    stride : float
        Median distance of its steps. A rate lambda per step appears as lambda^stride: an even stride hides a flip.
    irregular : float
        Share of the distances of its steps that differ from the stride by more than half of it.
    stretches : int
        Parts between holes and segments; windows start anew in each.
    n_rows, n_missing : int
    """

    name: str
    role: str
    scale: str
    stride: float
    irregular: float
    stretches: int
    n_rows: int
    n_missing: int


@dataclass(frozen=True, eq=False)
class EarlyWarning(Result):
    """Indicators over trailing windows; returned by `early_warning`.

    Attributes
    ----------
    columns : mapping of (indicator, channel) to ndarray, shape (n_steps,)
    steps : ndarray, shape (n_steps,)
    x : str
        What the steps count.
    channels : tuple of ChannelNote
    indicators : tuple of str
    window : int
        Rows.
    detrend : str
    span : float
        Rows of the baseline.
    causal : bool
        Whether row *t* uses rows up to *t* only. A result that is not causal makes no alarm.
    every : int
    series : mapping of str to (rows, values, residual)
        By channel: its rows in the table, its values on their scale, and what the indicators were computed from.
    options, links, rng
        What `trend` needs to do the same to surrogates.
    """

    plot_name = "early_warning"

    columns: Mapping[tuple[str, str], Floats] = field(repr=False)
    steps: NDArray[Any] = field(repr=False)
    x: str
    channels: tuple[ChannelNote, ...]
    indicators: tuple[str, ...]
    window: int
    detrend: str
    span: float
    causal: bool
    every: int
    series: Mapping[str, tuple[NDArray[np.intp], Floats, Floats]] = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    links: Mapping[str, Links] = field(repr=False)
    rng: int | np.random.Generator | None = field(repr=False, default=None)

    @property
    def single(self) -> bool:
        """Whether there is one channel, so that columns are named by indicator alone."""
        return len(self.channels) == 1

    def to_frame(self, *, flat: bool = False) -> pd.DataFrame:
        """Indexed by step, a column an indicator; see `early_warning` for several channels.

        Parameters
        ----------
        flat : bool, default False
            With several channels, one level of names, ``"lag1 loss"``, instead of two.
        """
        import pandas as pd

        index = pd.Index(self.steps, name=self.x)
        if self.single or flat:
            names: Any = [
                name if self.single or channel == ALL else f"{name} {channel}" for name, channel in self.columns
            ]
        else:
            names = pd.MultiIndex.from_tuples(list(self.columns), names=["indicator", "channel"])
        data = np.stack(list(self.columns.values()), axis=1) if self.columns else np.empty((self.steps.size, 0))
        return pd.DataFrame(data, index=index, columns=names)

    def scores(self) -> pd.DataFrame:
        """What alarms are made of: `to_frame` with one level of names.

        Raises
        ------
        InputError
            If the result is not causal.
        """
        if not self.causal:
            raise InputError(
                f"these indicators are not causal (detrend={self.detrend!r} sees later rows), so no alarm can be made "
                "of them; use detrend='ewma' or 'local'."
            )
        return self.to_frame(flat=True)

    def composite(self, signs: Mapping[str, float], *, burn_in: int = 30) -> pd.DataFrame:
        r"""Sum of indicators, each in standard deviations from its own past (Drake & Griffen 2010, Nature 467:456).

        .. math:: e_t = \sum_j \mathrm{sign}_j \, (I_{j,t} - \mathrm{mean}_{s<t} I_{j,s}) / \mathrm{sd}_{s<t} I_{j,s}

        Row *t* is no part of what it is compared with. Neighbouring values of a rolling indicator share their window,
        so the standard deviation is too small early on: compare *e* with that of healthy runs, not with 2.

        Parameters
        ----------
        signs : mapping of str to float
            Indicators of single channels, and the sign with which they count: ``{"variance": 1, "return_rate": -1}``.
        burn_in : int, default 30
            Values an indicator must have had.

        Returns
        -------
        DataFrame
            Indexed by step, a column a channel; NaN where one of the indicators has none.

        Examples
        --------
        >>> from trajscope.detect.indicators import early_warning
        >>> found = early_warning(np.sin(np.arange(300.0)) * np.linspace(1, 3, 300), window=50)
        >>> bool(found.composite({"variance": 1}).iloc[-1, 0] > 1.5)
        True
        """
        import pandas as pd

        own = [name for name in self.indicators if self._has(name)]
        for name in signs:
            if name not in own:
                raise InputError(f"no indicator {name!r} of single channels was computed. {nearest(name, own)}")
        if not signs or burn_in < 3:
            raise InputError(f"signs holds {len(signs)} indicators, burn_in is {burn_in}; expected 1 and 3, or more.")
        out = {}
        for note in self.channels:
            total: Any = 0.0
            for name, sign in signs.items():
                values = pd.Series(self.columns[name, note.name])
                past = values.expanding(burn_in)
                total = total + sign * (values - past.mean().shift()) / past.std().shift()
            out[note.name] = total.to_numpy()
        return pd.DataFrame(out, index=pd.Index(self.steps, name=self.x))

    def resolvable(self, rho: float = 0.5, *, level: float = 0.05, power: float = 0.8) -> float:
        r"""Smallest rise of lag-1 autocorrelation above `rho` that one window tells with the given power.

        From :math:`n \ge (z_a + z_b)^2 (1 - \bar\rho^2) / (\rho_1 - \rho_0)^2`, one-sided. NaN if none below 1.
        """
        from scipy.stats import norm

        need = (norm.ppf(1 - level) + norm.ppf(power)) ** 2
        higher = np.linspace(rho, 1, 2001)[1:]
        enough = self.window * (higher - rho) ** 2 >= need * (1 - ((higher + rho) / 2) ** 2)
        return float(higher[np.argmax(enough)] - rho) if enough.any() else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: how it was made, and the last value of each indicator."""
        last = {
            name if self.single or channel == ALL else f"{name} {channel}": _last(values)
            for (name, channel), values in self.columns.items()
        }
        return {
            "indicators": list(self.indicators),
            "channels": jsonable(list(self.channels)),
            "window": self.window,
            "detrend": self.detrend,
            "span": self.span,
            "causal": self.causal,
            "every": self.every,
            "n_steps": int(self.steps.size),
            "last": jsonable(last),
            "provenance": jsonable(self.provenance),
        }

    def summary(self) -> str:
        """A few sentences: what was computed, from when on, what it can tell."""
        valued = [np.flatnonzero(~np.isnan(v)) for v in self.columns.values()]
        first = min((int(rows[0]) for rows in valued if rows.size), default=-1)
        many = "" if self.single else f" of {len(self.channels)} channels"
        head = f"{len(self.indicators)} indicators{many}, window {self.window} rows, baseline {self.detrend}"
        if first < 0:
            most = max((c.n_rows for c in self.channels), default=0)
            return f"{head}: cannot tell, no window is whole ({most} rows)."
        text = f"{head}, valued from {self.x} {self.steps[first]} on."
        gain = self.resolvable()
        if not math.isnan(gain):
            text += f" One window tells a lag-1 autocorrelation of 0.50 from {0.5 + gain:.2f} (80 % power)."
        if not self.causal:
            text += " Not causal: for description only."
        strides = sorted({c.stride for c in self.channels if not math.isnan(c.stride)})
        if strides and strides != [1.0]:
            text += f" Logged every {' or '.join(f'{s:g}' for s in strides)} steps; rates are per logged row."
        rough = [c for c in self.channels if c.irregular > 0.01]
        if rough:
            worst = max(rough, key=lambda c: c.irregular)
            text += f" Irregular steps: {worst.irregular:.0%} of the distances in {worst.name} are not its stride."
        return text

    def trend(
        self,
        indicators: Sequence[str] | str | None = None,
        *,
        surrogates: Sequence[str] | str = "ar1",
        n: int = 199,
        start: float | None = None,
        stop: float | None = None,
        side: str = "both",
        points: int = 100,
        rng: int | np.random.Generator | None = None,
    ) -> Trend:
        """Kendall's tau of indicators of single channels, with p-values from surrogates; never tau alone.

        Parameters
        ----------
        indicators : sequence of str, optional
            Default all that were computed for single channels.
        surrogates : {"ar1", "iaaft", "block"} or several of them, default "ar1"
            See `trajscope.detect.indicators.trend`.
        n : int, default 199
            Surrogates; 19 are the least that can give p = 0.05.
        start, stop : float, optional
            Range of steps, both ends in it: declare it before looking. Default all rows with a value.
        side : {"both", "up", "down"}, default "both"
            A fold lets lag-1 autocorrelation rise, a flip lets it fall.
        points : int, default 100
            Evenly spaced values that the test uses: neighbours in a rolling indicator share all rows but one.
        rng : int or numpy.random.Generator, optional
            Default: that of the result.

        Returns
        -------
        Trend

        Raises
        ------
        InputError
            Unknown indicator, surrogate or side.
        NotEnoughData
            Fewer than 19 surrogates.

        Examples
        --------
        >>> from trajscope.detect.indicators import early_warning
        >>> from trajscope.simulate import linear_map
        >>> x = linear_map(1000, np.linspace(0.2, 0.97, 1000), rng=1)
        >>> found = early_warning(x, window=250, indicators="lag1").trend(rng=1).to_frame()
        >>> bool(found.loc["lag1", "tau"] > 0.5 and found.loc["lag1", "p"] < 0.05)
        True
        """
        import pandas as pd

        kinds = (surrogates,) if isinstance(surrogates, str) else tuple(surrogates)
        for kind in kinds:
            if kind not in KINDS:
                raise InputError(f"surrogates holds {kind!r}. {nearest(str(kind), KINDS)}")
        if side not in ("both", "up", "down"):
            raise InputError(f"side is {side!r}. {nearest(str(side), ('both', 'up', 'down'))}")
        if not kinds or n < 19:
            raise NotEnoughData(
                f"{n} surrogates of {len(kinds)} kinds; 19 of one are the least that can give p = 0.05."
            )
        if points < 10:
            raise InputError(f"points is {points}; expected 10 or more.")
        computed = [name for name in self.indicators if knows(name) and self._has(name)]
        wanted = computed if indicators is None else [indicators] if isinstance(indicators, str) else list(indicators)
        for name in wanted:
            if name not in computed:
                raise InputError(f"no indicator {name!r} of single channels was computed. {nearest(name, computed)}")
        generator = as_generator(self.rng if rng is None else rng)
        low, high = -math.inf if start is None else float(start), math.inf if stop is None else float(stop)
        rows, index = [], []
        for note in self.channels:
            for name, row in self._trend_of(note.name, wanted, kinds, n, (low, high), side, points, generator).items():
                rows.append(row)
                index.append((name, note.name))
        keys: Any = (
            pd.Index([name for name, _ in index], name="indicator")
            if self.single
            else pd.MultiIndex.from_tuples(index, names=["indicator", "channel"])
        )
        table = pd.DataFrame(rows, index=keys)
        parameters = {"surrogates": kinds, "n": n, "start": start, "stop": stop, "side": side, "points": points}
        return Trend(
            table, side, n, low, high,
            provenance=make_provenance("early_warning.trend", parameters, *self.columns.values(),
                                       seed=rng if isinstance(rng, int) else None),
        )  # fmt: skip

    def _has(self, name: str) -> bool:
        return any(key == name and channel != ALL for key, channel in self.columns)

    def _trend_of(
        self,
        channel: str,
        names: Sequence[str],
        kinds: Sequence[str],
        n: int,
        span: tuple[float, float],
        side: str,
        points: int,
        rng: np.random.Generator,
    ) -> dict[str, dict[str, float]]:
        own_rows, x, _ = self.series[channel]
        chain = self.links[channel]
        steps = self.steps[own_rows].astype(np.float64)
        inside = (steps >= span[0]) & (steps <= span[1])
        observed = {name: self.columns[name, channel][own_rows] for name in names}
        picked: dict[str, NDArray[np.intp]] = {}
        out: dict[str, dict[str, float]] = {}
        for name, values in observed.items():
            rows = np.flatnonzero(inside & ~np.isnan(values))
            thin = np.unique(np.linspace(0, rows.size - 1, min(points, rows.size)).round().astype(np.intp))
            picked[name] = rows[thin] if rows.size else rows
            out[name] = {
                "tau": float(kendall_all(values[rows])),
                **{f"p_{kind}": math.nan for kind in kinds},
                "p": math.nan,
                "n_values": float(rows.size),
                "n_points": float(picked[name].size),
            }
        able = [name for name in names if picked[name].size >= 10]
        if not able:
            return out
        stop = int(max(picked[name][-1] for name in able)) + 1  # rows after the range are no business of the test
        part = x[:stop]
        gone = np.isnan(part)
        bounds = [b for b in chain.bounds if b < stop]
        course = np.concatenate([slow_course(part[a:b]) for a, b in pairwise([*bounds, stop])])
        noise = np.where(gone, np.nan, part - course)
        for kind in kinds:
            made = course + noise_like(noise, kind, n, rng)
            made[:, gone] = np.nan
            z = residuals(made, self.detrend, self.span, bounds)
            linked = None if chain.hop is None else chain.hop[:stop]
            cut = Links(tuple(bounds), linked, chain.stride, chain.irregular)
            windows = windows_of(z, made, cut, self.window, every=self.every, **self.options)
            for name, values in compute(able, windows).items():
                at = picked[name]
                taus = kendall(np.concatenate([observed[name][None, at], values[:, at]]))
                tau, null = float(taus[0]), taus[1:][~np.isnan(taus[1:])]
                more = {"both": np.abs(null) >= abs(tau), "up": null >= tau, "down": null <= tau}[side]
                if null.size >= 19 and not math.isnan(tau):
                    out[name][f"p_{kind}"] = (1 + int(np.count_nonzero(more))) / (null.size + 1)
        for row in out.values():
            row["p"] = float(np.max([row[f"p_{kind}"] for kind in kinds]))
        return out


def _last(values: Floats) -> float:
    known = np.flatnonzero(~np.isnan(values))
    return float(values[known[-1]]) if known.size else math.nan
