"""Verdicts of the audit on public logs with labels: non-finite, collapse, level shift, deliberate reset, control.

    python tests/proofs/audit_labelled.py [--data ../shared/data/labelled] [--list]

AlgoPerf runs give the confusion table and the shares with 95 % Clopper-Pearson intervals; modded-nanogpt runs the share
of dated data outliers that an audit lists; the lines that BLOOM's and OPT-like chronicles quote are audited section by
section, and each dated event is looked for among the audit's. Where the data are absent it says so and ends.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from audit_recorded import interval

import trajscope
from trajscope.audit.run import Audit, audit
from trajscope.config import Settings
from trajscope.history import Run, RunData, named_channel

LABELS = ("nonfinite", "collapse", "levelshift", "restart", "control")
VERDICTS = ("healthy", "look closer", "not healthy", "cannot tell")

#: Section of the chronicles -> (first, last step) of what it tells of, and the words of it.
DATED = {
    "A huge lm loss spike": (29050, 29060, "tr1-13B loss spike"),
    "2022-04-12 First lm loss spike": (31215, 31220, "176B loss spike"),
    "Experiment 2": (6920, 6940, "tr8 exp 2 loss jump"),
    "Experiment 12": (8740, 9030, "tr8 exp 12 divergence"),
    "Analyzing Spike": (11446, 11449, "tr8 exp 11 loss spike"),
    "Embed-Norm Experiment 7": (17060, 17070, "tr8b exp 7 spike after resume"),
}


def algoperf(root: Path, listed: bool) -> None:
    """Confusion table of labels and verdicts."""
    with (root / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    table: dict[str, Counter[str]] = defaultdict(Counter)
    named = Counter[str]()
    for row in rows:
        result = audit(trajscope.read_run(root / f"{row['run']}.measurements.csv"), settings=Settings(profile="fast"))
        table[row["label"]][result.verdict] += 1
        reset = next(c for c in result.checks if c.id == "D7")
        if reset.found.startswith("a deliberate reset"):
            named[row["label"]] += 1
        if listed:
            print(f"{row['label']:>10} {result.verdict:>12} {row['run']}: {result.reasons[0]}")
    print(f"\n{'AlgoPerf label':>15} " + " ".join(v.rjust(12) for v in VERDICTS) + "  reset named")
    for label in LABELS:
        counts = " ".join(str(table[label][v]).rjust(12) for v in VERDICTS)
        print(f"{label:>15} {counts} {named[label]:>12}")
    for label, wanted, verdicts in (
        ("control", "not 'not healthy'", {"healthy", "look closer", "cannot tell"}),
        ("nonfinite", "'not healthy'", {"not healthy"}),
        ("collapse", "'not healthy'", {"not healthy"}),
    ):
        n = table[label].total()
        k = sum(table[label][v] for v in verdicts)
        low, high = interval(k, n)
        print(f"{label} {wanted}: {k} of {n} = {k / n:.3f} [{low:.3f}, {high:.3f}]")


def chronicles(file: Path, listed: bool) -> None:
    """Sections of quoted Megatron lines, one run each."""
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    sections: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        sections[row["section"]].append(row)
    found = 0
    print(f"\n{'chronicle':>32} {'verdict':>12}  events of the audit beside what was told")
    for section, (low, high, words) in DATED.items():
        result = audit(_section(section, sections[section]))
        near = [e for e in result.events if low <= e.step <= high]
        found += bool(near)
        said = near[0].sentence if near else "none; " + result.reasons[0]
        print(f"{words:>32} {result.verdict:>12}  {said}")
        if listed:
            for line in result.what_happened():
                print(f"{'':>46}{line}")
    print(f"dated events found: {found} of {len(DATED)}")


def _section(name: str, rows: list[dict[str, str]]) -> Run:
    """A run of the lines of a section, in the order of its steps (the last of lines that share one)."""
    by = {float(r["iteration"]): r for r in rows if r["iteration"]}
    steps = np.array(sorted(by))
    channels = {}
    for column in ("lm_loss", "grad_norm", "loss_scale", "lr", "global_batch_size", "skipped", "nan_iters"):
        kept = [(s, float(by[s][column])) for s in steps if by[s].get(column)]
        if kept:
            own, values = (np.array(x, dtype=float) for x in zip(*kept, strict=True))
            label = {"lm_loss": "lm loss", "skipped": "skipped_iterations"}.get(column, column)
            channels[label] = named_channel(label, own, values)
    return Run(name, RunData(channels))


def outliers(root: Path, listed: bool) -> None:
    """One-step data outliers of modded-nanogpt in the default data order."""
    dated = (919, 947, 1106, 1760, 2460, 3092, 3194, 3473)
    hit = total = 0
    verdicts = Counter[str]()
    for file in sorted(root.glob("*.csv")):
        result: Audit = audit(trajscope.read_run(file), settings=Settings(profile="fast"))
        verdicts[result.verdict] += 1
        loss = next(iter(result.run.by_role("loss")), None)
        if loss is None or len(loss) < 1000:
            continue
        inside = [s for s in dated if s < loss.steps[-1]]
        seen = {e.step for e in result.events if e.kind == "spike"}
        got = [s for s in inside if any(abs(s - e) <= 1 for e in seen)]
        hit, total = hit + len(got), total + len(inside)
        if listed:
            print(f"{file.stem}: {result.verdict}: {len(got)} of {len(inside)} dated outliers; {result.reasons[0]}")
    print(
        f"\nmodded-nanogpt: {hit} of {total} steps with a dated outlier (any data order) are events; {dict(verdicts)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[3] / "shared" / "data" / "labelled"
    parser.add_argument("--data", type=Path, default=default)
    parser.add_argument("--list", action="store_true", help="each run with its first reason")
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"{options.data}: not there; nothing was tried")
        return
    algoperf(options.data / "algoperf", options.list)
    chronicles(options.data / "bloom" / "megatron_lines.csv", options.list)
    outliers(options.data / "nanogpt", options.list)


if __name__ == "__main__":
    main()
