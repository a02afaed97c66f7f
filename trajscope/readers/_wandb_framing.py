"""The transaction log of W&B runs: chunks, checksums, records.

A ``.wandb`` file is a 7-byte header (``:W&B``, the 16-bit number 0xBEE1 and a version byte 0) and then chunks in the
log layout of LevelDB: blocks of 32,768 bytes counted from the start of the file, header included; a chunk is
``u32 checksum, u16 length, u8 type, data`` (little endian; types FULL, FIRST, MIDDLE, LAST) and never crosses a block;
fewer than 7 bytes at the end of a block are zero padding. The checksum is the plain CRC-32 of zlib over the type byte
and the data (LevelDB's own is a masked CRC-32C). A record is a FULL chunk, or FIRST, MIDDLE..., LAST joined.

Everything here works on bytes and never raises for damage: what is lost is counted in `Framing`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

__all__ = ["HEADER", "MAGIC", "PAD", "Batch", "Framing", "batches", "framed", "load"]

BLOCK = 32768
HEADER = 7
MAGIC = b":W&B\xe1\xbe\x00"
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

#: Zeros behind the file in memory, so that a number cut off by the end of the file can be read like any other.
PAD = 16

#: Bytes that the search for the next good chunk may checksum inside one damaged block.
_SEARCH_BUDGET = 4 * 1024 * 1024

_CHUNK = struct.Struct("<IHB")


@dataclass
class Framing:
    """What the framing lost.

    Attributes
    ----------
    bad : list of int
        Byte positions of chunks that fail their checksum or are no chunks; reading went on behind each.
    skipped : int
        Bytes passed over because of them.
    broken : list of int
        Byte positions of records that lack a part.
    zeros : int
        Position from which the file holds nothing but zeros, -1 where it does not.
    truncated : int
        Position of a last record that the file does not hold whole, -1 where there is none.
    """

    bad: list[int] = field(default_factory=list)
    skipped: int = 0
    broken: list[int] = field(default_factory=list)
    zeros: int = -1
    truncated: int = -1


@dataclass(eq=False)
class Batch:
    """Records in file order.

    Attributes
    ----------
    start, end : ndarray of int64, shape (n_records,)
        Where each payload lies in the file; -1 for a record that was joined from parts.
    joined : dict of int to bytes
        Payloads that were joined, by position in the batch.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    joined: dict[int, bytes]


def load(stream: BinaryIO, size: int) -> NDArray[np.uint8]:
    """The first ``size`` bytes of a file, followed by `PAD` zeros that belong to no record."""
    data = np.zeros(size + PAD, dtype=np.uint8)
    got = stream.readinto(data.data[:size])  # type: ignore[attr-defined]
    return data[: got + PAD]


def batches(data: NDArray[np.uint8], found: Framing, records: int = 8192) -> Iterator[Batch]:
    """The good records of a file loaded with `load`; losses are entered in ``found``."""
    view = data.data
    crc32, unpack = zlib.crc32, _CHUNK.unpack_from
    size = data.size - PAD
    position = HEADER
    starts: list[int] = []
    ends: list[int] = []
    joined: dict[int, bytes] = {}
    parts: list[memoryview] = []
    opened = -1
    while position < size:
        room = BLOCK - position % BLOCK
        if room < HEADER:
            position += room
            continue
        if size - position < HEADER:
            if data[position:size].any():
                found.truncated = position
            else:
                found.zeros = position
            break
        checksum, length, kind = unpack(view, position)
        end = position + HEADER + length
        if kind == 0 and length == 0 and checksum == 0:
            position = _zeros(data, position, room, found)
        elif length > room - HEADER or not FULL <= kind <= LAST:
            position = _resume(data, position, found)
        elif end > size and (later := _search(data, position)) >= 0:
            # Not the end of the log: the length is damaged, and good chunks follow.
            found.bad.append(position)
            found.skipped += later - position
            if opened >= 0:
                found.broken.append(opened)
                opened, parts = -1, []
            position = later
        elif end > size:
            found.truncated = opened if opened >= 0 else position
            opened = -1
            break
        elif crc32(view[position + 6 : end]) != checksum:
            if opened >= 0:
                found.broken.append(opened)
                opened, parts = -1, []
            position = _resume(data, position, found)
        else:
            if kind in (FULL, FIRST) and opened >= 0:
                found.broken.append(opened)
                opened, parts = -1, []
            if kind == FULL:
                starts.append(position + HEADER)
                ends.append(end)
            elif kind == FIRST:
                opened, parts = position, [view[position + HEADER : end]]
            elif opened >= 0:
                parts.append(view[position + HEADER : end])
                if kind == LAST:
                    joined[len(starts)] = b"".join(parts)
                    starts.append(-1)
                    ends.append(-1)
                    opened, parts = -1, []
            elif not found.bad and not found.broken:
                found.broken.append(position)  # its beginning is not in the file
            position = end
            if len(starts) >= records:
                yield Batch(np.array(starts), np.array(ends), joined)
                starts, ends, joined = [], [], {}
    if opened >= 0 and found.truncated < 0:
        found.truncated = opened
    if starts:
        yield Batch(np.array(starts), np.array(ends), joined)


