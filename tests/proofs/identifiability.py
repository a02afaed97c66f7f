"""Identifiability: how often the refit part passes where there is nothing, how often where there is, and profile coverage.

Run: nice -n 10 python tests/proofs/identifiability.py [null|power|profiles ...] [--replicates 1000]
Fixed seeds. `null` and `power` take about a third of a second a replicate on one core, `profiles` a second.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.stats import beta

from trajscope._core.kalman import simulate_states
from trajscope.inference._ident_model import model_of
from trajscope.inference._ident_profile import profiles
from trajscope.inference._ident_refit import Repeat, repeatability
from trajscope.inference._ident_rows import prepare
from trajscope.metastate import LinearStateSpace, PCAState, SlowFeatures
from trajscope.simulate import ar, state_space


def quiet(*_: object) -> None:
    """No progress."""


def bounds(hits: int, n: int) -> str:
    low, high = (
        beta.ppf(0.025, hits, n - hits + 1) if hits else 0.0,
        beta.ppf(0.975, hits + 1, n - hits) if hits < n else 1.0,
    )
    return f"{100 * hits / n:5.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}, n = {n})"


def passes(estimator, runs, seed: int) -> bool:
    rows = prepare(estimator, runs, "run", 4)
    found = repeatability(estimator, rows, n_splits=5, n_surrogates=39, rng=np.random.default_rng(seed), report=quiet)
    return isinstance(found, Repeat) and found.passed


def null(replicates: int) -> None:
    print("Part 3 on independent AR(0.98) channels, 4 runs of 500 rows (asked: at most 5 % pass)")
    for p in (8, 12):
        for estimator in (PCAState(2), SlowFeatures(2)):
            hits = 0
            for k in range(replicates):
                rng = np.random.default_rng([k, p])
                hits += passes(estimator, [ar(500, 0.98, p, rng=rng) for _ in range(4)], k)
            print(f"  {p:2d} channels, {type(estimator).__name__:12}: {bounds(hits, replicates)}", flush=True)


def system(rng: np.random.Generator, n_runs: int, n_steps: int, rates=(0.97, 0.85), p: int = 10):
    """Runs of one two-state system with signal-to-noise 1 in every channel on average."""
    model = state_space(50, rates, p, rng=rng)[2]
    noise = np.sqrt(np.einsum("pi,ij,pj->p", model.c, model.p0, model.c).mean())
    return [
        simulate_states(model, n_steps, rng) @ model.c.T + noise * rng.normal(size=(n_steps, p)) for _ in range(n_runs)
    ]


def power(replicates: int) -> None:
    print("Part 3 on two-state systems, signal-to-noise 1, 8 runs of 1,000 rows (asked: at least 90 % pass)")
    for estimator in (PCAState(2), SlowFeatures(2)):
        hits = sum(passes(estimator, system(np.random.default_rng([k, 1]), 8, 1000), k) for k in range(replicates))
        print(f"  {type(estimator).__name__:12}: {bounds(hits, replicates)}", flush=True)


def coverage(replicates: int) -> None:
    print("95 % profile intervals of the eigenvalues of a two-state system (asked: 93 to 97 %)")
    truth, hits, n = (0.97, 0.85), [0, 0], 0
    for k in range(replicates):
        runs = system(np.random.default_rng([k, 2]), 4, 500, truth)
        rows = prepare(LinearStateSpace(2, n_starts=1), runs, "run", 4)
        found = profiles(model_of(rows.fitted, rows.xs), rows.xs, only=2, report=quiet)
        if isinstance(found, str) or len(found) < 2:
            continue
        n += 1
        for i, (profile, value) in enumerate(zip(found, truth, strict=True)):
            hits[i] += profile.low <= value <= profile.high
    for value, h in zip(truth, hits, strict=True):
        print(f"  eigenvalue {value}: {bounds(h, n)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=["null", "power", "profiles"])
    parser.add_argument("--replicates", type=int, default=1000)
    args = parser.parse_args()
    for name in args.what:
        {"null": null, "power": power, "profiles": coverage}[name](args.replicates)
