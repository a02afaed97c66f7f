r"""Collapse, divergence and recovery of a run's performance.

Performance is oriented so that bigger is better (:math:`-\log \ell` for a positive loss). With the level *R*, the peak
*P*, the first level :math:`R_0`, the scale *s* and the drawdown *dd* of `trajscope.detect._drawdown`:

* the run **had learned** once :math:`P_t - R_0 \ge 3 s_t`;
* **collapse**: :math:`dd_t \ge 0.5` and :math:`P_t - R_t \ge 7 s_t` for *h* = 3 evaluations in a row, after it had
  learned. The second condition is what keeps flat series quiet: without it a run that learned 4 sd and then stays flat
  under AR(0.5) is called collapsed in most cases;
* **divergence**: a collapse that lasts to the end with :math:`dd \ge 1` over the last 10 % of rows (worse than at the
  start), or a run that never learned and ends there 7 s below its peak for as long;
* **non-finite**: NaN or Inf was logged as performance; it is an event, not a gap;
* **onset**: the first row after the last one with :math:`y \ge P - 2 s` before the rule was met (looks back, so it is
  for dating, not for alarms); **confirmed**: the row at which the rule was met (uses nothing later);
* **recovery**: :math:`dd \le 0.2` for *h* rows. Transient within 10 evaluations of onset, lingering within *H* (a
  quarter of the run, at least 20 evaluations), irrecoverable not within *H*, undetermined where the log ends first.

Everything is differences of levels in units of *s*: negative returns and shifted scales are judged alike.

The scale is free of trend (`trajscope.detect._drawdown`), so that a short log that is mostly learning still has a
scale of its noise.

Limits: a dip shorter than about *w/2 + h* evaluations does not move a median of *w* for *h* rows and is left to
`trajscope.spikes`; resolution is one evaluation stride; a performance whose noise grows a lot late in the run is
judged by its earlier noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope.detect._drawdown import RESIDUAL_WINDOW, drawdown, orient
from trajscope.detect._episodes import Episode, Judge
from trajscope.detect._inputs import Series, as_series, is_run, performance_series
from trajscope.errors import InputError
from trajscope.history.roles import BIGGER_IS_BETTER
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["KINDS", "RECOVERIES", "Collapse", "Episode", "collapse"]

KINDS = ("none", "not learned", "collapse", "divergence", "non-finite", "cannot tell")
"""What can be found, see `Collapse.kind`."""

RECOVERIES = ("none", "transient", "lingering", "irrecoverable", "undetermined")
"""How an episode went on, see `Collapse.recovery`."""

_SEVERITY = {r: i for i, r in enumerate(("none", "transient", "lingering", "undetermined", "irrecoverable"))}
_KIND_RANK = {k: i for i, k in enumerate(("cannot tell", "collapse", "divergence", "non-finite"))}


@dataclass(frozen=True, eq=False)
class Collapse(Result):
    """What became of a run's performance; returned by `collapse`.

    Attributes
    ----------
    kind : str
        One of `KINDS`: ``none`` (learned, did not fall), ``not learned`` (never rose 3 s_R above its first level),
        ``collapse``, ``divergence``, ``non-finite``, ``cannot tell`` (see `reason`). Of several episodes the worst one
        is meant: unrecovered before undetermined before recovered, then the graver kind, then the earlier one.
    onset, confirmed : float or None
        Steps of that episode.
    depth : float
        Its largest drawdown, as a share of what had been learned; 0 where there is none.
    recovery : str
        One of `RECOVERIES`; ``none`` where there is nothing to recover from.
    recovered_step : float or None
    episodes : tuple of Episode
        All of them, in order of onset.
    P, R_0, s_R : float
        Peak level, first level and scale, oriented units, at the confirmation of the episode (else at the end).
    unit : {"value", "-log", "-value"}
        How performance was oriented.
    channel, mode : str
        What was judged and which direction is better.
    n_evaluations, n_nonfinite : int
    horizon : int
        H, in evaluations.
    reason : str
        Why, in one sentence.
    steps, performance : ndarray, shape (n_steps,)
        The series judged, oriented.
    """

    plot_name = "collapse"

    kind: str
    onset: float | None
    confirmed: float | None
    depth: float
    recovery: str
    recovered_step: float | None
    episodes: tuple[Episode, ...]
    P: float
    R_0: float
    s_R: float
    unit: str
    channel: str
    mode: str
    n_evaluations: int
    n_nonfinite: int
    horizon: int
    reason: str
    steps: NDArray[Any] = field(repr=False)
    performance: NDArray[np.float64] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """One row an episode, columns as the attributes of `Episode`; no rows where nothing happened."""
        import pandas as pd

        columns = [f.name for f in fields(Episode)]
        return pd.DataFrame([[getattr(e, c) for c in columns] for e in self.episodes], columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without the series itself."""
        skip = ("steps", "performance")
        return {f.name: jsonable(getattr(self, f.name)) for f in fields(self) if f.name not in skip}

    def summary(self) -> str:
        """One to three sentences."""
        name = f"Performance ({self.channel}, {'larger' if self.mode == 'max' else 'smaller'} is better)"
        return f"{name}: {self.reason}"


