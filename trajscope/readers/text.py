"""Text logs: Megatron, GPT-NeoX, nanoGPT and kin, llm.c, OLMo, MMEngine, and ``key=value`` or ``key: value`` lines of
any origin.

A line counts as log where it names a step and a value, or where it belongs to a block that a step line opened (OLMo's
indented lines, ``Epoch: 3/30`` followed by losses). So a log that begins with thousands of lines of its own source
code is read all the same. A carriage return ends a line (progress bars); of a step that is printed over and over the
last word counts. Where several ranks print, the rank with most lines is read and the others are compared with it.
Everything else is passed over and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trajscope.history import Problem, Source
from trajscope.readers._bytes import head_text, load_text, wide_encoding
from trajscope.readers._cells import parse_number
from trajscope.readers._gzip import plain_head, plain_path, read_head
from trajscope.readers._jsonlines import Records, records_table
from trajscope.readers._table import Column, table_source
from trajscope.readers._textlines import Line, read_line
from trajscope.readers._walltime import iso_time
from trajscope.readers.base import Reader, ReadOptions

__all__ = ["READER", "TextLog"]

_SUFFIXES = (".log", ".txt", ".out", ".err", ".stdout", "")
_TAIL = 32768
#: Bytes of a compressed file that are unfolded to see whether it is a log.
_LOOK = 1 << 20


class TextLog(Reader):
    """Reader of text logs."""

    name = "text"
    title = "text log"
    priority = -20

    def can_read(self, path: Path, head: bytes) -> bool:
        """Text in whose beginning or end at least two lines name a step and a value."""
        if plain_path(path).suffix.lower() not in _SUFFIXES or not head:
            return False
        head = plain_head(path, head)
        if not head_text(head):
            return False
        encoding = wide_encoding(head) or "utf-8"
        for part in _ends(path):
            lines = part.decode(encoding, errors="replace").replace("\r", "\n").split("\n")
            if _speaks(lines):
                return True
        return False

    def sources(self, files: Sequence[Path], key: str, options: ReadOptions) -> list[Source]:
        """One writer, or one a rank where ranks disagree."""
        path = files[0]
        file = options.label(path)
        data, notes = load_text(path, file, lines=True)
        ranks, passed = _records(data)
        if not ranks:
            nothing = Problem("no-scalars", "info", "No line names a step and a value", file, count=0)
            return [Source(file, problems=[*notes, nothing])]
        main = max(ranks, key=lambda r: (len(ranks[r].rows), r))
        everything = replace(options, channels=())  # names get their rank before the filter sees them
        source = _source(ranks[main], file, everything)
        source.problems = [*notes, *source.problems]
        for rank in sorted(ranks):
            if rank != main:
                _compare(source, _source(ranks[rank], file, everything), rank)
        source.series = {name: s for name, s in source.series.items() if options.wants(name)}
        if passed:
            sentence = f"{passed} other lines (text, code, progress) were passed over"
            source.problems.append(Problem("other-lines", "info", sentence, file, count=passed))
        return [source]


def _ends(path: Path) -> tuple[bytes, bytes]:
    """The end of a file and its beginning; of a compressed one the end of what a look unfolds."""
    if path.suffix.lower() == ".gz":
        start = read_head(path, _LOOK)
        return start[_TAIL:][-_TAIL:], start[:_TAIL]
    size = path.stat().st_size
    with path.open("rb") as stream:
        first = stream.read(_TAIL)
        last = b""
        if size > _TAIL:
            stream.seek(max(_TAIL, (size - _TAIL) // 4 * 4))  # where a character of UTF-16 or UTF-32 begins
            last = stream.read(_TAIL)
    return last, first


def _speaks(lines: Sequence[str]) -> bool:
    """Whether lines are those of a log: two with a step and a value, or two block heads with values under them."""
    own: set[float] = set()
    heads: set[float] = set()
    below = 0
    for text in lines:
        line = read_line(text)
        if line is None:
            continue
        if line.step and line.pairs:
            own.add(min(line.step.values()) if len(line.step) == 1 else sum(line.step.values()))
        elif line.step:
            heads.add(next(iter(line.step.values())))
        elif heads:
            below += 1
        if len(own) > 1 or (len(heads) > 1 and below > 1):
            return True
    return False


def _records(data: bytes) -> tuple[dict[str, Records], int]:
    """Records by rank, and how many lines were passed over."""
    lines = data.decode("utf-8", errors="replace").replace("\r", "\n").split("\n")
    parsed = [(i + 1, found) for i, text in enumerate(lines) if (found := read_line(text)) is not None]
    blocks, indented = _blocks(parsed)
    below = Counter(tuple(f.pairs) for _, f in parsed if f.pairs and not f.step)
    ranks: dict[str, Records] = {}
    used = 0
    for number, f in parsed:
        records = ranks.setdefault(f.rank, Records(json=True))
        if f.step and (f.pairs or tuple(f.step) in blocks):
            records.rows.append(_row(f, records.rows))
            records.line.append(number)
            records.prefix.append(f.time)
            used += 1
        elif f.pairs and not f.step and records.rows and (f.indent if indented else below[tuple(f.pairs)] > 1):
            _under(records, f, number)
            used += 1
    kept = {rank: _with_values(r) for rank, r in ranks.items()}
    filled = sum(bool(text.strip()) for text in lines)
    return {rank: r for rank, r in kept.items() if r.rows}, filled - used


def _blocks(parsed: Sequence[tuple[int, Line]]) -> tuple[set[tuple[str, ...]], bool]:
    """Which lines with a step alone open a block (more than one of them), and whether blocks are indented."""
    heads: dict[tuple[str, ...], set[float]] = {}
    inside = 0
    for k, (number, f) in enumerate(parsed):
        if f.step and not f.pairs:
            heads.setdefault(tuple(f.step), set()).add(sum(f.step.values()))
            following = parsed[k + 1] if k + 1 < len(parsed) else (0, f)
            inside += following[0] == number + 1 and following[1].indent
    blocks = {names for names, seen in heads.items() if len(seen) > 1}
    return blocks, inside * 2 > sum(len(seen) for seen in heads.values())


def _row(line: Line, earlier: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Step and values of one line; on validation lines the names get the mode as prefix."""
    front = f"{line.mode}/" if line.mode else ""
    row: dict[str, Any] = {front + k: parse_number(v)[0] for k, v in line.pairs.items()}
    step = dict(line.step)
    if line.of and {"epoch", "iter"} <= set(step):
        if line.mode:  # the position inside the validation set says nothing; the row belongs to the end of the epoch
            last = earlier[-1].get("step") if earlier else None
            return {**row, "epoch": step["epoch"], **({} if last is None else {"step": last})}
        first = earlier[0].get("epoch", step["epoch"]) if earlier else step["epoch"]
        begin = 0 if first == 0 else 1  # the number of the first epoch
        return {**row, "epoch": step["epoch"], "step": (step["epoch"] - begin) * line.of + step["iter"]}
    return {**row, **step}


