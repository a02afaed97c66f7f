"""The run on one page: its channels on a shared axis of steps, its events, and the distance of its meta-state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.decimate import min_max
from trajscope.audit.events import Event
from trajscope.audit.run import Audit
from trajscope.history import Channel
from trajscope.plots.style import COLOURS, PAGE, literal, log_axis, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Panel", "figure", "panels", "plot"]

#: Roles shown under the performance channel, in this order.
SHOWN = ("loss", "val_loss", "grad_norm", "entropy", "kl", "lr")
MOST_PANELS = 5

#: Largest value that is drawn; the margins of an axis beyond it overflow.
DRAWABLE = 1e300

_EVENT_COLOUR = {"fail": "vermilion", "watch": "orange", "info": "grey"}


@dataclass(frozen=True, eq=False)
class Panel:
    """One line of the page, ready to be drawn.

    Attributes
    ----------
    label, role : str
    x, y : ndarray, shape (n_points,)
        Decimated; spikes survive.
    nonfinite : ndarray
        Steps of non-finite values.
    log : bool
        Whether the axis is logarithmic.
    threshold : float or None
    points : bool
        Whether points are marked (few of them).
    """

    label: str
    role: str
    x: NDArray[Any]
    y: NDArray[np.float64]
    nonfinite: NDArray[Any]
    log: bool
    threshold: float | None = None
    points: bool = False


def panels(audit: Audit) -> list[Panel]:
    """Figure data: performance first, then what describes the dynamics, then the meta-state."""
    run = audit.run
    name = audit.performance.rpartition(":")[0]
    chosen = [run.channels[name]] if name in run.channels else []
    for role in SHOWN:
        chosen.extend(c for c in run.by_role(role)[:1] if all(c is not o for o in chosen))
    chosen = [c for c in chosen if len(c)]
    if not chosen:
        chosen = sorted((c for c in run.channels.values() if len(c)), key=lambda c: -len(c))[:3]
    listed = [_panel(c) for c in chosen]
    meta = audit.meta
    room = MOST_PANELS - (not meta.reason)
    listed = listed[:room]
    if not meta.reason:
        good = np.isfinite(meta.distance)
        x, y = meta.steps[good], meta.distance[good]
        rows = min_max(x, y)
        positive = bool(y.size) and float(y.min()) > 0 and float(y.max()) > 30 * meta.bound
        listed.append(Panel("meta-state D", "D", x[rows], y[rows], np.zeros(0), positive, 3 * meta.bound))
    return listed


def _panel(c: Channel) -> Panel:
    order = np.argsort(c.steps, kind="stable")
    steps, values = c.steps[order], c.values[order].astype(np.float64)
    good = np.isfinite(values)
    x, y = steps[good], np.clip(values[good], -DRAWABLE, DRAWABLE)
    rows = min_max(x, y)
    spread = float(y.max() / max(y.min(), 1e-300)) if y.size and y.min() > 0 else 0.0
    return Panel(c.name, c.role, x[rows], y[rows], steps[~good], spread > 30, None, y.size <= 120)


def figure(audit: Audit) -> Figure:
    """Draw the page."""
    from matplotlib.figure import Figure

    listed = panels(audit)
    with style():
        height = 0.55 + 0.92 * max(1, len(listed))
        fig = Figure(figsize=(PAGE, height))
        axes = fig.subplots(max(1, len(listed)), 1, sharex=True, squeeze=False)[:, 0]
        # Fixed margins: finding them from the text takes longer than everything else on the page.
        fig.subplots_adjust(left=0.085, right=0.99, top=1 - 0.08 / height, bottom=0.36 / height, hspace=0.18)
        fig.align_ylabels(axes)
        for ax, panel in zip(axes, listed, strict=False):
            draw(ax, panel, audit.events)
        axes[-1].set_xlabel("step")
        if not listed:
            axes[0].text(0.5, 0.5, "no channel has a value to draw", ha="center", transform=axes[0].transAxes)
        _spans(axes, audit)
    return fig


def draw(ax: Axes, panel: Panel, events: tuple[Event, ...]) -> None:
    """One panel."""
    colour = COLOURS["green"] if panel.points else COLOURS["blue"] if panel.role == "D" else COLOURS["black"]
    marker = {"marker": "o", "markersize": 1.8} if panel.points else {}
    ax.plot(panel.x, panel.y, color=colour, linewidth=0.7, **marker)  # type: ignore[arg-type]
    if panel.log:
        log_axis(ax)
    ax.set_ylabel(literal(panel.label, 22))
    if panel.threshold is not None:
        ax.axhline(panel.threshold, color=COLOURS["grey"], linestyle=":", linewidth=0.7)
    if panel.nonfinite.size:
        shown = panel.nonfinite[:: max(1, panel.nonfinite.size // 200)]
        ax.plot(
            shown,
            np.full(shown.size, 0.97),
            transform=ax.get_xaxis_transform(),
            linestyle="none",
            marker="x",
            markersize=3,
            color=COLOURS["vermilion"],
        )
    for e in events:
        if e.channel == panel.label and e.kind in ("spike", "dip") and e.severity != "info" and panel.x.size:
            row = min(int(np.searchsorted(panel.x, e.step)), panel.x.size - 1)
            ax.plot(
                [panel.x[row]], [panel.y[row]], marker="v", markersize=3.5, color=COLOURS["orange"], linestyle="none"
            )


def _spans(axes: Any, audit: Audit) -> None:
    """Shade episodes over all panels and mark the three gravest points in time, lettered for the eye without colour."""
    last = max((float(c.steps[-1]) for c in audit.run.channels.values() if len(c)), default=0.0)
    for e in audit.events:
        if e.kind in ("collapse", "divergence") or (e.kind == "non-finite" and e.severity == "fail"):
            end = e.end if e.end is not None else last
            for ax in axes:
                ax.axvspan(e.step, end, color=COLOURS[_EVENT_COLOUR[e.severity]], alpha=0.15, linewidth=0)
    changes = [e for e in audit.events if e.kind in ("change", "lr") and (e.severity != "info" or e.kind == "lr")]
    for e in sorted(changes, key=lambda e: float(e.detail.get("p", 0.0)))[:3]:
        for ax in axes:
            ax.axvline(e.step, color=COLOURS["purple"], linestyle="--", linewidth=0.7)


def plot(audit: Audit, ax: Axes | None = None, **options: Any) -> Any:
    """Draw the page (``ax`` None), or one panel into ``ax`` (``panel=`` its number, default the first)."""
    if ax is None:
        return figure(audit)
    with style():
        draw(ax, panels(audit)[int(options.get("panel", 0))], audit.events)
    return ax
