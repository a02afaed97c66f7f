"""Figure 3: how coherence and instability answer to an injection, over perturbations, model sizes, domains and seeds."""

from __future__ import annotations

from typing import cast

import numpy as np
import pandas as pd
from _figure import DOMAINS, NAMES, Made, Runs, letters, main, page, study

from trajscope.inference.response import Response
from trajscope.plots.style import COLOURS

_AXES = {
    "optimization": ("vermilion", "-"),
    "environment/data": ("blue", "--"),
    "parametric": ("green", "-."),
    "learning signal": ("purple", ":"),
}
_SIGNALS = {"x_grad": "x_grad (baseline sd)", "x_inst": "x_inst (baseline sd)"}
_MARKS = {"supported": "o", "contradicted": "X", "inconclusive": "s", "cannot tell": "D"}
#: Rows after the injection that are drawn.
_ROWS = 60
_CLAIMS = {
    "coherence collapses sharply": "coherence falls within\n10 rows: share of runs",
    "coherence falls, and does not rise": "conditions in which it\nfalls (of those that move)",
    "instability is heterogeneous": "x_inst: spread between\nconditions over seeds",
    "coherence is more consistent than instability": "dispersion ratio,\nx_inst over x_grad",
}


def make() -> Made:
    runs = Runs(DOMAINS)
    found = study("response", runs)
    table = runs.labels[runs.labels["perturbation"].notna()]
    axis_of = dict(zip(table["stratum"] + " " + table["perturbation"], table["axis"], strict=True))
    figure = page(4.9)
    grid = figure.add_gridspec(3, 12, height_ratios=[1, 1, 0.85])
    drawn, panels = [], []
    for row, (signal, label) in enumerate(_SIGNALS.items()):
        for k, domain in enumerate(DOMAINS):
            ax = figure.add_subplot(grid[row, 4 * k : 4 * k + 4])
            panels.append(ax)
            result = cast("Response", found.figures[f"response_{domain}"])
            curves = _aligned(result, signal, axis_of)
            drawn.append(curves.assign(domain=domain, signal=signal))
            _draw(ax, curves)
            ax.set_title(f"{NAMES[domain]}, {curves['condition'].nunique()} conditions" if row == 0 else "", loc="left")
            ax.set(xlabel="rows since the injection" if row else "", ylabel=label if k == 0 else "")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4, frameon=False, handlelength=3)
    claims = found.tables["claims"]
    for k, (claim, label) in enumerate(_CLAIMS.items()):
        ax = figure.add_subplot(grid[2, 3 * k : 3 * k + 3])
        panels.append(ax)
        _forest(ax, claims[claims["claim"] == claim].set_index("domain"), label, first=k == 0)
    for word, mark in _MARKS.items():
        if (claims["verdict"] == word).any():
            panels[-4].plot([], [], marker=mark, color=COLOURS["black"], ms=3.5, ls="", label=word)
    panels[-4].legend(frameon=False, loc="center left", bbox_to_anchor=(0.53, 0.5), fontsize=5.5, handletextpad=0.2)
    letters(figure, panels)
    counts = {d: len({r.run for r in cast("Response", found.figures[f"response_{d}"]).rows}) for d in DOMAINS}
    said = []
    for claim, rows in claims.groupby("claim", sort=False):
        each = ", ".join(
            f"{NAMES[r['domain']]} {r['value']:.2g} [{r['low']:.2g}, {r['high']:.2g}] {r['verdict']}"
            for r in rows.to_dict("records")
        )
        said.append(f"{claim}: {each}")
    return Made(
        figure,
        {
            "curves": pd.concat(drawn, ignore_index=True),
            "claims": claims,
            "dispersion": found.tables["dispersion"],
            "ordering": found.tables["ordering"],
        },
        "gradient coherence collapses sharply and in the same way across perturbations, while instability answers differently to each.",
        _verdict(claims),
        f"Mean over seeds of x_grad (a to c) and x_inst (d to f) against the same-seed twin, in sd of the baseline, aligned "
        "at the injection: thin, one condition (architecture, width, perturbation, severity); thick, their median by axis; "
        "symmetric logarithmic above 10. Perturbed runs: "
        f"{', '.join(f'{NAMES[d]} {n}' for d, n in counts.items())}; ramps are left out. (g to j) The claims in computable "
        "terms, with 95 % intervals: bootstrap over conditions (g, i, j; BCa) or Clopper-Pearson (h); dashed, the bound that "
        f"decides. {'. '.join(said)}. Order of coherence, instability and onset: "
        + "; ".join(f"{NAMES[r['domain']]}, {r['reason']}" for r in found.tables["ordering"].to_dict("records"))
        + ".",
    )


