"""Labelled runs as cases for the manifold study, and what a method's first crossings amount to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trajscope._core.conformal import needed_runs
from trajscope._core.resample import proportion_interval
from trajscope.detect.manifold import InstabilityManifold, manifold_channels
from trajscope.errors import InputError, TrajscopeError
from trajscope.history.trajectory import Trajectory
from trajscope.inference._lead_cases import CALIBRATION, TEST
from trajscope.inference.studies.base import GetRun

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Case", "cases_of", "crossings", "fit_on", "level_for", "tally"]

EVENTS = ("transient", "lingering", "irrecoverable")
HEALTHY = ("none", "healthy", "control")
#: Columns beside the stratum that make runs differ before anything happens to them.
_CONDITION = ("width", "lr", "grad_noise", "entropy_bonus")
#: Healthy runs of one condition whose losses begin with so many equal rows are one run, recorded twice.
_SAME_ROWS = 50


@dataclass(frozen=True, eq=False)
class Case:
    """One labelled run.

    Attributes
    ----------
    run, domain, condition, axis : str
        Runs of one condition share a baseline. The axis is empty where none is declared.
    held_out : bool
    kind : {"control", "collapsed", "perturbed"}
        ``perturbed``: something was done to it and it did not collapse.
    injection : float
        Step before which any alarm is false; +inf in a control, -inf in a collapsed run without a declared injection.
    onset, confirmed : float
        Of the collapse; NaN where there is none.
    rows : Trajectory
        Common channels.
    """

    run: str
    domain: str
    condition: str
    axis: str
    held_out: bool
    kind: str
    injection: float
    onset: float
    confirmed: float
    rows: Trajectory

    @property
    def stride(self) -> float:
        """Median distance of its rows, in steps."""
        return float(np.median(np.diff(self.rows.steps)))


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return "" if value is None or value != value or str(value) == "<NA>" else str(value)


def _number(row: Mapping[str, Any], name: str) -> float:
    text = _text(row, name)
    return float(text) if text else math.nan


def cases_of(runs: GetRun, labels: pd.DataFrame) -> tuple[list[Case], dict[str, str]]:
    """Cases of an audit, and why runs are none of them.

    The domain is the column ``domain``, else the first part of the stratum. The condition is the column ``condition``,
    else the stratum with those of ``width, lr, grad_noise, entropy_bonus`` that the table has. Conditions in which
    nothing happens to any run are no audit; their runs are left out without a word. Held out: as ``split`` says, else
    odd seeds, else every second row.
    """
    records = [{str(k): v for k, v in r.items()} for r in labels.to_dict("records")]
    declared = [_text(r, "split") for r in records]
    wrong = [s for s in declared if s not in (*CALIBRATION, *TEST)]
    if any(declared) and wrong:
        raise InputError(
            f"labels: split {wrong[0]!r}; {CALIBRATION[0]!r} or {TEST[0]!r} is expected in every row, or in none"
        )
    conditions = [_text(r, "condition") or "|".join(_text(r, c) for c in ("stratum", *_CONDITION)) for r in records]
    alive = {c for c, r in zip(conditions, records, strict=True) if not math.isnan(_number(r, "injection_step"))}
    alive |= {c for c, r in zip(conditions, records, strict=True) if not alive and _text(r, "outcome") in EVENTS}
    cases: list[Case] = []
    skipped: dict[str, str] = {}
    seen: dict[tuple[str, bytes], int] = {}
    for i, (row, condition) in enumerate(zip(records, conditions, strict=True)):
        if condition not in alive:
            continue
        run, outcome = _text(row, "run"), _text(row, "outcome")
        injection, onset = _number(row, "injection_step"), _number(row, "onset_step")
        if outcome in EVENTS and not math.isnan(onset):
            kind, injection = "collapsed", -math.inf if math.isnan(injection) else injection
        elif not math.isnan(injection):
            kind = "perturbed"
        elif outcome in ("", *HEALTHY):
            kind, injection = "control", math.inf
        else:
            skipped[run] = f"outcome {outcome!r} without an injection: neither healthy nor a dated collapse"
            continue
        try:
            rows = manifold_channels(runs(run))
        except TrajscopeError as problem:
            skipped[run] = str(problem)
            continue
        if rows.steps.size < 2 or not rows.mask.any():
            skipped[run] = "logs none of the common channels"
            continue
        seed = _number(row, "seed")
        held_out = declared[i] in TEST if declared[i] else bool((i if math.isnan(seed) else int(seed)) % 2)
        domain = _text(row, "domain") or _text(row, "stratum").split("/")[0]
        confirmed = _number(row, "confirmed_step")
        axis = _text(row, "axis")
        case = Case(run, domain, condition, axis, held_out, kind, injection, onset, confirmed, rows)
        if kind == "control":
            # another recording of it may keep fewer channels
            first = rows.values[:_SAME_ROWS, 0] if rows.mask[:_SAME_ROWS, 0].any() else rows.values[:_SAME_ROWS]
            key = (condition, first.tobytes())
            if key in seen:
                if rows.steps.size > cases[seen[key]].rows.steps.size:
                    cases[seen[key]] = case
                continue
            seen[key] = len(cases)
        cases.append(case)
    based = {c.condition for c in cases if c.kind == "control" and not c.held_out}
    for c in cases:
        if c.condition not in based:
            skipped[c.run] = f"no healthy calibration run in its condition ({c.condition})"
    return [c for c in cases if c.condition in based], skipped


def level_for(alpha: float, n: int) -> float:
    """The rate that n healthy runs are asked for: alpha, or the smallest that they can certify if that is larger."""
    return alpha if n >= needed_runs(alpha) else 1 / (n + 1)


def fit_on(
    cases: Sequence[Case], level: float, n_components: Any, columns: Sequence[str], rng: int | np.random.Generator
) -> InstabilityManifold:
    """A manifold from the calibration controls among the cases, its excursions from the calibration collapses."""
    chosen = [c for c in cases if not c.held_out and c.kind != "perturbed"]
    return InstabilityManifold(n_components, alpha=level, rng=rng).fit(
        [c.rows.select(columns) for c in chosen],
        [c.kind == "collapsed" for c in chosen],
        groups=[c.condition for c in chosen],
    )


def crossings(manifold: InstabilityManifold, cases: Sequence[Case], columns: Sequence[str]) -> list[dict[str, Any]]:
    """First crossing of every case, one record each."""
    if not cases:
        return []
    found = manifold.first_crossing([c.rows.select(columns) for c in cases], group=[c.condition for c in cases])
    records = []
    for case, crossing in zip(cases, found, strict=True):
        step = math.nan if crossing.step is None else float(crossing.step)
        early = step < case.injection
        hit = case.kind == "collapsed" and step >= case.injection
        records.append(
            {
                "run": case.run,
                "domain": case.domain,
                "axis": case.axis,
                "kind": case.kind,
                "crossing": step,
                "false_alarm": early,
                "found": hit,
                "lead": case.onset - step if hit else -math.inf if case.kind == "collapsed" else math.nan,
                "lead_rows": (case.onset - step) / case.stride if hit else -math.inf,
                "delay_rows": (step - case.injection) / case.stride if hit else math.inf,
                "confirmed_after": step <= case.confirmed if hit else False,
            }
        )
    return records


def tally(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts, shares and intervals over the first crossings of one method in one domain.

    A collapse counts as found when the *first* crossing comes at the injection or later; a run that crossed before is a
    false alarm and not found. Leads are onset minus crossing and delays crossing
    minus injection; a miss counts as minus and plus infinity in their medians. Runs that were perturbed and did not
    collapse are counted apart: that they cross is no false alarm and no success.
    """
    events = [r for r in records if r["kind"] == "collapsed"]
    controls = [r for r in records if r["kind"] == "control"]
    others = [r for r in records if r["kind"] == "perturbed"]
    hits = sum(r["found"] for r in events)
    early = sum(r["false_alarm"] for r in records)
    low, high = proportion_interval(hits, len(events))
    fa_low, fa_high = proportion_interval(early, len(records))
    leads, delays = (sorted(r[name] for r in events) for name in ("lead_rows", "delay_rows"))
    share = len(events) or math.nan
    return {
        "collapsed": len(events),
        "found": hits,
        "share": hits / share,
        "share_low": low,
        "share_high": high,
        "before_onset": sum(r["lead"] > 0 for r in events) / share,
        "by_confirmation": sum(r["confirmed_after"] for r in events) / share,
        "median_lead_rows": leads[(len(leads) - 1) // 2] if leads else math.nan,
        "median_delay_rows": delays[len(delays) // 2] if delays else math.nan,
        "runs": len(records),
        "false_alarms": early,
        "false_rate": early / len(records) if records else math.nan,
        "false_low": fa_low,
        "false_high": fa_high,
        "controls": len(controls),
        "control_alarms": sum(r["false_alarm"] for r in controls),
        "perturbed": len(others),
        "perturbed_crossed": sum(not math.isnan(r["crossing"]) and not r["false_alarm"] for r in others),
    }
