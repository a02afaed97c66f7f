r"""Statistics of lead times: chance, nulls, curves.

An alarm at random, with probability *f* in a run watched over *E* steps, comes at the rate
:math:`r = -\ln(1-f)/E`; it is the first one and in time with probability
:math:`e^{-r a}\,(1 - e^{-r b})` for *a* steps watched before the window and *b* in it.

Nulls, each :math:`p = (1 + \#)/(B + 1)`:

* **shift**: each event run's confirmed score is shifted circularly over the rows that were watched; the event
  stays. What an alarm owes to how often the score is high, not to when, remains (Kreuz et al. 2004, PRE 69, 061915);
* **label**: the events, with their windows, are dealt to the runs of their stratum anew. What an alarm owes to the time
  of training at which events happen remains.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.alarms import extremes
from trajscope.inference._lead_cases import Case

__all__ = [
    "area",
    "chance",
    "kaplan_meier",
    "label_null",
    "risk_set_auc",
    "roc",
    "shift_null",
    "survival",
    "time_in_warning",
    "window_auc",
]

Floats = NDArray[np.float64]


def chance(events: Sequence[Case], rate: float, exposure: float) -> float:
    """Share of events that random alarms at this rate per healthy run would foresee."""
    if not events or exposure <= 0:
        return float("nan")
    r = -np.log1p(-min(rate, 1 - 1e-12)) / exposure
    before = np.array([max(c.low, c.start) - c.start for c in events])
    inside = np.array([c.high - max(c.low, c.start) for c in events])
    return float(np.mean(np.exp(-r * before) * -np.expm1(-r * np.maximum(inside, 0))))


def shift_null(events: Sequence[Case], name: str, thresholds: Floats, n: int, rng: np.random.Generator) -> Floats:
    """Number of timely warnings in each of `n` sets of circularly shifted scores."""
    counts = np.zeros(n)
    for case, h in zip(events, thresholds, strict=True):
        watched = (case.steps >= case.start) & (case.steps < case.stop)
        at, high = case.steps[watched], case.scores[name][watched] > h
        m = at.size
        if m < 2 or not high.any():
            continue
        shifts = rng.integers(0, m, n)
        rolled = high[(np.arange(m)[None, :] - shifts[:, None]) % m]
        early = rolled[:, at < case.low].any(axis=1)
        timely = rolled[:, (at >= case.low) & (at <= case.high)].any(axis=1)
        counts += timely & ~early
    return counts


def label_null(
    events: Sequence[Case],
    healthy: Sequence[Case],
    name: str,
    thresholds: dict[str, float],
    n: int,
    rng: np.random.Generator,
) -> Floats:
    """Number of timely warnings when events and their windows are dealt to the runs of their stratum at random."""
    counts = np.zeros(n)
    for stratum in {c.stratum for c in events}:
        own = [c for c in events if c.stratum == stratum]
        runs = own + [c for c in healthy if c.stratum == stratum]
        h = thresholds[stratum]
        before, inside = _beside(own, runs, name)
        warns = (before <= h) & (h < inside)  # would this event have been foreseen in that run?
        columns = np.array([rng.permutation(len(runs))[: len(own)] for _ in range(n)])
        counts += warns[np.arange(len(own))[None, :], columns].sum(axis=1)
    return counts


def _beside(events: Sequence[Case], runs: Sequence[Case], name: str) -> tuple[Floats, Floats]:
    """Largest score of each run before and in the window of each event: two of shape (n_events, n_runs)."""
    start, low, high = (np.array([getattr(c, k) for c in events], dtype=np.float64) for k in ("start", "low", "high"))
    found = [extremes(run.steps, run.scores[name], start, low, high) for run in runs]
    before, inside = (np.array([f[i] for f in found]).reshape(len(runs), len(events)).T for i in (0, 1))
    return before, inside


def roc(events: Sequence[tuple[float, float]], healthy: Floats) -> tuple[Floats, Floats, Floats]:
    """False-alarm rate and sensitivity at every threshold, from none to all alarmed.

    Parameters
    ----------
    events : sequence of (before, inside)
        Largest confirmed scores before the window and in it.
    healthy : (n,) array
        Largest confirmed scores.

    Returns
    -------
    thresholds, false_alarm_rate, sensitivity : arrays
        By falling threshold. Sensitivity need not rise: at a low threshold alarms come too early.
    """
    pairs = np.asarray(events, dtype=np.float64).reshape(-1, 2)
    levels = np.unique(np.concatenate([pairs.ravel(), healthy]))
    levels = np.concatenate([[-np.inf], levels, [np.inf]])[::-1]
    rate = np.mean(healthy[None, :] > levels[:, None], axis=1)
    hit = np.mean((pairs[None, :, 0] <= levels[:, None]) & (pairs[None, :, 1] > levels[:, None]), axis=1)
    return levels, rate, hit


def area(rate: Floats, hit: Floats, most: float = 1.0) -> float:
    """Area under the best sensitivity reachable at each false-alarm rate up to `most`, as a share of `most`."""
    best = np.maximum.accumulate(hit)
    edges, first = np.unique(rate, return_index=True)
    top = np.maximum.reduceat(best, first)
    ends = np.minimum(np.append(edges[1:], most), most)
    return float(np.sum(np.maximum(ends - edges, 0) * top) / most)


def risk_set_auc(events: Sequence[Case], others: Sequence[Case], name: str, ahead: float) -> tuple[Floats, list[str]]:
    """For each event, the share of runs at risk at the same step whose score is lower (ties count half).

    Scores are compared `ahead` steps before the onset, at the last row at or before that step; a run is at risk while
    its own event has not begun. Returns the shares and the clusters of the events.
    """
    asked = [c for c in events if c.onset - ahead >= max(c.start, c.injection)]
    shares: list[float] = []
    clusters: list[str] = []
    for stratum in sorted({c.stratum for c in asked}):
        own = [c for c in asked if c.stratum == stratum]
        runs = [c for c in others if c.stratum == stratum]
        at = np.array([c.onset - ahead for c in own])
        value = np.array([_values(c, name, at) for c in runs]).reshape(len(runs), len(own))
        onset, last = np.array([c.onset for c in runs]), np.array([c.steps[-1] for c in runs])
        for i, case in enumerate(own):
            known = float(_values(case, name, at[i : i + 1])[0])
            beside = value[(onset > case.onset) & (last >= at[i]), i]
            share = [] if np.isnan(known) else _below(known, beside[~np.isnan(beside)])
            shares.extend(share)
            clusters.extend([case.cluster] * len(share))
    return np.array(shares), clusters


def window_auc(events: Sequence[Case], healthy: Sequence[Case], name: str) -> float:
    """Mean share of healthy runs of the stratum whose largest score in an event's window, at the same steps, is lower.

    Ties count half; 0.5 where the score knows nothing. NaN where no event has a healthy run beside it.
    """
    shares: list[float] = []
    for stratum in sorted({c.stratum for c in events}):
        own = [c for c in events if c.stratum == stratum]
        runs = [c for c in healthy if c.stratum == stratum]
        if not runs:
            continue
        inside = _beside(own, runs, name)[1]
        lasts = np.array([c.steps[-1] for c in runs])
        for case, row in zip(own, inside, strict=True):
            shares.extend(_below(case.extremes(name)[1], row[lasts >= case.high]))
    return float(np.mean(shares)) if shares else float("nan")


def _below(own: float, others: Floats) -> list[float]:
    """Share of `others` below, ties half; empty where there are none."""
    return [float(np.mean((others < own) + 0.5 * (others == own)))] if others.size else []


def _values(case: Case, name: str, at: Floats) -> Floats:
    """Score at the last row at or before each step; NaN before the first row."""
    row = np.searchsorted(case.steps, at, side="right") - 1
    return np.where(row >= 0, case.scores[name][np.maximum(row, 0)], np.nan)


def survival(leads: Floats) -> tuple[Floats, Floats]:
    """G(l): share of events foreseen at least *l* steps ahead; a miss (NaN) has no lead and stays in the count."""
    known = np.unique(leads[~np.isnan(leads)])
    grid = np.concatenate([[0.0], known])
    return grid, np.array([np.mean(np.nan_to_num(leads, nan=-np.inf) >= g) for g in grid])


def kaplan_meier(times: Floats, warned: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Kaplan-Meier curve of the time from the opening of the window to the warning; the window's end censors it."""
    grid = np.unique(times[warned])
    at_risk = np.array([np.sum(times >= g) for g in grid])
    died = np.array([np.sum((times == g) & warned) for g in grid])
    return np.concatenate([[0.0], grid]), np.concatenate([[1.0], np.cumprod(1 - died / np.maximum(at_risk, 1))])


def time_in_warning(healthy: Sequence[Case], name: str, thresholds: Floats) -> float:
    """Share of the watched rows of healthy runs that are above the threshold."""
    above = total = 0
    for case, h in zip(healthy, thresholds, strict=True):
        watched = (case.steps >= case.start) & (case.steps < case.stop)
        above += int(np.sum(case.scores[name][watched] > h))
        total += int(np.sum(watched))
    return above / total if total else float("nan")
