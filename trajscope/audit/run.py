"""``trajscope.audit``: one finished run, judged."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trajscope.audit.checks import Check, Facts, run_checks
from trajscope.audit.ends import end_events, reset_events, short_events, soften
from trajscope.audit.events import (
    Event,
    alarm_events,
    change_events,
    collapse_events,
    dip_events,
    lr_events,
    nonfinite_events,
    segment_events,
    shock_events,
    spike_events,
)
from trajscope.audit.meta import Meta, meta_state
from trajscope.audit.own import own_events
from trajscope.audit.siblings import reference_events
from trajscope.audit.tell import channel_dict, story, triage_dict, unseen
from trajscope.audit.triage import Triage, triage_of
from trajscope.audit.verdict import VERDICTS, decide
from trajscope.config import Settings
from trajscope.detect._inputs import performance_series
from trajscope.detect.collapse import Collapse, collapse
from trajscope.errors import InputError
from trajscope.history import Channel, Run
from trajscope.history.roles import BIGGER_IS_BETTER
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

    from trajscope.inference.calibrate import Thresholds
    from trajscope.inference.reference import ReferenceBand

__all__ = ["SCHEMA_VERSION", "Audit", "audit"]

SCHEMA_VERSION = 2

#: Roles in which non-finite values matter.
FINITE_ROLES = frozenset(
    {
        "loss", "val_loss", "grad_norm", "accuracy", "val_accuracy", "return", "eval_return", "perplexity",
        "val_perplexity", "val_error", "error", "update_norm", "param_norm", "policy_loss", "value_loss", "success",
    }
)  # fmt: skip


RL_SPIKE = 1.3
"""Times `Settings.spike_sd`, for a loss beside a return."""
RL_MATERIAL = 0.25
"""At least this for `Settings.material`, for a loss beside a return."""


@dataclass(frozen=True, eq=False)
class Audit(Result):
    """What `audit` found.

    Attributes
    ----------
    run : Run
    verdict : {"healthy", "look closer", "not healthy", "cannot tell"}
    reasons : tuple of str
        Sentences behind the verdict, the gravest first.
    strength : str
        Strength of the evidence, in one sentence.
    events : tuple of Event
        In order of steps.
    performance : str
        Channel that was judged, with its direction, for example ``val/accuracy:max``; empty where there is none.
    collapse : Collapse or None
    deficit : float
        How far the last tenth lies below the level before the first event, in standard deviations of the evaluations
        before it; NaN without an event.
    meta : Meta
    settings : Settings
    facts : Facts
        What checks and verdict look at.
    parts : tuple of Audit
        One for each part of a run whose step counter restarted; empty otherwise.
    """

    plot_name = "run_page"

    run: Run
    verdict: str
    reasons: tuple[str, ...]
    strength: str
    events: tuple[Event, ...]
    performance: str
    collapse: Collapse | None
    deficit: float
    meta: Meta
    settings: Settings
    facts: Facts = field(repr=False)
    parts: tuple[Audit, ...] = field(default=())

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """Every rule of the catalogue applied to the run (its worst part), the worst result first."""
        with np.errstate(over="ignore", invalid="ignore"):
            return run_checks(self.facts)

    @cached_property
    def triage(self) -> Triage:
        """What kind of trouble, what moved first, on which axis, near what, and what to look at next."""
        with np.errstate(over="ignore", invalid="ignore"):
            return triage_of(self.facts, self.checks)

    def to_frame(self) -> pd.DataFrame:
        """The events, one a row."""
        import pandas as pd

        columns = ["step", "end", "kind", "channel", "severity", "strength", "sentence"]
        return pd.DataFrame([[getattr(e, c) for c in columns] for e in self.events], columns=columns)

    def summary(self) -> str:
        """Verdict and its first reason."""
        return f"{self.run.id}: {self.verdict}. {self.reasons[0]}"

    def what_happened(self) -> list[str]:
        """The course of the run in at most five dated lines."""
        strides = [c.stride for c in self.run.channels.values() if np.isfinite(c.stride)]
        return story(self.events, 2 * max(strides, default=1.0))

    def unseen(self) -> list[str]:
        """What this audit cannot see, and why."""
        return unseen(self.run)

    def to_dict(self) -> dict[str, Any]:
        """The one summary that all reports render; JSON types only, ``schema_version`` says which."""
        run = self.run
        meta = self.meta
        return {
            "schema_version": SCHEMA_VERSION,
            "run": run.id,
            "format": run.format,
            "path": run.path,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "strength": self.strength,
            "what_happened": self.what_happened(),
            "performance": self.performance,
            "collapse": None if self.collapse is None else self.collapse.to_dict(),
            "deficit_sd": jsonable(self.deficit),
            "events": jsonable(self.events),
            "checks": jsonable(self.checks),
            "triage": triage_dict(self.triage),
            "meta_state": {
                "reason": meta.reason,
                "channels": list(meta.names),
                "n_components": meta.n_components,
                "explained": jsonable(meta.explained),
                "bound": jsonable(meta.bound),
                "baseline": jsonable(meta.baseline),
                "left_band_at": jsonable(meta.left),
                "label": "own baseline",
            },
            "channels": [channel_dict(c) for c in run.channels.values()],
            "segments": jsonable(run.segments),
            "problems": jsonable(run.problems),
            "unseen": self.unseen(),
            "config": jsonable(dict(run.config)),
            "settings": jsonable(self.settings.to_dict()),
            "settings_hash": self.settings.hash,
            "provenance": jsonable(self.provenance),
            "parts": [p.to_dict() for p in self.parts],
        }

    def write(self, path: str | Path) -> Path:
        """Write the report; the ending decides: ``.html``, ``.md`` or ``.json``.

        Raises
        ------
        InputError
            For another ending.
        """
        written: Path = importlib.import_module("trajscope.report").write(self, Path(path))
        return written


def audit(
    run: Run,
    *,
    settings: Settings | None = None,
    performance: str | None = None,
    known_events: Sequence[float] = (),
    roles: Mapping[str, str] | None = None,
    thresholds: Thresholds | None = None,
    reference: ReferenceBand | None = None,
) -> Audit:
    """Judge one finished run.

    Parameters
    ----------
    run : Run
    settings : Settings, optional
        Constants of the rules; default `trajscope.config.Settings`.
    performance : str, optional
        ``NAME``, ``NAME:max`` or ``NAME:min``; default by role (return, validation score, validation loss, loss).
    known_events : sequence of float
        Steps of changes that somebody made on purpose; what lies there is information, not a failure.
    roles : mapping of str to str, optional
        Roles of channels, over the guess from their names.
    thresholds : Thresholds, optional
        From `trajscope.calibrate` on your own healthy runs: the first alarm of each monitor becomes an event.
    reference : ReferenceBand, optional
        Of healthy siblings (`trajscope.inference.reference`): a run that leaves their band is worth a look, one that
        ends outside is not healthy.

    Returns
    -------
    Audit

    Raises
    ------
    InputError
        If ``performance`` or a key of ``roles`` names no channel.

    Notes
    -----
    A run whose step counter restarts is judged part by part; the verdict is the worst of them and ``parts`` has each.
    """
    chosen = settings or Settings()
    if performance is not None:
        chosen = replace(chosen, performance=performance)
    wanted = {**{k: v for k, v in chosen.roles.items() if k in run.channels}, **(roles or {})}
    if wanted:
        run = run.with_roles(wanted)
    parts = run.split()
    with np.errstate(over="ignore", invalid="ignore"):  # differences of values near the end of the float range
        audits = tuple(_audit_part(p, chosen, tuple(known_events), thresholds, reference) for p in parts)
    if len(audits) == 1:
        return audits[0]
    order = ("cannot tell", *VERDICTS[:3])
    worst = max(audits, key=lambda a: order.index(a.verdict))
    number_of = audits.index(worst) + 1
    return replace(
        worst,
        run=run,
        reasons=(
            *worst.reasons,
            f"The step counter restarts: {len(parts)} parts were judged apart, this is part {number_of}.",
        ),
        parts=audits,
    )


def _audit_part(
    run: Run,
    settings: Settings,
    known: tuple[float, ...],
    thresholds: Thresholds | None,
    reference: ReferenceBand | None,
) -> Audit:
    performance, mode, found = _performance(run, settings)
    judged = _judged(run, performance)
    events: list[Event] = []
    for channel in run.channels.values():
        if channel.role in FINITE_ROLES or channel is performance:
            events.extend(nonfinite_events(channel, settings))
    if found is not None:
        events.extend(collapse_events(found))
    tested = [c for c in judged if np.count_nonzero(np.isfinite(c.values)) >= 5]
    level = settings.alpha / max(1, len(tested))  # one family of tests over the run, shared among the channels
    directions = [(c, mode if c is performance else "max" if BIGGER_IS_BETTER[c.role] else "min") for c in tested]
    for channel, direction in directions:
        own = _settings_of(channel, performance, settings)
        events.extend(change_events(channel, direction, own, level, known))
        events.extend(spike_events(channel, own, known))
    shocks = shock_events(run, settings)
    for channel in run.by_role("lr")[:1]:
        shocks.extend(lr_events(channel))
    events.extend(shocks)
    dips = dip_events(directions, shocks, settings, known)
    answered = {(e.channel, e.step) for e in dips}
    events = [e for e in events if e.kind != "spike" or (e.channel, e.step) not in answered] + dips
    told = {e.channel for e in events if e.kind in ("collapse", "divergence") and e.severity == "fail"}
    events.extend(e for e in end_events(run) if e.channel not in told)
    for channel in (*judged, *run.by_role("grad_norm")[:1]):
        events.extend(short_events(channel))
    events.extend(segment_events(run))
    events = _on_purpose(run, events, judged, known)
    events.extend(own_events(run, settings, known))
    beside = reference_events(run, reference) if reference is not None else None
    events.extend(beside or ())
    if thresholds is not None:
        events.extend(alarm_events(run, thresholds))
    events.sort(key=lambda e: (e.step, e.kind))
    deficit = _deficit(found, events)
    meta = meta_state(run, settings.seed) if settings.profile == "full" else Meta("not computed in the fast profile")
    facts = Facts(
        run,
        settings,
        performance,
        mode,
        tuple(judged),
        found,
        deficit,
        tuple(events),
        meta,
        thresholds,
        known,
        reference,
    )
    verdict, reasons, strength = decide(facts)
    return Audit(
        run,
        verdict,
        reasons,
        strength,
        tuple(events),
        "" if performance is None else f"{performance.name}:{mode}",
        found,
        deficit,
        meta,
        settings,
        facts,
        provenance=make_provenance(
            "audit",
            {**settings.to_dict(), "known_events": list(known)},
            *(c.values for c in run.channels.values()),
            seed=settings.seed,
        ),
    )


def _on_purpose(run: Run, events: list[Event], judged: list[Channel], known: tuple[float, ...]) -> list[Event]:
    """Events beside known events and deliberate resets become information; a reset nobody declared is named."""
    rows = max((c.stride for c in judged if np.isfinite(c.stride)), default=1.0)
    resets = reset_events(run, events)
    events = soften(events, [e.step for e in resets], rows, "a deliberate reset")
    return soften([*events, *resets], known, rows, "a known event")


def _performance(run: Run, settings: Settings) -> tuple[Channel | None, str, Collapse | None]:
    try:
        series, mode = performance_series(run, settings.performance or None)
    except InputError:
        if settings.performance:
            raise
        return None, "", None
    found = collapse(
        run,
        performance=f"{series.name}:{mode}",
        dd=settings.drawdown,
        z=settings.collapse_sd,
        h=settings.persistence,
    )
    return run.channels[series.name], mode, found


def _judged(run: Run, performance: Channel | None) -> list[Channel]:
    """Channels whose spikes and changes move the verdict: performance, a training loss, a validation loss."""
    chosen = [performance] if performance is not None else []
    for role in ("loss", "val_loss"):
        chosen.extend(run.by_role(role)[:1])
    return list({c.name: c for c in chosen}.values())


def _settings_of(channel: Channel, performance: Channel | None, settings: Settings) -> Settings:
    """Settings for a channel: the loss beside a return has to move further.

    It follows the values that are being learned, so it wanders while nothing is wrong (of 20 recorded control runs of
    PPO in the calibration split it took four for sick ones, at up to 10 sd and 20 % of its range).
    """
    returns = performance is not None and performance.role in ("return", "eval_return", "success")
    if channel.role != "loss" or not returns:
        return settings
    return replace(settings, spike_sd=RL_SPIKE * settings.spike_sd, material=max(RL_MATERIAL, settings.material))


def _deficit(found: Collapse | None, events: list[Event]) -> float:
    """How far the last tenth of performance lies below its level before the first event.

    The level before is the median of the last 25 evaluations before the first event that is worth a look, the unit
    their standard deviation. NaN where there was no such event, or too little before or after it.
    """
    starts = [e.step for e in events if e.severity in ("fail", "watch") and e.kind != "non-finite"]
    if found is None or not starts:
        return float("nan")
    good = np.isfinite(found.performance)
    y, steps = found.performance[good], found.steps[good].astype(np.float64)
    before = y[steps < min(starts)][-25:]
    tail = y[-max(5, y.size // 10) :]
    if before.size < 5 or y.size < 10 or steps[-tail.size] <= min(starts):
        return float("nan")
    spread = float(np.std(before, ddof=1))
    fall = float(np.median(before) - np.median(tail))
    return fall / spread if spread > 0 else 0.0 if fall <= 0 else float("inf")
