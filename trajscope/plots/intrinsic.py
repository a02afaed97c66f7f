"""TwoNN dimension against the thinning of rows: figure data, then drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trajscope.dynamics.intrinsic import IntrinsicDimension
from trajscope.plots.style import COLOURS, COLUMN, log_axis, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["IntrinsicData", "draw", "figure_data", "plot"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class IntrinsicData:
    """What is drawn: dimension and interval at each thinning, which one was taken (0 for none), participation ratio."""

    thinning: Floats
    dimension: Floats
    low: Floats
    high: Floats
    chosen: int
    participation: float


def figure_data(result: IntrinsicDimension) -> IntrinsicData:
    """Collect what `draw` needs."""
    table = np.array([(m, t.dimension, t.low, t.high) for m, t in result.by_thinning], dtype=np.float64).reshape(-1, 4)
    chosen = result.thinning if result.status == "ok" else 0
    thinning, dimension, low, high = table.T
    return IntrinsicData(thinning, dimension, low, high, chosen, result.participation[0])


def draw(data: IntrinsicData, ax: Axes) -> Axes:
    """Draw estimates with intervals; the one that was taken is filled."""
    for m, d, low, high in zip(data.thinning, data.dimension, data.low, data.high, strict=True):
        taken = int(m) == data.chosen
        ax.plot([m, m], [low, high], color=COLOURS["blue"], lw=1.0)
        ax.plot(m, d, "o", ms=4, color=COLOURS["blue"], mfc=COLOURS["blue"] if taken else "white")
    ax.axhline(data.participation, color=COLOURS["orange"], ls="--", lw=0.8, label="participation ratio")
    if data.thinning.size:
        log_axis(ax, "x")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("one row in")
    ax.set_ylabel("TwoNN dimension")
    ax.legend(frameon=False)
    return ax


def plot(result: IntrinsicDimension, ax: Axes | None = None) -> Axes:
    """Draw a result; a new figure is made unless `ax` is given."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(COLUMN, 2.2), layout="constrained")
        return draw(figure_data(result), ax)
