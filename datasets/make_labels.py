"""Compute ``datasets/labels.parquet`` off the recorded runs: ``python datasets/make_labels.py [--root DIR]``.

One row a run, in the schema of trajscope's label files, and the truth columns of `recorder.truth`. Nothing here is
set by hand: the configuration gives what was declared, the data give what came of it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from recorder.outcome import outcome
from recorder.store import LABELS, data_files, read_meta, read_tables, series, write_checksums
from recorder.truth import against_twin, first_difference

# Performance channel by domain, and whether a bigger or a smaller value is better
PERFORMANCE = {
    "digits": ("val/accuracy", "max"),
    "cartpole": ("eval/return", "max"),
    "transformer": ("val/loss", "min"),
    "halfcheetah": ("eval/return", "max"),
}

SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("stratum", pa.string()),
        ("algorithm", pa.string()),
        ("seed", pa.int64()),
        ("axis", pa.string()),
        ("perturbation", pa.string()),
        ("severity", pa.int64()),
        ("level", pa.float64()),
        ("injection_step", pa.int64()),
        ("twin", pa.string()),
        ("outcome", pa.string()),
        ("onset_step", pa.int64()),
        ("confirmed_step", pa.int64()),
        ("split", pa.string()),
        ("outcome_kind", pa.string()),
        ("recovered_step", pa.int64()),
        ("arm", pa.string()),
        ("domain", pa.string()),
        ("purpose", pa.string()),
        ("width", pa.int64()),
        ("lr", pa.float64()),
        ("grad_noise", pa.float64()),
        ("entropy_bonus", pa.float64()),
        ("duration", pa.int64()),
        ("ramp", pa.bool_()),
        ("harmed", pa.bool_()),
        ("recovered", pa.bool_()),
        ("fell", pa.bool_()),
        ("fell_for", pa.int64()),
        ("first_departure", pa.int64()),
        ("first_difference", pa.int64()),
        ("end_deficit", pa.float64()),
        ("max_deficit", pa.float64()),
        ("twin_sd", pa.float64()),
        ("final", pa.float64()),
        ("file", pa.string()),
    ]
)


def split(seed: int) -> str:
    """The held-out split, declared once: odd seeds are held out, even seeds calibrate."""
    return "heldout" if seed % 2 else "calibration"


def label(config: dict[str, Any], run: dict[str, Any], twin: dict[str, Any] | None) -> dict[str, Any]:
    """The label of one run from its configuration, its series and its twin's."""
    channel, mode = PERFORMANCE[config["domain"]]
    sign = 1.0 if mode == "max" else -1.0
    steps, values = run[channel][0], run[channel][1].astype(np.float64)
    last = max(1, round(0.1 * len(values)))
    row = {"purpose": "arms", "grad_noise": 0.0} | {name: config.get(name) for name in SCHEMA.names if name in config}
    row |= {
        "stratum": f"{config['domain']}/{config['model']}/{config['algorithm']}",
        "split": split(config["seed"]),
        "final": float(np.mean(values[-last:])),
        **outcome(steps, values, mode),
    }
    if twin is not None:
        resolution = config["resolution"] if "resolution" in config else 1 / config["n_validation"]
        both = np.isin(twin[channel][0], steps)  # a twin may go on for longer
        other = sign * twin[channel][1][both].astype(np.float64)
        truth = against_twin(steps, sign * values, other, config["injection_step"], resolution)
        row |= vars(truth) | {"first_difference": first_difference(run, twin)}
    return row


def labels(root: Path) -> pa.Table:
    """The label table of every run under ``root``, sorted by run id."""
    configs, where = {}, {}
    for path in data_files(root):
        for run, entry in read_meta(path)["runs"].items():
            configs[run], where[run] = entry["config"], path
    rows = []
    for path in data_files(root):
        tables = {run: series(table) for run, table in read_tables(path)}
        elsewhere = {c["twin"] for run in tables if (c := configs[run]).get("twin")} - tables.keys()
        for other in {where[t] for t in elsewhere}:
            tables |= {run: series(table) for run, table in read_tables(other) if run in elsewhere}
        for run in tables.keys() & {r for r, p in where.items() if p == path}:
            config = configs[run]
            twin = tables[config["twin"]] if config.get("twin") else None
            name = path.relative_to(root).as_posix()
            rows.append(label(config, tables[run], twin) | {"run": run, "file": name})
    return pa.Table.from_pylist(sorted(rows, key=lambda row: str(row["run"])), schema=SCHEMA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parent)
    root = parser.parse_args().root
    table = labels(root)
    pq.write_table(table, root / LABELS, compression="zstd")
    write_checksums(root)
    print(f"{len(table)} runs")


if __name__ == "__main__":
    main()
