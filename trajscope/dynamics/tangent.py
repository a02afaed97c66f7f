r"""Lyapunov exponents along Jacobians: of a known map or flow, of fitted matrices, and over a finite time.

Tangent vectors :math:`Q` are carried along, :math:`J_t Q_{t-1} = Q_t R_t` (QR, signs so that :math:`R` has a positive
diagonal), and the exponents are the means of :math:`\log \operatorname{diag} R_t` (Benettin et al. 1980). Their sum is
the mean of :math:`\log|\det J|`, whatever the data: a check that costs nothing. A flow :math:`\dot x = f(x)` is
carried by Runge-Kutta of order 4 together with :math:`\dot Q = Df(x) Q`.

The finite-time exponent at row *t* over a horizon *h* is

.. math:: \Lambda_t = \tfrac1h \log \sigma_{\max}(J_t J_{t-1} \cdots J_{t-h+1}),

how much the worst departure grew per row. Along matrices fitted to noise it is biased upwards (the largest singular
value of a product of random matrices), so `finite_time_lyapunov` reports the band that a stationary VAR(1) with the
same matrix would give with the same windows.

All exponents are natural logarithms per iteration, or per unit of time for flows. Many starting points are carried at
once as rows of ``x0``; the spread between them gives the standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope._core.rolling_var import overall_products, rolling_var, solve_var, sorted_eigenvalues
from trajscope._core.surrogates import as_generator
from trajscope.dynamics._rows import Rows, as_rows
from trajscope.errors import InputError
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Exponents",
    "FiniteTime",
    "finite_time_exponents",
    "finite_time_lyapunov",
    "flow_exponents",
    "jacobian_exponents",
    "map_exponents",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Exponents:
    """Lyapunov spectrum.

    Attributes
    ----------
    values : ndarray, shape (k,)
        Descending, per iteration or per unit of time.
    error : ndarray, shape (k,)
        Standard error from the spread of the starting points; NaN for one.
    """

    values: Floats
    error: Floats


def _qr(m: Floats) -> tuple[Floats, Floats]:
    """Orthonormal part with a positive triangle, and the logarithm of the triangle's diagonal."""
    q, r = np.linalg.qr(m)
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)
    sign = np.where(diagonal < 0, -1.0, 1.0)
    with np.errstate(divide="ignore"):
        return q * sign[..., None, :], np.log(np.abs(diagonal))


def _starts(x0: ArrayLike, n_steps: int, n_transient: int) -> Floats:
    start = np.array(x0, dtype=np.float64, ndmin=2)
    if start.ndim != 2 or not np.isfinite(start).all() or start.shape[1] == 0:
        raise InputError(f"x0 has shape {np.shape(x0)}; expected finite (k,) or (n_starts, k).")
    if n_steps < 1 or n_transient < 0:
        raise InputError(f"n_steps is {n_steps} and n_transient {n_transient}; expected at least 1 and 0.")
    return start


def _spectrum(total: Floats, time: float) -> Exponents:
    """From summed logarithms, shape (n_starts, k)."""
    each = np.asarray(total) / time
    mean = each.mean(axis=0)
    order = np.argsort(-mean, kind="stable")
    m = each.shape[0]
    error = each.std(axis=0, ddof=1) / np.sqrt(m) if m > 1 else np.full(mean.shape, np.nan)
    return Exponents(mean[order], error[order])


def map_exponents(
    step: Callable[[Floats], Floats],
    jacobian: Callable[[Floats], Floats],
    x0: ArrayLike,
    n_steps: int,
    *,
    n_transient: int = 100,
) -> Exponents:
    """Spectrum of a known map :math:`x_{t+1} = f(x_t)`.

    Parameters
    ----------
    step, jacobian : callable
        From (n_starts, k) to (n_starts, k), and to (n_starts, k, k).
    x0 : array_like, shape (k,) or (n_starts, k)
    n_steps, n_transient : int
        Iterations counted, and left out before (100: enough for maps that forget exponentially).

    Raises
    ------
    InputError
        For starting points that are no numbers, or orbits that leave the floats.

    Examples
    --------
    >>> out = map_exponents(lambda x: 2 * x % 1, lambda x: np.full((x.shape[0], 1, 1), 2.0), [0.1], 40)
    >>> round(float(out.values[0]), 6)
    0.693147
    """
    x = _starts(x0, n_steps, n_transient)
    m, k = x.shape
    q = np.broadcast_to(np.eye(k), (m, k, k))
    total = np.zeros((m, k))
    for t in range(n_transient + n_steps):
        q, grown = _qr(jacobian(x) @ q)
        x = step(x)
        if t >= n_transient:
            total += grown
    if not np.isfinite(x).all():
        raise InputError("the orbit left the range of floats; start inside the attractor's basin.")
    return _spectrum(total, n_steps)


