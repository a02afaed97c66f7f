"""What the estimators of this room accept, turned into one form: a list of float matrices with NaN where nothing is
known.

One run is an array (n_steps, n_channels), a DataFrame or a trajectory (anything with ``values`` and ``mask``);
several runs are a list of those. A cell of a trajectory that was carried forward (mask False) is missing, and so is
everything that is not finite: an infinite loss is an event, which the audit reports as such, and no number to
average. Finite values are cut at +-1e60 (float32 ends at 3e38): squares of quadratic features would overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trajscope.errors import InputError

__all__ = ["RunData", "as_runs", "check_channels", "is_many"]

Floats = NDArray[np.float64]

_LARGEST = 1e60


@dataclass(frozen=True)
class RunData:
    """One run as the estimators see it.

    Attributes
    ----------
    x : ndarray, shape (n_steps, n_channels)
        NaN where nothing usable was logged. Not to be written to: it may be the caller's own array.
    steps : ndarray, shape (n_steps,)
    names : tuple of str
        Empty where the source had none.
    """

    x: Floats
    steps: NDArray[Any]
    names: tuple[str, ...]


def is_many(data: Any) -> bool:
    """True for a list (or tuple) of runs, False for one run."""
    if not isinstance(data, list | tuple) or not data:
        return False
    first = data[0]
    return hasattr(first, "mask") or getattr(first, "ndim", 0) == 2 or hasattr(first, "columns")


def as_runs(data: Any, where: str = "X") -> list[RunData]:
    """Turn the argument of ``fit``, ``transform`` or ``deviation`` into runs.

    Raises
    ------
    InputError
        Not two-dimensional, sparse, complex, empty, or runs whose channels differ.
    """
    if isinstance(data, RunData):
        return [data]
    many = is_many(data)
    runs = [_one(d, f"{where}[{i}]" if many else where) for i, d in enumerate(data if many else [data])]
    for i, run in enumerate(runs[1:], start=1):
        if run.x.shape[1] != runs[0].x.shape[1]:
            raise InputError(
                f"{where}[{i}] has {run.x.shape[1]} channels and {where}[0] has {runs[0].x.shape[1]};"
                " runs that are pooled need the same channels in the same order."
            )
        if run.names and runs[0].names and run.names != runs[0].names:
            raise InputError(
                f"{where}[{i}] has channels {list(run.names)} and {where}[0] has {list(runs[0].names)};"
                " select the same channels in the same order (Trajectory.select)."
            )
    return runs


def _one(data: Any, where: str) -> RunData:
    names: tuple[str, ...] = ()
    steps: Any = None
    mask: Any = None
    if isinstance(data, RunData):
        return data
    # a Trajectory, or shaped like one; a DataFrame may have a column called "names"
    if all(hasattr(data, name) for name in ("mask", "names", "values")) and not hasattr(data, "columns"):
        names, steps, mask, data = tuple(data.names), data.steps, np.asarray(data.mask, bool), data.values
    elif hasattr(data, "columns") and hasattr(data, "to_numpy"):  # a DataFrame
        if all(isinstance(c, str) for c in data.columns):
            names = tuple(data.columns)
        steps = np.asarray(data.index) if np.issubdtype(np.asarray(data.index).dtype, np.number) else None
        # columns of pandas' own nullable types hold NA, which is no float
        nullable = any(isinstance(d, pd.api.extensions.ExtensionDtype) for d in data.dtypes)
        data = data.astype(object).where(data.notna(), np.nan).to_numpy() if nullable else data.to_numpy()
    elif hasattr(data, "tocsr") and hasattr(data, "nnz"):
        raise InputError(f"{where} is a sparse matrix; expected a dense array: sparse data are not supported.")
    elif isinstance(data, np.ma.MaskedArray):
        mask, data = ~np.ma.getmaskarray(data), data.data
    try:
        raw = np.asarray(data)
    except ValueError as error:  # nested lists of unequal length
        raise InputError(
            f"{where} cannot be made one matrix ({error}); expected rows of equal length. Runs of a list have to be"
            " arrays, DataFrames or trajectories: [np.asarray(run) for run in X]."
        ) from error
    if np.iscomplexobj(raw):
        raise InputError(f"Complex data not supported: {where} has dtype {raw.dtype}; expected real numbers.")
    if raw.ndim != 2:
        raise InputError(
            f"{where} has shape {raw.shape}; expected 2D array (n_steps, n_channels) or a list of them. Reshape your"
            " data: x.reshape(-1, 1) makes one channel of a vector, x.reshape(1, -1) one row."
        )
    if raw.shape[0] == 0:
        raise InputError(f"Found array with 0 sample(s) (shape={raw.shape}) while a minimum of 1 is required: {where}.")
    if raw.shape[1] == 0:
        raise InputError(f"0 feature(s) (shape={raw.shape}) while a minimum of 1 is required: {where} has no channel.")
    try:
        # one layout, so that the same numbers give the same bytes wherever they come from
        x = np.asarray(raw, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} has cells that are no numbers ({error}); expected numbers or NaN.") from error
    off = (x > _LARGEST) | (x < -_LARGEST)
    if mask is not None:
        off |= ~mask
    if off.any():
        known = np.isfinite(x) if mask is None else np.isfinite(x) & mask
        x = np.where(known, np.clip(x, -_LARGEST, _LARGEST), np.nan)
    n = x.shape[0]
    return RunData(x, np.arange(n) if steps is None else np.asarray(steps), names)


def check_channels(estimator: Any, runs: list[RunData]) -> None:
    """Refuse runs whose channels are not those that the estimator was fitted on."""
    p, name = runs[0].x.shape[1], type(estimator).__name__
    if p != estimator.n_features_in_:
        raise InputError(f"X has {p} features, but {name} is expecting {estimator.n_features_in_} features as input.")
    own = getattr(estimator, "feature_names_in_", None)
    if own is not None and runs[0].names and tuple(own) != runs[0].names:
        raise InputError(
            f"X has channels {list(runs[0].names)}, {name} was fitted on {list(own)}; select those, in that order."
        )
