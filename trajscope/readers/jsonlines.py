"""JSON lines: DETR family, MMEngine, MMDetection 2, Detectron2, fairseq, LLaMA-Factory, W&B history, and any other.

One file is one run. What is special:

* *MMEngine* (``vis_data/scalars.json``): validation rows share names with training rows and count epochs in ``step``;
  their channels get the prefix ``val/`` and the step of the training row before them. The identical ``<time>.json`` is
  the same run.
* *MMDetection 2* (``*.log.json``): ``mode`` becomes the prefix of validation rows, the first line is the environment.
* *fairseq*: a record behind ``time | level | tag |``; the time becomes the wall time.
* *W&B clients before 2020* (``wandb-history.jsonl``): ``config.yaml`` and ``wandb-summary.json`` beside it are read.
* *TensorBoard's JSON export*: ``[[wall, step, value], ...]``, sampled.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trajscope.history import Problem, Source
from trajscope.readers._bytes import head_text, load_text
from trajscope.readers._gzip import plain_head, plain_path, read_head
from trajscope.readers._jsonlines import Records, fast_table, parse_records, records_table
from trajscope.readers._table import Column, Table, looks_like_log, table_source
from trajscope.readers._walltime import iso_time
from trajscope.readers._wandb_sidecars import saved_config, saved_summary
from trajscope.readers.base import HEAD_BYTES, Reader, ReadOptions
from trajscope.readers.delimited import sidecar_config

__all__ = ["READER", "JsonLines"]

_SUFFIXES = (".jsonl", ".json", ".ndjson", ".txt", ".log", "")
_SETTINGS = (
    "hparams*.json", "config*.json", "params*.json", "args*.json", "package*.json", "meta_data_*.json",
    "tokenizer*.json", "*_config.json", "*_results.json", "wandb-summary.json", "wandb-metadata.json",
)  # fmt: skip
#: The log of W&B clients before 2020.
_WANDB_HISTORY = "wandb-history.jsonl"
_WEB_EXPORT = re.compile(r"\[\s*\[\s*[\d.eE+]+\s*,\s*\d+\s*,")
_PREFIX_TIME = re.compile(r"\[?(\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_KEYS = re.compile(r'"([^"\\]{1,120})"\s*:')
#: Keys of an MMEngine training row that its validation rows lack.
_TRAIN_ONLY = ("epoch", "iter", "lr", "loss")


class JsonLines(Reader):
    """Reader of JSON records."""

    name = "jsonlines"
    title = "JSON lines"

    def can_read(self, path: Path, head: bytes) -> bool:
        """Text whose first record has the keys of a log."""
        plain = plain_path(path)
        suffix = plain.suffix.lower()
        if suffix not in _SUFFIXES or any(fnmatch.fnmatch(plain.name, p) for p in _SETTINGS):
            return False
        head = plain_head(path, head)
        text = head_text(head)
        if suffix in (".jsonl", ".ndjson"):
            return not head or "{" in text
        body = text.lstrip()
        if _WEB_EXPORT.match(body):
            return True
        start = text.find("{")
        if start < 0 or (body[0] not in "{[" and "|" not in text[:start] and not _PREFIX_TIME.match(body)):
            return False
        if suffix == ".json" and body[0] == "{" and len(head) < HEAD_BYTES and body.count("\n{") == 0:
            return False  # one object alone: settings or a result, no series
        lines = [line for line in text.split("\n") if line.strip()]
        objects = sum('{"' in line for line in lines)
        if body[0] != "[" and objects < 2 and len(lines) > 1:
            return False  # settings in front of a text log
        first = text[start:].split("\n")[0].strip()
        whole = first.count("{") == first.count("}") or len(head) >= HEAD_BYTES
        return (body[0] == "[" or (whole and len(first) > 1)) and looks_like_log(
            [k.rsplit("/", 1)[-1] for k in _KEYS.findall(text[start:])]
        )

    def group(self, files: Sequence[Path]) -> list[list[Path]]:
        """One run a file; MMEngine's two copies of one log are one run."""
        copies = [f for f in files if f.name == "scalars.json"]
        groups: list[list[Path]] = []
        for f in files:
            if f not in copies:
                dated = re.fullmatch(r"\d{8}_\d{6}\.json", f.name)
                groups.append([f, *(c for c in copies if dated and _head(c) == _head(f))])
        taken = {f for g in groups for f in g}
        return [*groups, *([c] for c in copies if c not in taken)]

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """One writer: the longest of the copies."""
        path = max(files, key=lambda f: f.stat().st_size)
        file = options.label(path)
        data, notes = load_text(path, file)
        table, config = read_json_table(data, file)
        table.problems = [*notes, *table.problems]
        names = [c.name for c in table.columns]
        source = table_source(table, file, step=options.step)
        if names == ["wall_time", "step", "value"]:
            tag = re.sub(r"\A(?:run-.*?-)?tag-", "", plain_path(path).stem)
            source.series = dict(zip([tag], source.series.values(), strict=False))
            source.sampled = "TensorBoard's web export keeps at most 1,000 points a channel"
        source.series = {n: s for n, s in source.series.items() if options.wants(n)}
        source.config = {**sidecar_config(path), **config}
        if plain_path(path).name == _WANDB_HISTORY:
            source.config |= saved_config(path.parent)
            source.summary = saved_summary(path.parent)
        return [source]


