r"""Coherence, instability, onset and latent distance of a run around an injection, for `trajscope.inference.response`.

:math:`T_{grad}` is the first of *h* rows in a row, from the injection on, at which x_grad (trailing mean of 10 rows:
the cosine of single steps is too noisy to leave any band) lies more than *c* robust sd from its median over the rows
before. :math:`T_{inst}` is the first row at which x_inst exceeds both log(1 + c) and all that the rows before the
injection showed. :math:`T_{on}` is the onset of the first collapse from the injection on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling import MAD_TO_SD, trailing_mean_std
from trajscope.detect._inputs import PERFORMANCE_ROLES
from trajscope.detect._scale import transform
from trajscope.detect.collapse import Collapse, collapse
from trajscope.dynamics.coherence import x_grad
from trajscope.dynamics.instability import x_inst
from trajscope.errors import TrajscopeError
from trajscope.history.run import Run
from trajscope.history.trajectory import align
from trajscope.inference._response_curve import baseline_noise
from trajscope.metastate import PCAState

__all__ = ["Latent", "Signals", "fit_latent", "latent_channels", "latent_rows", "signals"]

Floats = NDArray[np.float64]

LATENT_ROLES = (
    "loss", "grad_norm", "grad_cos", "update_norm", "param_norm", "policy_loss", "value_loss", "entropy", "kl",
    "td_error", "explained_variance",
)  # fmt: skip

_LEAST_CONTROLS, _MOST_CONTROLS = 5, 20


@dataclass(frozen=True, eq=False)
class Signals:
    """x_grad (smoothed) and x_inst of a run, and the three times; NaN where a signal never left its band.

    ``fell`` is True where x_grad left its band downwards, None where it never left; ``outcome`` is None where no
    channel measures performance.
    """

    grad_steps: Floats
    grad: Floats
    grad_source: str
    inst_steps: Floats
    inst: Floats
    t_grad: float
    t_inst: float
    t_on: float
    fell: bool | None
    stride: float
    outcome: Collapse | None


def _first_run(flags: NDArray[np.bool_], h: int) -> int | None:
    total = np.concatenate([[0], np.cumsum(flags)])
    full = np.flatnonzero(total[h:] - total[:-h] == h) if flags.size >= h else np.empty(0, dtype=int)
    return int(full[0]) if full.size else None


def signals(run: Run, at: float, *, performance: str | None, c: float, h: int, smooth: int, window: int) -> Signals:
    """Read the signals of a run and when they left their bands, from ``at`` on."""
    coherence, instability = x_grad(run), x_inst(run, window=window)
    judged = performance is not None or any(run.by_role(role) for role in PERFORMANCE_ROLES)
    outcome = collapse(run, performance=performance) if judged else None
    g_steps, g = np.asarray(coherence.steps, dtype=np.float64), np.asarray(coherence.values, dtype=np.float64)
    if coherence.status == "unavailable":
        g_steps, g = np.zeros(0), np.zeros(0)
    elif smooth > 1:
        g = trailing_mean_std(g, smooth, min_count=1, include=True)[0]
    t_grad, fell = math.nan, None
    before = g[(g_steps < at) & np.isfinite(g)][-window:]
    noise = baseline_noise(g_steps, g, at, window=window)
    if before.size >= 10 and noise == noise:
        centre = float(np.median(before))
        scale = max(MAD_TO_SD * float(np.median(np.abs(before - centre))), noise)
        keep = (g_steps >= at) & np.isfinite(g)
        away = (g[keep] - centre) / scale
        row = _first_run(np.abs(away) > c, h)
        if row is not None:
            t_grad, fell = float(g_steps[keep][row]), bool(away[row] < 0)
    i_steps, i = np.asarray(instability.steps, dtype=np.float64), np.asarray(instability.values, dtype=np.float64)
    past, later = i[(i_steps < at) & np.isfinite(i)][-window:], (i_steps >= at) & np.isfinite(i)
    t_inst = math.nan
    if past.size >= 10:
        out = np.flatnonzero(i[later] > max(math.log1p(c), float(past.max())))
        t_inst = float(i_steps[later][out[0]]) if out.size else math.nan
    episodes = () if outcome is None else outcome.episodes
    clock = i_steps if outcome is None else outcome.steps
    stride = float(np.median(np.diff(clock))) if clock.size > 1 else 1.0
    onsets = [e.onset for e in episodes if e.kind != "cannot tell" and e.onset >= at - stride]
    return Signals(
        g_steps, g, coherence.source, i_steps, i, t_grad, t_inst, min(onsets, default=math.nan), fell, stride, outcome
    )


@dataclass(frozen=True, eq=False)
class Latent:
    """A meta-state learnt on controls, with the channels it reads.

    Attributes
    ----------
    model : fitted estimator
    names : tuple of str
    bound : float
        95 % point of D on the controls.
    """

    model: Any
    names: tuple[str, ...]
    bound: float

    def distance(self, run: Run) -> tuple[Floats, Floats]:
        """Steps and D of a run; empty where it lacks a channel."""
        found = latent_rows(run, self.names)
        if found is None:
            return np.zeros(0), np.zeros(0)
        d = self.model.deviation(found)["D"].to_numpy(dtype=np.float64)
        return np.asarray(found.steps, dtype=np.float64), d


def latent_rows(run: Run, names: Sequence[str]) -> Any:
    """The named channels on the scale of their roles, aligned; None where one is absent."""
    if any(n not in run.channels for n in names):
        return None
    parts = {n: run.channels[n] for n in names}
    alike = {n: replace(c, values=transform(c.values.astype(np.float64), c.role)[0]) for n, c in parts.items()}
    return align(run.replace(channels=alike))


def latent_channels(runs: Sequence[Run]) -> list[str]:
    """Channels that every run logs, without gaps, on (nearly) all rows of its densest one."""
    names: list[str] | None = None
    for run in runs:
        usable = [c for r in LATENT_ROLES for c in run.by_role(r)]
        most = max((len(c) for c in usable), default=0)
        own = [c.name for c in usable if len(c) >= 0.9 * most and bool(np.isfinite(c.values).all())]
        names = own if names is None else [n for n in names if n in own]
    return names or []


def fit_latent(controls: Sequence[Run], rng: int = 0) -> Latent | str:
    """Fit the meta-state on controls, relative to their median at each step; the reason where it cannot be had.

    Channels are those that every control logs on the rows of its densest channel; at most 20 controls are used.
    """
    if len(controls) < _LEAST_CONTROLS:
        return f"{len(controls)} controls; a reference of siblings needs {_LEAST_CONTROLS}"
    chosen = list(controls)[:_MOST_CONTROLS]
    names = latent_channels(chosen)
    if len(names) < 3:
        return f"{len(names)} channels are common to all controls; a meta-state needs 3"
    try:
        model = PCAState(reference="siblings", rng=rng).fit([latent_rows(r, names) for r in chosen])
    except TrajscopeError as problem:
        return str(problem)
    if model.n_components_ == 0:
        return "the channels of the controls share nothing that chance would not give (parallel analysis)"
    return Latent(model, tuple(names), float(model.bounds_["D"]))