def _aligned(result: Response, signal: str, axis_of: dict[str, str]) -> pd.DataFrame:
    """Mean curves of a signal as a long table over rows since the injection."""
    frames = []
    for curve in result.curves:
        if curve.channel == signal:
            axis = axis_of[curve.condition.rpartition(" ")[0]]
            mean = curve.mean[:_ROWS]
            frames.append(
                pd.DataFrame(
                    {"condition": curve.condition, "axis": axis, "seeds": curve.n_seeds, "row": np.arange(mean.size),
                     "offset": curve.offsets[:_ROWS], "mean": mean}
                )
            )  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def _draw(ax, curves: pd.DataFrame) -> None:
    for axis, (colour, line) in _AXES.items():
        own = curves[curves["axis"] == axis]
        for _, one in own.groupby("condition"):
            ax.plot(one["row"], one["mean"], color=COLOURS[colour], lw=0.3, alpha=0.25)
        middle = own.groupby("row")["mean"].median()
        ax.plot(middle.index, middle, color=COLOURS[colour], ls=line, lw=1.3, label=axis)
    ax.axhline(0, color=COLOURS["black"], lw=0.5)
    ax.set_yscale("symlog", linthresh=10, linscale=1.5)
    ax.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
    ax.minorticks_off()
    top = float(np.nanmax(np.abs(curves["mean"])))
    low = float(np.nanmin(curves["mean"]))
    ticks = [t for t in (-100, -10, -5, 0, 5, 10, 100, 1000) if low <= t <= max(top, 5)]
    ax.set_yticks(ticks)


def _forest(ax, rows: pd.DataFrame, label: str, *, first: bool) -> None:
    bound = float(rows["bound"].iloc[0])
    ax.axvline(bound, color=COLOURS["grey"], lw=0.8, ls="--")
    for y, domain in enumerate(reversed(DOMAINS)):
        r = rows.loc[domain]
        ax.plot([r["low"], r["high"]], [y, y], color=COLOURS["black"], lw=0.9)
        ax.plot(r["value"], y, _MARKS[r["verdict"]], color=COLOURS["black"], ms=3.5)
    ax.set(ylim=(-0.5, len(DOMAINS) - 0.2), xlabel=label)
    if bound == 1.0:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda v, _: f"{v:g}")
        ax.minorticks_off()
    else:
        ax.set_xlim(-0.03, 1.03)
    ax.set_yticks(range(len(DOMAINS)), [NAMES[d] for d in reversed(DOMAINS)] if first else [""] * len(DOMAINS))


def _verdict(claims: pd.DataFrame) -> str:
    words = {c: sorted(set(rows["verdict"])) for c, rows in claims.groupby("claim", sort=False)}
    against = [c for c, v in words.items() if "contradicted" in v and "supported" not in v]
    for_it = [c for c, v in words.items() if "supported" in v and "contradicted" not in v]
    mixed = [c for c in words if c not in against and c not in for_it]
    parts = [
        f"{name}: {'; '.join(cs)}"
        for name, cs in (("contradicted", against), ("supported", for_it), ("mixed or undecided", mixed))
        if cs
    ]
    head = "not supported" if against else "supported" if for_it and not mixed else "cannot tell"
    return f"{head} as a whole ({'. '.join(parts)})."


if __name__ == "__main__":
    main(__file__, make)
