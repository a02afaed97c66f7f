"""What speaks for which axis: bars of evidence, stacked by axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trajscope.inference.axis import AXES, AxisAttribution
from trajscope.plots.style import COLOURS, COLUMN, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["AxisData", "draw", "figure_data", "plot"]

_INKS = ("blue", "orange", "green", "purple", "vermilion", "sky", "yellow", "grey", "black")
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo", "--", "**")


@dataclass(frozen=True, eq=False)
class AxisData:
    """What is drawn.

    Attributes
    ----------
    axes : tuple of str
        The likeliest first.
    probabilities : tuple of float
    parts : mapping of str to tuple of float
        Evidence -> what it adds to the log odds of each of ``axes``; the strongest first.
    title : str
    """

    axes: tuple[str, ...]
    probabilities: tuple[float, ...]
    parts: dict[str, tuple[float, ...]]
    title: str


def figure_data(result: AxisAttribution) -> AxisData:
    """Collect what `draw` needs."""
    order = tuple(a for a, _ in result.ranking)
    columns = [AXES.index(a) for a in order]
    parts = {e.name: tuple(e.parts[c] for c in columns) for e in result.evidence[: len(_INKS)]}
    where = "no event" if result.event is None else f"step {result.event:,.10g}"
    sure = f" ({result.confidence:.0%})" if result.confidence == result.confidence else ""
    return AxisData(order, tuple(p for _, p in result.ranking), parts, f"{where}: {result.axis}{sure}")


def draw(data: AxisData, ax: Axes) -> Axes:
    """Draw one bar an axis, stacked from its evidence; what speaks against it goes to the left."""
    rows = range(len(data.axes))
    ahead, behind = [0.0] * len(data.axes), [0.0] * len(data.axes)
    for (name, values), ink, hatch in zip(data.parts.items(), _INKS, _HATCHES, strict=False):
        for row, value in enumerate(values):
            if not value:
                continue
            base = ahead if value > 0 else behind
            ax.barh(row, value, left=base[row], color=COLOURS[ink], hatch=hatch, ec="white", lw=0.4, height=0.7)
            base[row] += value
        ax.barh(0, 0, color=COLOURS[ink], hatch=hatch, ec="white", lw=0.4, label=name)
    ax.axvline(0, color=COLOURS["black"], lw=0.6)
    ax.set_yticks(list(rows), [f"{a} ({p:.0%})" for a, p in zip(data.axes, data.probabilities, strict=True)])
    ax.invert_yaxis()
    ax.set_xlabel("added to the log odds")
    ax.set_title(data.title, loc="left")
    if data.parts:
        ax.legend(loc="lower right", frameon=False)
    return ax


def plot(result: AxisAttribution, ax: Axes | None = None) -> Axes:
    """Draw a result; a new figure is made unless `ax` is given."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(1.4 * COLUMN, 2.0), layout="constrained")
        return draw(figure_data(result), ax)
