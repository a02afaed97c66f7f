"""``trajscope score``: many runs into one table, a row each."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from trajscope.cli import plain
from trajscope.cli.common import analysis_options, emit_json, reading_options, say, settings_from

#: Seconds between two lines of progress where standard error is no terminal.
EVERY = 10.0


@click.command()
@reading_options
@analysis_options
@click.option(
    "-o", "--output", required=True, type=click.Path(), help="Folder of the table; continued where it exists."
)
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--scheduler", metavar="ADDR", help="Score on the Dask cluster with this scheduler (tcp://...).")
@click.option("--profile", type=click.Choice(["fast", "full"]), help="Default fast: no meta-state, no surrogates.")
@click.option("--limit", type=click.IntRange(1), help="Score at most so many runs in this call.")
@click.option(
    "--time-limit", type=click.FloatRange(0, min_open=True), default=600.0, show_default=True, help="Seconds a run."
)
@click.option("--memory-limit", type=click.FloatRange(0, min_open=True), help="MiB a run may ask for (Linux).")
@click.option("--shard-size", type=click.IntRange(1), default=64, show_default=True, help="Runs a shard.")
@click.option("--dry-run", is_flag=True, help="List and count only.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def command(
    paths: tuple[str, ...],
    format_: str | None,
    channels: tuple[str, ...],
    resume: str,
    step: str,
    strict: bool,
    quiet: bool,
    performance: str | None,
    roles: tuple[str, ...],
    alpha: float | None,
    config_file: str | None,
    seed: int | None,
    output: str,
    workers: int,
    scheduler: str | None,
    profile: str | None,
    limit: int | None,
    time_limit: float,
    memory_limit: float | None,
    shard_size: int,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Score every run under PATH... into Parquet tables: OUTPUT/runs, OUTPUT/events, OUTPUT/config.

    A run that has a row already is left alone, so the same command continues a call that was stopped, and adds what is
    new the next night. PATH may be an address such as s3://bucket/logs.
    """
    from trajscope.batch.score import score_runs

    if scheduler is not None and workers != 1:
        raise click.UsageError("--workers starts processes here, --scheduler uses those of a cluster: give one of them")
    settings = settings_from(performance, roles, alpha, config_file, seed, profile=profile, default_profile="fast")
    roots = [line for p in paths for line in ([p] if p != "-" else sys.stdin.read().splitlines()) if line.strip()]
    show, finish = _shower(quiet or dry_run)
    try:
        table = score_runs(
            roots, out=Path(output), workers=workers, executor=scheduler, settings=settings, limit=limit,
            time_limit=time_limit, memory_limit_mb=memory_limit, shard_size=shard_size, dry_run=dry_run, progress=show,
            format=format_, channels=channels, resume=resume, step=step, strict=strict,
        )  # fmt: skip
    finally:
        finish()
    for problem in table.problems:
        say(problem, quiet=quiet)
    for key, reason in list(table.unfinished.items())[:5]:
        say(f"not scored: {key}: {reason}")
    if as_json:
        emit_json(table)
    else:
        click.echo(plain(table.summary()))
    if table.n_failed and not dry_run:
        say(f"failures: {Path(output) / 'failures.jsonl'}", quiet=quiet)
    return 4 if (table.n_failed and not dry_run) or table.unfinished else 0


def _shower(quiet: bool) -> tuple[Callable[[Any], None] | None, Callable[[], None]]:
    """What shows the progress, and what ends it: a bar on a terminal, a line now and then elsewhere."""
    if quiet:
        return None, lambda: None
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        bar = Progress(
            TextColumn("scoring"),
            BarColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            transient=True,
        )
        task = bar.add_task("", total=None)
        bar.start()

        def update(state: Any) -> None:
            bar.update(task, completed=state.items, total=state.total, description=_line(state))

        return update, bar.stop
    last = time.monotonic()

    def line(state: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY or state.items == state.total:
            last = time.monotonic()
            click.echo(_line(state), err=True)

    return line, lambda: None


def _line(state: Any) -> str:
    """For example ``1,200 of 10,000 (104 runs/s, 85 s left; 2 timeout, 1 unreadable)``."""
    left = "" if math.isnan(state.eta) else f", {_duration(state.eta)} left"
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(state.kinds.items()))
    return f"{state.items:,} of {state.total:,} ({state.rate:.3g} runs/s{left}{'; ' + kinds if kinds else ''})"


def _duration(seconds: float) -> str:
    """
    >>> _duration(45), _duration(600), _duration(7200)
    ('45 s', '10 min', '2.0 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
