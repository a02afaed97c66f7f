"""One run as one row: read, judge, and never raise."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trajscope.batch.columns import SCHEMA_VERSION
from trajscope.batch.limits import RunTimeout, bounded, peak_memory_mb
from trajscope.config import Settings
from trajscope.errors import InputError, TrajscopeError
from trajscope.history import Run
from trajscope.readers.base import ReaderFailure
from trajscope.result import jsonable

__all__ = ["Scored", "Terms", "failed", "score_run"]


@dataclass
class Scored:
    """Rows of one run for each table, and the traceback of a bug."""

    run: dict[str, Any]
    events: list[dict[str, Any]] = field(default_factory=list)
    config: list[dict[str, Any]] = field(default_factory=list)
    detail: str = ""


@dataclass(frozen=True)
class Terms:
    """Under what terms every run of one table is scored.

    Attributes
    ----------
    settings : Settings
    version : str
        Of trajscope.
    time_limit : float or None
        Seconds a run.
    memory_limit_mb : float or None
        MiB a run.
    """

    settings: Settings
    version: str
    time_limit: float | None = None
    memory_limit_mb: float | None = None


def _base(run: Run, root: str, facts: Mapping[str, Any], terms: Terms) -> dict[str, Any]:
    return {
        "run": run.id,
        "root": root,
        "format": run.format,
        **facts,
        "profile": terms.settings.profile,
        "trajscope": terms.version,
        "config_hash": terms.settings.hash,
        "schema_version": SCHEMA_VERSION,
    }


def failed(
    run: Run,
    root: str,
    facts: Mapping[str, Any],
    terms: Terms,
    status: str,
    error: str,
    seconds: float,
    detail: str = "",
) -> Scored:
    """The row of a run that has no score."""
    row = _base(run, root, facts, terms)
    row |= {"status": status, "error": error, "seconds": seconds, "peak_memory_mb": peak_memory_mb()}
    return Scored(row, detail=detail)


def score_run(run: Run, root: str, facts: Mapping[str, Any], terms: Terms) -> Scored:
    """Read and judge one run; whatever happens, there is a row.

    Parameters
    ----------
    run : Run
        Not read yet.
    root : str
    facts : mapping
        What the listing knows: ``fingerprint`` and ``still_written``.
    terms : Terms
    """
    start = time.perf_counter()

    def failure(status: str, error: str, detail: str = "") -> Scored:
        return failed(run, root, facts, terms, status, error, time.perf_counter() - start, detail)

    try:
        with bounded(terms.time_limit, terms.memory_limit_mb):
            scored = _judged(run, root, facts, terms)
    except RunTimeout:
        return failure("timeout", f"took more than {terms.time_limit:g} s")
    except MemoryError:
        limit = f" (limit {terms.memory_limit_mb:,.0f} MiB)" if terms.memory_limit_mb else ""
        return failure("memory", f"needs more memory than there is{limit}")
    except ReaderFailure as problem:
        return failure("bug", str(problem), traceback.format_exc())
    except InputError as problem:
        return failure("refused", str(problem))
    except TrajscopeError as problem:
        return failure("unreadable", str(problem))
    except Exception as problem:  # one run never takes another down
        return failure("bug", f"{type(problem).__name__}: {problem}", traceback.format_exc())
    scored.run["seconds"] = time.perf_counter() - start
    scored.run["peak_memory_mb"] = peak_memory_mb()
    return scored


def _judged(run: Run, root: str, facts: Mapping[str, Any], terms: Terms) -> Scored:
    from trajscope.audit.run import audit
    from trajscope.inference.measures import run_measures

    result = audit(run, settings=terms.settings)
    channels = [c for c in run.channels.values() if len(c)]
    kinds = sorted({p.code for p in run.problems})
    counts = [c.counts for c in channels]
    firsts = [float(c.steps[0]) for c in channels]
    lasts = [float(c.steps[-1]) for c in channels]
    noted = next((e for e in result.events if e.severity in ("fail", "watch")), None)
    # of several parts, the one that decided the verdict
    judged = next((p for p in result.parts if p.events is result.events), result)
    measures = run_measures(judged.run, judged.performance or None, found=judged.collapse)
    numbers = {k: v for k, v in vars(measures).items() if k not in ("performance", "unit", "n_evaluations")}
    row = _base(run, root, facts, terms) | {
        "status": "ok",
        "verdict": result.verdict,
        "reason": result.reasons[0],
        "strength": result.strength,
        "n_channels": len(channels),
        "n_points": run.n_points,
        "n_rows": max((len(c) for c in channels), default=0),
        "first_step": min(firsts, default=None),
        "last_step": max(lasts, default=None),
        "n_segments": len(run.segments),
        "n_parts": max(1, len(result.parts)),
        "n_nan": sum(c.get("nan", 0) for c in counts),
        "n_inf": sum(n for c in counts for kind, n in c.items() if "inf" in kind),
        "n_superseded": sum(len(c) for c in run.superseded.values()),
        "sampled": run.sampled,
        "n_problems": sum(p.severity != "info" for p in run.problems),
        "problems": " ".join(kinds),
        "roles": " ".join(sorted({c.role for c in channels if c.role})),
        "performance": measures.performance or None,
        "unit": measures.unit or None,
        "n_evaluations": measures.n_evaluations if measures.performance else None,
        **{k: None if math.isnan(v) else v for k, v in numbers.items()},
        "deficit_sd": None if math.isnan(result.deficit) else result.deficit,
        "n_events": len(result.events),
        "n_spikes": sum(e.kind in ("spike", "dip") for e in result.events),
        "n_changes": sum(e.kind == "change" for e in result.events),
        "first_event_step": None if noted is None else noted.step,
        "first_event_kind": None if noted is None else noted.kind,
        "first_event_channel": None if noted is None else noted.channel or None,
        "meta_left_step": result.meta.left,
    }
    if result.collapse is not None:
        found = result.collapse
        row |= {
            "collapse_kind": found.kind,
            "onset_step": found.onset,
            "confirmed_step": found.confirmed,
            "recovery": found.recovery,
            "recovered_step": found.recovered_step,
            "depth": found.depth,
        }
    events = [
        {
            "run": run.id,
            "root": root,
            "step": float(e.step),
            "end": None if e.end is None or not np.isfinite(e.end) else float(e.end),
            "kind": e.kind,
            "channel": e.channel or None,
            "severity": e.severity,
            "strength": float(e.strength) if np.isfinite(e.strength) else None,
            "sentence": e.sentence,
        }
        for e in result.events
    ]
    return Scored(row, events, _flat(run, root))


def _flat(run: Run, root: str) -> list[dict[str, Any]]:
    """The configuration as key and JSON value, nested mappings joined by dots, in order of keys."""
    rows: list[tuple[str, str]] = []

    def walk(value: Any, name: str) -> None:
        if isinstance(value, Mapping) and value:
            for key, inner in value.items():
                walk(inner, f"{name}.{key}" if name else str(key))
        else:
            rows.append((name, json.dumps(jsonable(value), ensure_ascii=True, sort_keys=True)))

    walk(dict(run.config), "")
    return [{"run": run.id, "root": root, "key": k, "value": v} for k, v in sorted(rows) if k]
