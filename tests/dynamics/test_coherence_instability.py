"""x_grad identities against true cosines of simulated optimizers and recorded runs; x_inst against the obvious loop."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from trajscope.dynamics.coherence import (
    adam_coherence,
    momentum_cosine,
    polarised_cosine,
    worker_cosine,
    x_grad,
)
from trajscope.dynamics.instability import instability_array, loss_ratio, x_inst
from trajscope.errors import InputError


def gradients(n: int = 300, d: int = 40, drift: float = 0.7, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)) + drift


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def test_polarisation_is_exact():
    g = gradients()
    got = polarised_cosine(np.linalg.norm(g, axis=1), np.r_[np.nan, np.linalg.norm(np.diff(g, axis=0), axis=1)])
    np.testing.assert_allclose(got[1:], [cosine(a, b) for a, b in zip(g[1:], g[:-1], strict=True)], atol=1e-12)


def test_momentum_identity_is_exact():
    g = gradients()
    lr = np.linspace(0.1, 0.01, g.shape[0])
    m = np.zeros(g.shape[1])
    u, truth = [], [np.nan]
    for t, row in enumerate(g):
        if t:
            truth.append(cosine(m, row))
        m = 0.9 * m + row
        u.append(lr[t] * np.linalg.norm(m))
    got = momentum_cosine(u, lr, np.linalg.norm(g, axis=1), 0.9)
    np.testing.assert_allclose(got[1:], truth[1:], atol=1e-9)


def test_worker_identity_is_the_weighted_pairwise_cosine():
    g = gradients(8)
    norms = np.linalg.norm(g, axis=1)
    pairs = [(i, j) for i in range(8) for j in range(i)]
    truth = sum(g[i] @ g[j] for i, j in pairs) / sum(norms[i] * norms[j] for i, j in pairs)
    got = worker_cosine(8, [np.linalg.norm(g.mean(0))], [norms.sum()], [(norms**2).sum()])
    assert got[0] == pytest.approx(truth, abs=1e-12)


@pytest.mark.parametrize("drift", [0.0, 0.3, 1.0])
def test_adam_identity_is_close_where_its_assumptions_hold(drift):
    g = gradients(1500, 100, drift)
    m = v = np.zeros(100)
    u = []
    for t, row in enumerate(g, 1):
        m, v = 0.9 * m + 0.1 * row, 0.999 * v + 0.001 * row**2
        u.append(np.linalg.norm(m / (1 - 0.9**t) / np.sqrt(v / (1 - 0.999**t))))
    x = adam_coherence(u, 1.0, np.linalg.norm(g, axis=1), 100)
    assert np.isnan(x[0])
    assert np.mean(x[200:]) == pytest.approx(drift**2 / (1 + drift**2), abs=0.03)


def test_source_priority_and_grades():
    n = 200
    rng = np.random.default_rng(0)
    table = {"grad_norm": rng.uniform(1, 2, n), "update_norm": rng.uniform(0.1, 0.2, n), "lr": np.full(n, 0.1)}
    assert x_grad({"grad_norm": table["grad_norm"]}).status == "unavailable"
    assert "norms alone" in x_grad({"grad_norm": table["grad_norm"]}).reason
    assert x_grad(table, optimizer="sgd").source == "momentum"
    assert x_grad(table, optimizer="adamw").status == "degraded"
    assert "ranks only" in x_grad(table, optimizer="adam").reason
    assert x_grad(table, optimizer="adam", n_parameters=10).status == "ok"
    assert x_grad(table).status == "unavailable"
    assert x_grad(table | {"loss": np.linspace(3, 1, n)}).source == "descent"
    assert x_grad(table | {"grad_cos": rng.uniform(-1, 1, n)}, optimizer="sgd").source == "logged"
    assert x_grad(table, source="logged").status == "unavailable"


def run(steps: np.ndarray, config: dict, **channels: np.ndarray) -> SimpleNamespace:
    return SimpleNamespace(
        config=config,
        channels={
            k: SimpleNamespace(name=k, steps=steps, values=v, role=k, role_confidence=1.0) for k, v in channels.items()
        },
    )


def test_gaps_and_weight_decay_degrade_or_forbid():
    n = 100
    rng = np.random.default_rng(0)
    data = {"grad_norm": rng.uniform(1, 2, n), "update_norm": rng.uniform(0.1, 0.2, n), "lr": np.full(n, 0.1)}
    sparse = x_grad(run(np.arange(n) * 10, {"optimizer": "sgd"}, **data))
    assert (sparse.status, np.isnan(sparse.values).all()) == ("degraded", True)
    assert "every step" in sparse.reason
    assert x_grad(run(np.arange(n), {"optimizer": "adamw", "weight_decay": 0.1}, **data)).status == "unavailable"
    assert "clipped" in x_grad(run(np.arange(n), {"optimizer": "sgd", "clip": 0.5}, **data)).reason
    assert "coupled" in x_grad(run(np.arange(n), {"optimizer": "sgd", "weight_decay": 0.1}, **data)).reason
    assert x_grad(run(np.arange(n), {"optimizer": "sgd", "nesterov": True}, **data)).status == "unavailable"


def test_loss_and_gain_of_coherence_are_dated():
    rng = np.random.default_rng(0)
    c = 0.3 + rng.normal(0, 0.02, 400)
    down, up = c.copy(), c.copy()
    down[250:] -= 0.3
    up[300:] += 0.3
    assert (x_grad({"grad_cos": down}).drop, x_grad({"grad_cos": down}).rise) == (250, None)
    assert (x_grad({"grad_cos": up}).drop, x_grad({"grad_cos": up}).rise) == (None, 300)
    assert "lost at step 250" in x_grad({"grad_cos": down}).summary()


def test_identities_on_recorded_runs():
    trajscope = pytest.importorskip("trajscope")
    try:
        data = trajscope.load_dataset("digits")
    except (AttributeError, trajscope.errors.TrajscopeError):
        pytest.skip("recorded data absent")
    wanted = {"sgd_momentum": ("momentum", "train/momentum_cos", 1e-5), "adam": ("adam", "train/grad_cos_last10", 0.1)}
    for algorithm, (source, name, bound) in wanted.items():
        labels = data.labels
        rows = labels[(labels.algorithm == algorithm) & (labels.purpose == "arms") & (labels.arm == "control")]
        recorded = data.run(rows.run.iloc[0])
        got = x_grad(recorded, source=source)
        truth = recorded.channels[name]
        at = np.intersect1d(got.steps, truth.steps)
        mine = got.values[np.searchsorted(got.steps, at)]
        error = np.abs(mine - truth.values[np.searchsorted(truth.steps, at)])
        assert got.status == "ok"
        assert np.nanmedian(error) < bound


def test_x_inst_against_the_obvious_loop():
    y = np.random.default_rng(0).normal(5, 1, 300)
    y[250] = np.nan
    z, _ = instability_array(y, window=50, min_count=20)
    for t in (20, 60, 200, 260):
        past = y[max(0, t - 50) : t]
        past = past[np.isfinite(past)]
        m = np.median(past)
        assert z[t] == pytest.approx((y[t] - m) / (1.4826 * np.median(np.abs(past - m))))
    assert np.isnan(z[19])
    assert z[250] == 50


def test_curvature_has_unit_scale_under_autocorrelation():
    from scipy.signal import lfilter

    rng = np.random.default_rng(0)
    for phi in (0.0, 0.9):
        y = lfilter([1], [1, -phi], rng.normal(size=4000))
        _, k = instability_array(y, window=500, floor=1e-9)
        assert np.nanstd(k[600:]) == pytest.approx(1.0, abs=0.25)


def test_x_inst_finds_the_event_and_says_what_is_missing():
    rng = np.random.default_rng(0)
    steps = np.arange(400)
    loss, norm = 3 + rng.normal(0, 0.05, 400), np.exp(rng.normal(0, 0.1, 400))
    norm[300] *= 20
    both = x_inst(run(steps, {}, loss=loss, grad_norm=norm))
    assert (both.status, both.source) == ("ok", "loss+grad_norm")
    assert both.steps[np.nanargmax(both.values)] == 300
    assert both.values[300] <= np.log1p(50)
    alone = x_inst(run(steps, {}, loss=loss))
    assert alone.status == "degraded"
    assert "grad_norm is not logged" in alone.reason
    none = x_inst(run(steps, {}, lr=loss))
    assert none.status == "unavailable"
    assert "unavailable" in none.summary()
    assert len(both.to_frame()) == 400


def test_loss_ratio_and_bad_arguments():
    np.testing.assert_allclose(loss_ratio([4.0, 2.0, np.nan, 3.0])[[1, 3]], [0.5, 1.5])
    with pytest.raises(InputError, match="min_count"):
        x_inst(np.zeros(10), min_count=1)
    with pytest.raises(InputError, match="one step a row"):
        x_inst(np.zeros(10), steps=[1, 2])
    with pytest.raises(InputError, match="source is 'sgd'"):
        x_grad({}, source="sgd")
    with pytest.raises(InputError, match="momentum is 1"):
        momentum_cosine([1.0], 1.0, [1.0], 1.0)
    with pytest.raises(InputError, match="do not match"):
        polarised_cosine([1.0, 2.0], [1.0, 2.0, 3.0])


def test_a_band_wider_than_a_cosine_is_judged_on_the_mean_of_rows():
    """Six robust sd of single rows at 0.3 reach beyond -1 and 1: nothing could ever leave that band."""
    rng = np.random.default_rng(0)
    quiet = np.clip(0.1 + rng.normal(0, 0.3, 800), -1, 1)
    lost = quiet.copy()
    lost[500:] = np.clip(-0.6 + rng.normal(0, 0.2, 300), -1, 1)
    raw = x_grad({"grad_cos": lost}, smooth=1)
    assert (raw.drop, raw.rise, raw.smoothed) == (None, None, 1)
    auto = x_grad({"grad_cos": lost})
    assert auto.smoothed == 20
    assert 500 <= auto.drop < 530
    np.testing.assert_array_equal(auto.values, lost)
    assert "mean of 20 rows" in auto.summary()
    assert x_grad({"grad_cos": quiet}).drop is None
    with pytest.raises(InputError, match="smooth 0"):
        x_grad({"grad_cos": quiet}, smooth=0)


def test_smoothed_departures_are_causal():
    rng = np.random.default_rng(1)
    c = np.clip(0.1 + rng.normal(0, 0.3, 800), -1, 1)
    c[500:560] = -0.9
    c[700:] = 1.0
    whole = x_grad({"grad_cos": c}).drop
    # later rows change neither the date nor, the run being as long, the baseline
    tail = c.copy()
    tail[int(whole) + 1 :] = rng.uniform(-1, 1, 800 - int(whole) - 1)
    assert x_grad({"grad_cos": tail}).drop == whole


def test_rounding_of_the_inputs_leaves_what_the_docstring_says():
    g = gradients(400, 60, 0.3)
    m, u, truth = np.zeros(60), [], []
    for row in g:
        truth.append(cosine(m, row) if m.any() else np.nan)
        m = 0.9 * m + row
        u.append(0.05 * np.linalg.norm(m))
    norms = np.linalg.norm(g, axis=1)
    single = [np.asarray(v, dtype=np.float32) for v in (u, norms)]
    error = np.nanmedian(np.abs(momentum_cosine(single[0], 0.05, single[1], 0.9) - truth))
    assert 1e-9 < error < 1e-5
    digits = [np.array([float(f"{x:.4g}") for x in v]) for v in (u, norms)]
    coarse = np.nanmedian(np.abs(momentum_cosine(digits[0], 0.05, digits[1], 0.9) - truth))
    assert 1e-5 < coarse < 1e-2


def test_skipped_steps_do_not_poison_the_averages_of_adam():
    g = gradients(400, 50, 1.0)
    m = v = np.zeros(50)
    u = []
    for t, row in enumerate(g, 1):
        m, v = 0.9 * m + 0.1 * row, 0.999 * v + 0.001 * row**2
        u.append(np.linalg.norm(m / (1 - 0.9**t) / np.sqrt(v / (1 - 0.999**t))))
    norms = np.linalg.norm(g, axis=1)
    whole = adam_coherence(u, 1.0, norms, 50)
    skipped = np.insert(norms, 100, np.inf)
    got = adam_coherence(np.insert(u, 100, 0.0), 1.0, skipped, 50)
    assert np.isnan(got[100])
    np.testing.assert_allclose(np.delete(got, 100), whole, atol=1e-12)


def test_what_cannot_be_judged_is_said():
    few = x_grad({"grad_cos": np.linspace(0, 1, 11)})
    assert np.isnan(few.baseline)
    assert "not judged" in few.summary()
    assert "too few" in x_inst(np.arange(5.0)).summary()
    with pytest.raises(InputError, match="grad_cos is not numeric"):
        x_grad({"grad_cos": ["a", "b"]})
    with pytest.raises(InputError, match="one value a step"):
        x_grad({"grad_cos": np.zeros((5, 2))})
    with pytest.raises(InputError, match="complex"):
        x_inst(np.zeros(50) + 1j)
    huge = np.random.default_rng(0).normal(size=300) * 1e300
    assert np.isfinite(x_inst(huge).values[50:]).all()
