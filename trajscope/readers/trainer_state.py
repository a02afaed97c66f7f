"""``trainer_state.json`` of the Hugging Face Trainer.

``log_history`` holds rows of training, rows of evaluation (``eval_*``) and a last row that sums up
(``train_runtime``, ``total_flos``), which is no point of a series. Checkpoints repeat the history so far: the longest
is read, and an earlier one that disagrees with it is reported. The Trainer writes the previous average where a loss
is not finite (``logging_nan_inf_filter``, on by default), so the source is marked as one that can hide NaN.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trajscope.history import Problem, Source
from trajscope.readers._bytes import load_text
from trajscope.readers._gzip import plain_head, plain_path
from trajscope.readers._json_text import loads
from trajscope.readers._jsonlines import Records, parse_records, records_table
from trajscope.readers._table import table_source
from trajscope.readers.base import Reader, ReadOptions, Tree

__all__ = ["READER", "TrainerState"]

_NAME = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,18})")
_SUMMARY = frozenset(
    {"train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss"}
)
_SETTINGS = (
    "max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "eval_steps", "save_steps", "trial_params",
)  # fmt: skip
_FINAL = ("best_metric", "best_model_checkpoint", "best_global_step", "total_flos", "global_step", "epoch")


class TrainerState(Reader):
    """Reader of the Trainer's state file."""

    name = "trainer-state"
    title = "Hugging Face trainer_state.json"
    priority = 40
    sidecars = ("all_results.json", "train_results.json", "eval_results.json", "trainer_config.json")

    def can_read(self, path: Path, head: bytes) -> bool:
        """A JSON file with the state's name, or with a log_history near its top."""
        plain = plain_path(path)
        if plain.suffix.lower() != ".json":
            return False
        head = plain_head(path, head)
        if not head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{"):
            return False
        return plain.name == _NAME or (b'"log_history"' in head and b'"global_step"' in head)

    def trees(self, here: Path, files: Sequence[Path], directories: Sequence[Path]) -> list[Tree]:
        """The states of a directory and of its checkpoints are one run."""
        checkpoints = [d for d in directories if _CHECKPOINT.fullmatch(d.name)]
        states = [d / name for d in checkpoints for name in (_NAME, f"{_NAME}.gz")]
        states = sorted((f for f in states if f.is_file() and not f.is_symlink()), key=_order)
        own = [f for f in files if plain_path(f).name == _NAME]
        return [Tree(own[0] if own else here, (*own, *states))] if states else []

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """One writer: the longest history."""
        states = [(f, *_read(f, options.label(f))) for f in files]
        problems = [p for _, _, _, found in states for p in found]
        longest = max(states, key=lambda s: (_last_step(s[2]), len(s[2])))
        path, state, rows, _ = longest
        file = options.label(path)
        for other, _, earlier, _ in states:
            if other != path:
                problems.extend(_conflict(options.label(other), earlier, file, rows))
        records = Records(problems=problems, json=True)
        summary: dict[str, Any] = {k: state[k] for k in _FINAL if state.get(k) is not None}
        for i, row in enumerate(rows):
            if "train_runtime" in row:
                summary.update({k: v for k, v in row.items() if k in _SUMMARY})
                row = {k: v for k, v in row.items() if k not in _SUMMARY}
                if not row.keys() - {"step", "epoch"}:
                    continue
            records.rows.append(row)
            records.line.append(i + 1)
        table, _ = records_table(records, file)
        source = table_source(table, file, step=options.step, wants=options.wants, prefer=("step",))
        source.config = {k: state[k] for k in _SETTINGS if state.get(k) is not None}
        source.summary = summary
        source.problems.append(
            Problem(
                "hidden-nonfinite",
                "info",
                "The Trainer replaces a loss that is not finite by the previous average unless logging_nan_inf_filter"
                " is off: a flat stretch may hide NaN",
                file,
            )
        )
        return [source]


def _order(path: Path) -> tuple[int, str]:
    """Checkpoints by number."""
    number = _CHECKPOINT.fullmatch(path.parent.name)
    return (int(number[1]) if number else -1, path.as_posix())


def _read(path: Path, label: str) -> tuple[dict[str, Any], list[dict[str, Any]], list[Problem]]:
    """The state and its history; of a damaged file the rows that are whole."""
    data, problems = load_text(path, label)
    text = data.decode("utf-8", errors="replace")
    try:
        state = loads(text)
    except (ValueError, RecursionError):
        start = text.find("[", text.find('"log_history"')) if '"log_history"' in text else -1
        if start < 0:
            lost = Problem(
                "damaged-file", "error", "The file is no JSON and holds no log_history that could be saved", label
            )
            return {}, [], [*problems, lost]
        found = parse_records(text[start:].encode(), label)
        lost = Problem(
            "truncated-tail", "warning", f"The file breaks off; {len(found.rows)} rows of log_history were saved", label
        )
        return {}, found.rows, [*problems, lost]
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        return {}, [], [*problems, Problem("no-scalars", "info", "The file has no log_history", label, count=0)]
    return state, [r for r in history if isinstance(r, dict)], problems


def _last_step(rows: Sequence[dict[str, Any]]) -> float:
    steps = [r["step"] for r in rows if isinstance(r.get("step"), int | float)]
    return float(max(steps, default=-1))


def _conflict(
    label: str, earlier: Sequence[dict[str, Any]], file: str, rows: Sequence[dict[str, Any]]
) -> list[Problem]:
    """Whether an earlier checkpoint says something else than the history that was read."""
    known = {_identity(r): r for r in rows}
    differing = [r for r in earlier if "train_runtime" not in r and not _same(r, known.get(_identity(r)))]
    if not differing:
        return []
    step = min((float(r["step"]) for r in differing if isinstance(r.get("step"), int | float)), default=0.0)
    return [
        Problem(
            "checkpoint-conflict",
            "warning",
            f"{len(differing)} rows of this checkpoint are not in, or differ from, {file}, which was read: another"
            " branch of the run",
            label,
            f"step {step:.15g}",
            len(differing),
        )
    ]


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row.get("step"), *sorted(row))


def _same(a: dict[str, Any], b: dict[str, Any] | None) -> bool:
    return b is not None and all(b[k] == v or (v != v and b[k] != b[k]) for k, v in a.items())


READER = TrainerState()
