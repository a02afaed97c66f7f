"""What an audit says in words and in plain types: the course of the run, what cannot be seen, parts of the summary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from trajscope.audit.events import Event, gravity, number
from trajscope.audit.triage import Triage
from trajscope.history import Channel, Run
from trajscope.result import jsonable

__all__ = ["channel_dict", "story", "triage_dict", "unseen"]


def story(events: Sequence[Event], reach: float) -> list[str]:
    """At most five dated lines: events that lie close together (``reach`` steps) are one thing that happened."""
    clusters: list[list[Event]] = []
    for e in sorted(events, key=lambda e: e.step):
        if clusters and e.step - clusters[-1][-1].step <= reach:
            clusters[-1].append(e)
        else:
            clusters.append([e])
    told = [c for c in clusters if any(e.severity != "info" or e.kind in ("lr", "resume", "non-finite") for e in c)]
    graver = sorted(told, key=lambda c: min(gravity(e) for e in c))
    chosen = graver if len(graver) <= 5 and len(told) == len(clusters) else graver[:4]
    lines = [_line(c) for c in sorted(chosen, key=lambda c: c[0].step)]
    rest = len(events) - sum(len(c) for c in chosen)
    if not lines:
        lines.append("Nothing that stands out.")
    if rest:
        lines.append(
            f"{rest} smaller event{'s' * (rest > 1)} at other steps {'are' if rest > 1 else 'is'} listed below."
        )
    return lines


#: Details that a line about several channels leaves to the table of events.
_BRACKETS = re.compile(r" \([^()]*\)|, right after .*(?=\.$)| at step [\d,.]+(?=[ .:])")


def _line(cluster: list[Event]) -> str:
    """One line for events that belong together: the gravest of each channel, in order of steps."""
    best: dict[str, Event] = {}
    for e in sorted(cluster, key=gravity):
        best.setdefault(e.channel, e)
    chosen = list(best.values())[:3]
    chosen += [e for e in best.values() if e.kind == "lr" and e not in chosen]
    shown = sorted(chosen, key=lambda e: e.step)
    more = len(best) - len(shown)
    first, last = cluster[0].step, max(e.step for e in cluster)
    where = f"Step {number(first)}" if first == last else f"Steps {number(first)} to {number(last)}"
    whole = len(shown) == 1
    text = "; ".join((e.sentence if whole else _BRACKETS.sub("", e.sentence)).rstrip(".") for e in shown)
    return f"{where}: {text}" + (f"; {more} more channels move" if more > 0 else "") + "."


def unseen(run: Run) -> list[str]:
    """What the log lacks, a sentence each."""
    lines = []
    present = {c.role for c in run.channels.values()}
    strides = [c.stride for c in run.channels.values() if c.role in ("loss", "return") and np.isfinite(c.stride)]
    if strides and min(strides) > 1:
        stride = min(strides)
        lines.append(
            f"Scalars were logged every {number(stride)} steps, so changes shorter than {number(2 * stride)} steps"
            " are invisible."
        )
    for role, text in (
        ("grad_norm", "The gradient norm was not logged: an exploding gradient cannot be told from bad data."),
        ("lr", "The learning rate was not logged: what the schedule did cannot explain anything."),
        ("update_norm", "Update and parameter norms were not logged: a jump of the parameters cannot be seen."),
    ):
        if role not in present:
            lines.append(text)
    if run.sampled:
        lines.append("The source is a sample: spikes and short dips may be missing from it.")
    lines.append("Data, labels, evaluation code and optimizer state are not in a log of scalars.")
    return lines


def triage_dict(t: Triage) -> dict[str, Any]:
    """The triage in plain JSON types; first mover and axis shortened to what a reader acts on."""
    axis, first = t.axis, t.first
    return {
        "event": jsonable(t.event),
        "kinds": jsonable(t.kinds),
        "first_mover": first
        and {
            "verdict": first.verdict,
            "first": list(first.first),
            "p_value": jsonable(first.p_value),
            "reason": first.reason,
        },
        "axis": axis
        and {
            "axis": axis.axis,
            "confidence": jsonable(axis.confidence),
            "ranking": jsonable(axis.ranking),
            "source": axis.source,
            "evidence": [e.sentence for e in axis.evidence],
            "reason": axis.reason,
        },
        "near": jsonable(t.near),
        "branch": list(t.branch),
        "next_steps": list(t.next_steps),
        "reason": t.reason,
    }


def channel_dict(c: Channel) -> dict[str, Any]:
    """A channel in plain JSON types."""
    row = {
        "name": c.name,
        "role": c.role,
        "role_confidence": c.role_confidence,
        "points": len(c),
        "first_step": c.steps[0] if len(c) else None,
        "last_step": c.steps[-1] if len(c) else None,
        "stride": c.stride,
        "sampled": c.sampled,
        "duplicates": c.n_duplicates,
        **c.counts,
    }
    return {k: jsonable(v) for k, v in row.items()}
