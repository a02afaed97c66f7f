"""From what the caller has (array, channel, trajectory) to a matrix of values, steps, names and what was logged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.errors import InputError, nearest

__all__ = ["KINDS", "Series", "known_steps", "read_kinds", "read_number", "read_series"]

Floats = NDArray[np.float64]
KINDS = ("level", "slope", "variance")


@dataclass(frozen=True, eq=False)
class Series:
    """Values ``(n_steps, n_channels)`` with NaN where nothing was logged, steps ``(n_steps,)``, channel names."""

    values: Floats
    steps: NDArray[Any]
    names: tuple[str, ...]
    resumed: tuple[int, ...] = ()
    """First rows of the later segments of a trajectory."""

    def own_rows(self, channel: int) -> NDArray[np.int64]:
        """Rows at which a finite value of the channel was logged."""
        return np.flatnonzero(np.isfinite(self.values[:, channel])).astype(np.int64)


def read_series(x: Any, steps: Any, channels: Sequence[str] | str | None) -> Series:
    """Check and copy the input.

    Raises
    ------
    InputError
        If `x` is not numeric with one or two axes, `steps` do not fit or go back, or a channel is unknown.
    """
    names: tuple[str, ...] | None = None
    mask = None
    table = hasattr(x, "columns") and hasattr(x, "index")  # a DataFrame, without importing pandas
    if table:
        names = tuple(str(c) for c in x.columns)
        raw = x.to_numpy()
    elif hasattr(x, "values") and hasattr(x, "steps"):
        raw = x.values
        steps = x.steps if steps is None else steps
        mask = getattr(x, "mask", None)
        if hasattr(x, "names"):
            names = tuple(str(v) for v in x.names)
        elif hasattr(x, "name"):
            names = (str(x.name),)
    else:
        raw = x
    if hasattr(x, "channels") and hasattr(x.channels, "keys"):
        raise InputError("x is a run, whose channels have steps of their own; pass align(run) or one of run.channels.")
    if np.ma.isMaskedArray(raw):
        raw = np.ma.filled(np.ma.asarray(raw, dtype=np.float64), np.nan)
    if np.iscomplexobj(raw):
        raise InputError("x is complex; expected real numbers, (n_steps,) or (n_steps, n_channels).")
    try:
        values = np.array(raw, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"x is not numeric ({error}); expected (n_steps,) or (n_steps, n_channels).") from None
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or values.shape[1] == 0:
        raise InputError(f"x has shape {np.shape(raw)}; expected (n_steps,) or (n_steps, n_channels).")
    n, c = values.shape
    if mask is not None and np.shape(mask) == values.shape:
        values[~np.asarray(mask, dtype=bool)] = np.nan
    values[~np.isfinite(values)] = np.nan
    if names is None or len(names) != c:
        names = tuple(f"x{i}" for i in range(c)) if c > 1 else ("x",)
    position = np.arange(n) if steps is None else np.array(steps)
    if position.shape != (n,) or position.dtype.kind not in "iuf":
        raise InputError(
            f"steps have shape {position.shape} and type {position.dtype}; expected {n} numbers, one a row."
        )
    bad = np.flatnonzero(~np.isfinite(position))
    if bad.size:
        raise InputError(f"step {position[bad[0]]} at row {bad[0]} is not finite; drop the rows without a step.")
    restart = getattr(x, "segment", None) is not None  # a resumed run may count from its start again
    ascending = position[1:] > position[:-1]  # no difference: unsigned steps would wrap round
    if not restart and not ascending.all():
        at = int(np.argmin(ascending)) + 1
        raise InputError(
            f"steps must increase; row {at} has step {position[at]} after {position[at - 1]}."
            " Sort the rows, or search each segment of a resumed run on its own."
        )
    if channels is not None:
        if not isinstance(channels, Iterable):
            raise InputError(f"channels is {channels!r}; expected a name or several names of {', '.join(names)}.")
        wanted = [channels] if isinstance(channels, str) else list(dict.fromkeys(str(v) for v in channels))
        if not wanted:
            raise InputError("channels is empty; expected one or more of " + ", ".join(names) + ".")
        for name in wanted:
            if name not in names:
                raise InputError(f"no channel {name!r}. {nearest(name, names)}")
        values = values[:, [names.index(v) for v in wanted]]
        names = tuple(wanted)
    return Series(values, position, names, _boundaries(x, n))


def _boundaries(x: Any, n: int) -> tuple[int, ...]:
    """Rows at which the segment of a trajectory changes: where a run was resumed."""
    segment = np.asarray(getattr(x, "segment", ()))
    if segment.shape != (n,):
        return ()
    return tuple((np.flatnonzero(segment[1:] != segment[:-1]) + 1).tolist())


def read_number(name: str, value: Any, low: float, high: float = math.inf) -> float:
    """A number strictly between two bounds.

    Raises
    ------
    InputError
        If `value` is no number, or out of bounds.
    """
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not real or not low < value < high:
        wanted = f"a number between {low:g} and {high:g}" if math.isfinite(high) else "a positive number"
        raise InputError(f"{name} is {value!r}; expected {wanted}.")
    return float(value)


def read_kinds(kind: str | Sequence[str]) -> tuple[str, ...]:
    """ "auto" or some of level, slope, variance."""
    if not isinstance(kind, Iterable):
        raise InputError(f"kind is {kind!r}; expected 'auto' or some of 'level', 'slope', 'variance'.")
    kinds = KINDS if kind == "auto" else ((kind,) if isinstance(kind, str) else tuple(kind))
    for k in kinds:
        if k not in KINDS:
            raise InputError(f"kind {k!r} is not known. {nearest(str(k), (*KINDS, 'auto'))}")
    if not kinds:
        raise InputError("kind is empty; expected 'auto' or some of 'level', 'slope', 'variance'.")
    return tuple(k for k in KINDS if k in kinds)


def known_steps(events: Any) -> list[tuple[float, str]]:
    """Known events as (step, note): numbers, pairs, a mapping step -> note, or a table with a ``step`` column.

    Raises
    ------
    InputError
        If an event has no finite step.
    """
    if events is None:
        return []
    if hasattr(events, "columns"):
        if "step" not in list(events.columns):
            raise InputError(
                f"known_events has columns {list(events.columns)}; expected 'step' (and 'kind' or 'note')."
            )
        note = next((c for c in ("note", "kind") if c in list(events.columns)), None)
        notes = [str(v) for v in events[note]] if note else ["known event"] * len(events)
        return [(_step(s), t) for s, t in zip(events["step"], notes, strict=True)]
    if isinstance(events, Mapping):
        return [(_step(s), str(t)) for s, t in events.items()]
    if np.isscalar(events) and not isinstance(events, str):
        events = [events]
    if isinstance(events, str) or not isinstance(events, Iterable):
        raise InputError(f"known_events is {events!r}; expected steps, (step, note) pairs, a mapping or a table.")
    out = []
    for event in events:
        if isinstance(event, tuple | list) and event:
            out.append((_step(event[0]), str(event[1]) if len(event) > 1 else "known event"))
        elif isinstance(event, Mapping):
            out.append((_step(event.get("step")), str(event.get("note", event.get("kind", "known event")))))
        else:
            out.append((_step(event), "known event"))
    return out


def _step(value: Any) -> float:
    try:
        step = float(value)
    except (TypeError, ValueError):
        step = math.nan
    if not math.isfinite(step):
        raise InputError(f"known_events holds {value!r} where a step is expected; expected a finite number.")
    return step
