"""Study of perturbation responses: how labelled runs answer, and what that says about two claims of the source paper.

Runs with an axis and an injection step are measured against their twin where the labels name one that is found, by
domain (first part of the stratum where there is no column ``domain``). Conditions are stratum, perturbation and
severity; collapse thresholds are by stratum and perturbation. Ramps are left out: they have no step 0.

The claims (arXiv 2601.13160), in computable terms, each with an interval and a verdict by domain:

- *sharp*: coherence collapses at once. The share of runs in which x_grad leaves its band downwards within ten rows of
  the injection; the mean over conditions, bootstrapped over them. Supported above a half, contradicted below.
- *same direction*: of the conditions in which coherence leaves its band in most runs, the share in which most of these
  leave it downwards (Clopper-Pearson). Supported above a half, contradicted below.
- *heterogeneous instability*: the spread of the peak of x_inst between conditions over that between seeds, bootstrapped
  over conditions. Supported above 1.
- *coherence more consistent than instability*: the dispersion ratio of the two. Supported above 1, contradicted below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from trajscope._core.resample import bca_interval, proportion_interval
from trajscope._core.surrogates import as_generator
from trajscope.errors import NotEnoughData, TrajscopeError
from trajscope.history.run import Run
from trajscope.inference.response import Response, response
from trajscope.inference.studies.base import GetRun, Study
from trajscope.result import Result, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["claims", "study"]

#: Rows of x_grad after the injection within which a departure is called sharp.
SHARP_ROWS = 10

_DRAWS = 2000


def study(
    runs: GetRun, labels: pd.DataFrame, *, alpha: float = 0.05, rng: int | np.random.Generator | None = None
) -> Study:
    """Measure the responses of labelled runs.

    Parameters
    ----------
    runs : callable
    labels : DataFrame
        Columns run, perturbation, injection_step, stratum; optionally domain, severity, level, seed, twin, ramp.
    alpha : float
        1 - coverage of the intervals.
    rng : int or Generator, optional
        Default 0.

    Returns
    -------
    Study
        Tables ``claims``, ``estimates``, ``ordering``, ``recovery``, ``thresholds``, ``dispersion``.

    Raises
    ------
    NotEnoughData
        If no labelled run has an injection step and a perturbation.
    """
    import pandas as pd

    generator = as_generator(rng)
    table = labels[labels["perturbation"].notna() & labels["injection_step"].notna()]
    if "ramp" in table:
        table = table[~table["ramp"].fillna(False).astype(bool)]
    if table.empty:
        raise NotEnoughData("no labelled run has both a perturbation and an injection_step; nothing was perturbed")
    stratum = table["stratum"].fillna("all").astype(str)
    domain = table["domain"].astype(str) if "domain" in table else stratum.str.split("/").str[0]
    skipped: dict[str, str] = {}
    parts: dict[str, list[dict[str, Any]]] = {k: [] for k in ("claims", "ordering", "recovery", "thresholds")}
    frames, dispersions, figures = [], [], {}
    cache: dict[str, Run | None] = {}
    for name, rows in table.assign(stratum=stratum, domain=domain).groupby("domain", sort=True):
        found = _respond(runs, rows, cache, skipped, 1 - alpha, generator)
        if found is None:
            continue
        result, ranks = found
        frames.append(result.to_frame().assign(domain=name))
        parts["claims"] += [{"domain": name, **c} for c in claims(result, ranks, 1 - alpha, generator)]
        order = asdict(result.ordering)
        order.pop("times")
        parts["ordering"].append({"domain": name, **order})
        parts["recovery"].append({"domain": name, **asdict(result.recovery)})
        parts["thresholds"] += [{"domain": name, **asdict(t)} for t in result.thresholds]
        dispersions.append({"domain": name, **asdict(result.dispersion)})
        figures[f"response_{name}"] = result
    if not figures:
        raise NotEnoughData("none of the perturbed runs could be read; see what was skipped")
    estimates = pd.concat(frames, ignore_index=True)
    tables = {
        "claims": pd.DataFrame(parts["claims"]),
        "estimates": estimates[["domain", *(c for c in estimates if c != "domain")]],
        "ordering": pd.DataFrame(parts["ordering"]),
        "recovery": pd.DataFrame(parts["recovery"]),
        "thresholds": pd.DataFrame(parts["thresholds"]),
        "dispersion": pd.DataFrame(dispersions),
    }
    drawn: dict[str, Result] = dict(figures)
    return Study(
        "response",
        tables,
        drawn,
        _claim(parts["claims"], figures, alpha),
        skipped,
        provenance=make_provenance(
            "study response", {"alpha": alpha, "sharp_rows": SHARP_ROWS}, seed=rng if isinstance(rng, int) else 0
        ),
    )


def _respond(
    runs: GetRun,
    rows: pd.DataFrame,
    cache: dict[str, Run | None],
    skipped: dict[str, str],
    level: float,
    rng: np.random.Generator,
) -> tuple[Response, list[str]] | None:
    """Responses of one domain, and the condition of each run."""
    members: list[Run] = []
    controls: list[Run | None] = []
    steps, conditions, seeds, severity = [], [], [], []

    def read(name: str) -> Run | None:
        if name not in cache:
            try:
                cache[name] = runs(name)
                cache[name].channels  # type: ignore[union-attr]  # noqa: B018  a lazy run is read here
            except (TrajscopeError, KeyError) as problem:
                cache[name] = None
                skipped[name] = str(problem)
        return cache[name]

    for row in rows.to_dict("records"):
        run = read(str(row["run"]))
        if run is None:
            continue
        twin = row.get("twin")
        control = read(str(twin)) if twin is not None and twin == twin and str(twin) not in ("", "<NA>") else None
        rank, seed = _number(row.get("severity")), row.get("seed")
        kind = f"{row['stratum']} {row['perturbation']}"
        config = {"perturbation": kind, "level": _number(row.get("level"))}
        members.append(run.replace(config={**run.config, **config}))
        controls.append(control)
        steps.append(float(row["injection_step"]))
        conditions.append(kind if math.isnan(rank) else f"{kind} {rank:g}")
        severity.append(rank)
        seeds.append(str(row["run"]) if seed is None or str(seed) in ("nan", "<NA>") else f"{row['stratum']} {seed}")
    if not members:
        return None
    found = response(
        members, steps, controls, conditions=conditions, seeds=seeds, severity=severity, level=level, rng=rng
    )
    return found, conditions


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def claims(found: Response, conditions: Sequence[str], level: float, rng: np.random.Generator) -> list[dict[str, Any]]:
    """The claims about coherence and instability, judged on the responses of one domain.

    Parameters
    ----------
    found : Response
    conditions : sequence of str
        Condition of each run, in the order of ``found.times``.
    level : float
    rng : Generator
    """
    by: dict[str, list[tuple[bool, bool | None]]] = {}
    gaps = [c.offsets for c in found.curves if c.channel == "x_grad" and c.offsets.size > 1]
    stride = float(np.median(np.concatenate([np.diff(g) for g in gaps]))) if gaps else 1.0
    measured = {r.run for r in found.rows if r.channel == "x_grad"}
    for (run, _, t_grad, _, _, fell), condition in zip(found.times, conditions, strict=True):
        if run in measured:
            sharp = fell is True and t_grad <= SHARP_ROWS * stride
            by.setdefault(condition, []).append((sharp, fell))
    n_runs = sum(map(len, by.values()))
    shares = np.array([np.mean([s for s, _ in runs]) for _, runs in sorted(by.items())])
    rows: list[dict[str, Any]] = []

    def add(claim: str, value: float, low: float, high: float, n: int, bound: float) -> None:
        verdict = "cannot tell" if math.isnan(low) or math.isnan(high) else "inconclusive"
        if verdict == "inconclusive" and low > bound:
            verdict = "supported"
        elif verdict == "inconclusive" and high < bound:
            verdict = "contradicted"
        rows.append({"claim": claim, "value": value, "low": low, "high": high, "bound": bound,
                     "conditions": n, "runs": n_runs, "verdict": verdict})  # fmt: skip

    k = shares.size
    low = high = math.nan
    if k >= 4:
        draws = shares[rng.integers(0, k, (_DRAWS, k))].mean(axis=1)
        low, high = bca_interval(float(shares.mean()), draws, (shares.sum() - shares) / (k - 1), level)
    elif k:  # few conditions: runs as the unit, which says nothing about other conditions
        low, high = proportion_interval(sum(s for r in by.values() for s, _ in r), n_runs, level)
    add("coherence collapses sharply", float(shares.mean()) if k else math.nan, low, high, k, 0.5)
    moved = [[f for _, f in runs if f is not None] for runs in by.values()]
    moved = [f for f, runs in zip(moved, by.values(), strict=True) if 2 * len(f) > len(runs)]
    down, n = sum(2 * sum(f) > len(f) for f in moved), len(moved)
    low, high = proportion_interval(down, n, level) if n else (math.nan, math.nan)
    add("coherence falls, and does not rise", down / n if n else math.nan, low, high, n, 0.5)
    d = found.dispersion
    add("instability is heterogeneous", d.f_inst, d.inst_low, d.inst_high, d.n_conditions, 1.0)
    add("coherence is more consistent than instability", d.ratio, d.low, d.high, d.n_conditions, 1.0)
    return rows


def _claim(rows: Sequence[dict[str, Any]], found: dict[str, Response], alpha: float) -> str:
    lines = [f"{len({r.run for f in found.values() for r in f.rows})} perturbed runs in {len(found)} domains."]
    for claim in dict.fromkeys(r["claim"] for r in rows):
        said = [
            f"{r['domain']} {r['verdict']}"
            + (
                f" ({r['value']:.2g}, {1 - alpha:.0%} interval {r['low']:.2g} to {r['high']:.2g})"
                if r["low"] == r["low"]
                else ""
            )
            for r in rows
            if r["claim"] == claim
        ]
        lines.append(f"{claim[0].upper()}{claim[1:]}: {'; '.join(said)}.")
    lines += [f"{name}: {f.summary()}" for name, f in found.items()]
    return " ".join(lines)
