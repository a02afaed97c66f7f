"""Figure 5: does noise that was assigned to a run protect it? Failure after the same insult, by level of noise."""

from __future__ import annotations

import pandas as pd
from _figure import NAMES, SEED, Made, Runs, interval, letters, main, page

import trajscope as ts
from trajscope.plots.buffering import draw

_COLLECTIONS = {"digits": ("grad_noise", "gradient noise (norms)"), "cartpole": ("entropy_bonus", "entropy bonus")}
_OUTCOMES = {"harmed": "harmed, by its twin", "irrecoverable": "irrecoverable, by rule"}


def make() -> Made:
    runs = Runs(tuple(_COLLECTIONS))
    table = runs.of(purpose="buffering")
    table = table[table["perturbation"].notna()].assign(irrecoverable=table["outcome"] == "irrecoverable")
    figure = page(2.3)
    axes = list(figure.subplots(1, 4, sharey=True))
    panels = [(domain, outcome) for domain in _COLLECTIONS for outcome in _OUTCOMES]
    said, levels, trends, verdicts = [], [], [], {}
    for ax, (domain, outcome) in zip(axes, panels, strict=True):
        column, label = _COLLECTIONS[domain]
        result = ts.buffering(
            table[table["domain"] == domain], level=column, collapsed=outcome, outcomes=["max_deficit"], rng=SEED
        )
        draw(result, ax)
        name = f"{NAMES[domain]}, {_OUTCOMES[outcome]}"
        ax.set_title(f"{name.replace(', ', chr(10), 1)}\n{result.verdict} (p = {result.p_trend:.2g})", loc="left")
        ax.set(xlabel=label, ylabel="share of runs" if ax is axes[0] else "", xlim=(-0.5, len(result.table) - 0.5))
        verdicts[name] = result.verdict
        levels.append(result.table.assign(domain=domain, outcome=outcome))
        depth = result.outcomes.iloc[0]
        numbers = {"slope": result.slope, "low": result.low, "high": result.high, "p_trend": result.p_trend}
        more = {"verdict": result.verdict, "depth_jonckheere": depth["statistic"], "depth_p": depth["p"]}
        trends.append({"domain": domain, "outcome": outcome, "n": int(result.table["n"].sum()), **numbers, **more})
        said.append(
            f"{name}: n = {int(result.table['n'].sum())}, log odds a level {result.slope:+.2f} "
            f"({interval(result.low, result.high)}), p = {result.p_trend:.2g}, {result.verdict}"
            + (f" ({result.reason})" if result.reason else "")
        )
        if outcome == "harmed":
            said.append(f"depth of the fall: Jonckheere {depth['statistic']:+.2f}, p = {depth['p']:.2g}")
    letters(figure, axes)
    words = set(verdicts.values())
    named = "; ".join(f"{k}: {v}" for k, v in verdicts.items())
    if "buffers" in words and "harms" not in words:
        verdict = f"supported in part ({named})"
    elif "harms" in words:
        verdict = f"not supported ({named})"
    else:
        verdict = f"cannot tell ({named})"
    return Made(
        figure,
        {"levels": pd.concat(levels, ignore_index=True), "trends": pd.DataFrame(trends)},
        "stochasticity buffers: noise in training protects against collapse.",
        verdict + ".",
        "Share of runs that failed after the same insult, by the level of noise assigned to them; bars are exact 95 % "
        "intervals. Harmed: the last tenth of the evaluations lies more than 5 sd below those of the same-seed twin. "
        "Irrecoverable: by trajscope's collapse rule, which sees one run alone. Slopes are of a logistic model with an "
        "intercept a stratum (Firth's penalty, profile interval, levels as ranks); p by permutation of the levels within "
        f"strata (9,999), uncorrected for the four panels. {'. '.join(said)}. The insult harms nearly every run of "
        "digits, so that a benefit of noise could hardly show there.",
    )


if __name__ == "__main__":
    main(__file__, make)
