"""Where a level or a slope breaks: contrasts at all positions and scales, checked against smooth curves.

At scale ``m`` (rows on each side; a grid of ratio ``sqrt 2``) and position ``s`` two least-squares coefficients are formed on
``y[s-m : s+m]``: the step at ``s`` beside a line, ``J1``, and the kink at ``s`` beside a line, ``K1``. Their noise is known from the
autocorrelation and the local scale (`noise`), and where a scale holds enough independent windows it is also measured, as the
MAD over positions; the larger counts. So periodic waves and long memory raise the bar instead of raising alarms.

A line is not what a training curve is. A smooth curve ``f`` also moves ``J1`` (by ``m^3 f'''``) and ``K1`` (by ``m f''``), so each must be
confirmed by what a smooth curve cannot fake:

* ``J3``: the step beside a cubic, at the same scale and at half of it. A step has the same ``J3`` at both, a curve has
  ``m^5`` times its fifth derivative: 1/32 of it at half the scale.
* ``K2``: the kink beside a parabola, same sign as ``K1``. A completely monotone curve (sums of decaying exponentials, power laws:
  all even derivatives of one sign) has a ``K2`` of the opposite sign, since the kink has a negative and such a curve a positive
  fourth Legendre coefficient.

``p(z) = min(1, c (n/m) z phi(z))``, the tail of the maximum of a locally linear Gaussian process (Pickands 1969 for the form), Bonferroni
over scales and kinds.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajscope._core.cells import cell_autocovariance, halve, quadratic_form, sliding_contrasts, window_filter
from trajscope.detect.changepoints.noise import Noise

__all__ = ["Candidate", "Scale", "candidates", "maximum_p_value", "n_scales", "scan_scales"]

Floats = NDArray[np.float64]
_CELLS = (16, 23)
_SMALL = (8, 11)
_PICKANDS = {"level": 3.0, "slope": 3.0}


@dataclass(frozen=True)
class Candidate:
    """A place where one contrast at one scale passed: row, rows on each side, kind, contrast in sd, p-value."""

    row: int
    half: int
    kind: str
    z: float
    p_value: float


@dataclass(frozen=True, eq=False)
class Scale:
    """All contrasts of one scale.

    Attributes
    ----------
    half : int
        Rows on each side, ``m``.
    rows : ndarray of int, (n_positions,)
        Positions ``s`` (first row of the right side).
    level, slope : ndarray, (n_positions,)
        ``J1`` and ``K1`` in standard deviations.
    step, half_step, bend : ndarray, (n_positions,)
        ``J3`` at the scale, ``J3`` at half of it, ``K2``, in standard deviations.
    ratio, bend_ratio : ndarray, (n_positions,)
        ``J3`` and ``K2`` at half the scale over their values at the scale: 1 for a change, 1/32 and 1/8 for a curve.
    """

    half: int
    rows: NDArray[np.int64]
    level: Floats
    slope: Floats
    step: Floats
    half_step: Floats
    bend: Floats
    ratio: Floats
    bend_ratio: Floats


def _filters(cells: int) -> Floats:
    inner = cells // 2
    half = np.zeros(2 * cells)
    half[cells - inner : cells + inner] = window_filter(inner, 3 if inner >= 6 else 1, "step")
    bend = np.zeros(2 * cells)
    bend[cells - inner : cells + inner] = window_filter(inner, 2, "kink")
    return np.column_stack(
        [
            window_filter(cells, 1, "step"),
            window_filter(cells, 1, "kink"),
            window_filter(cells, 3, "step"),
            half,
            window_filter(cells, 2, "kink"),
            bend,
        ]
    )


def scan_scales(
    y: Floats, noise: Noise, blocked: NDArray[np.int64] | None = None, *, min_windows: int = 12
) -> Generator[Scale, list[int] | None, None]:
    """Contrasts of a series, one scale at a time, narrowest first, in standard deviations.

    Parameters
    ----------
    y : ndarray, (n,)
        Clipped values, no gaps.
    noise : Noise
    blocked : ndarray of int, optional
        Sorted rows of known changes: a window that holds one in its inside is left out, of the measured noise too.
        Rows sent into the generator after a scale are added.
    min_windows : int
        Fewest independent windows for the noise of a scale to be measured as the MAD over positions.
    """
    level = y - np.median(y)
    variance = np.square(noise.sd)
    covariance = noise.autocorrelation
    known: list[int] = [] if blocked is None else [int(v) for v in blocked]
    q = 1
    carried = np.ones(6)
    while level.shape[0] >= 2 * _SMALL[0]:
        for cells in (_SMALL + _CELLS) if q == 1 else _CELLS:
            if level.shape[0] < 2 * cells:
                continue
            filters = _filters(cells)
            z = sliding_contrasts(level, filters)
            rows = (np.arange(z.shape[0]) + cells) * q
            sd = np.sqrt(np.maximum(sliding_contrasts(variance, np.full((2 * cells, 1), 0.5 / cells)), 1e-300))
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where(z[:, 2] != 0, z[:, 3] / z[:, 2], 0.0)
                bend_ratio = np.where(z[:, 4] != 0, z[:, 5] / z[:, 4], 0.0)
            z /= sd * np.sqrt([quadratic_form(f, covariance) for f in filters.T])
            free = np.ones(rows.shape[0], dtype=bool)
            half = cells * q
            for row in known:
                free[max((row - half) // q + 1 - cells, 0) : max(-(-(row + half) // q) - cells, 0)] = False
            count = int(free.sum())
            if count * q >= min_windows * 2 * half:
                sample = z[free][:: max(count // 20_000, 1)]
                carried = np.maximum(np.median(np.abs(sample), axis=0) / 0.6745, 1.0)
            z /= carried
            z[~free] = 0.0
            found = yield Scale(half, rows, z[:, 0], z[:, 1], z[:, 2], z[:, 3], z[:, 4], ratio, bend_ratio)
            known.extend(found or ())
        level, variance, covariance = halve(level), halve(variance), cell_autocovariance(covariance)
        q *= 2


def n_scales(n: int) -> int:
    """Number of scales that `scan_scales` visits in a series of `n` rows."""
    count, level = 0, n
    q = 1
    while level >= 2 * _SMALL[0]:
        count += sum(level >= 2 * cells for cells in ((_SMALL + _CELLS) if q == 1 else _CELLS))
        level, q = level // 2, 2 * q
    return count


def maximum_p_value(z: float, n: int, half: int, kind: str) -> float:
    """P-value of the largest of ``|z|`` over the positions of one scale in a series of `n` rows."""
    z = max(abs(z), 1.0)
    tail = _PICKANDS.get(kind, 3.0) * (n / half) * z * math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return min(1.0, max(tail, math.erfc(z / math.sqrt(2))))


def _threshold(p: float, n: int, half: int, kind: str) -> float:
    """The ``z`` at which `maximum_p_value` equals `p` (bisection; it falls with z above 1)."""
    low, high = 1.0, 37.0
    for _ in range(40):
        mid = 0.5 * (low + high)
        if maximum_p_value(mid, n, half, kind) > p:
            low = mid
        else:
            high = mid
    return high


def candidates(
    scale: Scale,
    n: int,
    p_limit: float,
    kind: str,
    *,
    confirm: float = 2.5,
    confirm_half: float = 1.5,
    min_ratio: float = 0.4,
) -> list[Candidate]:
    """Local maxima of one scale that pass `p_limit` (not yet corrected for scales) and are confirmed."""
    z = scale.level if kind == "level" else scale.slope
    if z.shape[0] == 0:
        return []
    threshold = _threshold(p_limit, n, scale.half, kind)
    size = np.abs(z)
    ok = size > threshold
    if not ok.any():
        return []
    sign = np.sign(z)
    if kind == "level":
        ok &= (sign * scale.step > confirm) & (sign * scale.half_step > confirm_half) & (scale.ratio > min_ratio)
    else:
        ok &= (sign * scale.bend > confirm) & (scale.bend_ratio > 0.5 * min_ratio)
    found = []
    index = np.flatnonzero(ok)
    order = index[np.argsort(-size[index], kind="stable")]
    taken = np.zeros(z.shape[0], dtype=bool)
    reach = int(scale.half // max(int(scale.rows[1] - scale.rows[0]), 1)) if z.shape[0] > 1 else 1
    for i in order:
        if taken[i]:
            continue
        taken[max(i - reach, 0) : i + reach + 1] = True
        p = maximum_p_value(float(z[i]), n, scale.half, kind)
        found.append(Candidate(int(scale.rows[i]), scale.half, kind, float(z[i]), p))
    return found
