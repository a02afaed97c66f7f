"""Write ``datasets/exports``: recorded runs as TensorBoard, CSV and ``.wandb``: ``python datasets/make_exports.py``.

Needs tensorboard. Four runs a domain, of the first held-out seed: the control, and what recovered and what did not.
Digits are in ``trajscope/demo`` already. Single episode returns are left out to keep the files small.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from recorder.exports import write_csv, write_tensorboard, write_wandb
from recorder.store import read_meta, read_tables, series

HERE = Path(__file__).parent
# file -> arms; of each arm the run of seed 1
CHOSEN = {
    "cartpole/ppo.parquet": ("control", "lr_x30", "reinit_2", "lr_x1000"),
    "transformer/tf64.parquet": ("control", "lr_x100"),
    "transformer/tf64-ramps.parquet": ("ramp_lr_short", "ramp_lr_full"),
    "halfcheetah/ppo.parquet": ("control", "lr_x10", "lr_x100", "reward_sign"),
}
SEED = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "exports")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    for name, arms in CHOSEN.items():
        if not (HERE / name).exists():
            print(f"{name} is not recorded yet")
            continue
        configs = {run: entry["config"] for run, entry in read_meta(HERE / name)["runs"].items()}
        for run, table in read_tables(HERE / name):
            config = configs[run]
            if config["seed"] != SEED or config["arm"] not in arms:
                continue
            values = {c: v for c, v in series(table).items() if c != "rollout/episode_return"}
            write_tensorboard(out / "tensorboard" / run, values)
            write_csv(out / "csv" / run / "metrics.csv", values)
            write_wandb(out / "wandb" / run, values, f"{config['arm'].replace('_', '')}{SEED}", run, config)
    print(sum(p.stat().st_size for p in out.rglob("*") if p.is_file()), "bytes in", out)


if __name__ == "__main__":
    main()
