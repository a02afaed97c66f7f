"""Reliability diagram of axis attribution: share of right answers against confidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trajscope.inference.studies.axis import Reliability
from trajscope.plots.style import COLOURS, COLUMN, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "plot"]


def draw(data: Reliability, ax: Axes) -> Axes:
    """Draw a point and its interval for each bin of confidence, its number of runs beside it, and the diagonal."""
    ax.plot([0.25, 1], [0.25, 1], color=COLOURS["grey"], lw=0.6, ls="--", label="calibrated")
    if data.n.size:
        gaps = np.vstack([data.accuracy - data.low, data.high - data.accuracy])
        ax.errorbar(
            data.confidence, data.accuracy, np.maximum(gaps, 0), fmt="o", ms=3.5, color=COLOURS["blue"], lw=0.8,
            label="runs, 95 % interval",
        )  # fmt: skip
        for x, y, n in zip(data.confidence.tolist(), data.accuracy.tolist(), data.n.tolist(), strict=True):
            ax.annotate(str(n), (x, y), xytext=(3, -7), textcoords="offset points", fontsize=5)
    ax.set_xlim(0.2, 1.03)
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel("confidence")
    ax.set_ylabel("share of right answers")
    ax.legend(loc="upper left", frameon=False)
    return ax


def plot(result: Reliability, ax: Axes | None = None) -> Axes:
    """Draw a result; a new figure is made unless `ax` is given."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(COLUMN, 2.6), layout="constrained")
        return draw(result, ax)
