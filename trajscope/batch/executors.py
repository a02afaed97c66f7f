"""Where shards are scored, behind one interface: `concurrent.futures.Executor`.

- serial: in this process, when submitted;
- pool: one child process (`trajscope.batch.child`) for each of a few threads, which only wait;
- Dask: the same child beside each thread of a worker, through ``client.get_executor(pure=False)``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from trajscope.batch.child import close_children, score_in_child
from trajscope.batch.listing import Item
from trajscope.batch.row import Terms
from trajscope.batch.shard import Rows, score_shard
from trajscope.errors import InputError, MissingExtra, ReadError

__all__ = ["Workers", "workers_from"]


class _Serial(Executor):
    """Runs what is submitted at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as problem:
            future.set_exception(problem)
        return future


@dataclass
class Workers:
    """An executor, how many shards it works on at a time, and how to end it."""

    executor: Executor
    count: int
    function: Callable[[Sequence[Item], Terms], Rows]
    close: Callable[[], None]

    @property
    def window(self) -> int:
        """Shards in flight: twice the workers, so that none waits for the driver; memory stays bounded."""
        return 1 if isinstance(self.executor, _Serial) else 2 * self.count

    def submit(self, items: Sequence[Item], terms: Terms) -> Future[Rows]:
        """Hand out one shard."""
        return self.executor.submit(self.function, items, terms)


def workers_from(executor: Any, workers: int) -> Workers:
    """The workers that a call asks for.

    Parameters
    ----------
    executor : None, str, Executor or distributed.Client
        None: serial for one worker, else a pool; ``"serial"``, ``"pool"``, the address of a Dask scheduler, a Dask
        client, or any `concurrent.futures.Executor` whose workers can import trajscope.
    workers : int
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers is {workers!r}; a number of processes, 1 or more, is expected")
    if executor is None:
        executor = "serial" if workers == 1 else "pool"
    if executor == "serial":
        return Workers(_Serial(), 1, score_shard, lambda: None)
    if executor == "pool":
        threads = ThreadPoolExecutor(workers, thread_name_prefix="trajscope")

        def close() -> None:
            threads.shutdown(wait=False, cancel_futures=True)
            close_children()

        return Workers(threads, workers, score_in_child, close)
    if isinstance(executor, str):
        return _dask(executor)
    if hasattr(executor, "get_executor"):  # a Dask client that the caller owns
        return Workers(executor.get_executor(pure=False), _threads(executor, workers), score_in_child, lambda: None)
    if isinstance(executor, Executor):
        return Workers(executor, workers, score_in_child, lambda: None)
    raise InputError(
        f"executor is {executor!r}; 'serial', 'pool', a scheduler's address (tcp://...), a Dask client or an Executor "
        "is expected"
    )


def _dask(address: str) -> Workers:
    if "://" not in address:
        raise InputError(
            f"executor {address!r} is unknown; 'serial', 'pool' or an address (tcp://host:port) is expected"
        )
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as missing:
        raise MissingExtra(f"{address}: Dask is not installed: pip install 'trajscope[cluster]'") from missing
    try:
        client = distributed.Client(address, timeout="20s", set_as_default=False)
    except (OSError, ValueError) as problem:
        raise ReadError(f"{address}: no Dask scheduler answers there ({type(problem).__name__})") from problem

    return Workers(client.get_executor(pure=False), _threads(client, 1), score_in_child, client.close)


def _threads(client: Any, default: int) -> int:
    """Threads of all workers of a cluster."""
    return max(sum(int(n) for n in client.nthreads().values()), default)
