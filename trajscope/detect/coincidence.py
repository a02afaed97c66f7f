r"""Spikes at one step in several runs: evidence for the data, and deliberate resets.

Runs that share a data order see the same batch at the same step. A one-step jump at the same step in all of them is
data; in one run alone it is the run's own doing (its optimizer, its numerics). Each run's channel is turned into
robust residuals *z*: the mean of the residuals of a prediction from earlier rows and of one from later rows
(`trajscope.detect._predict`), since a coincidence is looked for after the fact. The runs are laid on the union of
their steps, and

.. math:: C_t = \mathrm{med}_i\, z_{i,t}, \qquad D_{i,t} = z_{i,t} - \mathrm{med}_{j \ne i}\, z_{j,t}

over the runs present. *C* shows what is common: since batches differ in difficulty, the noise of *C* is not *z*'s
divided by :math:`\sqrt k`, so *C* is judged by the same predictor and its own scale. *D* shows what is one run's own:
where the runs share their noise it is several times quieter than *z*, so that a small jump of one run stands out.

The p-value of a shared step is family-wise and needs no model of the noise: each run is shifted circularly by an
independent amount, which keeps its own autocorrelation and spikes but breaks the coincidences. The statistic is *L*,
the residual that three runs in four reach (all of three: the median of three is moved by two chance spikes), and
:math:`p = (1 + \#\{\max_t L^*_t \ge L_t\})/(1 + B)`.

Assumes: the runs count steps alike. A run whose counter is off by one shares nothing: `offsets` tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.detect._inputs import Series, as_series, is_run
from trajscope.detect._predict import surprise
from trajscope.detect._scale import default_floor, transform
from trajscope.detect.changepoints.inputs import known_steps
from trajscope.errors import InputError, NotEnoughData
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CoincidentSpikes", "coincident_spikes"]

Floats = NDArray[np.float64]

_CLIP = 30.0
"""Residuals are clipped here: one run's explosion must not decide what is common."""

_MOST_AHEAD = 1.0
"""Robust sd by which the residual from later rows may exceed that from earlier ones."""

_MIN_SHIFT = 20
"""Rows by which a run is shifted at least."""


