"""Schedule, resumes, configuration, known events."""

from __future__ import annotations

import re

import numpy as np

from trajscope.audit.checks.base import Facts, Found, Rule, finite, first, from_events, median_of
from trajscope.audit.events import number
from trajscope.audit.near import warmup_end
from trajscope.detect.reset import deliberate_reset

__all__ = ["RULES"]

GROUP = "schedule and configuration"
BESIDE = 50
"""Rows beside a resume that are compared."""


def _range(f: Facts) -> Found:
    channel = first(f.run, "lr")
    assert channel is not None  # noqa: S101 - needs
    y, _ = finite(channel)
    if not y.size:
        return Found("not enough history", "no finite value")
    text = f"{number(float(y.min()))} to {number(float(y.max()))}"
    return Found("info" if y.max() > 0.5 or y.max() < 1e-8 else "pass", text)


def _jumps(f: Facts) -> Found:
    return from_events(f.of("lr"), "none")


def _after_warmup(f: Facts) -> Found:
    channel = first(f.run, "lr")
    assert channel is not None  # noqa: S101 - needs
    end = warmup_end(channel)
    if end is None:
        return Found("pass", "no warm-up in the logged rate")
    start = float(channel.steps[0])
    hits = [e for e in f.events if e.severity != "info" and end <= e.step <= start + 3 * (end - start)]
    text = f"the rate peaks at step {number(end)}; {len(hits)} events in the two warm-up lengths after it"
    return Found("info" if hits else "pass", text, tuple(e.step for e in hits))


def _resumes(f: Facts) -> Found:
    return from_events(f.of("resume"), "one uninterrupted session")


