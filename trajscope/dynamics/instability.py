r"""Instantaneous instability x_inst: how far the channels are from their recent past, row by row.

With causal level *m* and scale *s* (trailing median and MAD of *W* rows, *t* itself excluded) and

.. math::

    z_{c,t} = \frac{y_t - m_{t-1}}{s_{t-1}}, \qquad
    k_{c,t} = \frac{y_t - 2 y_{t-1} + y_{t-2}}{g_t\, s_{t-1}}, \qquad g_t = \sqrt{6 - 8 r_1 + 2 r_2}

each clipped at 50,

.. math:: x_{\mathrm{inst},t} = \log\Bigl(1 + \sqrt{\operatorname{mean}_c \max(|z_{c,t}|, |k_{c,t}|)^2}\Bigr)

*g* is the sd of the second difference of a series with lag-1 and lag-2 autocorrelations :math:`r_1, r_2` and unit
variance: :math:`\sqrt 6` for white noise, less for smooth series, whose curvature would be called small otherwise.
Autocorrelations are robust (MADs of sums and differences) over the same window.

Channels default to loss and gradient norm, on the scale of their role. Source: trajscope's definition; the paper that
names x_inst (arXiv 2601.13160) gives no formula. Limits: clipping makes it an indicator, not a size; on a strong trend
*z* measures the trend too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope._core.rolling import MAD_TO_SD, trailing_median_mad
from trajscope.dynamics._rows import LARGEST, numbers
from trajscope.errors import InputError, nearest
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Instability", "instability_array", "loss_ratio", "x_inst"]

Floats = NDArray[np.float64]

_DEFAULT_ROLES = ("loss", "grad_norm")
_LOG_ROLES = frozenset({"loss", "grad_norm", "update_norm", "param_norm", "kl", "val_loss", "value_loss", "lr"})


def _lag(values: Floats, lag: int, window: int, min_count: int) -> Floats:
    """Robust autocorrelation at ``lag`` over the trailing window."""
    shifted = (
        np.concatenate([np.full(lag, np.nan), values[:-lag]]) if values.size > lag else np.full_like(values, np.nan)
    )
    plus = trailing_median_mad(values + shifted, window, min_count=min_count)[1] ** 2
    minus = trailing_median_mad(values - shifted, window, min_count=min_count)[1] ** 2
    total = plus + minus
    rho: Floats = np.divide(plus - minus, total, out=np.zeros(values.size), where=total > 0)
    return rho


def instability_array(
    y: ArrayLike, *, window: int = 100, min_count: int = 20, clip: float = 50.0, floor: float | None = None
) -> tuple[Floats, Floats]:
    """Level and curvature residuals of one series.

    Parameters
    ----------
    y : array_like, shape (n_steps,)
        On the scale on which its noise is even; non-finite rows are missing.
    window, min_count : int, default 100 and 20
        Rows behind level and scale, and rows needed for a first value.
    clip : float, default 50
    floor : float, optional
        Smallest scale; max(1e-12, 1e-3 of the absolute median of the window) by default.

    Returns
    -------
    z, k : ndarray, shape (n_steps,)
        Clipped; NaN without history. A non-finite row is +clip: it is an event.
    """
    values = np.asarray(y, dtype=np.float64)
    clean = np.where(np.isfinite(values), np.clip(values, -LARGEST, LARGEST), np.nan)
    level, mad = trailing_median_mad(clean, window, min_count=min_count)
    least = np.maximum(1e-12, 1e-3 * np.abs(level)) if floor is None else np.full(values.size, floor)
    scale = np.fmax(MAD_TO_SD * mad, least)
    scale[np.isnan(level)] = np.nan
    residual = clean - level
    r1, r2 = _lag(residual, 1, window, min_count), _lag(residual, 2, window, min_count)
    gain = np.sqrt(np.maximum(6 - 8 * r1 + 2 * r2, 0.1))
    second = np.full(values.size, np.nan)
    second[2:] = clean[2:] - 2 * clean[1:-1] + clean[:-2]
    z = np.clip(residual / scale, -clip, clip)
    k = np.clip(second / (gain * scale), -clip, clip)
    event = ~np.isfinite(values) & np.isfinite(level)
    z[event] = clip
    return z, k


def loss_ratio(loss: ArrayLike) -> Floats:
    """Loss over the smallest loss before; NaN for the first row and where that minimum is not positive.

    Examples
    --------
    >>> loss_ratio([4.0, 2.0, 3.0])
    array([nan, 0.5, 1.5])
    """
    values = np.asarray(loss, dtype=np.float64)
    best = np.fmin.accumulate(np.where(np.isfinite(values), values, np.nan)) if values.size else values
    before = np.concatenate([[np.nan], best[:-1]]) if values.size else values
    ratio: Floats = np.divide(values, before, out=np.full(values.size, np.nan), where=before > 0)
    return ratio


@dataclass(frozen=True, eq=False)
class Instability(Result):
    """x_inst along a run; returned by `x_inst`.

    Attributes
    ----------
    steps : ndarray, shape (n_steps,)
        Steps at which any of the channels was logged.
    values : ndarray, shape (n_steps,)
        x_inst; NaN without history.
    source : str
        Channels used, joined by ``+``; "unavailable" where none was.
    status : {"ok", "degraded", "unavailable"}
        ``degraded``: a default channel is missing, or the strides differ so that rows rest on fewer channels.
    reason : str
    per_channel : mapping of str to ndarray
        max(\\|z\\|, \\|k\\|) of each channel on ``steps``.
    stride : float
    window : int
    """

    steps: NDArray[Any]
    values: Floats
    source: str
    status: str
    reason: str
    per_channel: Mapping[str, Floats] = field(repr=False)
    stride: float = math.nan
    window: int = 100

    def to_frame(self) -> pd.DataFrame:
        """One row a step: x_inst and the part of each channel."""
        import pandas as pd

        return pd.DataFrame({"x_inst": self.values, **self.per_channel}, index=pd.Index(self.steps, name="step"))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without the per-channel parts."""
        return {f.name: jsonable(getattr(self, f.name)) for f in fields(self) if f.name != "per_channel"}

    def summary(self) -> str:
        """One sentence."""
        if self.status == "unavailable":
            return f"x_inst unavailable: {self.reason}"
        if not np.isfinite(self.values).any():
            return f"x_inst from {self.source}: no value, {self.steps.size} rows are too few for a level and a scale."
        top = int(np.nanargmax(self.values))
        grade = f" ({self.status}: {self.reason})" if self.status != "ok" else ""
        return f"x_inst from {self.source}: largest {self.values[top]:.2f} at step {self.steps[top]}{grade}."