@dataclass(frozen=True, eq=False)
class CoincidentSpikes(Result):
    """Spikes of several runs, told apart by what they share; returned by `coincident_spikes`.

    Attributes
    ----------
    steps : ndarray, shape (n_events,)
        Ascending; a step shared by the runs stands once, a run's own spikes once each.
    kind : tuple of {"shared", "own"}
        ``shared``: evidence for the data (or for whatever all runs did at that step). ``own``: one run alone.
    run : tuple of str
        The run of an own spike; empty for a shared one.
    z : ndarray
        C over its scale for shared steps, D over its scale for own ones.
    p_values : ndarray
        Family-wise permutation p-value of a shared step; NaN for an own spike.
    n_present, n_runs : ndarray
        Runs that logged the step, and runs whose own residual there exceeds half of the threshold.
    known : ndarray of bool
        Whether a known event explains it.
    names : tuple of str
        The runs.
    n_steps : int
        Steps logged by at least ``min_runs`` runs.
    """

    steps: NDArray[Any]
    kind: tuple[str, ...]
    run: tuple[str, ...]
    z: Floats
    p_values: Floats
    n_present: NDArray[np.int64]
    n_runs: NDArray[np.int64]
    known: NDArray[np.bool_]
    names: tuple[str, ...]
    n_steps: int
    common: Floats = field(repr=False)
    common_steps: NDArray[Any] = field(repr=False)

    def __len__(self) -> int:
        return int(self.steps.size)

    @property
    def shared_steps(self) -> NDArray[Any]:
        """Steps at which the runs jump together."""
        shared: NDArray[Any] = self.steps[np.array([k == "shared" for k in self.kind], dtype=bool)]
        return shared

    def to_frame(self) -> pd.DataFrame:
        """One row an event."""
        import pandas as pd

        return pd.DataFrame(
            {
                "step": self.steps,
                "kind": list(self.kind),
                "run": list(self.run),
                "z": self.z,
                "p_value": self.p_values,
                "n_present": self.n_present,
                "n_runs": self.n_runs,
                "known": self.known,
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without the common series."""
        skip = ("common", "common_steps")
        return {f.name: jsonable(getattr(self, f.name)) for f in fields(self) if f.name not in skip}

    def summary(self) -> str:
        """One or two sentences."""
        shared = [i for i, k in enumerate(self.kind) if k == "shared"]
        own = len(self) - len(shared)
        text = f"{len(self.names)} runs, {self.n_steps} steps compared: "
        if shared:
            best = min(shared, key=lambda i: self.p_values[i])
            text += (
                f"{len(shared)} step{'s' * (len(shared) > 1)} at which the runs jump together, evidence for the data "
                f"(strongest at {self.steps[best]}, p = {self.p_values[best]:.2g})"
            )
        else:
            text += "no step at which the runs jump together"
        return f"{text}; {own} jump{'s' * (own != 1)} of one run alone."


def _collect(runs: Any, channel: str | None, offsets: Sequence[float] | None) -> tuple[list[Series], tuple[str, ...]]:
    items: list[tuple[str, Any]]
    if isinstance(runs, Mapping):
        items = [(str(k), v) for k, v in runs.items()]
    else:
        items = [(str(getattr(r, "id", "") or f"run {i}"), r) for i, r in enumerate(runs)]
    if len(items) < 2:
        raise NotEnoughData(f"{len(items)} run given; coincidence needs at least two runs, three to name a lone one.")
    if offsets is not None and len(offsets) != len(items):
        raise InputError(f"{len(offsets)} offsets for {len(items)} runs; expected one each.")
    series = []
    for i, (name, item) in enumerate(items):
        if is_run(item):
            from trajscope.detect.spikes import channel_of

            one = as_series(channel_of(item, channel))
        elif isinstance(item, tuple) and len(item) == 2:
            one = as_series(item[1], item[0], name=name)
        else:
            one = as_series(item)
        if offsets is not None:
            one = Series(one.name, one.role, one.steps + offsets[i], one.values)
        series.append(one)
    return series, tuple(name for name, _ in items)


def _leave_one_out_median(z: Floats) -> Floats:
    """Median over the other runs (axis 0), NaN where fewer than two others are present."""
    k = z.shape[0]
    out = np.full(z.shape, np.nan)
    for i in range(k):
        others = np.delete(z, i, axis=0)
        ok = np.count_nonzero(~np.isnan(others), axis=0) >= 2
        if ok.any():
            out[i, ok] = np.nanmedian(others[:, ok], axis=0)
    return out


def coincident_spikes(
    runs: Any,
    *,
    channel: str | None = None,
    z: float = 4.0,
    own_z: float = 9.0,
    alpha: float = 0.05,
    window: int = 100,
    min_runs: int = 2,
    offsets: Sequence[float] | None = None,
    known_events: Any = None,
    tolerance: float = 0.0,
    n_permutations: int = 200,
    rng: int | np.random.Generator | None = None,
) -> CoincidentSpikes:
    """Find steps at which runs jump together, and jumps that one run makes alone.

    Parameters
    ----------
    runs : mapping or sequence
        Runs, channels, arrays, or pairs ``(steps, values)``; a mapping names them.
    channel : str, optional
        Channel of each run; its loss by default.
    z : float, default 4
        Threshold for the common residual, in its own robust sd. Lower than for one run: the coincidence is tested too.
    own_z : float, default 9
        Threshold for a run's difference from the others (three runs or more needed there). High, since runs that share
        their noise differ by little and drift apart: smaller differences are not yet events.
    alpha : float, default 0.05
        Family-wise level of the permutation test; a common jump with a larger p-value is dropped.
    window : int, default 100
        Rows for scales.
    min_runs : int, default 2
        Runs that must have logged a step.
    offsets : sequence of float, optional
        Added to the steps of each run, for loggers that count differently.
    known_events : optional
        What is explained, in any of the forms that `trajscope.change_points` takes; events up to
        ``tolerance`` after one are marked `known`.
    n_permutations : int, default 200
    rng : int or Generator, optional
        Default 0.

    Returns
    -------
    CoincidentSpikes

    Raises
    ------
    NotEnoughData
        With fewer than two runs.
    InputError
        For an option out of range or series that cannot be used.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(0, 0.05, (4, 600))
    >>> loss = 3 + noise
    >>> loss[:, 250] += 0.5
    >>> loss[2, 400] += 0.8
    >>> found = coincident_spikes(list(loss))
    >>> found.steps.tolist(), found.kind, found.run
    ([250, 400], ('shared', 'own'), ('', 'run 2'))
    """
    if z <= 0 or own_z <= 0 or not 0 < alpha < 1 or min_runs < 2 or n_permutations < 19:
        raise InputError(
            f"options out of range: z {z} > 0, own_z {own_z} > 0, 0 < alpha {alpha} < 1, min_runs {min_runs} >= 2, "
            f"n_permutations {n_permutations} >= 19 are expected."
        )
    series, names = _collect(runs, channel, offsets)
    steps, table = _residual_table(series, window)
    present = np.count_nonzero(~np.isnan(table), axis=0)
    used = present >= min_runs
    steps, table, present = steps[used], table[:, used], present[used]
    clipped = np.clip(table, -_CLIP, _CLIP)
    common = np.nanmedian(clipped, axis=0) if steps.size else np.empty(0)
    judged = surprise(common, z=z, window=window, tail_window=None, floor=1e-3)
    generator = np.random.default_rng(0 if rng is None else rng)
    candidates = np.flatnonzero(judged.flagged)
    p_values = _permutation(clipped, candidates, n_permutations, generator)
    keep = p_values <= alpha
    rows, p_values = candidates[keep], p_values[keep]
    jumping = np.count_nonzero(table > z / 2, axis=0)
    events = [
        (steps[r], "shared", "", float(judged.z[r]), float(p), int(present[r]), int(jumping[r]))
        for r, p in zip(rows.tolist(), p_values.tolist(), strict=True)
    ]
    shared = np.zeros(steps.size, dtype=bool)
    shared[rows] = True
    if len(series) >= 3 and steps.size:
        difference = clipped - _leave_one_out_median(clipped)
        for i, name in enumerate(names):
            own = surprise(difference[i], z=own_z, window=window, tail_window=None, floor=1e-3)
            # a difference stands out from the run's own rows too, or a quiet pair of runs would flag rounding
            real = own.flagged & ~shared & (table[i] > z / 2)
            events += [
                (
                    steps[r],
                    "own",
                    name,
                    float(own.z[r]),
                    float("nan"),
                    int(present[r]),
                    int(np.sum(table[:, r] > z / 2)),
                )
                for r in np.flatnonzero(real).tolist()
            ]
    events.sort(key=lambda e: (e[0], e[1], e[2]))
    at = np.array([e[0] for e in events], dtype=steps.dtype if steps.size else np.int64)
    known = np.zeros(at.size, dtype=bool)
    for event, _ in known_steps(known_events):
        known |= (at >= event) & (at <= event + tolerance)
    return CoincidentSpikes(
        steps=at,
        kind=tuple(e[1] for e in events),
        run=tuple(e[2] for e in events),
        z=np.array([e[3] for e in events]),
        p_values=np.array([e[4] for e in events]),
        n_present=np.array([e[5] for e in events], dtype=np.int64),
        n_runs=np.array([e[6] for e in events], dtype=np.int64),
        known=known,
        names=names,
        n_steps=int(steps.size),
        common=common,
        common_steps=steps,
        provenance=make_provenance(
            "coincident_spikes",
            {
                "channel": channel, "z": z, "own_z": own_z, "alpha": alpha, "window": window, "min_runs": min_runs,
                "offsets": offsets, "known_events": known_events, "tolerance": tolerance,
                "n_permutations": n_permutations,
            },
            *(s.values for s in series),
            seed=0 if rng is None else rng if isinstance(rng, int) else None,
        ),
    )  # fmt: skip


def _residual_table(series: Sequence[Series], window: int) -> tuple[NDArray[Any], Floats]:
    """Robust residuals of every run on the union of steps: (steps, table of shape (n_runs, n_union))."""
    union = np.unique(np.concatenate([s.steps for s in series]))
    table = np.full((len(series), union.size), np.nan)
    for i, one in enumerate(series):
        y, scale = transform(one.values, one.role)
        floor = default_floor(y, scale)
        found, later = surprise(y, window=window, floor=floor), surprise(y[::-1], window=window, floor=floor)
        behind = np.isfinite(found.threshold)
        ahead = np.isfinite(later.threshold)[::-1]
        # rows just before a lasting shift look high from behind it: what later rows say exceeds earlier ones by little
        ahead_residual = np.minimum(later.residual[::-1], found.residual + _MOST_AHEAD * found.scale)
        both = 0.5 * (found.residual + ahead_residual)
        z = np.where(behind & ahead, both, np.where(behind, found.residual, np.nan)) / found.scale
        table[i, np.searchsorted(union, one.steps)] = z
    return union, table


def _low(z: Floats) -> Floats:
    """The residual that three runs in four reach at each step: order statistic floor(k/4), -inf where no run is."""
    ordered = np.sort(np.where(np.isnan(z), np.inf, z), axis=0)
    present = np.count_nonzero(~np.isnan(z), axis=0)
    low: Floats = np.take_along_axis(ordered, (present // 4)[None, :], axis=0)[0]
    low[present == 0] = -np.inf
    return low


def _permutation(clipped: Floats, candidates: NDArray[np.intp], n: int, rng: np.random.Generator) -> Floats:
    """Family-wise p-value of each candidate under independent circular shifts of the runs."""
    if not candidates.size:
        return np.empty(0)
    width = clipped.shape[1]
    gap = min(_MIN_SHIFT, width // 4)
    largest = np.empty(n)
    for b in range(n):
        shifted = np.empty_like(clipped)
        for i, row in enumerate(clipped):
            shifted[i] = np.roll(row, int(rng.integers(gap, max(width - gap, gap + 1))))
        largest[b] = _low(shifted).max()
    observed = _low(clipped)
    return np.array([(1 + np.count_nonzero(largest >= observed[c])) / (1 + n) for c in candidates])
