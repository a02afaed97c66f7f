"""From what writers wrote to one run: duplicates, resumes, rewinds, restarts and several writers.

A reader delivers `Source` objects, one a writer (usually one a file), in the order in which that writer wrote. Here
they become a `RunData` whose channels hold strictly increasing steps inside each segment group. The rules (policy
``auto``):

* A step that one writer logs again without going back is a duplicate: the last write is kept, the others are counted.
* A writer *goes back* where a channel's step falls by more than ``reorder`` rows of that channel, or where it falls and
  the following points repeat steps already seen. Smaller disorder is sorted. Going back opens a new piece; so does a
  new file.
* A piece that starts after the last step so far continues the series.
* A piece that starts inside the steps so far and not before the first is a resume: it *supersedes* the earlier points
  from its first step on, in every channel (the dead branch moves to ``superseded``).
* A piece that starts at or before the first step is a *restart* of the counter: it opens a new group, never merged.
* Where both writers were at work at the same wall time, or logged no channel in common, the pieces are interleaved by
  step instead.

Policies ``segments`` (every overlap opens a group), ``offset`` (a restart goes on counting), ``keep-all`` (every point
stays, steps may repeat) and ``supersede`` (the overlap rule even for a restart) override the last three rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trajscope.errors import InputError, nearest
from trajscope.history._rewinds import MOST, rewinds
from trajscope.history._source import Series, Source, counted, numbered
from trajscope.history.run import Channel, Problem, RunData, Segment, named_channel

__all__ = ["RESUME_POLICIES", "Series", "Source", "assemble"]

RESUME_POLICIES = ("auto", "supersede", "segments", "keep-all", "offset")

#: Problems of one kind and file that are told one by one.
_SHOWN = 10

#: Wall time between two pieces beyond which a restarted counter is more likely another run than a resume.
UNRELATED_GAP = 86400.0


@dataclass(eq=False)
class _Piece:
    """A stretch of one source in which the steps do not go back."""

    file: str
    series: dict[str, Series]
    first: float | int
    last: float | int
    start_time: float | None
    end_time: float | None
    same_writer: bool
    kind: str = "start"
    group: int = 0
    duplicates: dict[str, int] = field(default_factory=dict)
    sampled: bool = False
    emptied: bool = False


def assemble(
    sources: Sequence[Source],
    *,
    resume: str = "auto",
    reorder: int = 10,
    provenance: Mapping[str, Any] | None = None,
) -> RunData:
    """Build the content of one run from what its writers wrote.

    Parameters
    ----------
    sources : sequence of Source
        In the order in which they were written, as far as the reader knows; ``started`` overrides it.
    resume : {"auto", "supersede", "segments", "keep-all", "offset"}, default "auto"
        What happens to overlapping pieces (module docstring).
    reorder : int, default 10
        Rows by which a channel's step may go back before that counts as a resume (DEFINITIONS: reorder tolerance).
    provenance : mapping, optional
        Facts to carry along (files, reader version).

    Returns
    -------
    RunData

    Raises
    ------
    InputError
        If the policy is unknown.
    """
    if resume not in RESUME_POLICIES:
        raise InputError(f"resume policy {resume!r} is unknown. {nearest(resume, RESUME_POLICIES)}")
    problems: list[Problem] = [p for s in sources for p in s.problems]
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    for source in sources:
        config.update(source.config)
        summary.update(source.summary)
        if source.sampled:
            problems.append(
                Problem("sampled-source", "warning", f"The source holds only a sample: {source.sampled}", source.file)
            )
    ordered = sorted(sources, key=lambda s: (s.started is not None, s.started or 0.0))
    pieces: list[_Piece] = []
    for source in ordered:
        pieces.extend(_pieces(source, reorder, problems, keep_all=resume == "keep-all"))
    superseded: list[tuple[int, dict[str, Series]]] = []
    _link(pieces, resume, problems, superseded)
    segments = tuple(
        Segment(i, p.kind, p.group, float(p.first), float(p.last), p.file, p.start_time) for i, p in enumerate(pieces)
    )
    channels = _join([(i, p.series) for i, p in enumerate(pieces)], pieces, keep_all=resume == "keep-all")
    dead = _join(superseded, pieces, keep_all=True, live=False)
    facts = {
        "resume": resume,
        "reorder": reorder,
        "step": sorted({s.step_name for s in sources}),
        "files": [s.file for s in sources],
        **(provenance or {}),
    }
    return RunData(channels, config, summary, segments, dead, tuple(_condensed(problems)), facts)


def _condensed(problems: list[Problem]) -> list[Problem]:
    """Of many problems of one kind in one file, the first few and how many more there are."""
    seen: dict[tuple[str, str], list[Problem]] = {}
    for p in problems:
        seen.setdefault((p.code, p.file), []).append(p)
    kept = []
    for alike in seen.values():
        kept += alike[:_SHOWN]
        rest = alike[_SHOWN:]
        if rest:
            text = f"{len(rest)} more of this kind: {rest[-1].message}"
            kept.append(replace(rest[-1], message=text, count=sum(p.count for p in rest)))
    order = {id(p): i for i, p in enumerate(problems)}
    return sorted(kept, key=lambda p: order.get(id(p), len(problems)))


def _pieces(source: Source, reorder: int, problems: list[Problem], *, keep_all: bool) -> list[_Piece]:
    """Cut one source where it goes back, then sort and deduplicate each piece."""
    if source.unstepped and not keep_all:
        source = counted(source)
    cuts = _cuts(source, reorder)
    if len(cuts) > MOST:
        problems.append(
            Problem(
                "no-counter",
                "warning",
                f"The step goes back {len(cuts)} times, so it counts nothing; points are numbered in order instead",
                source.file,
                count=len(cuts),
            )
        )
        source, cuts = numbered(source), []
    bounds = [-np.inf, *cuts, np.inf]
    pieces: list[_Piece] = []
    for low, high in itertools.pairwise(bounds):
        series: dict[str, Series] = {}
        duplicates: dict[str, int] = {}
        conflicting = 0
        for name, s in source.series.items():
            part = s
            if cuts:
                begin, end = np.searchsorted(s.rows(), [low, high])
                part = _subset(s, slice(begin, end), s.n_missing if low == -np.inf else 0)
            if part.steps.size or part.n_missing:
                series[name], duplicates[name], different = _tidy(part, keep_all=keep_all)
                conflicting += different
        if not series:
            continue
        total = sum(duplicates.values())
        if total:
            names = [n for n, k in duplicates.items() if k]
            what = f"{conflicting} with another value" if conflicting else "with the same value"
            problems.append(
                Problem(
                    "duplicate-steps",
                    "info",
                    f"{total} points repeat a step in {_some(names)} ({what}); the last write was kept",
                    source.file,
                    count=total,
                )
            )
        filled = [s for s in series.values() if s.steps.size]
        walls = [s.wall_time for s in filled if s.wall_time is not None and np.isfinite(s.wall_time).any()]
        start = min((float(np.nanmin(w)) for w in walls), default=None)
        pieces.append(
            _Piece(
                source.file,
                series,
                # Python numbers: int64 steps beyond 2^53 compare exactly.
                min((s.steps[0].item() for s in filled), default=np.nan),
                max((s.steps[-1].item() for s in filled), default=np.nan),
                source.started if start is None and not pieces else start,
                max((float(np.nanmax(w)) for w in walls), default=None),
                bool(pieces),
                duplicates=duplicates,
                sampled=bool(source.sampled),
            )
        )
    return pieces


def _some(names: list[str]) -> str:
    """Name a few of many."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more channels" if len(names) > 3 else "")


