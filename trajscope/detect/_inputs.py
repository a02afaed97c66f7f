"""From what the caller has (a run, a channel, an array) to one series of steps and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.errors import InputError, nearest
from trajscope.history.roles import BIGGER_IS_BETTER

__all__ = ["PERFORMANCE_ROLES", "Series", "as_series", "is_run", "performance_series"]

Floats = NDArray[np.float64]

PERFORMANCE_ROLES = (
    "eval_return",
    "return",
    "success",
    "val_accuracy",
    "val_error",
    "val_loss",
    "val_perplexity",
    "accuracy",
    "error",
    "loss",
    "perplexity",
)
"""Roles in the order in which a performance channel is looked for: outcome first, held out before training."""


@dataclass(frozen=True, eq=False)
class Series:
    """One channel, ready to be judged.

    Attributes
    ----------
    name, role : str
        Empty for a plain array.
    steps : ndarray, shape (n_steps,)
        Position of each row; row numbers where none were given.
    values : ndarray, shape (n_steps,), float64
    """

    name: str
    role: str
    steps: NDArray[Any]
    values: Floats


def is_run(source: Any) -> bool:
    """Whether ``source`` holds channels by name."""
    return hasattr(source, "channels") and hasattr(source.channels, "keys")


def as_series(source: Any, steps: Any = None, *, role: str | None = None, name: str = "") -> Series:
    """Take a channel (anything with ``.steps`` and ``.values``) or an array with optional steps.

    Raises
    ------
    InputError
        If the values are not one-dimensional numbers, or the steps do not match them or go back.
    """
    if hasattr(source, "steps") and hasattr(source, "values") and not callable(source.values):
        name = name or str(getattr(source, "name", ""))
        role = role if role is not None else str(getattr(source, "role", "") or "")
        steps = source.steps if steps is None else steps
        source = source.values
    label = f"channel {name!r}" if name else "x"
    if np.iscomplexobj(source):
        raise InputError(f"{label} is complex; expected real numbers, shape (n_steps,).")
    try:
        values = np.array(source, dtype=np.float64)  # a copy: a result keeps it
    except (TypeError, ValueError) as error:
        raise InputError(f"{label} is not numeric ({error}); expected numbers, shape (n_steps,).") from None
    if values.ndim != 1:
        raise InputError(f"{label} has shape {values.shape}; expected one channel, shape (n_steps,).")
    if steps is None:
        steps = np.arange(values.size)
    positions = np.array(steps)
    if positions.shape != values.shape:
        raise InputError(
            f"{label} has {values.size} values but steps of shape {positions.shape}; expected one step a value."
        )
    if positions.dtype.kind not in "iuf":
        raise InputError(f"steps of {label} have dtype {positions.dtype}; expected numbers.")
    bad = np.flatnonzero(~np.isfinite(positions))
    if bad.size:
        raise InputError(f"steps of {label} hold {positions[bad[0]]} at row {bad[0]}; drop the rows without a step.")
    if positions.size > 1:
        back = np.flatnonzero(np.diff(positions.astype(np.float64)) < 0)
        if back.size:
            at = int(back[0])
            raise InputError(
                f"steps of {label} go back from {positions[at]} to {positions[at + 1]} at row {at + 1}; "
                "expected ascending steps: split the run at its restarts first (Run.split)."
            )
    positions.setflags(write=False)
    values.setflags(write=False)
    return Series(name, role or "", positions, values)


def performance_series(run: Any, performance: str | None) -> tuple[Series, str]:
    """The performance channel of a run and its direction.

    Parameters
    ----------
    run : Run
        Anything whose ``channels`` maps names to channels.
    performance : str or None
        ``NAME``, ``NAME:max`` or ``NAME:min``; None takes the first role of `PERFORMANCE_ROLES` that is present, the
        most confident guess first.

    Returns
    -------
    series : Series
    mode : {"max", "min"}
    """
    channels = run.channels
    mode: str | None = None
    if performance is not None:
        name, colon, tail = performance.rpartition(":")
        if colon and tail in ("max", "min") and performance not in channels:
            performance, mode = name, tail
        if performance not in channels:
            raise InputError(f"the run has no channel {performance!r} to judge. {nearest(performance, list(channels))}")
        series = as_series(channels[performance], name=performance)
    else:
        best: tuple[int, float, int, str] | None = None
        for order, (name, channel) in enumerate(channels.items()):
            role = getattr(channel, "role", "")
            if role in PERFORMANCE_ROLES and len(channel.values):
                doubt = -float(getattr(channel, "role_confidence", 0.0))
                key = (PERFORMANCE_ROLES.index(role), doubt, order, name)
                best = key if best is None or key < best else best
        if best is None:
            raise InputError(
                f"no channel of the run measures performance (roles {', '.join(PERFORMANCE_ROLES)}); "
                "name one with performance='NAME:max' or 'NAME:min'. " + _listing(list(channels))
            )
        series = as_series(channels[best[3]], name=best[3])
    if mode is None:
        if series.role and series.role not in BIGGER_IS_BETTER:
            raise InputError(
                f"channel {series.name!r} has the role {series.role!r}, which says nothing about better or worse; "
                f"write performance='{series.name}:max' or '{series.name}:min'."
            )
        mode = "max" if BIGGER_IS_BETTER.get(series.role, True) else "min"
    return series, mode


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(repr(n) for n in names[:12]) + (", ..." if len(names) > 12 else "")
    return f"Channels: {shown or 'none'}."
