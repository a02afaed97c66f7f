"""Common channels, directions of excursions, similarity of subspaces, and the picture of the manifold."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from trajscope.detect._manifold_shape import directions, random_cos2
from trajscope.detect.manifold import COMMON, InstabilityManifold, manifold_channels, subspace_similarity
from trajscope.errors import InputError
from trajscope.history.run import Channel, Run, RunData, named_channel
from trajscope.history.trajectory import CODES
from trajscope.plots.manifold import figure_data, plot, squeeze
from trajscope.plots.style import COLUMN, PAGE


def run_of(seed: int = 0, n: int = 120, **changes: np.ndarray) -> Run:
    rng = np.random.default_rng(seed)
    values = {
        "train/loss": 0.1 + np.exp(-np.arange(n) / 40 + 0.1 * rng.normal(size=n)),
        "grad_norm": np.exp(0.3 * rng.normal(size=n)),
        "grad_cos": np.tanh(rng.normal(size=n)),
        "update_norm": 0.01 * np.exp(0.2 * rng.normal(size=n)),
        "param_norm": 10 + 0.001 * np.cumsum(rng.normal(size=n)),
        "val/accuracy": np.linspace(0, 1, n),
        "lr": np.full(n, 0.1),
    }
    values.update({k.replace("__", "/"): v for k, v in changes.items()})
    return Run("r", RunData({k: named_channel(k, np.arange(n), v) for k, v in values.items()}))


# ---- common channels


def test_the_columns_are_what_they_say() -> None:
    run = run_of()
    track = manifold_channels(run)
    assert track.names == COMMON
    assert "lr" not in track.names
    u, p = run.channels["update_norm"].values, run.channels["param_norm"].values
    np.testing.assert_array_equal(track.values[:, 0], run.channels["train/loss"].values)
    np.testing.assert_allclose(track.values[:, 4], u / p)
    np.testing.assert_allclose(np.sinh(track.values[1:, 5]) * u[:-1], np.diff(p), rtol=1e-6, atol=1e-12)
    assert not track.mask[0, 5]
    assert not track.mask[:20, 6].any()
    assert track.mask[20:, 6].all()


@pytest.mark.parametrize("poison", [1e9, -1.0, 0.0, np.nan, np.inf])
def test_common_channels_do_not_look_ahead(poison: float) -> None:
    names = ("train/loss", "grad_norm", "update_norm", "param_norm")
    whole = run_of()
    for t in (5, 30, 90):
        changed = {}
        for name in names:
            values = whole.channels[name].values.copy()
            values[t:] = poison
            changed[name] = values
        other = manifold_channels(run_of(**changed))
        np.testing.assert_array_equal(manifold_channels(whole).values[:t], other.values[:t])
        np.testing.assert_array_equal(manifold_channels(whole).mask[:t], other.mask[:t])


def test_what_is_not_logged_is_missing_and_what_is_not_finite_is_an_event() -> None:
    loss = run_of().channels["train/loss"].values.copy()
    loss[60] = np.nan
    track = manifold_channels(run_of(**{"train/loss": loss}))
    assert track.codes[60, 0] == CODES["nan"]
    bare = Run("r", RunData({"loss": named_channel("loss", np.arange(0, 60, 2), np.linspace(2, 1, 30))}))
    track = manifold_channels(bare)
    assert track.mask.any(axis=0).tolist() == [True, False, False, False, False, False, True]
    assert (track.codes[:, 1] == CODES["not logged"]).all()
    empty = manifold_channels(Run("r", RunData({"x": Channel("x", np.arange(3), np.ones(3))})))
    assert empty.values.shape == (0, 7)


def test_parameters_that_move_by_more_than_their_update_stand_out() -> None:
    p = run_of().channels["param_norm"].values.copy()
    p[80:] += 5
    growth = manifold_channels(run_of(param_norm=p)).values[:, 5]
    assert np.nanmax(np.abs(np.delete(growth, 80))) < 0.9
    assert growth[80] > 5


# ---- directions and similarity


def test_every_run_counts_once_and_every_row_by_its_direction() -> None:
    one, two = np.zeros((500, 4)), np.zeros((3, 4))
    one[:, 0], two[:, 1] = 1e30, -2.0
    basis, share = directions([one, two], 2)
    np.testing.assert_allclose(share, [0.5, 0.5])
    np.testing.assert_allclose(np.abs(basis[:2]) @ [1, 1], [1, 1], atol=1e-12)
    two[0, 2] = np.nan
    np.testing.assert_allclose(directions([one, two], 2)[1], [0.5, 0.5])


def test_random_planes_in_eight_channels() -> None:
    draws = random_cos2(8, (2, 2), 4000, np.random.default_rng(0))
    assert draws.mean() == pytest.approx(0.25, abs=0.006)
    assert np.quantile(draws, 0.95) == pytest.approx(0.46, abs=0.015)


def test_p_values_under_the_random_null_are_level() -> None:
    rng = np.random.default_rng(1)
    n = 300
    p = [
        subspace_similarity(rng.normal(size=(8, 2)), rng.normal(size=(8, 2)), n_draws=99, rng=i).random_p
        for i in range(n)
    ]
    for level in (0.05, 0.2):
        assert binom.ppf(0.001, n, level) <= np.sum(np.array(p) <= level) <= binom.ppf(0.999, n, level)


def with_excursions(seed: int, direction: np.ndarray) -> InstabilityManifold:
    rng = np.random.default_rng(seed)
    good = [rng.normal(size=(150, 8)) for _ in range(10)]
    bad = [rng.normal(size=(150, 8)) for _ in range(4)]
    for run in bad:
        run[80:] += 20 * rng.normal(size=(70, direction.shape[1])) @ direction.T
    return InstabilityManifold(2, alpha=0.1).fit(good, unstable=bad)


def test_domains_that_leave_in_the_same_plane_are_more_alike_than_both_nulls() -> None:
    plane = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 2)))[0]
    a, b = with_excursions(1, plane), with_excursions(2, plane)
    found = subspace_similarity(a, b, rng=0)
    assert found.value > 0.95
    assert found.random_p == found.healthy_p == 0.001
    assert found.random_mean == pytest.approx(0.25, abs=0.02)
    assert found.to_frame()["null"].tolist() == ["random subspaces", "healthy windows"]
    assert "8 channels" in found.summary()
    other = subspace_similarity(a, with_excursions(3, np.eye(8)[:, 6:]), rng=0)
    assert other.random_p > 0.02
    again = subspace_similarity(a, b, rng=0)
    assert again.to_dict() == found.to_dict()
    alone = subspace_similarity(plane, plane, n_draws=19)
    assert alone.value == pytest.approx(1)
    assert np.isnan(alone.healthy_p)
    assert "no healthy windows" in alone.summary()


def test_similarity_refuses_what_cannot_be_compared() -> None:
    a = with_excursions(1, np.eye(8)[:, :2])
    for other, message in (
        (np.eye(4)[:, :2], "a has channels 8 and b has 4"),
        (np.ones((8, 2)), "2 columns are not independent"),
        (np.ones(8), r"b has shape \(8,\)"),
        ("plane", "neither a fitted InstabilityManifold nor a matrix"),
    ):
        with pytest.raises(InputError, match=message):
            subspace_similarity(a, other)
    with pytest.raises(InputError, match="fewer than 19"):
        subspace_similarity(a, a, n_draws=9)
    calm = InstabilityManifold(1, alpha=0.1).fit([np.random.default_rng(i).normal(size=(90, 8)) for i in range(9)])
    with pytest.raises(InputError, match="b has no collapse subspace"):
        subspace_similarity(a, calm)


# ---- picture


def test_a_point_is_drawn_outside_the_half_circle_exactly_when_its_radius_is() -> None:
    model = with_excursions(4, np.eye(8)[:, :2])
    rng = np.random.default_rng(5)
    runs = [rng.normal(size=(150, 8)), rng.normal(size=(150, 8))]
    runs[1][100:] += 9
    data = figure_data(model, runs)
    for i, run in enumerate(runs):
        radius = np.linalg.norm(model.transform(run), axis=1)
        radius[: model.warmup_] = np.nan
        np.testing.assert_allclose(np.hypot(data.along[i], data.across[i]) * model.boundary_, radius, rtol=1e-9)
        np.testing.assert_allclose((data.relative[i] - 1) * model.boundary_, model.signed_distance(run), atol=1e-9)
    assert data.crossing == [None, 102]
    assert data.unstable == [False, True]
    ratio = np.array([0.0, 0.5, 1.0, np.e])
    np.testing.assert_allclose(squeeze(ratio), [0.0, 0.5, 1.0, 2.0])


def test_it_draws_on_a_page_in_a_column_and_into_given_axes() -> None:
    from matplotlib.figure import Figure

    model = with_excursions(4, np.eye(8)[:, :2])
    run = np.random.default_rng(6).normal(size=(150, 8))
    run[110:, 0] = np.inf
    page, column = model.plot(run), model.plot([run, run], width="column", injections=[100, np.nan])
    assert page.get_figwidth() == PAGE
    assert column.get_figwidth() == COLUMN
    for figure in (page, column):
        figure.canvas.draw()
        assert "boundary" in figure.axes[0].get_title(loc="left")
    assert [t.get_text() for t in column.axes[1].texts] == ["event"]
    ax = Figure().subplots()
    assert plot(model, run, ax=ax) is ax
    assert [t.get_text() for t in page.axes[0].get_legend().get_texts()] == ["unstable run", "first crossing"]
    assert "along the excursions \N{RIGHTWARDS ARROW}" in [t.get_text() for t in page.axes[0].texts]
    few = InstabilityManifold(0, alpha=0.01).fit([run[:100], run[:100]])
    assert "not certifiable with 2 healthy runs" in few.plot(run).axes[0].get_title(loc="left")
    with pytest.raises(InputError, match="give a run or a list of runs"):
        model.plot()
    with pytest.raises(InputError, match="width is 'poster'"):
        model.plot(run, width="poster")
