"""Many channels that move a little together: the sum of squares of their contrasts.

``S = sum_c z_c^2`` over the channels at one position and scale. Channels are correlated, so ``S`` is compared with a scaled chi-square,
``S / b ~ chi2(v)``, ``b = tr(R^2)/C``, ``v = C^2 / tr(R^2)`` (Satterthwaite 1946), ``R`` the correlation of the contrasts over positions. Its
point p-value is turned into the ``z`` of the same two-sided p-value, and that is judged like a single channel's. Confirmation as
for one channel: the sum of squares of ``J3``, and ``J3`` at half the scale projected on the direction of ``J3``.

Each channel's own changes have been subtracted before, so that what is found here is what no channel shows alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from trajscope.detect.changepoints.locate import profile
from trajscope.detect.changepoints.noise import Noise
from trajscope.detect.changepoints.scan import maximum_p_value, n_scales, scan_scales
from trajscope.detect.changepoints.single import Change, Settings

__all__ = ["pooled_changes"]

Floats = NDArray[np.float64]


def _as_normal(total: Floats, correlation: Floats) -> Floats:
    c = correlation.shape[0]
    square = float(np.sum(correlation**2))
    p = chi2.sf(total * c / square, c * c / square)
    return np.asarray(-norm.ppf(np.maximum(p, 1e-300) / 2))


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
    rows = sorted(known)
    found = []
    streams = [scan_scales(y, noise, np.array(rows, dtype=np.int64)) for y, noise in zip(channels, noises, strict=True)]
    send: list[int] | None = None
    for _ in range(count):
        scales = [s.send(send) if send is not None else next(s) for s in streams]
        send = []
        level = np.column_stack([s.level for s in scales])
        step = np.column_stack([s.step for s in scales])
        inner = np.column_stack([s.half_step for s in scales])
        sample = np.sign(level[:: max(level.shape[0] // 20_000, 1)])
        # Orthant correlation, sin(pi/2 * mean sign product): not moved by a few large contrasts (Kendall's relation).
        correlation = np.sin(0.5 * np.pi * (sample.T @ sample) / max(sample.shape[0], 1))
        np.fill_diagonal(correlation, 1.0)
        z = _as_normal(np.sum(level**2, axis=1), correlation)
        z3 = _as_normal(np.sum(step**2, axis=1), correlation)
        length = np.sqrt(np.sum(step**2, axis=1))
        along = np.einsum("ij,ij->i", inner, step) / np.maximum(length, 1e-300)
        half = scales[0].half
        ok = (z3 > settings.confirm) & (along > settings.confirm_half) & (along > settings.min_ratio * 0.7 * length)
        for i in np.flatnonzero(ok)[np.argsort(-z[ok], kind="stable")]:
            p = min(1.0, maximum_p_value(float(z[i]), n, half, "level") * count)
            if p > alpha:
                break
            row = int(scales[0].rows[i])
            if any(abs(r - row) < half for r in rows):
                continue
            change, members = _locate(channels, noises, row, half, level[i], alpha, p)
            rows.append(change.row)
            send.append(change.row)
            found.append((change, members))
    return found


def _locate(
    channels: Sequence[Floats], noises: Sequence[Noise], row: int, half: int, z: Floats, alpha: float, p: float
) -> tuple[Change, list[tuple[int, float, float]]]:
    """Location from the summed profile of the channels that moved (each alone at ``alpha / C``, at least the strongest)."""
    order = np.argsort(-np.abs(z), kind="stable")
    limit = float(-norm.ppf(alpha / 2 / len(channels)))
    moved = [int(c) for c in order if abs(z[c]) > limit] or [int(order[0])]
    start, stop = max(row - half, 0), min(row + half, channels[0].shape[0])
    total = np.zeros(stop - start)
    sizes = {}
    for c in moved:
        gain, size = profile(channels[c][start:stop], "level")
        variance = float(np.mean(np.square(noises[c].sd[start:stop]))) * noises[c].inflation
        total += gain / max(variance, 1e-300)
        sizes[c] = size
    reach = max(half // 2, 2)
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