def _under(records: Records, line: Line, number: int) -> None:
    """Values of a line without a step belong to the record above, unless it has them already."""
    last = records.rows[-1]
    row = {k: parse_number(v)[0] for k, v in line.pairs.items()}
    if row.keys() & last.keys():
        records.rows.append({**{k: v for k, v in last.items() if k in _STEP_KEYS}, **row})
        records.line.append(number)
        records.prefix.append(line.time or records.prefix[-1])
    else:
        last.update(row)


_STEP_KEYS = frozenset({"step", "global_step", "iteration", "iter", "epoch", "update", "s", "batch", "it"})

#: Words for the number of an update.
_COUNTERS = ("step", "global_step", "iteration", "iter", "update", "s", "it")


def _with_values(records: Records) -> Records:
    """Leave out records without values, and single lines that count in something else than the log does (settings)."""
    counts = Counter(tuple(k for k in row if k in _STEP_KEYS) for row in records.rows)
    main = set(counts.most_common(1)[0][0]) if counts else set()
    kinds = Counter(tuple(row) for row in records.rows)
    kept = [
        i
        for i, row in enumerate(records.rows)
        if row.keys() - _STEP_KEYS and (main & row.keys() or kinds[tuple(row)] > 1)
    ]
    return Records(
        [records.rows[i] for i in kept],
        [records.line[i] for i in kept],
        [records.prefix[i] for i in kept],
        records.problems,
        records.json,
    )


def _source(records: Records, file: str, options: ReadOptions) -> Source:
    _one_counter(records)
    table, _ = records_table(records, file)
    if any(records.prefix) and table.get("wall_time") is None:
        seconds = np.array([iso_time(t) for t in records.prefix], dtype=np.float64)
        table.columns.append(Column("wall_time", seconds))
    return table_source(table, file, step=options.step, wants=options.wants)


def _one_counter(records: Records) -> None:
    """Give one name to counters that stand in for each other (nanoGPT: ``step 250: val loss``, ``iter 250: loss``)."""
    seen = Counter(name for row in records.rows for name in _COUNTERS if name in row)
    if any(sum(name in row for name in _COUNTERS) > 1 for row in records.rows):
        seen = Counter(s=seen["s"])  # two counters in one line are two things
    common = next((n for n, _ in seen.most_common() if n != "s"), "step")
    for row in records.rows:
        for name in seen:
            if name in row and name != common and common not in row:
                row[common] = row.pop(name)


def _compare(source: Source, other: Source, rank: str) -> None:
    """Another rank that says the same is a copy; channels that differ are kept under the rank's name."""
    copies = different = 0
    for name, s in other.series.items():
        mine = source.series.get(name)
        if (
            mine is not None
            and np.array_equal(mine.steps, s.steps)
            and np.array_equal(mine.values, s.values, equal_nan=True)
        ):
            copies += s.steps.size
            continue
        if mine is not None:
            at = np.searchsorted(mine.steps, s.steps)
            inside = at < mine.steps.size
            if (
                inside.all()
                and np.array_equal(mine.values[at], s.values, equal_nan=True)
                and (mine.steps[at] == s.steps).all()
            ):
                copies += s.steps.size
                continue
        different += s.steps.size
        source.series[f"rank{rank or '?'}/{name}"] = s
    who = f"Rank {rank}" if rank else "Lines without a rank"
    sentence = (
        f"{who}: {copies} points repeat those of the rank that was read, {different} are kept as channels of their own"
    )
    source.problems.append(Problem("several-ranks", "info", sentence, source.file, count=copies + different))


READER = TextLog()
