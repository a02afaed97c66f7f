"""The same runs as other loggers would have left them: TensorBoard event file, CSV, offline ``.wandb`` file.

Values are the float32 of the Parquet files, written so that reading them back gives the same float32. Wall times are
not measured: a fixed clock (`CLOCK` + `TICK` a step) stands in for them, so that the bytes are the same each time.
"""

from __future__ import annotations

import csv
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from recorder.store import Series

CLOCK = 1_767_225_600.0  # 2026-01-01T00:00:00Z
TICK = 0.02
WANDB_BLOCK = 32_768


def rows(run: Series) -> Iterator[tuple[int, dict[str, np.float32]]]:
    """(step, channel -> value) for each step on which anything was logged, in order."""
    by_step: dict[int, dict[str, np.float32]] = {}
    for channel, (steps, values) in run.items():
        for step, value in zip(steps.tolist(), values, strict=True):
            by_step.setdefault(step, {})[channel] = value
    yield from sorted(by_step.items())


def shortest(value: np.float32) -> str:
    """Fewest digits that read back as the same float32, with the NaN and Infinity of JSON as Python writes it."""
    if np.isfinite(value):
        return np.format_float_positional(value, trim="-") if 1e-4 <= abs(value) < 1e9 else f"{value!s}"
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]


def write_tensorboard(folder: Path, run: Series) -> Path:
    """One event a step with a simple value for each channel (needs the package ``tensorboard``)."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{CLOCK:.0f}.recorder"
    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=CLOCK, file_version="brain.Event:2").SerializeToString(deterministic=True))
        for step, values in rows(run):
            summary = Summary(value=[Summary.Value(tag=c, simple_value=v) for c, v in values.items()])
            event = Event(wall_time=CLOCK + TICK * step, step=step, summary=summary)
            writer.write(event.SerializeToString(deterministic=True))
        writer.flush()
    return path


def write_csv(path: Path, run: Series) -> Path:
    """One row a step, one column a channel, an empty cell where nothing was logged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *run])
        for step, values in rows(run):
            writer.writerow([step, *(shortest(values[c]) if c in values else "" for c in run)])
    return path


def write_wandb(folder: Path, run: Series, run_id: str, name: str, config: dict[str, Any]) -> Path:
    """``offline-run-<time>-<id>/run-<id>.wandb``: header, run, one history record a step, exit, footer."""
    path = folder / f"offline-run-20260101_000000-{run_id}" / f"run-{run_id}.wandb"
    path.parent.mkdir(parents=True, exist_ok=True)
    items = b"".join(_message(1, _text(1, key) + _text(16, json.dumps(value))) for key, value in config.items())
    records = [
        _message(21, _message(1, _text(1, "0.17.0") + _text(2, "0.7.0"))),
        _message(17, _text(1, run_id) + _text(3, "trajscope-demo") + _message(4, items) + _text(6, name)),
    ]
    last = 0
    for step, values in rows(run):
        logged = {c: shortest(v) for c, v in values.items()}
        logged |= {
            "_step": str(step),
            "_runtime": f"{TICK * step:.2f}",
            "_timestamp": f"{CLOCK + TICK * step:.2f}",
        }
        history = b"".join(_message(1, _text(1, key) + _text(16, text)) for key, text in logged.items())
        records.append(_message(2, history + _message(2, _number(1, step) if step else b"")))
        last = step
    records.append(_message(18, _number(2, int(TICK * last))))  # exit code 0 is not written, as in proto3
    records.append(_message(22, b""))
    path.write_bytes(wandb_log([_number(1, k) + record for k, record in enumerate(records, 1)]))
    return path


def wandb_log(records: list[bytes]) -> bytes:
    """Records in LevelDB's log format as W&B writes it: its own file header, CRC-32 of zlib over type and data."""
    out = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for record in records:
        start, first = 0, True
        while first or start < len(record):
            room = WANDB_BLOCK - len(out) % WANDB_BLOCK
            if room < 7:
                out += bytes(room)
                room = WANDB_BLOCK
            data = record[start : start + room - 7]
            start += len(data)
            last = start == len(record)
            kind = (1 if last else 2) if first else (4 if last else 3)  # FULL, FIRST, LAST, MIDDLE
            body = bytes([kind]) + data
            out += struct.pack("<IH", zlib.crc32(body), len(data)) + body
            first = False
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())
