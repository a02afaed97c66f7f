"""Record the transformer: ``python datasets/record_transformer.py [FILE ...] [--out DIR]``, or ``... --check RUN``.

Writes ``DIR/transformer/FILE.parquet``; see ``record_digits.py`` for the options. Needs torch (``[record]``) beside
numpy, scikit-learn and pyarrow. The text comes with Python, so another version of Python may train on another text.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch are loaded
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
from recorder import command
from recorder.arms import Arms
from recorder.monitor import ROLES, Log
from recorder.transformer import Text, record_seed
from recorder.transformer_plans import FILES, Plan


def recording() -> command.RecordSeed[Plan]:
    """The function that records one seed, with the text loaded."""
    text = Text.load()

    def record(plan: Plan, seed: int, arms: Arms) -> dict[str, Log]:
        return record_seed(plan.net, plan.settings, seed, arms, text)

    return record


if __name__ == "__main__":
    roles = {channel: role for channel, role in ROLES.items() if channel != "val/accuracy"}
    command.run(__doc__, "transformer", FILES, recording, roles, torch=torch.__version__)
