"""Find runs under a path and read them.

`scan_runs` walks a directory once, offers each file to the readers, groups the files into runs and yields lazy
`trajscope.Run` objects: nothing is decoded before a run's content is touched. Links are not followed (a file they point
to inside the root is found at its own place); junk is listed, never guessed at.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib.metadata
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from trajscope.errors import InputError, NoLogsFound, ReadError, SeveralRuns, TrajscopeError, nearest
from trajscope.history import RESUME_POLICIES, Problem, Run, RunData, Source, assemble
from trajscope.readers.base import HEAD_BYTES, Reader, ReaderFailure, ReadOptions, Rejected

__all__ = ["Scan", "read_run", "readers", "scan_runs"]

#: Directories that never hold logs and may hold very many files.
NOT_SEARCHED = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".ipynb_checkpoints", ".venv"})
#: Directory names of the two halves of one run (Keras and others write one event file in each).
SIBLINGS = frozenset({"train", "training", "validation", "val", "valid", "eval", "evaluation", "test"})


@lru_cache(maxsize=1)
def readers() -> tuple[Reader, ...]:
    """All registered readers, the most specific first.

    A plug-in that cannot be imported is left out with a warning.
    """
    found: list[Reader] = []
    for entry in importlib.metadata.entry_points(group="trajscope.readers"):
        try:
            found.append(entry.load())
        except Exception as problem:  # a broken plug-in must not take the others down
            warnings.warn(f"reader {entry.name!r} ({entry.value}) cannot be loaded: {problem}", stacklevel=2)
    return tuple(sorted(found, key=lambda r: (-r.priority, r.name)))


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
            yield Run(run_id, self._loader(reader, files, key, merged), path=str(files[0]), format=reader.name)

    def _loader(self, reader: Reader, files: list[Path], key: str, merged: tuple[str, ...]) -> Callable[[], RunData]:
        options, resume, strict = self._options, self._resume, self._strict

        def load() -> RunData:
            try:
                kept, copies = _without_copies(files, options)
                stored = reader.run_data(kept, key, options)
                if stored is None:
                    sources = reader.sources(kept, key, options)
                    if merged:
                        sources = [_prefixed(s, kept, options) for s in sources]
                    facts = {"format": reader.name, "merged_siblings": list(merged)}
                    data = assemble(sources, resume=resume, provenance=facts)
                else:
                    data = stored
            except TrajscopeError:
                raise
            except OSError as problem:
                where = Path(problem.filename) if isinstance(problem.filename, str) else files[0]
                raise ReadError(f"{options.label(where)}: cannot be read: {problem.strerror or problem}") from problem
            except Exception as problem:  # a reader's bug becomes one sentence, with the cause attached
                raise ReaderFailure(
                    f"{options.label(files[0])}: the {reader.name} reader failed ({type(problem).__name__}: {problem})"
                ) from problem
            notes = [*copies, *_sibling_note(merged, options, files)]
            if options.channels and not data.channels:
                wanted = ", ".join(options.channels)
                notes.append(Problem("no-channel-matches", "warning", f"No channel matches the filter {wanted}"))
            data = RunData(
                data.channels,
                data.config,
                data.summary,
                data.segments,
                data.superseded,
                (*notes, *data.problems),
                data.provenance,
            )
            if strict:
                _refuse_losses(data.problems)
            return data

        return load


def _prefixed(source: Source, files: Sequence[Path], options: ReadOptions) -> Source:
    """Prefix the channels of a merged sibling with the name of its directory."""
    folder = next(f.parent.name for f in files if options.label(f) == source.file)
    source.series = {f"{folder}/{name}": s for name, s in source.series.items()}
    return source


def _sibling_note(merged: tuple[str, ...], options: ReadOptions, files: Sequence[Path]) -> list[Problem]:
    if not merged:
        return []
    shown = ", ".join(merged)
    return [
        Problem(
            "merged-siblings",
            "info",
            f"Directories {shown} are one run (same channels, same time); the channels carry the directory's name",
            options.label(files[0].parent.parent),
            count=len(merged),
        )
    ]


def _without_copies(files: Sequence[Path], options: ReadOptions) -> tuple[list[Path], list[Problem]]:
    """Leave out files that are byte for byte a copy of another one of the run."""
    sizes: dict[int, list[Path]] = {}
    for f in files:
        sizes.setdefault(f.stat().st_size, []).append(f)
    copies: dict[Path, Path] = {}
    for size, same in sizes.items():
        if len(same) < 2 or not size:
            continue
        seen: dict[str, Path] = {}
        for f in same:
            with f.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if digest in seen and f.parent == seen[digest].parent:
                copies[f] = seen[digest]
            else:
                seen[digest] = f
    problems = [
        Problem("duplicate-file", "info", f"Identical copy of {options.label(first)}, ignored", options.label(copy))
        for copy, first in copies.items()
    ]
    return [f for f in files if f not in copies], problems


def _refuse_losses(problems: Sequence[Problem]) -> None:
    lost = [p for p in problems if p.severity != "info"]
    if lost:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        raise ReadError(f"strict reading: {lost[0]}{more}")


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
