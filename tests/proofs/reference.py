"""Level and power of the band of healthy siblings on the recorded runs.

    python tests/proofs/reference.py [--repeats 12]

Control runs of one setting: some of them are drawn as references, others held against their band (share outside at a
nominal 5 %); then the harmed runs of the same setting are held against twenty references.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict

import numpy as np
from audit_recorded import interval

from trajscope.history.datasets import load_dataset
from trajscope.inference.reference import ReferenceBand

SIZES = (4, 6, 10, 20)
TESTED = 8
MOST_HARMED = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=12)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    counts: dict[int, list[int]] = {n: [0, 0] for n in SIZES}
    for domain in ("digits", "transformer"):
        data = load_dataset(domain)
        labels = data.labels
        stems: dict[str, list[str]] = defaultdict(list)
        harmed: dict[str, list[str]] = defaultdict(list)
        for name, twin, bad in zip(labels["run"], labels["twin"].isna(), labels["harmed"].fillna(False), strict=True):
            stem = re.split(r"-s\d{3}-", str(name))[0]
            (stems if twin else harmed)[stem].extend([str(name)] if twin or bad else [])
        for stem, names in stems.items():
            if len(names) < 14:
                continue
            runs = [data.run(n) for n in names[:60]]
            line = []
            for n in (n for n in SIZES if n + 4 <= len(runs)):
                hits = total = 0
                for _ in range(options.repeats):
                    order = rng.permutation(len(runs))
                    band = ReferenceBand.of([runs[i] for i in order[:n]])
                    for i in order[n : n + TESTED]:
                        hits, total = hits + band.test(runs[i]).outside, total + 1
                counts[n][0] += hits
                counts[n][1] += total
                line.append(f"{n} references: {hits} of {total}")
            band = ReferenceBand.of(runs[: min(20, len(runs))])
            found = [band.test(data.run(n)).outside for n in harmed[stem][:MOST_HARMED]]
            print(f"{stem}: outside: {', '.join(line)}; harmed {sum(found)} of {len(found)}", flush=True)
    for n, (hits, total) in counts.items():
        low, high = interval(hits, total)
        print(f"{n} references: {hits} of {total} healthy runs outside = {hits / total:.3f} [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()
