"""The log itself, the meta-state, several channels together, and what logs of scalars cannot show."""

from __future__ import annotations

import re

import numpy as np

from trajscope.audit.checks.base import Facts, Found, Rule, finite, from_events
from trajscope.audit.events import number
from trajscope.errors import NotEnoughData

__all__ = ["RULES"]

GROUP = "log and meta-state"
SHIFTS = 199
"""Circular shifts behind coordinated drift."""


def _meta(f: Facts) -> Found:
    m = f.meta
    if m.reason:
        return Found("not observable" if "channels" in m.reason else "not enough history", m.reason)
    if m.left is None:
        return Found("info", f"{m.n_components} components of {len(m.names)} channels; D stayed")
    return Found("info", f"D leaves its band at step {number(m.left)}", (m.left,))


def _alarms(f: Facts) -> Found:
    if f.thresholds is None:
        return Found("not observable", "no thresholds were given (--thresholds, made with `trajscope calibrate`)")
    t = f.thresholds
    found = from_events(f.of("alarm"), "none")
    rate = f"{t.alpha:g} alarms a healthy run, {t.alarms_per_1000:.3g} per 1,000 steps on {t.n_calibration} of them"
    return Found(found.result, f"{found.text} ({rate})", found.steps)


def _reference(f: Facts) -> Found:
    band = f.reference
    if band is None:
        return Found("not observable", "no healthy runs to compare with were given (--reference)")
    try:
        test = band.test(f.run)
    except NotEnoughData as problem:
        return Found("not observable", str(problem))
    found = from_events(
        f.of("reference"), f"stays inside ({test.statistic:.1f} sd at most, {test.threshold:.1f} allowed)"
    )
    how = "" if band.exact else "; so few that the level is extrapolated"
    rest = "" if test.share > 0.99 else f"; covers {test.share:.0%} of their steps"
    text = f"{found.text.rstrip('.')} ({len(band.names)} runs at a level of {band.alpha:g}{how}{rest})"
    return Found(found.result, text, found.steps)


def _together(f: Facts) -> Found:
    wanted: dict[str, tuple[str, ...]] = {
        "loss": ("loss",),
        "learning rate": ("lr",),
        "gradient norm": ("grad_norm",),
        "validation": ("val_loss", "val_accuracy", "val_error", "eval_return", "val_perplexity"),
    }
    missing = [label for label, roles in wanted.items() if not any(f.run.by_role(r) for r in roles)]
    return Found("info", f"not logged: {', '.join(missing)}") if missing else Found("pass", "all four")


def _source(f: Facts) -> Found:
    lost = [p for p in f.run.problems if p.severity != "info"]
    if not lost:
        return Found("pass", "read without loss")
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    return Found("info", f"{lost[0]}{more}")


def _density(f: Facts) -> Found:
    strides = [(c.stride, c.name) for c in f.judged if np.isfinite(c.stride)]
    if not strides:
        return Found("not enough history", "no channel with two rows")
    stride, name = min(strides)
    if stride <= 1:
        return Found("pass", f"{name} is logged at every step")
    return Found("info", f"{name} is logged every {number(stride)} steps: shorter events can be missed")


def _ranks(f: Facts) -> Found:
    ranks = [c for c in f.run.channels.values() if re.search(r"rank[_/.-]?\d+", c.name, re.IGNORECASE) and len(c) >= 20]
    if len(ranks) < 2:
        return Found("not observable", "no channel of single workers")
    common = ranks[0].steps
    for c in ranks[1:]:
        common = np.intersect1d(common, c.steps)
    if common.size < 20:
        return Found("not enough history", "workers share too few steps")
    table = np.array([c.values[np.searchsorted(c.steps, common)].astype(np.float64) for c in ranks])
    spread = np.nanstd(table, axis=0) / np.maximum(np.abs(np.nanmean(table, axis=0)), 1e-300)
    worst = int(np.nanargmax(spread))
    text = f"workers differ by {np.nanmedian(spread):.1%} as a rule, by {spread[worst]:.1%} at most"
    return Found("info", text, (float(common[worst]),))


def _drift(f: Facts) -> Found:
    """Mean absolute correlation of channels in the rows before the first event, against circular shifts."""
    first = min((e.step for e in f.events if e.severity in ("fail", "watch")), default=None)
    if f.settings.profile == "fast":
        return Found("info", "not computed in the fast profile")
    if first is None:
        return Found("info", "no event to look before")
    columns = []
    for c in f.run.channels.values():
        y, steps = finite(c)
        before = y[steps < first][-100:]
        if c.role and c.role not in ("step", "epoch", "lr") and before.size == 100 and np.ptp(before) > 0:
            columns.append(before)
    if len(columns) < 3:
        return Found("not enough history", "fewer than three channels with a hundred rows before the first event")
    x = np.array(columns[:12])
    x = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    pairs = np.triu_indices(x.shape[0], 1)

    def together(z: np.ndarray) -> float:
        return float(np.abs(z @ z.T / z.shape[1])[pairs].mean())

    rng, seen = np.random.default_rng(f.settings.seed), together(x)
    null = [together(np.array([np.roll(row, s) for row, s in zip(x, rng.integers(0, 100, len(x)), strict=True)]))
            for _ in range(SHIFTS)]  # fmt: skip
    p = (1 + sum(v >= seen for v in null)) / (1 + SHIFTS)
    text = (
        f"mean absolute correlation {seen:.2f} in the hundred rows before, {np.mean(null):.2f} by chance (p = {p:.2g})"
    )
    return Found("info", text, (first,))


