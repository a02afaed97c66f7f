r"""Linear algebra shared by meta-states, dynamics and identifiability: subspaces, dimension, moments with gaps.

Participation ratio of eigenvalues :math:`\lambda_i \ge 0`: :math:`(\sum\lambda)^2 / \sum\lambda^2`; *p* equal ones
give *p*, one alone gives 1, white noise with *n* rows and *p* channels about :math:`p / (1 + p/n)`.

Principal angles between the column spaces of *U* and *V* (Björck & Golub 1973): singular values of
:math:`Q_U^\top Q_V` are their cosines; two random subspaces of dimension *q* in *p* channels have a mean squared
cosine of *q / p*.

Moments with gaps: with the mask *M* and zeros in place of what is missing, :math:`N = M^\top M` counts the rows in
which both channels were seen and the pairwise covariance is the sum of products over those rows divided by *N*. It
is unbiased when cells are missing at random; it need not be positive semi-definite, so `psd_eigh` clips.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope.errors import InputError

__all__ = [
    "Moments",
    "fix_signs",
    "mean_cos2",
    "participation_ratio",
    "principal_angles",
    "psd_eigh",
]

Floats = NDArray[np.float64]

CHUNK = 4096
"""Rows taken at a time: 20 channels of them stay in the second-level cache, and memory does not grow with the
run."""


def participation_ratio(eigenvalues: ArrayLike) -> float:
    """Effective number of dimensions, ``(sum l)^2 / sum l^2``; NaN when all eigenvalues are zero.

    Examples
    --------
    >>> round(participation_ratio([2.0, 1.0, 1.0]), 3)
    2.667
    """
    values = np.clip(np.asarray(eigenvalues, dtype=np.float64), 0.0, None)
    square = float((values**2).sum())
    return float(values.sum()) ** 2 / square if square > 0 else float("nan")


def principal_angles(u: ArrayLike, v: ArrayLike) -> Floats:
    """Angles between two column spaces, ascending, in radians.

    Parameters
    ----------
    u, v : array_like, shape (n_channels, k) and (n_channels, m)
        Columns span the subspaces; they need not be orthonormal, but must be independent.

    Returns
    -------
    ndarray, shape (min(k, m),)

    Examples
    --------
    >>> np.round(principal_angles(np.eye(3)[:, :2], np.eye(3)[:, 1:]), 3)
    array([0.   , 1.571])
    """
    a, b = (np.asarray(m, dtype=np.float64) for m in (u, v))
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[0]:
        raise InputError(
            f"subspaces have shapes {a.shape} and {b.shape}; expected (n_channels, k) and (n_channels, m)."
        )
    qa, qb = np.linalg.qr(a)[0], np.linalg.qr(b)[0]
    if qa.shape[1] < qb.shape[1]:
        qa, qb = qb, qa
    cosine = np.linalg.svd(qa.T @ qb, compute_uv=False)
    # small angles from the sine, large ones from the cosine: arccos alone loses half the digits near zero
    sine = np.linalg.svd(qb - qa @ (qa.T @ qb), compute_uv=False)[::-1]
    angles = np.where(cosine**2 < 0.5, np.arccos(np.clip(cosine, 0, 1)), np.arcsin(np.clip(sine, 0, 1)))
    return np.asarray(angles, dtype=np.float64)


def mean_cos2(u: ArrayLike, v: ArrayLike) -> float:
    """Mean squared cosine of the principal angles: 1 for equal subspaces, about q/p for random ones."""
    return float(np.mean(np.cos(principal_angles(u, v)) ** 2))


def fix_signs(columns: Floats) -> Floats:
    """Signs (+1 or -1) that make the largest entry of each column, by absolute value, positive.

    Ties within 1e-9 go to the first channel, so that rounding does not decide.

    Examples
    --------
    >>> fix_signs(np.array([[1.0, -3.0], [-2.0, 1.0]]))
    array([-1., -1.])
    """
    if columns.size == 0:
        return np.ones(columns.shape[1])
    size = np.abs(columns)
    first = np.argmax(size >= size.max(axis=0) * (1 - 1e-9), axis=0)
    chosen = columns[first, np.arange(columns.shape[1])]
    return np.where(chosen < 0, -1.0, 1.0)


def psd_eigh(matrix: Floats) -> tuple[Floats, Floats]:
    """Eigenvalues (descending, negative ones clipped to 0) and eigenvectors (columns, signs fixed)."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    values, vectors = np.clip(values[::-1], 0.0, None), vectors[:, ::-1]
    return values, vectors * fix_signs(vectors)


