"""Bands over runs of unequal lengths.

At a step a run counts with its last value at or before it, from its first step to its last; it is neither prolonged nor
cut, so the number of runs is part of the band. The centre is the median, which a non-finite value does not spoil, and
its interval is that of order statistics: of the values :math:`x_{(1)} \\le \\dots \\le x_{(n)}` the pair
:math:`(x_{(k)}, x_{(n+1-k)})` covers the median with probability :math:`1 - 2\\,P(B \\le k - 1)`, B binomial (n, 1/2)
(David & Nagaraja 2003, sec. 7.1). Below six runs no pair reaches 95 %: the range is given with what it covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

if TYPE_CHECKING:
    import pandas as pd

    from trajscope.history.run import Run

__all__ = ["at_steps", "bands", "finite_steps", "median_ranks"]

Floats = NDArray[np.float64]

#: Steps at which a band is given, at most.
POINTS = 200


def median_ranks(n: int, level: float) -> tuple[int, float]:
    """The rank k of the interval (k-th smallest, k-th largest) for the median, and what it covers.

    >>> median_ranks(6, 0.95)
    (1, 0.96875)
    >>> median_ranks(3, 0.95)
    (1, 0.75)
    """
    k = max(1, int(binom.ppf((1 - level) / 2, n, 0.5)))
    while k > 1 and 1 - 2 * binom.cdf(k - 1, n, 0.5) < level:
        k -= 1
    return k, float(1 - 2 * binom.cdf(k - 1, n, 0.5))


def bands(groups: dict[str, list[Run]], channel: str, level: float) -> pd.DataFrame:
    """Median, its interval and quartiles of one channel over the runs of each group.

    Parameters
    ----------
    groups : dict of str to list of Run
    channel : str
    level : float

    Returns
    -------
    DataFrame
        Columns ``channel, group, step, n, ended, median, low, high, covers, quartile_1, quartile_3``; ``ended`` counts
        the runs whose last point lies before the step.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    series = {g: [finite_steps(r, channel) for r in runs if channel in r.channels] for g, runs in groups.items()}
    steps = [s for own in series.values() for s, _ in own if s.size]
    if not steps:
        return pd.DataFrame(rows)
    every = np.unique(np.concatenate(steps))
    grid = every[np.unique(np.linspace(0, every.size - 1, min(POINTS, every.size)).round().astype(int))]
    for group, own in series.items():
        table = at_steps(own, grid)
        last = np.array([s[-1] for s, _ in own if s.size])
        for j, step in enumerate(grid):
            x = np.sort(table[:, j][~np.isnan(table[:, j])])
            if not x.size:
                continue
            k, covers = median_ranks(x.size, level)
            low, middle, high = np.quantile(x, [0.25, 0.5, 0.75], method="inverted_cdf")
            centre = (x[(x.size - 1) // 2] + x[x.size // 2]) / 2 if np.isfinite(x).all() else middle
            rows.append({
                "channel": channel, "group": group, "step": float(step), "n": int(x.size),
                "ended": int(np.sum(last < step)), "median": float(centre), "low": float(x[k - 1]),
                "high": float(x[-k]), "covers": covers, "quartile_1": float(low), "quartile_3": float(high),
            })  # fmt: skip
    return pd.DataFrame(rows)


def finite_steps(run: Run, channel: str) -> tuple[Floats, Floats]:
    """Sorted steps and values of a channel, the last of points that share a step."""
    c = run.channels[channel]
    steps, values = np.asarray(c.steps, dtype=np.float64), np.asarray(c.values, dtype=np.float64)
    order = np.argsort(steps, kind="stable")
    return steps[order], values[order]


def at_steps(series: Sequence[tuple[Floats, Floats]], grid: Floats) -> Floats:
    """Last value at or before each grid step, NaN before the first and after the last: (n_runs, n_grid)."""
    table = np.full((len(series), grid.size), np.nan)
    for i, (steps, values) in enumerate(series):
        if steps.size:
            row = np.searchsorted(steps, grid, side="right") - 1
            alive = (row >= 0) & (grid <= steps[-1])
            table[i, alive] = values[row[alive]]
    return table
