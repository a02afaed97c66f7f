"""One kink or one step in a whole segment, against the smooth curves that training draws.

The contrast ``K2`` of `scan` gives up whatever a cubic could explain, and with it most of a kink. On a whole
segment the question can be put as a contest of equals instead. On the means of at most 128 cells, beside a line,
two kinds of curve with one shape parameter are fitted: the kink ``(t - s)+`` for all ``s``, and what a training
curve does otherwise: a step, relaxations from anywhere (`locate`; one parameter more, so they pay 4), and
`smooth_shapes` (parabola, exponentials, power laws and logarithms from the segment's start, quarter and half waves,
sigmoids, bumps). With ``G`` the fall of the residual sum of squares over the long-run variance, a kink is called where

* ``G(kink)`` is beyond what noise can do (a scan over one scale, `scan.maximum_p_value`),
* ``G(kink) - max G(smooth)`` exceeds a margin: twice the log likelihood ratio of two models with equally many
  parameters,
* both sides are straight: a parabola on either gains less than a second margin. Where they are not, the segment is
  neither a kink nor one of the shapes, and nothing is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.changepoints.locate import profile, relaxation, time_constants

__all__ = ["SegmentBreak", "permutation_p_value", "segment_kink", "segment_step", "smooth_shapes"]

Floats = NDArray[np.float64]
_CELLS = 128


@dataclass(frozen=True)
class SegmentBreak:
    """The best break of a segment: cell, contrast in sd, lead over the best smooth shape, what bends its sides."""

    cell: int
    z: float
    lead: float
    bent: float


def _raw_shapes(cells: int) -> Floats:
    t = (np.arange(cells) + 0.5) / cells
    scale = np.geomspace(0.03, 3.0, 14)[:, None]
    shapes = [
        t[None] ** 2,
        np.exp(-t / scale),
        np.exp(-(1 - t) / scale),
        np.log(t + scale),
        (t + scale) ** -0.5,
        (t + scale) ** -1.0,
        np.sqrt(t + scale),
        np.cos(0.5 * np.pi * t[None]),
        np.sin(0.5 * np.pi * t[None]),
        np.cos(np.pi * t[None]),
        *(np.tanh((t - c) / 0.4)[None] for c in (0.25, 0.5, 0.75)),
        *(np.exp(-0.5 * ((t - c) / 0.4)[None] ** 2) for c in (0.1, 0.5, 0.9)),
        *(
            np.exp(-0.5 * ((t - c) / w)[None] ** 2)
            for c in (0.05, 0.1, 0.15, 0.2, 0.25)
            for w in (0.05, 0.1, 0.15, 0.2)
        ),
    ]
    return np.concatenate(shapes)


@lru_cache(maxsize=256)
def smooth_shapes(cells: int) -> Floats:
    """Smooth shapes on ``cells`` cells, orthogonal to a line, of unit length: ``(n_shapes, cells)``.

    Time runs from 0 to 1 over the segment. The scales of time are a geometric grid of ratio about 1.4.
    """
    out = _raw_shapes(cells)
    t = np.arange(cells)
    line = np.column_stack([np.ones(cells), t - t.mean()])
    line /= np.linalg.norm(line, axis=0)
    out = out - (out @ line) @ line.T
    length = np.linalg.norm(out, axis=1, keepdims=True)
    keep = length[:, 0] > 1e-6
    out = out[keep] / length[keep]
    out.setflags(write=False)
    return np.asarray(out)


def _bend(y: Floats) -> float:
    """Fall of the residual sum of squares by a parabola beside a line."""
    m = y.shape[0]
    if m < 8:
        return 0.0
    x = np.linspace(-1, 1, m)
    q = x * x - np.mean(x * x)
    return float((q @ y) ** 2 / (q @ q))


def segment_kink(means: Floats, variance: float) -> SegmentBreak | None:
    """The best kink of a segment.

    Parameters
    ----------
    means : ndarray, (n_cells,)
        Cell means, n_cells >= 16.
    variance : float
        Of one cell mean, long-run.
    """
    m = means.shape[0]
    edge = max(m // 10, 4)
    gain, _ = profile(means, "slope", edge=edge)
    cell = int(np.argmax(gain))
    if gain[cell] <= 0:
        return None
    shapes = smooth_shapes(m)
    rival = max(float(np.max((shapes @ means) ** 2)), float(np.max(profile(means, "level", edge=2)[0])))
    if gain[cell] > rival:  # else it has lost already
        slow = max(float(np.max(relaxation(means, tau)[0])) for tau in time_constants(m // 2))
        rival = max(rival, slow - 4 * variance)  # it has one parameter more
    sides = max(_bend(means[:cell]), _bend(means[cell:]))
    return SegmentBreak(
        cell, math.sqrt(gain[cell] / variance), (float(gain[cell]) - rival) / variance, math.sqrt(sides / variance)
    )


@lru_cache(maxsize=256)
def _rivals_of_a_step(cells: int) -> tuple[Floats, Floats]:
    """A line and the smooth shapes, without and with a line beside them, orthogonal to what is beside, of length 1."""
    t = np.linspace(-1, 1, cells)
    line = t / np.linalg.norm(t)
    beside = smooth_shapes(cells)
    alone = np.concatenate([line[None], _raw_shapes(cells)])
    alone = alone - alone.mean(axis=1, keepdims=True)
    length = np.linalg.norm(alone, axis=1, keepdims=True)
    alone = alone[length[:, 0] > 1e-6] / length[length[:, 0] > 1e-6]
    return alone, np.concatenate([line[None], beside])


def segment_step(means: Floats, variance: float) -> SegmentBreak | None:
    """The best single step of a segment between flat sides, against a line and the smooth shapes.

    A line beside the step (`scan`) takes three quarters of a step in the middle of a segment. Here the step stands
    alone and the line is one of its rivals; a rival with a line beside it has one parameter more and pays 4 for it.
    ``bent`` is the larger slope of the sides, in sd.
    """
    m = means.shape[0]
    edge = max(m // 10, 4)
    r = means - means.mean()
    right = np.arange(m, 0, -1.0)
    left = m - right
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.cumsum(r[::-1])[::-1] ** 2 * m / (right * left)
    gain[:edge] = 0.0
    gain[m - edge + 1 :] = 0.0
    cell = int(np.argmax(gain))
    if gain[cell] <= 0:
        return None
    alone, beside = _rivals_of_a_step(m)
    two = float((beside[0] @ r) ** 2 + np.max((beside[1:] @ r) ** 2))
    rival = max(float(np.max((alone @ r) ** 2)), two - 4 * variance)
    sides = max(_tilt(means[:cell]), _tilt(means[cell:]))
    return SegmentBreak(
        cell, math.sqrt(gain[cell] / variance), (float(gain[cell]) - rival) / variance, math.sqrt(sides / variance)
    )


def _tilt(y: Floats) -> float:
    """Fall of the residual sum of squares by a slope."""
    x = np.arange(y.shape[0]) - 0.5 * (y.shape[0] - 1)
    return float((x @ y) ** 2 / (x @ x)) if y.shape[0] > 1 else 0.0


def permutation_p_value(y: Floats, rng: np.random.Generator, *, draws: int = 999) -> float:
    """P-value of the largest step of a short segment among permutations of its rows.

    Exact for exchangeable rows (Phipson & Smyth 2010: ``(1 + b) / (1 + draws)``), so free of any law of the noise; it
    knows no memory, which is why it is asked beside the other test and not instead of it.
    """
    n = y.shape[0]
    centred = y - y.mean()
    left = np.arange(1, n)
    weight = n / (left * (n - left))
    edge = slice(2, n - 3) if n > 6 else slice(None)

    def largest(rows: Floats) -> Floats:
        sums = np.cumsum(rows, axis=-1)[..., :-1]
        return np.asarray(np.max((sums**2 * weight)[..., edge], axis=-1))

    shuffled = rng.permuted(np.broadcast_to(centred, (draws, n)), axis=1)
    return float((1 + np.sum(largest(shuffled) >= largest(centred) * (1 - 1e-12))) / (1 + draws))
