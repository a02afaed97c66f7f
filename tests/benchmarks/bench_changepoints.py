"""CPU time of `change_points` beside ruptures, in one process and one thread.

Run: ``OMP_NUM_THREADS=1 python tests/benchmarks/bench_changepoints.py [--rival-limit SECONDS]``. Each series
has AR(.5) noise and ten shifts of two sd. A rival is tried at the next size only while it stayed under the limit
at the last.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from trajscope.detect.changepoints import change_points

Floats = NDArray[np.float64]


def series(n: int, channels: int = 1, changes: int = 10) -> Floats:
    """AR(.5) with `changes` shifts of two sd in every channel."""
    rng = np.random.default_rng([1, n, channels])
    out = np.empty((n, channels))
    for c in range(channels):
        y = lfilter([1.0], [1.0, -0.5], rng.normal(size=n)) * np.sqrt(0.75)
        for k in range(1, changes + 1):
            y[k * n // (changes + 1) :] += rng.choice([-2.0, 2.0])
        out[:, c] = y
    return out


def cpu(task: Callable[[], object], repeats: int = 2) -> float:
    """Least CPU seconds of a few runs."""
    best = np.inf
    for _ in range(repeats):
        began = time.process_time()
        task()
        best = min(best, time.process_time() - began)
    return float(best)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rival-limit", type=float, default=10.0)
    limit = parser.parse_args().rival_limit
    import ruptures

    change_points(series(100_000)[:, 0])  # compile
    last = 0.0
    print("rows      channels  change_points  ruptures Pelt l2, jump 5  ratio")
    for n in (1_000, 2_000, 10_000, 100_000, 1_000_000):
        y = series(n)
        own = cpu(lambda y=y: change_points(y))  # type: ignore[misc]
        if last < limit:
            last = cpu(lambda y=y, n=n: ruptures.Pelt("l2", jump=5).fit(y).predict(pen=2 * np.log(n)), 1)  # type: ignore[misc]
            print(f"{n:9d}  1         {own:8.3f}       {last:10.3f}                {last / own:.1f}", flush=True)
            last *= 10
        else:
            print(f"{n:9d}  1         {own:8.3f}       not tried (over {limit:g} s)", flush=True)
    for changes in (0, 10):
        y = series(100_000, 8, changes)
        print(
            f"   100000  8         {cpu(lambda y=y: change_points(y)):8.3f}       {changes} changes a channel",
            flush=True,
        )  # type: ignore[misc]
    y = series(1_000_000, 1, 0)
    print(f"  1000000  1         {cpu(lambda: change_points(y)):8.3f}       no change", flush=True)


if __name__ == "__main__":
    main()
