"""Spike rules on labelled logs, ours beside the shipped ones; false rates under the null.

Run: python tests/proofs/spikes.py [replicates]   (1,000 by default; the labelled part is skipped when the data are absent)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.signal import lfilter
from scipy.stats import beta

from trajscope._core.rolling import trailing_mean_std, trailing_median_mad
from trajscope.detect.coincidence import coincident_spikes
from trajscope.detect.reset import deliberate_reset
from trajscope.detect.spikes import spikes

LABELLED = Path("/work/shared/data/labelled")
LISTED = np.array([919, 947, 1106, 1760, 2460, 3092, 3194, 3473])
"""Real shared one-step jumps of the default data order, as listed with the data."""

Rule = Callable[[np.ndarray], np.ndarray]


def sigma(window: int, least: int, k: float, two_sided: bool = False) -> Rule:
    def rule(x: np.ndarray) -> np.ndarray:
        mean, std = trailing_mean_std(x, window, min_count=least)
        d = x - mean
        with np.errstate(invalid="ignore"):
            return (np.abs(d) if two_sided else d) > k * std

    return rule


def mad(window: int, least: int, k: float, floor: float) -> Rule:
    def rule(x: np.ndarray) -> np.ndarray:
        y = np.log(np.where(x > 0, x, np.nan))
        m, d = trailing_median_mad(y, window, min_count=least)
        with np.errstate(invalid="ignore"):
            return 0.6745 * (y - m) > k * np.maximum(d, floor)

    return rule


def kill_loss_spike(x: np.ndarray) -> np.ndarray:
    mean, _ = trailing_mean_std(x, 100, min_count=100)
    with np.errstate(invalid="ignore"):
        over = x >= 2 * mean
    total = np.concatenate([[0], np.cumsum(over)])
    out = np.zeros(x.size, dtype=bool)
    out[4:] = total[5:] - total[:-5] == 5
    return out


def ewm_ratio(r: float) -> Rule:
    def rule(x: np.ndarray) -> np.ndarray:
        out = np.zeros(x.size, dtype=bool)
        level = np.nan
        for t, v in enumerate(x):
            if not np.isfinite(v):
                continue
            if np.isfinite(level) and v > r * level:
                out[t] = True
            else:
                level = v if not np.isfinite(level) else level + 0.2 * (v - level)
        return out

    return rule


RULES: dict[str, Rule] = {
    "B1 KillLossSpike 100/2x/>4": kill_loss_spike,
    "B3 6 sigma/128, two-sided": sigma(128, 64, 6, True),
    "B4 7 sigma/1000": sigma(1000, 64, 7),
    "B5 MAD z(log) > 8/100": mad(100, 20, 8, 0.0),
    "short MAD z > 8/20, floor 0.02": mad(20, 5, 8, 0.02),
    "B7 ewm ratio > 1.25": ewm_ratio(1.25),
}


def nanogpt() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Runs under 6,500 steps with a training loss, steps counted alike (later logs count one lower)."""
    out = {}
    for path in sorted((LABELLED / "nanogpt").glob("*.csv")):
        table = np.genfromtxt(path, delimiter=",", names=True)
        keep = ~np.isnan(table["train_loss"])
        if 100 < keep.sum() <= 6500:
            shift = 1 if path.name[:10] >= "2024-11-19" else 0
            out[path.stem] = (table["step"][keep].astype(np.int64) + shift, table["train_loss"][keep])
    return out


def real_jumps(runs: dict[str, tuple[np.ndarray, np.ndarray]]) -> set[int]:
    """Steps at which at least two runs, and half of those present, lie 4 sd above their prediction, nothing injected."""
    seen: dict[int, list[float]] = {}
    for steps, x in runs.values():
        y = np.log(x)
        m, _ = trailing_median_mad(y, 20, min_count=5)
        s = 1.4826 * trailing_median_mad(y - m, 200, min_count=20)[1]
        for step, z in zip(steps.tolist(), ((y - m) / s).tolist(), strict=True):
            seen.setdefault(step, []).append(z)
    return {s for s, z in seen.items() if len(z) >= 2 and np.nanmedian(z) > 4} | set(LISTED.tolist())


def injected(rng: np.random.Generator, steps: np.ndarray, x: np.ndarray, real: set[int], k: int = 6):  # type: ignore[no-untyped-def]
    free = np.flatnonzero(~np.isin(steps, list(real)) & (np.arange(x.size) >= 20) & (np.arange(x.size) < x.size - 3))
    at = np.sort(rng.choice(free, k, replace=False))
    jump = rng.uniform(0.3, 1.5, k)
    out = x.copy()
    out[at] += jump
    return out, at, jump


