"""The compiled decoder: Python keeps the books, `trajscope.readers.tensorboard.kernel` goes through the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.readers.tensorboard.crc import TABLES
from trajscope.readers.tensorboard.events import Findings, PythonDecoder, Registry, Status
from trajscope.readers.tensorboard.kernel import decode_records, tag_hash

__all__ = ["CompiledDecoder"]

#: Points between two visits to Python; an event with more values than that goes through the plain decoder.
CAPACITY = 1 << 16


class CompiledDecoder:
    """Decode records at the speed of memory; same contract and same result as `PythonDecoder`."""

    def __init__(self, registry: Registry, found: Findings) -> None:
        self._registry = registry
        self._found = found
        self._plain = PythonDecoder(registry, found)
        self._out = np.zeros((5, CAPACITY), dtype=np.int64)
        self._n = 0
        self._parts: list[tuple[NDArray[Any], ...]] = []
        self._clock = np.zeros(2, dtype=np.int64)
        self._last = np.zeros(1, dtype=np.int64)
        # Series 0 is a dummy that no tag can match, so that there always is a successor to try.
        self._count = 1
        self._names = np.zeros(1 << 10, dtype=np.uint8)
        self._used = 0
        self._book = np.zeros((4, 64), dtype=np.int64)
        self._book[1, 0] = -1
        self._skipped = np.zeros(64, dtype=np.int64)
        self._successor = np.zeros(64, dtype=np.int64)
        self._slots = np.full(256, -1, dtype=np.int64)

    def run(self, data: NDArray[np.uint8], pos: int, end: int, base: int, row: int) -> tuple[int, int, int]:
        """Decode whole records (`PythonDecoder.run`)."""
        while True:
            status, pos, row, self._n = decode_records(
                data,
                pos,
                end,
                row,
                TABLES,
                self._book,
                self._names,
                self._skipped,
                self._slots,
                self._successor,
                self._last,
                self._out,
                self._n,
                self._clock,
            )
            if status in (Status.NEED, Status.BAD_LENGTH):
                self._settle()
                return status, pos, row
            if status == Status.FULL and self._n:
                self._flush()
                continue
            size = 16 + int.from_bytes(data[pos : pos + 8].tobytes(), "little")
            self._settle()
            self._flush()
            _, pos, row = self._plain.run(data, pos, pos + size, base, row)
            self._parts.append(self._plain.columns())
            for number in range(self._count - 1, len(self._registry.tags)):
                self._note(number)

    def _note(self, registered: int) -> None:
        """Enter a series of the registry into the kernel's books; double what is full."""
        tag = np.frombuffer(self._registry.tags[registered], dtype=np.uint8)
        number = self._count
        if number == self._book.shape[1]:
            self._book = np.concatenate([self._book, np.zeros_like(self._book)], axis=1)
            self._skipped = np.concatenate([self._skipped, np.zeros_like(self._skipped)])
            self._successor = np.concatenate([self._successor, np.zeros_like(self._successor)])
        while self._used + tag.size > self._names.size:
            self._names = np.concatenate([self._names, np.zeros_like(self._names)])
        self._names[self._used : self._used + tag.size] = tag
        kind, action = self._registry.kinds[registered], self._registry.actions[registered]
        self._book[:, number] = (self._used, tag.size, kind, action)
        self._used += tag.size
        self._count += 1
        if 2 * self._count > self._slots.size:
            self._slots = np.full(2 * self._slots.size, -1, dtype=np.int64)
            for old in range(1, self._count):
                self._place(old)
        else:
            self._place(number)

    def _place(self, number: int) -> None:
        start, length, kind, _ = self._book[:, number].tolist()
        last = self._slots.size - 1
        at = tag_hash(self._names, start, length, kind) & last
        while self._slots[at] >= 0:
            at = (at + 1) & last
        self._slots[at] = number

    def _settle(self) -> None:
        """Hand what the kernel counted to the registry."""
        counted = self._skipped[1 : self._count]
        for number in np.flatnonzero(counted).tolist():
            self._registry.skipped[number] += int(counted[number])
        counted[:] = 0
        if self._found.first_wall is None and self._clock[0]:
            self._found.first_wall = float(self._clock[1:2].view(np.float64)[0])

    def _flush(self) -> None:
        """Move the points out of the kernel's buffer."""
        series, bits, step, wall, row = self._out[:, : self._n]
        if self._n:
            part = ((series - 1).astype(np.int32), bits.copy(), step.copy(), wall.copy().view(np.float64), row.copy())
            self._parts.append(part)
        self._n = 0

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Points since the last call (`PythonDecoder.columns`)."""
        self._flush()
        parts, self._parts = self._parts, []
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return self._plain.columns()
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))
