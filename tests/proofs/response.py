"""Responses of a known shape: do the intervals over seeds cover, and is an order claimed that is not there?

Run: nice -n 10 python tests/proofs/response.py [replicates]   (1,000 by default; fixed seeds; about 20 minutes)

Each seed has a response of its own, drawn about the cohort's: a rise over 10 rows, a fall with a half-life, a shift that
stays. The estimand of a statistic is its mean over seeds (of the logarithm for the half-life). Noise of 1 on 600 rows,
injection at row 300, against the seed's own control (sqrt(2) of noise) or a forecast.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from scipy.stats import beta

from trajscope.history.run import Run, RunData, named_channel
from trajscope.inference._response_groups import ordering_test
from trajscope.inference.response import response
from trajscope.simulate import ar

N, AT, RISE = 600, 300, 10
PEAK, HALF, SHIFT = 12.0, 25.0, 2.0
SPREAD = 0.2
STATISTICS = ("peak", "time_to_peak", "half_life", "shift", "area")


def shape(peak: float, half: float, shift: float) -> np.ndarray:
    t = np.arange(N - AT, dtype=float)
    rising = np.minimum(t / RISE, 1)
    return rising * (shift + (peak - shift) * 0.5 ** (np.maximum(t - RISE, 0) / half))


def truth() -> dict[str, float]:
    """Means over seeds; the area by many draws, since it is not linear in the half-life."""
    rng = np.random.default_rng(0)
    areas = []
    for _ in range(4000):
        own = shape(*draw(rng))
        areas.append(np.sum((own[1:] + own[:-1]) / 2))
    return {"peak": PEAK, "time_to_peak": RISE, "half_life": HALF, "shift": SHIFT, "area": float(np.mean(areas))}


def draw(rng: np.random.Generator) -> tuple[float, float, float]:
    """Peak, half-life and shift of a seed."""
    a, b, c = SPREAD * rng.normal(size=3)
    return PEAK * (1 + a), HALF * math.exp(b), SHIFT * (1 + c)


def run(name: str, values: np.ndarray) -> Run:
    return Run(name, RunData({"signal": named_channel("signal", np.arange(float(N)), values)}, config={}))


def coverage(n_seeds: int, phi: float, control: bool, replicates: int) -> None:
    hits, counts, known = dict.fromkeys(STATISTICS, 0), dict.fromkeys(STATISTICS, 0), truth()
    for k in range(replicates):
        rng = np.random.default_rng([k, n_seeds, int(100 * phi), control])
        noise = ar(N, phi, 2 * n_seeds, rng=rng)
        runs, twins = [], []
        for s in range(n_seeds):
            y = noise[:, s].copy()
            y[AT:] += shape(*draw(rng))
            runs.append(run(f"r{s}", y))
            twins.append(run(f"c{s}", noise[:, n_seeds + s]))
        found = response(
            runs, AT, twins if control else None, channels=["signal"], seeds=list(range(n_seeds)), rng=k, n_draws=500
        )
        for e in found.estimates:
            if e.channel == "signal" and not math.isnan(e.low):
                hits[e.statistic] += e.low <= known[e.statistic] <= e.high
                counts[e.statistic] += 1
    cells = "  ".join(f"{100 * hits[s] / max(counts[s], 1):5.1f}" for s in STATISTICS)
    print(f"{n_seeds:5d}  AR({phi:3.1f})  {'control ' if control else 'forecast'}  {cells}", flush=True)


def order(replicates: int) -> None:
    """Exchangeable times: how often the order is called more frequent than chance at 5 %."""
    for n in (6, 12, 40):
        rng = np.random.default_rng(n)
        hits = sum(
            ordering_test([("r", *rng.permutation(60)[:3].astype(float)) for _ in range(n)], 3).p_value <= 0.05
            for _ in range(replicates)
        )
        bound = beta.ppf(0.95, hits + 1, replicates - hits)
        print(f"order, {n} runs, ties within 3 steps: {hits / replicates:.3f} (<= {bound:.3f})", flush=True)


if __name__ == "__main__":
    replicates = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    order(replicates)
    print("Coverage of 95 % intervals, %")
    print("seeds  noise    reference  " + "  ".join(STATISTICS))
    for n_seeds in (5, 10, 20, 40):
        coverage(n_seeds, 0.0, True, replicates)
    coverage(10, 0.5, True, replicates)
    coverage(10, 0.0, False, replicates)
