"""Study of stability against performance over labelled runs.

Each run gives its performance and its measures of stability (`trajscope.inference.measures`). Used are the runs that
nothing was done to: where the labels have ``purpose``, the collections ``grid``; else rows without a perturbation.
Strata are ``stratum``, and seeds are drawn as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trajscope.errors import NotEnoughData, TrajscopeError
from trajscope.inference.dissociation import ALL, dissociation, measure_table
from trajscope.inference.studies.base import GetRun, Study
from trajscope.result import make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["study"]


def study(
    runs: GetRun, labels: pd.DataFrame, *, alpha: float = 0.05, rng: int | np.random.Generator | None = None
) -> Study:
    """Run the study; see the module. The levels of the verdicts are fixed (95 % and 90 %); `alpha` is not used."""

    if "purpose" in labels and (labels["purpose"] == "grid").any():
        chosen = labels[labels["purpose"] == "grid"]
    else:
        chosen = labels[labels["axis"].isna() & labels["perturbation"].isna()]
    if len(chosen) < 8:
        raise NotEnoughData(f"{len(chosen)} unperturbed runs; eight or more a stratum are needed")
    skipped: dict[str, str] = {}
    loaded = {}
    for row in chosen.to_dict("records"):
        try:
            run = runs(str(row["run"]))
            _ = run.data
        except TrajscopeError as problem:
            skipped[str(row["run"])] = str(problem)
            continue
        loaded[str(row["run"])] = run
    measured, reliable, missing = measure_table(loaded)
    skipped |= missing
    if not len(measured):
        raise NotEnoughData("none of the runs has a performance channel")
    known = chosen.set_index("run")
    measured["stratum"] = [str(known["stratum"].get(r, "")) for r in measured["run"]]
    measured["seed"] = [known["seed"].get(r) for r in measured["run"]]
    found = dissociation(measured, reliability=reliable, rng=rng)
    whole = found.table[found.table["stratum"] == ALL]
    counts = whole["verdict"].value_counts()
    verdicts = ", ".join(f"{n} {v}" for v, n in counts.items())
    claim = (
        f"{len(measured)} unperturbed runs in {measured['stratum'].nunique()} strata, failed ones among them. "
        f"Stability and final performance, measure by measure: {verdicts}. {found.summary()} A verdict holds for these "
        "tasks and for this spread of settings; within a narrower spread associations are weaker."
    )
    return Study(
        "dissociation",
        {"dissociation": found.table, "contrast": found.contrast, "runs": measured},
        {"dissociation": found},
        claim,
        {**skipped, **{f"measure {k}": v for k, v in found.skipped.items()}},
        provenance=make_provenance("study dissociation", {"alpha": alpha}, seed=rng if isinstance(rng, int) else None),
    )
