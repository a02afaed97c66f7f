"""A comparison as HTML, Markdown and on the terminal; all three render the same summary."""

from __future__ import annotations

from typing import Any

from trajscope.inference.compare import Comparison
from trajscope.plots import compare as compare_figure
from trajscope.plots.style import svg
from trajscope.report.html import environment
from trajscope.report.markdown import escape

__all__ = ["html", "markdown", "terminal"]

#: Rows of each table that a page shows; the JSON has all.
MOST_ROWS = 60

#: Heading -> column of the result, for the table of groups, of pairs, of keys.
_GROUPS = {
    "Group": "group",
    "Runs": "runs",
    "Failed": "failed",
    "Shortest": "shortest",
    "Longest": "longest",
    "IQM": "iqm",
}
_PAIRS = {
    "First": "first", "Second": "second", "At": "at", "n": "n_first", "n ": "n_second",
    "P(first better)": "probability",
    "Low": "low", "High": "high", "p (Holm)": "p_holm", "Better": "verdict", "Remark": "reason",
}  # fmt: skip
_KEYS = {
    "Key": "key", "Failed runs": "failed", "Healthy runs": "healthy", "Effect": "effect", "p (Holm)": "p_holm",
    "Remark": "reason",
}  # fmt: skip


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None or value != value else f"{value:.4g}"


def _tables(result: Comparison) -> list[tuple[str, list[str], list[list[str]], int]]:
    """Title, headings, rows and how many rows are left out, of each table that has any."""
    out = []
    for title, columns, frame in (
        ("Groups", _GROUPS, result.groups_frame()),
        ("Who ends better", _PAIRS, result.table),
        ("Configuration of failed and healthy runs", _KEYS, result.keys_frame()),
    ):
        rows = [[_cell(row[c]) for c in columns.values()] for row in frame.head(MOST_ROWS).to_dict("records")]
        if rows:
            out.append((title, [name.strip() for name in columns], rows, len(frame) - len(rows)))
    return out


def html(result: Comparison) -> str:
    """One self-contained page."""
    text: str = (
        environment()
        .get_template("compare.html")
        .render(
            sentences=result.sentences(), tables=_tables(result), figure=svg(compare_figure.plot(result)),
            skipped=dict(result.skipped), provenance=result.provenance,
        )
    )  # fmt: skip
    return text


def markdown(result: Comparison) -> str:
    """The same as Markdown."""
    lines = ["# Comparison", "", *(f"- {escape(s)}" for s in result.sentences())]
    for title, names, rows, more in _tables(result):
        lines += ["", f"## {title}", "", f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
        lines += [f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows]
        if more:
            lines += ["", f"{more} more rows are in the JSON."]
    if result.skipped:
        lines += ["", "## Not used", "", *(f"- {escape(run)}: {escape(why)}" for run, why in result.skipped.items())]
    versions = result.provenance.versions
    lines += [
        "",
        f"trajscope {versions['trajscope']}, seed {result.provenance.seed}, data {result.provenance.data_hash}.",
        "",
    ]
    return "\n".join(lines)


def terminal(result: Comparison) -> list[str]:
    """Lines: what was found, then what was not used."""
    return [*result.sentences(), *(f"not used: {run}: {why}" for run, why in result.skipped.items())]
