"""The aligned form of a run: one matrix, a mask that never lies, and the codes of what is not a number.

`align` puts channels that were logged at different steps on one grid by carrying the last observation forward. A
carried value is for reading only: ``mask`` is True only where a value was logged, and estimators treat every other cell
as missing (a channel logged every ten steps and carried forward would show a lag-1 autocorrelation of 0.90 that is not
its own). Nothing is carried across a segment boundary, and a non-finite value is never carried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.errors import InputError, nearest
from trajscope.history.run import Channel, Run

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CODES", "Trajectory", "align"]

#: Meaning of `Trajectory.codes`.
CODES: dict[str, int] = {"finite": 0, "nan": 1, "posinf": 2, "neginf": 3, "not logged": 4}


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Channels of one run on a common grid of steps.

    Attributes
    ----------
    values : ndarray, shape (n_steps, n_channels), float64
        Logged values, and between them the last finite one carried forward; NaN where there is none to carry.
    steps : ndarray, shape (n_steps,)
        Position of each row (int64, or float64 where a channel has fractional steps or ``x`` is not the step).
    names, roles : tuple of str
    mask : ndarray, shape (n_steps, n_channels), bool
        True only where a value was logged (NaN and Inf included).
    codes : ndarray, shape (n_steps, n_channels), int8
        `CODES`: finite, nan, posinf, neginf, not logged.
    segment : ndarray, shape (n_steps,), int16
        Segment of each row; steps increase inside a segment group.
    stride : tuple of float
        Median distance of the steps at which each channel was logged.
    x : str
        What ``steps`` counts.
    run : str
        Identity of the run.
    """

    values: NDArray[np.float64]
    steps: NDArray[Any]
    names: tuple[str, ...]
    roles: tuple[str, ...] = ()
    mask: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))
    codes: NDArray[np.int8] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int8))
    segment: NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, dtype=np.int16))
    stride: tuple[float, ...] = ()
    x: str = "step"
    run: str = ""

    def __post_init__(self) -> None:
        t, c = self.values.shape if self.values.ndim == 2 else (-1, -1)
        if (t, c) != (self.steps.shape[0], len(self.names)):
            raise InputError(
                f"trajectory values have shape {self.values.shape}, expected (n_steps, n_channels) ="
                f" ({self.steps.shape[0]}, {len(self.names)})"
            )
        if self.mask.shape != (t, c):
            object.__setattr__(self, "mask", ~np.isnan(self.values))
        if self.codes.shape != (t, c):
            object.__setattr__(self, "codes", _codes(self.values, self.mask))
        if self.segment.shape != (t,):
            object.__setattr__(self, "segment", np.zeros(t, dtype=np.int16))
        if not self.roles:
            object.__setattr__(self, "roles", ("",) * c)

    def __len__(self) -> int:
        return int(self.steps.shape[0])

    @property
    def observed(self) -> NDArray[np.float64]:
        """Values with everything that was not logged, or is not finite, as NaN: what estimators see."""
        return np.where(self.codes == CODES["finite"], self.values, np.nan)

    def select(self, names: Iterable[str]) -> Trajectory:
        """The trajectory restricted to the named channels, in that order."""
        chosen = []
        for name in names:
            if name not in self.names:
                raise InputError(f"trajectory has no channel {name!r}. {nearest(name, self.names)}")
            chosen.append(self.names.index(name))
        return Trajectory(
            self.values[:, chosen],
            self.steps,
            tuple(self.names[i] for i in chosen),
            tuple(self.roles[i] for i in chosen),
            self.mask[:, chosen],
            self.codes[:, chosen],
            self.segment,
            tuple(self.stride[i] for i in chosen) if self.stride else (),
            self.x,
            self.run,
        )

    def to_frame(self, *, held: bool = True) -> pd.DataFrame:
        """A frame indexed by step, a column a channel.

        Parameters
        ----------
        held : bool, default True
            Whether carried values are shown; False leaves NaN where nothing was logged.
        """
        import pandas as pd

        values = self.values if held else np.where(self.mask, self.values, np.nan)
        return pd.DataFrame(values, index=pd.Index(self.steps, name=self.x), columns=list(self.names))

    def to_parquet(self, path: str | Path) -> None:
        """Write the trajectory (values, mask as codes, segment, names, roles) to one Parquet file."""
        from trajscope.history.parquet import write_trajectory

        write_trajectory(self, path)

    @classmethod
    def from_parquet(cls, path: str | Path) -> Trajectory:
        """Read what `to_parquet` wrote."""
        from trajscope.history.parquet import read_trajectory

        return read_trajectory(path)


def _codes(values: NDArray[np.float64], mask: NDArray[np.bool_]) -> NDArray[np.int8]:
    codes = np.full(values.shape, CODES["not logged"], dtype=np.int8)
    codes[mask] = CODES["finite"]
    codes[mask & np.isnan(values)] = CODES["nan"]
    codes[mask & np.isposinf(values)] = CODES["posinf"]
    codes[mask & np.isneginf(values)] = CODES["neginf"]
    return codes


