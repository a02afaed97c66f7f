"""Find runs under a path and read them.

`scan_runs` walks a directory once, offers each file to the readers, groups the files into runs and yields lazy
`trajscope.Run` objects: nothing is decoded before a run's content is touched. Links are not followed (a file they point
to inside the root is found at its own place); junk is listed, never guessed at.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trajscope.errors import InputError, NoLogsFound, SeveralRuns, TrajscopeError, nearest
from trajscope.history import RESUME_POLICIES, Problem, Run
from trajscope.readers.base import HEAD_BYTES, Reader, ReadOptions, Rejected
from trajscope.readers.contents import contents
from trajscope.readers.load import Loader, readers

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Scan", "read_run", "scan_runs"]

#: Directories that never hold logs and may hold very many files.
NOT_SEARCHED = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".ipynb_checkpoints", ".venv"})
#: Directory names of the two halves of one run (Keras and others write one event file in each).
SIBLINGS = frozenset({"train", "training", "validation", "val", "valid", "eval", "evaluation", "test"})


def _choose(format: str | None) -> tuple[Reader, ...]:
    if format is None:
        return readers()
    chosen = tuple(r for r in readers() if r.name == format)
    if not chosen:
        raise InputError(f"format {format!r} is unknown. {nearest(format, [r.name for r in readers()])}")
    return chosen


class Scan:
    """Iterate over the runs under a path; afterwards, what was passed over.

    Attributes
    ----------
    problems : list of Problem
        Files that claim to be logs and cannot be read, links that leave the root, unreadable directories. Complete once
        the iteration has ended.
    ignored : list of str
        Files that are no logs, relative to the root.
    """

    def __init__(self, root: Path, chosen: tuple[Reader, ...], options: ReadOptions, resume: str, strict: bool) -> None:
        self.root = root
        self.problems: list[Problem] = []
        self.ignored: list[str] = []
        self._readers = chosen
        self._options = options
        self._resume = resume
        self._strict = strict

    def __iter__(self) -> Iterator[Run]:
        self.problems.clear()
        self.ignored.clear()
        if self.root.is_file():
            yield from self._file()
        else:
            yield from self._directory(self.root)

    def contents(self) -> pd.DataFrame:
        """Every run's channels with their ranges and sizes, one row a channel; no run is kept in memory."""
        return contents(self, self.root)

    def _file(self) -> Iterator[Run]:
        reader = self._reader_of(self.root)
        if reader is None:
            self.ignored.append(self.root.name)
            return
        yield from self._runs(reader, [self.root], self.root.name)

    def _directory(self, top: Path) -> Iterator[Run]:
        pending = [top]
        spread: set[Path] = set()  # files of runs that lie in several directories
        while pending:
            here = pending.pop()
            files, directories = self._listing(here)
            taken: set[Path] = set()
            for reader in self._readers:
                for tree in reader.trees(here, [f for f in files if f not in spread], directories):
                    yield from self._runs(reader, list(tree.files), self._id(tree.name))
                    spread.update(tree.files)
                    taken.update(tree.done)
            claimed = self._claim([f for f in files if f not in spread])
            spread.difference_update(files)
            for reader in self._readers:
                inside = self._siblings(reader, directories)
                if inside:
                    merged = [f for found in inside.values() for f in found]
                    name = self._id(here)
                    if reader.name in claimed:  # the directory itself holds another run
                        name = f"{name}/{'+'.join(inside)}"
                    yield from self._runs(reader, merged, name, merged=tuple(inside))
                    spread.update(merged)
            for reader in self._readers:
                mine = claimed.get(reader.name, [])
                if not mine:
                    continue
                for group in reader.group(mine):
                    name = self._id(here) if reader.directory else self._id(group[0])
                    if reader.directory and self._shadowed(reader, claimed):
                        name = f"{name}@{reader.name}"
                    yield from self._runs(reader, group, name)
            pending.extend(reversed([d for d in directories if d not in taken]))

    def _siblings(self, reader: Reader, directories: Sequence[Path]) -> dict[str, list[Path]]:
        """Files of the sibling directories that are one run, by directory; empty where there is no such run."""
        inside: dict[str, list[Path]] = {}
        for directory in directories if reader.directory else ():
            if directory.name.lower() in SIBLINGS:
                found = [f for f in self._listing(directory, note=False)[0] if self._quietly(reader, f)]
                if found:
                    inside[directory.name] = found
        if len(inside) < 2:
            return {}
        first = next((name for name in inside if name.lower().startswith("train")), next(iter(inside)))
        joined = {
            name: found
            for name, found in inside.items()
            if name == first or reader.siblings({first: inside[first], name: found})
        }
        return joined if len(joined) > 1 else {}

    @staticmethod
    def _shadowed(reader: Reader, claimed: Mapping[str, list[Path]]) -> bool:
        """Whether another directory-wise reader has files here too, so that the name must say which."""
        return any(r.directory and r.name in claimed and r.name != reader.name for r in readers())

    def _id(self, path: Path) -> str:
        shown = path.relative_to(self.root).as_posix()
        return path.name if shown == "." else shown

    def _listing(self, directory: Path, *, note: bool = True) -> tuple[list[Path], list[Path]]:
        """Regular files and directories, sorted by name; links and unreadable entries become problems."""
        try:
            with os.scandir(directory) as listing:
                entries = sorted(listing, key=lambda e: e.name)
        except OSError as problem:
            if note:
                reason = f"Directory cannot be listed: {problem.strerror}"
                self.problems.append(Problem("unreadable", "error", reason, self._id(directory)))
            return [], []
        files, directories = [], []
        for entry in entries:
            path = Path(entry.path)
            if entry.is_symlink():
                if note:
                    self._link(path)
            elif entry.is_dir(follow_symlinks=False):
                if entry.name not in NOT_SEARCHED:
                    directories.append(path)
                elif note:
                    self.ignored.append(f"{self._id(path)}/ (not searched)")
            elif entry.is_file(follow_symlinks=False):
                files.append(path)
            elif note:
                self.ignored.append(self._id(path))
        return files, directories

    def _link(self, path: Path) -> None:
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):
            self.ignored.append(f"{self._id(path)} (broken or circular link)")
            return
        if target.is_relative_to(self.root.resolve()):
            self.ignored.append(f"{self._id(path)} (link to a place inside the root)")
        else:
            self.problems.append(
                Problem("link-outside", "warning", "Link out of the root is not followed", self._id(path))
            )

    def _claim(self, files: Sequence[Path]) -> dict[str, list[Path]]:
        claimed: dict[str, list[Path]] = {}
        for path in files:
            reader = self._reader_of(path)
            if reader is not None:
                claimed.setdefault(reader.name, []).append(path)
            elif not any(fnmatch.fnmatch(path.name, p) for r in self._readers for p in r.sidecars):
                self.ignored.append(self._id(path))
        return claimed

    def _quietly(self, reader: Reader, path: Path) -> bool:
        try:
            return self._reader_of(path, note=False) is reader
        except TrajscopeError:
            return False

    def _reader_of(self, path: Path, *, note: bool = True) -> Reader | None:
        """The first reader that takes the file; None where it is no log (noted where it claims to be one)."""
        try:
            with path.open("rb") as stream:
                head = stream.read(HEAD_BYTES)
        except OSError as problem:
            if note:
                self.problems.append(
                    Problem(
                        "unreadable", "error", f"File cannot be opened: {problem.strerror}", self._options.label(path)
                    )
                )
            return None
        for reader in self._readers:
            try:
                if reader.can_read(path, head):
                    return reader
            except Rejected as reason:
                if note:
                    self.problems.append(Problem("not-a-log", "warning", str(reason), self._options.label(path)))
                return None
        return None

    def _runs(self, reader: Reader, files: list[Path], name: str, *, merged: tuple[str, ...] = ()) -> Iterator[Run]:
        try:
            keys = reader.keys(files, self._options)
        except TrajscopeError as problem:
            self.problems.append(Problem("unreadable", "error", str(problem), self._options.label(files[0])))
            return
        if not keys:  # no log after all; what the user names is read all the same
            self.ignored.extend(self._id(f) for f in files)
        for key in keys:
            run_id = f"{name}#{key}" if key else name
            load = Loader(reader, tuple(files), key, self._options, self._resume, self._strict, merged)
            yield Run(run_id, load, path=str(files[0]), format=reader.name)


