r"""Channels of a run as rows of robust residuals, and the first joint departure among them.

For a channel on the scale of its role, with the trailing median :math:`m_{t-1}` of 10 rows and the scale
:math:`s_{t-1} = 1.4826\,\operatorname{med}_{60}|y - m|` (never below its trailing value over 20 rows, nor below a
floor), the residual is :math:`z_t = (y_t - m_{t-1})/s_{t-1}`: all causal. Rows of the channels that training itself
moves (`CORE`) are joined by step,

.. math:: Q_t = \Bigl(\sum_c \min(|z_{c,t}|, 30)^2\Bigr)^{1/2},

and the first departure is the first step after the warm-up with :math:`Q_t > 10`. The level is that at which 5 % of
the healthy recorded runs of the calibration split depart somewhere (``tests/proofs/axis.py`` counts it by domain). The
learning rate takes no part, so that a departure is one of the dynamics.

A parameter norm can move by no more than the update before it, :math:`|p_t - p_{t-1}| \le u_{t-1}` (triangle
inequality), where every step is logged; the excess over that bound, or over twice its own largest value of the last 60
rows where steps are missing between rows, says that something other than the optimizer wrote to the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling import MAD_TO_SD, trailing_median, trailing_quantile
from trajscope.detect._scale import default_floor, transform
from trajscope.history.run import Channel, Run

__all__ = ["CORE", "LEVEL", "Rows", "Table", "first_departure", "table_of"]

Floats = NDArray[np.float64]

#: Roles whose rows say that the dynamics departed.
CORE = ("loss", "grad_norm", "update_norm", "value_loss", "td_error", "kl", "entropy")

#: Roles that evidence looks at beside them.
OTHER = ("val_loss", "val_accuracy", "eval_return", "return", "explained_variance", "lr", "loss_scale")

#: Joint residual from which a row is a departure.
LEVEL = 10.0

_MEDIAN, _LONG, _SHORT, _LEAST = 10, 60, 20, 12
_CLIP = 30.0
_LOG_FLOOR = 0.02  # two per cent a row is no departure, however quiet the channel was
_PLAIN_FLOOR = {"entropy": 0.005, "explained_variance": 0.05, "grad_cos": 0.02, "val_accuracy": 0.005}


@dataclass(frozen=True, eq=False)
class Rows:
    """One channel: steps, values as logged, values on the scale of its role, causal level and residual z.

    ``z`` is NaN without history; a value that is not finite counts as the clip.
    """

    name: str
    steps: Floats
    raw: Floats
    y: Floats
    level: Floats
    z: Floats
    log: bool

    def at(self, step: float) -> int | None:
        """First row at or after ``step``, None where there is none within two strides or no history."""
        row = int(np.searchsorted(self.steps, step))
        if row >= self.steps.size or row == 0 or not np.isfinite(self.level[row]):
            return None
        near = self.steps[row] - step < 2 * (self.steps[row] - self.steps[row - 1])
        return row if near else None


@dataclass(frozen=True, eq=False)
class Table:
    """Channels by role, further cosines by name, and the parameters' excess over their update."""

    rows: Mapping[str, Rows]
    excess: Floats = field(default_factory=lambda: np.zeros(0))
    excess_steps: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def stride(self) -> float:
        """Distance of successive rows of the densest of the core channels."""
        gaps = [float(np.median(np.diff(self.rows[r].steps))) for r in CORE if r in self.rows]
        gaps = [g for g in gaps if g > 0]
        return min(gaps) if gaps else 1.0


def _rows(channel: Channel, role: str) -> Rows:
    raw = channel.values.astype(np.float64)
    y, scale = transform(raw, role)
    floor = _LOG_FLOOR if scale in ("log", "asinh") else max(default_floor(y, scale), _PLAIN_FLOOR.get(role, 0.0))
    level = trailing_median(y, _MEDIAN, min_count=_MEDIAN)
    size = np.abs(y - level)
    spread = np.fmax(trailing_median(size, _LONG, min_count=_LEAST), trailing_median(size, _SHORT, min_count=_LEAST))
    known = np.isfinite(spread) & np.isfinite(level)
    z = np.full(y.size, np.nan)
    np.divide(y - level, np.fmax(MAD_TO_SD * spread, floor), out=z, where=known)
    z[known & ~np.isfinite(raw)] = _CLIP
    return Rows(
        channel.name, channel.steps.astype(np.float64), raw, y, np.where(known, level, np.nan), z, scale == "log"
    )


def _excess(moved: Rows, update: Rows) -> tuple[Floats, Floats]:
    """Steps and change of the parameter norm over the largest change that the updates allow (1 is the bound)."""
    steps, rows_p, rows_u = np.intersect1d(moved.steps, update.steps, return_indices=True)
    if steps.size < _LEAST + 2:
        return np.zeros(0), np.zeros(0)
    change = np.abs(np.diff(moved.raw[rows_p]))
    ratio = np.divide(change, update.raw[rows_u][:-1], out=np.zeros(change.size), where=update.raw[rows_u][:-1] > 0)
    allowed = np.fmax(1.1, 2 * trailing_quantile(ratio, _LONG, 1.0, min_count=_LEAST))
    allowed[:_LEAST] = np.inf
    out: Floats = np.nan_to_num(ratio / allowed, nan=0.0, posinf=_CLIP)
    return steps[1:], out


