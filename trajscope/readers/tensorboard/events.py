"""Event protos in plain Python: what a record holds, and the decoder for small files.

Layout (tensorflow/core/util/event.proto, framework/summary.proto, framework/tensor.proto; field numbers in brackets):
Event = wall_time [1, double], step [2, int64], summary [5], session_log [7], others; Summary = repeated Value [1];
Value = tag [1], simple_value [2, float], image [4], histo [5], audio [6], node_name [7], tensor [8], metadata [9].

A value is carried as ``(tag, kind, bits)``: ``kind`` says what it is and how ``bits``, 64 bits as a signed integer, are
to be understood. `Kinds` below; `trajscope.readers.tensorboard.kernel` is the compiled twin and must agree.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.readers.tensorboard.crc import crc32c, mask, masked_many

__all__ = ["BIG", "Malformed", "PythonDecoder", "Registry", "Status", "bits_to_values", "hparams", "iter_fields"]

#: Payloads from this size on are checked only if they hold anything that is kept (images pass by framing alone).
BIG = 1 << 16


class Kinds:
    """Kinds of values. 0: simple_value. 1 to 23: a tensor of that TensorFlow dtype with one element, rank 0; plus
    `ONE` where its rank is higher. From 100: nothing that is a scalar."""

    SIMPLE = 0
    ONE = 32
    IMAGE, HISTOGRAM, AUDIO, TENSOR, TEXT, NOTHING = 100, 101, 102, 103, 104, 105


KIND_NAMES = {
    Kinds.IMAGE: "images",
    Kinds.HISTOGRAM: "histograms",
    Kinds.AUDIO: "audio",
    Kinds.TENSOR: "tensors with several elements",
    Kinds.TEXT: "text",
    Kinds.NOTHING: "values without content",
}

#: dtype -> (field of the typed list, bytes of an element in tensor_content)
DTYPES = {
    1: (5, 4),
    2: (6, 8),
    3: (7, 4),
    4: (7, 1),
    5: (7, 2),
    6: (7, 1),
    9: (10, 8),
    10: (11, 1),
    14: (13, 2),
    17: (7, 2),
    19: (13, 2),
    22: (16, 4),
    23: (17, 8),
}
_DOUBLE = struct.Struct("<d")
_SIGNED = frozenset({3, 5, 6, 9})
_STRING = 7


class Status:
    """Why a decoder stopped."""

    NEED, BAD_LENGTH, FULL, ODD = range(4)


class Malformed(Exception):
    """The bytes are no such message."""


def iter_fields(p: bytes, pos: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Fields of the message in ``p[pos:end]``: (number, wire type, value or start, stop).

    Raises
    ------
    Malformed
        At the first byte that cannot be.
    """
    while pos < end:
        key = p[pos]
        pos += 1
        if key > 127:
            key, pos = _varint(p, pos - 1, end)
        wire = key & 7
        if wire == 2:
            size = p[pos] if pos < end else 128
            if size > 127:
                size, pos = _varint(p, pos, end)
            else:
                pos += 1
            start, pos = pos, pos + size
            if pos > end:
                raise Malformed
            yield key >> 3, 2, start, pos
        elif wire == 0:
            value, pos = _varint(p, pos, end)
            yield key >> 3, 0, value, pos
        elif wire == 5 or wire == 1:
            start, pos = pos, pos + (4 if wire == 5 else 8)
            if pos > end:
                raise Malformed
            yield key >> 3, wire, start, pos
        else:
            raise Malformed