def collapse(
    source: Any,
    steps: ArrayLike | None = None,
    *,
    performance: str | None = None,
    mode: str | None = None,
    dd: float = 0.5,
    z: float = 7.0,
    w: int = 5,
    h: int = 3,
    learned: float = 3.0,
    recover: float = 0.2,
    transient: int = 10,
    horizon: float = 0.25,
    min_horizon: int = 20,
    tail: float = 0.1,
    band: float = 2.0,
    floor: float | None = None,
) -> Collapse:
    """Find falls of performance, date them and say whether the run recovered.

    Parameters
    ----------
    source : Run, Channel or array_like, shape (n_steps,)
        A run (its performance channel is chosen by ``performance``) or one series of evaluations.
    steps : array_like, shape (n_steps,), optional
        Step of each evaluation; row numbers by default. Not with a run.
    performance : str, optional
        ``NAME``, ``NAME:max`` or ``NAME:min`` of the run's channel; by default the first role present of
        `trajscope.detect._inputs.PERFORMANCE_ROLES`.
    mode : {"max", "min"}, optional
        Whether bigger or smaller is better. By default from the role; "max" for an array.
    dd : float, default 0.5
        Share of what had been learned that must be lost.
    z : float, default 7
        Fall needed in units of s_R; keeps flat series below 5 % false collapses.
    w : int, default 5
        Evaluations in the level median.
    h : int, default 3
        Evaluations in a row for confirmation and for recovery.
    learned : float, default 3
        Rise in units of s_R from which the run had learned.
    recover : float, default 0.2
        Drawdown at which it is back.
    transient : int, default 10
        Evaluations from onset within which recovery is called transient.
    horizon, min_horizon : float, int
        H = ``horizon`` times the run, at least ``min_horizon`` evaluations.
    tail : float, default 0.1
        Share of rows at the end that must be no better than the start for a divergence.
    band : float, default 2
        Half width of the band, in s_R, that performance leaves at onset.
    floor : float, optional
        Smallest scale, oriented units; by default 1e-3 for ``-log`` (0.1 % of the loss), else
        max(1e-12, 1e-3 of the absolute median).

    Returns
    -------
    Collapse

    Raises
    ------
    InputError
        For an unknown channel, a series that is not one-dimensional or whose steps go back, or an option out of range.

    Notes
    -----
    Definition: trajscope's own (the paper that names collapse, arXiv 2601.13160, gives no formula). With fewer than
    ``2 w + h`` finite evaluations the answer is "cannot tell"; non-finite values are reported even then.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> accuracy = np.r_[np.linspace(0.1, 0.9, 60), np.full(60, 0.9), np.full(80, 0.2)] + rng.normal(0, 0.01, 200)
    >>> found = collapse(accuracy, steps=np.arange(200) * 10)
    >>> found.kind, float(found.onset), found.recovery
    ('collapse', 1200.0, 'irrecoverable')
    """
    series, mode = _series(source, steps, performance, mode)
    options: dict[str, Any] = {
        "dd": dd, "z": z, "w": w, "h": h, "learned": learned, "recover": recover, "transient": transient,
        "horizon": horizon, "min_horizon": min_horizon, "tail": tail, "band": band,
    }  # fmt: skip
    for name, value in (options if floor is None else {**options, "floor": floor}).items():
        real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        if not real or not 0 < value < math.inf:
            raise InputError(f"{name} is {value!r}; expected a positive number.")
    if w != int(w) or h != int(h) or w > RESIDUAL_WINDOW:
        raise InputError(f"w {w} and h {h} count evaluations; expected whole numbers, w at most {RESIDUAL_WINDOW}.")
    y, unit = orient(series.values, mode)
    good = np.isfinite(series.values)
    clean = y[good]
    if floor is None:
        centre = float(np.median(clean)) if clean.size else 0.0
        floor = 1e-3 if unit == "-log" else max(1e-12, 1e-3 * abs(centre))
    track = drawdown(clean, w, floor)
    judge = Judge(clean, np.flatnonzero(good), series, track, floor, options)
    episodes = judge.episodes()
    enough = clean.size >= 2 * w + h
    has_learned = judge.has_learned()
    provenance = make_provenance(
        "collapse",
        {**options, "floor": floor, "mode": mode, "performance": series.name or performance},
        series.steps,
        series.values,
    )
    worst = max(episodes, key=lambda e: (_SEVERITY[e.recovery], _KIND_RANK[e.kind], -e.onset), default=None)
    if worst is not None:
        kind = worst.kind
    elif not enough:
        kind = "cannot tell"
    else:
        kind = "none" if has_learned else "not learned"
    n_bad = int(np.count_nonzero(~good))
    last_scale = float(track.scale[-1]) if clean.size else math.nan
    confirmed_fall = worst is not None and not math.isnan(worst.P)
    return Collapse(
        kind=kind,
        onset=None if worst is None else worst.onset,
        confirmed=None if worst is None else worst.confirmed,
        depth=0.0 if worst is None else worst.depth,
        recovery="none" if worst is None else worst.recovery,
        recovered_step=None if worst is None else worst.recovered_step,
        episodes=episodes,
        P=worst.P if worst is not None and confirmed_fall else judge.peak(),
        R_0=track.start,
        s_R=worst.s_R if worst is not None and confirmed_fall else last_scale,
        unit=unit,
        channel=series.name or "x",
        mode=mode,
        n_evaluations=int(series.values.size),
        n_nonfinite=n_bad,
        horizon=judge.horizon,
        reason=_reason(kind, worst, episodes, clean.size, 2 * w + h, learned, judge.horizon),
        steps=series.steps,
        performance=y,
        provenance=provenance,
    )


