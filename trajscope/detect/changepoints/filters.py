"""Filters of the contrasts of `trajscope.detect.changepoints.scan`, by the cells on both sides of the place."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trajscope._core.cells import window_filter

__all__ = ["confirming", "lags", "searching"]

Floats = NDArray[np.float64]


@lru_cache(maxsize=8192)
def searching(left: int, right: int, width: int) -> Floats:
    """``J1`` and ``K1`` of a window of ``left + right`` cells, zero-padded behind: ``(width, 2)``."""
    out = np.zeros((width, 2))
    out[: left + right, 0] = window_filter(left, right, 1, "step")
    out[: left + right, 1] = window_filter(left, right, 1, "kink")
    return out


@lru_cache(maxsize=8192)
def confirming(left: int, right: int, width: int) -> Floats:
    """``J3`` and ``K2`` at the scale and at half of it: ``(width, 4)``.

    A cubic beside the step and a parabola beside the kink in an even window; in a cut one the next degree leaks
    into the contrast and is projected out too (in an even window it is orthogonal, so the same degrees serve for
    both).
    """
    out = np.zeros((width, 4))
    inner = (max(left // 2, 3), max(right // 2, 3))
    inside = slice(left - inner[0], left + inner[1])
    out[: left + right, 0] = window_filter(left, right, 4, "step")
    out[inside, 1] = window_filter(*inner, 4 if sum(inner) >= 12 else 2, "step")
    out[: left + right, 2] = window_filter(left, right, 3, "kink")
    out[inside, 3] = window_filter(*inner, 3, "kink")
    return out


def lags(filters: Floats) -> Floats:
    """``sum_i w_i w_{i+k}``, twice for k > 0: its product with autocovariances is a variance, ``(..., n, width)``."""
    width = filters.shape[-2]
    out = np.empty((*filters.shape[:-2], filters.shape[-1], width))
    for k in range(width):
        out[..., k] = np.einsum("...ij,...ij->...j", filters[..., k:, :], filters[..., : width - k, :])
    out[..., 1:] *= 2
    return out
