"""Speed of the early-warning indicators, beside ewstools where it is installed.

Ratios of CPU time (time.process_time) in one process. Run: python tests/benchmarks/bench_indicators.py [--rival]
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import trajscope as ts
from trajscope.simulate import ar

TEN = [
    "variance", "lag1", "lag2", "skewness", "kurtosis", "return_rate", "lag_ratio", "spectral_low", "dev_modulus",
    "dev_angle",
]  # fmt: skip


def cpu(work: Callable[[], Any], rounds: int = 3) -> float:
    """Best CPU time of a few rounds."""
    best = np.inf
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return float(best)


def main() -> None:
    x = ar(1_000_000, 0.7, rng=0)[:, 0]
    ten = cpu(lambda: ts.early_warning(x, window=250, indicators=TEN).to_frame())
    print(f"n=1e6, ten indicators, window 250, baseline ewma: {ten:.2f} s (asked for: under 5 s)")
    holed = x.copy()
    holed[::97] = np.nan
    print(f"  with 1 % missing: {cpu(lambda: ts.early_warning(holed, window=250, indicators=TEN).to_frame(), 1):.2f} s")
    short = x[:100_000]
    for window in (25_000, 250):
        ours = cpu(lambda w=window: ts.early_warning(short, window=w, indicators="lag1", detrend=None).to_frame())
        print(f"n=1e5, rolling lag-1, window {window}: {1e3 * ours:.1f} ms")
    small = ts.early_warning(x[:1000], window=250)
    for kind in ("ar1", "iaaft", "block"):
        took = cpu(lambda k=kind: small.trend(surrogates=k, n=199))
        print(f"n=1000, 199 surrogates ({kind}), eleven indicators: {took:.2f} s; "
              f"one: {cpu(lambda k=kind: small.trend('lag1', surrogates=k, n=199)):.2f} s")  # fmt: skip
    print(f"n=1000, slowing: {1e3 * cpu(lambda: ts.early_warning(x[:1000], window=250, indicators='slowing')):.0f} ms")
    many = ar(100_000, 0.5, 20, rng=1)
    print(
        f"n=1e5 x 20 channels, eig_cov: {cpu(lambda: ts.early_warning(many, window=250, indicators='eig_cov'), 1):.1f} s"
    )
    if "--rival" not in sys.argv:
        return
    warnings.simplefilter("ignore")
    import ewstools
    import pandas as pd

    series = ewstools.TimeSeries(pd.Series(short))
    theirs = cpu(lambda: series.compute_auto(rolling_window=0.25, lag=1), 1)
    ours = cpu(lambda: ts.early_warning(short, window=25_000, indicators="lag1", detrend=None).to_frame())
    print(
        f"n=1e5, rolling lag-1, window 25,000: ewstools {theirs:.1f} s, ours {1e3 * ours:.1f} ms: {theirs / ours:.0f} x"
    )


if __name__ == "__main__":
    main()
