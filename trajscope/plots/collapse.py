"""Collapse over the performance that was judged: figure data, then drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.collapse import Collapse
from trajscope.plots.change_points import decimate
from trajscope.plots.style import COLOURS, PAGE, literal, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["CollapseData", "draw", "figure_data", "plot"]

_UNIT = {"-log": "-log {}", "-value": "-{}", "value": "{}"}


@dataclass(frozen=True, eq=False)
class CollapseData:
    """What is drawn.

    Attributes
    ----------
    label : str
        The channel, oriented so that up is better.
    steps, values : ndarray, (n_points,)
        Decimated by minimum and maximum.
    peak, start : float
        Levels P and R_0.
    episodes : list of (onset, confirmed or None, end, text)
        The end is where it recovered, else the last step.
    """

    label: str
    steps: NDArray[Any]
    values: NDArray[np.float64]
    peak: float
    start: float
    episodes: list[tuple[float, float | None, float, str]]


def figure_data(result: Collapse, points: int = 2000) -> CollapseData:
    """Collect what `draw` needs."""
    good = np.isfinite(result.performance)
    steps, values = decimate(result.steps[good], result.performance[good], points)
    episodes = []
    for e in result.episodes:
        end = float(result.steps[-1]) if e.recovered_step is None else e.recovered_step
        episodes.append((e.onset, e.confirmed, end, f"{e.kind}, {e.recovery}"))
    label = _UNIT[result.unit].format(literal(result.channel))
    return CollapseData(label, steps, values, result.P, result.R_0, episodes)


def draw(data: CollapseData, ax: Axes) -> Axes:
    """Draw performance with its first and peak level, and each episode from onset (line) to recovery (shade)."""
    ax.plot(data.steps, data.values, color=COLOURS["blue"], lw=0.8)
    for level, name in ((data.peak, "peak level"), (data.start, "first level")):
        if np.isfinite(level):
            ax.axhline(level, color=COLOURS["grey"], lw=0.6, ls="--")
            ax.annotate(
                name, (1.0, level), (2, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                fontsize=6, va="center",
            )  # fmt: skip
    for i, (onset, confirmed, end, text) in enumerate(data.episodes):
        ax.axvspan(onset, end, color=COLOURS["vermilion"], alpha=0.12, lw=0)
        ax.axvline(onset, color=COLOURS["vermilion"], lw=1.0, label="onset" if i == 0 else None)
        if confirmed is not None:
            ax.axvline(confirmed, color="black", lw=0.8, ls=":")
        ax.annotate(
            text, (onset, 1.0), (1, 2 + 7 * (i % 2)), xycoords=("data", "axes fraction"),
            textcoords="offset points", fontsize=6,
        )  # fmt: skip
    if data.episodes:
        ax.plot([], [], color="black", lw=0.8, ls=":", label="confirmed")
        ax.legend(loc="upper right", bbox_to_anchor=(1.0, -0.1), ncols=2, frameon=False)  # below: no curve lies there
    ax.set_xlabel("step")
    ax.set_ylabel(data.label)
    return ax


def plot(result: Collapse, ax: Axes | None = None, *, points: int = 2000) -> Axes:
    """Draw a result; a new figure is made unless `ax` is given."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(PAGE, 2.2), layout="constrained")
        return draw(figure_data(result, points), ax)
