"""History rows of a W&B run, batch by batch, to one series a channel."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.history import Problem, Series
from trajscope.readers._cells import inexact
from trajscope.readers._json_text import beyond_float, clipped, inexact_integers, overflow
from trajscope.readers._json_values import Parsed, parse
from trajscope.readers._wandb_decode import (
    Fields,
    Ints,
    binary,
    items,
    key_name,
    numbers,
    padded,
    plain_fields,
    varint,
    walk,
)
from trajscope.readers.base import ReadOptions

__all__ = ["History", "Latest"]

STEP, WALL = "_step", "_timestamp"


class History:
    """Collects rows; `series` delivers the channels."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._step = options.step or STEP
        self._ids: dict[bytes, int] = {}
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._wanted: list[bool] = []
        self._rows = 0
        self._next_step = 0.0
        self._chunks: list[tuple[Ints, Ints, NDArray[np.float64], NDArray[Any], NDArray[np.float64]]] = []
        self._exact: list[dict[int, int]] = []
        self._missing: Counter[int] = Counter()
        self._no_scalar: Counter[int] = Counter()
        self._beyond: Counter[int] = Counter()
        self._broken = 0
        self._stepless = 0
        self._booleans = 0
        self.started: float | None = None

    def _id(self, region: bytes) -> int:
        known = self._ids.get(region)
        if known is None:
            known = self._named(key_name(region))
            self._ids[region] = known
        return known

    def _named(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self._names))
        if number == len(self._names):
            self._names.append(name)
            self._wanted.append(self._options.wants(name))
        return number

    def add(self, pieces: Sequence[memoryview]) -> None:
        """Decode the bodies of further history records."""
        data, start, end = padded(list(pieces))
        fields = walk(data, start, end)
        found, broken = items(data, fields)
        self._broken += int(np.count_nonzero(broken))
        keys = binary(data, found.key_start, found.key_end).dictionary_encode()
        known = np.array([self._id(r) for r in keys.dictionary.to_pylist()], dtype=np.int64)
        channel = known[numbers(keys.indices, np.int32)] if known.size else np.zeros(0, dtype=np.int64)
        special = [i for i, n in enumerate(self._names) if n in (self._step, STEP, WALL)]
        use = np.array([w or i in special for i, w in enumerate(self._wanted)], dtype=bool)
        # An unwanted object is looked into all the same: a channel inside it may be wanted.
        kept = np.flatnonzero(use[channel] | (data[found.value_start] == ord("{")))
        channel, record = channel[kept], found.record[kept]
        parsed = parse(data, found.value_start[kept], found.value_end[kept])
        self._beyond.update(channel[list(parsed.beyond)].tolist())
        channel, record, parsed = self._flatten(channel, record, parsed)
        steps = self._steps(data, fields, channel, record, parsed, len(pieces))
        wall = np.full(len(pieces), np.nan)
        clock = self._rows_of(WALL, channel, parsed)
        wall[record[clock]] = parsed.values[clock]
        if self.started is None and np.isfinite(wall).any():
            self.started = float(wall[np.isfinite(wall)][0])
        self._collect(channel, record, parsed, steps, wall)
        self._rows += len(pieces)

    def _rows_of(self, name: str, channel: Ints, parsed: Parsed) -> Ints:
        if name not in self._numbers:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero((channel == self._numbers[name]) & parsed.scalar)

    def _flatten(self, channel: Ints, record: Ints, parsed: Parsed) -> tuple[Ints, Ints, Parsed]:
        """Add the numbers inside logged objects as channels of their own, their names joined with dots."""
        more: list[tuple[int, int, float]] = []
        for i, content in parsed.nested:
            for name, value in _leaves(self._names[channel[i]], content):
                number = self._named(name)
                if value is None:
                    self._missing[number] += 1
                elif self._wanted[number]:
                    self._beyond[number] += beyond_float(value)
                    more.append((number, int(record[i]), clipped(value)))
        if not more:
            return channel, record, parsed
        where, row, values = (np.array(column) for column in zip(*more, strict=True))
        order = np.argsort(np.concatenate([record, row]), kind="stable")
        place = np.empty(order.size, dtype=np.int64)
        place[order] = np.arange(order.size)
        joined = Parsed(
            np.concatenate([parsed.values, values])[order],
            np.concatenate([parsed.scalar, np.ones(where.size, dtype=bool)])[order],
            np.concatenate([parsed.missing, np.zeros(where.size, dtype=bool)])[order],
            exact={int(place[i]): v for i, v in parsed.exact.items()},
            booleans=parsed.booleans,
        )
        for i, _ in parsed.nested:
            self._no_scalar[int(channel[i])] -= 1  # the object itself is not a loss
        return np.concatenate([channel, where])[order], np.concatenate([record, row])[order], joined

    def _steps(
        self, data: NDArray[np.uint8], fields: Fields, channel: Ints, record: Ints, parsed: Parsed, n: int
    ) -> NDArray[Any]:
        """Step of each row: the chosen item, else the step field, else one more than the row before."""
        steps = np.full(n, np.nan)
        own = self._rows_of(self._step, channel, parsed)
        steps[record[own]] = parsed.values[own]
        exact = {int(record[i]): parsed.exact[i] for i in own.tolist() if i in parsed.exact} if parsed.exact else {}
        if self._step == STEP:
            lacking = np.isnan(steps)
            for i in np.flatnonzero((fields.number == 2) & lacking[fields.owner]).tolist():
                number = _number(data, int(fields.start[i]), int(fields.end[i]))
                steps[fields.owner[i]] = number
                exact[int(fields.owner[i])] = number
        for row in np.flatnonzero(~np.isfinite(steps)).tolist():
            steps[row] = steps[row - 1] + 1 if row else self._next_step
            self._stepless += 1
        if n:
            self._next_step = float(steps[-1]) + 1
        if np.all(steps == np.floor(steps)) and np.all(np.abs(steps) < 2.0**63):
            whole = steps.astype(np.int64)
            for row, number in exact.items():
                if -(2**63) <= number < 2**63:
                    whole[row] = number
            return whole
        return steps

    def _collect(
        self, channel: Ints, record: Ints, parsed: Parsed, steps: NDArray[Any], wall: NDArray[np.float64]
    ) -> None:
        self._missing.update(channel[parsed.missing].tolist())
        self._no_scalar.update(channel[~parsed.scalar & ~parsed.missing].tolist())
        self._booleans += parsed.booleans
        hidden = [i for i, n in enumerate(self._names) if n in (self._step, STEP, WALL) or not self._wanted[i]]
        keep = np.flatnonzero(parsed.scalar & ~np.isin(channel, hidden))
        position = {int(i): k for k, i in enumerate(keep.tolist())} if parsed.exact else {}
        self._exact.append({position[i]: v for i, v in parsed.exact.items() if i in position})
        rows = record[keep]
        self._chunks.append((channel[keep], rows + self._rows, parsed.values[keep], steps[rows], wall[rows]))

    def series(self, file: str) -> tuple[dict[str, Series], list[Problem]]:
        """All channels, in order of first appearance, and what is no series."""
        problems = self._problems(file)
        if not self._chunks:
            return {}, problems
        channel, row, values, steps, wall = (np.concatenate([c[k] for c in self._chunks]) for k in range(5))
        exact: dict[int, int] = {}
        base = 0
        for chunk, known in zip(self._chunks, self._exact, strict=True):
            exact.update({base + i: v for i, v in known.items()})
            base += chunk[0].size
        order = np.argsort(channel, kind="stable")
        bounds = np.searchsorted(channel[order], np.arange(len(self._names) + 1))
        place = {int(o): k for k, o in enumerate(order.tolist())} if exact else {}
        large = {place[i]: v for i, v in exact.items()}
        media = tuple(n.removesuffix("_type") for n in self._names if n.endswith("._type"))
        out: dict[str, Series] = {}
        for number, name in enumerate(self._names):
            low, high = int(bounds[number]), int(bounds[number + 1])
            if media and name.startswith(media):
                continue  # size, width and the like of a logged image or histogram
            missing = self._missing.get(number, 0)
            if high == low and (not missing or not self._wanted[number] or name in (self._step, STEP, WALL)):
                continue
            part = order[low:high]
            own: NDArray[Any] = values[part]
            integers = {k - low: v for k, v in large.items() if low <= k < high}
            if integers and all(-(2**63) <= v < 2**63 for v in integers.values()) and np.all(own == np.floor(own)):
                own = np.where(np.abs(own) < 2.0**63, own, 0.0).astype(np.int64)
                for k, v in integers.items():
                    own[k] = v
            elif integers and (rounded := inexact(integers.values())):
                problems.append(inexact_integers(name, rounded, file))
            clock = wall[part]
            out[name] = Series(
                steps[part], own, clock if np.isfinite(clock).any() else None, row[part], n_missing=missing
            )
        return out, problems

    def _problems(self, file: str) -> list[Problem]:
        problems: list[Problem] = []
        other = {n: k for n, k in self._no_scalar.items() if k > 0 and self._wanted[n]}
        if other:
            names = [self._names[n] for n in other]
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            total = sum(other.values())
            text = f"{total} values of {shown} are no scalars (media, tables, text or lists) and were passed over"
            problems.append(Problem("not-a-scalar", "info", text, file, count=total))
        problems += [overflow(self._names[n], k, file) for n, k in self._beyond.items() if k and self._wanted[n]]
        if self._booleans:
            text = f"{self._booleans} values are true or false; they count as 1 and 0"
            problems.append(Problem("boolean-values", "info", text, file, count=self._booleans))
        if self._stepless:
            text = f"{self._stepless} rows carry no step; each was counted on from the row before"
            problems.append(Problem("no-step", "warning", text, file, count=self._stepless))
        if self._broken:
            text = f"{self._broken} history rows are damaged inside; their readable values were kept"
            problems.append(Problem("broken-record", "warning", text, file, count=self._broken))
        return problems


