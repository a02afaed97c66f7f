"""One trunk, many arms: what all domains do at the fork."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar
from zlib import crc32

import numpy as np

from recorder.arms import Arms
from recorder.monitor import Log
from recorder.perturb import Event

T = TypeVar("T")


def fork(
    trunk: T, shared: Log, arms: Arms, start: int, seed: int, finish: Callable[[T, Log, Event | None], None]
) -> dict[str, Log]:
    """Let every arm go on from a copy of the trunk's whole state and log.

    Parameters
    ----------
    trunk : object
        A trainer; ``copy.deepcopy`` of it must be a checkpoint.
    shared : Log
        What the trunk logged.
    arms : mapping
        Arm name -> perturbation; None is the control, the twin of the others.
    start : int
        Step (update, in PPO) at which the event begins.
    seed : int
    finish : callable
        Trains the copy to the end.
    """
    logs = {}
    for arm, perturbation in sorted(arms.items(), key=lambda item: item[0]):
        event = None
        if perturbation is not None:
            # crc32 of the name, not its place in the list: an arm stays the same when others are added
            event = Event(perturbation, start, np.random.default_rng([seed, crc32(arm.encode())]))
        logs[arm] = copy.deepcopy(shared)
        finish(copy.deepcopy(trunk), logs[arm], event)
    return logs


def seeds(low: int, high: int) -> tuple[int, ...]:
    """Seeds from ``low`` up to, not including, ``high``."""
    return tuple(range(low, high))
