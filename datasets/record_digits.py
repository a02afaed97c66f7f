"""Record digits runs: ``python datasets/record_digits.py [PLAN ...] [--out DIR]``, or ``... --check RUN``.

Writes ``DIR/digits/PLAN.parquet`` (default: beside this script). Needs numpy, scikit-learn and pyarrow. Resumable:
every finished seed is kept under ``DIR/.parts`` until its file is complete. One thread, so that the bits do not
depend on how many processors are free. ``--check RUN`` records one run anew and compares it with the file.
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
from recorder.store import read_tables, run_table, series, series_equal, versions, write_checksums, write_runs
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


def check(run: str, out: Path, data: Digits) -> bool:
    """Record one run anew and say whether it equals the file bit for bit."""
    for name, plan in PLANS.items():
        for seed in plan.seeds:
            for arm in plan.arms:
                if plan.run_id(seed, arm) == run:
                    alone = {arm: plan.arms[arm]}
                    log = record_seed(plan.net, plan.optimizer, plan.settings, seed, alone, data)[arm]
                    path = out / "digits" / f"{name}.parquet"
                    committed = next(table for found, table in read_tables(path) if found == run)
                    return series_equal(series(run_table(run, log)), series(committed))
    raise SystemExit(f"no plan records {run!r}; run ids stand in {out / 'labels.parquet'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="*", help=f"default: all of {', '.join(PLANS)}")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--check", metavar="RUN", help="record this run anew and compare it with the file")
    args = parser.parse_args()
    if args.check:
        same = check(args.check, args.out, Digits.load())
        print(f"{args.check}: {'identical to the bit' if same else 'DIFFERENT'}")
        raise SystemExit(0 if same else 1)
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
