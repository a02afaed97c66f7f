"""From what the caller has (array, frame, channel, trajectory, run) to channels on their own rows, and their breaks.

A channel is judged on the rows in which it was logged: held cells are no rows. Where it is logged at an even stride (at
least half of the last 50 distances are their median), rows are neighbours while their steps are at most 1.5 strides
apart, and a hole of more than 10 strides opens a new stretch, over which neither baseline nor window reaches. Where it
is not (one row an episode), rows follow each other as they come. A new segment or a step that goes back always opens a
stretch; rows of the same step are never neighbours. All of it is judged from the distances before, so that later rows
change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling import trailing_median
from trajscope._core.rolling_moments import window_counts
from trajscope.detect._scale import ASINH_ROLES, LOG_ROLES, stride_of
from trajscope.errors import InputError, nearest

__all__ = ["Channel", "Source", "as_source", "links", "put_on_scale"]

Floats = NDArray[np.float64]

NEIGHBOUR = 1.5
"""Strides up to which two rows are neighbours."""
HOLE = 10.0
"""Strides from which a hole opens a new stretch."""
_RECENT, _FEW = 50, 5
"""Distances from which the stride of a row is known, and how many there must be."""
_EVEN = 0.5
"""Share of them that are the stride, within 1 %, where a channel is logged evenly."""
SCALES = ("none", "log", "asinh", "role")


@dataclass(frozen=True, eq=False)
class Channel:
    """One channel on its own rows.

    Attributes
    ----------
    name, role : str
    rows : ndarray, shape (n,)
        Its rows in the table of the result.
    values : ndarray, shape (n,)
        NaN where a value that is not finite was logged.
    steps : ndarray, shape (n,)
    segment : ndarray, shape (n,)
    """

    name: str
    role: str
    rows: NDArray[np.intp]
    values: Floats
    steps: NDArray[Any]
    segment: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Source:
    """Channels and the steps of the table that they share."""

    steps: NDArray[Any]
    channels: tuple[Channel, ...]
    x: str = "step"


@dataclass(frozen=True, eq=False)
class Links:
    """Where the rows of a channel hang together.

    Attributes
    ----------
    bounds : tuple of int
        First row of every stretch.
    hop : ndarray of bool, shape (n,), or None
        Whether a row is the neighbour of the row before; None where all are.
    stride : float
        Median distance of steps.
    irregular : float
        Share of distances that differ from the stride by more than half of it.
    """

    bounds: tuple[int, ...]
    hop: NDArray[np.bool_] | None
    stride: float
    irregular: float

    def linked(self, lag: int) -> NDArray[np.bool_] | None:
        """Where row *t* hangs together with row *t - lag*."""
        if self.hop is None:
            return None
        broken = np.concatenate([[0], np.cumsum(~self.hop)])
        out = np.zeros(self.hop.size, dtype=bool)
        out[lag:] = broken[lag + 1 :] == broken[1 : broken.size - lag]
        return out

    def age(self, n: int) -> NDArray[np.intp]:
        """Rows since the stretch began, this one included."""
        rows = np.arange(n)
        starts = np.array(self.bounds or (0,))
        return np.asarray(rows - starts[np.searchsorted(starts, rows, side="right") - 1] + 1, dtype=np.intp)

    def whole(self, z: Floats, window: int, min_count: int | None) -> NDArray[np.bool_]:
        """Rows whose window lies in one stretch and holds enough cells: half of it by default."""
        count = window_counts(~np.isnan(z[None]), window)[0]
        enough = max(3, window // 2) if min_count is None else min_count
        out: NDArray[np.bool_] = (self.age(z.size) >= window) & (count >= enough)
        return out


def links(steps: NDArray[Any], segment: NDArray[Any]) -> Links:
    """Find the gaps and the stretches of a channel."""
    n = steps.size
    distance = np.diff(steps.astype(np.float64))
    broken = np.diff(segment.astype(np.int64)) != 0
    even = distance.size == 0 or bool((distance == distance[0]).all() and distance[0] > 0)
    if even and not broken.any():
        return Links((0,), None, float(distance[0]) if distance.size else float("nan"), 0.0)
    forward = np.where((distance > 0) & ~broken, distance, np.nan)
    typical = trailing_median(forward, _RECENT, min_count=_FEW)
    with np.errstate(invalid="ignore"):
        usual = window_counts((np.abs(forward - typical) <= 0.01 * typical)[None], _RECENT)[0]
        known = window_counts(~np.isnan(forward)[None], _RECENT)[0]
        before = [np.concatenate([[0.0], v[:-1]]) for v in (usual, known)]
        judged = ~np.isnan(typical) & (before[0] >= _EVEN * np.maximum(before[1] - _FEW, 1))
        gap = judged & (distance > NEIGHBOUR * typical)
        hole = judged & (distance > HOLE * typical)
    new = broken | (distance < 0) | hole
    hop = np.concatenate([[True], ~(new | gap | (distance == 0))])
    bounds = (0, *(np.flatnonzero(new) + 1).tolist())
    stride = stride_of(steps)
    with np.errstate(invalid="ignore"):
        odd = np.abs(distance - stride) > 0.5 * stride
    return Links(bounds, None if hop.all() else hop, stride, float(np.mean(odd)) if n > 1 else 0.0)


def put_on_scale(values: Floats, role: str, scale: str, early: int) -> tuple[Floats, str]:
    """Values on the scale that was asked for, and its name; nothing depends on rows after the first `early`.

    Not positive on a log scale is missing. The unit of the asinh scale is the robust spread of the first `early` finite
    rows.
    """
    if scale == "role":
        scale = "log" if role in LOG_ROLES else "asinh" if role in ASINH_ROLES else "none"
    if scale == "log":
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(values > 0, np.log(np.where(values > 0, values, 1.0)), np.nan), scale
    if scale == "asinh":
        first = values[: max(early, 1)]
        first = first[~np.isnan(first)]
        spread = 1.4826 * float(np.median(np.abs(first - np.median(first)))) if first.size else 0.0
        return (np.arcsinh(values / spread) if spread > 0 else values), scale
    return values, scale


def _numbers(x: Any, label: str) -> Floats:
    if np.iscomplexobj(x):
        raise InputError(f"{label} is complex; expected real numbers.")
    try:
        return np.array(x, dtype=np.float64)  # a copy: the result keeps it
    except (TypeError, ValueError) as error:
        raise InputError(f"{label} is not numeric ({error}); expected numbers.") from None


def _chosen(names: Sequence[str], wanted: Sequence[str] | str | None, where: str) -> list[str]:
    if wanted is None:
        return list(names)
    picked = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in picked:
        if name not in names:
            raise InputError(f"{where} has no channel {name!r}. {nearest(str(name), names)}")
    if len(set(picked)) < len(picked):
        raise InputError(f"channels holds a name twice: {picked}")
    return picked


def _trajectory(t: Any, wanted: Sequence[str] | str | None, role: Callable[[str], str]) -> Source:
    names = _chosen(t.names, wanted, "the trajectory")
    observed, out = t.observed, []
    for name in names:
        c = t.names.index(name)
        rows = np.flatnonzero(t.mask[:, c])
        own = role(t.roles[c] if t.roles else "")
        out.append(Channel(name, own, rows, observed[rows, c], t.steps[rows], t.segment[rows]))
    return Source(np.array(t.steps), tuple(out), t.x)


def as_source(x: Any, steps: Any, channels: Sequence[str] | str | None, role: str | None) -> Source:
    """Take whatever `early_warning` is given.

    Raises
    ------
    InputError
        Not numeric, wrong shape, steps that do not match or go back, unknown channels.
    """

    def role_of(own: str) -> str:
        return own if role is None else role

    if hasattr(x, "channels") and hasattr(x.channels, "keys"):  # a run
        from trajscope.history.trajectory import align

        if steps is not None:
            raise InputError("steps belong to arrays; a run has its own.")
        return _trajectory(align(x, None if channels is None else _chosen(list(x.channels), channels, "the run")),
                           None, role_of)  # fmt: skip
    if hasattr(x, "observed") and hasattr(x, "names"):  # a trajectory
        if steps is not None:
            raise InputError("steps belong to arrays; a trajectory has its own.")
        return _trajectory(x, channels, role_of)
    segment = None
    names: list[str] | None = None
    own_role = ""
    if hasattr(x, "steps") and hasattr(x, "values") and not callable(x.values):  # one channel
        names, own_role = [str(getattr(x, "name", "x"))], str(getattr(x, "role", "") or "")
        steps = x.steps if steps is None else steps
        segment = getattr(x, "segment", None)
        x = x.values
    elif hasattr(x, "columns") and hasattr(x, "index"):  # a frame: meta-states, scores
        names = [str(c) for c in x.columns]
        steps = _index(x) if steps is None else steps
        x = x.to_numpy()
    elif hasattr(x, "index") and hasattr(x, "to_numpy"):  # a series
        names = [str(x.name)] if x.name is not None else None
        steps = _index(x) if steps is None else steps
        x = x.to_numpy()
    values = _numbers(x, "x")
    if values.ndim not in (1, 2):
        raise InputError(f"x has shape {values.shape}; expected (n_steps,) or (n_steps, n_channels).")
    if values.ndim == 1:
        values = values[:, None]
    n, c = values.shape
    values[~np.isfinite(values)] = np.nan
    if steps is None:
        steps = np.arange(n)
    at = np.array(steps)
    if at.shape != (n,):
        raise InputError(f"x has {n} rows but steps of shape {at.shape}; expected one step a row.")
    if at.dtype.kind not in "iuf" or not np.isfinite(at).all():
        raise InputError(f"steps have dtype {at.dtype} or hold a value that is not finite; expected numbers.")
    if segment is None:
        back = np.flatnonzero(np.diff(at.astype(np.float64)) < 0)
        if back.size:
            k = int(back[0])
            raise InputError(
                f"steps go back from {at[k]} to {at[k + 1]} at row {k + 1}; expected ascending steps. "
                "Split the run at its restarts first (Run.split), or pass a Trajectory, which knows its segments."
            )
        segment = np.zeros(n, dtype=np.int64)
    if names is None:
        names = ["x"] if c == 1 else [f"x{k}" for k in range(c)]
    if len(set(names)) < len(names):
        raise InputError(f"channels have names that occur twice: {names}")
    picked = _chosen(names, channels, "x")
    rows = np.arange(n)
    made = [
        Channel(name, role_of(own_role), rows, values[:, names.index(name)], at, np.asarray(segment)) for name in picked
    ]
    return Source(at, tuple(made))


def _index(table: Any) -> NDArray[Any] | None:
    """The steps in the index of a frame; None where it holds no numbers."""
    at = np.asarray(table.index)
    return at if at.dtype.kind in "iuf" else None
