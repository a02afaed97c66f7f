"""Data and generalisation: training beside validation, parts of the loss."""

from __future__ import annotations

import numpy as np

from trajscope.audit.checks.base import Facts, Floats, Found, Rule, finite, first, median_of
from trajscope.audit.events import number
from trajscope.detect.spikes import spikes
from trajscope.history import Channel
from trajscope.history.roles import BIGGER_IS_BETTER

__all__ = ["RULES"]

GROUP = "data and generalisation"


def _two(f: Facts, train: str, held: str) -> tuple[Floats, Floats, Floats]:
    """Steps of the evaluations, training (mean since the evaluation before) and held-out values there."""
    a, b = first(f.run, train), first(f.run, held)
    assert a is not None and b is not None  # noqa: S101, PT018 - needs
    y, steps = finite(b)
    x, when = finite(a)
    if not x.size or not y.size:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    total = np.concatenate([[0.0], np.cumsum(x)])
    ends = np.searchsorted(when, steps, side="right")
    starts = np.concatenate([[0], ends[:-1]])
    some = ends > starts
    return steps[some], (total[ends[some]] - total[starts[some]]) / (ends[some] - starts[some]), y[some]


def _overfit(f: Facts) -> Found:
    steps, train, held = _two(f, "loss", "val_loss")
    if steps.size < 10:
        return Found("not enough history", f"{steps.size} evaluations")
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(np.pad(held, 2, mode="edge"), 5), axis=1)
    best = int(np.argmin(smooth))
    rise = smooth[-1] - smooth[best]
    learned = abs(smooth[0] - smooth[best])
    falls = median_of(train[-3:]) < train[best]
    text = (
        f"validation is best at step {number(float(steps[best]))} and ends {number(float(rise))} higher, training"
        f" {'goes on falling' if falls else 'does not fall'}"
    )
    if best < 0.7 * steps.size and falls and rise > 0.1 * max(learned, 1e-12):
        return Found("watch", text, (float(steps[best]),))
    return Found("pass", text)


