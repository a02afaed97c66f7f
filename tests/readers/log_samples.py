"""One small log of every format, for the contract suite and the fuzzing script."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import tensorboard_files
import wandb_files

from trajscope.history import Run, RunData
from trajscope.history.parquet import write_runs
from trajscope.history.run import named_channel

STEPS = range(30)


def _rows() -> list[dict[str, float]]:
    return [{"step": s, "train/loss": 2.0 / (1 + s), "lr": 0.1, "eval/acc": s / 30} for s in STEPS]


def _table(path: Path, rows: list[dict[str, object]], quoting: int = csv.QUOTE_MINIMAL) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), quoting=quoting)
        writer.writeheader()
        writer.writerows(rows)
    return path


def delimited(folder: Path) -> Path:
    return _table(folder / "metrics.csv", _rows())


def wandb_csv(folder: Path) -> Path:
    rows = [
        {"Step": s, **{f"run{k} - loss{end}": s * k for k in (1, 2) for end in ("", "__MIN", "__MAX")}} for s in STEPS
    ]
    return _table(folder / "wandb_export.csv", rows, csv.QUOTE_ALL)


def monitor(folder: Path) -> Path:
    lines = ['#{"t_start": 1700000000.0, "env_id": "CartPole-v1"}', "r,l,t", *(f"{s}.5,{s + 1},{s}.25" for s in STEPS)]
    (folder / "0.monitor.csv").write_text("\n".join(lines) + "\n")
    return folder / "0.monitor.csv"


def jsonlines(folder: Path) -> Path:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in _rows()))
    return path


def trainer_state(folder: Path) -> Path:
    history = [{"loss": 2.0 / (1 + s), "learning_rate": 0.1, "epoch": s / 10, "step": s} for s in STEPS if s]
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({"global_step": 29, "best_metric": None, "log_history": history}))
    return path


def rllib(folder: Path) -> Path:
    trial = folder / "trial"
    trial.mkdir()
    rows = [
        {"training_iteration": s + 1, "timesteps_total": 100 * s, "episode_reward_mean": s, "config": {"lr": 0.1}}
        for s in STEPS
    ]
    (trial / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (trial / "params.json").write_text('{"lr": 0.1}')
    return trial


def arrays(folder: Path) -> Path:
    results = np.arange(90.0).reshape(30, 3)
    np.savez(folder / "evaluations.npz", timesteps=np.arange(30) * 500, results=results, ep_lengths=results.astype(int))
    return folder / "evaluations.npz"


def text(folder: Path) -> Path:
    lines = (f"step:{s}/30 val_loss:{2 / (1 + s):.4f} train_time:{s}ms step_avg:1.5ms" for s in STEPS)
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    return folder / "train.log"


def tensorboard(folder: Path) -> Path:
    run = folder / "run"
    run.mkdir()
    events = [tensorboard_files.many({"train/loss": 2.0 / (1 + s), "lr": 0.1}, s) for s in STEPS]
    tensors = [tensorboard_files.tensor("eval/acc", s, dtype=2, double_val=[s / 30]) for s in STEPS]
    tensorboard_files.write(run, events + tensors)
    return run


def parquet(folder: Path) -> Path:
    steps = np.arange(30)
    channels = {n: named_channel(n, steps, np.sin(steps + k)) for k, n in enumerate(("train/loss", "lr"))}
    return write_runs([Run(f"r{i}", RunData(channels)) for i in range(2)], folder / "runs.parquet")


def wandb(folder: Path) -> Path:
    run = folder / "wandb" / "offline-run-20260101_000000-abc"
    run.mkdir(parents=True)
    (run / "run-abc.wandb").write_bytes(wandb_files.log(wandb_files.plain(60)))
    return folder / "wandb"


def wandb_parquet(folder: Path) -> Path:
    frame = pd.DataFrame({"_step": STEPS, "_timestamp": 1.7e9 + np.arange(30), "train/loss": 0.5, "lr": 0.1})
    frame.to_parquet(folder / "0000.parquet")
    return folder / "0000.parquet"


def neptune(folder: Path) -> Path:
    place = folder / "team_p_0123456789"
    place.mkdir()
    rows = [
        {
            "project_id": "team/p",
            "run_id": "P-1",
            "attribute_path": name,
            "attribute_type": "float_series",
            "step": Decimal(s),
            "timestamp": 1_700_000_000_000 + s,
            "float_value": s / 3,
        }
        for name in ("metrics/loss", "metrics/lr")
        for s in STEPS
    ]
    types = {"string": pa.string(), "step": pa.decimal128(18, 6), "timestamp": pa.timestamp("ms", tz="UTC")}
    types |= {"float_value": pa.float64(), "int_value": pa.int64(), "bool_value": pa.bool_()}
    types["datetime_value"] = types["timestamp"]
    names = [*rows[0], "int_value", "string_value", "bool_value", "datetime_value"]
    schema = pa.schema([(name, types.get(name, pa.string())) for name in names])
    pq.write_table(pa.Table.from_pylist(rows, schema), place / "P-1_part_0.parquet")
    return place / "P-1_part_0.parquet"


def mlflow(folder: Path) -> Path:
    run = folder / "mlruns" / "0" / "abc"
    (run / "metrics").mkdir(parents=True)
    (run / "meta.yaml").write_text("artifact_uri: file:///x\nlifecycle_stage: active\nrun_id: abc\nstart_time: 1\n")
    for name in ("loss", "lr"):
        (run / "metrics" / name).write_text("".join(f"{1700000000000 + s} {s / 3} {s}\n" for s in STEPS))
    return folder / "mlruns"


def sacred(folder: Path) -> Path:
    run = folder / "1"
    run.mkdir()
    (run / "run.json").write_text('{"status": "COMPLETED", "start_time": "2026-01-01T00:00:00"}')
    (run / "config.json").write_text('{"lr": 0.5}')
    series = {"values": [s / 3 for s in STEPS], "steps": list(STEPS), "timestamps": ["2026-01-01T00:00:00"] * 30}
    (run / "metrics.json").write_text(json.dumps({"loss": series, "lr": series}))
    return run


#: Makers of samples by reader.
SAMPLES: dict[str, Callable[[Path], Path]] = {
    maker.__name__.replace("_", "-"): maker
    for maker in (
        arrays,
        delimited,
        jsonlines,
        mlflow,
        monitor,
        neptune,
        parquet,
        rllib,
        sacred,
        tensorboard,
        text,
        trainer_state,
        wandb,
        wandb_csv,
        wandb_parquet,
    )
}