def _root(path: str | Path) -> Path:
    root = Path(path)
    try:
        there = root.exists()
    except (OSError, ValueError) as problem:  # a name that no file system takes
        raise NoLogsFound(f"{str(root)[:80]}: not a path ({problem})") from problem
    if not there:
        raise NoLogsFound(f"{root}: no such file or directory")
    if not (root.is_file() or root.is_dir()):
        raise NoLogsFound(f"{root}: neither a regular file nor a directory")
    return root


def scan_runs(
    root: str | Path,
    *,
    format: str | None = None,
    channels: Sequence[str] = (),
    resume: str = "auto",
    step: str = "",
    strict: bool = False,
) -> Scan:
    """Find the runs under a path, without reading them.

    Parameters
    ----------
    root : path
        A log file or a directory that is searched whole.
    format : str, optional
        Name of the one reader to use; default all.
    channels : sequence of str
        Shell patterns; only matching channels are decoded.
    resume : {"auto", "supersede", "segments", "keep-all", "offset"}, default "auto"
        What happens where a run was resumed (`trajscope.history.assemble`).
    step : str
        Column or channel that is the step; default the format's own rule.
    strict : bool, default False
        Whether any loss (a problem that is more than information) makes reading a run an error.

    Returns
    -------
    Scan
        Iterable of lazy runs, with ``problems`` and ``ignored`` once it has been walked.

    Raises
    ------
    NoLogsFound
        If the path does not exist. (A directory without logs gives an empty scan.)
    InputError
        If ``format`` or ``resume`` is unknown.
    """
    if resume not in RESUME_POLICIES:
        raise InputError(f"resume policy {resume!r} is unknown. {nearest(resume, RESUME_POLICIES)}")
    path = _root(root)
    patterns = (channels,) if isinstance(channels, str) else tuple(channels)
    options = ReadOptions(path, patterns, step, explicit=path.is_file())
    return Scan(path, _choose(format), options, resume, strict)


