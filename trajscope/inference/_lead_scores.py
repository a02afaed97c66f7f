"""Scores for the lead-time study: monitors of each run alone, and meta-states learnt on the healthy calibration runs.

A meta-state that is fitted on a run flatters it, so the calibration runs are scored by fits that have not seen them
(five folds by seed); the test runs are scored by the fit on all healthy calibration runs. Each condition (stratum) has
its own fit. The columns of the meta-states are those of `trajscope.detect.manifold.manifold_channels`: no performance
channel and no learning rate is among them.

=================== ===============================================================================================
``pca D``, ``pca Q``  principal components, reference `siblings`: deviation in the subspace, distance from it
``sfa D``             slow features
``lds NIS``           linear state space: normalised innovation
``manifold``          radius of the instability manifold
``raw``               Mahalanobis distance over all channels
``NAME s``            distance of channel NAME from its siblings at the same step, in their robust sd
``joint``             the largest of all monitors' scores, in units of the healthy calibration runs
``oracle``            1 from the injection on: what one would know who did it
=================== ===============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trajscope.detect._manifold_channels import Scales
from trajscope.detect.alarms import largest, persistent
from trajscope.detect.manifold import InstabilityManifold, manifold_channels
from trajscope.errors import TrajscopeError
from trajscope.history import Run, Trajectory
from trajscope.inference.calibrate import WATCHED, _beyond_all
from trajscope.inference.monitors import monitor_scores
from trajscope.metastate import LinearStateSpace, PCAState, SlowFeatures

__all__ = ["META", "ORACLES", "RULES", "add_joint", "run_scores", "single_channels", "state_scores"]

Floats = NDArray[np.float64]

#: Scores of a meta-state.
META = ("pca D", "pca Q", "sfa D", "lds NIS", "manifold", "D", "Q")
#: Scores that know what was done.
ORACLES = ("oracle", "lr_jump")
#: Rules of practice.
RULES = ("sigma_skip", "loss_ratio")
_FOLDS = 5


def run_scores(run: Run, injection: float) -> pd.DataFrame:
    """Monitors of one run, and the oracle."""
    table = monitor_scores(run)
    if np.isfinite(injection):
        table["oracle"] = (table.index.to_numpy(dtype=np.float64) >= injection).astype(float)
    else:
        table["oracle"] = 0.0
    return table


def single_channels(columns: Sequence[str]) -> list[str]:
    """Of these scores, those of one channel."""
    single = {"loss_z", "grad_z", "update_z", "entropy_z", "kl_z", "x_grad", "fall", "variance", "lag1", "dev", *RULES}
    return [c for c in columns if c in single or c.endswith(" s")]


def state_scores(
    runs: Mapping[str, Run], seeds: Mapping[str, str], healthy: Sequence[str], rng: Any
) -> tuple[dict[str, pd.DataFrame], dict[str, str]]:
    """Scores of the meta-states for all runs of one condition.

    Parameters
    ----------
    runs : mapping
        All runs of the condition.
    seeds : mapping
        Seed of each: a fold holds whole seeds.
    healthy : sequence of str
        Healthy calibration runs.

    Returns
    -------
    scores : mapping of run to DataFrame
    missing : mapping of str to str
        Meta-state -> why it has no scores.
    """
    rows = {name: manifold_channels(run) for name, run in runs.items()}
    used = [
        c for c in next(iter(rows.values())).names
        if all(rows[h].mask[:, rows[h].names.index(c)].sum() * 2 >= len(rows[h].steps) for h in healthy)
    ]  # fmt: skip
    if len(used) < 3:
        return {}, dict.fromkeys(META[:5], f"{len(used)} channels are logged in most rows; three are needed")
    rows = {name: t.select(used) for name, t in rows.items()}
    folds: list[tuple[list[str], list[str]]] = [(list(healthy), [n for n in runs if n not in set(healthy)])]
    owners = sorted({seeds[h] for h in healthy})
    for k in range(min(_FOLDS, len(owners))):
        out = set(owners[k::_FOLDS])
        fold = [h for h in healthy if seeds[h] in out]
        folds.append(([h for h in healthy if seeds[h] not in out], fold))
    scores: dict[str, dict[str, Floats]] = {name: {} for name in runs}
    missing: dict[str, str] = {}
    for fit_on, judged in folds:
        if len(fit_on) < 5 or not judged:
            continue
        for method, make in _methods(rng).items():
            try:
                found = make([rows[n] for n in fit_on], [rows[n] for n in judged])
            except TrajscopeError as problem:
                missing[method] = str(problem)
                continue
            for name, columns in zip(judged, found, strict=True):
                scores[name] |= columns
    tables = {
        name: pd.DataFrame(columns, index=pd.Index(rows[name].steps.astype(float), name="step"))
        for name, columns in scores.items()
        if columns
    }
    return tables, missing


Method = Callable[[list[Trajectory], list[Trajectory]], list[dict[str, Floats]]]


def _methods(rng: Any) -> dict[str, Method]:
    def state(estimator: Any, names: Mapping[str, str]) -> Method:
        def score(fit: list[Trajectory], judged: list[Trajectory]) -> list[dict[str, Floats]]:
            scales = Scales.fit([t.observed for t in fit], fit[0].roles)
            fitted = estimator.fit([_read(t, scales) for t in fit])
            if not fitted.n_components_:
                return [{} for _ in judged]
            return [
                {ours: table[theirs].to_numpy(dtype=np.float64) for theirs, ours in names.items()}
                for table in (fitted.deviation(_read(t, scales)) for t in judged)
            ]

        return score

    def manifold(name: str, components: Any) -> Method:
        def score(fit: list[Trajectory], judged: list[Trajectory]) -> list[dict[str, Floats]]:
            fitted = InstabilityManifold(components, alpha=0.2, persistence=1, warmup=0, rng=rng).fit(fit)
            return [{name: np.asarray(fitted.signed_distance(t)) + fitted.boundary_} for t in judged]

        return score

    return {
        "pca": state(PCAState(reference="siblings", rng=rng), {"D": "pca D", "Q": "pca Q"}),
        "sfa": state(SlowFeatures(reference="siblings", rng=rng), {"D": "sfa D"}),
        "lds": state(LinearStateSpace(n_components=2, reference="siblings", rng=rng), {"NIS": "lds NIS"}),
        "manifold": manifold("manifold", "auto"),
        "raw": manifold("raw", "all"),
        "channels": _channels,
    }


def _read(t: Trajectory, scales: Scales) -> pd.DataFrame:
    """Observed rows as they are read, indexed by step, non-finite values missing."""
    x = scales.apply(t.observed)
    return pd.DataFrame(np.where(np.isfinite(x), x, np.nan), index=t.steps, columns=list(t.names))


def _channels(fit: list[Trajectory], judged: list[Trajectory]) -> list[dict[str, Floats]]:
    """Distance of each channel from the median of its siblings at the same step, in their robust sd over the run."""
    scales = Scales.fit([t.observed for t in fit], fit[0].roles)
    tables = [_read(t, scales) for t in fit]
    stacked = pd.concat(tables, keys=range(len(tables)))
    level = stacked.groupby(level=1).median()
    spread = 1.4826 * (stacked - level.reindex(stacked.index.get_level_values(1)).to_numpy()).abs().median()
    out = []
    for t in judged:
        x = _read(t, scales)
        z = (x - level.reindex(x.index, method="ffill").to_numpy()).abs() / spread.clip(lower=1e-12)
        out.append({f"{name} s": z[name].to_numpy() for name in t.names if spread[name] > 0})
    return out


def add_joint(scores: dict[str, pd.DataFrame], healthy: Sequence[str]) -> None:
    """Add ``joint``: in each row, the largest monitor in units of the healthy calibration runs' maxima."""
    names = [m for m in WATCHED if m != "nonfinite" and all(m in scores[h] for h in healthy)]
    if not names or len(healthy) < 3:
        return
    maxima = np.array(
        [
            [largest(scores[h].index, persistent(scores[h][m].to_numpy(), 1), -np.inf, np.inf) for m in names]
            for h in healthy
        ]
    )
    for i, h in enumerate(healthy):  # a calibration run in units of the others, as the runs to come will be
        scores[h]["joint"] = _joint(scores[h], names, np.delete(maxima, i, axis=0))
    for run, table in scores.items():
        if run not in set(healthy) and all(m in table for m in names):
            table["joint"] = _joint(table, names, maxima)


def _joint(table: pd.DataFrame, names: Sequence[str], maxima: Floats) -> Floats:
    return _beyond_all(table[list(names)].to_numpy(dtype=np.float64), maxima)
