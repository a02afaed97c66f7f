"""The command line: one module a verb, loaded when the verb is used, and no analysis in any of them."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import TextIO

import click

from trajscope.errors import TrajscopeError

__all__ = ["main"]

#: Verbs in the order of the help page: module, one line.
VERBS = {
    "inspect": "Formats, runs, channels with roles, steps, segments and problems.",
    "audit": "Judge runs: one page a run, an index page where there are several.",
    "compare": "Compare groups of runs: bands, who ends better, in what the failed ones differ.",
    "score": "Score many runs into one table, a row each; continued where it was stopped.",
    "calibrate": "Make thresholds for alarms from your own healthy runs.",
    "study": "Ask one question of many labelled runs: table, figures, what may be claimed.",
    "convert": "Turn any log into one tidy Parquet file.",
    "figures": "Make the figures of the paper from the recorded runs.",
    "demo": "Audit recorded runs that ship with the package.",
    "readers": "List the formats that can be read.",
    "config": "Show the settings in force and where each comes from.",
}


class _Verbs(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = import_module(f"trajscope.cli.{cmd_name}").command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            from trajscope.errors import nearest

            ctx.fail(f"no such command {args[0]!r}. {nearest(args[0], VERBS)}")
        return super().resolve_command(ctx, args)


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trajscope", prog_name="trajscope")
def group() -> None:
    """Explain a finished training run from its logs: what happened, when, and how sure that is.

    Exit codes: 0 done (an unhealthy run is still done), 2 usage, 3 input unreadable, 4 done but some runs failed,
    5 not enough data, 10 gate failed (--fail-on), 130 interrupted, 1 a bug in trajscope.
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit with the code that the outcome has."""
    sys.exit(run(args))


def run(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code; no traceback ever reaches the user."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name that the terminal cannot show is shown escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        code = group.main(args, standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except SystemExit as stop:  # click ends like this where nobody reads its output any more
        return _gone(sys.stdout) if stop.code == 1 else int(stop.code or 0)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except click.ClickException as problem:
        problem.show()
        return 2
    except TrajscopeError as problem:
        click.echo(f"trajscope: {plain(str(problem))}", err=True)
        return problem.exit_code
    except BrokenPipeError:
        return _gone(sys.stdout)
    except OSError as problem:  # reading wraps its own; what is left is an output that cannot be written
        where = f"{problem.filename}: " if problem.filename else ""
        click.echo(f"trajscope: {plain(where)}{problem.strerror or problem}", err=True)
        return 2
    except Exception as problem:
        if os.environ.get("TRAJSCOPE_DEBUG"):
            raise
        click.echo(
            f"trajscope: bug: {type(problem).__name__}: {plain(str(problem))}\n"
            "Set TRAJSCOPE_DEBUG=1 and run it again to see where; please report it with that text.",
            err=True,
        )
        return 1


def _gone(stream: TextIO) -> int:
    """The reader of our output has gone away (as `head` does); what is left in the buffer has nowhere to go."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return 0


def plain(text: str) -> str:
    """Text from a log made safe for a terminal: control characters are shown, never obeyed.

    >>> plain("loss\\x1b[31m")
    'loss\\\\x1b[31m'
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