def _gap(f: Facts) -> Found:
    steps, train, held = _two(f, "accuracy", "val_accuracy")
    if steps.size < 5:
        return Found("not enough history", f"{steps.size} evaluations")
    tail = max(3, steps.size // 10)
    a, b = median_of(train[-tail:]), median_of(held[-tail:])
    bound = 0.1 if a <= 0.9 else 0.07
    if not 0 <= b <= 1.5:
        return Found("not observable", "the score is no share")
    return Found("info" if a - b >= bound else "pass", f"training {a:.3f}, validation {b:.3f} at the end")


def _no_gain(f: Facts) -> Found:
    channel = f.performance
    if channel is None:
        return Found("not observable", "no channel measures performance")
    y, steps = finite(channel)
    if y.size < 20:
        return Found("not enough history", f"{y.size} evaluations")
    y = y if f.mode == "max" else -y
    best = int(np.argmax(y))
    share = 1 - best / (y.size - 1)
    text = f"the best value of {channel.name} is at step {number(float(steps[best]))}, {share:.0%} before the end"
    return Found("info" if share > 0.3 else "pass", text, (float(steps[best]),) if share > 0.3 else ())


def _too_good(f: Facts) -> Found:
    channel = first(f.run, "val_accuracy")
    assert channel is not None  # noqa: S101 - needs
    y, steps = finite(channel)
    if y.size < 5:
        return Found("not enough history", f"{y.size} evaluations")
    if np.all(y[:3] > 0.95) and y.max() <= 1:
        return Found("info", f"{channel.name} is {y[0]:.3f} from the first evaluation on", (float(steps[0]),))
    return Found("pass", f"begins at {number(float(y[0]))}")


def _parts(f: Facts) -> Found:
    parts: list[Channel] = [c for c in f.run.by_role("aux_loss") if len(c) >= 50][:8]
    if len(parts) < 2:
        return Found("not observable", "fewer than two parts of the loss")
    if f.settings.profile == "fast":
        return Found("info", "not computed in the fast profile")
    own: dict[float, list[str]] = {}
    for channel in parts:
        found = spikes(channel)
        for k in range(len(found)):
            if abs(float(found.z[k])) >= f.settings.spike_sd:
                own.setdefault(float(found.steps[k]), []).append(channel.name)
    alone = {step: names[0] for step, names in own.items() if len(names) == 1}
    if not alone:
        return Found("pass", f"no spike in one of {len(parts)} parts alone")
    step, name = next(iter(sorted(alone.items())))
    more = f" (and {len(alone) - 1} more)" if len(alone) > 1 else ""
    return Found("info", f"{name} spikes alone at step {number(step)}{more}", tuple(sorted(alone)))


def _apart(f: Facts) -> Found:
    """Does the training loss shift where validation does not, or the other way round?"""
    names = {role: {c.name for c in f.run.by_role(role)} for role in ("loss", "val_loss")}
    moved = {
        role: [e.step for e in f.of("change") if e.channel in own and e.severity == "watch"]
        for role, own in names.items()
    }
    only = [role for role, other in (("loss", "val_loss"), ("val_loss", "loss")) if moved[role] and not moved[other]]
    if not only:
        return Found("pass", "no shift in one of them alone")
    words = {
        "loss": "training shifts, validation does not: batches or data order",
        "val_loss": "validation shifts, training does not: evaluation or its data",
    }
    return Found("info", words[only[0]], tuple(moved[only[0]]))


def _epoch(f: Facts) -> Found:
    loss, epoch = first(f.run, "loss"), first(f.run, "epoch")
    assert loss is not None and epoch is not None  # noqa: S101, PT018 - needs
    common, i, j = np.intersect1d(loss.steps, epoch.steps, return_indices=True)
    y, e = loss.values[i].astype(np.float64), epoch.values[j].astype(np.float64)
    borders = np.flatnonzero(np.diff(np.floor(e)) >= 1) + 1
    if borders.size < 3 or common.size < 10 * borders.size or not np.isfinite(y).all():
        return Found("not enough history", f"{borders.size} epoch boundaries with ten rows each")
    steps_of = np.diff(y)
    usual = 1.4826 * median_of(np.abs(steps_of - median_of(steps_of)))
    jump = median_of(np.array([y[b : b + 3].mean() - y[max(0, b - 3) : b].mean() for b in borders]))
    z = jump / usual if usual > 0 else 0.0
    text = f"the loss moves by {number(float(jump))} over an epoch boundary ({abs(z):.1f} of its row-to-row noise)"
    return Found("info" if abs(z) > 1 else "pass", text, tuple(float(common[b]) for b in borders[:5]))


def _grokking(f: Facts) -> Found:
    steps, train, held = _two(f, "accuracy", "val_accuracy")
    if steps.size < 10:
        return Found("not enough history", f"{steps.size} evaluations")
    known, told = np.flatnonzero(train >= 0.99), np.flatnonzero(held >= 0.95)
    if known.size and told.size and steps[told[0]] > 2 * steps[known[0]]:
        at = float(steps[told[0]])
        return Found("info", f"validation follows training long after, at step {number(at)}: a transition", (at,))
    return Found("pass", "none")


LOSSES = (("loss",), ("val_loss",))
SCORES = (("accuracy",), ("val_accuracy",))
HELD = tuple(role for role in BIGGER_IS_BETTER if role.startswith("val_"))
RULES = (
    Rule(
        "E1",
        "Overfitting",
        GROUP,
        "environment/data",
        LOSSES,
        "validation best before 70 % of the run and a tenth of what was learned lost since, while training falls",
        "none",
        "AUTOTRAINER; SageMaker Overfit (there one epoch is enough)",
        "double descent",
        _overfit,
    ),
    Rule(
        "E2",
        "Gap of the scores",
        GROUP,
        "environment/data",
        SCORES,
        "0.1, or 0.07 above 0.9",
        "less",
        "AUTOTRAINER",
        "augmentation inverts the sign",
        _gap,
    ),
    Rule(
        "E3",
        "No gain any more",
        GROUP,
        "",
        (),
        "best value before the last 30 %",
        "later",
        "SageMaker Overtraining",
        "double descent, grokking, schedules that end flat",
        _no_gain,
    ),
    Rule(
        "E4",
        "Too good from the start",
        GROUP,
        "environment/data",
        (("val_accuracy",),),
        "above 0.95 in the first three evaluations",
        "less",
        "UMLAUT: a hint of leakage",
        "easy tasks, fine-tuning",
        _too_good,
    ),
    Rule(
        "E5",
        "Spikes that runs share",
        GROUP,
        "environment/data",
        (),
        "the same step in runs that share their data, and in no others",
        "none",
        "this project, on modded-nanogpt",
        "schedules that the runs share",
        lambda _: Found("not observable", "one run cannot show it; the index of several runs does"),
    ),
    Rule(
        "E6",
        "Parts of the loss",
        GROUP,
        "environment/data",
        (("aux_loss",),),
        "a spike of 8 robust sd in one part alone",
        "none",
        "IDEFICS: one data source of two",
        "small sources",
        _parts,
        "log the loss of each source or objective",
    ),
    Rule(
        "E9",
        "Training and validation apart",
        GROUP,
        "environment/data",
        LOSSES,
        "a material change in one of them alone",
        "none",
        "Marin at 190,000: training shifts, validation does not",
        "sparse validation",
        _apart,
    ),
    Rule(
        "E10",
        "Epoch boundaries",
        GROUP,
        "environment/data",
        (("loss",), ("epoch",)),
        "mean of three rows before and after each",
        "no jump",
        "debugging guides",
        "a loss that is averaged over the epoch",
        _epoch,
    ),
    Rule(
        "E11",
        "Late generalisation",
        GROUP,
        "",
        SCORES,
        "validation reaches 0.95 after twice the steps that training took to 0.99",
        "none",
        "grokking: a transition, no failure",
        "-",
        _grokking,
    ),
)
