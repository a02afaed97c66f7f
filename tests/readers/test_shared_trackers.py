"""Every file of the real samples is reached; trackers' files by counts against a second, obvious parse."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trajscope.history import Run
from trajscope.readers import read_run, scan_runs

BLOCK = 32768


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Fields of a protobuf message: number and varint or bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
            yield key >> 3, value
            continue
        size, start = varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
        at = start + size
        yield key >> 3, data[start:at]


def records(path: Path) -> Iterator[bytes]:
    """Payloads of a LevelDB log with W&B's header of 7 bytes."""
    data = path.read_bytes()
    at, parts = 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        at += 7
        if kind == 0 or at + size > len(data):
            return
        parts = data[at : at + size] if kind in (1, 2) else parts + data[at : at + size]
        at += size
        if kind in (1, 4):
            yield parts


def logged(path: Path) -> Iterator[tuple[str, float]]:
    """Numbers of all history rows by key, nested objects too."""
    for record in records(path):
        for number, history in fields(record):
            if number != 2 or not isinstance(history, bytes):
                continue
            for part, item in fields(history):
                if part == 1:
                    found: dict[int, list[bytes]] = {}
                    for n, value in fields(item):
                        found.setdefault(n, []).append(value)
                    name = ".".join(k.decode() for k in found.get(1, []) + found.get(2, []))
                    yield from numbers(name, json.loads(found[16][0]))


def numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict) and "_type" not in value:
        for key, inner in value.items():
            yield from numbers(f"{name}.{key}", inner)
    elif value in ("NaN", "Infinity", "-Infinity") or isinstance(value, int | float):
        yield name, float(value)


def counts_of(run: Run) -> dict[str, tuple[int, int, int]]:
    return {n: (len(c), c.counts["nan"], c.counts["posinf"] + c.counts["neginf"]) for n, c in run.channels.items()}


def tally(pairs: Iterator[tuple[str, float]]) -> dict[str, tuple[int, int, int]]:
    found: dict[str, list[float]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {n: (len(v), sum(map(math.isnan, v)), sum(map(math.isinf, v))) for n, v in found.items()}


def test_wandb_offline_counts(shared_data: Path) -> None:
    checked = 0
    for path in sorted((shared_data / "logs" / "wandb_offline").rglob("*.wandb")):
        expected = tally(logged(path))
        found = counts_of(read_run(path, resume="keep-all"))
        assert set(expected) - set(found) <= {"_step", "_timestamp", "_runtime"}, path
        assert {n: c for n, c in found.items() if n in expected} == {n: expected[n] for n in found if n in expected}, (
            path
        )
        checked += sum(n for n, _, _ in found.values())
    assert checked > 1000


def test_sacred_counts(shared_data: Path) -> None:
    checked = 0
    for run in scan_runs(shared_data / "logs" / "sacred", resume="keep-all"):
        info = json.loads(Path(run.path).with_name("info.json").read_text())
        for name, channel in run.channels.items():
            assert len(channel) == len(info[name]) == len(info[f"{name}_T"])
            plain = [v for v in info[name] if isinstance(v, int | float)]
            if len(plain) == len(channel):
                np.testing.assert_array_equal(channel.values, plain)
                checked += len(plain)
    assert checked > 100


def test_mlflow_run_without_metrics(shared_data: Path) -> None:
    (run,) = scan_runs(shared_data / "logs" / "mlflow")
    assert (len(run.channels), run.format) == (0, "mlflow")


#: Files below each directory of samples, logs and what lies beside them; every one is read somewhere in this suite.
COUNTED = {
    "csv_algoperf", "csv_lightning", "csv_rl", "csv_rllib", "csv_sb3_monitor", "json_hf_trainer_state", "jsonl_detr",
    "jsonl_mmengine", "jsonl_rllib", "mlflow", "npy_td3", "npz_sb3_evaluations", "sacred", "tensorboard", "text",
    "tsv_spinningup", "wandb_csv", "wandb_offline", "wandb_parquet",
}  # fmt: skip


def test_every_sample_is_a_log_of_a_format_that_is_counted(shared_data: Path) -> None:
    root = shared_data / "logs"
    assert {d.name for d in root.iterdir() if d.is_dir()} == COUNTED
    rows = {}
    for line in (root / "INDEX.tsv").read_text().splitlines()[1:]:
        file, _, n, *_ = line.split("\t")
        rows[file] = int(n) if n.isdigit() else 0
    scan = scan_runs(root)
    runs = list(scan)
    assert len(runs) > 150
    assert scan.problems == []
    lost = [f for f in scan.ignored if rows.get(f"logs/{f}", 0) > 0 and "/" in f]
    assert lost == []


@pytest.mark.parametrize("folder", sorted(COUNTED - {"tensorboard"}))
def test_every_run_of_the_samples_is_read(shared_data: Path, folder: str) -> None:
    runs = list(scan_runs(shared_data / "logs" / folder))
    assert runs
    for run in runs:
        assert not [p for p in run.problems if p.severity == "error" and p.code not in ("not-a-series",)], run.id
