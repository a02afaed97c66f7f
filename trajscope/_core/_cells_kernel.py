"""The compiled loop of `cells.studentised_contrasts`; imported only where a level is long."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["contrast_kernel"]

Floats = NDArray[np.float64]


@njit(cache=True, fastmath=True)
def contrast_kernel(level: Floats, sums: Floats, first: Floats, second: Floats, stride: int, out: Floats) -> None:
    """Two contrasts at every `stride`-th window, divided by the window's standard deviation, into `out`."""
    width = first.shape[0]
    for i in range(out.shape[0]):
        at = i * stride
        a = 0.0
        b = 0.0
        for k in range(width):
            v = level[at + k]
            a += first[k] * v
            b += second[k] * v
        scale = 1.0 / np.sqrt(max((sums[at + width] - sums[at]) / width, 1e-300))
        out[i, 0] = a * scale
        out[i, 1] = b * scale
