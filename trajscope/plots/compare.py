"""Groups of runs: the band of each channel over its runs, and who ends better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trajscope.inference.compare import Comparison
from trajscope.plots.style import COLOURS, PAGE, literal, style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["draw_bands", "draw_pairs", "plot"]

_INKS = ("blue", "vermilion", "green", "purple", "orange", "sky", "black", "grey")
_LINES = ("-", "--", "-.", ":")
#: Groups that get a line; more are said, not drawn.
MOST_GROUPS = 8
_MOST_CHANNELS = 3
_MOST_PAIRS = 12


def draw_bands(table: pd.DataFrame, ax: Axes) -> Axes:
    """Median and its interval over steps, a line a group; thin where fewer than half of the runs are left."""
    from trajscope.plots.style import log_axis

    groups = list(dict.fromkeys(table["group"]))
    for i, group in enumerate(groups[:MOST_GROUPS]):
        own = table[table["group"] == group]
        ink, line = COLOURS[_INKS[i]], _LINES[i % 4]
        x = own["step"].to_numpy()
        middle, low, high = (_drawn(own[c].to_numpy()) for c in ("median", "low", "high"))
        few = own["n"].to_numpy() < own["n"].max() / 2
        ax.plot(x, middle, color=ink, ls=line, lw=0.5, alpha=0.6)
        ax.plot(x, np.where(few, np.nan, middle), color=ink, ls=line, lw=1.0, label=f"{literal(group, 24)}")
        ax.fill_between(x, low, high, color=ink, alpha=0.18, lw=0)
    shown = table[["median"]].to_numpy()
    finite = shown[np.isfinite(shown)]
    if finite.size and finite.min() > 0 and finite.max() / finite.min() > 100:
        log_axis(ax)
    ax.set_xlabel("step")
    ax.set_ylabel(literal(str(table["channel"].iloc[0]), 28))
    return ax


def _drawn(values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.where(np.isfinite(values), values, np.nan)


def draw_pairs(table: pd.DataFrame, ax: Axes) -> Axes:
    """Probability of improvement with its interval, a row a pair."""
    shown = table.iloc[:_MOST_PAIRS]
    ax.axvline(0.5, color=COLOURS["grey"], lw=0.6)
    names = []
    for i, row in enumerate(shown.to_dict("records")):
        y = len(shown) - 1 - i
        own = row["at"] == "own end"
        ax.plot([row["low"], row["high"]], [y, y], color=COLOURS["blue" if own else "vermilion"], lw=1)
        ax.plot(row["probability"], y, "o" if own else "s", color=COLOURS["blue" if own else "vermilion"], ms=3.5)
        names.append(f"{literal(row['first'], 16)} > {literal(row['second'], 16)}" + ("" if own else " (common)"))
    ax.set_yticks(range(len(shown)), names[::-1])
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.6, len(shown) - 0.4), xlabel="probability of improvement")
    if len(table) > len(shown):
        ax.set_title(f"{len(table) - len(shown)} more pairs are in the table", loc="left")
    return ax


def plot(result: Comparison, ax: Any = None) -> Any:
    """Draw a result: up to three channels, and the pairs where there are two groups. Returns the figure.

    With ``ax`` the band of the performance channel alone is drawn into it and the axes are returned.
    """
    channels = list(dict.fromkeys(result.bands["channel"]))[:_MOST_CHANNELS]
    with style():
        if ax is not None:
            return draw_bands(result.bands[result.bands["channel"] == channels[0]], ax)
        from matplotlib.figure import Figure

        n = len(channels) + (len(result.table) > 0)
        figure = Figure(figsize=(PAGE, 2.2), layout="constrained")
        axes = np.atleast_1d(figure.subplots(1, n))
        for panel, channel in zip(axes, channels, strict=False):
            draw_bands(result.bands[result.bands["channel"] == channel], panel)
        if len(result.table):
            draw_pairs(result.table, axes[-1])
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        return figure
