"""Write ``trajscope/demo``: one recorded run an arm, in the formats that people have: ``python datasets/make_demo.py``.

Needs tensorboard. The wheel carries the result (at most 1 MB).
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pandas as pd
from recorder.exports import write_csv, write_tensorboard, write_wandb
from recorder.store import LABELS, Series, read_meta, read_tables, series

HERE = Path(__file__).parent
SOURCE, SEED = HERE / "digits" / "adam.parquet", 0
FORMATS = {"control": "tensorboard", "lr_x10": "tensorboard", "lr_x30": "csv", "lr_x100": "wandb"}  # else csv
CHANNELS = (
    "train/loss",
    "train/grad_norm",
    "train/grad_cos",
    "train/update_norm",
    "train/param_norm",
    "train/lr",
    "val/loss",
    "val/accuracy",
)
README = """# Demo runs

What `trajscope demo` audits. One run an arm of a small network on scikit-learn's digits (Adam, seed {seed}), recorded
by `datasets/record_digits.py` and written here by `datasets/make_demo.py` in the forms in which people have their logs:
TensorBoard event files, CSV, an offline `.wandb` file. All arms left one state at step {fork}; `control` was left
alone.

| arm | what was done from step {fork} | format | harmed | recovered |
|---|---|---|---|---|
{table}

Harmed and recovered are measured against `control` (see `datasets/README.md`); `labels.csv` holds the computed labels.
Wall times in these files are a fixed clock, not measured. Licence: CC0-1.0.
"""


def thin(run: Series) -> Series:
    """The demo's channels."""
    return {c: run[c] for c in CHANNELS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parent / "trajscope" / "demo")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    configs = {run: entry["config"] for run, entry in read_meta(SOURCE)["runs"].items()}
    names = {}
    for run, table in read_tables(SOURCE):
        config = configs[run]
        if config["seed"] != SEED:
            continue
        arm, shown = config["arm"], thin(series(table))
        names[run] = arm
        match FORMATS.get(arm, "csv"):
            case "tensorboard":
                write_tensorboard(out / arm, shown)
            case "wandb":
                write_wandb(out / arm / "wandb", shown, arm.replace("_", ""), run, config)
            case _:
                write_csv(out / arm / "metrics.csv", shown)
    labels = pd.read_parquet(HERE / LABELS).set_index("run").loc[list(names)].reset_index()
    labels["run"] = labels["run"].map(names)
    labels["twin"] = labels["twin"].map(names)
    labels.drop(columns="file").to_csv(out / "labels.csv", index=False)
    table = "\n".join(
        f"| `{row.run}` | {row.perturbation or 'nothing'}"
        + (f", level {row.level:g}, {row.duration:.0f} steps" if row.perturbation else "")
        + f" | {FORMATS.get(row.run, 'csv')} | {_yes(row.harmed)} | {_yes(row.recovered)} |"
        for row in labels.astype(object).where(labels.notna(), None).itertuples()
    )
    fork = int(labels["injection_step"].max())
    (out / "README.md").write_text(README.format(seed=SEED, fork=fork, table=table))
    print(sum(p.stat().st_size for p in out.rglob("*") if p.is_file()), "bytes in", out)


def _yes(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


if __name__ == "__main__":
    main()