def x_inst(
    source: Any,
    steps: ArrayLike | None = None,
    *,
    channels: list[str] | None = None,
    window: int = 100,
    min_count: int = 20,
    clip: float = 50.0,
) -> Instability:
    """Instantaneous instability of a run or of a matrix of channels.

    Parameters
    ----------
    source : Run, or array_like, shape (n_steps,) or (n_steps, n_channels)
        A run gives loss and gradient norm by role. Array columns that are strictly positive are taken on the log scale.
    steps : array_like, shape (n_steps,), optional
        Steps of an array; row numbers by default.
    channels : list of str, optional
        Names: of the run's channels to use, or of the array's columns.
    window, min_count : int, default 100 and 20
        Rows of each channel behind level and scale, and rows for a first value.
    clip : float, default 50

    Returns
    -------
    Instability

    Raises
    ------
    InputError
        For unknown channels, shapes that do not match or options out of range.

    Examples
    --------
    >>> loss = 3 + 0.05 * np.random.default_rng(0).normal(size=300)
    >>> loss[200] = 6
    >>> found = x_inst(loss)
    >>> int(found.steps[np.nanargmax(found.values)])
    200
    """
    if window < 3 or not 3 <= min_count <= window or clip <= 0:
        raise InputError(
            f"options out of range: window {window}, 3 <= min_count {min_count} <= window, clip {clip} > 0."
        )
    series, missing = _pick(source, steps, channels)
    parameters = {"channels": channels, "window": window, "min_count": min_count, "clip": clip}
    if not series:
        none = np.empty(0)
        return Instability(
            none, none, "unavailable", "unavailable", f"none of {', '.join(missing)} is logged.", {}, math.nan, window,
            provenance=make_provenance("x_inst", parameters),
        )  # fmt: skip
    union = np.unique(np.concatenate([s for _, _, s, _ in series]))
    parts: dict[str, Floats] = {}
    for name, role, where, values in series:
        y = _scaled(values, role)
        z, k = instability_array(y, window=window, min_count=min_count, clip=clip)
        part = np.full(union.size, np.nan)
        part[np.searchsorted(union, where)] = np.fmax(np.abs(z), np.abs(k))
        parts[name] = part
    table = np.vstack(list(parts.values()))
    seen = ~np.isnan(table)
    count = seen.sum(axis=0)
    square = np.where(seen, table, 0.0) ** 2
    mean = np.divide(square.sum(axis=0), count, out=np.full(union.size, np.nan), where=count > 0)
    strides = [float(np.median(np.diff(s))) if s.size > 1 else math.nan for _, _, s, _ in series]
    problems = [f"{m} is not logged" for m in missing]
    if len({s for s in strides if s == s}) > 1:
        problems.append("channels are logged at different strides")
    return Instability(
        steps=union,
        values=np.log1p(np.sqrt(mean)),
        source="+".join(parts),
        status="degraded" if problems else "ok",
        reason="; ".join(problems),
        per_channel=parts,
        stride=min(strides),
        window=window,
        provenance=make_provenance("x_inst", parameters, *(v for _, _, _, v in series)),
    )


