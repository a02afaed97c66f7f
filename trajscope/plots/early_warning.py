"""Early-warning indicators: the channel with its baseline, and a strip for every indicator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.indicators.result import ALL, EarlyWarning
from trajscope.plots.style import COLOURS, LOOKS, PAGE, literal, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EarlyWarningData", "draw", "figure_data", "plot"]

#: So many strips fit on a page, and so many channels can be told apart in one.
MOST_STRIPS, MOST_LINES = 12, 6


@dataclass(frozen=True, eq=False)
class EarlyWarningData:
    """What is drawn.

    Attributes
    ----------
    x : str
        What the steps count.
    channels : mapping of str to (steps, values, baseline)
    labels : mapping of str to str
        Name of a channel with its scale.
    strips : mapping of str to mapping of str to (steps, values)
        By indicator, then by channel (``"(all)"``: of all channels together).
    note : str
        Window, baseline, and whether it looks ahead.
    """

    x: str
    channels: dict[str, tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64]]]
    labels: dict[str, str]
    strips: dict[str, dict[str, tuple[NDArray[Any], NDArray[np.float64]]]]
    note: str


def figure_data(
    result: EarlyWarning, indicators: Sequence[str] | None = None, channels: Sequence[str] | None = None
) -> EarlyWarningData:
    """Collect what `draw` needs: by default the first twelve indicators and the first six channels."""
    names = [c.name for c in result.channels][:MOST_LINES] if channels is None else list(channels)
    labels = {c.name: c.name if c.scale == "none" else f"{c.name} ({c.scale})" for c in result.channels}
    series = {}
    for name in names:
        rows, values, z = result.series[name]
        series[name] = (result.steps[rows], values, values - z)
    wanted = list(result.indicators[:MOST_STRIPS]) if indicators is None else list(indicators)
    strips: dict[str, dict[str, tuple[NDArray[Any], NDArray[np.float64]]]] = {name: {} for name in wanted}
    for (name, channel), values in result.columns.items():
        if name in strips and (channel in names or channel == ALL):
            good = ~np.isnan(values)
            strips[name][channel] = (result.steps[good], values[good])
    ahead = "" if result.causal else ", sees later rows: for description only"
    note = f"window {result.window} rows, baseline {result.detrend}{ahead}"
    return EarlyWarningData(result.x, series, labels, strips, note)


def draw(data: EarlyWarningData, axes: Sequence[Axes]) -> Sequence[Axes]:
    """Draw the channels into the first axes and a strip into each of the others."""
    look = {name: LOOKS[k % len(LOOKS)] for k, name in enumerate(data.channels)}
    top = axes[0]
    for name, (steps, values, level) in data.channels.items():
        colour, dash = look[name]
        top.plot(steps, values, color=COLOURS[colour], lw=0.5, alpha=0.6, ls=dash, label=literal(data.labels[name], 28))
        if np.any(level != 0):
            top.plot(steps, level, color=COLOURS[colour], lw=0.9, ls=dash)
    top.set_title(data.note, loc="left")
    if len(data.channels) > 1:
        top.legend(frameon=False, loc="best")
    for ax, (name, lines) in zip(axes[1:], data.strips.items(), strict=True):
        for channel, (steps, values) in lines.items():
            colour, dash = look.get(channel, ("black", "-"))
            ax.plot(steps, values, color=COLOURS[colour], ls=dash)
        ax.set_ylabel(literal(name, 20), rotation=0, ha="right", va="center")
    axes[-1].set_xlabel(literal(data.x, 28))
    return axes


def plot(
    result: EarlyWarning,
    ax: Any = None,
    *,
    indicators: Sequence[str] | None = None,
    channels: Sequence[str] | None = None,
) -> Any:
    """Draw a result into the axes given (one more than strips), else into a new figure, which is returned."""
    with style():
        data = figure_data(result, indicators, channels)
        if ax is not None:
            return draw(data, list(ax))
        import matplotlib.pyplot as plt

        n = 1 + len(data.strips)
        figure, axes = plt.subplots(
            n, 1, figsize=(PAGE, 0.9 + 0.55 * n), sharex=True, layout="constrained", squeeze=False
        )
        draw(data, axes[:, 0].tolist())
        return figure
