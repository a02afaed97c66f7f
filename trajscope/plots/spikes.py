"""Spikes over their channel: figure data, then drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.spikes import CLASSES, Spikes
from trajscope.plots.change_points import decimate
from trajscope.plots.style import COLOURS, PAGE, literal, log_axis, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SpikesData", "draw", "figure_data", "plot"]

_SHAPES = dict(zip(CLASSES, "ov^sXD", strict=True))
_INKS = dict(zip(CLASSES, ("blue", "green", "purple", "orange", "vermilion", "grey"), strict=True))


@dataclass(frozen=True, eq=False)
class SpikesData:
    """What is drawn.

    Attributes
    ----------
    channel : str
    log : bool
        Whether the channel was judged on its logarithm.
    steps, values : ndarray, (n_points,)
        Decimated by minimum and maximum, so that spikes survive.
    events : mapping of str to (steps, values, known)
        By class of recovery.
    nonfinite : ndarray
        Steps with NaN or Inf.
    """

    channel: str
    log: bool
    steps: NDArray[Any]
    values: NDArray[np.float64]
    events: dict[str, tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_]]]
    nonfinite: NDArray[Any]


def figure_data(result: Spikes, points: int = 2000) -> SpikesData:
    """Collect what `draw` needs."""
    good = np.isfinite(result.x_values)
    steps, values = decimate(result.x_steps[good], result.x_values[good], points)
    classes = np.array(result.recovery, dtype=object)
    events = {}
    for name in CLASSES:
        of_class = np.flatnonzero(classes == name)
        if of_class.size:
            rows = result.rows[of_class]
            events[name] = (result.steps[of_class], result.x_values[rows], result.known[of_class])
    return SpikesData(result.channel, result.scale == "log", steps, values, events, result.nonfinite_steps)


def draw(data: SpikesData, ax: Axes) -> Axes:
    """Draw the channel, each event by its class (hollow where a known event explains it), ticks where non-finite."""
    ax.plot(data.steps, data.values, color=COLOURS["sky"], lw=0.6)
    if data.log and data.values.size:
        log_axis(ax)
    for name, (at, values, known) in data.events.items():
        ink = COLOURS[_INKS[name]]
        for shown, face, label in ((~known, ink, name), (known, "white", f"{name} (known)")):
            if shown.any():
                ax.plot(
                    at[shown], values[shown], _SHAPES[name], ms=4, mec=ink, mfc=face, mew=0.8, ls="none", label=label
                )
    if data.nonfinite.size:
        ax.plot(
            data.nonfinite, np.zeros(data.nonfinite.size), "|", color=COLOURS["vermilion"], ms=8,
            transform=ax.get_xaxis_transform(), clip_on=False, label="non-finite",
        )  # fmt: skip
    if data.events or data.nonfinite.size:
        ax.legend(loc="upper right", frameon=False)
    ax.set_xlabel("step")
    ax.set_ylabel(literal(data.channel))
    return ax


def plot(result: Spikes, ax: Axes | None = None, *, points: int = 2000) -> Axes:
    """Draw a result; a new figure is made unless `ax` is given."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(PAGE, 2.2), layout="constrained")
        return draw(figure_data(result, points), ax)
