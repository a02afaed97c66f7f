"""Read the content of one run: what a lazy `trajscope.Run` does when it is first touched.

A `Loader` is plain data (a reader has no state), so that a run found by one process can be read by another.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from trajscope.errors import ReadError, TrajscopeError
from trajscope.history import Problem, RunData, Source, assemble
from trajscope.readers.base import Reader, ReaderFailure, ReadOptions

__all__ = ["Loader", "readers"]


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


@dataclass(frozen=True)
class Loader:
    """Reads one run.

    Attributes
    ----------
    reader : Reader
    files : tuple of Path
    key : str
        Which run of several in these files.
    options : ReadOptions
    resume : str
    strict : bool
    merged : tuple of str
        Sibling directories that are one run; empty for most runs.
    """

    reader: Reader
    files: tuple[Path, ...]
    key: str
    options: ReadOptions
    resume: str = "auto"
    strict: bool = False
    merged: tuple[str, ...] = ()

    def __call__(self) -> RunData:
        """Read it.

        Raises
        ------
        ReadError
            If nothing of it can be read, or ``strict`` and something was lost.
        """
        reader = self.reader
        options = self.options
        try:
            kept, copies = _without_copies(self.files, options)
            stored = reader.run_data(kept, self.key, options)
            if stored is None:
                sources = reader.sources(kept, self.key, options)
                if self.merged:
                    sources = [_prefixed(s, kept, options) for s in sources]
                facts = {"format": reader.name, "merged_siblings": list(self.merged)}
                data = assemble(sources, resume=self.resume, provenance=facts)
            else:
                data = stored
        except (TrajscopeError, MemoryError):  # too little memory is no fault of the reader
            raise
        except OSError as problem:
            where = Path(problem.filename) if isinstance(problem.filename, str) else self.files[0]
            raise ReadError(f"{options.label(where)}: cannot be read: {problem.strerror or problem}") from problem
        except Exception as problem:  # a reader's bug becomes one sentence, with the cause attached
            raise ReaderFailure(
                f"{options.label(self.files[0])}: the {reader.name} reader failed ({type(problem).__name__}: {problem})"
            ) from problem
        notes = [*copies, *_sibling_note(self.merged, options, self.files)]
        if options.channels and not data.channels:
            wanted = ", ".join(options.channels)
            notes.append(Problem("no-channel-matches", "warning", f"No channel matches the filter {wanted}"))
        if options.step and data.channels and options.step not in data.provenance.get("step", ()):
            sentence = (
                f"Of this format ({reader.name}) the step cannot be chosen; step={options.step!r} changed nothing"
                " (`align` orders by any channel)"
            )
            notes.append(Problem("step-ignored", "warning", sentence, options.label(self.files[0])))
        data = RunData(
            data.channels,
            data.config,
            data.summary,
            data.segments,
            data.superseded,
            (*notes, *data.problems),
            data.provenance,
        )
        if self.strict:
            _refuse_losses(data.problems)
        return data


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