def _scaled(values: Floats, role: str) -> Floats:
    finite = values[np.isfinite(values)]
    if finite.size and finite.min() > 0 and (role in _LOG_ROLES or role == ""):
        out = values.copy()
        out[np.isfinite(values)] = np.log(finite)
        return out
    return values


def _pick(
    source: Any, steps: ArrayLike | None, names: list[str] | None
) -> tuple[list[tuple[str, str, NDArray[Any], Floats]], list[str]]:
    """Channels as (name, role, steps, values), and the roles that were looked for and are missing."""
    if hasattr(source, "channels") and hasattr(source.channels, "keys"):
        available = source.channels
        missing: list[str] = []
        if names is None:
            names = []
            for role in _DEFAULT_ROLES:
                fits = [(n, c) for n, c in available.items() if getattr(c, "role", "") == role and len(c.values)]
                if fits:
                    names.append(max(fits, key=lambda f: float(getattr(f[1], "role_confidence", 0.0)))[0])
                else:
                    missing.append(role)
        for name in names:
            if name not in available:
                raise InputError(f"the run has no channel {name!r}. {nearest(name, list(available))}")
        picked = [available[n] for n in names]
        return [
            (n, str(getattr(c, "role", "")), np.asarray(c.steps), np.asarray(c.values, dtype=np.float64))
            for n, c in zip(names, picked, strict=True)
        ], missing
    table = numbers(source, "x")
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2:
        raise InputError(f"x has shape {table.shape}; expected (n_steps,) or (n_steps, n_channels).")
    labels = names or (["x"] if table.shape[1] == 1 else [f"x{i}" for i in range(table.shape[1])])
    if len(labels) != table.shape[1]:
        raise InputError(f"{len(labels)} names for {table.shape[1]} columns; expected one each.")
    positions = np.arange(table.shape[0]) if steps is None else np.asarray(steps)
    if positions.shape != (table.shape[0],):
        raise InputError(f"steps have shape {positions.shape} for {table.shape[0]} rows; expected one step a row.")
    return [(n, "", positions, table[:, i]) for i, n in enumerate(labels)], []
