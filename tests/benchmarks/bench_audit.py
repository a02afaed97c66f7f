"""Time and memory of one audit.

    python tests/benchmarks/bench_audit.py [--large]

One run of 20,000 steps and 12 channels (warm, best of three), with its page; with ``--large`` one of a million steps
and 30 channels. Seconds are CPU seconds of one thread; peak memory is that of the whole process.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from trajscope.audit.run import audit
from trajscope.config import Settings
from trajscope.history import Run, RunData, named_channel

NAMES = ("train/loss", "val/accuracy", "grad_norm", "lr", "update_norm", "param_norm", "val/loss", "train/accuracy")


def made(steps: int, channels: int, *, event: bool) -> Run:
    """A run that learns; with a jump of the loss and the gradient norm two thirds of the way where asked for."""
    rng = np.random.default_rng(0)
    t = np.arange(float(steps))
    down = 0.3 + 2 * np.exp(-t / (0.2 * steps))
    bump = 1 + 2.0 * ((t > 0.66 * steps) & (t < 0.67 * steps)) * event
    out = {}
    for i in range(channels):
        name = NAMES[i] if i < len(NAMES) else f"layer_{i}/statistic"
        noise = rng.normal(size=steps)
        values = {
            "train/loss": down * bump * np.exp(0.03 * noise),
            "val/loss": down * bump * np.exp(0.02 * noise),
            "lr": 1e-3 * np.minimum(1, t / (0.01 * steps)) * (1 - 0.9 * t / steps),
        }.get(name, (2.3 - down) / 2.3 + 0.01 * noise if "accuracy" in name else bump * np.exp(0.1 * noise))
        every = max(1, steps // 2000) if name.startswith("val") else 1
        out[name] = named_channel(name, t[::every], values[::every])
    return Run("made", RunData(out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    sizes = [(1_000_000, 30)] if options.large else [(2_000, 12), (20_000, 12)]
    folder = Path(tempfile.mkdtemp())
    audit(made(500, 12, event=True)).to_dict()  # compiles and imports what is needed
    print(
        f"{'steps x channels':>18} {'event':>6} {'profile':>8} {'verdict':>12} {'audit':>8} {'checks':>8} {'page':>8}"
    )
    for steps, channels in sizes:
        for event in (False, True):
            for profile in ("full", "fast"):
                best = None
                for _ in range(1 if options.large else 3):
                    run = made(steps, channels, event=event)
                    start = time.process_time()
                    result = audit(run, settings=Settings(profile=profile))
                    judged = time.process_time()
                    result.to_dict()
                    told = time.process_time()
                    if profile == "full":
                        result.write(folder / "report.html")
                    times = (judged - start, told - judged, time.process_time() - told)
                    best = times if best is None or sum(times) < sum(best) else best
                assert best is not None
                cells = " ".join(f"{x:>7.2f}s" for x in best)
                print(
                    f"{steps:>11,} x {channels:<4} {event!s:>6} {profile:>8} {result.verdict:>12} {cells}", flush=True
                )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB")


if __name__ == "__main__":
    main()
