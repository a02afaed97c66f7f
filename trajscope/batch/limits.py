"""Bounds on the time and the memory that one run may take inside a process.

Time: SIGALRM, so only in the main thread of a POSIX process, and only between two bytecodes: code that never returns to
Python is stopped from outside (`trajscope.batch.isolation`). Memory: the soft limit of the address space, so that a
run that asks for too much gets MemoryError and the worker lives on.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["RunTimeout", "bounded", "peak_memory_mb"]


class RunTimeout(BaseException):
    """The run took too long. Not an `Exception`, so that no handler on the way takes it for something else."""


@contextmanager
def bounded(seconds: float | None, memory_mb: float | None) -> Iterator[None]:
    """Run a block under both bounds; each is left out where the platform or the thread cannot have it.

    Parameters
    ----------
    seconds : float or None
        Raises `RunTimeout` in the block after so long.
    memory_mb : float or None
        MiB that the process may map beyond what it has mapped now; MemoryError in the block.
    """
    undo: list[Any] = []
    if seconds and hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread():

        def stop(signum: int, frame: Any) -> None:
            raise RunTimeout

        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        undo.append(lambda: (signal.setitimer(signal.ITIMER_REAL, 0), signal.signal(signal.SIGALRM, before)))
    if memory_mb and sys.platform == "linux":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = _mapped() + int(memory_mb * 2**20)
        if hard == resource.RLIM_INFINITY or wanted < hard:
            resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
            undo.append(lambda: resource.setrlimit(resource.RLIMIT_AS, (soft, hard)))
    try:
        yield
    finally:
        for step in reversed(undo):
            step()


def _mapped() -> int:
    """Bytes that the process has mapped (Linux)."""
    import resource

    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[0]) * resource.getpagesize()


def peak_memory_mb() -> float | None:
    """Peak resident memory of this process, MiB; None where it cannot be had."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
