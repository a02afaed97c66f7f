"""Level of loss and performance: collapse, changes, spikes, and the rules that are in use elsewhere."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling import trailing_mean_std
from trajscope.audit.checks.base import Facts, Floats, Found, Rule, finite, first, from_events, median_of
from trajscope.audit.events import number
from trajscope.history.roles import BIGGER_IS_BETTER

__all__ = ["RULES"]

GROUP = "level"
SCORES = tuple(role for role, bigger in BIGGER_IS_BETTER.items() if bigger)
EARLY = 0.05
"""Share of the run that counts as its beginning (Google's tuning playbook)."""


def _collapse(f: Facts) -> Found:
    if f.collapse is None:
        return Found("not observable", "no channel measures performance")
    if f.collapse.kind == "cannot tell":
        return Found("not enough history", f.collapse.reason)
    none = "never lost half of what it had learned" if f.collapse.kind == "none" else f.collapse.reason
    return from_events(f.of("collapse", "divergence"), none)


def _final_level(f: Facts) -> Found:
    if not np.isfinite(f.deficit):
        return Found("info", "no event to recover from")
    if f.deficit > f.settings.lasting_sd:
        return Found("fail", f"the last tenth lies {f.deficit:.1f} sd below the level before the first event")
    if f.deficit < 0:
        return Found("pass", "the last tenth lies above the level before the first event")
    return Found("pass", f"the last tenth lies {f.deficit:.1f} sd below the level before the first event")


def _changes(f: Facts) -> Found:
    if not f.judged:
        return Found("not observable", "no loss or performance channel")
    if max(len(c) for c in f.judged) < f.settings.min_rows:
        return Found("not enough history", "too few rows to test")
    return from_events(f.of("change"), "none that chance would not give")


def _spikes(f: Facts) -> Found:
    if not f.judged:
        return Found("not observable", "no loss or performance channel")
    return from_events(f.of("spike", "dip"), "none")


def _loss(f: Facts) -> tuple[Floats, NDArray[np.float64]]:
    channel = first(f.run, "loss", "val_loss")
    assert channel is not None  # noqa: S101 - needs
    return finite(channel)


def _fires(f: Facts, rule: str) -> Found:
    """How often a rule of practice would have fired on the training loss."""
    y, steps = _loss(f)
    window = {"kill": 100, "sigma": 128, "score": 1000, "order": 100, "ratio": 9}[rule]
    if y.size <= window:
        return Found("not enough history", f"{y.size} rows; the rule looks back {window}")
    if rule == "order":
        top = float(np.abs(y[:window]).max())
        hit = np.zeros(y.size, dtype=bool)
        hit[window:] = np.abs(y[window:]) >= 10 * top
    elif rule == "ratio":
        hit = _ewm_hits(y)
    else:
        mean, sd = trailing_mean_std(y, window, min_count=window, include=False)
        with np.errstate(invalid="ignore"):
            if rule == "kill":
                over = (y >= 2 * mean) & (mean > 0)
                hit = np.convolve(over, np.ones(5), "full")[: y.size] >= 5
            else:
                hit = y - mean > (6 if rule == "sigma" else 7) * np.maximum(sd, 1e-12 * np.abs(mean))
    rows = np.flatnonzero(hit)
    if not rows.size:
        return Found("pass", "does not fire")
    share = f" ({rows.size / y.size:.2%} of rows)" if rule == "score" else ""
    times = f"fires on {rows.size} row{'s' * (rows.size > 1)}{share}"
    return Found("info", f"{times}, first at step {number(float(steps[rows[0]]))}", tuple(steps[rows].tolist()))


def _ewm_hits(y: Floats, ratio: float = 1.25, span: int = 9, most: int = 50) -> NDArray[np.bool_]:
    """Rows beyond ``ratio`` times an exponential mean that does not learn from them, for ``most`` rows at the most."""
    hit = np.zeros(y.size, dtype=bool)
    weight, mean, held = 2 / (span + 1), float(y[0]), 0
    for i, value in enumerate(y.tolist()):
        over = i >= span and mean > 0 and value > ratio * mean
        hit[i] = over
        held = held + 1 if over else 0
        if not over or held > most:
            mean += weight * (value - mean)
    return hit


def _high(f: Facts) -> Found:
    y, steps = _loss(f)
    if y.size < 200:
        return Found("not enough history", f"{y.size} rows; 200 are needed")
    share = float(np.mean(y[-100:] > 10))
    text = f"{share:.0%} of the last 100 losses lie above 10"
    return Found("info" if share > 0.5 else "pass", text, (float(steps[-100]),) if share > 0.5 else ())


def _sign(f: Facts) -> Found:
    y, steps = _loss(f)
    large, negative = np.flatnonzero(y >= 1e3), np.flatnonzero(y < 0)
    said = [f"{r.size} values {w}" for r, w in ((large, "of 1,000 or more"), (negative, "below 0")) if r.size]
    rows = np.concatenate([large, negative])
    return Found("info", " and ".join(said), tuple(steps[np.sort(rows)].tolist())) if said else Found("pass", "neither")


def _stuck(f: Facts) -> Found:
    y, _ = _loss(f)
    if y.size < 50:
        return Found("not enough history", f"{y.size} rows; 50 are needed")
    tenth = max(5, y.size // 10)
    start, end, best = median_of(y[:tenth]), median_of(y[-tenth:]), median_of(np.sort(y)[:tenth])
    if end >= start:
        return Found("watch", f"the last tenth ({number(end)}) lies no lower than the first ({number(start)})")
    return Found("pass", f"from {number(start)} to {number(end)}, best {number(best)}")


def _oscillates(f: Facts) -> Found:
    channel = first(f.run, "val_accuracy", "accuracy")
    assert channel is not None  # noqa: S101 - needs
    y, _ = finite(channel)
    if y.size < 20:
        return Found("not enough history", f"{y.size} evaluations; 20 are needed")
    turns = y[np.flatnonzero(np.diff(np.sign(np.diff(y))) != 0) + 1]
    share = float(np.count_nonzero(np.abs(np.diff(turns)) >= 0.03 * max(1.0, np.ptp(y)))) / y.size
    return Found("info" if share > 0.2 else "pass", f"{share:.0%} of evaluations turn by 0.03 or more")


def _ends_high(f: Facts) -> Found:
    y, _ = _loss(f)
    if y.size < 50:
        return Found("not enough history", f"{y.size} rows; 50 are needed")
    tenth = max(5, y.size // 10)
    start, best, end = median_of(y[:5]), median_of(np.sort(y)[:tenth]), median_of(y[-tenth:])
    if not start > best:
        return Found("pass", "the loss never fell, so there is nothing that could be lost")
    back = (end - best) / (start - best)
    return Found("watch" if back > 0.5 else "pass", f"{max(back, 0):.0%} of the descent is lost at the end")


def _early(f: Facts) -> Found:
    y, steps = _loss(f)
    rows = int(EARLY * y.size)
    if rows < 30:
        return Found("not enough history", f"{rows} rows in the first 5 % of the run; 30 are needed")
    head = y[:rows]
    low = np.minimum.accumulate(head)
    if low[-1] <= 0:
        return Found("not observable", "the loss is not positive")
    worst = int(np.argmax(head / low))
    ratio = float(head[worst] / low[worst])
    text = f"in its first {rows} rows the loss rises to {ratio:.2f} times what it had reached"
    return Found("info" if ratio >= 2 else "pass", text, (float(steps[worst]),) if ratio >= 2 else ())


def _covered(_: Facts) -> Found:
    return Found("info", "answered by spikes (B5) and changes (CP), whose false alarms are known")


def _unset(_: Facts) -> Found:
    return Found("not observable", "no bound was given ([[rule]] in the settings file)")


_PRACTICE = "shown for comparison; it never moves the verdict"
RULES = (
    Rule(
        "F8",
        "Collapse of performance",
        GROUP,
        "",
        (),
        "loses half of what it had learned and 7 robust sd for three evaluations",
        "none",
        "definitions of this project; drawdown in Dopamine and SB3 zoo runs",
        "games with sparse rewards",
        _collapse,
        "log a validation score or a return",
    ),
    Rule(
        "B12",
        "Level after the event",
        GROUP,
        "",
        (),
        "median of the last tenth against 25 evaluations before the first event, in their sd",
        "within 2 sd of the level before",
        "IDEFICS: instant spikes recover, slow drifts do not",
        "a task whose level drifts by itself",
        _final_level,
    ),
    Rule(
        "CP",
        "Level, slope and noise",
        GROUP,
        "",
        (),
        "change points at a family-wise level over the run",
        "no change",
        "this project",
        "curricula and schedules, which are changes",
        _changes,
        "log loss and validation more often",
    ),
    Rule(
        "B5",
        "Spikes",
        GROUP,
        "optimization or environment/data",
        (),
        "excursions from one-step predictions, 5.25 robust sd and more where tails are heavy",
        "none",
        "this project; MAD z of a public W&B watcher",
        "noise with heavy tails",
        _spikes,
        "log the loss of every step",
    ),
    Rule(
        "B1",
        "Rule: loss doubles",
        GROUP,
        "optimization",
        (("loss", "val_loss"),),
        "twice the mean of 100 rows, five times in a row",
        "does not fire",
        "llm-foundry KillLossSpike",
        f"finds 0 of 260 labelled spikes; {_PRACTICE}",
        partial(_fires, rule="kill"),
    ),
    Rule(
        "B2",
        "Rule: loss above 10",
        GROUP,
        "optimization",
        (("loss", "val_loss"),),
        "half of the last 100 rows above 10",
        "none",
        "llm-foundry",
        "losses in other units",
        _high,
    ),
    Rule(
        "B3",
        "Rule: six sigma",
        GROUP,
        "optimization or environment/data",
        (("loss", "val_loss"),),
        "6 sd above the mean of 128 rows",
        "does not fire",
        "OLMo-core SkipStepOptimizer",
        f"drift; {_PRACTICE}",
        partial(_fires, rule="sigma"),
    ),
    Rule(
        "B4",
        "Spike score",
        GROUP,
        "optimization or environment/data",
        (("loss", "val_loss"),),
        "share of rows 7 sd above the mean of 1,000",
        "0",
        "OLMo 2 (arXiv 2501.00656)",
        "the descent inflates the sd: recall 0.06",
        partial(_fires, rule="score"),
    ),
    Rule(
        "B6",
        "Rule: order of magnitude",
        GROUP,
        "optimization",
        (("loss", "val_loss"),),
        "ten times the largest of the first 100 rows",
        "does not fire",
        "Megatron rerun state machine",
        "cannot fire where the first rows are the largest",
        partial(_fires, rule="order"),
    ),
    Rule(
        "B7",
        "Rule: ratio to a running mean",
        GROUP,
        "optimization or environment/data",
        (("loss", "val_loss"),),
        "1.25 times an exponential mean (span 9) that does not learn from spikes",
        "does not fire",
        "metaseq",
        f"noisy losses; {_PRACTICE}",
        partial(_fires, rule="ratio"),
    ),
    Rule(
        "B8",
        "Watchdog",
        GROUP,
        "optimization",
        (("loss", "val_loss"),),
        "loss above a bound of your own for some rows",
        "your bound",
        "axolotl",
        "depends on the unit",
        _unset,
    ),
    Rule(
        "B9",
        "Large or negative loss",
        GROUP,
        "optimization",
        (("loss", "val_loss"),),
        "1,000 or more, or below 0",
        "neither",
        "AUTOTRAINER",
        "regression units, policy losses, ELBO",
        _sign,
    ),
    Rule(
        "B10",
        "Loss that does not fall",
        GROUP,
        "optimization",
        (("loss",),),
        "last tenth no lower than the first",
        "lower",
        "SageMaker LossNotDecreasing",
        "fine-tuning that begins at its best; RL losses",
        _stuck,
    ),
    Rule(
        "B11",
        "Oscillating score",
        GROUP,
        "optimization",
        (("val_accuracy", "accuracy"),),
        "a fifth of evaluations turn by 0.03",
        "at most a fifth",
        "AUTOTRAINER",
        "small validation sets",
        _oscillates,
    ),
    Rule(
        "B13",
        "Loss that ends high",
        GROUP,
        "optimization",
        (("loss",),),
        "more than half of the descent lost at the end",
        "none",
        "used for collapses in AlgoPerf",
        "curricula that raise the loss",
        _ends_high,
    ),
    Rule(
        "B14",
        "Divergence bound",
        GROUP,
        "",
        (),
        "metric worse than a bound of your own",
        "your bound",
        "Lightning EarlyStopping",
        "your bound",
        _unset,
    ),
    Rule(
        "B15",
        "Metric alerts",
        GROUP,
        "",
        (),
        "z-score or relative change over 30 rows: covered by spikes and changes, which are calibrated",
        "none",
        "W&B automations",
        "seasonal metrics",
        _covered,
    ),
    Rule(
        "B16",
        "Instability at the start",
        GROUP,
        "optimization",
        (("loss",),),
        "in the first 5 % the loss doubles after falling",
        "less than twofold",
        "Google tuning playbook",
        "noisy first batches",
        _early,
        "log every step at the start",
    ),
)