def _number(data: NDArray[np.uint8], start: int, end: int) -> int:
    """Field 1 of a step message; absent means 0."""
    value = 0
    raw = data[start:end].tobytes()
    for number, _, begin, _, wire in plain_fields(raw):
        if number == 1 and wire == 0:
            value = varint(raw, begin)[0]
    return value - (1 << 64) if value >> 63 else value


def _leaves(prefix: str, content: dict[str, Any], depth: int = 0) -> Iterator[tuple[str, float | int | None]]:
    for key, value in content.items():
        name = f"{prefix}.{key}"
        if value is None or isinstance(value, bool | int | float):
            yield name, value
        elif isinstance(value, dict) and "_type" not in value and depth < 20:
            yield from _leaves(name, value, depth + 1)


class Latest:
    """The last value of each key over successive records of items (configuration, summary)."""

    def __init__(self) -> None:
        self._texts: dict[bytes, bytes] = {}

    def add(self, pieces: Sequence[memoryview]) -> None:
        """Enter the bodies of further records; only the last text of each key is kept."""
        if not pieces:
            return
        data, start, end = padded(list(pieces))
        found, _ = items(data, walk(data, start, end))
        keys = binary(data, found.key_start, found.key_end).dictionary_encode()
        latest = np.zeros(len(keys.dictionary), dtype=np.int64)
        latest[numbers(keys.indices, np.int32)] = np.arange(found.record.size)
        for region, i in zip(keys.dictionary.to_pylist(), latest.tolist(), strict=True):
            self._texts[region] = data[found.value_start[i] : found.value_end[i]].tobytes()

    def values(self) -> dict[str, Any]:
        """The values by name; what is no JSON is left out."""
        out: dict[str, Any] = {}
        for region, text in self._texts.items():
            try:
                out[key_name(region)] = json.loads(text)
            except (ValueError, RecursionError):
                continue
        return out
