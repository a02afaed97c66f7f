"""Record PPO on the cart and pole: ``record_cartpole.py [FILE ...] [--out DIR]`` or ``... --check RUN``.

Writes ``DIR/cartpole/FILE.parquet``; see ``record_digits.py`` for the options. Needs numpy, scikit-learn and pyarrow.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is loaded
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from recorder import command
from recorder.arms import Arms
from recorder.cartpole_plans import FILES, Plan
from recorder.monitor import Log
from recorder.ppo import ROLES, record_seed


def recording() -> command.RecordSeed[Plan]:
    """The function that records one seed."""

    def record(plan: Plan, seed: int, arms: Arms) -> dict[str, Log]:
        return record_seed(plan.net, plan.settings, seed, arms)

    return record


if __name__ == "__main__":
    command.run(__doc__, "cartpole", FILES, recording, ROLES)
