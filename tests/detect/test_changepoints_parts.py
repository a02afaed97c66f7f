"""The parts of the change-point search against closed forms and slow, obvious oracles."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import toeplitz

from trajscope._core import cells
from trajscope.detect.changepoints.annotate import annotated_changes, line_partition
from trajscope.detect.changepoints.kinks import (
    permutation_p_value,
    segment_kink,
    segment_step,
    smooth_shapes,
)
from trajscope.detect.changepoints.locate import locate, profile
from trajscope.detect.changepoints.noise import clip_spikes, estimate_noise, innovations
from trajscope.detect.changepoints.scan import Level, maximum_p_value, n_scales, scales, threshold


@pytest.mark.parametrize(("left", "right"), [(8, 8), (5, 16), (23, 7)])
@pytest.mark.parametrize("degree", [1, 3])
@pytest.mark.parametrize("shape", ["step", "kink"])
def test_window_filter_is_the_regression_coefficient(left, right, degree, shape):
    rng = np.random.default_rng(0)
    y = rng.normal(size=left + right)
    x = np.arange(left + right) - left + 0.5
    target = (x > 0).astype(float) if shape == "step" else np.maximum(x, 0)
    design = np.column_stack([x**k for k in range(degree + 1)] + [target])
    expected = np.linalg.lstsq(design, y, rcond=None)[0][-1]
    assert cells.window_filter(left, right, degree, shape) @ y == pytest.approx(expected, rel=1e-6)


def test_kernel_and_numpy_agree(monkeypatch):
    rng = np.random.default_rng(1)
    level = rng.normal(size=500)
    sums = np.concatenate([[0.0], np.cumsum(rng.uniform(0.5, 2, 500))])
    filters = np.column_stack([cells.window_filter(8, 8, 1, s) for s in ("step", "kink")])
    arguments = (level, sums, filters, np.array([0.7, 1.3]), 2)
    plain = cells.studentised_contrasts(*arguments)
    monkeypatch.setattr(cells, "_LONG", 1)
    np.testing.assert_allclose(cells.studentised_contrasts(*arguments), plain, rtol=1e-10)


def test_cell_autocovariance_of_an_autoregression():
    phi, n = 0.7, 200
    c = phi ** np.arange(n)
    w = np.zeros((n // 2, n))
    for i in range(n // 2):
        w[i, 2 * i : 2 * i + 2] = 0.5
    np.testing.assert_allclose(
        cells.cell_autocovariance(c)[: n // 2 - 1], (w @ toeplitz(c) @ w.T)[0][: n // 2 - 1], atol=1e-12
    )


def test_contrasts_have_unit_variance_under_the_model():
    rng = np.random.default_rng(2)
    n, phi = 40_000, 0.6
    e = rng.normal(size=n)
    y = np.empty(n)
    y[0] = e[0] / np.sqrt(1 - phi**2)
    for i in range(1, n):
        y[i] = phi * y[i - 1] + e[i]
    level = Level(y, np.full(n, 1 / (1 - phi**2)), phi ** np.arange(200), 1)
    for own, half in scales(level):
        if half * own.q > n / 200:
            break
        np.testing.assert_allclose(own.uncut(half).std(axis=0), 1, atol=0.12)


def test_windows_agree_with_uncut_contrasts():
    rng = np.random.default_rng(3)
    level = Level(rng.normal(size=300), rng.uniform(1, 2, 300), np.array([1.0, 0.4, 0.1]), 1)
    start = np.arange(0, 300 - 32 + 1, 2)
    side = np.full(start.shape, 16)
    np.testing.assert_allclose(level.windows(start, side, side)[1], level.uncut(16), rtol=1e-9)


def test_threshold_inverts_the_p_value_and_scales_are_counted():
    for p in (0.1, 1e-3, 1e-8):
        z = threshold(p, 5000, 64, "level")
        assert maximum_p_value(z, 5000, 64, "level") == pytest.approx(p, rel=1e-6)
    for n in (16, 200, 777, 5000):
        level = Level(np.zeros(n), np.ones(n), np.ones(1), 1)
        assert n_scales(n) == sum(1 for _ in scales(level))


@pytest.mark.parametrize("shape", ["level", "slope", "flat"])
def test_profile_against_least_squares(shape):
    rng = np.random.default_rng(4)
    y = rng.normal(size=40)
    t = np.arange(40.0)
    gain, size = profile(y, shape)
    base = np.ones((40, 1)) if shape == "flat" else np.column_stack([np.ones(40), t])

    def rss(design):
        return float(np.sum((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2))

    for s in (2, 11, 25, 37):
        regressor = np.maximum(t - s, 0) if shape == "slope" else (t >= s).astype(float)
        design = np.column_stack([base, regressor])
        assert gain[s] == pytest.approx(rss(base) - rss(design), rel=1e-8)
        assert size[s] == pytest.approx(np.linalg.lstsq(design, y, rcond=None)[0][-1], rel=1e-8)


def test_located_interval_shrinks_with_the_size():
    rng = np.random.default_rng(5)
    noise = rng.normal(size=200)
    widths = []
    for jump in (1.0, 2.0, 8.0):
        at = locate(noise + jump * (np.arange(200) >= 90), 0, 200, "level", 1.0, 90, 60)
        assert at.low <= at.row < at.high
        widths.append(at.high - at.low)
    assert widths[0] > widths[1] > widths[2] == 1


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_memory_is_estimated_with_and_without_a_jump(phi):
    rng = np.random.default_rng(6)
    found = []
    for jump in (0.0, 6.0):
        e = rng.normal(size=4300)
        y = np.zeros(4300)
        for i in range(1, 4300):
            y[i] = phi * y[i - 1] + e[i]
        y = y[300:] + jump * (np.arange(4000) > 1700)
        found.append(estimate_noise(clip_spikes(y)[0]).phi.sum())
    np.testing.assert_allclose(found, phi, atol=0.08)


def test_innovations_undo_the_autoregression():
    rng = np.random.default_rng(7)
    e = rng.normal(size=300)
    y = np.zeros(300)
    y[0] = e[0]
    for i in range(1, 300):
        y[i] = 0.8 * y[i - 1] + e[i]
    np.testing.assert_allclose(innovations(y, np.array([0.8]))[1:], e[1:])


def test_clipping_keeps_edges_and_removes_spikes():
    rng = np.random.default_rng(8)
    y = 0.1 * rng.normal(size=400) + 5 * (np.arange(400) >= 200)
    y[100] += 50
    clipped, spike = clip_spikes(y)
    assert np.flatnonzero(spike).tolist() == [100]
    assert abs(clipped[100]) < 1
    assert clipped[198] < 1
    assert clipped[201] > 4


def test_smooth_shapes_have_no_line_left():
    shapes = smooth_shapes(64)
    t = np.arange(64.0)
    np.testing.assert_allclose(shapes @ t, 0, atol=1e-7)
    np.testing.assert_allclose(np.linalg.norm(shapes, axis=1), 1)


def test_contest_prefers_what_made_the_data():
    t = np.arange(100) / 100
    rng = np.random.default_rng(9)
    noise = 0.02 * rng.normal(size=100)
    kink = segment_kink(np.maximum(t - 0.4, 0) + noise, 0.0004)
    curve = segment_kink(np.exp(-t / 0.2) + noise, 0.0004)
    assert kink is not None
    assert curve is not None
    assert kink.lead > 4
    assert abs(kink.cell - 40) <= 4
    assert curve.lead < 0
    step = segment_step((t >= 0.6) + noise, 0.0004)
    ramp = segment_step(t + noise, 0.0004)
    assert step is not None
    assert ramp is not None
    assert step.lead > 4
    assert step.cell == 60
    assert ramp.lead < 0
    assert segment_step(np.zeros(50), 1.0) is None


def test_permutation_p_values_are_uniform_under_exchange():
    rng = np.random.default_rng(10)
    p = np.array([permutation_p_value(rng.standard_cauchy(20), rng, draws=99) for _ in range(300)])
    for level in (0.05, 0.2, 0.5):
        assert np.mean(p <= level) <= level + 3 * np.sqrt(level * (1 - level) / 300)
    assert np.mean(p <= 0.5) > 0.4


def test_line_partition_is_the_best_of_all_partitions():
    rng = np.random.default_rng(11)
    y = np.concatenate([np.arange(6) * 0.5, np.ones(5), -np.arange(5.0)]) + 0.1 * rng.normal(size=16)
    penalty = 0.4

    def cost(a, b):
        t = np.arange(a, b)
        return float(np.sum((y[a:b] - np.polyval(np.polyfit(t, y[a:b], 1), t)) ** 2))

    def best(end):
        if end == 0:
            return -penalty, []
        options = []
        for s in range(0, end - 2):
            if s == 0 or s >= 3:
                value, cuts = best(s)
                options.append((value + cost(s, end) + penalty, [*cuts, s]))
        return min(options) if options else (np.inf, [])

    assert line_partition(y, penalty) == best(16)[1][1:]
    assert annotated_changes(np.ones(50)) == []
    assert annotated_changes(np.arange(4.0)) == []
