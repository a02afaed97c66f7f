"""Walk a finished log as a monitor would have met it, and say what it would have said, and when.

The log is cut off behind each of some hundred moments and scored anew from what was there by then; what the rows since
the last moment would have said is said. Each alarm is then confirmed from the log cut off at its very row. The alarms
are those of `trajscope.inference.calibrate.run_alarms` on the whole log, to the row: nothing looks ahead.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trajscope.detect.alarms import first_alarm, persistent
from trajscope.history import Run
from trajscope.inference.calibrate import MonitorAlarm, Thresholds, applies, run_alarms
from trajscope.inference.monitors import monitor_scores

__all__ = ["cut_off", "replay"]

#: Moments at which the log is cut off.
MOMENTS = 100


def cut_off(run: Run, step: float) -> Run:
    """The run as it was when `step` had just been logged."""
    return run.replace(
        channels={
            n: c.take(np.flatnonzero(c.steps <= step)) for n, c in run.channels.items() if np.any(c.steps <= step)
        }
    )


def replay(run: Run, thresholds: Thresholds, *, moments: int = MOMENTS) -> Iterator[MonitorAlarm]:
    """Alarms in the order in which they would have been raised: the first one of each monitor.

    Parameters
    ----------
    run : Run
    thresholds : Thresholds
    moments : int
        How often the log is read anew.
    """
    steps = np.unique(np.concatenate([c.steps for c in run.channels.values() if len(c)] or [np.zeros(0)]))
    if not steps.size:
        return
    names = [t.monitor for t in thresholds.thresholds]
    start = float(steps[0]) + thresholds.warmup
    raised: set[str] = set()
    before = -np.inf
    for row in np.unique(np.linspace(0, steps.size, moments + 1, dtype=np.intp)[1:] - 1):
        now = float(steps[row])
        seen = cut_off(run, now)
        table = monitor_scores(seen, [n for n in names if n not in raised])
        at = table.index.to_numpy(dtype=np.float64)
        new: list[MonitorAlarm] = []
        for t in thresholds.thresholds:
            if not applies(t, table, thresholds):
                continue
            confirmed = persistent(table[t.monitor].to_numpy(dtype=np.float64), thresholds.persistence)
            alarm = first_alarm(at, confirmed, t.value, max(start, np.nextafter(before, np.inf)))
            if alarm is not None:
                exact = [a for a in run_alarms(cut_off(run, alarm.step), thresholds) if a.monitor == t.monitor]
                new.extend(exact)
                raised.add(t.monitor)
        yield from sorted(new, key=lambda a: (a.step, a.monitor))
        before = now