def jumps() -> None:
    runs = nanogpt()
    real = real_jumps(runs)
    listed = set(LISTED.tolist())
    rows = sum(x.size for _, x in runs.values())
    print(
        f"\nmodded-nanogpt: {len(runs)} runs, {rows} steps; 6 jumps of 0.3 to 1.5 injected into each at random steps (seed 0)"
    )
    print(
        "recall: injected; real: the listed shared jumps; other: alarms at neither, per 1,000 steps, first with all but the"
    )
    print(
        f"8 listed steps counted, then without the {len(real - listed)} further steps at which most un-injected runs jump"
    )
    print(f"{'rule':>34} {'recall':>7} {'real':>6} {'other':>7} {'unshared':>8}")
    ours: dict[str, Rule] = {
        "trajscope.spikes, one run": lambda x: np.isin(np.arange(x.size), spikes(x, role="loss").rows)
    }
    for name, rule in {**RULES, **ours}.items():
        rng = np.random.default_rng(0)
        hit = total = shared = present = other = unshared = 0
        for steps, x in runs.values():
            y, at, _ = injected(rng, steps, x, real)
            flag = rule(y)
            hit, total = hit + int(flag[at].sum()), total + at.size
            is_listed = np.isin(steps, LISTED)
            shared, present = shared + int(flag[is_listed].sum()), present + int(is_listed.sum())
            rest = flag & ~is_listed
            rest[at] = False
            other += int(rest.sum())
            unshared += int((rest & ~np.isin(steps, list(real))).sum())
        print(
            f"{name:>34} {hit / total:>7.3f} {shared / present:>6.2f} {1e3 * other / rows:>7.3f} {1e3 * unshared / rows:>8.3f}"
        )
    cohorts(runs, real)


def cohorts(runs: dict[str, tuple[np.ndarray, np.ndarray]], real: set[int]) -> None:
    groups = {
        "ValueEmbed, 5 runs": [n for n in runs if "ValueEmbed" in n][:5],
        "ValueEmbed, 3 runs": [n for n in runs if "ValueEmbed" in n][5:8],
        "WindowWarmup, 6 runs": [n for n in runs if "WindowWarmup" in n],
    }
    print(
        "\nSeveral runs, jumps at each run's own steps (the others are the reference), 3 draws; own events of un-injected"
    )
    print("runs are real and shown apart")
    print(f"{'cohort':>34} {'recall':>7} {'other':>7} {'new':>7}")
    for label, names in groups.items():
        base = coincident_spikes({n: runs[n] for n in names}, n_permutations=19)
        already = {(r, int(s)) for s, k, r in zip(base.steps, base.kind, base.run, strict=True) if k == "own"}
        hit = total = other = new = rows = 0
        for draw in range(3):
            rng = np.random.default_rng(draw)
            data, truth = {}, set()
            for n in names:
                y, at, _ = injected(rng, *runs[n], real)
                data[n] = (runs[n][0], y)
                truth |= {(n, int(s)) for s in runs[n][0][at]}
            found = coincident_spikes(data, n_permutations=19)
            got = {(r, int(s)) for s, k, r in zip(found.steps, found.kind, found.run, strict=True) if k == "own"}
            hit, total = hit + len(got & truth), total + len(truth)
            other, new = other + len(got - truth), new + len(got - truth - already)
            rows += sum(y.size for _, y in data.values())
        print(f"{label:>34} {hit / total:>7.3f} {1e3 * other / rows:>7.3f} {1e3 * new / rows:>7.3f}")
    print(
        "\nSeveral runs, the same jump in all of them (its noise, the difficulty of the batch, is shared too), 10 draws"
    )
    print(f"{'cohort':>34} {'recall':>7} {'other':>7} {'unshared':>8}")
    for label, names in groups.items():
        last = min(runs[n][0][-1] for n in names)
        hit = total = other = unshared = steps = 0
        for draw in range(10):
            rng = np.random.default_rng(100 + draw)
            free = np.setdiff1d(np.arange(20, last - 3), list(real))
            at, jump = rng.choice(free, 6, replace=False), rng.uniform(0.3, 1.5, 6)
            data = {}
            for n in names:
                y = runs[n][1].copy()
                y[np.searchsorted(runs[n][0], at)] += jump
                data[n] = (runs[n][0], y)
            found = coincident_spikes(data, n_permutations=39)
            got = set(found.shared_steps.tolist())
            hit, total, steps = hit + len(got & set(at.tolist())), total + at.size, steps + found.n_steps
            rest = got - set(at.tolist()) - set(LISTED.tolist())
            other, unshared = other + len(rest), unshared + len(rest - real)
        print(f"{label:>34} {hit / total:>7.3f} {1e3 * other / steps:>7.3f} {1e3 * unshared / steps:>8.3f}")


