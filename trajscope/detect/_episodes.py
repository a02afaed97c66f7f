"""Episodes of a performance series: the walk over its finite rows behind `trajscope.collapse`.

The rules stand on top of `trajscope.detect.collapse`, the arithmetic in `trajscope.detect._drawdown`; here they are
applied: each confirmed fall is dated back to its onset, followed to its recovery and classed, then the stretches of
non-finite values are put beside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.detect._abruptness import abruptness
from trajscope.detect._drawdown import Drawdown, run_starts
from trajscope.detect._inputs import Series

__all__ = ["Episode", "Judge"]


@dataclass(frozen=True)
class Episode:
    """One fall of performance, or one stretch of non-finite values.

    Attributes
    ----------
    kind : {"collapse", "divergence", "non-finite", "cannot tell"}
        ``cannot tell``: the last rows fall, but the log ends before the rule could be met.
    onset : float
        Step at which performance left its band.
    confirmed : float or None
        Step at which the rule was met.
    recovery : {"transient", "lingering", "irrecoverable", "undetermined"}
    recovered_step : float or None
        First step of the recovered rows, also where they came too late to count.
    depth : float
        Largest drawdown, 1 = all that had been learned; NaN for non-finite values.
    fall : float
        Largest P - R in units of s_R; NaN for non-finite values.
    bottom : float or None
        Step of the lowest level.
    width, width_low, width_high : float
        Rows the fall took (best ramp) with 95 % profile interval; NaN where it could not be fitted.
    jump_lr : float
        Log likelihood of a jump minus that of a drift of three or more rows.
    P, s_R : float
        Peak level and scale when it was confirmed.
    evaluations : int
        Rows from onset to recovery, or to the end.
    """

    kind: str
    onset: float
    confirmed: float | None
    recovery: str
    recovered_step: float | None = None
    depth: float = math.nan
    fall: float = math.nan
    bottom: float | None = None
    width: float = math.nan
    width_low: float = math.nan
    width_high: float = math.nan
    jump_lr: float = math.nan
    P: float = math.nan
    s_R: float = math.nan
    evaluations: int = 0


@dataclass(frozen=True, eq=False)
class Judge:
    """Walks the finite rows of one series; ``rows`` maps them to rows of the series."""

    y: NDArray[np.float64]
    rows: NDArray[np.intp]
    series: Series
    track: Drawdown
    floor: float
    options: dict[str, Any]

    @property
    def horizon(self) -> int:
        """H in evaluations."""
        share = math.ceil(float(self.options["horizon"]) * self.series.values.size)
        return max(share, int(self.options["min_horizon"]))

    def peak(self) -> float:
        level = self.track.level
        return float(np.nanmax(level)) if np.isfinite(level).any() else math.nan

    def has_learned(self) -> bool:
        t = self.track
        rise = np.fmax.accumulate(t.level) - t.start if t.level.size else t.level
        return bool(np.any(rise >= self.options["learned"] * t.scale))

    def _step(self, row: int) -> float:
        step: float = self.series.steps[self.rows[row]].item()
        return step

    def episodes(self) -> tuple[Episode, ...]:
        o, t = self.options, self.track
        h = int(o["h"])
        fallen = t.peak - t.level >= o["z"] * t.scale
        fall = fallen & (t.ratio >= o["dd"]) & (t.peak - t.start >= o["learned"] * t.scale)
        confirm = np.flatnonzero(run_starts(fall, h))
        back = np.flatnonzero(run_starts(t.ratio <= o["recover"], h))
        found: list[Episode] = []
        spans: list[tuple[int, int]] = []
        end = 0
        while True:
            at = np.searchsorted(confirm, end)
            if at == confirm.size:
                break
            i = int(confirm[at])
            onset = self._onset(i, end, float(t.peak[i]), float(t.scale[i]))
            later = np.searchsorted(back, i + h)
            stop = int(back[later]) - h + 1 if later < back.size else None
            found.append(self._fall(onset, i, stop))
            spans.append((onset, self.y.size if stop is None else stop))
            if stop is None:
                break
            end = stop + h
        open_ended = bool(found) and spans[-1][1] == self.y.size
        if not open_ended:
            found += self._unlearned_or_unconfirmed(end, fallen)
        return self._with_nonfinite(found)

    def _onset(self, confirmed: int, earliest: int, peak: float, scale: float) -> int:
        """First row after the last one inside the band, not before ``earliest`` and not after ``confirmed``.

        The level is a median: a single row may lie inside the band while the rule is being met.
        """
        inside = np.flatnonzero(self.y[earliest : confirmed + 1] >= peak - self.options["band"] * scale)
        return min(confirmed, earliest + (int(inside[-1]) + 1 if inside.size else 0))

    def _fall(self, onset: int, confirmed: int, stop: int | None) -> Episode:
        o, t, n = self.options, self.track, self.y.size
        last = n if stop is None else stop
        lost = (t.peak - t.level)[confirmed:last]
        bottom = confirmed + int(np.argmax(lost))
        ratio = t.ratio[confirmed:last][~np.isnan(t.ratio[confirmed:last])]
        peak, scale = float(t.peak[confirmed]), float(t.scale[confirmed])
        # the ramp is fitted from before the onset until a little after the level of the bottom is first reached
        low = float(np.min(t.level[confirmed : min(last, confirmed + self.horizon)])) + o["band"] * scale
        reached = onset + int(np.argmax(self.y[onset:last] <= max(low, float(np.min(self.y[onset:last])))))
        after = min(last, max(reached, confirmed) + 2 * int(o["w"]) + 1)
        before = max(0, onset - max(4 * int(o["w"]), reached - onset))
        ramp = abruptness(self.y[before:after])
        tail = max(math.ceil(o["tail"] * n), int(o["w"]))
        diverged = stop is None and n - tail >= confirmed and bool(np.all(t.ratio[n - tail :] >= 1))
        shape = (ramp.width, ramp.low, ramp.high, ramp.jump_lr) if ramp else (math.nan,) * 4
        return Episode(
            kind="divergence" if diverged else "collapse",
            onset=self._step(onset),
            confirmed=self._step(confirmed),
            recovery=self._class(onset, stop),
            recovered_step=None if stop is None else self._step(stop),
            depth=float(np.max(ratio)) if ratio.size else math.nan,
            fall=float(np.max(lost) / scale),
            bottom=self._step(bottom),
            width=shape[0],
            width_low=shape[1],
            width_high=shape[2],
            jump_lr=shape[3],
            P=peak,
            s_R=scale,
            evaluations=int(self.rows[last - 1] + 1 - self.rows[onset])
            if stop is None
            else self._rows_between(onset, stop),
        )

    def _rows_between(self, onset: int, stop: int) -> int:
        return int(self.rows[stop] - self.rows[onset])

    def _class(self, onset: int, stop: int | None) -> str:
        if stop is None:
            left = self.series.values.size - int(self.rows[onset])
            return "irrecoverable" if left >= self.horizon else "undetermined"
        took = self._rows_between(onset, stop)
        if took <= self.options["transient"]:
            return "transient"
        return "lingering" if took <= self.horizon else "irrecoverable"

    def _unlearned_or_unconfirmed(self, end: int, fallen: NDArray[np.bool_]) -> list[Episode]:
        """A run that ends below its start without ever having learned, or whose last rows fall unconfirmed."""
        o, t, n = self.options, self.track, self.y.size
        h, w = int(o["h"]), int(o["w"])
        tail = max(math.ceil(o["tail"] * n), w)
        if n < 2 * w + h or end > n - h:
            return []
        worse = fallen & (t.level <= t.start)
        if n > tail and worse[n - tail :].all():
            inside = np.flatnonzero(~worse)
            confirmed = min(int(inside[-1]) + h if inside.size else h - 1, n - 1)
            onset = self._onset(confirmed, end, float(t.peak[confirmed]), float(t.scale[confirmed]))
            whole = self._fall(onset, confirmed, None)
            return [replace(whole, kind="divergence")]
        peak, scale = float(t.peak[-1]), float(t.scale[-1])
        recent = self.y[n - h :]
        if (
            peak - t.start >= o["learned"] * scale
            and bool(np.all(peak - recent >= o["z"] * scale))
            and bool(np.all(peak - recent >= o["dd"] * (peak - t.start)))
        ):
            onset = self._onset(n - 1, end, peak, scale)
            depth = float(np.median((peak - recent) / (peak - t.start)))
            return [
                Episode(
                    "cannot tell", self._step(onset), None, "undetermined", depth=depth,
                    fall=float(np.median(peak - recent) / scale), P=peak, s_R=scale, evaluations=n - onset,
                )
            ]  # fmt: skip
        return []

    def _with_nonfinite(self, found: list[Episode]) -> tuple[Episode, ...]:
        """Add the stretches of non-finite values; one that stays takes an unrecovered fall before it along."""
        bad = np.ones(self.series.values.size, dtype=bool)
        bad[self.rows] = False
        if not bad.any():
            return tuple(found)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], bad, [False]]).astype(np.int8)))
        steps = self.series.steps
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            stays = stop == bad.size
            if stays and found and found[-1].recovered_step is None and found[-1].onset <= steps[start]:
                found[-1] = replace(found[-1], kind="non-finite", recovery="irrecoverable")
                continue
            took = stop - start
            if stays:
                recovery = "irrecoverable"
            elif took <= self.options["transient"]:
                recovery = "transient"
            else:
                recovery = "lingering" if took <= self.horizon else "irrecoverable"
            found.append(
                Episode(
                    "non-finite", steps[start].item(), steps[start].item(), recovery,
                    recovered_step=None if stays else steps[stop].item(), evaluations=took,
                )
            )  # fmt: skip
        return tuple(sorted(found, key=lambda e: e.onset))
