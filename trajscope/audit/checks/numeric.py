"""Numeric health: values that are no numbers, absent, stale or never alive; loss scale, skipped steps, time."""

from __future__ import annotations

import numpy as np

from trajscope.audit.checks.base import Facts, Found, Rule, finite, first, from_events, median_of
from trajscope.audit.events import number

__all__ = ["RULES"]

GROUP = "numeric health"
WATCHED = ("loss", "grad_norm")
ALIVE = ("loss", "val_loss", "grad_norm", "update_norm", "param_norm", "entropy", "kl", "policy_loss", "value_loss")
STALL_SECONDS = 1800.0


def _nonfinite(f: Facts) -> Found:
    looked = sum(len(c) for c in f.judged)
    if not f.judged:
        return Found("not observable", "no loss, metric or gradient norm")
    return from_events(f.of("non-finite"), f"0 in {looked:,} values")


def _absent(f: Facts) -> Found:
    dense = [c for c in f.run.channels.values() if len(c) >= 50]
    if len(dense) < 2:
        return Found("not enough history", "fewer than two channels with 50 rows")
    ended = {c.name: float(c.steps[-1]) for c in dense}
    last = max(ended.values())
    span = last - min(float(c.steps[0]) for c in dense)
    gone = [
        c
        for c in dense
        if c.role in WATCHED and last - ended[c.name] > max(10 * c.stride, 0.05 * span) and np.isfinite(c.stride)
    ]
    if not gone:
        return Found("pass", "loss and gradient norm are there to the end")
    names = ", ".join(f"{c.name} after step {number(ended[c.name])}" for c in gone)
    return Found("watch", f"not logged any more: {names}, while others go on", tuple(ended[c.name] for c in gone))


def _stale(f: Facts) -> Found:
    hits: list[tuple[float, str]] = []
    for role in WATCHED:
        channel = first(f.run, role)
        if channel is None:
            continue
        y, steps = finite(channel)
        if y.size < 20 or np.unique(y).size < 0.5 * y.size:
            continue  # rounded values repeat by themselves
        same = np.flatnonzero((y[2:] == y[1:-1]) & (y[1:-1] == y[:-2]) & (y[2:] < y.max()))
        hits += [(float(steps[i]), channel.name) for i in same[:20].tolist()]
    if not hits:
        return Found("pass", "no value repeats to all digits for three rows")
    return Found(
        "watch", f"{hits[0][1]} repeats one value to all digits for three rows or more", tuple(h[0] for h in hits)
    )


def _never_alive(f: Facts) -> Found:
    dead = []
    for role in ALIVE:
        for channel in f.run.by_role(role):
            y, _ = finite(channel)
            if y.size >= 20 and np.ptp(y) == 0:
                dead.append(f"{channel.name} is {number(float(y[0]))} throughout")
    return Found("info", "; ".join(dead[:3]) + " and says nothing") if dead else Found("pass", "every channel moves")


def _loss_scale(f: Facts) -> Found:
    channel = first(f.run, "loss_scale")
    assert channel is not None  # noqa: S101 - needs
    y, steps = finite(channel)
    y, steps = y[y > 0], steps[y > 0]
    if y.size < 10:
        return Found("not enough history", f"{y.size} values")
    halved = np.diff(np.log2(y)) <= -0.9
    many = np.convolve(halved, np.ones(10), "valid") if halved.size >= 10 else np.array([halved.sum()])
    rows = np.flatnonzero(many >= 3)
    if rows.size:
        return Found("watch", "the loss scale halves three times or more within ten rows", tuple(steps[rows].tolist()))
    return Found("pass", f"{int(halved.sum())} halvings, never three within ten rows")


def _skipped(f: Facts) -> Found:
    channel = first(f.run, "skipped")
    assert channel is not None  # noqa: S101 - needs
    y, steps = finite(channel)
    if y.size < 20:
        return Found("not enough history", f"{y.size} values")
    skipped = np.diff(y) > 0 if np.all(np.diff(y) >= 0) and y[-1] > 1 else y[1:] > 0
    width = min(100, skipped.size)
    share = np.convolve(skipped, np.ones(width) / width, "valid")
    worst = int(np.argmax(share))
    if share[worst] > 0.05:
        return Found("watch", f"{share[worst]:.0%} of {width} rows skip their step", (float(steps[worst + 1]),))
    return Found("pass", f"at most {share[worst]:.1%} of {width} rows skip their step")


