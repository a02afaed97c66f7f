"""The contract of a reader, as checks that a plug-in author runs on a sample of the format.

``check_reader(READER, "sample.log")`` in a test is all it takes. What is checked: the reader's description, that it
recognises its own files and refuses junk politely, the shape of what it delivers, that reading changes nothing and
gives the same twice, that a filter only leaves out, that the run assembles, and that damaged copies of the sample end
in points and problems or in one sentence, never in another exception.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trajscope.errors import InputError, ReadError, TrajscopeError
from trajscope.history import Problem, Run, RunData, Source
from trajscope.readers.base import HEAD_BYTES, Reader, ReaderFailure, ReadOptions, Rejected, Tree
from trajscope.readers.scan import Scan

__all__ = ["ContractViolation", "check_reader", "damaged"]

#: CPU seconds that `Reader.can_read` may take: a scan asks it for every file.
QUICK = 0.5
_KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")
_KINDS = {"info", "warning", "error"}


class ContractViolation(AssertionError):
    """A reader does something that it must not do; the text says what."""


def _demand(holds: object, text: str) -> None:
    if not holds:
        raise ContractViolation(text)


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """A damaged copy: cut, bytes flipped, a stretch zeroed, lost, doubled or made noise.

    Parameters
    ----------
    data : bytes
    rng : numpy Generator

    Returns
    -------
    bytes

    Examples
    --------
    >>> damaged(b"step,loss", np.random.default_rng(0)) != b"step,loss"
    True
    """
    if not data:
        return rng.bytes(int(rng.integers(1, 64)))
    out = bytearray(data)
    a, b = sorted(int(k) for k in rng.integers(0, len(out) + 1, 2))
    b = min(b, a + int(rng.integers(1, 1 + min(len(out), 4096))))
    kind = int(rng.integers(7))
    if kind == 0:
        del out[a:]
    elif kind == 1:
        for place in rng.integers(0, len(out), int(rng.integers(1, 9))).tolist():
            out[place] ^= int(rng.integers(1, 256))
    elif kind == 2:
        out[a:b] = bytes(b - a)
    elif kind == 3:
        del out[a:b]
    elif kind == 4:
        out[a:a] = out[a:b]
    elif kind == 5:
        out[a:b] = rng.bytes(b - a)
    else:
        out += bytes(int(rng.integers(1, 5000)))
    # A change that changes nothing (a zeroed stretch of zeros) still has to be damage.
    return bytes(out) if bytes(out) != data else data[:-1]


class _Watched(Reader):
    """A reader whose answers are looked at on their way to the scan."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.name, self.title, self.priority = reader.name, reader.title, reader.priority
        self.sidecars, self.directory = reader.sidecars, reader.directory
        self.recognised = 0

    def can_read(self, path: Path, head: bytes) -> bool:
        answer = _ask(self._reader, path, head)
        self.recognised += answer
        return answer

    def group(self, files: Sequence[Path]) -> list[list[Path]]:
        groups = self._reader.group(files)
        flat = [f for g in groups for f in g]
        distinct = len(set(flat)) == len(flat) and set(flat) <= set(files)
        _demand(distinct, f"group() must put no file into two runs and add none, got {groups} for {files}")
        _demand(all(groups), "group() must not deliver a run without files")
        return groups

    def trees(self, directory: Path, files: Sequence[Path], directories: Sequence[Path]) -> list[Tree]:
        found = self._reader.trees(directory, files, directories)
        self.recognised += sum(len(t.files) for t in found)
        return found

    def siblings(self, directories: dict[str, list[Path]]) -> bool:
        return bool(self._reader.siblings(directories))

    def keys(self, files: Sequence[Path], options: ReadOptions) -> list[str]:
        keys = self._reader.keys(files, options)
        _demand(len(set(keys)) == len(keys), f"keys() must be distinct, got {keys}")
        return keys

    def run_data(self, files: Sequence[Path], key: str, options: ReadOptions) -> RunData | None:
        return self._reader.run_data(files, key, options)

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        sources = self._reader.sources(files, key, options)
        for source in sources:
            _check_source(source)
        return sources


