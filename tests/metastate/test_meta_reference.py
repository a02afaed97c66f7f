"""References: level, siblings, trend; frozen scale; the forecast against a weighted least-squares oracle."""

from __future__ import annotations

import numpy as np
import pytest
from metastate_systems import ar, punch

from trajscope.errors import InputError, NotEnoughData
from trajscope.metastate import PCAState, Reference, baseline_rows
from trajscope.metastate._runs import RunData, as_runs
from trajscope.metastate.reference import local_linear_forecast


def run(x: np.ndarray, steps: np.ndarray | None = None) -> RunData:
    return RunData(x, np.arange(len(x)) if steps is None else steps, ())


class Above:
    """Outside where the first channel is more than 3 above its reference."""

    def outside(self, x: np.ndarray) -> np.ndarray:
        return np.nan_to_num(x[:, 0]) > 3

    def advance(self, x: np.ndarray) -> None:
        pass


def by_weighted_lines(y: np.ndarray, window: int, watch: Above | None) -> tuple[np.ndarray, np.ndarray]:
    """Row by row: numpy's weighted polynomial fit to what was learnt so far."""
    n, p = y.shape
    learnt: list[list[int]] = [[] for _ in range(p)]
    out, frozen, held = np.full((n, p), np.nan), np.zeros(n, bool), None
    decay = 1 - 2 / (window + 1)
    for t in range(n):
        now = np.full(p, np.nan)
        for c in range(p):
            rows = np.array(learnt[c])
            if rows.size == 0:
                continue
            weight = decay ** (t - rows)
            if rows.size < 5:
                now[c] = np.average(y[rows, c], weights=weight)
            else:
                now[c] = np.polyval(np.polyfit(rows - t, y[rows, c], 1, w=np.sqrt(weight)), 0)
        out[t] = now if held is None else held
        if watch is not None and watch.outside((y[t] - out[t])[None])[0]:
            frozen[t] = True
            held = out[t].copy()
            for c in range(p):
                if np.isnan(held[c]) and not np.isnan(y[t, c]):
                    held[c] = y[t, c]
                    learnt[c].append(t)
        else:
            held = None
            for c in range(p):
                if not np.isnan(y[t, c]):
                    learnt[c].append(t)
    return out, frozen


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_forecast_is_a_discounted_line_of_what_was_learnt(watched: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = np.linspace(5, 0, 150)[:, None] + punch(rng, ar(rng, 150, 0.5, 3), 0.2)
    y[60:75, 0] += 10  # an excursion
    y[:66, 2] = np.nan  # first seen while it lasts
    y[100, 0] += 8
    watch = Above() if watched else None
    ours, frozen = local_linear_forecast(y, 20, watch)
    expected, expected_frozen = by_weighted_lines(y, 20, watch)
    np.testing.assert_array_equal(frozen, expected_frozen)
    np.testing.assert_allclose(ours, expected, atol=1e-8)
    assert watched or not frozen.any()
    assert not watched or frozen[60:75].sum() >= 5


def test_the_forecast_is_exact_on_a_line_however_long() -> None:
    t = np.arange(20_000.0)
    y = 3 - 0.01 * t[:, None]
    out, _ = local_linear_forecast(y, 100)
    np.testing.assert_allclose(out[5:], y[5:], atol=1e-6)


def test_a_departure_that_stays_keeps_the_reference_frozen() -> None:
    rng = np.random.default_rng(0)
    x = ar(rng, 1200, 0.5, 1) @ np.ones((1, 6)) + rng.normal(size=(1200, 6))
    x[600:] += 15 * np.array([1, 1, 1, 1, 1, 1])
    model = PCAState(1, reference="trend").fit(x[:400])
    far = model.deviation(x)["D"]
    assert (far[601:] > model.bounds_["D"]).mean() > 0.95
    z = model.transform(x, causal=True)  # the same states that D is made of
    np.testing.assert_allclose(np.abs((z[:, 0] - model.mu_[0]) / np.sqrt(model.state_covariance_[0, 0])), far)
    calm = x.copy()
    calm[600:] -= 15
    assert (model.deviation(calm)["D"][400:] > model.bounds_["D"]).mean() < 0.12


def test_a_healthy_trend_does_not_leave_the_bound_but_would_with_a_level() -> None:
    rng = np.random.default_rng(1)
    t = np.arange(2000)
    x = 20 * np.exp(-t / 500)[:, None] * np.ones(6) + ar(rng, 2000, 0.5, 1) + rng.normal(size=(2000, 6))
    base = baseline_rows(2000)
    share = {}
    for kind in ("trend", "level"):
        model = PCAState(1, reference=kind).fit(x[base])
        share[kind] = (model.deviation(x)["D"][base.stop :] > model.bounds_["D"]).mean()
    assert share["trend"] < 0.12
    assert share["level"] > 0.9


def test_a_slow_drift_is_seen_because_the_scale_is_frozen() -> None:
    rng = np.random.default_rng(2)
    runs = [np.linspace(0, 5, 600)[:, None] + ar(rng, 600, 0.5, 1) + rng.normal(size=(600, 5)) for _ in range(8)]
    model = PCAState(1, reference="siblings").fit(runs[:7])
    calm = runs[7]
    drifted = calm + np.clip((np.arange(600) - 200) / 400, 0, 1)[:, None] * 8
    assert (model.deviation(calm)["D"] > model.bounds_["D"]).mean() < 0.15
    assert (model.deviation(drifted)["D"][450:] > model.bounds_["D"]).mean() > 0.92


def test_siblings_are_met_at_the_same_step() -> None:
    rng = np.random.default_rng(3)
    runs = [run(np.arange(50.0)[:, None] + i, np.arange(50) * 10) for i in range(5)]
    reference = Reference("siblings", scale=None).fit(runs)
    later = run(np.zeros((3, 1)), np.array([100, 104, 9999]))
    np.testing.assert_allclose(
        reference.residual(later)[:, 0], [-12, -12, -51]
    )  # median run is i = 2; held after its end
    before = reference.residual(run(np.zeros((1, 1)), np.array([-5])))
    assert np.isnan(before).all()
    with pytest.raises(NotEnoughData, match="at least 5 baseline runs"):
        Reference("siblings").fit(runs[:4])
    assert Reference("auto").fit(runs).kind == "siblings"
    noisy = [run(rng.normal(size=(60, 2)))]
    assert Reference("auto").fit(noisy).kind == "trend"


def test_scales_and_their_floors() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(4001, 5)) * [1, 5, 1e-11, 1, 1] + [0, 0, 100, 0, 3]
    x[:, 3] = 0.0
    x[::40, 3] = 7.0  # at rest most of the time: no MAD, so its standard deviation
    x[:, 4] = 3.0
    reference = Reference("level").fit([run(x)])
    np.testing.assert_allclose(reference.sd[:2], [1, 5], rtol=0.06)
    assert reference.sd[2] == 1.0 and not reference.used[2]  # noqa: PT018 - moves by less than rounding of its level
    assert reference.sd[3] == pytest.approx(x[:, 3].std(), rel=0.05)
    np.testing.assert_array_equal(reference.used, [True, True, False, True, False])
    x[:, 2] = 100 + 0.001 * rng.normal(size=4001)
    assert Reference("level").fit([run(x)]).sd[2] == pytest.approx(0.1)  # a thousandth of its level
    np.testing.assert_allclose(Reference("level", "std").fit([run(x)]).sd[:2], x[:, :2].std(axis=0))
    np.testing.assert_array_equal(Reference("level", None).fit([run(x)]).sd, 1.0)


