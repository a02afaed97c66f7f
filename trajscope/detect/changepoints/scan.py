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

from trajscope._core.cells import cell_autocovariance, halve, studentised_contrasts, window_filter
from trajscope.detect.changepoints.noise import Noise

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


@lru_cache(maxsize=8192)
def _searching(left: int, right: int, width: int) -> Floats:
    """``J1`` and ``K1`` of a window of ``left + right`` cells, zero-padded behind: ``(width, 2)``."""
    out = np.zeros((width, 2))
    out[: left + right, 0] = window_filter(left, right, 1, "step")
    out[: left + right, 1] = window_filter(left, right, 1, "kink")
    return out


@lru_cache(maxsize=8192)
def _confirming(left: int, right: int, width: int) -> Floats:
    """``J3`` and ``K2`` at the scale and at half of it: ``(width, 4)``.

    A cubic beside the step and a parabola beside the kink in an even window; in a cut one the next degree leaks
    into the contrast and is projected out too (in an even window it is orthogonal, so the same degrees serve for
    both).
    """
    out = np.zeros((width, 4))
    inner = (max(left // 2, 3), max(right // 2, 3))
    inside = slice(left - inner[0], left + inner[1])
    out[: left + right, 0] = window_filter(left, right, 4, "step")
    out[inside, 1] = window_filter(*inner, 4 if sum(inner) >= 12 else 2, "step")
    out[: left + right, 2] = window_filter(left, right, 3, "kink")
    out[inside, 3] = window_filter(*inner, 3, "kink")
    return out


def _lags(filters: Floats) -> Floats:
    """``sum_i w_i w_{i+k}``, twice for k > 0: its product with autocovariances is a variance, ``(..., n, width)``."""
    width = filters.shape[-2]
    out = np.empty((*filters.shape[:-2], filters.shape[-1], width))
    for k in range(width):
        out[..., k] = np.einsum("...ij,...ij->...j", filters[..., k:, :], filters[..., : width - k, :])
    out[..., 1:] *= 2
    return out


@lru_cache(maxsize=64)
def _even_lags(cells: int) -> Floats:
    return _lags(_searching(cells, cells, 2 * cells))


class Level:
    """One level of the pyramid: cell means, cell variances, autocorrelation of cells, rows a cell."""

    def __init__(self, mean: Floats, variance: Floats, covariance: Floats, q: int) -> None:
        self.mean, self.variance, self.covariance, self.q = mean, variance, covariance, q
        self._sums = np.concatenate([[0.0], np.cumsum(variance)])

    def halved(self) -> Level:
        """The next level."""
        return Level(halve(self.mean), halve(self.variance), cell_autocovariance(self.covariance), 2 * self.q)

    def deviation(self, lags: Floats) -> Floats:
        """Standard deviation of contrasts of unit noise from the `_lags` of their filters, ``(..., n, width)``."""
        known = min(lags.shape[-1], self.covariance.shape[0])
        return np.asarray(np.sqrt(np.maximum(lags[..., :known] @ self.covariance[:known], 1e-300)))

    def _scale(self, start: Ints, width: Ints | int) -> Floats:
        variance = (self._sums[start + width] - self._sums[start]) / width
        return np.asarray(np.sqrt(np.maximum(variance, 1e-300)))

    def uncut(self, cells: int) -> Floats:
        """``J1, K1`` of all even windows, at every `stride`, in sd: ``(n_windows, 2)``."""
        deviation = self.deviation(_even_lags(cells))
        return studentised_contrasts(
            self.mean, self._sums, _searching(cells, cells, 2 * cells), deviation, stride(cells)
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
        deviation = self.deviation(_lags(filters))
        return raw, raw / (self._scale(start, left + right)[:, None] * deviation[which])


def _filters_of(n_cells: int, start: Ints, left: Ints, right: Ints, confirm: bool) -> tuple[Floats, Ints, Ints]:
    """Distinct filters ``(n_distinct, width, n)``, which of them a window uses, and the cells of each window."""
    bank = _confirming if confirm else _searching
    width = int((left + right).max())
    code, which = np.unique(left * (4 * _CELLS[-1]) + right, return_inverse=True)
    filters = np.stack([bank(int(c) // (4 * _CELLS[-1]), int(c) % (4 * _CELLS[-1]), width) for c in code])
    # Behind the window the weight is 0.
    return filters, which.astype(np.int64), np.minimum(start[:, None] + np.arange(width), n_cells - 1)


@dataclass(frozen=True, eq=False)
class Plan:
    """The windows of one scale: start, left and right in cells; the first `even` are even, the others are cut.

    For the cut ones also the cells ``(n_cut, width)``, the filters ``(n_cut, width, 2)`` and the `_lags` of the
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
    return Plan(begin, left, right, start.shape[0], at, filters[which], _lags(filters), which)


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
    min_windows: int = 12,
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
    min_windows : int
        Fewest independent windows for the noise of a scale to be measured as the MAD over positions.
    """
    n = y.shape[0]
    edges = sorted({0, n, *known})
    rows = Level(y - np.median(y), np.square(noise.sd), noise.autocorrelation, 1)
    spread, spread_confirm = _Measured(2), _Measured(4)
    for level, cells in scales(rows):
        q, half = level.q, cells * level.q
        plan = positions(level, cells, edges, onset)
        z = contrasts(level, cells, plan)
        if plan.even * q * stride(cells) >= min_windows * 2 * half:
            spread.at(partial(_every, z, plan.even, max(plan.even // 20_000, 1)))
            spread_confirm.at(partial(_checks, level, plan))
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
        for row in (yield found) or ():
            insort(edges, row)


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
    """The ``z`` at which `maximum_p_value` equals `p` (bisection; it falls with z above 1)."""
    low, high = 1.0, 37.0
    for _ in range(40):
        mid = 0.5 * (low + high)
        if maximum_p_value(mid, n, half, kind) > p:
            low = mid
        else:
            high = mid
    return high
