"""The records of a W&B transaction log: protobuf by field number, many records at a time.

Only the fields that carry logged values are read (field numbers of ``wandb_internal.Record``): 2 history, 3 summary,
5 config, 17 run, 18 exit. A history record is ``item = 1 {key = 1, nested_key = 2, value_json = 16}`` repeated and
``step = 2 {num = 1}``. All records of a batch are walked in lock-step: one vectorised pass reads the k-th field of
every record, so the cost in interpreted steps is that of the longest record and not of the file. Where few records are
left in step, a plain loop takes over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trajscope.readers._wandb_framing import PAD

__all__ = [
    "KINDS",
    "Fields",
    "Items",
    "binary",
    "contents",
    "items",
    "key_name",
    "numbers",
    "padded",
    "plain_fields",
    "varint",
    "walk",
]

Ints = NDArray[np.int64]

#: Below this many messages in step, the plain loop is quicker.
_FEW = 12


@dataclass(eq=False)
class Fields:
    """Fields of many messages, sorted by message and in order inside each.

    Attributes
    ----------
    owner : ndarray of int64
        Index of the message.
    number : ndarray of int64
        Field number.
    tag, start, end : ndarray of int64
        Where the field, its data and the next field begin; for a varint ``start`` holds the place of its bytes.
    broken : ndarray of bool, one a message
        Messages that end in the middle of a field; their good fields are kept.
    """

    owner: Ints
    number: Ints
    tag: Ints
    start: Ints
    end: Ints
    broken: NDArray[np.bool_]


def varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """One base-128 number and the position behind it.

    >>> varint(bytes([0xAC, 0x02]), 0)
    (300, 2)
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            return value, position
        shift += 7


def plain_fields(
    data: bytes | memoryview, position: int = 0, end: int | None = None
) -> Iterator[tuple[int, int, int, int, int]]:
    """(field number, tag position, start, end, wire type) of one message; stops quietly where it is damaged.

    A final entry with field number -1 says that it was.
    """
    stop = len(data) if end is None else end
    while position < stop:
        tag = position
        try:
            key, position = varint(data, position)
            wire = key & 7
            start = position
            if wire == 2:
                length, start = varint(data, position)
                position = start + length
            elif wire == 0:
                _, position = varint(data, position)
            elif wire in (1, 5):
                position += 8 if wire == 1 else 4
            else:
                position = stop + 1
        except IndexError:
            position = stop + 1
        if position > stop:
            yield -1, tag, tag, stop, -1
            return
        yield key >> 3, tag, start, position, wire


#: Oneof fields of a Record that are read, by number.
KINDS = {2: "history", 3: "summary", 4: "output", 5: "config", 7: "stats", 13: "output", 17: "run", 18: "exit"}


