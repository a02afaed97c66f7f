r"""Series and logs with known truth: what a method is tried on before it is believed.

Every function draws from a generator that is handed in (``rng``), returns arrays, and says in its docstring what is
true of them:

========================  =====================================================================================
`ar`                      stationary AR(1) channels of variance 1
`ornstein_uhlenbeck`      lag-1 autocorrelation exp(-k dt), variance sigma^2 / (2k)
`fold`                    dx = (a - x^2) dt + sigma dW: autocorrelation exp(-2 sqrt(a) dt), variance sigma^2 / (4
sqrt(a)) `linear_map`              x' = lambda_t x + noise: slowing down as lambda -> 1 (fold-like) or -1 (flip:
gradient descent) `neimark_sacker`          a plane rotation whose modulus approaches 1 at a given angle
`state_space`             channels driven by a few linear states with known eigenvalues
`training_log`            channels of a training run with healthy trends, and a departure where asked for
========================  =====================================================================================

Sources of the closed forms: Gardiner (2009), sec. 3.8; Scheffer et al. (2009); Wissel (1984).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.signal import lfilter

from trajscope._core.kalman import Model, simulate_states
from trajscope._core.surrogates import as_generator
from trajscope.errors import InputError, nearest

__all__ = [
    "SimulatedLog",
    "ar",
    "fold",
    "linear_map",
    "neimark_sacker",
    "ornstein_uhlenbeck",
    "state_space",
    "training_log",
    "with_gaps",
]

Floats = NDArray[np.float64]
Rng = int | np.random.Generator | None


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise InputError(f"{name} is {value}; expected a number above 0.")


def _length(n_steps: int) -> None:
    if n_steps < 1:
        raise InputError(f"n_steps is {n_steps}; expected at least 1.")


def ar(n_steps: int, rho: float, n_channels: int = 1, *, rng: Rng = None) -> Floats:
    """Independent stationary AR(1) channels with mean 0 and variance 1, shape (n_steps, n_channels).

    Examples
    --------
    >>> x = ar(20_000, 0.9, rng=1)[:, 0]
    >>> bool(abs(np.corrcoef(x[1:], x[:-1])[0, 1] - 0.9) < 0.01)
    True
    """
    _length(n_steps)
    if not -1 < rho < 1:
        raise InputError(f"rho is {rho}; a stationary AR(1) needs a value between -1 and 1.")
    noise = as_generator(rng).normal(size=(n_steps, n_channels))
    noise[0] /= np.sqrt(1 - rho**2)
    return np.asarray(lfilter([np.sqrt(1 - rho**2)], [1.0, -rho], noise, axis=0), dtype=np.float64)


def ornstein_uhlenbeck(
    n_steps: int, k: float, sigma: float, dt: float, n_channels: int = 1, *, rng: Rng = None
) -> Floats:
    """dx = -k x dt + sigma dW seen every ``dt``, exact, stationary from its first row; (n_steps, n_channels)."""
    for name, value in (("k", k), ("sigma", sigma), ("dt", dt)):
        _positive(name, value)
    scale = float(sigma / np.sqrt(2 * k))
    return ar(n_steps, float(np.exp(-k * dt)), n_channels, rng=rng) * scale


def fold(
    n_steps: int, a: ArrayLike, sigma: float = 0.05, dt: float = 0.1, *, substeps: int = 10, rng: Rng = None
) -> Floats:
    r"""Normal form of a fold, :math:`dx = (a_t - x^2)\,dt + \sigma\,dW`, started in the equilibrium
    :math:`\sqrt{a_0}`.

    Parameters
    ----------
    n_steps : int
    a : float or array_like, shape (n_steps,)
        Control parameter; the equilibrium vanishes at 0.
    sigma, dt : float
        Noise, and time between rows.
    substeps : int, default 10
        Euler-Maruyama steps between rows.

    Returns
    -------
    ndarray, shape (n_steps,)
        NaN once the state has escaped (x < -10): a collapse that does not come back.
    """
    _length(n_steps)
    _positive("sigma", sigma)
    _positive("dt", dt)
    control = np.broadcast_to(np.asarray(a, dtype=np.float64), (n_steps,))
    if control[0] <= 0:
        raise InputError(f"a starts at {control[0]}; the fold has an equilibrium only above 0.")
    noise = as_generator(rng).normal(size=(n_steps, substeps)) * (sigma * np.sqrt(dt / substeps))
    h = dt / substeps
    x, out = float(np.sqrt(control[0])), np.full(n_steps, np.nan)
    for t in range(n_steps):
        level = float(control[t])
        for kick in noise[t].tolist():
            x += (level - x * x) * h + kick
        if x < -10:
            break
        out[t] = x
    return out


def linear_map(n_steps: int, rate: ArrayLike, sigma: ArrayLike = 1.0, *, rng: Rng = None) -> Floats:
    r"""x' = lambda_t x + sigma_t w, shape (n_steps,), started at 0.

    Gradient descent on a quadratic is this map with :math:`\lambda = 1 - \eta\,h` (learning rate times curvature):
    it loses stability at :math:`\eta h = 2`, through :math:`\lambda = -1`, where the lag-1 autocorrelation is -1,
    not +1.
    """
    _length(n_steps)
    lam = np.broadcast_to(np.asarray(rate, dtype=np.float64), (n_steps,))
    kicks = as_generator(rng).normal(size=n_steps) * np.broadcast_to(np.asarray(sigma, dtype=np.float64), (n_steps,))
    x, out = 0.0, np.empty(n_steps)
    for t, (factor, kick) in enumerate(zip(lam.tolist(), kicks.tolist(), strict=True)):
        x = factor * x + kick
        out[t] = x
    return out


def neimark_sacker(
    n_steps: int, modulus: ArrayLike, angle: float = 0.3 * np.pi, sigma: float = 1.0, *, rng: Rng = None
) -> Floats:
    """A noisy rotation of the plane by ``angle`` radians a row, shrinking by ``modulus``; shape (n_steps, 2)."""
    _length(n_steps)
    size = np.broadcast_to(np.asarray(modulus, dtype=np.float64), (n_steps,))
    kicks = as_generator(rng).normal(size=(n_steps, 2)) * sigma
    z, out = 0j, np.empty(n_steps, dtype=np.complex128)
    turn = complex(np.exp(1j * angle))
    for t in range(n_steps):
        z = size[t] * turn * z + complex(kicks[t, 0], kicks[t, 1])
        out[t] = z
    return np.stack([out.real, out.imag], axis=1)


def state_space(
    n_steps: int,
    rates: ArrayLike = (0.97, 0.85),
    n_channels: int = 10,
    *,
    signal_to_noise: float = 1.0,
    rng: Rng = None,
) -> tuple[Floats, Floats, Model]:
    """Channels driven by independent AR(1) states through orthonormal loadings.

    Parameters
    ----------
    rates : array_like, shape (k,), default (0.97, 0.85)
        Eigenvalues of the dynamics; every state has variance 1.
    signal_to_noise : float, default 1
        Mean variance of a channel that comes from the states over that of its white noise (1).

    Returns
    -------
    x : ndarray, shape (n_steps, n_channels)
    z : ndarray, shape (n_steps, k)
    model : Model
        The truth.

    Examples
    --------
    >>> x, z, model = state_space(100, rng=0)
    >>> x.shape, z.shape, model.a.diagonal().tolist()
    ((100, 10), (100, 2), [0.97, 0.85])
    """
    _length(n_steps)
    _positive("signal_to_noise", signal_to_noise)
    lam = np.atleast_1d(np.asarray(rates, dtype=np.float64))
    k = lam.size
    if k > n_channels or not (np.abs(lam) < 1).all():
        raise InputError(f"rates are {lam.tolist()}; expected at most n_channels = {n_channels}, all between -1 and 1.")
    generator = as_generator(rng)
    basis = np.linalg.qr(generator.normal(size=(n_channels, k)))[0]
    c = basis * np.sqrt(signal_to_noise * n_channels / k)
    model = Model(np.diag(lam), c, np.diag(1 - lam**2), np.ones(n_channels), np.eye(k))
    z = simulate_states(model, n_steps, generator)
    return z @ c.T + generator.normal(size=(n_steps, n_channels)), z, model


def with_gaps(x: ArrayLike, share: float = 0.0, every: ArrayLike | None = None, *, rng: Rng = None) -> Floats:
    """A copy with cells missing at random, and channels logged only every so many rows.

    Parameters
    ----------
    share : float, default 0
        Probability that a cell is missing.
    every : array_like of int, shape (n_channels,), optional
        Channel c is kept on rows 0, every[c], 2 every[c], ... only.
    """
    out = np.array(x, dtype=np.float64)
    if not 0 <= share <= 1:
        raise InputError(f"share is {share}; expected a probability.")
    if every is not None:
        for c, stride in enumerate(np.asarray(every, dtype=np.int64).tolist()):
            gone = np.arange(out.shape[0]) % stride != 0
            out[gone, c] = np.nan
    out[as_generator(rng).random(out.shape) < share] = np.nan
    return out


@dataclass(frozen=True, eq=False)
class SimulatedLog:
    """A training log with known truth.

    Attributes
    ----------
    steps : ndarray, shape (n_steps,)
    names : tuple of str
        loss, grad_norm, update_norm, param_norm, learning_rate, return.
    values : ndarray, shape (n_steps, 6)
    onset : int or None
        First row of the departure; None in a healthy run.
    kind : str
    truth : mapping
        What was put in: time-scale, noise, autocorrelation, size of the departure in noise standard deviations.
    """

    steps: NDArray[np.int64]
    names: tuple[str, ...]
    values: Floats
    onset: int | None
    kind: str
    truth: dict[str, Any] = field(default_factory=dict)


_NAMES = ("loss", "grad_norm", "update_norm", "param_norm", "learning_rate", "return")
_KINDS = ("healthy", "spike", "collapse", "drift", "divergence")


def training_log(
    n_steps: int = 2000,
    kind: Literal["healthy", "spike", "collapse", "drift", "divergence"] = "healthy",
    *,
    onset: int | None = None,
    size: float = 10.0,
    rho: float = 0.5,
    stride: int = 1,
    rng: Rng = None,
) -> SimulatedLog:
    """Six channels of a training run: a decaying loss, norms, a cosine schedule, a rising return, AR noise in
    common.

    Parameters
    ----------
    n_steps : int, default 2000
        Rows.
    kind : str, default "healthy"
        ``"spike"``: 10 rows up and back; ``"collapse"``: loss and return leave for good; ``"drift"``: they leave
        slowly, reaching ``size`` at the end; ``"divergence"``: the loss grows without bound and turns into NaN.
    onset : int, optional
        First row of the departure; default 60 % of the run.
    size : float, default 10
        Size of the departure in standard deviations of the noise.
    rho : float, default 0.5
        Lag-1 autocorrelation of the noise.
    stride : int, default 1
        Steps between rows.

    Examples
    --------
    >>> log = training_log(500, "collapse", rng=0)
    >>> log.onset, log.values.shape
    (300, (500, 6))
    """
    if n_steps < 20:
        raise InputError(f"n_steps is {n_steps}; a log with trends needs at least 20 rows.")
    if kind not in _KINDS:
        raise InputError(f"kind is {kind!r}. {nearest(str(kind), _KINDS)}")
    generator = as_generator(rng)
    t = np.arange(n_steps)
    scale = 0.05
    own, common = ar(n_steps, rho, 5, rng=generator), ar(n_steps, rho, 1, rng=generator)[:, 0]
    noise = scale * (0.8 * own + 0.6 * common[:, None])
    log_loss = np.log(0.5 + 2.5 * np.exp(-5 * t / n_steps)) + noise[:, 0]
    log_grad = np.log(0.3 + 1.7 * np.exp(-8 * t / n_steps)) + noise[:, 1]
    rate = 1e-3 * np.minimum(1, (t + 1) / (0.03 * n_steps)) * (0.55 + 0.45 * np.cos(np.pi * t / n_steps))
    gain = 1 - np.exp(-4 * t / n_steps) + noise[:, 4]
    start = None if kind == "healthy" else (int(0.6 * n_steps) if onset is None else onset)
    if start is not None:
        if not 0 < start < n_steps:
            raise InputError(f"onset is {start}; expected a row from 1 to n_steps - 1 = {n_steps - 1}.")
        lift = {
            "spike": (t >= start) & (t < start + 10),
            "collapse": t >= start,
            "drift": np.clip((t - start) / max(1, n_steps - 1 - start), 0, 1),
            "divergence": np.clip((t - start) / 10.0, 0, None),
        }[kind]
        lift = np.asarray(lift, dtype=np.float64) * size * scale
        log_loss, log_grad, gain = log_loss + lift, log_grad + lift, gain - lift
    with np.errstate(over="ignore"):
        loss, grad = np.exp(log_loss), np.exp(log_grad)
    update = rate * grad * np.exp(0.5 * noise[:, 2])
    if kind == "divergence":
        loss = np.where(loss > 1e4, np.nan, loss)
    weights = 10 + np.cumsum(update) * 0.1 + 0.01 * noise[:, 3]
    values = np.stack([loss, grad, update, weights, rate, gain], axis=1)
    truth = {"noise_sd": scale, "rho": rho, "size": size if start is not None else 0.0}
    return SimulatedLog(t.astype(np.int64) * stride, _NAMES, values, start, kind, truth)
