"""The curve of divergence behind a largest Lyapunov exponent, with its straight part: figure data, then drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trajscope.dynamics.divergence import Lyapunov
from trajscope.plots.style import COLOURS, COLUMN, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DivergenceData", "draw", "figure_data", "plot"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DivergenceData:
    """What is drawn: the curve, the ends of the fitted line (None where refused), and what to say."""

    k: Floats
    curve: Floats
    line: tuple[Floats, Floats] | None
    note: str


def figure_data(result: Lyapunov) -> DivergenceData:
    """Collect what `draw` needs."""
    k = np.arange(result.curve.size, dtype=np.float64)
    if result.region is None:
        return DivergenceData(k, result.curve, None, f"cannot tell: {result.reason}")
    a, b = result.region
    at = k[a : b + 1]
    middle = float(result.curve[a : b + 1].mean())
    line = np.array([at[0], at[-1]]), middle + result.exponent * (np.array([at[0], at[-1]]) - at.mean())
    return DivergenceData(k, result.curve, line, f"{result.exponent:.3g} per row, R^2 {result.r2:.3f}")


def draw(data: DivergenceData, ax: Axes) -> Axes:
    """Draw the curve and the line."""
    ax.plot(data.k, data.curve, color=COLOURS["blue"], marker=".", ms=3, lw=0.6)
    if data.line is not None:
        ax.plot(*data.line, color=COLOURS["vermilion"], lw=1.4, ls="--")
    ax.set_title(data.note, loc="left", fontsize=6)
    ax.set_xlabel("rows since the pair was nearest")
    ax.set_ylabel("mean log distance")
    return ax


def plot(result: Lyapunov, ax: Axes | None = None) -> Axes:
    """Draw a result; a new figure is made unless `ax` is given."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(COLUMN, 2.2), layout="constrained")
        return draw(figure_data(result), ax)
