"""Record HalfCheetah-v5: ``record_halfcheetah.py PARTS``, then ``record_halfcheetah.py PARTS --collect [--out DIR]``.

The first records every run of the plan that PARTS does not hold yet, most wanted first, and may be stopped at any
time; seeds that are whole in DIR are left alone. The second adds what PARTS holds to
``DIR/halfcheetah/ALGORITHM.parquet``. ``record_halfcheetah.py --check RUN`` records a run anew, trunk and all, and
compares it with the file. Needs torch, gymnasium and mujoco (``[record]``) beside numpy, scikit-learn and pyarrow.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch are loaded
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
from importlib.metadata import version
from pathlib import Path

import torch
from recorder import ppo
from recorder.halfcheetah_batch import collect, record_all, record_arm, thin, train_trunk
from recorder.halfcheetah_plans import LEARNED
from recorder.store import read_tables, run_table, series, series_equal, versions, write_checksums

ROLES = ppo.ROLES | {
    "eval/return_sd": "",
    "train/q": "",
    "train/alpha": "",
    "train/policy_grad_norm": "grad_norm",
}


def check(run: str, folder: Path) -> bool:
    """Whether a run recorded anew equals the file bit for bit."""
    _, _, algorithm, seed, arm = run.split("-")
    table = next(t for found, t in read_tables(folder / f"{algorithm}.parquet") if found == run)
    trunk = train_trunk(algorithm, int(seed[1:]))
    log, _, _ = record_arm(algorithm, int(seed[1:]), arm, trunk)
    again = thin(run_table(run, log), algorithm, trunk.at(LEARNED)[0].step)
    return series_equal(series(again), series(table))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="?", type=Path)
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--check", metavar="RUN")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.check:
        same = check(args.check, args.out / "halfcheetah")
        print(f"{args.check}: {'identical to the bit' if same else 'DIFFERENT'}")
        raise SystemExit(0 if same else 1)
    if args.parts is None:
        parser.error("say where the parts are, or --check RUN")
    if args.collect:
        for path in collect(args.parts, args.out / "halfcheetah"):
            print(path)
        write_checksums(args.out)
    else:
        made_with = versions(torch=torch.__version__, gymnasium=version("gymnasium"), mujoco=version("mujoco"))
        record_all(args.parts, args.out / "halfcheetah", made_with, ROLES)


if __name__ == "__main__":
    main()
