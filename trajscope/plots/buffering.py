"""Share of collapsed runs by level of noise, with exact intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trajscope.inference.buffering import Buffering
from trajscope.plots.style import COLOURS, COLUMN, literal, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "plot"]


def draw(result: Buffering, ax: Axes) -> Axes:
    """Draw one point a level; levels are evenly spaced, as they enter the slope."""
    table = result.table
    at = np.arange(len(table))
    share = table["share"].to_numpy()
    error = np.abs(np.vstack([share - table["low"].to_numpy(), table["high"].to_numpy() - share]))
    ax.errorbar(at, share, yerr=error, color=COLOURS["blue"], marker="o", ms=3, capsize=2, lw=0.8)
    for x, n in zip(at, table["n"], strict=True):
        ax.annotate(f"n={n}", (x, -0.08), ha="center", va="center", fontsize=5.5)
    ax.set_xticks(at, [f"{v:g}" for v in table["level"]])
    ax.set(ylim=(-0.13, 1.04), xlabel=literal(result.level), ylabel="share of runs harmed")
    ax.set_title(f"{result.verdict}, trend p = {result.p_trend:.2g}", loc="left")
    return ax


def plot(result: Buffering, ax: Axes | None = None) -> Axes:
    """Draw a result; a new figure is made unless `ax` is given."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(COLUMN, 2.2), layout="constrained")
        return draw(result, ax)
