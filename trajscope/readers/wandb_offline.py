"""The run file of W&B, ``run-<id>.wandb``, as it lies in ``wandb/run-<time>-<id>/`` (online and offline runs alike).

Kept: every history row at full resolution, the configuration, the summary, the run's identity and its exit code. Not
decoded, and counted: system statistics, console output, media. A row's step is its ``_step`` item (older clients: the
``step`` field); ``_timestamp`` becomes the wall time. Directories with one run id are sessions of one run.

Format: W&B's public source, ``wandb/sdk/internal/datastore.py`` and ``wandb/proto/wandb_internal.proto``; checked on
recorded files.
"""

from __future__ import annotations

import calendar
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trajscope.errors import ReadError
from trajscope.history import Problem, Source
from trajscope.readers._wandb_decode import KINDS, body, plain_fields, varint
from trajscope.readers._wandb_framing import HEADER, MAGIC, Framing, records
from trajscope.readers._wandb_history import History, last_items
from trajscope.readers._yaml import read_yaml
from trajscope.readers.base import Reader, ReadOptions, Rejected, Tree

__all__ = ["READER", "WandbReader"]

_SESSION = re.compile(r"^(?:offline-)?run-(\d{8})_(\d{6})-(?P<id>.+)$")

#: Bytes of history payload decoded at a time; bounds the memory of the gathered indices.
_BATCH = 4 * 1024 * 1024
_SIDECAR_LIMIT = 16 * 1024 * 1024


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


def _source(path: Path, options: ReadOptions) -> Source:
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise ReadError(f"{options.label(path)}: cannot be read ({problem.strerror})") from problem
    source = Source(options.label(path), step_name=options.step or "_step")
    if len(data) <= HEADER:
        text = "The file is empty" if not data else "The file holds no record"
        source.problems.append(Problem("empty-file", "warning" if not data else "info", text, source.file))
    framing = Framing()
    history = History(options)
    facts: dict[str, Any] = {}
    skipped: dict[str, int] = {}
    summary: list[memoryview] = []
    config: list[memoryview] = []
    pieces: list[memoryview] = []
    held = 0
    ended = None
    for payload in records(data, framing):
        number, start, end = body(payload)
        if number == 2:
            pieces.append(payload[start:end])
            held += end - start
            if held > _BATCH:
                history.add(pieces)
                pieces, held = [], 0
        elif number == 3:
            summary.append(payload[start:end])
        elif number == 5:
            config.append(payload[start:end])
        elif number == 17:
            config.extend(_run_record(payload[start:end], facts))
        elif number == 18:
            ended = _exit_code(payload[start:end])
        elif number:
            skipped[KINDS[number]] = skipped.get(KINDS[number], 0) + 1
    if pieces:
        history.add(pieces)
    source.series, problems = history.series(source.file)
    source.problems += _losses(framing, len(data), source.file) + problems
    if skipped:
        listed = " and ".join(f"{n} {kind}" for kind, n in sorted(skipped.items()))
        source.problems.append(
            Problem(
                "skipped-records",
                "info",
                f"{listed} records (no logged values) were not decoded",
                source.file,
                count=sum(skipped.values()),
            )
        )
    if ended is None and len(data) > HEADER:
        source.problems.append(
            Problem(
                "no-exit-record", "info", "The run has no exit record: it was killed or was still running", source.file
            )
        )
    if ended is not None:
        facts["exit_code"] = ended
    source.started = history.started if history.started is not None else _stamp(path.parent) or facts.get("started")
    source.config = {**_sidecar_config(path), **{k: v for k, v in last_items(config).items() if k != "_wandb"}}
    source.summary = {**last_items(summary), **_sidecar_summary(path), **{f"_run.{k}": v for k, v in facts.items()}}
    source.summary.pop("_wandb", None)
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


def _beside(path: Path, name: str) -> bytes:
    """A file in the run's ``files`` directory, if it is a regular one of reasonable size."""
    beside = path.parent / "files" / name
    try:
        if beside.is_symlink() or not beside.is_file() or beside.stat().st_size > _SIDECAR_LIMIT:
            return b""
        return beside.read_bytes()
    except OSError:
        return b""


def _sidecar_summary(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_beside(path, "wandb-summary.json") or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _sidecar_config(path: Path) -> dict[str, Any]:
    found = read_yaml(_beside(path, "config.yaml").decode("utf-8", "replace"))
    if not isinstance(found, dict):
        return {}
    return {k: v["value"] for k, v in found.items() if k != "_wandb" and isinstance(v, dict) and "value" in v}
