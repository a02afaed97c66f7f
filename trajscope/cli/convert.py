"""``trajscope convert``: any log as one tidy Parquet file."""

from __future__ import annotations

from pathlib import Path

import click

from trajscope.cli.common import collect, loaded, outputs, progress, reading_options, say
from trajscope.errors import InputError, ReadError


@click.command()
@reading_options
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="Parquet file to write.")
def command(
    paths: tuple[str, ...],
    format_: str | None,
    channels: tuple[str, ...],
    resume: str,
    step: str,
    strict: bool,
    quiet: bool,
    output: str,
) -> int:
    """Write every run under PATH... to one Parquet file: one row a point, one row group a run."""
    from trajscope.history import Run, write_runs

    target = Path(output)
    if target.suffix != ".parquet":
        raise InputError(f"-o {output}: expected a file name that ends in .parquet")
    outputs(target)
    found = collect(paths, format_=format_, channels=channels, resume=resume, step=step, strict=strict)
    good: list[Run] = []
    failed = 0
    with progress(found.runs, "reading", quiet=quiet) as items:
        for run in items:
            read, reason = loaded(run)
            if read is None:
                failed += 1
                say(f"not read: {run.id}: {reason}")
            else:
                good.append(read)
    for problem in found.problems:
        say(f"{problem.severity}: {problem}")
    if not good:
        raise ReadError(f"none of the {failed} runs could be read; nothing was written")
    names = [r.id for r in good]
    if len(set(names)) < len(names):
        good = [r.replace(id=f"{r.path}:{r.id}") if names.count(r.id) > 1 else r for r in good]
    write_runs(good, target)
    say(f"{len(good)} runs, {sum(r.n_points for r in good)} points -> {target}", quiet=quiet)
    lost = failed or any(p.severity == "error" for p in found.problems)
    return 4 if lost else 0
