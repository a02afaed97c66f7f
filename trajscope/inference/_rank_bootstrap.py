r"""Spearman's correlation of resampled runs, many draws at a time and without sorting any of them.

A bootstrap sample is a vector of multiplicities *w*. In it the mid-rank of a value is

.. math:: R_k = \sum_{j < k} W_j + \tfrac12 (W_k + 1),

with :math:`W_k` the multiplicity of the *k*-th smallest distinct value: one cumulative sum over an order that is found
once. Spearman's coefficient is the weighted Pearson correlation of the mid-ranks, exactly that of the sample written
out (Kendall & Gibbons 1990, ch. 3, for ties).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ranked", "draw_weights", "fisher_mean", "left_out_weights"]

Floats = NDArray[np.float64]

_BATCH_CELLS = 400_000


class Ranked:
    """Two variables of the runs of one stratum, ready for weighted rank correlation."""

    def __init__(self, x: Floats, y: Floats) -> None:
        self.x, self.y = _Order(x), _Order(y)
        self.n = x.size

    def spearman(self, weights: Floats) -> Floats:
        """Coefficient for each row of multiplicities (n_draws, n_runs); NaN where a variable is constant."""
        rx, ry = self.x.midranks(weights), self.y.midranks(weights)
        total = weights.sum(axis=1)
        mean = (total + 1) / 2  # of mid-ranks, whatever the ties
        dx, dy = rx - mean[:, None], ry - mean[:, None]
        sxy = np.einsum("ij,ij,ij->i", weights, dx, dy)
        sxx, syy = np.einsum("ij,ij,ij->i", weights, dx, dx), np.einsum("ij,ij,ij->i", weights, dy, dy)
        out = np.full(len(weights), np.nan)
        good = (sxx > 1e-9) & (syy > 1e-9)
        out[good] = np.clip(sxy[good] / np.sqrt(sxx[good] * syy[good]), -1, 1)
        return out


class _Order:
    """The order of one variable and its ties."""

    def __init__(self, values: Floats) -> None:
        self.order = np.argsort(values, kind="stable")
        ordered = values[self.order]
        first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        self.first = first
        self.group = np.repeat(np.arange(first.size), np.diff(np.append(first, values.size)))
        self.back = np.argsort(self.order, kind="stable")

    def midranks(self, weights: Floats) -> Floats:
        """Mid-ranks of all runs under the multiplicities."""
        ordered = weights[:, self.order]
        sizes = np.add.reduceat(ordered, self.first, axis=1)
        upto = np.cumsum(sizes, axis=1)
        middle = upto - (sizes - 1) / 2
        return np.asarray(middle[:, self.group][:, self.back])


def draw_weights(
    clusters: NDArray[np.intp], n_draws: int, rng: np.random.Generator, columns: int | None = None
) -> Iterator[Floats]:
    """Multiplicities of bootstrap samples that draw whole clusters, some draws at a time.

    Parameters
    ----------
    clusters : (n,) int array
        Cluster of each run, 0 to k - 1.
    n_draws : int
    rng : numpy.random.Generator
    columns : int, optional
        Runs over which a batch is dimensioned; default those given.
    """
    k = int(clusters.max()) + 1
    step = max(1, _BATCH_CELLS // max(clusters.size, columns or 0))
    share = np.full(k, 1.0 / k)
    for start in range(0, n_draws, step):
        counts = rng.multinomial(k, share, size=min(step, n_draws - start))
        yield counts[:, clusters].astype(np.float64)


def left_out_weights(clusters: NDArray[np.intp]) -> Floats:
    """Multiplicities that leave out one cluster each: (n_clusters, n_runs)."""
    k = int(clusters.max()) + 1
    weights: Floats = (clusters[None, :] != np.arange(k)[:, None]).astype(np.float64)
    return weights


def fisher_mean(rho: Floats, sizes: Floats) -> Floats:
    """Mean of correlations over strata (last axis) on Fisher's z, weighted by n - 3; NaN are left out."""
    z = np.arctanh(np.clip(rho, -0.999999, 0.999999))
    weight = np.where(np.isnan(z), 0.0, np.maximum(sizes - 3, 0.0))
    total = weight.sum(axis=-1)
    with np.errstate(invalid="ignore"):
        mean = np.tanh(np.nansum(np.where(weight > 0, z, 0.0) * weight, axis=-1) / np.where(total > 0, total, np.nan))
    return np.asarray(mean)
