"""Association of performance and stability: coefficients with intervals by measure, and the runs of one measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajscope.inference.dissociation import ALL, MARGIN, POOLED, Dissociation
from trajscope.plots.style import COLOURS, PAGE, literal, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "plot"]

_SHADES = ("blue", "vermilion", "green", "purple", "orange", "sky", "black", "grey")
_MARKS = "osD^vP*X"


def draw(result: Dissociation, left: Axes, right: Axes, measure: str | None = None) -> None:
    """Left: one row a measure (strata small, combined coefficient large, 95 % interval). Right: ranks of the runs."""
    measures = list(dict.fromkeys(result.table["measure"]))
    strata = sorted(result.scores["stratum"].unique())
    left.axvspan(-MARGIN, MARGIN, color=COLOURS["grey"], alpha=0.15, lw=0)
    left.axvline(0, color=COLOURS["grey"], lw=0.6)
    for i, name in enumerate(measures):
        rows = result.table[result.table["measure"] == name].set_index("stratum")
        y = len(measures) - 1 - i
        for k, s in enumerate(strata):
            if s in rows.index and len(strata) > 1:
                left.plot(
                    rows.loc[s, "rho"], y - 0.22, marker=_MARKS[k % 8], ms=2.5, color=COLOURS[_SHADES[k % 8]], ls=""
                )
        row = rows.loc[ALL]
        left.plot([row["low"], row["high"]], [y, y], color="black", lw=1)
        left.plot(row["rho"], y, "s", color="black", ms=3.5)
        left.annotate(
            str(row["verdict"]),
            (1.0, y),
            (-1, 2),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            fontsize=5.5,
        )
        if POOLED in rows.index:
            left.plot(rows.loc[POOLED, "rho"], y + 0.2, "|", color=COLOURS["grey"], ms=5)
    left.set_yticks(range(len(measures)), [literal(m, 24) for m in reversed(measures)])
    left.set(xlim=(-1, 1.35), ylim=(-0.6, len(measures) - 0.4), xlabel="Spearman: stability and final performance")
    left.set_xticks([-1, -0.5, 0, 0.5, 1])
    name = measure or measures[0]
    shown = result.scores[result.scores[name].notna() & result.scores["performance"].notna()]
    for k, s in enumerate(strata):
        part = shown[shown["stratum"] == s]
        if len(part):
            ranks = part[["performance", name]].rank(pct=True)
            right.plot(
                ranks[name],
                ranks["performance"],
                _MARKS[k % 8],
                ms=2,
                color=COLOURS[_SHADES[k % 8]],
                label=literal(s, 26) or None,
                alpha=0.8,
                mew=0,
            )
    right.set(
        xlabel=f"stability rank within stratum ({literal(name, 20)})",
        ylabel="final performance rank",
        xlim=(0, 1.02),
        ylim=(0, 1.02),
    )
    if any(strata):
        right.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def plot(result: Dissociation, ax: Any = None, *, measure: str | None = None) -> Any:
    """Draw a result; `ax`, where given, is a pair of axes. Returns the figure."""
    with style():
        if ax is not None:
            draw(result, ax[0], ax[1], measure)
            return ax
        import matplotlib.pyplot as plt

        figure, pair = plt.subplots(1, 2, figsize=(PAGE, 2.8), layout="constrained", width_ratios=[1.3, 1])
        draw(result, pair[0], pair[1], measure)
        return figure
