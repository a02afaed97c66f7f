"""Parallel analysis under its null, dimension rules side by side, rivals, alignment, shared arithmetic."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from metastate_systems import ar, orthonormal, punch, two_state
from scipy.stats import binom

from trajscope._core.linalg import fix_signs, mean_cos2, participation_ratio, principal_angles
from trajscope._core.surrogates import ar_surrogate, circular_shift, iaaft, phase_randomise
from trajscope.errors import InputError, NotEnoughData
from trajscope.metastate import BestChannel, RawMahalanobis, align_states, dimension, parallel_analysis
from trajscope.metastate.dimension import broken_stick, elementwise_cv
from trajscope.metastate.parallel import _rotated_eigenvalues, centre_run, correlation_eigenvalues


def shuffled(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.permuted(x, axis=0)


@pytest.mark.parametrize("runs", [1, 3])
def test_red_noise_has_no_common_dimension(runs: int) -> None:
    found = [
        parallel_analysis(
            [ar(np.random.default_rng([s, r]), 500, 0.9, 8) for r in range(runs)], n_surrogates=39, rng=s
        ).n_components
        for s in range(100)
    ]
    assert np.mean(np.array(found) > 0) <= binom.ppf(0.999, 100, 0.05) / 100
    # and a shuffle of rows, the usual choice, would find one nearly always
    trap = [
        parallel_analysis(
            [ar(np.random.default_rng([s, 0]), 500, 0.9, 8)], n_surrogates=39, surrogate=shuffled
        ).n_components
        for s in range(10)
    ]
    assert min(trap) >= 1


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_looking_rotations_up_is_making_them(share: float) -> None:
    rng = np.random.default_rng(11)
    runs = [centre_run(punch(rng, two_state(rng, n, p=4)[0], share)) for n in (60, 61)]

    class Fixed:
        """A generator that hands out offsets from a list."""

        def __init__(self, offsets: list[np.ndarray]) -> None:
            self.offsets = offsets

        def integers(self, low: int, high: int, size: object) -> np.ndarray:
            return self.offsets.pop(0)

    offsets = [rng.integers(0, len(r), size=(7, 4)) for r in runs]
    quick = _rotated_eigenvalues(runs, 7, Fixed(list(offsets)))  # type: ignore[arg-type]
    for b in range(7):
        made = [
            np.stack([np.roll(r[:, c], o[b, c]) for c in range(4)], axis=1) for r, o in zip(runs, offsets, strict=True)
        ]
        np.testing.assert_allclose(quick[b], correlation_eigenvalues(made), atol=1e-10)


def test_two_states_are_counted_as_two() -> None:
    n = [
        parallel_analysis([two_state(np.random.default_rng(s), 1000)[0]], n_surrogates=59).n_components
        for s in range(10)
    ]
    assert np.mean(n) > 1.8
    gappy = punch(np.random.default_rng(0), two_state(np.random.default_rng(0), 2000)[0], 0.3)
    assert parallel_analysis([gappy], n_surrogates=59).n_components == 2
    assert parallel_analysis([gappy], n_surrogates=59, surrogate="phase").n_components == 2


def test_arguments_of_parallel_analysis() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3))
    with pytest.raises(InputError, match="Did you mean 'circular'"):
        parallel_analysis([x], surrogate="circula")
    with pytest.raises(InputError, match="between 0 and 1"):
        parallel_analysis([x], quantile=95)
    with pytest.raises(InputError, match="fewer than 19"):
        parallel_analysis([x], n_surrogates=5)
    assert parallel_analysis([x[:1]]).n_components == 0


def test_rules_side_by_side_and_their_verdict() -> None:
    x, _ = two_state(np.random.default_rng(1), 1500, p=6)
    report = dimension(x, n_surrogates=59, most=3)
    table = report.to_frame()
    assert list(table.index) == [
        "parallel, circular",
        "parallel, phase",
        "parallel, differenced",
        "parallel, detrended",
        "held-out prediction",
        "element-wise CV",
        "broken stick",
        "participation ratio",
    ]
    assert report.n_components == 2
    assert report.agree
    assert "agree within one" in report.summary()
    assert report.to_dict()["rules"]["held-out prediction"] == 2
    assert report.provenance.seed == 0
    assert report.plot().get_title(loc="left").startswith("Dimension")


def test_a_disagreement_is_said() -> None:
    # trends that are alike in every channel are one dimension under every null, and none once differenced
    rng = np.random.default_rng(2)
    x = np.linspace(0, 10, 300)[:, None] * np.ones(6) + rng.normal(size=(300, 6))
    report = dimension(x, n_surrogates=59, heldout=False)
    assert report.table.loc["parallel, differenced", "n_components"] == 0
    assert report.table.loc["element-wise CV", "n_components"] >= 1
    import dataclasses

    table = report.table.copy()
    table.loc["parallel, phase", "n_components"] = 4.0
    torn = dataclasses.replace(report, table=table, agree=False)
    assert torn.summary().startswith("Dimension not settled by these data: the testing rules say")
    with pytest.raises(NotEnoughData, match="fewer than two"):
        dimension(x[:, :1])


def test_broken_stick_and_left_out_cells() -> None:
    np.testing.assert_allclose(broken_stick(3), [11 / 18, 5 / 18, 2 / 18])
    assert broken_stick(20).sum() == pytest.approx(1)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 2)) @ orthonormal(rng, 8, 2).T * 2 + 0.3 * rng.normal(size=(400, 8))
    errors = elementwise_cv([punch(rng, x, 0.1)])
    assert np.argmin(errors) in (2, 3)  # scaling makes noise levels differ, which a third component can use
    assert errors[2] < 0.5 * errors[1]
    assert errors[0] == pytest.approx(1, abs=0.05)


def test_participation_ratio_and_angles() -> None:
    assert participation_ratio(np.ones(7)) == pytest.approx(7, abs=1e-12)
    assert participation_ratio([5, 0, 0]) == pytest.approx(1, abs=1e-12)
    assert participation_ratio([2, 1, 1]) == pytest.approx(8 / 3, abs=1e-12)
    assert np.isnan(participation_ratio([0, 0]))
    ratios = [
        participation_ratio(np.linalg.eigvalsh(np.cov(np.random.default_rng(s).normal(size=(1000, 20)).T)))
        for s in range(20)
    ]
    assert np.mean(ratios) == pytest.approx(19.61, abs=0.1)
    rng = np.random.default_rng(4)
    u = rng.normal(size=(9, 3))
    assert principal_angles(u, u @ rng.normal(size=(3, 3))).max() < 1e-7
    turned = np.array([[np.cos(1e-9), 0], [np.sin(1e-9), 0], [0, 1.0]])
    assert principal_angles(np.eye(3)[:, :1], turned[:, :1])[0] == pytest.approx(1e-9, rel=1e-6)
    mean = np.mean([mean_cos2(rng.normal(size=(8, 2)), rng.normal(size=(8, 2))) for _ in range(2000)])
    assert mean == pytest.approx(2 / 8, abs=0.01)
    with pytest.raises(InputError, match="n_channels, k"):
        principal_angles(np.eye(3), np.eye(4))
    assert fix_signs(np.zeros((3, 0))).shape == (0,)


@pytest.mark.parametrize("make", [circular_shift, phase_randomise, iaaft, ar_surrogate])
def test_surrogates_keep_what_they_promise(make) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(5)
    x = np.exp(ar(rng, 600, 0.8, 2)) + 4
    before = x.copy()
    y = make(x, 7)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(y, make(x, np.random.default_rng(7)))
    assert not np.array_equal(y, make(x, 8))
    assert y.shape == x.shape
    assert make(x[:, 0], 7).shape == (600,)
    np.testing.assert_allclose(y.mean(axis=0), x.mean(axis=0), rtol=0.15)
    power = lambda a: np.abs(np.fft.rfft(a - a.mean(axis=0), axis=0)) ** 2  # noqa: E731
    if make in (circular_shift, iaaft):
        np.testing.assert_allclose(np.sort(y, axis=0), np.sort(x, axis=0))
    if make in (circular_shift, phase_randomise):
        np.testing.assert_allclose(power(y), power(x), atol=1e-7)
    lag = lambda a: np.corrcoef(a[1:, 0], a[:-1, 0])[0, 1]  # noqa: E731
    assert np.mean([lag(make(x, s)) for s in range(10)]) == pytest.approx(lag(x), abs=0.08)


def test_common_phases_keep_cross_spectra() -> None:
    x, _ = two_state(np.random.default_rng(6), 500)
    np.testing.assert_allclose(np.cov(phase_randomise(x, 0, common=True).T), np.cov(x.T), atol=1e-10)
    assert np.abs(np.cov(phase_randomise(x, 0).T) - np.cov(x.T)).max() > 0.1


def test_fourier_surrogates_refuse_gaps_and_shifts_take_them() -> None:
    x = np.arange(10.0)
    x[3] = np.nan
    for make in (phase_randomise, iaaft, ar_surrogate):
        with pytest.raises(InputError, match="fill_gaps"):
            make(x)
    assert np.isnan(circular_shift(x, 0)).sum() == 1
    with pytest.raises(InputError, match="seed"):
        circular_shift(x, "zero")  # type: ignore[arg-type]


def test_the_rivals() -> None:
    rng = np.random.default_rng(7)
    x = rng.multivariate_normal(np.zeros(3), [[2, 1, 0], [1, 2, 0], [0, 0, 1]], size=800)
    raw = RawMahalanobis(scale=None).fit(x)
    centred = x - x.mean(axis=0)
    expected = np.sqrt((centred @ np.linalg.inv(np.cov(x.T, bias=True)) * centred).sum(axis=1))
    np.testing.assert_allclose(raw.deviation(x)["D"], expected, rtol=1e-9)
    gappy = np.array([[1.0, np.nan, 0.5]])
    seen = (gappy - x.mean(axis=0))[:, [0, 2]]
    part = seen @ np.linalg.inv(np.cov(x.T, bias=True)[np.ix_([0, 2], [0, 2])]) @ seen.T
    assert raw.deviation(gappy)["D"].iloc[0] ** 2 == pytest.approx(part.item() * 3 / 2)

    slow = np.hstack([rng.normal(size=(500, 2)), ar(rng, 500, 0.9)])
    best = BestChannel().fit(slow)
    assert best.channel_ == 2
    np.testing.assert_allclose(
        best.deviation(slow)["D"], np.abs(slow[:, 2] - slow[:, 2].mean()) / slow[:, 2].std(), rtol=1e-9
    )
    calibration = [slow + np.where(np.arange(500)[:, None] > 400, [5, 0, 0], 0)]
    best.choose(calibration, lambda ds: float(np.mean([np.nanmean(d[401:]) for d in ds])))
    assert best.channel_ == 0
    with pytest.raises(InputError, match="expected 0 to 2"):
        BestChannel(5).fit(slow)
    with pytest.raises(InputError, match="there is no channel 'los'"):
        BestChannel("los").fit(slow)


def test_alignment_is_a_step_of_its_own() -> None:
    rng = np.random.default_rng(8)
    z = rng.normal(size=(200, 3))
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    for kind, source in (
        ("sign", z * [1, -1, -1] + 2),
        ("procrustes", z @ turn + 1),
        ("linear", z @ rng.normal(size=(3, 3))),
    ):
        fit = align_states(source, z, kind=kind)
        np.testing.assert_allclose(fit.apply(source), z, atol=1e-9)
        assert fit.residual < 1e-12
    assert align_states(3 * z, z, scale=True).residual < 1e-12
    assert align_states(3 * z, z).residual > 1
    z[:5] = np.nan
    assert align_states(z, z).residual < 1e-12
    with pytest.raises(InputError, match="as many states"):
        align_states(z[:, :2], z, kind="sign")
    with pytest.raises(NotEnoughData, match="needs more"):
        align_states(z[:7], z[:7])
    with pytest.raises(InputError, match="same rows"):
        align_states(z, z[:9])
    with pytest.raises(InputError, match="'sign', 'procrustes' or 'linear'"):
        align_states(z, z, kind="affine")


def test_alignment_of_what_is_no_matrix() -> None:
    z = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(InputError, match="no matrix of numbers"):
        align_states([["a", "b"]] * 30, z)
    with pytest.raises(InputError, match="was fitted on 2"):
        align_states(z, z).apply(np.ones((3, 5)))
    holed = z.copy()
    holed[3] = np.inf
    turned = align_states(holed, z)
    assert turned.residual < 1e-20
    assert np.isnan(turned.apply(holed)[3]).all()


def test_parallel_analysis_takes_what_fit_takes() -> None:
    x = two_state(np.random.default_rng(1), 120, p=5)[0]
    whole = parallel_analysis([x], n_surrogates=39)
    for other in (x, pd.DataFrame(x), pd.DataFrame(x, columns=["names", *"abcd"]), x.astype(object)):
        np.testing.assert_array_equal(parallel_analysis(other, n_surrogates=39).thresholds, whole.thresholds)
    with pytest.raises(InputError, match="a name or a callable"):
        parallel_analysis(x, surrogate=None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="shape"):
        parallel_analysis([])


@pytest.mark.parametrize("what", ["late channel", "empty run", "one row"])
def test_held_out_rows_of_channels_that_were_not_learnt(what: str) -> None:
    x = two_state(np.random.default_rng(2), 120, p=5)[0]
    runs = {"empty run": [x, np.full((30, 5), np.nan)], "one row": [x, x[:1]], "late channel": [x.copy()]}[what]
    if what == "late channel":
        runs[0][:100, 2] = np.nan
    report = dimension(runs, n_surrogates=19, most=2)
    assert np.isfinite(report.heldout.scores).all()
    assert np.abs(report.heldout.scores).max() < 1e3
    with pytest.raises(InputError, match="expected at least 0"):
        dimension(runs, n_surrogates=19, most=-1)


def test_choosing_a_channel_leaves_the_baseline_alone() -> None:
    x = two_state(np.random.default_rng(3), 200, p=4)[0]
    collapsed = [x[:80] + 9.0 * (np.arange(80) > 40)[:, None] * [0, 1, 0, 0]]
    chosen = BestChannel(channel=0).fit(x).choose(collapsed, lambda far: float(far[0][60:].mean()))
    assert chosen.channel_ == 1
    direct = BestChannel(channel=1).fit(x)
    assert chosen.bounds_ == direct.bounds_
    np.testing.assert_array_equal(chosen.deviation(x).to_numpy(), direct.deviation(x).to_numpy())
    with pytest.raises(InputError, match="NaN for every channel"):
        chosen.choose(collapsed, lambda far: float("nan"))
