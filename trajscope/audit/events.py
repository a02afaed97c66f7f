"""Dated events of one run: what each detector found, in one form.

Every event carries the step, the channel, a severity and one sentence made from the numbers of the detector that found
it. Severity ``fail`` or ``watch`` can move a verdict; ``info`` never does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.config import Settings
from trajscope.detect.changepoints import change_points
from trajscope.detect.collapse import Collapse
from trajscope.detect.spikes import spikes
from trajscope.history import Channel, Run

__all__ = [
    "Event",
    "change_events",
    "collapse_events",
    "lr_events",
    "nonfinite_events",
    "number",
    "segment_events",
    "spike_events",
]

#: Learning-rate ratio of successive rows beyond which it is called a jump: schedules move by a few per cent a row.
LR_JUMP = 2.0

#: Spikes that a report names one by one; the rest is counted.
MOST_SPIKES = 20


@dataclass(frozen=True)
class Event:
    """Something that happened at a step.

    Attributes
    ----------
    step : float
        First step of it.
    kind : str
        ``collapse``, ``divergence``, ``non-finite``, ``change``, ``spike``, ``dip``, ``lr``, ``resume``.
    channel : str
    severity : {"fail", "watch", "info"}
    sentence : str
        What happened, for a person.
    end : float or None
        Last step of it, None where it is a point or does not end.
    strength : float
        Size in robust standard deviations of the channel; NaN where that has no meaning.
    detail : mapping
        Numbers behind the sentence.
    """

    step: float
    kind: str
    channel: str
    severity: str
    sentence: str
    end: float | None = None
    strength: float = float("nan")
    detail: Mapping[str, Any] = field(default_factory=dict)


def number(value: float) -> str:
    """A number as it is read: steps with separators, values with four significant digits.

    >>> number(12300.0), number(0.123456), number(float("nan"))
    ('12,300', '0.1235', 'NaN')
    """
    if value != value:
        return "NaN"
    if np.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}"


def nonfinite_events(channel: Channel, settings: Settings) -> list[Event]:
    """Non-finite values of a channel: staying (fail), passing (watch), or only before the first number (info)."""
    counts = channel.counts
    bad = counts["nan"] + counts["posinf"] + counts["neginf"]
    if not bad:
        return []
    flags = ~np.isfinite(channel.values)
    if flags.all():
        first, last = 0, flags.size - 1
    else:
        good = np.flatnonzero(~flags)
        after = np.flatnonzero(flags & (np.arange(flags.size) > good[0]))
        if not after.size:
            return [
                Event(
                    float(channel.steps[0]),
                    "non-finite",
                    channel.name,
                    "info",
                    f"{channel.name} is not a number in its first {bad} rows, before its first value.",
                    float(channel.steps[good[0] - 1]),
                    detail=dict(counts),
                )
            ]
        first, last = int(after[0]), int(after[-1])
    tail = max(1, int(np.ceil(settings.tail * flags.size)))
    stays = bool(flags[-tail:].all())
    words = ", ".join(
        f"{counts[k]} {label}" for k, label in (("nan", "NaN"), ("posinf", "+Inf"), ("neginf", "-Inf")) if counts[k]
    )
    until = (
        "and stays so to the end" if stays else f"and is finite again after step {number(float(channel.steps[last]))}"
    )
    if channel.role == "grad_norm" and not stays:
        severity = "info"  # a skipped mixed-precision step logs an infinite norm by design
    else:
        severity = "fail" if stays else "watch"
    return [
        Event(
            float(channel.steps[first]),
            "non-finite",
            channel.name,
            severity,
            f"{channel.name} becomes non-finite at step {number(float(channel.steps[first]))} {until} ({words}).",
            None if stays else float(channel.steps[last]),
            detail={**counts, "stays": stays},
        )
    ]


def collapse_events(found: Collapse) -> list[Event]:
    """Episodes of a performance series as events."""
    events = []
    for e in found.episodes:
        if e.kind == "non-finite":
            continue  # told by `nonfinite_events`, with its counts
        lost = f"{min(e.depth, 9.99):.0%} of what it had learned" if np.isfinite(e.depth) else "what it had learned"
        if e.kind == "cannot tell":
            sentence = (
                f"{found.channel} falls from step {number(e.onset)} on, too close to the end of the log to be judged."
            )
        else:
            after = {
                "transient": f"and is back by step {number(e.recovered_step or 0)}",
                "lingering": f"and comes back slowly, by step {number(e.recovered_step or 0)}",
                "irrecoverable": "and does not recover",
                "undetermined": "and the log ends before it can be seen whether it recovers",
            }[e.recovery]
            what = "diverges" if e.kind == "divergence" else "collapses"
            sentence = f"{found.channel} {what} at step {number(e.onset)}: it loses {lost} {after}."
        events.append(
            Event(
                e.onset,
                "divergence" if e.kind == "divergence" else "collapse",
                found.channel,
                "fail" if e.recovery == "irrecoverable" else "watch",
                sentence,
                e.recovered_step,
                e.fall,
                {"recovery": e.recovery, "depth": e.depth, "confirmed": e.confirmed, "P": e.P, "s_R": e.s_R},
            )
        )
    return events


def change_events(channel: Channel, alpha: float, known: Sequence[float]) -> list[Event]:
    """Change points of a channel, each with its interval and p-value."""
    good = np.isfinite(channel.values)
    found = change_points(channel.values[good].astype(np.float64), channel.steps[good], alpha=alpha)
    events = []
    for k in range(len(found.steps)):
        step = float(found.steps[k])
        kind = str(found.kind[k])
        low, high = (float(v) for v in found.intervals[k])
        explained = any(low <= s <= high for s in known)
        events.append(
            Event(
                step,
                "change",
                channel.name,
                "info" if explained else "watch",
                f"{channel.name} changes in {kind} at step {number(step)}"
                f" (95 % interval {number(low)} to {number(high)}, p = {float(found.p_values[k]):.2g})"
                + (", where a known event lies." if explained else "."),
                detail={"kind": kind, "low": low, "high": high, "p": float(found.p_values[k]), "explained": explained},
            )
        )
    return events


def spike_events(channel: Channel, alpha: float, known: Sequence[float]) -> list[Event]:
    """Isolated excursions of a channel in the direction that is bad for its role."""
    found = spikes(channel, alpha=alpha)
    events = []
    for k in range(len(found.steps)):
        step = float(found.steps[k])
        explained = step in set(known)
        events.append(
            Event(
                step,
                "spike",
                channel.name,
                "info" if explained else "watch",
                f"{channel.name} spikes at step {number(step)} to {number(float(found.values[k]))}"
                f" ({abs(float(found.z[k])):.0f} robust sd; recovery: {found.recovery[k]}).",
                strength=abs(float(found.z[k])),
                detail={"value": float(found.values[k]), "z": float(found.z[k]), "recovery": str(found.recovery[k])},
            )
        )
    return events


def lr_events(channel: Channel) -> list[Event]:
    """Jumps of the learning rate that a smooth schedule does not make."""
    values: NDArray[np.float64] = channel.values.astype(np.float64)
    positive = values > 0
    if np.count_nonzero(positive) < 3:
        return []
    logs = np.log(values[positive])
    steps = channel.steps[positive]
    moves = np.diff(logs)
    jumps = np.flatnonzero(np.abs(moves) > np.log(LR_JUMP))
    events = []
    for j in jumps.tolist():
        # The first rows of a warm-up multiply the rate as well; a jump stands out of the moves beside it.
        beside = np.abs(moves[max(0, j - 3) : j]).max(initial=0.0)
        if beside > 0.5 * abs(moves[j]):
            continue
        ratio = float(np.exp(moves[j]))
        way = f"x{ratio:.3g}" if ratio > 1 else f"/{1 / ratio:.3g}"
        events.append(
            Event(
                float(steps[j + 1]),
                "lr",
                channel.name,
                "info",
                f"The learning rate jumps by {way} at step {number(float(steps[j + 1]))}.",
                detail={"ratio": ratio},
            )
        )
    return events[:MOST_SPIKES]


def segment_events(run: Run) -> list[Event]:
    """Resumes as events: a place to look, never a failure by themselves."""
    words = {"continuation": "goes on in a new session", "supersedes": "resumes over its own later steps"}
    return [
        Event(s.first_step, "resume", "", "info", f"The run {words[s.kind]} at step {number(s.first_step)}.")
        for s in run.segments[1:]
        if s.kind in words
    ]
