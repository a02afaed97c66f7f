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

import numpy as np

__all__ = ["HEADER", "MAGIC", "Framing", "framed", "records"]

BLOCK = 32768
HEADER = 7
MAGIC = b":W&B\xe1\xbe\x00"
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

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


def records(data: bytes, found: Framing) -> Iterator[memoryview]:
    """The payloads of all good records in file order; losses are entered in ``found``."""
    view = memoryview(data)
    crc32, unpack = zlib.crc32, _CHUNK.unpack_from
    size = len(data)
    position = HEADER
    parts: list[memoryview] = []
    opened = -1
    while position < size:
        room = BLOCK - position % BLOCK
        if room < HEADER:
            position += room
            continue
        if size - position < HEADER:
            _tail(data, position, found)
            break
        checksum, length, kind = unpack(data, position)
        end = position + HEADER + length
        if kind == 0 and length == 0 and checksum == 0:
            stop = min(position + room, size)
            if data.count(0, position, stop) != stop - position:
                position = _resume(data, position, found)
                continue
            if data.count(0, position) == size - position:
                found.zeros = position
                break
            found.bad.append(position)
            found.skipped += stop - position
            position = stop
            continue
        if length > room - HEADER or kind > LAST or kind == 0:
            position = _resume(data, position, found)
            continue
        if end > size:
            found.truncated = opened if opened >= 0 else position
            opened = -1
            break
        if crc32(view[position + 6 : end]) != checksum:
            if opened >= 0:
                found.broken.append(opened)
                opened, parts = -1, []
            position = _resume(data, position, found)
            continue
        if kind == FULL:
            if opened >= 0:
                found.broken.append(opened)
                opened, parts = -1, []
            yield view[position + HEADER : end]
        elif kind == FIRST:
            if opened >= 0:
                found.broken.append(opened)
            opened, parts = position, [view[position + HEADER : end]]
        elif opened < 0:
            # The record's beginning was lost, and with it counted, at an earlier place.
            if not found.bad:
                found.broken.append(position)
        else:
            parts.append(view[position + HEADER : end])
            if kind == LAST:
                yield memoryview(b"".join(parts))
                opened, parts = -1, []
        position = end
    if opened >= 0 and found.truncated < 0:
        found.truncated = opened


def _tail(data: bytes, position: int, found: Framing) -> None:
    """Too few bytes for a chunk header are left."""
    if data.count(0, position) == len(data) - position:
        found.zeros = position
    else:
        found.truncated = position


def _good(data: bytes, position: int) -> int:
    """End of a chunk that starts at ``position`` and passes its checksum, or -1."""
    room = BLOCK - position % BLOCK
    if room < HEADER or len(data) - position < HEADER:
        return -1
    checksum, length, kind = _CHUNK.unpack_from(data, position)
    end: int = position + HEADER + length
    if not FULL <= kind <= LAST or length > room - HEADER or end > len(data):
        return -1
    return end if zlib.crc32(memoryview(data)[position + 6 : end]) == checksum else -1


def _resume(data: bytes, position: int, found: Framing) -> int:
    """Where to go on behind a bad chunk: behind its stated length, at the next good chunk, or at the next block."""
    found.bad.append(position)
    room = BLOCK - position % BLOCK
    stop = min(position + room, len(data))
    length = int.from_bytes(data[position + 4 : position + 6], "little")
    stated = position + HEADER + length
    if stated < stop and _good(data, stated) > 0:
        found.skipped += stated - position
        return stated
    if stop - stated < HEADER and stated <= stop:
        found.skipped += stop - position  # the chunk filled its block
        return stop
    block = np.frombuffer(data, np.uint8, stop - position, position)
    kinds = block[6:]
    starts = np.flatnonzero((kinds >= FULL) & (kinds <= LAST))
    starts = starts[starts > 0]
    lengths = block[starts + 4].astype(np.int64) + 256 * block[starts + 5].astype(np.int64)
    fits = starts + HEADER + lengths <= stop - position
    budget = _SEARCH_BUDGET
    for start, long in zip(starts[fits].tolist(), lengths[fits].tolist(), strict=True):
        if _good(data, position + start) > 0:
            found.skipped += start
            return position + int(start)
        budget -= long
        if budget < 0:
            break
    found.skipped += stop - position
    return stop


def framed(payloads: list[bytes]) -> bytes:
    """The bytes of a ``.wandb`` file that holds the given records (for tests, demonstrations and benchmarks).

    >>> list(map(bytes, records(framed([b"one", b"two" * 20000]), Framing()))) == [b"one", b"two" * 20000]
    True
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
