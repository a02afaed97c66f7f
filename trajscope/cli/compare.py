"""``trajscope compare``: groups of runs side by side."""

from __future__ import annotations

from pathlib import Path

import click

from trajscope.cli import plain
from trajscope.cli.common import collect, emit_json, loaded, outputs, say
from trajscope.errors import InputError, NotEnoughData
from trajscope.history.run import Run

_SUFFIXES = (".html", ".md", ".json")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="[NAME=]PATH...")
@click.option("--by", metavar="KEY", help="Group all runs by this configuration key instead of by path.")
@click.option("--performance", metavar="NAME[:max|min]", help="Channel that measures performance.")
@click.option("--channel", "channels", multiple=True, metavar="NAME", help="Channel of a band; several may be given.")
@click.option("--strata", metavar="KEY", help="Configuration key that names the task; runs of one task are compared.")
@click.option("-o", "--output", type=click.Path(), help="Report: .html, .md or .json.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything random.")
@click.option("-q", "--quiet", is_flag=True, help="Only results and errors.")
def command(
    paths: tuple[str, ...],
    by: str | None,
    performance: str | None,
    channels: tuple[str, ...],
    strata: str | None,
    output: str | None,
    as_json: bool,
    seed: int,
    quiet: bool,
) -> int:
    """Compare groups of runs: each PATH is a group (all runs under it), or each value of --by KEY.

    Bands over the runs of a group, the probability that a run of one is better than one of another, and the
    configuration keys in which failed runs differ from healthy ones.
    """
    from trajscope.inference.compare import compare

    target = Path(output) if output else None
    if target is not None and (target.suffix.lower() not in _SUFFIXES or target.is_dir()):
        raise InputError(f"-o {output}: expected a file that ends in .html, .md or .json")
    if target is not None:
        outputs(target)
    groups: dict[str, list[Run]] = {}
    failed = False
    for name, path in _named(paths):
        found_runs, lost = _read(path, quiet)
        failed |= lost
        for run in found_runs:
            groups.setdefault(_value(run, by) if by is not None else name, []).append(run)
    if not groups:
        raise NotEnoughData("no run could be read; there is nothing to compare")
    result = compare(groups, performance=performance, channels=channels or None, strata=strata, rng=seed)
    if target is not None or not as_json:
        from trajscope.report import comparison
    if as_json:
        emit_json(result)
    else:
        for line in comparison.terminal(result):
            click.echo(plain(line))
    if target is not None:
        import json

        from trajscope.result import jsonable

        make = {".html": comparison.html, ".md": comparison.markdown}.get(target.suffix.lower())
        text = json.dumps(jsonable(result), indent=1) + "\n" if make is None else make(result)
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
        say(f"report: {target}", quiet=quiet)
    return 4 if failed or result.skipped else 0


def _named(paths: tuple[str, ...]) -> list[tuple[str, str]]:
    """Name and path of each group: what stands before ``=``, else the last part of the path where that is unique."""
    pairs = [("", p) if Path(p).exists() or "=" not in p else tuple(p.split("=", 1)) for p in paths]
    last = [Path(path).name for _, path in pairs]
    return [
        (name or (end if last.count(end) == 1 and end else path), path)
        for (name, path), end in zip(pairs, last, strict=True)
    ]


def _read(path: str, quiet: bool) -> tuple[list[Run], bool]:
    """The runs of a group, and whether something of it could not be read."""
    found = collect([path])
    for problem in found.problems:
        say(f"{problem.severity}: {problem}", quiet=quiet and problem.severity != "error")
    runs, lost = [], any(p.severity == "error" for p in found.problems)
    for run in found.runs:
        read, reason = loaded(run)
        if read is None:
            lost = True
            say(f"not read: {run.id}: {reason}")
        else:
            runs.append(read)
    return runs, lost


def _value(run: Run, key: str) -> str:
    """A run's value of a configuration key, as the name of its group."""
    from trajscope.errors import nearest
    from trajscope.inference._config_keys import flat_config

    config = flat_config(run.config)
    if key not in config:
        raise InputError(f"--by {key}: run {run.id!r} has no such configuration key. {nearest(key, config)}")
    return str(config[key])
