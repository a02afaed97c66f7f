r"""Directional coherence of gradients, x_grad, from whatever the log carries.

In order of priority, with :math:`n = |g|`, :math:`u = |\Delta\theta|`, learning rate :math:`\eta`, d parameters:

1. ``logged``: a logged cosine of successive gradients; or from :math:`|g_t - g_{t-1}|` by polarisation,

   .. math:: c_t = (n_t^2 + n_{t-1}^2 - |g_t - g_{t-1}|^2) / (2 n_t n_{t-1});

2. ``workers``: norms of N workers or micro-batches and of their mean (a spatial cosine, labelled so),

   .. math:: c = (N^2 |\bar g|^2 - \textstyle\sum n_i^2) / ((\sum n_i)^2 - \sum n_i^2);

3. ``momentum``: SGD with buffer :math:`m = b m + g` and :math:`m_t = u_t/\eta_t`,

   .. math:: \cos(m_{t-1}, g_t) = (m_t^2 - b^2 m_{t-1}^2 - n_t^2) / (2 b\, m_{t-1} n_t),

   exact without Nesterov, dampening or coupled weight decay; not the cosine of successive gradients;
4. ``adam``: :math:`\rho_t = u_t/(\eta_t \sqrt d)`, bias-corrected weights :math:`w_i \sim \beta_1^{t-i}`,
   :math:`A = \sum w_i n_i`, :math:`B = \sum w_i^2 n_i^2`, :math:`V` the bias-corrected EMA of :math:`n^2` with
   :math:`\beta_2`,

   .. math:: x_t = (\rho_t^2 V - B)/(A^2 - B),

   a norm-weighted mean pairwise cosine over the last :math:`1/(1-\beta_1)` steps, assuming equal signal-to-noise over
   coordinates and negligible eps; biased low when coherent. Without d only its ranks mean something;
5. ``descent``: :math:`e = (\bar\ell_{before} - \bar\ell_{after}) / \sum n_i u_i` over W rows: net progress, not
   coherence, labelled so;
6. ``unavailable``: coherence cannot be had from gradient norms alone.

Sources measure different things and never share an axis. Coherence is judged two-sided against the run's own
baseline: a rise can precede a spike as well (arXiv 2506.04805). The cosine of two noisy gradients scatters by 0.2 to
0.35 from row to row, and a band of six robust sd of that is wider than a cosine can be: no change, however large, would
leave it. There the trailing mean of ``window`` rows is judged instead, and `Coherence.smoothed` says so.

Rounding: the identities are differences of squares. An input that is known to a share *r* leaves an error of about
:math:`r (m_t^2 + b^2 m_{t-1}^2 + n_t^2) / (2 b\, m_{t-1} n_t)` in (3), which float32 keeps near 1e-6 and four printed
digits near 1e-3 where buffer and gradient are of one size; it grows with their ratio.

Source of the definitions: trajscope's own; the paper that names x_grad (arXiv 2601.13160) gives no formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.signal import lfilter

from trajscope.dynamics._departures import departures
from trajscope.dynamics._rows import LARGEST, numbers
from trajscope.errors import InputError
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "SOURCES",
    "Coherence",
    "adam_coherence",
    "descent_efficiency",
    "momentum_cosine",
    "polarised_cosine",
    "worker_cosine",
    "x_grad",
]

Floats = NDArray[np.float64]

SOURCES = ("logged", "workers", "momentum", "adam", "descent", "unavailable")
"""Where x_grad can come from, in order of priority."""

ESTIMANDS = {
    "logged": "cosine of successive gradients",
    "workers": "mean pairwise cosine between workers at one step (spatial)",
    "momentum": "cosine of the momentum buffer and the gradient",
    "adam": "norm-weighted mean pairwise cosine of recent gradients",
    "descent": "net progress per distance (not coherence)",
    "unavailable": "nothing",
}


def _arrays(*values: ArrayLike) -> list[Floats]:
    out = [np.clip(a, -LARGEST, LARGEST, out=a.copy(), where=np.isfinite(a)) for a in (numbers(v, "x") for v in values)]
    size = max(a.size for a in out)
    for a in out:
        if a.ndim > 1 or a.size not in (1, size):
            raise InputError(f"shapes {[a.shape for a in out]} do not match; expected one value a step in each.")
    return [np.broadcast_to(a, (size,)) for a in out]


def _before(values: Floats) -> Floats:
    return np.concatenate([[np.nan], values[:-1]])


def _divide(top: Floats, bottom: Floats) -> Floats:
    out: Floats = np.full(top.size, np.nan)
    np.divide(top, bottom, out=out, where=np.isfinite(bottom) & (bottom > 0))
    return out


def polarised_cosine(grad_norm: ArrayLike, difference_norm: ArrayLike) -> Floats:
    """Cosine of successive gradients from their norms and the norm of their difference; NaN in the first row.

    Examples
    --------
    >>> polarised_cosine([3.0, 4.0], [np.nan, 1.0])
    array([nan,  1.])
    """
    n, d = _arrays(grad_norm, difference_norm)
    previous = _before(n)
    return _divide(n**2 + previous**2 - d**2, 2 * n * previous)


def worker_cosine(count: ArrayLike, mean_norm: ArrayLike, sum_norm: ArrayLike, sum_norm2: ArrayLike) -> Floats:
    """Norm-weighted mean pairwise cosine of N gradients from the norm of their mean and sums of n_i and n_i^2.

    Examples
    --------
    >>> worker_cosine(2, [1.0], [2.0], [2.0])
    array([1.])
    """
    k, m, s1, s2 = _arrays(count, mean_norm, sum_norm, sum_norm2)
    return _divide(k**2 * m**2 - s2, s1**2 - s2)


def momentum_cosine(update_norm: ArrayLike, lr: ArrayLike, grad_norm: ArrayLike, momentum: float = 0.9) -> Floats:
    """cos(m_{t-1}, g_t) of SGD with momentum; rows are successive steps. NaN in the first row.

    Examples
    --------
    >>> momentum_cosine([0.1, 0.19], 0.1, [1.0, 1.0], 0.9).round(12)
    array([nan,  1.])
    """
    if not 0 < momentum < 1:
        raise InputError(f"momentum is {momentum}; expected between 0 and 1, both excluded.")
    u, eta, n = _arrays(update_norm, lr, grad_norm)
    m = _divide(u, eta)
    previous = _before(m)
    return _divide(m**2 - momentum**2 * previous**2 - n**2, 2 * momentum * previous * n)


def adam_coherence(
    update_norm: ArrayLike,
    lr: ArrayLike,
    grad_norm: ArrayLike,
    n_parameters: float,
    betas: tuple[float, float] = (0.9, 0.999),
) -> Floats:
    """Norm-weighted mean pairwise cosine of recent gradients under Adam; rows are all steps from the first on.

    A row that is not finite in all three is a step that the optimizer skipped: NaN, and the averages go on without it.

    Examples
    --------
    >>> g = np.random.default_rng(0).normal(size=(400, 50)) + 1.0
    >>> m = v = np.zeros(50)
    >>> u = []
    >>> for t, row in enumerate(g, 1):
    ...     m, v = 0.9 * m + 0.1 * row, 0.999 * v + 0.001 * row**2
    ...     u.append(np.linalg.norm(0.01 * (m / (1 - 0.9**t)) / np.sqrt(v / (1 - 0.999**t))))
    >>> x = adam_coherence(u, 0.01, np.linalg.norm(g, axis=1), 50)
    >>> bool(abs(np.mean(x[100:]) - 0.5) < 0.05)
    True
    """
    b1, b2 = betas
    if not (0 < b1 < 1 and 0 < b2 < 1) or not n_parameters > 0:
        raise InputError(f"betas {betas} must lie between 0 and 1 and n_parameters {n_parameters} be positive.")
    u, eta, n = _arrays(update_norm, lr, grad_norm)
    taken = np.isfinite(u) & np.isfinite(eta) & np.isfinite(n)
    if not taken.all():
        out = np.full(n.size, np.nan)
        if taken.any():
            out[taken] = adam_coherence(u[taken], eta[taken], n[taken], n_parameters, betas)
        return out
    t = np.arange(1, n.size + 1)
    first = 1 - b1**t
    rho = _divide(u, eta * math.sqrt(n_parameters))
    a = lfilter([1 - b1], [1, -b1], n) / first
    b = lfilter([(1 - b1) ** 2], [1, -(b1**2)], n**2) / first**2
    v = lfilter([1 - b2], [1, -b2], n**2) / (1 - b2**t)
    room = a**2 - b
    room = np.where(room > 1e-12 * a**2, room, np.nan)  # one gradient alone has no pairs
    return _divide(rho**2 * v - b, room)


def descent_efficiency(loss: ArrayLike, grad_norm: ArrayLike, update_norm: ArrayLike, window: int = 20) -> Floats:
    """Fall of the mean loss between two windows over the sum of n_i u_i in the later one; causal.

    Examples
    --------
    >>> float(descent_efficiency(np.linspace(10, 9, 60), 1.0, 0.1, 10)[-1].round(3))
    0.169
    """
    if window < 2:
        raise InputError(f"window is {window}; expected at least 2 rows.")
    ell, n, u = _arrays(loss, grad_norm, update_norm)
    mean = np.full(ell.size, np.nan)
    path = np.full(ell.size, np.nan)
    if ell.size >= window:
        kernel = np.ones(window)
        mean[window - 1 :] = np.convolve(ell, kernel, mode="valid") / window
        path[window - 1 :] = np.convolve(n * u, kernel, mode="valid")
    earlier = (
        np.concatenate([np.full(window, np.nan), mean[:-window]]) if ell.size > window else np.full_like(mean, np.nan)
    )
    return _divide(earlier - mean, path)


@dataclass(frozen=True, eq=False)
class Coherence(Result):
    """x_grad along a run; returned by `x_grad`.

    Attributes
    ----------
    steps, values : ndarray, shape (n_steps,)
        Empty where unavailable.
    source : str
        One of `SOURCES`.
    estimand : str
        What the values measure.
    status : {"ok", "degraded", "unavailable"}
    reason : str
        Why it is not "ok".
    baseline, scale : float
        Median and robust sd of the baseline rows (5 % to 25 % of the run), of what is judged (`smoothed`).
    drop, rise : float or None
        Step of the first row of ``h`` consecutive ones below, or above, baseline by ``c`` scales after the baseline.
    channels : tuple of str
        Channels it came from.
    smoothed : int
        Rows of the trailing mean that ``drop`` and ``rise`` were judged on; ``values`` are not smoothed.
    """

    steps: NDArray[Any]
    values: Floats
    source: str
    estimand: str
    status: str
    reason: str
    baseline: float
    scale: float
    drop: float | None
    rise: float | None
    channels: tuple[str, ...] = field(default=())
    smoothed: int = 1

    def to_frame(self) -> pd.DataFrame:
        """One row a step."""
        import pandas as pd

        return pd.DataFrame({"x_grad": self.values}, index=pd.Index(self.steps, name="step"))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {f.name: jsonable(getattr(self, f.name)) for f in fields(self)}

    def summary(self) -> str:
        """One or two sentences."""
        if self.status == "unavailable":
            return f"x_grad unavailable: {self.reason}."
        grade = f" ({self.status}: {self.reason})" if self.status != "ok" else ""
        if math.isnan(self.baseline):
            return (
                f"x_grad from {self.source}: {self.estimand}{grade}; not judged, fewer than 10 values between 5 % and"
                " 25 % of the run make no baseline."
            )
        moves = [f"{k} at step {v:g}" for k, v in (("lost", self.drop), ("gained", self.rise)) if v is not None]
        return (
            f"x_grad from {self.source}: {self.estimand}{grade}; baseline {self.baseline:.2f}, coherence "
            + (" and ".join(moves) if moves else "stays in its band")
            + (f" (mean of {self.smoothed} rows)" if self.smoothed > 1 else "")
            + "."
        )


def x_grad(
    run: Any,
    *,
    source: str | None = None,
    optimizer: str | None = None,
    momentum: float | None = None,
    betas: tuple[float, float] | None = None,
    n_parameters: int | None = None,
    c: float = 6.0,
    h: int = 3,
    window: int = 20,
    smooth: int | None = None,
) -> Coherence:
    """Gradient coherence of a run, from the best source its log carries.

    Parameters
    ----------
    run : Run or mapping
        A run, or role names (``grad_cos``, ``grad_norm``, ``update_norm``, ``lr``, ``loss``, ``grad_diff_norm``,
        ``micro_count``, ``micro_mean_norm``, ``micro_sum_norm``, ``micro_sum_norm2``) mapped to arrays.
    source : str, optional
        One of `SOURCES`, to take that one or nothing.
    optimizer : str, optional
        Words such as ``"sgd"``, ``"adam"``, ``"adamw"``; from the run's config by default.
    momentum, betas, n_parameters : optional
        From the config by default; else 0.9, (0.9, 0.999), and none.
    c : float, default 6
        Robust sd of the baseline for a loss or gain of coherence.
    h : int, default 3
        Rows in a row.
    window : int, default 20
        Rows of the descent efficiency, and of the trailing mean where one is needed.
    smooth : int, optional
        Rows of the trailing mean on which loss and gain are judged; by default 1, and ``window`` where c robust sd of
        single rows reach beyond what a cosine can be on both sides.

    Returns
    -------
    Coherence

    Raises
    ------
    InputError
        For an unknown source or options out of range.

    Examples
    --------
    >>> found = x_grad({"grad_norm": np.ones(50)})
    >>> found.status, found.source
    ('unavailable', 'unavailable')
    """
    if source is not None and source not in SOURCES:
        raise InputError(f"source is {source!r}; expected one of {', '.join(SOURCES)}.")
    if c <= 0 or h < 1 or (smooth is not None and smooth < 1):
        raise InputError(f"c is {c}, h is {h} and smooth {smooth}; expected positive numbers.")
    table = _Table.of(run)
    config = table.config
    optimizer = str(optimizer or config.get("optimizer") or config.get("algorithm") or "").lower()
    b = float(momentum if momentum is not None else config.get("momentum", config.get("beta", 0.9)) or 0.9)
    pair = betas or (float(config.get("beta1", 0.9)), float(config.get("beta2", 0.999)))
    d = n_parameters if n_parameters is not None else config.get("n_parameters")
    notes: list[str] = []
    for name in SOURCES[:-1] if source is None else (source,):
        found = _from(name, table, optimizer, b, pair, d, config, window, notes)
        if found is not None:
            steps, values, status, reason, used = found
            break
    else:
        name, steps, values, status, used = "unavailable", np.empty(0), np.empty(0), "unavailable", ()
        reason = (
            "; ".join(notes)
            or ("" if source is None else f"the channels that {source!r} needs are not logged together; ")
            + "it cannot be had from gradient norms alone: log the cosine of successive gradients"
        )
    rows = smooth or 1
    if smooth is None and name in ("logged", "workers", "momentum", "adam"):
        centre, single = departures(steps, values, c, h)[:2]
        rows = window if centre - c * single < -1 and centre + c * single > 1 else 1
    base, scale, drop, rise = departures(steps, values, c, h, rows)
    return Coherence(
        steps, values, name, ESTIMANDS[name], status, reason, base, scale, drop, rise, used, rows,
        provenance=make_provenance(
            "x_grad",
            {
                "source": source, "optimizer": optimizer, "momentum": b, "betas": pair, "n_parameters": d, "c": c,
                "h": h, "window": window, "smooth": rows,
            },
            values,
        ),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Table:
    """Channels by meaning, each with its steps and name."""

    channels: Mapping[str, tuple[NDArray[Any], Floats, str]]
    config: Mapping[str, Any]

    @staticmethod
    def of(run: Any) -> _Table:
        found: dict[str, tuple[NDArray[Any], Floats, str]] = {}
        if not (hasattr(run, "channels") and hasattr(run.channels, "keys")):
            if not isinstance(run, Mapping):
                raise InputError(f"expected a run or a mapping of roles to arrays, got {type(run).__name__}.")
            for key, value in run.items():
                values = numbers(value, str(key), "(n_steps,)")
                if values.ndim != 1:
                    raise InputError(f"{key} has shape {values.shape}; expected one value a step, (n_steps,).")
                found[str(key)] = (np.arange(values.size), values, str(key))
            return _Table(found, {})
        ranked = sorted(run.channels.items(), key=lambda kv: -float(getattr(kv[1], "role_confidence", 0.0)))
        for name, channel in ranked:
            if not len(channel.values):
                continue
            leaf = name.rsplit("/", 1)[-1].lower()
            role = str(getattr(channel, "role", ""))
            key = leaf if leaf.startswith("micro_") or leaf == "grad_diff_norm" else role
            if role == "grad_cos" and any(w in leaf for w in ("momentum", "last", "window", "pair", "micro")):
                continue  # another cosine than that of successive gradients
            found.setdefault(key, (np.asarray(channel.steps), np.asarray(channel.values, dtype=np.float64), name))
        return _Table(found, getattr(run, "config", {}) or {})

    def common(self, *keys: str) -> tuple[NDArray[Any], list[Floats], tuple[str, ...]] | None:
        """The named channels on the steps that all of them logged; None where one is missing."""
        if any(k not in self.channels for k in keys):
            return None
        steps = self.channels[keys[0]][0]
        for key in keys[1:]:
            steps = np.intersect1d(steps, self.channels[key][0])
        if not steps.size:
            return None
        values = [v[np.searchsorted(s, steps)] for s, v, _ in (self.channels[k] for k in keys)]
        return steps, values, tuple(self.channels[k][2] for k in keys)


_CLIP_KEYS = ("clip", "grad_clip", "max_grad_norm", "clip_grad_norm", "gradient_clip_val")
"""Names under which a configuration says that gradients are clipped."""

_Found = tuple[NDArray[Any], Floats, str, str, tuple[str, ...]]


def _from(
    source: str,
    table: _Table,
    optimizer: str,
    momentum: float,
    betas: tuple[float, float],
    n_parameters: Any,
    config: Mapping[str, Any],
    window: int,
    notes: list[str],
) -> _Found | None:
    decay = float(config.get("weight_decay", 0) or 0)
    if source == "logged":
        got = table.common("grad_cos")
        if got:
            return got[0], got[1][0], "ok", "", got[2]
        got = table.common("grad_norm", "grad_diff_norm")
        if got:
            values, dense = polarised_cosine(*got[1]), _dense(got[0])
            return got[0], _masked(values, got[0]), "ok" if dense else "degraded", _gap(dense), got[2]
        return None
    if source == "workers":
        got = table.common("micro_count", "micro_mean_norm", "micro_sum_norm", "micro_sum_norm2")
        return (got[0], worker_cosine(*got[1]), "ok", "", got[2]) if got else None
    if source in ("momentum", "adam"):
        got = table.common("update_norm", "lr", "grad_norm")
        if got is None:
            return None
        steps, (moved, eta, norm), used = got
        dense = _dense(steps)
        clip = next((config[k] for k in _CLIP_KEYS if config.get(k)), None)
        clipped = f"gradients are clipped at {clip}, their norms are logged before that" if clip else ""
        if source == "momentum":
            if "sgd" not in optimizer and optimizer not in ("momentum", "heavy_ball"):
                notes.append("the momentum identity needs SGD with momentum (optimizer not said to be one)")
                return None
            if config.get("nesterov") or config.get("dampening"):
                notes.append("the momentum identity does not hold with Nesterov or dampening")
                return None
            coupled = "weight decay is coupled to the gradient" if decay else ""
            reason = "; ".join(filter(None, (_gap(dense), coupled, clipped)))
            values = _masked(momentum_cosine(moved, eta, norm, momentum), steps)
            return steps, values, "degraded" if reason else "ok", reason, used
        if "adam" not in optimizer:
            notes.append("the Adam identity needs Adam (optimizer not said to be it)")
            return None
        if decay:
            notes.append("the Adam identity does not hold with weight decay unless <u, theta> is logged")
            return None
        reason = "; ".join(
            filter(None, (_gap(dense), "" if n_parameters else "number of parameters unknown: ranks only"))
        )
        values = adam_coherence(moved, eta, norm, float(n_parameters or 1.0), betas)
        return steps, values, "degraded" if reason else "ok", reason, used
    if source == "descent":
        got = table.common("loss", "grad_norm", "update_norm")
        if got is None:
            return None
        ell, n, u = got[1]
        return got[0], descent_efficiency(ell, n, u, window), "degraded", "net progress, not coherence", got[2]
    return None


def _dense(steps: NDArray[Any]) -> bool:
    return steps.size < 2 or bool(np.all(np.diff(steps) == 1))


def _gap(dense: bool) -> str:
    return "" if dense else "not every step is logged"


def _masked(values: Floats, steps: NDArray[Any]) -> Floats:
    """Drop rows whose predecessor is not the step before."""
    out = values.copy()
    out[1:][np.diff(steps) != 1] = np.nan
    return out
