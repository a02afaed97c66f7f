"""Change points over the channels that were searched: figure data, then drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.changepoints.result import ChangePoints
from trajscope.plots.style import COLOURS, PAGE, literal, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ChangePointsData", "decimate", "draw", "figure_data", "plot"]

_MARK = {"level": "-", "slope": "--", "variance": ":"}
_MOST_NAMES = 12
"""Changes that are named above the axis; more would run into each other."""


@dataclass(frozen=True, eq=False)
class ChangePointsData:
    """What is drawn.

    Attributes
    ----------
    channel : str
    steps, values : ndarray, (n_points,)
        Decimated by minimum and maximum, so that spikes survive.
    lines : list of ((start, stop), (left, right))
        The fitted line of each segment.
    changes : list of (step, low, high, kind, explained)
    """

    channel: str
    steps: NDArray[Any]
    values: NDArray[np.float64]
    lines: list[tuple[tuple[float, float], tuple[float, float]]]
    changes: list[tuple[float, float, float, str, bool]]


def decimate(
    steps: NDArray[Any], values: NDArray[np.float64], points: int = 2000
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Least and largest value of each of ``points / 2`` blocks, in their order."""
    n = steps.shape[0]
    if n <= points:
        return steps, values
    keep: list[int] = []
    for block in np.array_split(np.arange(n), points // 2):
        inside = values[block]
        keep.extend(sorted({int(block[np.argmin(inside)]), int(block[np.argmax(inside)])}))
    return steps[keep], values[keep]


def figure_data(result: ChangePoints, channel: str | None = None, points: int = 2000) -> ChangePointsData:
    """Collect what `draw` needs for one channel (the first that moved unless named)."""
    if channel is None:
        channel = result.channels[0][0] if len(result) else result.names[0]
    values = result.data_values[:, result.names.index(channel)]
    good = np.isfinite(values)
    steps, shown = decimate(result.data_steps[good], values[good], points)
    lines = []
    for s in result.segments:
        if s.channel == channel:
            half = 0.5 * (s.stop - s.start) * s.slope
            lines.append(((s.start, s.stop), (s.level - half, s.level + half)))
    changes = [
        (float(step), float(low), float(high), kind, why is not None)
        for step, (low, high), kind, why, moved in zip(
            result.steps, result.intervals, result.kind, result.explained, result.channels, strict=True
        )
        if channel in moved
    ]
    return ChangePointsData(channel, steps, shown, lines, changes)


def draw(data: ChangePointsData, ax: Axes) -> Axes:
    """Draw one channel, its segments, and each change with its interval, named; explained ones grey and in brackets."""
    ax.plot(data.steps, data.values, color=COLOURS["blue"], lw=0.6, alpha=0.8)
    for x, y in data.lines:
        ax.plot(x, y, color="black", lw=0.9)
    named = len(data.changes) <= _MOST_NAMES
    for step, low, high, kind, explained in data.changes:
        colour = COLOURS["grey" if explained else "vermilion"]
        ax.axvspan(low, high, color=colour, alpha=0.2, lw=0)
        ax.axvline(step, color=colour, lw=1.0, ls=_MARK[kind])
        if named:
            text = f"({kind})" if explained else kind
            ax.annotate(
                text, (step, 1.0), (1, 2), xycoords=("data", "axes fraction"), textcoords="offset points",
                fontsize=6, color="black", ha="center",
            )  # fmt: skip
    ax.set_xlabel("step")
    ax.set_ylabel(literal(data.channel))
    return ax


def plot(result: ChangePoints, ax: Axes | None = None, *, channel: str | None = None, points: int = 2000) -> Axes:
    """Draw a result; a new figure is made unless `ax` is given."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(PAGE, 2.2), layout="constrained")
        return draw(figure_data(result, channel, points), ax)
