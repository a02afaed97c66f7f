"""Figure 1: the framework on a real run: channels, coherence and instability, meta-state, boundary."""

from __future__ import annotations

import numpy as np
import pandas as pd
from _figure import SEED, Made, Runs, letters, main, page, phase

import trajscope as ts
from trajscope.detect.manifold import manifold_channels
from trajscope.plots.manifold import figure_data
from trajscope.plots.style import COLOURS, log_axis

_STRATUM, _ARM = "digits/mlp64/sgd_momentum", "lr_x30"
_CHANNELS = {"train/loss": "loss", "train/grad_norm": "gradient norm", "val/accuracy": "accuracy"}


def make() -> Made:
    runs = Runs(("digits",))
    own = runs.of(stratum=_STRATUM, purpose="arms")
    healthy = own[(own["arm"] == "control") & (own["split"] == "calibration")]
    events = own[(own["arm"] == _ARM) & (own["split"] != "calibration")].sort_values("seed")
    row = events[events["outcome"] == "irrecoverable"].iloc[0]
    run, twin = runs(row["run"]), runs(row["twin"])
    injection = float(row["injection_step"])
    rows = [manifold_channels(runs(r)) for r in healthy["run"]]
    pair = {"perturbed": manifold_channels(run), "twin": manifold_channels(twin)}
    state = ts.PCAState(n_components="auto", rng=SEED).fit(rows)
    manifold = ts.InstabilityManifold(alpha=0.05, rng=SEED).fit(rows)

    figure = page(3.4)
    grid = figure.add_gridspec(3, 3, width_ratios=[1, 1, 1.25])
    left = [figure.add_subplot(grid[i, 0]) for i in range(3)]
    middle = [figure.add_subplot(grid[i, 1]) for i in range(3)]
    right = figure.add_subplot(grid[:, 2])
    looks = {"twin": (twin, COLOURS["grey"], "-"), "perturbed": (run, COLOURS["vermilion"], "-")}
    numbers = []

    def curve(ax, name: str, steps, values, which: str, *, floor: float | None = None) -> None:
        shown = np.asarray(values, dtype=float)
        numbers.append(pd.DataFrame({"panel": name, "run": which, "step": steps, "value": shown}))
        ax.plot(
            steps, shown if floor is None else np.maximum(shown, floor), color=looks[which][1], lw=0.7,
            zorder=2 if which == "twin" else 3, label=which,
        )  # fmt: skip

    for ax, (channel, label) in zip(left, _CHANNELS.items(), strict=True):
        for which, (one, _, _) in looks.items():
            c = one.channels[channel]
            curve(ax, label, c.steps, c.values, which)
        if label != "accuracy":
            log_axis(ax)
        ax.set_ylabel(label)
    bound = state.bounds_["D"]
    peaks = {}
    for which, (one, _, _) in looks.items():
        coherence, instability = ts.x_grad(one), ts.x_inst(one)
        curve(middle[0], "x_grad", coherence.steps, _trailing(coherence.values), which)
        curve(middle[1], "x_inst", instability.steps, instability.values, which)
        deviation = state.deviation(pair[which])["D"]
        curve(middle[2], "meta-state D", deviation.index.to_numpy(), deviation.to_numpy(), which, floor=0.05)
        peaks[which] = float(np.nanmax(deviation.to_numpy()[deviation.index >= injection]))
    middle[2].axhline(bound, color=COLOURS["black"], lw=0.6, ls="--")
    log_axis(middle[2])
    for ax, label in zip(middle, ("x_grad", "x_inst (sd)", "meta-state D"), strict=True):
        ax.set_ylabel(label)
    for ax in (*left, *middle):
        ax.axvline(injection, color=COLOURS["black"], lw=0.5, ls=":")
        if ax not in (left[-1], middle[-1]):
            ax.tick_params(labelbottom=False)
    left[-1].set_xlabel("step")
    middle[-1].set_xlabel("step")
    left[0].legend(frameon=False, loc="upper right", handlelength=1.2, borderaxespad=0.1)
    data = figure_data(
        manifold, [pair["twin"], pair["perturbed"]], unstable=[False, True], injections=[np.nan, injection]
    )
    phase(right, data)
    letters(figure, [left[0], middle[0], right])
    cross = manifold.first_crossing([pair["twin"], pair["perturbed"]])
    for which, x, y in zip(("twin", "perturbed"), data.along, data.across, strict=True):
        numbers.append(pd.DataFrame({"panel": "along", "run": which, "step": pair[which].steps, "value": x}))
        numbers.append(pd.DataFrame({"panel": "across", "run": which, "step": pair[which].steps, "value": y}))
    stray, at = (c.step for c in cross)
    return Made(
        figure,
        {"curves": pd.concat(numbers, ignore_index=True)},
        "training runs leave a stable set in the space of their channels when they become unstable, and the meta-state shows it.",
        "cannot tell from one pair of runs, which illustrates and proves nothing (figures 6 and 7 count): the perturbed run "
        + (
            "does not cross"
            if at is None
            else f"first crosses the boundary at step {at:g}, {at - injection:g} after the event"
        )
        + (", its twin never." if stray is None else f", its twin at step {stray:g}: a false alarm."),
        f"Run {row['run']}: a learning rate 30 times as large for 10 steps at step {injection:g} (dotted), and its twin, "
        "which is the same to the bit up to there. (a) Channels as logged. (b) Gradient coherence (trailing mean of 20 steps), instability (excess "
        "over the causal level, robust sd) and the distance D of the meta-state from its baseline; dashed, its 95 % "
        f"bound. The meta-state has {state.n_components_} component{'s' * (state.n_components_ != 1)} (parallel analysis). (c) Rows about the stable set of "
        f"{len(rows)} healthy calibration runs, radius on a logarithmic scale outside it; the boundary is conformal, at "
        f"{manifold.alpha:.0%} false alarms a run. Largest D after the event: {peaks['perturbed']:.3g} in the perturbed "
        f"run, {peaks['twin']:.3g} in its twin, bound {bound:.3g}. n = 1 pair.",
    )


def _trailing(values, window: int = 20):
    """Trailing mean, from the first full window on."""
    return pd.Series(np.asarray(values, dtype=float)).rolling(window).mean().to_numpy()


if __name__ == "__main__":
    main(__file__, make)
