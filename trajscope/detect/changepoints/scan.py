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
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import toeplitz
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


class Level:
    """One level of the pyramid: cell means, cell variances, autocorrelation of cells, rows a cell."""

    def __init__(self, mean: Floats, variance: Floats, covariance: Floats, q: int) -> None:
        self.mean, self.variance, self.covariance, self.q = mean, variance, covariance, q
        self._sums = np.concatenate([[0.0], np.cumsum(variance)])

    def halved(self) -> Level:
        """The next level."""
        return Level(halve(self.mean), halve(self.variance), cell_autocovariance(self.covariance), 2 * self.q)

    def deviation(self, filters: Floats) -> Floats:
        """Standard deviation of contrasts of unit noise; `filters` is ``(..., width, n_filters)``."""
        width = filters.shape[-2]
        row = np.zeros(width)
        row[: min(width, self.covariance.shape[0])] = self.covariance[:width]
        variance = np.einsum("...ij,...ij->...j", filters, toeplitz(row) @ filters)
        return np.asarray(np.sqrt(np.maximum(variance, 1e-300)))

    def _scale(self, start: Ints, width: Ints | int) -> Floats:
        variance = (self._sums[start + width] - self._sums[start]) / width
        return np.asarray(np.sqrt(np.maximum(variance, 1e-300)))

    def uncut(self, cells: int) -> Floats:
        """``J1, K1`` of all even windows, at every `stride`, in sd: ``(n_windows, 2)``."""
        filters = _searching(cells, cells, 2 * cells)
        return studentised_contrasts(self.mean, self._sums, filters, self.deviation(filters), stride(cells))

    def windows(self, start: Ints, left: Ints, right: Ints, *, confirm: bool = False) -> tuple[Floats, Floats]:
        """Contrasts of any windows, raw and in sd: ``(n_windows, 2 or 4)`` each."""
        bank = _confirming if confirm else _searching
        width = int((left + right).max())
        code, which = np.unique(left * (4 * _CELLS[-1]) + right, return_inverse=True)
        filters = np.stack([bank(int(c) // (4 * _CELLS[-1]), int(c) % (4 * _CELLS[-1]), width) for c in code])
        deviation = self.deviation(filters)
        at = np.minimum(start[:, None] + np.arange(width), self.mean.shape[0] - 1)  # behind the window the weight is 0
        if code.shape[0] == 1:
            raw = self.mean[at] @ filters[0]
        else:
            raw = np.einsum("ij,ijk->ik", self.mean[at], filters[which])
        return raw, raw / (self._scale(start, left + right)[:, None] * deviation[which])


def stride(cells: int) -> int:
    """Cells between two even windows: an eighth of the scale or less."""
    return 2 if cells >= 16 else 1


def _cut_windows(level: Level, cells: int, edges: list[int], onset: float) -> tuple[Ints, Ints, Ints]:
    """Start, left and right, in cells, of the windows that are cut by a known change, an end, or an onset."""
    q, n_cells = level.q, level.mean.shape[0]
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


def _free(rows: Ints, half: int, edges: list[int], onset: float, q: int) -> NDArray[np.bool_]:
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


def positions(level: Level, cells: int, edges: list[int], onset: float) -> tuple[Ints, Ints, Ints, int]:
    """All windows of one scale: start, left and right in cells, and how many of them are even (these come first)."""
    start = np.arange(0, max(level.mean.shape[0] - 2 * cells + 1, 0), stride(cells))
    start = start[_free((start + cells) * level.q, cells * level.q, edges, onset, level.q * stride(cells))]
    even = np.full(start.shape[0], cells)
    cut = _cut_windows(level, cells, edges, onset)
    return (
        np.concatenate([start, cut[0]]),
        np.concatenate([even, cut[1]]),
        np.concatenate([even, cut[2]]),
        start.shape[0],
    )


def contrasts(level: Level, cells: int, start: Ints, left: Ints, right: Ints, even: int) -> Floats:
    """``J1, K1`` in sd for the windows of `positions`: ``(n_windows, 2)``."""
    z = level.uncut(cells)[start[:even] // stride(cells)]
    if start.shape[0] == even:
        return z
    return np.concatenate([z, level.windows(start[even:], left[even:], right[even:])[1]])


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
    carried = np.ones(2)
    carried_confirm = np.ones(4)
    for level, cells in scales(rows):
        q, half = level.q, cells * level.q
        start, left, right, even = positions(level, cells, edges, onset)
        z = contrasts(level, cells, start, left, right, even)
        if even * q * stride(cells) >= min_windows * 2 * half:
            carried = _measured(z[: even : max(even // 20_000, 1)])
            some = slice(0, even, max(even // 1000, 1))
            carried_confirm = _measured(level.windows(start[some], left[some], right[some], confirm=True)[1])
        z = z / carried
        found: list[Candidate] = []
        for kind, limit in limits.items():
            contrast = z[:, 0 if kind == "level" else 1]
            limit_z = threshold(limit.p_value, n, half, kind)
            at = _peaks(contrast, start + left, cells, limit_z, interior=kind == "slope")
            if at.shape[0]:
                raw, checks = level.windows(start[at], left[at], right[at], confirm=True)
                for i in at[_confirmed(contrast[at], raw, checks / carried_confirm, kind, limit)]:
                    size = float(contrast[i])
                    row, before, after = (int(v[i]) * q for v in (start + left, left, right))
                    found.append(Candidate(row, before, after, half, kind, size, maximum_p_value(size, n, half, kind)))
        for row in (yield found) or ():
            insort(edges, row)


def _measured(z: Floats) -> Floats:
    """Robust standard deviation over positions, at least 1."""
    return np.asarray(np.maximum(np.median(np.abs(z), axis=0) / 0.6745, 1.0))


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
