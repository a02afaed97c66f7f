"""Who moved first: channels around an event in robust sd, and the interval in which each began to move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.first_mover import FirstMover, Move
from trajscope.plots.change_points import decimate
from trajscope.plots.style import COLOURS, PAGE, literal, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FirstMoverData", "draw", "figure_data", "plot"]

#: Rows of the figure; channels that did not move are left out first.
MOST = 12


@dataclass(frozen=True, eq=False)
class FirstMoverData:
    """What is drawn.

    Attributes
    ----------
    event : float
    moves : sequence of Move
        One row each, the first on top.
    traces : sequence of (steps, z)
        Decimated by minimum and maximum, z in robust sd of the frozen band; empty where the band is unknown.
    hidden : int
        Channels without a row.
    verdict : str
    """

    event: float
    moves: Sequence[Move]
    traces: Sequence[tuple[NDArray[Any], NDArray[np.float64]]]
    hidden: int
    verdict: str


def figure_data(result: FirstMover, points: int = 400) -> FirstMoverData:
    """Collect what `draw` needs."""
    shown = result.moves[:MOST]
    empty = np.zeros(0)
    traces = []
    for m in shown:
        steps, z = result.traces.get(m.channel, (empty, empty))
        good = np.isfinite(z)
        traces.append(decimate(steps[good], z[good], points) if good.any() else (empty, empty))
    verdict = f"{literal(result.first[0])} moved first" if result.verdict == "first" else "cannot tell who moved first"
    return FirstMoverData(result.event, shown, traces, len(result.moves) - len(shown), verdict)


def draw(data: FirstMoverData, ax: Axes) -> Axes:
    """A row a channel: its distance from the frozen level (height: asinh of robust sd), the interval as a bar."""
    for k, (move, (steps, z)) in enumerate(zip(data.moves, data.traces, strict=True)):
        if z.size:
            ax.plot(steps, k - np.clip(np.arcsinh(z) / 10, -0.45, 0.45), color=COLOURS["grey"], lw=0.7)
        if move.step is not None and move.low is not None and move.high is not None:
            colour = COLOURS["vermilion" if move.rank == 1 else "blue"]
            ax.plot([move.low, move.high], [k, k], color=colour, lw=4, solid_capstyle="butt", alpha=0.8)
            ax.plot([move.step], [k], marker="|", ms=9, color=colour)
    ax.axvline(data.event, color=COLOURS["black"], lw=0.8, ls="--")
    names = [
        literal(m.channel, 24) + (f" ({m.rank})" if m.rank else "" if not m.note else ", not judged")
        for m in data.moves
    ]
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    more = f"; {data.hidden} more not shown" if data.hidden else ""
    ax.set_title(f"{data.verdict}{more}", loc="left")
    ax.set_xlabel("step (bar: 99 % interval of when it began to move; tick: out of its band; dashed: the event)")
    return ax


def plot(result: FirstMover, ax: Any = None) -> Any:
    """Draw a result; returns its axes."""
    with style():
        data = figure_data(result)
        if ax is None:
            import matplotlib.pyplot as plt

            height = 0.8 + 0.28 * max(len(data.moves), 2)
            _, ax = plt.subplots(figsize=(PAGE, height), layout="constrained")
        return draw(data, ax)
