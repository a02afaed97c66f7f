r"""Spikes: rows of one channel that stand out from what the rows before them predict.

A channel is put on the scale of its role (log for positive heavy-tailed ones, asinh for signed losses, as logged
otherwise), each row is predicted from earlier rows, and a row whose whitened residual exceeds *T* robust sd is flagged
(`trajscope.detect._predict` has the formulas and the short-history rule). Flagged rows of one excursion make one event.
Later rows then tell what kind of event it was, by the level *m* and scale *s* frozen just before it:

===========  =====================================================================================================
fast         back inside the band within 5 rows: an isolated spike
slow         back inside the band later, within 100 rows
partial      stays above the band, but at less than half of the jump
new level    stays at half of the jump or more: a level shift, not a spike
divergence   never returns, and the last rows are no better than the first ones, or non-finite values follow at once
undetermined the log ends within three rows
===========  =====================================================================================================

Back inside the band: the median of three rows lies within 3 s of m.

The spike score of OLMo 2 (arXiv 2501.00656: share of points at least 7 sd from the mean of the 1,000 before) is beside
it, on the raw and the log series. It depends on stride and window, so both are reported with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope._core.rolling import MAD_TO_SD, trailing_mean_std
from trajscope.detect._inputs import as_series
from trajscope.detect._predict import surprise
from trajscope.errors import InputError, nearest
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CLASSES", "SpikeScore", "Spikes", "spike_score", "spikes", "transform"]

Floats = NDArray[np.float64]

CLASSES = ("fast", "slow", "partial", "new level", "divergence", "undetermined")
"""How a spike went on."""

LOG_ROLES = frozenset(
    {
        "loss", "val_loss", "grad_norm", "update_norm", "param_norm", "kl", "lr", "perplexity", "val_perplexity",
        "value_loss", "aux_loss", "error", "val_error", "td_error", "loss_scale", "step_time",
    }
)  # fmt: skip
"""Roles judged on a log scale while they are positive."""

ASINH_ROLES = frozenset({"policy_loss", "return", "eval_return", "q_value"})
"""Signed, heavy-tailed roles, judged on the scale asinh(y / s)."""

_DOWN_ROLES = frozenset(
    {"accuracy", "val_accuracy", "success", "return", "eval_return", "throughput", "explained_variance"}
)
_BOTH_ROLES = frozenset(
    {"lr", "grad_cos", "entropy", "momentum", "temperature", "q_value", "clip_fraction", "loss_scale", "param_norm"}
)


@dataclass(frozen=True)
class SpikeScore:
    """Share of points that lie at least ``threshold`` sd above the mean of the ``window`` before.

    Attributes
    ----------
    raw, log : float
        Score on the values as logged and on their logs; NaN where nothing can be scored (too short, not positive).
    threshold : float
    window : int
        Rows; the first rows that are scored have at least half of it before them.
    stride : float
        Median distance of steps: a score is only comparable at the same stride.
    n : int
        Rows scored.
    """

    raw: float
    log: float
    threshold: float
    window: int
    stride: float
    n: int


@dataclass(frozen=True, eq=False)
class Spikes(Result):
    """Events of one channel; returned by `spikes`. All per-event arrays have shape (n_events,).

    Attributes
    ----------
    steps, rows : ndarray
        Step and row at which each event begins.
    sizes : ndarray
        Signed jump of the peak over the predicted level, in the units of the log.
    z : ndarray
        Signed residual at the most extreme flagged row, robust sd.
    recovery : tuple of str
        One of `CLASSES` each.
    widths : ndarray
        Rows until the channel was back in its band; -1 where it never came back.
    known : ndarray of bool
        Whether a known event explains it.
    nonfinite_steps : ndarray
        Steps with NaN or Inf; events, not gaps.
    channel, role, side, scale : str
        What was judged, how; scale is "log", "asinh" or "none".
    n_rows, n_judged : int
        Rows, and rows that had enough history to be judged.
    stride : float
    x_steps, x_values : ndarray, shape (n_rows,)
        The series judged.
    """

    plot_name = "spikes"

    steps: NDArray[Any]
    rows: NDArray[np.intp]
    sizes: Floats
    z: Floats
    recovery: tuple[str, ...]
    widths: NDArray[np.int64]
    known: NDArray[np.bool_]
    nonfinite_steps: NDArray[Any]
    channel: str
    role: str
    side: str
    scale: str
    n_rows: int
    n_judged: int
    stride: float
    x_steps: NDArray[Any] = field(repr=False)
    x_values: Floats = field(repr=False)

    def __len__(self) -> int:
        return int(self.steps.size)

    @property
    def enough_history(self) -> bool:
        """False where no row could be judged: "no spikes" means nothing then."""
        return self.n_judged > 0

    def score(self, s: float = 7.0, *, window: int = 1000) -> SpikeScore:
        """OLMo 2 spike score of the channel (`spike_score`)."""
        return spike_score(self.x_values, self.x_steps, threshold=s, window=window)

    def to_frame(self) -> pd.DataFrame:
        """One row an event: step, row, size, z, recovery, width, known."""
        import pandas as pd

        return pd.DataFrame(
            {
                "step": self.steps,
                "row": self.rows,
                "size": self.sizes,
                "z": self.z,
                "recovery": list(self.recovery),
                "width": self.widths,
                "known": self.known,
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without the series itself."""
        return {f.name: jsonable(getattr(self, f.name)) for f in fields(self) if not f.name.startswith("x_")}

    def summary(self) -> str:
        """One or two sentences."""
        bad = self.nonfinite_steps.size
        tail = (
            f" {bad} non-finite {'value' if bad == 1 else 'values'}, first at step {self.nonfinite_steps[0]}."
            if bad
            else ""
        )
        if not self.enough_history:
            return f"{self.channel}: not enough history to judge ({self.n_rows} rows).{tail}"
        if not len(self):
            return f"{self.channel}: no spike in {self.n_judged} rows.{tail}"
        counts = ", ".join(f"{self.recovery.count(c)} {c}" for c in CLASSES if c in self.recovery)
        top = int(np.argmax(np.abs(self.z)))
        return (
            f"{self.channel}: {len(self)} {'event' if len(self) == 1 else 'events'} in {self.n_judged} rows ({counts}); "
            f"largest at step {self.steps[top]}, {self.z[top]:+.0f} robust sd.{tail}"
        )


