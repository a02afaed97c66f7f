"""How runs answer to a perturbation: size, course and rest of the response, its order, spread and threshold.

Per run and channel the response is measured against the same-seed control or a causal forecast
(`trajscope.inference._response_curve`); over seeds come intervals, over conditions the dispersion ratio, over
severities the collapse threshold (`_response_groups`, `_response_cohort`). Coherence, instability and the latent
distance are those of `_response_signals`.

Limits: a forecast knows nothing of the schedule after the injection; a control that is a twin to the last bit diverges
by chance after it, so that the noise of a difference is up to sqrt(2) times the baseline's. An order is no cause.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.surrogates import as_generator
from trajscope.detect._scale import transform
from trajscope.errors import InputError, nearest
from trajscope.history.run import Run
from trajscope.inference._response_cohort import (
    ChannelResponse,
    MeanCurve,
    Recovery,
    estimates_of,
    mean_curve,
    recovery_of,
    thresholds_of,
)
from trajscope.inference._response_curve import Curve, Shape, baseline_noise, describe, forecast
from trajscope.inference._response_groups import (
    Dispersion,
    Estimate,
    Ordering,
    Threshold,
    dispersion_ratio,
    ordering_test,
)
from trajscope.inference._response_signals import Signals, signals
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ChannelResponse", "MeanCurve", "Recovery", "Response", "response"]

Floats = NDArray[np.float64]

#: Roles of channels that are looked at by default, beside x_grad and x_inst.
ROLES = (
    "loss", "val_loss", "accuracy", "val_accuracy", "return", "eval_return", "grad_norm", "update_norm", "param_norm",
    "policy_loss", "value_loss", "entropy", "kl", "td_error",
)  # fmt: skip


GRAD, INST = "x_grad", "x_inst"
_MOST_SAID = 3
_LARGEST = 1e9
"""Baseline sd at which a deviation is held: one run that went to 1e38 would be the whole mean over seeds."""


@dataclass(frozen=True, eq=False)
class Response(Result):
    """What `response` found.

    Attributes
    ----------
    rows : tuple of ChannelResponse
        One a run and channel.
    estimates : tuple of Estimate
        One a condition, channel and statistic.
    times : tuple of (run, condition, T_grad, T_inst, T_on, fell)
        Steps since the injection, NaN where a signal never left its band; ``fell`` True where coherence left downwards.
    ordering : Ordering
    dispersion : Dispersion
    recovery : Recovery
    thresholds : tuple of Threshold
    curves : tuple of MeanCurve
    """

    plot_name = "response"

    rows: tuple[ChannelResponse, ...]
    estimates: tuple[Estimate, ...]
    times: tuple[tuple[str, str, float, float, float, bool | None], ...]
    ordering: Ordering
    dispersion: Dispersion
    recovery: Recovery
    thresholds: tuple[Threshold, ...]
    curves: tuple[MeanCurve, ...] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """The estimates, one a row."""
        import pandas as pd

        columns = [f.name for f in fields(Estimate)]
        return pd.DataFrame([[getattr(e, c) for c in columns] for e in self.estimates], columns=columns)

    def runs_frame(self) -> pd.DataFrame:
        """The responses of single runs, one a row."""
        import pandas as pd

        columns = [f.name for f in fields(ChannelResponse)]
        return pd.DataFrame([[getattr(r, c) for c in columns] for r in self.rows], columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without the curves."""
        return {f.name: jsonable(getattr(self, f.name)) for f in fields(self) if f.name != "curves"}

    def summary(self) -> str:
        """A few sentences: n, order, spread, recovery, thresholds."""
        n_runs, n_conditions = len({r.run for r in self.rows}), len({r.condition for r in self.rows})
        forecasts = sum(r.reference == "forecast" for r in self.rows)
        lines = [f"{n_runs} runs in {n_conditions} conditions."]
        if forecasts:
            lines.append(f"{forecasts} of {len(self.rows)} responses are against a forecast, not a control.")
        lines.append(f"Order of coherence, instability and onset: {self.ordering.reason}.")
        lines.append(f"Spread: {self.dispersion.reason}.")
        r = self.recovery
        lines.append(
            f"Recovery: {r.reason}."
            if r.reason
            else f"Recovery: of {r.both + r.performance_only + r.latent_only + r.neither} runs that fell or left the "
            f"bound, {r.both} came back in performance and latent distance, {r.performance_only} in performance only, "
            f"{r.latent_only} in latent distance only, {r.neither} in neither; {r.unknown} cannot be told."
        )
        shown = self.thresholds if len(self.thresholds) <= _MOST_SAID else ()
        lines += [f"Collapse under {t.kind or 'rising severity'}: {t.reason}." for t in shown]
        if self.thresholds and not shown:
            found = sum(t.verdict == "bracketed" for t in self.thresholds)
            kinds = len(self.thresholds)
            lines.append(f"A severity at which half of the seeds collapse is found for {found} of {kinds} kinds.")
        return " ".join(lines)


