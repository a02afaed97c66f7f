"""The exception tree. Everything trajscope raises on purpose is one of these.

::

    TrajscopeError
    ├── InputError (ValueError)          an argument or a table that cannot be used         exit 2
    │   └── ConfigError                  a setting or threshold file that cannot be used    exit 2
    ├── ReadError (OSError)              a log that cannot be read                          exit 3
    │   ├── NoLogsFound                  nothing readable under the path
    │   └── SeveralRuns                  one run was asked for, the path holds more
    ├── NotEnoughData                    the question needs more runs or rows               exit 5
    ├── GateFailed                       ``--fail-on`` was met                              exit 10
    └── MissingExtra (ImportError)       an optional dependency is not installed            exit 2

A message says what is wrong, where (file, run, channel, step), what was expected and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "ConfigError",
    "GateFailed",
    "InputError",
    "MissingExtra",
    "NoLogsFound",
    "NotEnoughData",
    "ReadError",
    "SeveralRuns",
    "TrajscopeError",
    "nearest",
]


class TrajscopeError(Exception):
    """Base of every error that trajscope raises on purpose."""

    exit_code = 2


class InputError(TrajscopeError, ValueError):
    """An argument, an array or a table that the function cannot use."""


class ConfigError(InputError):
    """A settings, rule or threshold file that cannot be used."""


class ReadError(TrajscopeError, OSError):
    """A log that cannot be read."""

    exit_code = 3


class NoLogsFound(ReadError):
    """The path exists (or not) but nothing under it is a training log."""


class SeveralRuns(ReadError):
    """One run was asked for and the path holds more than one."""


class NotEnoughData(TrajscopeError):
    """The data are too few for the question; the message says how many would do."""

    exit_code = 5


class GateFailed(TrajscopeError):
    """The condition given with ``--fail-on`` was met."""

    exit_code = 10


class MissingExtra(TrajscopeError, ImportError):
    """A feature needs an optional dependency that is not installed."""


def nearest(name: str, options: Iterable[str]) -> str:
    """End a message with the closest valid name, or with the list of valid names.

    Parameters
    ----------
    name : str
        What was given.
    options : iterable of str
        What would have been valid.

    Returns
    -------
    str
        A sentence to append to an error message.

    Examples
    --------
    >>> nearest("los", ["loss", "grad_norm"])
    "Did you mean 'loss'?"
    >>> nearest("zzz", ["loss", "grad_norm"])
    "Valid names: 'grad_norm', 'loss'."
    """
    valid = sorted(set(options))
    close = difflib.get_close_matches(name, valid, n=1)
    if close:
        return f"Did you mean {close[0]!r}?"
    shown = ", ".join(repr(v) for v in valid[:12]) + (", ..." if len(valid) > 12 else "")
    return f"Valid names: {shown}." if valid else "There are none."
