"""The result of `change_points`: events in steps, how sure, which channels, and what each segment looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.result import Result

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ChangePoints", "Segment"]

Floats = NDArray[np.float64]
RESOLUTION = 1e-12
"""Least p-value that is printed: further out the normal approximation says nothing."""
_SENTENCE = {"level": "level shift", "slope": "change of slope", "variance": "change of variance"}


@dataclass(frozen=True)
class Segment:
    """A stretch of one channel between two of its changes, fitted by a line.

    Attributes
    ----------
    channel : str
    start, stop : number
        Half-open in steps: first step of the stretch, first step of the next one (one past the last step at the end).
    n_rows : int
        Finite rows.
    level : float
        Mean of the fitted line over the stretch.
    slope : float
        Per step.
    sd : float
        Standard deviation of the residual about the line.
    """

    channel: str
    start: float
    stop: float
    n_rows: int
    level: float
    slope: float
    sd: float


@dataclass(frozen=True, eq=False)
class ChangePoints(Result):
    """Change points: the first step of each new regime, sorted, no sentinel.

    Attributes
    ----------
    steps : ndarray, (n_changes,)
        First step of the new regime.
    rows : ndarray of int, (n_changes,)
        The same as rows of the input.
    intervals : ndarray, (n_changes, 2)
        95 % interval of the location, half-open in steps.
    p_values : ndarray, (n_changes,)
        Family-wise over the series, scales, kinds and channels; NaN for searches that have none. From a normal
        approximation: below about 1e-12 they order changes and mean no more than "less than that".
    channels : tuple of tuple of str
        Which channels moved at each change, strongest first.
    kind : tuple of str
        "level", "slope" or "variance", that of the strongest channel.
    sizes : ndarray, (n_changes,)
        Of the strongest channel: step, change of slope per step, or factor on the standard deviation.
    explained : tuple of (str or None)
        The known event that explains the change, None where none does.
    segments : tuple of Segment
        Per channel, in order.
    not_tested : tuple of str
        What could not be judged and why ("not enough history ...").
    spikes : mapping of str to ndarray
        Steps of isolated points that were set aside, by channel.
    data_steps : ndarray, (n_steps,)
    data_values : ndarray, (n_steps, n_channels)
    names : tuple of str
        What was searched, for the plot.
    """

    plot_name = "change_points"

    steps: NDArray[Any]
    rows: NDArray[np.int64]
    intervals: NDArray[Any]
    p_values: Floats
    channels: tuple[tuple[str, ...], ...]
    kind: tuple[str, ...]
    sizes: Floats
    explained: tuple[str | None, ...]
    segments: tuple[Segment, ...]
    not_tested: tuple[str, ...]
    spikes: dict[str, NDArray[Any]]
    data_steps: NDArray[Any]
    data_values: Floats
    names: tuple[str, ...]
    alpha: float
    method: str

    def __len__(self) -> int:
        return int(self.steps.shape[0])

    def to_frame(self) -> pd.DataFrame:
        """One row a change: step, row, low, high, p_value, kind, size, channels, explained."""
        import pandas as pd

        return pd.DataFrame(
            {
                "step": self.steps,
                "row": self.rows,
                "low": self.intervals[:, 0],
                "high": self.intervals[:, 1],
                "p_value": self.p_values,
                "kind": pd.Series(list(self.kind), dtype=object),
                "size": self.sizes,
                "channels": pd.Series([", ".join(c) for c in self.channels], dtype=object),
                "explained": pd.Series(list(self.explained), dtype=object),
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without the searched data."""
        out = super().to_dict()
        del out["data_steps"], out["data_values"]
        return out

    def segments_frame(self) -> pd.DataFrame:
        """One row a segment."""
        import pandas as pd

        return pd.DataFrame([vars(s) for s in self.segments], columns=list(Segment.__dataclass_fields__))

    def summary(self) -> str:
        """Plain sentences: each change with step, interval, kind, channels and p-value; what was not judged."""
        n = len(self)
        many = len(self.names) > 1
        lines = [
            f"{n} change point{'' if n == 1 else 's'} in {self.data_values.shape[0]} rows"
            + (f" of {len(self.names)} channels" if many else "")
            + (
                f" (family-wise error {self.alpha:g})."
                if self.method == "auto"
                else f" (search {self.method!r}, no error rate)."
            )
        ]
        for i in range(n):
            p = self.p_values[i]
            sure = "" if not np.isfinite(p) else f", p = {p:.2g}" if p >= RESOLUTION else f", p < {RESOLUTION:g}"
            where = f" in {', '.join(self.channels[i])}" if many else ""
            why = f"; explained by {self.explained[i]}" if self.explained[i] is not None else ""
            low, high = self.intervals[i]
            lines.append(
                f"Step {self.steps[i]:g} (95 % interval [{low:g}, {high:g})):"
                f" {_SENTENCE[self.kind[i]]}{where}{sure}{why}."
            )
        lines.extend(self.not_tested[:3])
        if len(self.not_tested) > 3:
            lines.append(f"... and {len(self.not_tested) - 3} more notes in not_tested.")
        return "\n".join(lines)