def flow_exponents(
    vector_field: Callable[[Floats], Floats],
    jacobian: Callable[[Floats], Floats],
    x0: ArrayLike,
    dt: float,
    n_steps: int,
    *,
    n_transient: int = 1000,
) -> Exponents:
    """Spectrum of a known flow, per unit of time; parameters as in `map_exponents`, ``dt`` the step of integration.

    Examples
    --------
    >>> a = np.diag([-1.0, -2.0])
    >>> out = flow_exponents(lambda x: x @ a.T, lambda x: np.broadcast_to(a, (x.shape[0], 2, 2)), [1.0, 1.0], 0.01, 50)
    >>> out.values.round(6).tolist()
    [-1.0, -2.0]
    """
    x = _starts(x0, n_steps, n_transient)
    if not dt > 0:
        raise InputError(f"dt is {dt}; expected a positive step of time.")
    m, k = x.shape
    q = np.broadcast_to(np.eye(k), (m, k, k))
    total = np.zeros((m, k))
    for t in range(n_transient + n_steps):
        k1, j1 = vector_field(x), jacobian(x) @ q
        x2 = x + dt / 2 * k1
        k2, j2 = vector_field(x2), jacobian(x2) @ (q + dt / 2 * j1)
        x3 = x + dt / 2 * k2
        k3, j3 = vector_field(x3), jacobian(x3) @ (q + dt / 2 * j2)
        x4 = x + dt * k3
        k4, j4 = vector_field(x4), jacobian(x4) @ (q + dt * j3)
        x = x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        q, grown = _qr(q + dt / 6 * (j1 + 2 * j2 + 2 * j3 + j4))
        if t >= n_transient:
            total += grown
    if not np.isfinite(x).all():
        raise InputError("the orbit left the range of floats; take a smaller dt or start inside the basin.")
    return _spectrum(total, n_steps * dt)


def jacobian_exponents(jacobians: ArrayLike) -> Floats:
    """Spectrum along a given sequence of matrices, per matrix, descending.

    Parameters
    ----------
    jacobians : array_like, shape (n_steps, k, k)
        In order of time; finite.

    Examples
    --------
    >>> jacobian_exponents(np.repeat(np.diag([0.5, 2.0])[None], 10, axis=0)).round(3).tolist()
    [0.693, -0.693]
    """
    j = _matrices(jacobians)
    q, total = np.eye(j.shape[1]), np.zeros(j.shape[1])
    for matrix in j:
        q, grown = _qr(matrix @ q)
        total += grown
    return np.sort(total / j.shape[0])[::-1]


def _matrices(jacobians: ArrayLike) -> Floats:
    try:
        j = np.asarray(jacobians, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"jacobians are not numeric ({error}); expected shape (n_steps, k, k).") from None
    if j.ndim != 3 or j.shape[1] != j.shape[2] or not j.size:
        raise InputError(f"jacobians have shape {j.shape}; expected (n_steps, k, k).")
    if not np.isfinite(j).all():
        raise InputError("jacobians hold values that are not finite; take a stretch without gaps.")
    return j


