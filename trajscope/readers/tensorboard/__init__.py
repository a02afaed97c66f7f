"""TensorBoard event files: every scalar, at full resolution, every checksum verified.

What is read: ``simple_value`` and tensors with one element (of every numeric dtype) as one series a tag;
hyper-parameters of the hparams plug-in into the configuration; session starts as marks. What is no scalar is counted
and passed over. A directory is a run; its files are the sessions of that run.
"""

from __future__ import annotations

import fnmatch
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trajscope.errors import ReadError
from trajscope.history import Problem, Source
from trajscope.readers.base import Reader, ReadOptions, Rejected
from trajscope.readers.tensorboard.crc import find_headers
from trajscope.readers.tensorboard.stream import GZIP_MAGIC
from trajscope.readers.tensorboard.walk import Decoded, decode, glance

__all__ = ["READER", "TensorBoardReader"]

_STARTED = re.compile(r"tfevents\.(\d{9,11})\b")
#: A file that claims to be of the format is searched this far for a first sound record.
_SEARCH = 1 << 18


class TensorBoardReader(Reader):
    """Reader of ``*tfevents*`` files."""

    name = "tensorboard"
    title = "TensorBoard event files"
    priority = 50
    sidecars = ("*tfevents*.profile-empty",)
    directory = True

    def can_read(self, path: Path, head: bytes) -> bool:
        """Whether the file is an event file: by its name, then by the framing of its first record."""
        named = "tfevents" in path.name
        if any(fnmatch.fnmatch(path.name, p) for p in self.sidecars):
            return False
        if named and head[:2] == GZIP_MAGIC:
            try:
                head = zlib.decompressobj(31).decompress(head, 1 << 14)
            except zlib.error:
                raise Rejected("The name says TensorBoard event file, but it is a damaged gzip file") from None
        first = np.frombuffer(head, dtype=np.uint8)
        sound = find_headers(first[:12]).size > 0
        if not named:
            return sound and b"brain.Event:" in head[12:64]
        if sound or not head.strip(b"\0"):
            return True
        if len(head) < 12 and not head[4:8].strip(b"\0") and (len(head) > 4 or not _is_text(head)):
            return True  # cut inside the first header
        if find_headers(first).size:
            return True
        if _is_text(head):
            raise Rejected("The name says TensorBoard event file, but it is a text file")
        with path.open("rb") as stream:
            if find_headers(np.frombuffer(stream.read(_SEARCH), dtype=np.uint8)).size:
                return True
        raise Rejected("The name says TensorBoard event file, but it holds no record of one")

    def siblings(self, directories: dict[str, list[Path]]) -> bool:
        """Whether the directories hold the same channels, written at the same time."""
        seen = []
        for files in directories.values():
            looks = [g for g in map(glance, files) if g is not None]
            if not looks:
                return False
            names = frozenset().union(*(g.channels for g in looks))
            seen.append((names, min(g.first for g in looks), max(g.last for g in looks)))
        common = frozenset.intersection(*(names for names, _, _ in seen))
        start, stop = max(first for _, first, _ in seen), min(last for _, _, last in seen)
        return 2 * len(common) >= min(len(names) for names, _, _ in seen) and start <= stop

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """One source a file, in the order of their names (which is that of their start)."""
        return [self._source(path, options) for path in sorted(files, key=lambda f: f.name)]

    @staticmethod
    def _source(path: Path, options: ReadOptions) -> Source:
        label = options.label(path)
        try:
            decoded = decode(path, options.wants)
        except OSError as problem:
            raise ReadError(f"{label}: cannot be read: {problem.strerror}") from problem
        named = _STARTED.search(path.name)
        return Source(
            label,
            decoded.series,
            started=decoded.findings.first_wall or (float(named[1]) if named else None),
            marks=decoded.findings.marks,
            config=decoded.findings.config,
            problems=_problems(decoded, label),
        )


READER = TensorBoardReader()


def _is_text(head: bytes) -> bool:
    return not set(head) & (set(range(32)) - {9, 10, 12, 13, 27})


def _problems(d: Decoded, label: str) -> list[Problem]:
    """Everything of a file that did not become points, in sentences."""
    found: list[Problem] = []

    def note(code: str, severity: str, message: str, place: int | None = None, count: int = 1) -> None:
        found.append(Problem(code, severity, message, label, "" if place is None else f"byte {place}", count))

    if d.size == 0:
        note("empty-file", "warning", "The file is empty")
        return found
    bad, malformed = d.findings.bad_crc, d.findings.malformed
    if bad:
        note(
            "bad-crc", "warning", f"{_records(len(bad))} with a wrong checksum left out{_at(bad)}", bad[0][0], len(bad)
        )
    if malformed:
        note(
            "malformed-record",
            "warning",
            f"{_records(len(malformed))} not a TensorBoard event, left out{_at(malformed)}",
            malformed[0][0],
            len(malformed),
        )
    if d.resyncs:
        lost = sum(n for _, n in d.resyncs)
        note(
            "resync",
            "warning",
            f"{len(d.resyncs)} damaged stretches ({lost} bytes) left out{_at(d.resyncs)}; reading went on at the next"
            " sound record",
            d.resyncs[0][0],
            len(d.resyncs),
        )
    if d.oversized:
        note(
            "oversized-record",
            "warning",
            f"{_records(len(d.oversized))} too large to be scalars, left out",
            d.oversized[0][0],
            len(d.oversized),
        )
    if d.trouble == "limit":
        note(
            "unfolds-too-far",
            "warning",
            "The compressed file unfolds beyond every sensible size; the rest was not read",
        )
    elif d.trouble == "damaged":
        note("bad-compression", "warning", "The compressed data are damaged; what comes after is lost")
    if d.tail is not None:
        kind, place, length = d.tail
        if kind == "truncated":
            note("truncated-tail", "info", "The last record is incomplete (normal for a live or killed run)", place)
        elif kind == "zero":
            note(
                "zero-tail", "warning", f"The file ends in {length} zero bytes (a crash or a full disk)", place, length
            )
        else:
            note("lost-tail", "warning", f"No sound record in the last {length} bytes", place, length)
    elif d.trouble == "truncated":
        note("truncated-tail", "info", "The compressed file is incomplete (normal for a live or killed run)")
    for kind, (count, names) in d.passed_over().items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        code = "not-a-scalar" if kind.startswith("tensors") else "skipped-records"
        note(code, "info", f"{count} {kind} passed over: no scalars ({shown})", count=count)
    if d.framed:
        note(
            "skipped-records", "info", f"{_records(d.framed)} of images or the like passed over unread", count=d.framed
        )
    if d.ones:
        note(
            "one-element-tensor",
            "info",
            f"Tensors of one element read as scalars: {', '.join(d.ones[:3])}",
            count=len(d.ones),
        )
    if d.mixed:
        note(
            "mixed-encoding",
            "info",
            f"Channels written in more than one encoding, joined: {', '.join(d.mixed[:3])}",
            count=len(d.mixed),
        )
    if not d.series:
        note("no-scalars", "info", "The file holds no scalars")
    return found


def _records(n: int) -> str:
    return "1 record" if n == 1 else f"{n} records"


def _at(places: list[tuple[int, int]]) -> str:
    """Where, for the first few."""
    if len(places) < 2:
        return ""
    return " at bytes " + ", ".join(str(p) for p, _ in places[:5]) + (", ..." if len(places) > 5 else "")
