"""Sacred's file storage: ``metrics.json`` of a numbered run directory, and PyMARL's series in ``info.json``.

``metrics.json`` is ``{name: {"steps": [], "values": [], "timestamps": []}}``. PyMARL puts a list ``name`` and its steps
``name_T`` into ``info.json``; values may be NumPy scalars as jsonpickle writes them, or pickled one-element tensors. Of
those the number is taken out of the stored bytes by their documented layout; nothing is ever unpickled. Arrays are no
series and are counted. A file that is cut off is read as far as it goes.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trajscope.errors import ReadError
from trajscope.history import Problem, Series, Source
from trajscope.readers._cells import inexact
from trajscope.readers._json_text import beyond_float, clipped, inexact_integers, loads, overflow
from trajscope.readers._walltime import iso_time
from trajscope.readers.base import Reader, ReadOptions

__all__ = ["READER", "SacredReader"]

_LIMIT = 1 << 28
_DEPTH = 64
#: A string (also one that the end of the text cuts off) or a mark of structure.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)
_STORAGES = {b"FloatStorage": "<f", b"DoubleStorage": "<d", b"LongStorage": "<q", b"HalfStorage": "<e"}


class SacredReader(Reader):
    """Run directories of Sacred."""

    name = "sacred"
    title = "Sacred and PyMARL"
    priority = 45
    directory = True
    sidecars = ("run.json", "config.json", "cout.txt")

    def can_read(self, path: Path, head: bytes) -> bool:
        """Whether the file is ``metrics.json`` or ``info.json`` of a Sacred run."""
        if path.name not in ("metrics.json", "info.json") or head.lstrip()[:1] != b"{":
            return False
        if (path.parent / "run.json").is_file():
            return True
        return b'"steps"' in head and (b'"values"' in head or b'"timestamps"' in head) and b'"step"' not in head

    def group(self, files: Sequence[Path]) -> list[list[Path]]:
        """One run; the other files of the directory are read with it."""
        return [[files[0]]]

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """One source."""
        here = files[0].parent
        source = Source(options.label(here) if not options.explicit else options.label(files[0]))
        read = 0
        for name, enter in (("metrics.json", _metrics), ("info.json", _info)):
            path = here / name
            content, whole = _load(path, options, source)
            if content is None:
                continue
            read += 1
            enter(source, content, whole, options)
        if not read:
            raise ReadError(f"{options.label(files[0])}: neither metrics.json nor info.json holds a JSON object")
        source.config = _sidecar(here / "config.json")
        run = _sidecar(here / "run.json")
        kept: dict[str, Any] = {
            k: run[k] for k in ("status", "start_time", "stop_time", "result", "command") if k in run
        }
        experiment = run.get("experiment")
        if isinstance(experiment, dict) and "name" in experiment:
            kept["experiment"] = experiment["name"]
        source.summary = {"_run": kept} if kept else {}
        started = iso_time(run["start_time"]) if isinstance(run.get("start_time"), str) else float("nan")
        source.started = started if np.isfinite(started) else None
        if not source.series:
            source.problems.append(Problem("no-scalars", "info", "The run holds no series", source.file))
        return [source]


READER = SacredReader()


def _load(path: Path, options: ReadOptions, source: Source) -> tuple[dict[str, Any] | None, bool]:
    """A JSON object and whether it is whole; None where there is none."""
    label = options.label(path)
    try:
        if path.is_symlink() or not path.is_file():
            return None, True
        if path.stat().st_size > _LIMIT:
            source.problems.append(Problem("too-large", "error", f"More than {_LIMIT} bytes of JSON: not read", label))
            return None, True
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError as problem:
        source.problems.append(Problem("unreadable", "error", f"File cannot be read: {problem.strerror}", label))
        return None, True
    try:
        found = loads(text)
        return (found, True) if isinstance(found, dict) else (None, True)
    except (ValueError, RecursionError):
        found = _closed(text.rstrip("\0 \r\n\t"))
    if not isinstance(found, dict):
        source.problems.append(Problem("bad-json", "error", "The file is no JSON object", label))
        return None, False
    source.problems.append(
        Problem("truncated-tail", "warning", "The file is cut off; it was read as far as it goes", label)
    )
    return found, False


def _closed(text: str) -> Any:
    """Read JSON that breaks off: cut behind the last complete element and close what is open."""
    stack: list[str] = []
    cuts: deque[tuple[int, str]] = deque(maxlen=8)
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in ("[", "{"):
            stack.append("]" if mark == "[" else "}")
        elif mark in ("]", "}"):
            if not stack or stack.pop() != mark:
                break
        elif mark != ",":
            continue
        if len(stack) > _DEPTH:
            break
        cuts.append((token.start() if mark == "," else token.end(), "".join(reversed(stack))))
    for place, closers in reversed(cuts):
        try:
            return loads(text[:place] + closers)
        except (ValueError, RecursionError):
            continue
    return None


def _sidecar(path: Path) -> dict[str, Any]:
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > 16 * 1024 * 1024:
            return {}
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> float | int | None:
    """The number that a value stands for, None where it stands for none."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        if str(value.get("py/object", "")).startswith("numpy.") and isinstance(value.get("value"), bool | int | float):
            inner: float | int = value["value"]
            return inner
        if "py/reduce" in value:
            return _tensor(value["py/reduce"])
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return float(value)
    return None