def finite_time_exponents(jacobians: ArrayLike, horizon: int) -> Floats:
    """Largest finite-time exponent per row over the last ``horizon`` matrices; NaN in the first rows and at gaps.

    Parameters
    ----------
    jacobians : array_like, shape (n_steps, k, k)
        NaN where there is none.
    horizon : int

    Returns
    -------
    ndarray, shape (n_steps,)
        Products are built by doubling and scaled as they grow, so that long horizons do not overflow.

    Examples
    --------
    >>> finite_time_exponents(np.full((4, 1, 1), 0.5), 3).round(3).tolist()
    [nan, nan, -0.693, -0.693]
    """
    j = np.asarray(jacobians, dtype=np.float64)
    if j.ndim != 3 or j.shape[1] != j.shape[2]:
        raise InputError(f"jacobians have shape {j.shape}; expected (n_steps, k, k).")
    if horizon < 1:
        raise InputError(f"horizon is {horizon}; expected at least one row.")
    n = j.shape[0]
    out = np.full(n, np.nan)
    if n < horizon:
        return out
    # product of the last 2^i matrices, and the logarithm of what was divided out of it
    size = np.abs(j).max(axis=(1, 2))
    size = np.where(size > 0, size, 1.0)
    power, log_power = j / size[:, None, None], np.log(size)
    done, log_done, length, span = power, log_power, 0, 1
    left = horizon
    while left:
        if left & 1:
            done, log_done = _then(done, log_done, power, log_power, length) if length else (power, log_power)
            length += span
        left >>= 1
        if left:
            power, log_power = _then(power, log_power, power, log_power, span)
            span *= 2
    good = np.isfinite(done).all(axis=(1, 2)) & np.isfinite(log_done)
    good[: horizon - 1] = False
    with np.errstate(divide="ignore"):
        out[good] = (np.log(np.linalg.norm(done[good], 2, axis=(1, 2))) + log_done[good]) / horizon
    return out


def _then(late: Floats, log_late: Floats, early: Floats, log_early: Floats, shift: int) -> tuple[Floats, Floats]:
    """Product of ``late`` at row t and ``early`` at row t - shift, scaled to norm one."""
    out, log = np.full_like(late, np.nan), np.full(log_late.shape, np.nan)
    if shift < late.shape[0]:
        out[shift:] = late[shift:] @ early[:-shift]
        size = np.abs(out).max(axis=(1, 2))
        size = np.where(size > 0, size, 1.0)
        out /= size[:, None, None]
        log[shift:] = log_late[shift:] + log_early[:-shift] + np.log(size[shift:])
    return out, log


