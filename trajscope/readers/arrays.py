"""NumPy files: ``evaluations.npz`` of Stable-Baselines3 and learning curves in ``.npy``, as the TD3 code writes them.

Nothing is ever unpickled: an array of Python objects is refused and named. What a compressed archive may grow to is
bounded.

*evaluations.npz*: ``timesteps (n,)``, ``results (n, k)``, ``ep_lengths (n, k)`` and perhaps ``successes (n, k)``. All
k episodes are kept as ``results/0``, ...; beside them stand the mean and standard deviation that the callback itself
logs (``eval/mean_reward``, ``eval/std_reward``, ``eval/mean_ep_length``, ``eval/success_rate``). *.npy*: one array a
seed, no x. The step is the number of the entry unless the caller gives the distance between entries
(``step="5000"``), and the run says so.
"""

from __future__ import annotations

import io
import itertools
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from trajscope.errors import InputError
from trajscope.history import Problem, Series, Source
from trajscope.readers.base import Reader, ReadOptions

__all__ = ["READER", "Arrays"]

#: Bytes that the arrays of one file may hold.
MAX_BYTES = 1 << 28
_MEMBERS = ("timesteps", "results", "ep_lengths", "successes")
_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
_CURVES = re.compile(r"(?i)(learning_?curves?|results?|rewards?|returns?|eval(uation)?s?|scores?|loss(es)?|logs?)\Z")
_CURVE_NAME = re.compile(
    r"(?i)(?:(?:our)?td3|ddpg|sac|ppo|a2c|dqn)_.*_\d+|.*(loss|reward|return|score|accuracy|eval).*"
)
_MAX_COLUMNS = 256


class Arrays(Reader):
    """Reader of NumPy files."""

    name = "arrays"
    title = "NumPy arrays (SB3 evaluations.npz, learning curves)"
    priority = 10

    def can_read(self, path: Path, head: bytes) -> bool:
        """The magic bytes, and for archives the member names of an evaluation file."""
        if path.suffix == ".npz":
            return head.startswith(b"PK") and (path.name == "evaluations.npz" or b"timesteps.npy" in head)
        return path.suffix == ".npy" and head.startswith(b"\x93NUMPY")

    def keys(self, files: Sequence[Path], options: ReadOptions) -> list[str]:
        """A lone array is a log where it is named, or lies and is called like a learning curve."""
        path = files[0]
        if path.suffix == ".npz" or options.explicit:
            return [""]
        around = any(_CURVES.match(p) for p in path.parent.parts[-3:])
        with path.open("rb") as stream:
            head = _npy_header(stream.read(4096))
        numeric = head is not None and head[1].kind in "fiu" and len(head[0]) == 1 and head[0][0] > 1
        return [""] if numeric and (around or _CURVE_NAME.match(path.stem)) else []

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """One writer."""
        path = files[0]
        file = options.label(path)
        if path.suffix == ".npz":
            return [_evaluations(path, file, options)]
        return [_curve(path, file, options)]


def _evaluations(path: Path, file: str, options: ReadOptions) -> Source:
    source = Source(file, step_name="timesteps")
    arrays = _archive(path, file, source.problems)
    steps = arrays.get("timesteps")
    if steps is None or steps.ndim != 1 or steps.dtype.kind not in "iuf":
        source.problems.append(Problem("no-scalars", "warning", "The archive has no timesteps", file, count=0))
        return source
    if steps.dtype.kind == "u" and int(steps.max(initial=0)) >= 2**63:
        sentence = "Steps beyond the integers that a float holds exactly: neighbouring ones cannot be told apart"
        source.problems.append(Problem("inexact-steps", "warning", sentence, file))
        steps = steps.astype(np.float64)
    steps = steps.astype(np.float64 if steps.dtype.kind == "f" else np.int64)
    for name in _MEMBERS[1:]:
        array = arrays.get(name)
        if array is None or array.dtype.kind not in "fiub" or not array.size:
            continue
        array = array.reshape(array.shape[0], -1)[:, :_MAX_COLUMNS]
        n = min(steps.size, array.shape[0])
        if array.shape[0] != steps.size:
            sentence = f"{name} has {array.shape[0]} rows for {steps.size} timesteps; the first {n} were taken"
            source.problems.append(
                Problem("ragged-row", "warning", sentence, file, count=abs(array.shape[0] - steps.size))
            )
        values = array[:n].astype(np.float64)
        for label, column in _summaries(name, values):
            if options.wants(label):
                source.series[label] = Series(steps[:n], column)
        for k in range(values.shape[1]):
            if options.wants(f"{name}/{k}"):
                source.series[f"{name}/{k}"] = Series(steps[:n], np.ascontiguousarray(values[:, k]))
    if not source.series and not options.channels:
        source.problems.append(Problem("no-scalars", "info", "The archive holds no results", file, count=0))
    return source


