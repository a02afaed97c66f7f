"""What every meta-state estimator has to keep: one suite, run over a registry."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from metastate_systems import punch, two_state
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import estimator_checks_generator

from trajscope.errors import InputError, NotEnoughData
from trajscope.metastate import BestChannel, LinearStateSpace, PCAState, RawMahalanobis, SlowFeatures

QUICK = {"n_starts": 1, "max_iter": 15}
REGISTRY = {
    "pca": PCAState(2),
    "pca em": PCAState(2, missing="em"),
    "pca robust": PCAState(2, robust=True),
    "pca trend": PCAState(2, reference="trend"),
    "slow": SlowFeatures(2),
    "slow quadratic": SlowFeatures(2, expansion="quadratic"),
    "slow delays": SlowFeatures(2, delays=2),
    "slow trend": SlowFeatures(2, reference="trend"),
    "state space": LinearStateSpace(2, **QUICK),
    "state space trend": LinearStateSpace(2, reference="trend", **QUICK),
    "state space 0": LinearStateSpace(0, **QUICK),
    "raw": RawMahalanobis(),
    "raw trend": RawMahalanobis(reference="trend"),
    "single": BestChannel(),
    "single trend": BestChannel(reference="trend"),
}
EVERY = pytest.mark.parametrize("name", list(REGISTRY))


def data(seed: int = 0, n: int = 160, share: float = 0.15) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = two_state(rng, n, p=5)[0] * [1, 2, 0.1, 30, 1] + [0, 5, -3, 100, 0]
    return punch(rng, x, share) if share else x


def fitted(name: str, x: Any = None) -> Any:
    return clone(REGISTRY[name]).fit(data() if x is None else x)


# ---- scikit-learn's own suite

_ALL = {
    "check_dtype_object": "cells that are no numbers raise InputError, a ValueError, not TypeError",
    "check_fit2d_1sample": "one row raises NotEnoughData, which has an exit code of its own and is no ValueError",
    "check_array_api_input": "needs SCIPY_ARRAY_API; numpy arrays only",
}
_ORDER = {
    "check_methods_sample_order_invariance": "states that depend on earlier rows are about the order of rows",
    "check_methods_subset_invariance": "the state of a row depends on the rows before it",
}
CHECKED = {
    "pca": (PCAState(1, scale="std"), {}),
    "pca auto": (
        PCAState(),
        {
            "check_fit_score_takes_y": "partial_fit cannot choose a dimension or take a MAD: it sees each row once",
            "check_n_features_in_after_fitting": "partial_fit cannot choose a dimension or take a MAD: as above",
        },
    ),
    "slow": (SlowFeatures(1), {}),
    "slow delays": (SlowFeatures(1, delays=1), _ORDER),
    "state space": (LinearStateSpace(1, n_starts=1, max_iter=4), _ORDER),
    "raw": (RawMahalanobis(), {}),
    "single": (BestChannel(), {}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(CHECKED))
def test_check_estimator(name: str) -> None:
    estimator, own = CHECKED[name]
    explained = {**_ALL, **own}
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


# ---- no look-ahead


@EVERY
@pytest.mark.parametrize("poison", [1e9, -3.0, np.nan])
def test_nothing_after_a_row_changes_what_is_said_of_it(name: str, poison: float) -> None:
    model = fitted(name)
    new = data(1, 90)
    for t in (1, 17, 60):
        changed = new.copy()
        changed[t:] = poison
        a, b = model.transform(new, causal=True)[:t], model.transform(changed, causal=True)[:t]
        np.testing.assert_array_equal(a, b)
        a, b = model.deviation(new).iloc[:t], model.deviation(changed).iloc[:t]
        pd.testing.assert_frame_equal(a, b, check_exact=True)


@EVERY
def test_a_prefix_says_the_same_as_the_whole(name: str) -> None:
    model = fitted(name)
    new = data(2, 90)
    states, far = model.transform(new, causal=True), model.deviation(new)
    for t in (1, 2, 30, 89):
        np.testing.assert_allclose(model.transform(new[:t], causal=True), states[:t], rtol=1e-12, atol=1e-12)
        pd.testing.assert_frame_equal(model.deviation(new[:t]), far.iloc[:t], rtol=1e-12, atol=1e-12)


# ---- interface


@EVERY
def test_inputs_are_left_alone_and_fits_repeat(name: str) -> None:
    x = data()
    before = x.copy()
    x.flags.writeable = False
    model = clone(REGISTRY[name]).fit(x)
    a = model.deviation(x)
    np.testing.assert_array_equal(x, before)
    pd.testing.assert_frame_equal(a, clone(REGISTRY[name]).fit(x).deviation(x), check_exact=True)
    pd.testing.assert_frame_equal(a, pickle.loads(pickle.dumps(model)).deviation(x), check_exact=True)


@dataclass
class Shaped:
    """Shaped like a trajectory: values carried forward, mask True where one was logged."""

    values: np.ndarray
    mask: np.ndarray
    names: tuple[str, ...]
    steps: np.ndarray


@EVERY
def test_arrays_frames_and_trajectories_are_the_same(name: str) -> None:
    x = data()
    names = tuple("abcde")
    held = pd.DataFrame(x).ffill().to_numpy()
    steps = np.arange(len(x)) * 10
    trajectory = Shaped(held, ~np.isnan(x), names, steps)
    frame = pd.DataFrame(x, columns=list(names), index=steps)
    model = fitted(name, x)
    for other in (trajectory, frame):
        same = fitted(name, other)
        far = same.deviation(other)
        np.testing.assert_array_equal(far.to_numpy(), model.deviation(x).to_numpy())
        assert list(far.index) == list(steps)
        assert far.index.name == "step"
        np.testing.assert_array_equal(same.transform(other), model.transform(x))
    with pytest.raises(InputError, match="select those, in that order"):
        same.deviation(frame[list("abced")])


@EVERY
def test_a_list_of_runs_gives_one_answer_a_run(name: str) -> None:
    runs = [data(s, n) for s, n in ((0, 80), (1, 120), (2, 60))]
    model = fitted(name, runs)
    states = model.transform(runs)
    assert [s.shape for s in states] == [(len(r), model.n_components_) for r in runs]
    far = model.deviation(runs)
    assert far.index.names == ["run", "step"]
    for i, run in enumerate(runs):
        np.testing.assert_array_equal(far.loc[i].to_numpy(), model.deviation(run).to_numpy())


@EVERY
def test_columns_of_deviation_and_their_bounds(name: str) -> None:
    model = fitted(name)
    far = model.deviation(data())
    expected = ["D", "Q", "NIS"] if name.startswith("state space") else ["D", "Q"]
    assert list(far.columns) == expected
    assert set(model.bounds_) == set(expected)
    if model.n_components_:
        # on the rows that gave the bound, 5 % lie above (the reference of a trend starts anew, hence the slack)
        assert 0.0 < (far["D"] > model.bounds_["D"]).mean() < 0.12
    assert (far["Q"].dropna() >= 0).all()


@EVERY
def test_units_do_not_matter(name: str) -> None:
    x = data()
    scaled = x * [1e-3, -1, 50, 1, 7] + [0.1, 0, 30, 50, 0]  # levels that no scale floor (1e-3 of them) feels
    a, b = fitted(name, x).deviation(x), fitted(name, scaled).deviation(scaled)
    np.testing.assert_allclose(a.to_numpy(), b.to_numpy(), rtol=1e-4, atol=1e-6)


@EVERY
def test_summary_and_plot_name_the_channels(name: str) -> None:
    frame = pd.DataFrame(data(), columns=["loss", "grad", "lr", "acc", "norm"])
    model = fitted(name, frame)
    text = model.summary()
    assert type(model).__name__ in text
    axes = model.plot()
    labels = [t.get_text() for t in axes.get_yticklabels()]
    assert sorted(labels) == ["acc", "grad", "loss", "lr", "norm"]


# ---- bad input


@EVERY
def test_channels_that_cannot_be_used_are_set_aside(name: str) -> None:
    x = data()
    x[:, 1], x[:, 3] = 4.0, np.nan
    model = fitted(name, x)
    assert not model.loadings_[[1, 3]].any() or name.startswith("raw")
    assert "never move on the baseline: x1, x3" in model.summary()
    new = data(5)
    new[:, 1] = 1e12
    far = model.deviation(new)
    new[:, 1] = 4.0
    pd.testing.assert_frame_equal(far, model.deviation(new))


@EVERY
def test_rows_without_any_value(name: str) -> None:
    model = fitted(name)
    new = data(3, 40)
    new[10:13] = np.nan
    far = model.deviation(new)
    assert far["Q"].iloc[10:13].isna().all()
    if name.startswith("state space") and model.n_components_:
        assert far["D"].notna().all()  # the state is predicted across the gap
    elif "delays" not in name:
        assert far["D"].iloc[10:13].isna().all()
    assert name.startswith("single") or far.iloc[20:]["Q"].notna().all()


@EVERY
def test_infinite_cells_count_as_missing(name: str) -> None:
    x, y = data(), data()
    x[5, 2], x[9, 0] = np.inf, -np.inf
    y[5, 2], y[9, 0] = np.nan, np.nan
    pd.testing.assert_frame_equal(fitted(name, x).deviation(x), fitted(name, y).deviation(y))


@EVERY
@pytest.mark.parametrize(
    "what",
    ["five rows", "fewer rows than channels", "copied channel", "only two channels move", "rank one", "two rows"],
)
def test_poor_data_give_an_answer_or_a_clear_error(name: str, what: str) -> None:
    rng = np.random.default_rng(0)
    x = data(share=0.0)
    if what == "five rows":
        x = x[:5]
    elif what == "two rows":
        x = x[:2]
    elif what == "fewer rows than channels":
        x = rng.normal(size=(6, 12))
    elif what == "copied channel":
        x = np.hstack([x, x[:, :2]])
    elif what == "only two channels move":
        x[:, 2:] = 1.0
    else:
        x = np.outer(rng.normal(size=50), np.arange(1.0, 5.0))
    try:
        model = clone(REGISTRY[name]).fit(x)
    except (InputError, NotEnoughData) as error:
        assert what in ("five rows", "two rows"), error  # noqa: PT017 - either outcome is right
        return
    far = model.deviation(x)
    assert np.isfinite(far.to_numpy()[np.isfinite(far.to_numpy())]).all()
    assert far["Q"].notna().any()
    if model.n_components_:
        assert far["D"].notna().any()


@EVERY
def test_errors_teach(name: str) -> None:
    model = clone(REGISTRY[name])
    with pytest.raises(InputError, match="Reshape your data"):
        model.fit(np.zeros(5))
    with pytest.raises(InputError, match="2D array"):
        model.fit(np.zeros((2, 3, 4)))
    with pytest.raises(InputError, match="Complex data not supported"):
        model.fit(np.zeros((5, 2)) + 1j)
    with pytest.raises(InputError, match="0 sample"):
        model.fit(np.zeros((0, 3)))
    with pytest.raises(InputError, match="same channels in the same order"):
        model.fit([data(), data()[:, :3]])
    with pytest.raises(NotEnoughData, match="at least 2 rows"):
        model.fit(data()[:1])
    with pytest.raises(NotEnoughData, match=r"no baseline row|none of the 3 channels moves"):
        model.fit(np.full((20, 3), np.nan))
    with pytest.raises(NotEnoughData, match="none of the 3 channels moves"):
        model.fit(np.ones((20, 3)))
    good = fitted(name)
    with pytest.raises(InputError, match="expecting 5 features"):
        good.deviation(data()[:, :4])


@pytest.mark.parametrize("model", [PCAState, SlowFeatures, LinearStateSpace])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_components": 9}, "expected 0 to 5"),
        ({"n_components": -1}, "expected 0 to 5"),
        ({"n_components": 1.5}, "whole number or 'auto'"),
        ({"n_components": "aut"}, "whole number or 'auto'"),
        ({"n_components": 1, "reference": "trned"}, "Did you mean 'trend'"),
        ({"n_components": 1, "scale": "iqr"}, "expected 'mad', 'std' or None"),
    ],
)
def test_wrong_settings(model: type, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model(**wrong).fit(data())


@EVERY
def test_masked_and_nullable_cells_are_missing(name: str) -> None:
    x = data()
    far = fitted(name, x).deviation(x).to_numpy()
    masked = np.ma.masked_array(np.nan_to_num(x, nan=1e6), np.isnan(x))
    nullable = pd.DataFrame(x).astype("Float64").mask(np.isnan(x))
    for other in (masked, nullable):
        np.testing.assert_array_equal(fitted(name, other).deviation(other).to_numpy(), far)


@EVERY
def test_a_value_whose_square_overflows_is_cut(name: str) -> None:
    model = fitted(name)
    new = data(4, 40, share=0)
    new[30:] = 1e200
    far = model.deviation(new)
    assert not np.isinf(far.to_numpy()).any()
    measure = "Q" if model.n_components_ == 0 else "D"
    assert far[measure].iloc[30] > 1e3 * model.bounds_[measure]


@EVERY
def test_nested_lists_of_unequal_length(name: str) -> None:
    with pytest.raises(InputError, match="rows of equal length"):
        clone(REGISTRY[name]).fit([[1.0, 2.0], [3.0]])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (SlowFeatures(1, lag=1.5), "whole numbers"),
        (SlowFeatures(1, delays=1.0), "whole numbers"),
        (LinearStateSpace(1, n_starts=1.5), "whole numbers"),
        (LinearStateSpace(1, max_iter=2.5), "whole numbers"),
        (LinearStateSpace("held-out"), "'auto' or 'heldout'"),
        (PCAState(np.array([1, 2])), "whole number or 'auto'"),
        (BestChannel(1.5), "a whole number or None"),
    ],
)
def test_numbers_have_to_be_whole(model: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model.fit(data())


@pytest.mark.parametrize("name", ["pca trend", "slow trend", "state space trend"])
def test_runs_in_which_nothing_moves_are_refused(name: str) -> None:
    x = data(share=0)
    with pytest.raises(NotEnoughData, match="no channel moves within a run"):
        clone(REGISTRY[name]).fit([x[2 * i : 2 * i + 2] for i in range(4)])


def test_nothing_is_plotted_of_what_is_not_fitted() -> None:
    with pytest.raises(NotFittedError):
        PCAState().plot()
