"""Options and helpers that several verbs share."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from trajscope.cli import plain
from trajscope.config import Settings, load_settings
from trajscope.errors import InputError, NoLogsFound, ReadError, TrajscopeError, nearest
from trajscope.history import ROLES, Problem, Run
from trajscope.result import jsonable

__all__ = [
    "Collected",
    "analysis_options",
    "collect",
    "emit_json",
    "progress",
    "reading_options",
    "say",
    "settings_from",
]

F = TypeVar("F", bound=Callable[..., Any])


def reading_options(function: F) -> F:
    """Paths and the options that decide how logs are read."""
    for decorate in reversed(
        [
            click.argument("paths", nargs=-1, required=True, metavar="PATH..."),
            click.option("--format", "format_", metavar="NAME", help="Use this reader only (see `trajscope readers`)."),
            click.option(
                "--channel", "channels", multiple=True, metavar="PATTERN", help="Read matching channels only."
            ),
            click.option(
                "--resume",
                default="auto",
                show_default=True,
                type=click.Choice(["auto", "supersede", "segments", "keep-all", "offset"]),
                help="What to do where a resumed run overlaps itself.",
            ),
            click.option("--step", default="", metavar="NAME", help="Column or channel that is the step."),
            click.option("--strict", is_flag=True, help="Make any loss while reading an error."),
            click.option("-q", "--quiet", is_flag=True, help="Only results and errors."),
        ]
    ):
        function = decorate(function)
    return function


def analysis_options(function: F) -> F:
    """Settings that an analysis takes."""
    for decorate in reversed(
        [
            click.option("--performance", metavar="NAME[:max|min]", help="Channel that measures performance."),
            click.option("--role", "roles", multiple=True, metavar="NAME=ROLE", help="Give a channel a role."),
            click.option("--alpha", type=float, help="Family-wise level of the tests over one run."),
            click.option("--config", "config_file", type=click.Path(dir_okay=False), help="Settings file (TOML)."),
            click.option("--seed", type=int, help="Seed of everything random."),
        ]
    ):
        function = decorate(function)
    return function


def settings_from(
    performance: str | None,
    roles: Sequence[str],
    alpha: float | None,
    config_file: str | None,
    seed: int | None,
    *,
    profile: str | None = None,
    default_profile: str = "full",
) -> Settings:
    """Settings in force for a call; ``default_profile`` holds where none is set anywhere."""
    pairs = {}
    for pair in roles:
        name, separator, role = pair.rpartition("=")
        if not separator or not name:
            raise InputError(f"--role {pair!r}: expected NAME=ROLE, for example 'my/loss=loss'")
        pairs[name] = role
    flags = {"performance": performance, "roles": pairs, "alpha": alpha, "seed": seed, "profile": profile}
    settings, origins = load_settings(flags, config_file)
    if origins["profile"] == "default":
        settings = replace(settings, profile=default_profile)
    for name, role in settings.roles.items():
        if role not in ROLES:
            raise InputError(f"role {role!r} of channel {name!r} is unknown. {nearest(role, ROLES)}")
    return settings


class Collected:
    """Runs found under several paths, and everything that could not be read."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.problems: list[Problem] = []
        self.ignored: list[str] = []


def collect(
    paths: Sequence[str],
    *,
    format_: str | None = None,
    channels: Sequence[str] = (),
    resume: str = "auto",
    step: str = "",
    strict: bool = False,
) -> Collected:
    """Find the runs under the paths; ``-`` reads paths from standard input, one a line.

    Raises
    ------
    NoLogsFound
        If the only path does not exist, or no run is found under any of them. Of several paths the unreadable ones
        become problems of severity "error".
    """
    from trajscope.readers import scan_runs

    listed = [line for p in paths for line in ([p] if p != "-" else _standard_input()) if line.strip()]
    found = Collected()
    for path in listed:
        try:
            scan = scan_runs(path, format=format_, channels=tuple(channels), resume=resume, step=step, strict=strict)
            runs = list(scan)
        except ReadError as problem:
            if len(listed) == 1:
                raise
            found.problems.append(Problem("unreadable", "error", str(problem)))
            continue
        found.runs.extend(runs)
        found.problems.extend(scan.problems)
        found.ignored.extend(scan.ignored)
        if not runs and len(listed) > 1 and not any(p.severity == "error" for p in scan.problems):
            # What the user named and cannot be read is an error, not a file among others.
            found.problems.append(Problem("no-logs", "error", f"No logs found under {path}"))
    if not found.runs:
        where = ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")
        reason = f": {found.problems[0]}" if found.problems else ""
        others = f" ({len(found.ignored)} files passed over)" if found.ignored else ""
        raise NoLogsFound(f"no logs found under {where or 'an empty list of paths'}{others}{reason}")
    return found


def _standard_input() -> list[str]:
    """Paths from standard input, one a line, byte for byte as the file system has them."""
    if sys.stdin is None:
        raise InputError("'-' reads paths from standard input, which is closed")
    stream = getattr(sys.stdin, "buffer", None)
    text = sys.stdin.read() if stream is None else os.fsdecode(stream.read())
    return text.splitlines()


def say(message: str, *, quiet: bool = False) -> None:
    """A message for the person, on standard error."""
    if not quiet:
        click.echo(plain(message), err=True)


def emit_json(value: Any) -> None:
    """A result as JSON on standard output."""
    click.echo(json.dumps(jsonable(value), indent=2, ensure_ascii=True))


@contextmanager
def progress(items: Sequence[Any], label: str, *, quiet: bool = False) -> Iterator[Iterable[Any]]:
    """Iterate with a progress bar on standard error; plain lines at most every 10 % where it is no terminal."""
    if quiet or len(items) < 2:
        yield items
        return
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            yield bar.track(items, description=label)
        return

    def lines() -> Iterator[Any]:
        shown = 0
        for number, item in enumerate(items, 1):
            yield item
            if number * 10 // len(items) > shown:
                shown = number * 10 // len(items)
                click.echo(f"{label}: {number} of {len(items)}", err=True)

    yield lines()


def slug(name: str, taken: set[str]) -> str:
    """A file name made from a run's identity: no separators, no surprises, unlike every name in ``taken``.

    Parameters
    ----------
    name : str
    taken : set of str
        Names used so far; the new one is added. Compared without case, as some file systems do.

    Examples
    --------
    >>> used = set()
    >>> slug("a/b run#1", used), slug("a_b run#1", used)[:10]
    ('a_b_run_1', 'a_b_run_1_')
    """
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name).strip("._") or "run"
    short = safe[:68]
    made = (
        safe if len(safe) <= 80 else f"{short}_{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:10]}"
    )
    number = 1
    while made.lower() in taken:
        number += 1
        made = f"{short}_{number}"
    taken.add(made.lower())
    return made


def check_roles(runs: Sequence[Run], roles: Mapping[str, str]) -> None:
    """Every channel that was given a role must be in one of the runs."""
    present = {name for run in runs for name in run.channels}
    for name in roles:
        if name not in present:
            raise InputError(f"no run has a channel {name!r} to give a role. {nearest(name, present)}")


def loaded(run: Run) -> tuple[Run | None, str]:
    """The run with its content read, or why it cannot be."""
    try:
        _ = run.data
    except TrajscopeError as problem:
        return None, str(problem)
    return run, ""


def outputs(path: Path) -> Path:
    """Create the parent directory of an output file, which must be writable, and return the file.

    Called before the work, so that nobody waits for an answer that cannot be kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return path