def _summaries(name: str, values: NDArray[np.float64]) -> list[tuple[str, NDArray[np.float64]]]:
    """What the callback logs of the episodes of one evaluation."""
    with np.errstate(all="ignore"):
        mean = values.mean(axis=1)
        if name == "results":
            return [("eval/mean_reward", mean), ("eval/std_reward", values.std(axis=1))]
    return [("eval/mean_ep_length" if name == "ep_lengths" else "eval/success_rate", mean)]


def _curve(path: Path, file: str, options: ReadOptions) -> Source:
    source = Source(file, step_name=options.step or "entry")
    if path.stat().st_size > MAX_BYTES:
        source.problems.append(Problem("too-large", "error", f"Arrays above {MAX_BYTES >> 20} MiB are not read", file))
        return source
    array = _read_npy(path.read_bytes(), file, path.name, source.problems)
    if array is None or array.dtype.kind not in "fiub" or array.ndim > 2 or not array.size:
        if array is not None:
            sentence = f"An array of shape {array.shape} and type {array.dtype} is no learning curve"
            source.problems.append(Problem("not-a-scalar", "info", sentence, file))
        return source
    stride = _stride(options.step)
    if stride is None:
        sentence = (
            "The file holds no x: the number of the entry is the step (give the distance, for example step='5000')"
        )
        source.problems.append(Problem("no-step-column", "warning", sentence, file))
    steps = np.arange(array.shape[0], dtype=np.int64) * (stride or 1)
    name = "eval_return" if any(_CURVES.match(p) for p in path.parent.parts[-3:]) else path.stem
    columns = array.reshape(array.shape[0], -1)
    if columns.shape[1] > _MAX_COLUMNS:
        sentence = f"Only the first {_MAX_COLUMNS} of {columns.shape[1]} columns were read"
        source.problems.append(
            Problem("skipped-records", "warning", sentence, file, count=columns.shape[1] - _MAX_COLUMNS)
        )
    for k in range(min(columns.shape[1], _MAX_COLUMNS)):
        label = name if array.ndim == 1 else f"{name}/{k}"
        values = np.ascontiguousarray(columns[:, k])
        if options.wants(label):
            source.series[label] = Series(steps, values if values.dtype.kind == "f" else values.astype(np.float64))
    return source


def _stride(step: str) -> int | None:
    """Distance between entries as the caller gave it."""
    if not step:
        return None
    if not re.fullmatch(r"\d{1,15}", step) or int(step) == 0:
        raise InputError(f"step={step!r}: a lone array has no columns; give the number of steps between its entries")
    return int(step)


