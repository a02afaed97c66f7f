r"""Delay embedding: a state made of one channel's own past, and how to choose delay and dimension.

.. math:: X_t = (x_t, x_{t-\tau}, \dots, x_{t-(E-1)\tau})

reconstructs a deterministic system of which one channel is seen (Takens 1981). Rows on either side of a gap or of a
segment boundary are never joined.

- Delay: the first minimum of the mutual information between :math:`x_t` and :math:`x_{t-\tau}` (Fraser & Swinney
  1986; histogram with bins of equal count), or the first lag at which the autocorrelation falls below 1/e.
- Dimension by Cao (1997): with :math:`a(i, E)` the growth of the distance (maximum norm) of nearest neighbours when one
  coordinate is added, :math:`E_1(E) = \overline{a(i, E+1)} / \overline{a(i, E)}` stops changing at the dimension, and
  :math:`E_2(E)`, the same of the added coordinate alone, is 1 at every E for noise: then no dimension is given.
- Dimension by false nearest neighbours (Kennel et al. 1992): share of neighbours that the added coordinate moves apart
  by more than ``ratio`` times their distance, or by more than twice the sd of the channel.

Neither choice is an estimate of anything: `DelayEmbedding.sensitivity` gives the dimensions at half and twice the
delay, and a result that depends on the delay is to be reported as that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope.dynamics._rows import as_rows
from trajscope.errors import InputError
from trajscope.result import Result, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "DelayEmbedding",
    "autocorrelation",
    "cao",
    "delay_embedding",
    "embed",
    "false_neighbours",
    "mutual_information",
    "nearest_neighbours",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

MIN_ROWS = 100
FEW_FALSE = 0.05
"""Share of false neighbours from which on a dimension is enough; noise in the channel keeps it from reaching 0."""


def _series(x: ArrayLike) -> Floats:
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1:
        raise InputError(f"x has shape {values.shape}; expected one channel, (n_steps,).")
    return values


def embed(x: ArrayLike, dimension: int, delay: int = 1, linked: NDArray[np.bool_] | None = None) -> tuple[Floats, Ints]:
    """Delay vectors and the rows they are stamped at (their latest).

    Parameters
    ----------
    x : array_like, shape (n_steps,)
        Rows with NaN make no vector.
    dimension, delay : int
    linked : ndarray of bool, shape (n_steps,), optional
        Whether row *t* follows row *t - 1*; vectors never reach over a break.

    Returns
    -------
    vectors : ndarray, shape (n_vectors, dimension)
        Column 0 is the latest.
    rows : ndarray of int, shape (n_vectors,)

    Examples
    --------
    >>> vectors, rows = embed([0.0, 1.0, 2.0, 3.0], 2, 2)
    >>> vectors.tolist(), rows.tolist()
    ([[2.0, 0.0], [3.0, 1.0]], [2, 3])
    """
    values = _series(x)
    if dimension < 1 or delay < 1:
        raise InputError(f"dimension is {dimension} and delay {delay}; expected at least 1.")
    n, span = values.size, (dimension - 1) * delay
    if n <= span:
        return np.empty((0, dimension)), np.empty(0, dtype=np.intp)
    rows = np.arange(span, n)
    vectors = np.column_stack([values[rows - i * delay] for i in range(dimension)])
    good = np.isfinite(vectors).all(axis=1)
    if linked is not None and span:
        breaks = np.concatenate([[0], np.cumsum(~np.asarray(linked, dtype=bool))])
        good &= breaks[rows + 1] == breaks[rows - span + 1]
    return vectors[good], rows[good]


def autocorrelation(x: ArrayLike, n_lags: int, linked: NDArray[np.bool_] | None = None) -> Floats:
    """Autocorrelation at lags 0 to ``n_lags`` over linked pairs, about the overall mean.

    Examples
    --------
    >>> autocorrelation([1.0, -1.0] * 50, 2).round(9).tolist()
    [1.0, -1.0, 1.0]
    """
    values = _series(x)
    z = values - np.nanmean(values)
    variance = float(np.nanmean(z**2))
    out = np.full(n_lags + 1, np.nan)
    for lag in range(n_lags + 1):
        pairs, _ = embed(z, 2, lag, linked) if lag else (np.column_stack([z, z])[np.isfinite(z)], None)
        if len(pairs) > 2 and variance > 0:
            out[lag] = float(np.mean(pairs[:, 0] * pairs[:, 1])) / variance
    return out


def mutual_information(x: ArrayLike, n_lags: int, linked: NDArray[np.bool_] | None = None) -> Floats:
    """Mutual information in nats of x_t and x_{t-lag} for lags 1 to ``n_lags``; entry 0 is NaN.

    Histogram of ranks with :math:`\\lceil (n/5)^{1/3} \\rceil` bins a side, at least 4 and at most 64; the bias of the
    first order, :math:`(b-1)^2 / 2n`, is taken off.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(size=2000)
    >>> bool(abs(mutual_information(noise, 1)[1]) < 0.02)
    True
    """
    values = _series(x)
    known = np.isfinite(values)
    n = int(known.sum())
    out = np.full(n_lags + 1, np.nan)
    if n < 20:
        return out
    bins = int(np.clip(np.ceil((n / 5) ** (1 / 3)), 4, 64))
    rank = np.full(values.size, np.nan)
    # equal values share a bin: ranks of the sorted distinct values' first occurrence
    ordered = np.sort(values[known])
    rank[known] = np.searchsorted(ordered, values[known]) * bins // n
    for lag in range(1, n_lags + 1):
        pairs, _ = embed(rank, 2, lag, linked)
        if len(pairs) < 20:
            continue
        code = pairs.astype(np.int64)
        joint = np.bincount(code[:, 0] * bins + code[:, 1], minlength=bins * bins).reshape(bins, bins) / len(pairs)
        product = joint.sum(axis=1)[:, None] * joint.sum(axis=0)[None]
        full = joint > 0
        out[lag] = float(np.sum(joint[full] * np.log(joint[full] / product[full]))) - (bins - 1) ** 2 / (2 * len(pairs))
    return out


def nearest_neighbours(
    vectors: Floats, place: NDArray[np.int64], theiler: int, usable: NDArray[np.bool_], metric: str = "euclidean"
) -> tuple[Ints, Floats]:
    """Nearest usable neighbour of every vector more than ``theiler`` rows away, tile by tile; -1 where there is none.

    Vectors at distance 0 are no neighbours: repeated values say nothing about divergence.
    """
    from scipy.spatial.distance import cdist

    n = vectors.shape[0]
    index, distance = np.full(n, -1, dtype=np.intp), np.full(n, np.inf)
    tile = max(1, (1 << 21) // max(n, 1))
    for start in range(0, n, tile):
        stop = min(start + tile, n)
        d = np.asarray(cdist(vectors[start:stop], vectors, metric))  # type: ignore[call-overload]
        d[:, ~usable] = np.inf
        d[d == 0] = np.inf
        # `place` ascends: what is too near in time is one stretch of columns
        low = np.searchsorted(place, place[start:stop] - theiler)
        high = np.searchsorted(place, place[start:stop] + theiler, side="right")
        for i in range(stop - start):
            d[i, low[i] : high[i]] = np.inf
        best = d.argmin(axis=1)
        distance[start:stop] = d[np.arange(stop - start), best]
        index[start:stop] = np.where(np.isfinite(distance[start:stop]), best, -1)
    return index, distance


def _neighbour_growth(
    x: Floats, dimension: int, delay: int, linked: NDArray[np.bool_] | None, theiler: int, metric: str
) -> tuple[Floats, Floats]:
    """Distances of nearest neighbours in ``dimension`` coordinates, and of the coordinate that comes next in time.

    The past would not do: a map need not be invertible, and two pasts may lead to one present.
    """
    longer, rows = embed(x, dimension + 1, delay, linked)
    if len(rows) < 10:
        return np.empty(0), np.empty(0)
    vectors = longer[:, 1:]
    index, distance = nearest_neighbours(vectors, rows.astype(np.int64), theiler, np.ones(len(rows), bool), metric)
    found = index >= 0
    return distance[found], np.abs(longer[found, 0] - longer[index[found], 0])


def cao(
    x: ArrayLike, most: int, delay: int, linked: NDArray[np.bool_] | None = None, theiler: int = 0
) -> tuple[Floats, Floats]:
    """Cao's E1 and E2 for dimensions 1 to ``most``; entry 0 is NaN.

    Examples
    --------
    >>> e1, e2 = cao(np.sin(0.3 * np.arange(500)), 3, 5)
    >>> e1.shape
    (4,)
    """
    values = _series(x)
    growth, added = np.full(most + 2, np.nan), np.full(most + 2, np.nan)
    for e in range(1, most + 2):
        distance, step = _neighbour_growth(values, e, delay, linked, theiler, "chebyshev")
        if distance.size:
            growth[e], added[e] = float(np.mean(np.maximum(distance, step) / distance)), float(np.mean(step))
    with np.errstate(invalid="ignore", divide="ignore"):
        e1, e2 = growth[1:] / growth[:-1], added[1:] / added[:-1]
    return e1, e2


def false_neighbours(
    x: ArrayLike,
    most: int,
    delay: int,
    linked: NDArray[np.bool_] | None = None,
    theiler: int = 0,
    ratio: float = 10.0,
) -> Floats:
    """Share of false nearest neighbours in dimensions 1 to ``most``; entry 0 is NaN.

    Examples
    --------
    >>> bool(false_neighbours(np.sin(0.3 * np.arange(500)), 2, 5)[2] < 0.05)
    True
    """
    values = _series(x)
    out = np.full(most + 1, np.nan)
    spread = float(np.nanstd(values))
    for e in range(1, most + 1):
        distance, step = _neighbour_growth(values, e, delay, linked, theiler, "euclidean")
        if distance.size:
            out[e] = float(np.mean((step > ratio * distance) | (np.hypot(step, distance) > 2 * spread)))
    return out


@dataclass(frozen=True, eq=False)
class DelayEmbedding(Result):
    """A choice of delay and dimension; returned by `delay_embedding`.

    Attributes
    ----------
    delay : int
        In rows; 0 where none was found.
    dimension : int
        0 where none was found.
    delay_information, delay_correlation : int or None
        Delays by the two rules.
    dimension_cao, dimension_neighbours : int or None
        Dimensions by the two rules, at ``delay``.
    information, correlation : ndarray, shape (n_lags + 1,)
    e1, e2, false_share : ndarray, shape (most + 1,)
        Entry 0 is NaN.
    sensitivity : tuple of (delay, Cao's dimension or None, dimension by false neighbours or None)
    stride : float
        Steps between rows.
    name : str
    status : {"ok", "cannot tell"}
    reason : str
    """

    plot_name = "delay"

    delay: int
    dimension: int
    delay_information: int | None
    delay_correlation: int | None
    dimension_cao: int | None
    dimension_neighbours: int | None
    information: Floats = field(repr=False)
    correlation: Floats = field(repr=False)
    e1: Floats = field(repr=False)
    e2: Floats = field(repr=False)
    false_share: Floats = field(repr=False)
    sensitivity: tuple[tuple[int, int | None, int | None], ...]
    stride: float
    name: str
    status: str
    reason: str

    def to_frame(self) -> pd.DataFrame:
        """One row a dimension: E1, E2, share of false neighbours."""
        import pandas as pd

        table = {"e1": self.e1[1:], "e2": self.e2[1:], "false_share": self.false_share[1:]}
        return pd.DataFrame(table, index=pd.RangeIndex(1, self.e1.size, name="dimension"))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without the curves over lags."""
        return {k: v for k, v in super().to_dict().items() if k not in ("information", "correlation", "provenance")}

    def summary(self) -> str:
        """One sentence, and how it depends on the delay."""
        if self.status != "ok":
            return f"Delay embedding: cannot tell, {self.reason}."
        by = [
            f"{d} rows: {'none' if c is None else c} and {'none' if f is None else f}" for d, c, f in self.sensitivity
        ]
        return (
            f"Delay {self.delay} rows ({self.delay * self.stride:g} steps), dimension {self.dimension}; dimensions by"
            f" Cao and by false neighbours at a delay of {'; '.join(by)}."
        )


def _first_minimum(curve: Floats) -> int | None:
    """First lag after the first whose value the lags up to half as far again do not undercut; a falling curve has none.

    A histogram's curve is rough, and a dip of one lag is no minimum; nor is any once 95 % of the information at lag 1
    are gone.
    """
    for lag in range(2, curve.size - 1):
        if not curve[lag] > 0.05 * curve[1]:
            return None
        ahead = curve[lag + 1 : lag + 1 + max(2, lag // 2)]
        if ahead.size >= 2 and curve[lag] < np.nanmin(curve[1:lag]) and curve[lag] <= np.nanmin(ahead):
            return lag
    return None


def _first_below(curve: Floats, level: float) -> int | None:
    below = np.flatnonzero(curve < level)
    return int(below[0]) if below.size else None


def _cao_dimension(e1: Floats, e2: Floats) -> int | None:
    """Smallest dimension from which E1 stays within 10 % of its plateau; None for noise or without a plateau."""
    shown = e1[1:]
    known = np.isfinite(shown)
    if known.sum() < 3 or not np.any(np.abs(e2[1:][np.isfinite(e2[1:])] - 1) > 0.15):
        return None
    for e in range(1, known.sum()):
        rest = shown[e - 1 :][known[e - 1 :]]
        if rest.size >= 2 and rest[0] > 0.85 and np.ptp(rest) <= 0.1:
            return e
    return None


def delay_embedding(
    source: Any,
    *,
    steps: ArrayLike | None = None,
    channel: str | None = None,
    rule: str = "information",
    most: int = 8,
    n_lags: int | None = None,
    theiler: int | None = None,
    max_points: int = 2_000,
) -> DelayEmbedding:
    """Choose delay and dimension for one channel, and say how much the choice depends on the delay.

    Parameters
    ----------
    source, steps
        As in `trajscope.dynamics.rolling_var`; one channel, or one named by ``channel``.
    rule : {"information", "correlation"}, default "information"
        Which delay is taken; the other one where the first finds none. 1 where the autocorrelation is below 1/e at
        once: such rows, of a map, need no delay.
    most : int, default 8
        Largest dimension tried.
    n_lags : int, optional
        Largest delay looked at; a tenth of the rows and at most 200 by default.
    theiler : int, optional
        Rows within which vectors are no neighbours; by default the delay or the first lag at which the autocorrelation
        is below 1/e, whichever is longer.
    max_points : int, default 2000
        Neighbours are sought in the last so many rows (not in every m-th, which would change the delay): 51 searches,
        quadratic in the rows. Lags are judged on all rows.

    Returns
    -------
    DelayEmbedding
        "cannot tell" for fewer than 100 rows, a constant channel, or noise.

    Examples
    --------
    >>> henon = [0.1, 0.1]
    >>> for _ in range(800):
    ...     henon.append(1 - 1.4 * henon[-1] ** 2 + 0.3 * henon[-2])
    >>> found = delay_embedding(henon)
    >>> found.delay, found.dimension
    (1, 2)
    """
    if rule not in ("information", "correlation"):
        raise InputError(f"rule is {rule!r}; expected 'information' or 'correlation'.")
    if (
        most < 2
        or max_points < MIN_ROWS
        or (n_lags is not None and n_lags < 2)
        or (theiler is not None and theiler < 0)
    ):
        raise InputError(
            f"options out of range: most {most} >= 2, max_points {max_points} >= {MIN_ROWS}, n_lags {n_lags} >= 2,"
            f" theiler {theiler} >= 0."
        )
    rows = as_rows(source, steps, None if channel is None else [channel])
    if rows.x.shape[1] != 1:
        raise InputError(f"there are {rows.x.shape[1]} channels; name one: channel={rows.names[0]!r}.")
    x, linked = rows.x[:, 0], rows.linked
    lags = n_lags or int(np.clip(len(rows) // 10, 2, 200))
    provenance = make_provenance(
        "delay_embedding",
        {"rule": rule, "most": most, "n_lags": lags, "theiler": theiler, "max_points": max_points},
        rows.x, rows.steps,
    )  # fmt: skip

    def result(reason: str, **found: Any) -> DelayEmbedding:
        none = np.full(most + 1, np.nan)
        values = {
            "delay": 0, "dimension": 0, "delay_information": None, "delay_correlation": None, "dimension_cao": None,
            "dimension_neighbours": None, "information": none, "correlation": none, "e1": none, "e2": none,
            "false_share": none, "sensitivity": (),
        } | found  # fmt: skip
        return DelayEmbedding(
            **values, stride=rows.stride, name=rows.names[0], status="cannot tell" if reason else "ok", reason=reason,
            provenance=provenance,
        )  # fmt: skip

    if len(rows) < MIN_ROWS:
        return result(f"{len(rows)} rows, at least {MIN_ROWS} are needed")
    if np.ptp(x) == 0:
        return result("the channel does not vary")
    information = mutual_information(x, lags, linked)
    correlation = autocorrelation(x, lags, linked)
    by_information, by_correlation = _first_minimum(information), _first_below(correlation, 1 / np.e)
    found: dict[str, Any] = {
        "information": information, "correlation": correlation, "delay_information": by_information,
        "delay_correlation": by_correlation,
    }  # fmt: skip
    first, second = (by_information, by_correlation) if rule == "information" else (by_correlation, by_information)
    # where rows are all but uncorrelated already there is nothing to unfold, and minima of the information are noise
    delay = 1 if by_correlation == 1 else first or second
    if delay is None:
        return result(f"neither rule finds a delay up to {lags} rows (a trend, or a period longer than that)", **found)
    table = []
    x, linked = x[-max_points:], linked[-max_points:]
    for tau in dict.fromkeys([max(1, delay // 2), delay, 2 * delay]):
        apart = max(tau, by_correlation or 1) if theiler is None else theiler
        e1, e2 = cao(x, most, tau, linked, apart)
        false = false_neighbours(x, most, tau, linked, apart)
        few = np.flatnonzero(false[1:] < FEW_FALSE)
        table.append((tau, _cao_dimension(e1, e2), int(few[0]) + 1 if few.size else None))
        if tau == delay:
            found |= {"delay": delay, "e1": e1, "e2": e2, "false_share": false, "dimension_cao": table[-1][1],
                      "dimension_neighbours": table[-1][2]}  # fmt: skip
    found["sensitivity"] = tuple(table)
    if found["dimension_cao"] is None:
        return result("Cao's E2 is 1 at every dimension, as for noise, or E1 never settles", **found)
    return result("", dimension=found["dimension_cao"], **found)
