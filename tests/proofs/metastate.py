"""Calibration and recovery of meta-states at size; prints one table. Fixed seeds.

    OMP_NUM_THREADS=1 nice -n 10 python tests/proofs/metastate.py [--quick] [NAME ...]

parallel   spurious dimensions on independent red noise (circular, phase, shuffled rows), and power on two states
recovery   subspaces of split halves, eigenvalues, refits: METHODS-style two-state systems, white noise, equal rates
gap        how often equally slow features are reported as axes, and unequal ones
bands      coverage of 95 % bands with known and with estimated parameters
reference  share of healthy rows above the bound, and of departed ones, by reference
"""

# ruff: noqa: E402 - threads are fixed before numpy is loaded
from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.stats import beta

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "metastate"))
from metastate_systems import ar, orthonormal, punch, random_model, simulate, two_state

from trajscope._core.kalman import kalman_filter, kalman_smoother
from trajscope._core.linalg import mean_cos2
from trajscope.metastate import LinearStateSpace, PCAState, SlowFeatures, baseline_rows, parallel_analysis


def share(hits: int, n: int) -> str:
    """A proportion with its exact 95 % interval."""
    low = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, n - hits + 1))
    high = 1.0 if hits == n else float(beta.ppf(0.975, hits + 1, n - hits))
    return f"{hits / n:6.3f} [{low:.3f}, {high:.3f}] of {n}"


