"""Where the run went: its meta-state in the plane, and its distance from the baseline against performance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trajscope.audit.run import Audit
from trajscope.plots.style import COLOURS, PAGE, literal, log_axis, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["figure"]

MOST_POINTS = 1500


def figure(audit: Audit) -> Figure | None:
    """Both panels, or None where there is no meta-state."""
    from matplotlib.figure import Figure

    if audit.meta.reason:
        return None
    with style():
        fig = Figure(figsize=(PAGE, 2.3))
        left, right = fig.subplots(1, 2)
        fig.subplots_adjust(left=0.075, right=0.99, top=0.91, bottom=0.17, wspace=0.22)
        _plane(fig, left, audit)
        _against(right, audit)
    return fig


def _plane(fig: Figure, ax: Axes, audit: Audit) -> None:
    from matplotlib.ticker import FuncFormatter

    meta = audit.meta
    good = np.isfinite(meta.states).all(axis=1)
    states, steps = meta.states[good], meta.steps[good]
    thin = max(1, steps.size // MOST_POINTS)
    second = states[::thin, 1] if states.shape[1] > 1 else meta.distance[good][::thin]
    points = ax.scatter(states[::thin, 0], second, c=steps[::thin], s=2, cmap="cividis", linewidths=0)
    fig.colorbar(points, ax=ax, label="step")
    ax.set_xlabel(f"meta-state 1 ({meta.explained[0]:.0%} of the baseline variance)")
    ax.set_ylabel("meta-state 2" if states.shape[1] > 1 else "D")
    for axis, values in (("x", states[::thin, 0]), ("y", second)):
        if values.size and np.abs(values).max() > 50 * max(np.median(np.abs(values)), 1e-12):
            getattr(ax, f"set_{axis}scale")("symlog", linthresh=max(float(np.median(np.abs(values))) * 3, 1e-6))
            getattr(ax, f"{axis}axis").set_major_formatter(FuncFormatter(lambda v, _: f"{v:.4g}"))
    ax.set_title("a  Where the run went", loc="left", fontweight="bold")


def _against(ax: Axes, audit: Audit) -> None:
    meta = audit.meta
    name = audit.performance.rpartition(":")[0]
    ax.set_title("b  Distance from the baseline against performance", loc="left", fontweight="bold")
    if not name:
        ax.text(0.5, 0.5, "no performance channel", ha="center", transform=ax.transAxes)
        return
    channel = audit.run.channels[name]
    rows = np.searchsorted(meta.steps, channel.steps, side="right") - 1
    values = channel.values.astype(np.float64)
    # D over the evaluation interval: its median there, so that one noisy row does not stand for all
    previous = np.concatenate([[-1], rows[:-1]])
    between = [meta.distance[a + 1 : b + 1] for a, b in zip(previous, rows, strict=True)]
    distance = np.array([np.nanmedian(d) if np.isfinite(d).any() else np.nan for d in between])
    good = np.isfinite(distance) & np.isfinite(values) & (channel.steps > meta.baseline[0])
    thin = max(1, int(np.count_nonzero(good)) // MOST_POINTS)
    x, y, c = distance[good][::thin], values[good][::thin], channel.steps[good][::thin]
    ax.plot(x, y, color=COLOURS["grey"], linewidth=0.4)
    ax.scatter(x, y, c=c, s=4, cmap="cividis", linewidths=0, zorder=3)
    if x.size and x.min() > 0 and x.max() > 30 * x.min():
        log_axis(ax, "x")
    ax.set_xlabel("D (median since the last evaluation)")
    ax.set_ylabel(literal(name, 22))
