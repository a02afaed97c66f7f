"""Recurrence measures against the full matrix, another implementation's frozen numbers, gaps and limits."""

from __future__ import annotations

import dynamics_systems as systems
import numpy as np
import pytest

from trajscope.dynamics import recurrence
from trajscope.dynamics import recurrences as module
from trajscope.dynamics.recurrences import MEASURES, recurrent_pairs
from trajscope.errors import InputError, NotEnoughData


def runs(flags: np.ndarray) -> list[int]:
    out, length = [], 0
    for flag in [*flags.tolist(), False]:
        if flag:
            length += 1
        elif length:
            out.append(length)
            length = 0
    return out


def obvious(x: np.ndarray, place: np.ndarray, epsilon: float, theiler: int, least: int) -> list[float]:
    """The square matrix on the time line, empty where there is no row."""
    size = int(place.max()) + 1
    near = np.zeros((size, size), dtype=bool)
    near[np.ix_(place, place)] = np.linalg.norm(x[:, None] - x[None], axis=2) <= epsilon
    far = [(i, j) for i in place for j in place if j - i > theiler]
    diagonal = np.array([v for o in range(theiler + 1, size) for v in runs(np.diagonal(near, o))])
    vertical = np.array([v for c in range(size) for v in runs(near[:, c])])
    long, still = diagonal[diagonal >= least], vertical[vertical >= least]
    share = np.bincount(long) / long.size
    share = share[share > 0]
    return [
        float(np.mean([near[i, j] for i, j in far])),
        long.sum() / diagonal.sum(),
        long.mean(),
        diagonal.max(),
        -(share * np.log(share)).sum(),
        still.sum() / vertical.sum(),
        still.mean(),
    ]


@pytest.mark.parametrize("theiler", [0, 1, 5])
@pytest.mark.parametrize("gap", [False, True])
def test_against_the_full_matrix(theiler, gap, monkeypatch):
    monkeypatch.setattr(module, "_TILE", 1000)  # several tiles even here
    rng = np.random.default_rng(0)
    t = np.arange(120)
    x = np.column_stack([np.sin(0.3 * t), np.cos(0.3 * t)]) + 0.2 * rng.normal(size=(120, 2))
    if gap:
        x[50] = np.nan
    got = recurrence(x, rate=0.08, theiler=theiler)
    place = t[t != 50] if gap else t
    truth = obvious(got.points, place, got.epsilon, theiler, 2)
    np.testing.assert_allclose([got.measures[m] for m in MEASURES], truth, rtol=1e-12)


def test_frozen_numbers_of_pyunicorn():
    """pyunicorn 1.0.0, RecurrencePlot(y, metric="euclidean", threshold=epsilon) on these 300 values; its
    distances are single precision, so that the pair at epsilon itself is lost; its rate counts the main diagonal."""
    rng = np.random.default_rng(20)
    y = rng.normal(size=300)
    got = recurrence(y, rate=0.1, theiler=0)
    m = got.measures
    np.testing.assert_allclose([m["DET"], m["L_mean"], m["L_max"], m["ENTR"], m["LAM"], m["TT"]], PYUNICORN, rtol=1e-3)
    assert m["RR"] == pytest.approx(0.1, abs=1e-4)


def test_rate_is_what_was_asked_for_and_epsilon_is_a_distance():
    x = np.random.default_rng(1).normal(size=(400, 3))
    for rate in (0.01, 0.05, 0.2):
        epsilon, first, second, _, _, n = recurrent_pairs(x, rate, theiler=2)
        d = np.linalg.norm(x[:, None] - x[None], axis=2)
        far = d[np.triu_indices(400, 3)]
        assert n == far.size
        assert first.size == int(rate * far.size)
        assert epsilon == np.sort(far)[int(rate * far.size) - 1]
        assert (second - first > 2).all()


def test_order_is_told_from_noise_beside_surrogates():
    orbit = systems.orbit(systems.lorenz_field, [1.0, 1.0, 20.0], 0.05, 600, 400, 5)
    got = recurrence(orbit, theiler=8, n_surrogates=19, rng=0)
    assert got.measures["DET"] > got.null_high["DET"]
    assert "DET" in got.summary()
    noise = recurrence(np.random.default_rng(0).normal(size=(600, 3)), n_surrogates=19, rng=0)
    assert noise.null_low["DET"] <= noise.measures["DET"] <= noise.null_high["DET"]
    assert noise.measures["DET"] < 0.2
    again = recurrence(np.random.default_rng(0).normal(size=(600, 3)), n_surrogates=19, rng=0)
    assert again.null_high == noise.null_high


def test_long_data_are_thinned_and_said():
    x = np.sin(0.01 * np.arange(12_000))
    got = recurrence(x, max_points=1000)
    assert (got.n_rows, got.every, got.stride) == (1000, 12, 12)
    x[6] = np.nan
    gap = recurrence(x, n_surrogates=3, max_points=12_000 // 12)
    assert gap.null_high == {}


@pytest.mark.parametrize(
    ("x", "why"),
    [(np.zeros(0), "0 complete rows"), (np.ones(100), "no channel varies"), (np.arange(9.0), "9 complete")],
)
def test_cannot_tell(x, why):
    got = recurrence(x)
    assert got.status == "cannot tell"
    assert why in got.summary()
    assert got.to_frame()["value"].isna().all()
    got.to_dict()
    assert "theiler" in recurrence(np.arange(30.0), theiler=40).reason


def test_bad_arguments():
    with pytest.raises(InputError, match="rate 0"):
        recurrence(np.arange(50.0), rate=0.0)
    with pytest.raises(InputError, match="not numeric"):
        recurrence(["x"] * 50)
    with pytest.raises(InputError, match="rng is 'a'"):
        recurrence(np.arange(50.0), rng="a")
    with pytest.raises(NotEnoughData, match="the same"):
        recurrent_pairs(np.ones((30, 2)), 0.1)
    with pytest.raises(NotEnoughData, match="lower theiler"):
        recurrent_pairs(np.arange(6.0)[:, None], 0.1, theiler=9)


PYUNICORN = [0.1913470, 2.1185185, 4.0, 0.3740559, 0.2149331, 2.1034847]
