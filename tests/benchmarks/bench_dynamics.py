"""Dynamics: CPU time of everything here on one long run, and against rivals where they are installed.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_dynamics.py

Limits that were set: rolling VAR(1) eigenvalues of 100,000 rows of 3 states under 3 s; everything on a run of 20,000
steps and 12 channels under 10 s.
"""

# ruff: noqa: E402 - threads are fixed before numpy is loaded
from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import importlib.util
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from trajscope.dynamics import (
    delay_embedding,
    dmd,
    finite_time_lyapunov,
    intrinsic_dimension,
    lyapunov,
    recurrence,
    rolling_var,
    x_grad,
    x_inst,
)
from trajscope.simulate import ar


def cpu(call: Callable[[], Any], repeats: int = 1) -> float:
    """Smallest CPU time of a few calls."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def states(n: int, k: int) -> np.ndarray:
    """AR(1) channels that share a common part."""
    x = ar(n, 0.9, k + 1, rng=0)
    return x[:, :k] + x[:, k:]


def main() -> None:
    x = states(100_000, 3)
    rolling_var(x[:500])  # imports
    for label, options in (
        ("eigenvalues, plain", {"methods": "plain", "level": 0}),
        ("eigenvalues, plain and instrument", {"level": 0}),
        ("with intervals, plain and instrument", {}),
    ):
        print(
            f"rolling VAR(1), 100,000 rows, 3 states, {label}: {cpu(lambda o=options: rolling_var(x, 200, **o)):.2f} s"
        )  # type: ignore[misc]

    y = states(20_000, 12)
    run = {
        "loss": np.exp(y[:, 0] / 10), "grad_norm": np.exp(y[:, 1] / 10), "update_norm": np.exp(y[:, 2] / 10),
        "lr": np.full(20_000, 0.01),
    }  # fmt: skip
    total = 0.0
    print("20,000 steps, 12 channels:")
    for label, call in (
        ("x_grad", lambda: x_grad(run, optimizer="sgd")),
        ("x_inst", lambda: x_inst(y)),
        ("rolling VAR(1) of 12 channels, every 10th window, with intervals", lambda: rolling_var(y, 200, every=10)),
        ("rolling VAR(1) of 3 channels, every window, with intervals", lambda: rolling_var(y[:, :3], 200)),
        ("DMD", lambda: dmd(y)),
        ("finite-time Lyapunov of 3 channels, 19 surrogates", lambda: finite_time_lyapunov(y[:, :3])),
        ("largest Lyapunov exponent, 12 channels, last 5,000 rows", lambda: lyapunov(y)),
        ("recurrence, 5,000 thinned rows", lambda: recurrence(y)),
        ("intrinsic dimension, 5,000 thinned rows", lambda: intrinsic_dimension(y)),
        ("delay embedding of one channel", lambda: delay_embedding(y[:, 0])),
    ):
        used = cpu(call)
        total += used
        print(f"  {used:6.2f} s  {label}")
    print(
        f"  {total:6.2f} s  together; peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB"
    )
    rivals()


def rivals() -> None:
    """Where they are installed; none of them is needed."""
    z = states(5_000, 1)[:, 0]
    if importlib.util.find_spec("pyunicorn"):
        from pyunicorn.timeseries import RecurrencePlot

        def theirs() -> None:
            plot = RecurrencePlot(z, recurrence_rate=0.05, metric="euclidean", silence_level=2)
            for name in ("determinism", "laminarity", "diag_entropy", "average_diaglength", "trapping_time"):
                getattr(plot, name)(2)

        a, b = cpu(lambda: recurrence(z)), cpu(theirs)
        print(f"recurrence of 5,000 rows: {a:.2f} s, pyunicorn {b:.2f} s: {b / a:.1f} x")
    if importlib.util.find_spec("pydmd"):
        from pydmd import DMD

        w = states(100_000, 12)

        def fitted() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                DMD(svd_rank=-1).fit(w.T)

        a, b = cpu(lambda: dmd(w)), cpu(fitted)
        print(f"DMD of 100,000 rows x 12: {a:.2f} s, PyDMD {b:.2f} s: {b / a:.1f} x")
    if importlib.util.find_spec("skdim"):
        import skdim

        from trajscope.dynamics.intrinsic import twonn

        v = states(5_000, 6)[::1]
        a, b = cpu(lambda: twonn(v)), cpu(lambda: skdim.id.TwoNN().fit(v))
        print(f"TwoNN of 5,000 x 6: {a:.2f} s, scikit-dimension {b:.2f} s: {b / a:.1f} x")


if __name__ == "__main__":
    main()
