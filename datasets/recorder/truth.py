"""Truth from the twin: did a perturbed run fall, did it come back, when did it leave its twin.

``y`` is the performance channel at the evaluations (bigger is better), of the run and of its same-seed twin. The
deficit is twin minus run at the same evaluation; ``sd`` is the standard deviation of the twin's evaluations from the
injection on about a quadratic in the step (a twin that still learns is not noisy for that), never below the resolution
of one evaluation (one validation example for an accuracy).

harmed          median of the last 10 % of evaluations more than 5 sd below the twin's
fell            at least one evaluation after the injection more than 5 sd below the twin's
recovered       fell, and that last median is at most 2 sd below the twin's
first_departure first evaluation of the fall: after the last one within 2 sd before the first one beyond 5 sd

A run that ends between 2 and 5 sd below is neither harmed nor recovered. An evaluation that is not finite counts as
infinitely far below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HARM_SD, RECOVERED_SD, LAST_SHARE = 5.0, 2.0, 0.1


@dataclass(frozen=True)
class Truth:
    """Outcome of a run against its twin; see the module for the words.

    ``fell_for`` counts the evaluations more than 5 sd below, ``end_deficit`` and ``max_deficit`` are in sd.
    """

    harmed: bool
    recovered: bool
    fell: bool
    fell_for: int
    first_departure: int | None
    end_deficit: float
    max_deficit: float
    twin_sd: float


def against_twin(
    steps: NDArray[np.int64],
    y: NDArray[np.float64],
    y_twin: NDArray[np.float64],
    injection: int,
    resolution: float,
) -> Truth:
    """Judge a run by its twin.

    Parameters
    ----------
    steps : array (n_evaluations,)
        Steps of the evaluations, the same for both.
    y, y_twin : arrays (n_evaluations,)
        Performance, bigger is better.
    injection : int
        First perturbed step.
    resolution : float
        Smallest meaningful difference: the floor of the twin's sd.
    """
    after = steps >= injection
    last = max(1, round(LAST_SHARE * len(steps)))
    sd = max(float(np.std(y_twin[after] - trend(steps[after], y_twin[after]))), resolution)
    deficit = np.where(np.isfinite(y), y_twin - y, np.inf) / sd
    end = float(np.median(y_twin[-last:]) - np.median(np.where(np.isfinite(y), y, -np.inf)[-last:])) / sd
    far = after & (deficit > HARM_SD)
    fell = bool(far.any())
    departure = None
    if fell:
        first = int(np.argmax(far))
        near = np.flatnonzero(deficit[:first] <= RECOVERED_SD)
        departure = int(steps[near[-1] + 1 if len(near) else 0])
    return Truth(
        harmed=end > HARM_SD,
        recovered=fell and end <= RECOVERED_SD,
        fell=fell,
        fell_for=int(far.sum()),
        first_departure=departure,
        end_deficit=end,
        max_deficit=float(deficit[after].max()),
        twin_sd=sd,
    )


def trend(steps: NDArray[np.int64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least-squares quadratic in the step."""
    t = (steps - steps.mean()) / max(1.0, float(np.ptp(steps)))
    basis = np.stack([np.ones_like(t), t, t**2], axis=1)
    fitted: NDArray[np.float64] = basis @ np.linalg.lstsq(basis, y, rcond=None)[0]
    return fitted


def first_difference(
    run: dict[str, tuple[np.ndarray, np.ndarray]], twin: dict[str, tuple[np.ndarray, np.ndarray]]
) -> int | None:
    """First step at which any logged value differs in its bits from the twin's, None if none does."""
    first = []
    for channel, (steps, values) in run.items():
        other_steps, other = twin[channel]
        n = min(len(steps), len(other_steps))
        differs = (values[:n].view(np.uint32) != other[:n].view(np.uint32)) | (steps[:n] != other_steps[:n])
        if differs.any():
            k = int(np.argmax(differs))
            first.append(int(min(steps[k], other_steps[k])))
        elif len(steps) != len(other_steps):  # one goes on where the other has ended
            first.append(int(max(steps, other_steps, key=len)[n]))
    return min(first) if first else None
