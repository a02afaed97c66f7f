r"""Monitors: causal scores of one run that an alarm can be made of, larger is worse.

Every score of row *t* uses rows up to *t*, and constants fixed in rows, never in shares of the run (whose end a monitor
does not know). With level *m* and scale *s* of the trailing window (DEFINITIONS 1), on the logarithm of positive
channels:

=============== =====================================================================================================
``loss_z``      :math:`(y_t - m_{t-1})/s_{t-1}` of the training loss, upwards
``grad_z``      the same of the gradient norm
``update_z``    the same of the update norm
``entropy_z``   the same of the policy's entropy, downwards
``kl_z``        the same of the KL divergence, upwards
``x_inst``      instantaneous instability of loss and gradient norm (`trajscope.x_inst`)
``x_grad``      distance of the gradient coherence from its baseline, both ways (`trajscope.x_grad`)
``fall``        drawdown of performance in scales of it, :math:`(P_t - R_t)/s_t` (the collapse rule's own quantity)
``variance``    log variance of the loss over the window, less that of the baseline
``lag1``        its lag-1 autocorrelation likewise, both ways: +1 towards a fold, -1 towards the edge of stability
``dev``         modulus of its dominant eigenvalue likewise
``D``, ``Q``    deviation of a meta-state fitted on the baseline rows of the run itself, and distance from its subspace
``nonfinite``   infinite where loss, gradient norm or performance is not finite, else 0
``lr_jump``     absolute log ratio of the learning rate to its value one row before: what was done, not what came of it
=============== =====================================================================================================

The baseline is rows 50 to 150 of the channel; scores that need one begin after it. A channel that is not logged gives
no score. Two rules of practice stand beside them as rivals: ``sigma_skip`` (standard deviations above the mean of the
128 before; OLMo-core) and ``loss_ratio`` (loss over the smallest before it).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling import trailing_mean_std
from trajscope.detect._drawdown import drawdown, orient
from trajscope.detect._inputs import performance_series
from trajscope.detect.indicators import early_warning
from trajscope.dynamics.coherence import x_grad
from trajscope.dynamics.instability import instability_array, loss_ratio, x_inst
from trajscope.errors import InputError, TrajscopeError, nearest
from trajscope.history import Channel, Run, align

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BASELINE", "MONITORS", "monitor_scores"]

Floats = NDArray[np.float64]
Score = tuple[NDArray[Any], Floats]

#: Rows of a channel on which a monitor's baseline is taken.
BASELINE = (50, 150)
#: Smallest scale of performance, as a share of what was learned.
LEAST_FALL = 0.01
#: Largest values of D and Q that count: a healthy run whose reference froze by chance may leave for good, and how far
#: is then a matter of its length.
MOST = {"D": 100.0, "Q": 10_000.0}
#: Rows of the trailing windows.
WINDOW = 100

MONITORS = (
    "loss_z", "grad_z", "update_z", "entropy_z", "kl_z", "x_inst", "x_grad", "fall", "variance", "lag1", "dev", "D",
    "Q", "nonfinite", "lr_jump", "sigma_skip", "loss_ratio",
)  # fmt: skip

#: Roles, and which way is bad, of the channels behind the z scores.
_Z = {
    "loss_z": ("loss", 1), "grad_z": ("grad_norm", 1), "update_z": ("update_norm", 1), "entropy_z": ("entropy", -1),
    "kl_z": ("kl", 1),
}  # fmt: skip
_FINITE = ("loss", "grad_norm", "return", "val_accuracy", "val_loss", "eval_return")
#: Roles of the channels in the run's own meta-state.
STATE_ROLES = (
    "loss", "grad_norm", "grad_cos", "update_norm", "param_norm", "policy_loss", "value_loss", "entropy", "kl",
    "clip_fraction", "explained_variance",
)  # fmt: skip


def monitor_scores(run: Run, monitors: Any = None, *, performance: str | None = None) -> pd.DataFrame:
    """Scores of the monitors that the run's log can carry.

    Parameters
    ----------
    run : Run
        One part: steps must ascend (`Run.split` first where the counter restarts).
    monitors : sequence of str, optional
        Some of `MONITORS`; default all.
    performance : str, optional
        ``NAME:max`` or ``NAME:min`` for ``fall``; default by role.

    Returns
    -------
    DataFrame
        Indexed by step (the union of the channels'), one column a monitor; NaN where a monitor has no value.
        ``.attrs["sources"]`` says what ``x_grad`` and ``fall`` were made of: different sources do not measure the
        same.

    Raises
    ------
    InputError
        For an unknown monitor.
    """
    import pandas as pd

    wanted = MONITORS if monitors is None else tuple(monitors)
    for name in wanted:
        if name not in MONITORS:
            raise InputError(f"monitor {name!r} is unknown. {nearest(str(name), MONITORS)}")
    found: dict[str, Score] = {}
    state = _state(run) if {"D", "Q"} & set(wanted) else {}
    for name in wanted:
        score = state.get(name) if name in ("D", "Q") else _score(name, run, performance)
        if score is not None and np.any(~np.isnan(score[1])):
            found[name] = score
    steps = np.unique(np.concatenate([s for s, _ in found.values()])) if found else np.zeros(0)
    table: dict[str, Floats] = {}
    for name in wanted:
        if name in found:
            at, values = found[name]
            table[name] = np.full(steps.size, np.nan)
            table[name][np.searchsorted(steps, at)] = values
    frame = pd.DataFrame(table, index=pd.Index(steps, name="step"))
    frame.attrs["sources"] = {name: _source(name, run, performance) for name in ("x_grad", "fall") if name in table}
    return frame


def _source(name: str, run: Run, performance: str | None) -> str:
    if name == "x_grad":
        return x_grad(run).source
    series, mode = performance_series(run, performance)
    return f"{series.name}:{mode}"


def _channel(run: Run, *roles: str) -> Channel | None:
    return next((c for role in roles for c in run.by_role(role) if len(c)), None)


def _scaled(channel: Channel) -> Floats:
    """Values on the scale of the role; the floor of a logarithm may only look at the baseline rows."""
    values = np.asarray(channel.values, dtype=np.float64)
    positive = channel.role in ("loss", "grad_norm", "update_norm", "kl", "val_loss", "param_norm")
    head = values[: BASELINE[0]]
    head = head[np.isfinite(head)]
    if positive and head.size and head.min() > 0:
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.log(values)
        return np.where(values > 0, scaled, np.nan)
    return values


def _score(name: str, run: Run, performance: str | None) -> Score | None:
    if name in _Z:
        role, sign = _Z[name]
        channel = _channel(run, role)
        if channel is None:
            return None
        return channel.steps, sign * instability_array(_scaled(channel), window=WINDOW)[0]
    if name == "x_inst":
        instability = x_inst(run, window=WINDOW)
        return (instability.steps, instability.values) if instability.steps.size else None
    if name == "x_grad":
        coherence = x_grad(run)
        return (coherence.steps, _from_baseline(coherence.values, "both")) if coherence.steps.size else None
    if name in ("variance", "lag1", "dev"):
        channel = _channel(run, "loss", "policy_loss", "value_loss")
        return None if channel is None else _indicator(name, channel)
    if name == "fall":
        return _fall(run, performance)
    if name == "nonfinite":
        return _nonfinite(run)
    if name == "lr_jump":
        channel = _channel(run, "lr")
        return None if channel is None else (channel.steps, _jumps(np.asarray(channel.values, dtype=np.float64)))
    channel = _channel(run, "loss")
    if channel is None:
        return None
    x = np.asarray(channel.values, dtype=np.float64)
    if name == "loss_ratio":
        return channel.steps, np.log(np.where(loss_ratio(x) > 0, loss_ratio(x), np.nan))
    mean, std = trailing_mean_std(x, 128, min_count=64)
    return channel.steps, np.divide(x - mean, std, out=np.full(x.size, np.nan), where=std > 0)


def _from_baseline(values: Floats, side: str) -> Floats:
    """Distance from the median of the baseline rows; NaN up to their end.

    Not in units of their spread: overlapping windows of so few rows show next to nothing of it.
    """
    out = np.full(values.size, np.nan)
    base = values[BASELINE[0] : BASELINE[1]]
    base = base[np.isfinite(base)]
    if values.size > BASELINE[1] and base.size >= 20:
        away = values[BASELINE[1] :] - float(np.median(base))
        out[BASELINE[1] :] = np.abs(away) if side == "both" else away
    return out


def _indicator(name: str, channel: Channel) -> Score | None:
    column = {"variance": "variance", "lag1": "lag1", "dev": "dev_modulus"}[name]
    values = _scaled(channel)
    if values.size <= BASELINE[1]:
        return None
    table = early_warning(values, window=WINDOW, indicators=[column], scale="none").to_frame()
    indicator = table[column].to_numpy(dtype=np.float64)
    if name == "variance":
        with np.errstate(divide="ignore"):
            indicator = np.log(indicator)
        indicator[~np.isfinite(indicator)] = np.nan
    return channel.steps, _from_baseline(indicator, "both" if name == "lag1" else "high")


def _state(run: Run) -> dict[str, Score]:
    """D and Q of a principal-component state on the baseline rows of this very run."""
    from trajscope.metastate import PCAState
    from trajscope.metastate.reference import MIN_CHANNELS

    chosen = [c for role in STATE_ROLES for c in run.by_role(role)[:1]]
    most = max((len(c) for c in chosen), default=0)
    chosen = [c for c in chosen if len(c) * 2 >= most]
    if len(chosen) < MIN_CHANNELS or most <= BASELINE[1]:
        return {}
    alike = run.replace(channels={c.name: replace(c, values=_scaled(c)) for c in chosen})
    trajectory = align(alike)
    rows = trajectory.observed
    if rows.shape[0] <= BASELINE[1]:
        return {}
    try:
        fitted = PCAState(reference="trend", rng=0).fit(rows[BASELINE[0] : BASELINE[1]])
        table = fitted.deviation(rows)
    except TrajscopeError:
        return {}
    both = {name: np.minimum(table[name].to_numpy(dtype=np.float64), most) for name, most in MOST.items()}
    for values in both.values():
        values[: BASELINE[1]] = np.nan
    return {name: (trajectory.steps, values) for name, values in both.items()}


def _fall(run: Run, performance: str | None) -> Score | None:
    try:
        series, mode = performance_series(run, performance)
    except InputError:
        if performance:
            raise
        return None
    finite = np.isfinite(series.values)
    y, _ = orient(series.values[finite], mode)
    if y.size < 12:
        return None
    course = drawdown(y, 5, 1e-12)
    # an accuracy that rests at its ceiling has no scale: a hundredth of what was learned so far is the least
    scale = np.fmax(np.fmax(course.scale, LEAST_FALL * (course.peak - course.start)), 1e-12)
    return series.steps[finite], (course.peak - course.level) / scale


def _nonfinite(run: Run) -> Score | None:
    parts = [c for role in _FINITE for c in run.by_role(role)[:1]]
    if not parts:
        return None
    steps = np.unique(np.concatenate([c.steps for c in parts]))
    bad = np.zeros(steps.size)
    for c in parts:
        bad[np.searchsorted(steps, c.steps[~np.isfinite(c.values)])] = np.inf
    return steps, bad


def _jumps(lr: Floats) -> Floats:
    """Absolute log ratio to the row before; 0 where either is not positive (warm-up from zero is no jump)."""
    out = np.zeros(lr.size)
    good = (lr[1:] > 0) & (lr[:-1] > 0) & np.isfinite(lr[1:]) & np.isfinite(lr[:-1])
    out[1:][good] = np.abs(np.log(lr[1:][good] / lr[:-1][good]))
    return out