def _zeros(data: NDArray[np.uint8], position: int, room: int, found: Framing) -> int:
    """Where to go on at a chunk header of zeros: the end of the file, the next block, or the next good chunk."""
    size = data.size - PAD
    stop = min(position + room, size)
    if data[position:stop].any():
        return _resume(data, position, found)
    if not data[position:size].any():
        found.zeros = position
        return size
    found.bad.append(position)
    found.skipped += stop - position
    return stop


def _good(data: NDArray[np.uint8], position: int) -> bool:
    """Whether a chunk starts at ``position`` and passes its checksum."""
    room = BLOCK - position % BLOCK
    size = data.size - PAD
    if room < HEADER or size - position < HEADER:
        return False
    checksum, length, kind = _CHUNK.unpack_from(data.data, position)
    end = position + HEADER + length
    if not FULL <= kind <= LAST or length > room - HEADER or end > size:
        return False
    return bool(zlib.crc32(data.data[position + 6 : end]) == checksum)


def _resume(data: NDArray[np.uint8], position: int, found: Framing) -> int:
    """Where to go on behind a bad chunk: behind its stated length, at the next good chunk, or at the next block."""
    found.bad.append(position)
    stop = min(position + BLOCK - position % BLOCK, data.size - PAD)
    stated = position + HEADER + int(data[position + 4]) + 256 * int(data[position + 5])
    if stated < stop and _good(data, stated):
        found.skipped += stated - position
        return stated
    later = _search(data, position)
    following = stop if later < 0 else later
    found.skipped += following - position
    return following


def _search(data: NDArray[np.uint8], position: int) -> int:
    """The next good chunk behind ``position`` in its block, or -1."""
    stop = min(position + BLOCK - position % BLOCK, data.size - PAD)
    block = data[position:stop]
    kinds = block[6:]
    starts = np.flatnonzero((kinds >= FULL) & (kinds <= LAST))
    starts = starts[starts > 0]
    lengths = block[starts + 4].astype(np.int64) + 256 * block[starts + 5].astype(np.int64)
    fits = starts + HEADER + lengths <= stop - position
    budget = _SEARCH_BUDGET
    for start, long in zip(starts[fits].tolist(), lengths[fits].tolist(), strict=True):
        if _good(data, position + start):
            return position + int(start)
        budget -= long
        if budget < 0:
            break
    return -1


def framed(payloads: list[bytes]) -> bytes:
    """The bytes of a ``.wandb`` file that holds the given records (for tests, demonstrations and benchmarks).

    >>> import io
    >>> log = framed([b"one", b"two" * 20000])
    >>> [batch] = batches(load(io.BytesIO(log), len(log)), Framing())
    >>> log[batch.start[0] : batch.end[0]], len(batch.joined[1])
    (b'one', 60000)
    """
    out = bytearray(MAGIC)
    for payload in payloads:
        rest = memoryview(payload)
        first = True
        while True:
            room = BLOCK - len(out) % BLOCK
            if room < HEADER:
                out += bytes(room)
                room = BLOCK
            piece = rest[: room - HEADER]
            rest = rest[len(piece) :]
            last = not len(rest)
            kind = FULL if first and last else FIRST if first else LAST if last else MIDDLE
            body = bytes([kind]) + bytes(piece)
            out += _CHUNK.pack(zlib.crc32(body), len(piece), kind) + piece
            first = False
            if last:
                break
    return bytes(out)
