"""How many dimensions: eigenvalues against what independent channels would show."""

from __future__ import annotations

import textwrap
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
    """Eigenvalues as points, thresholds as a dashed line, verdict and rules as title."""
    from matplotlib.ticker import MaxNLocator

    rank = np.arange(1, data.eigenvalues.size + 1)
    ax.plot(rank, data.thresholds, "--", color=COLOURS["grey"], label="95 % of rotated channels")
    ax.plot(rank, data.eigenvalues, "o-", color=COLOURS["blue"], markersize=3, label="data")
    ax.set_xlabel("rank")
    ax.set_ylabel("eigenvalue of the correlations")
    # room for the legend above a flat spectrum
    ax.set_ylim(0, 1.35 * max(float(np.nanmax(data.eigenvalues)), float(np.nanmax(data.thresholds))))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    said = "; ".join(f"{rule.removeprefix('parallel, ')}: {n:g}" for rule, n in data.said)
    ax.set_title("\n".join([*textwrap.wrap(data.title, 56), said]), loc="left")
    ax.legend(frameon=False, loc="upper right")
    return ax


def plot(report: DimensionReport, ax: Any = None) -> Any:
    """Draw a dimension report; returns the axes."""
    data = figure_data(report)
    with style():
        if ax is None:
            from matplotlib.figure import Figure

            ax = Figure(figsize=(COLUMN, 2.4), layout="constrained").subplots()
        return draw(ax, data)
