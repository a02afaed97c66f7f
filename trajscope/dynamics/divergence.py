r"""Largest Lyapunov exponent from data: the curve of divergence, its straight part, and a refusal where there is none.

Rosenstein, Collins & De Luca (1993): every delay vector is followed together with its nearest neighbour (more than a
Theiler window away in time), and

.. math:: S(k) = \operatorname{mean}_i \log |X_{i+k} - X_{j(i)+k}|

rises with slope :math:`\lambda` per row where trajectories part exponentially. The exponent is worth what the straight
part is worth, so a region is taken only if

- it has at least five points, is longer than three Theiler windows (in the first rows pairs turn towards the unstable
  direction, and S rises faster than it should), and S rises over it by one unit or more;
- a line explains at least 99 % of S in it, and the slopes of its four quarters differ by no more than a fifth of it;
- S rises no more before it than in it: where noise sets the first distances, they jump;
- the interval of the slope reaches no further than half of it.

These constants were chosen on the logistic, Henon, Lorenz and Roessler systems and on noise, and no log.

Otherwise: "cannot tell". Noise jumps at k = 1 and stays; a random walk rises as :math:`\tfrac12 \log k`, whose slope
halves where k doubles; an autoregression saturates; a periodic signal does not rise. Of the regions that pass
the longest in rise counts. Data-driven exponents depend on dimension and delay more than on anything else: the curve is
part of the result. Per row; per step divide by the stride, per unit of time by the sampling step as well (to compare
with a published 0.906 of Lorenz, give ``dt``).

The interval reflects sampling alone (the curve of ten blocks of starting points), not the choice of embedding or
region.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student

from trajscope.dynamics._rows import as_rows
from trajscope.dynamics.delay import autocorrelation, embed, nearest_neighbours
from trajscope.errors import InputError
from trajscope.result import Result, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Lyapunov", "divergence_curves", "linear_region", "lyapunov"]

Floats = NDArray[np.float64]

BLOCKS = 10
MIN_RISE, MIN_R2, MAX_BEND, MIN_POINTS = 1.0, 0.99, 0.2, 5


def divergence_curves(
    vectors: Floats, place: NDArray[np.int64], horizon: int, theiler: int, blocks: int = BLOCKS
) -> tuple[Floats, Floats]:
    """Mean log distance of pairs that began as nearest neighbours, block of starting points by block.

    Parameters
    ----------
    vectors : ndarray, shape (n_vectors, dimension)
    place : ndarray of int, shape (n_vectors,)
        Ascending positions in time; vectors that follow each other differ by one.
    horizon, theiler : int
    blocks : int
        Contiguous blocks of starting points.

    Returns
    -------
    curves : ndarray, shape (blocks, horizon + 1)
        NaN where a block has no pair.
    counts : ndarray, shape (blocks, horizon + 1)
        Pairs behind each value.
    """
    n = vectors.shape[0]
    # only vectors that can be followed to the horizon, so that every k averages over the same pairs
    usable = np.zeros(n, dtype=bool)
    if n > horizon:
        usable[: n - horizon] = place[horizon:] - place[: n - horizon] == horizon
    curves, counts = np.full((blocks, horizon + 1), np.nan), np.zeros((blocks, horizon + 1))
    if not usable.any():
        return curves, counts
    index, _ = nearest_neighbours(vectors, place, theiler, usable)
    start = np.flatnonzero(usable & (index >= 0))
    other = index[start]
    block = np.arange(start.size) * blocks // max(start.size, 1)
    for k in range(horizon + 1):
        d = np.linalg.norm(vectors[start + k] - vectors[other + k], axis=1)
        some = d > 0
        counts[:, k] = np.bincount(block[some], minlength=blocks)
        total = np.bincount(block[some], np.log(d[some]), minlength=blocks)
        np.divide(total, counts[:, k], out=curves[:, k], where=counts[:, k] > 0)
    return curves, counts


def _slopes(s: Floats, a: NDArray[np.intp], b: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Least-squares slopes and R^2 of ``s`` over the stretches a to b, both ends included, from running sums."""
    k = np.arange(s.size, dtype=np.float64)
    z = s - s.mean()
    total = [np.concatenate([[0.0], np.cumsum(v)]) for v in (z, z * z, k * z)]
    n = (b - a + 1).astype(np.float64)
    sz, szz, skz = (v[b + 1] - v[a] for v in total)
    middle = (a + b) / 2
    cross = skz - middle * sz
    skk = n * (n * n - 1) / 12
    spread = szz - sz * sz / n
    slope = cross / skk
    return slope, np.divide(slope * cross, spread, out=np.zeros(n.size), where=spread > 0)


