"""Gradients, updates, parameters."""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from trajscope.audit.checks.base import Facts, Found, Rule, finite, first, median_of
from trajscope.audit.events import number
from trajscope.history import Channel

__all__ = ["RULES"]

GROUP = "gradient and parameters"
_CLIP_KEYS = re.compile(r"(max_?grad_?norm|grad(ient)?_?clip(_?(norm|val|value))?|clip_?grad(_?norm)?)$", re.IGNORECASE)
_EPS_KEYS = re.compile(r"(^|[._/])(adam_)?eps(ilon)?$", re.IGNORECASE)


def _channel(f: Facts, *roles: str) -> Channel:
    channel = first(f.run, *roles)
    assert channel is not None  # noqa: S101 - needs
    return channel


def _setting(f: Facts, pattern: re.Pattern[str]) -> float | None:
    """A positive number of the configuration whose key fits."""
    for key, value in f.run.config.items():
        if pattern.search(str(key)) and isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return float(value)
    return None


def _layers(f: Facts, rule: str) -> Found:
    layers = [c for c in f.run.by_role("grad_norm") if len(c)]
    if len(layers) < 3:
        if rule == "explode":
            return Found("not observable", "no gradient norm of single layers")
        y, steps = finite(layers[0])
        small = np.flatnonzero(y < 1e-7)
        if small.size > 0.1 * y.size:
            return Found("watch", f"{small.size} rows below 1e-7", tuple(steps[small].tolist()))
        return Found("pass", f"median {number(median_of(y))} (of the whole gradient)")
    ends = [median_of(finite(c)[0]) for c in (layers[0], layers[-1])]
    ratio = ends[0] / ends[1] if ends[1] else float("inf")
    bad = ratio > 70 if rule == "explode" else ratio < 1e-3 and ends[0] < 1e-4
    text = f"{layers[0].name} over {layers[-1].name}: median {number(ratio)}"
    return Found("info" if bad else "pass", text)


def _outliers(f: Facts) -> Found:
    name = _channel(f, "grad_norm").name
    hits = [e for e in f.of("spike") if e.channel == name]
    if not hits:
        return Found("pass", "no excursion of 8 robust sd")
    worst = max(hits, key=lambda e: e.strength)
    more = f" (and {len(hits) - 1} more)" if len(hits) > 1 else ""
    return Found("info", worst.sentence + more, tuple(e.step for e in hits))


def _clipping(f: Facts) -> Found:
    y, _ = finite(_channel(f, "grad_norm"))
    if y.size < 50:
        return Found("not enough history", f"{y.size} rows")
    top = float(y.max())
    at_top = float(np.mean(y >= top * (1 - 1e-6)))
    if at_top > 0.05:
        return Found("info", f"{at_top:.0%} of rows stand at {number(top)}: this is the norm after clipping")
    bound = _setting(f, _CLIP_KEYS)
    if bound is None:
        return Found("not observable", "no clipping bound in the configuration")
    share = float(np.mean(y > bound))
    return Found("info" if share > 0.5 else "pass", f"{share:.0%} of rows above the bound {number(bound)}")


def _ratio(f: Facts) -> Found:
    u, p = _channel(f, "update_norm"), _channel(f, "param_norm")
    steps, iu, ip = np.intersect1d(u.steps, p.steps, return_indices=True)
    size = p.values[ip].astype(np.float64)
    with np.errstate(all="ignore"):
        r = u.values[iu].astype(np.float64) / size
    good = np.isfinite(r) & (size > 0)
    if np.count_nonzero(good) < 20:
        return Found("not enough history", "update and parameter norm share too few rows")
    r, steps = r[good], steps[good]
    bad = np.flatnonzero((r > 10) | ((r < 1e-8) & (r > 0)))
    text = f"median {number(median_of(r))}, largest {number(float(r.max()))}"
    return Found("watch" if bad.size else "pass", text, tuple(float(s) for s in steps[bad]))


def _precedes(f: Facts) -> Found:
    channel = _channel(f, "update_norm")
    y, steps = finite(channel)
    spikes = [e for e in f.of("spike", "dip") if e.channel in {c.name for c in f.judged}]
    if y.size < 50:
        return Found("not enough history", f"{y.size} rows")
    high = np.flatnonzero(y >= 2 * median_of(y))
    reach = 10 * (channel.stride if np.isfinite(channel.stride) else 1.0)
    led = [e for e in spikes if np.any((steps[high] < e.step) & (steps[high] >= e.step - reach))]
    text = f"{len(led)} of {len(spikes)} spikes follow an update of twice the median; {high.size} such updates in all"
    return Found("info" if led else "pass", text, tuple(e.step for e in led))


