"""``trajscope demo``: the main job on runs that ship with the package."""

from __future__ import annotations

from pathlib import Path

import click

from trajscope.cli.audit import audit_all
from trajscope.cli.common import collect, settings_from
from trajscope.errors import InputError


@click.command()
@click.option("-o", "--output", default="trajscope-demo", show_default=True, type=click.Path(), help="Folder to write.")
@click.option("--run", "run", metavar="NAME", help="Audit one of the recorded runs only.")
@click.option("-q", "--quiet", is_flag=True, help="Only results and errors.")
def command(output: str, run: str | None, quiet: bool) -> int:
    """Audit recorded runs of a small network: one left alone and seven perturbed, as TensorBoard, CSV and W&B logs."""
    import trajscope

    root = Path(next(iter(trajscope.__path__))) / "demo"
    if run is not None and not (root / run).is_dir():
        from trajscope.errors import nearest

        raise InputError(f"no recorded run {run!r}. {nearest(run, [p.name for p in root.iterdir() if p.is_dir()])}")
    settings = settings_from(None, (), None, None, None)
    found = collect([str(root / run) if run else str(root)])
    return audit_all(found, settings, output, quiet=quiet)