def linear_region(
    curve: ArrayLike,
    *,
    min_points: int = MIN_POINTS,
    min_rise: float = MIN_RISE,
    min_r2: float = MIN_R2,
    max_bend: float = MAX_BEND,
) -> tuple[int, int, float, float] | None:
    """Straight rising stretch of a divergence curve.

    Returns
    -------
    (first, last, slope, r2) or None
        Of the stretches that pass (module docstring) the one that rises most; ``last`` is included.

    Examples
    --------
    >>> linear_region(np.minimum(0.5 * np.arange(12), 4.0))[:2]
    (0, 8)
    >>> linear_region(0.5 * np.log1p(np.arange(50.0))) is None
    True
    """
    s = np.asarray(curve, dtype=np.float64)
    known = np.flatnonzero(~np.isfinite(s))
    s = s[: known[0]] if known.size else s
    if s.size < min_points:
        return None
    a, b = np.triu_indices(s.size, min_points - 1)
    rise = s[b] - s[a]
    worth = (rise >= min_rise) & (s[a] - s[0] <= rise)
    a, b, rise = a[worth], b[worth], rise[worth]
    if not a.size:
        return None
    slope, r2 = _slopes(s, a, b)
    parts = [_slopes(s, a + (b - a) * i // 4, a + (b - a) * (i + 1) // 4)[0] for i in range(4)]
    bend = (np.max(parts, axis=0) - np.min(parts, axis=0)) / np.where(slope > 0, slope, np.nan)
    good = np.flatnonzero((r2 >= min_r2) & (bend <= max_bend))
    if not good.size:
        return None
    best = good[np.argmax(rise[good])]
    return int(a[best]), int(b[best]), float(slope[best]), float(r2[best])


@dataclass(frozen=True, eq=False)
class Lyapunov(Result):
    """Largest exponent from data; returned by `lyapunov`.

    Attributes
    ----------
    exponent, low, high : float
        Per row, natural logarithm; NaN where it cannot be told.
    per_step : float
        ``exponent`` over the steps between rows.
    per_time : float
        ``exponent`` over ``dt`` and the stride; NaN without ``dt``.
    curve : ndarray, shape (horizon + 1,)
        Mean log distance after k rows.
    region : (int, int) or None
        First and last k of the straight part.
    r2 : float
    dimension, delay, theiler : int
        In rows.
    stride : float
    n_pairs : int
    names : tuple of str
    status : {"ok", "cannot tell"}
    reason : str
    """

    plot_name = "divergence"

    exponent: float
    low: float
    high: float
    per_step: float
    per_time: float
    curve: Floats = field(repr=False)
    region: tuple[int, int] | None
    r2: float
    dimension: int
    delay: int
    theiler: int
    stride: float
    n_pairs: int
    names: tuple[str, ...]
    status: str
    reason: str

    def to_frame(self) -> pd.DataFrame:
        """One row a k: the curve, and whether it lies in the straight part."""
        import pandas as pd

        k = np.arange(self.curve.size)
        inside = np.zeros(k.size, dtype=bool) if self.region is None else (k >= self.region[0]) & (k <= self.region[1])
        return pd.DataFrame({"log_distance": self.curve, "linear": inside}, index=pd.Index(k, name="rows"))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {k: v for k, v in super().to_dict().items() if k != "provenance"}

    def summary(self) -> str:
        """One sentence."""
        if self.status != "ok" or self.region is None:
            return f"Largest Lyapunov exponent: cannot tell, {self.reason}."
        time = "" if math.isnan(self.per_time) else f", {self.per_time:.4g} per unit of time"
        return (
            f"Largest Lyapunov exponent {self.exponent:.4g} [{self.low:.4g}, {self.high:.4g}] per row"
            f" ({self.per_step:.4g} per step{time}), from rows {self.region[0]} to {self.region[1]} of the divergence"
            f" curve (R^2 {self.r2:.3f}, dimension {self.dimension}, delay {self.delay})."
        )


def lyapunov(
    source: Any,
    *,
    dimension: int = 2,
    delay: int = 1,
    theiler: int | None = None,
    horizon: int | None = None,
    dt: float | None = None,
    steps: ArrayLike | None = None,
    channels: Sequence[str] | None = None,
    max_points: int = 5_000,
    level: float = 0.95,
) -> Lyapunov:
    """Largest Lyapunov exponent by Rosenstein's method, or "cannot tell".

    Parameters
    ----------
    source, steps, channels
        As in `trajscope.dynamics.rolling_var`. One channel is embedded; several are taken as the state, in units of
        their sd, and ``dimension`` and ``delay`` do not matter.
    dimension, delay : int, default 2 and 1
        Embedding of one channel, in rows; see `delay_embedding`.
    theiler : int, optional
        Neighbours lie more than so many rows apart; by default the first lag at which the autocorrelation of every
        channel has been below 1/e, and not less than the span of a delay vector.
    horizon : int, optional
        Rows over which pairs are followed; by default 15 times ``theiler``, at least 30 and at most a quarter of the
        rows and 500.
    dt : float, optional
        Time per step, for ``per_time``.
    max_points : int, default 5000
        The last so many rows are used.
    level : float, default 0.95
        Coverage of the interval.

    Returns
    -------
    Lyapunov

    Examples
    --------
    >>> x = [0.3]
    >>> for _ in range(1999):
    ...     x.append(4 * x[-1] * (1 - x[-1]))
    >>> bool(abs(lyapunov(x).exponent - np.log(2)) < 0.05)
    True
    >>> lyapunov(np.random.default_rng(0).normal(size=1000)).status
    'cannot tell'
    """
    if dimension < 1 or delay < 1 or (theiler is not None and theiler < 0) or max_points < 50 or not 0 < level < 1:
        raise InputError(
            f"options out of range: dimension {dimension} >= 1, delay {delay} >= 1, theiler {theiler} >= 0,"
            f" max_points {max_points} >= 50, 0 < level {level} < 1."
        )
    if (horizon is not None and horizon < MIN_POINTS) or (dt is not None and not dt > 0):
        raise InputError(f"horizon is {horizon} and dt {dt}; expected at least {MIN_POINTS} rows and a positive time.")
    rows = as_rows(source, steps, channels)
    if len(rows) > max_points:
        rows = rows.select(np.arange(len(rows) - max_points, len(rows)))
    n, k = rows.x.shape
    sd = rows.x.std(axis=0) if n else np.ones(k)
    moving = bool((sd > 1e-12 * np.maximum(1e-300, np.abs(rows.x).max(axis=0, initial=0.0))).all()) if n else False
    reason = ""
    if n < 50:
        reason = f"{n} complete rows, at least 50 are needed"
    elif not moving:
        reason = f"channel {rows.names[int(np.argmin(sd))]!r} does not vary"
    span = (dimension - 1) * delay if k == 1 else 0
    if theiler is None:
        theiler = max(1, span)
        if not reason:
            for c in rows.x.T:
                found = np.flatnonzero(autocorrelation(c, min(n // 10, 200), rows.linked) < 1 / np.e)
                theiler = max(theiler, int(found[0]) if found.size else n // 10)
    reach = horizon or int(np.clip(15 * theiler, 30, max(30, min(n // 4, 500))))
    curve, counts = np.full(reach + 1, np.nan), np.zeros((BLOCKS, reach + 1))
    curves = np.full((BLOCKS, reach + 1), np.nan)
    region = None
    if not reason:
        place = rows.position()
        if k == 1:
            vectors, at = embed(rows.x[:, 0], dimension, delay, rows.linked)
        else:
            vectors, at = rows.x / sd, np.arange(n)
        curves, counts = divergence_curves(vectors, place[at], reach, theiler)
        weight = counts.sum(axis=0)
        np.divide(np.nansum(curves * counts, axis=0), weight, out=curve, where=weight > 0)
        if counts[:, 0].sum() < 20:
            reason = "fewer than 20 pairs of neighbours can be followed (short, repeated values, or gaps)"
        else:
            region = linear_region(curve, min_points=max(MIN_POINTS, 3 * theiler + 1))
            if region is None:
                reason = "the divergence curve has no straight rising part"
    exponent = low = high = r2 = math.nan
    if region is not None:
        low, high = _interval(curves, counts, region, level)
        if high - low > region[2]:
            reason, region, low, high = (
                "the slope is not known to half of itself; more rows are needed",
                None,
                math.nan,
                math.nan,
            )
        else:
            exponent, r2 = region[2], region[3]
    return Lyapunov(
        exponent, low, high, exponent / rows.stride, exponent / rows.stride / dt if dt else math.nan, curve,
        None if region is None else (region[0], region[1]), r2, dimension if k == 1 else k, delay if k == 1 else 0,
        theiler, rows.stride, int(counts[:, 0].sum()), rows.names, "cannot tell" if reason else "ok", reason,
        provenance=make_provenance(
            "lyapunov",
            {
                "dimension": dimension, "delay": delay, "theiler": theiler, "horizon": reach, "dt": dt,
                "channels": rows.names, "max_points": max_points, "level": level,
            },
            rows.x, rows.steps,
        ),
    )  # fmt: skip


def _interval(
    curves: Floats, counts: Floats, region: tuple[int, int, float, float], level: float
) -> tuple[float, float]:
    """Student interval from the slopes of the blocks."""
    a, b, slope, _ = region
    at = np.arange(a, b + 1, dtype=np.float64)
    whole = np.isfinite(curves[:, a : b + 1]).all(axis=1) & (counts[:, a] > 0)
    if whole.sum() < 3:
        return math.nan, math.nan
    centred = at - at.mean()
    slopes = curves[whole, a : b + 1] @ centred / float(centred @ centred)
    half = float(student.ppf((1 + level) / 2, slopes.size - 1)) * slopes.std(ddof=1) / math.sqrt(slopes.size)
    return slope - half, slope + half
