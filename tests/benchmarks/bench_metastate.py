"""Meta-states against their rivals: CPU time and memory, side by side in one run.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_metastate.py [--quick] [--memory]

EM of a state space (20 channels, 3 states) against statsmodels' DynamicFactorMQ from the same start and for the
same number of iterations; PCA with missing values against scikit-learn's PCA without; slow features against
deeptime's TICA; peak memory at a million rows.
"""

# ruff: noqa: E402 - threads are fixed before numpy is loaded
from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from trajscope._core.kalman import Model, kalman_filter, simulate_states
from trajscope._core.kalman_em import Panel, em_step, expectations
from trajscope.metastate import LinearStateSpace, PCAState, SlowFeatures


def cpu(call: Callable[[], Any], repeats: int = 5) -> float:
    """Smallest CPU time of a few calls."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def system(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a = np.diag([0.9, 0.988, 0.988])
    a[1, 2] = 0.05
    model = Model.stationary(a, rng.normal(size=(20, 3)), 0.1 * np.eye(3), np.ones(20))
    x = simulate_states(model, n, rng) @ model.c.T + rng.normal(size=(n, 20))
    return x - x.mean(axis=0)


def gaps(x: np.ndarray, share: float = 0.1, seed: int = 1) -> np.ndarray:
    out = x.copy()
    out[np.random.default_rng(seed).random(x.shape) < share] = np.nan
    return out


def bench_em(n: int, share: float, iterations: int = 3) -> None:
    """The same start, the same number of EM iterations; ours also checked against its exact filter."""
    import pandas as pd
    from statsmodels.tsa.statespace.dynamic_factor_mq import DynamicFactorMQ

    x = system(n)
    if share:
        x = gaps(x, share)
        x -= np.nanmean(x, axis=0)
    rival = DynamicFactorMQ(pd.DataFrame(x), factors=3, factor_orders=1, idiosyncratic_ar1=False, standardize=False)
    start = rival.start_params
    rival.update(start)
    design, transition = np.array(rival["design"])[:, :3], np.array(rival["transition"])[:3, :3]
    state_cov = np.array(rival["state_cov"])[:3, :3]
    noise = np.diag(np.array(rival["obs_cov"])).copy()
    model = Model.stationary(transition, design, state_cov, noise)

    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = rival.fit_em(start_params=start, maxiter=iterations, tolerance=0, full_output=True)
    theirs = (time.process_time() - begin) / iterations
    begin = time.process_time()
    panel = Panel([x])
    ours_model, path = model, []
    for _ in range(iterations):
        ours_model, value = em_step(panel, ours_model)
        path.append(value)
    reached = expectations(panel, ours_model).log_likelihood
    ours = (time.process_time() - begin) / iterations
    begin = time.process_time()
    for _ in range(20):
        em_step(panel, ours_model)
    long_run = (time.process_time() - begin) / 20
    exact = float(kalman_filter(x, ours_model).log_likelihood.sum())
    print(f"EM, T={n:,}, 20 channels, 3 states, {share:.0%} missing, {iterations} iterations from statsmodels' start")
    print(
        f"  statsmodels {theirs:.3f} s/iteration, ours {ours:.4f} with set-up and final likelihood:"
        f" {theirs / ours:.0f} x"
    )
    print(f"  ours in a long fit {long_run:.4f} s/iteration: {theirs / long_run:.0f} x")
    print(
        f"  final log-likelihood {reached:.6f}; exact filter {exact:.6f}; relative difference"
        f" {abs(reached / exact - 1):.1e}"
    )
    theirs_path = np.asarray(result.mle_retvals["llf"]).ravel() if "llf" in result.mle_retvals else np.array([np.nan])
    said = ", ".join(f"{v:.1f}" for v in [*path, reached])
    print(f"  log-likelihood: statsmodels {theirs_path[0]:.1f} ...  {result.llf:.1f}; ours {said}\n")


def bench_static(n: int) -> None:
    from deeptime.decomposition import TICA
    from sklearn.decomposition import PCA

    x = system(n)
    y = gaps(x)
    base = cpu(lambda: PCA(3).fit(x))
    for name, options in (("as PCA does it (scale=None)", {"scale": None}), ("default (scale='mad')", {})):
        own = cpu(lambda o=options: PCAState(3, **o).fit(y))  # type: ignore[misc]
        print(
            f"PCA, T={n:,}, 10 % missing, {name}: {own:.4f} s; scikit-learn complete {base:.4f} s: {own / base:.1f} x"
        )
    base = cpu(lambda: TICA(lagtime=1, dim=3).fit(x).fetch_model().singular_values)
    for name, options in (
        ("eigenproblem only", {"scale": None, "n_boot": 0}),
        ("with intervals", {"scale": None}),
        ("default", {}),
    ):
        own = cpu(lambda o=options: SlowFeatures(3, **o).fit(x))  # type: ignore[misc]
        print(f"slow features, T={n:,}, {name}: {own:.4f} s; deeptime TICA {base:.4f} s: {own / base:.1f} x")
    print()


_MEMORY = {
    "PCAState, 10 % missing": lambda x: PCAState(3).fit(gaps(x)),
    "SlowFeatures": lambda x: SlowFeatures(3).fit(x),
    "LinearStateSpace, 10 % missing": lambda x: LinearStateSpace(3, n_starts=1, max_iter=2).fit(gaps(x)),
    "LinearStateSpace.deviation": lambda x: LinearStateSpace(3, n_starts=1, max_iter=1).fit(x[:5000]).deviation(x),
}


def peak(name: str, n: int) -> None:
    """Run one fit; print the peak of this process."""
    x = system(n)
    start = time.process_time()
    _MEMORY[name](x)
    used = time.process_time() - start
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name}, T={n:,}: peak {mib:,.0f} MiB with the data (input {x.nbytes / 2**20:.0f} MiB), {used:.1f} s CPU")


def small() -> None:
    rng = np.random.default_rng(0)
    x = gaps(rng.normal(size=(2000, 8)) + rng.normal(size=(2000, 1)))
    for name, model in (
        ("PCAState(2)", PCAState(2)),
        ("PCAState('auto')", PCAState()),
        ("PCAState(2, reference='trend')", PCAState(2, reference="trend")),
        ("SlowFeatures(2)", SlowFeatures(2)),
        ("LinearStateSpace(2)", LinearStateSpace(2)),
    ):
        fit = cpu(lambda m=model: m.fit(x[:400]), 3)  # type: ignore[misc]
        far = cpu(lambda m=model: m.deviation(x), 3)  # type: ignore[misc]
        print(f"{name}: fit on 400 rows x 8 {fit * 1e3:.1f} ms, deviation of 2,000 rows {far * 1e3:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--memory", action="store_true", help="only the memory of a million rows")
    parser.add_argument("--only", choices=list(_MEMORY), help=argparse.SUPPRESS)
    options = parser.parse_args()
    n = 10_000 if options.quick else 100_000
    if options.only:
        peak(options.only, 10 * n)
        return
    for name in _MEMORY:  # first: a child's peak begins with that of its parent
        command = [sys.executable, __file__, "--only", name] + (["--quick"] if options.quick else [])
        subprocess.run(command, check=True)
    if options.memory:
        return
    small()
    bench_static(n)
    for share in (0.0, 0.1):
        bench_em(n, share)


if __name__ == "__main__":
    main()