def _tensor(reduced: Any) -> float | int | None:
    """The element of a pickled zero-dimensional tensor, read from its bytes.

    ``torch._utils._rebuild_tensor_v2(storage, offset 0, size (), ...)``; the storage is torch's old serialisation,
    whose last bytes are the number of elements as int64 and the elements themselves.
    """
    try:
        if reduced[0]["py/function"] != "torch._utils._rebuild_tensor_v2":
            return None
        storage, offset, size = reduced[1]["py/tuple"][:3]
        if offset != 0 or size["py/tuple"]:
            return None
        raw = base64.b64decode(storage["py/reduce"][1]["py/tuple"][0]["py/b64"], validate=True)
    except (KeyError, IndexError, TypeError, ValueError, binascii.Error):
        return None
    for name, layout in _STORAGES.items():
        width = struct.calcsize(layout)
        if name in raw and raw[-width - 8 : -width] == struct.pack("<q", 1):
            number: float | int = struct.unpack(layout, raw[-width:])[0]
            return number
    return None


def _enter(source: Source, name: str, steps: list[Any], values: list[Any], clock: list[Any] | None) -> tuple[int, int]:
    """Add a series; return how many values are no numbers and how many entries have no partner."""
    n = min(len(steps), len(values))
    rows: list[tuple[float | int, float | int, float]] = []
    missing = other = beyond = 0
    for i in range(n):
        number, step = _number(values[i]), _number(steps[i])
        if number is None or step is None or beyond_float(step) or not np.isfinite(step):
            missing += values[i] is None
            other += values[i] is not None
            continue
        if beyond_float(number):
            beyond += 1
            number = clipped(number)
        moment = iso_time(clock[i]) if clock is not None and i < len(clock) and isinstance(clock[i], str) else np.nan
        rows.append((step, number, moment))
    if rows or missing:
        whole = all(float(s).is_integer() and abs(s) < 2**63 for s, _, _ in rows)
        large = any(isinstance(v, int) and abs(v) > 2**53 for _, v, _ in rows)
        exact = large and all(isinstance(v, int) and abs(v) < 2**63 for _, v, _ in rows)
        wall = np.array([w for _, _, w in rows], dtype=np.float64)
        source.series[name] = Series(
            np.array([int(s) for s, _, _ in rows], np.int64) if whole else np.array([float(s) for s, _, _ in rows]),
            np.array([v for _, v, _ in rows], dtype=np.int64 if exact else np.float64),
            wall if np.isfinite(wall).any() else None,
            None,
            missing,
        )
        rounded = 0 if exact or not large else inexact(v for _, v, _ in rows)
        if rounded:
            source.problems.append(inexact_integers(name, rounded, source.file))
    if beyond:
        source.problems.append(overflow(name, beyond, source.file))
    return other, abs(len(steps) - len(values))


def _metrics(source: Source, content: dict[str, Any], whole: bool, options: ReadOptions) -> None:
    lost: dict[str, int] = {}
    unmatched = 0
    for name, entry in content.items():
        if not options.wants(name) or not isinstance(entry, dict):
            continue
        steps, values, clock = entry.get("steps"), entry.get("values"), entry.get("timestamps")
        if not isinstance(steps, list) or not isinstance(values, list):
            continue
        other, loose = _enter(source, name, steps, values, clock if isinstance(clock, list) else None)
        lost.update({name: other} if other else {})
        unmatched += loose
    _say(source, lost, unmatched)


def _info(source: Source, content: dict[str, Any], whole: bool, options: ReadOptions) -> None:
    lost: dict[str, int] = {}
    unmatched = 0
    counted: list[str] = []
    for name, values in content.items():
        if not isinstance(values, list) or not options.wants(name) or name in source.series:
            continue
        if name.endswith("_T") and isinstance(content.get(name[:-2]), list):
            continue
        steps = content.get(f"{name}_T")
        if not isinstance(steps, list):
            if not whole or len(values) < 2 or any(_number(v) is None for v in values):
                continue
            steps = list(range(len(values)))
            counted.append(name)
        other, loose = _enter(source, name, steps, values, None)
        lost.update({name: other} if other else {})
        unmatched += loose
    _say(source, lost, unmatched)
    if counted:
        text = f"{', '.join(counted[:3])} in info.json carry no steps; they are numbered in order"
        source.problems.append(Problem("no-step", "warning", text, source.file, count=len(counted)))


def _say(source: Source, lost: dict[str, int], unmatched: int) -> None:
    if lost:
        shown = ", ".join(list(lost)[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        text = f"{sum(lost.values())} values of {shown} are no scalars (arrays or objects) and were passed over"
        source.problems.append(Problem("not-a-scalar", "info", text, source.file, count=sum(lost.values())))
    if unmatched:
        text = f"{unmatched} entries have a value without a step or a step without a value"
        source.problems.append(Problem("ragged-row", "warning", text, source.file, count=unmatched))
