"""The columns of the score tables: type, unit, meaning, and what null means. One list, from which the schemas, the
documentation and the checks of a row are made.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

__all__ = ["CONFIG", "EVENTS", "RUNS", "SCHEMA_VERSION", "TABLES", "Column", "markdown", "schema"]

#: Raised whenever a column is added, removed, or means something else.
SCHEMA_VERSION = 1

TEXT, WHOLE, REAL, YES_NO = pa.string(), pa.int64(), pa.float64(), pa.bool_()


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes
    ----------
    name : str
    type : pyarrow.DataType
    unit : str
        Empty where it has none.
    meaning : str
    null : str
        What null means; empty where it is never null.
    """

    name: str
    type: pa.DataType
    unit: str
    meaning: str
    null: str = ""


_FAILED = "the run failed"
_NO_PERFORMANCE = "no performance channel, or the run failed"

RUNS = (
    Column("run", TEXT, "", "identity: path relative to its root, with #key where one file holds several runs"),
    Column("root", TEXT, "", "root that was given"),
    Column("status", TEXT, "", "ok, unreadable, refused, bug, timeout, memory or killed"),
    Column("error", TEXT, "", "one sentence: why there is no score", "the run was scored"),
    Column("format", TEXT, "", "name of the reader"),
    Column("fingerprint", TEXT, "", "hash over name, size and time of the run's files: another one, another run"),
    Column("still_written", YES_NO, "", "whether a file of it changed within the hour before it was listed"),
    Column("verdict", TEXT, "", "healthy, look closer, not healthy or cannot tell", _FAILED),
    Column("reason", TEXT, "", "first sentence behind the verdict", _FAILED),
    Column("strength", TEXT, "", "strength of the evidence, a sentence", _FAILED),
    Column("n_channels", WHOLE, "channels", "channels with at least one point", _FAILED),
    Column("n_points", WHOLE, "points", "points over all channels", _FAILED),
    Column("n_rows", WHOLE, "rows", "rows of the longest channel", _FAILED),
    Column("first_step", REAL, "steps", "smallest step", "no points, or the run failed"),
    Column("last_step", REAL, "steps", "largest step", "no points, or the run failed"),
    Column("n_segments", WHOLE, "segments", "stretches written in one go", _FAILED),
    Column("n_parts", WHOLE, "parts", "parts judged apart, because the step counter restarts", _FAILED),
    Column("n_nan", WHOLE, "points", "NaN over all channels", _FAILED),
    Column("n_inf", WHOLE, "points", "infinite values over all channels", _FAILED),
    Column("n_superseded", WHOLE, "points", "points of dead branches, in no channel", _FAILED),
    Column("sampled", YES_NO, "", "whether the source holds only a sample", _FAILED),
    Column("n_problems", WHOLE, "problems", "problems while reading that are more than information", _FAILED),
    Column("problems", TEXT, "", "kinds of all problems, sorted, separated by spaces", _FAILED),
    Column("roles", TEXT, "", "roles of the channels, sorted, separated by spaces: what was logged", _FAILED),
    Column("performance", TEXT, "", "channel that was judged, with its direction", _NO_PERFORMANCE),
    Column("unit", TEXT, "", "how performance was oriented: value, -log or -value", _NO_PERFORMANCE),
    Column("n_evaluations", WHOLE, "evaluations", "finite values of performance", _NO_PERFORMANCE),
    Column("first", REAL, "oriented", "median of the first five evaluations", _NO_PERFORMANCE),
    Column("best", REAL, "oriented", "largest evaluation", _NO_PERFORMANCE),
    Column("final", REAL, "oriented", "mean of the last 10 % of the evaluations", _NO_PERFORMANCE),
    Column("drawdown_cvar", REAL, "share of range", "mean of the largest 5 % of drawdowns", "too few evaluations"),
    Column("dispersion", REAL, "share of range", "interquartile range of differences", "too few evaluations"),
    Column("spike_score", REAL, "share of points", "loss points 7 sd above the 1,000 before", "too short, or no loss"),
    Column("peak_instability", REAL, "", "largest x_inst", "neither loss nor gradient norm, or too short"),
    Column("loss_ratio", REAL, "", "largest training loss over the smallest before it", "no loss above zero"),
    Column("collapsed", REAL, "", "1 where performance collapsed, diverged or turned non-finite", "cannot tell"),
    Column("deficit_sd", REAL, "sd", "fall of the last tenth below the level before the first event", "no event"),
    Column("collapse_kind", TEXT, "", "kind of the worst episode (`collapse`)", _NO_PERFORMANCE),
    Column("onset_step", REAL, "steps", "onset of that episode", "no episode"),
    Column("confirmed_step", REAL, "steps", "step at which the rule was met", "no episode"),
    Column("recovery", TEXT, "", "how that episode went on", _NO_PERFORMANCE),
    Column("recovered_step", REAL, "steps", "step of recovery", "no episode, or it did not recover"),
    Column("depth", REAL, "share of gain", "largest drawdown of that episode", _NO_PERFORMANCE),
    Column("n_events", WHOLE, "events", "events of all severities (table events)", _FAILED),
    Column("n_spikes", WHOLE, "events", "spikes in the channels that move the verdict", _FAILED),
    Column("n_changes", WHOLE, "events", "change points in those channels", _FAILED),
    Column("first_event_step", REAL, "steps", "first event that is worth a look", "there is none"),
    Column("first_event_kind", TEXT, "", "its kind", "there is none"),
    Column("first_event_channel", TEXT, "", "its channel", "there is none, or it belongs to no channel"),
    Column("axis", TEXT, "", "axis that the evidence points to (`attribute_axis`)", "cannot tell, or no event"),
    Column("axis_confidence", REAL, "probability", "calibrated confidence of it", "cannot tell, or no event"),
    Column(
        "meta_left_step", REAL, "steps", "where the meta-state left its baseline's band", "it did not, or not computed"
    ),
    Column("seconds", REAL, "s", "wall time for reading and judging the run"),
    Column("peak_memory_mb", REAL, "MiB", "peak resident memory of the worker so far", "not known on this platform"),
    Column("profile", TEXT, "", "fast or full"),
    Column("trajscope", TEXT, "", "version that made the row"),
    Column("config_hash", TEXT, "", "hash of all settings"),
    Column("schema_version", WHOLE, "", "version of this table's columns"),
)