def _series(source: Any, steps: ArrayLike | None, performance: str | None, mode: str | None) -> tuple[Series, str]:
    if mode not in (None, "max", "min"):
        raise InputError(f"mode is {mode!r}; expected 'max' (bigger is better), 'min' or None.")
    if is_run(source):
        if steps is not None:
            raise InputError("steps were given together with a run; its channels have their own.")
        series, guessed = performance_series(source, performance)
        return series, mode or guessed
    if performance is not None:
        raise InputError("performance names a channel of a run, but an array was given; drop it or pass the run.")
    series = as_series(source, steps)
    if mode is None:
        mode = "max" if BIGGER_IS_BETTER.get(series.role, True) else "min"
    return series, mode


def _reason(
    kind: str,
    worst: Episode | None,
    episodes: Sequence[Episode],
    n: int,
    needed: int,
    learned: float,
    horizon: int,
) -> str:
    if worst is None:
        if kind == "cannot tell":
            return f"cannot tell: {n} finite evaluations, {needed} are needed."
        if kind == "not learned":
            return f"not learned: never rose {learned:g} robust sd above its first level, so there was nothing to lose."
        return "learned and did not collapse."
    many = f" {len(episodes)} episodes in all." if len(episodes) > 1 else ""
    if worst.kind == "cannot tell":
        return (
            f"the last {worst.evaluations} evaluations fall from step {worst.onset:g} on, "
            f"but the log ends before it can be confirmed.{many}"
        )
    if worst.kind == "non-finite" and math.isnan(worst.P):
        what = f"non-finite from step {worst.onset:g}"
    else:
        share = (
            f"{worst.depth:.0%} of what it had learned"
            if worst.depth < 10
            else "more than ten times what it had learned"
        )
        what = f"{worst.kind} from step {worst.onset:g}, confirmed at {worst.confirmed:g}, {share} lost"
        if worst.kind == "non-finite":
            what += ", non-finite at the end"
    after = {
        "transient": f"recovered at step {worst.recovered_step:g} (transient)"
        if worst.recovered_step is not None
        else "",
        "lingering": f"recovered at step {worst.recovered_step:g} (lingering)"
        if worst.recovered_step is not None
        else "",
        "irrecoverable": "did not recover"
        if worst.recovered_step is None
        else f"came back only at step {worst.recovered_step:g}, after more than {horizon} evaluations (irrecoverable)",
        "undetermined": "the log ends too early to tell whether it recovers",
    }[worst.recovery]
    return f"{what}; {after}.{many}"
