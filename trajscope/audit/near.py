"""Is an event near a warm-up's end, a jump of the learning rate, a resume, an epoch boundary, a known event?

Such places may be frequent, so "near" is held against chance: the event is moved to every row of the run, and the
p-value is the share of rows that lie as near to a place of that kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajscope.audit.events import Event
from trajscope.history import Channel, Run

__all__ = ["Near", "near", "warmup_end"]

#: Rows of a rise that make a warm-up.
WARMUP_ROWS = 3


@dataclass(frozen=True)
class Near:
    """The nearest place of a kind.

    Attributes
    ----------
    kind : str
        ``warm-up``, ``learning rate``, ``resume``, ``epoch``, ``known event``.
    step : float
    distance : float
        Steps from the place to the event; negative where the event comes first.
    p_value : float
        Share of the rows of the run that lie as near to a place of that kind.
    """

    kind: str
    step: float
    distance: float
    p_value: float


def warmup_end(lr: Channel) -> float | None:
    """Step at which a rate that rises from the start stops rising; None where it does not begin with a rise."""
    good = np.isfinite(lr.values)
    y, steps = lr.values[good].astype(np.float64), lr.steps[good]
    if y.size < WARMUP_ROWS + 2:
        return None
    falls = np.flatnonzero(np.diff(y) <= 0)
    end = int(falls[0]) if falls.size else y.size - 1
    rises = end >= WARMUP_ROWS and y[end] >= 2 * max(float(y[0]), 1e-300)
    return float(steps[end]) if rises and end < y.size - 1 else None


def near(run: Run, step: float, events: tuple[Event, ...], known: tuple[float, ...]) -> tuple[Near, ...]:
    """The nearest place of each kind, the least likely by chance first."""
    rows = max((c for c in run.channels.values()), key=len, default=None)
    if rows is None or len(rows) < 20:
        return ()
    steps = rows.steps.astype(np.float64)
    out = []
    for kind, places in _places(run, events, known).items():
        if not places.size:
            continue
        gap = float(np.abs(places - step).min())
        at = float(places[np.argmin(np.abs(places - step))])
        ordered = np.r_[-np.inf, np.sort(places), np.inf]
        right = np.searchsorted(ordered, steps)
        chance = np.minimum(ordered[right] - steps, steps - ordered[right - 1]) <= gap
        out.append(Near(kind, at, step - at, float((1 + chance.sum()) / (1 + steps.size))))
    return tuple(sorted(out, key=lambda n: n.p_value))


def _places(run: Run, events: tuple[Event, ...], known: tuple[float, ...]) -> dict[str, NDArray[np.float64]]:
    warm = [w for c in run.by_role("lr")[:1] if (w := warmup_end(c)) is not None]
    epochs: list[float] = []
    for channel in run.by_role("epoch")[:1]:
        good = np.isfinite(channel.values)
        turns = np.flatnonzero(np.diff(np.floor(channel.values[good].astype(np.float64))) >= 1) + 1
        epochs = [float(s) for s in channel.steps[good][turns]]
    found = {
        "warm-up": warm,
        "learning rate": [e.step for e in events if e.kind == "lr"],
        "resume": [e.step for e in events if e.kind == "resume"],
        "epoch": epochs[:5000],
        "known event": list(known),
    }
    return {kind: np.array(places, dtype=np.float64) for kind, places in found.items()}
