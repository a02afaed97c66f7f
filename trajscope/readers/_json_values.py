"""JSON texts to numbers, a column at a time: what is a value, what is missing, what is no scalar."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trajscope.readers._json_text import loads
from trajscope.readers._wandb_decode import Ints, binary, numbers

__all__ = ["Parsed", "parse"]

#: Spellings of non-finite numbers that loggers put in quotes.
QUOTED = {
    "nan": float("nan"),
    "inf": float("inf"),
    "infinity": float("inf"),
    "+infinity": float("inf"),
    "-inf": float("-inf"),
    "-infinity": float("-inf"),
}
_EXACT = 2.0**53


@dataclass(eq=False)
class Parsed:
    """Values of JSON texts.

    Attributes
    ----------
    values : ndarray of float64
        Number of each text; NaN where it is none.
    scalar : ndarray of bool
        Whether the text is a number (bare or quoted NaN and Infinity and true and false included).
    missing : ndarray of bool
        Whether it is null.
    nested : list of (int, dict)
        Texts that are objects of further values (no media), by position.
    exact : dict of int to int
        Integers beyond 2^53, by position.
    booleans : int
        How many of the numbers are true or false.
    beyond : tuple of int
        Positions of numbers beyond the range of a float, which read as infinite.
    """

    values: NDArray[np.float64]
    scalar: NDArray[np.bool_]
    missing: NDArray[np.bool_]
    nested: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    exact: dict[int, int] = field(default_factory=dict)
    booleans: int = 0
    beyond: tuple[int, ...] = ()


def parse(data: NDArray[np.uint8], start: Ints, end: Ints) -> Parsed:
    """Read the JSON texts ``data[start[i]:end[i]]`` (none of them empty)."""
    head = data[start]
    values = np.full(start.size, np.nan)
    scalar = ((head >= ord("0")) & (head <= ord("9"))) | (head == ord("-")) | (head == ord("N")) | (head == ord("I"))
    plain = np.flatnonzero(scalar)
    values[plain], good = _numbers(data, start[plain], end[plain])
    scalar[plain[~good]] = False
    out = Parsed(values, scalar, head == ord("n"))
    large = np.flatnonzero(scalar & (np.abs(values) >= _EXACT) & np.isfinite(values))
    for i in large.tolist():
        text = data[start[i] : end[i]].tobytes()
        if text.lstrip(b"-").isdigit():
            out.exact[i] = int(text[:400])
    last = data[np.maximum(end, 1) - 1]  # of a written infinity it is a y
    out.beyond = tuple(np.flatnonzero(scalar & np.isinf(values) & (last != ord("y"))).tolist())
    for i in np.flatnonzero(~(scalar | out.missing)).tolist():
        _other(out, i, data[start[i] : end[i]].tobytes())
    return out


def _numbers(data: NDArray[np.uint8], start: Ints, end: Ints) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    texts = binary(data, start, end, text=True)
    try:
        return numbers(texts.cast(pa.float64()), np.float64), np.ones(start.size, dtype=bool)
    except pa.ArrowInvalid:
        values, good = np.full(start.size, np.nan), np.zeros(start.size, dtype=bool)
        for i, text in enumerate(texts.cast(pa.binary()).to_pylist()):
            try:
                values[i] = float(text.replace(b"_", b"?"))
                good[i] = True
            except ValueError:
                continue
        return values, good


def _other(out: Parsed, i: int, text: bytes) -> None:
    if text in (b"true", b"false"):
        out.values[i] = float(text == b"true")
        out.scalar[i] = True
        out.booleans += 1
        return
    if text[:1] == b'"':
        number = QUOTED.get(text[1:-1].decode("utf-8", "replace").lower())
        if number is not None:
            out.values[i] = number
            out.scalar[i] = True
        return
    if text[:1] == b"{" and b'"_type"' not in text[:4096]:
        try:
            content = loads(text.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return
        if isinstance(content, dict) and "_type" not in content:
            out.nested.append((i, content))
