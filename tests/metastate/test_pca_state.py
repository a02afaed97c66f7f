"""PCA: equal to scikit-learn without gaps, to maximum likelihood with them, robust, streamed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from metastate_systems import ar, orthonormal, punch, two_state
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA

from trajscope._core.linalg import Moments, mean_cos2
from trajscope.errors import InputError
from trajscope.metastate import PCAState
from trajscope.metastate.pca import complete_rows, ppca_em, ppca_from_covariance


def test_without_gaps_it_is_pca() -> None:
    x = two_state(np.random.default_rng(0), 400)[0] + 7
    ours, theirs = PCAState(3, scale=None).fit(x), PCA(3).fit(x)
    sign = np.sign((ours.loadings_ * theirs.components_.T).sum(axis=0))
    np.testing.assert_allclose(ours.loadings_ * sign, theirs.components_.T, atol=1e-10)
    np.testing.assert_allclose(ours.transform(x) * sign, theirs.transform(x), atol=1e-9)
    np.testing.assert_allclose(ours.explained_, theirs.explained_variance_ratio_, rtol=1e-10)
    n = len(x)
    np.testing.assert_allclose(ours.eigenvalues_[:3], theirs.explained_variance_ * (n - 1) / n, rtol=1e-10)
    np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=1e-12)
    # D and Q are Hotelling's T and the squared residual
    far = ours.deviation(x)
    z = theirs.transform(x)
    np.testing.assert_allclose(far["D"], np.sqrt((z**2 / z.var(axis=0)).sum(axis=1)), rtol=1e-9)
    np.testing.assert_allclose(far["Q"], ((x - theirs.inverse_transform(z)) ** 2).sum(axis=1), rtol=1e-8)


def test_signs_are_fixed() -> None:
    x = two_state(np.random.default_rng(1), 300)[0]
    a, b = PCAState(2, scale="std").fit(x), PCAState(2, scale="std").fit(-x)
    np.testing.assert_allclose(a.loadings_, b.loadings_, atol=1e-10)
    assert (a.loadings_[np.abs(a.loadings_).argmax(axis=0), [0, 1]] > 0).all()


def test_runs_are_centred_each_but_new_runs_are_not() -> None:
    rng = np.random.default_rng(2)
    runs = [two_state(rng, 200)[0] for _ in range(3)]
    shifted = [r + 50 * i for i, r in enumerate(runs)]
    a, b = PCAState(2, scale="std").fit(runs), PCAState(2, scale="std").fit(shifted)
    np.testing.assert_allclose(a.loadings_, b.loadings_, atol=1e-9)
    far = a.deviation(runs[0] + 50)
    assert far["Q"].min() > a.bounds_["Q"]  # a level of its own is a departure, not something to centre away


def test_moments_with_gaps_are_the_pairwise_ones() -> None:
    rng = np.random.default_rng(3)
    runs = [punch(rng, rng.normal(size=(n, 4)) + 1e6, 0.3) for n in (50, 7)]
    moments = Moments.of(runs)
    centred = [r - np.nanmean(r, axis=0) for r in runs]
    stack = np.concatenate(centred)
    for i in range(4):
        for j in range(4):
            both = ~np.isnan(stack[:, i]) & ~np.isnan(stack[:, j])
            expected = (stack[both, i] * stack[both, j]).mean()
            assert moments.covariance()[i, j] == pytest.approx(expected, abs=1e-8)
            assert moments.pairs[i, j] == both.sum()
    np.testing.assert_allclose(moments.mean(), np.nanmean(np.concatenate(runs), axis=0), rtol=1e-12)


def test_em_climbs_the_exact_likelihood_and_beats_its_start() -> None:
    rng = np.random.default_rng(4)
    x = punch(rng, two_state(rng, 150, p=5)[0], 0.3)
    x -= np.nanmean(x, axis=0)
    values, vectors = np.linalg.eigh(np.cov(np.nan_to_num(x).T))
    start = ppca_from_covariance(values[::-1], vectors[:, ::-1], 2)
    w, noise, path = ppca_em([x], *start, tol=1e-12, max_iter=500)
    assert np.diff(path).min() > -1e-8
    cov = w @ w.T + noise * np.eye(5)
    exact = 0.0
    for row in x:
        seen = ~np.isnan(row)
        if seen.any():
            exact += multivariate_normal(np.zeros(seen.sum()), cov[np.ix_(seen, seen)]).logpdf(row[seen])
    assert path[-1] == pytest.approx(exact, rel=1e-6)
    # at the maximum a small move in any direction loses
    for _ in range(10):
        moved = w + 0.02 * rng.normal(size=w.shape)
        assert ppca_em([x], moved, noise, max_iter=1)[2][0] < path[-1]


def test_rows_are_completed_by_the_conditional_mean() -> None:
    rng = np.random.default_rng(5)
    w, noise = rng.normal(size=(5, 2)), 0.3
    cov = w @ w.T + noise * np.eye(5)
    x = punch(rng, rng.normal(size=(20, 5)), 0.4)
    out = complete_rows(x, w, noise)
    for row, full in zip(x, out, strict=True):
        s = ~np.isnan(row)
        if not s.any():
            assert np.isnan(full).all()
            continue
        expected = cov[np.ix_(~s, s)] @ np.linalg.solve(cov[np.ix_(s, s)], row[s])
        np.testing.assert_allclose(full[~s], expected, atol=1e-10)
        np.testing.assert_array_equal(full[s], row[s])


@pytest.mark.parametrize("missing", ["pairwise", "em"])
def test_subspace_survives_gaps(missing: str) -> None:
    rng = np.random.default_rng(6)
    w = orthonormal(rng, 10, 2)
    x = ar(rng, 2000, 0.9, 2) @ w.T * np.sqrt(5) + rng.normal(size=(2000, 10))
    model = PCAState(2, scale=None, missing=missing).fit(punch(rng, x, 0.3))
    assert mean_cos2(model.loadings_, w) > 0.98


def test_robust_option_holds_against_outliers_and_plain_pca_does_not() -> None:
    rng = np.random.default_rng(7)
    w = orthonormal(rng, 8, 1)
    x = 3 * rng.normal(size=(600, 1)) @ w.T + 0.5 * rng.normal(size=(600, 8))
    x[::20] += 200 * rng.normal(size=(30, 1)) @ orthonormal(rng, 8, 1).T
    plain = PCAState(1, scale=None).fit(x).loadings_
    robust = PCAState(1, scale=None, robust=True).fit(punch(rng, x, 0.1))
    assert mean_cos2(plain, w) < 0.5
    assert mean_cos2(robust.loadings_, w) > 0.97
    assert robust.eigenvalues_[0] == pytest.approx(9.25, rel=0.25)  # 9 + 0.25, outliers not in it


def test_streaming_equals_one_fit() -> None:
    rng = np.random.default_rng(8)
    x = punch(rng, two_state(rng, 3000)[0] + 100, 0.1)
    whole = PCAState(2, scale="std").fit([x[:2000], x[2000:]])
    stream = PCAState(2, scale="std")
    for start in range(0, 2000, 333):
        stream.partial_fit(x[start : min(start + 333, 2000)])
    for start in range(2000, 3000, 250):
        stream.partial_fit(x[start : start + 250], new_run=start == 2000)
    np.testing.assert_allclose(stream.loadings_, whole.loadings_, atol=1e-10)
    np.testing.assert_allclose(stream.eigenvalues_, whole.eigenvalues_, rtol=1e-10)
    np.testing.assert_allclose(stream.mean_, whole.mean_, rtol=1e-12)
    np.testing.assert_allclose(stream.deviation(x).to_numpy(), whole.deviation(x).to_numpy(), rtol=1e-6)
    for wrong in (PCAState(), PCAState(2), PCAState(2, scale="std", missing="em"), PCAState(2, reference="trend")):
        with pytest.raises(InputError, match="sees each row once"):
            wrong.partial_fit(x)
    with pytest.raises(InputError, match="expecting 10 features"):
        stream.partial_fit(x[:, :4])


def test_a_stream_keeps_a_bounded_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    from trajscope.metastate.pca import _Stream

    monkeypatch.setattr(_Stream, "most", 50)
    x = np.arange(1000.0)[:, None] + np.random.default_rng(0).normal(size=(1000, 1))
    stream = _Stream(1)
    for start in range(0, 1000, 37):
        stream.add(x[start : start + 37], False)
    _, kept = stream.result()
    assert 25 <= len(kept) <= 50
    np.testing.assert_array_equal(kept, x[:: stream.step][: len(kept)])


def test_no_component_where_channels_are_independent() -> None:
    x = ar(np.random.default_rng(9), 500, 0.9, 8)
    model = PCAState().fit(x)
    assert model.n_components_ == 0
    assert model.transform(x).shape == (500, 0)
    far = model.deviation(x)
    assert far["D"].isna().all()
    assert np.isnan(model.bounds_["D"])
    np.testing.assert_allclose(far["Q"], (((x - model.mean_) / model.reference_.sd) ** 2).sum(axis=1))
    assert "share nothing" in model.summary()


def test_a_fit_forgets_the_stream_and_names_are_kept() -> None:
    x = np.random.default_rng(5).normal(size=(90, 3))
    state = PCAState(1, scale="std").partial_fit(x[:30] + 50)
    state.fit(x)
    state.partial_fit(x[:60])
    np.testing.assert_allclose(state.mean_, x[:60].mean(axis=0))
    state = PCAState(1, scale="std").partial_fit(pd.DataFrame(x, columns=list("abc")))
    with pytest.raises(InputError, match="select those, in that order"):
        state.partial_fit(pd.DataFrame(x, columns=list("cba")))
