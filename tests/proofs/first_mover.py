"""Who moved first: coverage of the intervals, and how often an order is claimed that is not there.

Run: nice -n 15 python tests/proofs/first_mover.py [replicates]   (1,000 by default; fixed seeds; about ten minutes)

Four channels over 500 rows. Moves: a step or a ramp of so many marginal sd, the last row of the ramp 12 rows after its
first. `wrong`: a channel is called first that was not alone in front; `right`: the one that was.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.stats import beta

from trajscope.detect.first_mover import first_mover
from trajscope.simulate import ar

N, AT = 500, 300
NAMES = ("a", "b", "c", "d")


def noise(kind: str, rng: np.random.Generator) -> np.ndarray:
    if kind == "t(3)":
        return rng.standard_t(3, (N, 4)) / np.sqrt(3)
    phi = float(kind[3:-1])
    return ar(N, phi, 4, rng=rng)


def moved(x: np.ndarray, at: int, size: float, ramp: int) -> None:
    t = np.arange(N)
    x += size * (t >= at) if not ramp else size * np.clip((t - at + 1) / ramp, 0, 1)


def run(kind: str, shape: str, leads: tuple[int | None, ...], size: float, replicates: int) -> str:
    covered = judged = right = wrong = 0
    widths = []
    for seed in range(replicates):
        rng = np.random.default_rng([seed, len(kind), len(shape), sum(v or 0 for v in leads)])
        x = noise(kind, rng) + 10
        for j, lead in enumerate(leads):
            if lead is not None:
                moved(x[:, j], AT - lead, size, 12 if shape == "ramp" else 0)
        found = first_mover(dict(zip(NAMES, x.T, strict=True)), event=AT, n_null=39, rng=seed)
        for m in found.moves:
            lead = leads[NAMES.index(m.channel)]
            if m.moved and lead is not None:
                judged += 1
                covered += m.low < AT - lead <= m.high
                widths.append(m.high - m.low)
        front = [v for v in leads if v is not None]
        alone = front and front.count(max(front)) == 1
        true = NAMES[leads.index(max(front))] if alone else None
        if found.verdict == "first":
            right += found.first == (true,)
            wrong += found.first != (true,)
    bound = beta.ppf(0.95, wrong + 1, replicates - wrong)
    cover = f"{covered / judged:.3f} (median width {np.median(widths):.0f})" if judged else "-"
    return f"  {kind:8} {shape:5} {size:3.0f} sd  leads {leads!s:24} covered {cover:26} right {right / replicates:.3f}  wrong {wrong / replicates:.3f} (<= {bound:.3f})"


if __name__ == "__main__":
    replicates = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for kind in ("AR(0)", "AR(0.5)", "AR(0.9)", "t(3)"):
        print(run(kind, "step", (None,) * 4, 0, replicates), flush=True)
        for shape in ("step", "ramp"):
            for leads in ((0, 0, 0, 0), (8, 8, 0, None), (12, 4, 0, None)):
                print(run(kind, shape, leads, 12, replicates), flush=True)
