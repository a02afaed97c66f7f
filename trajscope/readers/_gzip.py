"""Text logs behind ``.gz``: the beginning for a look, the whole within a bound.

A file may unfold to `MAX_UNFOLDED` bytes, or to `MAX_RATIO` times its own size where that is more (the bound of the
TensorBoard reader); text logs shrink 2 to 20 times. Beyond that it is refused: never is more than the bound held.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from trajscope.errors import ReadError
from trajscope.history import Problem
from trajscope.readers.base import HEAD_BYTES, Rejected
from trajscope.readers.tensorboard.stream import GZIP_MAGIC, MAX_RATIO, MAX_UNFOLDED

__all__ = ["plain_head", "plain_path", "read_bytes", "read_head", "read_start"]

#: Bytes that go into and come out of the decompressor at a time.
_INPUT, _OUTPUT = 1 << 16, 1 << 20
#: So many bytes of a header are looked at to tell what a file is; reading itself knows no such bound.
_LONGEST_START = HEAD_BYTES << 12


def plain_path(path: Path) -> Path:
    """The path without ``.gz``, by whose name and suffix a format is told.

    >>> plain_path(Path("metrics.csv.gz")).name
    'metrics.csv'
    """
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def plain_head(path: Path, head: bytes, size: int = HEAD_BYTES) -> bytes:
    """The first bytes of a file as a format is told by them: unfolded where the file is a ``.gz``.

    Parameters
    ----------
    path : Path
    head : bytes
        The first bytes on disk.
    size : int
        At most so many bytes come back for a compressed file.

    Returns
    -------
    bytes

    Raises
    ------
    Rejected
        If the file begins as a gzip file and is damaged at once.
    """
    if path.suffix.lower() != ".gz" or not head.startswith(GZIP_MAGIC):
        return head
    try:
        start = zlib.decompressobj(31).decompress(head, size)
    except zlib.error:
        start = _up_to_damage(zlib.decompressobj(31), head)[:size]
        if not start:
            raise Rejected("The name says compressed log, but it is a damaged gzip file") from None
    return start


def read_head(path: Path, size: int) -> bytes:
    """The first ``size`` bytes of a file, unfolded where it is a ``.gz``."""
    with path.open("rb") as stream:
        return plain_head(path, stream.read(size), size)


def read_start(path: Path, lines: int = 2) -> bytes:
    """The first bytes of a file with at least its first lines: a header that is cut short hides its last names."""
    size = HEAD_BYTES
    head = read_head(path, size)
    while head.count(b"\n") < lines and len(head) == size < _LONGEST_START:
        size *= 4
        head = read_head(path, size)
    return head


def read_bytes(path: Path, label: str) -> tuple[bytes, list[Problem]]:
    """The whole file, unfolded where it is a ``.gz``; of a damaged one the part before the damage.

    Parameters
    ----------
    path : Path
    label : str
        File name for problems.

    Returns
    -------
    data : bytes
    problems : list of Problem
        ``truncated-tail`` or ``damaged-file``.

    Raises
    ------
    ReadError
        If the file unfolds beyond the bound.
    """
    raw = path.read_bytes()
    if path.suffix.lower() != ".gz" or not raw.startswith(GZIP_MAGIC):
        return raw, []
    limit = max(MAX_UNFOLDED, MAX_RATIO * len(raw))
    parts: list[bytes] = []
    held, trouble = 0, ""
    inflate = zlib.decompressobj(31)
    for start in range(0, len(raw), _INPUT):
        pending = raw[start : start + _INPUT]
        while pending and not trouble:
            if inflate.eof:  # members of a gzip file follow each other; zeros may pad its end
                pending = pending.lstrip(b"\0")
                inflate = zlib.decompressobj(31) if pending else inflate
                continue
            before = inflate.copy()
            try:
                piece = inflate.decompress(pending, _OUTPUT)
            except zlib.error:
                piece, trouble = _up_to_damage(before, pending), "damaged"
            parts.append(piece)
            held += len(piece)
            if held > limit:
                raise ReadError(
                    f"{label}: unfolds to more than {limit >> 20} MiB from {len(raw)} bytes and is refused; if it is"
                    " sound, unpack it and read the plain file"
                )
            pending = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
        if trouble:
            break
    problems = []
    if trouble:
        sentence = "The compressed file is damaged; what comes before the damage was read"
        problems.append(Problem("damaged-file", "warning", sentence, label, f"unfolded byte {held}"))
    elif not inflate.eof:
        sentence = "The compressed file breaks off; what is whole was read"
        problems.append(Problem("truncated-tail", "warning", sentence, label, f"byte {len(raw)}"))
    return b"".join(parts), problems


def _up_to_damage(inflate: zlib._Decompress, data: bytes) -> bytes:
    """What a stretch with a damaged place unfolds to before the damage: byte by byte, zlib gives all or nothing."""
    parts: list[bytes] = []
    try:
        parts.extend(inflate.decompress(data[k : k + 1]) for k in range(len(data)))
    except zlib.error:
        return b"".join(parts)
    return b"".join(parts)