def contents(data: NDArray[np.uint8], start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Field number of the content of each record ``data[start[i]:end[i]]`` (0: none known) and where it lies."""
    fields = walk(data, start, end)
    known = np.flatnonzero(np.isin(fields.number, list(KINDS)))[::-1]
    kind, first, last = (np.zeros(start.size, dtype=np.int64) for _ in range(3))
    # Assigned in reverse, so that the first known field of a record is the one that stays.
    kind[fields.owner[known]] = fields.number[known]
    first[fields.owner[known]] = fields.start[known]
    last[fields.owner[known]] = fields.end[known]
    return kind, first, last


def _varints(data: NDArray[np.uint8], position: Ints) -> tuple[Ints, Ints]:
    byte = data[position]
    value: Ints = (byte & 0x7F).astype(np.int64)
    after = position + 1
    more = np.flatnonzero(byte >= 0x80)
    shift = 7
    while more.size and shift < 63:
        byte = data[np.minimum(after[more], data.size - 1)]
        value[more] |= (byte & 0x7F).astype(np.int64) << shift
        after[more] += 1
        more = more[byte >= 0x80]
        shift += 7
    value[more] = data.size  # longer than 63 bits: no length in this file
    return np.minimum(value, data.size), after


def walk(data: NDArray[np.uint8], start: Ints, end: Ints) -> Fields:
    """Read the fields of all messages ``data[start[i]:end[i]]``.

    Parameters
    ----------
    data : ndarray of uint8
        Ends with at least 16 bytes that belong to no message.
    start, end : ndarray of int64, shape (n_messages,)
    """
    parts: list[tuple[Ints, ...]] = []
    broken = np.zeros(start.size, dtype=bool)
    active = np.flatnonzero(end > start)
    position = start[active]
    while active.size > _FEW:
        stop = end[active]
        key, after = _varints(data, position)
        wire = key & 7
        begin = after.copy()
        two = wire == 2
        if two.all():
            length, begin = _varints(data, after)
            after = begin + length
        else:
            if two.any():
                length, begin[two] = _varints(data, after[two])
                after[two] = begin[two] + length
            zero = wire == 0
            if zero.any():
                after[zero] = _varints(data, after[zero])[1]
            after[wire == 1] += 8
            after[wire == 5] += 4
            after[(wire == 3) | (wire == 4) | (wire > 5)] = data.size
        good = after <= stop
        if not good.all():
            broken[active[~good]] = True
            active, key, position, begin, after, stop = (a[good] for a in (active, key, position, begin, after, stop))
        parts.append((active, key >> 3, position, begin, after))
        on = after < stop
        active, position = active[on], after[on]
    if active.size:
        parts.append(_plain(data, active, position, end[active], broken))
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return Fields(none, none, none, none, none, broken)
    owner, number, tag, begin, after = (np.concatenate([p[k] for p in parts]) for k in range(5))
    if len(parts) > 1:
        order = np.argsort(owner, kind="stable")
        owner, number, tag, begin, after = (a[order] for a in (owner, number, tag, begin, after))
    return Fields(owner, number, tag, begin, after, broken)


def _plain(
    data: NDArray[np.uint8], active: Ints, position: Ints, stop: Ints, broken: NDArray[np.bool_]
) -> tuple[Ints, ...]:
    low = int(position.min())
    raw = data[low : int(stop.max())].tobytes()
    rows: list[tuple[int, int, int, int, int]] = []
    for message, at, until in zip(active.tolist(), position.tolist(), stop.tolist(), strict=True):
        for number, tag, begin, after, _ in plain_fields(raw, at - low, until - low):
            if number < 0:
                broken[message] = True
            else:
                rows.append((message, number, tag + low, begin + low, after + low))
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return tuple(np.ascontiguousarray(table[:, k]) for k in range(5))


@dataclass(eq=False)
class Items:
    """Items (key and JSON text) of a batch of history, summary or config records.

    Attributes
    ----------
    record : ndarray of int64
        Index of the record in the batch.
    key_start, key_end, value_start, value_end : ndarray of int64
        Where the key fields (with their tags) and the JSON text lie.
    """

    record: Ints
    key_start: Ints
    key_end: Ints
    value_start: Ints
    value_end: Ints


def items(data: NDArray[np.uint8], fields: Fields) -> tuple[Items, NDArray[np.bool_]]:
    """The items among the fields of records, and which records are damaged inside."""
    chosen = np.flatnonzero(fields.number == 1)
    record = fields.owner[chosen]
    inner = walk(data, fields.start[chosen], fields.end[chosen])
    broken = fields.broken.copy()
    broken[record[inner.broken]] = True
    n = chosen.size
    key_start = np.full(n, data.size, dtype=np.int64)
    key_end = np.zeros(n, dtype=np.int64)
    value_start, value_end = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    key = (inner.number == 1) | (inner.number == 2)
    # Fields are in order, so the first write of a reversed array is the first field: the key's region.
    key_start[inner.owner[key][::-1]] = inner.tag[key][::-1]
    key_end[inner.owner[key]] = inner.end[key]
    value = inner.number == 16
    value_start[inner.owner[value]] = inner.start[value]
    value_end[inner.owner[value]] = inner.end[value]
    whole = (key_end > key_start) & (value_end > value_start)
    return Items(*(a[whole] for a in (record, key_start, key_end, value_start, value_end))), broken


def key_name(region: bytes) -> str:
    """The channel name in a key region: ``key``, or the parts of ``nested_key`` joined with dots.

    >>> key_name(bytes([0x12, 1]) + b"a" + bytes([0x12, 1]) + b"b")
    'a.b'
    """
    key, nested = "", []
    for number, _, start, end, wire in plain_fields(region):
        if wire == 2 and number in (1, 2):
            text = region[start:end].decode("utf-8", "replace")
            if number == 1:
                key = text
            else:
                nested.append(text)
    return ".".join(nested) if nested else key


def binary(data: NDArray[np.uint8], start: Ints, end: Ints, *, text: bool = False) -> Any:
    """The slices ``data[start[i]:end[i]]`` as an Arrow array, gathered without a loop."""
    lengths = end - start
    offsets = np.zeros(start.size + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    place = np.repeat(start - offsets[:-1], lengths)
    place += np.arange(place.size)
    gathered = data[place]
    kind = pa.string() if text else pa.binary()
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(gathered)]
    return pa.Array.from_buffers(kind, start.size, buffers)


def numbers(array: Any, dtype: Any) -> NDArray[Any]:
    """The values of an Arrow array without nulls; Arrow's own conversion would import pandas (half a second)."""
    if not len(array):
        return np.zeros(0, dtype=dtype)
    width = np.dtype(dtype).itemsize
    return np.frombuffer(array.buffers()[1], dtype=dtype, count=len(array), offset=array.offset * width)


def padded(pieces: list[memoryview]) -> tuple[NDArray[np.uint8], Ints, Ints]:
    """The pieces joined for `walk`, with where each starts and ends."""
    ends = np.cumsum([len(p) for p in pieces], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])
    return np.frombuffer(b"".join([*pieces, bytes(PAD)]), dtype=np.uint8), starts, ends
