r"""Moments, lagged products and low frequencies of trailing windows, each row in constant time whatever the window.

The window of row *t* is the *w* rows :math:`(t - w,\; t]`. Rows are laid out in blocks of *w*; every window is then a
suffix of one block and a prefix of the next, and its sums are one backward and one forward cumulative sum: nothing is
ever added and taken away again, so a value that has left the window leaves no rounding behind (a running sum over a
spike of 1e9 keeps 1e2 in its squares for ever). Sums are taken about the median of the earlier block, which no later
row can change: the answer at row *t* is the same to the last bit whatever follows.

Lagged products use the pairs :math:`(z_i, z_{i-k})` with both rows in the window, :math:`w - k` of them, and centre
each side on its own mean, which is the correlation of the two shifted series (``pandas.Series.autocorr``).

Arrays are ``(m, n_steps)``: *m* series side by side (channels, or surrogates of one channel), time last. NaN is
missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Moments4",
    "Pairs",
    "band_power",
    "exponential_moments",
    "exponential_pairs",
    "moments",
    "pairs",
    "shifted",
    "trailing_line",
    "window_counts",
]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_CHUNK = 1 << 16
"""Cells worked on at a time: a handful of such arrays stay in the second-level cache."""

_ROUNDING = 1e-13
"""A central sum this far below the raw one is rounding: the window is constant."""


@dataclass(frozen=True, eq=False)
class Moments4:
    """Of every window, each of shape (m, n_steps): finite cells, mean, and central averages of order 2, 3 and 4.

    ``correction`` turns the second into an unbiased variance (n / (n - 1) for equal weights).
    """

    count: Floats
    mean: Floats
    m2: Floats
    m3: Floats
    m4: Floats
    correction: Floats


@dataclass(frozen=True, eq=False)
class Pairs:
    """Of every window, each of shape (m, n_steps): pairs, and their centred sums of squares and products.

    The side *a* is the later row of a pair.
    """

    count: Floats
    aa: Floats
    bb: Floats
    ab: Floats

    def correlation(self) -> Floats:
        """Pearson correlation of the pairs; NaN where a side does not vary or there are fewer than three."""
        with np.errstate(invalid="ignore", divide="ignore"):
            rho = self.ab / np.sqrt(self.aa * self.bb)
        rho[~((self.aa > 0) & (self.bb > 0) & (self.count > 2))] = np.nan
        return np.clip(rho, -1.0, 1.0, out=rho)


def _suffix_prefix(old: Floats, new: Floats) -> Floats:
    """Sums over the window that ends with each row of the new block, row included; last axis is the block."""
    out = np.cumsum(new, axis=-1)
    out[..., :-1] += np.cumsum(old[..., :0:-1], axis=-1)[..., ::-1]
    return out


def _blocks(x: Floats, window: int) -> Floats:
    """(m, n_blocks + 1, window): the rows in blocks, one empty block before them, NaN after them."""
    m, n = x.shape
    count = max(1, -(-n // window))
    laid = np.full((m, (count + 1) * window), np.nan)
    laid[:, window : window + n] = x
    return laid.reshape(m, count + 1, window)


def _references(laid: Floats, complete: bool) -> Floats:
    """What each pair of blocks is measured from, (m, n_blocks, 1): the median of the earlier block.

    An empty block hands on the reference before it; at first it is the first finite cell. So it never depends on
    rows after the window that uses it (windows before the first finite cell are empty).
    """
    m, count, window = laid.shape
    old = laid[:, :-1]
    if complete:  # all blocks but the first are full, the last of them apart, which is never old
        middle = window // 2
        ref = np.empty((m, count - 1))
        ref[:, 0] = laid[:, 1, 0]
        if count > 2:
            ref[:, 1:] = np.partition(old[:, 1:], middle, axis=-1)[..., middle]
        return ref[..., None]
    seen = np.count_nonzero(~np.isnan(old), axis=-1)
    ordered = np.sort(old, axis=-1)  # NaN goes last
    ref = np.take_along_axis(ordered, np.maximum(seen // 2, 0)[..., None], axis=-1)[..., 0]
    flat = laid.reshape(m, -1)
    first = flat[np.arange(m), np.argmax(~np.isnan(flat), axis=1)]
    latest = np.maximum.accumulate(np.where(seen > 0, np.arange(count - 1), -1), axis=1)
    ref = np.where(latest >= 0, np.take_along_axis(ref, np.maximum(latest, 0), axis=1), first[:, None])
    return np.where(np.isnan(ref), 0.0, ref)[..., None]


def _chunks(laid: Floats) -> Iterator[tuple[slice, slice]]:
    """Ranges of pairs of blocks, and the rows of the answer that they give."""
    m, count, window = laid.shape
    step = max(1, _CHUNK // (m * window))
    for start in range(0, count - 1, step):
        stop = min(start + step, count - 1)
        yield slice(start, stop), slice(start * window, stop * window)


def _window_sums(
    sides: tuple[Floats, ...], window: int, terms: Callable[..., tuple[Floats, ...]], n_terms: int, complete: bool
) -> tuple[Floats, list[Floats], Floats]:
    """Counts, sums of each term over the windows, and the reference that `sides` were measured from.

    `sides` are series that miss the same cells; all of them are measured from the reference of the first.
    """
    m, n = sides[0].shape
    laid = [_blocks(s, window) for s in sides]
    ref = _references(laid[0], complete)
    size = (laid[0].shape[1] - 1) * window
    sums = [np.empty((m, size)) for _ in range(n_terms)]
    count = np.empty((m, size))
    if complete:
        count[:] = np.minimum(np.arange(1, size + 1), window)
    for part, rows in _chunks(laid[0]):
        moved = []
        for side in laid:
            both = [side[:, part] - ref[:, part], side[:, part.start + 1 : part.stop + 1] - ref[:, part]]
            moved.append(both)
        if not complete:
            seen = [(~np.isnan(moved[0][k])).astype(np.float64) for k in (0, 1)]
            count[:, rows] = _suffix_prefix(*seen).reshape(m, -1)
        for both in moved:
            for z in both:
                z[np.isnan(z)] = 0.0
        old, new = terms(*[b[0] for b in moved]), terms(*[b[1] for b in moved])
        for total, o, v in zip(sums, old, new, strict=True):
            total[:, rows] = _suffix_prefix(o, v).reshape(m, -1)
    return count[:, :n], [s[:, :n] for s in sums], np.repeat(ref[..., 0], window, axis=1)[:, :n]


def _powers(order: int) -> Callable[[Floats], tuple[Floats, ...]]:
    def terms(z: Floats) -> tuple[Floats, ...]:
        out = [z]
        for _ in range(order - 1):
            out.append(out[-1] * z)
        return tuple(out)

    return terms


def moments(x: Floats, window: int, order: int = 4) -> Moments4:
    """Moments of trailing windows up to `order` (2 or 4); the first rows see a shorter window.

    Parameters
    ----------
    x : ndarray, shape (m, n_steps)
        NaN is missing.
    window : int
        Rows.
    order : {2, 4}
        With 2, `m3` and `m4` are the second moment and mean nothing.

    Examples
    --------
    >>> found = moments(np.array([[1.0, 2.0, 6.0, 2.0]]), 3, 2)
    >>> found.mean.round(2).tolist()
    [[1.0, 1.5, 3.0, 3.33]]
    """
    complete = not np.isnan(x).any()
    count, sums, ref = _window_sums((x,), window, _powers(order), order, complete)
    with np.errstate(invalid="ignore", divide="ignore"):
        s = [total / count for total in sums]
        correction = count / (count - 1)
    return _central(count, s, ref, correction)


def _central(count: Floats, s: list[Floats], ref: Floats, correction: Floats) -> Moments4:
    """Central moments from raw averages about `ref`."""
    d = s[0]
    m2 = s[1] - d * d
    m2[m2 <= _ROUNDING * s[1]] = 0.0
    m3 = m4 = m2
    if len(s) > 2:
        m3 = s[2] - 3 * d * s[1] + 2 * d * d * d
        m4 = s[3] - 4 * d * s[2] + 6 * d * d * s[1] - 3 * (d * d) * (d * d)
    correction = np.where(count > 1, correction, np.nan)
    return Moments4(count, d + ref, m2, m3, m4, correction)


def shifted(x: Floats, lag: int, linked: Bools | None) -> tuple[Floats, Floats]:
    """The pairs of a lag, later and earlier rows, each of shape (m, n_steps - lag); both miss the same cells."""
    a, b = x[:, lag:], x[:, : x.shape[1] - lag]
    gone = np.isnan(a) | np.isnan(b)
    if linked is not None:
        gone |= ~linked[lag:]
    return (np.where(gone, np.nan, a), np.where(gone, np.nan, b)) if gone.any() else (a, b)


def pairs(x: Floats, window: int, lag: int, linked: Bools | None = None) -> Pairs:
    """Lagged products of trailing windows.

    Parameters
    ----------
    x : ndarray, shape (m, n_steps)
        NaN is missing: only pairs seen on both sides count.
    window, lag : int
        Rows; ``window > lag``.
    linked : ndarray of bool, shape (n_steps,), optional
        Where row *t* and row *t - lag* may make a pair (no gap or boundary between them).

    Examples
    --------
    >>> z = np.array([[1.0, -1.0, 1.0, -1.0, 1.0, -1.0]])
    >>> pairs(z, 6, 1).correlation()[0, -1].item()
    -1.0
    """
    if lag >= x.shape[1]:
        return _no_pairs(x)
    a, b = shifted(x, lag, linked)
    count, sums, _ = _window_sums((a, b), window - lag, _products, 5, not np.isnan(a).any())
    with np.errstate(invalid="ignore", divide="ignore"):
        return _padded(_centred(count, count, sums), lag)


def _no_pairs(x: Floats) -> Pairs:
    none = np.zeros_like(x)
    return Pairs(none, none, none, none)


def _padded(found: Pairs, lag: int) -> Pairs:
    """Rows without a pair put before."""
    none = np.zeros((found.count.shape[0], lag))
    return Pairs(*(np.concatenate([none, v], axis=1) for v in vars(found).values()))


def _products(a: Floats, b: Floats) -> tuple[Floats, ...]:
    return a, b, a * a, b * b, a * b


def _centred(count: Floats, weight: Floats, sums: list[Floats]) -> Pairs:
    sa, sb, saa, sbb, sab = sums
    aa, bb = saa - sa * sa / weight, sbb - sb * sb / weight
    aa[~(aa > _ROUNDING * saa)] = 0.0
    bb[~(bb > _ROUNDING * sbb)] = 0.0
    return Pairs(count, aa, bb, sab - sa * sb / weight)


def band_power(x: Floats, window: int, n_bins: int) -> tuple[Floats, Floats]:
    r"""Power of the lowest frequencies of each window, and of all.

    With :math:`X_k = \sum_j (z_j - \bar z) e^{-2\pi i k j / w}` over the window, returns
    :math:`2 w^{-1} \sum_{k=1}^{K} |X_k|^2` and :math:`\sum_j (z_j - \bar z)^2`: by Parseval their ratio is the share
    of the periodogram at or below the frequency *K / w*. Missing cells count as the mean of the window.

    Parameters
    ----------
    x : ndarray, shape (m, n_steps)
    window : int
    n_bins : int
        *K*, at most half of the window (then the Nyquist frequency enters once).

    Examples
    --------
    >>> slow = np.cos(2 * np.pi * np.arange(40.0) / 20)[None]
    >>> low, total = band_power(slow, 20, 1)
    >>> round(float(low[0, -1] / total[0, -1]), 6)
    1.0
    """
    m, n = x.shape
    complete = not np.isnan(x).any()
    laid = _blocks(x, window)
    ref = _references(laid, complete)
    low, total = np.empty((m, laid[0, 1:].size)), np.empty((m, laid[0, 1:].size))
    angle = 2 * np.pi * np.arange(window) / window
    waves = [(np.cos(k * angle), np.sin(k * angle), 1.0 if 2 * k == window else 2.0) for k in range(1, n_bins + 1)]
    for part, rows in _chunks(laid):
        old = laid[:, part] - ref[:, part]
        new = laid[:, part.start + 1 : part.stop + 1] - ref[:, part]
        gone = [np.isnan(old), np.isnan(new)]
        old[gone[0]] = new[gone[1]] = 0.0
        sum1, sum2 = _suffix_prefix(old, new), _suffix_prefix(old * old, new * new)
        if complete:
            count: Floats = np.full(sum1.shape, float(window))
        else:
            seen = [1.0 - g for g in gone]
            count = _suffix_prefix(*seen)
        count = np.maximum(count, 1.0)
        power = np.zeros_like(sum1)
        for cosine, sine, weight in waves:
            for wave in (cosine, sine):
                amplitude = _suffix_prefix(old * wave, new * wave)
                if not complete:  # a window without holes has no power of its mean at these frequencies
                    lost = sum1 / count * _suffix_prefix(seen[0] * wave, seen[1] * wave)
                    amplitude -= np.where(count < window, lost, 0.0)
                power += weight * amplitude * amplitude
        spread = sum2 - sum1 * sum1 / count
        spread[spread <= _ROUNDING * sum2] = 0.0
        low[:, rows] = power.reshape(m, -1) / window
        total[:, rows] = spread.reshape(m, -1)
    return low[:, :n], total[:, :n]


def _decay(values: Floats, keep: float) -> Floats:
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -keep], values, axis=-1), dtype=np.float64)


def _origin(x: Floats, rows: int) -> Floats:
    """Median of the first rows of each series (0 where all are missing), from which weighted sums are taken."""
    early = np.sort(x[:, :rows], axis=1)
    seen = np.count_nonzero(~np.isnan(early), axis=1)
    ref = early[np.arange(x.shape[0]), seen // 2] if early.shape[1] else np.zeros(x.shape[0])
    return np.where(np.isnan(ref), 0.0, ref)[:, None]


def exponential_moments(x: Floats, span: int, order: int = 4) -> Moments4:
    r"""As `moments`, every row weighted by :math:`(1 - \alpha)^{age}`, :math:`\alpha = 2/(\mathrm{span} + 1)`.

    ``correction`` is :math:`W_1^2 / (W_1^2 - W_2)` with the sums of weights and of squared weights. The origin is the
    median of the first ``span`` rows, so values there may use later rows of that stretch: show none before it ends.
    """
    keep = 1 - 2 / (span + 1)
    ref = _origin(x, span)
    seen = (~np.isnan(x)).astype(np.float64)
    z = np.where(seen > 0, x - ref, 0.0)
    weight, squares = _decay(seen, keep), _decay(seen, keep * keep)
    with np.errstate(invalid="ignore", divide="ignore"):
        s = [_decay(term, keep) / weight for term in _powers(order)(z)]
        correction = weight**2 / (weight**2 - squares)
    count = np.cumsum(seen, axis=1)
    return _central(count, s, ref, correction)


def exponential_pairs(x: Floats, span: int, lag: int, linked: Bools | None = None) -> Pairs:
    """As `pairs`, every pair weighted by the age of its later row (see `exponential_moments`)."""
    if lag >= x.shape[1]:
        return _no_pairs(x)
    keep = 1 - 2 / (span + 1)
    a, b = shifted(x - _origin(x, span), lag, linked)
    seen = (~np.isnan(a)).astype(np.float64)
    a, b = np.where(seen > 0, a, 0.0), np.where(seen > 0, b, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        sums = [_decay(term, keep) for term in _products(a, b)]
        return _padded(_centred(np.cumsum(seen, axis=1), _decay(seen, keep), sums), lag)


def trailing_line(x: Floats, window: int, ahead: float = 0.0, min_count: int = 2) -> Floats:
    """Least-squares straight line through each trailing window, at `ahead` rows past the window's last one.

    Parameters
    ----------
    x : ndarray, shape (m, n_steps)
        NaN is missing.
    window : int
        Rows; the first rows see a shorter window.
    ahead : float
    min_count : int
        Cells needed.

    Examples
    --------
    >>> trailing_line(np.array([[0.0, 2.0, 4.0, 6.0]]), 3, 1)[0].round(9).tolist()
    [nan, 4.0, 6.0, 8.0]
    """
    m, n = x.shape
    laid = _blocks(x, window)
    ref = _references(laid, not np.isnan(x).any())
    out = np.empty((m, laid[0, 1:].size))
    place = np.arange(window, dtype=np.float64)
    for part, rows in _chunks(laid):
        old = laid[:, part] - ref[:, part]
        new = laid[:, part.start + 1 : part.stop + 1] - ref[:, part]
        seen = [(~np.isnan(z)).astype(np.float64) for z in (old, new)]
        old[seen[0] == 0] = new[seen[1] == 0] = 0.0
        at = (place - window, place)  # rows counted from the first of the new block
        count = _suffix_prefix(*seen)
        su = _suffix_prefix(seen[0] * at[0], seen[1] * at[1])
        suu = _suffix_prefix(seen[0] * at[0] ** 2, seen[1] * at[1] ** 2)
        sz, suz = _suffix_prefix(old, new), _suffix_prefix(old * at[0], new * at[1])
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = suu - su * su / count
            slope = (suz - su * sz / count) / spread
            line = (sz - slope * su) / count + slope * (place + ahead) + ref[:, part]
        line[~((count >= min_count) & (spread > 0))] = np.nan
        out[:, rows] = line.reshape(m, -1)
    return out[:, :n]


def window_counts(hit: Bools, window: int) -> Floats:
    """How many of the last `window` rows are True; shape as `hit`, (m, n_steps).

    Examples
    --------
    >>> window_counts(np.array([[True, False, True]]), 2).tolist()
    [[1.0, 1.0, 1.0]]
    """
    total = np.zeros((hit.shape[0], hit.shape[1] + 1))
    np.cumsum(hit, axis=1, out=total[:, 1:])  # whole numbers: exact in any order
    stop = np.arange(1, hit.shape[1] + 1)
    return total[:, stop] - total[:, np.maximum(stop - window, 0)]
