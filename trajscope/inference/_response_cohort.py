"""Responses of many runs: intervals and mean curves over seeds, recovery, thresholds by kind of insult."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.collapse import Collapse
from trajscope.errors import InputError
from trajscope.history.run import Run
from trajscope.inference._response_curve import Curve
from trajscope.inference._response_groups import Estimate, Threshold, collapse_threshold, mean_over_seeds
from trajscope.inference._response_signals import Latent, Signals, fit_latent

__all__ = [
    "STATISTICS",
    "ChannelResponse",
    "MeanCurve",
    "Recovery",
    "estimates_of",
    "mean_curve",
    "recovery_of",
    "thresholds_of",
]

Floats = NDArray[np.float64]

STATISTICS = ("peak", "time_to_peak", "half_life", "shift", "area")


@dataclass(frozen=True)
class ChannelResponse:
    """Response of one channel of one run; the numbers are those of `trajscope.inference._response_curve.Shape`.

    ``noise`` is the baseline sd on the scale of the channel's role; ``note`` says what was left out or held.
    """

    run: str
    condition: str
    seed: str
    channel: str
    reference: str
    noise: float
    peak: float
    largest: float
    time_to_peak: float
    half_life: float
    shift: float
    area: float
    note: str = ""


@dataclass(frozen=True, eq=False)
class MeanCurve:
    """Mean response of a condition over seeds, with a pointwise t-interval; arrays of shape (n_offsets,)."""

    condition: str
    channel: str
    offsets: Floats
    mean: Floats
    low: Floats
    high: Floats
    n_seeds: int


@dataclass(frozen=True)
class Recovery:
    """Performance against latent recovery, over runs in which performance fell or the latent distance left its bound.

    Attributes
    ----------
    both, performance_only, latent_only, neither : int
        Recovered in performance (no collapse, or one that came back) and in the latent distance (median D of the last
        tenth of the rows under the bound).
    unknown : int
        Runs in which either cannot be told.
    untouched : int
        Runs in which nothing fell and D never left its bound for three rows.
    controls_inside : float
        Share of controls whose last tenth lies under the bound: what a healthy run gives.
    bound : float
    channels : tuple of str
        Behind the latent distance.
    reason : str
        Why there is no table, else empty.
    """

    both: int = 0
    performance_only: int = 0
    latent_only: int = 0
    neither: int = 0
    unknown: int = 0
    untouched: int = 0
    controls_inside: float = math.nan
    bound: float = math.nan
    channels: tuple[str, ...] = ()
    reason: str = ""


def estimates_of(
    rows: Sequence[ChannelResponse], rng: np.random.Generator, level: float, n_draws: int
) -> list[Estimate]:
    groups: dict[tuple[str, str], list[ChannelResponse]] = {}
    for row in rows:
        groups.setdefault((row.condition, row.channel), []).append(row)
    return [
        mean_over_seeds(
            [getattr(r, statistic) for r in group],
            [r.seed for r in group],
            rng,
            log=statistic == "half_life",
            level=level,
            n_draws=n_draws,
            names=(condition, channel, statistic),
        )
        for (condition, channel), group in groups.items()
        for statistic in STATISTICS
    ]


def mean_curve(condition: str, channel: str, parts: Sequence[tuple[str, Curve]], level: float) -> MeanCurve:
    """Mean over seeds on the offsets that at least half of the runs have."""
    from scipy.stats import t

    every, counts = np.unique(np.concatenate([c.offsets for _, c in parts]), return_counts=True)
    grid = every[2 * counts >= len(parts)]
    table = np.full((len(parts), grid.size), np.nan)
    for i, (_, curve) in enumerate(parts):
        rows = np.searchsorted(grid, curve.offsets)
        rows = np.minimum(rows, max(grid.size - 1, 0))
        same = grid[rows] == curve.offsets if grid.size else np.zeros(0, dtype=bool)
        table[i, rows[same]] = curve.delta[same]
    seeds = sorted({s for s, _ in parts})
    by_seed = np.array([_nanmean(table[[i for i, (s, _) in enumerate(parts) if s == seed]]) for seed in seeds])
    n = np.sum(~np.isnan(by_seed), axis=0)
    mean = _nanmean(by_seed)
    square = np.where(np.isnan(by_seed), 0.0, by_seed - mean) ** 2
    sd = np.sqrt(square.sum(axis=0) / np.maximum(n - 1, 1))
    half = np.where(n >= 3, t.ppf((1 + level) / 2, np.maximum(n - 1, 1)) * sd / np.sqrt(np.maximum(n, 1)), np.nan)
    return MeanCurve(condition, channel, grid, mean, mean - half, mean + half, len(seeds))


def _nanmean(table: Floats) -> Floats:
    n = np.sum(~np.isnan(table), axis=0)
    total = np.nansum(table, axis=0)
    out: Floats = np.divide(total, n, out=np.full(table.shape[1], np.nan), where=n > 0)
    return out


def recovery_of(
    members: Sequence[Run],
    steps: Sequence[float],
    found: Sequence[Signals],
    controls: Sequence[Run],
    latent: Any,
    tail: float,
) -> Recovery:
    if latent is None:
        latent = fit_latent(list({id(r): r for r in controls}.values()))
    if isinstance(latent, str):
        return Recovery(reason=f"no latent distance: {latent}")
    if not isinstance(latent, Latent):
        raise InputError(f"latent is a {type(latent).__name__}; a Latent (fit_latent of controls) is expected.")
    counts = Counter[str]()
    for run, start, signal in zip(members, steps, found, strict=True):
        at, d = latent.distance(run)
        after = d[at >= start]
        out = ~(after <= latent.bound)
        left = bool((out[:-2] & out[1:-1] & out[2:]).any()) if out.size > 2 else False
        outcome = signal.outcome
        fell = not math.isnan(signal.t_on)
        if outcome is None or not after.size or _open_ended(outcome):
            counts["unknown"] += 1
            continue
        if not left and not fell:
            counts["untouched"] += 1
            continue
        performance = not fell or outcome.recovery in ("transient", "lingering", "none")
        inside = _rests_inside(after, latent.bound, tail)
        key = {(True, True): "both", (True, False): "performance_only", (False, True): "latent_only"}
        counts[key.get((performance, inside), "neither")] += 1
    healthy = [_rests_inside(latent.distance(r)[1], latent.bound, tail) for r in {id(r): r for r in controls}.values()]
    share = float(np.mean(healthy)) if healthy else math.nan
    return Recovery(
        both=counts["both"],
        performance_only=counts["performance_only"],
        latent_only=counts["latent_only"],
        neither=counts["neither"],
        unknown=counts["unknown"],
        untouched=counts["untouched"],
        controls_inside=share,
        bound=latent.bound,
        channels=latent.names,
    )


def _open_ended(outcome: Collapse) -> bool:
    return outcome.kind in ("cannot tell", "not learned") or outcome.recovery == "undetermined"


def _rests_inside(d: Floats, bound: float, tail: float) -> bool:
    """Whether the median D of the last rows lies under the bound; a D that is no number does not."""
    last = d[-max(1, math.ceil(tail * d.size)) :]
    return bool(np.median(np.where(np.isnan(last), np.inf, last)) <= bound) if last.size else False


def thresholds_of(
    members: Sequence[Run], ranks: Sequence[Any], found: Sequence[Signals], level: float
) -> list[Threshold]:
    """One for each kind of insult that was given at two severities or more."""
    groups: dict[str, list[tuple[float, float, bool]]] = {}
    for run, rank, signal in zip(members, ranks, found, strict=True):
        if isinstance(rank, int | float) and math.isfinite(rank):
            amount = run.config.get("level")
            shown = float(amount) if isinstance(amount, int | float) and math.isfinite(amount) else float(rank)
            kind = str(run.config.get("perturbation", ""))
            groups.setdefault(kind, []).append((float(rank), shown, not math.isnan(signal.t_on)))
    out = []
    for kind, rows in sorted(groups.items()):
        x, amounts, hit = [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]
        if len(set(x)) < 2:
            continue
        alike = len(set(amounts)) < len(set(x))  # levels that do not tell severities apart: report the ranks
        out.append(collapse_threshold(x, hit, level=level, kind=kind, labels=None if alike else amounts))
    return out
