"""JSON as loggers write it: NaN and Infinity bare, and numbers beyond the range of a float told from an infinity."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from trajscope.history import Problem

__all__ = ["INFINITY", "MINUS_INFINITY", "Decoder", "beyond_float", "clipped", "inexact_integers", "loads", "overflow"]

#: What stands in the text as such; any other infinite float was a number too large for one.
_WRITTEN = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
INFINITY = _WRITTEN["Infinity"]
MINUS_INFINITY = _WRITTEN["-Infinity"]
_INFINITIES = frozenset(id(v) for v in _WRITTEN.values())
_LARGEST = float("inf")


def _whole(text: str) -> int | float:
    """An integer of any length; Python refuses to read those of thousands of digits, which are beyond a float."""
    return int(text) if len(text) < 400 else float(text)


_PLAIN = json.JSONDecoder(parse_constant=_WRITTEN.__getitem__)
_LONG = json.JSONDecoder(parse_constant=_WRITTEN.__getitem__, parse_int=_whole)


class Decoder:
    """Decodes one value after another and counts the keys that an object holds twice (the last one counts).

    Attributes
    ----------
    repeated : Counter
        By key.
    """

    def __init__(self) -> None:
        self.repeated: Counter[str] = Counter()
        self._plain = json.JSONDecoder(parse_constant=_WRITTEN.__getitem__, object_pairs_hook=self._object)
        self._long = json.JSONDecoder(
            parse_constant=_WRITTEN.__getitem__, parse_int=_whole, object_pairs_hook=self._object
        )

    def at(self, text: str, start: int) -> tuple[Any, int]:
        """The JSON value that begins at a position, and where it ends.

        Raises
        ------
        ValueError, RecursionError
            If there is none.
        """
        try:
            return self._plain.raw_decode(text, start)
        except json.JSONDecodeError:
            raise
        except ValueError:
            return self._long.raw_decode(text, start)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            self.repeated.update(Counter(k for k, _ in pairs) - Counter(found.keys()))
        return found


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
    """Whether a number is beyond the range of a float, as delivered by `loads`, a `Decoder` or ``parse_number``."""
    if isinstance(value, int):
        return abs(value) >= 2**1024
    return abs(value) == _LARGEST and id(value) not in _INFINITIES


def clipped(value: float) -> float:
    """A number as a float; an integer beyond its range is infinite."""
    try:
        return float(value)
    except OverflowError:
        return _LARGEST if value > 0 else -_LARGEST


def inexact_integers(name: str, count: int, file: str) -> Problem:
    """The problem that integers of a channel fit neither int64 nor, exactly, a float."""
    text = f"{name}: {count} integers are longer than can be held exactly and were rounded"
    return Problem("inexact-integers", "info", text, file, count=count)


def overflow(name: str, count: int, file: str) -> Problem:
    """The problem that numbers of a channel are beyond the range of a float."""
    text = f"{name}: {count} numbers are beyond the range of a float and were read as infinity"
    return Problem("overflow", "info", text, file, count=count)