class Moments:
    """Counts, sums and products of channels over runs, chunk by chunk, with gaps.

    Each run is centred on its own mean (its level is no business of the covariance). Sums are taken about the
    mean of the first chunk of the run, so that a large level costs no digits.

    Parameters
    ----------
    n_channels : int

    Attributes
    ----------
    pairs : ndarray, shape (n_channels, n_channels)
        Rows in which both channels were seen.
    products : ndarray, shape (n_channels, n_channels)
        Centred products over those rows, closed runs only.

    Examples
    --------
    >>> m = Moments(1)
    >>> m.add(np.array([[1.0], [np.nan], [3.0]]))
    >>> m.close_run()
    >>> m.covariance(), m.mean()
    (array([[1.]]), array([2.]))
    """

    def __init__(self, n_channels: int) -> None:
        p = n_channels
        self.pairs = np.zeros((p, p))
        self.products = np.zeros((p, p))
        self.n_rows = 0
        self._count, self._total = np.zeros(p), np.zeros(p)
        self._open(p)

    def _open(self, p: int) -> None:
        self._shift: Floats | None = None
        self._n, self._s, self._g = np.zeros((p, p)), np.zeros((p, p)), np.zeros((p, p))

    def add(self, x: Floats) -> None:
        """Take in rows of the open run; x has shape (n_rows, n_channels), NaN where nothing is known."""
        for start in range(0, x.shape[0], CHUNK):
            rows = x[start : start + CHUNK]
            if self._shift is None:
                seen = ~np.isnan(rows)
                self._shift = np.where(seen, rows, 0.0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
            z = rows - self._shift
            seen = z == z
            # counts in single precision are exact up to 2^24 rows a chunk and cost half
            ones = seen.astype(np.float32)
            z[~seen] = 0.0
            self._n += ones.T @ ones
            self._s += z.T @ ones.astype(np.float64)
            self._g += z.T @ z
            self.n_rows += rows.shape[0]

    def close_run(self) -> None:
        """End the open run: centre its products on its own mean and add them to the pool."""
        if self._shift is None:
            return
        count = np.diag(self._n)
        mean = np.diag(self._s) / np.maximum(count, 1)
        # sum over joint rows of (x - a)(y - b): s[i, j] is the sum of i over the rows in which j was seen
        cross = self._s * mean[None, :]
        self.products += self._g - cross - cross.T + self._n * np.outer(mean, mean)
        self.pairs += self._n
        self._count += count
        self._total += np.diag(self._s) + count * self._shift
        self._open(self._n.shape[0])

    def mean(self) -> Floats:
        """Mean of every channel over all closed runs; NaN where nothing was seen."""
        with np.errstate(invalid="ignore"):
            return self._total / np.where(self._count > 0, self._count, np.nan)

    def covariance(self) -> Floats:
        """Pairwise covariance (divisor: number of joint rows); 0 where two channels were never seen together."""
        return np.where(self.pairs > 0, self.products / np.maximum(self.pairs, 1), 0.0)

    @classmethod
    def of(cls, runs: Sequence[Floats]) -> Moments:
        """Moments of whole runs."""
        moments = cls(runs[0].shape[1])
        for x in runs:
            moments.add(x)
            moments.close_run()
        return moments
