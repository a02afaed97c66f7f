"""``trajscope study``: a question to many labelled runs, answered with tables, figures and a paragraph."""

from __future__ import annotations

from pathlib import Path

import click

from trajscope.cli import plain
from trajscope.cli.common import collect, emit_json, say
from trajscope.errors import NotEnoughData
from trajscope.inference.studies.base import STUDIES

#: So many labelled runs that were not found are named; the others are counted.
NAMED = 20


@click.command()
@click.argument("name", type=click.Choice(list(STUDIES)), metavar=f"[{'|'.join(STUDIES)}]")
@click.argument("root", nargs=-1, required=True, metavar="ROOT...")
@click.option("--labels", "labels_file", required=True, type=click.Path(), help="Labels of the runs (CSV or Parquet).")
@click.option("-o", "--output", required=True, type=click.Path(), help="Folder for tables, figures and the claim.")
@click.option("--alpha", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.05, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything random.")
@click.option("--json", "as_json", is_flag=True, help="Print tables and claim as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Only results and errors.")
def command(
    name: str,
    root: tuple[str, ...],
    labels_file: str,
    output: str,
    alpha: float,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> int:
    """Ask one question of the labelled runs under ROOT... and write the answer to a folder.

    A label row whose run is not found is said and left out; runs without a label row are not used.
    """
    from trajscope.history.labels import match_runs, read_labels
    from trajscope.history.run import Run
    from trajscope.inference.studies import find_study
    from trajscope.report.study import write_study

    labels = read_labels(labels_file)
    found = collect(root)
    by_id = {run.id: run for run in found.runs}
    names = [str(run) for run in labels["run"]]
    matched, problems = match_runs(names, by_id)
    for line in problems[:NAMED]:
        say(f"error: {line}")
    if len(problems) > NAMED:
        say(f"error: {len(problems) - NAMED} more runs of the labels were not found")
    if not matched:
        raise NotEnoughData(f"{labels_file}: none of its {len(names)} runs is among the {len(by_id)} found")
    for problem in found.problems:
        say(f"{problem.severity}: {problem}")
    say(f"{len(matched)} of {len(names)} labelled runs found", quiet=quiet)

    def runs(run: str, /) -> Run:
        return by_id[matched[run]]

    chosen = labels[labels["run"].isin(list(matched))].reset_index(drop=True)
    result = find_study(name)(runs, chosen, alpha=alpha, rng=seed)
    written = write_study(result, Path(output))
    if as_json:
        emit_json(result)
    else:
        click.echo(plain(result.to_frame().to_string(max_rows=60)))
        click.echo(plain(result.claim))
    say(f"written: {len(written)} files to {output}", quiet=quiet)
    return 4 if problems or result.skipped else 0
