"""The instability manifold: shape, conformal boundary, causality, other baselines."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import estimator_checks_generator

from trajscope.detect.manifold import InstabilityManifold
from trajscope.errors import InputError, NotEnoughData
from trajscope.history.trajectory import Trajectory
from trajscope.metastate import RawMahalanobis

MIX = np.array([[1.0, 0.6, 0.0, 0.2], [0.0, 1.0, 0.5, 0.0], [0.0, 0.0, 1.0, -0.4], [0.0, 0.0, 0.0, 1.0]])


def healthy(seed: int, n: int = 12, length: int = 120, gaps: float = 0.0) -> list[np.ndarray]:
    """Runs with a common trend, own noise and unequal scales."""
    rng = np.random.default_rng(seed)
    trend = np.exp(-np.arange(length) / 30)[:, None] * [3.0, -20.0, 0.1, 0.0]
    runs = [trend + rng.normal(size=(length, 4)) @ MIX * [1.0, 10.0, 0.1, 5.0] for _ in range(n)]
    for run in runs:
        run[rng.random(run.shape) < gaps] = np.nan
    return runs


def departing(seed: int, at: int = 80, size: float = 15.0) -> np.ndarray:
    run = healthy(seed, 1)[0]
    run[at:] += size * np.array([1.0, 10.0, 0.0, 0.0])
    return run


# ---- scikit-learn's own suite

_EXPLAINED = {
    "check_dtype_object": "cells that are no numbers raise InputError, a ValueError, not TypeError",
    "check_fit2d_1sample": "one row raises NotEnoughData, which has an exit code of its own and is no ValueError",
    "check_array_api_input": "needs SCIPY_ARRAY_API; numpy arrays only",
}
_ORDER = {
    "check_methods_sample_order_invariance": "what a row is measured against depends on the rows before it",
    "check_methods_subset_invariance": "as above",
}
CHECKED = {
    "level": (InstabilityManifold(1, reference="level"), {}),
    "auto": (InstabilityManifold(), _ORDER),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(CHECKED))
def test_check_estimator(name: str) -> None:
    estimator, own = CHECKED[name]
    explained = {**_EXPLAINED, **own}
    failed, passed = {}, 0
    for one, check in estimator_checks_generator(estimator, legacy=True):
        what = check.func.__name__
        try:
            check(one)
            passed += 1
            assert what not in explained or what == "check_array_api_input", f"{what} passes: drop its excuse"
        except BaseException as error:
            if what not in explained:
                failed[what] = error
    assert not failed
    assert passed > 35


# ---- shape and boundary


def test_with_all_components_and_one_level_it_is_the_raw_mahalanobis_distance() -> None:
    x = np.random.default_rng(0).normal(size=(300, 4)) @ MIX
    new = np.random.default_rng(1).normal(size=(50, 4)) * 3
    new[3, 1] = np.nan
    ours = InstabilityManifold("all", reference="level", persistence=1, warmup=0).fit(x)
    radius = np.linalg.norm(ours.transform(new), axis=1)
    rival = RawMahalanobis().fit(x).deviation(new)["D"].to_numpy()
    whole = ~np.isnan(new).any(axis=1)
    np.testing.assert_allclose(radius[whole], rival[whole], rtol=1e-9)
    np.testing.assert_allclose(ours.signed_distance(new)[whole], radius[whole] - ours.boundary_, rtol=1e-9)


@pytest.mark.parametrize("k", [0, 1, 2, 4])
def test_radius_is_the_distance_under_the_model_with_few_components(k: int) -> None:
    x = np.random.default_rng(2).normal(size=(400, 4)) @ MIX
    ours = InstabilityManifold(k, reference="level", warmup=0, persistence=1).fit(x)
    standard = ours.baselines_[""].reference
    rows = (x - standard.level) / standard.sd
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    values, vectors = values[::-1], vectors[:, ::-1]
    noise = values[k:].mean() if k < 4 else 0.0
    model = vectors @ np.diag(np.where(np.arange(4) < k, values, noise)) @ vectors.T
    slow = np.sqrt([row @ np.linalg.solve(model, row) for row in rows])
    np.testing.assert_allclose(np.linalg.norm(ours.transform(x), axis=1), slow, rtol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(ours.shape_.whitened(rows), axis=1), slow, rtol=1e-9)


def test_boundary_comes_from_runs_left_out_of_reference_and_shape() -> None:
    runs = healthy(3, n=11)
    ours = InstabilityManifold("all", alpha=0.1).fit(runs)
    # each run minus the median of the others; then each against the second moment of the others
    rows = [r - np.median([q for j, q in enumerate(runs) if j != i], axis=0) for i, r in enumerate(runs)]
    rows = [x[ours.warmup_ :] for x in rows]
    slow = []
    for i, x in enumerate(rows):
        others = np.concatenate([q for j, q in enumerate(rows) if j != i])
        inverse = np.linalg.inv(others.T @ others / len(others))
        radius = np.array([np.sqrt(row @ inverse @ row) for row in x])
        slow.append(max(min(radius[t - 2 : t + 1]) for t in range(2, len(radius))))
    np.testing.assert_allclose(ours.maxima_, slow, rtol=1e-9)
    assert ours.threshold_ == ours.boundary_ == sorted(ours.maxima_)[10]  # ceil(12 * 0.9) = 11


@pytest.mark.parametrize("reference", ["siblings", "trend"])
def test_new_healthy_runs_cross_at_the_rate_that_was_asked_for(reference: Any) -> None:
    crossed = total = 0
    for seed in range(60):
        runs = healthy(1000 + seed, n=14, length=60)
        ours = InstabilityManifold(1, alpha=0.1, warmup=10, reference=reference).fit(runs[:9])
        found = ours.first_crossing(runs[9:])
        crossed += sum(c.status == "crossed" for c in found)
        total += len(found)
    assert crossed <= binom.ppf(0.9999, total, 0.1)
    assert crossed > 0


def test_calibration_on_runs_of_their_own() -> None:
    runs = healthy(4, n=30)
    ours = InstabilityManifold(1, alpha=0.1).fit(runs[:10])
    fresh = ours.calibrate(runs[10:])
    assert fresh.maxima_.shape == (20,)
    assert ours.maxima_.shape == (10,)
    highest = [np.nanmax(d) + ours.boundary_ for d in ours.signed_distance(runs[10:])]
    np.testing.assert_allclose(fresh.maxima_, highest)
    assert fresh.threshold_ == sorted(fresh.maxima_)[18]  # ceil(21 * 0.9) = 19


def test_too_few_healthy_runs_certify_nothing_and_the_estimate_is_carried_along() -> None:
    ours = InstabilityManifold(1, alpha=0.05).fit(healthy(5, n=18))
    assert np.isinf(ours.threshold_)
    assert not ours.certified_
    assert ours.boundary_ == ours.maxima_.max()
    found = ours.first_crossing(departing(6))
    assert (found.step, found.status) == (None, "not certifiable")
    assert 80 <= found.candidate <= 84
    assert "needs 19" in found.reason
    assert "Not certifiable" in found.summary()
    assert "needs 19 healthy runs" in ours.summary()
    assert InstabilityManifold(1, alpha=0.05).fit(healthy(5, n=19)).certified_


# ---- crossings


def test_first_crossing_is_stamped_when_it_is_confirmed() -> None:
    ours = InstabilityManifold("all", alpha=0.1).fit(healthy(7))
    run = departing(8, at=80)
    found = ours.first_crossing(run)
    assert (found.step, found.status) == (82.0, "crossed")
    distance = ours.signed_distance(run)
    assert np.isnan(distance[: ours.warmup_ + 2]).all()
    assert (distance[ours.warmup_ + 2 : 82] < 0).all()
    assert (distance[82:] > 0).all()
    assert found.distance == distance[82]
    assert "step 82" in found.summary()
    assert found.to_frame().loc[0, "step"] == 82
    calm = ours.first_crossing(healthy(29, 1)[0])
    assert calm.status == "inside"
    assert calm.step is None
    assert calm.distance < 0
    assert "Stayed inside" in calm.summary()


def test_a_run_that_ends_in_the_warmup_says_so() -> None:
    ours = InstabilityManifold("all", alpha=0.1).fit(healthy(7))
    found = ours.first_crossing(departing(8)[: ours.warmup_ + 2])
    assert found.status == "cannot tell"
    assert found.summary() == f"Cannot tell: no 3 rows in a row were seen after the warm-up of {ours.warmup_} rows."
    with pytest.raises(NotEnoughData, match="no healthy run has 3 rows in a row after the warm-up of 118"):
        InstabilityManifold("all", warmup=118).fit(healthy(7))


def test_one_spike_is_no_crossing() -> None:
    ours = InstabilityManifold("all", alpha=0.1).fit(healthy(7))
    run = healthy(29, 1)[0]
    run[90] += 1e4
    assert ours.first_crossing(run).status == "inside"
    assert clone(ours).set_params(persistence=1).fit(healthy(7)).first_crossing(run).step == 90


def test_a_logged_value_that_is_not_finite_is_outside_and_a_missing_one_is_not() -> None:
    ours = InstabilityManifold("all", alpha=0.1).fit(healthy(7))
    run = healthy(29, 1)[0]
    for bad, expected in ((np.inf, 92.0), (np.nan, None)):
        changed = run.copy()
        changed[90:, 2] = bad
        assert ours.first_crossing(changed).step == expected
    changed = run.copy()
    changed[90:, 2] = np.nan
    logged = Trajectory(changed, np.arange(120), ("a", "b", "c", "d"), mask=np.ones((120, 4), dtype=bool))
    assert ours.first_crossing(logged).step == 92.0
    assert ours.first_crossing(Trajectory(changed, np.arange(120), ("a", "b", "c", "d"))).step is None
    assert np.isposinf(ours.signed_distance(logged)[-1])
    assert ours.first_crossing(np.ma.masked_invalid(changed)).step is None
    assert ours.first_crossing(pd.DataFrame(changed)).step is None


def test_a_drift_that_a_trend_could_follow_is_held_outside() -> None:
    rng = np.random.default_rng(0)
    runs = [rng.normal(size=(400, 3)) for _ in range(10)]
    ours = InstabilityManifold("all", alpha=0.1, reference="trend").fit(runs)
    run = rng.normal(size=(400, 3))
    run[200:] += 12
    distance = ours.signed_distance(run)
    assert ours.first_crossing(run).step == 202
    assert (distance[202:] > 0).all()


# ---- no look-ahead

MODELS: dict[str, Any] = {
    "siblings": InstabilityManifold(2, alpha=0.1),
    "trend": InstabilityManifold(2, alpha=0.1, reference="trend"),
    "level": InstabilityManifold("all", alpha=0.1, reference="level"),
}


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("poison", [1e9, -3.0, np.nan, np.inf])
def test_nothing_after_a_row_changes_what_is_said_of_it(name: str, poison: float) -> None:
    model = clone(MODELS[name]).fit(healthy(12, gaps=0.1))
    new = departing(13, at=70)
    new[::7, 1] = np.nan
    for t in (1, 45, 72, 100):
        changed = new.copy()
        changed[t:] = poison
        np.testing.assert_array_equal(model.signed_distance(new)[:t], model.signed_distance(changed)[:t])
        np.testing.assert_array_equal(model.transform(new)[:t], model.transform(changed)[:t])


@pytest.mark.parametrize("name", list(MODELS))
def test_a_prefix_says_the_same_as_the_whole(name: str) -> None:
    model = clone(MODELS[name]).fit(healthy(12, gaps=0.1))
    new = departing(13, at=70)
    new[::7, 1] = np.nan
    whole, states = model.signed_distance(new), model.transform(new)
    for t in (1, 2, 45, 72, 119):
        np.testing.assert_allclose(model.signed_distance(new[:t]), whole[:t], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(model.transform(new[:t]), states[:t], rtol=1e-12, atol=1e-12)
    step = model.first_crossing(new).step
    assert step == model.first_crossing(new[: int(step) + 1]).step
    assert model.first_crossing(new[: int(step)]).step is None


# ---- groups


def test_a_domain_in_other_units_is_the_same_domain_on_its_own_baseline() -> None:
    a, factor, offset = healthy(14), np.array([100.0, 0.1, 7.0, 1.0]), np.array([5.0, 0.0, -3.0, 9.0])
    b = [r * factor + offset for r in a]
    run = departing(15)
    ours = InstabilityManifold("all", alpha=0.1).fit(a)
    both = ours.adapt(b, group="b")
    np.testing.assert_allclose(
        both.signed_distance(run * factor + offset, group="b"), ours.signed_distance(run), rtol=1e-6, atol=1e-6
    )
    again = ours.adapt(b, group="b", recalibrate=True)
    assert again.threshold_ < ours.threshold_ * 1.05  # reference left out, shape fixed: a little smaller at most
    pooled = InstabilityManifold("all", alpha=0.1).fit(a + b, groups=["a"] * 12 + ["b"] * 12)
    assert pooled.groups_ == ("a", "b")
    one, other = pooled.first_crossing([run, run * factor + offset], group=["a", "b"])
    assert one.step == other.step == 82
    with pytest.raises(InputError, match=r"say which group .*'a', 'b'"):
        pooled.signed_distance(run)
    with pytest.raises(InputError, match=r"group 'c' has no baseline"):
        pooled.signed_distance(run, group="c")
    with pytest.raises(InputError, match=r"group has 1 entries for 2 runs"):
        pooled.signed_distance([run, run], group=["a"])


def test_roles_choose_the_scale_once_and_for_all_runs() -> None:
    runs = [np.exp(r / 5) for r in healthy(16)]
    names, roles = ("loss", "grad_norm", "grad_cos", "policy_loss"), ("loss", "grad_norm", "grad_cos", "policy_loss")
    tracks = [Trajectory(r, np.arange(120), names, roles) for r in runs]
    ours = InstabilityManifold("all", alpha=0.1).fit(tracks)
    assert ours.baselines_[""].scales.kinds == ("log", "log", "none", "asinh")
    gone = runs[0].copy()
    gone[60:, 1] = -1.0  # read as a thousandth of the smallest of the baseline
    assert ours.first_crossing(Trajectory(gone, np.arange(120), names, roles)).step == 62


# ---- interface


def test_unstable_runs_by_flag_or_apart_are_the_same() -> None:
    good, bad = healthy(17), [departing(s) for s in range(3)]
    a = InstabilityManifold(1, alpha=0.1).fit(good, unstable=bad)
    b = InstabilityManifold(1, alpha=0.1).fit(good + bad, [False] * 12 + [True] * 3)
    np.testing.assert_array_equal(a.collapse_subspace_, b.collapse_subspace_)
    np.testing.assert_array_equal(a.maxima_, InstabilityManifold(1, alpha=0.1).fit(good).maxima_)
    assert a.n_excursions_ == 3
    assert "3 unstable runs left it" in a.summary()
    one = InstabilityManifold(1, alpha=0.1).fit(good, unstable=bad[0])
    assert one.n_excursions_ == 1
    assert InstabilityManifold(1, alpha=0.1).fit(good).collapse_subspace_ is None


def test_inputs_are_left_alone_and_fits_repeat() -> None:
    runs = healthy(18, gaps=0.05)
    before = [r.copy() for r in runs]
    for r in runs:
        r.flags.writeable = False
    bad = departing(3)
    model = InstabilityManifold(alpha=0.1, rng=1).fit(runs, unstable=[bad])
    for r, b in zip(runs, before, strict=True):
        np.testing.assert_array_equal(r, b)
    for other in (clone(model).fit(runs, unstable=[bad]), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(model.signed_distance(bad), other.signed_distance(bad))
        np.testing.assert_array_equal(model.healthy_subspaces_, other.healthy_subspaces_)


def test_frames_trajectories_and_arrays_say_the_same() -> None:
    runs, run, names = healthy(19), departing(20), ["a", "b", "c", "d"]
    expected = InstabilityManifold(1, alpha=0.1).fit(runs).signed_distance(run)
    frames = InstabilityManifold(1, alpha=0.1).fit([pd.DataFrame(r, columns=names) for r in runs])
    np.testing.assert_array_equal(expected, frames.signed_distance(pd.DataFrame(run, columns=names)))
    with pytest.raises(InputError, match="was fitted on"):
        frames.signed_distance(pd.DataFrame(run, columns=["a", "b", "d", "c"]))
    assert list(frames.get_feature_names_out()) == ["instabilitymanifold0", "instabilitymanifold1"]
    assert frames.transform([run, run])[1].shape == (120, 2)


def test_bad_arguments_say_what_to_do() -> None:
    runs = healthy(21)
    with pytest.raises(NotFittedError):
        InstabilityManifold().signed_distance(runs[0])
    for options, message in (
        ({"alpha": 0.0}, r"alpha is 0\.0; a false-alarm rate between 0 and 1"),
        ({"n_components": 9}, "expected 0 to 4, the channels that move"),
        ({"n_components": "most"}, "expected a whole number, 'auto' or 'all'"),
        ({"persistence": 0}, "persistence is 0"),
        ({"warmup": -1}, "warmup is -1; a number of rows"),
        ({"collapse_dim": 0}, "collapse_dim is 0"),
        ({"reference": "mean"}, "reference is 'mean'"),
    ):
        with pytest.raises(InputError, match=message):
            InstabilityManifold(**options).fit(runs)
    ours = InstabilityManifold(1)
    for arguments, message in (
        ({"y": [True]}, r"y has shape \(1,\) for 12 runs"),
        ({"y": [2] * 12}, "y holds 2; True"),
        ({"y": [True] * 12}, "all runs are marked unstable"),
        ({"groups": ["a"]}, "groups has 1 entries for 12 runs"),
        ({"y": [False] * 11 + [True], "groups": ["a"] * 11 + ["b"]}, "group 'b' has no healthy run"),
        ({"unstable": runs, "groups": ["a"] * 6 + ["b"] * 6}, "mark them by y"),
    ):
        with pytest.raises(InputError, match=message):
            ours.fit(runs, **arguments)
    with pytest.raises(InputError, match="3 features, but InstabilityManifold is expecting 4"):
        ours.fit(runs).transform(runs[0][:, :3])
    with pytest.raises(InputError, match="group has 2 entries for 1 runs"):
        ours.adapt(runs[:1], group=["a", "b"])
    with pytest.raises(NotEnoughData, match=r"no channel moves|moves on the baseline"):
        InstabilityManifold().fit([np.ones((50, 3))] * 5)
