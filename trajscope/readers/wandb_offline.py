"""The run file of W&B, ``run-<id>.wandb``, as it lies in ``wandb/run-<time>-<id>/`` (online and offline runs alike).

Kept: every history row at full resolution, the configuration, the summary, the run's identity and its exit code. Not
decoded, and counted: system statistics, console output, media. A row's step is its ``_step`` item (older clients: the
``step`` field); ``_timestamp`` becomes the wall time. Directories with one run id are sessions of one run.

Format: W&B's public source, ``wandb/sdk/internal/datastore.py`` and ``wandb/proto/wandb_internal.proto``; checked on
recorded files.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.errors import ReadError
from trajscope.history import Problem, Source
from trajscope.readers._wandb_decode import KINDS, Ints, contents, padded, plain_fields, varint
from trajscope.readers._wandb_framing import HEADER, MAGIC, Framing, batches, load
from trajscope.readers._wandb_history import History, Latest
from trajscope.readers._wandb_sidecars import saved_config, saved_summary
from trajscope.readers.base import Reader, ReadOptions, Rejected, Tree

__all__ = ["READER", "WandbReader"]

HISTORY, SUMMARY, CONFIG, RUN, EXIT = 2, 3, 5, 17, 18
_DECODED = (HISTORY, SUMMARY, CONFIG, RUN, EXIT)
_SESSION = re.compile(r"^(?:offline-)?run-(\d{8})_(\d{6})-(?P<id>.+)$")

#: Bytes of history payload decoded at a time; bounds the memory of the gathered indices.
_BATCH = 2 * 1024 * 1024


class WandbReader(Reader):
    """W&B transaction logs."""

    name = "wandb"
    title = "W&B run file (.wandb)"
    priority = 50
    sidecars = (
        "wandb-summary.json",
        "wandb-metadata.json",
        "config.yaml",
        "conda-environment.yaml",
        "*.wandb.synced",
        "debug-internal.log",
        "debug-core.log",
        "debug.log",
    )

    def can_read(self, path: Path, head: bytes) -> bool:
        """Whether the file starts as a run file does; an empty ``.wandb`` file is a run without data."""
        if head[:HEADER] == MAGIC:
            return True
        if path.suffix != ".wandb":
            return False
        if MAGIC.startswith(head):
            return True
        if head[:6] == MAGIC[:6]:
            raise Rejected(f"a .wandb file of version {head[6]}; only version 0 is known")
        raise Rejected("not a .wandb file (it does not begin with W&B's mark)")

    def trees(self, directory: Path, files: Sequence[Path], directories: Sequence[Path]) -> list[Tree]:
        """Directories ``run-<time>-<id>`` that share their id are sessions of one run, in order of time."""
        found: dict[str, list[Path]] = {}
        for d in directories:
            match = _SESSION.match(d.name)
            if match:
                found.setdefault(match["id"], []).append(d)
        trees = []
        for run_id, sessions in found.items():
            if len(sessions) > 1:
                logs = [d / f"run-{run_id}.wandb" for d in sorted(sessions, key=_stamp)]
                logs = [f for f in logs if f.is_file() and not f.is_symlink()]
                if len(logs) > 1:
                    trees.append(Tree(logs[0], tuple(logs)))
        return trees

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """One source a file."""
        return [_source(f, options) for f in files]


READER = WandbReader()


def _stamp(directory: Path) -> float:
    """Seconds of the time in a directory's name; it is local time, which the order of sessions survives."""
    match = _SESSION.match(directory.name)
    if not match:
        return 0.0
    day, clock = match[1], match[2]
    parts = (int(day[:4]), int(day[4:6]), int(day[6:]), int(clock[:2]), int(clock[2:4]), int(clock[4:]))
    return float(calendar.timegm((*parts, 0, 0, 0)))


class _Log:
    """What the records of one file say."""

    def __init__(self, options: ReadOptions) -> None:
        self.history = History(options)
        self.summary = Latest()
        self.config = Latest()
        self.facts: dict[str, Any] = {}
        self.skipped: dict[str, int] = {}
        self.ended = False

    def read(self, data: NDArray[np.uint8], framing: Framing) -> None:
        """Go through all records of a file."""
        for batch in batches(data, framing):
            kind = np.zeros(batch.start.size, dtype=np.int64)
            pieces: dict[int, memoryview] = {}
            whole = np.flatnonzero(batch.start >= 0)
            self._locate(data, whole, batch.start[whole], batch.end[whole], kind, pieces)
            if batch.joined:
                joined, start, end = padded([memoryview(p) for p in batch.joined.values()])
                self._locate(joined, np.array(list(batch.joined)), start, end, kind, pieces)
            for number, count in zip(*np.unique(kind, return_counts=True), strict=True):
                if number and number not in _DECODED:
                    name = KINDS[int(number)]
                    self.skipped[name] = self.skipped.get(name, 0) + int(count)
            found = {k: [pieces[i] for i in np.flatnonzero(kind == k).tolist()] for k in _DECODED}
            self.summary.add(found[SUMMARY])
            for run in found[RUN]:
                self.config.add(_run_record(run, self.facts))
            self.config.add(found[CONFIG])
            for end_record in found[EXIT]:
                self.ended, self.facts["exit_code"] = True, _exit_code(end_record)
            for part in _portions(found[HISTORY]):
                self.history.add(part)

    @staticmethod
    def _locate(
        data: NDArray[np.uint8], index: Ints, start: Ints, end: Ints, kind: Ints, pieces: dict[int, memoryview]
    ) -> None:
        """Enter the kinds of the records called ``index`` and the contents of those that are decoded."""
        kind[index], low, high = contents(data, start, end)
        used = np.flatnonzero(np.isin(kind[index], _DECODED))
        view = data.data
        for i, a, b in zip(index[used].tolist(), low[used].tolist(), high[used].tolist(), strict=True):
            pieces[i] = view[a:b]


