"""What the components of a meta-state are made of: loadings, channel by channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.plots.style import COLOURS, COLUMN, literal, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trajscope.metastate._base import MetaState

__all__ = ["LoadingsData", "draw", "figure_data", "plot"]

_MARKS = ["o", "s", "^", "D", "v", "P", "X", "*"]
_ORDER = ["blue", "vermilion", "green", "purple", "orange", "sky", "black", "grey"]
MOST_COMPONENTS = len(_MARKS)
_LONG_NAME = 18


@dataclass(frozen=True, eq=False)
class LoadingsData:
    """What is drawn.

    Attributes
    ----------
    channels : list of str
        Largest loading first.
    loadings : ndarray, shape (n_channels, n_components)
        At most eight components: as many as there are marks to tell them apart.
    labels : list of str
        One a component, with its share of the variance.
    title : str
    """

    channels: list[str]
    loadings: NDArray[np.float64]
    labels: list[str]
    title: str


def figure_data(estimator: MetaState) -> LoadingsData:
    """Loadings of a fitted estimator, channels ordered by their largest one."""
    k = min(estimator.n_components_, MOST_COMPONENTS)
    loadings = estimator.loadings_[:, :k]
    order = np.argsort(-np.abs(loadings).max(axis=1, initial=0.0), kind="stable")
    names = estimator._channel_names()
    shares = np.asarray(getattr(estimator, "explained_", np.full(k, np.nan)))
    labels = [f"component {j + 1} ({shares[j]:.0%})" for j in range(k)]
    title = type(estimator).__name__
    if estimator.n_components_ == 0:
        title += ": no common component"
    elif estimator.n_components_ > k:
        title += f": first {k} of {estimator.n_components_} components"
    return LoadingsData([literal(names[i], 28) for i in order], loadings[order], labels, title)


def legend_columns(data: LoadingsData) -> int:
    """Two columns, one where long names leave the axes narrow."""
    return 1 if max(map(len, data.channels)) > _LONG_NAME else 2


def draw(ax: Axes, data: LoadingsData) -> Axes:
    """One row a channel, one mark a component (shape and colour both tell them apart)."""
    n, k = data.loadings.shape
    rows = np.arange(n)[::-1]
    ax.axvline(0.0, color=COLOURS["grey"], linewidth=0.6, zorder=0)
    for j in range(k):
        offset = (j - (k - 1) / 2) * (0.5 / max(k, 1))
        ax.hlines(rows - offset, 0.0, data.loadings[:, j], color=COLOURS[_ORDER[j]], linewidth=0.6)
        ax.plot(
            data.loadings[:, j],
            rows - offset,
            _MARKS[j],
            color=COLOURS[_ORDER[j]],
            markersize=3,
            label=data.labels[j],
        )
    ax.set_yticks(rows, data.channels)
    ax.set_ylim(-0.6, n - 0.4)
    ax.set_xlabel("loading, standardised units")
    if k:
        # above the axes: inside, marks of many components leave no room
        ax.legend(
            title=data.title,
            alignment="left",
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=legend_columns(data),
            frameon=False,
            borderaxespad=0.0,
        )
    else:
        ax.set_title(data.title, loc="left")
    return ax


def plot(estimator: MetaState, ax: Any = None) -> Any:
    """Draw the loadings of a fitted estimator; returns the axes."""
    data = figure_data(estimator)
    with style():
        if ax is None:
            from matplotlib.figure import Figure

            height = 0.8 + 0.16 * len(data.channels) + 0.13 * -(-len(data.labels) // legend_columns(data))
            ax = Figure(figsize=(COLUMN, height), layout="constrained").subplots()
        return draw(ax, data)
