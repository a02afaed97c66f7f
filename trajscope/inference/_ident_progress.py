"""A progress bar for what takes more than a moment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_line"]


@contextmanager
def progress_line(show: bool | None) -> Iterator[Callable[[str, int, int], None]]:
    """Yield ``report(stage, done, of)``; a bar on standard error, by default where that is a terminal."""
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda stage, done, of: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def report(stage: str, done: int, of: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=of)
            bar.update(tasks[stage], completed=done, total=of)

        yield report
