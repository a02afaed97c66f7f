"""``trajscope audit``: judge runs and write their pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trajscope.cli import plain
from trajscope.cli.common import (
    Collected,
    analysis_options,
    check_roles,
    collect,
    emit_json,
    loaded,
    outputs,
    progress,
    reading_options,
    say,
    settings_from,
    slug,
)
from trajscope.config import Settings
from trajscope.errors import GateFailed, InputError, ReadError

if TYPE_CHECKING:
    from trajscope.history.known import KnownEvent
    from trajscope.inference.calibrate import Thresholds
    from trajscope.inference.reference import ReferenceBand

#: ``--fail-on`` takes one of these; a run at least as bad fails the gate.
GATES = ("look closer", "not healthy", "cannot tell")


@click.command()
@reading_options
@analysis_options
@click.option("-o", "--output", type=click.Path(), help="Report: .html, .md or .json, or a folder for several runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the summaries as JSON.")
@click.option("--thresholds", "thresholds_file", type=click.Path(), help="Thresholds from `trajscope calibrate`.")
@click.option("--replay", is_flag=True, help="Say what a monitor would have said, and when (needs --thresholds).")
@click.option("--events", "events_file", type=click.Path(), help="Known events: CSV with run (or *), step, kind, note.")
@click.option("--reference", multiple=True, type=click.Path(), help="Healthy runs of the same settings, four or more.")
@click.option("--fail-on", type=click.Choice(GATES), help="Exit with 10 where a run is judged so (or worse).")
def command(
    paths: tuple[str, ...],
    format_: str | None,
    channels: tuple[str, ...],
    resume: str,
    step: str,
    strict: bool,
    quiet: bool,
    performance: str | None,
    roles: tuple[str, ...],
    alpha: float | None,
    config_file: str | None,
    seed: int | None,
    output: str | None,
    as_json: bool,
    thresholds_file: str | None,
    replay: bool,
    events_file: str | None,
    reference: tuple[str, ...],
    fail_on: str | None,
) -> int:
    """Judge every run under PATH...: was it healthy, what happened, when, and how sure is that.

    One run gives one page. Several runs give a page each and an index page.
    """
    if replay and thresholds_file is None:
        raise click.UsageError("--replay needs --thresholds FILE: make it with `trajscope calibrate` on healthy runs")
    from trajscope.history.known import read_events

    settings = settings_from(performance, roles, alpha, config_file, seed)
    known = () if events_file is None else read_events(events_file)
    thresholds = None
    if thresholds_file is not None:
        from trajscope.inference.calibrate import Thresholds

        thresholds = Thresholds.read(thresholds_file)
    found = collect(paths, format_=format_, channels=channels, resume=resume, step=step, strict=strict)
    if thresholds is not None:
        say(thresholds.summary(), quiet=quiet)
        if replay:
            return _replay_all(found, thresholds, as_json=as_json)
    band = _band(reference, settings, format_, channels, resume, step, strict) if reference else None
    if band is not None:
        how = "" if band.exact else "; a level extrapolated from so few"
        say(f"reference: {len(band.names)} healthy runs, {', '.join(band.modes)}{how}", quiet=quiet)
    return audit_all(
        found,
        settings,
        output,
        quiet=quiet,
        as_json=as_json,
        fail_on=fail_on,
        thresholds=thresholds,
        known=known,
        reference=band,
    )


def _band(
    paths: tuple[str, ...],
    settings: Settings,
    format_: str | None,
    channels: tuple[str, ...],
    resume: str,
    step: str,
    strict: bool,
) -> ReferenceBand:
    """Band of the runs under the paths of ``--reference``; all of them have to be readable."""
    from trajscope.inference.reference import ReferenceBand

    found = collect(paths, format_=format_, channels=channels, resume=resume, step=step, strict=strict)
    runs = []
    for run in found.runs:
        read, reason = loaded(run)
        if read is None:
            raise ReadError(f"--reference: {run.id}: {reason}")
        runs.append(read.with_roles({k: v for k, v in settings.roles.items() if k in read.channels}))
    return ReferenceBand.of(runs, performance=settings.performance or None, alpha=settings.alpha)


def _replay_all(found: Collected, thresholds: Thresholds, *, as_json: bool) -> int:
    """Walk each run as a monitor would have met it; a line an alarm, nothing for a run without one."""
    from trajscope.audit.events import number
    from trajscope.inference.replay import replay

    rows: list[dict[str, Any]] = []
    failed = 0
    for run in found.runs:
        read, reason = loaded(run)
        if read is None:
            failed += 1
            say(f"not read: {run.id}: {reason}")
            continue
        for part in read.split():
            for alarm in replay(part, thresholds):
                rows.append({"run": part.id, **vars(alarm)})
                if not as_json:
                    click.echo(plain(f"{part.id}: step {number(alarm.step)}: {alarm.sentence()}"))
    if as_json:
        emit_json(rows)
    for problem in found.problems:
        say(f"{problem.severity}: {problem}")
    silent = len(found.runs) - failed - len({r["run"] for r in rows})
    say(f"{len(found.runs) - failed} runs walked through, {max(silent, 0)} of them without an alarm")
    return 4 if failed or any(p.severity == "error" for p in found.problems) else 0


def audit_all(
    found: Collected,
    settings: Settings,
    output: str | None,
    *,
    quiet: bool = False,
    as_json: bool = False,
    fail_on: str | None = None,
    thresholds: Thresholds | None = None,
    known: Sequence[KnownEvent] = (),
    reference: ReferenceBand | None = None,
) -> int:
    """Audit the runs one after the other, write what was asked for, and say the rest."""
    from trajscope.audit.run import audit
    from trajscope.history.known import events_of
    from trajscope.report import write
    from trajscope.report.html import curve_of
    from trajscope.report.terminal import run_page

    several = len(found.runs) > 1
    target = _target(output, several)
    rows: list[dict[str, Any]] = []
    summaries: list[dict[str, Any]] = []
    failed: list[tuple[str, str]] = []
    verdicts: list[str] = []
    unknown: list[str] = []
    taken: set[str] = set()
    used: set[KnownEvent] = set()
    with progress(found.runs, "auditing", quiet=quiet) as items:
        for run in items:
            read, reason = loaded(run)
            if read is None:
                failed.append((run.id, reason))
                say(f"not read: {run.id}: {reason}")
                continue
            try:
                own = events_of(run.id, known)
                used.update(own)
                result = audit(
                    read,
                    settings=settings,
                    thresholds=thresholds,
                    known_events=[e.step for e in own],
                    reference=reference,
                )
            except InputError as refusal:
                if not several:
                    raise
                failed.append((run.id, str(refusal)))
                unknown.append(str(refusal))
                say(f"not judged: {run.id}: {refusal}")
                continue
            except Exception as bug:  # one run must not take the others down; alone, it is reported as what it is
                if not several:
                    raise
                failed.append((run.id, f"a bug in trajscope: {type(bug).__name__}: {bug}"))
                say(f"not judged: {run.id}: {failed[-1][1]}")
                continue
            link = ""
            if target is not None and not several:
                write(result, outputs(target))
            elif target is not None and target.suffix == ".html":
                page = target.parent / f"{target.stem}_runs" / f"{slug(run.id, taken)}.html"
                try:
                    write(result, outputs(page), f"../{target.name}")
                    link = page.relative_to(target.parent).as_posix()
                except OSError:
                    raise
                except Exception as bug:
                    failed.append((run.id, f"a bug in trajscope: its page: {type(bug).__name__}: {bug}"))
                    say(f"not written: {run.id}: {failed[-1][1]}")
            verdicts.append(result.verdict)
            if as_json or (target is not None and target.suffix == ".json" and several):
                summaries.append(result.to_dict())
            first = next((e.step for e in result.events if e.severity in ("fail", "watch")), None)
            rows.append(
                {
                    "run": run.id,
                    "verdict": result.verdict,
                    "reason": result.reasons[0],
                    "first_event": first,
                    "link": link,
                    "axis": "" if result.triage.axis is None else result.triage.axis.axis,
                    "curve": curve_of(result),
                }
            )
            if not as_json:
                lines = run_page(result)
                for text, colour in lines[:1] + (lines[1:] if not several else lines[1:2]):
                    click.echo(click.style(plain(text), fg=colour) if colour else plain(text))
    for name in sorted({e.run for e in known} - {e.run for e in used}):
        say(f"warning: the known events of {name!r} belong to none of the runs")
    if settings.roles:
        check_roles([r for r in found.runs if all(r.id != f for f, _ in failed)], settings.roles)
    if unknown and not rows:
        raise InputError(unknown[0])
    if not rows:
        raise ReadError(f"none of the {len(failed)} runs could be read; nothing was written")
    if as_json:
        emit_json(summaries if several else summaries[0])
    if target is not None:
        if several:
            _write_index(target, rows, failed, summaries)
        say(f"report: {target}", quiet=quiet)
    for problem in found.problems:
        say(f"{problem.severity}: {problem}")
    if several:
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(sorted(verdicts)))
        say(f"{len(rows)} runs audited ({counts}), {len(failed)} failed", quiet=quiet)
    if fail_on is not None:
        bad = GATES[GATES.index(fail_on) : 2] or (fail_on,)
        hits = [r["run"] for r in rows if r["verdict"] in bad]
        if hits:
            raise GateFailed(f"--fail-on {fail_on!r}: met by {len(hits)} of {len(rows)} runs ({', '.join(hits[:5])})")
    return 4 if failed or any(p.severity == "error" for p in found.problems) else 0


def _target(output: str | None, several: bool) -> Path | None:
    if output is None:
        return None
    if not output:
        raise InputError("-o: the name of the report is empty")
    path = Path(output)
    path = path.with_suffix(path.suffix.lower()) if path.suffix.lower() in (".html", ".md", ".json") else path
    if path.suffix.lower() in (".html", ".md", ".json"):
        if several and path.suffix.lower() == ".md":
            raise InputError(f"-o {output}: several runs are written as .html (a page each, an index) or .json")
        if path.is_dir():
            raise InputError(f"-o {output}: that is a folder; name a file in it")
        return path
    if path.suffix and not path.is_dir():
        raise InputError(f"-o {output}: expected .html, .md or .json, or a folder")
    return path / ("index.html" if several else "report.html")


def _write_index(
    target: Path, rows: list[dict[str, Any]], failed: list[tuple[str, str]], summaries: list[dict[str, Any]]
) -> None:
    import json

    from trajscope.report.html import cohort_page

    text = json.dumps(summaries, indent=1) if target.suffix == ".json" else cohort_page(rows, failed)
    outputs(target).write_text(text, encoding="utf-8", errors="backslashreplace")
