"""The meta-state of one run: a first principal-component state on its own baseline, and how far the run went from it.

Channels are transformed by role (logarithm for positive heavy-tailed ones, asinh for signed ones; DEFINITIONS 1),
standardised on the rows from 5 % to 25 % of the run, and measured against their own causal trend. The distance *D* is
labelled "own baseline": no false-alarm rate can be claimed for it, and it never moves a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.spikes import transform
from trajscope.errors import TrajscopeError
from trajscope.history import Channel, Run, align
from trajscope.metastate import PCAState
from trajscope.metastate.reference import MIN_CHANNELS, baseline_rows

__all__ = ["META_ROLES", "Meta", "meta_state"]

#: Channels that describe the dynamics of training; clocks, counters and schedules do not.
META_ROLES = (
    "loss", "grad_norm", "grad_cos", "update_norm", "param_norm", "policy_loss", "value_loss", "entropy", "kl",
    "clip_fraction", "explained_variance", "q_value", "td_error", "return", "accuracy", "aux_loss", "val_loss",
    "val_accuracy",
)  # fmt: skip

#: At most this many channels, in the order of `META_ROLES`; more add the same information again.
MOST_CHANNELS = 12

#: At most this many rows; a longer run is thinned evenly, which is said.
MOST_ROWS = 20_000


@dataclass(frozen=True, eq=False)
class Meta:
    """What became of the meta-state.

    Attributes
    ----------
    reason : str
        Why there is none; empty where there is one.
    names : tuple of str
        Channels in it.
    n_components : int
    explained : tuple of float
    steps, distance : ndarray
        *D* of each row.
    states : ndarray, shape (n_rows, n_components)
    bound : float
        95 % point of *D* on the baseline.
    baseline : tuple of float
        First and last step of the baseline.
    left : float or None
        First step at which *D* stays above three times its bound for three rows, after the baseline.
    thinned : int
        Every how many rows were used.
    """

    reason: str = ""
    names: tuple[str, ...] = ()
    n_components: int = 0
    explained: tuple[float, ...] = ()
    steps: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    distance: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    states: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    bound: float = float("nan")
    baseline: tuple[float, float] = (float("nan"), float("nan"))
    left: float | None = None
    thinned: int = 1


def meta_state(run: Run, rng: int = 0) -> Meta:
    """Fit the meta-state on the run's own baseline rows and follow it; never raises for a run that has none."""
    chosen: list[Channel] = []
    for role in META_ROLES:
        chosen.extend(c for c in run.by_role(role) if np.count_nonzero(np.isfinite(c.values)) >= 20)
    # A channel logged far more rarely than the others would be missing in nearly every row.
    most = max((len(c) for c in chosen), default=0)
    chosen = [c for c in chosen if len(c) * 2 >= most and np.ptp(c.values[np.isfinite(c.values)]) > 0][:MOST_CHANNELS]
    if len(chosen) < MIN_CHANNELS:
        return Meta(f"{len(chosen)} usable channels are logged together; a meta-state needs {MIN_CHANNELS}")
    alike = run.replace(
        channels={c.name: replace(c, values=transform(c.values.astype(np.float64), c.role)[0]) for c in chosen}
    )
    trajectory = align(alike)
    thin = -(-len(trajectory) // MOST_ROWS)
    rows = trajectory.observed[::thin]
    steps = trajectory.steps[::thin].astype(np.float64)
    base = baseline_rows(steps.size)
    if base.stop - base.start < 20:
        return Meta(f"{base.stop - base.start} baseline rows (5 % to 25 % of the run); a meta-state needs 20")
    try:
        fitted = PCAState(reference="trend", rng=rng).fit(rows[base])
        if fitted.n_components_ == 0:
            return Meta("the channels share nothing on the baseline that chance would not give (parallel analysis)")
        table = fitted.deviation(rows)
        states = np.asarray(fitted.transform(rows, causal=True), dtype=np.float64)
    except TrajscopeError as problem:
        return Meta(str(problem))
    distance = table["D"].to_numpy(dtype=np.float64)
    bound = float(fitted.bounds_["D"])
    outside = (distance > 3 * bound) & (np.arange(steps.size) >= base.stop)
    stays = outside[:-2] & outside[1:-1] & outside[2:] if outside.size > 2 else np.zeros(0, dtype=bool)
    first = int(np.argmax(stays)) if stays.any() else -1
    return Meta(
        "",
        tuple(c.name for c in chosen),
        int(fitted.n_components_),
        tuple(float(v) for v in np.atleast_1d(fitted.explained_)),
        steps,
        distance,
        states,
        bound,
        (float(steps[base.start]), float(steps[base.stop - 1])),
        None if first < 0 else float(steps[first]),
        thin,
    )
