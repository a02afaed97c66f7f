"""JSON as loggers write it: NaN and Infinity bare, and numbers beyond the range of a float told from an infinity."""

from __future__ import annotations

import json
from typing import Any

from trajscope.history import Problem

__all__ = ["beyond_float", "clipped", "decode_at", "loads", "overflow"]

#: What stands in the text as such; any other infinite float was a number too large for one.
_WRITTEN = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_INFINITIES = frozenset(id(v) for v in _WRITTEN.values())
_LARGEST = float("inf")


def _whole(text: str) -> int | float:
    """An integer of any length; Python refuses to read those of thousands of digits, which are beyond a float."""
    return int(text) if len(text) < 400 else float(text)


_PLAIN = json.JSONDecoder(parse_constant=_WRITTEN.__getitem__)
_LONG = json.JSONDecoder(parse_constant=_WRITTEN.__getitem__, parse_int=_whole)


def decode_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at a position, and where it ends.

    Raises
    ------
    ValueError, RecursionError
        If there is none.
    """
    try:
        return _PLAIN.raw_decode(text, start)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _LONG.raw_decode(text, start)


def loads(text: str) -> Any:
    """The value of a whole JSON text.

    Raises
    ------
    ValueError, RecursionError
        If it is none.

    Examples
    --------
    >>> [beyond_float(v) for v in loads("[1e400, Infinity, 1, NaN]")]
    [True, False, False, False]
    """
    try:
        return _PLAIN.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _LONG.decode(text)


def beyond_float(value: float) -> bool:
    """Whether a number that `loads` or `decode_at` delivered is beyond the range of a float."""
    if isinstance(value, int):
        return abs(value) >= 2**1024
    return abs(value) == _LARGEST and id(value) not in _INFINITIES


def clipped(value: float) -> float:
    """A number as a float; an integer beyond its range is infinite."""
    try:
        return float(value)
    except OverflowError:
        return _LARGEST if value > 0 else -_LARGEST


def overflow(name: str, count: int, file: str) -> Problem:
    """The problem that numbers of a channel are beyond the range of a float."""
    text = f"{name}: {count} numbers are beyond the range of a float and were read as infinity"
    return Problem("overflow", "info", text, file, count=count)
