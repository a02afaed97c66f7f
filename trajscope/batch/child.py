"""Score shards in a process of their own, which may die, hang or need too much without taking anything down.

The parent (`Child`) sends a shard through the child's standard input and reads, through its standard output, which run
begins and what came of it. When the child ends in the middle or is silent for too long, the run that had begun is the
culprit: it becomes a row, and a new child goes on with the next one. Nothing else is ever repeated.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any

from trajscope._core.rolling import use_kernels
from trajscope.batch.listing import Item
from trajscope.batch.row import Scored, Terms, failed
from trajscope.batch.shard import Begun, Rows, gather, score_items
from trajscope.history import Run, RunData

__all__ = ["Child", "close_children", "score_in_child"]

#: One thread a worker: shards, not operations, run side by side.
THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA", "ARROW")}

#: A run that is not stopped by its own alarm is stopped from outside after this many times its limit, plus this.
PATIENCE, GRACE = 1.5, 10.0

#: Starting Python and reading the shard may take so long (s) before it counts as hanging.
START = 120.0


class Child:
    """A worker process that is started when it is needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: queue.Queue[Any] = queue.Queue()

    @property
    def pid(self) -> int | None:
        """Process id; None while there is none."""
        return None if self._process is None else self._process.pid

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trajscope.batch.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **THREADS},
            )
            self._messages = queue.Queue()
            threading.Thread(target=_listen, args=(self._process.stdout, self._messages), daemon=True).start()
        return self._process

    def score(self, items: Sequence[Item], terms: Terms) -> Rows:
        """Score a shard, whatever its runs do to the process."""
        scored: list[tuple[int, Scored]] = []
        skip: set[tuple[int, str]] = set()
        barren = 0
        while True:
            begun: Begun | None = None
            before = len(skip)
            reason = ""
            process = self._start()
            try:
                _send(process.stdin, (list(items), terms, frozenset(skip)))
            except OSError:  # it died before it could listen
                reason = "died"
            patience: float | None = START
            while not reason:
                try:
                    message = self._messages.get(timeout=patience)
                except queue.Empty:
                    reason = "silent"
                    break
                if isinstance(message, Begun):
                    begun = message
                    patience = None if terms.time_limit is None else terms.time_limit * PATIENCE + GRACE
                elif isinstance(message, tuple):
                    scored.append(message)
                    skip.add((message[0], str(message[1].run["run"])))
                    begun = None
                elif message == "end":
                    return gather(items, scored)
                else:
                    reason = "died"
            code = self.close()
            if begun is not None:
                number, item = begun.item, items[begun.item]
                run = item.run if item.run is not None else Run(begun.run, RunData(), format=begun.format)
                status, error = _blame(reason, code, terms)
                scored.append((number, failed(run, item.root, item.facts, terms, status, error, 0.0)))
                skip.add((number, begun.run))
            barren = barren + 1 if len(skip) == before else 0
            if barren == 3:  # it cannot even begin: that is not the doing of a run
                raise ChildProcessError(f"worker processes end before they begin a run (exit code {code})")

    def close(self) -> int | None:
        """End the process; its exit code, None where there was none."""
        process, self._process = self._process, None
        if process is None:
            return None
        code = process.poll()
        if code is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        return process.returncode if code is None else code


def _blame(reason: str, code: int | None, terms: Terms) -> tuple[str, str]:
    if reason == "silent":
        return (
            "timeout",
            f"took more than {terms.time_limit:g} s and did not stop by itself" if terms.time_limit else "",
        )
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return "killed", f"the worker process ended while it read or judged this run ({how})"


def _send(stream: IO[bytes] | None, message: Any) -> None:
    if stream is None:  # a process that was started with a pipe has one
        raise BrokenPipeError
    pickle.dump(message, stream)
    stream.flush()


def _listen(stream: IO[bytes] | None, messages: queue.Queue[Any]) -> None:
    """Put what the child sends into a queue, and None at its end."""
    try:
        while stream is not None:
            messages.put(pickle.load(stream))  # noqa: S301 - our own process, not a log
    except (EOFError, OSError, ValueError, pickle.UnpicklingError):
        messages.put(None)


_own = threading.local()
_all: list[Child] = []


def score_in_child(items: Sequence[Item], terms: Terms) -> Rows:
    """Score a shard in the child of the calling thread."""
    child = getattr(_own, "child", None)
    if child is None:
        child = _own.child = Child()
        _all.append(child)
    return child.score(items, terms)


@atexit.register
def close_children() -> None:
    """End every child of this process."""
    while _all:
        _all.pop().close()
    _own.__dict__.clear()


def main() -> None:
    """Serve shards from standard input until it ends."""
    for module in ("trajscope.audit.run", "trajscope.inference.measures"):  # not at the cost of the first run's time
        importlib.import_module(module)
    use_kernels()  # a shard is worth it
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up among the messages
    source = sys.stdin.buffer
    while True:
        try:
            items, terms, skip = pickle.load(source)  # noqa: S301 - our own parent, not a log
        except EOFError:
            return
        for event in score_items(items, terms, skip):
            _send(out, event)
        _send(out, "end")


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):  # the parent is gone, or asked to stop
        os._exit(1)
