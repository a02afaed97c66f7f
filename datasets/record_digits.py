"""Record digits runs: ``python datasets/record_digits.py [FILE ...] [--out DIR]``, or ``... --check RUN``.

Writes ``DIR/digits/FILE.parquet`` (default: beside this script). Needs numpy, scikit-learn and pyarrow. Resumable:
every finished seed is kept under ``DIR/.parts`` until its file is complete. One thread, so that the bits do not
depend on how many processors are free. ``--check RUN`` records one run anew and compares it with the file.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is loaded
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from recorder import command
from recorder.arms import Arms
from recorder.monitor import ROLES, Log
from recorder.plans import PLANS, Plan
from recorder.trainer import Digits, record_seed


def recording() -> command.RecordSeed[Plan]:
    """The function that records one seed, with the data loaded."""
    data = Digits.load()

    def record(plan: Plan, seed: int, arms: Arms) -> dict[str, Log]:
        return record_seed(plan.net, plan.optimizer, plan.settings, seed, arms, data)

    return record


if __name__ == "__main__":
    command.run(__doc__, "digits", PLANS, recording, ROLES)
