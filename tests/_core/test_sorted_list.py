"""The sorted-list quantile of wide windows gives the bits of the path that sorts every window."""

from __future__ import annotations

import numpy as np
import pytest

from trajscope._core import rolling


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(("n", "window"), [(300, 64), (500, 500), (700, 100), (50, 100)])
def test_same_bits(n: int, window: int, include: bool) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal(n).round(1)
    x[rng.random(n) < 0.1] = np.nan
    listed = rolling._sorted_list_quantile(x, window, 3, include, 0.98)
    width = min(window, n)
    sorted_windows = rolling._numpy_stats(x, width, min(3, width), include, 0.98, False)[0]
    np.testing.assert_array_equal(listed, sorted_windows)
