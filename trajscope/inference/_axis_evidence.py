"""What speaks for which axis: named evidence read off the rows at an event.

A row of a log describes the parameters that enter an update and that update. So what is measured before the update
(loss and gradient of the batch, TD error, entropy, returns, evaluations, the parameter norm) can move in the row of
the event only through the data, the targets or the parameters themselves; what the optimizer does is seen in that row
in the update alone. Every piece of evidence is a number between -1 and 1, 0 where nothing speaks, NaN where its
channels are absent, with the axes that it speaks for (+) and against (-).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trajscope.inference._axis_rows import Rows, Table

__all__ = ["AXES", "EVIDENCE", "Evidence", "Reading", "measure"]

AXES = ("optimization", "environment/data", "parametric", "learning signal")

_UNSEEN = 0.1  # share of evidence against the optimizer that is left where no row tells how far it moved


@dataclass(frozen=True)
class Reading:
    """Numbers of one channel at the event: residual z, change on its scale (log units where ``log``), values."""

    name: str
    z: float
    change: float
    before: float
    now: float
    log: bool

    @property
    def size(self) -> float:
        """How surely it moved, 0 (|z| <= 3) to 1 (|z| >= 8)."""
        return _ramp(abs(self.z), 3.0, 8.0)


@dataclass(frozen=True)
class Evidence:
    """One kind of evidence.

    Attributes
    ----------
    name : str
    weights : tuple of 4 floats
        Sign and share with which it speaks for each of `AXES`; the fitted weight multiplies it.
    value : callable
        Event -> number between -1 and 1, or NaN where a channel is absent.
    sentence, opposite : str
        What it says when positive and when negative; filled with the event's fields.
    needs : tuple of str
        What must be logged.
    """

    name: str
    weights: tuple[float, float, float, float]
    value: Callable[[EventRow], float]
    sentence: str
    opposite: str = ""
    needs: tuple[str, ...] = ()


def _ramp(x: float, low: float, high: float) -> float:
    """0 up to ``low``, 1 from ``high``, linear between; NaN stays."""
    return float(min(max((x - low) / (high - low), 0.0), 1.0)) if x == x else math.nan


class EventRow:
    """All readings at one event; absent channels give None."""

    def __init__(self, table: Table, step: float, siblings: float = math.nan) -> None:
        self.table = table
        self.step = step
        self.siblings = siblings
        self._readings: dict[str, Reading | None] = {}
        self.stride = table.stride

    def reading(self, role: str) -> Reading | None:
        """The channel at its first row from the event on."""
        if role not in self._readings:
            rows = self.table.rows.get(role)
            row = rows.at(self.step) if rows is not None else None
            self._readings[role] = None if rows is None or row is None else _read(rows, row)
        return self._readings[role]

    def moved(self, *roles: str) -> float:
        """Largest `size` among the roles that are logged; NaN where none is."""
        sizes = [r.size for r in map(self.reading, roles) if r is not None and r.size == r.size]
        return max(sizes) if sizes else math.nan

    def still(self, *roles: str) -> float:
        """1 where none of the roles moved, 0 where one surely did; 1 where none is logged."""
        moved = self.moved(*roles)
        return 1.0 - moved if moved == moved else 1.0

    @property
    def excess(self) -> float:
        """Change of the parameter norm over what the update before explains; NaN where it is not logged."""
        row = int(np.searchsorted(self.table.excess_steps, self.step))
        return float(self.table.excess[row]) if row < self.table.excess.size else math.nan

    @property
    def ordinary(self) -> float:
        """1 where parameters did not move by themselves, 0 where they did."""
        excess = self.excess
        return 1.0 - _ramp(excess, 1.0, 1.5) if excess == excess else 1.0

    @property
    def exonerated(self) -> float:
        """How far the optimizer can be ruled out: little where the update is not logged."""
        return (
            self.ordinary
            * (1.0 - self.outgrown)
            * (1.0 if self.reading("update_norm") or self.reading("kl") else _UNSEEN)
        )

    @property
    def outgrown(self) -> float:
        """How far the update outgrew its gradient, or the policy moved, in the row of the event: 0 to 1."""
        r, kl = self.reading("ratio"), self.reading("kl")
        grown = 0.0 if r is None else min(_ramp(r.z, 3.0, 6.0), _ramp(r.change, 0.4, 1.2))
        return max(grown, 0.0 if kl is None else min(_ramp(kl.z, 3.0, 8.0), _ramp(kl.change, 0.7, 1.6)))


def _read(rows: Rows, row: int) -> Reading:
    change = float(rows.y[row] - rows.level[row])
    before = float(np.exp(rows.level[row])) if rows.log else float(rows.level[row])
    return Reading(rows.name, float(rows.z[row]), change, before, float(rows.raw[row]), rows.log)


# --- the evidence, one function each -----------------------------------------------------------------------------
def _lr(e: EventRow) -> float:
    """The learning rate's largest move within one row of the event, on the log scale, beyond what it did before."""
    rows = e.table.rows.get("lr")
    if rows is None:
        return math.nan
    row = int(np.searchsorted(rows.steps, e.step))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.maximum(rows.raw[max(0, row - 7) : row + 2], 1e-300))
    if logs.size < 3:
        return math.nan
    moves = np.abs(np.diff(logs))
    cut = max(1, moves.size - 2)
    return _ramp(float(moves[cut:].max(initial=0.0) - 2 * moves[:cut].max(initial=0.0)), math.log(1.2), math.log(2.0))


