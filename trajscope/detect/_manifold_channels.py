r"""Channels that training runs of different domains have in common, and the scale on which each is read.

`manifold_channels` makes of any run the same seven columns, each a function of rows up to its own:

==============  ===========================================================================================
loss            as logged
grad_norm       as logged
grad_cos        cosine of successive gradients, as logged
update_norm     as logged
update_ratio    :math:`u_t / p_t`, update norm over parameter norm
growth          :math:`\operatorname{asinh}((p_t - p_{t-1}) / u_{t-1})`. By the triangle inequality an update moves the
                norm by at most its own: outside +-0.88 something else moved the parameters.
x_inst          instantaneous instability (`trajscope.dynamics.instability`) of log gradient norm and of the loss as
                :math:`\operatorname{asinh}(\ell_t / s)`, *s* 1 % of the median absolute loss of its first 20 rows: the
                logarithm for a loss far from zero, and defined for one that is negative now and then
==============  ===========================================================================================

No performance channel is among them (it defines collapse, and a lead over itself is none) and no learning rate (its
change is the injection, not its effect). What a run does not log is missing.

`Scales` freezes on a baseline how each column is read: the logarithm for roles that are positive and heavy-tailed
(a value that is not positive is read as a thousandth of the smallest of the baseline),
:math:`\operatorname{asinh}(y/s)` for signed ones with *s* the robust sd, the value itself for all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling import MAD_TO_SD
from trajscope.detect._scale import ASINH_ROLES, LOG_ROLES
from trajscope.dynamics.instability import instability_array
from trajscope.history.run import Channel, Run
from trajscope.history.trajectory import CODES, Trajectory

__all__ = ["COMMON", "Scales", "manifold_channels", "not_finite"]

Floats = NDArray[np.float64]

COMMON = ("loss", "grad_norm", "grad_cos", "update_norm", "update_ratio", "growth", "x_inst")
"""The columns of `manifold_channels`."""

_ROLES = ("loss", "grad_norm", "grad_cos", "update_norm", "update_norm", "", "")
_LOGGED = ("loss", "grad_norm", "grad_cos", "update_norm", "param_norm")
_FIRST_ROWS = 20
_TINY = 1e-300


def manifold_channels(run: Run) -> Trajectory:
    """The channels that training runs have in common, causally.

    Parameters
    ----------
    run : Run
        Channels are found by role, the most confident one of each.

    Returns
    -------
    Trajectory
        One row for each step at which any of them was logged, columns `COMMON`. What was logged and is not finite stays
        so (an event); what was not logged is missing.

    Examples
    --------
    >>> from trajscope.history.run import RunData, named_channel
    >>> loss = named_channel("train/loss", np.arange(30), np.linspace(2, 1, 30))
    >>> manifold_channels(Run("r", RunData({"train/loss": loss}))).mask.sum(axis=0).tolist()
    [30, 0, 0, 0, 0, 0, 10]
    """
    found: dict[str, Channel] = {}
    for role in _LOGGED:
        channels = [c for c in run.by_role(role) if len(c)]
        if channels:
            found[role] = channels[0]
    steps = np.unique(np.concatenate([c.steps for c in found.values()])) if found else np.zeros(0)
    columns = {role: np.full(steps.size, np.nan) for role in _LOGGED}
    logged = {role: np.zeros(steps.size, dtype=bool) for role in _LOGGED}
    for role, channel in found.items():
        rows = np.searchsorted(steps, channel.steps)
        columns[role][rows] = channel.values
        logged[role][rows] = True
    update, parameters = columns["update_norm"], columns["param_norm"]
    both = logged["update_norm"] & logged["param_norm"]
    with np.errstate(all="ignore"):
        ratio = update / parameters
    growth, grown = _growth(update, parameters, both)
    instability, known = _instability(columns, logged)
    values = np.column_stack([*(columns[r] for r in _LOGGED[:4]), ratio, growth, instability])
    mask = np.column_stack([*(logged[r] for r in _LOGGED[:4]), both, grown, known])
    return Trajectory(values, steps, COMMON, _ROLES, mask, run=run.id)


def _growth(update: Floats, parameters: Floats, both: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """Change of the parameter norm in units of the update that made it."""
    rows = np.flatnonzero(both)
    out, known = np.full(update.size, np.nan), np.zeros(update.size, dtype=bool)
    with np.errstate(all="ignore"):
        out[rows[1:]] = np.arcsinh(np.diff(parameters[rows]) / np.maximum(update[rows[:-1]], _TINY))
    known[rows[1:]] = True
    return out, known


def _instability(columns: dict[str, Floats], logged: dict[str, NDArray[np.bool_]]) -> tuple[Floats, NDArray[np.bool_]]:
    """x_inst of loss and gradient norm on scales that earlier rows alone decide."""
    n = columns["loss"].size
    total, count = np.zeros(n), np.zeros(n)
    for role in ("loss", "grad_norm"):
        rows = np.flatnonzero(logged[role])
        if not rows.size:
            continue
        y = columns[role][rows]
        with np.errstate(all="ignore"):
            if role == "loss":
                first = np.abs(y[:_FIRST_ROWS][np.isfinite(y[:_FIRST_ROWS])])
                unit = 0.01 * float(np.median(first)) if first.size else 1.0
                y = np.arcsinh(y / unit) if unit > 0 else y
            else:
                y = np.where(np.isfinite(y), np.log(np.maximum(y, _TINY)), y)
        z, k = instability_array(y)
        part = np.fmax(np.abs(z), np.abs(k))
        good = ~np.isnan(part)
        total[rows[good]] += part[good] ** 2
        count[rows[good]] += 1
    known = count > 0
    return np.where(known, np.log1p(np.sqrt(total / np.maximum(count, 1))), np.nan), known


@dataclass(frozen=True)
class Scales:
    """How each column is read; see the top of this module.

    Attributes
    ----------
    kinds : tuple of {"none", "log", "asinh"}
    units : ndarray, shape (n_channels,)
        The least value under the logarithm, the unit of the inverse hyperbolic sine, 1 elsewhere.
    """

    kinds: tuple[str, ...]
    units: Floats

    @classmethod
    def fit(cls, runs: Sequence[Floats], roles: Sequence[str]) -> Scales:
        """Choose on baseline rows; an empty role reads the value itself."""
        kinds, units = [], []
        for c, role in enumerate(roles):
            kind, unit = "none", 1.0
            if role in LOG_ROLES | ASINH_ROLES:
                y = np.concatenate([x[:, c] for x in runs])
                y = y[~np.isnan(y)]
                if y.size and role in LOG_ROLES and y.min() > 0:
                    kind, unit = "log", 1e-3 * float(y.min())
                elif y.size:
                    spread = MAD_TO_SD * float(np.median(np.abs(y - np.median(y))))
                    kind, unit = ("asinh", spread) if spread > 0 else ("none", 1.0)
            kinds.append(kind)
            units.append(unit)
        return cls(tuple(kinds), np.asarray(units))

    def apply(self, x: Floats) -> Floats:
        """The columns as they are read; the input is left alone."""
        if all(kind == "none" for kind in self.kinds):
            return x
        out = x.copy()
        for c, kind in enumerate(self.kinds):
            if kind == "log":
                out[:, c] = np.log(np.fmax(x[:, c], self.units[c]))
                out[np.isnan(x[:, c]), c] = np.nan
            elif kind == "asinh":
                out[:, c] = np.arcsinh(x[:, c] / self.units[c])
        return out


def not_finite(run: Any) -> NDArray[np.bool_]:
    """Rows in which something was logged that is no finite number.

    In a trajectory its codes tell; in an array NaN means missing, so only infinities count.
    """
    codes = getattr(run, "codes", None)
    if isinstance(codes, np.ndarray):
        return np.asarray(((codes != CODES["finite"]) & (codes != CODES["not logged"])).any(axis=1))
    if isinstance(run, np.ma.MaskedArray):
        run = np.ma.filled(run.astype(np.float64), np.nan)
    if hasattr(run, "to_numpy"):
        run = run.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.asarray(np.isinf(np.asarray(run, dtype=np.float64)).any(axis=1))
