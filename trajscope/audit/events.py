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
from trajscope.detect.answer import answer
from trajscope.detect.changepoints import change_points
from trajscope.detect.collapse import Collapse
from trajscope.detect.spikes import Spikes, spikes, transform
from trajscope.history import Channel, Run
from trajscope.inference.calibrate import Thresholds, run_alarms

__all__ = [
    "Event",
    "alarm_events",
    "change_events",
    "collapse_events",
    "dip_events",
    "gravity",
    "lr_events",
    "nonfinite_events",
    "number",
    "segment_events",
    "shock_events",
    "spike_events",
]

#: Learning-rate ratio of successive rows beyond which it is called a jump: schedules move by a few per cent a row.
LR_JUMP = 2.0

#: Changes or spikes of one channel that are listed one by one; the rest is counted.
MOST_LISTED = 20

#: Rows of a judged channel in which an answer to a shock is looked for.
ANSWER_ROWS = 10

#: Rows beside a change from whose medians its size is told.
BESIDE = 25


@dataclass(frozen=True)
class Event:
    """Something that happened at a step.

    Attributes
    ----------
    step : float
        First step of it.
    kind : str
        ``collapse``, ``divergence``, ``non-finite``, ``change``, ``spike``, ``dip``, ``reset``, ``lr``, ``resume``,
        ``alarm``, ``rule``, ``reference``.
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


def gravity(e: Event) -> tuple[int, int, float]:
    """Sort key: severity, kind, size; the gravest first."""
    severity = {"fail": 0, "watch": 1, "info": 2}
    kind = {"non-finite": 0, "divergence": 1, "collapse": 1, "dip": 2, "change": 2, "spike": 3, "lr": 2}
    return severity[e.severity], kind.get(e.kind, 4), -float(np.nan_to_num(e.strength))


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
    # A single infinite gradient norm at the end is what a skipped mixed-precision step looks like.
    tail = max(3, tail) if channel.role == "grad_norm" else tail
    stays = bool(flags[-tail:].all()) and flags.size >= tail
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


def alarm_events(run: Run, thresholds: Thresholds) -> list[Event]:
    """First alarms of calibrated monitors; beyond the length of the calibration runs they are information only."""
    return [
        Event(
            a.step,
            "alarm",
            "",
            "watch" if a.certified else "info",
            f"The monitor {a.sentence()}.",
            detail={"monitor": a.monitor, "score": a.score, "threshold": a.threshold},
        )
        for a in run_alarms(run, thresholds)
    ]


def collapse_events(found: Collapse) -> list[Event]:
    """Episodes of a performance series as events."""
    events = []
    for e in found.episodes:
        if e.kind == "non-finite":
            continue  # told by `nonfinite_events`, with its counts
        lost = f"{e.depth:.0%} of what it had learned" if e.depth < 1 else "all that it had learned"
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


def change_events(channel: Channel, mode: str, settings: Settings, alpha: float, known: Sequence[float]) -> list[Event]:
    """Change points of a channel, on the scale of its role, each with its interval and p-value.

    A change is worth a look where the level moves the wrong way by at least ``settings.material`` of the range that
    the channel has covered so far (its best level less its first): a long series finds changes that nobody would act
    on, and a validation score near its ceiling wanders. Every other change is information.
    """
    y, _ = transform(channel.values.astype(np.float64), channel.role)
    y = y if mode == "max" else -y
    good = np.isfinite(y)
    y, steps = y[good], channel.steps[good]
    found = change_points(y, steps, alpha=alpha)
    events = []
    for k in range(len(found.steps)):
        step, row = float(found.steps[k]), int(found.rows[k])
        kind = str(found.kind[k])
        low, high = (float(v) for v in found.intervals[k])
        explained = any(low <= s <= high for s in known)
        before, after = y[max(0, row - BESIDE) : row], y[row : row + BESIDE]
        fall = float(np.median(before) - np.median(after))
        covered = float(np.max(y[:row]) - np.median(y[:5]))
        share = fall / covered if covered > 0 else 0.0
        matters = kind == "level" and share >= settings.material and not explained
        noise = 1.4826 * float(np.median(np.abs(before - np.median(before)))) or float("nan")
        events.append(
            Event(
                step,
                "change",
                channel.name,
                "watch" if matters else "info",
                f"{channel.name} changes in {kind} at step {number(step)}"
                f" (95 % interval {number(low)} to {number(high)}, p = {float(found.p_values[k]):.2g})"
                + (f", for the worse by {share:.0%} of the range it had covered" if matters else "")
                + (", where a known event lies." if explained else "."),
                strength=abs(fall) / noise if matters else float("nan"),
                detail={
                    "kind": kind,
                    "low": low,
                    "high": high,
                    "p": float(found.p_values[k]),
                    "share": share,
                    "explained": explained,
                },
            )
        )
    if len(events) <= MOST_LISTED:
        return events
    ranked = sorted(events, key=lambda e: (e.severity != "watch", e.detail["p"], -abs(e.detail["share"])))
    rest = len(events) - MOST_LISTED
    first = ranked[MOST_LISTED].step
    note = f"{channel.name} has {rest} more changes, none of which matters by itself; the strongest are listed."
    return [*ranked[:MOST_LISTED], Event(first, "change", channel.name, "info", note, detail={"p": 1.0, "more": rest})]


def spike_events(channel: Channel, settings: Settings, known: Sequence[float]) -> list[Event]:
    """Isolated excursions of a channel in the direction that is bad for its role.

    Worth a look from ``settings.spike_sd`` robust sd on; smaller ones are information: single rows of a noisy loss
    reach 6 in healthy runs.
    """
    found = spikes(channel, known_events=known or None)
    events = [
        _excursion(
            channel, found, k, "watch" if abs(found.z[k]) >= settings.spike_sd and not found.known[k] else "info"
        )
        for k in range(len(found))
    ]
    if len(events) <= MOST_LISTED:
        return events
    ranked = sorted(events, key=lambda e: -e.strength)
    rest = len(events) - MOST_LISTED
    note = f"{channel.name} has {rest} more spikes, all smaller; the largest are listed."
    first = min(e.step for e in ranked[MOST_LISTED:])
    return [*ranked[:MOST_LISTED], Event(first, "spike", channel.name, "info", note, detail={"more": rest})]


def _excursion(channel: Channel, found: Spikes, k: int, severity: str) -> Event:
    size, z, step = abs(float(found.sizes[k])), float(found.z[k]), float(found.steps[k])
    return Event(
        step,
        "spike",
        channel.name,
        severity,
        f"{channel.name} {'spikes' if z > 0 else 'dips'} by {number(size)} at step {number(step)}"
        f" ({abs(z):.0f} robust sd; {_AFTER[found.recovery[k]]})"
        + (", after a known event." if found.known[k] else "."),
        strength=abs(z),
        detail={"size": float(found.sizes[k]), "z": z, "recovery": found.recovery[k]},
    )


def shock_events(run: Run, settings: Settings) -> list[Event]:
    """Excursions of gradient, update and parameter norm, either way, of at least ``settings.spike_sd`` robust sd.

    Information by themselves; `dip_events` asks whether a loss or performance channel answers.
    """
    events: list[Event] = []
    for role in ("grad_norm", "update_norm", "param_norm"):
        for channel in run.by_role(role)[:1]:
            found = spikes(channel, side="both")
            large = [k for k in range(len(found)) if abs(found.z[k]) >= settings.spike_sd]
            large = sorted(large, key=lambda k: -abs(float(found.z[k])))[:MOST_LISTED]
            events.extend(_excursion(channel, found, k, "info") for k in large)
    return events


def dip_events(
    judged: Sequence[tuple[Channel, str]], shocks: Sequence[Event], settings: Settings, known: Sequence[float]
) -> list[Event]:
    """Excursions of a judged channel that are small by themselves and come right after a shock.

    Whether a channel answers to a shock (`trajscope.detect.answer`) is one question a shock, not one a row, so a
    smaller excursion decides it. The level, a fifth of ``alpha``, is shared among shocks and channels. Where nothing
    was shocked, nothing is asked.

    Parameters
    ----------
    judged : sequence of (Channel, mode)
        Channels with the direction that is better, "max" or "min".
    """
    events: list[Event] = []
    starts = [e for e in sorted(shocks, key=lambda e: e.step) if e.step not in set(known)]
    for channel, mode in judged:
        y, scale = transform(channel.values.astype(np.float64), channel.role)
        good = np.isfinite(y)
        floor = 1e-3 if scale == "log" or not good.any() else max(1e-12, 1e-3 * float(np.median(np.abs(y[good]))))
        y, steps = (-y if mode == "max" else y)[good], channel.steps[good]
        reach = ANSWER_ROWS * (channel.stride if np.isfinite(channel.stride) else 1.0)
        causes: list[Event] = []
        for e in starts:
            if not causes or e.step > causes[-1].step + reach:
                causes.append(e)
        for cause in causes:
            level = settings.alpha / 5 / (len(causes) * len(judged))
            found = answer(y, int(np.searchsorted(steps, cause.step)), alpha=level, reach=ANSWER_ROWS, floor=floor)
            if found is None or not found.answers:
                continue
            step = float(steps[found.row])
            value = float(channel.values[good][found.row])
            words = "the learning rate jumps" if cause.kind == "lr" else f"{cause.channel} moves"
            events.append(
                Event(
                    step,
                    "dip",
                    channel.name,
                    "watch",
                    f"{channel.name} {'drops' if mode == 'max' else 'rises'} to {number(value)} at step {number(step)}"
                    f" ({found.z:.0f} robust sd of its noise), right after {words} at step {number(cause.step)}.",
                    strength=found.z,
                    detail={"value": value, "z": found.z, "threshold": found.threshold, "cause": cause.step},
                )
            )
    return events


_AFTER = {
    "fast": "back within five rows",
    "slow": "back within a hundred rows",
    "partial": "stays above its level, by less than half of the jump",
    "new level": "stays at a new level",
    "divergence": "never comes back",
    "undetermined": "the log ends right after",
}


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
    return events[:MOST_LISTED]


def segment_events(run: Run) -> list[Event]:
    """Resumes as events: a place to look, never a failure by themselves."""
    words = {"continuation": "goes on in a new session", "supersedes": "resumes over its own later steps"}
    return [
        Event(s.first_step, "resume", "", "info", f"The run {words[s.kind]} at step {number(s.first_step)}.")
        for s in run.segments[1:]
        if s.kind in words
    ]
