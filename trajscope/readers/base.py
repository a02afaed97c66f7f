"""What a reader is: one module a format, registered under the entry-point group ``trajscope.readers``.

A reader says which files it can read, which of them belong to one run, and delivers what each writer wrote as
`trajscope.history.Source` objects. It never sorts, deduplicates or merges: `trajscope.history.assemble` does that for
all formats alike. It never raises for damage inside a file: the good part is delivered and the loss becomes a
`Problem`. It never executes or trusts what it reads (no pickle, no path taken from a file).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trajscope.errors import ReadError
from trajscope.history import RunData, Source

__all__ = ["HEAD_BYTES", "ReadOptions", "Reader", "ReaderFailure", "Rejected", "Tree"]

#: How many bytes of a file `Reader.can_read` is shown.
HEAD_BYTES = 4096


class ReaderFailure(ReadError):
    """A reader's own bug, as the user meets it: one sentence, with the exception that escaped as its cause."""


class Rejected(Exception):
    """Raised by `Reader.can_read` for a file that claims to be of the format and is not; the text says why.

    The file is then offered to no other reader and listed with that reason.
    """


@dataclass(frozen=True)
class ReadOptions:
    """How to read.

    Attributes
    ----------
    root : Path
        What the user named; file names in problems and identities are relative to it.
    channels : tuple of str
        Shell patterns; only channels that match one are decoded. Empty: all.
    step : str
        Column, field or channel to take as the step; empty: the reader's own rule.
    explicit : bool
        True where the user named this very file, False in a directory scan. A table without a step-like column is no
        log in a scan and is read (by row number) when named.
    """

    root: Path = field(default_factory=Path)
    channels: tuple[str, ...] = ()
    step: str = ""
    explicit: bool = False

    def wants(self, channel: str) -> bool:
        """Whether the channel passes the filter.

        >>> ReadOptions(channels=("train/*",)).wants("train/loss")
        True
        """
        return not self.channels or any(fnmatch.fnmatchcase(channel, p) for p in self.channels)

    def label(self, path: Path) -> str:
        """The path as it is shown: relative to the root where it lies below it."""
        try:
            shown = path.relative_to(self.root).as_posix()
        except ValueError:
            return path.as_posix()
        return path.name if shown == "." else shown


@dataclass(frozen=True)
class Tree:
    """A run whose files lie in several directories.

    Attributes
    ----------
    name : Path
        File or directory after which the run is named.
    files : tuple of Path
        Its files; a scan offers them to no other reader.
    done : tuple of Path
        Directories that hold nothing else, so that a scan does not go into them.
    """

    name: Path
    files: tuple[Path, ...]
    done: tuple[Path, ...] = ()


class Reader:
    """Base of all readers; subclasses set the attributes and implement `can_read` and `sources`.

    Attributes
    ----------
    name : str
        Short lower-case name, as in ``--format``.
    title : str
        Name for people.
    priority : int
        Readers with a higher priority are asked first; generic formats use negative numbers.
    sidecars : tuple of str
        Shell patterns of file names that belong to the format and are no logs (configuration and the like); a scan
        does not list them as ignored.
    directory : bool
        True where a run is a directory rather than a file; it is then named after the directory.
    """

    name = ""
    title = ""
    priority = 0
    sidecars: tuple[str, ...] = ()
    directory = False

    def can_read(self, path: Path, head: bytes) -> bool:
        """Whether the file is of this format.

        Parameters
        ----------
        path : Path
            A regular file.
        head : bytes
            Its first `HEAD_BYTES` bytes.

        Raises
        ------
        Rejected
            If the file claims to be of this format and cannot be read.
        """
        raise NotImplementedError

    def group(self, files: Sequence[Path]) -> list[list[Path]]:
        """Cut the readable files of one directory into runs; default one run a file (or a directory)."""
        return [list(files)] if self.directory else [[f] for f in files]

    def trees(self, directory: Path, files: Sequence[Path], directories: Sequence[Path]) -> list[Tree]:
        """Runs that are spread over the subdirectories of ``directory`` (sessions of one run, a file a metric)."""
        return []

    def siblings(self, directories: dict[str, list[Path]]) -> bool:
        """Whether sibling directories called train, validation, ... are one run (only asked for such names)."""
        return False

    def keys(self, files: Sequence[Path], options: ReadOptions) -> list[str]:
        """Names of the runs inside one group of files; default one unnamed run.

        An empty list says that the files are no log after all; a scan lists them as ignored.
        """
        return [""]

    def run_data(self, files: Sequence[Path], key: str, options: ReadOptions) -> RunData | None:
        """The finished content, for a format that stores assembled runs; default None: `sources` are assembled."""
        return None

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """What each writer wrote, for one run.

        Parameters
        ----------
        files : sequence of Path
            One group, as `group` cut it.
        key : str
            One of `keys`.
        options : ReadOptions

        Returns
        -------
        list of Source

        Raises
        ------
        ReadError
            Only where nothing at all can be read from the files.
        """
        raise NotImplementedError