def _beside_resumes(f: Facts) -> Found:
    """Loss beside each resume: below its trend points to repeated data, above it to state that was not restored."""
    resumes = f.of("resume")
    channel = first(f.run, "loss")
    if not resumes:
        return Found("pass", "no resume")
    if channel is None:
        return Found("not observable", "loss: not in the log")
    y, steps = finite(channel)
    said = []
    for e in resumes:
        row = int(np.searchsorted(steps, e.step))
        before, after = y[max(0, row - BESIDE) : row], y[row : row + BESIDE // 2]
        if before.size < 20 or after.size < 5:
            continue
        noise = 1.4826 * median_of(np.abs(before - median_of(before)))
        z = (median_of(after) - median_of(before)) / noise if noise > 0 else 0.0
        if abs(z) > 4:
            cause = (
                "below it: repeated data, or a rate that fell"
                if z < 0
                else "above it: data order, optimizer, schedule, loss scale or random state not restored"
            )
            said.append((e.step, f"at step {number(e.step)} the loss goes on {abs(z):.0f} robust sd {cause}"))
    if not said:
        return Found("pass", f"the loss goes on where it was after {len(resumes)} resume{'s' * (len(resumes) > 1)}")
    return Found("info", said[0][1], tuple(s for s, _ in said))


def _changed(f: Facts) -> Found:
    channel = first(f.run, "batch_size")
    assert channel is not None  # noqa: S101 - needs
    y, steps = finite(channel)
    rows = np.flatnonzero(np.diff(y) != 0) + 1
    if not rows.size:
        return Found("pass", f"{number(float(y[0]))} throughout")
    return Found(
        "info", f"changes {rows.size} times, first at step {number(float(steps[rows[0]]))}", tuple(steps[rows])
    )


def _reset(f: Facts) -> Found:
    if not any(e.severity != "info" for e in f.events):
        return Found("pass", "the loss never returns to its start together with the schedule")
    found = deliberate_reset(f.run)
    if found.verdict == "none":
        return Found("pass", "the loss never returns to its start together with the schedule")
    if found.verdict == "cannot tell":
        return Found("info", found.reason, tuple(float(s) for s in found.steps))
    return Found("info", f"a deliberate reset: {found.reason}", tuple(float(s) for s in found.steps))


def _cohort(_: Facts) -> Found:
    return Found("not observable", "one run cannot show it; `trajscope compare` and the index of several runs do")


def _known(f: Facts) -> Found:
    if not f.known:
        return Found("not observable", "no known events were given (--events)")
    reach = 2 * max((c.stride for c in f.judged if np.isfinite(c.stride)), default=1.0)
    near = [k for k in f.known if any(abs(e.step - k) <= reach for e in f.events)]
    text = f"{len(near)} of {len(f.known)} known events have something in the log beside them"
    others = sorted({e.step for e in f.events if e.severity in ("fail", "watch")})
    left = [s for s in others if all(abs(s - k) > reach for k in f.known)]
    if others and left:
        text += f"; {len(left)} of {len(others)} steps worth a look are not explained, first {number(left[0])}"
    elif f.events:
        text += "; nothing that is worth a look is left unexplained"
    return Found("info", text, tuple(left or near))


_TOKENS = re.compile(r"(^|[._/])(global_?batch_?size|tokens_?per_?(step|batch))$", re.IGNORECASE)


def _batch(f: Facts) -> Found:
    channel = first(f.run, "tokens")
    assert channel is not None  # noqa: S101 - needs
    y, steps = finite(channel)
    declared = [v for k, v in f.run.config.items() if _TOKENS.search(str(k)) and isinstance(v, int | float)]
    if y.size < 2 or not steps[-1] > steps[0]:
        return Found("not enough history", f"{y.size} values")
    seen = float((y[-1] - y[0]) / (steps[-1] - steps[0]))
    if not declared:
        return Found("info", f"{number(round(seen, 3))} a step; the configuration does not say what was meant")
    same = any(abs(seen / v - 1) < 0.02 for v in declared if v)
    text = f"{number(round(seen, 3))} a step, {number(float(declared[0]))} in the configuration"
    return Found("pass" if same else "info", text)


def _sweep(f: Facts) -> Found:
    lr, loss = first(f.run, "lr"), first(f.run, "loss")
    assert lr is not None and loss is not None  # noqa: S101, PT018 - needs
    common, i, j = np.intersect1d(lr.steps, loss.steps, return_indices=True)
    rate, y = lr.values[i].astype(np.float64), loss.values[j].astype(np.float64)
    rising = common.size >= 20 and bool(np.all(np.diff(rate) >= 0)) and rate[0] > 0 and rate[-1] / rate[0] >= 100
    if not rising:
        return Found("pass", "no sweep of the learning rate")
    lowest = int(np.nanargmin(np.where(np.isfinite(y), y, np.inf)))
    return Found("info", f"a sweep of the rate: lowest loss at {number(float(rate[lowest]))}", (float(common[lowest]),))


LR = (("lr",),)
RULES = (
    Rule(
        "D1",
        "Range of the learning rate",
        GROUP,
        "optimization",
        LR,
        "largest above 0.5 or below 1e-8",
        "between",
        "UMLAUT (there 0.01 and 1e-7, which SGD and Muon exceed)",
        "optimizers with other units",
        _range,
    ),
    Rule(
        "D2",
        "Learning-rate jumps",
        GROUP,
        "optimization",
        LR,
        "by a factor of two beyond the moves beside it",
        "none beyond the schedule",
        "IDEFICS: a schedule that silently restarted",
        "cosine restarts",
        _jumps,
    ),
    Rule(
        "D3",
        "Events after the warm-up",
        GROUP,
        "optimization",
        LR,
        "within two warm-up lengths of its end",
        "none",
        "BigScience tr8",
        "events are frequent there anyway: see the null under triage",
        _after_warmup,
    ),
    Rule(
        "D4",
        "Resumes",
        GROUP,
        "",
        (),
        "new sessions and steps that are run again",
        "each one explained",
        "IDEFICS; issues of trainers",
        "preemption",
        _resumes,
    ),
    Rule(
        "D5",
        "Loss beside resumes",
        GROUP,
        "environment/data",
        (),
        "4 robust sd between 50 rows before and 25 after",
        "goes on where it was",
        "ml-engineering gallery of loss curves",
        "a rate that changed with the resume",
        _beside_resumes,
    ),
    Rule(
        "D6",
        "Batch size",
        GROUP,
        "environment/data",
        (("batch_size",),),
        "changes",
        "constant",
        "Marin, GLM-130B: the loss steps with it",
        "schedules of the batch size",
        _changed,
        "log batch size and data mixture",
    ),
    Rule(
        "D7",
        "Deliberate reset",
        GROUP,
        "",
        (("loss", "val_loss"),),
        "loss and schedule return to their start at once",
        "none",
        "AlgoPerf; this project",
        "without a rate in the log it cannot be told",
        _reset,
    ),
    Rule(
        "D8",
        "Configuration of failed runs",
        GROUP,
        "",
        (),
        "keys in which failed and healthy runs differ",
        "named, with what always changes together",
        "this project",
        "confounded keys",
        _cohort,
    ),
    Rule(
        "D9",
        "Known events",
        GROUP,
        "",
        (),
        "events that somebody declared, and what the log shows beside them",
        "each one explained",
        "this project",
        "-",
        _known,
    ),
    Rule(
        "D10",
        "Batch in the log and in the configuration",
        GROUP,
        "optimization",
        (("tokens",),),
        "tokens or samples a step against the configuration",
        "equal within 2 %",
        "training guides",
        "sequence-length curricula",
        _batch,
    ),
    Rule(
        "D11",
        "Learning-rate sweep",
        GROUP,
        "optimization",
        (("lr",), ("loss",)),
        "a rate that only rises, by two decades",
        "described",
        "LR range test (Smith 2017)",
        "-",
        _sweep,
    ),
)