def _cuts(source: Source, reorder: int) -> list[int]:
    """Rows at which the writer went back, and the marks it set itself."""
    filled = [(s.steps, s.rows()) for s in source.series.values() if s.steps.size]
    first = min((int(rows[0]) for _, rows in filled), default=0)
    return sorted({*rewinds(filled, reorder), *(int(m) for m in source.marks if m > first)})


def _subset(s: Series, rows: Any, n_missing: int = 0) -> Series:
    """Some of the points; empty cells belong to no point, so the caller says which part counts them."""
    return Series(
        s.steps[rows],
        s.values[rows],
        None if s.wall_time is None else s.wall_time[rows],
        None if s.row is None else s.row[rows],
        n_missing,
    )


def _tidy(s: Series, *, keep_all: bool) -> tuple[Series, int, int]:
    """Sort by step (stable) and keep the last write of each step; count what went, and how many of it differed."""
    steps = s.steps
    if steps.size < 2 or bool(np.all(steps[1:] > steps[:-1])):
        return s, 0, 0
    order = np.argsort(steps, kind="stable")
    if keep_all:
        return _subset(s, order, s.n_missing), 0, 0
    ordered = steps[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    kept = order[last]
    values = s.values[order]
    same = (values[1:] == values[:-1]) | ((values[1:] != values[1:]) & (values[:-1] != values[:-1]))
    different = int(np.count_nonzero(~same & ~last[:-1]))
    return _subset(s, kept, s.n_missing), int(steps.size - kept.size), different


def _link(
    pieces: list[_Piece], resume: str, problems: list[Problem], superseded: list[tuple[int, dict[str, Series]]]
) -> None:
    """Decide how each piece follows the earlier ones; move what is superseded."""
    group = 0
    for i, piece in enumerate(pieces):
        piece.group = group
        live = [p for p in pieces[:i] if p.group == group and not p.emptied and np.isfinite(p.last)]
        if not live or not np.isfinite(piece.first):
            continue
        first = min(p.first for p in live)
        last = max(p.last for p in live)
        step = f"step {piece.first:.15g}"
        if piece.first > last:
            piece.kind = "continuation"
            if piece.file != live[-1].file or piece.same_writer:
                problems.append(
                    Problem("resume", "info", f"The run goes on from {step} in a new session", piece.file, step)
                )
            continue
        if (
            resume in ("auto", "supersede")
            and not piece.same_writer
            and not any(name in p.series for p in live for name in piece.series)
        ):
            # Another writer of other channels (an evaluator beside the trainer): nothing contradicts, nothing goes.
            piece.kind = "interleaved"
            continue
        overlapping = (
            not piece.same_writer
            and piece.start_time is not None
            and any(p.end_time is not None and piece.start_time < p.end_time for p in live)
        )
        if resume == "keep-all" or (overlapping and resume in ("auto", "supersede")):
            piece.kind = "interleaved"
            both = 0 if resume == "keep-all" else _shared(piece, live)
            kept = f"; of {both} points that both logged the later writer's are kept" if both else ""
            problems.append(
                Problem(
                    "interleaved-writers",
                    "warning",
                    f"Two writers cover the steps from {piece.first:.15g} to {min(last, piece.last):.15g}"
                    f" at the same time; they are interleaved by step{kept}",
                    piece.file,
                    step,
                    max(both, 1),
                )
            )
        elif resume == "offset" and piece.first <= first:
            shift = last + _stride(live) - piece.first
            _shift(piece, shift)
            piece.kind = "continuation"
            problems.append(
                Problem(
                    "counter-offset", "info", f"The restarted counter goes on: {shift:.15g} was added", piece.file, step
                )
            )
        elif resume == "segments" or (piece.first <= first and resume != "supersede"):
            group += 1
            piece.group, piece.kind = group, "restart"
            problems.append(_restart_problem(piece, live, step))
        else:
            piece.kind = "supersedes"
            count = _supersede(pieces, i, superseded)
            word = "rewinds" if piece.same_writer else "resumes"
            problems.append(
                Problem(
                    "resume-supersedes",
                    "warning",
                    f"The run {word} at {step}: {count} earlier points from there on are superseded"
                    " (kept in Run.superseded)",
                    piece.file,
                    step,
                    count,
                )
            )


def _shared(piece: _Piece, live: list[_Piece]) -> int:
    """How many points of earlier pieces the piece logs again."""
    return sum(
        int(np.count_nonzero(np.isin(old.series[name].steps, s.steps)))
        for name, s in piece.series.items()
        for old in live
        if name in old.series
    )


def _restart_problem(piece: _Piece, live: list[_Piece], step: str) -> Problem:
    end = max((p.end_time for p in live if p.end_time is not None), default=None)
    apart = None if end is None or piece.start_time is None else piece.start_time - end
    if apart is not None and abs(apart) > UNRELATED_GAP:
        return Problem(
            "unrelated-runs",
            "warning",
            f"Another run, {apart / 86400:.0f} days apart, lies in the same place; the two are kept apart as segments",
            piece.file,
            step,
        )
    return Problem(
        "counter-restart",
        "warning",
        "The step counter restarts; the parts are kept apart as segments (resume='offset' goes on counting)",
        piece.file,
        step,
    )


def _stride(pieces: list[_Piece]) -> float:
    gaps = [float(np.median(np.diff(s.steps))) for p in pieces for s in p.series.values() if s.steps.size > 1]
    return max(1.0, min(gaps, default=1.0))


def _shift(piece: _Piece, shift: float) -> None:
    for name, s in piece.series.items():
        move = int(shift) if s.steps.dtype.kind == "i" else shift
        piece.series[name] = replace(s, steps=s.steps + move)
    piece.first += shift
    piece.last += shift


def _supersede(pieces: list[_Piece], i: int, superseded: list[tuple[int, dict[str, Series]]]) -> int:
    """Move the live points at or after the first step of piece ``i`` to the dead branch, in every channel."""
    moved = 0
    for k, old in enumerate(pieces[:i]):
        if old.group != pieces[i].group or not old.last >= pieces[i].first:
            continue
        dead: dict[str, Series] = {}
        for name, s in list(old.series.items()):
            late = s.steps >= pieces[i].first
            if late.any():
                dead[name] = _subset(s, late)
                old.series[name] = _subset(s, ~late, s.n_missing)
                moved += int(np.count_nonzero(late))
        left = [s.steps[-1].item() for s in old.series.values() if s.steps.size]
        old.last, old.emptied = max(left, default=old.first), not left
        superseded.append((k, dead))
    return moved


def _join(
    parts: list[tuple[int, dict[str, Series]]], pieces: list[_Piece], *, keep_all: bool, live: bool = True
) -> dict[str, Channel]:
    """Concatenate the pieces of each channel, group by group, sorted by step inside a group.

    Duplicates that were dropped are counted with the live points only, so that what was written is
    live + superseded + duplicates.
    """
    names: dict[str, list[tuple[int, Series]]] = {}
    for index, series in parts:
        for name, s in series.items():
            names.setdefault(name, []).append((index, s))
    channels: dict[str, Channel] = {}
    for name, found in names.items():
        steps = np.concatenate([s.steps for _, s in found]) if len(found) > 1 else found[0][1].steps
        values = np.concatenate([s.values for _, s in found]) if len(found) > 1 else found[0][1].values
        segment = np.repeat(
            np.array([i for i, _ in found], dtype=np.int16), np.array([s.steps.size for _, s in found], dtype=np.intp)
        )
        wall = None
        if any(s.wall_time is not None for _, s in found):
            wall = np.concatenate(
                [np.full(s.steps.size, np.nan) if s.wall_time is None else s.wall_time for _, s in found]
            )
        duplicates = sum(pieces[i].duplicates.get(name, 0) for i, _ in found) if live else 0
        if steps.size and any(pieces[i].kind == "interleaved" for i, _ in found):
            group = np.array([pieces[i].group for i in segment.tolist()], dtype=np.int64)
            order = np.lexsort((np.arange(steps.size), steps, group))
            if not keep_all:
                s_o, g_o = steps[order], group[order]
                last = np.append((s_o[1:] != s_o[:-1]) | (g_o[1:] != g_o[:-1]), True)
                duplicates += int(np.count_nonzero(~last))
                order = order[last]
            steps, values, segment = steps[order], values[order], segment[order]
            wall = None if wall is None else wall[order]
        channels[name] = named_channel(
            name,
            steps,
            values,
            wall_time=wall,
            segment=segment,
            sampled=any(pieces[i].sampled for i, _ in found),
            n_missing=sum(s.n_missing for _, s in found),
            n_duplicates=duplicates,
        )
    return channels
