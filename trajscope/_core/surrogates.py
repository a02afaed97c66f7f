r"""Surrogate series: what a channel could have looked like had it nothing to do with the others, or with its own
past.

- `circular_shift`: every channel is rotated by its own random offset. Keeps each channel exactly (spectrum,
  distribution, trend), breaks what channels have in common in time. Gaps travel with their channel.
- `phase_randomise`: Fourier phases drawn at random (Theiler et al. 1992). Keeps the spectrum; with ``common=True``
  the same phases are added to all channels, which keeps cross-spectra too (Prichard & Theiler 1994).
- `iaaft`: amplitude adjusted, iterated (Schreiber & Schmitz 1996): keeps the distribution exactly and the spectrum
  nearly.
- `ar_surrogate`: a Gaussian autoregression fitted to the channel (Yule-Walker of the biased autocovariance, so
  always stationary) and simulated anew.

All take ``(n_steps,)`` or ``(n_steps, n_channels)``, return a new array of the same shape, and draw from a
generator that is handed in. Fourier methods wrap the ends: a series whose ends differ gets a spurious
high-frequency floor.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope.errors import InputError

__all__ = ["SURROGATES", "ar_surrogate", "as_generator", "circular_shift", "fill_gaps", "iaaft", "phase_randomise"]

Floats = NDArray[np.float64]
Rng = np.random.Generator


def as_generator(rng: int | Rng | None) -> Rng:
    """A generator from a seed, a generator, or None (seed 0, so that nothing is random unless asked)."""
    if isinstance(rng, np.random.Generator):
        return rng
    if rng is None:
        return np.random.default_rng(0)
    if isinstance(rng, int | np.integer) and not isinstance(rng, bool) and rng >= 0:
        return np.random.default_rng(int(rng))
    raise InputError(f"rng is {rng!r}; expected an integer seed of 0 or more, a numpy.random.Generator or None.")


def _columns(x: ArrayLike) -> tuple[Floats, bool]:
    values = np.asarray(x, dtype=np.float64)
    if values.ndim not in (1, 2) or values.shape[0] < 2:
        raise InputError(
            f"x has shape {values.shape}; expected (n_steps,) or (n_steps, n_channels) with 2 rows or more."
        )
    return values.reshape(values.shape[0], -1), values.ndim == 1


def _complete(x: ArrayLike, name: str) -> tuple[Floats, bool]:
    values, flat = _columns(x)
    if not np.isfinite(values).all():
        raise InputError(
            f"{name} needs every value; x has gaps. Use fill_gaps(x) first, or circular_shift, which takes gaps."
        )
    return values, flat


def fill_gaps(x: ArrayLike) -> Floats:
    """Gaps filled on a straight line between neighbours (ends held); for surrogates only, never for an estimate.

    Examples
    --------
    >>> fill_gaps(np.array([np.nan, 1.0, np.nan, 3.0]))
    array([1., 1., 2., 3.])
    """
    values, flat = _columns(x)
    out = values.copy()
    rows = np.arange(out.shape[0])
    for c in range(out.shape[1]):
        known = np.isfinite(out[:, c])
        out[:, c] = np.interp(rows, rows[known], out[known, c]) if known.any() else 0.0
    return out[:, 0] if flat else out


def circular_shift(x: ArrayLike, rng: int | Rng | None = None) -> Floats:
    """Rotate every channel by its own offset, uniform over all rows.

    Examples
    --------
    >>> sorted(circular_shift(np.arange(4.0), rng=1).tolist())
    [0.0, 1.0, 2.0, 3.0]
    """
    values, flat = _columns(x)
    n, p = values.shape
    out = np.empty_like(values)
    offsets = [int(k) for k in np.atleast_1d(as_generator(rng).integers(0, n, size=p))]
    for c, k in enumerate(offsets):
        out[:k, c] = values[n - k :, c]
        out[k:, c] = values[: n - k, c]
    return out[:, 0] if flat else out


def phase_randomise(x: ArrayLike, rng: int | Rng | None = None, *, common: bool = False) -> Floats:
    """Same spectrum, random phases (``common``: the same phase added to all channels).

    Examples
    --------
    >>> y = phase_randomise(np.arange(8.0), rng=0)
    >>> bool(np.isclose(y.var(), np.arange(8.0).var()))
    True
    """
    values, flat = _complete(x, "phase_randomise")
    n, p = values.shape
    spectrum = np.fft.rfft(values, axis=0)
    phase = as_generator(rng).uniform(0, 2 * np.pi, size=(spectrum.shape[0], 1 if common else p))
    phase[0] = 0.0
    if n % 2 == 0:
        phase[-1] = 0.0  # the Nyquist term has to stay real
    out = np.fft.irfft(spectrum * np.exp(1j * phase), n=n, axis=0)
    return out[:, 0] if flat else out


def iaaft(x: ArrayLike, rng: int | Rng | None = None, *, max_iter: int = 200) -> Floats:
    """Same distribution, nearly the same spectrum; stops when the order no longer changes.

    Examples
    --------
    >>> sorted(iaaft(np.array([3.0, 1.0, 2.0, 5.0]), rng=0).tolist())
    [1.0, 2.0, 3.0, 5.0]
    """
    values, flat = _complete(x, "iaaft")
    generator = as_generator(rng)
    ordered, size = np.sort(values, axis=0), np.abs(np.fft.rfft(values, axis=0))
    out = generator.permuted(values, axis=0)
    ranks = np.argsort(np.argsort(out, axis=0, kind="stable"), axis=0)
    for _ in range(max_iter):
        spectrum = np.fft.rfft(out, axis=0)
        angle = np.exp(1j * np.angle(spectrum))
        matched = np.fft.irfft(size * angle, n=values.shape[0], axis=0)
        new = np.argsort(np.argsort(matched, axis=0, kind="stable"), axis=0)
        out = np.take_along_axis(ordered, new, axis=0)
        if np.array_equal(new, ranks):
            break
        ranks = new
    return out[:, 0] if flat else out


def ar_surrogate(x: ArrayLike, rng: int | Rng | None = None, *, order: int = 1) -> Floats:
    """A Gaussian autoregression of the given order, fitted to each channel and simulated, mean restored.

    Examples
    --------
    >>> ar_surrogate(np.sin(np.arange(50.0)), rng=0).shape
    (50,)
    """
    from scipy.linalg import solve_toeplitz
    from scipy.signal import lfilter

    values, flat = _complete(x, "ar_surrogate")
    n, p = values.shape
    if not 1 <= order < n:
        raise InputError(f"order is {order}; expected 1 to n_steps - 1 = {n - 1}.")
    generator = as_generator(rng)
    out = np.empty_like(values)
    burn = 200 + 20 * order
    for c in range(p):
        y = values[:, c] - values[:, c].mean()
        gamma = np.array([y[: n - k] @ y[k:] for k in range(order + 1)]) / n
        noise = generator.normal(size=n + burn)
        if gamma[0] <= 0:
            out[:, c] = values[:, c]
            continue
        phi = solve_toeplitz(gamma[:-1], gamma[1:])
        sd = np.sqrt(max(gamma[0] - float(phi @ gamma[1:]), 0.0))
        # a run-in of several correlation times, and the exact variance at its start
        memory = int(min(20_000, 5 / max(1e-3, 1 - float(np.abs(phi).sum()))))
        lead = np.concatenate([generator.normal(size=memory), noise])
        simulated = lfilter([sd], np.concatenate([[1.0], -phi]), lead)
        out[:, c] = simulated[-n:] + values[:, c].mean()
    return out[:, 0] if flat else out


SURROGATES: dict[str, Callable[[ArrayLike, Rng], Floats]] = {
    "circular": circular_shift,
    "phase": phase_randomise,
    "iaaft": iaaft,
    "ar": ar_surrogate,
}
"""Surrogates by name, each called as ``make(x, rng)``."""