def _head(path: Path) -> bytes:
    return read_head(path, HEAD_BYTES)


def read_json_table(data: bytes, file: str) -> tuple[Table, dict[str, Any]]:
    """Records to a table, by the fast path where nothing speaks against it."""
    special = b'"mode"' in data[:65536] or _mmengine_head(data[:4096])
    table = None if special else fast_table(data, file)
    if table is not None:
        return table, {}
    records = parse_records(data, file)
    config = _environment(records)
    _mmdetection(records)
    _mmengine(records, file)
    table, own = records_table(records, file)
    _prefix_times(records, table)
    return table, {**config, **own}


def _mmengine_head(head: bytes) -> bool:
    first = head.split(b"\n", 1)[0]
    return all(b'"' + k.encode() + b'"' in first for k in ("iter", "epoch", "step"))


def _environment(records: Records) -> dict[str, Any]:
    """MMDetection's first line: text about the machine and the settings, no metrics."""
    if records.rows and "env_info" in records.rows[0]:
        first = records.rows.pop(0)
        records.line.pop(0)
        records.prefix.pop(0)
        return {k: v for k, v in first.items() if isinstance(v, str | int | float)}
    return {}


def _mmdetection(records: Records) -> None:
    """Validation rows of MMDetection 2: prefix, and the iteration of the training row before."""
    if not any(r.get("mode") == "val" for r in records.rows):
        return
    last: Any = None
    for i, row in enumerate(records.rows):
        if row.get("mode") != "val":
            last = row.get("iter", last)
            continue
        kept = {f"val/{k}": v for k, v in row.items() if k not in ("mode", "epoch", "iter")}
        records.rows[i] = {**kept, "epoch": row.get("epoch"), **({} if last is None else {"iter": last})}


def _mmengine(records: Records, file: str) -> None:
    """Validation rows of MMEngine: prefix ``val/``; a step that counts epochs becomes the last training step."""
    train = [r for r in records.rows if "iter" in r and "step" in r]
    if not train or not all("epoch" in r for r in train):
        return
    last: dict[str, Any] = {}
    moved = 0
    for i, row in enumerate(records.rows):
        if any(k in row for k in _TRAIN_ONLY) or "step" not in row:
            last = row if "step" in row else last
            continue
        step = row["step"]
        if last and step == last.get("epoch") and step != last["step"]:
            step = last["step"]
            moved += 1
        records.rows[i] = {**{f"val/{k}": v for k, v in row.items() if k != "step"}, "step": step}
    if moved:
        records.problems.append(
            Problem(
                "validation-axis",
                "info",
                f"{moved} validation rows count epochs in their step; they take the step of the training row before",
                file,
                count=moved,
            )
        )


def _prefix_times(records: Records, table: Table) -> None:
    """Wall times from a logger's prefix, where the records have none."""
    if not records.prefix or table.get("wall_time") is not None:
        return
    found = [_PREFIX_TIME.match(p) for p in records.prefix]
    if not any(found):
        return
    seconds = np.array([iso_time(m[1]) if m else np.nan for m in found], dtype=np.float64)
    table.columns.append(Column("wall_time", seconds))


READER = JsonLines()