def _ask(reader: Reader, path: Path, head: bytes) -> bool:
    begin = time.process_time()
    try:
        answer = reader.can_read(path, head)
    except Rejected as reason:
        _demand(len(str(reason)) > 10, "Rejected must say why in a sentence")
        return False
    spent = time.process_time() - begin
    _demand(isinstance(answer, bool), f"can_read() must answer True or False, got {answer!r}")
    _demand(spent < QUICK, f"can_read() took {spent:.1f} s for {path.name}; a scan asks it for every file")
    return answer


def _check_problem(problem: Any) -> None:
    _demand(isinstance(problem, Problem), f"problems must be Problem objects, got {type(problem).__name__}")
    _demand(_KEBAB.match(problem.code), f"problem code {problem.code!r} must be kebab-case")
    _demand(problem.severity in _KINDS and problem.count >= 0, f"problem {problem.code}: severity or count is wrong")
    _demand(problem.message, f"problem {problem.code} needs a sentence")


def _check_source(source: Any) -> None:
    _demand(isinstance(source, Source), f"sources() must deliver Source objects, got {type(source).__name__}")
    _demand(isinstance(source.file, str), "Source.file must be the label of its file (ReadOptions.label)")
    for problem in source.problems:
        _check_problem(problem)
    for name, s in source.series.items():
        _demand(isinstance(name, str), f"channel names must be text, got {name!r}")
        for label, array in (("steps", s.steps), ("values", s.values), ("wall_time", s.wall_time), ("row", s.row)):
            if array is None and label in ("wall_time", "row"):
                continue
            _demand(isinstance(array, np.ndarray), f"channel {name!r}: {label} must be an array")
            _demand(
                array.shape == s.steps.shape and array.ndim == 1, f"channel {name!r}: {label} must be one-dimensional"
            )
        _demand(s.steps.dtype in (np.int64, np.float64), f"channel {name!r}: steps are {s.steps.dtype}, not 64 bit")
        _demand(not np.isnan(s.steps).any(), f"channel {name!r}: a point without a step is no point")
        _demand(s.values.dtype.kind in "fiub", f"channel {name!r}: values are {s.values.dtype}, no numbers")
        _demand(s.n_missing >= 0, f"channel {name!r}: n_missing is negative")
        if s.row is not None:
            _demand(bool((np.diff(s.row) >= 0).all()), f"channel {name!r}: rows must not decrease (order of writing)")


def _runs(reader: Reader, sample: Path, channels: tuple[str, ...] = ()) -> Iterator[Run]:
    """Runs of the sample, read; a run that cannot be read must say so in one sentence."""
    options = ReadOptions(sample, channels, explicit=sample.is_file())
    for run in Scan(sample, (reader,), options, "auto", False):
        try:
            _ = run.data
        except ReaderFailure as failure:
            cause = failure.__cause__
            if isinstance(cause, ContractViolation):
                raise cause from None
            if isinstance(cause, Exception):
                raise ContractViolation(
                    f"{run.id}: reading ended in {type(cause).__name__}: {cause}; deliver the good part and a Problem,"
                    " or raise ReadError"
                ) from cause
        except ReadError:
            continue
        except TrajscopeError as failure:
            raise ContractViolation(
                f"{run.id}: reading ended in {type(failure).__name__}: {failure}; an unreadable log is a ReadError"
            ) from failure
        for problem in run.problems:
            _check_problem(problem)
        yield run


def _fingerprint(sample: Path) -> dict[str, str]:
    files = sorted(sample.rglob("*")) if sample.is_dir() else [sample]
    return {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in files if f.is_file()}


def _content(runs: Sequence[Run]) -> dict[tuple[str, str], tuple[bytes, ...]]:
    return {
        (run.id, name): (c.steps.tobytes(), c.values.tobytes(), b"" if c.wall_time is None else c.wall_time.tobytes())
        for run in runs
        for name, c in run.channels.items()
    }