def algoperf() -> None:
    import csv

    import trajscope

    with (LABELLED / "algoperf" / "labels.csv").open() as f:
        labels = list(csv.DictReader(f))
    names = ["nonfinite", "collapse", "levelshift", "restart", "control"]
    counts = {n: sum(r["label"] == n for r in labels) for n in names}
    tables: dict[str, dict[str, list[bool]]] = {}

    def note(rule: str, label: str, value: bool) -> None:
        tables.setdefault(rule, {n: [] for n in names})[label].append(value)

    for row in labels:
        run = trajscope.read_run(LABELLED / "algoperf" / f"{row['run']}.measurements.csv")
        loss = run.channels["loss"] if "loss" in run.channels else run.by_role("loss")[0]
        x = np.asarray(loss.values, dtype=float)
        for rule, f in RULES.items():
            note(f"{rule}, loss", row["label"], bool(f(x).any()))
        found = spikes(loss, role="loss")
        reset = deliberate_reset(run)
        note("trajscope.spikes, loss", row["label"], len(found) > 0)
        norm = run.by_role("grad_norm")
        bad = found.nonfinite_steps.size > 0
        if norm:
            of_norm = spikes(norm[0])
            note("trajscope.spikes, grad norm", row["label"], len(of_norm) > 0)
            bad |= of_norm.nonfinite_steps.size > 0
        note("trajscope non-finite", row["label"], bad)
        note("trajscope names a reset", row["label"], reset.verdict == "reset")
    print("\nAlgoPerf: runs with an alarm")
    print(f"{'rule':>40} " + " ".join(f"{n} ({counts[n]})".rjust(15) for n in names))
    for rule, by in tables.items():
        print(f"{rule:>40} " + " ".join(str(sum(by[n])).rjust(15) for n in names))


def nulls(replicates: int) -> None:
    def ar(phi: float) -> Callable[[np.random.Generator, int], np.ndarray]:
        return lambda rng, n: lfilter([1], [1, -phi], rng.normal(size=n + 100))[100:] * np.sqrt(1 - phi**2)

    cases: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
        "iid normal": lambda rng, n: rng.normal(size=n),
        "AR(0.5)": ar(0.5),
        "AR(0.9)": ar(0.9),
        "random walk": lambda rng, n: np.cumsum(rng.normal(size=n)),
        "exponential trend, AR(0.8)": lambda rng, n: 30 * np.exp(-8 * np.arange(n) / n) + ar(0.8)(rng, n),
        "power-law trend, AR(0.8)": lambda rng, n: 30 * (1 + np.arange(n)) ** -0.5 + 0.3 * ar(0.8)(rng, n),
        "Laplace": lambda rng, n: rng.laplace(size=n),
        "t(3)": lambda rng, n: rng.standard_t(3, n),
        "rounded to integers": lambda rng, n: np.round(0.6 * rng.normal(size=n)),
        "sd x 3 half way": lambda rng, n: rng.normal(size=n) * np.where(np.arange(n) > n // 2, 3, 1),
    }
    print(f"\nFalse spikes, {replicates} series: share of series with any, its 95 % upper bound, events per 1,000 rows")
    for name, make in cases.items():
        line = f"{name:>30}"
        for n in (100, 1000):
            rng = np.random.default_rng([n, len(name)])
            counts = np.array([len(spikes(make(rng, n), scale="none")) for _ in range(replicates)])
            k = int(np.count_nonzero(counts))
            bound = beta.ppf(0.95, k + 1, replicates - k) if k < replicates else 1.0
            line += f"   n={n}: {k / replicates:.3f} {bound:.3f} {1e3 * counts.sum() / n / replicates:.3f}"
        print(line, flush=True)


def main() -> None:
    replicates = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    if LABELLED.exists():
        algoperf()
        jumps()
    nulls(replicates)


if __name__ == "__main__":
    main()
