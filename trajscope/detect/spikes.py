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

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope.detect._excursions import CLASSES, excursions
from trajscope.detect._inputs import as_series
from trajscope.detect._predict import surprise
from trajscope.detect._scale import default_floor, stride_of, transform, untransform
from trajscope.detect.changepoints.inputs import known_steps
from trajscope.detect.spike_score import SpikeScore, spike_score
from trajscope.errors import InputError, nearest
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CLASSES", "SpikeScore", "Spikes", "spike_score", "spikes", "transform"]

Floats = NDArray[np.float64]


_DOWN_ROLES = frozenset(
    {"accuracy", "val_accuracy", "success", "return", "eval_return", "throughput", "explained_variance"}
)
_BOTH_ROLES = frozenset(
    {"lr", "grad_cos", "entropy", "momentum", "temperature", "q_value", "clip_fraction", "loss_scale", "param_norm"}
)


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
            f"{self.channel}: {len(self)} event{'s' * (len(self) > 1)} in {self.n_judged} rows ({counts}); "
            f"largest at step {self.steps[top]}, {self.z[top]:+.0f} robust sd.{tail}"
        )


def spikes(
    source: Any,
    steps: ArrayLike | None = None,
    *,
    channel: str | None = None,
    role: str | None = None,
    side: str | None = None,
    scale: str | None = None,
    z: float = 5.25,
    window: int = 100,
    tail_window: int = 1000,
    min_points: int = 5,
    floor: float | None = None,
    fast: int = 5,
    slow: int = 100,
    band: float = 3.0,
    known_events: Any = None,
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
    z : float, default 5.25
        Threshold in robust sd for normal tails: 1e-7 a row, and three in four of one-step jumps of 0.3 to 1.5 on a
        loss near 3.4 with a noise of 0.09 (``tests/proofs/spikes.py``).
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
    known_events : optional
        Events that are no failures, in any of the forms that `trajscope.change_points` takes; a spike within
        ``tolerance`` after one is marked `known`.
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
        source = channel_of(source, channel)
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
    if not z > 0 or window < 20 or tail_window < window or min_points < 3 or fast < 1 or slow < fast:
        raise InputError(
            f"options out of range: z {z} > 0, window {window} >= 20, tail_window {tail_window} >= window, "
            f"min_points {min_points} >= 3, 1 <= fast {fast} <= slow {slow} are expected."
        )
    x = series.values
    y, scale = transform(x, series.role, scale)
    if floor is None:
        floor = default_floor(y, scale)
    elif not floor > 0:
        raise InputError(f"floor is {floor}; expected a positive scale, in units of {scale!r} values.")
    found = surprise(
        y,
        z=z,
        window=window,
        tail_window=tail_window,
        min_points=min_points,
        floor=floor,
        side=side,
        only_standing_out=True,
    )
    events = excursions(y, np.isfinite(x), found.flagged, found.location, found.scale, found.residual, fast, slow, band)
    rows = np.array([e[0] for e in events], dtype=np.intp)
    peaks = np.array([e[1] for e in events], dtype=np.intp)
    stride = stride_of(series.steps)
    at = series.steps[rows]
    return Spikes(
        steps=at,
        rows=rows,
        sizes=x[peaks] - untransform(found.location[rows], x, scale),
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
        n_judged=int(np.count_nonzero(found.judged & np.isfinite(x))),
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


def channel_of(run: Any, name: str | None) -> Any:
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


def _explained(at: NDArray[Any], known: Any, tolerance: float) -> NDArray[np.bool_]:
    events = np.sort(np.array([step for step, _ in known_steps(known)], dtype=np.float64))
    before = np.searchsorted(events, at.astype(np.float64), side="right") - 1
    since = np.where(before >= 0, at - events[np.maximum(before, 0)] if events.size else np.inf, np.inf)
    out: NDArray[np.bool_] = since <= tolerance
    return out
