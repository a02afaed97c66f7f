"""Who is watched, from when to when: labelled runs turned into cases for `trajscope.lead_time`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trajscope.detect.alarms import extremes, largest, persistent
from trajscope.errors import InputError, nearest

__all__ = ["Case", "cases_of", "frames_of", "sides_of"]

Floats = NDArray[np.float64]

#: Outcomes of `trajscope.collapse` that are neither an event nor health: such runs are counted and left out.
NEITHER = ("not learned", "cannot tell", "undetermined")
#: Outcomes without an event.
HEALTHY = ("none", "healthy", "control")
#: Names of the two halves of a declared split; the first of each is ours.
CALIBRATION, TEST = (
    ("calibration", "calibrate", "train", "fit"),
    ("heldout", "held-out", "held_out", "test", "evaluation"),
)


@dataclass(frozen=True, eq=False)
class Case:
    """One run, watched.

    Attributes
    ----------
    run, stratum, cluster, split : str
    onset : float
        Step of the event; inf in a healthy run.
    injection : float
        Step of a perturbation; -inf where there was none.
    start, stop : float
        Steps between which it is watched: the end of the warm-up; the onset, or the end of exposure.
    low, high : float
        Window of a timely alarm (both ends in it); empty in a healthy run.
    stride : float
        Median distance of steps.
    steps : (n_steps,) array
    scores : mapping of str to (n_steps,) array
        Confirmed scores, larger is worse; an indicator that this run has no value of is absent.
    """

    run: str
    stratum: str
    cluster: str
    split: str
    onset: float
    injection: float
    start: float
    stop: float
    low: float
    high: float
    stride: float
    steps: Floats
    scores: Mapping[str, Floats]

    @property
    def event(self) -> bool:
        """Whether the run has an event."""
        return bool(np.isfinite(self.onset))

    def largest(self, name: str) -> float:
        """Largest confirmed score while it is watched."""
        return largest(self.steps, self.scores[name], self.start, self.stop)

    def extremes(self, name: str) -> tuple[float, float]:
        """Largest confirmed score before the window and in it."""
        before, inside = extremes(self.steps, self.scores[name], self.start, self.low, self.high)
        return float(before), float(inside)


def frames_of(scores: Any) -> dict[str, pd.DataFrame]:
    """Scores in any accepted form as one table a run, indexed by step, one column an indicator."""
    if isinstance(scores, pd.DataFrame):
        missing = {"run", "step"} - set(scores.columns)
        if missing:
            raise InputError(f"scores: a table needs the columns 'run' and 'step'; {sorted(missing)[0]!r} is missing")
        return {str(run): part.drop(columns="run").set_index("step") for run, part in scores.groupby("run", sort=False)}
    if not isinstance(scores, Mapping):
        raise InputError(
            f"scores is a {type(scores).__name__}; a mapping of run to table (index step), or a table with the columns "
            "run, step and one an indicator, is expected"
        )
    frames = {}
    for run, value in scores.items():
        # indicators of several channels have two levels of names in their frame, one in their scores
        flat = hasattr(type(value), "scores") and getattr(value, "causal", True)
        table = value.scores() if flat else value.to_frame() if hasattr(value, "to_frame") else value
        if not isinstance(table, pd.DataFrame):
            raise InputError(f"scores of run {run!r}: a {type(value).__name__}; a table indexed by step is expected")
        if getattr(value, "causal", True) is False:
            raise InputError(f"scores of run {run!r} look ahead (not causal) and cannot raise an alarm")
        if isinstance(value, pd.Series) and value.name is None:
            table = table.rename(columns={0: "score"})
        frames[str(run)] = table
    return frames


def sides_of(names: list[str], sides: Mapping[str, str] | str | None) -> dict[str, str]:
    """Which way each indicator is bad: ``high`` (default), ``low`` or ``both``."""
    given = dict.fromkeys(names, sides) if isinstance(sides, str) else dict(sides or {})
    for name, side in given.items():
        if name not in names:
            raise InputError(f"sides: no indicator {name!r}. {nearest(name, names)}")
        if side not in ("high", "low", "both"):
            raise InputError(f"side {side!r} of {name!r}: 'high', 'low' or 'both' is expected")
    return {name: str(given.get(name, "high")) for name in names}


def _text(row: Mapping[str, Any], name: str, default: str) -> str:
    value = row.get(name)
    return default if value is None or value is pd.NA or value != value else str(value)


def _number(row: Mapping[str, Any], name: str, default: float) -> float:
    value = row.get(name)
    return default if value is None or value is pd.NA or value != value else float(value)


def cases_of(
    frames: Mapping[str, pd.DataFrame],
    labels: pd.DataFrame,
    *,
    sides: Mapping[str, str],
    horizon: float | None,
    min_lead: float | None,
    warmup: float | None,
    persistence: int,
    rng: np.random.Generator,
) -> tuple[list[Case], dict[str, str]]:
    """Cases of all labelled runs that have scores, and why the others have none."""
    names = list(sides)
    skipped: dict[str, str] = {}
    kept: list[tuple[dict[str, Any], Floats, dict[str, Floats]]] = []
    for record in labels.to_dict("records"):
        row = {str(k): v for k, v in record.items()}
        run = str(row["run"])
        outcome = _text(row, "outcome", "none")
        onset = _number(row, "onset_step", np.inf)
        if run not in frames:
            skipped[run] = "no scores"
            continue
        if outcome in NEITHER:
            skipped[run] = f"outcome {outcome!r}: neither an event nor healthy"
            continue
        if outcome not in HEALTHY and not np.isfinite(onset):
            skipped[run] = f"outcome {outcome!r} without an onset_step"
            continue
        if outcome in HEALTHY and _text(row, "outcome", "") and np.isfinite(onset):
            skipped[run] = f"outcome {outcome!r} with an onset_step: the label contradicts itself"
            continue
        table = frames[run]
        steps = table.index.to_numpy(dtype=np.float64)
        if steps.size < 2 or not np.all(np.diff(steps) > 0):
            skipped[run] = "its scores have fewer than two rows, or steps that do not increase"
            continue
        columns = {n: table[n].to_numpy(dtype=np.float64, na_value=np.nan) for n in names if n in table.columns}
        kept.append((row, steps, {n: v for n, v in columns.items() if not np.isnan(v).all()}))
    rows = [r for r, _, _ in kept]
    calibrates = _split(rows, rng)
    quiet = [c and not np.isfinite(_number(r, "onset_step", np.inf)) for r, c in zip(rows, calibrates, strict=True)]
    centre = {
        n: _centre([s[n] for (_, _, s), q in zip(kept, quiet, strict=True) if q and n in s])
        for n, side in sides.items()
        if side == "both"
    }
    exposure = _exposure(rows, calibrates)
    cases = []
    for (row, steps, raw), calibrate in zip(kept, calibrates, strict=True):
        length = steps[-1] - steps[0]
        stride = float(np.median(np.diff(steps)))
        onset, injection = _number(row, "onset_step", np.inf), _number(row, "injection_step", -np.inf)
        stratum = _text(row, "stratum", "")
        start = steps[0] + (max(0.05 * length, 50 * stride) if warmup is None else warmup)
        ahead = 0.1 * length if horizon is None else horizon
        lead = stride if min_lead is None else min_lead
        if np.isfinite(onset) and onset - lead <= start:
            skipped[str(row["run"])] = "its event begins inside the warm-up"
            continue
        signed = {}
        for n in raw:
            side = sides[n]
            s = raw[n] if side == "high" else -raw[n] if side == "low" else np.abs(raw[n] - centre[n])
            signed[n] = persistent(s, persistence)
        seed = _text(row, "seed", "")
        cases.append(
            Case(
                str(row["run"]),
                stratum,
                f"{stratum}/{seed}" if seed else str(row["run"]),
                CALIBRATION[0] if calibrate else TEST[0],
                onset,
                injection,
                start,
                onset if np.isfinite(onset) else exposure.get(stratum, np.inf),
                max(onset - ahead, injection) if np.isfinite(onset) else np.inf,
                onset - lead if np.isfinite(onset) else -np.inf,
                stride,
                steps,
                signed,
            )
        )
    return cases, skipped


def _centre(values: list[Floats]) -> float:
    """Median of a two-sided indicator over healthy runs."""
    joined = np.concatenate(values) if values else np.zeros(0)
    joined = joined[np.isfinite(joined)]
    return float(np.median(joined)) if joined.size else 0.0


def _split(rows: list[dict[str, Any]], rng: np.random.Generator) -> list[bool]:
    """Which runs calibrate: as declared, else every second healthy run of each stratum, drawn at random."""
    declared = [_text(row, "split", "") for row in rows]
    if any(declared):
        for row, split in zip(rows, declared, strict=True):
            if split not in (*CALIBRATION, *TEST):
                raise InputError(
                    f"labels: split {split!r} of run {row['run']!r}; {CALIBRATION[0]!r} or {TEST[0]!r} is expected "
                    "in every row, or in none"
                )
        return [split in CALIBRATION for split in declared]
    chosen = [False] * len(rows)
    healthy: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        if not np.isfinite(_number(row, "onset_step", np.inf)):
            healthy.setdefault(_text(row, "stratum", ""), []).append(i)
    for members in healthy.values():
        for i in rng.permutation(members)[: (len(members) + 1) // 2]:
            chosen[int(i)] = True
    return chosen


def _exposure(rows: list[dict[str, Any]], calibrates: list[bool]) -> dict[str, float]:
    """Step up to which the healthy runs of a stratum are watched: the latest event among its calibration runs.

    Where no calibration run has an event nothing is known before the test, and they are watched to their end.
    """
    latest: dict[str, float] = {}
    for row, calibrate in zip(rows, calibrates, strict=True):
        onset = _number(row, "onset_step", np.inf)
        if calibrate and np.isfinite(onset):
            stratum = _text(row, "stratum", "")
            latest[stratum] = max(onset, latest.get(stratum, -np.inf))
    return latest