def response(
    runs: Run | Sequence[Run],
    at: Any = None,
    control: Any = None,
    *,
    channels: Sequence[str] | None = None,
    conditions: Any = None,
    seeds: Any = None,
    severity: Any = None,
    performance: str | None = None,
    latent: Any = None,
    c: float = 6.0,
    h: int = 3,
    smooth: int = 10,
    window: int = 100,
    tail: float = 0.1,
    level: float = 0.95,
    n_draws: int = 2000,
    rng: int | np.random.Generator | None = None,
) -> Response:
    """Measure how runs answer to a perturbation.

    Parameters
    ----------
    runs : Run or sequence of Run
    at : float, mapping of run id to float, or sequence, optional
        Step of the injection; ``injection_step`` of each run's configuration by default.
    control : Run, mapping of run id to Run, or sequence of Run or None, optional
        The same-seed run without the perturbation. A run without one is measured against a causal forecast, which is
        said in ``reference``.
    channels : sequence of str, optional
        Names; by default the channels of `ROLES`. x_grad and x_inst always come with them.
    conditions : mapping or sequence of str, optional
        What was done to each run; ``perturbation`` and ``severity`` of the configuration by default.
    seeds : mapping or sequence, optional
        ``seed`` of the configuration by default, else each run is its own.
    severity : mapping or sequence of float, optional
        Rank or amount of the insult, for the collapse threshold; ``severity`` of the configuration by default. Kinds
        are those of ``perturbation`` in the configuration.
    performance : str, optional
        Channel whose collapse gives T_on, as in `trajscope.collapse`; by default by role. Runs that have none are
        "unknown" wherever T_on is asked for.
    latent : Latent, optional
        A meta-state with its bound; by default one is fitted on the controls where there are five.
    c, h : float, int
        Half width of the bands (robust sd) and rows in a row of a loss of coherence; 6 and 3.
    smooth : int, default 10
        Rows of the trailing mean of x_grad.
    window : int, default 100
        Rows before the injection that give noise, forecast and bands.
    tail : float, default 0.1
        Share of the rows at the end that count as the rest.
    level : float, default 0.95
        Coverage of the intervals.
    n_draws : int, default 2000
        Bootstrap draws.
    rng : int or Generator, optional
        Default 0.

    Returns
    -------
    Response

    Raises
    ------
    InputError
        If there is no run, an injection step or a named channel is missing, or an option is out of range.

    Examples
    --------
    >>> from trajscope.history.run import Run, RunData, named_channel
    >>> rng, t = np.random.default_rng(0), np.arange(400.0)
    >>> def toy(seed, hurt):
    ...     loss = 2 + 0.05 * rng.normal(size=400) + hurt * np.where(t >= 200, 2 * 0.5 ** ((t - 200) / 20), 0)
    ...     return Run(f"s{seed}-{hurt}", RunData({"loss": named_channel("loss", t, loss)}, config={"seed": seed}))
    >>> found = response([toy(s, 1) for s in range(5)], at=200, control=[toy(s, 0) for s in range(5)])
    >>> half = found.to_frame().query("channel == 'loss' and statistic == 'half_life'").iloc[0]
    >>> half.method, bool(10 < half.value < 30)
    ('t', True)
    """
    members = [runs] if isinstance(runs, Run) else list(runs)
    if not members or not all(isinstance(r, Run) for r in members):
        raise InputError("response takes a Run or a sequence of at least one Run.")
    if not (c > 0 and h >= 1 and smooth >= 1 and window >= 10 and 0 < tail <= 1 and 0 < level < 1 and n_draws >= 100):
        raise InputError(
            f"options out of range: c {c} > 0, h {h} >= 1, smooth {smooth} >= 1, window {window} >= 10, "
            f"0 < tail {tail} <= 1, 0 < level {level} < 1, n_draws {n_draws} >= 100 are expected."
        )
    generator = as_generator(rng)
    steps = [_step(r, s) for r, s in zip(members, _each(members, at, "at", "injection_step"), strict=True)]
    controls = _controls(members, control)
    names = [_condition(r, v) for r, v in zip(members, _each(members, conditions, "conditions", ""), strict=True)]
    of_seed = [
        r.id if s is None else str(s) for r, s in zip(members, _each(members, seeds, "seeds", "seed"), strict=True)
    ]
    ranks = _each(members, severity, "severity", "severity")

    options: dict[str, Any] = {"performance": performance, "c": c, "h": h, "smooth": smooth, "window": window}
    read = {id(r): signals(r, a, **options) for r, a in zip(members, steps, strict=True)}
    twins: dict[int, Signals] = {}
    rows: list[ChannelResponse] = []
    curves: dict[tuple[str, str], list[tuple[str, Curve]]] = {}
    for run, start, other, name, seed in zip(members, steps, controls, names, of_seed, strict=True):
        if other is not None and id(other) not in twins:
            twins[id(other)] = signals(other, start, **options)
        for channel, curve, note in _curves(run, other, read[id(run)], twins.get(id(other)), start, channels, window):
            shape = describe(curve.offsets, curve.delta, tail=tail) if curve.offsets.size else Shape(*[math.nan] * 6)
            left = f"{curve.n_nonfinite} rows are no number" if curve.n_nonfinite else ""
            text = "; ".join(filter(None, (note, left)))
            what = (run.id, name, seed, channel, curve.reference, curve.noise)
            rows.append(ChannelResponse(*what, **asdict(shape), note=text))
            curves.setdefault((name, channel), []).append((seed, curve))
    found = [read[id(r)] for r in members]
    times = tuple(
        (r.id, n, s.t_grad - a, s.t_inst - a, s.t_on - a, s.fell)
        for r, n, s, a in zip(members, names, found, steps, strict=True)
    )
    peaks = {(r.run, r.channel): r.peak for r in rows}
    return Response(
        tuple(rows),
        tuple(estimates_of(rows, generator, level, n_draws)),
        times,
        ordering_test([(t[0], t[2], t[3], t[4]) for t in times], [s.stride for s in found], level),
        dispersion_ratio(
            [peaks.get((r.id, GRAD), math.nan) for r in members],
            [peaks.get((r.id, INST), math.nan) for r in members],
            names, generator, level=level, n_draws=n_draws,
        ),
        recovery_of(members, steps, found, [o for o in controls if o is not None], latent, tail),
        tuple(thresholds_of(members, ranks, found, level)),
        tuple(mean_curve(n, ch, parts, level) for (n, ch), parts in curves.items()),
        provenance=make_provenance(
            "response",
            {
                "at": steps, "channels": channels, **options, "tail": tail, "level": level, "n_draws": n_draws,
            },
            *(ch.values for r in members for ch in r.channels.values()),
            seed=0 if rng is None else rng if isinstance(rng, int) else None,
        ),
    )  # fmt: skip