def _varint(p: bytes, pos: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while pos < end and shift < 70:
        byte = p[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, pos
        shift += 7
    raise Malformed


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


@dataclass(eq=False)
class Registry:
    """The series of one file, numbered in order of appearance; a series is a tag with one kind of value.

    Attributes
    ----------
    wants : callable
        Whether a channel of that name is asked for.
    """

    wants: Callable[[str], bool] = lambda name: True
    numbers: dict[tuple[bytes, int], int] = field(default_factory=dict)
    tags: list[bytes] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    #: What to do with a value: 0 keep, 1 count only, 2 the record holds hyper-parameters.
    actions: list[int] = field(default_factory=list)
    plugins: list[bytes] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)

    def add(self, tag: bytes, kind: int, plugin: bytes) -> int:
        """Number a new series."""
        # A tag that is no UTF-8 survives with its odd bytes written as \xNN.
        name = tag.decode("utf-8", errors="backslashreplace")
        if plugin == b"hparams" and kind >= Kinds.IMAGE:
            action = 2
        else:
            action = 0 if kind < Kinds.IMAGE and self.wants(name) else 1
        number = len(self.names)
        self.numbers[tag, kind] = number
        self.tags.append(tag)
        self.names.append(name)
        self.kinds.append(kind)
        self.actions.append(action)
        self.plugins.append(plugin)
        self.skipped.append(0)
        return number


def read_value(p: bytes, pos: int, end: int) -> tuple[bytes, int, int, bytes]:
    """One summary value: tag, kind, bits and the bytes of its metadata."""
    tag = node = metadata = b""
    kind, bits = Kinds.NOTHING, 0
    for number, wire, a, b in iter_fields(p, pos, end):
        if number == 1 and wire == 2:
            tag = p[a:b]
        elif number == 2 and wire == 5:
            kind, bits = Kinds.SIMPLE, int.from_bytes(p[a:b], "little")
        elif number == 8 and wire == 2:
            kind, bits = read_tensor(p, a, b)
        elif number == 9 and wire == 2:
            metadata = p[a:b]
        elif number == 7 and wire == 2:
            node = p[a:b]
        elif number in (4, 5, 6) and wire == 2:
            kind = Kinds.IMAGE + number - 4
    return tag or node, kind, bits, metadata


def read_tensor(p: bytes, pos: int, end: int) -> tuple[int, int]:
    """Kind and bits of a TensorProto."""
    dtype = rank = 0
    elements = 1
    content: tuple[int, int] | None = None
    first: dict[int, tuple[int, int, int]] = {}
    for number, wire, a, b in iter_fields(p, pos, end):
        if number == 1 and wire == 0:
            dtype = a
        elif number == 2 and wire == 2:
            for n, w, c, d in iter_fields(p, a, b):
                if n == 2 and w == 2:
                    size = 0
                    for k, v, e, _ in iter_fields(p, c, d):
                        if k == 1 and v == 0:
                            size = e
                    rank += 1
                    # Saturate: a product is asked only whether it is 1, and must not grow without bound.
                    elements = min(elements * size, 1 << 32)
        elif number == 4 and wire == 2:
            content = (a, b)
        elif number not in first and not (wire == 2 and a == b):
            first[number] = (wire, a, b)
    if dtype == _STRING:
        return Kinds.TEXT, 0
    if dtype not in DTYPES or elements != 1:
        return Kinds.TENSOR, 0
    kind = dtype + (Kinds.ONE if rank else 0)
    listed, size = DTYPES[dtype]
    if content is not None and content[1] > content[0]:
        if content[1] - content[0] != size:
            raise Malformed
        return kind, int.from_bytes(p[content[0] : content[1]], "little", signed=size == 8 or dtype in _SIGNED)
    if listed not in first:
        return kind, 0
    wire, a, b = first[listed]
    if listed in (5, 6):
        if b - a < size or wire == 0:
            raise Malformed
        return kind, int.from_bytes(p[a : a + size], "little", signed=size == 8)
    if wire == 2:
        a, _ = _varint(p, a, b)
    elif wire != 0:
        raise Malformed
    return kind, _signed(a)


def bits_to_values(bits: NDArray[np.int64], kind: int) -> NDArray[Any]:
    """Values of one series in their own precision.

    float32 and float64 stay; half and bfloat16 become float32 and every integer and bool int64, which hold them
    exactly (uint64 beyond int64 stays uint64).
    """
    dtype = kind & ~Kinds.ONE
    if dtype in (Kinds.SIMPLE, 1):
        return bits.astype(np.uint32).view(np.float32)
    if dtype == 2:
        return bits.view(np.float64)
    if dtype == 14:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == 19:
        return bits.astype(np.uint16).view(np.float16).astype(np.float32)
    if dtype == 23 and bits.size and int(bits.min()) < 0:
        return bits.view(np.uint64)
    return bits


def plugin_name(metadata: bytes) -> bytes:
    """Name of the plug-in in a SummaryMetadata; empty where there is none."""
    name, _ = _plugin(metadata)
    return name


def _plugin(metadata: bytes) -> tuple[bytes, bytes]:
    name = content = b""
    for number, wire, a, b in iter_fields(metadata, 0, len(metadata)):
        if number == 1 and wire == 2:
            for n, w, c, d in iter_fields(metadata, a, b):
                if w == 2 and n == 1:
                    name = metadata[c:d]
                elif w == 2 and n == 2:
                    content = metadata[c:d]
    return name, content


def hparams(metadata: bytes) -> dict[str, Any]:
    """Hyper-parameters in the metadata of a value of the hparams plug-in (session start); empty where it holds none.

    Layout: tensorboard/plugins/hparams/plugin_data.proto (session_start_info [3], in it the map hparams [1]).
    """
    found: dict[str, Any] = {}
    _, p = _plugin(metadata)
    for number, wire, a, b in iter_fields(p, 0, len(p)):
        if number != 3 or wire != 2:
            continue
        for n, w, c, d in iter_fields(p, a, b):
            if n != 1 or w != 2:
                continue
            name, value = b"", None
            for k, v, e, f in iter_fields(p, c, d):
                if k == 1 and v == 2:
                    name = p[e:f]
                elif k == 2 and v == 2:
                    value = _struct_value(p, e, f, 0)
            found[name.decode("utf-8", errors="backslashreplace")] = value
    return found


def _struct_value(p: bytes, pos: int, end: int, depth: int) -> Any:
    """A google.protobuf.Value (struct.proto)."""
    if depth > 20:
        raise Malformed
    result: Any = None
    for number, wire, a, b in iter_fields(p, pos, end):
        if number == 2 and wire == 1:
            (result,) = _DOUBLE.unpack_from(p, a)
        elif number == 3 and wire == 2:
            result = p[a:b].decode("utf-8", errors="backslashreplace")
        elif number == 4 and wire == 0:
            result = bool(a)
        elif number == 5 and wire == 2:
            result = {}
            for n, w, c, d in iter_fields(p, a, b):
                if n == 1 and w == 2:
                    pair = {k: (e, f) for k, v, e, f in iter_fields(p, c, d) if v == 2}
                    key = p[slice(*pair[1])].decode("utf-8", errors="backslashreplace") if 1 in pair else ""
                    result[key] = _struct_value(p, *pair[2], depth + 1) if 2 in pair else None
        elif number == 6 and wire == 2:
            result = [_struct_value(p, c, d, depth + 1) for n, w, c, d in iter_fields(p, a, b) if n == 1 and w == 2]
    return result


@dataclass
class Findings:
    """What a file holds besides points, and records left out as (byte offset, length)."""

    marks: list[int] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    bad_crc: list[tuple[int, int]] = field(default_factory=list)
    malformed: list[tuple[int, int]] = field(default_factory=list)
    first_wall: float | None = None


@dataclass(frozen=True, eq=False)
class Event:
    """One event: kept points as (series number, bits), series whose values are only counted, and what is rare."""

    wall: float
    step: int
    points: list[tuple[int, int]]
    counted: list[int]
    start: bool
    config: dict[str, Any]


def read_event(p: bytes, registry: Registry) -> Event:
    """Take an event apart; new tags are entered into the registry, nothing else is changed.

    Raises
    ------
    Malformed
        If it is no event.
    """
    wall, step, start = 0.0, 0, False
    points: list[tuple[int, int]] = []
    counted: list[int] = []
    config: dict[str, Any] = {}
    numbers, actions = registry.numbers, registry.actions
    for number, wire, a, b in iter_fields(p, 0, len(p)):
        if number == 1 and wire == 1:
            (wall,) = _DOUBLE.unpack_from(p, a)
        elif number == 2 and wire == 0:
            step = _signed(a)
        elif number == 5 and wire == 2:
            for n, w, c, d in iter_fields(p, a, b):
                if n != 1 or w != 2:
                    continue
                tag, kind, bits, metadata = read_value(p, c, d)
                series = numbers.get((tag, kind))
                if series is None:
                    series = registry.add(tag, kind, plugin_name(metadata))
                if actions[series] == 0:
                    points.append((series, bits))
                    continue
                counted.append(series)
                if actions[series] == 2:
                    config.update(hparams(metadata))
        elif number == 7 and wire == 2:
            start = any(n == 1 and w == 0 and c == 1 for n, w, c, _ in iter_fields(p, a, b))
    return Event(wall, step, points, counted, start, config)


class PythonDecoder:
    """Decode records without a compiler: framing record by record, checksums in lock-step, protos in plain Python.

    `run` has the contract of `trajscope.readers.tensorboard.compiled.CompiledDecoder.run`.
    """

    def __init__(self, registry: Registry, found: Findings) -> None:
        self._registry = registry
        self._found = found
        self._headers: dict[bytes, bool] = {}
        self._points: list[tuple[int, int, int, float, int]] = []

    def run(self, data: NDArray[np.uint8], pos: int, end: int, base: int, row: int) -> tuple[int, int, int]:
        """Decode whole records of ``data[pos:end]``.

        Parameters
        ----------
        data : ndarray of uint8
        pos, end : int
        base : int
            Offset of ``data[0]`` in the file.
        row : int
            Number of the record at ``pos``.

        Returns
        -------
        status : int
            `Status.NEED` (the record at ``pos`` is not complete) or `Status.BAD_LENGTH` (its header does not check).
        pos, row : int
            Of the record at which it stopped.
        """
        part = data[pos:end]
        view = part.tobytes()
        status, starts, lengths, stop = self._frames(view)
        checked = self._checksums(part, starts, lengths)
        for start, length, good in zip(starts, lengths, checked, strict=True):
            place = (base + pos + start - 12, length + 16)
            if good is False:
                self._found.bad_crc.append(place)
            else:
                self._event(view[start : start + length], view[start + length : start + length + 4], place, row, good)
            row += 1
        return status, pos + stop, row

    def _event(self, p: bytes, stored: bytes, place: tuple[int, int], row: int, good: bool | None) -> None:
        """Keep what one event holds; ``good`` None: its checksum is looked at only if there is anything to keep."""
        found = self._found
        try:
            event = read_event(p, self._registry)
        except Malformed:
            (found.malformed if good or _checks(p, stored) else found.bad_crc).append(place)
            return
        if good is None and (event.points or event.start or event.config) and not _checks(p, stored):
            found.bad_crc.append(place)
            return
        if found.first_wall is None:
            found.first_wall = event.wall
        if event.start:
            found.marks.append(row)
        found.config.update(event.config)
        for series in event.counted:
            self._registry.skipped[series] += 1
        self._points.extend((series, bits, event.step, event.wall, row) for series, bits in event.points)

    def _frames(self, view: bytes) -> tuple[int, list[int], list[int], int]:
        """Where payloads start, how long they are, and where and why the chain ends."""
        starts: list[int] = []
        lengths: list[int] = []
        pos, end = 0, len(view)
        known = self._headers
        while True:
            if end - pos < 12:
                return Status.NEED, starts, lengths, pos
            header = view[pos : pos + 12]
            if header not in known:
                known[header] = mask(crc32c(header[:8])) == int.from_bytes(header[8:], "little")
            if not known[header]:
                return Status.BAD_LENGTH, starts, lengths, pos
            length = int.from_bytes(header[:8], "little")
            if end - pos - 16 < length:
                return Status.NEED, starts, lengths, pos
            starts.append(pos + 12)
            lengths.append(length)
            pos += length + 16

    @staticmethod
    def _checksums(data: NDArray[np.uint8], starts: list[int], lengths: list[int]) -> list[bool | None]:
        """Whether each payload checks; None for big ones, which are looked at first."""
        s, n = np.array(starts, dtype=np.int64), np.array(lengths, dtype=np.int64)
        small = n < BIG
        good = np.zeros(s.size, dtype=bool)
        good[small] = masked_many(data, s[small], n[small]) == _stored(data, (s + n)[small])
        return [bool(g) if k else None for g, k in zip(good.tolist(), small.tolist(), strict=True)]

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Series number, bits, step, wall time and row of all points since the last call."""
        points, self._points = self._points, []
        series, bits, step, wall, row = zip(*points, strict=True) if points else ((), (), (), (), ())
        return (
            np.array(series, dtype=np.int32),
            np.array(bits, dtype=np.int64),
            np.array(step, dtype=np.int64),
            np.array(wall, dtype=np.float64),
            np.array(row, dtype=np.int64),
        )


def _stored(data: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Little-endian 32-bit numbers at the places."""
    stored = np.zeros(places.size, dtype=np.uint32)
    for k in range(4):
        stored |= data[places + k].astype(np.uint32) << np.uint32(8 * k)
    return stored


def _checks(payload: bytes, stored: bytes) -> bool:
    """Whether the payload's own checksum is right."""
    return mask(crc32c(payload)) == int.from_bytes(stored, "little")