def table_of(run: Run, *, use_lr: bool = True) -> Table:
    """The channels that detection and evidence read, each on its own rows.

    Parameters
    ----------
    run : Run
    use_lr : bool
        Whether the learning rate is read.
    """
    rows: dict[str, Rows] = {}
    best: dict[str, float] = {}
    wanted = {*CORE, *OTHER, "param_norm"}
    micro: dict[str, Channel] = {}
    for name, channel in run.channels.items():
        leaf = name.rsplit("/", 1)[-1].lower()
        if leaf.startswith("micro_"):
            micro[leaf] = channel
            continue
        role = channel.role
        if role == "grad_cos":
            role = "momentum_cos" if "momentum" in leaf else "grad_cos"
            if any(w in leaf for w in ("last", "window", "pair")):
                continue
        elif role not in wanted or (role == "lr" and not use_lr):
            continue
        if len(channel) < _LEAST + 2 or channel.role_confidence <= best.get(role, -1.0):
            continue
        best[role] = channel.role_confidence
        rows[role] = _rows(channel, role)
    rows |= _derived(rows, micro)
    if "param_norm" in rows and "update_norm" in rows:
        steps, excess = _excess(rows["param_norm"], rows["update_norm"])
        return Table(rows, excess, steps)
    return Table(rows)


def _derived(rows: Mapping[str, Rows], micro: Mapping[str, Channel]) -> dict[str, Rows]:
    """The update norm over the gradient norm, and the mean cosine between micro-batches."""
    out: dict[str, Rows] = {}

    def channel(name: str, steps: NDArray[Any], values: Floats) -> Channel:
        return Channel(name, steps, values)

    if "update_norm" in rows and "grad_norm" in rows:
        u, g = rows["update_norm"], rows["grad_norm"]
        steps, in_u, in_g = np.intersect1d(u.steps, g.steps, return_indices=True)
        if steps.size > _LEAST + 2:
            ratio = np.divide(u.raw[in_u], g.raw[in_g], out=np.full(steps.size, np.nan), where=g.raw[in_g] > 0)
            ratio[~(ratio > 0)] = np.nan
            out["ratio"] = _rows(channel("update norm / gradient norm", steps, ratio), "update_norm")
    names = ("micro_count", "micro_mean_norm", "micro_sum_norm", "micro_sum_norm2")
    if all(n in micro for n in names):
        parts = [micro[n] for n in names]
        if all(len(p) == len(parts[0]) for p in parts) and len(parts[0]) > _LEAST + 2:
            count, mean, total, square = (p.values.astype(np.float64) for p in parts)
            weight = total**2 - square
            cosine = np.divide((count * mean) ** 2 - square, weight, out=np.full(weight.size, np.nan), where=weight > 0)
            out["micro_cos"] = _rows(channel("cosine between micro-batches", parts[0].steps, cosine), "grad_cos")
            out["micro_mean_norm"] = _rows(channel("micro-batch gradient", parts[1].steps, mean), "grad_norm")
    return out


def first_departure(
    table: Table, *, level: float = LEVEL, warm_up: float = 0.1, start: float = -math.inf, stop: float = math.inf
) -> tuple[float | None, float]:
    """First joint departure of the core channels.

    Parameters
    ----------
    table : Table
    level : float, default 10
        Of the joint residual Q.
    warm_up : float, default 0.1
        Share of the steps that is passed over, at least 25 rows.
    start, stop : float
        Steps searched, ``start`` included.

    Returns
    -------
    step : float or None
    largest : float
        Q there, or the largest Q where nothing departs; NaN where nothing could be judged.
    """
    parts = [table.rows[r] for r in CORE if r in table.rows]
    if not parts:
        return None, math.nan
    longest = max(parts, key=lambda r: r.steps.size)
    grid = longest.steps
    for part in parts:
        if part is not longest and not np.array_equal(part.steps, grid):
            grid = np.union1d(grid, part.steps)
    total = np.zeros(grid.size)
    for part in parts:
        rows = slice(None) if part.steps.size == grid.size else np.searchsorted(grid, part.steps)
        total[rows] += np.minimum(np.abs(np.nan_to_num(part.z, nan=0.0)), _CLIP) ** 2
    if table.excess.size:
        rows = np.searchsorted(grid, table.excess_steps)
        inside = rows < grid.size
        total[rows[inside]] += np.where(table.excess[inside] > 1, _CLIP**2, 0.0)
    joint = np.sqrt(total)
    first = max(25, int(np.searchsorted(grid, grid[0] + warm_up * (grid[-1] - grid[0]))))
    judged = (np.arange(grid.size) >= first) & (grid >= start) & (grid < stop)
    if not judged.any():
        return None, math.nan
    hits = np.flatnonzero(judged & (joint > level))
    if not hits.size:
        return None, float(joint[judged].max())
    return float(grid[hits[0]]), float(joint[hits[0]])
