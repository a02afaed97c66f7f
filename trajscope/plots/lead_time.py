"""Lead time: sensitivity against false alarms, and how many events were foreseen how long ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from trajscope.inference.lead_time import LeadTime
from trajscope.plots.style import COLOURS, LOOKS, PAGE, literal, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LeadTimeData", "draw", "figure_data", "plot"]

#: So many curves can be told apart.
MOST = 6


@dataclass(frozen=True, eq=False)
class LeadTimeData:
    """What is drawn.

    Attributes
    ----------
    alpha : float
    roc, survival : mapping of str to DataFrame
        Curves by indicator, in the order of the table.
    chance : float
        Sensitivity of random alarms at `alpha`.
    counts : str
        How many events and healthy runs.
    """

    alpha: float
    roc: Mapping[str, pd.DataFrame]
    survival: Mapping[str, pd.DataFrame]
    chance: float
    counts: str


def figure_data(result: LeadTime, indicators: list[str] | None = None) -> LeadTimeData:
    """Collect what `draw` needs: the named indicators, else the first six of the table."""
    names = list(result.table.index[:MOST]) if indicators is None else indicators
    by = {kind: dict(tuple(curve.groupby("indicator"))) for kind, curve in result.curves.items() if len(curve)}
    pick = {kind: {n: by.get(kind, {})[n] for n in names if n in by.get(kind, {})} for kind in ("roc", "survival")}
    chance = float(result.table["chance"].max()) if len(result.table) else float("nan")
    counts = f"{result.n_events} events, {result.n_healthy} healthy runs"
    return LeadTimeData(result.alpha, pick["roc"], pick["survival"], chance, counts)


def draw(data: LeadTimeData, ax: Axes, right: Axes) -> tuple[Axes, Axes]:
    """Left: sensitivity against false alarms, up to 0.4. Right: share foreseen at least so long ahead."""
    for (name, curve), (colour, dash) in zip(data.roc.items(), LOOKS, strict=False):
        rate, hit = curve["false_alarm_rate"].to_numpy(), np.maximum.accumulate(curve["sensitivity"].to_numpy())
        ax.step(rate, hit, where="post", color=COLOURS[colour], ls=dash, label=literal(name, 28))
    ax.axvline(data.alpha, color=COLOURS["grey"], lw=0.6)
    if np.isfinite(data.chance):
        ax.plot([data.alpha], [data.chance], marker="x", color=COLOURS["grey"], ms=4, ls="", label="chance")
    ax.set(
        xlim=(-0.005, 0.4), ylim=(-0.02, 1.02), xlabel="false alarms a healthy run", ylabel="events foreseen in time"
    )
    ax.legend(frameon=False, loc="best")
    ax.set_title(data.counts, loc="left")
    for (name, curve), (colour, dash) in zip(data.survival.items(), LOOKS, strict=False):
        lead, share = curve["lead"].to_numpy(), curve["share"].to_numpy()
        right.step(
            np.append(lead, lead[-1]),
            np.append(share, 0.0),
            where="pre",
            color=COLOURS[colour],
            ls=dash,
            label=literal(name, 28),
        )
    right.set(ylim=(-0.02, 1.02), xlabel="lead (steps)", ylabel="share with at least this lead")
    right.set_xlim(left=0)
    right.set_title(f"at {data.alpha:g} false alarms a run", loc="left")
    return ax, right


def plot(result: LeadTime, ax: Any = None, *, indicators: list[str] | None = None) -> Any:
    """Draw a result; `ax`, where given, is a pair of axes. Returns the pair's figure, or the pair."""
    with style():
        data = figure_data(result, indicators)
        if ax is not None:
            return draw(data, *ax)
        import matplotlib.pyplot as plt

        figure, pair = plt.subplots(1, 2, figsize=(PAGE, 2.6), layout="constrained")
        draw(data, *pair)
        return figure
