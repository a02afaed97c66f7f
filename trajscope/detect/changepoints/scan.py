"""Where a level or a slope breaks: contrasts at all positions and scales, checked against smooth curves.

At scale ``m`` (rows on each side; a grid of ratio ``sqrt 2``) and position ``s`` two least-squares coefficients are
formed on ``y[s-m : s+m]``: the step at ``s`` beside a line, ``J1``, and the kink at ``s`` beside a line, ``K1``. A
window that would reach over a known change or an end of the series is cut there, down to a quarter of ``m`` on that
side; on the left it is cut before it comes close to where the regime began (`scan_scales`, onset), for there a
relaxation is as curved as one likes. The noise of a contrast is known from the autocorrelation and the local scale
(`noise`), and where a scale holds enough independent windows it is also measured, as the MAD over positions; the
larger counts. So periodic waves and long memory raise the bar instead of alarms.

A line is not what a training curve is. A smooth curve ``f`` also moves ``J1`` (by ``m^3 f'''``) and ``K1`` (by ``m
f''``), so each must be confirmed by what a smooth curve cannot fake:

* ``J3``: the step beside a cubic, at the same scale and at half of it. A step has the same ``J3`` at both, a curve
  has ``m^5`` times its fifth derivative: 1/32 of it at half the scale.
* ``K2``: the kink beside a parabola, same sign as ``K1``, again at both scales (1 against 1/8). A completely
  monotone curve (sums of decaying exponentials, power laws: derivatives of alternating sign) has a ``K2`` of the
  opposite sign, since a kink has a negative and such a curve a positive fourth Legendre coefficient.

``p(z) = min(1, c (n/m) z phi(z))``, the tail of the maximum of a locally linear Gaussian process over the positions
of one scale (Pickands 1969 for the form), Bonferroni over scales and kinds.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d

from trajscope._core.cells import cell_autocovariance, halve, studentised_contrasts
from trajscope._core.rolling import by_numpy
from trajscope.detect.changepoints.filters import confirming, lags, searching
from trajscope.detect.changepoints.noise import Noise
from trajscope.detect.changepoints.screen import Screen

__all__ = [
    "Candidate",
    "Level",
    "Limits",
    "contrasts",
    "maximum_p_value",
    "n_scales",
    "positions",
    "scales",
    "scan_scales",
    "threshold",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_CELLS = (16, 23)
_SMALL = (8, 11)
_LEAST_ROWS = 8
_SHARED_CELLS = 4096
_PICKANDS = {"level": 3.0, "slope": 3.0}
_CHECKS = {"level": (0, 1), "slope": (2, 3)}
_ONSET = 0.75
_MIN_WINDOWS = 12
_CELLS_A_ROW = 64
"""Cells of a rolling window (`trajscope._core.rolling.by_numpy`) that cost as much as a row of a scan."""


@dataclass(frozen=True)
class Candidate:
    """A place where one contrast passed: row, rows used before and after, scale, kind, contrast in sd, p-value."""

    row: int
    left: int
    right: int
    half: int
    kind: str
    z: float
    p_value: float


@dataclass(frozen=True)
class Limits:
    """What one contrast must reach: p-value of the scale, and the two confirmations in sd, and their least ratio."""

    p_value: float
    confirm: float
    confirm_half: float
    min_ratio: float


@lru_cache(maxsize=64)
def _even_lags(cells: int) -> Floats:
    return lags(searching(cells, cells, 2 * cells))


class Level:
    """One level of the pyramid: cell means, cell variances, autocorrelation of cells, rows a cell."""

    def __init__(self, mean: Floats, variance: Floats, covariance: Floats, q: int, sums: Floats | None = None) -> None:
        self.mean, self.variance, self.covariance, self.q = mean, variance, covariance, q
        self._sums = np.concatenate([[0.0], np.cumsum(variance)]) if sums is None else sums

    def halved(self) -> Level:
        """The next level."""
        return Level(halve(self.mean), halve(self.variance), cell_autocovariance(self.covariance), 2 * self.q)

    def deviation(self, lags: Floats) -> Floats:
        """Standard deviation of contrasts of unit noise from the `lags` of their filters, ``(..., n, width)``."""
        known = min(lags.shape[-1], self.covariance.shape[0])
        return np.asarray(np.sqrt(np.maximum(lags[..., :known] @ self.covariance[:known], 1e-300)))

    def _scale(self, start: Ints, width: Ints | int) -> Floats:
        variance = (self._sums[start + width] - self._sums[start]) / width
        return np.asarray(np.sqrt(np.maximum(variance, 1e-300)))

    def uncut(self, cells: int) -> Floats:
        """``J1, K1`` of all even windows, at every `stride`, in sd: ``(n_windows, 2)``."""
        deviation = self.deviation(_even_lags(cells))
        return studentised_contrasts(
            self.mean, self._sums, searching(cells, cells, 2 * cells), deviation, stride(cells)
        )

    def cut(self, plan: Plan) -> Floats:
        """``J1, K1`` of the cut windows of a plan, in sd: ``(n_windows, 2)``."""
        raw = np.einsum("ij,ijk->ik", self.mean[plan.cut_cells], plan.cut_filters)
        start, width = plan.start[plan.even :], plan.left[plan.even :] + plan.right[plan.even :]
        return np.asarray(raw / (self._scale(start, width)[:, None] * self.deviation(plan.cut_lags)[plan.cut_which]))

    def windows(self, start: Ints, left: Ints, right: Ints, *, confirm: bool = False) -> tuple[Floats, Floats]:
        """Contrasts of any windows, raw and in sd: ``(n_windows, 2 or 4)`` each."""
        filters, which, at = _filters_of(self.mean.shape[0], start, left, right, confirm)
        if filters.shape[0] == 1:
            raw = self.mean[at] @ filters[0]
        else:
            raw = np.einsum("ij,ijk->ik", self.mean[at], filters[which])
        deviation = self.deviation(lags(filters))
        return raw, raw / (self._scale(start, left + right)[:, None] * deviation[which])


def _filters_of(n_cells: int, start: Ints, left: Ints, right: Ints, confirm: bool) -> tuple[Floats, Ints, Ints]:
    """Distinct filters ``(n_distinct, width, n)``, which of them a window uses, and the cells of each window."""
    bank = confirming if confirm else searching
    width = int((left + right).max())
    code, which = np.unique(left * (4 * _CELLS[-1]) + right, return_inverse=True)
    filters = np.stack([bank(int(c) // (4 * _CELLS[-1]), int(c) % (4 * _CELLS[-1]), width) for c in code])
    # Behind the window the weight is 0.
    return filters, which.astype(np.int64), np.minimum(start[:, None] + np.arange(width), n_cells - 1)


@dataclass(frozen=True, eq=False)
class Plan:
    """The windows of one scale: start, left and right in cells; the first `even` are even, the others are cut.

    For the cut ones also the cells ``(n_cut, width)``, the filters ``(n_cut, width, 2)`` and the `lags` of the
    distinct ones. A plan depends on no value, so series of equal length share theirs.
    """

    start: Ints
    left: Ints
    right: Ints
    even: int
    cut_cells: Ints
    cut_filters: Floats
    cut_lags: Floats
    cut_which: Ints


def stride(cells: int) -> int:
    """Cells between two even windows: an eighth of the scale or less."""
    return 2 if cells >= 16 else 1


def _cut_windows(n_cells: int, q: int, cells: int, edges: Sequence[int], onset: float) -> tuple[Ints, Ints, Ints]:
    """Start, left and right, in cells, of the windows that are cut by a known change, an end, or an onset."""
    least = max(cells // 4, -(-_LEAST_ROWS // q))
    bounds = np.array(edges)
    first, last = -(-bounds[:-1] // q), np.minimum(bounds[1:] // q, n_cells)
    reach = math.ceil(cells / onset) if onset < 1 else cells
    near = np.arange(1, reach + 1)
    far = np.arange(1, cells)
    s = np.concatenate([(first[:, None] + near).ravel(), (last[:, None] - far).ravel()])
    a = np.concatenate([np.repeat(first, reach), np.repeat(first, cells - 1)])
    b = np.concatenate([np.repeat(last, reach), np.repeat(last, cells - 1)])
    # A position close to both ends is listed by its first end only.
    fresh = np.concatenate(
        [np.ones(near.size * first.size, bool), (last[:, None] - far > first[:, None] + reach).ravel()]
    )
    left = np.minimum(cells, ((s - a) * onset).astype(np.int64)) if onset < 1 else np.minimum(cells, s - a)
    right = np.minimum(np.minimum(cells, b - s), 2 * (s - a) if onset < 1 else cells)
    good = fresh & (np.minimum(left, right) >= least) & (np.maximum(left, right) >= 0.7 * cells)
    good &= (left < cells) | (right < cells)
    return (s - left)[good], left[good], right[good]


def _free(rows: Ints, half: int, edges: Sequence[int], onset: float, q: int) -> NDArray[np.bool_]:
    """Which even windows hold no known change in their inside and begin late enough in their regime."""
    free = np.ones(rows.shape[0], dtype=bool)
    if rows.shape[0] == 0:
        return free
    first = int(rows[0])
    for row in edges[:-1]:
        # s - half < row < s + half, or (s - row) * onset < half for s > row
        low = row - half + 1 if row > 0 else 0
        high = row + (half if onset >= 1 else math.ceil(half / onset))
        free[max(-(-(low - first) // q), 0) : max(-(-(high - first) // q), 0)] = False
    return free


def positions(level: Level, cells: int, edges: Sequence[int], onset: float) -> Plan:
    """All windows of one scale."""
    make = _shared_plan if level.mean.shape[0] <= _SHARED_CELLS else _plan
    return make(level.mean.shape[0], level.q, cells, tuple(edges), onset)


def _plan(n_cells: int, q: int, cells: int, edges: tuple[int, ...], onset: float) -> Plan:
    start = np.arange(0, max(n_cells - 2 * cells + 1, 0), stride(cells))
    start = start[_free((start + cells) * q, cells * q, edges, onset, q * stride(cells))]
    even = np.full(start.shape[0], cells)
    cut = _cut_windows(n_cells, q, cells, edges, onset)
    if cut[0].shape[0]:
        filters, which, at = _filters_of(n_cells, *cut, confirm=False)
    else:
        filters, which, at = np.empty((0, 1, 2)), np.empty(0, np.int64), np.empty((0, 1), np.int64)
    begin, left, right = (np.concatenate([a, b]) for a, b in zip((start, even, even), cut, strict=True))
    return Plan(begin, left, right, start.shape[0], at, filters[which], lags(filters), which)


_shared_plan = lru_cache(maxsize=256)(_plan)


def contrasts(level: Level, cells: int, plan: Plan) -> Floats:
    """``J1, K1`` in sd for the windows of a plan: ``(n_windows, 2)``."""
    z = level.uncut(cells)
    if plan.even < z.shape[0]:
        z = z[plan.start[: plan.even] // stride(cells)]
    return z if plan.start.shape[0] == plan.even else np.concatenate([z, level.cut(plan)])


class _Measured:
    """Robust standard deviations over positions at the last scale that held enough windows, formed when asked for."""

    def __init__(self, width: int) -> None:
        self._value = np.ones(width)
        self._make: Callable[[], Floats] | None = None

    def at(self, make: Callable[[], Floats]) -> None:
        self._make = make

    def least(self) -> Floats:
        """What it is, or 1 where it is not formed yet: never more than it will be."""
        return np.ones_like(self._value) if self._make is not None else self._value

    def __call__(self) -> Floats:
        if self._make is not None:
            z, self._make = self._make(), None
            self._value = np.maximum(np.median(np.abs(z), axis=0) / 0.6745, 1.0)
        return self._value


def scan_scales(
    y: Floats,
    noise: Noise,
    known: list[int],
    limits: Mapping[str, Limits],
    *,
    onset: float = _ONSET,
) -> Generator[list[Candidate], list[int] | None, None]:
    """Candidates of a series, one scale at a time, narrowest first.

    Parameters
    ----------
    y : ndarray, (n,)
        Clipped values, no gaps.
    noise : Noise
    known : list of int
        Rows of known changes; windows are cut there. Rows sent into the generator after a scale are added.
    limits : mapping of {"level", "slope"} to Limits
    onset : float
        A window at ``s`` reaches back at most ``onset (s - a)`` and forward at most ``2 (s - a)``, ``a`` the first
        row of the regime: a power law is self-similar, and so close to its beginning as curved as one likes. 1
        switches it off.

    Notes
    -----
    Where a scale holds `_MIN_WINDOWS` independent windows, its noise is measured as the MAD over positions. A long
    series, or one of many, is first looked through by a kernel (`screen`), and only the scales where it sees that
    something may pass are visited: the candidates are the same.
    """
    n = y.shape[0]
    edges = sorted({0, n, *known})
    values, variance = y - np.median(y), np.square(noise.sd)
    spread, spread_confirm = _Measured(2), _Measured(4)
    if by_numpy(_CELLS_A_ROW * n):
        for level, cells in scales(Level(values, variance, noise.autocorrelation, 1)):
            plan = positions(level, cells, edges, onset)
            z = contrasts(level, cells, plan)
            if _holds_enough(level, cells, plan):
                spread.at(partial(_every, z, plan.even, max(plan.even // 20_000, 1)))
                spread_confirm.at(partial(_checks, level, plan))
            for row in (yield _candidates(level, cells, plan, z, n, limits, spread, spread_confirm)) or ():
                insort(edges, row)
        return
    screen = Screen(values, variance, noise.autocorrelation, _grid_of(n), _limits_of(n, tuple(limits.items())))
    scale = 0
    while scale >= 0:
        scale, measured = screen.next(scale, edges, onset, _LEAST_ROWS, _MIN_WINDOWS, spread.least())
        if scale < 0:
            return
        if measured >= 0:
            level, cells = Level(*screen.level(measured)), screen.cells(measured)
            plan = positions(level, cells, edges, onset)
            z = contrasts(level, cells, plan)
            spread.at(partial(_every, z, plan.even, max(plan.even // 20_000, 1)))
            spread_confirm.at(partial(_checks, level, plan))
        if measured != scale:
            level, cells = Level(*screen.level(scale)), screen.cells(scale)
            plan = positions(level, cells, edges, onset)
            z = contrasts(level, cells, plan)
        for row in (yield _candidates(level, cells, plan, z, n, limits, spread, spread_confirm)) or ():
            insort(edges, row)
        scale += 1


def _holds_enough(level: Level, cells: int, plan: Plan) -> bool:
    """Whether a scale holds enough independent windows for its noise to be measured."""
    return plan.even * level.q * stride(cells) >= _MIN_WINDOWS * 2 * cells * level.q


def _candidates(
    level: Level,
    cells: int,
    plan: Plan,
    z: Floats,
    n: int,
    limits: Mapping[str, Limits],
    spread: _Measured,
    spread_confirm: _Measured,
) -> list[Candidate]:
    """What passes at one scale."""
    q, half = level.q, cells * level.q
    found: list[Candidate] = []
    largest = np.abs(z).max(axis=0) if z.shape[0] else np.zeros(2)
    for kind, limit in limits.items():
        which = 0 if kind == "level" else 1
        limit_z = threshold(limit.p_value, n, half, kind)
        if largest[which] <= limit_z:  # what was measured only makes it smaller
            continue
        contrast = z[:, which] / spread()[which]
        place = plan.start + plan.left
        at = _peaks(contrast, place, cells, limit_z, interior=kind == "slope")
        if at.shape[0]:
            raw, checks = level.windows(plan.start[at], plan.left[at], plan.right[at], confirm=True)
            for i in at[_confirmed(contrast[at], raw, checks / spread_confirm(), kind, limit)]:
                size = float(contrast[i])
                row, before, after = (int(v[i]) * q for v in (place, plan.left, plan.right))
                found.append(Candidate(row, before, after, half, kind, size, maximum_p_value(size, n, half, kind)))
    return found


@lru_cache(maxsize=256)
def _grid_of(n: int) -> Ints:
    """Level and cells of every scale that `scales` visits: ``(n_scales, 2)``."""
    out = []
    level = 0
    while n >> level >= 2 * _SMALL[0]:
        out += [(level, cells) for cells in _grid(1 << level) if n >> level >= cells]
        level += 1
    return np.array(out, dtype=np.int64).reshape(-1, 2)


@lru_cache(maxsize=1024)
def _limits_of(n: int, limits: tuple[tuple[str, Limits], ...]) -> Floats:
    """What level and slope must reach at every scale: contrast, both confirmations, ratio; ``(2, n_scales, 4)``."""
    grid = _grid_of(n)
    out = np.full((2, grid.shape[0], 4), np.inf)
    for kind, limit in limits:
        for j, (level, cells) in enumerate(grid.tolist()):
            z = threshold(limit.p_value, n, cells << level, kind)
            out[int(kind == "slope"), j] = z, limit.confirm, limit.confirm_half, limit.min_ratio
    return out


def _every(z: Floats, even: int, stride: int) -> Floats:
    return z[:even:stride]


def _checks(level: Level, plan: Plan) -> Floats:
    some = slice(0, plan.even, max(plan.even // 1000, 1))
    return level.windows(plan.start[some], plan.left[some], plan.right[some], confirm=True)[1]


def _confirmed(contrast: Floats, raw: Floats, checks: Floats, kind: str, limit: Limits) -> NDArray[np.bool_]:
    wide, narrow = _CHECKS[kind]
    sign = np.sign(contrast)
    ok = (sign * checks[:, wide] > limit.confirm) & (sign * checks[:, narrow] > limit.confirm_half)
    return np.asarray(ok & (sign * raw[:, narrow] > limit.min_ratio * np.abs(raw[:, wide])))


def _peaks(z: Floats, place: Ints, cells: int, limit: float, *, interior: bool) -> Ints:
    """Windows beyond `limit` that are the largest within one scale on both sides.

    A smooth curve of large amplitude has ``K1`` beyond any limit everywhere; a kink is an interior maximum of it,
    so with `interior` a maximum at the border of what could be searched does not count.
    """
    size = np.abs(z)
    if size.size == 0 or size.max() <= limit:
        return np.empty(0, dtype=np.int64)
    dense = np.full(int(place.max()) + 2, -1.0)
    dense[place] = size
    largest = maximum_filter1d(dense, 2 * cells - 1, mode="constant", cval=-1.0)
    ok = (size > limit) & (size >= largest[place])
    if interior:
        step = stride(cells)
        searched = maximum_filter1d(dense, 2 * step - 1, mode="constant", cval=-1.0) >= 0
        ok &= searched[place - step] & searched[np.minimum(place + step, dense.shape[0] - 1)]
    return np.flatnonzero(ok)


def _grid(q: int) -> tuple[int, ...]:
    return (_SMALL + _CELLS) if q == 1 else _CELLS


def scales(level: Level) -> Generator[tuple[Level, int], None, None]:
    """Levels and cells on each side, narrowest scale first."""
    while level.mean.shape[0] >= 2 * _SMALL[0]:
        for cells in _grid(level.q):
            if level.mean.shape[0] >= cells:
                yield level, cells
        level = level.halved()


def n_scales(n: int) -> int:
    """Number of scales that `scan_scales` visits in a series of `n` rows."""
    count, size, q = 0, n, 1
    while size >= 2 * _SMALL[0]:
        count += sum(size >= cells for cells in _grid(q))
        size, q = size // 2, 2 * q
    return count


def maximum_p_value(z: float, n: int, half: int, kind: str) -> float:
    """P-value of the largest of ``|z|`` over the positions of one scale in a series of `n` rows."""
    z = max(abs(z), 1.0)
    positions = max(n / half, 2.0)
    tail = _PICKANDS.get(kind, 3.0) * positions * z * math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return min(1.0, max(tail, math.erfc(z / math.sqrt(2))))


@lru_cache(maxsize=8192)
def threshold(p: float, n: int, half: int, kind: str) -> float:
    """The ``z`` at which `maximum_p_value` equals `p`; at least 1.

    There it is ``c z phi(z)``, which falls, and whose logarithm is concave: Newton's method from the right comes down.
    """
    if maximum_p_value(1.0, n, half, kind) <= p:
        return 1.0
    gap = math.log(_PICKANDS.get(kind, 3.0) * max(n / half, 2.0) / math.sqrt(2 * math.pi) / p)
    z = math.sqrt(2 * max(gap, 0.0)) + 1
    for _ in range(12):
        z += (gap + math.log(z) - 0.5 * z * z) / (z - 1 / z)
    return z