def test_a_fitted_reference_can_be_handed_in() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 4))
    own = Reference("level", "std").fit(as_runs(x))
    a, b = PCAState(2, reference=own).fit(x), PCAState(2, scale="std").fit(x)
    np.testing.assert_allclose(a.deviation(x), b.deviation(x))
    long = rng.normal(size=(12_000, 4)) * [1, 2, 3, 4]
    own_long = Reference("level", "std").fit(as_runs(long))
    a, b = PCAState(2, reference=own_long).fit(long), PCAState(2, scale="std").fit(long)
    np.testing.assert_allclose(a.eigenvalues_, b.eigenvalues_, rtol=1e-9)
    with pytest.raises(InputError, match="not fitted"):
        PCAState(2, reference=Reference()).fit(x)
    with pytest.raises(InputError, match="fitted on 4 channels"):
        PCAState(2, reference=own).fit(x[:, :3])


def test_arguments() -> None:
    with pytest.raises(InputError, match="Did you mean 'siblings'"):
        Reference("sibling")
    with pytest.raises(InputError, match="at least 3 rows"):
        Reference("trend", window=2)
    with pytest.raises(InputError, match="0 <= start < stop <= 1"):
        baseline_rows(100, 0.5, 0.2)
    assert baseline_rows(7) == slice(0, 2)
