"""Study of identifiability: is the meta-state of healthy runs low-dimensional and a property of the runs?

By domain (first part of the stratum where there is no column ``domain``): unperturbed runs of its largest stratum, the
channels that all of them log on the rows of the densest one (`trajscope.inference._response_signals.latent_channels`),
each on the scale of its role, about the median of the runs at each step. Principal components choose their dimension by
parallel analysis; slow features and state spaces are asked for the same. Where other domains log the same channels, the
principal components are carried there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trajscope._core.surrogates import as_generator
from trajscope.errors import NotEnoughData, TrajscopeError
from trajscope.history.run import Run
from trajscope.history.trajectory import Trajectory
from trajscope.inference._response_signals import latent_channels, latent_rows
from trajscope.inference.identifiability import Identifiability, identifiability
from trajscope.inference.studies.base import GetRun, Study
from trajscope.metastate import LinearStateSpace, PCAState, SlowFeatures
from trajscope.metastate.reference import Kind
from trajscope.result import Result, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["study"]

MOST_RUNS = 8
"""Runs of a domain: halves of four fit in seconds, and more change little."""

SIBLINGS = 5
"""Runs that a reference of siblings needs."""

HEALTHY = ("none", "healthy", "control")


def study(
    runs: GetRun, labels: pd.DataFrame, *, alpha: float = 0.05, rng: int | np.random.Generator | None = None
) -> Study:
    """Test the meta-state of the healthy runs of every domain.

    Parameters
    ----------
    runs : callable
    labels : DataFrame
        Columns run, outcome; optionally stratum, domain, twin, purpose, split. Unperturbed runs are those without a
        perturbation, an axis or a twin whose outcome, where it is known, is healthy.
    alpha : float
        Not used: the parts have thresholds of their own.
    rng : int or Generator, optional
        Default 0.

    Raises
    ------
    NotEnoughData
        If no domain has two healthy runs with three channels in common.
    """
    import pandas as pd

    seed = int(as_generator(rng).integers(2**31))
    skipped: dict[str, str] = {}
    data: dict[str, list[Trajectory]] = {}
    for domain, names in _healthy(labels).items():
        chosen: list[Run] = []
        for name in names:
            try:
                chosen.append(runs(name))
            except (TrajscopeError, KeyError) as problem:
                skipped[name] = str(problem)
        channels = latent_channels(chosen)
        if len(chosen) < 2 or len(channels) < 3:
            skipped[domain] = f"{len(chosen)} healthy runs with {len(channels)} channels in common; 2 and 3 are needed"
            continue
        data[domain] = [latent_rows(run, channels) for run in chosen]
    if not data:
        raise NotEnoughData(f"no domain has two healthy runs with three channels in common ({skipped})")
    rows: list[dict[str, Any]] = []
    found: dict[str, Identifiability] = {}
    for domain, own in data.items():
        others = _common(domain, data)
        # about the median of the runs at each step, which takes five; else about a trend of each run's own
        about: Kind = "siblings" if min(map(len, (own, *others.values()))) >= SIBLINGS else "trend"
        try:
            first = identifiability(PCAState(reference=about), own, other=others, rng=seed)
        except TrajscopeError as problem:
            skipped[domain] = str(problem)
            continue
        results = [("PCAState", first)]
        k = max(first.n_components, 1)
        for estimator in (SlowFeatures(k, reference=about), LinearStateSpace(k, reference=about)):
            name = type(estimator).__name__
            try:
                results.append((name, identifiability(estimator, own, rng=seed)))
            except TrajscopeError as problem:
                skipped[f"{domain}, {name}"] = str(problem)
        for name, result in results:
            found[f"{domain}_{name}"] = result
            rows.append(_row(domain, name, result))
    table = pd.DataFrame(rows)
    parts = pd.concat(
        [r.to_frame(beside=True).assign(which=key) for key, r in found.items()] or [pd.DataFrame()], ignore_index=True
    )
    figures: dict[str, Result] = {f"identifiability_{key}": r for key, r in found.items()}
    return Study(
        "identifiability",
        {"identifiability": table, "parts": parts},
        figures,
        _claim(found),
        skipped,
        provenance=make_provenance("study identifiability", {"most_runs": MOST_RUNS}, seed=seed),
    )


def _healthy(labels: pd.DataFrame) -> dict[str, list[str]]:
    """Unperturbed healthy runs by domain, of the stratum that has most of them."""
    table = labels
    for column in ("perturbation", "axis", "twin"):
        if column in table:
            table = table[table[column].isna() | table[column].isin(("", "none"))]
    if "outcome" in table:
        table = table[table["outcome"].isna() | table["outcome"].isin(HEALTHY)]
    if "purpose" in table:
        table = table[table["purpose"].isna() | table["purpose"].eq("arms")]
    stratum = (
        table["stratum"].fillna("all").astype(str) if "stratum" in table else table["run"].astype(str).str[:0] + "all"
    )
    domain = table["domain"].astype(str) if "domain" in table else stratum.str.split("/").str[0]
    out = {}
    for name in dict.fromkeys(domain.tolist()):
        own = stratum[domain == name]
        largest = Counter(own.tolist()).most_common(1)[0][0]
        out[name] = table.loc[own.index[own == largest], "run"].astype(str).tolist()[:MOST_RUNS]
    return out


def _common(domain: str, data: Mapping[str, Sequence[Trajectory]]) -> dict[str, list[Trajectory]]:
    """Other domains that log three of the channels."""
    mine = set(data[domain][0].names)
    return {other: list(own) for other, own in data.items() if other != domain and len(mine & set(own[0].names)) >= 3}


def _row(domain: str, name: str, r: Identifiability) -> dict[str, Any]:
    verdicts = {p.name: p.verdict for p in r.parts + r.beside}
    head = {"domain": domain, "estimator": name, "runs": r.n_runs, "rows": r.n_rows, "channels": r.n_channels}
    return {**head, "states": r.n_components, "verdict": r.verdict, "low_dimensional": r.low_dimensional, **verdicts}


def _claim(found: Mapping[str, Identifiability]) -> str:
    good = [key for key, r in found.items() if r.verdict == "identifiable" and r.low_dimensional]
    lines = [
        f"Low-dimensional and identifiable: {', '.join(good)}."
        if good
        else f"In none of {len(found)} cases is the meta-state both low-dimensional and identifiable by all six parts."
    ]
    lines += [f"{key.replace('_', ', ')}: {r.statement}" for key, r in found.items()]
    return " ".join(lines)
