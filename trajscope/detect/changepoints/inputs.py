"""From what the caller has (array, channel, trajectory) to a matrix of values, steps, names and what was logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.errors import InputError, nearest

__all__ = ["KINDS", "Series", "known_steps", "read_kinds", "read_series"]

Floats = NDArray[np.float64]
KINDS = ("level", "slope", "variance")


@dataclass(frozen=True, eq=False)
class Series:
    """Values ``(n_steps, n_channels)`` with NaN where nothing was logged, steps ``(n_steps,)``, channel names."""

    values: Floats
    steps: NDArray[Any]
    names: tuple[str, ...]

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
    restart = getattr(x, "segment", None) is not None  # a resumed run may count from its start again
    if n > 1 and not restart and not np.all(np.diff(position) > 0):
        at = int(np.argmax(~(np.diff(position) > 0))) + 1
        raise InputError(
            f"steps must increase; row {at} has step {position[at]} after {position[at - 1]}."
            " Sort the rows, or search each segment of a resumed run on its own."
        )
    if channels is not None:
        wanted = [channels] if isinstance(channels, str) else [str(v) for v in channels]
        for name in wanted:
            if name not in names:
                raise InputError(f"no channel {name!r}. {nearest(name, names)}")
        values = values[:, [names.index(v) for v in wanted]]
        names = tuple(wanted)
    return Series(values, position, names)


def read_kinds(kind: str | Sequence[str]) -> tuple[str, ...]:
    """ "auto" or some of level, slope, variance."""
    kinds = KINDS if kind == "auto" else ((kind,) if isinstance(kind, str) else tuple(kind))
    for k in kinds:
        if k not in KINDS:
            raise InputError(f"kind {k!r} is not known. {nearest(str(k), (*KINDS, 'auto'))}")
    if not kinds:
        raise InputError("kind is empty; expected 'auto' or some of 'level', 'slope', 'variance'.")
    return tuple(k for k in KINDS if k in kinds)


def known_steps(events: Any) -> list[tuple[float, str]]:
    """Known events as (step, note): numbers, pairs, a mapping step -> note, or a table with a ``step`` column."""
    if events is None:
        return []
    if hasattr(events, "columns"):
        if "step" not in list(events.columns):
            raise InputError(
                f"known_events has columns {list(events.columns)}; expected 'step' (and 'kind' or 'note')."
            )
        note = next((c for c in ("note", "kind") if c in list(events.columns)), None)
        notes = [str(v) for v in events[note]] if note else ["known event"] * len(events)
        return [(float(s), t) for s, t in zip(events["step"], notes, strict=True)]
    if isinstance(events, Mapping):
        return [(float(s), str(t)) for s, t in events.items()]
    out = []
    for event in np.atleast_1d(events) if np.isscalar(events) else events:
        if isinstance(event, tuple | list):
            out.append((float(event[0]), str(event[1]) if len(event) > 1 else "known event"))
        elif isinstance(event, Mapping):
            out.append((float(event["step"]), str(event.get("note", event.get("kind", "known event")))))
        else:
            out.append((float(event), "known event"))
    return out
