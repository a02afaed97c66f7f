"""What kind of trouble it is, what moved first, on which axis, near what, and what to look at next.

Five kinds (numerical, data, objective, optimization, evaluation) are ranked by the evidence that points to each: every
piece is a sentence with a weight of 1 (a hint) to 3 (hard to explain otherwise). The weights are judgement, not
fitted; the ranking says where to look first and claims no probability. The list of next steps comes from a decision
tree that keeps the branch it took.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajscope.audit.checks import Check, Facts
from trajscope.audit.events import Event, gravity, number
from trajscope.audit.near import Near, near
from trajscope.detect.first_mover import FirstMover, first_mover
from trajscope.errors import TrajscopeError
from trajscope.history import Run
from trajscope.inference.axis import AxisAttribution, attribute_axis

__all__ = ["KINDS", "Kind", "Triage", "triage_of"]

KINDS = ("numerical", "data", "objective", "optimization", "evaluation")

#: Near in time only where chance would put it there in at most this share of rows.
NEAR_ALPHA = 0.05

#: Rows of the densest channel on each side of the event in which channels are ordered by when they moved.
ROWS_BEFORE = 5000
ROWS_AFTER = 500


@dataclass(frozen=True)
class Kind:
    """A kind of trouble with what points to it.

    Attributes
    ----------
    name : str
        One of `KINDS`.
    weight : int
        Sum over the evidence.
    evidence : tuple of str
        The strongest first.
    """

    name: str
    weight: int
    evidence: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Triage:
    """What to make of a run that is not healthy.

    Attributes
    ----------
    event : Event or None
        The gravest event, which all of this is about; None where nothing is worth a look.
    kinds : tuple of Kind
        Those with evidence, the heaviest first.
    first : FirstMover or None
        Which channel moved first around the event.
    axis : AxisAttribution or None
    near : tuple of Near
        Nearest warm-up end, jump of the rate, resume, epoch boundary and known event, with the chance of being as near.
    branch : tuple of str
        Questions of the decision tree with their answers, in order.
    next_steps : tuple of str
    reason : str
        Why there is less than all of this; empty otherwise.
    """

    event: Event | None
    kinds: tuple[Kind, ...] = ()
    first: FirstMover | None = None
    axis: AxisAttribution | None = None
    near: tuple[Near, ...] = ()
    branch: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    reason: str = ""


def triage_of(f: Facts, checks: tuple[Check, ...]) -> Triage:
    """Look behind the gravest event of a run."""
    bad = [e for e in f.events if e.severity in ("fail", "watch")]
    if not bad:
        return Triage(None, reason="Nothing in this run is worth a second look.")
    event = min(bad, key=lambda e: (gravity(e)[:2], e.step))
    if f.settings.profile == "fast":
        return Triage(event, reason="not computed in the fast profile")
    mover, axis, reasons = None, None, []
    try:
        mover = first_mover(_around(f.run, event.step), event.step, rng=f.settings.seed)
    except TrajscopeError as problem:
        reasons.append(str(problem))
    try:
        axis = attribute_axis(f.run, event.step)
    except TrajscopeError as problem:
        reasons.append(str(problem))
    places = near(f.run, event.step, f.events, f.known)
    by = {c.id: c for c in checks}
    kinds = _kinds(f, event, by, places)
    branch, steps = _tree(f, event, by, places, mover, kinds)
    return Triage(event, kinds, mover, axis, places, branch, steps, " ".join(reasons))


def _around(run: Run, step: float) -> Run:
    """The rows of a run that a comparison of channels at a step needs: long before it, and a little after."""
    stride = min((c.stride for c in run.channels.values() if np.isfinite(c.stride)), default=1.0)
    low, high = step - ROWS_BEFORE * stride, step + ROWS_AFTER * stride
    kept = {
        name: c.take(np.arange(*np.searchsorted(c.steps, (low, high)))) if len(c) > ROWS_AFTER else c
        for name, c in run.channels.items()
    }
    return run.replace(channels=kept)


def _close(places: tuple[Near, ...], kind: str) -> Near | None:
    """A place of a kind that is near beyond chance."""
    return next((p for p in places if p.kind == kind and p.p_value <= NEAR_ALPHA), None)


def _kinds(f: Facts, event: Event, by: dict[str, Check], places: tuple[Near, ...]) -> tuple[Kind, ...]:
    found: dict[str, list[tuple[int, str]]] = {name: [] for name in KINDS}

    def add(kind: str, weight: int, sentence: str) -> None:
        found[kind].append((weight, sentence))

    for check, weight in (("A1", 3), ("A5", 2), ("A6", 2), ("A3", 1), ("A2", 2)):
        if by[check].result in ("fail", "watch"):
            add("numerical", weight, f"{by[check].title}: {by[check].found}.")
    for check, kind, weight in (
        ("E1", "data", 1), ("E4", "evaluation", 1), ("E6", "data", 2), ("D6", "data", 2), ("D5", "data", 1),
        ("E10", "data", 1), ("C16", "optimization", 2), ("F1", "optimization", 2), ("F2", "optimization", 1),
        ("B16", "optimization", 1), ("C5", "optimization", 2), ("F4", "objective", 2), ("F5", "objective", 1),
        ("F6", "objective", 1), ("C3", "optimization", 1),
    ):  # fmt: skip
        if by[check].result in ("watch", "info") and by[check].steps:
            add(kind, weight, f"{by[check].title}: {by[check].found}.")
    apart = by["E9"]
    if apart.result == "info":
        add("evaluation" if apart.found.startswith("validation") else "data", 2, f"{apart.title}: {apart.found}.")
    for kind, place, weight in (
        ("optimization", "learning rate", 3),
        ("optimization", "warm-up", 2),
        ("data", "epoch", 1),
    ):
        hit = _close(places, place)
        if hit is not None:
            where = f"{number(abs(hit.distance))} steps {'after' if hit.distance >= 0 else 'before'}"
            add(kind, weight, f"The event lies {where} a place of the kind {place!r} (p = {hit.p_value:.2g}).")
    ranked = [
        Kind(name, sum(w for w, _ in rows), tuple(s for _, s in sorted(rows, key=lambda r: -r[0])))
        for name, rows in found.items()
        if rows
    ]
    return tuple(sorted(ranked, key=lambda k: -k.weight))


def _tree(
    f: Facts,
    event: Event,
    by: dict[str, Check],
    places: tuple[Near, ...],
    mover: FirstMover | None,
    kinds: tuple[Kind, ...],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The decision tree: questions with answers, and the steps of the leaf."""
    branch: list[str] = []

    def ask(question: str, yes: bool) -> bool:
        branch.append(f"{question} {'Yes' if yes else 'No'}.")
        return yes

    at = number(event.step)
    if ask("Was it done on purpose (a known event, a deliberate reset)?", bool(
        _close(places, "known event") or by["D7"].found.startswith("a deliberate reset")
    )):  # fmt: skip
        return tuple(branch), ("Declare it with --events, and audit again.",)
    if ask("Is a value not finite?", by["A1"].result in ("fail", "watch")):
        return tuple(branch), (
            f"Look at the loss scale and the skipped steps before step {at}.",
            "Find the first channel that is not finite, and the batch of that step.",
            "Repeat from the last checkpoint before it in full precision.",
        )
    if ask("Does it lie beside a resume?", _close(places, "resume") is not None):
        return tuple(branch), (
            "Compare learning rate, loss scale and step counter on both sides of the resume.",
            "Check that the data order went on where it was.",
            "Check that the state of the optimizer was restored.",
        )
    if ask("Did the learning rate jump or its warm-up end there?", bool(
        _close(places, "learning rate") or _close(places, "warm-up")
    )):  # fmt: skip
        return tuple(branch), (
            f"Read the learning rate around step {at} against the schedule that was meant.",
            "Repeat from the checkpoint before with a smaller rate or a longer warm-up.",
        )
    if ask("Do training and validation part?", by["E9"].result == "info" or by["E1"].result == "watch"):
        return tuple(branch), (
            "Evaluate on a part of the training data too.",
            f"Look at the data order and at the batches around step {at}.",
        )
    moved = mover is not None and mover.verdict == "first"
    if ask("Did one channel move first?", moved):
        assert mover is not None  # noqa: S101 - asked
        return tuple(branch), (
            f"Begin with {mover.first[0]}: {mover.reason}",
            f"Look at the batch of step {at} in runs that share the data order (coincident events).",
            "Repeat from the checkpoint before it, once with the same batches and once without them.",
        )
    names = f"{kinds[0].name}: {kinds[0].evidence[0]}" if kinds else "nothing points to one kind of trouble"
    return tuple(branch), (
        f"Start from what has most evidence: {names}",
        f"Look at the batch of step {at} in runs that share the data order (coincident events).",
        *(
            f"Next time: {c.advice}."
            for c in by.values()
            if c.result == "not observable" and c.id in ("C3", "D2", "C5")
        ),
    )
