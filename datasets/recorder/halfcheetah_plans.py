"""What is recorded on HalfCheetah-v5, most wanted first. Needs torch, gymnasium and mujoco only to run it.

The trunk of an algorithm and seed is left at up to three moments: once it has learned (purpose ``arms``), and at
step 2,000 read as an environment step and as an update (purpose ``step2000``: the condition of the source paper's
second figure). The control goes on from the first; it is the twin of all, over the steps that they have in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from recorder import halfcheetah_offpolicy as offpolicy
from recorder import halfcheetah_ppo as ppo
from recorder.arms import CONTROL, event_config
from recorder.halfcheetah import RESOLUTION
from recorder.perturb import DATA, OPTIMIZATION, PARAMETRIC, SIGNAL, Perturbation

SEEDS = range(5)
ALGORITHMS: dict[str, Any] = {"ppo": ppo.PPO, "sac": offpolicy.SAC, "td3": offpolicy.TD3}
LEARNED, STEP, UPDATE = "learned", "step", "update"  # moments at which the trunk is left


@dataclass(frozen=True)
class Pace:
    """Lengths in environment steps; ``unit`` is the number of them in a duration of 1."""

    unit: int
    tail: int
    least: int  # the trunk is not left as having learned before this
    most: int
    updates: int  # environment steps at which the 2,000th gradient step comes
    brief: int  # duration of a learning-rate spike, in units
    long: int  # of the other events

    def moments(self) -> dict[str, int]:
        return {STEP: 2000, UPDATE: self.updates}


# 2,000 gradient steps are ten updates of PPO; SAC and TD3 begin to learn after 1,000 random steps
_OFF = Pace(1, 10_000, 5_000, 60_000, offpolicy.RANDOM_STEPS + 2000, 500, 2_000)
PACE = {"ppo": Pace(ppo.UNIT, 30_000, 20_000, 300_000, 20_000, 2, 5), "sac": _OFF, "td3": _OFF}
EVAL_EVERY = {"ppo": ppo.UNIT, "sac": offpolicy.EVAL_EVERY, "td3": offpolicy.EVAL_EVERY}

SPIKES = {"lr_x10": (1, 10.0), "lr_x30": (2, 30.0), "lr_x100": (3, 100.0)}
EARLY = {"lr_x100_at_step_2000": STEP, "lr_x100_at_update_2000": UPDATE}
OTHERS = ("obs_noise_1", "param_noise_1", "reward_sign")


def perturbation(algorithm: str, arm: str) -> Perturbation | None:
    """The event of an arm; durations differ by algorithm."""
    pace = PACE[algorithm]
    if arm == CONTROL:
        return None
    if arm in SPIKES or arm in EARLY:
        severity, level = SPIKES[arm if arm in SPIKES else "lr_x100"]
        return Perturbation(OPTIMIZATION, "lr_spike", severity, level, pace.brief)
    return {
        "obs_noise_1": Perturbation(DATA, "obs_noise", 1, 1.0, pace.long),
        "param_noise_1": Perturbation(PARAMETRIC, "param_noise", 1, 1.0, 1),
        "reward_sign": Perturbation(SIGNAL, "reward_scale", 1, -1.0, pace.long),
    }[arm]


def moment(arm: str) -> str:
    """When an arm leaves the trunk."""
    return EARLY.get(arm, LEARNED)


def jobs() -> Iterator[tuple[str, int, str]]:
    """(algorithm, seed, arm), most wanted first."""
    for seed in SEEDS:
        for arms in ((CONTROL, *SPIKES), EARLY, OTHERS):
            for algorithm in ALGORITHMS:
                for arm in arms:
                    yield algorithm, seed, arm


def run_id(algorithm: str, width: int, seed: int, arm: str) -> str:
    return f"halfcheetah-mlp{width}-{algorithm}-s{seed:03d}-{arm}"


def config(algorithm: str, trainer: Any, seed: int, arm: str, start: int, has_learned: bool) -> dict[str, Any]:
    """Steps count environment steps, as in the log; ``start`` is where the arm leaves the trunk."""
    pace = PACE[algorithm]
    twin = run_id(algorithm, trainer.width, seed, CONTROL)
    return {
        "domain": "halfcheetah",
        "purpose": "arms" if moment(arm) == LEARNED else "step2000",
        "model": trainer.name,
        "width": trainer.width,
        "algorithm": algorithm,
        "seed": seed,
        "lr": trainer.lr,
        "steps": start + pace.tail,
        "trunk_learned": has_learned,
        "eval_every": EVAL_EVERY[algorithm],
        "environment": "HalfCheetah-v5",
        "n_parameters": len(trainer.theta),
        "resolution": RESOLUTION,
        **event_config(arm, perturbation(algorithm, arm), start // pace.unit, twin, pace.unit),
    }
