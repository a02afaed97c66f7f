"""Figure 4: is a stable run a better one? Rank correlation of stability and final performance on grids of digits."""

from __future__ import annotations

from typing import cast

from _figure import Made, Runs, interval, letters, main, page, study

from trajscope.inference.dissociation import ALL, MARGIN, Dissociation
from trajscope.plots.dissociation import draw


def make() -> Made:
    found = cast("Dissociation", study("dissociation", Runs(("digits",))).figures["dissociation"])
    figure = page(3.3)
    left, right = figure.subplots(1, 2, width_ratios=[1.35, 1])
    shown = found.table[found.table["stratum"] == ALL].set_index("measure")
    draw(found, left, right, "drawdown_cvar")
    letters(figure, [left, right])
    said = "; ".join(
        f"{m} {r['rho']:+.2f} ({interval(r['low'], r['high'])}; {r['verdict']})"
        if r["rho"] == r["rho"]
        else f"{m} {r['verdict']} ({r['reason']})"
        for m, r in shown.iterrows()
    )
    parts = {
        "dissociated from final performance": shown["verdict"] == "dissociated",
        "negligibly associated": shown["verdict"] == "negligible association",
        "associated, stable runs ending better": (shown["verdict"] == "associated") & (shown["rho"] > 0),
        "associated, stable runs ending worse": (shown["verdict"] == "associated") & (shown["rho"] < 0),
        "undecided": shown["verdict"].isin(["inconclusive", "cannot tell"]),
    }
    words = "; ".join(f"{word}: {', '.join(shown.index[rows])}" for word, rows in parts.items() if rows.any())
    apart, tied = int(parts["dissociated from final performance"].sum()), int((shown["verdict"] == "associated").sum())
    head = "supported" if apart and not tied else "not supported" if tied > apart else "cannot tell"
    verdict = f"{head} by {len(shown)} measures over a grid of learning rates ({words})"
    contrast = found.contrast.set_index("measure").loc["drawdown_cvar"]
    return Made(
        figure,
        {"correlations": found.table, "contrast": found.contrast, "runs": found.scores},
        "stability and performance are dissociated: a run that performs well need not be a stable one.",
        verdict + ".",
        f"Stability against final performance of {int(shown['n'].max())} unperturbed runs on digits in "
        f"{found.scores['stratum'].nunique()} strata (algorithms), over grids of learning rate and seed, failed runs "
        "among them. (a) Spearman's coefficient, each measure turned so that bigger is more stable: square and bar, mean "
        "over strata on Fisher's z with BCa bootstrap interval (10,000 draws of seeds); small marks, strata; grey tick, "
        f"pooled; shaded, equivalence margin of {MARGIN}. {said}. Learning rates differ within a stratum: the smallest are "
        "the most stable and end badly, the largest are the least stable and fail, so that a coefficient sums up a hump. "
        "(b) Runs by rank of the smallness of their drawdowns (drawdown_cvar). Of "
        f"{int(contrast['top_quartile'])} runs in the top quartile of performance "
        f"{int(contrast['of_them_least_stable'])} are in the bottom quartile of that stability "
        f"({interval(contrast['low'], contrast['high'])}; 0.25 by chance).",
    )


if __name__ == "__main__":
    main(__file__, make)
