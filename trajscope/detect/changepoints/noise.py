"""What the noise around a training curve is like: clipped values, local scale, short memory.

1. **Clip.** ``m_t`` is the running median of 11 rows, ``r = y - m``. The local scale of ``r`` is the median
   absolute value in blocks of 32 rows, smoothed over neighbouring blocks by a median; ``r`` is clipped at 3 local
   standard deviations. A spike of up to 5 rows goes, a level shift stays where it is, since a running median keeps
   edges.
2. **Memory.** In half-overlapping blocks (a quarter of the series, at most 512 rows) a line is removed and the
   autocorrelations are formed; the median over blocks is not moved by the few blocks that hold a change.
   Yule-Walker of order ``p`` (by BIC, at most one order per 40 rows of a block and 6) gives ``s = sum(phi)``.
   Removing a line biases ``s`` by about ``-(2 + 4 s) / B`` (Kendall 1954, with a trend), which is undone, and ``s``
   is then raised by one standard error ``sqrt((1 - s^2) / n)``: an under-estimated memory makes false changes, an
   over-estimated one costs a little power.
3. **Local scale.** Standard deviation of the noise along the series, from the same blocks.

All on the rows of one channel, no gaps: ``(n,)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

__all__ = ["Noise", "clip_spikes", "estimate_noise", "innovations", "noise_floor"]

Floats = NDArray[np.float64]
_BLOCK = 32
_MAX_MEMORY = 0.99


@dataclass(frozen=True, eq=False)
class Noise:
    """Short-memory noise of one channel.

    Attributes
    ----------
    phi : ndarray, (p,)
        Autoregressive coefficients, bias-corrected and raised by one standard error.
    autocorrelation : ndarray
        Autocorrelation at lags 0, 1, ... implied by `phi`, cut where it has died out.
    sd : ndarray, (n,)
        Local marginal standard deviation.
    """

    phi: Floats
    autocorrelation: Floats
    sd: Floats

    @property
    def inflation(self) -> float:
        """Long-run over marginal variance."""
        return float(1 + 2 * self.autocorrelation[1:].sum())

    @property
    def level(self) -> float:
        """Long-run variance, averaged along the series."""
        return float(np.mean(np.square(self.sd))) * self.inflation


def noise_floor(y: Floats) -> float:
    """Least noise that is taken seriously: a thousandth of the channel's spread (a schedule has none).

    The spread is the standard deviation, or 20 times that between the quartiles where a few huge values make it more.
    """
    spread = float(np.std(y))
    low, high = np.partition(y, (y.size // 4, y.size - 1 - y.size // 4))[[y.size // 4, y.size - 1 - y.size // 4]]
    if high > low:
        spread = min(spread, 20 * float(high - low) / 1.349)
    return 1e-3 * spread + 1e-300


def _block_scale(residual: Floats, width: int) -> Floats:
    """Robust standard deviation in blocks, smoothed by a median of five blocks, interpolated to rows: ``(n,)``."""
    n = residual.shape[0]
    blocks = max(n // width, 1)
    edges = np.linspace(0, n, blocks + 1).astype(int)
    magnitude = np.abs(residual)
    lengths = np.diff(edges)
    rows = edges[:-1, None] + np.arange(lengths.max())
    held = np.where(np.arange(lengths.max()) < lengths[:, None], magnitude[np.minimum(rows, n - 1)], np.inf)
    held.sort(axis=1)
    each = np.arange(blocks)
    raw = 0.5 * (held[each, (lengths - 1) // 2] + held[each, lengths // 2])
    raw = median_filter(raw, size=min(5, blocks), mode="nearest") / 0.6745
    return np.interp(np.arange(n), 0.5 * (edges[:-1] + edges[1:] - 1), raw)


def clip_spikes(y: Floats, *, width: int = 11, limit: float = 3.0) -> tuple[Floats, NDArray[np.bool_]]:
    """Clip residuals about a running median at `limit` local standard deviations.

    Parameters
    ----------
    y : ndarray, (n,)
        Finite values.
    width : int
        Rows of the running median; a burst shorter than half of it is a spike.
    limit : float
        In local robust standard deviations.

    Returns
    -------
    clipped : ndarray, (n,)
    spike : ndarray of bool, (n,)
        Rows beyond twice the limit.
    """
    n = y.shape[0]
    centre = median_filter(y, size=min(width, n), mode="nearest")
    residual = y - centre
    n_blocks = max(n // _BLOCK, 1)
    sd = _block_scale(residual, max(n // n_blocks, 1))
    # Rows that are their own median give residual 0; 11 rows of normal noise shrink the sd by about 4 %.
    sd = np.maximum(sd * 1.05, max(1e-3 * float(np.median(sd)), noise_floor(y)))
    return centre + np.clip(residual, -limit * sd, limit * sd), np.abs(residual) > 2 * limit * sd


def _blocks(y: Floats, width: int) -> Floats:
    """Half-overlapping blocks, a line removed from each: ``(n_blocks, width)``."""
    n = y.shape[0]
    starts = np.unique(np.linspace(0, n - width, max(int(np.ceil(2 * n / width)) - 1, 1)).astype(int))
    rows = y[starts[:, None] + np.arange(width)]
    x = np.arange(width) - (width - 1) / 2
    rows = rows - rows.mean(axis=1, keepdims=True)
    return np.asarray(rows - (rows @ x / (x @ x))[:, None] * x)


def _yule_walker(rho: Floats, top: int) -> list[tuple[Floats, float]]:
    """Levinson-Durbin for the orders 1 to `top`: coefficients, innovation variance relative to the marginal one."""
    phi: list[float] = []
    variance = 1.0
    fits = []
    r = rho.tolist()
    for k in range(1, top + 1):
        reflection = (r[k] - sum(f * r[k - 1 - j] for j, f in enumerate(phi))) / variance
        reflection = min(max(reflection, -0.995), 0.995)
        phi = [*(f - reflection * g for f, g in zip(phi, phi[::-1], strict=True)), reflection]
        variance *= 1 - reflection**2
        fits.append((np.array(phi), variance))
    return fits


def _implied_autocorrelation(phi: Floats, cut: int = 6000) -> Floats:
    """Autocorrelation of the autoregression `phi` until it has died out (below 1e-5) or `cut` lags."""
    p = phi.shape[0]
    system = np.eye(p)
    for i in range(p):  # rho_k = sum_j phi_j rho_|k-j|, rho_0 = 1
        for j in range(p):
            lag = abs(i - j)
            if lag > 0:
                system[i, lag - 1] -= phi[j]
    rho = [1.0, *np.linalg.solve(system, phi).tolist()]
    back = phi[::-1].tolist()
    for _ in range(p + 1, cut):
        rho.append(sum(f * r for f, r in zip(back, rho[-p:], strict=True)))
        if max(map(abs, rho[-p:])) < 1e-5:
            break
    return np.array(rho)


def estimate_noise(y: Floats, *, floor: float = 0.0, errors: float = 1.0) -> Noise:
    """Memory and local scale of the noise in a clipped series.

    Parameters
    ----------
    y : ndarray, (n,)
        Clipped values (or residuals), n >= 8.
    floor : float
        Least standard deviation (`noise_floor` of the series as it came).
    errors : float
        Standard errors by which the sum of the coefficients is raised.
    """
    n = y.shape[0]
    width = min(n, max(int(np.clip(n // 4, 32, 256)), min(n // 16, 512)))
    rows = _blocks(y, width)
    energy = np.einsum("ij,ij->i", rows, rows)
    usable = energy > 0
    if not np.any(usable):
        return Noise(np.zeros(1), np.array([1.0]), np.full(n, max(floor, 1e-300)))
    lags = min(8, width // 3)
    rows, energy = rows[usable], energy[usable]
    products = np.empty((lags, rows.shape[0]))
    for k in range(1, lags + 1):
        np.einsum("ij,ij->i", rows[:, k:], rows[:, :-k], out=products[k - 1])
        products[k - 1] *= width / (width - k)
    rho = np.concatenate([[1.0], np.median(products / energy, axis=1)])
    top = min(max(width // 40, 1), 6, lags)
    fits = _yule_walker(rho, top)
    scores = [n * math.log(v) + (p + 1) * math.log(n) for p, (_, v) in enumerate(fits)]
    phi, _ = fits[scores.index(min(scores))]
    total = float(phi.sum())
    corrected = (width * total + 2) / (width - 4) if width > 8 else total
    corrected = min(corrected, _MAX_MEMORY)
    raised = corrected + errors * math.sqrt(max(1 - corrected**2, 0.02) / n)
    raised = min(max(raised, 0.0), _MAX_MEMORY)
    phi = phi.copy()
    phi[0] += raised - total
    rho_model = _implied_autocorrelation(phi)
    if not np.all(np.abs(rho_model) <= 1 + 1e-9) or 1 + 2 * rho_model[1:].sum() < 1:
        phi = np.array([raised])
        rho_model = _implied_autocorrelation(phi)
    # The line removed from a block takes variance with it: (long-run variance) * 2 / width, about.
    inflation = 1 + 2 * rho_model[1:].sum()
    kept = max(1 - 2 * inflation / width, 0.3)
    sd = _local_sd(y, phi, rho_model)
    least = max(np.sqrt(np.median(energy) / width / kept) * 0.05, floor, 1e-300)
    return Noise(phi, rho_model, np.maximum(sd, least))


def innovations(y: Floats, phi: Floats) -> Floats:
    """``e_t = y_t - sum_j phi_j y_{t-j}``, the first ``p`` rows filled by reflection: ``(n,)``."""
    p = phi.shape[0]
    e = y[p:].copy()
    for j in range(1, p + 1):
        e -= phi[j - 1] * y[p - j : y.shape[0] - j]
    return np.concatenate([e[:p][::-1], e])


def _local_sd(y: Floats, phi: Floats, rho: Floats) -> Floats:
    """Marginal standard deviation along the rows, from innovations about their local median."""
    e = innovations(y, phi)
    e = e - median_filter(e, size=min(65, e.shape[0]), mode="nearest")
    p = phi.shape[0]
    relative = max(
        1 - float(phi @ rho[1 : p + 1]) if rho.shape[0] > p else 1 - float(phi @ np.pad(rho, (0, p))[1 : p + 1]), 1e-3
    )
    n = y.shape[0]
    width = int(np.clip(n // 4, 8, 128))
    blocks = max(n // width, 1)
    edges = np.linspace(0, n, blocks + 1).astype(int)
    squares = np.add.reduceat(np.square(e), edges[:-1]) / np.diff(edges)
    smooth = median_filter(squares, size=min(3, blocks), mode="nearest")
    return np.sqrt(np.interp(np.arange(n), 0.5 * (edges[:-1] + edges[1:] - 1), smooth) / relative)
