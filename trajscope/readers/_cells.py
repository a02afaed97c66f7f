"""Numbers as people and programs spell them in text.

Missing and NaN are two things: an empty cell, ``None``, ``null``, ``NA``, ``N/A`` is no point; ``nan`` is a point whose
value is NaN. ``inf`` in any spelling is a point, and so is a number beyond the range of a float (``1e400``, noted).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.readers._json_text import INFINITY, MINUS_INFINITY

__all__ = ["MISSING", "POINT_THOUSANDS", "NumberCells", "inexact", "number_cells", "parse_number"]

#: Spellings of a missing cell; compared without case and surrounding blanks.
MISSING = ("", "None", "null", "N/A", "n/a", "NA", "<NA>", "nil", "-", "--")

_MISSING = frozenset(m.lower() for m in MISSING)
_NAN = frozenset({"nan", "+nan", "-nan", "1.#qnan", "1.#ind", "-1.#ind", "nan(ind)", "-nan(ind)"})
_INF = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity", "1.#inf", "∞", "+∞"), INFINITY),
    **dict.fromkeys(("-inf", "-infinity", "-1.#inf", "-∞"), MINUS_INFINITY),
}
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\Z")
_INTEGER = re.compile(r"[+-]?\d+\Z")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?(?:[eE][+-]?\d+)?\Z")
_THOUSANDS_POINT = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+,\d*\Z")
#: Whole numbers with points as thousands separators; only beside decimal commas are they that.
POINT_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+\Z")
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?\Z")
#: One number inside the text of an array or tensor: ``tensor(0.25, device='cuda:0')``, ``[0.1]``, ``np.float64(3)``.
_WRAPPED = re.compile(
    r"(?:[A-Za-z_][\w.]*\(\s*)?[\[(]*\s*(?P<number>[^\s,\[\]()=]+)\s*,?\s*[\])]*(?:\s*,\s*[a-z_]+=[^,()]+)*\)?\Z"
)
_UNIT = re.compile(
    r"(?P<number>[+-]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>%|[A-Za-zµ]{1,4}(?:/[A-Za-z]{1,4})?)\Z"
)
_LONGEST = 64
_LONGEST_NUMBER = 1024
#: The smallest integer that rounds to infinity.
_BEYOND = 2**1024 - 2**970


def parse_number(text: str, *, decimal_comma: bool = False) -> tuple[float | int | None, str]:
    """Read one cell.

    Parameters
    ----------
    text : str
    decimal_comma : bool, default False
        Whether ``0,5`` is a half.

    Returns
    -------
    value : float, int or None
        None where the cell is missing or no number.
    kind : str
        ``number``, ``missing``, ``bad``, or a number that deserves a note: ``bool``, ``overflow``, ``wrapped`` (text of
        a tensor), ``thousands``, ``unit``.

    Examples
    --------
    >>> parse_number("11,633"), parse_number("tensor(0.25)"), parse_number("True"), parse_number("0,5")
    ((11633.0, 'thousands'), (0.25, 'wrapped'), (1.0, 'bool'), (None, 'bad'))
    >>> parse_number("0,5", decimal_comma=True), parse_number("12.5ms")
    ((0.5, 'number'), (12.5, 'unit'))
    """
    cell = text.strip()
    if len(cell) >= 2 and cell[0] == cell[-1] and cell[0] in "\"'":
        cell = cell[1:-1].strip()
    if len(cell) > _LONGEST:
        return _long(cell)
    if _INTEGER.match(cell):
        return int(cell), "number"
    if decimal_comma and POINT_THOUSANDS.match(cell):
        return float(cell.replace(".", "")), "thousands"
    if _NUMBER.match(cell):
        value = float(cell)
        return value, "overflow" if value in (np.inf, -np.inf) else "number"
    low = cell.lower()
    if low in _MISSING:
        return None, "missing"
    if low in _NAN:
        return float("nan"), "number"
    if low in _INF:
        return _INF[low], "number"
    if low in ("true", "false"):
        return float(low == "true"), "bool"
    return _unusual(cell, decimal_comma)


def _long(cell: str) -> tuple[float | int | None, str]:
    """A cell too long for any spelling but plain digits."""
    if len(cell) > _LONGEST_NUMBER or not _NUMBER.match(cell):
        return None, "bad"
    value = float(cell)
    if value in (np.inf, -np.inf):
        return value, "overflow"
    return (int(cell) if _INTEGER.match(cell) else value), "number"


def _unusual(cell: str, decimal_comma: bool) -> tuple[float | None, str]:
    if decimal_comma:
        if _THOUSANDS_POINT.match(cell):
            return float(cell.replace(".", "").replace(",", ".")), "thousands"
        if _DECIMAL_COMMA.match(cell):
            return float(cell.replace(",", ".")), "number"
    elif _THOUSANDS.match(cell):
        return float(cell.replace(",", "")), "thousands"
    unit = _UNIT.match(cell)
    if unit:
        value, kind = parse_number(unit["number"], decimal_comma=decimal_comma)
        return (None, "bad") if kind == "bad" or value is None else (float(value), "unit")
    low = cell.lower()
    if low.startswith("nan") and low[3:].isalpha() and len(low) <= 7:  # "nanms": a unit glued to a NaN
        return float("nan"), "unit"
    wrapped = _WRAPPED.match(cell)
    if wrapped and wrapped["number"] != cell:
        value, kind = parse_number(wrapped["number"], decimal_comma=decimal_comma)
        if kind in ("number", "overflow") and value is not None:
            return float(value), "wrapped"
    return None, "bad"


@dataclass
class NumberCells:
    """A column of cells, read.

    Attributes
    ----------
    values : ndarray, shape (n,), float64, or int64 where every cell is an integer and one is beyond 2**53
        0 where there is no number.
    valid : ndarray, shape (n,), bool
    kinds : Counter
        How many cells of each kind (`parse_number`).
    bad : tuple of int
        Positions of cells that are no number and not missing.
    rounded : int
        Integers that ``values`` does not hold exactly.
    """

    values: NDArray[Any]
    valid: NDArray[np.bool_]
    kinds: Counter[str] = field(default_factory=Counter)
    bad: tuple[int, ...] = ()
    rounded: int = 0


def number_cells(cells: Iterable[str | None], *, decimal_comma: bool = False) -> NumberCells:
    """Read a column of cells; None is a missing one.

    >>> column = number_cells(["1", "nan", "", "x"])
    >>> column.values.tolist(), column.valid.tolist(), column.bad
    ([1.0, nan, 0.0, 0.0], [True, True, False, False], (3,))
    """
    seen: dict[str | None, tuple[float | int | None, str]] = {None: (None, "missing")}
    numbers: list[float | int] = []
    valid: list[bool] = []
    kinds: Counter[str] = Counter()
    bad: list[int] = []
    large = False
    for i, cell in enumerate(cells):
        found = seen.get(cell)
        if found is None:
            found = parse_number(cell or "", decimal_comma=decimal_comma)
            if len(seen) < 4096:
                seen[cell] = found
        value, kind = found
        kinds[kind] += 1
        valid.append(value is not None)
        numbers.append(0 if value is None else value)
        large = large or (isinstance(value, int) and abs(value) > 2**53)
        if kind == "bad":
            bad.append(i)
    rounded = 0
    if large and all(isinstance(n, int) and abs(n) < 2**63 for n in numbers):
        values: NDArray[Any] = np.array(numbers, dtype=np.int64)
    else:
        values = np.array(numbers, dtype=np.float64)
        rounded = inexact(numbers) if large else 0
    return NumberCells(values, np.array(valid, dtype=bool), kinds, tuple(bad), rounded)


def inexact(numbers: Iterable[Any]) -> int:
    """How many of some numbers are integers within the range of a float that no float is equal to.

    >>> inexact([2**53, 2**53 + 1, 10**20 + 1, 10**400, 0.5])
    2
    """
    return sum(isinstance(n, int) and 2**53 < abs(n) < _BEYOND and int(float(n)) != n for n in numbers)
