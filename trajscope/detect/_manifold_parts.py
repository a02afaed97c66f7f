"""Small parts of the instability manifold: what a group of runs is measured against, and what a crossing is."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from trajscope.detect._manifold_channels import Scales
from trajscope.detect._manifold_shape import Shape
from trajscope.errors import InputError
from trajscope.metastate._runs import RunData, is_many
from trajscope.metastate.reference import Kind, Reference
from trajscope.result import Result

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Baseline", "Crossing", "Watch", "flags_of", "items_of", "warmup_rows"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Crossing(Result):
    """When a run first left the stable set; returned by `InstabilityManifold.first_crossing`.

    Attributes
    ----------
    step : float or None
        Step of the row that confirmed it; None where the run did not leave, or where nothing is certifiable.
    distance : float
        Signed distance there; where it did not leave, the largest of the run.
    status : {"crossed", "inside", "not certifiable", "cannot tell"}
    candidate : float or None
        Step of the first confirmed row beyond the boundary, certifiable or not.
    reason : str
    """

    step: float | None
    distance: float
    status: str
    candidate: float | None
    reason: str = ""

    def to_frame(self) -> pd.DataFrame:
        """One row."""
        import pandas as pd

        return pd.DataFrame([{"step": self.step, "distance": self.distance, "status": self.status}])

    def summary(self) -> str:
        """One sentence."""
        if self.status == "crossed":
            return f"Left the stable set at step {self.step:g}, {self.distance:.2f} sd outside."
        if self.status == "inside":
            return f"Stayed inside the stable set; nearest to its boundary: {-self.distance:.2f} sd."
        return f"{self.status.capitalize()}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Baseline:
    """What the runs of one group are measured against."""

    scales: Scales
    reference: Reference

    @classmethod
    def fit(cls, runs: list[RunData], roles: Sequence[str], kind: Kind, scale: Literal["mad", "std"]) -> Baseline:
        scales = Scales.fit([r.x for r in runs], roles)
        return cls(scales, Reference(kind, scale).fit([_read(scales, r) for r in runs]))

    def standardise(self, run: RunData, watch: Watch | None = None) -> Floats:
        return self.reference.residual(_read(self.scales, run), watch if self.reference.kind == "trend" else None)

    def left_out(self, runs: list[RunData]) -> list[Floats]:
        """Rows of the baseline runs themselves, each against a reference that it took no part in."""
        if self.reference.kind != "siblings":  # a trend is the run's own; a level is one number of many rows
            return [self.standardise(r) for r in runs]
        read = [_read(self.scales, r) for r in runs]
        return [self.reference._scaled(self.reference._baseline_residual(read, i)) for i in range(len(read))]


def _read(scales: Scales, run: RunData) -> RunData:
    return RunData(scales.apply(run.x), run.steps, run.names)


class Watch:
    """Freezes a trend reference while rows are farther out than any healthy one (see `Reference`)."""

    def __init__(self, shape: Shape, bound: float) -> None:
        self.shape, self.bound = shape, bound

    def outside(self, x: Floats) -> NDArray[np.bool_]:
        """Whether the radius exceeds the bound."""
        return np.asarray(self.shape.radius(x) > self.bound)

    def advance(self, x: Floats) -> None:
        """Nothing to remember."""


def warmup_rows(given: int | None, length: float) -> int:
    """Rows that are not judged: 5 % of a healthy run, at least 50 (DEFINITIONS 12), at most a third."""
    if given is None:
        return min(max(int(np.ceil(0.05 * length)), 50), int(length // 3))
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 0:
        raise InputError(f"warmup is {given!r}; a number of rows, 0 or more, or None is expected.")
    return int(given)


def items_of(X: Any) -> list[Any]:
    """The runs of an argument, as they were given."""
    return list(X) if is_many(X) else [X]


def flags_of(X: Any, y: Any, n_runs: int, groups: Sequence[Hashable] | None) -> tuple[list[bool], list[Hashable]]:
    """Which runs are unstable, and their groups; the runs after those of `X` are unstable ones given apart."""
    n, many = len(items_of(X)), is_many(X)
    flags = [False] * n
    if many and y is not None:
        given = np.asarray(y)
        if given.shape != (n,):
            raise InputError(f"y has shape {given.shape} for {n} runs; one flag a run is expected, True if unstable.")
        if not np.isin(given, (0, 1)).all():
            raise InputError(f"y holds {given[~np.isin(given, (0, 1))][0]}; True (unstable) or False is expected.")
        flags = [bool(v) for v in given]
    names: list[Hashable] = [""] * n if groups is None else list(groups)
    if len(names) != n:
        raise InputError(f"groups has {len(names)} entries for {n} runs; one a run is expected.")
    if n_runs > n and (any(flags) or len(set(names)) > 1):
        raise InputError("unstable= goes with healthy runs of one group; put all runs in X and mark them by y.")
    if all(flags):
        raise InputError("all runs are marked unstable; the stable set is learnt from healthy ones.")
    return flags + [True] * (n_runs - n), names + [names[0]] * (n_runs - n)
