"""Read one event file: walk over its records, survive its damage, sort its points by channel.

Small files go through plain Python, so that nobody's first call waits for a compiler. Once a process has spent as
long on them as compiling would take, it changes to the compiled decoder (`COMPILE_FROM`); both give the same result.

Damage. A payload whose checksum is wrong is left out. A length whose checksum is wrong breaks the chain of records: the
next record whose header and payload both check is searched for. A payload with a wrong checksum after which the chain
is broken too was cut short (a crash, then another writer): the search then starts inside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trajscope.history import Series
from trajscope.readers.tensorboard.crc import crc32c, find_headers, mask
from trajscope.readers.tensorboard.events import (
    BIG,
    KIND_NAMES,
    Findings,
    Kinds,
    Malformed,
    PythonDecoder,
    Registry,
    Status,
    bits_to_values,
    iter_fields,
)
from trajscope.readers.tensorboard.stream import Window

__all__ = ["COMPILE_FROM", "Decoded", "decode", "glance"]

#: Bytes that a process decodes in plain Python before it turns to the compiled decoder. 8 MiB take about as long
#: as compiling does.
COMPILE_FROM = 8 << 20
#: No record is held in memory beyond this size; protos end at 2 GiB, scalars far below.
MAX_RECORD = 1 << 28

_decoded_plainly = 0


class Decoder(Protocol):
    """What the two decoders share."""

    def run(self, data: NDArray[np.uint8], pos: int, end: int, base: int, row: int) -> tuple[int, int, int]:
        """Decode whole records (`PythonDecoder.run`)."""
        ...

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Points since the last call (`PythonDecoder.columns`)."""
        ...


@dataclass(eq=False)
class Decoded:
    """One event file.

    Attributes
    ----------
    series : dict of str to Series
    findings : Findings
    registry : Registry
    size : int
        Bytes of the file.
    rows : int
        Records seen.
    resyncs : list of (int, int)
        Offset and length of stretches in which no record could be found.
    tail : tuple (kind, offset, length) or None
        How the file ends where it does not end with a record: ``"truncated"``, ``"zero"`` or ``"lost"``.
    oversized : list of (int, int)
    framed : int
        Records beyond the window that hold one image or the like, passed over by their framing.
    trouble : str
        `Window.trouble`.
    mixed : list of str
        Channels whose values came in more than one encoding.
    ones : list of str
        Channels from tensors of one element and rank above 0.
    """

    series: dict[str, Series]
    findings: Findings
    registry: Registry
    size: int = 0
    rows: int = 0
    resyncs: list[tuple[int, int]] = field(default_factory=list)
    tail: tuple[str, int, int] | None = None
    oversized: list[tuple[int, int]] = field(default_factory=list)
    framed: int = 0
    trouble: str = ""
    mixed: list[str] = field(default_factory=list)
    ones: list[str] = field(default_factory=list)

    def passed_over(self) -> dict[str, tuple[int, list[str]]]:
        """How many values of each kind that is no scalar, and their channels."""
        found: dict[str, tuple[int, list[str]]] = {}
        r = self.registry
        for name, kind, action, count in zip(r.names, r.kinds, r.actions, r.skipped, strict=True):
            if count and action == 1 and kind >= Kinds.IMAGE and kind != Kinds.NOTHING:
                total, names = found.get(KIND_NAMES[kind], (0, []))
                found[KIND_NAMES[kind]] = (total + count, [*names, name])
        return found


def decode(path: Path, wants: Callable[[str], bool] = lambda name: True, *, compiled: bool | None = None) -> Decoded:
    """Read an event file.

    Parameters
    ----------
    path : Path
    wants : callable
        Whether a channel is asked for; the others are not decoded.
    compiled : bool, optional
        Which decoder; default by the amount of data (`COMPILE_FROM`).
    """
    registry, found = Registry(wants), Findings()
    window = Window(path)
    try:
        decoder = _decoder(registry, found, window.size, compiled)
        walk = _Walk(window, decoder, found)
        walk.run()
    finally:
        window.close()
    result = Decoded({}, found, registry, window.size, walk.row, walk.resyncs, walk.tail, walk.oversized, walk.framed)
    result.trouble = window.trouble
    _sort(walk.columns, registry, result, not isinstance(decoder, PythonDecoder))
    return result