def check_reader(reader: Reader, sample: str | Path, *, n_damaged: int = 12, seed: int = 0) -> int:
    """Check a reader on a sample of its format.

    Parameters
    ----------
    reader : Reader
    sample : path
        A log file, or the directory of a run, small (a few 100 kB): it is copied and read some 20 times.
    n_damaged : int, default 12
        Damaged copies that are read.
    seed : int, default 0
        Of the damage.

    Returns
    -------
    int
        Points read from the undamaged sample.

    Raises
    ------
    ContractViolation
        With what is wrong and what was expected.
    InputError
        If the sample does not exist.

    Examples
    --------
    >>> import tempfile
    >>> from trajscope.readers import readers
    >>> from trajscope.testing import check_reader
    >>> delimited = next(r for r in readers() if r.name == "delimited")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sample = Path(folder) / "log.csv"
    ...     _ = sample.write_text("step,loss\\n0,1.5\\n1,1.25\\n")
    ...     check_reader(delimited, sample)
    2
    """
    sample = Path(sample)
    if not sample.exists():
        raise InputError(f"sample {sample} does not exist")
    _demand(_KEBAB.match(reader.name), f"Reader.name {reader.name!r} must be short, lower-case, kebab-case")
    _demand(reader.title, "Reader.title must name the format for people")
    _demand(isinstance(reader.sidecars, tuple), "Reader.sidecars must be a tuple of shell patterns")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        _check_junk(reader, scratch / "junk")
        copy = _copy(sample, scratch / "good")
        before = _fingerprint(copy)
        watched = _Watched(reader)
        if copy.is_file():  # a scan groups the files of a directory; a single file never gets there
            watched.group([copy])
        first = list(_runs(watched, copy))
        _demand(watched.recognised, f"can_read() refuses the sample {sample.name}")
        _demand(first, f"no run could be read from the sample {sample.name}")
        _demand(
            _content(first) == _content(list(_runs(_Watched(reader), copy))), "reading twice gives different points"
        )
        _demand(_fingerprint(copy) == before, "reading changed the files")
        _check_filter(reader, copy, first)
        rng = np.random.default_rng(seed)
        for trial in range(n_damaged):
            hurt = _copy(sample, scratch / f"hurt{trial}")
            files = sorted(f for f in hurt.rglob("*") if f.is_file()) if hurt.is_dir() else [hurt]
            victim = files[int(rng.integers(len(files)))]
            victim.write_bytes(damaged(victim.read_bytes(), rng))
            for _ in _runs(_Watched(reader), hurt):
                pass
    return sum(run.n_points for run in first)


def _copy(sample: Path, target: Path) -> Path:
    """A writable copy under the same name (a reader may go by it)."""
    target.mkdir(parents=True)
    place = target / sample.name
    if sample.is_file():
        place.write_bytes(sample.read_bytes())
        return place
    shutil.copytree(sample, place, copy_function=shutil.copyfile, symlinks=True)
    for part in (place, *place.rglob("*")):
        if part.is_dir() and not part.is_symlink():
            part.chmod(0o700)
    return place


def _check_junk(reader: Reader, folder: Path) -> None:
    """Files of every other kind are answered, not choked on."""
    folder.mkdir()
    junk = {
        "empty": b"",
        "zeros.bin": bytes(HEAD_BYTES),
        "noise.dat": np.random.default_rng(0).bytes(HEAD_BYTES),
        "text.txt": "Just a few words: ünïcode.\n".encode() * 50,
        "half.json": b'{"a": [1, 2',
    }
    for name, content in junk.items():
        path = folder / name
        path.write_bytes(content)
        _ask(reader, path, content[:HEAD_BYTES])


def _check_filter(reader: Reader, sample: Path, whole: Sequence[Run]) -> None:
    """One channel alone is that channel, and no other comes along."""
    names = sorted({name for run in whole for name in run.channels if not set(name) & set("*?[]")})
    for chosen in {names[0], names[-1]} if len(names) > 1 else ():
        alone = _content(list(_runs(_Watched(reader), sample, (chosen,))))
        _demand({name for _, name in alone} == {chosen}, f"channels=({chosen!r},) must leave out every other channel")
        wanted = {key: len(points[1]) for key, points in _content(whole).items() if key[1] == chosen}
        _demand({k: len(p[1]) for k, p in alone.items()} == wanted, f"channels=({chosen!r},) changes the points")
