"""The audit on a terminal: verdict, what happened, the checks that are not passes."""

from __future__ import annotations

from trajscope.audit.run import Audit
from trajscope.report.words import RESULT_MARKS, VERDICT_MARKS, VERDICT_WORDS

__all__ = ["run_page"]

_COLOURS = {"healthy": "green", "look closer": "yellow", "not healthy": "red", "cannot tell": "cyan"}


def run_page(audit: Audit) -> list[tuple[str, str]]:
    """Lines with a colour name (empty for none); the caller decides whether the terminal takes colour."""
    s = audit.to_dict()
    lines = [
        (f"{VERDICT_MARKS[s['verdict']]} {VERDICT_WORDS[s['verdict']]}: {s['run']}", _COLOURS[s["verdict"]]),
        *((f"  {reason}", "") for reason in s["reasons"][:2]),
        (f"  Strength of evidence: {s['strength']}", ""),
        *((f"  {i}. {line}", "") for i, line in enumerate(s["what_happened"], 1)),
    ]
    shown = [c for c in s["checks"] if c["result"] in ("fail", "watch")]
    lines += [(f"  Next: {line}", "") for line in s["triage"]["next_steps"][:3]]
    lines += [(f"  {RESULT_MARKS[c['result']]} {c['title']}: {c['found']}", "") for c in shown]
    if s["performance"]:
        lines.append((f"  judged by {s['performance']}", ""))
    return lines