def _decoder(registry: Registry, found: Findings, size: int, compiled: bool | None) -> Decoder:
    global _decoded_plainly
    if compiled is None:
        compiled = _decoded_plainly + size > COMPILE_FROM
    if compiled:
        from trajscope.readers.tensorboard.compiled import CompiledDecoder

        return CompiledDecoder(registry, found)
    _decoded_plainly += size
    return PythonDecoder(registry, found)


class _Walk:
    """The way through one file."""

    def __init__(self, window: Window, decoder: Decoder, found: Findings) -> None:
        self.window = window
        self.decoder = decoder
        self.found = found
        self.row = 0
        self.resyncs: list[tuple[int, int]] = []
        self.oversized: list[tuple[int, int]] = []
        self.framed = 0
        self.tail: tuple[str, int, int] | None = None
        self.columns: list[tuple[NDArray[Any], ...]] = []
        # Searching may check the payload of every candidate; a hostile file must not make that quadratic.
        self._budget = 16 * window.size + (1 << 20)

    def run(self) -> None:
        """Go to the end."""
        w = self.window
        w.more(0, 0)
        pos = 0
        while True:
            status, pos, self.row = self.decoder.run(w.data, pos, w.end, w.base, self.row)
            part = self.decoder.columns()
            if part[0].size:
                self.columns.append(part)
            if status == Status.BAD_LENGTH:
                pos = self._resync(pos)
            elif status == Status.NEED:
                pos = self._need(pos)
            if pos < 0:
                return

    def _need(self, pos: int) -> int:
        """Get the record at ``pos`` whole, or pass over it; -1 at the end."""
        w = self.window
        length = self._length(pos)
        wanted = 12 if length is None else length + 16
        whole = length is not None and (w.compressed or w.base + pos + wanted <= w.size)
        if whole and (wanted > MAX_RECORD or (wanted > w.data.size and self._beyond(pos, wanted - 16))):
            if wanted > MAX_RECORD:
                self.oversized.append((w.base + pos, wanted))
            else:
                self.framed += 1
            self.row += 1
            w.skip_to(pos + wanted)
            return 0
        held = w.end - pos
        # The rest of a file is less than a damaged or hostile length may claim.
        if not w.compressed:
            wanted = min(wanted, w.size - w.base - pos)
        keep = self._keep(pos)
        if w.more(keep, wanted + pos - keep if wanted < MAX_RECORD else 0) and w.end - (pos - keep) > held:
            return pos - keep
        return self._end(pos - keep)

    def _keep(self, pos: int) -> int:
        """Where the window must go on: a payload that did not check stays until the next header does."""
        if self.found.bad_crc:
            offset, size = self.found.bad_crc[-1]
            start = offset - self.window.base
            if 0 <= start < pos and start + size == pos and size <= BIG:
                return start
        return pos

    def _length(self, pos: int) -> int | None:
        if self.window.end - pos < 12:
            return None
        return int.from_bytes(self.window.data[pos : pos + 8].tobytes(), "little")

    def _beyond(self, pos: int, length: int) -> bool:
        """Whether a record that leaves the window can be seen to hold nothing but one image or the like."""
        head = self.window.data[pos + 12 : min(self.window.end, pos + 12 + BIG)].tobytes()
        return length > len(head) and only_media(head, length)

    def _end(self, pos: int) -> int:
        """Classify what is left where no whole record follows."""
        w = self.window
        left = w.end - pos
        if left == 0:
            return -1
        rest = w.data[pos : w.end]
        if not rest.any():
            self.tail = ("zero", w.base + pos, left)
            return -1
        # A record that claims to go beyond the end may be one that was cut, with others after it.
        later = self._search(pos + 1, w.end)
        if later is None:
            self.tail = ("truncated", w.base + pos, left)
            return -1
        self.resyncs.append((w.base + pos, later - pos))
        self.row += 1
        return later

    def _resync(self, pos: int) -> int:
        """Find the next record after a header that does not check; -1 where there is none."""
        w = self.window
        bad = self._keep(pos)
        if bad < pos:
            self.found.bad_crc.pop()
        start = w.base + bad
        self.row += 1
        at = bad + 1
        zero = not w.data[pos : w.end].any()
        while True:
            found = self._search(at, w.end)
            if found is not None:
                self.resyncs.append((start, w.base + found - start))
                return found
            keep = max(at, w.end - 11)
            if not w.more(keep, 0):
                break
            at = 0
            zero = zero and not w.data[: w.end].any()
        end = w.base + w.end
        if zero and bad == pos:
            self.tail = ("zero", start, end - start)
        elif zero:
            self.found.bad_crc.append((start, pos - bad))
            self.tail = ("zero", start + pos - bad, end - start - (pos - bad))
        else:
            self.tail = ("lost", start, end - start)
        return -1

    def _search(self, start: int, end: int) -> int | None:
        """First position from ``start`` on at which a record stands, as far as the window shows."""
        w = self.window
        step = 1 << 16
        for low in range(start, end, step):
            for place in find_headers(w.data[low : min(low + step + 11, end)]).tolist():
                at: int = low + place
                length = int.from_bytes(w.data[at : at + 8].tobytes(), "little")
                if not w.compressed and w.base + at + 16 + length > w.size:
                    continue
                if at + 16 + length > end:
                    if w.exhausted:
                        continue
                    return at
                if self._budget < 0:
                    return at
                self._budget -= length
                payload = w.data[at + 12 : at + 12 + length].tobytes()
                stored = int.from_bytes(w.data[at + 12 + length : at + 16 + length].tobytes(), "little")
                if mask(crc32c(payload)) == stored:
                    return at
        return None


