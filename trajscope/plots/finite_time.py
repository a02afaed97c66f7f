"""Finite-time Lyapunov exponents along a run beside their stationary band: figure data, then drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.dynamics.tangent import FiniteTime
from trajscope.plots.style import COLOURS, PAGE, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FiniteTimeData", "draw", "figure_data", "plot"]


@dataclass(frozen=True, eq=False)
class FiniteTimeData:
    """What is drawn."""

    steps: NDArray[Any]
    values: NDArray[np.float64]
    band: tuple[float, float]


def figure_data(result: FiniteTime, points: int = 2000) -> FiniteTimeData:
    """Collect what `draw` needs: of each of ``points`` stretches the largest value."""
    n = result.steps.size
    if n <= points:
        return FiniteTimeData(result.steps, result.values, (result.null_low, result.null_high))
    edges = np.linspace(0, n, points + 1).astype(int)[:-1]
    top = np.maximum.reduceat(np.where(np.isfinite(result.values), result.values, -np.inf), edges)
    return FiniteTimeData(
        result.steps[edges], np.where(np.isfinite(top), top, np.nan), (result.null_low, result.null_high)
    )


def draw(data: FiniteTimeData, ax: Axes) -> Axes:
    """Draw the exponent, zero, and the band of stationary surrogates."""
    if np.isfinite(data.band[1]):
        ax.axhspan(*data.band, color=COLOURS["grey"], alpha=0.25, lw=0, label="stationary VAR(1), 95 %")
    ax.plot(data.steps, data.values, color=COLOURS["blue"], lw=0.8, label="finite-time exponent")
    ax.axhline(0.0, color="black", lw=0.6)
    ax.set_xlabel("step (last row used)")
    ax.set_ylabel("exponent per row")
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return ax


def plot(result: FiniteTime, ax: Axes | None = None, *, points: int = 2000) -> Axes:
    """Draw a result; a new figure is made unless `ax` is given."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(PAGE, 2.0), layout="constrained")
        return draw(figure_data(result, points), ax)
