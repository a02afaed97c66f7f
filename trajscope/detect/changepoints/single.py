"""All changes of one channel: narrowest first, then again with what was found taken out of the noise.

A pass visits the scales from narrow to wide and accepts what passes; windows that hold an accepted change are left
out from then on. The noise of the first pass is contaminated by the changes themselves, towards too much noise, so
after each pass the located changes are subtracted, the noise is estimated again and the pass repeated until it
finds nothing new.

Changes of variance are steps of ``log(|e| / s + 0.5)``, ``e`` the innovations of the series without its located
changes: the logarithm turns a factor into a step, the 0.5 keeps the logarithm's left tail short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

from trajscope.detect.changepoints.contest import smooth_lead
from trajscope.detect.changepoints.kinks import SegmentBreak, permutation_p_value, segment_kink, segment_step
from trajscope.detect.changepoints.locate import locate, locate_relaxation
from trajscope.detect.changepoints.noise import Noise, clip_spikes, estimate_noise, innovations, noise_floor
from trajscope.detect.changepoints.scan import Candidate, Limits, maximum_p_value, n_scales, scan_scales

__all__ = ["Change", "ChannelScan", "Settings", "scan_channel", "subtract_changes"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """What decides whether a contrast is a change (the named constants of `scan`).

    Attributes
    ----------
    confirm, confirm_half, min_ratio : float
        See `scan.Limits`.
    onset : float
        See `scan.scan_scales`.
    least_segment : int
        Fewest rows of a segment for `kinks`.
    exact_below : int
        Shorter segments must also pass a permutation test, exact for exchangeable noise.
    step_lead, kink_lead, bent : float
        Margins of `kinks`: twice the log likelihood ratio over the best smooth shape, tilt or curvature of a side
        in sd.
    contest_rows : int
        Windows of fewer rows hold too little to tell a step from a smooth transition.
    relaxes, smooth_lead, smooth_lead_slow, smooth_lead_kink, smooth_lead_late : float
        Margins of `contest` in twice the log likelihood: from which a level relaxes instead of stepping, and from
        which a smooth curve takes the place of a step early in a run, of a relaxation there, of any kink, and of a
        step or relaxation later.
    early : float
        Share of the run that is early, up to the first change; nothing is where the onset guard is off.
    passes : int
        Most passes over the scales.
    lenient_passes, lenient_alpha, lenient_confirm, lenient_half
        The passes whose finds serve the noise estimate only.
    lenient_rows : int
        No lenient pass on longer series: their noise comes from hundreds of blocks, which a few changes do not move.
    log_offset : float
        In ``log(|e| / s + offset)``; 0.5 has 96 % of the information of the best offset for normal and for t(3)
        innovations.
    steep_rows, steep
        A row is not used for changes of variance where the running median over so many rows moves by more than so
        many sd.
    """

    confirm: float = 2.7
    confirm_half: float = 1.6
    min_ratio: float = 0.6
    confirm_kink: float = 3.3
    confirm_kink_half: float = 1.6
    min_kink_ratio: float = 0.6
    onset: float = 0.75
    least_segment: int = 16
    exact_below: int = 64
    step_lead: float = 4.0
    kink_lead: float = 1.25
    bent: float = 2.5
    contest_rows: int = 48
    relaxes: float = 8.0
    smooth_lead: float = 2.0
    smooth_lead_slow: float = -3.0
    smooth_lead_kink: float = 0.0
    smooth_lead_late: float = 8.0
    early: float = 0.35
    passes: int = 6
    lenient_passes: int = 2
    lenient_rows: int = 100_000
    lenient_alpha: float = 0.5
    lenient_confirm: float = 1.8
    lenient_half: float = 1.0
    log_offset: float = 0.5
    steep_rows: int = 31
    steep: float = 2.0


@dataclass(frozen=True)
class Change:
    """One change of one channel, in rows of that channel: where, what kind, how sure, how large."""

    row: int
    low: int
    high: int
    kind: str
    p_value: float
    size: float
    z: float
    half: int
    tau: float = 0.0
    """Time constant, in rows, of a level that relaxes; 0 where it steps."""


@dataclass(frozen=True, eq=False)
class ChannelScan:
    """Changes of a channel, sorted, and what the noise was like.

    Attributes
    ----------
    changes : tuple of Change
    noise : Noise
    spikes : ndarray of int
        Rows that were clipped beyond six local standard deviations.
    first : int
        First row at which the narrowest window fits; changes before it cannot be seen.
    """

    changes: tuple[Change, ...]
    noise: Noise
    spikes: NDArray[np.int64]
    first: int


def subtract_changes(y: Floats, changes: list[Change]) -> Floats:
    """The series without its located steps and kinks (a change of variance is a step of the log innovation)."""
    steps = np.zeros(y.shape[0] + 1)
    bends = np.zeros(y.shape[0] + 1)
    for change in changes:
        if change.kind in ("level", "variance"):
            steps[change.row] += change.size
        elif change.kind == "slope":
            bends[change.row] += change.size
    slope = np.concatenate([[0.0], np.cumsum(bends[:-1])[:-1]])
    return np.asarray(_sharpened(y, changes) - np.cumsum(steps[:-1]) - np.cumsum(slope))


def _sharpened(y: Floats, changes: list[Change]) -> Floats:
    """The series with each located relaxation done at once."""
    relaxing = [c for c in changes if c.tau > 0]
    if relaxing:
        y = y.copy()
    for change in relaxing:
        y[change.row :] += change.size * np.exp(-np.arange(y.shape[0] - change.row) / change.tau)
    return y


def _accept(
    y: Floats, found: Candidate, p_value: float, noise: Noise, kind: str, settings: Settings, *, early: bool
) -> Change | None:
    """Locate a candidate and name it: a step, a relaxation or a kink, whichever leaves the smallest residual.

    None where a smooth curve leaves a smaller one than each of these (`contest`). For a level `early` in a run, where
    warm-ups rise and fall, the margin is small; later a fall that a relaxation and a sigmoid explain alike is a change.
    """
    start, stop = found.row - found.left, min(found.row + found.right, y.shape[0])
    variance = float(np.mean(np.square(noise.sd[start:stop]))) * noise.inflation
    reach = max(min(found.left, found.right) // 2, 2)
    if kind == "variance":
        at = locate(y, start, stop, kind, variance, found.row, reach)
        return Change(at.row, at.low, at.high, kind, p_value, at.size, found.z, found.half)
    step = locate(y, start, stop, "level", variance, found.row, reach)
    kink = locate(y, start, stop, "slope", variance, found.row, reach)
    best, tau = ("level", 0.0) if step.gain >= kink.gain else ("slope", 0.0)
    at = step if best == "level" else kink
    if stop - start >= settings.contest_rows:
        slow, slow_tau = locate_relaxation(y, start, stop, variance, found.row + reach)
        if slow.gain > at.gain + settings.relaxes * variance:
            best, tau, at = "level", slow_tau, slow
        lead = smooth_lead(y[start:stop], at.gain, variance)
        if best == "slope":
            margin = settings.smooth_lead_kink
        elif early:
            margin = settings.smooth_lead_slow if tau else settings.smooth_lead
        else:
            margin = settings.smooth_lead_late
        if lead > margin:
            return None
    return Change(at.row, at.low, at.high, best, p_value, at.size, found.z, found.half, tau)


def limits_for(shares: Mapping[str, float], alpha: float, n: int, settings: Settings) -> dict[str, Limits]:
    """What each kind must reach at each scale: its share of `alpha`, split evenly over the scales."""
    count = n_scales(n)
    level = (settings.confirm, settings.confirm_half, settings.min_ratio)
    slope = (settings.confirm_kink, settings.confirm_kink_half, settings.min_kink_ratio)
    return {
        "slope" if kind == "slope" else "level": Limits(alpha * share / count, *(slope if kind == "slope" else level))
        for kind, share in shares.items()
    }


def _one_pass(
    y: Floats, noise: Noise, known: list[Change], shares: Mapping[str, float], settings: Settings, alpha: float
) -> list[Change]:
    n = y.shape[0]
    count = n_scales(n)
    rows = sorted(c.row for c in known)
    new: list[Change] = []
    scales = scan_scales(y, noise, rows, limits_for(shares, alpha, n, settings), onset=settings.onset)
    send: list[int] | None = None
    while True:
        try:
            found = scales.send(send) if send is not None else next(scales)
        except StopIteration:
            return new
        send = []
        for c in sorted(found, key=lambda c: (c.p_value / shares.get(c.kind, 1.0), -abs(c.z))):
            if any(c.row - c.left < r < c.row + c.right for r in rows):
                continue
            kind = "variance" if "variance" in shares else c.kind
            early = settings.onset < 1 and c.row < settings.early * n and not any(r < c.row for r in rows)
            change = _accept(y, c, min(1.0, c.p_value * count / shares[kind]), noise, kind, settings, early=early)
            if change is None:
                continue
            if change.kind != kind and not change.tau:  # the other kind has a contrast of its own
                continue
            rows.append(change.row)
            new.append(change)
            send.append(change.row)


def _segment_breaks(
    y: Floats,
    noise: Noise,
    known: list[Change],
    shares: Mapping[str, float],
    alpha: float,
    settings: Settings,
    rng: np.random.Generator,
) -> list[Change]:
    """Steps and kinks of whole segments (`kinks`): at most one a segment and call.

    A segment ends where the interval of the next change begins: rows that may lie behind the change bend its end.
    """
    new = []
    ordered = sorted(known, key=lambda c: c.row)
    edges = [0, *[c.row for c in ordered], y.shape[0]]
    stops = [*[c.low for c in ordered], y.shape[0]]
    for start, stop in zip([0, *[max(c.row, min(c.high, c.row + c.half)) for c in ordered]], stops, strict=True):
        length = stop - start
        if length < settings.least_segment:
            continue
        cells = min(length, 128)
        bounds = start + np.linspace(0, length, cells + 1).astype(np.int64)
        means = np.add.reduceat(y[:stop], bounds[:-1]) / np.diff(bounds)
        variance = float(np.mean(np.square(noise.sd[start:stop]))) * noise.inflation
        best: tuple[float, str, SegmentBreak] | None = None
        for kind, share in shares.items():
            found = (segment_kink if kind == "slope" else segment_step)(means, variance * cells / length)
            lead = settings.kink_lead if kind == "slope" else settings.step_lead
            if found is None or found.lead < lead or found.bent > settings.bent:
                continue
            p_value = maximum_p_value(found.z, length, length // 4, kind)
            p_value = min(1.0, p_value * (len(edges) - 1) / share)
            if p_value < alpha and kind != "slope" and length < settings.exact_below:
                exact = permutation_p_value(y[start:stop], rng) * (len(edges) - 1) / share
                p_value = min(1.0, max(p_value, exact))
            if p_value < alpha and (best is None or found.z > best[2].z):
                best = (p_value, kind, found)
        if best is None:
            continue
        p_value, kind, found = best
        near = int(bounds[found.cell])
        shape = "slope" if kind == "slope" else "flat"
        at = locate(y, start, stop, shape, variance, near, max(length // 10, 4))
        new.append(Change(at.row, at.low, at.high, kind, p_value, at.size, found.z, length // 2))
    return new


def scan_channel(
    y: Floats,
    *,
    alpha: float,
    shares: Mapping[str, float],
    settings: Settings | None = None,
    steps: NDArray[Any] | None = None,
    rng: np.random.Generator | None = None,
) -> ChannelScan:
    """Changes of one channel.

    Parameters
    ----------
    y : ndarray, (n,)
        Finite values, rows of this channel only.
    alpha : float
        Chance of any change where there is none.
    shares : mapping of str to float
        Share of `alpha` for each kind looked for: level, slope, variance; sums to at most 1.
    settings : Settings, optional
    steps : ndarray, (n,), optional
        Positions of the rows. Where they are uneven, a change must also hold beside a curve of the steps
        (`holds_in_steps`).
    rng : Generator, optional
        For the permutation tests of short segments; seed 0 unless given.
    """
    settings = settings or Settings()
    rng = rng or np.random.default_rng(0)
    clipped, spike = clip_spikes(y)
    floor = noise_floor(y)
    changes, noise, rest = _search(
        clipped, {k: v for k, v in shares.items() if k != "variance"}, alpha, settings, floor, rng, steps
    )
    if "variance" in shares:
        moved = _variance_changes(rest, noise, shares["variance"], alpha, settings, floor, rng)
        moved = [m for m in moved if all(abs(m.row - c.row) > m.half // 2 for c in changes)]
        changes = sorted([*changes, *moved], key=lambda c: c.row)
    return ChannelScan(tuple(changes), noise, np.flatnonzero(spike), min(8, y.shape[0]))


def holds_in_steps(y: Floats, steps: NDArray[Any], change: Change, noise: Noise, limit: float) -> bool:
    """Whether a change found on the rows is still one on the steps.

    Where rows are not evenly spaced (a gap, a new logging interval) a straight line in the step is bent or broken
    in the row. There the step or kink is fitted again beside a cubic or a parabola of the step, and must reach
    `limit` sd.
    """
    reach = max(change.half, 8)
    start, stop = max(change.row - reach, 0), min(change.row + reach, y.shape[0])
    t = steps[start:stop].astype(float)
    gaps = np.diff(t)
    usual = float(np.median(gaps))
    if np.all(np.abs(gaps - usual) <= 1e-6 * abs(usual)):
        return True
    x = 2 * (t - t[0]) / max(t[-1] - t[0], 1e-300) - 1
    place = x[change.row - start]
    target = (x >= place).astype(float) if change.kind == "level" else np.maximum(x - place, 0.0)
    nuisance = np.polynomial.legendre.legvander(x, 3 if change.kind == "level" else 2)
    target = target - nuisance @ np.linalg.lstsq(nuisance, target, rcond=None)[0]
    length = float(target @ target)
    if length <= 0:
        return False
    sd = float(np.sqrt(np.mean(np.square(noise.sd[start:stop])) * noise.inflation / length))
    z = float(target @ y[start:stop]) / length / sd
    return bool(np.sign(z) == np.sign(change.size) and abs(z) > limit)


def _variance_changes(
    y: Floats, noise: Noise, share: float, alpha: float, settings: Settings, floor: float, rng: np.random.Generator
) -> list[Change]:
    """Changes of variance: steps of the log innovation, on rows where the curve is not too steep to see the noise."""
    e = innovations(y, noise.phi)
    size = min(settings.steep_rows, e.shape[0])
    centre = median_filter(e, size=size, mode="nearest")
    half = size // 2
    padded = np.pad(centre, half, mode="edge")
    spread = np.abs(e - centre)
    scale = float(np.median(spread)) / 0.6745
    if scale <= floor:
        return []
    rise = np.abs(padded[2 * half :] - padded[: padded.shape[0] - 2 * half])
    rows = np.flatnonzero(rise < settings.steep * scale)
    if rows.shape[0] < settings.least_segment:
        return []
    u = np.log(spread[rows] / scale + settings.log_offset)
    moved, _, _ = _search(u, {"variance": share}, alpha, settings, 0.0, rng)
    last = y.shape[0]
    return [
        replace(
            m,
            row=int(rows[m.row]),
            low=int(rows[m.low]),
            high=int(rows[m.high]) if m.high < rows.shape[0] else last,
            size=_factor(spread[rows], [v.row for v in moved], m.row),
        )
        for m in moved
    ]


def _factor(spread: Floats, cuts: list[int], row: int) -> float:
    """Median absolute innovation after over before a change, up to the neighbouring changes."""
    before = max([0, *[c for c in cuts if c < row]])
    after = min([spread.shape[0], *[c for c in cuts if c > row]])
    return float(np.median(spread[row:after]) / max(float(np.median(spread[before:row])), 1e-300))


def _search(
    y: Floats,
    shares: Mapping[str, float],
    alpha: float,
    settings: Settings,
    floor: float,
    rng: np.random.Generator,
    steps: NDArray[Any] | None = None,
) -> tuple[list[Change], Noise, Floats]:
    """Changes, noise, and the series without the changes.

    Passes until nothing is new; a lenient pass first, whose finds serve the estimate of the noise only.
    """
    noise = estimate_noise(y, floor=floor)
    changes: list[Change] = []
    if not shares:
        return changes, noise, y
    lenient = replace(settings, confirm=settings.lenient_confirm, confirm_half=settings.lenient_half)
    nothing = False
    for _ in range(settings.lenient_passes if y.shape[0] <= settings.lenient_rows else 0):
        provisional = _one_pass(y, noise, [], shares, lenient, settings.lenient_alpha)
        nothing = not provisional
        if nothing:  # then the strict pass would find nothing either
            break
        before = noise.level
        noise = estimate_noise(subtract_changes(y, provisional), floor=floor)
        if noise.level > 0.9 * before:  # the changes had not passed for noise
            break
    uneven: list[Change] = []  # breaks of the rows that the steps explain: cut and subtracted, never reported
    for _ in range(settings.passes):
        known = sorted([*changes, *uneven], key=lambda c: c.row)
        sharp = _sharpened(y, known)
        new = [] if nothing else _one_pass(sharp, noise, known, shares, settings, alpha)
        nothing = False
        if not new:
            new = _segment_breaks(sharp, noise, known, shares, alpha, settings, rng)
        if not new:
            break
        for change in new:
            real = steps is None or holds_in_steps(y, steps, change, noise, settings.confirm)
            (changes if real else uneven).append(change)
        noise = estimate_noise(subtract_changes(y, [*changes, *uneven]), floor=floor)
    changes.sort(key=lambda c: c.row)
    return changes, noise, subtract_changes(y, [*changes, *uneven])