# --- what was given ------------------------------------------------------------------------------------------------
def _each(members: Sequence[Run], given: Any, what: str, key: str) -> list[Any]:
    """One value a run: a single one, by id, in order, or from the configuration."""
    if given is None:
        return [r.config.get(key) if key else None for r in members]
    if isinstance(given, Mapping):
        return [given.get(r.id, r.config.get(key) if key else None) for r in members]
    if isinstance(given, str | int | float) or not hasattr(given, "__len__"):
        return [given] * len(members)
    if len(given) != len(members):
        raise InputError(f"{what} has {len(given)} entries for {len(members)} runs; one each is expected.")
    return list(given)


def _step(run: Run, given: Any) -> float:
    try:
        step = float(given)
    except (TypeError, ValueError):
        step = math.nan
    if not math.isfinite(step):
        raise InputError(
            f"run {run.id!r}: no injection step ({given!r}); give at= or have injection_step in its configuration."
        )
    return step


def _controls(members: Sequence[Run], control: Any) -> list[Run | None]:
    if control is None:
        return [None] * len(members)
    if isinstance(control, Run):
        return [control] * len(members)
    values = [control.get(r.id) for r in members] if isinstance(control, Mapping) else list(control)
    if len(values) != len(members):
        raise InputError(f"control has {len(values)} entries for {len(members)} runs; one each (or None) is expected.")
    for run, other in zip(members, values, strict=True):
        if other is not None and not isinstance(other, Run):
            raise InputError(f"the control of run {run.id!r} is a {type(other).__name__}; a Run or None is expected.")
    return values


