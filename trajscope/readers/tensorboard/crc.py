"""CRC-32C as TFRecord files use it, for one string or for many at once without a compiler.

CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) of a message m is linear over GF(2) apart from the initial state
0xFFFFFFFF. Two facts carry this module:

* Starting with 0xFFFFFFFF is the same as inverting the first four bytes and starting with 0; a state of 0 is not moved
  by zero bytes. Messages of different lengths can therefore be padded with zeros in front and run in lock-step.
* The state after a followed by b is ``shift(state(a), len(b)) ^ state(b)``, where ``shift`` feeds zero bytes. A long
  message is cut into lanes that run in lock-step and are joined at the end.

TFRecord stores ``mask(c) = rotate_right(c, 15) + 0xA282EAD8`` (tensorflow/core/lib/hash/crc32c.h).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["TABLES", "crc32c", "find_headers", "mask", "masked_many"]

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
#: Messages longer than this are cut into lanes of this many bytes.
_LANE = 1024


def _tables() -> NDArray[np.uint32]:
    """Tables of slicing-by-8 (Kounavis and Berry 2008): row k moves a byte over k further zero bytes."""
    table = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        state = byte
        for _ in range(8):
            state = (state >> 1) ^ (_POLYNOMIAL if state & 1 else 0)
        table[0, byte] = state
    for k in range(1, 8):
        table[k] = (table[k - 1] >> 8) ^ table[0][table[k - 1] & 0xFF]
    table.flags.writeable = False
    return table


TABLES = _tables()
_BYTES = TABLES[0].tolist()


def crc32c(data: bytes) -> int:
    """CRC-32C of a string.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    if len(data) > 2 * _LANE:
        return _long(np.frombuffer(data, dtype=np.uint8))
    state = 0xFFFFFFFF
    table = _BYTES
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def mask(crc: int) -> int:
    """The form in which TFRecord stores a CRC."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def masked_many(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Masked CRC-32C of many stretches of one buffer.

    Parameters
    ----------
    data : ndarray of uint8
    starts, lengths : ndarray of int64, shape (n,)

    Returns
    -------
    ndarray of uint32, shape (n,)
    """
    crc = np.zeros(starts.size, dtype=np.uint32)
    special = (lengths < 4) | (lengths > 2 * _LANE)
    for i in np.flatnonzero(special).tolist():
        start, length = int(starts[i]), int(lengths[i])
        crc[i] = crc32c(data[start : start + length].tobytes())
    rest = np.flatnonzero(~special)
    rest = rest[np.argsort(lengths[rest], kind="stable")]
    while rest.size:
        # Stretches up to a quarter longer than the shortest share a batch: little padding, few batches.
        limit = int(lengths[rest[0]]) * 5 // 4 + 4
        n = min(int(np.searchsorted(lengths[rest], limit, side="right")), 1 << 14)
        batch, rest = rest[:n], rest[n:]
        width = int(lengths[batch[-1]])
        columns = np.arange(width, dtype=np.int64)[:, None] - (width - lengths[batch])
        block = data[np.maximum(columns, 0) + starts[batch]]
        block[columns < 0] = 0
        block[(columns >= 0) & (columns < 4)] ^= 0xFF
        crc[batch] = _lock_step(block) ^ np.uint32(0xFFFFFFFF)
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(_MASK_DELTA)


def _lock_step(block: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """States after the columns of ``block`` (bytes by messages), each starting from 0."""
    state = np.zeros(block.shape[1], dtype=np.uint32)
    table = TABLES[0]
    for row in block:
        state = table[(state ^ row) & np.uint32(0xFF)] ^ (state >> np.uint32(8))
    return state


def _long(data: NDArray[np.uint8]) -> int:
    lanes = -(-data.size // _LANE)
    padded = np.zeros(lanes * _LANE, dtype=np.uint8)
    first = padded.size - data.size
    padded[first:] = data
    padded[first : first + 4] ^= 0xFF
    shift = _shift_tables()
    state = 0
    for lane in _lock_step(np.ascontiguousarray(padded.reshape(lanes, _LANE).T)).tolist():
        moved = (
            shift[0][state & 0xFF] ^ shift[1][state >> 8 & 0xFF] ^ shift[2][state >> 16 & 0xFF] ^ shift[3][state >> 24]
        )
        state = moved ^ lane
    return state ^ 0xFFFFFFFF


@lru_cache(maxsize=1)
def _shift_tables() -> list[list[int]]:
    """For each byte of a state, where `_LANE` zero bytes move it."""
    state = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32)[:, None])
    for _ in range(_LANE):
        state = TABLES[0][state & np.uint32(0xFF)] ^ (state >> np.uint32(8))
    found: list[list[int]] = state.tolist()
    return found


def find_headers(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Positions at which a record header (length and its CRC) could stand and checks."""
    n = data.size - 11
    if n <= 0:
        return np.zeros(0, dtype=np.int64)
    # No record is longer than 2**40 bytes, so three zero bytes go before anything is computed.
    places = np.flatnonzero((data[5 : n + 5] | data[6 : n + 6] | data[7 : n + 7]) == 0)
    if not places.size:
        return np.zeros(0, dtype=np.int64)
    crc = masked_many(data, places, np.full(places.size, 8, dtype=np.int64))
    stored = np.zeros(places.size, dtype=np.uint32)
    for k in range(4):
        stored |= data[places + (8 + k)].astype(np.uint32) << np.uint32(8 * k)
    found: NDArray[np.int64] = places[crc == stored]
    return found