def _stalled(f: Facts) -> Found:
    timed = [c for c in f.run.channels.values() if c.wall_time is not None and len(c) >= 20]
    if not timed:
        return Found("not observable", "no wall time in the log")
    channel = max(timed, key=len)
    assert channel.wall_time is not None  # noqa: S101 - chosen so
    wall = channel.wall_time.astype(np.float64)
    gaps = np.diff(wall)
    usual = median_of(gaps[gaps > 0])
    rows = np.flatnonzero(gaps > max(10 * usual, STALL_SECONDS)) if usual == usual else np.zeros(0, dtype=int)
    if not rows.size:
        return Found("pass", f"rows come every {number(round(usual, 3))} s, none later than half an hour")
    worst = rows[np.argmax(gaps[rows])]
    text = f"{rows.size} gap{'s' * (rows.size > 1)} of more than half an hour, the longest {gaps[worst] / 3600:.1f} h"
    return Found("info", text, tuple(float(channel.steps[r + 1]) for r in rows.tolist()))


def _throughput(f: Facts) -> Found:
    channel = first(f.run, "step_time", "throughput")
    assert channel is not None  # noqa: S101 - needs
    y, steps = finite(channel)
    if y.size < 60:
        return Found("not enough history", f"{y.size} values; 60 are needed")
    ratio = median_of(y[-30:]) / median_of(y) if median_of(y) else float("nan")
    slower = ratio if channel.role == "step_time" else 1 / ratio if ratio else float("inf")
    text = f"the last 30 rows take {slower:.2f} times as long as usual"
    return Found("info" if slower > 1.25 else "pass", text, (float(steps[-30]),) if slower > 1.25 else ())


RULES = (
    Rule(
        "A1",
        "Non-finite values",
        GROUP,
        "optimization",
        (),
        "any NaN or Inf in loss, metric or norm; staying to the end fails",
        "0",
        "Megatron-LM validate_result; Lightning check_finite",
        "mixed precision logs an infinite norm when it skips a step; metrics are undefined early",
        _nonfinite,
        "keep NaN and Inf in the log",
    ),
    Rule(
        "A2",
        "A channel that stops",
        GROUP,
        "learning signal",
        (WATCHED,),
        "loss or gradient norm end 10 rows and 5 % of the run before the other channels",
        "all go on to the end",
        "BigScience tr8 chronicle, line 9027: the loss is left out when it is NaN",
        "a logging interval that was changed",
        _absent,
    ),
    Rule(
        "A3",
        "Stale values",
        GROUP,
        "learning signal",
        (WATCHED,),
        "one float to all digits for three rows, not the largest value of the channel (a cap)",
        "none",
        "seen in Megatron logs: the norm repeats while steps are skipped",
        "rounded or clipped channels",
        _stale,
    ),
    Rule(
        "A4",
        "Channels that never move",
        GROUP,
        "",
        (),
        "one value throughout",
        "every channel moves",
        "BigScience tr1-13B logged a gradient norm of 0.000",
        "constants that are meant",
        _never_alive,
    ),
    Rule(
        "A5",
        "Loss scale",
        GROUP,
        "learning signal",
        (("loss_scale",),),
        "halves three times within ten rows",
        "no run of halvings",
        "metaseq min_loss_scale; GLM-130B: 30 steps before the loss",
        "a restart sets it back",
        _loss_scale,
    ),
    Rule(
        "A6",
        "Skipped steps",
        GROUP,
        "learning signal",
        (("skipped",),),
        "more than 5 % of 100 rows",
        "at most 5 %",
        "mixed-precision guides",
        "the first rows of fp16 training",
        _skipped,
    ),
    Rule(
        "A7",
        "Stalls",
        GROUP,
        "",
        (),
        "a gap of more than 1,800 s and of ten usual ones",
        "none",
        "SageMaker StalledTraining",
        "evaluation, checkpoints, preemption",
        _stalled,
        "log wall time",
    ),
    Rule(
        "A8",
        "Throughput",
        GROUP,
        "",
        (("step_time", "throughput"),),
        "the last 30 rows take 1.25 times the median",
        "at most 1.25",
        "a public W&B watcher: healthy runs reach 1.28",
        "longer sequences, checkpoints",
        _throughput,
    ),
)
