"""One indicator over all cases: thresholds, outcomes, its row of the table and its curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trajscope._core.conformal import conformal_threshold, needed_runs, upper_rate
from trajscope._core.resample import cluster_means, percentile_interval, proportion_interval
from trajscope.detect.alarms import first_alarm
from trajscope.inference._lead_cases import CALIBRATION, Case
from trajscope.inference._lead_stats import (
    area,
    chance,
    kaplan_meier,
    label_null,
    risk_set_auc,
    roc,
    shift_null,
    survival,
    time_in_warning,
    window_auc,
)

__all__ = ["Judged"]

Floats = NDArray[np.float64]


class Judged:
    """One indicator over all cases."""

    def __init__(self, cases: Sequence[Case], name: str, alpha: float) -> None:
        self.cases, self.name, self.alpha = cases, name, alpha
        strata = {c.stratum for c in cases}
        with_score = [c for c in cases if name in c.scores]
        calibration = {
            s: np.array(
                [c.largest(name) for c in with_score if c.split == CALIBRATION[0] and not c.event and c.stratum == s]
            )
            for s in strata
        }
        self.thresholds = {s: conformal_threshold(maxima, alpha) for s, maxima in calibration.items()}
        self.maxima = calibration
        test = [c for c in with_score if c.split != CALIBRATION[0] and self.certified(c)]
        self.without = len(cases) - len(with_score)
        self.events = [c for c in test if c.event]
        self.healthy = [c for c in test if not c.event]
        self.outcomes = [self._outcome(c) for c in cases]

    def certified(self, case: Case) -> bool:
        """Whether the run's stratum has enough calibration runs."""
        return self.maxima[case.stratum].size >= needed_runs(self.alpha)

    def _of(self, cases: Sequence[Case]) -> Floats:
        return np.array([self.thresholds[c.stratum] for c in cases])

    def _outcome(self, case: Case) -> dict[str, Any]:
        h = self.thresholds[case.stratum]
        if self.name not in case.scores:
            return self._record(case, "no score", math.nan, math.nan)
        alarm = first_alarm(case.steps, case.scores[self.name], h, case.start, case.stop)
        lead = case.onset - alarm.step if alarm is not None and case.event else math.nan
        if not self.certified(case):
            outcome, alarm, lead = "not certifiable", None, math.nan
        elif not case.event:
            outcome = "quiet" if alarm is None else "alarm"
        elif alarm is None:
            outcome = "missed"
        elif alarm.step < case.low:
            outcome = "too early"
        else:
            outcome = "timely" if alarm.step <= case.high else "late"
        return self._record(case, outcome, math.nan if alarm is None else alarm.step, lead)

    def _record(self, case: Case, outcome: str, alarm_step: float, lead: float) -> dict[str, Any]:
        return {
            "run": case.run, "indicator": self.name, "stratum": case.stratum, "split": case.split, "event": case.event,
            "outcome": outcome, "alarm_step": alarm_step, "lead": lead, "threshold": self.thresholds[case.stratum],
            "largest": case.largest(self.name) if self.name in case.scores else math.nan,
        }  # fmt: skip

    def frame(self) -> pd.DataFrame:
        """One row a run."""
        return pd.DataFrame(self.outcomes)

    def leads(self) -> Floats:
        """Lead of each test event; NaN where it was not foreseen in time."""
        own = {o["run"]: o for o in self.outcomes}
        return np.array([own[c.run]["lead"] if own[c.run]["outcome"] == "timely" else math.nan for c in self.events])

    def _standard(self, case: Case, values: Sequence[float]) -> tuple[float, ...]:
        """Scores in units of the stratum's calibration maxima, so that strata share one threshold."""
        maxima = self.maxima[case.stratum]
        if len(self.thresholds) == 1:
            return tuple(values)
        known = maxima[np.isfinite(maxima)]
        centre = float(np.median(known)) if known.size else 0.0
        spread = float(np.median(np.abs(known - centre))) if known.size else 1.0
        return tuple((v - centre) / max(spread, 1e-12) for v in values)

    def row(self, n_boot: int, n_null: int, level: float, rng: np.random.Generator) -> dict[str, Any]:
        """The indicator's row of the table."""
        outcomes = [o["outcome"] for c, o in zip(self.cases, self.outcomes, strict=True) if c in self.events]
        leads = self.leads()
        n, k = len(self.events), int(np.sum(~np.isnan(leads)))
        false = sum(c.largest(self.name) > self.thresholds[c.stratum] for c in self.healthy)
        rate_low, rate_high = proportion_interval(false, len(self.healthy), level)
        restricted = np.nan_to_num(leads, nan=0.0)
        clusters = [c.cluster for c in self.events]
        hit_low, hit_high = proportion_interval(k, n, level)
        mean_low = mean_high = math.nan
        if n:
            hits = ~np.isnan(leads)
            draws = cluster_means(np.column_stack([restricted, hits]), clusters, n_boot, rng)
            mean_low, mean_high = percentile_interval(draws[:, 0], level)
            if len(set(clusters)) < n and 0 < k < n:  # runs of a seed share a trunk: they are not n trials
                low, high = percentile_interval(draws[:, 1], level)
                hit_low, hit_high = min(low, hit_low), max(high, hit_high)
        ordered = np.sort(np.nan_to_num(leads, nan=-np.inf))[::-1]
        median = float(np.median(ordered)) if n else math.nan
        exposure = float(np.median([min(c.stop, c.steps[-1]) - c.start for c in self.healthy])) if self.healthy else 0.0
        own = sorted({t for s, t in self.thresholds.items() if self.maxima[s].size >= needed_runs(self.alpha)})
        counted = [m.size for m in self.maxima.values() if m.size >= needed_runs(self.alpha)]
        p_shift = p_label = math.nan
        if n:
            shifted = shift_null(self.events, self.name, self._of(self.events), n_null, rng)
            p_shift = (1 + np.sum(shifted >= k)) / (n_null + 1)
            dealt = label_null(self.events, self.healthy, self.name, self.thresholds, n_null, rng)
            p_label = (1 + np.sum(dealt >= k)) / (n_null + 1)
        _, rate, hit = self._roc()
        return {
            "indicator": self.name,
            "threshold": own[0] if len(own) == 1 else math.nan,
            "without_score": self.without,
            "n_calibration": sum(counted),
            "upper_rate": max((upper_rate(m, self.alpha) for m in counted), default=1.0),
            "n_healthy": len(self.healthy),
            "false_alarms": false,
            "false_alarm_rate": false / len(self.healthy) if self.healthy else math.nan,
            "false_alarm_low": rate_low,
            "false_alarm_high": rate_high,
            "n_events": n,
            "timely": k,
            "late": outcomes.count("late"),
            "too_early": outcomes.count("too early"),
            "missed": outcomes.count("missed"),
            "sensitivity": k / n if n else math.nan,
            "sensitivity_low": hit_low,
            "sensitivity_high": hit_high,
            "median_lead": median if np.isfinite(median) else math.nan,
            "mean_lead": float(restricted.mean()) if n else math.nan,
            "mean_lead_low": mean_low,
            "mean_lead_high": mean_high,
            "auroc": window_auc(self.events, self.healthy, self.name),
            "partial_auc": area(rate, hit, 0.1) if n and self.healthy else math.nan,
            "time_in_warning": time_in_warning(self.healthy, self.name, self._of(self.healthy)),
            "chance": chance(self.events, self.alpha, exposure),
            "p_shift": p_shift,
            "p_label": p_label,
        }

    def _roc(self) -> tuple[Floats, Floats, Floats]:
        pairs = [self._standard(c, c.extremes(self.name)) for c in self.events]
        healthy = np.array([self._standard(c, (c.largest(self.name),))[0] for c in self.healthy])
        if not pairs or not healthy.size:
            return np.zeros(0), np.zeros(0), np.zeros(0)
        return roc([(p[0], p[1]) for p in pairs], healthy)

    def curves(self, n_boot: int, level: float, rng: np.random.Generator) -> dict[str, pd.DataFrame]:
        """Its curves; see `trajscope.inference.lead_time.LeadTime`."""
        levels, rate, hit = self._roc()
        leads = self.leads()
        grid, share = survival(leads) if leads.size else (np.zeros(0), np.zeros(0))
        opened = np.array([max(c.low, c.start) for c in self.events])
        warned = ~np.isnan(leads)
        ends = np.array([c.onset for c in self.events]) - np.where(
            warned, leads, [c.onset - c.high for c in self.events]
        )
        time, waiting = kaplan_meier(ends - opened, warned) if leads.size else (np.zeros(0), np.zeros(0))
        risk = []
        reach = max((c.high - max(c.low, c.start) for c in self.events), default=0.0)
        stride = max((c.stride for c in self.events), default=1.0)
        everyone = [c for c in self.cases if c.split != CALIBRATION[0] and self.name in c.scores]
        for ahead in sorted({stride, *(round(reach * f / stride) * stride for f in (0.125, 0.25, 0.5, 1.0))} - {0.0}):
            shares, clusters = risk_set_auc(self.events, everyone, self.name, ahead)
            if shares.size:
                low, high = percentile_interval(cluster_means(shares, clusters, n_boot, rng), level)
                risk.append((ahead, float(shares.mean()), low, high, shares.size))
        return {
            "roc": pd.DataFrame({"threshold": levels, "false_alarm_rate": rate, "sensitivity": hit}),
            "survival": pd.DataFrame({"lead": grid, "share": share}),
            "time_to_warning": pd.DataFrame({"time": time, "not_yet": waiting}),
            "risk_set": pd.DataFrame(risk, columns=["ahead", "auroc", "low", "high", "n_events"]),
        }
