"""Mean responses after an injection, one line a condition: figure data, then drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trajscope.errors import InputError, nearest
from trajscope.inference.response import MeanCurve, Response
from trajscope.plots.style import COLOURS, PAGE, literal, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ResponseData", "draw", "figure_data", "plot"]

_INKS = ("blue", "orange", "green", "vermilion", "purple", "sky", "grey", "black")
_LINES = ("-", "--", "-.", ":")


@dataclass(frozen=True, eq=False)
class ResponseData:
    """What is drawn.

    Attributes
    ----------
    channel : str
    curves : tuple of MeanCurve
        The largest responses first.
    left_out : int
        Conditions that are not drawn.
    """

    channel: str
    curves: tuple[MeanCurve, ...]
    left_out: int


def figure_data(
    result: Response, channel: str = "x_inst", conditions: Sequence[str] | None = None, most: int = 8
) -> ResponseData:
    """Collect what `draw` needs: curves of one channel, by default of the ``most`` conditions that answer most.

    Raises
    ------
    InputError
        If no condition has that channel.
    """
    names = sorted({c.channel for c in result.curves})
    own = [c for c in result.curves if c.channel == channel and (conditions is None or c.condition in conditions)]
    if not own:
        raise InputError(f"no response of channel {channel!r} to draw. {nearest(channel, names)}")

    def size(curve: MeanCurve) -> float:
        return float(np.nanmax(np.abs(curve.mean), initial=0.0)) if curve.mean.size else 0.0

    ranked = sorted(own, key=lambda c: (-size(c), c.condition))
    return ResponseData(channel, tuple(ranked[:most]), max(len(ranked) - most, 0))


def draw(data: ResponseData, ax: Axes) -> Axes:
    """Draw means with their pointwise intervals over seeds; logarithmic above 10 sd where they go beyond 30."""
    largest = 0.0
    for i, curve in enumerate(data.curves):
        ink = COLOURS[_INKS[i % len(_INKS)]]
        label = f"{literal(curve.condition)} (n = {curve.n_seeds})"
        ax.plot(curve.offsets, curve.mean, color=ink, ls=_LINES[i % len(_LINES)], lw=0.9, label=label)
        good = np.isfinite(curve.low)
        if good.any():
            ax.fill_between(curve.offsets[good], curve.low[good], curve.high[good], color=ink, alpha=0.15, lw=0)
        largest = max(largest, float(np.nanmax(np.abs(curve.mean), initial=0.0)))
    if largest > 30:
        ax.set_yscale("symlog", linthresh=10)
        ax.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
        ax.minorticks_off()
    ax.axhline(0, color=COLOURS["black"], lw=0.5)
    ax.set_xlabel("steps since the injection")
    ax.set_ylabel(f"{literal(data.channel)}: deviation (baseline sd)")
    if data.left_out:
        ax.set_title(f"{data.left_out} conditions with smaller responses are not drawn", loc="left")
    ax.legend(loc="upper right", frameon=False)
    return ax


def plot(
    result: Response, ax: Axes | None = None, *, channel: str = "x_inst", conditions: Sequence[str] | None = None
) -> Axes:
    """Draw a result; a new figure is made unless `ax` is given."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(PAGE, 2.6), layout="constrained")
        return draw(figure_data(result, channel, conditions), ax)
