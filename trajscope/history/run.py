"""The data model: a run, its channels, its segments and what went wrong while reading it.

A `Run` holds ragged series: each `Channel` keeps its own steps, its own values in their own precision, and its own
wall times. Nothing is resampled here; `trajscope.align` makes a matrix when one is wanted.

Four kinds of absence stay apart from the reader to the report: a value that was not logged (no point, or an explicit
empty cell, counted in ``Channel.n_missing``), NaN, +Inf and -Inf (points whose value is that).

Invariant: inside one segment group of a run the steps of a channel strictly increase (unless the run was read with
``resume="keep-all"``). A run whose counter restarted holds several groups; `Run.split` gives one run for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.errors import InputError, nearest
from trajscope.history.roles import ROLES, guess_role

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Channel", "Channels", "Problem", "Run", "Segment", "value_counts"]

#: Order of severities, mildest first.
SEVERITIES = ("info", "warning", "error")


@dataclass(frozen=True)
class Problem:
    """One thing that a reader skipped, merged, thinned or could not decide.

    Attributes
    ----------
    code : str
        Stable kebab-case identifier, for example ``"truncated-tail"``.
    severity : {"info", "warning", "error"}
        ``info``: nothing was lost; ``warning``: something was lost or is ambiguous; ``error``: the file was not read.
    message : str
        One sentence for a person.
    file : str
        File concerned, relative to the root that was read where possible; empty where none.
    place : str
        Where in the file, as ``"byte 1234"``, ``"line 12"`` or ``"step 700"``; empty where it has no place.
    count : int
        How many records, points or cells are concerned.
    """

    code: str
    severity: str
    message: str
    file: str = ""
    place: str = ""
    count: int = 1

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise InputError(f"problem severity {self.severity!r} is unknown. {nearest(self.severity, SEVERITIES)}")

    def __str__(self) -> str:
        where = ", ".join(p for p in (self.file, self.place) if p)
        return f"{self.message} ({where})" if where else self.message


@dataclass(frozen=True)
class Segment:
    """A stretch of a run written in one go.

    Attributes
    ----------
    index : int
        Position in ``Run.segments``; ``Channel.segment`` refers to it.
    kind : {"start", "continuation", "supersedes", "interleaved", "restart"}
        How it follows the one before. ``supersedes``: it went back and replaced what was logged from ``first_step`` on.
        ``restart``: the step counter began anew, so it opens a new group and is never merged.
    group : int
        Number of restarts before it; segments of one group form one series.
    first_step, last_step : float
        First and last step logged in it.
    file : str
        File it came from.
    started : float or None
        Wall time (Unix seconds) of its first point, None where unknown.
    """

    index: int
    kind: str
    group: int
    first_step: float
    last_step: float
    file: str = ""
    started: float | None = None


def value_counts(values: NDArray[Any]) -> dict[str, int]:
    """Count finite values, NaN, +Inf and -Inf.

    >>> value_counts(np.array([1.0, np.nan, np.inf, -np.inf, 2.0]))
    {'finite': 2, 'nan': 1, 'posinf': 1, 'neginf': 1}
    """
    if values.dtype.kind not in "fc":
        return {"finite": int(values.size), "nan": 0, "posinf": 0, "neginf": 0}
    finite = int(np.count_nonzero(np.isfinite(values)))
    if finite == values.size:
        return {"finite": finite, "nan": 0, "posinf": 0, "neginf": 0}
    return {
        "finite": finite,
        "nan": int(np.count_nonzero(np.isnan(values))),
        "posinf": int(np.count_nonzero(np.isposinf(values))),
        "neginf": int(np.count_nonzero(np.isneginf(values))),
    }


@dataclass(frozen=True, eq=False)
class Channel:
    """One logged series (TensorBoard calls it a tag).

    Attributes
    ----------
    name : str
        Name in the log, unchanged.
    steps : ndarray, shape (n_points,), int64 or float64
        Step of each point.
    values : ndarray, shape (n_points,)
        Values in the precision in which they were logged.
    wall_time : ndarray or None, shape (n_points,), float64
        Unix seconds, None where the log has none.
    segment : ndarray, shape (n_points,), int16
        Index into ``Run.segments``; all 0 where not given.
    role : str
        What the channel means (`trajscope.history.roles`), empty where unknown.
    role_confidence : float
        Between 0 and 1; 1 for a role given by the user.
    sampled : bool
        True where the source itself holds only a sample of what was logged.
    n_missing : int
        Explicitly empty cells or nulls in the source; these are no points.
    n_duplicates : int
        Points dropped because one writer logged the same step again (the last write is kept).
    """

    name: str
    steps: NDArray[Any]
    values: NDArray[Any]
    wall_time: NDArray[np.float64] | None = None
    segment: NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, dtype=np.int16))
    role: str = ""
    role_confidence: float = 0.0
    sampled: bool = False
    n_missing: int = 0
    n_duplicates: int = 0

    def __post_init__(self) -> None:
        n = self.steps.shape[0]
        if self.segment.size == 0:
            object.__setattr__(self, "segment", np.zeros(n, dtype=np.int16))
        for label, array in (("values", self.values), ("wall_time", self.wall_time), ("segment", self.segment)):
            if array is not None and array.shape != (n,):
                raise InputError(
                    f"channel {self.name!r}: {label} has shape {array.shape}, expected ({n},) like its steps"
                )

    def __len__(self) -> int:
        return int(self.steps.shape[0])

    @property
    def counts(self) -> dict[str, int]:
        """Finite, NaN, +Inf and -Inf points, and explicitly missing cells."""
        return {**value_counts(self.values), "missing": self.n_missing}

    @property
    def stride(self) -> float:
        """Median distance of successive steps; NaN with fewer than two points."""
        if len(self) < 2:
            return float("nan")
        gaps = np.diff(self.steps)
        gaps = gaps[gaps > 0]
        return float(np.median(gaps)) if gaps.size else float("nan")

    def take(self, rows: NDArray[Any]) -> Channel:
        """The channel restricted to ``rows`` (a boolean mask or row numbers)."""
        return replace(
            self,
            steps=self.steps[rows],
            values=self.values[rows],
            wall_time=None if self.wall_time is None else self.wall_time[rows],
            segment=self.segment[rows],
        )


class Channels(Mapping[str, Channel]):
    """Read-only mapping of channel names to channels; an unknown name says which one may be meant."""

    def __init__(self, channels: Mapping[str, Channel] | None = None, run: str = "") -> None:
        self._channels = dict(channels or {})
        self._run = run

    def __getitem__(self, name: str) -> Channel:
        try:
            return self._channels[name]
        except KeyError:
            raise KeyError(f"run {self._run!r} has no channel {name!r}. {nearest(name, self._channels)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._channels)

    def __len__(self) -> int:
        return len(self._channels)

    def __contains__(self, name: object) -> bool:
        return name in self._channels

    def __repr__(self) -> str:
        return f"Channels({', '.join(self._channels)})"


@dataclass(frozen=True)
class RunData:
    """What a reader delivers for one run; held by `Run` and filled when first touched."""

    channels: Mapping[str, Channel] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    superseded: Mapping[str, Channel] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)


class Run:
    """One training run as its log tells it.

    Parameters
    ----------
    id : str
        Identity inside the root that was read: the relative path, with ``#key`` where one file holds several runs.
    data : RunData or callable returning RunData
        The content. A callable is called once, when something of the content is first touched; an error it raises
        reaches whoever touched.
    path : str
        Where it was read from.
    format : str
        Name of the reader.

    Attributes
    ----------
    channels : mapping of str to Channel
    config : mapping
        Hyper-parameters and settings found in or beside the log.
    summary : mapping
        Final values that are no series (for example ``wandb-summary.json``).
    segments : tuple of Segment
    superseded : mapping of str to Channel
        Points of dead branches: what a resume went back over. They stay readable here and are in no channel.
    problems : tuple of Problem
    provenance : mapping
        Files read, policy of resumes, which column was the step.
    """

    def __init__(self, id: str, data: RunData | Callable[[], RunData], *, path: str = "", format: str = "") -> None:
        self.id = id
        self.path = path
        self.format = format
        self._source = data

    @property
    def data(self) -> RunData:
        """The content, read now if it was not yet."""
        if not isinstance(self._source, RunData):
            self._source = self._source()
        return self._source

    @property
    def loader(self) -> Callable[[], RunData] | None:
        """What will read the content; None once it was read."""
        return None if isinstance(self._source, RunData) else self._source

    @property
    def channels(self) -> Channels:
        """The channels by name."""
        return Channels(self.data.channels, self.id)

    @property
    def config(self) -> Mapping[str, Any]:
        """Hyper-parameters and settings."""
        return MappingProxyType(dict(self.data.config))

    @property
    def summary(self) -> Mapping[str, Any]:
        """Final values that are no series."""
        return MappingProxyType(dict(self.data.summary))

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The stretches that were written in one go."""
        return self.data.segments

    @property
    def superseded(self) -> Channels:
        """Points of dead branches, by channel name."""
        return Channels(self.data.superseded, self.id)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything that was skipped, merged, thinned or could not be decided."""
        return self.data.problems

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Files read and rules applied."""
        return MappingProxyType(dict(self.data.provenance))

    @property
    def n_points(self) -> int:
        """Number of points over all channels."""
        return sum(len(c) for c in self.channels.values())

    @property
    def sampled(self) -> bool:
        """Whether any channel comes from a source that holds only a sample."""
        return any(c.sampled for c in self.channels.values())

    def __repr__(self) -> str:
        if isinstance(self._source, RunData):
            return f"<Run {self.id!r}: {self.format}, {len(self.channels)} channels, {self.n_points} points>"
        return f"<Run {self.id!r}: {self.format}, not read yet>"

    def by_role(self, role: str) -> list[Channel]:
        """Channels with the role, the most confident first, then in order of appearance."""
        found = [c for c in self.channels.values() if c.role == role]
        return sorted(found, key=lambda c: -c.role_confidence)

    def replace(self, **changes: Any) -> Run:
        """A new run with fields of the content (`RunData`) or ``id`` exchanged."""
        run_id = changes.pop("id", self.id)
        return Run(run_id, replace(self.data, **changes), path=self.path, format=self.format)

    def with_roles(self, roles: Mapping[str, str]) -> Run:
        """A new run in which the named channels have the given roles (confidence 1).

        Raises
        ------
        InputError
            If a name is not a channel of the run, or a role is none of `trajscope.history.ROLES`.
        """
        channels = dict(self.channels)
        for name, role in roles.items():
            if name not in channels:
                raise InputError(f"run {self.id!r} has no channel {name!r} to give a role. {nearest(name, channels)}")
            if role not in ROLES:
                raise InputError(f"role {role!r} of channel {name!r} is unknown. {nearest(role, ROLES)}")
            channels[name] = replace(channels[name], role=role, role_confidence=1.0)
        return self.replace(channels=channels)

    def split(self) -> list[Run]:
        """One run for each segment group: ``[self]`` unless the step counter restarted.

        Groups become runs called ``id#1``, ``id#2``, ... in the order in which they were written.
        """
        groups = sorted({s.group for s in self.segments})
        if len(groups) < 2:
            return [self]
        parts = []
        for number, group in enumerate(groups, 1):
            members = np.array([s.index for s in self.segments if s.group == group], dtype=np.int16)
            chosen: dict[str, dict[str, Channel]] = {"channels": {}, "superseded": {}}
            for attribute, target in chosen.items():
                for name, channel in getattr(self.data, attribute).items():
                    rows = np.isin(channel.segment, members)
                    if rows.any():
                        target[name] = channel.take(rows)
            parts.append(
                self.replace(
                    id=f"{self.id}#{number}",
                    segments=tuple(s for s in self.segments if s.group == group),
                    **chosen,
                )
            )
        return parts

    def to_frame(self) -> pd.DataFrame:
        """The run in long form: one row a point, columns segment, step, wall_time, channel, value."""
        import pandas as pd

        columns = ["segment", "step", "wall_time", "channel", "value"]
        frames = [
            pd.DataFrame(
                {
                    "segment": c.segment,
                    "step": c.steps,
                    "wall_time": np.full(len(c), np.nan) if c.wall_time is None else c.wall_time,
                    "channel": c.name,
                    "value": c.values,
                }
            )
            for c in self.channels.values()
        ]
        if not frames:
            return pd.DataFrame(columns=columns)
        frame = pd.concat(frames, ignore_index=True)
        frame["channel"] = frame["channel"].astype("category")
        return frame[columns]


def named_channel(name: str, steps: NDArray[Any], values: NDArray[Any], **fields: Any) -> Channel:
    """A channel whose role is guessed from its name."""
    role, confidence = guess_role(name)
    return Channel(name, steps, values, role=role, role_confidence=confidence, **fields)
