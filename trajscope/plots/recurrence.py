"""Recurrence plot: which rows come back to which: figure data, then drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.dynamics.recurrences import Recurrence
from trajscope.plots.style import COLUMN, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["RecurrenceData", "draw", "figure_data", "plot"]


@dataclass(frozen=True, eq=False)
class RecurrenceData:
    """What is drawn: a square of 0 and 1 over a range of steps, and what to say."""

    image: NDArray[np.uint8]
    ends: tuple[float, float]
    note: str


def figure_data(result: Recurrence, points: int = 600) -> RecurrenceData:
    """Collect what `draw` needs: every so manieth row, so that at most ``points`` are left."""
    from scipy.spatial.distance import cdist

    every = max(1, -(-result.points.shape[0] // points))
    x: NDArray[Any] = result.points[::every]
    if result.status != "ok":
        return RecurrenceData(np.zeros((1, 1), dtype=np.uint8), (0.0, 1.0), f"cannot tell: {result.reason}")
    image = (np.asarray(cdist(x, x)) <= result.epsilon).astype(np.uint8)
    m = result.measures
    note = f"RR {m['RR']:.2f}  DET {m['DET']:.2f}  LAM {m['LAM']:.2f}  L_max {m['L_max']:.0f}"
    return RecurrenceData(image, (float(result.steps[0]), float(result.steps[-1])), note)


def draw(data: RecurrenceData, ax: Axes) -> Axes:
    """Draw the square, the earliest step below left."""
    low, high = data.ends
    ax.imshow(
        data.image, cmap="Greys", origin="lower", extent=(low, high, low, high), interpolation="nearest", aspect="equal"
    )
    ax.set_title(data.note, loc="left", fontsize=6)
    ax.set_xlabel("step")
    ax.set_ylabel("step")
    return ax


def plot(result: Recurrence, ax: Axes | None = None, *, points: int = 600) -> Axes:
    """Draw a result; a new figure is made unless `ax` is given."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(COLUMN, COLUMN), layout="constrained")
        return draw(figure_data(result, points), ax)
