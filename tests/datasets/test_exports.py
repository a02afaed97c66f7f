"""The demo runs, and the writers that made them, against readers that are not ours."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from recorder import exports, store

RUN = {
    "train/loss": (np.arange(6), np.array([2.5, 1.0 / 3, np.nan, np.inf, -1e-7, 3e30], np.float32)),
    "val/accuracy": (np.array([0, 4]), np.array([0.1, 0.977777], np.float32)),
}


def test_csv_reads_back_to_the_bit(tmp_path: Path) -> None:
    frame = pd.read_csv(exports.write_csv(tmp_path / "metrics.csv", RUN), dtype=str, keep_default_na=False)
    for channel, (steps, values) in RUN.items():
        np.testing.assert_array_equal(np.array([float(v) for v in frame[channel][steps]], np.float32), values)
    assert (frame["val/accuracy"] != "").sum() == 2


def test_tensorboard_reads_back_to_the_bit(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    exports.write_tensorboard(tmp_path, RUN)
    read = accumulator.EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    read.Reload()
    for channel, (steps, values) in RUN.items():
        assert [e.step for e in read.Scalars(channel)] == steps.tolist()
        np.testing.assert_array_equal(np.array([e.value for e in read.Scalars(channel)], np.float32), values)


def wandb_records(data: bytes) -> list[bytes]:
    """An independent reader of the framing: every checksum verified."""
    assert data[:7] == b":W&B" + struct.pack("<HB", 0xBEE1, 0)
    records, parts, at = [], b"", 7
    while at < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, at)
        body = data[at + 7 : at + 7 + length]
        assert zlib.crc32(bytes([kind]) + body) == checksum
        parts += body
        at += 7 + length
        if kind in (1, 4):
            records.append(parts)
            parts = b""
    assert not parts
    return records


def fields(message: bytes) -> list[tuple[int, object]]:
    """Field number and value of a protobuf message of varints and byte strings."""
    out: list[tuple[int, object]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        value: object = varint()
        if key & 7 == 2:
            length = int(value)
            value = message[at : at + length]
            at += length
        out.append((key >> 3, value))
    return out


def wandb_history(path: Path) -> list[tuple[int, dict[str, float]]]:
    rows = []
    for record in wandb_records(path.read_bytes()):
        for number, body in fields(record):
            if number == 2:
                items = [dict(fields(v)) for k, v in fields(body) if k == 1]
                step = dict(fields(dict(fields(body))[2])).get(1, 0)
                rows.append((step, {i[1].decode(): json.loads(i[16]) for i in items}))
    return rows


def test_wandb_reads_back_to_the_bit(tmp_path: Path) -> None:
    path = exports.write_wandb(tmp_path, RUN, "abc", "name", {"lr": 0.1})
    assert path.name == "run-abc.wandb"
    rows = wandb_history(path)
    assert [step for step, _ in rows] == list(range(6))
    for channel, (steps, values) in RUN.items():
        found = np.array([row[channel] for _, row in rows if channel in row], np.float32)
        np.testing.assert_array_equal(found, values)
        assert [step for step, row in rows if channel in row] == steps.tolist()
    kinds = [fields(record)[1][0] for record in wandb_records(path.read_bytes())]
    assert kinds == [21, 17, *[2] * 6, 18, 22]


@pytest.mark.parametrize("size", [0, 1, 32754, 32755, 40_000, 32768 * 3])
def test_wandb_records_may_cross_blocks(size: int) -> None:
    records = [b"a" * size, b"b" * 5, b"c" * 70_000, b""]
    assert wandb_records(exports.wandb_log(records)) == records


def test_demo_holds_the_recorded_values(datasets: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    demo = datasets.parent / "trajscope" / "demo"
    assert sum(p.stat().st_size for p in demo.rglob("*") if p.is_file()) <= 1_000_000
    labels = pd.read_csv(demo / "labels.csv")
    recorded = {
        run.removeprefix("digits-mlp64-adam-s000-"): store.series(table)
        for run, table in store.read_tables(datasets / "digits/adam.parquet")
        if "-s000-" in run
    }
    assert set(labels["run"]) == {p.name for p in demo.iterdir() if p.is_dir()} <= set(recorded)
    seen = set()
    for arm in labels["run"]:
        for path in (p for p in (demo / arm).rglob("*") if p.is_file()):
            if path.suffix == ".csv":
                frame = pd.read_csv(path, dtype=str)
                found = {c: frame[c].dropna().astype(float).to_numpy(np.float32) for c in frame.columns[1:]}
            elif path.suffix == ".wandb":
                rows = [row for _, row in wandb_history(path)]
                names = {c for row in rows for c in row if not c.startswith("_")}
                found = {c: np.array([r[c] for r in rows if c in r], np.float32) for c in names}
            else:
                read = accumulator.EventAccumulator(str(path), size_guidance={"scalars": 0})
                read.Reload()
                names = read.Tags()["scalars"]
                found = {c: np.array([e.value for e in read.Scalars(c)], np.float32) for c in names}
            seen.add(path.suffix)
            for channel, values in found.items():
                np.testing.assert_array_equal(values, recorded[arm][channel][1], err_msg=f"{arm} {channel}")
    assert len(seen) == 3