def _update_outgrew(e: EventRow) -> float:
    r = e.reading("ratio")
    return math.nan if r is None else min(_ramp(r.z, 3.0, 6.0), _ramp(r.change, 0.4, 1.2)) * e.ordinary


def _policy_moved_far(e: EventRow) -> float:
    r = e.reading("kl")
    return math.nan if r is None else min(_ramp(r.z, 3.0, 8.0), _ramp(r.change, 0.7, 1.6)) * e.ordinary


def _update_alone(e: EventRow) -> float:
    u = e.moved("update_norm")
    return u * e.still("grad_norm", "loss") * e.ordinary if u == u and e.reading("grad_norm") else math.nan


def _update_fell_behind(e: EventRow) -> float:
    r = e.reading("ratio")
    if r is None:
        return math.nan
    return min(_ramp(-r.z, 2.0, 5.0), _ramp(-r.change, 0.3, 0.7)) * e.still("grad_norm", "loss") * e.ordinary


def _momentum_lost(e: EventRow) -> float:
    r = e.reading("momentum_cos")
    if r is None:
        return math.nan
    zero = r.now == 0.0 and r.before != 0.0
    return max(float(zero), _ramp(abs(r.z), 4.0, 10.0)) * e.still("loss", "grad_cos", "grad_norm") * e.ordinary


def _parameters_jumped(e: EventRow) -> float:
    return _ramp(e.excess, 1.0, 1.5)


def _evaluation_at_once(e: EventRow) -> float:
    """An evaluation in the very row of the event: of parameters that no unusual update had touched yet."""
    sizes = []
    for role in ("val_loss", "val_accuracy", "eval_return"):
        rows, r = e.table.rows.get(role), e.reading(role)
        if rows is not None and r is not None and abs(float(rows.steps[rows.at(e.step) or 0]) - e.step) < e.stride:
            sizes.append(_ramp(abs(r.z), 3.0, 8.0))
    return max(sizes) if sizes else math.nan


def _batch_at_once(e: EventRow) -> float:
    r = e.reading("loss")
    return math.nan if r is None else _ramp(r.z, 3.0, 8.0) * e.exonerated


