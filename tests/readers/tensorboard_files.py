"""Event files for tests and benchmarks, written with TensorBoard's own protos and our own framing."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from trajscope.readers.tensorboard.crc import crc32c, mask, masked_many

NAME = "events.out.tfevents.1700000000.host.1.0"


def record(payload: bytes) -> bytes:
    """One TFRecord."""
    length = struct.pack("<Q", len(payload))
    return b"".join(
        [length, struct.pack("<I", mask(crc32c(length))), payload, struct.pack("<I", mask(crc32c(payload)))]
    )


def records(payloads: Sequence[bytes]) -> bytes:
    """Many TFRecords, their checksums computed together."""
    lengths = np.array([len(p) for p in payloads], dtype=np.int64)
    data = np.frombuffer(b"".join(payloads), dtype=np.uint8)
    body = masked_many(data, np.cumsum(lengths) - lengths, lengths)
    head = masked_many(lengths.view(np.uint8), 8 * np.arange(lengths.size, dtype=np.int64), np.full_like(lengths, 8))
    parts = zip(lengths.tolist(), head.tolist(), payloads, body.tolist(), strict=True)
    return b"".join([struct.pack("<QI", n, h) + p + struct.pack("<I", b) for n, h, p, b in parts])


def version(wall: float = 1.7e9) -> bytes:
    """The first event of every file."""
    return Event(wall_time=wall, file_version="brain.Event:2").SerializeToString()


def scalar(tag: str | bytes, value: float, step: int = 0, wall: float | None = None) -> bytes:
    """An event with one simple_value; a tag given as bytes need not be UTF-8."""
    placeholder = "\x01" * len(tag) if isinstance(tag, bytes) else tag
    event = Event(
        wall_time=1.7e9 + step if wall is None else wall,
        step=step,
        summary=Summary(value=[Summary.Value(tag=placeholder, simple_value=value)]),
    ).SerializeToString()
    return event.replace(placeholder.encode(), tag) if isinstance(tag, bytes) else event


def many(values: dict[str, float], step: int = 0) -> bytes:
    """An event with several simple_values."""
    summary = Summary(value=[Summary.Value(tag=t, simple_value=v) for t, v in values.items()])
    return Event(wall_time=1.7e9 + step, step=step, summary=summary).SerializeToString()


def tensor(tag: str, step: int, plugin: str = "scalars", **fields: object) -> bytes:
    """An event with a tensor; ``fields`` as in TensorProto, ``shape`` as a sequence."""
    event = Event(wall_time=1.7e9 + step, step=step)
    value = event.summary.value.add(tag=tag)
    value.metadata.plugin_data.plugin_name = plugin
    value.tensor.tensor_shape.SetInParent()
    for size in fields.pop("shape", ()):  # type: ignore[attr-defined]
        value.tensor.tensor_shape.dim.add(size=size)
    for name, content in fields.items():
        if isinstance(content, (list, tuple)):
            getattr(value.tensor, name).extend(content)
        else:
            setattr(value.tensor, name, content)
    return event.SerializeToString()


def write(directory: Path, payloads: Iterable[bytes], name: str = NAME) -> Path:
    """An event file with a version record and the payloads."""
    path = directory / name
    path.write_bytes(records([version(), *payloads]))
    return path
