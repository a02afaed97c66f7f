"""Is the state that runs of one domain show the state of another?

Both domains are standardised on their own runs and compared on the channels that move in both. Subspace: mean squared
cosine of the principal angles of the two loadings, against the same with the channels of the second domain rotated (or
given random phases) one by one. Prediction: loadings of the first domain, dynamics and noise fitted on half of the
second, one-step log score on its other half: over each channel's own past, and beside the score of the second domain's
own loadings. The state carries over where the cosine is at least .8 and above its null, and the carried state still
beats the channels' own past.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from trajscope._core.linalg import mean_cos2
from trajscope.errors import InputError, TrajscopeError
from trajscope.inference._ident_model import read_as_model
from trajscope.inference._ident_predict import channel_scores, fit_rivals, state_scores
from trajscope.inference._ident_refit import LEAST_CORRELATION
from trajscope.inference._ident_rows import NULLS, Rows, counted, halves, limit_rank, prepare, refit, surrogate_of
from trajscope.metastate import MIN_CHANNELS

__all__ = ["Crossing", "cross_domain"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Crossing:
    """A state carried from one domain to another.

    Attributes
    ----------
    other : str
    channels : tuple of str
        Those compared.
    cos2, null, threshold : float
        Of the subspaces: found, mean and 95 % of surrogates.
    carried, own : float
        Gain per held-out cell of the other domain over the channels' own past, with the carried loadings and with its
        own.
    carried_low : float
        One-sided 95 % bound of the first.
    problem : str
        Why nothing was compared; empty otherwise.
    """

    other: str
    channels: tuple[str, ...]
    cos2: float = float("nan")
    null: float = float("nan")
    threshold: float = float("nan")
    carried: float = float("nan")
    own: float = float("nan")
    carried_low: float = float("nan")
    problem: str = ""

    @property
    def passed(self) -> bool:
        """The same space, and it still predicts."""
        return bool(self.cos2 >= LEAST_CORRELATION and self.cos2 > self.threshold and self.carried_low > 0)


def cross_domain(
    estimator: Any,
    rows: Rows,
    name: str,
    runs: Any,
    *,
    n_surrogates: int,
    rng: np.random.Generator,
    report: Callable[[str, int, int], None],
) -> Crossing:
    """Compare the state of ``rows`` with that of other runs."""
    theirs = prepare(estimator, runs, "run", 2)
    common = [n for n in rows.names if n in theirs.names]
    if len(common) < MIN_CHANNELS:
        raise InputError(
            f"runs of {name!r} share {len(common)} moving channels with the first ({', '.join(common) or 'none'});"
            f" at least {MIN_CHANNELS} with the same names are needed."
        )
    xs = [x[:, [rows.names.index(c) for c in common]] for x in rows.xs]
    ys = [y[:, [theirs.names.index(c) for c in common]] for y in theirs.xs]
    k = rows.k
    if not 1 <= k < len(common):
        return Crossing(name, tuple(common), problem=f"{k} components in {len(common)} common channels")
    try:
        mine, own = refit(estimator, xs, k), refit(estimator, ys, k)
        cos2 = mean_cos2(mine.loadings_, own.loadings_)
        null: dict[str, list[float]] = {kind: [] for kind in NULLS}
        for i in counted(n_surrogates * len(NULLS), f"carried to {name}", report):
            kind = NULLS[i % len(NULLS)]
            made = refit(estimator, surrogate_of(kind, ys, rng), k, quick=True)
            null[kind].append(mean_cos2(mine.loadings_, made.loadings_))
    except (TrajscopeError, np.linalg.LinAlgError) as problem:
        return Crossing(name, tuple(common), problem=str(problem))
    limit = max(float(np.sort(v)[limit_rank(len(v))]) for v in null.values())
    mean = float(np.mean([x for v in null.values() for x in v]))
    if len(ys) < 2:
        return Crossing(name, tuple(common), cos2, mean, limit, problem="one run only; nothing can be held out")
    carried, self_gain = _gains(mine.loadings_, estimator, ys, k, rng)
    n = carried.size
    low = carried.mean() - t.ppf(0.95, max(n - 1, 1)) * carried.std(ddof=1) / np.sqrt(n) if n > 1 else -np.inf
    return Crossing(name, tuple(common), cos2, mean, limit, float(carried.mean()), float(self_gain.mean()), float(low))


def _gains(
    loadings: Floats, estimator: Any, ys: list[Floats], k: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Gain per cell of every run, held out, with carried and with own loadings."""
    a, b = halves(len(ys), 1, rng)[0]
    carried, own = [], []
    for train, test in ((a, b), (b, a)):
        left = [ys[i] for i in train]
        rivals = fit_rivals(left)
        models = [read_as_model(left, loadings), read_as_model(left, refit(estimator, left, k).loadings_)]
        for i in test:
            cells = max(int((~np.isnan(ys[i])).sum()), 1)
            best = max(float(s.sum()) for s in channel_scores(ys[i], rivals))
            gains = [(float(state_scores(ys[i], m).sum()) - best) / cells for m in models]
            carried.append(gains[0])
            own.append(gains[1])
    return np.array(carried), np.array(own)
