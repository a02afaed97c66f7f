"""The instability manifold: its promise under the null, and the held-out split of the recorded runs. Fixed seeds.

    OMP_NUM_THREADS=1 nice -n 10 python tests/proofs/manifold.py [--quick] [NAME ...]

null       share of new healthy runs that cross, and the same given one calibration, by reference and number of runs
alike      how often two unrelated collapse subspaces are called more alike than each null, at a nominal 5 %
speed      fit on 40 runs of 1,000 rows and 8 channels, score of one run
recorded   the study on digits, cart and pole and the transformer: held-out crossings, rivals, a domain left out, nulls
"""

# ruff: noqa: E402 - threads are fixed before numpy is loaded
from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import sys
import time

import numpy as np
import pandas as pd
from scipy.signal import lfilter

import trajscope as ts
from trajscope._core.resample import proportion_interval
from trajscope.detect.manifold import InstabilityManifold, subspace_similarity
from trajscope.inference.studies.manifold import MANIFOLD, OWN, study

DOMAINS = ("digits", "cartpole", "transformer")
#: Rates of the recorded table: the first is the claim, the second what 10 controls certify.
RATES = (0.05, 0.1)


def share(hits: int, n: int) -> str:
    low, high = proportion_interval(hits, n)
    return f"{hits / n:6.3f} [{low:.3f}, {high:.3f}] of {n}"


def healthy(rng: np.random.Generator, n: int, rho: float, length: int = 150, p: int = 5) -> list[np.ndarray]:
    """Runs with a common trend, correlated AR(rho) channels, and in every third run a level of its own."""
    mix = rng.normal(size=(p, p)) / np.sqrt(p) + np.eye(p)
    trend = np.exp(-np.arange(length) / 40)[:, None] * rng.normal(size=p) * 5
    runs = []
    for i in range(n):
        noise = rng.standard_t(6, size=(length + 50, p))
        ar = lfilter([np.sqrt(1 - rho**2)], [1.0, -rho], noise, axis=0)[50:]
        runs.append(trend + ar @ mix + (i % 3 == 0) * 0.3 * rng.normal(size=p))
    order = rng.permutation(n)
    return [runs[i] for i in order]


def null(n: int) -> None:
    print("new healthy runs that cross (5 channels, 150 rows, t(6) noise, two components): share [95 %] of runs")
    for kind, count, alpha, rho in (
        ("siblings", 9, 0.1, 0.5), ("siblings", 19, 0.05, 0.5), ("siblings", 19, 0.05, 0.95),
        ("siblings", 40, 0.1, 0.9), ("trend", 19, 0.05, 0.5), ("level", 19, 0.05, 0.9),
    ):  # fmt: skip
        left_out = apart = 0
        for seed in range(n):
            rng = np.random.default_rng([seed, count])
            runs = healthy(rng, 2 * count + 1, rho)
            model = InstabilityManifold(2, alpha=alpha, reference=kind).fit(runs[:count])  # type: ignore[arg-type]
            left_out += model.first_crossing(runs[-1]).status == "crossed"
            apart += model.calibrate(runs[count:-1]).first_crossing(runs[-1]).status == "crossed"
        print(
            f"  {kind}, {count} runs, alpha {alpha}, AR({rho}): left out {share(left_out, n)};"
            f" calibrated apart {share(apart, n)}",
            flush=True,
        )


def alike(n: int) -> None:
    print("unrelated domains (independent mixing, excursions along independent random planes, 8 channels), nominal 5 %")
    random = windows = both = 0
    for seed in range(n):
        rng = np.random.default_rng([seed, 8])
        models = []
        for _ in range(2):
            runs = healthy(rng, 12, 0.5, p=8)
            plane = np.linalg.qr(rng.normal(size=(8, 2)))[0]
            bad = runs[10:]
            for run in bad:
                run[80:] += 30 * rng.normal(size=(run.shape[0] - 80, 2)) @ plane.T * run[:80].std(axis=0)
            models.append(InstabilityManifold(2, alpha=0.1, rng=seed).fit(runs[:10], unstable=bad))
        found = subspace_similarity(*models, n_draws=199, rng=seed)
        random += found.random_p <= 0.05
        windows += found.healthy_p <= 0.05
        both += max(found.random_p, found.healthy_p) <= 0.05
    print(
        f"  random subspaces {share(random, n)}; healthy windows {share(windows, n)}; both {share(both, n)}", flush=True
    )


def speed(_: int) -> None:
    rng = np.random.default_rng(0)
    runs = [0.05 * np.cumsum(rng.normal(size=(1000, 8)), axis=0) + rng.normal(size=(1000, 8)) for _ in range(40)]
    bad = [r.copy() for r in runs[:10]]
    for run in bad:
        run[600:] += 5
    start = time.process_time()
    model = InstabilityManifold().fit(runs, unstable=bad)
    fitted = time.process_time() - start
    start = time.process_time()
    for run in runs:
        model.signed_distance(run)
    scored = (time.process_time() - start) / len(runs)
    print(f"fit on 40 runs x 1,000 rows x 8 channels: {fitted:.2f} s; score of 1,000 rows: {1e3 * scored:.2f} ms (CPU)")


def recorded(_: int) -> None:
    pd.set_option("display.width", 250, "display.max_columns", 40, "display.max_rows", 200)
    sets = {name: ts.load_dataset(name) for name in DOMAINS}
    labels = pd.concat([d.labels for d in sets.values()], ignore_index=True)
    where = dict(zip(labels["run"], labels["domain"], strict=True))
    cache: dict[str, ts.Run] = {}

    def runs(run: str, /) -> ts.Run:
        if run not in cache:
            cache[run] = sets[where[run]].run(run)
        return cache[run]

    harmed = dict(zip(labels["run"], labels["harmed"].fillna(False).astype(bool), strict=True))
    for alpha in RATES:
        found = study(runs, labels, alpha=alpha, rng=0)
        print(f"\nheld-out split, alpha {alpha}; {len(found.skipped)} runs not used")
        print(found.to_frame().round(3).to_string(index=False))
        for name in ("by_axis", "similarity", "channels_on_calibration"):
            print(f"\n{name}\n{found.tables[name].round(3).to_string(index=False)}")
        crossed = found.tables["crossings"]
        own = crossed[(crossed["method"] == MANIFOLD) & (crossed["trained"] == OWN)]
        print("\nruns whose end the twin calls harmed (collapse rule or not), first crossing at or after the injection")
        for domain, part in own[own["run"].map(harmed)].groupby("domain", sort=False):
            hits = int((part["crossing"].notna() & ~part["false_alarm"]).sum())
            print(f"  {domain}: {share(hits, len(part))}")
        missed = own[(own["kind"] == "collapsed") & ~own["found"]]
        print("collapses not found:", ", ".join(missed["run"]) or "none")
        print(found.claim, flush=True)


def main() -> None:
    arguments = [a for a in sys.argv[1:] if not a.startswith("-")]
    n = 100 if "--quick" in sys.argv else 2000
    parts = {"null": null, "alike": alike, "speed": speed, "recorded": recorded}
    for name in arguments or list(parts):
        start = time.process_time()
        parts[name](n if name == "null" else n // 2)
        print(f"({name}: {time.process_time() - start:.0f} s CPU)\n", flush=True)


if __name__ == "__main__":
    main()
