"""5,000 runs under one root: time and memory of the walk, and of the table of contents that reads them all.

Run: ``python tests/proofs/scan_many.py [--runs 5000] [--points 2000]``. A third each of event files, CSV and JSON lines
with four channels, 50 runs a directory. Memory is what the process holds above its start after every fifth of the runs
(VmRSS), each measurement in a process of its own; it is flat where the last fifth adds less than the table of contents
itself and ten per cent.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "readers"))

TAGS = ("train/loss", "grad_norm", "lr", "val/accuracy")

MEASURE = """
import sys, time
from pathlib import Path
import numpy, pandas, pyarrow.csv, pyarrow.json
import trajscope.readers as r
from trajscope.readers.tensorboard import walk
root, what, runs = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
def held(field):
    return int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0]) / 1024
for run in r.scan_runs(root / "warm"):
    run.data  # imports, caches, the compiled kernel
base, marks, points, n = held("VmRSS"), [], 0, 0
def watched(scan):
    global n
    for run in scan:
        yield run
        n += 1
        if n % (runs // 5) == 0:
            marks.append(held("VmRSS") - base)
scan = r.scan_runs(root / "runs")
start, cpu = time.perf_counter(), time.process_time()
if what == "walk":
    for run in watched(scan):
        pass
elif what == "list":
    runs_ = list(watched(scan))
elif what == "read":
    for run in watched(scan):
        points += run.n_points
elif what == "contents":
    from trajscope.readers.contents import contents
    frame = contents(watched(scan), scan.root)
    points = int(frame["points"].sum())
print(n, points, time.perf_counter() - start, time.process_time() - cpu, held("VmHWM") - base, *marks)
"""


def make(root: Path, runs: int, points: int) -> int:
    """Write the runs; return their bytes."""
    from tensorboard_files import scalar, write

    steps = range(points // len(TAGS))
    rows = [{"step": s} | {t: math.exp(-s / 100) * (k + 1) for k, t in enumerate(TAGS)} for s in steps]
    table = ",".join(rows[0]) + "\n" + "".join(",".join(map(repr, row.values())) + "\n" for row in rows)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (root / "template").mkdir()
    events = write(root / "template", (scalar(t, row[t], row["step"]) for row in rows for t in TAGS))
    kinds = [("events.out.tfevents.1700000000.host", events.read_bytes()), ("metrics.csv", table.encode())]
    kinds.append(("metrics.jsonl", lines.encode()))
    total = 0
    for place, count in (("warm", 3), ("runs", runs)):
        for i in range(count):
            name, content = kinds[i % 3]
            directory = root / place / f"group{i // 50:03d}" / f"run{i:05d}"
            directory.mkdir(parents=True)
            (directory / name).write_bytes(content)
            total += len(content)
    return total


def main() -> int:
    """Print one line a measurement; exit code 1 where memory grows."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=5000)
    options.add_argument("--points", type=int, default=2000)
    chosen = options.parse_args()
    grown = False
    with tempfile.TemporaryDirectory() as folder:
        size = make(Path(folder), chosen.runs, chosen.points)
        print(f"{chosen.runs} runs of {chosen.points} points, {size / 1e6:.0f} MB")
        for what in ("walk", "list", "read", "contents"):
            done = subprocess.run(
                [sys.executable, "-c", MEASURE, folder, what, str(chosen.runs)],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            n, points, wall, cpu, peak, *marks = (float(v) for v in done.stdout.split())
            held = " ".join(f"{m:.1f}" for m in marks)
            print(
                f"{what:9}{n:6.0f} runs {points:9.0f} points {wall:6.1f} s wall {cpu:6.1f} s CPU ({n / cpu:5.0f} runs/s)"
                f"  peak {peak:.1f} MiB, held after each fifth: {held} MiB",
                flush=True,
            )
            grown |= marks[-1] - marks[0] > 0.1 * max(marks[0], 10) + 20
    return int(grown)


if __name__ == "__main__":
    sys.exit(main())
