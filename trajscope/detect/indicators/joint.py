r"""Indicators of several channels together, over trailing windows.

With :math:`C_0` the covariance of the window, :math:`C_1 = \mathrm{cov}(z_t, z_{t-1})`:

============== =====================================================================================================
eig_cov        largest eigenvalue of :math:`C_0` (unbiased): variance along the direction that moves most
maf            autocorrelation at lag 1 of the most autocorrelated linear combination, the largest
               :math:`a^\top C_1 a / a^\top C_0 a` (Switzer & Green 1984; the slowest feature)
participation  :math:`(\sum \lambda)^2 / \sum \lambda^2` of the correlation matrix: how many directions share the
               variance; falls as one takes over
mean_lag1      mean of the channels' lag-1 autocorrelations;
max_lag1       their largest
dev_modulus    modulus of the dominant eigenvalue of :math:`A = C_1 C_0^{-1}`, the local Jacobian of the map
dev_angle      its angle in [0, pi]
============== =====================================================================================================

A row that misses a channel counts for none (`trajscope._core.rolling_var`). Channels enter as they are scaled;
:math:`A`, *maf*, *participation* and the lags do not depend on their units, *eig_cov* does. White observation noise
biases :math:`A` towards 0.

Sources: Dakos 2018, Ecol. Indic. 94:494 (multivariate indicators); Williamson & Lenton 2015, Chaos 25:036407.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling_moments import pairs
from trajscope._core.rolling_var import lagged_products, rolling_var, sorted_eigenvalues

__all__ = ["JOINT", "joint"]

Floats = NDArray[np.float64]

JOINT = ("eig_cov", "maf", "participation", "mean_lag1", "max_lag1", "dev_modulus", "dev_angle")

_COLLINEAR = 1e-10
"""Smallest eigenvalue of a correlation matrix, of the largest, below which channels are collinear."""


def joint(
    names: Sequence[str], z: Floats, window: int, linked: NDArray[np.bool_] | None, rows: NDArray[np.intp]
) -> dict[str, Floats]:
    """Values of the named indicators at the given rows.

    Parameters
    ----------
    names : sequence of str
        Of `JOINT`.
    z : ndarray, shape (n_steps, n_channels)
        NaN is missing.
    window : int
    linked : ndarray of bool, shape (n_steps,), optional
        Where a row and the row before make a pair.
    rows : ndarray of int
        Rows to be valued, ascending.

    Returns
    -------
    dict of str to ndarray, shape (n_steps,)
        NaN elsewhere, and where a channel does not vary.

    Examples
    --------
    >>> z = np.random.default_rng(0).normal(size=(400, 2))
    >>> found = joint(["participation"], z, 400, None, np.array([399]))
    >>> round(float(found["participation"][-1]), 1)
    2.0
    """
    out = {name: np.full(z.shape[0], np.nan) for name in names}
    if not rows.size:
        return out
    made: dict[str, Floats] = {}
    wanted = set(names)
    if wanted & {"mean_lag1", "max_lag1"}:
        rho = pairs(np.ascontiguousarray(z.T), window, 1, linked).correlation()[:, rows]
        made["mean_lag1"], made["max_lag1"] = rho.mean(axis=0), rho.max(axis=0)  # NaN if one is
    if wanted & {"eig_cov", "participation"}:
        count, products = lagged_products(z, window, ((0, 0),), rows=rows)
        with np.errstate(invalid="ignore", divide="ignore"):
            covariance = products[0, 0] / (count - 1)[:, None, None]
        made["eig_cov"], made["participation"] = _spread(covariance)
    if wanted & {"maf", "dev_modulus", "dev_angle"}:
        found = rolling_var(z, window, linked=linked, rows=rows, pairs=((0, 0),))
        top = sorted_eigenvalues(found.matrix)[:, 0]
        made["dev_modulus"], made["dev_angle"] = np.abs(top), np.abs(np.angle(top))
        if "maf" in wanted:
            made["maf"] = _slowest(found.products[0, 0], found.products[0, 1], found.products[1, 1])
    for name in names:
        out[name][rows] = made[name]
    return out


def _spread(covariance: Floats) -> tuple[Floats, Floats]:
    """Largest eigenvalue of each covariance, and participation ratio of its correlation matrix."""
    m, k = covariance.shape[:2]
    size = np.diagonal(covariance, axis1=1, axis2=2)
    good = np.isfinite(covariance).all(axis=(1, 2)) & (size > 0).all(axis=1)
    largest, ratio = np.full(m, np.nan), np.full(m, np.nan)
    if good.any():
        c, unit = covariance[good], np.sqrt(size[good])
        largest[good] = np.linalg.eigvalsh(c)[:, -1]
        c = c / (unit[:, :, None] * unit[:, None, :])
        ratio[good] = k**2 / np.einsum("bij,bij->b", c, c)
    return largest, ratio


def _slowest(late: Floats, cross: Floats, early: Floats) -> Floats:
    """Largest autocorrelation of a linear combination: a generalised eigenvalue."""
    c0, c1 = (late + early) / 2, (cross + np.swapaxes(cross, 1, 2)) / 2
    size = np.diagonal(c0, axis1=1, axis2=2)
    out = np.full(c0.shape[0], np.nan)
    good = np.isfinite(c0).all(axis=(1, 2)) & (size > 0).all(axis=1)
    if not good.any():
        return out
    unit = np.sqrt(size[good])
    unit = unit[:, :, None] * unit[:, None, :]
    values, vectors = np.linalg.eigh(c0[good] / unit)
    regular = values[:, 0] > _COLLINEAR * values[:, -1]
    at = np.flatnonzero(good)[regular]
    white = vectors[regular] / np.sqrt(values[regular])[:, None, :]
    out[at] = np.linalg.eigvalsh(np.swapaxes(white, 1, 2) @ (c1[good] / unit)[regular] @ white)[:, -1]
    return out
