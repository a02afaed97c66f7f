"""What a reader delivers: one `Source` a writer, its series in the order of writing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.history.run import Problem

__all__ = ["Series", "Source", "counted", "numbered"]


@dataclass(eq=False)
class Series:
    """Points of one channel in the order in which one writer wrote them.

    Attributes
    ----------
    steps : ndarray, shape (n_points,), int64 or float64
    values : ndarray, shape (n_points,)
    wall_time : ndarray or None, shape (n_points,)
    row : ndarray or None, shape (n_points,), int64
        Position in the writer's file (record or line number), increasing. None: the position in the series. It is
        what lets a resume be dated across channels.
    n_missing : int
        Explicitly empty cells.
    """

    steps: NDArray[Any]
    values: NDArray[Any]
    wall_time: NDArray[np.float64] | None = None
    row: NDArray[np.int64] | None = None
    n_missing: int = 0

    def rows(self) -> NDArray[np.int64]:
        """Position of each point in the writer's file."""
        return np.arange(self.steps.size, dtype=np.int64) if self.row is None else self.row


@dataclass(eq=False)
class Source:
    """Everything one writer wrote.

    Attributes
    ----------
    file : str
        File name, relative to the root where possible.
    series : dict of str to Series
    started : float or None
        Unix seconds at which the writer started, for the order of several writers.
    marks : sequence of int
        Rows at which the writer itself declares a new session.
    sampled : str
        Why the source holds only a sample of what was logged; empty where it is complete.
    config, summary : dict
    problems : list of Problem
    step_name : str
        Which column or field was taken as the step.
    unstepped : sequence of str
        Series whose steps say nothing, since none was logged (all have the logger's default): their points are numbered
        in order from there, unless all points are kept as they were logged (``keep-all``).
    """

    file: str
    series: dict[str, Series] = field(default_factory=dict)
    started: float | None = None
    marks: Sequence[int] = ()
    sampled: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    step_name: str = "step"
    unstepped: Sequence[str] = ()


def numbered(source: Source) -> Source:
    """The source with the order of the points as steps, the same number for all points of a row."""
    rows = np.unique(np.concatenate([s.rows() for s in source.series.values()]))
    series = {n: replace(s, steps=np.searchsorted(rows, s.rows()).astype(np.int64)) for n, s in source.series.items()}
    return replace(source, series=series)


def counted(source: Source) -> Source:
    """The source with the points of its series without steps numbered in order, on from the step they all have."""
    series = dict(source.series)
    for name in source.unstepped:
        s = series[name]
        series[name] = replace(s, steps=s.steps[0] + np.arange(s.steps.size, dtype=np.int64))
    return replace(source, series=series)
