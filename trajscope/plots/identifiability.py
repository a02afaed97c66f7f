"""Four pictures of an identifiability result: the space found again, the dimension, the profiles, the ablation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trajscope.inference._ident_ablation import LEAST_RANK
from trajscope.inference._ident_refit import LEAST_CORRELATION, Repeat
from trajscope.inference.identifiability import Identifiability
from trajscope.plots.style import COLOURS, LOOKS, PAGE, literal, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["IdentifiabilityData", "draw", "figure_data", "plot"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class IdentifiabilityData:
    """What is drawn.

    Attributes
    ----------
    found, null : ndarray, shapes (n_splits,) and (n_surrogates,)
        Weakest held-out canonical correlation of refits and of surrogates; empty where untested.
    threshold : float
    stability : ndarray
        Share of bootstrap samples by dimension.
    claimed : int
    profiles : tuple of (name, values, deviance, level)
    ablation : tuple of (channel, rank correlation)
    """

    found: Floats
    null: Floats
    threshold: float
    stability: Floats
    claimed: int
    profiles: tuple[tuple[str, Floats, Floats, float], ...]
    ablation: tuple[tuple[str, float], ...]


def figure_data(result: Identifiability) -> IdentifiabilityData:
    """Collect what `draw` needs."""
    found, null, threshold = np.zeros(0), np.zeros(0), LEAST_CORRELATION
    if isinstance(result.repeat, Repeat):
        found = np.array([s.canonical.min() for s in result.repeat.splits])
        null = np.array([s.canonical.min() for v in result.repeat.null.values() for s in v])
        threshold = max(LEAST_CORRELATION, result.repeat.kth_threshold)
    stability = np.zeros(0) if isinstance(result.dimension, str) else result.dimension.stability
    profiles = () if isinstance(result.profiles, str) else result.profiles
    ablation = (
        ()
        if isinstance(result.ablation, str)
        else tuple(zip(result.ablation.names, result.ablation.rank_correlation.tolist(), strict=True))
    )
    return IdentifiabilityData(
        found,
        null,
        threshold,
        stability,
        result.n_components,
        tuple((p.name, p.values, p.deviance, p.level) for p in profiles),
        ablation,
    )


def _untested(ax: Axes) -> None:
    ax.text(0.5, 0.5, "cannot test", ha="center", va="center", transform=ax.transAxes, color=COLOURS["grey"])


def draw(data: IdentifiabilityData, axes: list[Axes]) -> None:
    """Draw into four axes."""
    refit, dimension, profile, ablation = axes
    bins = np.linspace(0, 1, 26).tolist()
    if data.found.size:
        refit.hist(data.null, bins=bins, color=COLOURS["grey"], label="surrogates")
        refit.plot(data.found, np.full(data.found.size, 0.5), "v", color=COLOURS["blue"], ms=4, label="disjoint runs")
        refit.axvline(data.threshold, color=COLOURS["black"], lw=0.7, ls="--")
        refit.legend(loc="upper left", frameon=False)
    else:
        _untested(refit)
    refit.set(xlim=(0, 1), xlabel="weakest held-out canonical correlation", ylabel="fits")
    if data.stability.size:
        most = max(int(np.flatnonzero(data.stability).max(initial=0)), data.claimed) + 2
        shown = data.stability[:most]
        colours = [COLOURS["blue" if d == data.claimed else "grey"] for d in range(shown.size)]
        dimension.bar(range(shown.size), shown, color=colours)
        dimension.set_xticks(range(shown.size))
    else:
        _untested(dimension)
    dimension.set(xlabel=f"dimension (claimed: {data.claimed})", ylabel="share of samples of runs", ylim=(0, 1.02))
    for (name, values, deviance, level), (colour, dash) in zip(data.profiles, LOOKS, strict=False):
        profile.plot(values, deviance, color=COLOURS[colour], ls=dash, marker=".", ms=3, label=literal(name))
        profile.axhline(level, color=COLOURS["black"], lw=0.5, ls="--")
    if data.profiles:
        profile.set_ylim(0, 3 * data.profiles[0][3])
        profile.legend(loc="upper left", frameon=False)
    else:
        _untested(profile)
    profile.set(xlabel="value", ylabel="twice the fall of log likelihood")
    if data.ablation:
        names = [literal(n) for n, _ in data.ablation]
        ablation.barh(range(len(names)), [v for _, v in data.ablation], color=COLOURS["grey"])
        ablation.set_yticks(range(len(names)), names)
        ablation.axvline(LEAST_RANK, color=COLOURS["black"], lw=0.7, ls="--")
        ablation.invert_yaxis()
    else:
        _untested(ablation)
    ablation.set(xlim=(0, 1), xlabel="rank correlation of D without the channel")


def plot(result: Identifiability, ax: list[Axes] | None = None) -> list[Axes]:
    """Draw a result into four axes; a new figure is made unless they are given."""
    with style():
        if ax is None:
            import matplotlib.pyplot as plt

            ax = list(plt.subplots(2, 2, figsize=(PAGE, 4.2), layout="constrained")[1].ravel())
        draw(figure_data(result), ax)
    return ax
