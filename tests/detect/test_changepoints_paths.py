"""The compiled path of the change-point search against the numpy path: the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from trajscope._core import rolling
from trajscope.detect.changepoints import change_points


def _series(kind: int, n: int) -> np.ndarray:
    rng = np.random.default_rng([kind, n])
    t = np.arange(n)
    noise = lfilter([1.0], [1.0, -0.7], rng.normal(size=n))
    return [
        noise,
        3 * np.exp(-t / (0.15 * n)) + 0.02 * noise,
        noise + 4 * (t > n // 3) - 6 * (t > 2 * n // 3),
        0.3 * noise + 12 * np.maximum(t - n // 2, 0) / n,
        noise * np.where(t < n // 2, 1, 3),
        np.round(noise),
        1e7 * (t > n // 2) + noise + 1e9,
    ][kind]


@pytest.mark.parametrize("kind", range(7))
@pytest.mark.parametrize("n", [40, 333, 1500])
def test_both_paths_find_the_same_to_the_bit(kind, n, monkeypatch):
    y = _series(kind, n)
    options = {"alpha": 0.2, "onset_guard": kind != 3}
    monkeypatch.setattr(rolling, "_cells_so_far", 0.0)
    plain = change_points(y, **options).to_dict()
    rolling.use_kernels()
    assert change_points(y, **options).to_dict() == plain
