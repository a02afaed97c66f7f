r"""How many dimensions channels share: parallel analysis (Horn 1965) against surrogates with each channel's memory.

The k-th eigenvalue of the correlation matrix has to exceed the 95 % point of the k-th eigenvalue of surrogates in
which every channel was rotated by its own random offset. Counting stops at the first that does not. Each run is
rotated within itself and centred on its own mean. Under independence the data are one more rotation, so the first
comparison errs in 5 % of cases whatever the autocorrelation; a shuffle of rows, by contrast, takes slow independent
channels for a common factor every time. What all channels do because they all have a trend counts as one dimension
under every null: look at differenced or detrended channels beside the levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope._core.linalg import Moments
from trajscope._core.surrogates import SURROGATES, as_generator, fill_gaps
from trajscope.errors import InputError, nearest
from trajscope.metastate._runs import as_runs

__all__ = ["ParallelAnalysis", "correlation_eigenvalues", "parallel_analysis"]

Floats = NDArray[np.float64]

_TABLE_CELLS = 4_000_000
"""Entries of a table of cross-correlations (32 MB) up to which rotations are looked up instead of made."""


@dataclass(frozen=True)
class ParallelAnalysis:
    """Outcome of `parallel_analysis`.

    Attributes
    ----------
    n_components : int
        Leading eigenvalues above their threshold; 0 where channels share nothing.
    eigenvalues : ndarray, shape (n_channels,)
        Of the correlation matrix, descending.
    thresholds : ndarray, shape (n_channels,)
        ``quantile`` of the surrogates' eigenvalues, rank by rank.
    """

    n_components: int
    eigenvalues: Floats
    thresholds: Floats


def _correlation(covariance: Floats) -> Floats:
    sd = np.sqrt(np.diag(covariance))
    sd = np.where(sd > 0, sd, 1.0)
    return np.asarray(covariance / np.outer(sd, sd))


def correlation_eigenvalues(runs: Sequence[Floats]) -> Floats:
    """Eigenvalues, descending, of the pooled correlation matrix (each run centred, gaps pairwise)."""
    return np.asarray(np.linalg.eigvalsh(_correlation(Moments.of(runs).covariance()))[::-1], dtype=np.float64)


def parallel_analysis(
    runs: Any,
    *,
    n_surrogates: int = 199,
    quantile: float = 0.95,
    surrogate: str | Callable[[ArrayLike, np.random.Generator], Floats] = "circular",
    rng: int | np.random.Generator | None = None,
) -> ParallelAnalysis:
    """Number of common dimensions by comparison with surrogates.

    Parameters
    ----------
    runs : array, DataFrame or trajectory of shape (n_steps, n_channels), or a list of them
        NaN where nothing was logged. Surrogates other than ``"circular"`` are made from gap-filled channels and the
        gaps are put back.
    n_surrogates : int, default 199
        With 199 the 95 % point is the tenth largest of 200 with the data: an exact 5 % test.
    quantile : float, default 0.95
    surrogate : {"circular", "phase", "iaaft", "ar"} or callable, default "circular"
    rng : int, Generator or None, default None (seed 0)

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> common = rng.normal(size=(300, 1))
    >>> parallel_analysis([common + rng.normal(size=(300, 6))]).n_components
    1
    """
    if isinstance(surrogate, str):
        if surrogate not in SURROGATES:
            raise InputError(f"surrogate is {surrogate!r}. {nearest(surrogate, SURROGATES)}")
        make = SURROGATES[surrogate]
    elif callable(surrogate):
        make = surrogate
    else:
        raise InputError(f"surrogate is {surrogate!r}; expected a name or a callable.")
    if not 0 < quantile < 1:
        raise InputError(f"quantile is {quantile}; expected a number between 0 and 1.")
    if n_surrogates < 19:
        raise InputError(f"n_surrogates is {n_surrogates}; fewer than 19 cannot hold a 95 % point.")
    generator = as_generator(rng)
    given = [r.x for r in as_runs(runs)]
    pieces = [r for r in given if r.shape[0] >= 2]
    if not pieces:
        p = given[0].shape[1]
        return ParallelAnalysis(0, np.full(p, np.nan), np.full(p, np.nan))
    gaps = [np.isnan(r) for r in pieces]
    # a constant level would turn into a step where rotated channels wrap into gaps of another: centre first
    centred = [centre_run(r) for r in pieces]
    sources = centred
    if surrogate != "circular":
        sources = [fill_gaps(r) for r in centred]
    own = correlation_eigenvalues(centred)
    null = np.empty((n_surrogates, own.size))
    cells = max(r.shape[0] for r in pieces) * own.size**2
    quick = surrogate == "circular" and cells <= _TABLE_CELLS
    if quick:
        null = _rotated_eigenvalues(centred, n_surrogates, generator)
    for b in range(0 if quick else n_surrogates):
        made = [make(s, generator) for s in sources]
        if surrogate != "circular":
            made = [np.where(g, np.nan, m) for g, m in zip(gaps, made, strict=True)]
        null[b] = correlation_eigenvalues(made)
    # order statistic of B surrogates that the data exceed with probability 1 - quantile when they are one of B + 1
    rank = min(n_surrogates, int(np.ceil(quantile * (n_surrogates + 1))))
    thresholds = np.sort(null, axis=0)[rank - 1]
    above = own > thresholds
    n = int(own.size if above.all() else np.argmin(above))
    return ParallelAnalysis(n, own, thresholds)


def _rotated_eigenvalues(runs: Sequence[Floats], n_surrogates: int, rng: np.random.Generator) -> Floats:
    """Correlation eigenvalues, (n_surrogates, n_channels), of runs whose channels are rotated at random.

    Products of two rotated channels depend on the difference of their offsets only, so all of them lie in one circular
    cross-correlation, and a surrogate is a look-up. Gaps: the same for the masks counts joint rows.
    """
    p = runs[0].shape[1]
    products, pairs = np.zeros((n_surrogates, p, p)), np.zeros((n_surrogates, p, p))
    i, j = np.arange(p)[:, None], np.arange(p)[None, :]
    for x in runs:
        n = x.shape[0]
        offsets = rng.integers(0, n, size=(n_surrogates, p))
        lag = (offsets[:, :, None] - offsets[:, None, :]) % n
        seen = ~np.isnan(x)
        products += _cross_correlations(np.where(seen, x, 0.0))[i, j, lag]
        if seen.all():
            pairs += n
        else:
            pairs += np.rint(_cross_correlations(seen.astype(np.float64))[i, j, lag])
    covariance = np.where(pairs > 0, products / np.maximum(pairs, 1), 0.0)
    sd = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    sd = np.where(sd > 0, sd, 1.0)
    correlation = covariance / (sd[:, :, None] * sd[:, None, :])
    return np.asarray(np.linalg.eigvalsh(correlation)[:, ::-1], dtype=np.float64)


def _cross_correlations(x: Floats) -> Floats:
    """``out[i, j, l] = sum_s x[s, i] x[s + l, j]``, s + l modulo the length."""
    spectrum = np.fft.rfft(x, axis=0).T
    return np.asarray(np.fft.irfft(spectrum.conj()[:, None] * spectrum[None], n=x.shape[0], axis=2))


def centre_run(x: Floats) -> Floats:
    seen = ~np.isnan(x)
    mean: Floats = np.where(seen, x, 0.0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
    return x - mean
