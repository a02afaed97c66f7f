"""The checks of an audit: what is looked for, what was found, what would have been expected.

A check never passes on a channel that is absent: it is then "not observable". The identities are those of the
catalogue in the documentation; each is a function of the `Facts` of one run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trajscope.audit.events import Event, number
from trajscope.audit.meta import Meta
from trajscope.config import Settings
from trajscope.detect.collapse import Collapse
from trajscope.history import Channel, Run
from trajscope.inference.calibrate import Thresholds

__all__ = ["CHECKS", "Check", "Facts", "run_checks"]

#: Results, worst first: the order in which a report shows them.
RESULTS = ("fail", "watch", "info", "pass", "not enough history", "not observable")


@dataclass(frozen=True)
class Check:
    """Outcome of one check.

    Attributes
    ----------
    id, title : str
    axis : str
        Axis of perturbation that a failure would point to: optimization, environment/data, parametric, learning
        signal; empty where it says nothing about it.
    result : str
        One of `RESULTS`.
    found, expected : str
        For a person.
    steps : tuple of float
        Where the evidence lies.
    """

    id: str
    title: str
    axis: str
    result: str
    found: str
    expected: str
    steps: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Facts:
    """Everything the checks and the verdict look at."""

    run: Run
    settings: Settings
    performance: Channel | None
    mode: str
    judged: tuple[Channel, ...]
    collapse: Collapse | None
    deficit: float
    events: tuple[Event, ...]
    meta: Meta
    thresholds: Thresholds | None = None

    def of(self, *kinds: str) -> list[Event]:
        """Events of the given kinds."""
        return [e for e in self.events if e.kind in kinds]


def _outcome(id: str, title: str, axis: str, events: list[Event], none: str, expected: str) -> Check:
    """A check that is as bad as its worst event."""
    if not events:
        return Check(id, title, axis, "pass", none, expected)
    worst = next((s for s in ("fail", "watch", "info") if any(e.severity == s for e in events)), "info")
    shown = [e for e in events if e.severity == worst]
    more = f" (and {len(shown) - 1} more)" if len(shown) > 1 else ""
    return Check(id, title, axis, worst, shown[0].sentence + more, expected, tuple(e.step for e in shown[:20]))


def _absent(id: str, title: str, axis: str, what: str, expected: str) -> Check:
    return Check(id, title, axis, "not observable", f"{what} is not in the log", expected)


def _nonfinite(f: Facts) -> Check:
    looked = sum(len(c) for c in f.judged)
    if not f.judged:
        return _absent("A1", "Non-finite values", "optimization", "no loss, metric or gradient norm", "0")
    return _outcome("A1", "Non-finite values", "optimization", f.of("non-finite"), f"0 in {looked:,} values", "0")


def _collapse(f: Facts) -> Check:
    title, expected = "Collapse of performance", "none"
    if f.collapse is None:
        return _absent("F8", title, "", "a performance channel", expected)
    if f.collapse.kind == "cannot tell":
        return Check("F8", title, "", "not enough history", f.collapse.reason, expected)
    found = f.of("collapse", "divergence")
    none = "never lost half of what it had learned" if f.collapse.kind == "none" else f.collapse.reason
    return _outcome("F8", title, "", found, none, expected)


def _final_level(f: Facts) -> Check:
    title, expected = "Level after the event", f"within {f.settings.lasting_sd:g} sd of the level before"
    if not np.isfinite(f.deficit):
        return Check("B12", title, "", "info", "no event to recover from", expected)
    what = f"the last tenth lies {f.deficit:.1f} sd below the level before the first event"
    if f.deficit > f.settings.lasting_sd:
        return Check("B12", title, "", "fail", what, expected)
    if f.deficit < 0:
        what = "the last tenth lies above the level before the first event"
    return Check("B12", title, "", "pass", what, expected)


def _changes(f: Facts) -> Check:
    title, expected = "Level, slope and noise", f"no change at a family-wise level of {f.settings.alpha:g}"
    if not f.judged:
        return _absent("CP", title, "", "a loss or performance channel", expected)
    if max(len(c) for c in f.judged) < f.settings.min_rows:
        return Check("CP", title, "", "not enough history", "too few rows to test", expected)
    return _outcome("CP", title, "", f.of("change"), "none that chance would not give", expected)


def _spikes(f: Facts) -> Check:
    title, expected = "Spikes", f"none at a family-wise level of {f.settings.alpha:g}"
    if not f.judged:
        return _absent("B5", title, "optimization or environment/data", "a loss or performance channel", expected)
    return _outcome("B5", title, "optimization or environment/data", f.of("spike", "dip"), "none", expected)


def _lr(f: Facts) -> Check:
    title, expected = "Learning-rate jumps", "none beyond the schedule"
    if not f.run.by_role("lr"):
        return _absent("D2", title, "optimization", "the learning rate", expected)
    return _outcome("D2", title, "optimization", f.of("lr"), "none", expected)


def _resumes(f: Facts) -> Check:
    return _outcome("D4", "Resumes", "", f.of("resume"), "one uninterrupted session", "each one explained")


def _meta(f: Facts) -> Check:
    title, expected = "Meta-state (own baseline)", "D within three times its baseline 95 % point"
    m = f.meta
    if m.reason:
        result = "not observable" if "channels" in m.reason else "not enough history"
        return Check("M1", title, "", result, m.reason, expected)
    if m.left is None:
        return Check(
            "M1", title, "", "info", f"{m.n_components} components of {len(m.names)} channels; D stayed", expected
        )
    return Check("M1", title, "", "info", f"D leaves its band at step {number(m.left)}", expected, (m.left,))


def _alarms(f: Facts) -> Check:
    title = "Calibrated monitors"
    if f.thresholds is None:
        return Check("AL", title, "", "info", "no thresholds were given", "thresholds from `trajscope calibrate`")
    t = f.thresholds
    rate = (
        f"{t.alpha:g} alarms a healthy run ({t.alarms_per_1000:.3g} per 1,000 steps on the {t.n_calibration} of them)"
    )
    return _outcome("AL", title, "", f.of("alarm"), "none", rate)


def _together(f: Facts) -> Check:
    wanted: dict[str, tuple[str, ...]] = {
        "loss": ("loss",),
        "learning rate": ("lr",),
        "gradient norm": ("grad_norm",),
        "validation": ("val_loss", "val_accuracy", "val_error", "eval_return", "val_perplexity"),
    }
    missing = [label for label, roles in wanted.items() if not any(f.run.by_role(r) for r in roles)]
    expected = "loss, learning rate, gradient norm and validation"
    if missing:
        return Check("COV", "What is logged together", "", "info", f"not logged: {', '.join(missing)}", expected)
    return Check("COV", "What is logged together", "", "pass", "all four", expected)


def _source(f: Facts) -> Check:
    lost = [p for p in f.run.problems if p.severity != "info"]
    if not lost:
        return Check("SRC", "The log itself", "", "pass", "read without loss", "read without loss")
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    return Check("SRC", "The log itself", "", "info", f"{lost[0]}{more}", "read without loss")


#: Every check, in the order in which equal results are shown.
CHECKS: tuple[Callable[[Facts], Check], ...] = (
    _nonfinite,
    _collapse,
    _final_level,
    _changes,
    _spikes,
    _lr,
    _resumes,
    _meta,
    _alarms,
    _together,
    _source,
)


def run_checks(facts: Facts) -> tuple[Check, ...]:
    """All checks, the worst first."""
    return tuple(sorted((check(facts) for check in CHECKS), key=lambda c: RESULTS.index(c.result)))
