"""Is a run like its healthy siblings? A band over all steps and channels at once, with a floor of noise.

Every channel is put on the scale of its role and read at up to 200 steps. Its distance from the references at a step is
how far it lies on the wrong side of their mean, in units of

.. math:: s(t) = \\sqrt{v(t) (1 + 1/n)}, \\qquad v(t) = \\max(\\bar v(t), \\sigma^2, (10^{-3} \\bar m)^2)

with :math:`\\bar v(t)` the variance between the references, averaged over neighbouring steps, and :math:`\\sigma` their
noise from row to row: references that happen to agree do not make a band of no width. The statistic is the largest
distance over all steps and channels (a maximum over a whole curve makes a pointwise band simultaneous), so one level
holds for the run. What that maximum is in a healthy run, each reference says when it is held against the others. From
19 references on at a level of 5 % the threshold is their conformal quantile; with fewer, the upper prediction bound of
their logarithms (Student's t), which claims more than it can prove and is therefore said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from trajscope.detect._inputs import performance_series
from trajscope.detect.spikes import transform
from trajscope.errors import InputError, NotEnoughData
from trajscope.history.roles import BIGGER_IS_BETTER
from trajscope.history.run import Run
from trajscope.inference._compare_bands import POINTS, at_steps, finite_steps

__all__ = ["BandTest", "ReferenceBand"]

Floats = NDArray[np.float64]

#: References below which nothing can be said of a new run.
LEAST = 4
#: Steps of the grid on each side over which the variance between references is averaged.
BESIDE = 5
#: Share of the typical level below which two values count as equal.
RELATIVE = 1e-3
#: Threshold that references which agree to the last digit do not undercut, in units of the floor.
LEAST_SD = 3.0


@dataclass(frozen=True)
class BandTest:
    """What a band says of one run.

    Attributes
    ----------
    outside : bool
    statistic, threshold : float
        Largest distance over steps and channels, and what a healthy run stays below.
    channel : str
        Where it is largest.
    step : float
        First step outside; NaN where the run stays inside.
    ends_outside : bool
        Whether the last tenth of the steps lies outside, by its median.
    share : float
        Share of the references' steps that the run covers.
    """

    outside: bool
    statistic: float
    threshold: float
    channel: str
    step: float
    ends_outside: bool
    share: float


@dataclass(frozen=True, eq=False)
class ReferenceBand:
    """Healthy references, ready to test runs against; made by `ReferenceBand.of`.

    Attributes
    ----------
    names : tuple of str
        Ids of the references.
    modes : dict of str to str
        Channel -> the direction that is better.
    grid : ndarray, shape (n_steps,)
    tables : dict of str to ndarray, shape (n_references, n_steps)
        Values on the scale of the role, bigger is worse.
    noise : dict of str to float
    own : ndarray, shape (n_references,)
        Largest distance of each reference from the others.
    threshold : float
    alpha : float
    exact : bool
        Whether the threshold is a conformal quantile.
    """

    names: tuple[str, ...]
    modes: dict[str, str]
    grid: Floats
    tables: dict[str, Floats]
    noise: dict[str, float]
    own: Floats
    threshold: float
    alpha: float
    exact: bool

    @classmethod
    def of(cls, runs: Sequence[Run], *, performance: str | None = None, alpha: float = 0.05) -> ReferenceBand:
        """Learn a band from healthy runs of the same settings.

        Parameters
        ----------
        runs : sequence of Run
            At least four.
        performance : str, optional
            ``NAME:max`` or ``NAME:min``; default by role.
        alpha : float, default 0.05
            Chance that a healthy run leaves the band anywhere, in any channel.

        Raises
        ------
        NotEnoughData
            With fewer than four runs, or without a channel that all of them log.
        InputError
            If ``alpha`` is out of range.
        """
        if not 0 < alpha < 1:
            raise InputError(f"alpha = {alpha!r} is out of range; expected more than 0, less than 1")
        if len(runs) < LEAST:
            raise NotEnoughData(f"{len(runs)} reference runs; {LEAST} are needed to know how much healthy runs differ")
        modes = {n: m for n, m in _channels(runs[0], performance).items() if all(_logged(r, n) for r in runs)}
        if not modes:
            raise NotEnoughData("the references have no loss or performance channel in common")
        last = min(float(r.channels[n].steps[-1]) for r in runs for n in modes)
        first = max(float(r.channels[n].steps[0]) for r in runs for n in modes)
        every = np.unique(np.concatenate([r.channels[n].steps for r in runs for n in modes])).astype(np.float64)
        every = every[(every >= first) & (every <= last)]
        if every.size < 5:
            raise NotEnoughData("the references share fewer than five steps")
        grid = every[np.unique(np.linspace(0, every.size - 1, min(POINTS, every.size)).round().astype(int))]
        tables = {n: np.vstack([_values(r, n, m, grid) for r in runs]) for n, m in modes.items()}
        noise = {n: _noise([_scaled(r, n, m)[1] for r in runs]) for n, m in modes.items()}
        n = len(runs)
        own = np.array(
            [
                max(
                    float(np.nanmax(_distance(table[j], np.delete(table, j, axis=0), noise[name]), initial=0.0))
                    for name, table in tables.items()
                )
                for j in range(n)
            ]
        )
        threshold, exact = _threshold(own, alpha)
        threshold = max(threshold, LEAST_SD)
        return cls(tuple(r.id for r in runs), modes, grid, tables, noise, own, threshold, alpha, exact)

    def test(self, run: Run) -> BandTest:
        """Hold a run against the band.

        Raises
        ------
        NotEnoughData
            If the run logs none of the channels of the band at its steps.
        """
        best: tuple[float, str, Floats] | None = None
        for name, mode in self.modes.items():
            if not _logged(run, name):
                continue
            d = _distance(_values(run, name, mode, self.grid), self.tables[name], self.noise[name])
            if np.isnan(d).all():
                continue
            top = float(np.nanmax(d, initial=0.0))
            if best is None or top > best[0]:
                best = (top, name, d)
        if best is None:
            raise NotEnoughData(f"none of {', '.join(self.modes)} is logged at the steps of the references")
        top, name, d = best
        seen = d[~np.isnan(d)]
        out = np.flatnonzero(d > self.threshold)
        tail = seen[-max(1, seen.size // 10) :]
        return BandTest(
            bool(out.size),
            top,
            self.threshold,
            name,
            float(self.grid[out[0]]) if out.size else float("nan"),
            bool(np.median(tail) > self.threshold),
            float(seen.size / d.size),
        )


def _channels(run: Run, performance: str | None) -> dict[str, str]:
    """Performance and losses of a run, with the direction that is better."""
    found: dict[str, str] = {}
    try:
        series, mode = performance_series(run, performance)
        found[series.name] = mode
    except InputError:
        if performance:
            raise
    for role in ("loss", "val_loss"):
        for channel in run.by_role(role)[:1]:
            found.setdefault(channel.name, "max" if BIGGER_IS_BETTER[role] else "min")
    return found


def _logged(run: Run, name: str) -> bool:
    return name in run.channels and bool(np.isfinite(run.channels[name].values).any())


def _scaled(run: Run, name: str, mode: str) -> tuple[Floats, Floats]:
    """Steps and values of a channel on the scale of its role, bigger is worse; NaN counts as infinitely bad."""
    steps, values = finite_steps(run, name)
    y, _ = transform(values, run.channels[name].role)
    y = -y if mode == "max" else y
    return steps, np.where(np.isfinite(y), y, np.inf)


def _values(run: Run, name: str, mode: str, grid: Floats) -> Floats:
    return np.asarray(at_steps([_scaled(run, name, mode)], grid)[0], dtype=np.float64)


def _noise(curves: Sequence[Floats]) -> float:
    """Noise from row to row, the median over references."""
    sizes = []
    for y in curves:
        moves = np.diff(y[np.isfinite(y)])
        if moves.size:
            sizes.append(1.4826 * float(np.median(np.abs(moves - np.median(moves)))) / np.sqrt(2))
    return float(np.median(sizes)) if sizes else 0.0


def _distance(y: Floats, references: Floats, noise: float) -> Floats:
    """How far a curve lies above the mean of the references at each step, in their sd; NaN where nothing is to say."""
    good = np.where(np.isfinite(references), references, np.nan)
    n = np.count_nonzero(~np.isnan(good), axis=0)
    enough = n >= LEAST - 1
    mean, variance = np.full(y.size, np.nan), np.full(y.size, np.nan)
    if enough.any():
        mean[enough] = np.nanmean(good[:, enough], axis=0)
        variance[enough] = np.nanvar(good[:, enough], axis=0, ddof=1)
    window = np.ones(2 * BESIDE + 1)
    held = np.convolve(np.nan_to_num(variance), window, "same")
    variance = held / np.maximum(np.convolve(enough.astype(np.float64), window, "same"), 1.0)
    level = float(np.nanmedian(np.abs(mean))) if enough.any() else 0.0
    floor = max(noise**2, (RELATIVE * level) ** 2, 1e-300)
    scale = np.sqrt(np.maximum(variance, floor) * (1 + 1 / np.maximum(n, 1)))
    return np.asarray((y - mean) / scale)


def _threshold(own: Floats, alpha: float) -> tuple[float, bool]:
    """Largest distance of a healthy run: the conformal quantile where there are enough, else a prediction bound."""
    n = own.size
    rank = int(np.ceil((1 - alpha) * (n + 1)))
    if rank <= n:
        return float(np.sort(own)[rank - 1]), True
    logs = np.log(np.maximum(own, 1e-3))
    return float(np.exp(logs.mean() + student.ppf(1 - alpha, n - 1) * logs.std(ddof=1) * np.sqrt(1 + 1 / n))), False