def only_media(head: bytes, length: int) -> bool:
    """Whether the head of a payload shows that one value that is no scalar, or a graph, fills it to its end."""
    whole = 0, length
    try:
        for number, wire, a, b in _open_fields(head, *whole):
            if b <= len(head):
                if number == 5 or number == 7:
                    return False
                continue
            if number in (4, 9) and wire == 2:
                return b == length
            if number != 5 or wire != 2 or b != length:
                return False
            return _open_value(head, a, b)
    except (Malformed, IndexError):
        return False
    return False


def _open_value(head: bytes, start: int, end: int) -> bool:
    for number, wire, a, b in _open_fields(head, start, end):
        if number != 1 or wire != 2 or b <= len(head) or b != end:
            return False
        for n, w, c, d in _open_fields(head, a, b):
            if d <= len(head):
                if n == 2:
                    return False
                continue
            if n == 8 and w == 2:
                return any(k == 1 and v == 0 and e == 7 for k, v, e, _ in _seen_fields(head, c, d))
            return n in (4, 5, 6) and w == 2
    return False


def _seen_fields(head: bytes, start: int, end: int) -> list[tuple[int, int, int, int]]:
    """Those fields that lie in the head whole."""
    seen = []
    for item in _open_fields(head, start, end):
        if item[3] > len(head):
            break
        seen.append(item)
    return seen


