"""Recording plans of the light reinforcement-learning domain: PPO on the cart and pole. Durations count updates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from recorder.arms import CONTROL, Arms, event_config
from recorder.forking import seeds
from recorder.networks import size
from recorder.perturb import DATA, OPTIMIZATION, PARAMETRIC, SIGNAL, Perturbation
from recorder.ppo import CARTS, PER_UPDATE, ActorCritic, Settings

RESOLUTION = 2.0  # floor of a twin's sd: 1 % of the largest return

# The arms that harm in most seeds; PPO on this task comes back from everything milder
SEVERE: Arms = {
    "lr_x1000": Perturbation(OPTIMIZATION, "lr_spike", 3, 1000, 5),
    "param_noise_10": Perturbation(PARAMETRIC, "param_noise", 3, 10.0, 1),
    "reward_sign_40": Perturbation(SIGNAL, "reward_scale", 3, -1.0, 40),
}
MILDER: Arms = {
    "lr_x30": Perturbation(OPTIMIZATION, "lr_spike", 1, 30, 5),
    "lr_x300": Perturbation(OPTIMIZATION, "lr_spike", 2, 300, 5),
    "state_loss_3": Perturbation(OPTIMIZATION, "state_loss", 3, 3, 1),
    "obs_noise_1": Perturbation(DATA, "obs_noise", 1, 1.0, 10),
    "obs_noise_3": Perturbation(DATA, "obs_noise", 2, 3.0, 10),
    "obs_noise_10": Perturbation(DATA, "obs_noise", 3, 10.0, 10),
    "action_noise_100": Perturbation(DATA, "action_noise", 3, 1.0, 10),
    "param_noise_1": Perturbation(PARAMETRIC, "param_noise", 1, 1.0, 1),
    "param_noise_3": Perturbation(PARAMETRIC, "param_noise", 2, 3.0, 1),
    "reinit_1": Perturbation(PARAMETRIC, "layer_reinit", 1, 1, 1),
    "reinit_2": Perturbation(PARAMETRIC, "layer_reinit", 2, 2, 1),
    "reward_sign_5": Perturbation(SIGNAL, "reward_scale", 1, -1.0, 5),
    "reward_sign_15": Perturbation(SIGNAL, "reward_scale", 2, -1.0, 15),
    "reward_x100": Perturbation(SIGNAL, "reward_scale", 1, 100.0, 10),
    "reward_noise_10": Perturbation(SIGNAL, "reward_noise", 1, 10.0, 10),
    "advantage_noise_3": Perturbation(SIGNAL, "advantage_noise", 1, 3.0, 10),
}
RAMPS: Arms = {
    f"ramp_{name}_{end}": Perturbation(axis, kind, severity, level, 70, ramp=True)
    for name, axis, kind, levels in (
        ("lr", OPTIMIZATION, "lr_spike", (10.0, 3000.0)),
        ("obs", DATA, "obs_noise", (0.1, 10.0)),
        ("force", DATA, "force_drift", (-0.7, -1.0)),
        ("reward", SIGNAL, "reward_drift", (-0.5, -2.0)),
    )
    for severity, (end, level) in enumerate(zip(("short", "full"), levels, strict=True), 1)
}
# A weight of the entropy bonus that falls below nothing: entropy is slowly lost
ENTROPY: Arms = {
    "ramp_entropy_short": Perturbation(OPTIMIZATION, "entropy_bonus", 1, -0.5, 70, ramp=True),
    "ramp_entropy_full": Perturbation(OPTIMIZATION, "entropy_bonus", 2, -50.0, 70, ramp=True),
}


@dataclass(frozen=True)
class Plan:
    """Runs of one setting; see `recorder.plans.Plan`."""

    arms: Arms
    seeds: tuple[int, ...]
    settings: Settings = field(default_factory=Settings)
    purpose: str = "arms"
    variant: str = ""
    channels: tuple[str, ...] = ()
    net: ActorCritic = field(default_factory=ActorCritic)

    def run_id(self, seed: int, arm: str) -> str:
        return "-".join(p for p in ("cartpole", self.net.name, "ppo", self.variant, f"s{seed:03d}", arm) if p)

    def config(self, seed: int, arm: str) -> dict[str, Any]:
        """Steps count environment steps, as in the log."""
        s = self.settings
        return {
            "domain": "cartpole",
            "purpose": self.purpose,
            "model": self.net.name,
            "width": self.net.width,
            "algorithm": "ppo",
            "seed": seed,
            "lr": s.lr,
            "entropy_bonus": s.entropy_bonus,
            "steps": s.updates * PER_UPDATE,
            "eval_every": s.eval_every * PER_UPDATE,
            "environments": CARTS,
            "n_parameters": size(self.net.shapes),
            "resolution": RESOLUTION,
            **event_config(arm, self.arms[arm], s.fork, self.run_id(seed, CONTROL), PER_UPDATE),
        }


CONTROL_ONLY: Arms = {CONTROL: None}
FILES: dict[str, tuple[Plan, ...]] = {
    "ppo": (
        Plan(CONTROL_ONLY | SEVERE | MILDER, seeds(0, 4)),
        Plan(CONTROL_ONLY | SEVERE, seeds(4, 20)),
        Plan(CONTROL_ONLY, seeds(20, 40)),
    ),
    "ppo-ramps": (Plan(RAMPS, seeds(4, 11), purpose="ramp"),),
    "ppo-ramps-more": (Plan(RAMPS, seeds(11, 14), purpose="ramp"),),
    "ppo-entropy": (Plan(ENTROPY, seeds(4, 10), purpose="ramp"),),
    "ppo-buffering": tuple(
        Plan(
            CONTROL_ONLY | {"lr_x300": MILDER["lr_x300"]},
            seeds(0, 10),
            Settings(entropy_bonus=b),
            "buffering",
            f"ent{b:g}",
        )
        for b in (0.0, 0.003, 0.01, 0.03)
    ),
}
