"""Scores that others made, under their own names: of a fitted meta-state, of x_grad and x_inst, of a frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.indicators.inputs import Source
from trajscope.errors import InputError

__all__ = ["given_scores"]

Floats = NDArray[np.float64]


def given_scores(source: Source, x: Any, state: Any, scores: Any) -> dict[str, Floats]:
    """Columns by name, each of shape (n_steps,) on the steps of the source.

    Raises
    ------
    InputError
        If a score does not fit the rows, or a result says that it looks ahead.
    """
    out: dict[str, Floats] = {}
    if state is not None:
        out |= _of_state(source, x, state)
    if scores is None:
        return out
    if hasattr(scores, "columns"):
        scores = {str(c): scores[c] for c in scores.columns}
    elif hasattr(scores, "to_frame") and not isinstance(scores, Mapping):
        frame = scores.to_frame()
        scores = {str(c): frame[c] for c in frame.columns}
    if not isinstance(scores, Mapping):
        raise InputError(f"scores is a {type(scores).__name__}; expected a frame, or a mapping of names to columns.")
    for name, value in scores.items():
        out[str(name)] = _column(source, str(name), value)
    return out


def _of_state(source: Source, x: Any, state: Any) -> dict[str, Floats]:
    data = x
    if hasattr(x, "channels") and hasattr(x.channels, "keys"):
        from trajscope.history.trajectory import align

        names = getattr(state, "feature_names_in_", None)
        data = align(x, None if names is None else [str(name) for name in names])
    out: dict[str, Floats] = {}
    if hasattr(state, "deviation"):
        frame = state.deviation(data)
        # of an array or a frame, row by row; a trajectory of its own channels may have other rows than ours
        at = data.steps if hasattr(data, "names") else None if len(frame) == source.steps.size else frame.index
        for name in frame.columns:
            values = frame[name].to_numpy()
            series = values if at is None else _Stepped(np.asarray(at), values)
            out[str(name)] = _column(source, str(name), series)
    if hasattr(state, "signed_distance"):
        values = np.asarray(state.signed_distance(data), dtype=np.float64)
        out["distance"] = _column(
            source, "distance", _Stepped(data.steps, values) if hasattr(data, "names") else values
        )
    if not out:
        raise InputError(
            f"state is a {type(state).__name__}; expected a fitted meta-state (with deviation) or a manifold "
            "(with signed_distance)."
        )
    return out


class _Stepped:
    """Values with the steps they belong to."""

    def __init__(self, steps: NDArray[Any], values: Floats) -> None:
        self.steps, self.values = steps, values


def _column(source: Source, name: str, value: Any) -> Floats:
    if getattr(value, "causal", True) is False:
        raise InputError(f"score {name!r} looks ahead (its result is not causal) and cannot stand among indicators.")
    at: Any = None
    if hasattr(value, "steps") and hasattr(value, "values") and not callable(value.values):
        at, value = value.steps, value.values
    elif hasattr(value, "index") and hasattr(value, "to_numpy"):
        index = np.asarray(value.index)
        # 0, 1, 2, ... is what a table without steps has: row by row
        numbered = index.size == source.steps.size and np.array_equal(index, np.arange(index.size))
        at = index if index.dtype.kind in "iuf" and not numbered else None
        value = value.to_numpy()
    column = np.array(value, dtype=np.float64)
    n = source.steps.size
    if column.ndim != 1:
        raise InputError(f"score {name!r} has shape {column.shape}; expected one value a row.")
    if at is not None and np.shape(at) == column.shape:
        positions = np.asarray(at, dtype=np.float64)
        steps = source.steps.astype(np.float64)
        if column.size == n and np.array_equal(positions, steps):
            return column
        if np.unique(positions).size == positions.size:  # place by step; steps without a score stay empty
            order = np.argsort(positions)
            found = np.searchsorted(positions[order], steps)
            hit = (found < positions.size) & (positions[order][np.minimum(found, positions.size - 1)] == steps)
            if hit.any():
                out = np.full(n, np.nan)
                out[hit] = column[order][found[hit]]
                return out
    if column.size == n:
        return column
    raise InputError(
        f"score {name!r} has {column.size} values for {n} rows and no steps in common with them; "
        "give one value a row, or a Series indexed by step."
    )