@dataclass(frozen=True, eq=False)
class FiniteTime(Result):
    """Finite-time exponents along fitted matrices; returned by `finite_time_lyapunov`.

    Attributes
    ----------
    steps : ndarray, shape (n_rows,)
        Step of the last row used.
    values : ndarray, shape (n_rows,)
        Per row; divide by ``stride`` for per step.
    null_low, null_high : float
        2.5 % and 97.5 % points of the values in stationary surrogates; NaN without them.
    window, horizon : int
    stride : float
    names : tuple of str
    status : {"ok", "cannot tell"}
    reason : str
    """

    plot_name = "finite_time"

    steps: NDArray[Any]
    values: Floats = field(repr=False)
    null_low: float
    null_high: float
    window: int
    horizon: int
    stride: float
    names: tuple[str, ...]
    status: str
    reason: str

    def to_frame(self) -> pd.DataFrame:
        """One row a step: ``ftle`` per logged row and ``ftle_per_step``."""
        import pandas as pd

        table = {"ftle": self.values, "ftle_per_step": self.values / self.stride}
        return pd.DataFrame(table, index=pd.Index(self.steps, name="step"))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without the values of every row."""
        keys = ("null_low", "null_high", "window", "horizon", "stride", "names", "status", "reason")
        known = self.values[np.isfinite(self.values)]
        top = {"largest": float(known.max()), "median": float(np.median(known))} if known.size else {}
        return {k: jsonable(getattr(self, k)) for k in keys} | top

    def summary(self) -> str:
        """One sentence or two."""
        if self.status != "ok":
            return f"Finite-time Lyapunov exponent: cannot tell, {self.reason}."
        known = np.isfinite(self.values)
        top = int(np.nanargmax(self.values))
        text = (
            f"Finite-time Lyapunov exponent over {self.horizon} rows along VAR(1) matrices of {self.window}:"
            f" median {np.median(self.values[known]):.3f} per row, largest {self.values[top]:.3f} at step"
            f" {self.steps[top]}."
        )
        if np.isnan(self.null_high):
            return text + " Fitted matrices bias it upwards; no surrogates were drawn."
        above = float(np.mean(self.values[known] > self.null_high))
        return text + f" A stationary VAR(1) stays below {self.null_high:.3f} in 97.5 % of rows; {above:.0%} lie above."


def finite_time_lyapunov(
    source: Any,
    window: int = 100,
    horizon: int = 20,
    *,
    steps: ArrayLike | None = None,
    channels: Sequence[str] | None = None,
    n_surrogates: int = 19,
    rng: int | np.random.Generator | None = None,
) -> FiniteTime:
    """Finite-time exponent along the VAR(1) matrices of trailing windows, beside a stationary null.

    Parameters
    ----------
    source, steps, channels
        As in `trajscope.dynamics.rolling_var`.
    window, horizon : int, default 100 and 20
        Rows behind each matrix, and matrices behind each exponent.
    n_surrogates : int, default 19
        Stationary VAR(1) series with the matrix and noise of all rows; 0 for none.
    rng : int or Generator, default 0

    Notes
    -----
    Channels are measured in the sd of the first fitted window: the largest singular value depends on units. Causal but
    for the null, which is fitted to all rows.

    Examples
    --------
    >>> from trajscope.simulate import ar
    >>> found = finite_time_lyapunov(ar(600, 0.8, 2, rng=0), n_surrogates=3)
    >>> found.status, bool(np.nanmedian(found.values) < 0)
    ('ok', True)
    """
    if window < 4 or horizon < 1 or n_surrogates < 0:
        raise InputError(
            f"options out of range: window {window} >= 4, horizon {horizon} >= 1, n_surrogates {n_surrogates} >= 0."
        )
    generator = as_generator(rng)
    rows = as_rows(source, steps, channels)
    values, sd = _along(rows, window, horizon)
    known = np.isfinite(values)
    low = high = float("nan")
    if known.any() and n_surrogates:
        drawn = _null(rows, sd, window, horizon, n_surrogates, generator)
        if drawn.size:
            low, high = (float(v) for v in np.quantile(drawn, [0.025, 0.975]))
    reason = "" if known.any() else "no stretch of rows is long enough, or channels are constant or collinear"
    return FiniteTime(
        rows.steps, values, low, high, window, horizon, rows.stride, rows.names,
        "ok" if known.any() else "cannot tell", reason,
        provenance=make_provenance(
            "finite_time_lyapunov",
            {"window": window, "horizon": horizon, "channels": rows.names, "n_surrogates": n_surrogates},
            rows.x, rows.steps, seed=rng if isinstance(rng, int) else None if rng is not None else 0,
        ),
    )  # fmt: skip


def _along(rows: Rows, window: int, horizon: int) -> tuple[Floats, Floats]:
    values = np.full(len(rows), np.nan)
    sd = np.ones(rows.x.shape[1])
    first = True
    for piece in rows.pieces():
        fitted = rolling_var(rows.x[piece], window, linked=rows.linked[piece], pairs=((1, 1),))
        matrix = fitted.matrix
        good = np.flatnonzero(np.isfinite(matrix).all(axis=(1, 2)))
        if good.size and first:
            sd = np.sqrt(np.diagonal(fitted.products[1, 1][good[0]]) / fitted.count[good[0]])
            first = False
        values[piece] = finite_time_exponents(matrix * sd[None, None, :] / sd[None, :, None], horizon)
    return values, sd


def _null(rows: Rows, sd: Floats, window: int, horizon: int, count: int, rng: np.random.Generator) -> Floats:
    """Exponents in stationary VAR(1) series like all rows; at most 5,000 rows each. Empty if all rows grow."""
    z = rows.x / sd
    n, k = z.shape
    number, products = overall_products(z, ((0, 0), (0, 1), (1, 1)), linked=rows.linked)
    if number < 2 * k + 2:
        return np.empty(0)
    c = {p: s / number for p, s in products.items()}
    a = solve_var(c[0, 1][None], c[1, 1][None])[0]
    if not np.isfinite(a).all():
        return np.empty(0)
    radius = float(np.abs(sorted_eigenvalues(a[None])[0, 0]))
    if radius >= 1:  # a trend: the null is stationary, so bring it back to the edge
        a = a * (0.999 / radius)
    noise = c[0, 0] - a @ c[0, 1].T - c[0, 1] @ a.T + a @ c[1, 1] @ a.T
    size, axes = np.linalg.eigh((noise + noise.T) / 2)
    root = axes * np.sqrt(np.clip(size, 0, None))
    length = min(n, 5_000)
    e = rng.normal(size=(length + 200, count, k)) @ root.T
    x = np.zeros_like(e)
    for t in range(1, e.shape[0]):
        x[t] = x[t - 1] @ a.T + e[t]
    found = [finite_time_exponents(rolling_var(x[200:, i], window).matrix, horizon) for i in range(count)]
    drawn = np.concatenate(found)
    return np.asarray(drawn[np.isfinite(drawn)])
