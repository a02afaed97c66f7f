"""Early-warning indicators at size: the scenario grid, the trend tests under the null, the canary, chick hearts.

Run: nice -n 15 python tests/proofs/early_warning.py [grid|trend|canary|hearts ...] [--replicates 1000]
Fixed seeds; prints tables. `grid` about 5 minutes, `trend` about 20, the others seconds, on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import trajscope as ts
from trajscope.detect.alarms import persistent
from trajscope.simulate import ar, fold, linear_map, neimark_sacker

Floats = NDArray[np.float64]
Rng = np.random.Generator

N, WINDOW = 1000, 250
SD = 1 / np.sqrt(1 - 0.5**2)  # of the baseline: linear_map(0.5)
U = np.linspace(0, 1, N)
LATE = np.arange(N) >= 0.9 * N

NULLS: dict[str, Callable[[Rng], Floats]] = {
    "stationary 0.5": lambda r: linear_map(N, 0.5, rng=r),
    "noise sd 1 to 3": lambda r: linear_map(N, 0.5, 1 + 2 * U, rng=r),
    "mean ramp of 5 sd": lambda r: linear_map(N, 0.5, rng=r) + 5 * SD * U,
    "observation noise 2 to 0.2, rate 0.8": lambda r: linear_map(N, 0.8, rng=r) + (2 - 1.8 * U) * r.normal(size=N),
    "jump of 5 sd at 0.9 n": lambda r: linear_map(N, 0.5, rng=r) + 5 * SD * LATE,
    "jump of 3 sd at 0.9 n": lambda r: linear_map(N, 0.5, rng=r) + 3 * SD * LATE,
    "stationary 0.9": lambda r: linear_map(N, 0.9, rng=r),
    "stationary -0.5": lambda r: linear_map(N, -0.5, rng=r),
}
EVENTS: dict[str, Callable[[Rng], Floats]] = {
    "fold a 1 to 0.03": lambda r: fold(N, 1 - 0.97 * U, sigma=0.05, dt=0.35, rng=r),
    "slowing 0.3 to 0.98": lambda r: linear_map(N, 0.3 + 0.68 * U, rng=r),
    "flip -0.2 to -0.98": lambda r: linear_map(N, -0.2 - 0.78 * U, rng=r),
    "Neimark-Sacker 0.5 to 0.99": lambda r: neimark_sacker(N, 0.5 + 0.49 * U, rng=r)[:, 0],
}
ASKED = {"fold a 1 to 0.03": 0.70, "slowing 0.3 to 0.98": 0.90, "flip -0.2 to -0.98": 0.90,
         "Neimark-Sacker 0.5 to 0.99": 0.90}  # fmt: skip


def auroc(high: Floats, low: Floats) -> float:
    """Probability that an event's score exceeds a null's; -inf where there is none."""
    order = np.concatenate([high, low])
    ranks = np.searchsorted(np.sort(order), order, side="left") + np.searchsorted(np.sort(order), order, side="right")
    return float((ranks[: high.size].sum() / 2 - high.size**2 / 2) / (high.size * low.size))


def grid(replicates: int) -> None:
    """At the threshold that calls at most 8 % of each null: how many of each event are called."""
    last: dict[str, Floats] = {}
    most: dict[str, Floats] = {}
    single: dict[str, dict[str, Floats]] = {}
    for number, (name, make) in enumerate({**NULLS, **EVENTS}.items()):
        final, largest, others = [], [], []
        for k in range(replicates):
            x = make(np.random.default_rng([number, k]))
            frame = ts.early_warning(
                x, window=WINDOW, indicators=["slowing", "lag1", "lag_ratio", "dev_modulus"]
            ).to_frame()
            score = frame["slowing"].to_numpy()
            final.append(score[-1] if np.isfinite(score[-1]) else -np.inf)
            largest.append(persistent(score, 3).max())
            others.append([frame["lag1"].iloc[-1], abs(frame["lag_ratio"].iloc[-1]), frame["dev_modulus"].iloc[-1]])
        last[name], most[name] = np.array(final), np.array(largest)
        columns = np.nan_to_num(np.array(others), nan=-np.inf).T
        single[name] = dict(zip(("lag1", "|lag_ratio|", "dev_modulus"), columns, strict=True))
    print(f"\nScenario grid: {replicates} replicates, n = {N}, window {WINDOW}, baseline ewma")
    for label, score in (("score at the last row", last), ("largest score of the run, 3 rows in a row", most)):
        level = max(float(np.quantile(score[name], 0.92, method="higher")) for name in NULLS)
        print(f"\n{label}: threshold {level:.3f}")
        for name in NULLS:
            print(f"  null   {name:38s} called {np.mean(score[name] > level):.3f} (at most 0.080)")
        for name in EVENTS:
            area = auroc(score[name], score["stationary 0.5"])
            print(f"  event  {name:38s} called {np.mean(score[name] > level):.3f} (at least {ASKED[name]:.2f})"
                  f"   AUROC against stationary {area:.3f}")  # fmt: skip
    print("\nSingle indicators at the last row, AUROC against the stationary null (0.5 means: not fooled, or not seen)")
    print(f"  {'':45s} {'lag1':>8s} {'|ratio|':>8s} {'modulus':>8s} {'slowing':>8s}")
    for name in {**NULLS, **EVENTS}:
        values = [auroc(v, single["stationary 0.5"][i]) for i, v in single[name].items()]
        values.append(auroc(last[name], last["stationary 0.5"]))
        print(f"  {name:45s} " + " ".join(f"{v:8.3f}" for v in values))


def power_law(exponent: float, sigma: float = 0.03) -> Callable[[int, Rng], Floats]:
    """A loss that falls as a power of time with AR(0.5) noise."""
    return lambda n, r: 0.5 + 3 * (np.arange(n) + 1.0) ** -exponent + sigma * ar(n, 0.5, rng=r)[:, 0]


TRENDLESS: dict[str, Callable[[int, Rng], Floats]] = {
    "AR(1) 0.3": lambda n, r: ar(n, 0.3, rng=r)[:, 0],
    "AR(1) 0.9": lambda n, r: ar(n, 0.9, rng=r)[:, 0],
    "AR(1) 0.98": lambda n, r: ar(n, 0.98, rng=r)[:, 0],
    "power law -0.3": power_law(0.3),
    "power law -0.5": power_law(0.5),
}


def trend(replicates: int) -> None:
    """How often the surrogate tests reject a true null at 5 % (19 surrogates: p <= 0.05 has exactly that level)."""
    n, window = 500, 125
    names = ["variance", "lag1", "dev_modulus"]
    kinds = ("ar1", "iaaft", "block")
    print(f"\nTrend tests under the null: {replicates} replicates, n = {n}, window {window}, two-sided, nominal 5 %")
    print(f"  {'':16s} " + " ".join(f"{i + '/' + k:>17s}" for k in kinds for i in names) + f" {'naive lag1':>11s}")
    for number, (label, make) in enumerate(TRENDLESS.items()):
        hits, naive = np.zeros((len(kinds), len(names))), 0
        for k in range(replicates):
            rng = np.random.default_rng([number, k])
            found = ts.early_warning(make(n, rng), window=window, indicators=names)
            table = found.trend(surrogates=kinds, n=19, rng=rng).to_frame()
            hits += [[table.loc[i, f"p_{kind}"] <= 0.05 for i in names] for kind in kinds]
            rows = table.loc["lag1", "n_values"]
            sd = np.sqrt(2 * (2 * rows + 5) / (9 * rows * (rows - 1)))
            naive += abs(table.loc["lag1", "tau"]) > 1.96 * sd
        print(f"  {label:16s} " + " ".join(f"{v:17.3f}" for v in (hits / replicates).ravel())
              + f" {naive / replicates:11.3f}", flush=True)  # fmt: skip


def canary(replicates: int) -> None:
    """Jumps that nothing announces: an honest pipeline is at chance just before, a leaky one is not."""
    honest, leaky = canary_scores(replicates)
    print(
        f"\nCanary: {replicates} runs that jump by 5 sd unannounced against {replicates} that do not, at the row before"
    )
    for name, (jumped, quiet) in honest.items():
        print(
            f"  causal                                      {name:12s} AUROC {auroc(jumped, quiet):.3f} (0.42 to 0.58)"
        )
    for name, (jumped, quiet) in leaky.items():
        print(f"  Gaussian baseline, window labelled midway   {name:12s} AUROC {auroc(jumped, quiet):.3f} (above 0.7)")


Scores = dict[str, tuple[Floats, Floats]]


def canary_scores(replicates: int, n: int = 500, window: int = 100, seed: int = 0) -> tuple[Scores, Scores]:
    """Scores at the row before the jump, causal and leaky, of runs with it and of runs without."""
    names = ["slowing", "lag1", "variance", "dev_modulus"]
    causal: dict[bool, list[list[float]]] = {True: [], False: []}
    leaky: dict[bool, list[list[float]]] = {True: [], False: []}
    for k in range(replicates):
        for jumps in (True, False):
            rng = np.random.default_rng([seed, k, int(jumps)])
            at = int(rng.integers(int(0.6 * n), int(0.85 * n)))
            x = linear_map(n, 0.5, rng=rng)
            if jumps:
                x[at:] += 5 * SD
            frame = ts.early_warning(x, window=window, indicators=names).to_frame()
            causal[jumps].append(frame.iloc[at - 1].tolist())
            ahead = ts.early_warning(x, window=window, indicators=names[1:], detrend="gaussian").to_frame()
            leaky[jumps].append(ahead.shift(-window // 2).iloc[at - 1].tolist())  # as if stamped midway

    def pair(found: dict[bool, list[list[float]]], labels: list[str]) -> Scores:
        both = [np.nan_to_num(np.array(found[side], dtype=float), nan=-np.inf).T for side in (True, False)]
        return {name: (both[0][i], both[1][i]) for i, name in enumerate(labels)}

    return pair(causal, names), pair(leaky, names[1:])


def hearts() -> None:
    """Chick hearts before a period doubling (Bury et al. 2020) against hearts without: no training."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "data" / "earlywarning" / "chick_heart"
    if not folder.is_dir():
        print("\nChick hearts: the records are not on this machine")
        return
    print("\nChick hearts: 12 records up to a period doubling against 12 without, value at the last beat")
    for window in (30, 40, 50, 75, 90):
        flips, quiet = heart_scores(folder, window)
        print(
            f"  window {window:3d}: "
            + ", ".join(f"{name} AUROC {auroc(flips[name], quiet[name]):.3f}" for name in flips)
        )


def heart_scores(folder: Path, window: int) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Last values of the records that flip and of those that do not."""
    import pandas as pd

    ends = pd.read_csv(folder / "transitions.csv").set_index("series")["transition_beat"]
    names = ["dev_modulus", "slowing"]
    out = []
    for kind in ("flip", "null"):
        rows = []
        for series, record in pd.read_csv(folder / f"{kind}.csv").groupby("series"):
            x = record["interval"].to_numpy()
            x = x[: int(ends[series])] if kind == "flip" else x
            rows.append(ts.early_warning(x, window=window, indicators=names).to_frame().iloc[-1].to_numpy())
        columns = np.nan_to_num(np.array(rows), nan=-np.inf).T
        out.append(dict(zip(names, columns, strict=True)))
    return out[0], out[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["hearts", "canary", "grid", "trend"])
    parser.add_argument("--replicates", type=int, default=1000)
    options = parser.parse_args()
    for part in options.parts:
        if part == "hearts":
            hearts()
        else:
            {"grid": grid, "trend": trend, "canary": canary}[part](options.replicates)


if __name__ == "__main__":
    main()
