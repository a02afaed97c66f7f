"""Many channels that move a little together: the sum of squares of their contrasts.

``S = sum_c z_c^2`` over the channels at one position and scale. Channels are correlated, so ``S`` is compared with
a scaled chi-square, ``S / b ~ chi2(v)``, ``b = tr(R^2)/C``, ``v = C^2 / tr(R^2)`` (Satterthwaite 1946), ``R`` the
correlation of the contrasts over positions. Its point p-value is turned into the ``z`` of the same two-sided
p-value, and that is judged like a single channel's. Confirmation as for one channel: the sum of squares of ``J3``,
and ``J3`` at half the scale projected on the direction of ``J3``.

Each channel's own changes have been subtracted before, so that what is found here is what no channel shows alone.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, chdtri, ndtr, ndtri

from trajscope.detect.changepoints.locate import profile
from trajscope.detect.changepoints.noise import Noise
from trajscope.detect.changepoints.scan import (
    Level,
    contrasts,
    maximum_p_value,
    n_scales,
    positions,
    scales,
    stride,
    threshold,
)
from trajscope.detect.changepoints.single import Change, Settings

__all__ = ["pooled_changes"]

Floats = NDArray[np.float64]


def _as_normal(total: Floats, correlation: Floats) -> Floats:
    c = correlation.shape[0]
    square = float(np.sum(correlation**2))
    p = chdtrc(c * c / square, total * c / square)
    return np.asarray(-ndtri(np.maximum(p, 1e-300) / 2))


def _least_total(z: float, correlation: Floats) -> float:
    """The sum of squares from which `_as_normal` may exceed `z` (a billionth less, for rounding)."""
    c = correlation.shape[0]
    square = float(np.sum(correlation**2))
    return float(chdtri(c * c / square, 2 * ndtr(-z)) * square / c) * (1 - 1e-9)


def pooled_changes(
    channels: Sequence[Floats],
    noises: Sequence[Noise],
    known: Sequence[int],
    *,
    alpha: float,
    settings: Settings,
) -> list[tuple[Change, list[tuple[int, float, float]]]]:
    """Level changes that several channels share.

    Parameters
    ----------
    channels : sequence of ndarray, (n,)
        Clipped, own changes subtracted, on common rows.
    noises : sequence of Noise
    known : sequence of int
        Rows where some channel was already found to change; windows over them are left out.
    alpha : float
        Chance of any where there is none.
    settings : Settings

    Returns
    -------
    list of (Change, members)
        Members are (channel, z, size) of the channels that moved, strongest first.
    """
    n = channels[0].shape[0]
    count = n_scales(n)
    edges = sorted({0, n, *known})
    found = []
    levels = [
        Level(y - np.median(y), np.square(noise.sd), noise.autocorrelation, 1)
        for y, noise in zip(channels, noises, strict=True)
    ]
    carried = np.ones(len(levels))
    for stack in zip(*(scales(level) for level in levels), strict=True):
        level, cells = stack[0]
        half = cells * level.q
        plan = positions(level, cells, edges, settings.onset)
        start, left, right, even = plan.start, plan.left, plan.right, plan.even
        z = np.column_stack([contrasts(own, cells, plan)[:, 0] for own, _ in stack])
        sample = z[: even or None : max(even // 20_000, 1)]
        if even * stride(cells) >= 24 * cells:
            carried = np.maximum(np.median(np.abs(sample), axis=0) / 0.6745, 1.0)
        z /= carried
        correlation = _correlation(sample)
        squares = np.sum(z**2, axis=1)
        limit = threshold(alpha / count, n, half, "level")
        at = np.flatnonzero(squares > _least_total(limit, correlation))
        total = np.zeros(squares.shape[0])
        total[at] = _as_normal(squares[at], correlation)
        at = at[total[at] > limit]
        if not at.shape[0]:
            continue
        checks = np.stack(
            [
                own.windows(start[at], left[at], right[at], confirm=True)[1][:, :2] / c
                for (own, _), c in zip(stack, carried, strict=True)
            ]
        )  # (n_channels, n_places, 2)
        wide, narrow = checks[:, :, 0], checks[:, :, 1]
        length = np.maximum(np.sqrt(np.sum(wide**2, axis=0)), 1e-300)
        along = np.sum(wide * narrow, axis=0) / length
        ok = (_as_normal(length**2, correlation) > settings.confirm) & (along > settings.confirm_half)
        ok &= along > 0.7 * settings.min_ratio * length
        for i in at[ok][np.argsort(-total[at[ok]], kind="stable")]:
            row, before, after = (int(v[i]) * level.q for v in (start + left, left, right))
            if any(row - before < r < row + after for r in edges[1:-1]):
                continue
            p = min(1.0, maximum_p_value(float(total[i]), n, half, "level") * count)
            change, members = _locate(channels, noises, (row, before, after, half), z[i], alpha, p)
            insort(edges, change.row)
            found.append((change, members))
    return found


def _correlation(z: Floats) -> Floats:
    """Orthant correlation ``sin(pi/2 E sign(a) sign(b))``, which a few large contrasts do not move."""
    sign = np.sign(z)
    correlation = np.asarray(np.sin(0.5 * np.pi * (sign.T @ sign) / max(z.shape[0], 1)))
    np.fill_diagonal(correlation, 1.0)
    return correlation


def _locate(
    channels: Sequence[Floats],
    noises: Sequence[Noise],
    place: tuple[int, int, int, int],
    z: Floats,
    alpha: float,
    p: float,
) -> tuple[Change, list[tuple[int, float, float]]]:
    """Location from the summed profile of the channels that moved (alone at ``alpha / C``, or the strongest)."""
    order = np.argsort(-np.abs(z), kind="stable")
    limit = float(-ndtri(alpha / 2 / len(channels)))
    moved = [int(c) for c in order if abs(z[c]) > limit] or [int(order[0])]
    row, left, right, half = place
    start, stop = row - left, min(row + right, channels[0].shape[0])
    total = np.zeros(stop - start)
    sizes = {}
    for c in moved:
        gain, size = profile(channels[c][start:stop], "level")
        variance = float(np.mean(np.square(noises[c].sd[start:stop]))) * noises[c].inflation
        total += gain / max(variance, 1e-300)
        sizes[c] = size
    reach = max(min(left, right) // 2, 2)
    low, high = max(row - reach - start, 0), min(row + reach + 1 - start, total.shape[0])
    best = low + int(np.argmax(total[low:high]))
    inside = np.flatnonzero(total[low:high] >= total[best] + 2 * np.log(1 - np.sqrt(0.95))) + low
    lead = moved[0]
    change = Change(
        start + best,
        start + int(inside[0]),
        start + int(inside[-1]) + 1,
        "level",
        p,
        float(sizes[lead][best]),
        float(z[lead]),
        half,
    )
    return change, [(c, float(z[c]), float(sizes[c][best])) for c in moved]