def _archive(path: Path, file: str, problems: list[Problem]) -> dict[str, NDArray[Any]]:
    """The known members of an archive; of a damaged one what its local headers still lead to."""
    found: dict[str, NDArray[Any]] = {}
    room = MAX_BYTES
    try:
        with zipfile.ZipFile(path) as archive:
            other = [n for n in archive.namelist() if n.removesuffix(".npy") not in _MEMBERS]
            if other:
                shown = ", ".join(n.removesuffix(".npy") for n in other[:5]) + (", ..." if len(other) > 5 else "")
                sentence = f"Arrays that are no part of an evaluation were not opened: {shown}"
                problems.append(Problem("not-a-scalar", "info", sentence, file, count=len(other)))
            for name in _MEMBERS:
                if f"{name}.npy" not in archive.namelist():
                    continue
                size = archive.getinfo(f"{name}.npy").file_size
                if size > room:
                    sentence = f"{name} would take {size} bytes, more than the {MAX_BYTES >> 20} MiB that are read"
                    problems.append(Problem("too-large", "error", sentence, file))
                    continue
                with archive.open(f"{name}.npy") as member:
                    data = member.read(room + 1)
                if len(data) > room:
                    problems.append(Problem("too-large", "error", f"{name} grows beyond what it says; not read", file))
                    continue
                room -= len(data)
                array = _read_npy(data, file, name, problems)
                if array is not None:
                    found[name] = array
        return found
    except (
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
        EOFError,
        OSError,
        struct.error,
        UnicodeDecodeError,  # of a member's name
    ) as problem:
        problems.append(
            Problem("damaged-file", "warning", f"The archive is damaged ({problem}); what is left was read", file)
        )
    if path.stat().st_size <= MAX_BYTES:
        for name, data in _stored_members(path.read_bytes()):
            array = _read_npy(data, file, name, problems) if name in _MEMBERS and name not in found else None
            if array is not None:
                found[name] = array
    return found


def _stored_members(data: bytes) -> list[tuple[str, bytes]]:
    """Uncompressed members (as np.savez writes them) by their local headers, without the directory at the end."""
    starts = [m.start() for m in re.finditer(rb"PK\x03\x04", data)]
    found = []
    for start, stop in itertools.pairwise([*starts, len(data)]):
        if start + _LOCAL_HEADER.size > len(data):
            break
        head = _LOCAL_HEADER.unpack_from(data, start)
        method, name_size, extra_size = head[3], head[9], head[10]
        begin = start + _LOCAL_HEADER.size
        name = data[begin : begin + name_size].decode("utf-8", errors="replace")
        if method == 0 and name.endswith(".npy"):
            found.append((name.removesuffix(".npy"), data[begin + name_size + extra_size : stop]))
    return found


def _npy_header(data: bytes) -> tuple[tuple[int, ...], np.dtype[Any], bool, int] | None:
    """Shape, type, Fortran order and offset of the data, None where the header is damaged."""
    stream = io.BytesIO(data)
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except Exception:  # numpy reads the header as a literal; whatever it stumbles over, the header is damaged
        return None
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        return None
    return shape, dtype, fortran, stream.tell()


def _read_npy(data: bytes, file: str, name: str, problems: list[Problem]) -> NDArray[Any] | None:
    """An array without pickle; of a cut one the whole rows."""
    header = _npy_header(data)
    if header is None:
        problems.append(Problem("damaged-file", "warning", f"{name}: the array's header is damaged", file))
        return None
    shape, dtype, fortran, offset = header
    if dtype.hasobject:
        sentence = f"{name} holds pickled Python objects, which are never loaded"
        problems.append(Problem("pickle-refused", "error", sentence, file))
        return None
    row = int(np.prod(shape[1:], dtype=object)) if len(shape) > 1 else 1
    if not shape:
        problems.append(Problem("not-a-scalar", "info", f"{name} holds a single value and no curve", file))
        return None
    total = row * shape[0]
    have = (len(data) - offset) // max(dtype.itemsize, 1)
    if dtype.itemsize == 0 or (fortran and len(shape) > 1 and have < total):
        problems.append(
            Problem("damaged-file", "warning", f"{name}: the array is cut and cannot be put together", file)
        )
        return None
    rows = min(shape[0], have // row if row else 0)
    if rows < shape[0]:
        sentence = f"{name}: {rows} of {shape[0]} rows are there"
        problems.append(Problem("truncated-tail", "warning", sentence, file, f"byte {len(data)}", shape[0] - rows))
    flat = np.frombuffer(data, dtype=dtype, count=rows * row, offset=offset)
    kept = (rows, *shape[1:])
    return flat.reshape(kept[::-1]).T if fortran else flat.reshape(kept)


READER = Arrays()
