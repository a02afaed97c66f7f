"""The scale on which rows of a channel are compared: log, asinh or as logged, by role."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling import MAD_TO_SD
from trajscope.errors import InputError

__all__ = ["ASINH_ROLES", "LOG_ROLES", "default_floor", "stride_of", "transform", "untransform"]

Floats = NDArray[np.float64]

LOG_ROLES = frozenset(
    {
        "loss", "val_loss", "grad_norm", "update_norm", "param_norm", "kl", "lr", "perplexity", "val_perplexity",
        "value_loss", "aux_loss", "error", "val_error", "td_error", "loss_scale", "step_time",
    }
)  # fmt: skip
"""Roles judged on a log scale while they are positive."""

ASINH_ROLES = frozenset({"policy_loss", "return", "eval_return", "q_value"})
"""Signed, heavy-tailed roles, judged on the scale asinh(y / s)."""

_BASELINE = 100
"""First finite rows whose spread is the unit of the asinh scale: fixed early, so later rows change nothing before."""


def _spread(finite: Floats) -> float:
    early = finite[:_BASELINE]
    return MAD_TO_SD * float(np.median(np.abs(early - np.median(early)))) if early.size else 0.0


def transform(values: Floats, role: str = "", scale: str | None = None) -> tuple[Floats, str]:
    """Put a channel on the scale on which its noise is even.

    Parameters
    ----------
    values : ndarray, shape (n_steps,)
    role : str
        Role of the channel; a channel without one is taken on a log scale when it is strictly positive.
    scale : {"log", "asinh", "none"}, optional
        Overrides the role.

    Returns
    -------
    y : ndarray, shape (n_steps,)
        NaN where the value is not finite.
    scale : str
    """
    good = np.isfinite(values)
    finite = values[good]
    if scale is None:
        positive = bool(finite.size) and bool(finite.min() > 0)
        wants_log = role in LOG_ROLES or role == ""
        scale = "log" if positive and wants_log else "asinh" if role in LOG_ROLES | ASINH_ROLES else "none"
    elif scale == "log" and finite.size and finite.min() <= 0:
        raise InputError(f"scale='log' needs positive values, the smallest is {finite.min():g}; use 'asinh' or 'none'.")
    y = np.full(values.size, np.nan)
    if scale == "log":
        y[good] = np.log(finite)
    elif scale == "asinh":
        spread = _spread(finite)
        y[good] = np.arcsinh(finite / spread) if spread > 0 else finite
    else:
        y[good] = finite
    return y, scale


def untransform(level: Floats, x: Floats, scale: str) -> Floats:
    """Take levels on ``scale`` back to the units of the channel ``x``."""
    if scale == "log":
        return np.exp(level)
    if scale == "asinh":
        spread = _spread(x[np.isfinite(x)])
        return np.sinh(level) * spread if spread > 0 else level
    return level


def default_floor(y: Floats, scale: str) -> float:
    """Smallest scale in units of ``y``: 0.1 % on the log scale, else max(1e-12, 1e-3 of the absolute median)."""
    if scale == "log":
        return 1e-3
    finite = y[np.isfinite(y)]
    return max(1e-12, 1e-3 * abs(float(np.median(finite)))) if finite.size else 1e-12


def stride_of(steps: NDArray[np.generic]) -> float:
    """Median distance of successive steps, repeats apart; NaN with fewer than two."""
    gaps = np.diff(steps.astype(np.float64))
    gaps = gaps[gaps > 0]
    return float(np.median(gaps)) if gaps.size else float("nan")
