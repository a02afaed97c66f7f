"""The recorder's arithmetic against closed forms and slow oracles."""

from __future__ import annotations

import numpy as np
import pytest
from recorder import networks, optimizers, perturb
from recorder.monitor import GradientMemory, cosine, pairwise_cosine
from recorder.perturb import Event
from recorder.trainer import Digits, Settings, Trainer
from recorder.truth import against_twin, first_difference, trend

NETWORKS = [networks.MLP(12), networks.CNN(8)]


@pytest.mark.parametrize("net", NETWORKS, ids=lambda n: n.name)
def test_gradients_equal_finite_differences(net) -> None:
    rng = np.random.default_rng(0)
    theta = net.init(rng).astype(np.float64) + 0.1 * rng.standard_normal(networks.size(net.shapes))
    x, y = rng.random((2, 3, 64)), rng.integers(0, 10, (2, 3))
    _, grads = net.micro_gradients(theta, x, y)
    for k in rng.choice(len(theta), 60, replace=False):
        up, down = theta.copy(), theta.copy()
        up[k] += 1e-6
        down[k] -= 1e-6
        slope = (net.micro_gradients(up, x, y)[0] - net.micro_gradients(down, x, y)[0]) / 2e-6
        np.testing.assert_allclose(grads[:, k], slope, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("net", NETWORKS, ids=lambda n: n.name)
def test_mean_of_micro_gradients_is_the_gradient_of_the_batch(net) -> None:
    rng = np.random.default_rng(1)
    theta, x, y = net.init(rng), rng.random((16, 64), np.float32), rng.integers(0, 10, 16)
    loss, grads = net.micro_gradients(theta, x.reshape(4, 4, 64), y.reshape(4, 4))
    whole_loss, whole = net.micro_gradients(theta, x[None], y[None])
    np.testing.assert_allclose(loss.mean(), whole_loss[0], rtol=1e-5)
    np.testing.assert_allclose(grads.mean(axis=0), whole[0], atol=1e-6)
    assert networks.evaluate(net, theta, x, y)[0] == pytest.approx(float(whole_loss[0]), rel=1e-5)


def test_pairwise_cosine_of_the_last_ten_gradients() -> None:
    rng = np.random.default_rng(2)
    gradients = rng.standard_normal((25, 7)) * rng.uniform(0.1, 3, (25, 1)) + 0.5
    memory = GradientMemory()
    for t, g in enumerate(gradients):
        successive, last10 = memory.push(g)
        if t == 0:
            assert np.isnan(successive)
            assert np.isnan(last10)
            continue
        kept = gradients[max(0, t - 9) : t + 1]
        pairs = [(a, b) for i, a in enumerate(kept) for b in kept[:i]]
        weights = [np.linalg.norm(a) * np.linalg.norm(b) for a, b in pairs]
        slow = sum(a @ b for a, b in pairs) / sum(weights)
        assert last10 == pytest.approx(slow, rel=1e-9)
        a, b = gradients[t - 1], g
        assert successive == pytest.approx(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)), rel=1e-9)


def test_cosines_of_zero_vectors_are_zero() -> None:
    assert cosine(0.0, 0.0, 1.0) == 0.0
    assert pairwise_cosine(0.0, 0.0, np.zeros(3)) == 0.0


@pytest.mark.parametrize("name", sorted(optimizers.OPTIMIZERS))
def test_optimizers_against_scalar_loops(name: str) -> None:
    rng = np.random.default_rng(3)
    gradients = rng.standard_normal((30, 4)).astype(np.float32)
    opt = optimizers.OPTIMIZERS[name](d=4)
    total = np.sum([opt.step(g, 0.01).astype(np.float64) for g in gradients], axis=0)
    for k in range(4):
        position, m, v = 0.0, 0.0, 0.0
        for t, g in enumerate(gradients[:, k].astype(float), 1):
            if name == "sgd_momentum":
                m = 0.9 * m + g
                position -= 0.01 * m
            elif name == "adam":
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                position -= 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
            else:
                v = 0.99 * v + 0.01 * g * g
                m = 0.9 * m + g / (v**0.5 + 1e-8)
                position -= 0.01 * m
        assert total[k] == pytest.approx(position, rel=1e-4)


def test_pulse_and_ramp() -> None:
    pulse = perturb.Perturbation(perturb.OPTIMIZATION, "lr_spike", 1, 30.0, 10)
    assert [pulse.strength(o) for o in (-1, 0, 9, 10)] == [None, 30.0, 30.0, None]
    ramp = perturb.Perturbation(perturb.OPTIMIZATION, "lr_spike", 1, 100.0, 10, ramp=True)
    assert [ramp.strength(o) for o in (-1, 4, 9, 50)] == [None, pytest.approx(10.0), 100.0, 100.0]
    noise = perturb.Perturbation(perturb.SIGNAL, "grad_noise", 1, 8.0, 4, ramp=True)
    assert [noise.strength(o) for o in (0, 1, 3, 9)] == [2.0, 4.0, 8.0, 8.0]


@pytest.fixture
def trainer() -> Trainer:
    return Trainer.start(networks.MLP(16), "adam", Settings(lr=0.003), seed=0)


def test_every_kind_of_perturbation_stands_in_one_table() -> None:
    kinds = [*perturb.STATE, *perturb.BATCH, *perturb.GRADIENT, *perturb.SETTING]
    assert len(kinds) == len(set(kinds))


