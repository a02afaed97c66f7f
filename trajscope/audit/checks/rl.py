"""Reinforcement learning: policies, values, episodes."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from trajscope.audit.checks.base import Facts, Floats, Found, Rule, finite, first, median_of
from trajscope.audit.events import number
from trajscope.detect.changepoints import change_points

__all__ = ["RULES"]

GROUP = "reinforcement learning"
LASTING = 10
"""Rows in a row that count as sustained."""


def _values(f: Facts, *roles: str) -> tuple[Floats, NDArray[np.float64]]:
    channel = first(f.run, *roles)
    assert channel is not None  # noqa: S101 - needs
    return finite(channel)


def _sustained(over: NDArray[np.bool_], n: int = LASTING) -> NDArray[np.intp]:
    """First rows of stretches of at least n rows."""
    if over.size < n:
        return np.zeros(0, dtype=np.intp)
    full = np.convolve(over, np.ones(n), "valid") >= n
    return np.flatnonzero(full & ~np.concatenate([[False], full[:-1]]))


def _kl(f: Facts) -> Found:
    y, steps = _values(f, "kl")
    target = next(
        (v for k, v in f.run.config.items() if re.search(r"target_?kl$", str(k)) and isinstance(v, float)), None
    )
    if y.size < 20:
        return Found("not enough history", f"{y.size} rows")
    usual = median_of(y[: max(10, y.size // 2)])
    bound = 1.5 * target if target else 10 * usual
    rows = _sustained(y > bound, 3) if bound > 0 else np.zeros(0, dtype=np.intp)
    text = f"median {number(usual)}, largest {number(float(y.max()))}, bound {number(bound)}"
    return Found("watch" if rows.size else "pass", text, tuple(float(s) for s in steps[rows]))


def _clip(f: Facts) -> Found:
    y, steps = _values(f, "clip_fraction")
    rows = _sustained(y > 0.5)
    text = f"median {number(median_of(y))}, largest {number(float(y.max()))}" if y.size else "no value"
    return Found("watch" if rows.size else "pass", text, tuple(float(s) for s in steps[rows]))


def _entropy(f: Facts) -> Found:
    y, steps = _values(f, "entropy")
    if y.size < 20:
        return Found("not enough history", f"{y.size} rows")
    start = median_of(y[:5])
    text = f"{number(start)} at the start, {number(median_of(y[-5:]))} at the end"
    if start <= 0:
        return Found("info", text)
    low = _sustained(y < 0.05 * start)
    return Found("watch" if low.size else "pass", text, tuple(float(s) for s in steps[low]))


def _explained(f: Facts) -> Found:
    y, steps = _values(f, "explained_variance")
    if y.size < 20:
        return Found("not enough history", f"{y.size} rows")
    late = median_of(y[y.size // 2 :])
    rows = _sustained(y < 0)
    rows = rows[rows > y.size // 4]
    return Found("watch" if late < 0 else "info" if rows.size else "pass", f"median {number(late)} in the second half",
                 tuple(float(s) for s in steps[rows]))  # fmt: skip


def _value_loss(f: Facts) -> Found:
    y, steps = _values(f, "value_loss")
    y, steps = y[y > 0], steps[y > 0]
    if y.size < 50:
        return Found("not enough history", f"{y.size} rows")
    usual = median_of(y)
    rows = np.flatnonzero(y > 50 * usual)
    rows = rows[rows > y.size // 10]
    text = f"largest {number(float(y.max() / usual))} times its median"
    return Found("info" if rows.size else "pass", text, tuple(float(s) for s in steps[rows]))


def _masked(f: Facts) -> Found:
    found = [c for c in f.run.by_role("return") if len(c) >= 50]
    if len(found) < 2:
        return Found("not observable", "episode returns and their mean are not both logged")
    raw, mean = max(found, key=len), min(found, key=len)
    (y, steps), (m, when) = finite(raw), finite(mean)
    if not y.size or not m.size:
        return Found("not enough history", "no finite value")
    carried = m[np.clip(np.searchsorted(when, steps, side="right") - 1, 0, m.size - 1)]
    spread = max(float(np.std(y - carried)), 1e-12)
    off = _sustained(np.abs(np.convolve(y - carried, np.ones(5) / 5, "same")) > 3 * spread / np.sqrt(5), 5)
    text = f"{mean.name} beside {raw.name}: apart by three standard errors in {off.size} stretches"
    return Found("info" if off.size else "pass", text, tuple(float(s) for s in steps[off]))


def _named(f: Facts, pattern: str, what: str) -> Found:
    wanted = re.compile(pattern, re.IGNORECASE)
    for channel in f.run.channels.values():
        if wanted.search(channel.name):
            y, _ = finite(channel)
            if y.size >= 20:
                return Found("info", f"{channel.name}: {number(median_of(y[:10]))} to {number(median_of(y[-10:]))}")
    return Found("not observable", f"no channel for {what}")


def _ratio(f: Facts) -> Found:
    return _named(f, r"(^|[/_.])ratio($|[/_.]mean)", "the importance ratio")


def _reference(f: Facts) -> Found:
    return _named(f, r"objective/kl|kl_?ref|ref_?kl", "the divergence from the reference policy")


def _residual(f: Facts) -> Found:
    return _named(f, r"residual_?variance|td_?error_?var", "the residual variance")


def _settings(f: Facts) -> Found:
    if f.settings.profile == "fast":
        return Found("info", "not computed in the fast profile")
    said = []
    for role in ("episode_length", "exploration", "temperature"):
        channel = first(f.run, role)
        if channel is None or len(channel) < 50:
            continue
        y, steps = finite(channel)
        found = change_points(y, steps, alpha=f.settings.alpha / 3) if y.size >= 50 and np.ptp(y) else None
        if found is not None and len(found.steps):
            said.append((float(found.steps[0]), f"{channel.name} changes at step {number(float(found.steps[0]))}"))
    return (
        Found("info", "; ".join(s for _, s in said), tuple(s for s, _ in said)) if said else Found("pass", "no change")
    )


def _adversary(f: Facts) -> Found:
    wanted = re.compile(r"(^|[/_.])(d|disc(riminator)?)_?loss", re.IGNORECASE)
    for channel in f.run.channels.values():
        y, steps = finite(channel)
        if wanted.search(channel.name) and y.size >= 50:
            rows = _sustained(np.abs(y) < 0.02 * max(median_of(np.abs(y[: y.size // 4])), 1e-12))
            text = f"{channel.name} ends at {number(median_of(y[-10:]))}"
            return Found("watch" if rows.size else "pass", text, tuple(float(s) for s in steps[rows]))
    return Found("not observable", "no loss of a discriminator")


RULES = (
    Rule(
        "F1",
        "Divergence of the policy",
        GROUP,
        "optimization",
        (("kl",),),
        "1.5 times the target, or ten times its median, for three rows",
        "below",
        "SB3; PPO runs of this project: 0.016 to 0.52 recovered, 19 did not",
        "first updates, large batches",
        _kl,
    ),
    Rule(
        "F2",
        "Clip fraction",
        GROUP,
        "optimization",
        (("clip_fraction",),),
        "above 0.5 for ten rows",
        "below",
        "PPO runs of this project",
        "a large rate at the start",
        _clip,
    ),
    Rule(
        "F3",
        "Importance ratio",
        GROUP,
        "optimization",
        (),
        "mean far from 1",
        "near 1",
        "TRL",
        "-",
        _ratio,
        "log the mean importance ratio",
    ),
    Rule(
        "F4",
        "Entropy of the policy",
        GROUP,
        "learning signal",
        (("entropy",),),
        "below 5 % of its start for ten rows",
        "above",
        "RL debugging notes",
        "annealed exploration; entropies of continuous actions may be negative",
        _entropy,
    ),
    Rule(
        "F5",
        "Explained variance",
        GROUP,
        "learning signal",
        (("explained_variance",),),
        "below 0 in the second half",
        "above 0",
        "SB3",
        "sparse rewards; it often falls after the collapse",
        _explained,
    ),
    Rule(
        "F6",
        "Value loss",
        GROUP,
        "learning signal",
        (("value_loss",),),
        "50 times its median",
        "below",
        "TRL; rescaled rewards raise it without harm",
        "reward scale",
        _value_loss,
    ),
    Rule(
        "F7",
        "Divergence from the reference policy",
        GROUP,
        "learning signal",
        (),
        "negative, or growing with a flat reward",
        "described",
        "TRL; open-r1",
        "noise of the estimator",
        _reference,
        "log KL to the reference",
    ),
    Rule(
        "F9",
        "Returns behind a mean",
        GROUP,
        "",
        (("return",),),
        "episode returns against their logged mean",
        "agree",
        "this project: a mean of 100 episodes hides a fall from 400 to -600",
        "-",
        _masked,
        "log the return of every episode",
    ),
    Rule(
        "F10",
        "Residual variance",
        GROUP,
        "learning signal",
        (),
        "near or above 1",
        "below 1",
        "RL debugging notes",
        "-",
        _residual,
        "log the variance of TD errors over that of targets",
    ),
    Rule(
        "F11",
        "Episode length and exploration",
        GROUP,
        "environment/data",
        (("episode_length", "exploration", "temperature"),),
        "change points",
        "no change",
        "SB3",
        "annealing",
        _settings,
    ),
    Rule(
        "G4",
        "Discriminator",
        GROUP,
        "optimization",
        (),
        "its loss below 2 % of its early median for ten rows",
        "above",
        "GAN training guides",
        "-",
        _adversary,
        "log the losses of both networks",
    ),
)
