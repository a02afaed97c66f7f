"""What there is to score: runs of local roots, one item each; folders of remote roots, fetched when their turn comes.

An item's fingerprint is a hash over the names, sizes and times (remote: also tags) of its files. A second call scores
the items whose fingerprint it has not seen.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Self

from trajscope.errors import InputError, MissingExtra, NoLogsFound, ReadError
from trajscope.history import Problem, Run
from trajscope.readers import Scan, scan_runs
from trajscope.readers.load import Loader

__all__ = ["FRESH_SECONDS", "Item", "Listing", "Spool", "fetch", "is_remote"]

#: A run with a file younger than this when it was listed may still be written.
FRESH_SECONDS = 3600.0


@dataclass(frozen=True)
class Item:
    """One thing to score.

    Attributes
    ----------
    key : str
        Run id; of a remote root the folder or file below it.
    root : str
    fingerprint : str
    still_written : bool
    size : int
        Bytes.
    run : Run or None
        The run, not read; None for a remote item.
    remote : tuple of str
        Addresses of the files of a remote item.
    options : mapping
        Reading options, and for a remote item those of its file system.
    """

    key: str
    root: str
    fingerprint: str
    still_written: bool
    size: int
    run: Run | None = None
    remote: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """What a row takes over."""
        return {"fingerprint": self.fingerprint, "still_written": self.still_written}


class Listing:
    """Items of several roots in sorted order; afterwards, what was passed over."""

    def __init__(
        self, roots: Iterable[str], options: Mapping[str, Any], storage: Mapping[str, Any], fresh: float
    ) -> None:
        self.roots = list(roots)
        self.problems: list[Problem] = []
        self.ignored = 0
        self._options, self._storage, self._fresh = dict(options), dict(storage), fresh

    def __iter__(self) -> Iterator[Item]:
        self.problems.clear()
        self.ignored = 0
        now = time.time()
        for root in self.roots:
            if is_remote(root):
                yield from self._remote(root, now)
            else:
                yield from self._local(root, now)

    def _local(self, root: str, now: float) -> Iterator[Item]:
        scan: Scan = scan_runs(root, **self._options)
        for run in scan:
            loader = run.loader
            files = loader.files if isinstance(loader, Loader) else ()
            parts, newest, size = [], 0.0, 0
            for file in files:
                try:
                    stat = file.stat()
                except OSError:
                    parts.append((file.name, -1, -1))
                    continue
                parts.append((str(file), stat.st_size, stat.st_mtime_ns))
                newest, size = max(newest, stat.st_mtime), size + stat.st_size
            yield Item(run.id, root, _hash(parts), now - newest < self._fresh, size, run)
        self.problems.extend(scan.problems)
        self.ignored += len(scan.ignored)

    def _remote(self, root: str, now: float) -> Iterator[Item]:
        system, top = _file_system(root, self._storage)
        try:
            found = system.find(top, detail=True)
        except FileNotFoundError as problem:
            raise NoLogsFound(f"{root}: no such place") from problem
        except Exception as problem:  # every file system has its own errors
            raise ReadError(f"{root}: cannot be listed ({type(problem).__name__}: {problem})") from problem
        if not found:
            raise NoLogsFound(f"{root}: holds no file")
        groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
        base = top.rstrip("/")
        for name, info in found.items():
            below = name.removeprefix(base).lstrip("/") or PurePosixPath(name).name
            groups.setdefault(below.split("/")[0], []).append((name, info))
        for key in sorted(groups):
            files = sorted(groups[key])
            parts = [(n, int(i.get("size") or 0), _stamp(i)) for n, i in files]
            newest = max((_seconds(i) for _, i in files), default=0.0)
            yield Item(
                key, root, _hash(parts), now - newest < self._fresh, sum(p[1] for p in parts),
                remote=tuple(n for n, _ in files), options={"read": self._options, "storage": self._storage},
            )  # fmt: skip


class Spool:
    """Shards of items on disk until their turn comes: a million runs fit into no driver.

    A shard ends at ``most`` items or ``size`` bytes, whichever comes first.
    """

    def __init__(self, most: int, size: int) -> None:
        self.items = 0
        self._most, self._size = most, size
        self._file = tempfile.TemporaryFile(prefix="trajscope-")  # noqa: SIM115 - closed in `__exit__`
        self._open: list[Item] = []
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, item: Item) -> None:
        """Put one item behind the others."""
        if self._open and (len(self._open) >= self._most or self._bytes + item.size > self._size):
            self._close_shard()
        self._open.append(item)
        self._bytes += item.size
        self.items += 1

    def _close_shard(self) -> None:
        pickle.dump(self._open, self._file)
        self._open, self._bytes = [], 0

    def shards(self) -> Iterator[list[Item]]:
        """All shards, once, in order."""
        if self._open:
            self._close_shard()
        self._file.seek(0)
        while True:
            try:
                shard: list[Item] = pickle.load(self._file)  # noqa: S301 - our own temporary file
            except EOFError:
                return
            yield shard


def is_remote(root: str) -> bool:
    """Whether a root is an address (``s3://...``) rather than a path.

    >>> is_remote("s3://bucket/logs"), is_remote("logs")
    (True, False)
    """
    return "://" in root


def _file_system(root: str, storage: Mapping[str, Any]) -> tuple[Any, str]:
    """File system of an address and the path inside it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as missing:
        raise MissingExtra(f"{root}: reading from there needs fsspec: pip install 'trajscope[remote]'") from missing
    try:
        system, path = url_to_fs(root, **storage)
    except ImportError as missing:
        raise MissingExtra(f"{root}: {missing}") from missing
    except ValueError as problem:
        raise InputError(f"{root}: {problem}") from problem
    return system, str(path)


def fetch(item: Item, folder: Path) -> Path:
    """Copy a remote item below a local folder, its own structure kept; returns that folder.

    A name that would leave the folder is refused.
    """
    system, top = _file_system(item.root, item.options["storage"])
    base = top.rstrip("/")
    for name in item.remote:
        below = PurePosixPath(name.removeprefix(base).lstrip("/") or PurePosixPath(name).name)
        if below.is_absolute() or ".." in below.parts:
            raise ReadError(f"{name}: a name that leaves its root is not read")
        target = folder.joinpath(*below.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            system.get_file(name, str(target))
        except Exception as problem:  # every file system has its own errors
            raise ReadError(f"{name}: cannot be fetched ({type(problem).__name__}: {problem})") from problem
    return folder


def _hash(parts: list[tuple[Any, ...]]) -> str:
    return hashlib.sha256(json.dumps(parts).encode(errors="surrogateescape")).hexdigest()[:16]


def _stamp(info: Mapping[str, Any]) -> str:
    """What tells a changed remote file: its tag, else its time."""
    names = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "updated", "created")
    return str(next((info[k] for k in names if info.get(k)), ""))


def _seconds(info: Mapping[str, Any]) -> float:
    """Time of a remote file, Unix seconds; 0 where it is not known."""
    value = next((info[k] for k in ("LastModified", "mtime", "updated", "created") if info.get(k)), 0.0)
    if isinstance(value, int | float):
        return float(value)
    stamp = getattr(value, "timestamp", None)
    return float(stamp()) if callable(stamp) else 0.0
