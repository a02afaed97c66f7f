"""Record digits runs: ``python datasets/record_digits.py [PLAN ...] [--out DIR]``.

Writes ``DIR/digits/PLAN.parquet`` (default: beside this script). Needs numpy, scikit-learn and pyarrow. Resumable:
every finished seed is kept under ``DIR/.parts`` until its file is complete. One thread, so that the bits do not
depend on how many processors are free.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is loaded
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from recorder.plans import PLANS, Plan
from recorder.store import read_tables, run_table, versions, write_checksums, write_runs
from recorder.trainer import Digits, record_seed


def record(name: str, plan: Plan, out: Path, data: Digits) -> Path:
    """Record what is missing of a plan and assemble its file."""
    parts = out / ".parts" / name
    for done, seed in enumerate(plan.seeds):
        part = parts / f"{seed:03d}.parquet"
        if not part.exists():
            logs = record_seed(plan.net, plan.optimizer, plan.settings, seed, plan.arms, data)
            runs = sorted((plan.run_id(seed, arm), arm) for arm in logs)
            configs = {run: plan.config(seed, arm) for run, arm in runs}
            write_runs(part, ((run, run_table(run, logs[arm])) for run, arm in runs), configs, versions())
        print(f"{name}: seed {seed}, {done + 1} of {len(plan.seeds)}", file=sys.stderr, flush=True)
    path = out / "digits" / f"{name}.parquet"
    configs = {plan.run_id(seed, arm): plan.config(seed, arm) for seed in plan.seeds for arm in plan.arms}
    tables = (pair for seed in sorted(plan.seeds) for pair in read_tables(parts / f"{seed:03d}.parquet"))
    write_runs(path, tables, configs, versions())
    shutil.rmtree(parts)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="*", help=f"default: all of {', '.join(PLANS)}")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    unknown = [p for p in args.plan if p not in PLANS]
    if unknown:
        parser.error(f"unknown plan {unknown[0]!r}; plans: {', '.join(PLANS)}")
    data = Digits.load()
    for name in args.plan or PLANS:
        path = record(name, PLANS[name], args.out, data)
        print(path)
    write_checksums(args.out)


if __name__ == "__main__":
    main()