def _gradient_for_loss(e: EventRow) -> float:
    """Whether the gradient kept up with the loss: inputs out of range raise both, wrong targets the loss."""
    g, ell = e.reading("grad_norm"), e.reading("loss")
    if g is None or ell is None or not (g.log and ell.log) or _value_side(e) == _value_side(e):
        return math.nan
    both = min(_ramp(ell.z, 4.0, 8.0), _ramp(ell.change, 0.5, 1.5)) * e.exonerated
    if not both:
        return 0.0
    rows_g, rows_l = e.table.rows["grad_norm"], e.table.rows["loss"]
    start = float(np.log(g.now / np.median(rows_g.raw[:3])) - np.log(ell.now / np.median(rows_l.raw[:3])))
    return float(np.clip(start / 0.4, -1, 1)) * both if math.isfinite(start) else 0.0


def _batch_agrees(e: EventRow) -> float:
    r = e.reading("micro_cos")
    if r is None:
        return math.nan
    return _ramp(r.now - r.before, 0.15, 0.35) * e.moved("loss") * e.exonerated


def _gradient_alone(e: EventRow) -> float:
    g = e.reading("grad_norm")
    if g is None or e.reading("loss") is None:
        return math.nan
    return _ramp(g.z, 2.5, 5.0) * e.still("loss") * e.exonerated


def _gradient_not_of_batch(e: EventRow) -> float:
    g, m = e.reading("grad_norm"), e.reading("micro_mean_norm")
    if g is None or m is None:
        return math.nan
    return _ramp(abs(g.change - m.change), 0.3, 1.0)


def _gradient_turned(e: EventRow) -> float:
    cosines = [r for r in (e.reading("grad_cos"), e.reading("momentum_cos")) if r is not None]
    if not cosines:
        return math.nan
    lowest = min(r.z for r in cosines)
    return _ramp(-lowest, 3.0, 6.0) * e.still("loss", "update_norm", "entropy") * e.exonerated


def _value_side(e: EventRow) -> float:
    return e.moved("td_error", "value_loss", "explained_variance")


def _behaviour(e: EventRow) -> float:
    """Entropy, or the returns of episodes that ended in the rows of the event."""
    entropy = e.moved("entropy")
    rows = e.table.rows.get("return")
    back = math.nan
    if rows is not None:
        inside = (rows.steps > e.step) & (rows.steps <= e.step + e.stride)
        earlier = (rows.steps > e.step - 20 * e.stride) & (rows.steps <= e.step)
        if inside.sum() >= 5 and earlier.sum() >= 20:
            past, now = rows.raw[earlier], rows.raw[inside]
            order = float(np.mean(past[None, :] < now[:, None]) + 0.5 * np.mean(past[None, :] == now[:, None]))
            error = math.sqrt(1 / 12 * (1 / now.size + 1 / past.size))
            back = _ramp(abs(order - 0.5) / error, 2.5, 5.0)  # Mann-Whitney, rows as independent: a rank, no p-value
    known = [v for v in (entropy, back) if v == v]
    return max(known) if known else math.nan


def _behaviour_at_once(e: EventRow) -> float:
    evaluation = _evaluation_at_once(e)  # an evaluation that moved as well says that it is the policy itself
    unmoved = 1 - evaluation if evaluation == evaluation else 1.0
    return _behaviour(e) * unmoved * e.exonerated


def _value_alone(e: EventRow) -> float:
    value, behaviour = _value_side(e), _behaviour(e)
    if value != value or behaviour != behaviour:
        return math.nan
    return value * (1 - behaviour) * e.still("eval_return") * e.exonerated


def _loss_scale(e: EventRow) -> float:
    r = e.reading("loss_scale")
    return math.nan if r is None else _ramp(abs(r.change), 0.3, 0.7)


def _siblings(e: EventRow) -> float:
    return e.siblings


