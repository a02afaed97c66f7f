"""``trajscope inspect``: what is there, and what could not be read."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from trajscope.cli import plain
from trajscope.cli.common import collect, emit_json, loaded, progress, reading_options, say
from trajscope.errors import ReadError
from trajscope.history import Channel, Problem, Run


@click.command()
@reading_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-v", "--verbose", is_flag=True, help="List the ignored files and every channel.")
def command(
    paths: tuple[str, ...],
    format_: str | None,
    channels: tuple[str, ...],
    resume: str,
    step: str,
    strict: bool,
    quiet: bool,
    as_json: bool,
    verbose: bool,
) -> int:
    """Show formats, runs, channels with roles, steps, segments, and every problem that reading met."""
    found = collect(paths, format_=format_, channels=channels, resume=resume, step=step, strict=strict)
    rows: list[dict[str, Any]] = []
    failed = 0
    with progress(found.runs, "reading", quiet=quiet) as items:
        for run in items:
            read, reason = loaded(run)
            if read is None:
                failed += 1
                rows.append({"run": run.id, "format": run.format, "error": reason})
                say(f"not read: {run.id}: {reason}")
            else:
                rows.append(describe(read))
                if not as_json:
                    _print(rows[-1], verbose)
    if as_json:
        emit_json({"runs": rows, "problems": found.problems, "ignored": found.ignored})
    for problem in found.problems:
        say(f"{problem.severity}: {problem}")
    if found.ignored:
        if verbose:
            for name in found.ignored:
                say(f"ignored: {name}")
        else:
            say(f"{len(found.ignored)} other files are no logs (-v lists them)", quiet=quiet)
    if failed == len(found.runs):
        raise ReadError(f"none of the {failed} runs could be read")
    say(f"{len(found.runs) - failed} runs read, {failed} failed", quiet=quiet)
    return 4 if failed or any(p.severity == "error" for p in found.problems) else 0


def describe(run: Run) -> dict[str, Any]:
    """One run as plain values, also what ``--json`` prints."""
    return {
        "run": run.id,
        "format": run.format,
        "path": run.path,
        "channels": [_channel(c) for c in run.channels.values()],
        "segments": list(run.segments),
        "superseded_points": sum(len(c) for c in run.superseded.values()),
        "config": dict(run.config),
        "problems": list(run.problems),
    }


def _channel(c: Channel) -> dict[str, Any]:
    return {
        "name": c.name,
        "role": c.role,
        "role_confidence": c.role_confidence,
        "points": len(c),
        "first_step": c.steps[0] if len(c) else None,
        "last_step": c.steps[-1] if len(c) else None,
        "stride": c.stride,
        "dtype": str(c.values.dtype),
        "sampled": c.sampled,
        "duplicates": c.n_duplicates,
        **c.counts,
    }


def _print(row: dict[str, Any], verbose: bool) -> None:
    listed = row["channels"]
    points = sum(c["points"] for c in listed)
    click.echo(plain(f"{row['run']}  [{row['format']}]  {len(listed)} channels, {points} points"))
    shown = listed if verbose or len(listed) <= 12 else listed[:12]
    width = min(48, max((len(plain(c["name"])) for c in shown), default=0))
    for c in shown:
        name = plain(c["name"])
        name = name if len(name) <= width else name[: width - 3] + "..."
        odd = [f"{c[k]} {label}" for k, label in _ODD if c[k]] + ["sampled"] * c["sampled"]
        role = f"{c['role']} ({c['role_confidence']:.2f})" if c["role"] else "-"
        span = f"steps {_number(c['first_step'])} to {_number(c['last_step'])}" if c["points"] else "no points"
        click.echo(f"  {name:<{width}}  {role:<26} {c['points']:>8}  {span}" + (f"  [{', '.join(odd)}]" if odd else ""))
    if len(shown) < len(listed):
        click.echo(f"  ... and {len(listed) - len(shown)} more channels (-v lists them)")
    if len(row["segments"]) > 1:
        parts = [f"{s.kind} {_number(s.first_step)} to {_number(s.last_step)}" for s in row["segments"]]
        click.echo(f"  segments: {'; '.join(parts)}")
    for problem in row["problems"]:
        _problem(problem)


_ODD = (
    ("nan", "NaN"),
    ("posinf", "+Inf"),
    ("neginf", "-Inf"),
    ("missing", "empty"),
    ("duplicates", "repeated"),
)


def _problem(problem: Problem) -> None:
    click.echo(plain(f"  {problem.severity}: {problem}"))


def _number(value: Any) -> str:
    """A step as it stands in the log: integers in full, since a float would round them beyond 2^53."""
    return str(int(value)) if isinstance(value, int | np.integer) else f"{float(value):.15g}"