def parallel(n: int) -> None:
    print("parallel analysis, 8 independent AR(rho) channels: share of data sets with a spurious dimension")

    def shuffled(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.permuted(x, axis=0)

    for length, rho, gappy, kind in (
        (500, 0.9, 0.0, "circular"),
        (500, 0.9, 0.2, "circular"),
        (500, 0.9, 0.0, "phase"),
        (500, 0.0, 0.0, "circular"),
        (500, 0.97, 0.0, "circular"),
        (200, 0.9, 0.0, "circular"),
        (500, 0.9, 0.0, "shuffled rows"),
    ):
        reps = n if kind != "shuffled rows" else max(20, n // 10)
        hits = 0
        for seed in range(reps):
            rng = np.random.default_rng([seed, length])
            x = punch(rng, ar(rng, length, rho, 8), gappy)
            make = shuffled if kind == "shuffled rows" else kind
            hits += parallel_analysis([x], n_surrogates=99, surrogate=make, rng=seed).n_components > 0
        print(f"  T={length} rho={rho} gaps={gappy:.0%} {kind}: {share(hits, reps)}", flush=True)
    print("two states (.97, .85) in 10 channels, signal to noise 1: dimension found")
    for length in (300, 1000, 3000):
        found = [
            parallel_analysis([two_state(np.random.default_rng(s), length)[0]], n_surrogates=99, rng=s).n_components
            for s in range(n // 5)
        ]
        counts = np.bincount(found, minlength=4).tolist()
        print(f"  T={length}: mean {np.mean(found):.2f}, counts {counts}", flush=True)


def recovery(n: int) -> None:
    print("mean squared cosine between subspaces fitted on the two halves (k = 2): median [5 %, 95 %]")
    designs: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
        "two states (.97, .85)": lambda rng, t: two_state(rng, t)[0],
        "white noise": lambda rng, t: rng.normal(size=(t, 10)),
        "10 independent AR(.97)": lambda rng, t: ar(rng, t, 0.97, 10),
    }
    for name, make in designs.items():
        for length in (300, 1000, 5000):
            pca, slow = [], []
            for seed in range(n // 5):
                x = make(np.random.default_rng([seed, length]), length)
                half = length // 2
                a, b = (PCAState(2, scale=None).fit(part).loadings_ for part in (x[:half], x[half:]))
                pca.append(mean_cos2(a, b))
                a, b = (SlowFeatures(2, scale=None, n_boot=0).fit(part).loadings_ for part in (x[:half], x[half:]))
                slow.append(mean_cos2(a, b))
            text = [f"{np.median(v):.3f} [{np.quantile(v, 0.05):.2f}, {np.quantile(v, 0.95):.2f}]" for v in (pca, slow)]
            print(f"  {name}, T={length}: PCA {text[0]}, slow features {text[1]}", flush=True)
    print("state space on two states (.97, .85), 10 channels, 20 % missing: |eigenvalues|, mean (sd)")
    for length in (300, 1000, 3000):
        eig, slope = [], []
        for seed in range(max(20, n // 20)):
            rng = np.random.default_rng([seed, length])
            x = punch(rng, two_state(rng, length)[0], 0.2)
            model = LinearStateSpace(2, scale="std").fit(x)
            eig.append(np.abs(model.eigenvalues_))
            slope.append(np.diff(model.log_likelihood_path_).min())
        mean, sd = np.mean(eig, axis=0), np.std(eig, axis=0)
        print(
            f"  T={length}: {mean[0]:.3f} ({sd[0]:.3f}), {mean[1]:.3f} ({sd[1]:.3f}); smallest EM"
            f" gain {min(slope):.1e}",
            flush=True,
        )
    print("five refits from other starts (T=3000, two states): range of log-likelihood, canonical correlations")
    for k in (2, 3):
        rng = np.random.default_rng(0)
        x = two_state(rng, 3000)[0]
        fits = [LinearStateSpace(k, n_starts=3, rng=r, tol=1e-9, max_iter=500).fit(x) for r in range(5)]
        values = [m.log_likelihood(x) for m in fits]
        halves = [LinearStateSpace(k).fit(x[:1500]), LinearStateSpace(k).fit(x[1500:])]
        pairs = {"starts": (fits[0], fits[-1]), "halves": tuple(halves)}
        said = []
        for what, (a, b) in pairs.items():
            u, v = (np.linalg.qr(m.transform(x, causal=True) - 0)[0] for m in (a, b))
            said.append(f"{what} {np.round(np.linalg.svd(u.T @ v, compute_uv=False), 2).tolist()}")
        print(f"  k={k}: range {np.ptp(values):.3f}; {'; '.join(said)}", flush=True)


def gap(n: int) -> None:
    print("slow features, share of data sets in which two features are reported as axes of their own")
    for length in (1000, 4000):
        for rates in ((0.97, 0.97), (0.85, 0.85), (0.97, 0.95), (0.97, 0.85)):
            hits = 0
            for seed in range(n // 2):
                x = two_state(np.random.default_rng([seed, length]), length, rates)[0]
                hits += SlowFeatures(2, scale=None).fit(x).groups_ == [(0,), (1,)]
            print(f"  T={length} rates {rates}: {share(hits, n // 2)}", flush=True)


def bands(n: int) -> None:
    print("coverage of 95 % bands, mean over systems (lowest system)")
    known: dict[str, list[float]] = {"smoother": [], "filter": []}
    for seed in range(n):
        rng = np.random.default_rng(seed)
        truth = random_model(rng, int(rng.integers(1, 4)), int(rng.integers(3, 9)))
        x, z = simulate(rng, truth, 300)
        x = punch(rng, x, 0.2)
        for name, read in (("smoother", kalman_smoother), ("filter", kalman_filter)):
            out = read(x, truth)
            half = 1.959964 * np.sqrt(np.diagonal(out.covariance, axis1=1, axis2=2))
            known[name].append(float((np.abs(out.mean - z) < half).mean()))
    for name, values in known.items():
        print(
            f"  states, parameters known, {name}, T=300, 20 % missing: {np.mean(values):.4f}"
            f" ({min(values):.2f}) over {n}",
            flush=True,
        )
    for name, length, reps in (
        ("two states (.97, .85)", 300, n // 25),
        ("two states (.97, .85)", 1000, n // 25),
        ("random systems", 500, n // 25),
    ):
        got: dict[str, list[float]] = {}
        for seed in range(reps):
            rng = np.random.default_rng([seed, length])
            if name == "random systems":
                truth = random_model(rng, 2, 6)
                x, z = simulate(rng, truth, length)
                signal = z @ truth.c.T
            else:
                w = orthonormal(rng, 10, 2).T * np.sqrt(5)
                signal = np.hstack([ar(rng, length, r) for r in (0.97, 0.85)]) @ w
                x = signal + rng.normal(size=signal.shape)
            x = punch(rng, x, 0.2)
            model = LinearStateSpace(2, scale=None).fit(x)
            for what, options in (("taken as known", {}), ("with 20 refits", {"n_boot": 20})):
                table = model.bands(x, of="channels", **options)
                low, high = (table.xs(s, axis=1, level=1).to_numpy() for s in ("low", "high"))
                inside = (signal - model.mean_ > low) & (signal - model.mean_ < high)
                got.setdefault(what, []).append(float(inside.mean()))
        for what, values in got.items():
            print(
                f"  channels, parameters estimated, {what}, {name}, T={length}:"
                f" {np.mean(values):.4f} ({min(values):.2f}) over {reps}",
                flush=True,
            )


def reference(n: int) -> None:
    print("reference 'trend' on decaying trends, 8 channels with a common factor, own baseline 5-25 % of 2,000 rows:")
    print("  rows above the 95 % bound of D: healthy rows; rows after a shift of all channels by 8 sd")
    for rho in (0.0, 0.5, 0.9, 0.98):
        healthy, shifted = [], []
        for seed in range(n // 10):
            rng = np.random.default_rng([seed, int(100 * rho)])
            t = np.arange(2000)
            y = (
                50 * np.exp(-t / 500)[:, None] * rng.uniform(0.5, 1.5, 8)
                + ar(rng, 2000, rho, 8)
                + ar(rng, 2000, rho, 1)
            )
            base = baseline_rows(2000)
            model = PCAState(1, reference="trend").fit(y[base])
            bound = model.bounds_["D"]
            healthy.append((model.deviation(y)["D"].iloc[base.stop :] > bound).mean())
            y[1000:] += 8
            shifted.append((model.deviation(y)["D"].iloc[1000:] > bound).mean())
        print(
            f"  rho={rho}: healthy {np.mean(healthy):.3f} (worst run {max(healthy):.2f}); shifted"
            f" {np.mean(shifted):.2f}",
            flush=True,
        )


def main() -> None:
    chosen = [a for a in sys.argv[1:] if not a.startswith("-")]
    n = 100 if "--quick" in sys.argv else 1000
    for part in (parallel, recovery, gap, bands, reference):
        if not chosen or part.__name__ in chosen:
            part(n)


if __name__ == "__main__":
    main()
