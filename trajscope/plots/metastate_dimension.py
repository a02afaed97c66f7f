"""How many dimensions: eigenvalues against what independent channels would show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.plots.style import COLOURS, COLUMN, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trajscope.metastate.dimension import DimensionReport

__all__ = ["DimensionData", "draw", "figure_data", "plot"]


@dataclass(frozen=True, eq=False)
class DimensionData:
    """What is drawn.

    Attributes
    ----------
    eigenvalues, thresholds : ndarray, shape (n_channels,)
    said : list of (rule, n_components)
    title : str
    """

    eigenvalues: NDArray[np.float64]
    thresholds: NDArray[np.float64]
    said: list[tuple[str, float]]
    title: str


def figure_data(report: DimensionReport) -> DimensionData:
    """Eigenvalues, their surrogate thresholds, and what the testing rules say."""
    table = report.table
    said = [(str(rule), float(n)) for rule, n in table.loc[table["tests"], "n_components"].items()]
    return DimensionData(
        report.parallel.eigenvalues, report.parallel.thresholds, said, report.summary().splitlines()[0]
    )


def draw(ax: Axes, data: DimensionData) -> Axes:
    """Eigenvalues as points, thresholds as a dashed line, rules as text."""
    rank = np.arange(1, data.eigenvalues.size + 1)
    ax.plot(rank, data.thresholds, "--", color=COLOURS["grey"], label="95 % of rotated channels")
    ax.plot(rank, data.eigenvalues, "o-", color=COLOURS["blue"], markersize=3, label="data")
    ax.set_xlabel("rank")
    ax.set_ylabel("eigenvalue of the correlations")
    ax.set_ylim(bottom=0)
    ax.set_title(data.title, loc="left")
    text = "\n".join(f"{rule}: {n:g}" for rule, n in data.said)
    ax.text(0.98, 0.6, text, transform=ax.transAxes, ha="right", va="top", fontsize=6)
    ax.legend(frameon=False, loc="upper right")
    return ax


def plot(report: DimensionReport, ax: Any = None) -> Any:
    """Draw a dimension report; returns the axes."""
    data = figure_data(report)
    with style():
        if ax is None:
            from matplotlib.figure import Figure

            ax = Figure(figsize=(COLUMN, 2.2), layout="constrained").subplots()
        return draw(ax, data)
