r"""Deliberate resets: the loss goes back to where it began because the schedule was started again.

Every rule that looks at the loss alone calls such a restart a failure. A reset at step *t* is named when, at once,

* the loss jumps up (a new level or slow return, found by `trajscope.spikes`, or the largest one-row rise) and the
  share of the whole descent that it takes back, on the log scale, is at least ``back`` (0.5); and
* the learning rate **restarts**: within ``reach`` rows of that jump it goes from low to high again as it did at the
  start, either by a jump of at least ``lr_ratio``, or by a new warm-up (a minimum below ``1 / lr_ratio`` of the peak
  that follows).

Without a learning rate in the log nothing is named: the answer is "cannot tell" when the loss fits, "none" otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope._core.rolling import trailing_median
from trajscope.detect._inputs import Series, as_series, is_run
from trajscope.detect._scale import transform
from trajscope.errors import InputError
from trajscope.result import Result, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DeliberateReset", "deliberate_reset"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DeliberateReset(Result):
    """Resets of one run; returned by `deliberate_reset`.

    Attributes
    ----------
    verdict : {"reset", "none", "cannot tell"}
        ``cannot tell``: the loss returns to its start but no learning rate was logged.
    steps : ndarray, shape (n_resets,)
        First logged step after each reset; of the unexplained returns where the verdict is "cannot tell".
    shares : ndarray
        Share of the descent so far that the loss took back.
    lr_before, lr_after : ndarray
        Lowest rate just before and highest just after; NaN without a rate.
    reason : str
    """

    verdict: str
    steps: NDArray[Any]
    shares: Floats
    lr_before: Floats
    lr_after: Floats
    reason: str

    def to_frame(self) -> pd.DataFrame:
        """One row a reset."""
        import pandas as pd

        return pd.DataFrame(
            {"step": self.steps, "share": self.shares, "lr_before": self.lr_before, "lr_after": self.lr_after}
        )

    def summary(self) -> str:
        """One sentence."""
        return self.reason


def deliberate_reset(
    loss: Any,
    lr: Any = None,
    *,
    steps: ArrayLike | None = None,
    lr_steps: ArrayLike | None = None,
    back: float = 0.5,
    lr_ratio: float = 2.0,
    reach: int = 10,
) -> DeliberateReset:
    """Say whether a return of the loss to its start was a restart of weights and schedule.

    Parameters
    ----------
    loss : Run, Channel or array_like, shape (n_steps,)
        A run brings its own learning rate (role ``lr``).
    lr : Channel or array_like, optional
        Learning rate, on its own steps.
    steps, lr_steps : array_like, optional
        Steps of arrays; row numbers by default, and the loss's steps for a rate of the same length.
    back : float, default 0.5
        Share of the descent so far that must be taken back.
    lr_ratio : float, default 2
        Factor by which the rate must rise again.
    reach : int, default 10
        Rows of the loss on each side within which the rate must restart.

    Returns
    -------
    DeliberateReset

    Raises
    ------
    InputError
        For series that cannot be used or options out of range.

    Examples
    --------
    >>> t = np.arange(200) % 100
    >>> found = deliberate_reset(3 * np.exp(-t / 20) + 0.5, 0.1 * (1 + np.cos(np.pi * t / 100)) / 2)
    >>> found.verdict, found.steps.tolist()
    ('reset', [100])
    """
    if not 0 < back <= 1 or lr_ratio <= 1 or reach < 1:
        raise InputError(
            f"options out of range: 0 < back {back} <= 1, lr_ratio {lr_ratio} > 1, reach {reach} >= 1 are expected."
        )
    series, rate = _pair(loss, lr, steps, lr_steps)
    rows, shares = _returns(series, back)
    found: list[tuple[Any, float, float, float]] = []
    for row, share in zip(rows.tolist(), shares.tolist(), strict=True):
        low, high, restarted = _restart(series, rate, row, lr_ratio, reach) if rate is not None else (math.nan,) * 3
        if rate is None or restarted:
            found.append((series.steps[row], share, low, high))
    at = np.array([f[0] for f in found], dtype=series.steps.dtype)
    if rate is None and found:
        verdict = "cannot tell"
        reason = f"the loss returns towards its start at step {at[0]}, but no learning rate was logged to tell a reset."
    elif found:
        verdict = "reset"
        many = f" and {len(found) - 1} more" if len(found) > 1 else ""
        reason = f"deliberate reset at step {at[0]}{many}: loss and learning-rate schedule start again together."
    else:
        verdict = "none"
        reason = "no deliberate reset: the loss does not return to its start" + (
            " together with the learning rate." if rows.size else "."
        )
    return DeliberateReset(
        verdict=verdict,
        steps=at,
        shares=np.array([f[1] for f in found]),
        lr_before=np.array([f[2] for f in found]),
        lr_after=np.array([f[3] for f in found]),
        reason=reason,
        provenance=make_provenance(
            "deliberate_reset",
            {"back": back, "lr_ratio": lr_ratio, "reach": reach},
            series.values,
            *(() if rate is None else (rate.values,)),
        ),
    )


def _pair(loss: Any, lr: Any, steps: Any, lr_steps: Any) -> tuple[Series, Series | None]:
    if is_run(loss):
        from trajscope.detect.spikes import channel_of

        rates = [c for c in loss.channels.values() if getattr(c, "role", "") == "lr" and len(c.values)]
        lr = rates[0] if lr is None and rates else lr
        loss = channel_of(loss, None)
    series = as_series(loss, steps)
    if lr is None:
        return series, None
    if lr_steps is None and not hasattr(lr, "steps"):
        lr_steps = series.steps if np.size(lr) == series.steps.size else None
    rate = as_series(lr, lr_steps, name="lr")
    good = np.isfinite(rate.values)
    return series, Series(rate.name, rate.role, rate.steps[good], rate.values[good]) if good.any() else None


def _returns(series: Series, back: float) -> tuple[NDArray[np.intp], Floats]:
    """Rows at which the loss takes back ``back`` of its descent so far at once, and keeps it for two more."""
    y, _ = transform(series.values, "loss")
    good = np.flatnonzero(np.isfinite(y))
    v = y[good]
    if v.size < 15:
        return np.empty(0, dtype=np.intp), np.empty(0)
    start = np.fmax.accumulate(v)  # the highest so far: the first row may be an evaluation that is logged late
    level = trailing_median(v, 5, min_count=3)
    room = start - level
    ahead = np.median(np.lib.stride_tricks.sliding_window_view(np.r_[v, v[-1], v[-1]], 3), axis=1)
    ahead[-2:] = (v[-2] + v[-1]) / 2, v[-1]  # of the rows that are left
    share = np.divide(np.minimum(v, ahead) - level, room, out=np.zeros(v.size), where=room > 0)
    noise = 1.4826 * np.median(np.abs(np.diff(v) - np.median(np.diff(v))))
    hit = np.flatnonzero((share >= back) & (v - level > 7 * max(noise, 1e-3)) & (np.arange(v.size) >= 10))
    first = hit[np.diff(hit, prepend=-10) > 5]
    return good[first], share[first]


def _restart(series: Series, rate: Series, row: int, ratio: float, reach: int) -> tuple[float, float, bool]:
    """Lowest rate before and highest after around a row, and whether the schedule begins again there."""
    left = series.steps[max(row - reach, 0)]
    right = series.steps[min(row + reach, series.steps.size - 1)]
    here = series.steps[row]
    before = rate.values[(rate.steps >= left) & (rate.steps < here)]
    around = rate.values[(rate.steps >= left) & (rate.steps <= right)]
    after = rate.values[(rate.steps >= here) & (rate.steps <= right)]
    earlier = rate.values[rate.steps <= here]
    if not before.size:
        before = earlier[-1:]
    if not before.size or not around.size or not after.size:
        return math.nan, math.nan, False
    jumped = float(after.max()) >= ratio * float(before[-1]) and float(after.max()) > 0
    # a new warm-up: the rate falls to (almost) nothing at the reset and rises again
    dropped = float(after.min()) * ratio <= float(before.max()) and int(np.argmin(after)) < after.size - 1
    warms = dropped and float(after[np.argmin(after) :].max()) >= ratio * max(float(after.min()), 1e-300)
    return float(before.min()), float(after.max()), bool(jumped or warms)
