"""One kink in a whole segment, against the smooth curves that training draws.

The contrast ``K2`` of `scan` gives up whatever a cubic could explain, and with it most of a kink. On a whole segment the question can be
put as a contest of equals instead. On the means of at most 128 cells, beside a line, two kinds of curve with one shape parameter are
fitted: the kink ``(t - s)+`` for all ``s``, and the smooth shapes a training curve takes (`smooth_shapes`: parabola, exponentials,
power laws and logarithms from the segment's start, quarter and half waves, sigmoids, bumps). With ``G`` the fall of the residual sum of squares over the
long-run variance, a kink is called where

* ``G(kink)`` is beyond what noise can do (a scan over one scale, `scan.maximum_p_value`),
* ``G(kink) - max G(smooth)`` exceeds a margin: twice the log likelihood ratio of two models with equally many parameters,
* both sides are straight: a parabola on either gains less than a second margin. Where they are not, the segment is neither a kink nor
  one of the shapes, and nothing is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.changepoints.locate import profile

__all__ = ["SegmentKink", "segment_kink", "smooth_shapes"]

Floats = NDArray[np.float64]
_CELLS = 128


@dataclass(frozen=True)
class SegmentKink:
    """The best kink of a segment: cell, contrast in sd, lead over the best smooth shape, curvature left on the sides."""

    cell: int
    z: float
    lead: float
    bent: float


@lru_cache(maxsize=256)
def smooth_shapes(cells: int) -> Floats:
    """Smooth shapes on ``cells`` cells, orthogonal to a line, of unit length: ``(n_shapes, cells)``.

    Time runs from 0 to 1 over the segment. The scales of time are a geometric grid of ratio about 1.4.
    """
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
    ]
    out = np.concatenate(shapes)
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


def segment_kink(means: Floats, variance: float) -> SegmentKink | None:
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
    rival = float(np.max((shapes @ means) ** 2))
    sides = max(_bend(means[:cell]), _bend(means[cell:]))
    return SegmentKink(
        cell, math.sqrt(gain[cell] / variance), (float(gain[cell]) - rival) / variance, math.sqrt(sides / variance)
    )
