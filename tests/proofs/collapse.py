"""False collapses under the null, and onset error on simulated and on the recorded arms.

Run: python tests/proofs/collapse.py [replicates]   (1,000 by default, about three minutes on one core)
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.signal import lfilter
from scipy.stats import beta

from trajscope.detect.collapse import collapse


def ar(rng: np.random.Generator, phi: float, n: int) -> np.ndarray:
    e = rng.normal(size=n + 200) * np.sqrt(1 - phi**2)
    return lfilter([1], [1, -phi], e)[200:]


def calibration(replicates: int) -> None:
    print("False collapses (any kind but none / not learned); 95 % upper bound (Clopper-Pearson); goal <= 5 %")
    print(f"{'series':>18} {'n':>5} {'phi':>4} {'false':>6} {'bound':>6}")
    for n in (200, 1000):
        trend = 1 - np.exp(-np.arange(n) / (0.08 * n))
        for phi in (0.0, 0.5, 0.9):
            for label, rise in (("flat", 0.0), ("learned 4 sd", 4.0), ("learned 10 sd", 10.0), ("learned 50 sd", 50.0)):
                rng = np.random.default_rng([n, int(phi * 10), int(rise)])
                k = sum(
                    collapse(rise * trend + ar(rng, phi, n)).kind not in ("none", "not learned")
                    for _ in range(replicates)
                )
                bound = beta.ppf(0.95, k + 1, replicates - k) if k < replicates else 1.0
                print(f"{label:>18} {n:>5} {phi:>4} {k / replicates:>6.3f} {bound:>6.3f}")


def power(replicates: int) -> None:
    print(
        "\nFalls of 14 sd for good at a random place, 200 evaluations: found, median and 90 % onset error (evaluations)"
    )
    for phi in (0.0, 0.5, 0.9):
        rng = np.random.default_rng([7, int(10 * phi)])
        errors = []
        for _ in range(replicates):
            at = int(rng.integers(80, 170))
            y = 20 * (1 - np.exp(-np.arange(200) / 16)) + ar(rng, phi, 200)
            y[at:] -= 14
            found = collapse(y)
            if found.onset is not None:
                errors.append(abs(found.onset - at))
        print(
            f"phi {phi}: found {len(errors) / replicates:.3f}, median {np.median(errors):.0f}, 90 % {np.quantile(errors, 0.9):.0f}"
        )


def recorded() -> None:
    import trajscope

    data = trajscope.load_dataset("digits")
    labels = data.labels
    arms = labels[(labels.purpose == "arms") & labels.domain.eq("digits")]
    harmed = arms[arms.harmed.fillna(False).astype(bool)]
    controls = arms[arms.arm == "control"]
    errors, missed = [], 0
    for _, row in harmed.iterrows():
        found = collapse(data.run(row.run))
        stride = 5.0
        if found.onset is None:
            missed += 1
        else:
            errors.append(abs(found.onset - float(row.first_departure)))
    false = [collapse(data.run(r)).kind not in ("none", "not learned") for r in controls.run]
    print(f"\nRecorded digits arms: {len(harmed)} harmed, {missed} without an episode, {len(controls)} controls")
    if errors:
        print(
            f"onset against first departure from the twin: median {np.median(errors):.0f} steps, "
            f"90 % {np.quantile(errors, 0.9):.0f} (goal: median <= 5 steps or one evaluation stride of {stride:.0f})"
        )
    print(f"false collapses in controls: {sum(false)} of {len(false)}")


def main() -> None:
    replicates = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    recorded()
    calibration(replicates)
    power(replicates)


if __name__ == "__main__":
    main()
