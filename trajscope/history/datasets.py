"""Recorded training runs with labels: `load_dataset`.

The runs and the recorder that made them lie in the checkout under ``datasets/`` and are not part of the wheel. A data
folder holds ``labels.parquet`` (one row a run), ``checksums.sha256`` and one folder a dataset with Parquet files.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from trajscope.errors import InputError, NoLogsFound, ReadError, nearest
from trajscope.history.parquet import read_parquet_run
from trajscope.history.run import Run

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Dataset", "load_dataset"]

ENVIRONMENT = "TRAJSCOPE_DATA"
_LABELS, _CHECKSUMS = "labels.parquet", "checksums.sha256"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Recorded runs and their labels; returned by `load_dataset`.

    Attributes
    ----------
    name : str
    root : Path
        The data folder.
    labels : DataFrame
        One row a run, sorted by run id; columns in ``datasets/README.md``. Integer and boolean columns are nullable.
    """

    name: str
    root: Path
    labels: pd.DataFrame = field(repr=False)

    def runs(self) -> list[str]:
        """Ids of all runs, sorted."""
        return [str(run) for run in self.labels["run"]]

    def run(self, run: str) -> Run:
        """Read one run; nothing else of its file is read.

        Raises
        ------
        InputError
            If the dataset has no run of that id.
        """
        found = self.labels.loc[self.labels["run"] == run, "file"]
        if found.empty:
            raise InputError(f"dataset {self.name!r} has no run {run!r}. {nearest(run, self.runs())}")
        return read_parquet_run(self.root / str(found.iloc[0]), run)


def load_dataset(name: str, data_dir: str | Path | None = None) -> Dataset:
    """Open a set of recorded runs.

    Parameters
    ----------
    name : str
        Name of the set, such as ``"digits"``.
    data_dir : path, optional
        Data folder. By default the environment variable ``TRAJSCOPE_DATA``, then ``datasets/`` of the checkout that
        trajscope is imported from.

    Returns
    -------
    Dataset
        Its ``.labels`` is a DataFrame, ``.run(id)`` reads a run.

    Raises
    ------
    NoLogsFound
        If there is no data folder; the message says how to record one.
    InputError
        If the folder has no set of that name.
    ReadError
        If a file is missing or not what its checksum says.

    Notes
    -----
    Every file of the set is read once to verify its SHA-256 (about 1 s for each 500 MB).

    Examples
    --------
    >>> digits = load_dataset("digits")
    >>> accuracy = digits.run("digits-mlp64-adam-s000-lr_x100").channels["val/accuracy"]
    >>> len(accuracy), f"{accuracy.values[-1]:.2f}"
    (200, '0.09')
    """
    root = _root(data_dir)
    table = pq.read_table(root / _LABELS)
    files = table["file"].to_pylist()
    names = {file.split("/")[0] for file in files}
    if name not in names:
        hint = " The demo runs are plain log files: give their folder to scan_runs." if name == "demo" else ""
        raise InputError(f"{root}: holds no dataset {name!r}. {nearest(name, names)}{hint}")
    own = table.filter(pa.array([file.startswith(f"{name}/") for file in files]))
    _verify(root, {_LABELS, *own["file"].to_pylist()})
    return Dataset(name, root, _frame(own))


def _frame(table: pa.Table) -> pd.DataFrame:
    import pandas as pd

    nullable = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    frame: pd.DataFrame = table.to_pandas(types_mapper=nullable.get)
    return frame


def _root(data_dir: str | Path | None) -> Path:
    """The data folder: the argument, else the environment, else the checkout."""
    named = data_dir if data_dir is not None else os.environ.get(ENVIRONMENT) or None
    checkout = Path(__file__).parents[2] / "datasets"
    root = checkout if named is None else Path(named)
    if (root / _LABELS).is_file():
        return root
    source = "data_dir" if data_dir is not None else ENVIRONMENT if named is not None else "beside the package"
    raise NoLogsFound(
        f"{root} ({source}): no recorded runs there (no {_LABELS}). Give data_dir=, set {ENVIRONMENT}, or record "
        "them in a checkout of trajscope: python datasets/record_digits.py, then python datasets/make_labels.py"
    )


def _verify(root: Path, files: set[str]) -> None:
    try:
        lines = (root / _CHECKSUMS).read_text(encoding="utf-8").splitlines()
    except OSError as problem:
        raise ReadError(f"{root / _CHECKSUMS}: cannot be read ({problem}); the data cannot be verified") from problem
    expected = {path: digest for digest, _, path in (line.partition("  ") for line in lines)}
    for name in sorted(files):
        path = root / name
        if name not in expected:
            raise ReadError(f"{path}: not listed in {_CHECKSUMS}; run python datasets/make_labels.py to list it")
        if not path.is_file():
            raise ReadError(f"{path}: missing, but listed in {_LABELS}; record it again with the recorder in datasets/")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected[name]:
            raise ReadError(
                f"{path}: SHA-256 {found[:12]}..., expected {expected[name][:12]}...; "
                "the file was changed or cut off. Restore it, or record it again"
            )