def _coherence(f: Facts) -> Found:
    from trajscope.dynamics.coherence import x_grad

    if f.settings.profile == "fast":
        return Found("info", "not computed in the fast profile")
    found = x_grad(f.run)
    if found.status == "unavailable" or found.values.size < 100:
        return Found("not observable", "neither cosines nor micro-batch norms are logged")
    y = found.values[np.isfinite(found.values)]
    tenth = max(20, y.size // 10)
    before, after = y[: y.size // 4], y[-tenth:]
    if before.size < 20:
        return Found("not enough history", f"{y.size} rows")
    text = f"mean {before.mean():.2f} in the first quarter, {after.mean():.2f} in the last tenth ({found.source})"
    return Found("info", text)


def _growth(f: Facts) -> Found:
    y, _ = finite(_channel(f, "param_norm"))
    if y.size < 20 or not y[:5].mean() > 0:
        return Found("not enough history", f"{y.size} rows")
    factor = float(np.median(y[-5:]) / np.median(y[:5]))
    text = f"{factor:.2f} times the norm at the start"
    return Found("info" if factor > 2 or factor < 0.5 else "pass", text)


def _unchanged(f: Facts) -> Found:
    y, steps = finite(_channel(f, "update_norm"))
    zero = y <= 1e-8
    if zero.size < 3:
        return Found("not enough history", f"{zero.size} rows")
    rows = np.flatnonzero(zero[2:] & zero[1:-1] & zero[:-2])
    if not rows.size:
        return Found("pass", "the parameters move in every row")
    return Found("watch", f"no update for three rows, {rows.size} times", tuple(steps[rows].tolist()))


def _by_name(f: Facts, pattern: str, what: str) -> Found:
    """Channels that have no role but a telling name: is there a large drift?"""
    wanted = re.compile(pattern, re.IGNORECASE)
    for channel in f.run.channels.values():
        if wanted.search(channel.name) and len(channel) >= 20:
            y, _ = finite(channel)
            if y.size < 20:
                continue
            tenth = max(5, y.size // 10)
            a, b = median_of(y[:tenth]), median_of(y[-tenth:])
            return Found("info", f"{channel.name}: {number(a)} in the first tenth, {number(b)} in the last")
    return Found("not observable", f"no channel for {what}")


def _rank_lost(f: Facts) -> Found:
    wanted = re.compile(r"effective_?rank|feature_?(var|rank|std)", re.IGNORECASE)
    for channel in f.run.channels.values():
        y, steps = finite(channel)
        if wanted.search(channel.name) and y.size >= 20:
            tenth = max(5, y.size // 10)
            share = median_of(y[-tenth:]) / median_of(y[tenth : 3 * tenth])
            text = f"{channel.name} ends at {share:.0%} of its baseline"
            return Found("watch" if share < 0.1 else "pass", text, (float(steps[-tenth]),) if share < 0.1 else ())
    return Found("not observable", "no effective rank or feature variance")


def _under_eps(f: Facts) -> Found:
    eps, size = _setting(f, _EPS_KEYS), _setting(f, re.compile(r"n_?param(eter)?s$|num_param", re.IGNORECASE))
    if eps is None or size is None:
        return Found("not observable", "eps of Adam or the number of parameters is not in the configuration")
    y, _ = finite(_channel(f, "grad_norm"))
    rms = median_of(y[-max(5, y.size // 10) :]) / np.sqrt(size)
    text = f"root mean square of the gradient {number(rms)} at the end, eps {number(eps)}"
    return Found("watch" if rms < eps else "pass", text)


def _silent(f: Facts) -> Found:
    y, steps = finite(_channel(f, "grad_norm"))
    if y.size < 100:
        return Found("not enough history", f"{y.size} rows")
    huge = np.flatnonzero(y > 1e6 * max(median_of(y[: y.size // 4]), 1e-300))
    if huge.size < 100:
        return Found("pass", f"at most {number(float(y.max() / max(median_of(y), 1e-300)))} times its median")
    return Found("watch", f"{huge.size} rows beyond a million times its early median", tuple(steps[huge].tolist()))


def _tail(f: Facts) -> Found:
    y, _ = finite(_channel(f, "grad_norm"))
    y = y[y > 0]
    if y.size < 500:
        return Found("not enough history", f"{y.size} rows; 500 are needed")
    top = np.sort(y)[-max(25, y.size // 20) :]
    index = 1 / max(float(np.mean(np.log(top[1:] / top[0]))), 1e-9)
    return Found("info", f"tail index {index:.1f} (Hill, largest 5 %); below 2 the variance is not finite")


NORM = (("grad_norm",),)
RULES = (
    Rule(
        "C1",
        "Exploding layers",
        GROUP,
        "optimization",
        NORM,
        "norm of the first layer over 70 times that of the last",
        "at most 70",
        "AUTOTRAINER",
        "14 of 17 normal models",
        partial(_layers, rule="explode"),
        "log the gradient norm of each layer",
    ),
    Rule(
        "C2",
        "Vanishing gradient",
        GROUP,
        "optimization",
        NORM,
        "first layer below 1e-3 of the last and below 1e-4; or a tenth of rows below 1e-7",
        "none",
        "AUTOTRAINER; SageMaker VanishingGradient",
        "a converged model",
        partial(_layers, rule="vanish"),
    ),
    Rule(
        "C3",
        "Outliers of the gradient norm",
        GROUP,
        "optimization",
        NORM,
        "8 robust sd from the one-step prediction",
        "none",
        "BLOOM: 0.24 to 960 in six rows, four before the loss",
        "a norm after clipping",
        _outliers,
    ),
    Rule(
        "C4",
        "Share of clipped updates",
        GROUP,
        "optimization",
        NORM,
        "more than half of the rows above the bound in the configuration",
        "at most half",
        "Google tuning playbook",
        "PPO clips nearly all by design",
        _clipping,
        "log the norm before clipping, and the bound in the configuration",
    ),
    Rule(
        "C5",
        "Update over parameter norm",
        GROUP,
        "optimization",
        (("update_norm",), ("param_norm",)),
        "above 10 or below 1e-8",
        "about 1e-3",
        "SageMaker WeightUpdateRatio",
        "first steps of Adam",
        _ratio,
    ),
    Rule(
        "C6",
        "Updates before spikes",
        GROUP,
        "optimization",
        (("update_norm",),),
        "twice the median update within ten rows before a spike",
        "none",
        "Marin 32B retrospective",
        "a weak precursor: most large updates lead to nothing",
        _precedes,
    ),
    Rule(
        "C7",
        "Gradient coherence",
        GROUP,
        "optimization",
        (),
        "x_grad of the run against its own beginning",
        "described",
        "arXiv 2601.13160; definitions of this project",
        "noise of mini-batches",
        _coherence,
        "log the cosine of successive gradients",
    ),
    Rule(
        "C8",
        "Growth of parameters",
        GROUP,
        "parametric",
        (("param_norm",),),
        "twice or half of the start",
        "between",
        "AUTOTRAINER large weights",
        "normalised networks grow harmlessly",
        _growth,
    ),
    Rule(
        "C9",
        "Parameters that do not move",
        GROUP,
        "parametric",
        (("update_norm",),),
        "three rows below 1e-8",
        "none",
        "SageMaker UnchangedTensor",
        "frozen layers; a rate of 0 at the start of a warm-up",
        _unchanged,
    ),
    Rule(
        "C12",
        "Adam's moments",
        GROUP,
        "optimization",
        (),
        "second moment that rises while the loss is flat",
        "described",
        "Marin issue 1368",
        "-",
        partial(_by_name, pattern="exp_avg|second_?moment|adam_v", what="Adam's moments"),
        "log norms of the optimizer's moments",
    ),
    Rule(
        "C13",
        "Attention and output logits",
        GROUP,
        "parametric",
        (),
        "maximum logit or log Z that drifts",
        "described",
        "IDEFICS z-loss",
        "thresholds are not settled",
        partial(_by_name, pattern="max_?logit|z_?loss|log_?z", what="maximum logit or z-loss"),
        "log the maximum attention logit and log Z",
    ),
    Rule(
        "C14",
        "Gradient below Adam's eps",
        GROUP,
        "optimization",
        NORM,
        "root mean square gradient below eps",
        "above",
        "Wortsman et al. 2023 (arXiv 2309.14322)",
        "-",
        _under_eps,
        "put eps and the number of parameters into the configuration",
    ),
    Rule(
        "C15",
        "Curvature",
        GROUP,
        "optimization",
        (),
        "largest eigenvalue or trace of the Hessian, gradient noise scale",
        "described",
        "Cockpit",
        "rarely logged",
        partial(_by_name, pattern="hess|sharpness|noise_?scale", what="curvature"),
        "log sharpness or the gradient noise scale",
    ),
    Rule(
        "C16",
        "Silent explosion",
        GROUP,
        "optimization",
        NORM,
        "a hundred rows beyond a million times the early median",
        "none",
        "AlgoPerf deepspeech: 1e13 to 1e19 with a flat loss",
        "sums instead of means",
        _silent,
    ),
    Rule(
        "C17",
        "Rank of the representation",
        GROUP,
        "parametric",
        (),
        "below a tenth of its baseline",
        "above",
        "representation collapse",
        "-",
        _rank_lost,
        "log the effective rank of a hidden layer",
    ),
    Rule(
        "C18",
        "Tail of the gradient norm",
        GROUP,
        "environment/data",
        NORM,
        "Hill's index of the largest 5 %",
        "described",
        "Hill 1975",
        "trends",
        _tail,
    ),
)
