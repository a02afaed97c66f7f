"""Study of noise as a buffer: collapse and recovery against the assigned level, for each collection that has one.

Used are runs that were hurt at an assigned level of noise (``purpose == "buffering"`` where the labels have it, else
rows with a perturbation and at least three levels of one of ``grad_noise, entropy_bonus, action_noise, dropout,
level``). The outcome is ``harmed`` where a twin tells, else the collapse rule's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trajscope.errors import NotEnoughData
from trajscope.inference.buffering import LEAST, Buffering, buffering
from trajscope.inference.studies.base import GetRun, Study
from trajscope.result import make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["study"]

_LEVELS = ("grad_noise", "entropy_bonus", "action_noise", "dropout", "level")


def study(
    runs: GetRun, labels: pd.DataFrame, *, alpha: float = 0.05, rng: int | np.random.Generator | None = None
) -> Study:
    """Run the study; see the module.

    Raises
    ------
    NotEnoughData
        If no column holds three assigned levels over 12 hurt runs.
    """
    import pandas as pd

    table = labels[labels["purpose"] == "buffering"] if "purpose" in labels else labels
    table = table[table["axis"].notna() | table["perturbation"].notna()].copy()
    outcome = "harmed" if "harmed" in table and table["harmed"].notna().any() else None
    if outcome is None:
        table["harmed"] = table["outcome"].isin(["irrecoverable", "lingering", "transient"])
    table["fell"] = table["fell"] if "fell" in table else table["harmed"]
    domain = table["domain"].astype(str) if "domain" in table else table["stratum"].astype(str).str.split("/").str[0]
    rows, figures, sentences, skipped = [], {}, [], {}
    for name, part in table.groupby(domain, sort=True):
        column = next((c for c in _LEVELS if c in part and part[c].dropna().nunique() >= 3), None)
        if column is None or len(part) < LEAST:
            skipped[str(name)] = "no column holds three levels over twelve hurt runs"
            continue
        for what in ("fell", "harmed"):
            found: Buffering = buffering(
                part, level=column, collapsed=what, alpha=alpha,
                outcomes=[c for c in ("max_deficit", "fell_for") if c in part], rng=rng,
            )  # fmt: skip
            figures[f"buffering_{name}_{what}"] = found
            rows.append(
                found.to_frame().assign(
                    domain=name,
                    outcome=what,
                    verdict=found.verdict,
                    slope=found.slope,
                    slope_low=found.low,
                    slope_high=found.high,
                    p_trend=found.p_trend,
                )
            )
            sentences.append(f"{name}, {what} after the same insult: {found.summary()}")
            rows[-1] = rows[-1][
                [
                    "domain",
                    "outcome",
                    "level",
                    "n",
                    "collapsed",
                    "share",
                    "low",
                    "high",
                    "slope",
                    "slope_low",
                    "slope_high",
                    "p_trend",
                    "verdict",
                ]
            ]
    if not rows:
        raise NotEnoughData("no collection of runs was hurt at three or more assigned levels of noise")
    sentences.append(
        "Levels were assigned, so this is about cause; it holds for this insult, these tasks and this noise."
    )
    trends = pd.concat([f.outcomes.assign(collection=stem) for stem, f in figures.items()], ignore_index=True)
    return Study(
        "buffering",
        {"buffering": pd.concat(rows, ignore_index=True), "trends": trends},
        figures,
        " ".join(sentences),
        skipped,
        provenance=make_provenance("study buffering", {"alpha": alpha}, seed=rng if isinstance(rng, int) else None),
    )