def transform(values: Floats, role: str = "", scale: str | None = None) -> tuple[Floats, str]:
    """Put a channel on the scale on which its noise is even.

    Parameters
    ----------
    values : ndarray, shape (n_steps,)
    role : str
        Role of the channel; a channel without one is taken on a log scale when it is strictly positive.
    scale : {"log", "asinh", "none"}, optional
        Overrides the role.

    Returns
    -------
    y : ndarray, shape (n_steps,)
        NaN where the value is not finite.
    scale : str
    """
    good = np.isfinite(values)
    finite = values[good]
    if scale is None:
        positive = bool(finite.size) and bool(finite.min() > 0)
        wants_log = role in LOG_ROLES or role == ""
        scale = "log" if positive and wants_log else "asinh" if role in LOG_ROLES | ASINH_ROLES else "none"
    elif scale == "log" and finite.size and finite.min() <= 0:
        raise InputError(f"scale='log' needs positive values, the smallest is {finite.min():g}; use 'asinh' or 'none'.")
    y = np.full(values.size, np.nan)
    if scale == "log":
        y[good] = np.log(finite)
    elif scale == "asinh":
        spread = MAD_TO_SD * float(np.median(np.abs(finite - np.median(finite)))) if finite.size else 0.0
        y[good] = np.arcsinh(finite / spread) if spread > 0 else finite
    else:
        y[good] = finite
    return y, scale