EVIDENCE: tuple[Evidence, ...] = (
    Evidence("learning rate moved", (1, 0, 0, 0), _lr,
             "the learning rate changed by more than its schedule had before", needs=("lr",)),
    Evidence("update outgrew gradient", (1, 0, 0, 0), _update_outgrew,
             "the update grew by a factor {ratio} more than its gradient, in the row of the event",
             needs=("update_norm", "grad_norm")),
    Evidence("policy moved far", (1, 0, 0, 0), _policy_moved_far,
             "the divergence between the policies before and after that update grew by a factor {kl}", needs=("kl",)),
    Evidence("update alone", (1, 0, 0, -0.5), _update_alone,
             "the update norm moved while loss and gradient norm of that row did not",
             needs=("update_norm", "grad_norm")),
    Evidence("update fell behind", (1, 0, 0, -0.5), _update_fell_behind,
             "the update shrank by a factor {ratio} against a gradient that did not move",
             needs=("update_norm", "grad_norm")),
    Evidence("momentum lost", (1, 0, 0, 0), _momentum_lost,
             "the momentum buffer no longer points where it did, while the gradients of that row are as before",
             needs=("momentum_cos",)),
    Evidence("loss scale moved", (1, 0, 0, 0), _loss_scale, "the loss scale changed in that row",
             needs=("loss_scale",)),
    Evidence("parameters jumped", (0, 0, 1, 0), _parameters_jumped,
             "the parameter norm moved by {excess} times what the update before allows",
             needs=("param_norm", "update_norm")),
    Evidence("evaluation at once", (-0.5, 0.25, 1, -0.5), _evaluation_at_once,
             "an evaluation moved in the row of the event, before any unusual update", needs=("an evaluation",)),
    Evidence("batch at once", (-1, 1, 0, 1), _batch_at_once,
             "the loss of the batch rose in the row of the event, while parameters and update before it were ordinary",
             needs=("loss",)),
    Evidence("gradient for its loss", (0, 1, 0, -1), _gradient_for_loss,
             "the gradient grew with the loss, more than an untrained network's: inputs out of their range",
             "the gradient grew less than the loss did: targets that do not fit", ("loss", "grad_norm")),
    Evidence("batch agrees", (0, 1, 0, 0), _batch_agrees,
             "micro-batches agree on one direction while the loss rises: a shift common to all samples",
             needs=("micro-batch norms",)),
    Evidence("same step in siblings", (0, 1, 0, 0), _siblings,
             "other runs that share the data order depart at the same step", needs=("siblings",)),
    Evidence("behaviour at once", (-0.5, 1, 0, -0.5), _behaviour_at_once,
             "entropy or returns of the policy that entered the row moved at once, its parameters being ordinary",
             needs=("entropy or episode returns",)),
    Evidence("value side alone", (-0.5, -0.5, 0, 1), _value_alone,
             "value loss, TD error or explained variance moved while behaviour did not",
             needs=("value loss, TD error or explained variance", "entropy or episode returns")),
    Evidence("gradient alone", (-0.5, 0, 0, 1), _gradient_alone,
             "the gradient norm jumped while the loss of that row did not", needs=("grad_norm", "loss")),
    Evidence("gradient not of its batch", (0, 0, 0, 1), _gradient_not_of_batch,
             "the gradient that was used differs from the mean over its micro-batches",
             needs=("grad_norm", "micro-batch norms")),
    Evidence("gradient turned", (0, 0, 0, 1), _gradient_turned,
             "the gradient turned against those before it at an unmoved loss", needs=("grad_cos",)),
)  # fmt: skip


def measure(table: Table, step: float, siblings: float = math.nan) -> tuple[np.ndarray[Any, Any], Mapping[str, str]]:
    """Values of all evidence at an event, NaN where absent, and the numbers that their sentences quote.

    Parameters
    ----------
    table : Table
    step : float
    siblings : float
        Share of siblings that depart at that step; NaN where there are none.

    Returns
    -------
    values : ndarray, shape (n_evidence,)
    numbers : mapping
    """
    row = EventRow(table, step, siblings)
    values = np.array([e.value(row) for e in EVIDENCE], dtype=np.float64)
    numbers = {"excess": f"{row.excess:.3g}"}
    for role in ("ratio", "kl"):
        r = row.reading(role)
        known = r is not None and math.isfinite(r.change)
        numbers[role] = f"{math.exp(min(abs(r.change), 50.0)):.3g}" if r is not None and known else "?"
    return values, numbers
