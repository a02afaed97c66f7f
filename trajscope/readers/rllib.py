"""RLlib and Ray Tune trials: ``result.json`` first, ``progress.csv`` to check it, ``params.json`` for the settings.

``progress.csv`` has the columns of the first result only and may lack its header after a resume; ``result.json`` has
everything. Where both are there, the JSON file is read, results that only the table has are added, and values that
differ are reported. Step: ``timesteps_total`` or what stands for it in newer versions, else ``training_iteration``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trajscope.history import Problem, Source
from trajscope.readers._bytes import load_text
from trajscope.readers._csvparse import parse_delimited
from trajscope.readers._gzip import plain_head, plain_path
from trajscope.readers._jsonlines import CONFIG_KEYS, Records, parse_records, records_table
from trajscope.readers._merge import work_in
from trajscope.readers._table import Table, table_source
from trajscope.readers.base import Reader, ReadOptions

__all__ = ["READER", "Rllib"]

_COUNTERS = (
    "timesteps_total", "num_env_steps_sampled_lifetime", "num_env_steps_sampled", "agent_timesteps_total",
    "training_iteration",
)  # fmt: skip
_SIGNS = (
    "time_this_iter_s",
    "iterations_since_restore",
    "training_iteration",
    "episode_reward_mean",
    "timesteps_total",
)
_PARAMS_LIMIT = 1 << 22
_JSON_LITERALS = {"None": "null", "True": "true", "False": "false", "nan": "NaN", "inf": "Infinity"}
_LITERALS = re.compile(r"(?<=[\s:,\[-])(?:None|True|False|nan|inf)(?=[,}\]])")


class Rllib(Reader):
    """Reader of the trial directories of Ray Tune."""

    name = "rllib"
    title = "RLlib / Ray Tune trial"
    priority = 40
    directory = True
    sidecars = (
        "params.json",
        "params.pkl",
        "error.txt",
        "error.pkl",
        "experiment_state*.json",
        "basic-variant-state*.json",
    )

    def can_read(self, path: Path, head: bytes) -> bool:
        """The two file names, with Tune's own columns in them (or, where a file is damaged at its top, beside one)."""
        name = plain_path(path).name
        if name not in ("result.json", "progress.csv"):
            return False
        head = plain_head(path, head)
        signs = sum(s.encode() in head for s in _SIGNS)
        if signs >= 2:
            return True
        other = path.with_name("result.json" if name == "progress.csv" else "progress.csv")
        beside = other.is_file() or other.with_name(f"{other.name}.gz").is_file()
        return path.with_name("params.json").is_file() and beside

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """One writer."""
        by_name: dict[str, Path] = {}
        twice = []
        for f in files:
            if by_name.setdefault(plain_path(f).name, f) is not f:
                text = "The same log lies beside it unpacked; this copy was not read"
                twice.append(Problem("packed-copy", "info", text, options.label(f)))
        found = [
            source
            for name, read in (("result.json", _from_json), ("progress.csv", _from_csv))
            if name in by_name and (source := read(by_name[name], options)) is not None
        ]
        problems = [*twice, *(p for s in found for p in s.problems)]
        found.sort(key=lambda s: not s.series)  # an empty result.json gives way to the table
        main = found[0]
        main.problems = problems
        if len(found) > 1 and found[1].series:
            work_in(main, found[1], "progress.csv repeats result.json")
            newer = [n for n in main.series if n not in found[1].series]
            if newer:
                main.problems.append(
                    Problem(
                        "frozen-header",
                        "info",
                        f"{len(newer)} channels of result.json are no columns of progress.csv, whose header is that"
                        " of the first result",
                        found[1].file,
                        "line 1",
                        len(newer),
                    )
                )
        main.config = {**main.config, **_params(files[0].with_name("params.json"))}
        return [main]


def _from_json(path: Path, options: ReadOptions) -> Source:
    file = options.label(path)
    data, notes = load_text(path, file)
    records = parse_records(data, file)
    table, config = records_table(records, file)
    table.problems = [*notes, *table.problems]
    source = table_source(table, file, step=options.step, wants=options.wants, prefer=_COUNTERS)
    source.config = config
    return source


def _from_csv(path: Path, options: ReadOptions) -> Source | None:
    file = options.label(path)
    data, notes = load_text(path, file, lines=True)
    table = parse_delimited(data, file)
    table.problems = [*notes, *table.problems]
    if table.headless and len(table):
        lost = Problem("missing-header", "warning", "progress.csv has no header (lost at a resume)", file, "line 1")
        if any(path.with_name(n).is_file() for n in ("result.json", "result.json.gz")):
            return Source(file, problems=[*notes, lost])
        table.problems.append(lost)
    config = _open_dictionaries(table, file)
    source = table_source(table, file, step=options.step, wants=options.wants, prefer=_COUNTERS)
    source.config = config
    return source


def _open_dictionaries(table: Table, file: str) -> dict[str, Any]:
    """Give the numbers of dictionaries that old versions wrote into one cell columns of their own; return settings."""
    config: dict[str, Any] = {}
    for column in list(table.columns):
        if column.text is None or sum((c or "").startswith("{") for c in column.text) * 2 < len(table):
            continue
        found = [_dictionary(c or "") for c in column.text]
        table.columns.remove(column)
        if column.name in CONFIG_KEYS:
            config = next((d for d in reversed(found) if d), {})
            continue
        records = Records([{column.name: d} if d else {} for d in found], table.line.tolist())
        inner, _ = records_table(records, file)
        table.columns.extend(inner.columns)
        table.problems.extend(inner.problems)
    return config


def _dictionary(cell: str) -> dict[str, Any]:
    """Python's text of a dictionary of plain values, read as JSON; empty where it is anything else."""
    text = _LITERALS.sub(lambda m: _JSON_LITERALS[m[0]], cell.replace("'", '"'))
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _params(path: Path) -> dict[str, Any]:
    """Settings of the trial; nothing where the file is missing, a link, too large or damaged."""
    if not path.is_file() or path.is_symlink() or path.stat().st_size > _PARAMS_LIMIT:
        return {}
    try:
        found = json.loads(path.read_bytes().decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


READER = Rllib()
