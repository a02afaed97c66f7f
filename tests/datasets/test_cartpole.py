"""PPO on the cart and pole against finite differences and slow oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from recorder import cartpole_plans, ppo
from recorder.cartpole import CartPoles
from recorder.monitor import Log
from recorder.networks import size
from recorder.perturb import STATE


def test_carts_move_as_the_equations_say() -> None:
    carts = CartPoles(3, np.random.default_rng(0))
    carts.state += np.array([0.1, -0.4, 0.05, 0.6])
    for action in ([0, 1, 0], [1, 1, 0], [0, 0, 1]):
        before = carts.state.copy()
        reached, _, _ = carts.step(np.array(action), force=0.7)
        for k, (x, v, angle, spin) in enumerate(before):
            push = 7.0 if action[k] else -7.0
            inner = (push + 0.05 * spin**2 * math.sin(angle)) / 1.1
            turn = (9.8 * math.sin(angle) - math.cos(angle) * inner) / (
                0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1)
            )
            slide = inner - 0.05 * turn * math.cos(angle) / 1.1
            expected = [x + 0.02 * v, v + 0.02 * slide, angle + 0.02 * spin, spin + 0.02 * turn]
            np.testing.assert_allclose(reached[k], expected, rtol=1e-12)


def test_episodes_end_by_falling_or_at_the_limit() -> None:
    carts = CartPoles(2, np.random.default_rng(0))
    carts.state[0] = [0, 0, 0.3, 0]
    carts.age[1] = 199
    _, fell, ended = carts.step(np.array([0, 1]))
    assert (fell.tolist(), ended.tolist()) == ([True, False], [False, True])
    assert carts.age.tolist() == [0, 0]
    assert np.abs(carts.state).max() <= 0.05


def test_gradient_of_the_loss_equals_finite_differences() -> None:
    rng, net = np.random.default_rng(1), ppo.ActorCritic(5)
    theta = rng.standard_normal(size(net.shapes))
    obs, action = rng.standard_normal((40, 4)), rng.integers(0, 2, 40)
    old, advantage, target = np.log(rng.uniform(0.2, 0.8, 40)), rng.standard_normal(40), rng.standard_normal(40)

    def loss(at: np.ndarray) -> float:
        return net.loss(at, obs, action, old, advantage, target, 0.03)[0]["loss"]

    gradient = net.loss(theta, obs, action, old, advantage, target, 0.03)[1]
    for k in range(len(theta)):
        up, down = theta.copy(), theta.copy()
        up[k] += 1e-6
        down[k] -= 1e-6
        assert gradient[k] == pytest.approx((loss(up) - loss(down)) / 2e-6, rel=1e-4, abs=1e-7)


def test_advantages_are_the_discounted_sums_of_td_errors() -> None:
    trainer = ppo.Trainer.start(ppo.ActorCritic(8), ppo.Settings(), seed=0)
    *_, advantage, target, td, value = trainer._collect(Log(), 0, "", 1.0, None, 1.0)
    shape = (ppo.HORIZON, ppo.CARTS)
    td, advantage = td.reshape(shape), advantage.reshape(shape)
    np.testing.assert_allclose(target, advantage.ravel() + value, rtol=1e-5)
    ends = np.isclose(advantage[:-1], td[:-1], atol=1e-7)  # nothing follows the end of an episode
    expected = td[:-1] + np.where(ends, 0, 0.99 * 0.95 * advantage[1:])
    np.testing.assert_allclose(advantage[:-1], expected, atol=1e-5)
    assert 0 < ends.sum() < ends.size / 2
    np.testing.assert_allclose(advantage[-1], td[-1])


def test_every_planned_kind_is_known() -> None:
    arms = cartpole_plans.SEVERE | cartpole_plans.MILDER | cartpole_plans.RAMPS
    assert {p.kind for p in arms.values() if p} <= ppo.KINDS.keys() | STATE.keys()


def test_recording_twice_gives_the_same_bits() -> None:
    from recorder.store import series_equal

    arms = {"control": None, "obs_noise_1": cartpole_plans.MILDER["obs_noise_1"]}
    settings = ppo.Settings(updates=6, fork=3)
    first, second = (ppo.record_seed(ppo.ActorCritic(16), settings, 2, arms) for _ in range(2))
    for arm in arms:
        assert series_equal(first[arm].arrays(), second[arm].arrays())
    control, perturbed = (first[arm].arrays() for arm in arms)
    assert series_equal(control, perturbed, before=3 * ppo.PER_UPDATE)
    assert not series_equal(control, perturbed)
