"""Whether a located change is sharp: a step, a kink or the start of a relaxation, against smooth transitions.

A smooth curve may fall by itself, as after a warm-up. On the means of at most 128 cells of the window, beside a line,
the best sharp change (`locate`) competes with sigmoids ``tanh((t - c) / w)`` that take more than a tenth of the window
and with the smooth shapes of `kinks`; where one of these leads by more than a margin in twice the log likelihood,
nothing sharp happened.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.changepoints.kinks import smooth_shapes

__all__ = ["smooth_lead"]

Floats = NDArray[np.float64]
_CELLS = 128


@lru_cache(maxsize=64)
def _transitions(cells: int) -> Floats:
    """Smooth shapes and sigmoids beside a line, of unit length: ``(n_shapes, cells)``."""
    t = (np.arange(cells) + 0.5) / cells
    centre = np.linspace(0.05, 0.95, 37)
    sigmoids = [np.tanh((t - centre[:, None]) / w) for w in (0.05, 0.08, 0.125, 0.2, 0.3)]
    bumps = [np.exp(-0.5 * ((t - centre[:25, None]) / w) ** 2) for w in (0.06, 0.08, 0.105, 0.14, 0.185, 0.25)]
    out = np.concatenate(sigmoids + bumps)
    line = np.column_stack([np.ones(cells), t - 0.5])
    line /= np.linalg.norm(line, axis=0)
    out -= (out @ line) @ line.T
    out /= np.linalg.norm(out, axis=1, keepdims=True)
    out = np.concatenate([smooth_shapes(cells), out])
    out.setflags(write=False)
    return np.asarray(out)


def smooth_lead(y: Floats, gain: float, variance: float) -> float:
    """By how much the best smooth curve leads a sharp change, in twice the log likelihood.

    Parameters
    ----------
    y : ndarray, (m,)
        The window.
    gain : float
        Fall of the residual sum of squares by the sharp change beside a line.
    variance : float
        Long-run variance of the noise.
    """
    m = y.shape[0]
    cells = min(m, _CELLS)
    bounds = np.linspace(0, m, cells + 1).astype(np.int64)
    means = np.add.reduceat(y, bounds[:-1]) / np.diff(bounds)
    best = float(np.max((_transitions(cells) @ (means - means.mean())) ** 2)) * m / cells
    return float((best - gain) / max(variance, 1e-300))
