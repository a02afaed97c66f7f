"""The compiled twin of `trajscope.readers.tensorboard.events`: one pass over the bytes, nothing allocated.

Frames, checksums (`trajscope.readers.tensorboard.checksum`), protos and the look-up of tags in one go. A record with
anything rare in it (a new tag, a session start, hyper-parameters, damage) is handed to the plain decoder whole. Lengths
are signed 64 bit; one that turns out negative is malformed. Every read is guarded by the end of the enclosing message.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from trajscope.readers.tensorboard.checksum import eight_bytes, masked_crc
from trajscope.readers.tensorboard.events import BIG, DTYPES, Kinds, Status

__all__ = ["decode_records", "scatter", "tag_hash"]

_NEED, _BAD_LENGTH, _FULL, _ODD = Status.NEED, Status.BAD_LENGTH, Status.FULL, Status.ODD
_OK = -1
_SIMPLE, _ONE = Kinds.SIMPLE, Kinds.ONE
_IMAGE, _TENSOR, _TEXT, _NOTHING = Kinds.IMAGE, Kinds.TENSOR, Kinds.TEXT, Kinds.NOTHING

#: dtype -> field of the typed list and bytes of an element; 0 where it is no number.
_LISTED = np.zeros(32, dtype=np.int64)
_SIZE = np.zeros(32, dtype=np.int64)
for _dtype, (_number, _bytes) in DTYPES.items():
    _LISTED[_dtype], _SIZE[_dtype] = _number, _bytes


@njit(cache=True)
def _little(buf: Any, pos: int, size: int) -> Any:
    """Little-endian number of ``size`` bytes; unsigned below 8 bytes."""
    value: Any = 0
    for k in range(size):
        value |= np.int64(buf[pos + k]) << (8 * k)
    return value


@njit(cache=True)
def _varint(buf: Any, pos: int, end: int) -> tuple[int, int]:
    """Value and next position; position -1 where there is none."""
    value: Any = 0
    shift = 0
    while pos < end and shift < 70:
        byte = np.int64(buf[pos])
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, pos
        shift += 7
    return 0, -1


@njit(cache=True)
def _field(buf: Any, pos: int, end: int) -> tuple[int, int, int, int]:
    """Next field: key, value or start, stop, next position (-1 where malformed)."""
    key: Any = np.int64(buf[pos])
    pos += 1
    if key > 127:
        key, pos = _varint(buf, pos - 1, end)
        if pos < 0:
            return 0, 0, 0, -1
    wire = key & 7
    if wire == 2:
        size, pos = _varint(buf, pos, end)
        if pos < 0 or size < 0 or size > end - pos:
            return 0, 0, 0, -1
        return key, pos, pos + size, pos + size
    if wire == 0:
        value, pos = _varint(buf, pos, end)
        return key, value, pos, pos
    width = 4 if wire == 5 else 8
    if (wire != 5 and wire != 1) or end - pos < width:
        return 0, 0, 0, -1
    return key, pos, pos + width, pos + width


@njit(cache=True)
def _shape(buf: Any, pos: int, end: int) -> tuple[int, int]:
    """Number of elements (saturated) and rank of a TensorShapeProto; -1 where malformed."""
    elements = 1
    rank = 0
    while pos < end:
        key, a, b, pos = _field(buf, pos, end)
        if pos < 0:
            return -1, 0
        if key == 18:
            size = 0
            while a < b:
                inner, value, _, a = _field(buf, a, b)
                if a < 0:
                    return -1, 0
                if inner == 8:
                    size = value
            rank += 1
            # Python multiplies the unsigned size and saturates; 0 and 1 are all that matters.
            if size == 0 or elements == 0:
                elements = 0
            elif size != 1 or elements != 1:
                elements = 2
    return elements, rank


@njit(cache=True)
def _tensor(buf: Any, start: int, end: int) -> tuple[int, int]:
    """Kind and bits of a TensorProto; kind -1 where malformed."""
    dtype = 0
    elements = 1
    rank = 0
    content = -1
    content_end = -1
    pos = start
    while pos < end:
        key, a, b, pos = _field(buf, pos, end)
        if pos < 0:
            return -1, 0
        if key == 8:
            dtype = a
        elif key == 18:
            more, dims = _shape(buf, a, b)
            if more < 0:
                return -1, 0
            rank += dims
            if more == 0 or elements == 0:
                elements = 0
            elif more != 1:
                elements = 2
        elif key == 34:
            content, content_end = a, b
    if dtype == 7:
        return _TEXT, 0
    if dtype < 0 or dtype > 31 or _LISTED[dtype] == 0 or elements != 1:
        return _TENSOR, 0
    kind = dtype + _ONE if rank else dtype
    size = _SIZE[dtype]
    if content_end > content:
        if content_end - content != size:
            return -1, 0
        bits = _little(buf, content, size)
        if (dtype == 3 or dtype == 5 or dtype == 6) and bits >> (8 * size - 1):
            bits -= 1 << (8 * size)
        return kind, bits
    pos = start
    while pos < end:
        key, a, b, pos = _field(buf, pos, end)
        if key >> 3 != _LISTED[dtype] or (key & 7 == 2 and a == b):
            continue
        wire = key & 7
        if dtype == 1 or dtype == 2:
            if wire == 0 or b - a < size:
                return -1, 0
            return kind, _little(buf, a, size)
        if wire == 2:
            value, after = _varint(buf, a, b)
            if after < 0:
                return -1, 0
            return kind, value
        if wire != 0:
            return -1, 0
        return kind, a
    return kind, 0


@njit(cache=True)
def tag_hash(buf: Any, start: int, length: int, kind: int) -> Any:
    """FNV-1a over tag and kind, folded."""
    h = np.int64(-3750763034362895579) ^ np.int64(kind)
    for i in range(start, start + length):
        h = (h ^ np.int64(buf[i])) * np.int64(1099511628211)
    return h ^ (h >> 29)


@njit(cache=True)
def _same(buf: Any, start: int, arena: Any, at: int, length: int) -> bool:
    i = 0
    while i + 8 <= length:
        if eight_bytes(buf, start + i) != eight_bytes(arena, at + i):
            return False
        i += 8
    while i < length:
        if buf[start + i] != arena[at + i]:
            return False
        i += 1
    return True


@njit(cache=True)
def _event(
    buf: Any,
    pos: int,
    end: int,
    book: Any,
    names: Any,
    slots: Any,
    successor: Any,
    last: Any,
    out: Any,
    n: int,
) -> tuple[int, int, int, int]:
    """Values of one event into ``out`` from ``n`` on: status, next ``n``, step and wall time as bits."""
    arena = names
    tag_at, tag_length, tag_kind, action = book[0], book[1], book[2], book[3]
    wall = 0
    step = 0
    odd = False
    first = n
    while pos < end:
        key, a, b, pos = _field(buf, pos, end)
        if pos < 0:
            return _ODD, first, 0, 0
        if key == 9:
            wall = _little(buf, a, 8)
        elif key == 16:
            step = a
        elif key == 58:
            odd = True
        if key != 42:
            continue
        while a < b:
            key, va, vb, a = _field(buf, a, b)
            if a < 0:
                return _ODD, first, 0, 0
            if key != 10:
                continue
            tag = node = va
            tag_n = node_n = 0
            kind = _NOTHING
            bits = 0
            while va < vb:
                key, fa, fb, va = _field(buf, va, vb)
                if va < 0:
                    return _ODD, first, 0, 0
                if key == 10:
                    tag, tag_n = fa, fb - fa
                elif key == 21:
                    kind, bits = _SIMPLE, _little(buf, fa, 4)
                elif key == 66:
                    kind, bits = _tensor(buf, fa, fb)
                    if kind < 0:
                        return _ODD, first, 0, 0
                elif key == 58:
                    node, node_n = fa, fb - fa
                elif key == 34 or key == 42 or key == 50:
                    kind = _IMAGE + (key >> 3) - 4
            if tag_n == 0:
                tag, tag_n = node, node_n
            # Tags come in the same order again and again: try the one that followed last time.
            series = successor[last[0]]
            if not (
                tag_length[series] == tag_n
                and tag_kind[series] == kind
                and _same(buf, tag, arena, tag_at[series], tag_n)
            ):
                places = slots.size - 1
                at = tag_hash(buf, tag, tag_n, kind) & places
                while True:
                    series = slots[at]
                    if series < 0:
                        return _ODD, first, 0, 0
                    if (
                        tag_length[series] == tag_n
                        and tag_kind[series] == kind
                        and _same(buf, tag, arena, tag_at[series], tag_n)
                    ):
                        break
                    at = (at + 1) & places
                successor[last[0]] = series
            last[0] = series
            odd |= action[series] == 2
            if n >= out.shape[1]:
                return _FULL, first, 0, 0
            out[0, n] = series
            out[1, n] = bits
            n += 1
    return _ODD if odd else _OK, n, step, wall


@njit(cache=True)
def decode_records(
    buf: Any,
    pos: int,
    end: int,
    row: int,
    tables: Any,
    book: Any,
    names: Any,
    skipped: Any,
    slots: Any,
    successor: Any,
    last: Any,
    out: Any,
    n: int,
    clock: Any,
) -> tuple[int, int, int, int]:
    """Decode whole records until something needs Python.

    Parameters
    ----------
    buf : ndarray of uint8
    pos, end, row : int
        As in `PythonDecoder.run`.
    tables : ndarray of uint32, shape (8, 256)
    book : ndarray of int64, shape (4, n_series)
        Of each series: place and length of its tag in ``names``, kind, action.
    names : ndarray of uint8
    skipped : ndarray of int64, shape (n_series,)
    slots : ndarray of int64
        Hash table with open addressing, a power of two long, -1 where empty.
    successor : ndarray of int64, shape (n_series,)
    last : ndarray of int64, shape (1,)
    out : ndarray of int64, shape (5, capacity)
        Series, bits, step, wall time (as bits), row.
    n : int
        Points in ``out`` already.
    clock : ndarray of int64, shape (2,)
        Whether an event was seen, and the wall time of the first one as bits.

    Returns
    -------
    status, pos, row, n : int
        Why and at which record it stopped.
    """
    action = book[3]
    while True:
        if end - pos < 12:
            return _NEED, pos, row, n
        if np.int64(masked_crc(buf, pos, 8, tables)) != _little(buf, pos + 8, 4):
            return _BAD_LENGTH, pos, row, n
        length = _little(buf, pos, 8)
        if length < 0 or length > end - pos - 16:
            return _NEED, pos, row, n
        start = pos + 12
        big = length >= BIG
        if not big and np.int64(masked_crc(buf, start, length, tables)) != _little(buf, start + length, 4):
            return _ODD, pos, row, n
        status, stop, step, wall = _event(buf, start, start + length, book, names, slots, successor, last, out, n)
        if status != _OK:
            return status, pos, row, n
        kept = 0
        for i in range(n, stop):
            if action[out[0, i]] == 0:
                kept += 1
        if big and kept and np.int64(masked_crc(buf, start, length, tables)) != _little(buf, start + length, 4):
            return _ODD, pos, row, n
        if clock[0] == 0:
            clock[0], clock[1] = 1, wall
        for i in range(n, stop):
            series = out[0, i]
            if action[series] != 0:
                skipped[series] += 1
                continue
            out[0, n] = series
            out[1, n] = out[1, i]
            out[2, n] = step
            out[3, n] = wall
            out[4, n] = row
            n += 1
        pos = start + length + 4
        row += 1


@njit(cache=True)
def scatter(
    number: Any,
    bits: Any,
    step: Any,
    wall: Any,
    row: Any,
    place: Any,
    to_bits: Any,
    to_step: Any,
    to_wall: Any,
    to_row: Any,
) -> None:
    """Put each point at the next free place of its series; ``place`` (of each series) moves on."""
    for i in range(number.size):
        at = place[number[i]]
        place[number[i]] = at + 1
        to_bits[at] = bits[i]
        to_step[at] = step[i]
        to_wall[at] = wall[i]
        to_row[at] = row[i]