def test_state_perturbations_do_what_they_say(trainer: Trainer) -> None:
    rng = np.random.default_rng(1)  # not the seed of the trainer: a layer drawn anew would be the old one
    before = trainer.theta.copy()
    perturb.param_scale(trainer, 3.0, rng)
    np.testing.assert_allclose(trainer.theta, 3 * before)
    trainer.theta = before.copy()
    perturb.layer_reinit(trainer, 1, rng)
    views = trainer.parameter_views()
    np.testing.assert_array_equal(views["w1"], trainer.parameter_views(before)["w1"])
    assert not np.array_equal(views["w2"], trainer.parameter_views(before)["w2"])
    trainer.theta = before.copy()
    perturb.param_noise(trainer, 0.5, rng)
    w = trainer.parameter_views(before)["w1"]
    moved = trainer.parameter_views()["w1"] - w
    assert np.std(moved) == pytest.approx(0.5 * np.sqrt(np.mean(w**2)), rel=0.1)
    trainer.optimizer.step(np.ones_like(before), 0.1)
    perturb.state_loss(trainer, 1, rng)
    assert not trainer.optimizer.buffers["m"].any()
    assert trainer.optimizer.buffers["v"].any()
    perturb.state_loss(trainer, 3, rng)
    assert trainer.optimizer.count == 0


def test_batch_and_gradient_perturbations_do_what_they_say() -> None:
    rng, data = np.random.default_rng(0), Digits.load()
    x, y = data.x[:64], data.y[:64]
    np.testing.assert_array_equal(
        perturb.shift(x, y, 1, rng, [])[0].reshape(-1, 8, 8)[:, :, 1:], x.reshape(-1, 8, 8)[:, :, :-1]
    )
    assert sorted(perturb.label_shuffle(x, y, 1, rng, [])[1]) == sorted(y)
    assert np.mean(perturb.label_noise(x, y, 1.0, rng, [])[1] == y) < 0.4
    np.testing.assert_array_equal(perturb.label_noise(x, y, 0.0, rng, [])[1], y)
    held: list = []
    perturb.repeat_batch(x, y, 1, rng, held)
    assert perturb.repeat_batch(data.x[64:128], data.y[64:128], 1, rng, held)[1] is y
    g = np.ones(10_000, np.float32)
    noise = perturb.grad_noise(g, 3.0, rng) - g
    assert np.linalg.norm(noise) == pytest.approx(3 * np.linalg.norm(g), rel=0.05)


def test_event_ends_and_the_batches_go_on_as_in_the_twin() -> None:
    from recorder.monitor import Log

    data = Digits.load()
    repeat = perturb.Perturbation(perturb.DATA, "repeat_batch", 1, 1.0, 5)
    plain, perturbed = (Trainer.start(networks.MLP(8), "sgd_momentum", Settings(lr=0.0), seed=1) for _ in range(2))
    a, b = Log(), Log()
    plain.advance(data, a, 20)
    perturbed.advance(data, b, 20, Event(repeat, 8, np.random.default_rng(0)))
    same = a.arrays()["train/loss"][1] == b.arrays()["train/loss"][1]
    assert same.tolist() == [True] * 9 + [False] * 4 + [True] * 7  # the first repeated batch is the twin's own


STEPS = np.arange(0, 500, 5)


def _flat(level: float = 0.9, sd: float = 0.01) -> np.ndarray:
    return level + sd * np.random.default_rng(5).standard_normal(100)


def test_truth_from_the_twin() -> None:
    twin = _flat()
    run = twin.copy()
    assert not against_twin(STEPS, run, twin, 250, 0.001).fell
    run[60:] -= 0.5
    harmed = against_twin(STEPS, run, twin, 250, 0.001)
    assert (harmed.harmed, harmed.recovered, harmed.first_departure, harmed.fell_for) == (True, False, 300, 40)
    slow = np.polyval(np.polyfit(STEPS[50:], twin[50:], 2), STEPS[50:])
    np.testing.assert_allclose(trend(STEPS[50:], twin[50:]), slow, rtol=1e-9)
    assert harmed.end_deficit == pytest.approx(0.5 / np.std(twin[50:] - slow))
    run = twin.copy()
    run[60:70] -= 0.5
    dip = against_twin(STEPS, run, twin, 250, 0.001)
    assert (dip.harmed, dip.recovered, dip.first_departure, dip.fell_for) == (False, True, 300, 10)
    run[-40:] -= 3.5 * np.std(twin[50:])
    between = against_twin(STEPS, run, twin, 250, 0.001)
    assert (between.harmed, between.recovered, between.fell) == (False, False, True)
    run = twin.copy()
    run[80:] = np.nan
    lost = against_twin(STEPS, run, twin, 250, 0.001)
    assert (lost.harmed, lost.first_departure) == (True, 400)


def test_truth_floors_the_scale_of_a_constant_twin() -> None:
    twin = np.full(100, 0.9)
    run = twin.copy()
    run[60:] -= 0.004
    assert not against_twin(STEPS, run, twin, 250, 1 / 450).harmed


def test_first_difference_is_by_bits() -> None:
    steps = np.arange(4)
    a = {"x": (steps, np.array([0.0, np.nan, 1.0, 2.0], np.float32))}
    assert first_difference(a, {"x": (steps, a["x"][1].copy())}) is None
    changed = a["x"][1].copy()
    changed[2] = np.nextafter(changed[2], np.float32(2))
    assert first_difference(a, {"x": (steps, changed)}) == 2
    more = {"x": (np.arange(6), np.r_[a["x"][1], np.ones(2, np.float32)])}
    assert first_difference(a, more) == first_difference(more, a) == 4
    late = {"x": (np.array([0, 1, 3, 4]), a["x"][1])}
    assert first_difference(a, late) == 2