def align(run: Run, channels: Sequence[str] | None = None, x: str = "step") -> Trajectory:
    """Put the channels of a run on one grid of steps by last observation.

    Parameters
    ----------
    run : Run
    channels : sequence of str, optional
        Names of the channels; default all numeric channels with at least one point.
    x : str, default "step"
        What the rows are ordered and labelled by: ``"step"``, ``"wall_time"`` (Unix seconds) or the name of a channel
        (tokens, samples, epoch, ...) whose last value at each step labels the row. Rows before its first value are
        dropped, and so are rows at which it goes back.

    Returns
    -------
    Trajectory
        One row for each step at which any of the channels was logged.

    Raises
    ------
    InputError
        If ``run`` is no Run, a channel is unknown, or ``x`` cannot label any row.

    Examples
    --------
    >>> import numpy as np
    >>> from trajscope.history.run import Channel, Run, RunData
    >>> loss = Channel("loss", np.arange(4), np.array([4.0, 3.0, 2.0, 1.0]))
    >>> val = Channel("val", np.array([1, 3]), np.array([5.0, 6.0]))
    >>> t = align(Run("r", RunData({"loss": loss, "val": val})))
    >>> t.values[:, 1]
    array([nan,  5.,  5.,  6.])
    >>> t.mask[:, 1]
    array([False,  True, False,  True])
    """
    if not isinstance(run, Run):
        raise InputError(f"align takes a Run (ts.read_run), got {type(run).__name__}")
    available = run.channels
    names = list(available) if channels is None else list(channels)
    for name in names:
        if name not in available:
            raise InputError(f"run {run.id!r} has no channel {name!r}. {nearest(name, available)}")
    chosen: list[Channel] = [available[n] for n in names]
    if channels is None:
        chosen = [c for c in chosen if len(c)]
    if x not in ("step", "wall_time") and x not in available:
        known = nearest(x, [*available, "step", "wall_time"])
        raise InputError(f"run {run.id!r} has no channel {x!r} for the x axis. {known}")
    label = available[x] if x not in ("step", "wall_time") else None
    groups = _group_of_segment(run)
    blocks = [
        _align_group(
            [_of_group(c, groups, g) for c in chosen], None if label is None else _of_group(label, groups, g), x
        )
        for g in sorted({s.group for s in run.segments} or {0})
    ]
    values, codes, steps, segment = (np.concatenate([b[k] for b in blocks]) for k in range(4))
    if x != "step" and chosen and not steps.size:
        raise InputError(f"run {run.id!r} logs no {x} at any step of the chosen channels; use x='step'")
    return Trajectory(
        values,
        steps,
        tuple(c.name for c in chosen),
        tuple(c.role for c in chosen),
        codes != CODES["not logged"],
        codes,
        segment,
        tuple(c.stride for c in chosen),
        x,
        run.id,
    )


def _group_of_segment(run: Run) -> NDArray[np.int64]:
    """Group of each segment by its index (the indices of a part of a split run need not start at 0)."""
    groups = np.zeros(max((s.index for s in run.segments), default=0) + 1, dtype=np.int64)
    for s in run.segments:
        groups[s.index] = s.group
    return groups


def _of_group(channel: Channel, groups: NDArray[np.int64], group: int) -> Channel:
    if not len(channel) or bool((groups == group).all()):
        return channel
    return channel.take(groups[channel.segment] == group)


def _align_group(
    channels: list[Channel], label: Channel | None, x: str
) -> tuple[NDArray[np.float64], NDArray[np.int8], NDArray[Any], NDArray[np.int16]]:
    grids = [c.steps for c in channels]
    grid = np.unique(np.concatenate(grids)) if grids else np.zeros(0, dtype=np.int64)
    n, width = grid.size, len(channels)
    values = np.full((n, width), np.nan)
    codes = np.full((n, width), CODES["not logged"], dtype=np.int8)
    segment = np.full(n, -1, dtype=np.int16)
    wall = np.full(n, np.nan)
    for c in channels:
        rows = np.searchsorted(grid, c.steps)
        segment[rows] = np.maximum(segment[rows], c.segment)
        if c.wall_time is not None:
            wall[rows] = np.fmax(wall[rows], c.wall_time)
    if n:
        segment = np.maximum.accumulate(segment)
    for k, c in enumerate(channels):
        if not len(c):
            continue
        rows = np.searchsorted(grid, c.steps)
        raw = c.values.astype(np.float64)
        values[rows, k] = raw
        codes[rows, k] = _codes(raw, np.ones(raw.size, dtype=bool))
        last = np.searchsorted(c.steps, grid, side="right") - 1
        held = (codes[:, k] == CODES["not logged"]) & (last >= 0)
        held[held] = (c.segment[last[held]] == segment[held]) & np.isfinite(raw[last[held]])
        values[held, k] = raw[last[held]]
    if x == "step":
        return values, codes, grid, segment
    if label is None:
        position = wall
    else:
        last = np.searchsorted(label.steps, grid, side="right") - 1
        position = np.where(last >= 0, label.values.astype(np.float64)[np.maximum(last, 0)], np.nan)
    usable = np.isfinite(position)
    peak = np.maximum.accumulate(np.where(usable, position, -np.inf)) if n else position
    usable &= position >= peak
    return values[usable], codes[usable], position[usable], segment[usable]
