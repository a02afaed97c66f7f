"""Figure 8: is the meta-state of healthy runs low-dimensional and identifiable, by domain and estimator?"""

from __future__ import annotations

from typing import cast

import numpy as np
from _figure import DOMAINS, NAMES, Made, Runs, letters, main, page, study

from trajscope.inference.identifiability import Identifiability
from trajscope.plots.identifiability import figure_data
from trajscope.plots.style import COLOURS

_PARTS = ("dimension", "structure", "refit", "practical", "prediction", "ablation", "axes")
_MARKS = {"pass": ("o", "blue"), "fail": ("X", "vermilion"), "cannot test": ("_", "grey")}
_ESTIMATORS = ("PCAState", "SlowFeatures", "LinearStateSpace")
_SHORT = {"PCAState": "PCA", "SlowFeatures": "slow features", "LinearStateSpace": "state space"}


def make() -> Made:
    found = study("identifiability", Runs(DOMAINS))
    results = {k.removeprefix("identifiability_"): cast("Identifiability", r) for k, r in found.figures.items()}
    figure = page(4.4)
    grid = figure.add_gridspec(2, 3, height_ratios=(1, 1.15))
    axes = [figure.add_subplot(grid[0, k]) for k in range(3)]
    for ax, domain in zip(axes, DOMAINS, strict=True):
        data = figure_data(results[f"{domain}_PCAState"])
        ax.hist(data.null, bins=np.linspace(0, 1, 26).tolist(), color=COLOURS["grey"], label="surrogates")
        ax.plot(data.found, np.full(data.found.size, 1.0), "v", color=COLOURS["blue"], ms=4, label="disjoint runs")
        ax.axvline(data.threshold, color=COLOURS["black"], ls="--", lw=0.7, label="needed")
        ax.set(xlim=(0, 1.02), xlabel="weakest held-out correlation")
        ax.set_title(f"{NAMES[domain]}, PCA: {data.claimed} states", loc="left")
    axes[0].set_ylabel("fits")
    axes[0].legend(loc="center right", frameon=False)
    table = figure.add_subplot(grid[1, :])
    keys = [(d, e) for d in DOMAINS for e in _ESTIMATORS if f"{d}_{e}" in results]
    for y, (domain, estimator) in enumerate(reversed(keys)):
        for x, name in enumerate(_PARTS):
            mark, colour = _MARKS[results[f"{domain}_{estimator}"].part(name).verdict]
            table.plot(x, y, mark, color=COLOURS[colour], ms=5)
    for verdict, (mark, colour) in _MARKS.items():
        table.plot([], [], mark, color=COLOURS[colour], ms=5, label=verdict)
    table.set_yticks(range(len(keys)), [f"{NAMES[d]}, {_SHORT[e]}" for d, e in reversed(keys)])
    table.set_xticks(range(len(_PARTS)), _PARTS)
    table.set(xlim=(-0.5, len(_PARTS) - 0.5), ylim=(-0.6, len(keys) - 0.4))
    table.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    letters(figure, [*axes, table])
    good = [k for k, r in results.items() if r.verdict == "identifiable" and r.low_dimensional]
    spaces = [k for k, r in results.items() if r.part("refit").verdict == "pass"]
    verdict = (
        f"{'supported' if len(good) == len(results) else 'not supported' if not good else 'supported in part'} "
        f"(all six parts and at most three states: {len(good)} of {len(results)} cases; the space is found again in "
        f"disjoint runs in {len(spaces)})."
    )
    counts = "; ".join(
        f"{NAMES[d]} {r.n_runs} runs, {r.n_rows} rows, {r.n_channels} channels"
        for d in DOMAINS
        if (r := results.get(f"{d}_PCAState")) is not None
    )
    return Made(
        figure,
        dict(found.tables),
        "training instability follows a low-dimensional meta-state that can be identified.",
        verdict,
        "Healthy runs of each domain, channels about the median of the runs at each step. (a to c) Refits of the principal "
        "components on disjoint halves of the runs: correlation of the direction that agrees least, taken on rows that did "
        "not choose it, beside surrogates whose channels share nothing (circular shifts, phases); dashed, the larger of 0.8 "
        f"and their 95 % point. (d) Verdicts of the parts for three estimators of the same dimension. {counts}.",
    )


if __name__ == "__main__":
    main(__file__, make)
