"""``trajscope.score_runs``: many finished runs, one row each."""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajscope.batch.executors import Workers, workers_from
from trajscope.batch.listing import FRESH_SECONDS, Item, Listing, Spool
from trajscope.batch.row import Terms
from trajscope.batch.shard import Rows
from trajscope.batch.store import Done, Store
from trajscope.config import Settings
from trajscope.errors import InputError, NoLogsFound
from trajscope.result import Result, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Progress", "ScoreTable", "score_runs"]

#: A shard ends at so many runs or bytes, whichever comes first.
SHARD_RUNS, SHARD_BYTES = 64, 256 * 2**20


@dataclass
class Progress:
    """How far a call is; handed to the ``progress`` function now and then.

    Attributes
    ----------
    total : int
        Items to score in this call; 0 until they are all listed.
    scored, failed : int
        Runs.
    kinds : Counter
        Runs that failed, by status.
    seconds : float
        Since the first shard was handed out.
    """

    total: int = 0
    items: int = 0
    scored: int = 0
    failed: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Runs a second."""
        return (self.scored + self.failed) / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta(self) -> float:
        """Seconds that are left at this rate; NaN before it is known."""
        return (self.total - self.items) * self.seconds / self.items if self.items else float("nan")


@dataclass(frozen=True, eq=False)
class ScoreTable(Result):
    """What `score_runs` wrote.

    Attributes
    ----------
    path : Path
        Folder with ``runs/``, ``events/``, ``config/`` (Parquet), ``failures.jsonl`` and ``manifest.json``.
    n_runs, n_failed : int
        Rows in the table; rows without a score.
    n_new, n_known : int
        Items scored in this call; items that had rows already.
    unfinished : mapping of str to str
        Items without a row, and why: start the call again.
    dry : bool
        Whether nothing was scored on purpose.
    """

    path: Path
    n_runs: int
    n_failed: int
    n_new: int
    n_known: int
    kinds: Mapping[str, int] = field(default_factory=dict)
    unfinished: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    ignored: int = 0
    seconds: float = 0.0
    dry: bool = False

    def to_frame(self) -> pd.DataFrame:
        """The table of runs, sorted by root and run."""
        return self._frame("runs", ["root", "run"])

    def events(self) -> pd.DataFrame:
        """The table of events, sorted."""
        return self._frame("events", ["root", "run", "step", "kind"])

    def config(self) -> pd.DataFrame:
        """The configurations, one row a key."""
        return self._frame("config", ["root", "run", "key"])

    def _frame(self, table: str, by: list[str]) -> pd.DataFrame:
        frame: pd.DataFrame = Store(self.path).read(table).to_pandas()
        return frame.sort_values(by, kind="stable").reset_index(drop=True)

    def summary(self) -> str:
        """One or two sentences."""
        if self.dry:
            return f"{self.n_new} items would be scored, {self.n_known} have rows already."
        failures = ", ".join(f"{n} {k}" for k, n in sorted(self.kinds.items()))
        text = f"{self.n_runs} runs in {self.path} ({self.n_new} items new, {self.n_known} known); "
        text += f"{self.n_failed} without a score"
        text += f" ({failures})." if failures else "."
        if self.unfinished:
            text += f" {len(self.unfinished)} items have no row yet; start the call again."
        return text


def score_runs(
    root: str | Path | Iterable[str | Path],
    *,
    out: str | Path,
    workers: int = 1,
    executor: Any = None,
    settings: Settings | None = None,
    profile: str | None = None,
    limit: int | None = None,
    time_limit: float | None = 600.0,
    memory_limit_mb: float | None = None,
    shard_size: int = SHARD_RUNS,
    storage_options: Mapping[str, Any] | None = None,
    fresh: float = FRESH_SECONDS,
    dry_run: bool = False,
    progress: Callable[[Progress], None] | None = None,
    format: str | None = None,
    channels: Sequence[str] = (),
    resume: str = "auto",
    step: str = "",
    strict: bool = False,
) -> ScoreTable:
    """Score every run below one or several roots into a table; what has a row already is left alone.

    Parameters
    ----------
    root : path or address, or several
        Folders or log files, or addresses that fsspec knows (``s3://bucket/logs``; extra ``remote``).
    out : path
        Folder of the table; made, or continued if it holds rows of the same version, settings and reading options.
    workers : int, default 1
        Processes. With one, runs are judged in this process.
    executor : optional
        ``"serial"``, ``"pool"``, the address of a Dask scheduler (``tcp://...``, extra ``cluster``), a Dask client or a
        `concurrent.futures.Executor`; default by `workers`.
    settings : Settings, optional
        Constants of the audit.
    profile : {"fast", "full"}, optional
        Overrides that of `settings`; default ``fast`` where no settings are given.
    limit : int, optional
        Score at most so many items in this call.
    time_limit : float or None, default 600
        Seconds a run; then it is a row with status ``timeout``.
    memory_limit_mb : float, optional
        MiB a run may ask for (Linux); default 80 % of the machine's memory over the workers.
    shard_size : int, default 64
        Items a shard: what a kill loses at most, times the shards in flight.
    storage_options : mapping, optional
        Options of the remote file system.
    fresh : float, default 3600
        A run with a file younger than this (s) is marked as still being written.
    dry_run : bool
        Only list and count.
    progress : callable, optional
        Called with a `Progress` after each shard.
    format, channels, resume, step, strict
        As in `trajscope.scan_runs`.

    Returns
    -------
    ScoreTable

    Raises
    ------
    NoLogsFound
        If a root does not exist, or nothing to score is below any of them.
    InputError
        If `out` holds rows made with another version or other settings.
    MissingExtra
        If a scheduler or a remote root needs a package that is not installed.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> import trajscope
    >>> demo = pathlib.Path(trajscope.__file__).parent / "demo"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = score_runs(demo, out=pathlib.Path(folder) / "scores", limit=2)
    ...     table.to_frame()["status"].tolist()
    ['ok', 'ok']
    """
    roots = [str(root)] if isinstance(root, str | os.PathLike) else [str(r) for r in root]
    for name, value, least in (("limit", limit, 0), ("shard_size", shard_size, 1)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise InputError(f"{name} is {value!r}; a whole number, {least} or more, is expected")
    chosen = settings if settings is not None else Settings(profile="fast")
    if profile is not None:
        chosen = replace(chosen, profile=profile)
    reading = {"format": format, "channels": tuple(channels), "resume": resume, "step": step, "strict": strict}
    terms = Terms(chosen, _version(), time_limit, memory_limit_mb or _memory(workers))
    start = time.perf_counter()
    store = Store(Path(out))
    listing = Listing(roots, reading, storage_options or {}, fresh)
    hands = workers_from(executor, workers)
    unfinished: dict[str, str] = {}
    n_failed, kinds = 0, Counter[str]()
    try:
        with Spool(shard_size, SHARD_BYTES) as todo:
            known: Mapping[tuple[str, str], Done] = {}
            if not dry_run or (store.path / "manifest.json").is_file():
                store.open(terms, reading)
                known = store.done()
            same, changed = _sort(listing, known, todo, limit)
            problems = tuple(str(p) for p in listing.problems)
            if not todo.items and not same and limit != 0:
                reasons = f": {problems[0]}" if problems else ""
                where = ", ".join(roots[:3])
                raise NoLogsFound(f"no logs found under {where} ({listing.ignored} files passed over){reasons}")
            state = Progress(total=todo.items)
            if not dry_run:
                store.drop(changed)
                details = _drive(store, hands, todo.shards(), terms, state, progress, unfinished)
                n_failed = store.write_failures(details, problems)
                kinds.update(str(s) for s in store.read("runs", ["status"])["status"].to_pylist() if s != "ok")
    finally:
        hands.close()
    return ScoreTable(
        store.path,
        store.read("runs", ["run"]).num_rows if not dry_run else 0,
        n_failed,
        state.total - len(unfinished),
        same,
        dict(kinds),
        unfinished,
        problems,
        listing.ignored,
        time.perf_counter() - start,
        dry_run,
        provenance=make_provenance("score_runs", {"roots": roots, "profile": chosen.profile, **reading}),
    )


def _sort(
    listing: Listing, known: Mapping[tuple[str, str], Done], todo: Spool, limit: int | None
) -> tuple[int, list[tuple[tuple[str, str], Done]]]:
    """Put what has no row, or changed since, into the spool; how many have one, and which of them changed."""
    same, changed = 0, []
    for item in listing:
        there = known.get((item.root, item.key))
        if there is not None and there.fingerprint == item.fingerprint:
            same += 1
        elif limit is None or todo.items < limit:
            todo.add(item)
            if there is not None:
                changed.append(((item.root, item.key), there))
    return same, changed


def _drive(
    store: Store,
    workers: Workers,
    shards: Iterator[list[Item]],
    terms: Terms,
    state: Progress,
    progress: Callable[[Progress], None] | None,
    unfinished: dict[str, str],
) -> dict[str, str]:
    """Keep the window full until everything is written; returns the tracebacks of bugs."""
    pending: dict[Future[Rows], list[Item]] = {}
    details: dict[str, str] = {}
    start = time.perf_counter()
    broken = ""
    while True:
        while not broken and len(pending) < workers.window:
            shard = next(shards, None)
            if shard is None:
                break
            try:
                pending[workers.submit(shard, terms)] = shard
            except RuntimeError as problem:  # the executor has been shut down, or its scheduler has gone
                broken = _sentence(problem)
                unfinished.update((i.key, broken) for i in shard)
        if not pending:
            break
        finished, _ = wait(pending, return_when=FIRST_COMPLETED)
        for future in finished:
            items = pending.pop(future)
            try:
                rows = future.result()
                store.write(rows)
            except Exception as problem:  # scheduler gone, disk full: what was written before stays
                unfinished.update((i.key, _sentence(problem)) for i in items)
                if not isinstance(problem, OSError | ChildProcessError):
                    broken = _sentence(problem)
                continue
            details.update(rows.details)
            bad = [str(r["status"]) for r in rows.runs if r["status"] != "ok"]
            state.items += len(items)
            state.scored += len(rows.runs) - len(bad)
            state.failed += len(bad)
            state.kinds.update(bad)
            state.seconds = time.perf_counter() - start
            if progress is not None:
                progress(state)
    for shard in shards:
        unfinished.update((i.key, broken) for i in shard)
    return details


def _sentence(problem: BaseException) -> str:
    text = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {text[0] if text else ''}".rstrip(": ")


def _version() -> str:
    try:
        return importlib.metadata.version("trajscope")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


def _memory(workers: int) -> float | None:
    """80 % of the machine's memory over the workers, MiB; None where it cannot be asked."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return 0.8 * total / 2**20 / max(1, int(workers))
