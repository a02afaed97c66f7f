"""Which axis an event came from: optimization, environment/data, parametric, or learning signal.

What is declared wins: an axis in the run's configuration, or a known event at that step. Otherwise the four axes are
ranked by an additive model over named evidence (`trajscope.inference._axis_evidence`, `_axis_model`), whose weights
were fitted on the calibration split of the recorded runs. The confidence supposes that the four axes are equally likely
beforehand. It is advisory: labels shuffled inside a batch (data) and labels replaced (learning signal) leave the same
marks in a log, and an optimizer event that is undone within a logging stride leaves none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from trajscope.errors import InputError
from trajscope.history.run import Run
from trajscope.inference._axis_evidence import AXES, EVIDENCE, measure
from trajscope.inference._axis_model import SHARES, probabilities
from trajscope.inference._axis_rows import LEVEL, Table, first_departure, table_of
from trajscope.inference._axis_weights import FITTED_ON, WEIGHTS
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

__all__ = ["AXES", "AxisAttribution", "FoundEvidence", "attribute_axis", "shipped_weights"]

#: Words of an event's kind that declare its axis; the first that occurs counts.
DECLARED_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("learning signal", ("reward", "label_noise", "label noise", "advantage", "kl reference", "learning signal",
                         "grad_noise", "loss_scale", "target")),
    ("environment/data", ("data", "environment", "observation", "obs_", "action_noise", "batch", "curriculum", "token",
                          "shift", "shuffle", "force", "mixture")),
    ("parametric", ("param", "weights", "init", "checkpoint", "resume", "layer")),
    ("optimization", ("lr", "learning rate", "learning_rate", "momentum", "clip", "optimi", "loss scale", "warmup",
                      "schedule", "state_loss")),
)  # fmt: skip


@dataclass(frozen=True)
class FoundEvidence:
    """One piece of evidence at the event.

    Attributes
    ----------
    name : str
    axis : str
        The axis that it speaks for most.
    value : float
        Between -1 and 1.
    parts : tuple of 4 floats
        What it adds to the log odds of each of `AXES`.
    sentence : str
    """

    name: str
    axis: str
    value: float
    parts: tuple[float, ...]
    sentence: str


@dataclass(frozen=True, eq=False)
class AxisAttribution(Result):
    """The four axes ranked; returned by `attribute_axis`.

    Attributes
    ----------
    run : str
    event : float or None
        Step that was judged; None where nothing departs.
    event_source : {"given", "declared", "detected", "none"}
    axis : str
        One of the four axes, or "cannot tell".
    confidence : float
        Probability of the first of the ranking, 1 where it is declared; NaN where nothing could be measured.
    ranking : tuple of (str, float)
        Axes with their probabilities from channels, the likeliest first.
    source : {"declared", "channels", "none"}
    evidence : tuple of FoundEvidence
        The strongest first.
    absent : tuple of str
        Evidence that could not be read, with what it needs.
    reason : str
    """

    plot_name = "axis"

    run: str
    event: float | None
    event_source: str
    axis: str
    confidence: float
    ranking: tuple[tuple[str, float], ...]
    source: str
    evidence: tuple[FoundEvidence, ...]
    absent: tuple[str, ...]
    reason: str

    def to_frame(self) -> pd.DataFrame:
        """One row an axis, in order: probability and the sentences that speak for it."""
        import pandas as pd

        said = {a: "; ".join(_for(self.evidence, a)) for a in AXES}
        return pd.DataFrame([(a, p, said[a]) for a, p in self.ranking], columns=["axis", "probability", "evidence"])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {f.name: jsonable(getattr(self, f.name)) for f in fields(self)}

    def summary(self) -> str:
        """One or two sentences."""
        return self.reason


def attribute_axis(
    run: Run,
    event: Any = None,
    *,
    siblings: Sequence[Run] | None = None,
    known_events: Iterable[tuple[float, str]] | None = None,
    declared: bool = True,
    use_lr: bool = True,
    min_confidence: float = 0.4,
    level: float = LEVEL,
) -> AxisAttribution:
    """Rank the four axes as the origin of an event.

    Parameters
    ----------
    run : Run
    event : float or object with a step, optional
        Step of the event, or an event of an audit. By default the step that the configuration declares, else the first
        joint departure of the channels.
    siblings : sequence of Run, optional
        Other runs that saw the same data in the same order; at least two are needed to say something.
    known_events : iterable of (step, kind), optional
        Declared events; a kind that names an axis or one of its settings wins where it lies within two rows of the
        event.
    declared : bool, default True
        Whether ``axis``, ``perturbation`` and ``injection_step`` of the run's configuration count.
    use_lr : bool, default True
        Whether a logged learning rate is looked at.
    min_confidence : float, default 0.4
        Below it the answer is "cannot tell"; chance is 0.25.
    level : float, default 10
        Joint residual from which a row is a departure.

    Returns
    -------
    AxisAttribution

    Raises
    ------
    InputError
        If ``run`` is no run, the event has no finite step, a known event cannot be read or an option is out of range.

    Examples
    --------
    >>> from trajscope.history.run import Run, RunData, named_channel
    >>> rng, t = np.random.default_rng(0), np.arange(400)
    >>> grad, loss = np.exp(0.1 * rng.normal(size=400)), 2 + 0.1 * rng.normal(size=400)
    >>> update = 0.01 * grad * np.where((t >= 200) & (t < 210), 30, 1)
    >>> log = {"loss": loss, "grad_norm": grad, "update_norm": update}
    >>> run = Run("toy", RunData({name: named_channel(name, t, v) for name, v in log.items()}))
    >>> found = attribute_axis(run)
    >>> found.axis, found.event
    ('optimization', 200.0)
    """
    if not isinstance(run, Run):
        raise InputError(f"attribute_axis takes a Run (ts.read_run), got {type(run).__name__}.")
    if not 0.25 <= min_confidence <= 1 or not level > 0:
        raise InputError(f"options out of range: 0.25 <= min_confidence {min_confidence} <= 1 and level {level} > 0.")
    given = _step_of(event)
    known = _known(known_events)
    table = table_of(run, use_lr=use_lr)
    stated, stated_step = _stated(run.config) if declared else (None, None)
    source = "given"
    if given is None and stated_step is not None:
        given, source = stated_step, "declared"
    departure, largest = (None, math.nan) if given is not None else first_departure(table, level=level)
    if given is None:
        given, source = departure, "detected" if departure is not None else "none"
    parameters = {
        "event": _step_of(event), "siblings": [s.id for s in siblings or ()], "known_events": known,
        "declared": declared, "use_lr": use_lr, "min_confidence": min_confidence, "level": level,
        "weights": dict(FITTED_ON),
    }  # fmt: skip
    provenance = make_provenance("attribute_axis", parameters, *(r.raw for r in table.rows.values()))
    if given is None:
        why = (
            "none of the channels that training moves is logged over enough rows"
            if math.isnan(largest)
            else f"no row departs from what the rows before it lead to (largest joint residual {largest:.3g}, "
            f"{level:g} is asked for)"
        )
        return AxisAttribution(
            run.id, None, "none", "cannot tell", math.nan, _ranked(np.full(4, 0.25)), "none", (), (),
            f"cannot tell which axis: {why}.", provenance=provenance,
        )  # fmt: skip
    reach, horizon = 2 * table.stride, _horizon(table)
    if stated_step is None or not -reach <= given - stated_step <= max(reach, horizon):
        stated = None  # another event than the declared one
    for step, axis in known:
        if abs(step - given) <= reach:
            stated = axis
    share = _share(siblings, given, table.stride, level)
    values, numbers = measure(table, given, share)
    weights = shipped_weights()
    p = probabilities(values, weights)
    parts = np.nan_to_num(values)[:, None] * weights[:, None] * SHARES
    found = tuple(sorted(_found(values, parts, numbers), key=lambda e: -max(map(abs, e.parts))))
    absent = tuple(
        f"{e.name} (needs {', '.join(e.needs)})" for e, v in zip(EVIDENCE, values, strict=True) if math.isnan(v)
    )
    ranking = _ranked(p)
    axis, confidence, origin, reason = _answer(run.id, given, stated, ranking, found, values, min_confidence)
    return AxisAttribution(
        run.id, given, source, axis, confidence, ranking, origin, found, absent, reason,
        provenance=provenance,
    )  # fmt: skip


@lru_cache(maxsize=1)
def shipped_weights() -> NDArray[np.float64]:
    """Weights of the evidence, in the order of `EVIDENCE`."""
    return np.array([WEIGHTS[e.name] for e in EVIDENCE])


def _step_of(event: Any) -> float | None:
    if event is None:
        return None
    step = getattr(event, "step", event)
    try:
        value = float(step)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"event is {event!r}; expected a finite step or an object with one in .step.")
    return value


def _known(events: Iterable[tuple[float, str]] | None) -> list[tuple[float, str]]:
    out = []
    for item in events or ():
        try:
            step, kind = item
            at = float(step)
        except (TypeError, ValueError):
            raise InputError(f"known event {item!r}; expected a pair (step, kind), such as (4000, 'lr').") from None
        axis = _axis_of_words(str(kind))
        if axis is not None:
            out.append((at, axis))
    return out


def _axis_of_words(text: str) -> str | None:
    lower = text.strip().lower()
    if lower in AXES:
        return lower
    return next((axis for axis, words in DECLARED_WORDS if any(w in lower for w in words)), None)


def _stated(config: Mapping[str, Any]) -> tuple[str | None, float | None]:
    """Axis and step that a configuration declares."""
    axis, kind = config.get("axis"), config.get("perturbation")
    name = axis.strip().lower() if isinstance(axis, str) else ""
    if name not in AXES:  # a key of that name may mean something else
        name = (_axis_of_words(kind) or "") if isinstance(kind, str) else ""
    step = config.get("injection_step")
    at = float(step) if isinstance(step, int | float) and math.isfinite(step) else None
    return (name, at) if name and at is not None else (None, None)


def _horizon(table: Table) -> float:
    """A tenth of the run, in steps: so long after a declared event a departure passes for its consequence."""
    ends = [r.steps[[0, -1]] for r in table.rows.values()]
    return 0.1 * (max(e[1] for e in ends) - min(e[0] for e in ends)) if ends else 0.0


def _share(siblings: Sequence[Run] | None, step: float, stride: float, level: float) -> float:
    """How far a majority of siblings departs at the step: 0 up to a half of them, 1 from three in four."""
    if siblings is None or len(siblings) < 2:
        return math.nan
    hits = 0
    for other in siblings:
        if not isinstance(other, Run):
            raise InputError(f"siblings must be runs, got {type(other).__name__}.")
        found, _ = first_departure(
            table_of(other, use_lr=False), level=level, start=step - stride / 2, stop=step + 1.5 * stride
        )
        hits += found is not None
    return float(min(max((hits / len(siblings) - 0.5) / 0.25, 0.0), 1.0))


def _ranked(p: NDArray[np.float64]) -> tuple[tuple[str, float], ...]:
    order = sorted(range(4), key=lambda a: (-p[a], a))
    return tuple((AXES[a], float(p[a])) for a in order)


def _found(
    values: NDArray[np.float64], parts: NDArray[np.float64], numbers: Mapping[str, str]
) -> Iterable[FoundEvidence]:
    for evidence, value, part in zip(EVIDENCE, values.tolist(), parts, strict=True):
        if not abs(value) >= 0.1:
            continue
        top = int(np.argmax(part)) if part.any() else int(np.argmax(np.sign(value) * np.array(evidence.weights)))
        text = (evidence.sentence if value > 0 or not evidence.opposite else evidence.opposite).format(**numbers)
        yield FoundEvidence(evidence.name, AXES[top], value, tuple(part.tolist()), text)


def _for(found: Iterable[FoundEvidence], axis: str) -> list[str]:
    """Sentences of the evidence that speaks for an axis, the strongest first."""
    row = AXES.index(axis)
    return [e.sentence for e in sorted(found, key=lambda e: -e.parts[row]) if e.parts[row] > 0]


def _percent(p: float) -> str:
    return "over 99 %" if p > 0.99 else f"{100 * p:.0f} %"


def _answer(
    run: str,
    step: float,
    stated: str | None,
    ranking: tuple[tuple[str, float], ...],
    found: tuple[FoundEvidence, ...],
    values: NDArray[np.float64],
    least: float,
) -> tuple[str, float, str, str]:
    first, second = ranking[0], ranking[1]
    at = f"step {step:,.10g}"
    if stated is not None:
        agrees = first[0] == stated or first[1] < least
        tail = "" if agrees else f" The channels alone would say {first[0]} ({_percent(first[1])})."
        return stated, 1.0, "declared", f"{run}: the event at {at} is declared as {stated}.{tail}"
    if np.isnan(values).all():
        return (
            "cannot tell",
            math.nan,
            "none",
            (f"cannot tell which axis the event at {at} came from: too few rows before it, or no channel to read."),
        )
    said = _for(found, first[0])[:3]
    if first[1] < least or not said:
        leaning = f" {first[0].capitalize()} is the likeliest ({_percent(first[1])})." if said else ""
        return (
            "cannot tell",
            first[1],
            "channels",
            (f"cannot tell which axis the event at {at} came from: no evidence decides.{leaning}"),
        )
    return (
        first[0],
        first[1],
        "channels",
        (
            f"{run}: the event at {at} looks like {first[0]} ({_percent(first[1])}; next {second[0]}, "
            f"{_percent(second[1])}): " + "; ".join(said) + "."
        ),
    )
