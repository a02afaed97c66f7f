"""Dynamics: coverage of intervals, bias of estimators, refusals, known answers.

    OMP_NUM_THREADS=1 nice -n 10 python tests/proofs/dynamics.py [--quick]

1,000 replicates (``--quick``: 100), fixed seeds. 95 % intervals; +-0.014 is two binomial standard errors.
"""

# ruff: noqa: E402 - threads are fixed before numpy is loaded
from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "dynamics"))
import dynamics_systems as systems

from trajscope.dynamics import flow_exponents, lyapunov, map_exponents
from trajscope.dynamics._var_stats import METHODS, estimate_windows
from trajscope.dynamics.intrinsic import twonn
from trajscope.simulate import ar


def turn(modulus: float, angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return modulus * np.array([[c, -s], [s, c]])


def replicates(a: np.ndarray, n: int, count: int, noise: float, seed: int) -> np.ndarray:
    """(count * n, k): one stationary VAR(1) after the other, with observation noise in units of the state's sd."""
    rng = np.random.default_rng(seed)
    k = a.shape[0]
    x = np.zeros((n + 300, count, k))
    e = rng.normal(size=x.shape)
    for t in range(1, n + 300):
        x[t] = x[t - 1] @ a.T + e[t]
    x = x[300:]
    x = x + noise * x.std(axis=(0, 1)) * rng.normal(size=x.shape)
    return np.swapaxes(x, 0, 1).reshape(-1, k)


def coverage(count: int) -> None:
    three = np.array([[0.8, 0.3, 0.0], [0.0, 0.5, 0.1], [0.0, -0.2, 0.6]])
    cases = {
        "AR .5": np.array([[0.5]]), "AR .9": np.array([[0.9]]), "AR .98": np.array([[0.98]]),
        "flip -.9": np.array([[-0.9]]), "spiral .9": turn(0.9, 0.7), "3 channels, .8": three,
        "white, 3 channels": np.zeros((3, 3)),
    }  # fmt: skip
    print("Modulus of the dominant eigenvalue: median estimate, coverage of the interval, share without a value")
    head = "rows   noise    truth | plain   corrected cover | instrument cover   none | Henrici cover  abscissa cover"
    print(f"{'system':<20}{head}")
    for name, a in cases.items():
        truth = float(np.abs(np.linalg.eigvals(a)).max())
        for n, noise in ((100, 0.0), (200, 0.0), (500, 0.0), (500, 1.0)):
            x = replicates(a, n, count, noise, 7)
            at = np.arange(x.shape[0])
            got = estimate_windows(x, n, ("plain", "instrument"), linked=at % n > 0, rows=at[n - 1 :: n])
            p, i = got["plain"], got["instrument"]
            # non-normality depends on coordinates: the truth in units of each window's sd is that of the true sd
            scaled = _scaled_truth(a)
            henrici = max(float((scaled**2).sum() - (np.abs(np.linalg.eigvals(a)) ** 2).sum()), 0.0)
            abscissa = float(np.linalg.eigvalsh((scaled + scaled.T) / 2)[-1])
            known = np.isfinite(i.modulus)
            cover = np.mean((i.low <= truth) & (truth <= i.high) & known) / max(known.mean(), 1e-9)
            text = (
                f"{name:<20}{n:>4}{noise:>8.1f}{truth:>9.3f} |{np.median(p.modulus):>6.3f}{np.median(p.corrected):>11.3f}"
                f"{np.mean((p.low <= truth) & (truth <= p.high)):>7.3f} |"
                f"{np.median(i.modulus[known]) if known.any() else np.nan:>8.3f}{cover if known.any() else np.nan:>10.3f}"
                f"{1 - known.mean():>8.2f} |"
            )
            if noise == 0 and a.shape[0] > 1:
                text += (
                    f"{np.mean((p.henrici_low <= henrici) & (henrici <= p.henrici_high)):>10.3f}"
                    f"{np.mean((p.abscissa_low <= abscissa) & (abscissa <= p.abscissa_high)):>15.3f}"
                )
            print(text)
    print()


def _scaled_truth(a: np.ndarray) -> np.ndarray:
    from scipy.linalg import solve_discrete_lyapunov

    sd = np.sqrt(np.diag(solve_discrete_lyapunov(a, np.eye(a.shape[0]))))
    return a * sd[None, :] / sd[:, None]


def sensor_noise() -> None:
    """Finding 7 of the methods notes: who calls noise-driven data critical."""
    a = np.zeros((3, 3))
    a[0, 0] = 0.8
    a[1:, 1:] = turn(0.985, 0.2)
    print("Three states (.800, .985, .985), 20,000 rows: moduli by estimator at observation noise of 0, 0.5 and 1 sd")
    for noise in (0.0, 0.5, 1.0):
        x = replicates(a, 20_000, 1, noise, 3)
        got = estimate_windows(x, x.shape[0], METHODS, rows=np.array([x.shape[0] - 1]))
        cells = [f"{m} ({', '.join(f'{v:.3f}' for v in np.abs(e.eigenvalues[0]))})" for m, e in got.items()]
        print(f"  {noise:.1f}: {'  '.join(cells)}")
    print()


def exponents() -> None:
    rng = np.random.default_rng(0)
    print("Lyapunov spectra along known maps and flows (QR): value, standard error, known")
    rows = [
        ("logistic", map_exponents(systems.logistic_step, systems.logistic_jacobian, rng.uniform(0.1, 0.9, (1000, 1)), 5000), [systems.LOG2]),
        ("Henon", map_exponents(systems.henon_step, systems.henon_jacobian, rng.uniform(-0.1, 0.1, (1000, 2)), 3000), [0.41922, -1.62319]),
        ("Lorenz", flow_exponents(systems.lorenz_field, systems.lorenz_jacobian, rng.normal([0.0, 0.0, 20.0], 1.0, (1000, 3)), 0.01, 1000, n_transient=2000), [0.9056, 0.0, -14.5723]),
        ("Rossler", flow_exponents(systems.rossler_field, systems.rossler_jacobian, rng.uniform(-3, 3, (300, 3)) * [1, 1, 0], 0.02, 5000, n_transient=3000), [0.0714, 0.0, -5.3943]),
    ]  # fmt: skip
    for name, got, known in rows:
        text = "  ".join(f"{v:.5f} +- {e:.5f} ({k})" for v, e, k in zip(got.values, got.error, known, strict=True))
        print(f"  {name:<9} {text}; sum {got.values.sum():.6f}")
    print()


def rosenstein(count: int) -> None:
    print("Largest exponent from data (Rosenstein): estimate over truth, per unit of time; and refusals")
    lorenz = systems.orbit(systems.lorenz_field, [1.0, 1.0, 20.0], 0.05, 20_000, 400, 5)[:, 0]
    rossler = systems.orbit(systems.rossler_field, [1.0, 1.0, 0.0], 0.2, 20_000, 400, 10)[:, 0]
    for name, x, truth, options in (
        ("logistic", systems.logistic(20_000), systems.LOG2, {}),
        ("Henon", systems.henon(20_000), 0.41922, {}),
        ("Lorenz x", lorenz, 0.9056, {"dimension": 5, "delay": 2, "dt": 0.05}),
        ("Rossler x", rossler, 0.0714, {"dimension": 5, "delay": 5, "dt": 0.2}),
    ):
        cells = []
        for n in (500, 1000, 2000, 5000):
            got = [lyapunov(x[i : i + n], **options) for i in range(0, 20_000 - n + 1, max(n, 2000))]
            told = np.array([g.per_time if "dt" in options else g.exponent for g in got if g.status == "ok"]) / truth
            spread = f"{np.median(told):.2f} [{told.min():.2f}, {told.max():.2f}]" if told.size else "-"
            cells.append(f"n={n}: {spread} told {told.size}/{len(got)}")
        print(f"  {name:<10} {'   '.join(cells)}")
    few = max(20, count // 5)
    for name, make in (
        ("white", lambda s: np.random.default_rng(s).normal(size=1000)),
        ("AR .5", lambda s: ar(1000, 0.5, rng=s)[:, 0]),
        ("AR .9", lambda s: ar(1000, 0.9, rng=s)[:, 0]),
        ("AR .98", lambda s: ar(1000, 0.98, rng=s)[:, 0]),
        ("random walk", lambda s: np.cumsum(np.random.default_rng(s).normal(size=1000))),
        ("sine + noise", lambda s: np.sin(0.1 * np.arange(1000)) + 0.1 * np.random.default_rng(s).normal(size=1000)),
        ("trend + noise", lambda s: np.exp(-np.arange(1000) / 300) + 0.02 * np.random.default_rng(s).normal(size=1000)),
    ):
        wrong = sum(lyapunov(make(s), dimension=3).status == "ok" for s in range(few))
        print(f"  {name:<14} an exponent is claimed in {wrong} of {few}")
    print()


def spheres(count: int) -> None:
    print("TwoNN on spheres: mean estimate, coverage of the 95 % interval")
    for d in (1, 2, 3, 5, 10):
        for n in (200, 1000):
            got = [twonn(systems.sphere(n, d, s)) for s in range(count)]
            cover = np.mean([g.low <= d <= g.high for g in got])
            print(f"  d={d:<3} n={n:<5} {np.mean([g.dimension for g in got]):.3f}  {cover:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 replicates")
    count = 100 if parser.parse_args().quick else 1000
    coverage(count)
    sensor_noise()
    exponents()
    rosenstein(count)
    spheres(count)


if __name__ == "__main__":
    main()
