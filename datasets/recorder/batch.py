"""From plans to files: record what is missing, seed by seed, and assemble one Parquet file; or check one run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from recorder.arms import Arms
from recorder.monitor import Log
from recorder.store import assemble, read_tables, run_table, series, series_equal, write_runs


class Plan(Protocol):
    """What a domain's plan offers here; see `recorder.plans.Plan`."""

    arms: Arms
    seeds: tuple[int, ...]
    channels: tuple[str, ...]

    def run_id(self, seed: int, arm: str) -> str: ...

    def config(self, seed: int, arm: str) -> dict[str, Any]: ...


P = TypeVar("P", bound=Plan)
RecordSeed = Callable[[P, int, Arms], dict[str, Log]]


def record_file(
    path: Path, plans: Sequence[P], record_seed: RecordSeed[P], roles: dict[str, str], made_with: dict[str, str]
) -> None:
    """Record a file's plans; every finished seed is kept beside the data until the file is complete."""
    parts = path.parents[1] / ".parts" / path.parent.name / path.stem
    jobs = [(k, plan, seed) for k, plan in enumerate(plans) for seed in plan.seeds]
    for done, (k, plan, seed) in enumerate(jobs, 1):
        part = parts / f"{k:02d}-{seed:03d}.parquet"
        if not part.exists():
            logs = record_seed(plan, seed, plan.arms)
            runs = sorted((plan.run_id(seed, arm), arm) for arm in logs)
            configs = {run: plan.config(seed, arm) for run, arm in runs}
            tables = ((run, run_table(run, keep(logs[arm], plan.channels))) for run, arm in runs)
            write_runs(part, tables, configs, made_with, roles)
        print(f"{path.stem}: {done} of {len(jobs)}", file=sys.stderr, flush=True)
    assemble(sorted(parts.glob("*.parquet")), path)
    shutil.rmtree(parts)


def keep(log: Log, channels: tuple[str, ...]) -> Log:
    """The log with the named channels only; all of it where none is named."""
    if not channels:
        return log
    return Log({c: log.steps[c] for c in channels}, {c: log.values[c] for c in channels})


def check_run(run: str, folder: Path, files: dict[str, tuple[P, ...]], record_seed: RecordSeed[P]) -> bool:
    """Record one run anew and say whether it equals the file bit for bit."""
    for name, plans in files.items():
        for plan in plans:
            for seed in plan.seeds:
                for arm in plan.arms:
                    if plan.run_id(seed, arm) == run:
                        log = record_seed(plan, seed, {arm: plan.arms[arm]})[arm]
                        again = run_table(run, keep(log, plan.channels))
                        table = next(t for found, t in read_tables(folder / f"{name}.parquet") if found == run)
                        return series_equal(series(again), series(table))
    raise SystemExit(f"no plan records {run!r}; run ids stand in labels.parquet")