def spike_score(
    values: ArrayLike, steps: ArrayLike | None = None, *, threshold: float = 7.0, window: int = 1000
) -> SpikeScore:
    """Share of points at least ``threshold`` sd above the mean of the ``window`` points before (OLMo 2).

    Parameters
    ----------
    values : array_like, shape (n_steps,)
    steps : array_like, shape (n_steps,), optional
    threshold : float, default 7
    window : int, default 1000
        Shorter logs use what is there, but never fewer than 64 rows: inside n rows no z can exceed (n-1)/sqrt(n).

    Returns
    -------
    SpikeScore

    Examples
    --------
    >>> x = np.ones(2000) + 0.01 * np.sin(np.arange(2000))
    >>> x[1500] = 5
    >>> score = spike_score(x)
    >>> round(score.raw * score.n), score.stride
    (1, 1.0)
    """
    series = as_series(values, steps)
    x = series.values
    least = min(window, max(64, window // 2))
    gaps = np.diff(series.steps.astype(np.float64))
    gaps = gaps[gaps > 0]
    stride = float(np.median(gaps)) if gaps.size else math.nan

    def share(y: Floats) -> tuple[float, int]:
        mean, std = trailing_mean_std(y, window, min_count=least)
        judged = np.isfinite(y) & np.isfinite(std)
        n = int(np.count_nonzero(judged))
        if n == 0:
            return math.nan, 0
        # sums of squares round at 1e-16 of the level squared: a flat window must not turn dust into sd
        std = np.maximum(std, 1e-9 * np.abs(mean))
        high = judged & (y - mean >= threshold * std) & (y > mean)
        return float(np.count_nonzero(high)) / n, n

    raw, n = share(x)
    finite = x[np.isfinite(x)]
    logs = math.nan
    if finite.size and finite.min() > 0:
        logs = share(transform(x, scale="log")[0])[0]
    return SpikeScore(raw, logs, threshold, window, stride, n)


def spikes(
    source: Any,
    steps: ArrayLike | None = None,
    *,
    channel: str | None = None,
    role: str | None = None,
    side: str | None = None,
    scale: str | None = None,
    z: float = 5.0,
    window: int = 100,
    tail_window: int = 1000,
    min_points: int = 5,
    floor: float | None = None,
    fast: int = 5,
    slow: int = 100,
    band: float = 3.0,
    known_events: ArrayLike | None = None,
    tolerance: float | None = None,
) -> Spikes:
    """Find the rows of a channel that stand out, and say how it went on after each.

    Parameters
    ----------
    source : Run, Channel or array_like, shape (n_steps,)
        A run needs ``channel``.
    steps : array_like, shape (n_steps,), optional
        Step of each row; row numbers by default.
    channel : str, optional
        Name of the run's channel; by default its loss.
    role : str, optional
        Role of the channel, which sets side and scale; from the channel by default. An array without role is taken as
        a loss: upward spikes, log scale where positive.
    side : {"up", "down", "both"}, optional
        Which spikes count.
    scale : {"log", "asinh", "none"}, optional
        Scale on which rows are compared.
    z : float
        Threshold in robust sd for normal tails.
    window, tail_window : int, default 100 and 1000
        Rows for the scale and for the weight of the tail.
    min_points : int, default 5
        Rows before any can be judged.
    floor : float, optional
        Smallest scale, in units of ``scale``; by default 1e-3 on the log scale (0.1 %), else max(1e-12, 1e-3 of the
        absolute median).
    fast, slow : int, default 5 and 100
        Rows within which a return is called fast, or looked for at all.
    band : float, default 3
        Half width of the band of return, robust sd.
    known_events : array_like, optional
        Steps of events that are no failures; a spike within ``tolerance`` after one is marked `known`.
    tolerance : float, optional
        Steps; three strides by default.

    Returns
    -------
    Spikes

    Raises
    ------
    InputError
        For an unknown channel, series or option.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> loss = 3 + rng.normal(0, 0.05, 500)
    >>> loss[[120, 300]] += 1
    >>> found = spikes(loss)
    >>> found.steps.tolist(), found.recovery
    ([120, 300], ('fast', 'fast'))
    """
    if hasattr(source, "channels") and hasattr(source.channels, "keys"):
        source = _channel_of(source, channel)
    elif channel is not None:
        raise InputError("channel names a channel of a run, but a single series was given; drop it or pass the run.")
    series = as_series(source, steps, role=role)
    if side is None:
        side = "down" if series.role in _DOWN_ROLES else "both" if series.role in _BOTH_ROLES else "up"
    for label, value, options in (
        ("side", side, ("up", "down", "both")),
        ("scale", scale, ("log", "asinh", "none", None)),
    ):
        if value not in options:
            raise InputError(f"{label} is {value!r}. {nearest(str(value), [o for o in options if o])}")
    if z <= 0 or window < 20 or tail_window < window or min_points < 3 or fast < 1 or slow < fast:
        raise InputError(
            f"options out of range: z {z} > 0, window {window} >= 20, tail_window {tail_window} >= window, "
            f"min_points {min_points} >= 3, 1 <= fast {fast} <= slow {slow} are expected."
        )
    x = series.values
    y, scale = transform(x, series.role, scale)
    finite = y[np.isfinite(y)]
    if floor is None:
        centre = abs(float(np.median(finite))) if finite.size else 0.0
        floor = 1e-3 if scale == "log" else max(1e-12, 1e-3 * centre)
    found = surprise(y, z=z, window=window, tail_window=tail_window, min_points=min_points, floor=floor, side=side)
    events = _events(y, np.isfinite(x), found.flagged, found.location, found.scale, found.residual, fast, slow, band)
    rows = np.array([e[0] for e in events], dtype=np.intp)
    peaks = np.array([e[1] for e in events], dtype=np.intp)
    gaps = np.diff(series.steps.astype(np.float64))
    gaps = gaps[gaps > 0]
    stride = float(np.median(gaps)) if gaps.size else math.nan
    at = series.steps[rows]
    return Spikes(
        steps=at,
        rows=rows,
        sizes=x[peaks] - _untransform(found.location[rows], x, scale),
        z=found.z[peaks],
        recovery=tuple(e[2] for e in events),
        widths=np.array([e[3] for e in events], dtype=np.int64),
        known=_explained(at, known_events, 3 * stride if tolerance is None else tolerance),
        nonfinite_steps=series.steps[~np.isfinite(x)],
        channel=series.name or "x",
        role=series.role,
        side=side,
        scale=scale,
        n_rows=int(x.size),
        n_judged=int(np.count_nonzero(np.isfinite(found.threshold) & np.isfinite(x))),
        stride=stride,
        x_steps=series.steps,
        x_values=x,
        provenance=make_provenance(
            "spikes",
            {
                "role": series.role, "side": side, "scale": scale, "z": z, "window": window,
                "tail_window": tail_window, "min_points": min_points, "floor": floor, "fast": fast, "slow": slow,
                "band": band, "known_events": known_events, "tolerance": tolerance,
            },
            series.steps,
            x,
        ),
    )  # fmt: skip


def _channel_of(run: Any, name: str | None) -> Any:
    channels = run.channels
    if name is not None:
        if name not in channels:
            raise InputError(f"the run has no channel {name!r}. {nearest(name, list(channels))}")
        return channels[name]
    losses = [c for c in channels.values() if getattr(c, "role", "") == "loss"]
    if not losses:
        raise InputError(
            "the run has no channel with the role 'loss'; name one with channel=... " + nearest("", list(channels))
        )
    return max(losses, key=lambda c: float(getattr(c, "role_confidence", 0.0)))


def _untransform(level: Floats, x: Floats, scale: str) -> Floats:
    if scale == "log":
        return np.exp(level)
    if scale == "asinh":
        finite = x[np.isfinite(x)]
        spread = MAD_TO_SD * float(np.median(np.abs(finite - np.median(finite)))) if finite.size else 0.0
        return np.sinh(level) * spread if spread > 0 else level
    return level


def _explained(at: NDArray[Any], known: ArrayLike | None, tolerance: float) -> NDArray[np.bool_]:
    if known is None:
        return np.zeros(at.size, dtype=bool)
    events = np.sort(np.asarray(known, dtype=np.float64).ravel())
    before = np.searchsorted(events, at.astype(np.float64), side="right") - 1
    since = np.where(before >= 0, at - events[np.maximum(before, 0)] if events.size else np.inf, np.inf)
    out: NDArray[np.bool_] = since <= tolerance
    return out


def _events(
    y: Floats,
    finite: NDArray[np.bool_],
    flagged: NDArray[np.bool_],
    location: Floats,
    scale: Floats,
    residual: Floats,
    fast: int,
    slow: int,
    band: float,
) -> list[tuple[int, int, str, int]]:
    """Group flagged rows into excursions: (first row, most extreme row, class, rows until back or -1)."""
    flags = np.flatnonzero(flagged)
    out: list[tuple[int, int, str, int]] = []
    at = 0
    while at < flags.size:
        first = int(flags[at])
        sign = 1.0 if residual[first] > 0 else -1.0
        level, width = float(location[first]), float(scale[first])
        end = min(first + slow + 1, y.size)
        seen = sign * (y[first:end] - level)
        back = _first_back(seen, band * width)
        stop = first + (back if back is not None else slow)
        inside = flags[(flags >= first) & (flags < max(stop, first + 1))]
        # a level that stays enters the history after some rows; flags that come later are events of their own
        if back is None:
            gap = np.flatnonzero(np.diff(inside) > 2 * fast)
            inside = inside[: int(gap[0]) + 1] if gap.size else inside
        peak = int(inside[np.argmax(sign * residual[inside])])
        out.append(
            (
                first,
                peak,
                _class(seen, finite[first:end], back, y, sign, level, peak, fast, slow),
                -1 if back is None else back,
            )
        )
        at = int(np.searchsorted(flags, inside[-1], side="right"))
    return out


def _first_back(seen: Floats, half_width: float) -> int | None:
    """First row after the event whose running median of three (fewer at the end) is within the band."""
    for k in range(1, seen.size):
        ahead = seen[k : k + 3]
        ahead = ahead[np.isfinite(ahead)]
        if ahead.size and np.median(ahead) <= half_width and np.isfinite(seen[k]) and seen[k] <= half_width:
            return k
    return None


def _class(
    seen: Floats,
    finite: NDArray[np.bool_],
    back: int | None,
    y: Floats,
    sign: float,
    level: float,
    peak: int,
    fast: int,
    slow: int,
) -> str:
    if back is not None:
        return "fast" if back <= fast else "slow"
    after = seen[1:][np.isfinite(seen[1:])]
    if not finite[1:].all() and np.count_nonzero(~finite[1:]) >= after.size:
        return "divergence"
    if after.size < 3:
        return "undetermined"
    jump = sign * (float(y[peak]) - level)
    rest = float(np.median(after[-20:]))
    start = y[np.isfinite(y)][:5]
    if seen.size <= slow and rest >= sign * (float(np.median(start)) - level):
        return "divergence"
    return "new level" if rest >= 0.5 * jump else "partial"
