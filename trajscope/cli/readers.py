"""``trajscope readers``: the formats that can be read."""

from __future__ import annotations

import click

from trajscope.cli.common import emit_json


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """List the formats that can be read, in the order in which they are tried."""
    from trajscope.readers import readers

    rows = [{"name": r.name, "title": r.title, "unit": "directory" if r.directory else "file"} for r in readers()]
    if as_json:
        emit_json(rows)
        return
    width = max(len(r["name"]) for r in rows)
    for row in rows:
        click.echo(f"{row['name']:<{width}}  {row['title']}")
