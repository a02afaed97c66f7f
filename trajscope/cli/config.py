"""``trajscope config``: the settings in force."""

from __future__ import annotations

import click

from trajscope.cli.common import emit_json
from trajscope.config import load_settings


@click.command()
@click.option("--config", "config_file", type=click.Path(dir_okay=False), help="Settings file (TOML).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(config_file: str | None, as_json: bool) -> None:
    """Show every setting, its value and where that comes from."""
    settings, origins = load_settings(config=config_file)
    if as_json:
        emit_json({"settings": settings.to_dict(), "origins": origins, "hash": settings.hash})
        return
    for name, value in settings.to_dict().items():
        click.echo(f"{name:<12} = {value!r:<12} ({origins[name]})")
    click.echo(f"hash         = {settings.hash}")