EVENTS = (
    Column("run", TEXT, "", "as in the table of runs"),
    Column("root", TEXT, "", "as in the table of runs"),
    Column("step", REAL, "steps", "where it begins"),
    Column("end", REAL, "steps", "where it ends", "it is one step long, or lasts to the end"),
    Column("kind", TEXT, "", "non-finite, collapse, divergence, change, spike, dip, shock, lr, resume, ..."),
    Column("channel", TEXT, "", "channel that shows it", "no single channel does"),
    Column("severity", TEXT, "", "fail, watch or info"),
    Column("strength", REAL, "robust sd", "size of the excursion", "it needs no statistics"),
    Column("sentence", TEXT, "", "for a person"),
)

CONFIG = (
    Column("run", TEXT, "", "as in the table of runs"),
    Column("root", TEXT, "", "as in the table of runs"),
    Column("key", TEXT, "", "name of the setting; nested ones joined by dots"),
    Column("value", TEXT, "", "value as JSON"),
)

#: Folder -> its columns.
TABLES = {"runs": RUNS, "events": EVENTS, "config": CONFIG}


def schema(table: str) -> pa.Schema:
    """Arrow schema of a table, with unit, meaning and null meaning as field metadata."""
    return pa.schema(
        [
            pa.field(c.name, c.type, nullable=True, metadata={"unit": c.unit, "meaning": c.meaning, "null": c.null})
            for c in TABLES[table]
        ]
    )


def markdown(table: str) -> str:
    """The columns of a table for the documentation."""
    lines = ["| column | type | unit | meaning | null means |", "|---|---|---|---|---|"]
    lines += [f"| `{c.name}` | {c.type} | {c.unit} | {c.meaning} | {c.null or 'never null'} |" for c in TABLES[table]]
    return "\n".join(lines)