def _condition(run: Run, given: Any) -> str:
    if given is not None:
        return str(given)
    kind, rank = run.config.get("perturbation"), run.config.get("severity")
    return "all" if kind is None else str(kind) if rank is None else f"{kind} {rank}"


# --- one run -------------------------------------------------------------------------------------------------------
_Series = tuple[Floats, Floats]


def _curves(
    run: Run,
    control: Run | None,
    own: Signals,
    twin: Signals | None,
    start: float,
    channels: Sequence[str] | None,
    window: int,
) -> list[tuple[str, Curve, str]]:
    """Responses of all channels of a run: name, curve, note."""
    out = []
    picked = channels if channels is not None else [c.name for role in ROLES for c in run.by_role(role)[:1]]
    for name in picked:
        if name not in run.channels:
            raise InputError(f"run {run.id!r} has no channel {name!r}. {nearest(name, list(run.channels))}")
        channel = run.channels[name]
        values = channel.values.astype(np.float64)
        other = control.channels[name] if control is not None and name in control.channels else None
        y, scale = transform(values, channel.role)
        ref: _Series | None = None
        if other is not None:
            raw = other.values.astype(np.float64)
            control_y, control_scale = transform(raw, channel.role)
            if control_scale != scale:  # the one went below zero, the other not: both on the scale that takes both
                y, control_y = (transform(v, channel.role, "asinh")[0] for v in (values, raw))
            ref = (other.steps.astype(np.float64), control_y)
        out.append((name, *_curve((channel.steps.astype(np.float64), y), ref, start, window)))
    for name, series, ref in (
        (GRAD, (own.grad_steps, own.grad), (twin.grad_steps, twin.grad) if twin else None),
        (INST, (own.inst_steps, own.inst), (twin.inst_steps, twin.inst) if twin else None),
    ):
        if series[0].size:
            out.append((name, *_curve(series, ref if ref is not None and ref[0].size else None, start, window)))
    return out


def _curve(own: _Series, control: _Series | None, start: float, window: int) -> tuple[Curve, str]:
    """Deviation from control or forecast in baseline sd, from the injection on."""
    steps, y = own
    after = steps >= start
    noise = baseline_noise(steps, y, start, window=window)
    offsets, values, note = steps[after] - start, y[after], ""
    if control is not None:
        kind = "control"
        row = np.searchsorted(control[0], steps[after], side="right") - 1
        reference = np.where(row >= 0, control[1][np.maximum(row, 0)], np.nan)
        same = float(np.mean(control[0][np.maximum(row, 0)] == steps[after])) if offsets.size else 1.0
        if same < 1:
            note = f"control held to the steps of the run ({1 - same:.0%} of rows)"
    else:
        kind, reference = "forecast", forecast(steps, y, start, steps[after], window=window)
    delta = (values - reference) / noise
    good = np.isfinite(delta)
    beyond = int(np.count_nonzero(np.abs(delta[good]) > _LARGEST))
    if beyond:
        delta[good] = np.clip(delta[good], -_LARGEST, _LARGEST)
        note = "; ".join(filter(None, (note, f"{beyond} rows lie beyond {_LARGEST:g} sd and are held there")))
    if not math.isfinite(noise):
        note = "too few rows before the injection"
    lost = int(np.count_nonzero(~good)) if math.isfinite(noise) else 0
    return Curve(offsets[good], delta[good], noise, kind, lost), note