def read_run(
    path: str | Path,
    *,
    run: str | None = None,
    format: str | None = None,
    channels: Sequence[str] = (),
    resume: str = "auto",
    step: str = "",
    strict: bool = False,
) -> Run:
    """Read the one run at a path.

    Parameters
    ----------
    path : path
        A log file or a run's directory.
    run : str, optional
        Identity (or the part after ``#``) where the path holds several.
    format, channels, resume, step, strict
        As in `scan_runs`.

    Returns
    -------
    Run
        Fully read.

    Raises
    ------
    NoLogsFound
        If the path does not exist or holds no log.
    SeveralRuns
        If it holds more than one run and ``run`` is None.
    ReadError
        If the log cannot be read at all.
    """
    scan = scan_runs(path, format=format, channels=channels, resume=resume, step=step, strict=strict)
    found = list(scan)
    if run is not None:
        chosen = [r for r in found if r.id == run or r.id.endswith(f"#{run}")]
        if not chosen:
            raise InputError(f"{path}: holds no run {run!r}. {nearest(run, [r.id for r in found])}")
        found = chosen[:1]
    if not found:
        reasons = "; ".join(str(p) for p in scan.problems[:3])
        passed = f" ({len(scan.ignored)} files passed over)" if scan.ignored else ""
        if scan.root.is_file() and not reasons:
            raise NoLogsFound(f"{path}: no reader takes this file; `trajscope readers` lists what can be read")
        raise NoLogsFound(f"no logs found under {path}{passed}" + (f": {reasons}" if reasons else ""))
    if len(found) > 1:
        names = ", ".join(r.id for r in found[:6]) + (", ..." if len(found) > 6 else "")
        raise SeveralRuns(
            f"{path}: holds {len(found)} runs ({names}); name one with run=..., or use scan_runs for all of them"
        )
    only = found[0]
    _ = only.data  # read now, so that an error shows here
    return only
