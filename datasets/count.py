"""Count the recorded runs off ``labels.parquet``: ``python datasets/count.py [--write]``.

Prints the tables of the datasheet as Markdown; ``--write`` puts them between the marks in ``README.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from recorder.store import LABELS, data_files, read_tables, series

HERE = Path(__file__).parent
BEGIN, END = "<!-- counted by count.py -->", "<!-- end of the count -->"
BASE = ("arms", "ramp", "step2000", "width", "within")  # purposes recorded under the base settings
FELL = ("transient", "lingering", "irrecoverable", "undetermined")


def markdown(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    columns = list(header)
    lines = [columns, ["---"] * len(columns), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def load(root: Path) -> pd.DataFrame:
    """The labels; harmed, recovered and fell are False for runs that have no twin."""
    frame = pq.read_table(root / LABELS).to_pandas()
    for name in ("harmed", "recovered", "fell"):
        frame[name] = frame[name].eq(True)
    frame["control"] = frame["twin"].isna() & ~frame["purpose"].eq("grid")
    frame["held"] = frame["split"].eq("heldout")
    frame["within"] = frame["twin"].notna() & frame["purpose"].isin(["ramp", "within"])
    suffix = frame["ramp"].map({True: " (ramp)", False: ""}).mask(frame["within"] & ~frame["ramp"], " (from the start)")
    early = frame["purpose"].eq("step2000")
    suffix = suffix.mask(early, " (" + frame["arm"].str.extract(r"at_(\w+)_2000", expand=False) + " 2000)")
    frame["kind"] = frame["perturbation"] + suffix
    return frame


def counts(frame: pd.DataFrame) -> str:
    """Runs by stratum; settings of their own (grid, buffering, clipping) apart from the base settings."""
    base = frame[frame["purpose"].isin(BASE)]
    rows = []
    for stratum, own in base.groupby("stratum"):
        harmed, pulses = own[own["harmed"]], own[~own["within"]]
        rows.append(
            (
                f"`{stratum}`",
                len(own),
                _split(own[own["control"] & ~own["purpose"].eq("within")]),
                _split(harmed[~harmed["within"]]),
                _split(harmed),
                int((pulses["recovered"]).sum()),
                int((own["within"] & own["harmed"]).sum()),
                int((own["within"] & ~own["harmed"]).sum()),
            )
        )
    header = (
        "stratum",
        "runs",
        "controls (held out)",
        "harmed by an event (held out)",
        "harmed in all (held out)",
        "recovered",
        "failed from within",
        "from within, did not fail",
    )
    return markdown(header, rows)


def _split(part: pd.DataFrame) -> str:
    return f"{len(part)} ({int(part['held'].sum())})"


def collections(frame: pd.DataFrame) -> str:
    """Grids, buffering and the rest, with their levels and seeds."""
    level: dict[str, Callable[[pd.DataFrame], str]] = {
        "grid": lambda f: f"{f['lr'].nunique()} learning rates, {f['lr'].min():g} to {f['lr'].max():g}",
        "buffering": lambda f: "levels " + ", ".join(f"{v:g}" for v in sorted(f[_noise(f)].dropna().unique())),
        "width": lambda f: "width " + ", ".join(map(str, sorted(f["width"].unique()))),
    }
    rows = [
        (
            purpose,
            domain,
            algorithm,
            len(own),
            own["seed"].nunique(),
            level[purpose](own) if purpose in level else f"{own['arm'].nunique()} arms",
        )
        for (purpose, domain, algorithm), own in frame.groupby(["purpose", "domain", "algorithm"])
    ]
    return markdown(("collection", "domain", "algorithm", "runs", "seeds", "over"), rows)


def _noise(frame: pd.DataFrame) -> str:
    return "entropy_bonus" if frame["domain"].iloc[0] == "cartpole" else "grad_noise"


def outcomes(frame: pd.DataFrame) -> str:
    """What came of each kind and severity, by domain, in runs with a twin under the base settings."""
    own = frame[frame["twin"].notna() & frame["purpose"].isin(BASE)]
    rows = []
    for (stratum, axis, kind, severity, _), part in own.groupby(
        ["stratum", "axis", "kind", "severity", "level"], dropna=False
    ):
        level = part["level"].dropna()
        rows.append(
            (
                stratum,
                axis,
                kind,
                severity,
                f"{level.iloc[0]:g}" if len(level) else "",
                len(part),
                int(part["fell"].sum()),
                int(part["recovered"].sum()),
                int(part["harmed"].sum()),
                int(part["outcome"].isin(FELL).sum()),
            )
        )
    header = ("stratum", "axis", "kind", "severity", "level", "runs", "fell", "recovered", "harmed", "rule")
    return markdown(header, rows)


def coherence(root: Path, frame: pd.DataFrame) -> str:
    """What the coherence of gradients does, by stratum, axis and kind (pulses under the base settings)."""
    own = frame[frame["twin"].notna() & frame["purpose"].eq("arms")].set_index("run")
    found = []
    for path in sorted({root / name for name in own["file"]}):
        for run, table in read_tables(path):
            if run in own.index:
                steps, values = series(table)["train/grad_cos_last10"]
                at, last = int(np.searchsorted(steps, own.loc[run, "injection_step"])), max(1, len(steps) // 10)
                means = [
                    float(np.mean(part))
                    for part in (values[max(0, at - 50) : at], values[at : at + 10], values[-last:])
                ]
                found.append((run, *means))
    means = pd.DataFrame(found, columns=["run", "before", "during", "end"]).set_index("run")
    joined = own.join(means)
    rows = []
    for key, part in joined.groupby(["stratum", "axis", "perturbation", "severity"]):
        medians = part[["before", "during", "end"]].median()
        rows.append((*key, len(part), *(f"{value:.2f}" for value in medians)))
    return markdown(("stratum", "axis", "kind", "severity", "runs", "before", "during", "end"), rows)


def agreement(frame: pd.DataFrame) -> str:
    """The collapse rule, which sees one run alone, beside the truth from the twin."""
    own = frame[frame["purpose"].isin([*BASE, "clip", "buffering"])].copy()
    own["truth"] = "neither"
    own.loc[own["control"], "truth"] = "control"
    own.loc[own["recovered"], "truth"] = "recovered"
    own.loc[own["harmed"], "truth"] = "harmed"
    table = pd.crosstab([own["domain"], own["truth"]], own["outcome"])
    rows = [(*key, *map(int, row)) for key, row in zip(table.index, table.to_numpy(), strict=True)]
    return markdown(("domain", "truth", *table.columns), rows)


def report(root: Path) -> str:
    """All tables."""
    frame = load(root)
    size = sum(p.stat().st_size for p in data_files(root)) / 1e6
    return "\n\n".join(
        [
            f"{len(frame)} runs, {size:.0f} MB.",
            counts(frame),
            collections(frame),
            "Outcomes by axis, kind and severity, against the twin; *rule* counts the runs in which trajscope's\n"
            "collapse rule, seeing one run alone, finds a fall.",
            outcomes(frame),
            "Weighted mean pairwise cosine of the last ten gradients: medians over runs of the means over the 50 rows\n"
            "before the event, its first 10 rows, and the last 10 % of the run.",
            coherence(root, frame),
            "Truth from the twin (rows) and the class that the collapse rule gives (columns).",
            agreement(frame),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=HERE)
    parser.add_argument("--write", action="store_true", help="put the tables into README.md")
    args = parser.parse_args()
    text = report(args.root)
    if args.write:
        path = args.root / "README.md"
        before, _, rest = path.read_text().partition(BEGIN)
        path.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
    else:
        print(text)


if __name__ == "__main__":
    main()