def _abrupt(f: Facts) -> Found:
    if f.collapse is None:
        return Found("not observable", "no channel measures performance")
    if not f.collapse.episodes:
        return Found("pass", "no collapse")
    e = f.collapse.episodes[0]
    if not np.isfinite(e.width):
        return Found("not enough history", "too few evaluations beside the fall")
    low, high = number(round(e.width_low, 1)), number(round(e.width_high, 1))
    text = f"falls over {number(round(e.width, 1))} evaluations (95 % interval {low} to {high})"
    return Found("info", text, (float(e.onset),))


def _blind(id: str, title: str, axis: str, why: str, advice: str) -> Rule:
    return Rule(
        id, title, "not in logs of scalars", axis, (), why, "-", "guides on training and debugging", "-", None, advice
    )


RULES = (
    Rule(
        "M1",
        "Meta-state (own baseline)",
        GROUP,
        "",
        (),
        "distance from the rows between 5 and 25 % of the run",
        "D within three times its baseline 95 % point",
        "this project",
        "no false-alarm rate can be claimed",
        _meta,
        "log three or more of loss, gradient norm, update norm, parameter norm",
    ),
    Rule(
        "R1",
        "Beside healthy siblings",
        GROUP,
        "",
        (),
        "leaves the band of reference runs, simultaneous over steps and channels, with a floor of noise",
        "inside",
        "this project; largest distance of each reference from the others",
        "references of other settings; at a level of 5 % 4 to 7 % of recorded control runs beside 4 to 20 siblings",
        _reference,
        "give healthy runs of the same settings with --reference",
    ),
    Rule(
        "AL",
        "Calibrated monitors",
        GROUP,
        "",
        (),
        "monitors with thresholds from your own healthy runs",
        "no alarm",
        "this project",
        "runs of another kind or longer than those",
        _alarms,
    ),
    Rule(
        "COV",
        "What is logged together",
        GROUP,
        "",
        (),
        "loss, learning rate, gradient norm, validation",
        "all four",
        "training guides",
        "-",
        _together,
    ),
    Rule(
        "SRC",
        "The log itself",
        GROUP,
        "",
        (),
        "lines and files that could not be read",
        "read without loss",
        "this project",
        "-",
        _source,
    ),
    Rule(
        "DEN",
        "Density of the log",
        GROUP,
        "",
        (),
        "steps between rows",
        "every step",
        "debugging guides",
        "-",
        _density,
    ),
    Rule(
        "G1",
        "Workers",
        GROUP,
        "optimization",
        (),
        "spread of loss and gradient norm over ranks",
        "described",
        "arXiv 2602.14462",
        "-",
        _ranks,
        "log loss and gradient norm of each worker",
    ),
    Rule(
        "G2",
        "Channels that drift together",
        GROUP,
        "",
        (),
        "mean absolute correlation before the first event against 199 circular shifts",
        "described",
        "this project",
        "common trends",
        _drift,
    ),
    Rule(
        "G3",
        "Abruptness of the fall",
        GROUP,
        "",
        (),
        "width of the transition, likelihood of a jump against a drift",
        "described",
        "this project",
        "-",
        _abrupt,
    ),
    _blind(
        "C10",
        "Variance of tensors, initialisation",
        "parametric",
        "statistics of single layers and of the first steps are not in a log of scalars",
        "log norms and variances of each layer for the first ten steps",
    ),
    _blind(
        "C11",
        "Dead and saturated units",
        "parametric",
        "activations are not in a log of scalars",
        "log the share of dead and of saturated units of each layer",
    ),
    _blind(
        "E7",
        "Input scale, class balance, padding",
        "environment/data",
        "inputs and labels are not in a log of scalars",
        "log mean and range of the inputs, class shares, share of padding",
    ),
    _blind(
        "E8",
        "Leakage, label targets, invalid outputs",
        "environment/data",
        "labels and folds are not in a log of scalars",
        "check hashes of samples between folds; log the loss of shuffled labels once",
    ),
    _blind(
        "X1",
        "Mode of the model at evaluation",
        "environment/data",
        "training and evaluation mode look alike",
        "evaluate on a part of the training data too",
    ),
    _blind(
        "X2",
        "Preprocessing of training and validation",
        "environment/data",
        "preprocessing is code, not a scalar",
        "log a hash of the preprocessing configuration, and statistics of both inputs",
    ),
    _blind(
        "X3",
        "Placement of norms and residual paths",
        "parametric",
        "architecture is not in a log of scalars",
        "keep the architecture with the configuration",
    ),
    _blind(
        "X4",
        "Which part of the state a resume lost",
        "optimization",
        "optimizer and random state look alike in the loss",
        "log step counter, loss scale and norms of the optimizer's moments beside the loss",
    ),
    _blind(
        "X5",
        "Versions and nondeterminism",
        "",
        "they show only over repeats of one seed",
        "run one seed twice and compare (`trajscope compare`); keep versions in the configuration",
    ),
)