def _open_fields(head: bytes, pos: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """`iter_fields` over a message whose last field leaves ``head``; the bytes behind count as there."""
    while pos < end:
        key = head[pos]
        if key & 7 == 2 and key < 128:
            size = shift = 0
            at = pos + 1
            while True:
                byte = head[at]
                size |= (byte & 127) << shift
                at += 1
                shift += 7
                if byte < 128:
                    break
                if shift > 63:
                    raise Malformed
            if at + size > end:
                raise Malformed
            yield key >> 3, 2, at, at + size
            pos = at + size
        else:
            item = next(iter_fields(head, pos, min(end, len(head))))
            yield item
            pos = item[3]


def _sort(columns: list[tuple[NDArray[Any], ...]], registry: Registry, result: Decoded, compiled: bool) -> None:
    """Points of all series, in the order written, cut into channels; part by part to stay small."""
    if not columns:
        return
    scatter: Callable[..., None] = _scatter
    if compiled:
        from trajscope.readers.tensorboard import kernel

        scatter = kernel.scatter
    counts = np.sum([np.bincount(part[0], minlength=len(registry.names)) for part in columns], axis=0)
    ends = np.cumsum(counts)
    sorted_columns = tuple(np.empty(int(ends[-1]), dtype=column.dtype) for column in columns[0][1:])
    place = ends - counts
    while columns:
        scatter(*columns.pop(0), place, *sorted_columns)
    bits, step, wall, row = sorted_columns
    parts: dict[str, list[tuple[int, Series]]] = {}
    for number in np.flatnonzero(counts).tolist():
        at = slice(int(ends[number] - counts[number]), int(ends[number]))
        kind = registry.kinds[number]
        series = Series(step[at], bits_to_values(bits[at], kind), wall[at], row[at])
        parts.setdefault(registry.names[number], []).append((kind, series))
    for name, found in parts.items():
        if any(kind & Kinds.ONE for kind, _ in found):
            result.ones.append(name)
        if len(found) == 1:
            result.series[name] = found[0][1]
        else:
            result.mixed.append(name)
            result.series[name] = _interleave([s for _, s in found])


def _scatter(number: NDArray[np.int32], *columns: NDArray[Any]) -> None:
    """`trajscope.readers.tensorboard.kernel.scatter` without a compiler."""
    place, sources, targets = columns[4], columns[:4], columns[5:]
    order = np.argsort(number, kind="stable")
    counts = np.bincount(number, minlength=place.size)
    target = np.empty(number.size, dtype=np.int64)
    target[order] = np.arange(number.size) + np.repeat(place - np.cumsum(counts) + counts, counts)
    for source, column in zip(sources, targets, strict=True):
        column[target] = source
    place += counts


def _interleave(parts: list[Series]) -> Series:
    """One series of parts that one writer wrote in turns."""
    row = np.concatenate([s.rows() for s in parts])
    order = np.argsort(row, kind="stable")
    walls = [s.wall_time for s in parts if s.wall_time is not None]
    return Series(
        np.concatenate([s.steps for s in parts])[order],
        np.concatenate([s.values for s in parts])[order],
        np.concatenate(walls)[order],
        row[order],
    )


@dataclass(frozen=True)
class Glance:
    """What the ends of a file show: channels and the wall times between which it was written."""

    channels: frozenset[str]
    first: float
    last: float


def glance(path: Path, size: int = 1 << 14) -> Glance | None:
    """Look at both ends of a file without reading it; None where no scalar is seen."""
    names: set[str] = set()
    walls: list[float] = []
    with path.open("rb") as stream:
        length = os.fstat(stream.fileno()).st_size
        for offset in (0,) if length <= 2 * size else (0, length - size):
            stream.seek(offset)
            data = np.frombuffer(stream.read(2 * size if length <= 2 * size else size), dtype=np.uint8)
            starts = find_headers(data)
            if not starts.size:
                continue
            registry = Registry()
            decoder = PythonDecoder(registry, Findings())
            decoder.run(data, int(starts[0]), data.size, offset, 0)
            numbers, _, _, wall, _ = decoder.columns()
            names.update(registry.names[n] for n in np.unique(numbers).tolist())
            walls.extend(wall[np.isfinite(wall)].tolist())
    return Glance(frozenset(names), min(walls), max(walls)) if walls else None
