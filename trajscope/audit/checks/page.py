"""The catalogue as a page of the documentation: ``python -m trajscope.audit.checks.page > docs/checks.md``."""

from __future__ import annotations

from trajscope.audit.checks import GUIDES, RULES

__all__ = ["page"]


def page() -> str:
    """Markdown: every rule by group, then the questions of the guides."""
    lines = [
        "# Checks",
        "",
        "Every rule that an audit applies, made from the catalogue in `trajscope.audit.checks`. A rule whose channel",
        'is not in the log is "not observable", never a pass. F8, B12, CP, B5 and A1 move the [verdict](audit.md); the',
        "others are shown.",
        "",
    ]
    for group in dict.fromkeys(rule.group for rule in RULES):
        lines += [
            f"## {group.capitalize()}",
            "",
            "| id | check | looks for | expected | needs | fails by | source |",
            "|---|---|---|---|---|---|---|",
        ]
        for r in RULES:
            if r.group == group:
                needs = "; ".join(" or ".join(roles) for roles in r.needs)
                if r.look is None:
                    needs = f"cannot be seen; {r.advice}"
                cells = (r.id, r.title, r.definition, r.expected, needs, r.fails_by, r.source)
                lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
        lines.append("")
    lines += ["## Questions of two guides", "", "| question | rules |", "|---|---|"]
    lines += [f"| {question} | {', '.join(ids)} |" for question, ids in GUIDES.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
