"""Axis attribution on the recorded runs: accuracy on held-out seeds and domains, confusion, reliability, speed.

Run: python tests/proofs/axis.py [--write] [-o FOLDER]

``--write`` fits the weights on the calibration split and writes ``trajscope/inference/_axis_weights.py``. With ``-o``
the tables and the reliability diagram are written there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

import trajscope as ts
from trajscope.inference._axis_model import PRIOR_MEAN, PRIOR_SD
from trajscope.inference._axis_rows import LEVEL
from trajscope.inference.axis import attribute_axis
from trajscope.inference.studies.axis import study

DOMAINS = ("digits", "cartpole", "transformer")
TARGET = Path(__file__).parents[2] / "trajscope" / "inference" / "_axis_weights.py"
HEADER = '''"""Weights of the evidence, fitted on the calibration split of the recorded runs. Written by ``tests/proofs/axis.py``.

Do not edit by hand: ``python tests/proofs/axis.py --write`` makes this file again.
"""

#: Evidence -> fitted weight.
WEIGHTS: dict[str, float] = {
'''


def recorded():
    """Labels of everything but the grids (runs without an event at unusual learning rates), and a reader of runs."""
    sets = {name: ts.load_dataset(name) for name in DOMAINS}
    labels = pd.concat([s.labels for s in sets.values()], ignore_index=True)
    labels = labels[labels["purpose"] != "grid"].reset_index(drop=True)
    home = {run: s for s in sets.values() for run in s.runs()}
    return labels, lambda run: home[run].run(run)


def write(weights: pd.DataFrame, labels: pd.DataFrame) -> None:
    own = labels[(labels["split"] == "calibration") & labels["axis"].notna()]
    lines = [f'    "{r.evidence}": {r.weight:.3f},\n' for r in weights.itertuples()]
    facts = {
        "split": "calibration (even seeds)",
        "events": len(own),
        "domains": ", ".join(sorted(own["domain"].unique())),
        "prior_mean": PRIOR_MEAN,
        "prior_sd": PRIOR_SD,
        "level": LEVEL,
    }
    tail = "}\n\n#: What the weights were fitted on.\nFITTED_ON: dict[str, object] = {\n"
    tail += "".join(f'    "{k}": {v!r},\n'.replace("'", '"') for k, v in facts.items()) + "}\n"
    TARGET.write_text(HEADER + "".join(lines) + tail, encoding="utf-8")
    print(f"written: {TARGET}")


def speed(labels: pd.DataFrame, runs) -> None:
    chosen = [runs(r) for r in labels["run"].iloc[:: max(1, len(labels) // 60)]]
    for run in chosen:
        run.data  # noqa: B018  read before the clock runs
    attribute_axis(chosen[0], declared=False)
    start = time.process_time()
    for run in chosen:
        attribute_axis(run, declared=False)
    print(f"attribute_axis: {(time.process_time() - start) / len(chosen) * 1e3:.1f} ms a run (CPU, {len(chosen)} runs)")


def main() -> None:
    labels, runs = recorded()
    found = study(runs, labels, alpha=0.05, rng=0)
    if "--write" in sys.argv:
        write(found.tables["weights"], labels)
    with pd.option_context("display.width", 250, "display.max_columns", 30, "display.precision", 3):
        for stem, table in found.tables.items():
            print(f"\n{stem}\n{table.to_string(index=False)}")
    print("\nreliability diagram (share of right answers; o) against confidence (|)")
    for r in found.tables["reliability"].itertuples():
        line = [" "] * 51
        line[round(50 * r.confidence)] = "|"
        line[round(50 * r.accuracy)] = "o"
        print(f"{r.n:5d} runs  0 {''.join(line)} 1")
    print(f"\n{found.claim}\n")
    speed(labels, runs)
    if "-o" in sys.argv:
        from trajscope.report.study import write_study

        folder = Path(sys.argv[sys.argv.index("-o") + 1])
        print(f"{len(write_study(found, folder))} files in {folder}")
    got = found.tables["accuracy"].set_index(["question", "lr"])["balanced accuracy"]
    assert got["held-out seeds", "no"] >= 0.60
    assert all(v >= 0.45 for (q, lr), v in got.items() if q.startswith("held-out domain") and lr == "no")
    assert np.isfinite(got.to_numpy()).all()


if __name__ == "__main__":
    main()
