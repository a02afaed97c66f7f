"""``trajscope calibrate``: thresholds of the monitors from a user's own healthy runs."""

from __future__ import annotations

from pathlib import Path

import click

from trajscope.cli import plain
from trajscope.cli.common import collect, emit_json, loaded, outputs, progress, reading_options, say


@click.command()
@reading_options
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="Thresholds file (TOML).")
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="False alarms a healthy run, of all monitors together.",
)
@click.option("--monitor", "monitors", multiple=True, metavar="NAME", help="Only these monitors.")
@click.option("--persistence", type=click.IntRange(1), default=3, show_default=True, help="Rows that confirm an alarm.")
@click.option("--warmup", type=click.FloatRange(0), help="Steps without alarms; default 50 rows.")
@click.option("--performance", metavar="NAME[:max|min]", help="Channel that measures performance.")
@click.option("--json", "as_json", is_flag=True, help="Print the thresholds as JSON.")
def command(
    paths: tuple[str, ...],
    format_: str | None,
    channels: tuple[str, ...],
    resume: str,
    step: str,
    strict: bool,
    quiet: bool,
    output: str,
    alpha: float,
    monitors: tuple[str, ...],
    persistence: int,
    warmup: float | None,
    performance: str | None,
    as_json: bool,
) -> int:
    """Make thresholds from the runs under PATH..., which you judged healthy, for `trajscope audit --thresholds`.

    The runs to be watched later should be of the same kind and at most as long.
    """
    from trajscope.errors import NotEnoughData
    from trajscope.inference.calibrate import calibrate
    from trajscope.inference.monitors import monitor_scores

    target = outputs(Path(output))
    found = collect(paths, format_=format_, channels=channels, resume=resume, step=step, strict=strict)
    scores, failed = {}, 0
    with progress(found.runs, "scoring", quiet=quiet) as items:
        for run in items:
            read, reason = loaded(run)
            if read is None:
                failed += 1
                say(f"not read: {run.id}: {reason}")
                continue
            parts = read.split()
            if len(parts) > 1:
                say(f"not used: {run.id}: its step counter restarts, so it is {len(parts)} runs")
                continue
            scores[run.id] = monitor_scores(read, monitors or None, performance=performance)
    if not scores:
        raise NotEnoughData("none of the runs can be used; nothing was written")
    made = calibrate(scores, alpha=alpha, monitors=monitors or None, persistence=persistence, warmup=warmup)
    made.write(target)
    for name, reason in made.skipped.items():
        say(f"not used: {name}: {reason}", quiet=quiet)
    if as_json:
        emit_json(made)
    else:
        click.echo(plain(made.to_frame().to_string(float_format=lambda v: f"{v:.4g}")))
        click.echo(plain(made.summary()))
    for problem in found.problems:
        say(f"{problem.severity}: {problem}")
    say(f"written: {target}", quiet=quiet)
    return 4 if failed or any(p.severity == "error" for p in found.problems) else 0
