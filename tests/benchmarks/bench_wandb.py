"""CPU time of reading `.wandb` files: trajscope against a straightforward pure-Python reader.

Two files are made: one with the shares that 37 recorded files had (27 % of the payload bytes are history, 37 % system
statistics, 28 % summaries, 8 % console output) and one that is history only. The rival follows the documented framing
with `struct`, `zlib.crc32`, a varint loop and `json.loads`, skips records that are neither history nor summary by their
field number, collects lists that become arrays at the end and parses only the last summary value of each key. Both
deliver the same values and the same summary; that is checked first.

Run: ``python tests/benchmarks/bench_wandb.py``
"""

from __future__ import annotations

import json
import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trajscope.readers._wandb_framing import framed
from trajscope.readers.base import ReadOptions
from trajscope.readers.wandb_offline import READER


def number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(field: int, content: bytes) -> bytes:
    return number(field << 3 | 2) + number(len(content)) + content


def item(name: str, text: str) -> bytes:
    return message(1, message(2, name.encode()) + message(16, text.encode()))


def make(rows: int, channels: int, others: bool, seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, channels))
    payloads = []
    for r in range(rows):
        items = [item(f"train/metric_{c}", repr(float(values[r, c]))) for c in range(channels)]
        items += [item("_timestamp", repr(1.7e9 + r * 0.25)), item("_runtime", repr(r * 0.25)), item("_step", str(r))]
        order = rng.permutation(len(items))
        head = b"\x08" + number(len(payloads) + 1)
        history = b"".join(items[i] for i in order) + message(2, b"\x08" + number(r))
        payloads.append(head + message(2, history))
        if others:
            payloads.append(head + message(3, history))
            payloads.append(head + message(7, b"\x08\x01" + bytes(int(len(history) * 37 / 27))))
            payloads.append(head + message(13, b"line of output " * max(1, int(len(history) * 8 / 27 / 15))))
    return framed(payloads)


def varint(data: bytes, i: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[i]
        i += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, i
        shift += 7


def fields(data: bytes) -> list[tuple[int, Any]]:
    out = []
    i = 0
    while i < len(data):
        tag, i = varint(data, i)
        if tag & 7 == 2:
            length, i = varint(data, i)
            out.append((tag >> 3, data[i : i + length]))
            i += length
        elif tag & 7 == 0:
            value, i = varint(data, i)
            out.append((tag >> 3, value))
        else:
            i += 8 if tag & 7 == 1 else 4
    return out


def parts_of(entry: bytes) -> tuple[str, bytes]:
    keys, text = [], b""
    for field, part in fields(entry):
        if field in (1, 2):
            keys.append(part.decode())
        elif field == 16:
            text = part
    return ".".join(keys), text


def pure_python(path: Path) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], dict[str, Any]]:
    data = path.read_bytes()
    summary: dict[str, bytes] = {}
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    position, parts = 7, []
    while position + 7 <= len(data):
        room = 32768 - position % 32768
        if room < 7:
            position += room
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, position)
        chunk = data[position + 7 : position + 7 + length]
        if zlib.crc32(bytes([kind]) + chunk) != crc:
            break
        position += 7 + length
        parts.append(chunk)
        if kind not in (1, 4):
            continue
        payload, parts = b"".join(parts), []
        for field, content in fields(payload):
            if field == 3:
                summary.update(parts_of(entry) for inner, entry in fields(content) if inner == 1)
            if field != 2:
                continue
            row: dict[str, Any] = {}
            for inner, entry in fields(content):
                if inner == 1:
                    name, text = parts_of(entry)
                    row[name] = json.loads(text)
            step = row.get("_step")
            for name, value in row.items():
                if isinstance(value, int | float):
                    steps.setdefault(name, []).append(step)
                    values.setdefault(name, []).append(value)
    series = {n: (np.array(steps[n]), np.array(values[n], dtype=float)) for n in steps}
    return series, {n: json.loads(text) for n, text in summary.items()}


def ours(path: Path) -> Any:
    return READER.sources([path], "", ReadOptions(path))[0]


def cpu(call: Callable[[], Any], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    print(f"{'file':32} {'MB':>6} {'values':>8} {'pure':>8} {'ours':>8} {'MB/s':>7} {'ratio':>6}")
    cases = {
        "recorded shares, 8 channels": (12000, 8, True),
        "recorded shares, 100 channels": (1200, 100, True),
        "history only, 8 channels": (40000, 8, False),
        "history only, 1000 channels": (400, 1000, False),
        "small file, 100 rows": (100, 8, True),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, (rows, channels, others) in cases.items():
            path = Path(folder) / "run-bench.wandb"
            path.write_bytes(make(rows, channels, others))
            (expected, summary), source = pure_python(path), ours(path)
            got = source.series
            assert source.summary == summary, "the summaries differ"
            for channel, series in got.items():
                np.testing.assert_array_equal(series.steps, expected[channel][0])
                np.testing.assert_array_equal(series.values, expected[channel][1])
            size = path.stat().st_size / 1e6
            slow, quick = cpu(lambda p=path: pure_python(p), 3), cpu(lambda p=path: ours(p), 5)
            points = sum(s.steps.size for s in got.values())
            row = f"{name:32} {size:6.1f} {points:8d} {slow:7.3f}s {quick:7.3f}s"
            print(f"{row} {size / quick:7.0f} {slow / quick:6.1f}")


if __name__ == "__main__":
    main()
