"""The audit as one self-contained HTML page: no request leaves the file, names from logs are always escaped."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trajscope.audit.events import number
from trajscope.audit.run import Audit
from trajscope.plots import meta_page
from trajscope.plots import run_page as run_figure
from trajscope.plots.style import literal, svg
from trajscope.report.words import RESULT_MARKS, SHOWN, VERDICT_MARKS, VERDICT_WORDS

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

__all__ = ["cohort_page", "curve_of", "environment", "run_page"]

#: Rows of the events and channels tables that a page shows; the JSON report has all.
MOST_ROWS = 60
#: Runs that an index page shows, and points of the small picture of each; more would not open quickly.
MOST_RUNS, CURVE_POINTS = 5000, 60
#: Points a channel that the script of a page can read out.
HOVER_POINTS = 400


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


def run_page(audit: Audit, index: str = "") -> str:
    """One run on one page, with a link back to the page of all runs where there is one."""
    meta, page = meta_page.figure(audit), run_figure.figure(audit)
    text: str = (
        environment()
        .get_template("run.html")
        .render(
            s=audit.to_dict(),
            index=index,
            figure=svg(page),
            values=_values(audit, page),
            meta_figure=None if meta is None else svg(meta),
        )
    )
    return text


def _values(audit: Audit, page: Figure) -> dict[str, Any]:
    """What the script of a page reads out: where the axes lie, and some points of every channel that is drawn."""
    box, (low, high) = page.axes[0].get_position(), page.axes[0].get_xlim()
    channels = []
    for panel in run_figure.panels(audit):
        rows = np.unique(np.linspace(0, max(panel.x.size - 1, 0), min(panel.x.size, HOVER_POINTS)).astype(int))
        values = [float(f"{v:.6g}") for v in panel.y[rows].tolist()]
        channels.append({"name": literal(panel.label), "x": panel.x[rows].tolist(), "y": values})
    return {"left": box.x0, "right": box.x1, "low": low, "high": high, "channels": channels}


def curve_of(audit: Audit) -> str:
    """Points of a small picture of performance, 100 by 24, as SVG takes them; empty where there is none."""
    name = audit.performance.rpartition(":")[0]
    if not name:
        return ""
    values = audit.run.channels[name].values.astype(np.float64)
    good = np.flatnonzero(np.isfinite(values))
    if good.size < 2 or not np.ptp(values[good]) > 0:
        return ""
    shown = good[np.linspace(0, good.size - 1, min(good.size, CURVE_POINTS)).astype(int)]
    y = (values[shown] - values[good].min()) / np.ptp(values[good])
    x = shown / max(values.size - 1, 1)
    return " ".join(f"{100 * a:.1f},{22 - 20 * b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


def cohort_page(rows: list[dict[str, Any]], failed: list[tuple[str, str]]) -> str:
    """Many runs on one page: a row a run, the worst first, linked to its own page.

    Parameters
    ----------
    rows : list of dict
        Keys ``run verdict reason first_event link axis curve``; the last two may be missing.
    failed : list of (run, reason)
        Runs that could not be read.
    """
    order = ["not healthy", "look closer", "cannot tell", "healthy"]
    listed = sorted(rows, key=lambda r: (order.index(r["verdict"]), r["run"]))
    counts = {v: sum(r["verdict"] == v for r in rows) for v in order}
    together = [
        (n, step) for step, n in Counter(r["first_event"] for r in rows if r["first_event"] is not None).items()
    ]
    text: str = (
        environment()
        .get_template("cohort.html")
        .render(
            rows=[{"axis": "", "curve": "", "rank": order.index(r["verdict"]), **r} for r in listed[:MOST_RUNS]],
            n_runs=len(rows),
            counts=counts,
            failed=failed,
            together=[(step, n) for n, step in sorted(together, reverse=True)[:5] if n >= 3],
            version=version("trajscope"),
        )
    )
    return text
