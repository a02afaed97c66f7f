"""Dissociation on simulated cohorts with a known association, the traps, and what it costs.

Run: nice -n 10 python tests/proofs/dissociation.py [cohorts|traps|noise|speed ...] [--replicates 1000]
Fixed seeds; prints tables. `cohorts` about 10 minutes, `traps` about 5, the others seconds to a minute, on one core.

A cohort is bivariate normal with a given Spearman correlation in each stratum, rho = 6 / pi asin(r / 2).
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import pandas as pd

from trajscope.inference.buffering import buffering
from trajscope.inference.dissociation import ALL, POOLED, dissociation

DRAWS = 2000


def cohort(rho: float, n: int, strata: int, rng: np.random.Generator, shift: float = 0.0) -> pd.DataFrame:
    """Runs with Spearman's `rho` within each stratum; strata are `shift` sd apart in both."""
    r = 2 * math.sin(math.pi * rho / 6)
    x = rng.normal(size=(strata, n))
    y = r * x + math.sqrt(1 - r * r) * rng.normal(size=(strata, n))
    move = shift * np.arange(strata)[:, None]
    names = np.repeat([f"s{k}" for k in range(strata)], n)
    return pd.DataFrame({"final": (x + move).ravel(), "calm": (y + move).ravel(), "stratum": names})


def share(hits: int, n: int) -> str:
    """A share with its standard error."""
    p = hits / n
    return f"{100 * p:5.1f} % (se {100 * math.sqrt(max(p * (1 - p), 1e-9) / n):.1f})"


def cohorts(replicates: int) -> None:
    """Coverage of the 95 % interval and the share of each verdict."""
    print(f"\nCohorts: {replicates} each, {DRAWS} draws")
    print("asked: coverage 93 to 97 %; dissociated <= 5 % at rho = 0.4, >= 75 % at rho = 0 with 100 runs a stratum")
    print("rho  strata x runs  coverage            associated          dissociated         inconclusive")
    for number, (rho, strata, n) in enumerate(
        [
            (0.0, 1, 100),
            (0.4, 1, 100),
            (0.0, 3, 100),
            (0.4, 3, 100),
            (0.2, 1, 100),
            (0.7, 1, 100),
            (0.0, 1, 40),
            (0.4, 1, 40),
        ]
    ):
        covered = 0
        verdicts: dict[str, int] = {}
        for k in range(replicates):
            table = cohort(rho, n, strata, np.random.default_rng([number, k]))
            row = dissociation(table, stability=["calm"], n_boot=DRAWS, rng=k).to_frame().set_index("stratum").loc[ALL]
            covered += bool(row["low"] <= rho <= row["high"])
            verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
        cells = [share(verdicts.get(v, 0), replicates) for v in ("associated", "dissociated", "inconclusive")]
        print(f"{rho:3.1f}  {strata} x {n:<9d}  {share(covered, replicates)}  " + "  ".join(cells), flush=True)


def traps(replicates: int) -> None:
    """How often each trap is named where it is there, and where it is not."""
    print(f"\nTraps: {replicates} cohorts each")
    named = false_name = pooled = 0
    for k in range(replicates):
        rng = np.random.default_rng([100, k])
        for shift in (3.0, 0.0):
            table = cohort(0.0 if shift else 0.6, 60, 4, rng, shift)
            found = dissociation(table, stability=["calm"], n_boot=500, rng=k).to_frame().set_index("stratum")
            hit = "Simpson" in found.loc[ALL, "reason"]
            named += hit and shift > 0
            false_name += hit and shift == 0
            pooled += shift > 0 and found.loc[POOLED, "low"] > 0
    print(f"Simpson, 4 strata 3 sd apart, nothing within: pooled interval above 0 in {share(pooled, replicates)}, ")
    print(
        f"  named in {share(named, replicates)}; rho = 0.6 in strata that are alike: named in {share(false_name, replicates)}"
    )
    wrong = caught = 0
    for k in range(replicates):
        rng = np.random.default_rng([101, k])
        truth = cohort(0.4, 200, 1, rng)
        truth["calm"] += 3 * rng.normal(size=200)  # reliability 0.1: hides rho = 0.4
        blind = dissociation(truth, stability=["calm"], n_boot=500, rng=k).to_frame().iloc[-1]
        told = dissociation(truth, stability=["calm"], n_boot=500, rng=k, reliability={"calm": 0.1, "final": 1.0})
        row = told.to_frame().iloc[-1]
        wrong += blind["verdict"] == "dissociated"
        caught += blind["verdict"] == "dissociated" and "low reliability of calm" in row["reason"]
        if row["verdict"] == "dissociated":
            raise AssertionError("an unreliable measure was called dissociated")
    print(f"Low reliability (0.1) over rho = 0.4: {wrong} of {replicates} would be called dissociated, ")
    print(f"  {caught} of them become inconclusive by that name")


def noise(replicates: int) -> None:
    """Buffering where noise does nothing, and where it protects."""
    print(f"\nBuffering: {replicates} cohorts each, 4 levels x 20 runs")
    for number, (name, odds) in enumerate((("no effect of noise", 0.0), ("log odds -0.8 a level", -0.8))):
        words: dict[str, int] = {}
        covered = 0
        for k in range(replicates):
            rng = np.random.default_rng([200 + number, k])
            x = np.repeat(np.arange(4.0), 20)
            p = 1 / (1 + np.exp(-(odds * (x - 1.5))))
            found = buffering(pd.DataFrame({"level": x, "collapsed": rng.random(80) < p}), n_null=999, rng=k)
            words[found.verdict] = words.get(found.verdict, 0) + 1
            covered += found.low <= odds <= found.high
        print(
            f"{name:24s} slope covered {share(covered, replicates)}; "
            + ", ".join(f"{v}: {n}" for v, n in sorted(words.items()))
        )


def speed(_: int) -> None:
    """10,000 draws on 2,000 runs: asked under 10 s."""
    table = cohort(0.3, 400, 5, np.random.default_rng(0))
    began = time.process_time()
    dissociation(table, stability=["calm"], n_boot=10_000)
    whole = time.process_time() - began
    table["stratum"] = "one"
    began = time.process_time()
    dissociation(table, stability=["calm"], n_boot=10_000)
    print(
        f"\n10,000 draws on 2,000 runs: 5 strata and pooled {whole:.1f} s, one stratum {time.process_time() - began:.1f} s (CPU)"
    )


PARTS = {"cohorts": cohorts, "traps": traps, "noise": noise, "speed": speed}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--replicates", type=int, default=1000)
    arguments = parser.parse_args()
    for part in arguments.parts or list(PARTS):
        PARTS[part](arguments.replicates)
