"""The audit as one self-contained HTML page: no request leaves the file, names from logs are always escaped."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajscope.audit.events import number
from trajscope.audit.run import Audit
from trajscope.plots import meta_page
from trajscope.plots import run_page as run_figure
from trajscope.plots.style import svg
from trajscope.report.words import RESULT_MARKS, SHOWN, VERDICT_MARKS, VERDICT_WORDS

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["cohort_page", "environment", "run_page"]

#: Rows of the events and channels tables that a page shows; the JSON report has all.
MOST_ROWS = 60


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates of this package; everything that is put into them is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda v: "" if v is None else number(float(v))
    environment.globals.update(
        verdict_words=VERDICT_WORDS,
        verdict_marks=VERDICT_MARKS,
        result_marks=RESULT_MARKS,
        shown=SHOWN,
        most_rows=MOST_ROWS,
    )
    return environment


def run_page(audit: Audit) -> str:
    """One run on one page."""
    meta = meta_page.figure(audit)
    text: str = (
        environment()
        .get_template("run.html")
        .render(
            s=audit.to_dict(),
            figure=svg(run_figure.figure(audit)),
            meta_figure=None if meta is None else svg(meta),
        )
    )
    return text


def cohort_page(rows: list[dict[str, Any]], failed: list[tuple[str, str]]) -> str:
    """Many runs on one page: a row a run, the worst first, linked to its own page.

    Parameters
    ----------
    rows : list of dict
        Keys ``run verdict reason performance first_event link``.
    failed : list of (run, reason)
        Runs that could not be read.
    """
    order = ["not healthy", "look closer", "cannot tell", "healthy"]
    listed = sorted(rows, key=lambda r: (order.index(r["verdict"]), r["run"]))
    counts = {v: sum(r["verdict"] == v for r in rows) for v in order}
    text: str = environment().get_template("cohort.html").render(rows=listed, counts=counts, failed=failed)
    return text
