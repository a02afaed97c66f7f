"""The verdict of an audit, from its facts alone.

* **not healthy**: a collapse or divergence that does not recover, a non-finite loss or metric that stays, or a last
  tenth more than 2 sd below the level before the first event;
* **look closer**: a recovered collapse, a spike, dip or change in a performance or loss channel that no known event
  explains, a fall that the log ends on;
* **healthy**: none of these, with performance and at least one of loss and gradient norm logged over enough rows;
* **cannot tell**: otherwise, and where the source is sampled and nothing bad was seen.
"""

from __future__ import annotations

import numpy as np

from trajscope.audit.checks import Facts
from trajscope.audit.events import gravity, number

__all__ = ["VERDICTS", "decide"]

#: Verdicts from best to worst; "cannot tell" stands apart.
VERDICTS = ("healthy", "look closer", "not healthy", "cannot tell")


def decide(f: Facts) -> tuple[str, tuple[str, ...], str]:
    """Verdict, reasons (sentences, the gravest first) and strength of evidence (one sentence)."""
    name = f.performance.name if f.performance is not None else ""
    ranked = sorted(f.events, key=lambda e: (e.channel != name, gravity(e), e.step))
    failures = [e.sentence for e in ranked if e.severity == "fail"]
    if np.isfinite(f.deficit) and f.deficit > f.settings.lasting_sd and f.performance is not None and not failures:
        failures.append(f"{f.performance.name} ends {f.deficit:.1f} sd below the level it had before the first event.")
    watched = [e.sentence for e in ranked if e.severity == "watch"]
    if failures:
        return "not healthy", tuple(failures), _strength(f)
    if watched:
        return "look closer", tuple(watched), _strength(f)
    reason = _undecided(f)
    if reason:
        return "cannot tell", (reason,), "None: the log does not carry what a verdict needs."
    assert f.performance is not None  # _undecided saw to it  # noqa: S101
    n = int(np.count_nonzero(np.isfinite(f.performance.values)))
    watchers = ", ".join(c.name for c in f.judged)
    return (
        "healthy",
        (f"No collapse, no non-finite value, no unexplained spike or change in {watchers}.",),
        f"{n} values of {f.performance.name}; tests at a family-wise level of {f.settings.alpha:g}.",
    )


def _undecided(f: Facts) -> str:
    """Why nothing bad seen does not mean healthy; empty where it does."""
    if f.run.sampled:
        return "The source holds only a sample of what was logged, so short events may be missing."
    if not f.run.n_points:
        return "The log holds no values."
    if f.performance is None:
        return "No channel measures performance (name one with --performance NAME:max or NAME:min)."
    rows = int(np.count_nonzero(np.isfinite(f.performance.values)))
    dynamics = [c for r in ("loss", "grad_norm", "policy_loss", "value_loss") for c in f.run.by_role(r)]
    longest = max((int(np.count_nonzero(np.isfinite(c.values))) for c in dynamics), default=0)
    if not dynamics:
        return "Neither a training loss nor a gradient norm is logged."
    if max(rows, longest) < f.settings.min_rows:
        most = max(rows, longest)
        return f"Only {most} row{'s' * (most != 1)} logged; {f.settings.min_rows} are needed to call a run healthy."
    if f.collapse is not None and f.collapse.kind == "cannot tell":
        return f"{f.performance.name}: {f.collapse.reason}"
    if f.collapse is not None and f.collapse.kind == "not learned":
        return f"{f.performance.name} never rose clearly above its start, so there was nothing that could be lost."
    return ""


def _strength(f: Facts) -> str:
    bad = [e for e in f.events if e.severity in ("fail", "watch")]
    sizes = [e.strength for e in bad if np.isfinite(e.strength)]
    names = sorted({e.channel for e in bad if e.channel})
    parts = []
    if sizes:
        parts.append(f"the largest excursion is {number(round(max(sizes)))} robust sd")
    if len(names) > 1:
        parts.append(f"{len(names)} channels agree ({', '.join(names[:4])})")
    elif names:
        parts.append(f"seen in {names[0]} alone")
    if any(e.kind == "non-finite" for e in bad):
        parts.append("a non-finite value needs no statistics")
    word = "Strong" if (sizes and max(sizes) > 10 and len(names) > 1) or not sizes else "Moderate"
    return f"{word}: {'; '.join(parts)}." if parts else f"{word}."
