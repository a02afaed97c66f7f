r"""Intrinsic dimension: how many numbers the rows of a log really vary in.

- Participation ratio of the eigenvalues of the covariance, :math:`(\sum l)^2 / \sum l^2`: *p* for *p* equal directions,
  1 for one. Linear, robust, and about variance: white noise of *n* rows has :math:`p/(1 + p/n)`. **A low value is the
  null for logs**: the leading component of random walks takes 61 % of the variance whatever they are
  (:math:`6/\pi^2 k^2` for component *k*; Antognini & Sohl-Dickstein 2018). So the ratio of the *differences* of
  successive rows stands beside it: walks have *p* there.
- TwoNN (Facco et al. 2017): with :math:`\mu_i` the ratio of the distances to the second and the first neighbour,
  :math:`\log\mu` is exponential with rate *d* where the density is even over two neighbours, and

  .. math:: \hat d = \frac{N - 1}{\sum_i \log \mu_i}, \qquad
            \hat d\, \exp\Bigl(\pm z \sqrt{\textstyle\sum_{i \sim j} \delta_i \delta_j} \Big/ \sum_i \log \mu_i\Bigr)

  with :math:`\delta_i = \log\mu_i - \overline{\log\mu}` and the sum over all pairs of rows of which one is a
  neighbour of the other, themselves included: neighbours share distances, and an interval that takes the ratios for
  independent holds the truth in 87 % of cases instead of 95 %.

  Rows that repeat are dropped first (a distance of 0 is no neighbour). Rows close in time are close in space: a finely
  sampled curve looks one-dimensional. Two neighbours that follow each other in time are one strand met once. Rows are
  therefore thinned until in fewer than 2 % of rows any two of the three (the row and its neighbours) are next in time,
  and `IntrinsicDimension.by_thinning` shows how much that matters. High dimensions come out low (9.4 for a 10-sphere
  of 5,000 points), noise comes out as the number of channels.

The interval of TwoNN is sampling error only, not the bias above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from trajscope._core.linalg import participation_ratio
from trajscope._core.resample import percentile_interval
from trajscope._core.surrogates import as_generator
from trajscope.dynamics._rows import Rows, as_rows, thinned
from trajscope.dynamics.delay import autocorrelation
from trajscope.errors import InputError, NotEnoughData
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["IntrinsicDimension", "TwoNN", "covariance_participation", "intrinsic_dimension", "twonn"]

Floats = NDArray[np.float64]

MAX_TEMPORAL = 0.02
"""Share of rows met with a row next in time (`TwoNN.temporal`), above which rows are thinned further."""
MAX_TIES = 0.1
"""Share of rows with two neighbours at the same distance, above which values are taken to be quantised."""


@dataclass(frozen=True)
class TwoNN:
    """An estimate by two neighbours.

    Attributes
    ----------
    dimension, low, high : float
    n_rows : int
        Distinct rows used.
    n_duplicates : int
        Rows dropped because they repeat another.
    temporal : float
        Share of rows of which, with their two neighbours, any two are next in time.
    ties : float
        Share of rows whose two neighbours are at the same distance.
    """

    dimension: float
    low: float
    high: float
    n_rows: int
    n_duplicates: int
    temporal: float
    ties: float


def twonn(points: ArrayLike, *, level: float = 0.95) -> TwoNN:
    """Dimension of a cloud of points from the ratio of the distances to its two nearest neighbours.

    Parameters
    ----------
    points : array_like, shape (n_points, n_channels)
        In order of time, if they have one.
    level : float, default 0.95

    Raises
    ------
    NotEnoughData
        Fewer than 10 distinct points.

    Examples
    --------
    >>> square = np.random.default_rng(0).uniform(size=(2000, 2))
    >>> found = twonn(square)
    >>> found.low < 2 < found.high
    True
    """
    from scipy.spatial import cKDTree

    x = np.asarray(points, dtype=np.float64)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise InputError(f"points have shape {x.shape}; expected finite (n_points, n_channels).")
    _, first = np.unique(x, axis=0, return_index=True)
    kept = np.sort(first)
    if kept.size < 10:
        raise NotEnoughData(f"{kept.size} distinct rows; at least 10 are needed for two neighbours to mean something.")
    y = x[kept]
    distance, index = (np.asarray(v) for v in cKDTree(y).query(y, k=3))
    good = distance[:, 1] > 0  # underflow of tiny differences
    log_ratio = np.log(distance[good, 2] / distance[good, 1])
    n, total = int(good.sum()), float(log_ratio.sum())
    own, one, two = kept, kept[index[:, 1]], kept[index[:, 2]]
    temporal = float(np.mean((abs(one - own) == 1) | (abs(two - own) == 1) | (abs(one - two) == 1)))
    ties = float(np.mean(log_ratio < 1e-9)) if n else 1.0
    if n < 10 or not total > 0:
        return TwoNN(float("nan"), float("nan"), float("nan"), n, int(x.shape[0] - kept.size), temporal, ties)
    delta = np.zeros(kept.size)
    delta[good] = log_ratio - total / n
    links = np.concatenate([np.column_stack([np.arange(kept.size), index[:, i]]) for i in (1, 2)])
    links = np.unique(np.sort(links, axis=1), axis=0)  # each pair once, whichever is the neighbour of the other
    variance = float(delta @ delta + 2 * (delta[links[:, 0]] @ delta[links[:, 1]]))
    half = float(ndtri((1 + level) / 2)) * np.sqrt(max(variance, float(delta @ delta))) / total
    dimension = (n - 1) / total
    low, high = dimension * np.exp(-half), dimension * np.exp(half)
    return TwoNN(dimension, float(low), float(high), n, int(x.shape[0] - kept.size), temporal, ties)


def covariance_participation(x: ArrayLike) -> float:
    """Participation ratio of the covariance of rows; NaN where nothing varies.

    Examples
    --------
    >>> white = np.random.default_rng(0).normal(size=(1000, 20))
    >>> round(covariance_participation(white), 1)
    19.6
    """
    values = np.asarray(x, dtype=np.float64)
    size = np.linalg.svd(values - values.mean(axis=0), compute_uv=False)
    return participation_ratio(size**2)


@dataclass(frozen=True, eq=False)
class IntrinsicDimension(Result):
    """Two intrinsic dimensions; returned by `intrinsic_dimension`.

    Attributes
    ----------
    participation : (float, float, float)
        Participation ratio and its interval by block bootstrap.
    participation_noise : float
        What white noise of as many rows and channels gives.
    participation_differences : float
        Of the differences of successive rows, each channel in units of their sd.
    twonn : TwoNN or None
    thinning : int
        One in so many complete rows was used for TwoNN.
    by_thinning : tuple of (thinning, TwoNN)
        All that were tried.
    n_rows, n_channels : int
    names : tuple of str
    status : {"ok", "cannot tell"}
        Of TwoNN; the participation ratio stands on its own.
    reason : str
    """

    plot_name = "intrinsic"

    participation: tuple[float, float, float]
    participation_noise: float
    participation_differences: float
    twonn: TwoNN | None
    thinning: int
    by_thinning: tuple[tuple[int, TwoNN], ...] = field(repr=False)
    n_rows: int
    n_channels: int
    names: tuple[str, ...]
    status: str
    reason: str

    def to_frame(self) -> pd.DataFrame:
        """One row a thinning: TwoNN, its interval, rows, share of neighbours next in time."""
        import pandas as pd

        rows = [(t.dimension, t.low, t.high, t.n_rows, t.temporal, t.ties) for _, t in self.by_thinning]
        return pd.DataFrame(
            rows, index=pd.Index([m for m, _ in self.by_thinning], name="thinning"),
            columns=["dimension", "low", "high", "n_rows", "temporal", "ties"],
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        out = {k: v for k, v in super().to_dict().items() if k != "provenance"}
        out["by_thinning"] = [{"thinning": m} | jsonable(t) for m, t in self.by_thinning]
        return out

    def summary(self) -> str:
        """A few sentences."""
        value, low, high = self.participation
        text = (
            f"Participation ratio {value:.2f} [{low:.2f}, {high:.2f}] of {self.n_channels} channels"
            f" ({self.participation_differences:.2f} for differences, {self.participation_noise:.2f} for white noise)."
        )
        if self.status != "ok" or self.twonn is None:
            return f"{text} TwoNN: cannot tell, {self.reason}."
        t = self.twonn
        return (
            f"{text} TwoNN dimension {t.dimension:.2f} [{t.low:.2f}, {t.high:.2f}] from {t.n_rows} distinct rows, one"
            f" in {self.thinning}{self._spread()}."
        )

    def _spread(self) -> str:
        """How the estimate moves with the thinning, over those that leave 100 rows."""
        seen = [t.dimension for m, t in self.by_thinning if t.n_rows >= 100 and m >= self.thinning]
        return f" ({min(seen):.2f} to {max(seen):.2f} over wider thinnings)" if len(seen) > 1 else ""


def intrinsic_dimension(
    source: Any,
    *,
    steps: ArrayLike | None = None,
    channels: Sequence[str] | None = None,
    thinning: int | None = None,
    max_points: int = 5_000,
    n_boot: int = 200,
    level: float = 0.95,
    rng: int | np.random.Generator | None = None,
) -> IntrinsicDimension:
    """Participation ratio and TwoNN of a trajectory or meta-state, in units of each channel's sd.

    Parameters
    ----------
    source, steps, channels
        As in `trajscope.dynamics.rolling_var`.
    thinning : int, optional
        One in so many rows for TwoNN; by default the first of 1, 2, 4, ... at which fewer than 2 % of rows meet a
        row next in time.
    max_points : int, default 5000
        Longer data are thinned evenly first.
    n_boot : int, default 200
        Draws of the block bootstrap (blocks of five correlation times) of the participation ratio.
    level : float, default 0.95
    rng : int or Generator, default 0

    Returns
    -------
    IntrinsicDimension
        "cannot tell" for TwoNN where too few distinct rows are left, or values are quantised.

    Raises
    ------
    NotEnoughData
        Fewer than 10 complete rows, or no channel that varies.

    Examples
    --------
    >>> angle = np.random.default_rng(0).uniform(0, 6.28, 1000)
    >>> ring = np.column_stack([np.cos(angle), np.sin(angle), 0 * angle])
    >>> found = intrinsic_dimension(ring)
    >>> round(found.twonn.dimension, 1), round(found.participation[0], 1)
    (1.0, 2.0)
    """
    if (thinning is not None and thinning < 1) or max_points < 20 or n_boot < 0 or not 0 < level < 1:
        raise InputError(
            f"options out of range: thinning {thinning} >= 1, max_points {max_points} >= 20, n_boot {n_boot} >= 0,"
            f" 0 < level {level} < 1."
        )
    generator = as_generator(rng)
    rows, before = thinned(as_rows(source, steps, channels), max_points)
    n = len(rows)
    if n < 10:
        raise NotEnoughData(f"{n} complete rows; at least 10 are needed.")
    sd = rows.x.std(axis=0)
    moving = sd > 1e-12 * np.abs(rows.x).max(axis=0)
    if not moving.any():
        raise NotEnoughData("no channel varies; a dimension needs something that moves.")
    x = rows.x[:, moving] / sd[moving]
    p = x.shape[1]
    tried: list[tuple[int, TwoNN]] = []
    every = thinning or 1
    while n // every >= 10:
        try:
            tried.append((every * before, twonn(x[::every], level=level)))
        except NotEnoughData:
            break
        if thinning is not None or n // (2 * every) < 50:
            break
        every *= 2
    chosen = _choose(tried, thinning)
    reason = ""
    if chosen is None:
        least = min((t.temporal for _, t in tried), default=1.0)
        reason = (
            f"at every thinning tried {least:.0%} of rows or more meet a row next in time; more rows are needed"
            if tried
            else "fewer than 10 distinct rows are left"
        )
    elif np.isnan(chosen[1].dimension) or chosen[1].ties > MAX_TIES:
        reason = f"values are quantised: {chosen[1].ties:.0%} of rows have two neighbours at the same distance"
    steps_apart = np.diff(x, axis=0)[rows.linked[1:]]
    if len(steps_apart) > 1:
        spread = steps_apart.std(axis=0)
        steps_apart = steps_apart / np.where(spread > 0, spread, 1.0)
    return IntrinsicDimension(
        (covariance_participation(x), *_boot(x, rows, n_boot, level, generator)), p / (1 + p / n),
        covariance_participation(steps_apart) if len(steps_apart) > 1 else float("nan"),
        None if chosen is None else chosen[1], chosen[0] if chosen else 0, tuple(tried), n, p,
        tuple(c for c, m in zip(rows.names, moving, strict=True) if m), "cannot tell" if reason else "ok", reason,
        provenance=make_provenance(
            "intrinsic_dimension",
            {
                "channels": rows.names, "thinning": thinning, "max_points": max_points, "n_boot": n_boot,
                "level": level,
            },
            rows.x, rows.steps, seed=rng if isinstance(rng, int) else None if rng is not None else 0,
        ),
    )  # fmt: skip


def _choose(tried: list[tuple[int, TwoNN]], thinning: int | None) -> tuple[int, TwoNN] | None:
    if thinning is not None:
        return tried[0] if tried else None
    return next((found for found in tried if found[1].temporal < MAX_TEMPORAL), None)


def _boot(x: Floats, rows: Rows, n_boot: int, level: float, rng: np.random.Generator) -> tuple[float, float]:
    """Interval of the participation ratio by circular blocks."""
    n = x.shape[0]
    if not n_boot:
        return float("nan"), float("nan")
    below = [np.flatnonzero(autocorrelation(c, min(n // 10, 200), rows.linked) < 1 / np.e) for c in x.T]
    memory = max(int(b[0]) if b.size else n // 10 for b in below)
    block = int(np.clip(5 * max(memory, 1), 1, n))
    count = -(-n // block)
    draws = []
    for _ in range(n_boot):
        at = (rng.integers(0, n, count)[:, None] + np.arange(block)).ravel()[:n] % n
        z = x[at] - x[at].mean(axis=0)
        draws.append(participation_ratio(np.linalg.eigvalsh(z.T @ z)))
    # mirrored: draws are biased low, as the estimate is
    low, high = percentile_interval(draws, level)
    centre, p = covariance_participation(x), float(x.shape[1])
    return float(np.clip(2 * centre - high, 1.0, p)), float(np.clip(2 * centre - low, 1.0, p))