def _portions(pieces: list[memoryview]) -> Iterator[list[memoryview]]:
    """Cut a list of contents into portions of about `_BATCH` bytes."""
    size = np.cumsum([len(p) for p in pieces])
    first = 0
    while first < len(pieces):
        before = int(size[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(size, before + _BATCH, side="right")))
        yield pieces[first:last]
        first = last


def _source(path: Path, options: ReadOptions) -> Source:
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            data = load(stream, size)
    except OSError as problem:
        raise ReadError(f"{options.label(path)}: cannot be read ({problem.strerror})") from problem
    source = Source(options.label(path), step_name=options.step or "_step")
    if size <= HEADER:
        text = "The file holds no record" if size else "The file is empty"
        source.problems.append(Problem("empty-file", "info" if size else "warning", text, source.file))
    framing = Framing()
    log = _Log(options)
    log.read(data, framing)
    source.series, problems = log.history.series(source.file)
    source.problems += _losses(framing, size, source.file) + problems
    if log.skipped:
        listed = " and ".join(f"{n} {kind}" for kind, n in sorted(log.skipped.items()))
        text = f"{listed} records (no logged values) were not decoded"
        source.problems.append(Problem("skipped-records", "info", text, source.file, count=sum(log.skipped.values())))
    if not log.ended and size > HEADER:
        text = "The run has no exit record: it was killed or was still running"
        source.problems.append(Problem("no-exit-record", "info", text, source.file))
    source.started = log.history.started
    if source.started is None:
        source.started = _stamp(path.parent) or log.facts.get("started")
    config = {**saved_config(path.parent / "files"), **log.config.values()}
    summary = saved_summary(path.parent / "files")
    if not (log.ended and summary):  # of a finished run the file beside the log is the whole summary
        summary = {**log.summary.values(), **summary}
    source.config = {k: v for k, v in config.items() if k != "_wandb"}
    source.summary = {k: v for k, v in summary.items() if not k.startswith("_wandb")}
    if log.facts:
        source.summary["_run"] = log.facts
    return source


def _run_record(record: memoryview, facts: dict[str, Any]) -> list[memoryview]:
    """Enter the facts of a run record; return the configuration records it holds."""
    names = {1: "id", 3: "project", 6: "group", 7: "job_type", 8: "name", 12: "sweep"}
    config = []
    for number, _, start, end, wire in plain_fields(record):
        if wire == 2 and number in names:
            facts[names[number]] = bytes(record[start:end]).decode("utf-8", "replace")
        elif wire == 2 and number == 4:
            config.append(record[start:end])
        elif wire == 2 and number == 17:
            for inner, _, begin, _, kind in plain_fields(record, start, end):
                if inner == 1 and kind == 0:
                    facts["started"] = float(varint(record, begin)[0])
        elif wire == 0 and number == 14:
            facts["starting_step"] = varint(record, start)[0]
        elif wire == 0 and number == 18:
            facts["resumed"] = bool(varint(record, start)[0])
    return config


def _exit_code(record: memoryview) -> int:
    for number, _, start, _, wire in plain_fields(record):
        if number == 1 and wire == 0:
            code = varint(record, start)[0]
            return code - (1 << 64) if code >> 63 else code
    return 0


def _losses(framing: Framing, size: int, file: str) -> list[Problem]:
    problems = []
    if framing.bad:
        problems.append(
            Problem(
                "bad-crc",
                "warning",
                f"{len(framing.bad)} damaged places; {framing.skipped} bytes were passed over",
                file,
                f"byte {framing.bad[0]}",
                len(framing.bad),
            )
        )
    lost = [p for p in framing.broken if p >= 0]
    if lost:
        problems.append(
            Problem("broken-record", "warning", f"{len(lost)} records lack a part", file, f"byte {lost[0]}", len(lost))
        )
    if framing.zeros >= 0:
        problems.append(
            Problem(
                "zero-tail",
                "info",
                f"The last {size - framing.zeros} bytes are zeros (a crash after the space was reserved)",
                file,
                f"byte {framing.zeros}",
            )
        )
    if framing.truncated >= 0:
        problems.append(
            Problem(
                "truncated-tail",
                "info",
                "The last record is incomplete (normal for a live or killed run)",
                file,
                f"byte {framing.truncated}",
            )
        )
    return problems
