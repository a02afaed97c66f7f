"""Spectral radius and angle of rolling VAR(1) matrices along a run: figure data, then drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.dynamics.local import LocalDynamics
from trajscope.plots.style import COLOURS, PAGE, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LocalData", "draw", "figure_data", "plot"]

Floats = NDArray[np.float64]

_LOOK = {
    "plain": ("blue", "-"), "instrument": ("vermilion", "--"), "tls": ("green", ":"), "fb": ("purple", "-."),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class LocalData:
    """What is drawn: of every method its steps, modulus, band and angle."""

    curves: dict[str, tuple[NDArray[Any], Floats, Floats, Floats, Floats]]
    label: str


def figure_data(result: LocalDynamics, points: int = 2000) -> LocalData:
    """Collect what `draw` needs, at most ``points`` windows."""
    n = result.steps.size
    keep = np.unique(np.linspace(0, n - 1, points).astype(np.intp)) if n else np.empty(0, dtype=np.intp)
    curves = {
        m: (result.steps[keep], e.modulus[keep], e.low[keep], e.high[keep], e.angle[keep])
        for m, e in result.estimates.items()
    }
    return LocalData(curves, f"|eigenvalue| per {result.stride:g} steps" if result.stride != 1 else "|eigenvalue|")


def draw(data: LocalData, ax: Axes) -> Axes:
    """Modulus with its interval; thick where the angle is nearer to pi than to 0 (by turns on either side)."""
    for method, (steps, modulus, low, high, angle) in data.curves.items():
        colour, dash = _LOOK[method]
        ax.plot(steps, modulus, color=COLOURS[colour], ls=dash, lw=0.8, label=method)
        ax.fill_between(steps, low, high, color=COLOURS[colour], alpha=0.15, lw=0)
        flip = np.where(angle > np.pi / 2, modulus, np.nan)
        ax.plot(steps, flip, color=COLOURS[colour], lw=2.2, alpha=0.6)
    ax.axhline(1.0, color="black", lw=0.6)
    ax.set_ylim(0, 1.3)
    ax.set_xlabel("step (last row of the window)")
    ax.set_ylabel(data.label)
    ax.legend(frameon=False, loc="lower left", ncols=4)
    return ax


def plot(result: LocalDynamics, ax: Axes | None = None, *, points: int = 2000) -> Axes:
    """Draw a result; a new figure is made unless `ax` is given."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(PAGE, 2.2), layout="constrained")
        return draw(figure_data(result, points), ax)
