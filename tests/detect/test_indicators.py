"""Indicators: closed forms, slow obvious oracles, gaps and segments, forms of input, bad input."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import trajscope as ts
from trajscope._core.rolling_moments import moments, pairs, trailing_line
from trajscope.detect.indicators import ALL, DEFAULT
from trajscope.detect.indicators.univariate import WEIGHTED, WINDOWED
from trajscope.errors import InputError
from trajscope.history.run import Channel, Run, RunData
from trajscope.history.trajectory import Trajectory
from trajscope.simulate import ar, fold, linear_map, neimark_sacker, ornstein_uhlenbeck

EVERY = [*WINDOWED, "lag1", *(f"ew_{name}" for name in WEIGHTED)]
NAMES = ["variance", "sd", "cv", "skewness", "kurtosis", "lag1", "lag2", "lag7", "return_rate", "lag_ratio"]


def last(x, indicators, window=None, **options):
    """The value of each indicator over the whole series."""
    options.setdefault("detrend", None)
    table = ts.early_warning(x, window=window or len(x), indicators=indicators, **options).to_frame()
    return table.iloc[-1]


# ---- arithmetic of windows


@pytest.mark.parametrize("window", [7, 100, 101])
def test_moments_and_pairs_equal_the_slow_way(window):
    rng = np.random.default_rng(window)
    x = 1e3 + np.cumsum(rng.normal(size=(2, 350)), axis=1)
    x[rng.random(x.shape) < 0.1] = np.nan
    found, lagged = moments(x, window), pairs(x, window, 3)
    for k in range(2):
        for t in range(window - 1, 350, 11):
            w = x[k, t - window + 1 : t + 1]
            seen = w[~np.isnan(w)]
            assert found.count[k, t] == seen.size
            z = seen - seen.mean()
            assert found.mean[k, t] == pytest.approx(seen.mean(), rel=1e-12)
            for name, power in (("m2", 2), ("m3", 3), ("m4", 4)):
                scale = (z**2).mean() ** (power / 2)
                assert getattr(found, name)[k, t] == pytest.approx((z**power).mean(), abs=1e-9 * scale)
            a, b = w[3:], w[:-3]
            both = ~(np.isnan(a) | np.isnan(b))
            assert lagged.count[k, t] == both.sum()
            if both.sum() > 2:
                expected = np.corrcoef(a[both], b[both])[0, 1]
                assert lagged.correlation()[k, t] == pytest.approx(expected, abs=1e-10)


def test_a_value_that_left_the_window_leaves_nothing_behind():
    x = np.random.default_rng(0).normal(size=(1, 600))
    spiked = x.copy()
    spiked[0, 200] = 1e12
    assert np.array_equal(moments(x, 50).m4[:, 350:], moments(spiked, 50).m4[:, 350:])
    assert np.array_equal(pairs(x, 50, 2).correlation()[:, 350:], pairs(spiked, 50, 2).correlation()[:, 350:])


def test_the_line_is_that_of_polyfit():
    x = np.cumsum(np.random.default_rng(0).normal(size=(1, 90)), axis=1)
    x[0, 40:44] = np.nan
    found = trailing_line(x, 20, 1)
    for t in range(25, 90):
        rows = np.arange(t - 19, t + 1)
        rows = rows[~np.isnan(x[0, rows])]
        assert found[0, t] == pytest.approx(np.polyval(np.polyfit(rows - t, x[0, rows], 1), 1), abs=1e-9)


def test_a_constant_channel_has_no_correlation_and_no_shape():
    row = last(np.full(100, 3.3), [*NAMES, "dev_modulus", "spectral_low", "slowing"], window=30)
    assert row["variance"] == 0.0
    assert row[["lag1", "lag2", "skewness", "kurtosis", "dev_modulus", "spectral_low", "slowing"]].isna().all()


# ---- known answers


@pytest.mark.parametrize("k", [0.3, 2.0])
def test_ornstein_uhlenbeck(k):
    x = ornstein_uhlenbeck(400_000, k, 0.5, 0.25, rng=1)[:, 0]
    row = last(x, ["lag1", "variance", "return_rate", "dev_modulus"])
    assert row["lag1"] == pytest.approx(math.exp(-k * 0.25), abs=0.003)
    assert row["variance"] == pytest.approx(0.25 / (2 * k), rel=0.02)
    assert row["return_rate"] == pytest.approx(1 - math.exp(-k * 0.25), abs=0.003)
    assert row["dev_modulus"] == pytest.approx(math.exp(-k * 0.25), abs=0.005)


@pytest.mark.parametrize(("a", "expected"), [(1.0, 0.135), (0.25, 0.368), (0.04, 0.670)])
def test_fold_slows_down(a, expected):
    # 30,000 rows: the standard error of lag 1 is 0.006 at most; fifty Euler steps a row cost 0.005 at a = 1
    x = fold(30_000, a, sigma=0.02, dt=1.0, substeps=50, rng=2)
    row = last(x, ["lag1", "variance"])
    assert row["lag1"] == pytest.approx(expected, abs=0.017)
    assert row["variance"] == pytest.approx(0.02**2 / (4 * math.sqrt(a)), rel=0.08)


@pytest.mark.parametrize(("rho", "n", "bias"), [(0.5, 50, -0.050), (0.9, 200, -0.0185)])
def test_lag1_has_the_known_bias(rho, n, bias):
    x = ar(n * 4000, rho, rng=3)[:, 0].reshape(4000, n)
    found = pairs(x, n, 1).correlation()[:, -1].mean() - rho
    assert found == pytest.approx(bias, rel=0.15)


def test_observation_noise_halves_lag1_and_leaves_the_ratio():
    x = ar(400_000, 0.9, rng=4)[:, 0] + np.random.default_rng(5).normal(size=400_000)
    row = last(x, ["lag1", "lag_ratio"])
    assert row["lag1"] == pytest.approx(0.45, abs=0.01)
    assert row["lag_ratio"] == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("rate", [0.4, 1.2, 1.9])
def test_gradient_descent_on_a_quadratic(rate):
    x = linear_map(200_000, 1 - rate, rng=6)
    row = last(x, ["lag1", "variance", "dev_modulus", "dev_angle"])
    assert row["lag1"] == pytest.approx(1 - rate, abs=0.01)
    assert row["variance"] == pytest.approx(1 / (1 - (1 - rate) ** 2), rel=0.02)
    # the second root is 0: an error d in phi_2 moves the first by d / lambda
    assert row["dev_modulus"] == pytest.approx(abs(1 - rate), abs=0.006 / abs(1 - rate))
    assert row["dev_angle"] == (0.0 if rate < 1 else math.pi)


def test_momentum_is_seen_in_the_angle():
    # heavy ball: complex roots of modulus sqrt(beta) whatever the step size
    beta, rate, n = 0.9, 1.9, 100_000
    kicks = np.random.default_rng(7).normal(size=n).tolist()
    x = [0.0, 0.0]
    for kick in kicks:
        x.append((1 + beta - rate) * x[-1] - beta * x[-2] + kick)
    row = last(np.array(x), ["dev_modulus", "dev_angle"])
    assert row["dev_modulus"] == pytest.approx(math.sqrt(beta), abs=0.005)
    assert row["dev_angle"] == pytest.approx(math.acos((1 + beta - rate) / 2 / math.sqrt(beta)), abs=0.01)


def test_neimark_sacker_angle():
    x = neimark_sacker(100_000, 0.95, rng=8)
    both = ts.early_warning(x, window=100_000, indicators=["dev_modulus", "dev_angle"], detrend=None).to_frame()
    assert both.iloc[-1][("dev_modulus", ALL)] == pytest.approx(0.95, abs=0.01)
    assert both.iloc[-1][("dev_angle", ALL)] == pytest.approx(0.3 * math.pi, abs=0.02)


def test_an_even_stride_hides_a_flip_and_the_result_says_the_stride():
    x = linear_map(60_000, -0.95, rng=9)[::2]
    found = ts.early_warning(x, np.arange(0, 60_000, 2), window=30_000, indicators="lag1", detrend=None)
    assert found.to_frame()["lag1"].iloc[-1] == pytest.approx(0.95**2, abs=0.01)
    assert found.channels[0].stride == 2.0
    assert "every 2 steps" in found.summary()


def test_spectral_low_is_the_share_of_a_sine():
    t = np.arange(400.0)
    x = 2 * np.cos(2 * np.pi * t * 8 / 400) + np.cos(2 * np.pi * t * 100 / 400)
    assert last(x, "spectral_low")["spectral_low"] == pytest.approx(4 / 5, abs=1e-9)


def test_spectral_low_equals_the_periodogram_and_survives_gaps():
    rng = np.random.default_rng(10)
    x = ar(300, 0.8, rng=rng)[:, 0] + 40
    found = ts.early_warning(x, window=64, indicators="spectral_low", detrend=None).to_frame()["spectral_low"]
    for t in (63, 200, 299):
        w = x[t - 63 : t + 1]
        power = np.abs(np.fft.rfft(w - w.mean())) ** 2
        weight = np.r_[0, np.full(31, 2.0), 1.0]
        assert found[t] == pytest.approx((weight * power)[:4].sum() / (weight * power).sum(), abs=1e-10)
    x[100] = np.nan
    holed = ts.early_warning(x, window=64, indicators="spectral_low", detrend=None).to_frame()["spectral_low"]
    w = x[100:164]
    filled = np.where(np.isnan(w), 0.0, w - np.nanmean(w))
    power = np.abs(np.fft.rfft(filled)) ** 2 * weight
    assert holed[163] == pytest.approx(power[1:4].sum() / (filled**2).sum() / 64, abs=1e-10)
    assert holed[163 + 1] == pytest.approx(found[164], abs=1e-12)


def test_permutation_entropy_is_that_of_counted_orders():
    x = np.random.default_rng(11).normal(size=200)
    orders = [tuple(np.argsort(x[t - 2 : t + 1], kind="stable")) for t in range(102, 200)]
    share = np.array([orders.count(o) for o in set(orders)]) / len(orders)
    expected = -(share * np.log(share)).sum() / math.log(6)
    assert last(x, "permutation_entropy", window=100)["permutation_entropy"] == pytest.approx(expected, abs=1e-12)


def test_exponential_weights_equal_those_of_pandas():
    x = pd.Series(ar(500, 0.6, rng=12)[:, 0])
    found = ts.early_warning(x, window=60, indicators=["ew_variance", "ew_sd", "ew_lag1"], detrend=None).to_frame()
    weighted = x.ewm(span=60)
    assert np.abs(found["ew_variance"] - weighted.var()).max() < 1e-10
    assert np.abs(found["ew_sd"] - weighted.std()).max() < 1e-10
    pair = pd.DataFrame({"a": x[1:], "b": x.shift()[1:]})
    expected = pair["a"].ewm(span=60).corr(pair["b"])
    assert np.abs(found["ew_lag1"] - expected).max() < 1e-9


def test_bias_turns_the_corrections_off():
    x = np.random.default_rng(13).gamma(2.0, size=80)
    z = x - x.mean()
    row = last(x, ["skewness", "kurtosis"], bias=True)
    assert row["skewness"] == pytest.approx((z**3).mean() / (z**2).mean() ** 1.5)
    assert row["kurtosis"] == pytest.approx((z**4).mean() / (z**2).mean() ** 2 - 3)


# ---- baselines


@pytest.mark.parametrize("detrend", ["ewma", "local"])
def test_a_causal_baseline_takes_a_ramp_away(detrend):
    x = 0.05 * np.arange(1500.0) + ar(1500, 0.5, rng=14)[:, 0]
    found = ts.early_warning(x, window=500, indicators=["lag1", "variance"], detrend=detrend).to_frame().iloc[-1]
    assert found["lag1"] == pytest.approx(0.5, abs=0.1)
    assert found["variance"] == pytest.approx(1.0, abs=0.25)


def test_the_ewma_baseline_is_that_of_pandas():
    x = pd.Series(ar(300, 0.5, rng=15)[:, 0] + 7)
    x[50:60] = np.nan
    z = x - x.ewm(span=40).mean().shift()
    found = ts.early_warning(x, window=80, indicators="variance", span=40).to_frame()["variance"]
    assert np.abs(found - z.rolling(80, min_periods=40).var()).max() < 1e-10


# ---- gaps, segments, strides


def test_pairs_do_not_bridge_a_gap_in_the_steps():
    rng = np.random.default_rng(16)
    steps = np.r_[np.arange(60), np.arange(64, 120)]
    x = rng.normal(size=steps.size)
    found = ts.early_warning(x, steps, window=30, indicators="lag1", detrend=None)
    w, s = x[50:80], steps[50:80]
    a, b = w[1:], w[:-1]
    near = np.diff(s) == 1
    assert found.to_frame()["lag1"].loc[s[-1]] == pytest.approx(np.corrcoef(a[near], b[near])[0, 1], abs=1e-12)
    assert found.channels[0].irregular == pytest.approx(1 / (steps.size - 1))
    assert found.channels[0].stretches == 1


def test_windows_and_baselines_start_anew_after_a_hole():
    steps = np.r_[np.arange(100), np.arange(1000, 1100)]
    x = np.random.default_rng(17).normal(size=200)
    x[100:] += 50
    found = ts.early_warning(x, steps, window=40, indicators=["variance", "ew_lag1"]).to_frame()
    assert found.loc[1000:1038].isna().all().all()
    alone = ts.early_warning(x[100:], steps[100:], window=40, indicators=["variance", "ew_lag1"]).to_frame()
    pd.testing.assert_frame_equal(found.loc[1000:], alone)


def test_windows_do_not_reach_across_a_segment():
    x = np.random.default_rng(18).normal(size=(120, 1))
    steps = np.arange(120)
    segment = np.repeat([0, 1], 60).astype(np.int16)
    t = Trajectory(x, steps, ("loss",), segment=segment)
    found = ts.early_warning(t, window=30, indicators=["variance", "lag1", "slowing"]).to_frame()
    assert found["variance"].iloc[60:89].isna().all()
    assert found["variance"].iloc[[59, 89]].notna().all()


def test_missing_cells_count_for_no_pair():
    x = np.random.default_rng(19).normal(size=100)
    x[70:75] = np.nan
    row = last(x, ["lag1", "variance"], window=50)
    w = x[50:]
    assert row["lag1"] == pytest.approx(pd.Series(w).autocorr(1), abs=1e-12)
    assert row["variance"] == pytest.approx(np.nanvar(w, ddof=1), abs=1e-12)
    assert last(x, "lag1", window=50, min_count=46).isna().all()


def test_rows_of_an_uneven_channel_follow_each_other():
    # one row an episode: lengths differ, and rows are the unit
    steps = np.cumsum(np.random.default_rng(20).geometric(0.02, size=300))
    x = ar(300, 0.5, rng=1)[:, 0]
    found = ts.early_warning(x, steps, window=100, indicators=["lag1", "slowing"])
    by_row = ts.early_warning(x, window=100, indicators=["lag1", "slowing"])
    assert np.array_equal(found.to_frame(), by_row.to_frame(), equal_nan=True)
    assert found.channels[0].stretches == 1


def test_a_stride_that_changes_is_followed():
    steps = np.r_[np.arange(0, 300), np.arange(310, 3310, 10)]
    x = np.random.default_rng(21).normal(size=600)
    found = ts.early_warning(x, steps, window=50, indicators="lag1", detrend=None).to_frame()["lag1"].to_numpy()
    assert found[-1] == pytest.approx(pd.Series(x[-50:]).autocorr(1), abs=1e-12)


def test_irregular_steps_are_said():
    steps = np.cumsum(np.random.default_rng(20).integers(1, 6, size=300))
    found = ts.early_warning(ar(300, 0.5, rng=1)[:, 0], steps, window=100)
    assert found.channels[0].irregular > 0.1
    assert "Irregular steps" in found.summary()


# ---- forms


def test_one_channel_has_flat_columns_named_as_the_indicators():
    x = ar(300, 0.5, rng=21)[:, 0]
    found = ts.early_warning(x, np.arange(300) * 5)
    frame = found.to_frame()
    assert list(frame.columns) == list(DEFAULT)
    assert frame.index.tolist()[:2] == [0, 5]
    assert frame.index.name == "step"
    assert frame.iloc[:99].isna().all().all()
    assert found.causal
    pd.testing.assert_frame_equal(found.scores(), frame)


def test_several_channels_have_two_levels():
    x = ar(300, 0.5, 2, rng=22)
    table = pd.DataFrame(x, columns=["loss", "grad"])
    found = ts.early_warning(table, window=80, indicators=["lag1", "eig_cov", "dev_modulus"])
    frame = found.to_frame()
    assert list(frame["lag1"].columns) == ["loss", "grad"]
    assert set(frame.columns) == {
        ("lag1", "loss"), ("lag1", "grad"), ("dev_modulus", "loss"), ("dev_modulus", "grad"),
        ("eig_cov", ALL), ("dev_modulus", ALL),
    }  # fmt: skip
    alone = ts.early_warning(x[:, 0], window=80, indicators="lag1").to_frame()
    assert np.array_equal(frame["lag1", "loss"], alone["lag1"], equal_nan=True)
    assert set(found.scores().columns) == {
        "lag1 loss", "lag1 grad", "dev_modulus loss", "dev_modulus grad", "eig_cov", "dev_modulus",
    }  # fmt: skip


def test_joint_indicators_equal_the_slow_way():
    x = neimark_sacker(200, 0.9, rng=23) @ np.array([[1.0, 0.3], [0.2, 2.0]])
    names = ["eig_cov", "maf", "participation", "mean_lag1", "max_lag1", "dev_modulus", "dev_angle"]
    row = ts.early_warning(x, window=120, indicators=names, detrend=None).to_frame().iloc[-1]
    w = x[-120:]
    assert row["eig_cov", ALL] == pytest.approx(np.linalg.eigvalsh(np.cov(w.T))[-1])
    late, early = w[1:] - w[1:].mean(0), w[:-1] - w[:-1].mean(0)
    top = np.linalg.eigvals(late.T @ early @ np.linalg.inv(early.T @ early))
    assert row["dev_modulus", ALL] == pytest.approx(np.abs(top).max())
    assert row["dev_angle", ALL] == pytest.approx(np.abs(np.angle(top)).max())
    rho = [pd.Series(w[:, k]).autocorr(1) for k in (0, 1)]
    assert row["mean_lag1", ALL] == pytest.approx(np.mean(rho))
    assert row["max_lag1", ALL] == pytest.approx(max(rho))
    correlation = np.corrcoef(w.T)
    assert row["participation", ALL] == pytest.approx(4 / (correlation**2).sum())
    directions = np.stack([np.cos(np.linspace(0, np.pi, 4001)), np.sin(np.linspace(0, np.pi, 4001))])
    a, b = late @ directions, early @ directions
    assert row["maf", ALL] == pytest.approx((2 * (a * b).sum(0) / ((a**2).sum(0) + (b**2).sum(0))).max(), abs=1e-5)


def test_a_trajectory_is_judged_on_the_rows_that_were_logged():
    x, rare = ar(600, 0.9, rng=24)[:, 0], ar(60, 0.0, rng=25)[:, 0]
    held = np.repeat(rare, 10)
    mask = np.stack([np.ones(600, dtype=bool), np.arange(600) % 10 == 0], axis=1)
    t = Trajectory(np.stack([x, held], axis=1), np.arange(600), ("loss", "val"), mask=mask)
    frame = ts.early_warning(t, window=40, indicators=["lag1", "mean_lag1"], detrend=None).to_frame()
    seen = frame["lag1", "val"].dropna()
    assert seen.index.tolist() == list(range(390, 600, 10))
    alone = ts.early_warning(rare, window=40, indicators="lag1", detrend=None).to_frame()["lag1"].dropna()
    assert np.array_equal(seen, alone)
    assert frame["mean_lag1", ALL].dropna().index.tolist() == seen.index.tolist()


def test_a_run_is_taken_on_the_scale_of_its_roles():
    loss = np.exp(ar(300, 0.5, rng=26)[:, 0])
    channels = {
        "train/loss": Channel("train/loss", np.arange(300), loss, role="loss"),
        "acc": Channel("acc", np.arange(300), np.tanh(loss), role="accuracy"),
    }
    run = Run("r", RunData(channels))
    found = ts.early_warning(run, window=100, indicators="variance")
    assert [c.scale for c in found.channels] == ["log", "none"]
    by_hand = ts.early_warning(np.log(loss), window=100, indicators="variance").to_frame()["variance"]
    assert np.array_equal(found.to_frame()["variance", "train/loss"], by_hand, equal_nan=True)
    one = ts.early_warning(run, window=100, indicators="variance", channels="train/loss")
    assert list(one.to_frame().columns) == ["variance"]


def test_a_meta_state_and_ready_made_scores_pass_through():
    from trajscope.metastate import PCAState

    x = ar(400, 0.5, 4, rng=27) @ np.random.default_rng(0).normal(size=(4, 4))
    state = PCAState(n_components=2).fit(x[:100])
    given = pd.Series(np.arange(400.0), index=np.arange(400), name="x_inst")
    found = ts.early_warning(x, window=100, indicators=["lag1", "D"], state=state, scores={"x_inst": given})
    frame = found.to_frame()
    assert np.array_equal(frame["D", ALL], state.deviation(x)["D"], equal_nan=True)
    assert np.array_equal(frame["x_inst", ALL], given)
    assert "Q" in found.indicators


def test_the_distance_to_a_manifold_is_a_column():
    from trajscope.detect.manifold import InstabilityManifold

    rng = np.random.default_rng(0)
    manifold = InstabilityManifold().fit([rng.normal(size=(150, 4)) for _ in range(20)])
    x = rng.normal(size=(150, 4))
    found = ts.early_warning(x, np.arange(150) * 3, window=50, indicators=["lag1", "distance"], state=manifold)
    assert np.array_equal(found.to_frame()["distance", ALL], manifold.signed_distance(x), equal_nan=True)


def test_scores_without_steps_go_row_by_row():
    from trajscope.metastate import PCAState

    x, steps = ar(200, 0.5, 4, rng=28), np.arange(200) * 5
    state = PCAState(n_components=2).fit(x)
    given = pd.Series(np.arange(200.0))
    found = ts.early_warning(x, steps, window=50, indicators="lag1", state=state, scores={"x_inst": given}).to_frame()
    assert np.array_equal(found["D", ALL], state.deviation(x)["D"], equal_nan=True)
    assert np.array_equal(found["x_inst", ALL], given)


def test_scores_are_placed_by_step():
    x = ar(200, 0.5, rng=28)[:, 0]
    given = pd.Series([1.0, 2.0], index=[10, 190])
    column = ts.early_warning(x, window=50, indicators="lag1", scores={"D": given}).to_frame()["D"]
    assert column.dropna().to_dict() == {10: 1.0, 190: 2.0}


def test_the_input_is_left_alone_and_the_same_call_gives_the_same_bytes():
    x = ar(300, 0.5, 2, rng=29)
    x[5] = np.nan
    x.setflags(write=False)
    first, second = ts.early_warning(x, window=50), ts.early_warning(x, window=50)
    assert first.to_frame().to_numpy().tobytes() == second.to_frame().to_numpy().tobytes()
    assert first.to_dict() == second.to_dict()


def test_too_few_rows_say_so():
    found = ts.early_warning(np.arange(20.0), window=50, indicators=EVERY)
    assert found.to_frame().isna().all().all()
    assert "cannot tell" in found.summary()
    assert ts.early_warning([], window=50).to_frame().empty


def test_what_one_window_can_tell():
    found = ts.early_warning(ar(300, 0.5, rng=30)[:, 0], window=100)
    gain = found.resolvable(0.5)
    need = 2.4865**2 * (1 - (0.5 + gain / 2) ** 2) / gain**2
    assert need == pytest.approx(100, rel=0.02)


def test_the_composite_compares_with_the_past_alone():
    x = ar(300, 0.5, rng=32)[:, 0]
    found = ts.early_warning(x, window=50, indicators=["variance", "return_rate"])
    score = found.composite({"variance": 1, "return_rate": -1})["x"]
    frame, expected = found.to_frame(), 0.0
    for name, sign in (("variance", 1), ("return_rate", -1)):
        past = frame[name].loc[49:199]
        expected += sign * (frame[name].loc[200] - past.mean()) / past.std()
    assert score.loc[200] == pytest.approx(expected)
    assert score.first_valid_index() == 49 + 30
    with pytest.raises(InputError, match="no indicator 'lag1'"):
        found.composite({"lag1": 1})
    with pytest.raises(InputError, match="burn_in is 1"):
        found.composite({"variance": 1}, burn_in=1)


def test_plot_draws_every_indicator():
    x = ar(300, 0.5, 2, rng=31)
    figure = ts.early_warning(x, window=50, indicators=["lag1", "eig_cov"]).plot()
    assert len(figure.axes) == 3


# ---- bad input


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"window": 0.25}, "share of the run"),
        ({"window": 3}, "4 or more"),
        ({"window": True}, "number of rows"),
        ({"indicators": ["lag0"]}, "no indicator 'lag0'"),
        ({"indicators": "varience"}, "Did you mean 'variance'"),
        ({"indicators": "ew_spectral_low"}, "no indicator"),
        ({"detrend": "loess"}, "Did you mean 'lowess'"),
        ({"span": 0.2}, "look ahead"),
        ({"span": -1}, "above 0"),
        ({"scale": "ln"}, "scale is 'ln'"),
        ({"every": 0}, "1 or more"),
        ({"low_frequency": 0.7}, "at most 0.5"),
        ({"min_count": 200}, "3 to window"),
        ({"channels": "b"}, "no channel 'b'"),
        ({"steps": np.arange(5)}, "one step a row"),
        ({"steps": np.r_[np.arange(50), np.arange(50)]}, "go back from 49 to 0"),
        ({"steps": np.full(100, np.nan)}, "not finite"),
        ({"scores": {"D": np.zeros(3)}}, "3 values for 100 rows"),
        ({"scores": [1, 2]}, "expected a frame"),
        ({"state": object()}, "expected a fitted meta-state"),
        ({"rng": -1}, "integer seed"),
    ],
)
def test_bad_options_are_refused(options, match):
    with pytest.raises(InputError, match=match):
        ts.early_warning(np.zeros(100), **options)


@pytest.mark.parametrize(
    ("x", "match"),
    [(["a"], "not numeric"), (np.zeros((2, 2, 2)), "expected \\(n_steps"), (np.zeros(5) + 1j, "complex")],
)
def test_bad_arrays_are_refused(x, match):
    with pytest.raises(InputError, match=match):
        ts.early_warning(x)
