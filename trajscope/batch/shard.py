"""Score a shard: a few items, one after the other, as rows for the tables."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trajscope.batch.listing import Item, fetch
from trajscope.batch.row import Scored, Terms, failed, score_run
from trajscope.errors import TrajscopeError
from trajscope.history import Run, RunData
from trajscope.readers import scan_runs

__all__ = ["Begun", "Rows", "gather", "score_items"]


@dataclass(frozen=True)
class Begun:
    """Sent before a run is touched, so that whoever watches knows which run it was."""

    item: int
    run: str
    format: str


@dataclass
class Rows:
    """Rows of one shard.

    Attributes
    ----------
    runs, events, config : list of mapping
    done : list of (root, key, fingerprint, runs)
    details : mapping of str to str
        Tracebacks of bugs by run.
    """

    runs: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    config: list[dict[str, Any]] = field(default_factory=list)
    done: list[tuple[str, str, str, list[str]]] = field(default_factory=list)
    details: dict[str, str] = field(default_factory=dict)

    def add(self, scored: Scored) -> None:
        """Take the rows of one run."""
        self.runs.append(scored.run)
        self.events.extend(scored.events)
        self.config.extend(scored.config)
        if scored.detail:
            self.details[str(scored.run["run"])] = scored.detail


def score_items(
    items: Sequence[Item], terms: Terms, skip: frozenset[tuple[int, str]] = frozenset()
) -> Iterator[Begun | tuple[int, Scored]]:
    """Score every run of the items, except those of ``skip``; each is announced by a `Begun`."""
    for number, item in enumerate(items):
        if item.run is not None:
            if (number, item.run.id) not in skip:
                yield Begun(number, item.run.id, item.run.format)
                yield number, score_run(item.run, item.root, item.facts, terms)
            continue
        with tempfile.TemporaryDirectory(prefix="trajscope-") as folder:
            start = time.perf_counter()
            try:
                local = fetch(item, Path(folder))
                runs = list(scan_runs(local, **item.options["read"]))
            except TrajscopeError as problem:
                nothing = Run(item.key, RunData())
                if (number, item.key) not in skip:
                    took = time.perf_counter() - start
                    yield number, failed(nothing, item.root, item.facts, terms, "unreadable", str(problem), took)
                continue
            for run in runs:
                if (number, run.id) not in skip:
                    yield Begun(number, run.id, run.format)
                    yield number, score_run(run, item.root, item.facts, terms)


def gather(items: Sequence[Item], scored: Sequence[tuple[int, Scored]]) -> Rows:
    """The rows of a shard in the order of its items."""
    rows = Rows()
    names: dict[int, list[str]] = {n: [] for n in range(len(items))}
    for number, one in sorted(scored, key=lambda pair: (pair[0], str(pair[1].run["run"]))):
        rows.add(one)
        names[number].append(str(one.run["run"]))
    rows.done = [(i.root, i.key, i.fingerprint, names[n]) for n, i in enumerate(items)]
    return rows


def score_shard(items: Sequence[Item], terms: Terms) -> Rows:
    """Score a shard in this process."""
    return gather(items, [event for event in score_items(items, terms) if not isinstance(event, Begun)])
