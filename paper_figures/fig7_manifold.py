"""Figure 7: the instability manifold with trajectories, within and across domains."""

from __future__ import annotations

from typing import cast

from _figure import DOMAINS, NAMES, Made, Runs, letters, main, page, phase, study

from trajscope.inference.studies.manifold import MANIFOLD, OWN, OWN_RATE, ManifoldFigure
from trajscope.plots.manifold import figure_data
from trajscope.plots.style import COLOURS

_ROWS = {
    "manifold": (MANIFOLD, OWN),
    "raw Mahalanobis": ("raw Mahalanobis", OWN),
    "best channel": ("best channel", OWN),
    "manifold, left out": (MANIFOLD, OWN_RATE),
}
_INKS = {"digits": ("blue", "o"), "cartpole": ("vermilion", "s"), "transformer": ("green", "^")}


def make() -> Made:
    found = study("manifold", Runs(DOMAINS))
    table, similar = found.tables["manifold"], found.tables["similarity"]
    figure = page(4.2)
    upper, lower = figure.subfigures(2, 1, height_ratios=[0.85, 1])
    top = upper.subplots(1, len(DOMAINS))
    panels = []
    for k, domain in enumerate(DOMAINS):
        ax = top[k]
        f = cast("ManifoldFigure", found.figures[f"manifold_{domain}"])
        phase(ax, figure_data(f.manifold, f.runs, group=f.groups, unstable=f.unstable, injections=f.injections))
        n_bad = sum(f.unstable)
        ax.set_title(f"{NAMES[domain]}: {n_bad} + {len(f.unstable) - n_bad} runs", loc="left")
        legend = ax.get_legend()
        if k != 1 and legend is not None:
            legend.remove()
        panels.append(ax)
    shares, false, pairs = lower.subplots(1, 3)
    panels += [shares, false, pairs]
    for k, domain in enumerate(DOMAINS):
        ink, mark = _INKS[domain]
        for i, (method, trained) in enumerate(_ROWS.values()):
            own = table[(table["domain"] == domain) & (table["trained"] == trained)]
            row = own[own["method"].str.startswith(method)].iloc[0]
            y = len(_ROWS) - 1 - i + 0.22 * (1 - k)
            for ax, name, low, high in (
                (shares, "share", "share_low", "share_high"),
                (false, "false_rate", "false_low", "false_high"),
            ):
                ax.plot([row[low], row[high]], [y, y], color=COLOURS[ink], lw=0.9)
                ax.plot(row[name], y, mark, color=COLOURS[ink], ms=3, label=NAMES[domain] if i == 0 else None)
    shares.set(xlim=(-0.02, 1.03), xlabel="share of collapses found", ylim=(-0.6, len(_ROWS) - 0.4))
    false.set(xlim=(-0.005, None), xlabel="false alarms a run", ylim=(-0.6, len(_ROWS) - 0.4))
    false.axvline(0.05, color=COLOURS["grey"], lw=0.8, ls="--")
    shares.set_yticks(range(len(_ROWS)), list(_ROWS)[::-1])
    false.set_yticks(range(len(_ROWS)), [""] * len(_ROWS))
    shares.legend(frameon=False, loc="lower left", fontsize=6, handletextpad=0.3)
    names = []
    for y, row in enumerate(similar.iloc[::-1].to_dict("records")):
        names.append(f"{NAMES[row['a']]},\n{NAMES[row['b']]}")
        pairs.plot([0, row["healthy_95"]], [y, y], color=COLOURS["sky"], lw=5, alpha=0.6, solid_capstyle="butt",
                   label="healthy windows, to 95 %" if y == 0 else None)  # fmt: skip
        pairs.plot([row["random_95"]] * 2, [y - 0.2, y + 0.2], color=COLOURS["grey"], lw=1.2,
                   label="random subspaces, 95 %" if y == 0 else None)  # fmt: skip
        pairs.plot(row["similarity"], y, "D", color=COLOURS["black"], ms=3.5, label="collapses" if y == 0 else None)
    pairs.set_yticks(range(len(names)), names)
    pairs.set(xlim=(0, 1.02), ylim=(-0.5, len(names) + 0.6), xlabel="similarity (mean squared cosine)")
    pairs.legend(frameon=False, loc="upper left", fontsize=5.5, handlelength=1.5, borderaxespad=0.0)
    letters(figure, panels)

    def row_of(domain: str, method: str, trained: str):
        own = table[(table["domain"] == domain) & (table["trained"] == trained)]
        return own[own["method"].str.startswith(method)].iloc[0]

    said = []
    for domain in DOMAINS:
        own, new = row_of(domain, MANIFOLD, OWN), row_of(domain, MANIFOLD, OWN_RATE)
        best = row_of(domain, "best channel", OWN)
        said.append(
            f"{NAMES[domain]}: {own['found']} of {own['collapsed']} found ({own['share_low']:.2f} to {own['share_high']:.2f}), "
            f"{own['false_alarms']} of {own['runs']} false, median lead {own['median_lead_rows']:.0f} rows before the onset; "
            f"{best['method']} {best['found']} found, {best['false_alarms']} false; left out of the fit "
            f"{new['found']} found, {new['false_alarms']} false"
        )
    alike = similar[(similar["healthy_p"] * len(similar) < 0.05) & (similar["random_p"] * len(similar) < 0.05)]
    better = [
        d for d in DOMAINS if row_of(d, MANIFOLD, OWN)["share_low"] > row_of(d, "best channel", OWN)["share_high"]
    ]
    within = [d for d in DOMAINS if row_of(d, MANIFOLD, OWN)["share_low"] > 0.5]
    across = "supported" if len(alike) == len(similar) else "cannot tell" if len(alike) else "not supported"
    verdict = (
        f"{across} across domains: collapse subspaces are more alike than healthy-window ones in {len(alike)} of "
        f"{len(similar)} pairs (Bonferroni). {'Supported' if len(within) == len(DOMAINS) else 'Not supported'} within "
        f"domains: most collapses leave the stable set in {len(within)} of {len(DOMAINS)}; but "
        + (f"only in {', '.join(better)} by more" if better else "nowhere by more")
        + " than the best single channel, chosen on calibration runs, finds."
    )
    pair_text = "; ".join(
        f"{NAMES[r['a']]} and {NAMES[r['b']]} {r['similarity']:.2f} (healthy p = {r['healthy_p']:.2g}, random p = {r['random_p']:.2g})"
        for r in similar.to_dict("records")
    )
    return Made(
        figure,
        {"methods": table, "similarity": similar, "by_axis": found.tables["by_axis"]},
        "collapsing runs leave a stable set through an instability manifold that different domains share.",
        verdict,
        "(a to c) Some held-out runs (collapsed + healthy) about the stable set of each domain (healthy calibration runs, each condition on its own "
        "baseline; conformal boundary at 5 % of false alarms a run, dashed where so few runs cannot certify it), radius "
        "logarithmic outside. (d, e) Share of held-out collapses found at or after the event, and of all held-out runs with "
        "a first crossing before it or anywhere in a control; exact 95 % intervals; 'left out': the shape from the other two "
        f"domains, the boundary from its own healthy runs. {'. '.join(said)}. (f) Similarity of collapse subspaces, "
        f"permutation p uncorrected: {pair_text}.",
    )


if __name__ == "__main__":
    main(__file__, make)
