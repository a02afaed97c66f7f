r"""Shape of the stable set, directions of excursions, and nulls for their similarity: array arithmetic.

Rows *x* are standardised: :math:`x_t = (y_t - r_t)/s`, zero in the middle of the healthy runs. About that zero, and
not about each run's own mean (how far healthy runs lie apart belongs to the stable set), the second moment of healthy
rows :math:`M = V \Lambda V^\top` gives the model of probabilistic PCA (Tipping & Bishop 1999)

.. math:: C = V_k \Lambda_k V_k^\top + \sigma^2 (I - V_k V_k^\top),
    \qquad \sigma^2 = \text{mean of the other eigenvalues},

and with it whitened coordinates and the radius

.. math:: z_{j,t} = \frac{v_j^\top x_t}{\sqrt{\lambda_j}}, \qquad q_t = \frac{|x_t - V_k V_k^\top x_t|}{\sigma},
    \qquad r_t = \sqrt{|z_t|^2 + q_t^2} = \sqrt{x_t^\top C^{-1} x_t} .

With all components kept it is the Mahalanobis distance of the raw channels. Eigenvalues are not below 1e-6 of the
largest. A row with gaps is completed by its conditional mean first and *q* is scaled to all channels.

Directions of excursions: rows outside the boundary, each divided by its length so that a row counts by its direction
only and by the size of its run so that a run counts once; the leading eigenvectors of their second moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajscope._core.linalg import psd_eigh
from trajscope.metastate.pca import complete_rows

__all__ = ["Shape", "Sums", "directions", "healthy_windows", "random_cos2", "shape_of", "window_cos2"]

Floats = NDArray[np.float64]

_RIDGE = 1e-6


@dataclass(frozen=True)
class Sums:
    """Products of rows and how many rows saw both channels; they add and subtract, so a run can be left out."""

    products: Floats
    pairs: Floats

    @classmethod
    def of(cls, x: Floats) -> Sums:
        """Sums of the rows of one run, NaN missing."""
        seen = ~np.isnan(x)
        filled = np.where(seen, x, 0.0)
        ones = seen.astype(np.float64)
        return cls(filled.T @ filled, ones.T @ ones)

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.products + other.products, self.pairs + other.pairs)

    def __sub__(self, other: Sums) -> Sums:
        return Sums(self.products - other.products, self.pairs - other.pairs)

    def moment(self) -> Floats:
        """Second moment about zero; 0 where two channels were never seen together."""
        return np.where(self.pairs > 0.5, self.products / np.maximum(self.pairs, 1.0), 0.0)


@dataclass(frozen=True)
class Shape:
    """The stable set up to its size.

    Attributes
    ----------
    vectors : ndarray, shape (n_channels, k)
        Orthonormal; rows of channels that are not in use are 0.
    values : ndarray, shape (k,)
        Eigenvalues of the second moment, descending.
    noise : float
        sigma^2 above; 0 where nothing is left out.
    used : ndarray of bool, shape (n_channels,)
    """

    vectors: Floats
    values: Floats
    noise: float
    used: NDArray[np.bool_]

    def whitened(self, x: Floats) -> Floats:
        """:math:`C^{-1/2} x` of standardised rows, shape (n_steps, n_channels): its length is the radius."""
        scores, off = self._split(x)
        out = (scores / np.sqrt(self.values)) @ self.vectors.T
        return np.asarray(out + off / np.sqrt(self.noise) if self.noise > 0 else out)

    def coordinates(self, x: Floats) -> Floats:
        """(z_1 .. z_k, q) of standardised rows, shape (n_steps, k + 1); NaN in a row in which nothing was seen."""
        scores, off = self._split(x)
        distance = np.sqrt((off**2).sum(axis=1) / self.noise) if self.noise > 0 else 0.0 * off.sum(axis=1)
        return np.column_stack([scores / np.sqrt(self.values), distance])

    def _split(self, x: Floats) -> tuple[Floats, Floats]:
        """Scores on the components, and what lies off them, scaled to all channels where some were not seen."""
        k = self.values.size
        rows = np.where(self.used, x, np.nan)
        seen = ~np.isnan(rows)
        n = seen.sum(axis=1)
        pull = self.vectors * np.sqrt(np.maximum(self.values - self.noise, 0.0))
        filled = complete_rows(rows, pull, self.noise) if k and not seen[:, self.used].all() else rows
        filled = np.where(np.isnan(filled), 0.0, filled)
        scores = filled @ self.vectors
        off = np.where(seen, filled - scores @ self.vectors.T, 0.0)
        off *= np.sqrt(self.used.sum() / np.maximum(n, 1))[:, None]
        scores[n == 0], off[n == 0] = np.nan, np.nan
        return scores, off

    def radius(self, x: Floats) -> Floats:
        """r of standardised rows, shape (n_steps,)."""
        return np.asarray(np.sqrt((self.coordinates(x) ** 2).sum(axis=1)))


def shape_of(moment: Floats, used: NDArray[np.bool_], k: int) -> Shape:
    """The shape with `k` components from a second moment; channels that are not `used` take no part."""
    p = used.size
    values, vectors = psd_eigh(moment[np.ix_(used, used)])
    values = np.maximum(values, max(_RIDGE * values[0], 1e-300))
    k = min(k, values.size)
    full = np.zeros((p, k))
    full[used] = vectors[:, :k]
    rest = values[k:]
    return Shape(full, values[:k], float(rest.mean()) if rest.size else 0.0, used)


def directions(rows: Sequence[Floats], k: int) -> tuple[Floats, Floats]:
    """Leading directions of rows by run.

    Parameters
    ----------
    rows : sequence of ndarray, each (n_rows, n_channels)
        A missing cell is taken as 0: nothing is known to have left.
    k : int

    Returns
    -------
    basis : ndarray, shape (n_channels, k)
        Orthonormal.
    share : ndarray, shape (k,)
        Share of the second moment of unit rows.
    """
    moments = []
    for x in rows:
        filled = np.where(np.isnan(x), 0.0, x)
        # divided by the largest entry first: squares of cells near the cap would overflow
        filled = filled / np.maximum(np.abs(filled).max(axis=1, keepdims=True, initial=0.0), 1e-300)
        size = np.sqrt((filled**2).sum(axis=1))
        unit = filled[size > 0] / size[size > 0, None]
        if unit.shape[0]:
            moments.append(unit.T @ unit / unit.shape[0])
    values, vectors = psd_eigh(np.mean(moments, axis=0))
    return vectors[:, :k], values[:k] / max(float(values.sum()), 1e-300)


def healthy_windows(runs: Sequence[Floats], length: int, k: int, n_windows: int, rng: np.random.Generator) -> Floats:
    """Subspaces of random windows of healthy rows, found as those of excursions are: (n_windows, n_channels, k)."""
    usable = [x for x in runs if x.shape[0] >= 2 and not np.isnan(x).all()]
    out = np.empty((n_windows, runs[0].shape[1], k))
    for w in range(n_windows):
        x = usable[int(rng.integers(len(usable)))]
        n = min(length, x.shape[0])
        start = int(rng.integers(x.shape[0] - n + 1))
        window = x[start : start + n]
        out[w] = directions([window if not np.isnan(window).all() else x], k)[0]
    return out


def random_cos2(p: int, q: tuple[int, int], n_draws: int, rng: np.random.Generator) -> Floats:
    """Mean squared cosine of pairs of random subspaces (uniform) of dimensions `q` in `p` channels, (n_draws,)."""
    fixed = np.eye(p)[None, :, : q[0]]  # only the angle between the two matters: one may be fixed
    return _cos2(fixed, np.linalg.qr(rng.normal(size=(n_draws, p, q[1])))[0])


def window_cos2(a: Floats, b: Floats, n_draws: int, rng: np.random.Generator) -> Floats:
    """Mean squared cosine of random pairs of healthy-window subspaces, one of each side, (n_draws,)."""
    return _cos2(a[rng.integers(len(a), size=n_draws)], b[rng.integers(len(b), size=n_draws)])


def _cos2(a: Floats, b: Floats) -> Floats:
    """Mean squared cosine for stacks of orthonormal bases: their squared cosines add up to |A'B|^2."""
    return np.asarray((np.matmul(a.transpose(0, 2, 1), b) ** 2).sum(axis=(1, 2)) / min(a.shape[2], b.shape[2]))
