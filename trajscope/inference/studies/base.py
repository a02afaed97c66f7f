"""What every study is given and returns."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from trajscope.errors import InputError, nearest
from trajscope.result import Result

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from trajscope.history.run import Run

__all__ = ["STUDIES", "GetRun", "Study", "StudyFunction", "find_study"]

#: Name on the command line -> module here.
STUDIES = {
    "lead-time": "lead_time",
    "identifiability": "identifiability",
    "dissociation": "dissociation",
    "buffering": "buffering",
    "manifold": "manifold",
    "response": "response",
    "axis": "axis",
}


class GetRun(Protocol):
    """Reads the run of a label row; raises an error of the tree where it cannot be read."""

    def __call__(self, run: str, /) -> Run: ...


@dataclass(frozen=True, eq=False)
class Study(Result):
    """Outcome of a study.

    Attributes
    ----------
    name : str
        As on the command line.
    tables : mapping of str to DataFrame
        File stem -> table; the first is the main one.
    figures : mapping of str to Result
        File stem -> result that draws itself.
    claim : str
        One paragraph: what may be said, with n, interval and level, and what may not.
    skipped : mapping of str to str
        Run -> why it does not enter.
    """

    name: str
    tables: Mapping[str, pd.DataFrame]
    figures: Mapping[str, Result]
    claim: str
    skipped: Mapping[str, str] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """The main table."""
        return next(iter(self.tables.values()))

    def to_dict(self) -> dict[str, Any]:
        """Claim, skipped runs and tables (a list of rows each) as plain JSON types."""
        from trajscope.result import jsonable

        tables = {stem: table.reset_index().to_dict("records") for stem, table in self.tables.items()}
        return {
            "study": self.name,
            "claim": self.claim,
            "skipped": dict(self.skipped),
            "tables": jsonable(tables),
            "provenance": jsonable(self.provenance),
        }

    def summary(self) -> str:
        """The claim."""
        return self.claim


class StudyFunction(Protocol):
    """A study: labelled runs in, `Study` out."""

    def __call__(
        self, runs: GetRun, labels: pd.DataFrame, *, alpha: float, rng: int | np.random.Generator | None
    ) -> Study: ...


def find_study(name: str) -> StudyFunction:
    """The function of a study, imported when it is asked for."""
    if name not in STUDIES:
        raise InputError(f"there is no study {name!r}. {nearest(name, STUDIES)}")
    module = importlib.import_module(f"trajscope.inference.studies.{STUDIES[name]}")
    return cast("StudyFunction", module.study)
