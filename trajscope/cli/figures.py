"""``trajscope figures``: make the figures of the paper from the recorded runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click

from trajscope.cli import plain
from trajscope.cli.common import emit_json, say
from trajscope.errors import InputError, NoLogsFound, nearest

_SCRIPT = re.compile(r"fig(\d+)_\w+\.py")


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--only", multiple=True, metavar="N", help="Number of a figure; several may be given. Default: all.")
@click.option("-o", "--output", type=click.Path(file_okay=False), default="figures", show_default=True, help="Folder.")
@click.option("--scripts", type=click.Path(file_okay=False), help="Folder of the scripts (paper_figures).")
@click.option("--list", "only_list", is_flag=True, help="List the figures and make none.")
@click.option("--json", "as_json", is_flag=True, help="Print figures and files as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Only results and errors.")
def command(
    names: tuple[str, ...],
    only: tuple[str, ...],
    output: str,
    scripts: str | None,
    only_list: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Make figures of the paper: NAME is a number, fig3 or the name of a script; without one, all of them.

    Each writes PDF, PNG, a caption and the numbers behind it as CSV. Scripts and recorded runs lie in a checkout of
    trajscope; the wheel has neither.
    """
    found = _found(scripts)
    chosen = list(dict.fromkeys(_one(name, found) for name in (*names, *only))) or list(found)
    if only_list:
        for number in chosen:
            click.echo(found[number].stem)
        return 0
    made: dict[str, list[str]] = {}
    failed = False
    for number in chosen:
        say(f"figure {number}: {found[number].name}", quiet=quiet)
        done = subprocess.run(
            [sys.executable, str(found[number]), "-o", str(Path(output).absolute())],
            capture_output=True, text=True, check=False, errors="replace",
        )  # fmt: skip
        if done.returncode:
            failed = True
            lines = done.stderr.strip().splitlines()
            say(plain(f"figure {number} was not made: {lines[-1] if lines else f'exit code {done.returncode}'}"))
            continue
        made[str(number)] = done.stdout.split("\n")[:-1]
        if not as_json:
            for line in made[str(number)]:
                click.echo(plain(line))
    if as_json:
        emit_json(made)
    return 4 if failed else 0


def _found(folder: str | None) -> dict[int, Path]:
    """Number -> script: in the folder that is named, else in the checkout that trajscope is imported from."""
    root = Path(folder) if folder is not None else Path(__file__).parents[2] / "paper_figures"
    scripts = {int(m[1]): p for p in root.glob("fig*.py") if (m := _SCRIPT.fullmatch(p.name))}
    if not scripts:
        raise NoLogsFound(
            f"{root}: no figure scripts there. They belong to a checkout of trajscope, not to the wheel: clone it and "
            "install it with `pip install -e .`, or name the folder with --scripts"
        )
    return dict(sorted(scripts.items()))


def _one(name: str, found: dict[int, Path]) -> int:
    """The number of a figure by number, fig + number or name of its script."""
    for number, script in found.items():
        if name in (str(number), f"fig{number}", script.stem, script.name):
            return number
    raise InputError(f"there is no figure {name!r}. {nearest(name, [p.stem for p in found.values()])}")
