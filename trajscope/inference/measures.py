r"""Performance and stability of a run as numbers, one each: what dissociation studies and score tables are made of.

Performance *y* is oriented so that bigger is better. With the causal level *R* and peak *P* of the collapse rule
(median of 5 evaluations; DEFINITIONS 5), over the rows before the last 10 % (the last 10 % is the final performance, so
that the two share no row):

* **drawdown_cvar**: mean of the largest 5 % of :math:`(P_t - R_t)_+`, over the range of *R* (CVaR: Rockafellar &
  Uryasev 2000; for training curves Chan et al. 2020, arXiv 1912.05663);
* **dispersion**: interquartile range of successive differences of *y*, over the range of *R* (Chan et al. 2020);
* **spike_score**: share of training-loss points 7 sd above the mean of the 1,000 before (OLMo 2, arXiv 2501.00656);
* **peak_instability**: largest `trajscope.x_inst` after its warm-up;
* **loss_ratio**: largest training loss over the smallest before it.

All grow with instability, except that **collapsed** is true or false. NaN where the log does not hold what is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope.detect._drawdown import drawdown, orient
from trajscope.detect._inputs import performance_series
from trajscope.detect.collapse import Collapse, collapse
from trajscope.detect.spike_score import spike_score
from trajscope.dynamics.instability import loss_ratio, x_inst
from trajscope.errors import InputError

__all__ = ["MEASURES", "Measures", "curve_measures", "run_measures"]

Floats = NDArray[np.float64]

#: Stability measures: name -> meaning. Each grows with instability.
MEASURES = {
    "drawdown_cvar": "mean of the largest 5 % of drawdowns, over the range of the curve",
    "dispersion": "interquartile range of successive differences, over the range of the curve",
    "spike_score": "share of training-loss points 7 sd above the mean of the 1,000 before",
    "peak_instability": "largest x_inst",
    "loss_ratio": "largest training loss over the smallest before it",
    "collapsed": "1 where performance collapsed or diverged, else 0",
}

#: Last share of the evaluations: the final performance, which no stability measure sees.
TAIL = 0.1
#: Share of the drawdowns in the tail mean.
TAIL_MEAN = 0.05
_WINDOW = 5


@dataclass(frozen=True)
class Measures:
    """Numbers of one run; see the module. ``performance`` is the channel with its direction; empty: there is none."""

    performance: str
    unit: str
    n_evaluations: int
    first: float
    best: float
    final: float
    drawdown_cvar: float
    dispersion: float
    spike_score: float
    peak_instability: float
    loss_ratio: float
    collapsed: float


def curve_measures(y: ArrayLike) -> dict[str, float]:
    """``first, best, final, drawdown_cvar, dispersion`` of an oriented performance curve.

    Parameters
    ----------
    y : (n_evaluations,) array
        Bigger is better; non-finite values are left out here (they are events of their own).

    Examples
    --------
    >>> rising = np.linspace(0, 1, 100)
    >>> found = curve_measures(rising)
    >>> round(found["final"], 2), found["drawdown_cvar"]
    (0.95, 0.0)
    """
    values = np.asarray(y, dtype=np.float64)
    values = values[np.isfinite(values)]
    nothing = dict.fromkeys(("first", "best", "final", "drawdown_cvar", "dispersion"), math.nan)
    if not values.size:
        return nothing
    tail = max(1, round(TAIL * values.size))
    found = nothing | {"first": float(np.median(values[:_WINDOW])), "final": float(np.mean(values[-tail:]))}
    body = values[:-tail]
    found["best"] = float(values.max())
    if body.size < 2 * _WINDOW + 1:
        return found
    course = drawdown(body, _WINDOW, 0.0)
    level = course.level[np.isfinite(course.level)]
    spread = float(np.ptp(level))
    if spread > 0:
        falls = np.maximum(course.peak - course.level, 0.0)
        falls = np.sort(falls[np.isfinite(falls)])
        worst = falls[-max(1, math.ceil(TAIL_MEAN * falls.size)) :]
        found["drawdown_cvar"] = float(worst.mean()) / spread
        low, high = np.quantile(np.diff(body), [0.25, 0.75])
        found["dispersion"] = float(high - low) / spread
    return found


def run_measures(run: Any, performance: str | None = None, *, found: Collapse | None = None) -> Measures:
    """The numbers of one run.

    Parameters
    ----------
    run : Run
    performance : str, optional
        ``NAME``, ``NAME:max`` or ``NAME:min``; default by role.
    found : Collapse, optional
        What `trajscope.collapse` says of the same performance, where it is known already.

    Returns
    -------
    Measures
        ``unit`` says how performance was oriented (``value``, ``-log``, ``-value``); ``first``, ``best`` and ``final``
        are in it.

    Raises
    ------
    InputError
        If `performance` is named and is no channel of the run.
    """
    label, unit, count = "", "", 0
    curve = curve_measures([])
    collapsed = math.nan
    try:
        series, mode = performance_series(run, performance)
    except InputError:
        if performance:
            raise
    else:
        label = f"{series.name}:{mode}"
        values, unit = orient(series.values, mode)
        count = int(np.count_nonzero(np.isfinite(values)))
        curve = curve_measures(values)
        judged = collapse(run, performance=label) if found is None else found
        if judged.kind != "cannot tell":
            collapsed = float(judged.kind in ("collapse", "divergence", "non-finite"))
    score = ratio = peak = math.nan
    losses = [c for c in run.channels.values() if c.role == "loss"]
    if losses:
        x = np.asarray(losses[0].values, dtype=np.float64)
        x = x[: x.size - max(1, round(TAIL * x.size))]
        if x.size:
            score = spike_score(x).raw
            ratios = loss_ratio(x)
            known = ratios[np.isfinite(ratios)]
            ratio = float(known.max()) if known.size else math.nan
    if any(c.role in ("loss", "grad_norm") for c in run.channels.values()):
        course = x_inst(run)
        body = course.values[: course.values.size - max(1, round(TAIL * course.values.size))]
        known = body[np.isfinite(body)]
        peak = float(known.max()) if known.size else math.nan
    return Measures(
        label, unit, count, curve["first"], curve["best"], curve["final"], curve["drawdown_cvar"], curve["dispersion"],
        score, peak, ratio, collapsed,
    )  # fmt: skip
