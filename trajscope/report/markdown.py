"""The audit as Markdown, for issues, notes and pull requests."""

from __future__ import annotations

import re
from typing import Any

from trajscope.audit.events import number
from trajscope.audit.run import Audit
from trajscope.report.words import RESULT_MARKS, VERDICT_MARKS, VERDICT_WORDS

__all__ = ["escape", "run_page"]


def escape(text: str) -> str:
    """Text from a log that Markdown (and HTML inside it) takes as text.

    >>> escape("a|b <img> *x*")
    'a\\\\|b &lt;img&gt; \\\\*x\\\\*'
    """
    flat = " ".join(text.split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", flat)


def _next(t: dict[str, Any]) -> list[str]:
    """What to look at next, where something is worth a look."""
    if not t["event"] or not t["next_steps"]:
        return []
    lines = ["## What to look at next", "", *(f"{i}. {escape(x)}" for i, x in enumerate(t["next_steps"], 1)), ""]
    parts = (("Moved first", t["first_mover"]), ("Axis", t["axis"]))
    lines += [f"- {head}: {escape(part['reason'])}" for head, part in parts if part]
    lines += [f"- {k['name']} (weight {k['weight']}): {escape(' '.join(k['evidence'][:2]))}" for k in t["kinds"]]
    return [*lines, ""]


def run_page(audit: Audit) -> str:
    """One run on one page."""
    s = audit.to_dict()
    lines = [
        f"# {VERDICT_MARKS[s['verdict']]} {VERDICT_WORDS[s['verdict']]}: {escape(s['run'])}",
        "",
        *(f"{escape(r)}" for r in s["reasons"][:2]),
        "",
        f"Strength of evidence: {escape(s['strength'])}",
        "",
        "## What happened",
        "",
        *(f"{i}. {escape(line)}" for i, line in enumerate(s["what_happened"], 1)),
        "",
        *_next(s["triage"]),
        "## Checks",
        "",
        "| Result | Check | Found | Expected | Id |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {RESULT_MARKS[c['result']]} {c['result']} | {escape(c['title'])} | {escape(c['found'])} |"
        f" {escape(c['expected'])} | {c['id']} |"
        for c in s["checks"]
    ]
    lines += ["", "## What this audit cannot see", "", *(f"- {escape(line)}" for line in s["unseen"])]
    if s["problems"]:
        lines += ["", "## What reading the log met", ""]
        for p in s["problems"]:
            where = ", ".join(x for x in (p["file"], p["place"]) if x)
            lines.append(f"- {p['severity']}: {escape(p['message'])}" + (f" ({escape(where)})" if where else ""))
    lines += [
        "",
        "## Channels",
        "",
        "| Channel | Role | Points | First step | Last step | NaN | +Inf | -Inf | Empty |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for c in s["channels"]:
        first, last = ("", "") if c["first_step"] is None else (number(c["first_step"]), number(c["last_step"]))
        lines.append(
            f"| {escape(c['name'])} | {c['role'] or '–'} | {c['points']} | {first} | {last} | {c['nan']} |"
            f" {c['posinf']} | {c['neginf']} | {c['missing']} |"
        )
    lines += ["", f"Settings {s['settings_hash']}, trajscope {s['provenance']['versions']['trajscope']}.", ""]
    return "\n".join(lines)
