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

Cells are paired where both are seen. Channels enter as they are scaled; :math:`A`, *maf*, *participation* and the lags
do not depend on their units, *eig_cov* does. White observation noise biases :math:`A` towards 0.

Sources: Dakos 2018, Ecol. Indic. 94:494 (multivariate indicators); Williamson & Lenton 2015, Chaos 25:036407.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling_moments import pairs

__all__ = ["JOINT", "joint"]

Floats = NDArray[np.float64]

JOINT = ("eig_cov", "maf", "participation", "mean_lag1", "max_lag1", "dev_modulus", "dev_angle")

_CELLS = 1 << 21
"""Cells of windows laid side by side at a time: 16 MB."""


def _covariances(later: Floats, earlier: Floats, seen: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Pairwise covariance (divisor n) of the columns of windows, (b, w, p) each, and the counts of pairs."""
    count = np.swapaxes(seen[0], 1, 2) @ seen[1]
    total_a = np.swapaxes(later, 1, 2) @ seen[1]
    total_b = np.swapaxes(seen[0], 1, 2) @ earlier
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (np.swapaxes(later, 1, 2) @ earlier - total_a * total_b / count) / count
    return found, count


def _dominant(a: Floats) -> tuple[Floats, Floats]:
    values = np.linalg.eigvals(a)
    best = np.argmax(np.abs(values), axis=1)
    top = values[np.arange(values.shape[0]), best]
    return np.abs(top), np.abs(np.angle(top))


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
        Rows to be valued, each ``>= window - 1``.

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
    n, p = z.shape
    out = {name: np.full(n, np.nan) for name in names}
    if not rows.size:
        return out
    if "mean_lag1" in out or "max_lag1" in out:
        rho = pairs(np.ascontiguousarray(z.T), window, 1, linked).correlation()[:, rows]
        whole = ~np.isnan(rho).any(axis=0)
        for name, take in (("mean_lag1", np.mean), ("max_lag1", np.max)):
            if name in out:
                out[name][rows] = np.where(whole, take(rho, axis=0), np.nan)
    if not set(names) & {"eig_cov", "maf", "participation", "dev_modulus", "dev_angle"}:
        return out
    chained = np.ones(n, dtype=bool) if linked is None else linked
    windows = np.lib.stride_tricks.sliding_window_view(z, window, axis=0)
    chains = np.lib.stride_tricks.sliding_window_view(chained, window)
    step = max(1, _CELLS // (window * p))
    for start in range(0, rows.size, step):
        at = rows[start : start + step]
        part = np.swapaxes(windows[at - window + 1], 1, 2)  # (b, w, p)
        gone = np.isnan(part)
        # a level per window costs no digits and cancels in every product below
        level = np.where(gone, 0.0, part).sum(axis=1, keepdims=True) / np.maximum((~gone).sum(axis=1, keepdims=True), 1)
        part = np.where(gone, 0.0, part - level)
        seen = (~gone).astype(np.float64)
        c0, count = _covariances(part, part, (seen, seen))
        spread = np.einsum("bii->bi", c0)
        size = np.einsum("bwi,bwi->bi", part, part)
        good = (count.min(axis=(1, 2)) > 2) & (spread > 1e-13 * (size + level[:, 0] ** 2)).all(axis=1)
        at, part, seen = at[good], part[good], seen[good]
        if not at.size:
            continue
        c0, count = c0[good], count[good]
        if "eig_cov" in out:
            out["eig_cov"][at] = np.linalg.eigvalsh(c0 * (count / (count - 1)))[:, -1]
        unit = np.sqrt(np.einsum("bii->bi", c0))
        c0 = c0 / (unit[:, :, None] * unit[:, None, :])
        if "participation" in out:
            out["participation"][at] = p**2 / np.einsum("bij,bij->b", c0, c0)
        if not set(names) & {"maf", "dev_modulus", "dev_angle"}:
            continue
        ok = chains[at - window + 1][:, 1:, None]
        later, earlier = part[:, 1:] * ok, part[:, :-1] * ok
        see = (seen[:, 1:] * ok, seen[:, :-1] * ok)
        c1, n1 = _covariances(later, earlier, see)
        c1 = c1 / (unit[:, :, None] * unit[:, None, :])
        values, vectors = np.linalg.eigh(c0)
        regular = (values[:, 0] > 1e-10 * values[:, -1]) & (n1.min(axis=(1, 2)) > 2)
        at, c0, c1, values, vectors = at[regular], c0[regular], c1[regular], values[regular], vectors[regular]
        if "dev_modulus" in out or "dev_angle" in out:
            # A = C1 C0^-1; eigenvalues of the transpose are the same
            modulus, angle = _dominant(np.linalg.solve(c0, np.swapaxes(c1, 1, 2)))
            for name, value in (("dev_modulus", modulus), ("dev_angle", angle)):
                if name in out:
                    out[name][at] = value
        if "maf" in out:
            white = vectors / np.sqrt(values)[:, None, :]
            turned = np.swapaxes(white, 1, 2) @ ((c1 + np.swapaxes(c1, 1, 2)) / 2) @ white
            out["maf"][at] = np.linalg.eigvalsh(turned)[:, -1]
    return out
