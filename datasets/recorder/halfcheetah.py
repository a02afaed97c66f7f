"""HalfCheetah-v5 (gymnasium, MuJoCo) as a state that can be copied to the bit, and the evaluation of a policy.

An episode is 1,000 steps and never ends earlier; no observation or reward is changed here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import mujoco
import numpy as np
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

OBSERVED, TORQUES, LIMIT = 17, 6, 1000
EPISODES = 3  # of one evaluation
FIRST_EPISODES = 10  # of the evaluation before training, which learning is measured against
RESOLUTION = 10.0  # floor of a twin's sd, in units of the return
_PHYSICS = mujoco.mjtState.mjSTATE_INTEGRATION  # positions, velocities, time, warm start of the solver


class Cheetah:
    """One environment with its own source of chance; ``copy.deepcopy`` and ``pickle`` keep its exact state."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._build(rng)
        self.reset()

    def _build(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.env = HalfCheetahEnv()
        self.env.np_random = rng

    def restart(self, rng: np.random.Generator) -> None:
        """As if made anew with another source of chance."""
        self.rng = self.env.np_random = rng
        self.reset()

    def reset(self) -> F32:
        self.obs = self.env.reset()[0].astype(np.float32)
        self.age, self.total = 0, 0.0
        return self.obs

    def step(self, action: F32) -> tuple[F32, float, bool]:
        """Apply torques, clipped to [-1, 1] (0 where not a number); what is reached, the reward, end of the episode."""
        torque = action.astype(np.float64).clip(-1, 1)
        torque[np.isnan(torque)] = 0
        obs, reward, *_ = self.env.step(torque)
        self.obs = obs.astype(np.float32)
        self.age += 1
        self.total += float(reward)
        return self.obs, float(reward), self.age >= LIMIT

    def __getstate__(self) -> dict[str, Any]:
        physics = np.empty(mujoco.mj_stateSize(self.env.model, _PHYSICS))
        mujoco.mj_getState(self.env.model, self.env.data, physics, _PHYSICS)
        return {"physics": physics, "rng": self.rng, "obs": self.obs, "age": self.age, "total": self.total}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._build(state["rng"])
        mujoco.mj_setState(self.env.model, self.env.data, state["physics"], _PHYSICS)
        self.obs, self.age, self.total = state["obs"].copy(), state["age"], state["total"]


def evaluate(policy: Callable[[F32], F32], seed: int, step: int) -> F64:
    """Returns of the episodes of a deterministic policy, from starts drawn anew for each evaluation.

    Parameters
    ----------
    policy : callable
        Observations ``(n, 17)`` to actions ``(n, 6)``.
    seed, step : int
        Of the run and the evaluation; ten episodes at step 0, else three.
    """
    rng = np.random.default_rng([seed, 2, step])
    cheetahs = _evaluators()[: EPISODES if step else FIRST_EPISODES]
    for cheetah in cheetahs:
        cheetah.restart(rng)
    for _ in range(LIMIT):
        actions = policy(np.stack([c.obs for c in cheetahs]))
        for cheetah, action in zip(cheetahs, actions, strict=True):
            cheetah.step(action)
    return np.array([c.total for c in cheetahs])


@cache
def _evaluators() -> list[Cheetah]:
    return [Cheetah(np.random.default_rng(0)) for _ in range(FIRST_EPISODES)]


def learned(returns: list[float], sds: list[float]) -> bool:
    """Whether the mean of the last three evaluations is more than 5 evaluation sd above the first.

    The sd is the larger of that of the episodes of the first evaluation and the mean one of the last three.
    """
    if len(returns) < 4:
        return False
    sd = max(sds[0], float(np.mean(sds[-3:])), RESOLUTION)
    return float(np.mean(returns[-3:])) - returns[0] > 5 * sd
