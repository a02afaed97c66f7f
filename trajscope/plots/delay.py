"""Cao's E1 and E2 and false neighbours against the dimension: figure data, then drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trajscope.dynamics.delay import DelayEmbedding
from trajscope.plots.style import COLOURS, COLUMN, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DelayData", "draw", "figure_data", "plot"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DelayData:
    """What is drawn: three curves over dimensions 1, 2, ... and what to say."""

    e1: Floats
    e2: Floats
    false_share: Floats
    note: str


def figure_data(result: DelayEmbedding) -> DelayData:
    """Collect what `draw` needs."""
    note = (
        f"delay {result.delay} rows, dimension {result.dimension}"
        if result.status == "ok"
        else f"cannot tell: {result.reason}"
    )
    return DelayData(result.e1[1:], result.e2[1:], result.false_share[1:], note)


def draw(data: DelayData, ax: Axes) -> Axes:
    """Draw the three curves, each with a mark of its own."""
    dimension = np.arange(1, data.e1.size + 1)
    for values, label, colour, mark in (
        (data.e1, "E1", "blue", "o"),
        (data.e2, "E2", "orange", "s"),
        (data.false_share, "false neighbours", "black", "^"),
    ):
        ax.plot(dimension, values, color=COLOURS[colour], marker=mark, ms=3, lw=0.8, label=label)
    ax.set_title(data.note, loc="left", fontsize=6)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("dimension")
    ax.legend(frameon=False)
    return ax


def plot(result: DelayEmbedding, ax: Axes | None = None) -> Axes:
    """Draw a result; a new figure is made unless `ax` is given."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(COLUMN, 2.2), layout="constrained")
        return draw(figure_data(result), ax)
