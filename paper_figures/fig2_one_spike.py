"""Figure 2: one learning-rate spike, three algorithms, with seeds: HalfCheetah at step 2,000 and after learning, and digits."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
from _figure import Made, Runs, letters, main, page, recorded
from scipy.stats import fisher_exact

from trajscope._core.resample import proportion_interval
from trajscope.inference._compare_bands import median_ranks
from trajscope.plots.style import COLOURS

#: Row -> domain, title, arms in the order in which they are looked for, channel, algorithms.
_ROWS = {
    "HalfCheetah, environment step 2,000": (
        "halfcheetah",
        ("lr_x100_at_step_2000",),
        "eval/return",
        ("ppo", "sac", "td3"),
    ),
    "HalfCheetah, gradient step 2,000": (
        "halfcheetah",
        ("lr_x100_at_update_2000",),
        "eval/return",
        ("ppo", "sac", "td3"),
    ),
    "HalfCheetah, after learning": ("halfcheetah", ("lr_x100",), "eval/return", ("ppo", "sac", "td3")),
    "digits, step 400": ("digits", ("lr_x30",), "val/accuracy", ("sgd_momentum", "adam", "rmsprop")),
}
_STRATUM = "digits/mlp64/"


def make() -> Made:
    halfcheetah = recorded("halfcheetah")
    runs = Runs(("halfcheetah", "digits") if halfcheetah else ("digits",))
    cells = {
        (name, algorithm): _members(runs, domain, arms, algorithm)
        for name, (domain, arms, _, algorithms) in _ROWS.items()
        for algorithm in algorithms
    }
    shown = [name for name in _ROWS if any(len(cells[name, a]) for a in _ROWS[name][3])]
    missing = []
    for name in _ROWS:
        absent = [a for a in _ROWS[name][3] if not len(cells[name, a])]
        missing += [name] if len(absent) == 3 else [f"{name} ({a})" for a in absent]
    figure = page(0.7 + 1.25 * len(shown))
    axes = figure.subplots(len(shown), 3, squeeze=False)
    curves, shares = [], []
    for row, name in zip(axes, shown, strict=True):
        channel, algorithms = _ROWS[name][2], _ROWS[name][3]
        for ax, algorithm in zip(row, algorithms, strict=True):
            own = cells[name, algorithm]
            title = name.removeprefix("HalfCheetah, ").replace("environment", "env.")
            ax.set_title(f"{title}: {algorithm.replace('_', ' with ')}, n = {len(own)}", loc="left", fontsize=6)
            if not len(own):
                ax.text(0.5, 0.5, "not recorded", transform=ax.transAxes, ha="center", va="center")
                ax.set_axis_off()
                continue
            curves.append(_draw(ax, runs, own, channel).assign(row=name, algorithm=algorithm))
            shares.append({"row": name, "algorithm": algorithm} | _share(own))
            ax.set_ylabel(channel if ax is row[0] else "")
            ax.set_xlabel("steps since the spike" if row is axes[-1] else "")
    handles, names = axes[-1, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    letters(figure, list(axes.ravel()))
    table = pd.DataFrame(shares)
    lost = pd.DataFrame([{"row": m, "status": "not recorded"} for m in missing], columns=["row", "status"])
    tests = _tests(table)
    said = "; ".join(
        f"{r['row']}, {r['algorithm']}: {r['harmed']} of {r['n']} harmed (exact 95 % interval {r['low']:.2f} to "
        f"{r['high']:.2f}), {r['recovered']} fell and recovered"
        for r in table.to_dict("records")
    )
    return Made(
        figure,
        {"curves": pd.concat(curves, ignore_index=True), "shares": table, "tests": tests, "missing": lost},
        "PPO is uniquely fragile: the same learning-rate spike harms it where it does not harm SAC and TD3.",
        _verdict(table, tests),
        "Evaluated performance of each seed (thin) after a learning rate 100 times (digits: 30 times) as large for a short while, the median "
        "over seeds (thick) with its interval from order statistics (95 %; below six seeds their range), and the median of "
        "the same seeds without the spike (dashed). Step 2,000 is read in both ways, as environment and as gradient step. "
        f"Harmed: the last tenth of the evaluations lies more than 5 sd below the twin's. {said}. "
        + ("Fisher's exact tests between algorithms, Holm's correction: " + "; ".join(
            f"{t['row']}, {t['first']} against {t['second']}: p = {t['p_holm']:.2g}" for t in tests.to_dict("records")
        ) + ". " if len(tests) else "")
        + (f"Not recorded: {', '.join(missing)}." if missing else "Five seeds an algorithm on HalfCheetah are descriptive."),
    )  # fmt: skip


def _members(runs: Runs, domain: str, arms: tuple[str, ...], algorithm: str) -> pd.DataFrame:
    """Labels of the spiked runs of a row and algorithm."""
    table = runs.labels
    own = table[(table["domain"] == domain) & table["arm"].isin(arms) & (table["algorithm"] == algorithm)]
    return own[own["stratum"].str.startswith(_STRATUM) & (own["purpose"] == "arms")] if domain == "digits" else own


def _draw(ax, runs: Runs, own: pd.DataFrame, channel: str) -> pd.DataFrame:
    """One panel; returns what is drawn."""
    frames = []
    for row in own.to_dict("records"):
        for which, name in (("spiked", row["run"]), ("twin", row["twin"])):
            c = runs(name).channels[channel]
            steps = np.asarray(c.steps, dtype=float) - float(row["injection_step"])
            frames.append(pd.DataFrame({"seed": row["seed"], "run": which, "step": steps, "value": c.values}))
    table = pd.concat(frames, ignore_index=True)
    spiked = table[table["run"] == "spiked"]
    after = spiked["step"].max()
    table = table[(table["step"] >= -0.3 * after) & (table["step"] <= after)]
    for _, one in table[table["run"] == "spiked"].groupby("seed"):
        ax.plot(one["step"], one["value"], color=COLOURS["vermilion"], lw=0.3, alpha=0.5)
    for which, colour, line, label in (
        ("twin", "black", "--", "without the spike, median"),
        ("spiked", "vermilion", "-", "with the spike, median"),
    ):
        by = table[table["run"] == which].groupby("step")["value"]
        middle = by.median()
        ax.plot(middle.index, middle, color=COLOURS[colour], ls=line, lw=1.1, label=label)
        if which == "spiked":
            ends = by.apply(_ends)
            ax.fill_between(
                middle.index, [e[0] for e in ends], [e[1] for e in ends], color=COLOURS["sky"], alpha=0.35, lw=0,
                label="its 95 % interval (few seeds: range)",
            )  # fmt: skip
    ax.axvline(0, color=COLOURS["black"], lw=0.5, ls=":")
    return table


def _ends(values: pd.Series) -> tuple[float, float]:
    x = np.sort(values.to_numpy())
    k = median_ranks(x.size, 0.95)[0]
    return float(x[k - 1]), float(x[-k])


def _share(own: pd.DataFrame) -> dict[str, float]:
    harmed, n = int(own["harmed"].fillna(False).sum()), len(own)
    low, high = proportion_interval(harmed, n)
    recovered = int(own["recovered"].fillna(False).sum())
    return {"n": n, "harmed": harmed, "low": low, "high": high, "recovered": recovered}


def _tests(table: pd.DataFrame) -> pd.DataFrame:
    """Pairs of algorithms within a row: share harmed, Fisher's exact test, Holm's correction over all pairs."""
    out = []
    for name, part in table.groupby("row", sort=False):
        for a, b in combinations(part.to_dict("records"), 2):
            counts = [[a["harmed"], a["n"] - a["harmed"]], [b["harmed"], b["n"] - b["harmed"]]]
            p = float(fisher_exact(counts).pvalue)
            out.append({"row": name, "first": a["algorithm"], "second": b["algorithm"], "p": p})
    ranked = sorted(out, key=lambda r: r["p"])
    running = 0.0
    for i, row in enumerate(ranked):
        running = row["p_holm"] = max(running, min(1.0, (len(ranked) - i) * row["p"]))
    return pd.DataFrame(out, columns=["row", "first", "second", "p", "p_holm"])


def _verdict(table: pd.DataFrame, tests: pd.DataFrame) -> str:
    own = table[table["row"].str.startswith("HalfCheetah")]
    if own.empty:
        return (
            "cannot tell: HalfCheetah is not recorded; on digits, where the three are optimizers, no PPO is among them."
        )
    words = []
    for name, part in own.groupby("row", sort=False):
        if "ppo" not in set(part["algorithm"]) or len(part) < 2:
            words.append((f"{name}: not all are recorded", "cannot tell"))
            continue
        ppo = part.set_index("algorithm").loc["ppo"]
        others = part[part["algorithm"] != "ppo"]
        against = tests[(tests["row"] == name) & ((tests["first"] == "ppo") | (tests["second"] == "ppo"))]
        worse = ppo["harmed"] / ppo["n"] > (others["harmed"] / others["n"]).max()
        counts = ", ".join(f"{r['algorithm']} {r['harmed']}/{r['n']}" for r in part.to_dict("records"))
        told = (
            "supported" if worse and (against["p_holm"] < 0.05).all() else "cannot tell" if worse else "not supported"
        )
        words.append((f"{name}: harmed {counts}", told))
    heads = {told for _, told in words}
    head = heads.pop() if len(heads) == 1 else "not supported" if "supported" not in heads else "cannot tell"
    return f"{head} ({'; '.join(f'{text}, {told}' for text, told in words)})."


if __name__ == "__main__":
    main(__file__, make)
