"""Verdicts and onsets of the audit on the recorded runs, with the same-seed twin as truth.

    python tests/proofs/audit_recorded.py [--domain digits] [--split heldout]

Truth (columns of ``datasets/labels.parquet``, computed from the twin by ``datasets/make_labels.py``): *harmed*, the
median of the last 10 % of evaluations lies more than 5 of the twin's evaluation sd below the twin's; *recovered*, it
fell that far and ended within 2. Prints the confusion table, the shares asked for with 95 % Clopper-Pearson intervals,
and the error of the onset against the first departure from the twin.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.stats import beta

from trajscope.audit.run import audit
from trajscope.history.datasets import load_dataset

#: Groups of runs with one event at one step, and their controls.
PURPOSES = ("arms", "width", "clip")


def interval(k: int, n: int) -> tuple[float, float]:
    """Clopper-Pearson 95 % interval of a share."""
    low = 0.0 if k == 0 else float(beta.ppf(0.025, k, n - k + 1))
    high = 1.0 if k == n else float(beta.ppf(0.975, k + 1, n - k))
    return low, high


def truth(row: pd.Series) -> str:
    """What the twin says: control, harmed, recovered, fell between the two, or unharmed."""
    if pd.isna(row["twin"]):
        return "control"
    if row["harmed"]:
        return "harmed"
    if row["recovered"]:
        return "recovered"
    return "between" if row["fell"] else "unharmed"


def judge(domain: str, split: str, match: str) -> Iterator[dict[str, object]]:
    """Audit every injected run and every control of a domain (not the grids over learning rates and noise levels)."""
    data = load_dataset(domain)
    labels = data.labels
    labels = labels[labels["purpose"].isin(PURPOSES)]
    if split != "all":
        labels = labels[labels["split"] == split]
    for _, row in labels.iterrows():
        if match not in str(row["run"]):
            continue
        result = audit(data.run(str(row["run"])))
        first = min((e.step for e in result.events if e.severity in ("fail", "watch")), default=np.nan)
        departure = row["first_departure"]
        yield {
            "run": row["run"],
            "algorithm": row["algorithm"],
            "arm": row["arm"],
            "truth": truth(row),
            "verdict": result.verdict,
            "first": first,
            "departure": np.nan if pd.isna(departure) else float(departure),
            "reason": result.reasons[0],
            "deficit": result.deficit,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domain", default="digits")
    parser.add_argument("--split", default="heldout", choices=["heldout", "calibration", "all"])
    parser.add_argument("--match", default="", help="only runs whose id contains this")
    parser.add_argument("--misses", action="store_true", help="list the runs judged otherwise than the twin says")
    options = parser.parse_args()
    table = pd.DataFrame(judge(options.domain, options.split, options.match))
    print(pd.crosstab([table["algorithm"], table["truth"]], table["verdict"]).to_string())
    wanted = {"control": "healthy", "harmed": "not healthy", "recovered": "look closer"}
    misses = []
    for kind, verdict in wanted.items():
        part = table[table["truth"] == kind]
        if not len(part):
            continue
        hits = int((part["verdict"] == verdict).sum())
        low, high = interval(hits, len(part))
        print(f"{kind:>9} judged {verdict!r}: {hits} of {len(part)} = {hits / len(part):.3f} [{low:.3f}, {high:.3f}]")
        misses.append(part[part["verdict"] != verdict])
    dated = table[table["truth"].isin(["harmed", "recovered"]) & table["first"].notna() & table["departure"].notna()]
    error = (dated["first"] - dated["departure"]).abs()
    print(
        f"onset against the first departure: {len(dated)} runs, median error {error.median():g} steps,"
        f" 90 % within {error.quantile(0.9):g}, largest {error.max():g}"
    )
    if options.misses:
        for _, m in pd.concat(misses).iterrows():
            print(f"{m['run']}: {m['truth']}, judged {m['verdict']}: {m['reason']} (deficit {m['deficit']:.2f})")


if __name__ == "__main__":
    main()
