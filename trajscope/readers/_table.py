"""A table of a log, and how it becomes series: the step column, wall times, one series a column.

Readers of delimited text and of JSON lines both end here. The rules, in the order in which they are tried:

* Step: a column the user named; else the column whose name ranks best in `STEP_NAMES` (whole name before last part of a
  path), has a number in at least half of the rows and is not constant; else the row number.
* A step that starts again whenever the epoch moves on is a position inside the epoch: the step is then
  ``epoch index * span + position``, where span is the largest position, plus one stride where positions begin at 0.
* A row without a step was logged at the last step before it (Lightning's and fairseq's summaries).
* Wall time: an absolute time column (Unix seconds, milli-, micro- or nanoseconds, or ISO 8601; no zone means UTC).
* Text columns are no series; a column of True and False is one (1 and 0), except bookkeeping such as ``done``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.errors import InputError, nearest
from trajscope.history import Problem, Series, Source, guess_role
from trajscope.readers._json_text import inexact_integers
from trajscope.readers._walltime import WALL_NAMES, iso_seconds, unix_seconds

__all__ = ["STEP_NAMES", "Column", "Table", "exact_steps", "looks_like_log", "normal_name", "rank_step", "table_source"]

#: Names of step columns (see `normal_name`), best first.
STEP_NAMES = (
    "step", "global_step", "steps", "global_steps", "train_step", "current_steps", "iteration", "iter",
    "num_updates", "update", "updates", "total_timesteps", "timesteps_total", "totalenvinteracts", "timesteps",
    "total_steps", "env_steps", "num_env_steps_sampled", "num_timesteps", "t_env", "frames", "iterations", "itr", "it",
    "training_iteration", "batch", "evaluations", "generation", "episode", "episodes", "epoch", "epochs", "round",
    "schritt", "epoche", "paso", "etape", "passo", "x",
)  # fmt: skip
_STEP_RANK = {name: i for i, name in enumerate(STEP_NAMES)}

#: Columns that books are kept with and no one plots.
_BOOKKEEPING = frozenset(
    {"done", "date", "pid", "hostname", "node_ip", "trial_id", "experiment_id", "experiment_tag", "should_checkpoint"}
)

#: A role that makes a table without a step column a log all the same.
_METRIC_ROLES = frozenset(
    {
        "loss", "val_loss", "accuracy", "val_accuracy", "perplexity", "val_perplexity", "return", "eval_return",
        "success", "grad_norm", "lr", "policy_loss", "value_loss", "entropy", "kl",
    }
)  # fmt: skip

_MIN_CONFIDENCE = 0.8


@dataclass(eq=False)
class Column:
    """One column: its numbers and where they stand, or text.

    Attributes
    ----------
    name : str
    values : ndarray, shape (n_numbers,), float64 or int64
        The numbers alone, in row order.
    rows : ndarray or None, shape (n_numbers,), int64
        Row of each number; None where every row has one.
    missing : int
        Explicitly empty cells.
    text : sequence of str or None
        The cells of a text column, one a row; it has no numbers.
    boolean : bool
        True where every cell was True or False.
    rounded : int
        Integers among the numbers that neither int64 nor, exactly, float64 holds.
    """

    name: str
    values: NDArray[Any]
    rows: NDArray[np.int64] | None = None
    missing: int = 0
    text: Sequence[str | None] | None = None
    boolean: bool = False
    rounded: int = 0

    @classmethod
    def masked(cls, name: str, values: NDArray[Any], valid: NDArray[np.bool_], **fields: Any) -> Column:
        """A column of a table of delimited text, where a row without a number is an empty cell."""
        if bool(valid.all()):
            return cls(name, values, **fields)
        rows = np.flatnonzero(valid)
        return cls(name, values[rows], rows, int(valid.size - rows.size), **fields)

    def filled(self, n_rows: int) -> NDArray[np.float64]:
        """All rows as float64, NaN where there is no number."""
        if self.rows is None and self.text is None:
            return self.values.astype(np.float64)
        full = np.full(n_rows, np.nan)
        if self.rows is not None:
            full[self.rows] = self.values
        return full

    def labels(self, n_rows: int) -> list[str]:
        """All rows as text, numbers too; empty where there is nothing."""
        if self.text is not None:
            return [c or "" for c in self.text]
        cells = [""] * n_rows
        at = range(n_rows) if self.rows is None else self.rows.tolist()
        for row, value in zip(at, self.values.tolist(), strict=True):
            cells[row] = repr(value).removesuffix(".0")
        return cells


@dataclass(eq=False)
class Table:
    """Columns of equal length, the line of each row, and what was wrong.

    Attributes
    ----------
    columns : list of Column
    line : ndarray, shape (n_rows,), int64
        Line number of each row, increasing.
    marks : list of int
        Lines at which a new session declares itself (a repeated header).
    problems : list of Problem
    headless : bool
        True where the file has no header and the names are made up.
    """

    columns: list[Column] = field(default_factory=list)
    line: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    marks: list[int] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    headless: bool = False

    def __len__(self) -> int:
        return int(self.line.size)

    def get(self, name: str) -> Column | None:
        """The column of that name, None where there is none."""
        return next((c for c in self.columns if c.name == name), None)


def normal_name(name: str) -> str:
    """A column name in the form of `STEP_NAMES`: lower case, words joined by ``_``, no leading ``_``.

    >>> normal_name(" total timesteps"), normal_name("_step")
    ('total_timesteps', 'step')
    """
    return re.sub(r"[\s\-]+", "_", name.strip().lower()).strip("_")


def rank_step(name: str) -> float | None:
    """How well a name fits a step column, smaller is better; None where it does not.

    >>> rank_step("step") < rank_step("train/step") < rank_step("epoch")
    True
    >>> rank_step("loss") is None
    True
    """
    full = normal_name(name)
    if full in _STEP_RANK:
        return float(_STEP_RANK[full])
    last = full.rsplit("/", 1)[-1].strip("_")
    if last != full and last in _STEP_RANK:
        return _STEP_RANK[last] + 0.5
    for prefix in ("valid_", "train_", "trainer_", "val_", "test_"):
        if full.startswith(prefix) and full[len(prefix) :] in _STEP_RANK:
            return _STEP_RANK[full[len(prefix) :]] + 0.7
    return None


#: Columns by which the tables that users write about their runs are known.
_ABOUT_RUNS = ({"run", "outcome"}, {"run", "injection_step"}, {"run", "step", "kind"})


def looks_like_log(names: Sequence[str]) -> bool:
    """Whether column names are those of a training log: a step-like or a metric-like one among them.

    Tables about runs (labels: a row a run; events: run, step, kind) are none, although they name steps.

    >>> looks_like_log(["epoch", "loss"]), looks_like_log(["sepal_length", "species"])
    (True, False)
    >>> looks_like_log(["run", "outcome", "onset_step"])
    False
    """
    if any(own <= set(names) for own in _ABOUT_RUNS):
        return False
    for name in names:
        rank = rank_step(name)
        if rank is not None and normal_name(name) != "x":
            return True
        role, confidence = guess_role(name)
        if role in _METRIC_ROLES and confidence >= _MIN_CONFIDENCE:
            return True
    return False


def table_source(
    table: Table,
    file: str,
    *,
    step: str = "",
    wants: Callable[[str], bool] = lambda name: True,
    prefer: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> Source:
    """Turn a table into what one writer wrote.

    Parameters
    ----------
    table : Table
    file : str
        Label of the file.
    step : str
        Name of the step column; empty: by rule.
    wants : callable
        Channel filter.
    prefer : sequence of str
        Columns that this format counts in, tried before the general rule.
    drop : sequence of str
        Columns that are no channels.

    Returns
    -------
    Source

    Raises
    ------
    InputError
        If ``step`` names no column, or one without numbers.
    """
    source = Source(file, problems=list(table.problems), marks=list(table.marks), step_name="row")
    if not len(table):
        return source
    index, steps = _steps(table, step, prefer, source)
    _late_start(table, source)
    wall, clock = _wall_time(table, index)
    left_out: list[str] = []
    for position, column in enumerate(table.columns):
        if position in (index, clock) or column.name in drop or not wants(column.name):
            continue
        last = normal_name(column.name).rsplit("/", 1)[-1]
        if column.text is not None or last in _BOOKKEEPING:
            if column.text is None or any(column.text):
                left_out.append(column.name)
            continue
        source.series[column.name] = column_series(column, steps, wall, table.line)
        if column.rounded:
            source.problems.append(inexact_integers(column.name, column.rounded, file))
    if left_out:
        shown = ", ".join(left_out[:5]) + (", ..." if len(left_out) > 5 else "")
        source.problems.append(
            Problem(
                "not-a-scalar", "info", f"Columns without numbers are no series: {shown}", file, count=len(left_out)
            )
        )
    if not any(s.steps.size for s in source.series.values()):
        source.problems.append(Problem("no-scalars", "info", "The file holds no numbers", file, count=0))
    return source


def _late_start(table: Table, source: Source) -> None:
    """Say so where the first row is of a later epoch: some loggers delete the old file when a run is resumed."""
    epoch = next(
        (c for c in table.columns if normal_name(c.name) == "epoch" and c.text is None and c.values.size), None
    )
    if epoch is not None and float(epoch.values[0]) >= 2:
        source.problems.append(
            Problem(
                "late-start",
                "warning",
                f"The log begins in epoch {epoch.values[0]:.15g}; what was logged before is not in this file (some"
                " loggers delete it at a resume)",
                source.file,
                f"line {int(table.line[0])}",
            )
        )


def column_series(
    column: Column, steps: NDArray[Any], wall: NDArray[np.float64] | None, line: NDArray[np.int64]
) -> Series:
    """The points of one column: rows with a number, each with its step, wall time and line."""
    if column.rows is None:
        return Series(steps, column.values, wall, line, column.missing)
    at = column.rows
    return Series(steps[at], column.values, None if wall is None else wall[at], line[at], column.missing)


def _steps(table: Table, step: str, prefer: Sequence[str], source: Source) -> tuple[int, NDArray[Any]]:
    """Position of the step column (-1: none) and the step of every row."""
    index = _step_column(table, step, prefer)
    if index < 0:
        source.problems.append(
            Problem("no-step-column", "info", "No column counts steps; the row number is the step", source.file)
        )
        return -1, np.arange(len(table), dtype=np.int64)
    column = table.columns[index]
    source.step_name = column.name
    values = column.filled(len(table))
    usable = np.isfinite(values)
    exact = _exact(column, values, usable)
    if exact.dtype.kind == "f" and bool(np.any(np.abs(exact) >= 2**53)):
        text = "Steps beyond the integers that a float holds exactly: neighbouring ones cannot be told apart"
        source.problems.append(Problem("inexact-steps", "warning", text, source.file))
    if not usable.all():
        exact = _carried(exact, usable, index, table, source)
    derived = None if step else _within_epoch(exact, table, index)
    if derived is not None:
        source.problems.append(
            Problem(
                "step-derived",
                "info",
                f"{column.name} starts again in every epoch; the step is epoch and {column.name} together",
                source.file,
            )
        )
        source.step_name = f"epoch+{column.name}"
        exact = derived
    return index, exact


def _step_column(table: Table, step: str, prefer: Sequence[str]) -> int:
    names = [c.name for c in table.columns]
    if step:
        if step not in names:
            raise InputError(f"no column {step!r} for the step. {nearest(step, names)}")
        index = names.index(step)
        if not table.columns[index].values.size:
            raise InputError(f"column {step!r} holds no numbers and cannot be the step")
        return index
    for name in prefer:
        if name in names and _usable(table.columns[names.index(name)], len(table)):
            return names.index(name)
    if table.headless:
        first = table.columns[0] if table.columns else None
        counts = first is not None and first.values.size == len(table) and _counts(first.values)
        return 0 if counts else -1
    found: list[tuple[bool, float, int]] = []
    for i, column in enumerate(table.columns):
        rank = rank_step(column.name)
        if rank is None or column.values.size * 2 < len(table):
            continue
        found.append((_constant(column), rank, i))
    return min(found)[2] if found else -1


def _constant(column: Column) -> bool:
    return column.values.size > 2 and bool((column.values == column.values[0]).all())


def _usable(column: Column, n_rows: int) -> bool:
    """Whether a column could be the step: filled in at least half of the rows and not always the same."""
    return column.text is None and column.values.size * 2 >= max(n_rows, 1) and not _constant(column)


def _counts(numbers: NDArray[Any]) -> bool:
    """Whether numbers are whole and never go back: a counter."""
    return bool(np.all(np.isfinite(numbers)) and np.all(numbers == np.floor(numbers)) and np.all(np.diff(numbers) >= 0))


def _exact(column: Column, filled: NDArray[np.float64], usable: NDArray[np.bool_]) -> NDArray[Any]:
    """Steps as int64 where all are whole, else as float64."""
    if column.values.dtype.kind == "i":
        steps = np.zeros(filled.size, dtype=np.int64)
        steps[slice(None) if column.rows is None else column.rows] = column.values
        return steps
    return exact_steps(np.where(usable, filled, 0.0))


def exact_steps(values: NDArray[np.float64]) -> NDArray[Any]:
    """Finite steps as int64 where all are whole and fit, else unchanged.

    >>> exact_steps(np.array([1.0, 2.0])).dtype.kind, exact_steps(np.array([1.5])).dtype.kind
    ('i', 'f')
    """
    if bool(np.all(values == np.floor(values))) and bool(np.all(np.abs(values) < 2**63)):
        return values.astype(np.int64)
    return values


def _carried(steps: NDArray[Any], usable: NDArray[np.bool_], index: int, table: Table, source: Source) -> NDArray[Any]:
    """Give rows without a step the step of a variant of the column (``valid_num_updates``) or of the row before."""
    steps = steps.copy()
    usable = usable.copy()
    own = normal_name(table.columns[index].name)
    for other in table.columns:
        name = normal_name(other.name)
        if other.text is None and name != own and name.endswith(own) and rank_step(other.name) is not None:
            values = other.filled(len(table))
            extra = ~usable & np.isfinite(values)
            steps[extra] = values[extra].astype(steps.dtype)
            usable |= extra
    without = int(np.count_nonzero(~usable))
    if without:
        before = np.maximum.accumulate(np.where(usable, np.arange(usable.size), -1))
        first = int(np.argmax(usable))
        steps = steps[np.where(before < 0, first, before)]
        source.problems.append(
            Problem(
                "step-carried",
                "info",
                f"{without} rows have no {table.columns[index].name}; they take that of the row before",
                source.file,
                f"line {int(table.line[int(np.argmax(~usable))])}",
                without,
            )
        )
    return steps


def _within_epoch(steps: NDArray[Any], table: Table, index: int) -> NDArray[Any] | None:
    """Steps over all epochs, where the step column restarts at each epoch; None where it does not."""
    falls = np.flatnonzero(np.diff(steps) < 0) + 1
    if falls.size < 2:
        return None
    epoch = next(
        (
            c
            for i, c in enumerate(table.columns)
            if i != index and normal_name(c.name).rsplit("/", 1)[-1] == "epoch" and c.values.size == len(table)
        ),
        None,
    )
    if epoch is None:
        return None
    turns = epoch.values.astype(np.float64)
    if not _counts(turns) or not bool(np.all(turns[falls] > turns[falls - 1])):
        return None
    moves = np.diff(steps)
    stride = float(np.median(moves[moves > 0])) if bool((moves > 0).any()) else 1.0
    span = float(steps.max()) + (stride if float(steps.min()) == 0 else 0.0)
    derived = (turns - turns[0]) * span + steps
    return exact_steps(derived)


def _wall_time(table: Table, step_index: int) -> tuple[NDArray[np.float64] | None, int]:
    """Unix seconds of every row and the position of the column they came from (-1: none)."""
    ranked = []
    for i, column in enumerate(table.columns):
        name = normal_name(column.name).rsplit("/", 1)[-1]
        if i != step_index and name in WALL_NAMES:
            ranked.append((WALL_NAMES.index(name), i))
    for _, i in sorted(ranked):
        column = table.columns[i]
        seconds = iso_seconds(column.text) if column.text is not None else unix_seconds(column.filled(len(table)))
        if seconds is not None:
            return seconds, i
    return None, -1


def unique_names(names: Sequence[str], problems: list[Problem], file: str) -> list[str]:
    """Names with a running number on repeats (``loss``, ``loss#2``), never overwritten and never summed.

    >>> unique_names(["loss", "loss", "loss#2"], [], "")
    ['loss', 'loss#3', 'loss#2']
    """
    bases = [name.strip() or f"c{i}" for i, name in enumerate(names)]
    written = set(bases)
    seen: Counter[str] = Counter()
    result: list[str] = []
    repeated: list[str] = []
    for base in bases:
        seen[base] += 1
        if seen[base] == 1:
            result.append(base)
            continue
        repeated.append(base)
        while f"{base}#{seen[base]}" in written:  # a column of that very name
            seen[base] += 1
        result.append(f"{base}#{seen[base]}")
    if repeated:
        shown = ", ".join(sorted(set(repeated))[:5])
        problems.append(
            Problem(
                "duplicate-column",
                "warning",
                f"Several columns share a name ({shown}); the later ones are numbered #2, #3, ...",
                file,
                "line 1",
                len(repeated),
            )
        )
    return result
