"""What every analysis returns: a frozen value that carries how it was made.

A function that is done once to one thing returns a subclass of `Result`: a frozen dataclass with ``to_frame``,
``to_dict``, ``summary`` and ``plot``, and a `Provenance`. Renderers live further up (``trajscope.plots``,
``trajscope.report``); a result finds its own by name in `plot` and `write`, the only upward edge in the house.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Provenance", "Result", "data_hash", "jsonable", "make_provenance"]


@dataclass(frozen=True)
class Provenance:
    """How a result came about.

    Attributes
    ----------
    function : str
        Name of the function or estimator.
    parameters : mapping
        Every named parameter with the value that was used, defaults included.
    seed : int or None
        Seed of the random generator, None where no chance entered.
    data_hash : str
        First 16 hexadecimal digits of the SHA-256 of the input arrays (`data_hash`).
    versions : mapping
        Versions of trajscope and numpy.
    """

    function: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    data_hash: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


def data_hash(*arrays: Any) -> str:
    """Hash arrays by dtype, shape and bytes; the first 16 hexadecimal digits of SHA-256.

    >>> data_hash(np.arange(3)) == data_hash(np.arange(3))
    True
    """
    digest = hashlib.sha256()
    for array in arrays:
        a = np.ascontiguousarray(array)
        digest.update(f"{a.dtype.str}{a.shape}".encode())
        digest.update(a.tobytes())
    return digest.hexdigest()[:16]


@functools.cache
def _own_version() -> str:
    try:
        return importlib.metadata.version("trajscope")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


def make_provenance(function: str, parameters: Mapping[str, Any], *arrays: Any, seed: int | None = None) -> Provenance:
    """Build a `Provenance` for a call: parameters as given, input arrays hashed, versions looked up."""
    versions = {"trajscope": _own_version(), "numpy": np.__version__}
    return Provenance(function, dict(parameters), seed, data_hash(*arrays), versions)


def jsonable(value: Any) -> Any:
    """Turn a result field into plain JSON types; non-finite numbers become the strings NaN, Infinity, -Infinity.

    >>> jsonable({"a": np.float64(1.5), "b": np.array([1, 2]), "c": float("nan")})
    {'a': 1.5, 'b': [1, 2], 'c': 'NaN'}
    """
    if isinstance(value, float | np.floating):
        number = float(value)
        if math.isnan(number):
            return "NaN"
        if math.isinf(number):
            return "Infinity" if number > 0 else "-Infinity"
        return number
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, np.ndarray):
        return [jsonable(v) for v in value.tolist()]
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if isinstance(value, Result):
            return value.to_dict()
        return {f.name: jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return str(value)


@dataclass(frozen=True, eq=False)
class Result:
    """Base of all results. Subclasses are ``@dataclass(frozen=True, eq=False)``.

    A subclass implements `to_frame` and `summary`; `to_dict` walks its fields (override where a shorter form
    reads better); `plot` calls ``trajscope.plots.<plot_name>.plot(self, ...)``.
    """

    plot_name = ""

    provenance: Provenance = field(kw_only=True, repr=False, default=Provenance(""))

    def to_frame(self) -> pd.DataFrame:
        """The result as a table, one row a finding."""
        raise TypeError(f"{type(self).__name__} has no table form")

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON types."""
        return {f.name: jsonable(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def summary(self) -> str:
        """The result in one or a few plain sentences."""
        raise TypeError(f"{type(self).__name__} has no summary")

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the result with matplotlib and return the axes."""
        if not self.plot_name:
            raise TypeError(f"{type(self).__name__} has no plot")
        module = importlib.import_module(f"trajscope.plots.{self.plot_name}")
        return module.plot(self, ax=ax, **options)
