"""Recording plans of the digits domain: which seeds, arms and settings go into which file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from recorder.arms import CONTROL, FIRST
from recorder.networks import MLP, Network, size
from recorder.perturb import Perturbation
from recorder.trainer import MICRO, N_VALIDATION, Settings

# Learning rates at which each optimizer learns digits in about 100 steps and its control stays quiet to the end
BASE_LR = {"sgd_momentum": 0.05, "adam": 0.003, "rmsprop": 0.0003}


@dataclass(frozen=True)
class Plan:
    """One output file.

    Attributes
    ----------
    optimizer : str
        Name in `recorder.optimizers.OPTIMIZERS`.
    arms : mapping
        Arm name -> perturbation, None for the control.
    seeds : tuple of int
    net : Network
    settings : Settings
    """

    optimizer: str
    arms: dict[str, Perturbation | None]
    seeds: tuple[int, ...]
    settings: Settings
    net: Network = field(default_factory=MLP)

    def run_id(self, seed: int, arm: str) -> str:
        return f"digits-{self.net.name}-{self.optimizer}-s{seed:03d}-{arm}"

    def config(self, seed: int, arm: str) -> dict[str, Any]:
        """What a user would find in the run's configuration, and the declared event."""
        s, p = self.settings, self.arms[arm]
        event = {
            "arm": arm,
            "axis": p.axis if p else None,
            "perturbation": p.kind if p else None,
            "severity": p.severity if p else 0,
            "level": p.level if p else None,
            "duration": p.duration if p else None,
            "ramp": p.ramp if p else False,
            "injection_step": s.fork if p else None,
            "twin": self.run_id(seed, CONTROL) if p else None,
        }
        return {
            "domain": "digits",
            "model": self.net.name,
            "width": self.net.width,
            "algorithm": self.optimizer,
            "seed": seed,
            **{k: v for k, v in asdict(s).items() if k != "clip" or v != float("inf")},
            "micro_batches": MICRO,
            "n_parameters": size(self.net.shapes),
            "n_validation": N_VALIDATION,
            **event,
        }


PLANS: dict[str, Plan] = {
    optimizer: Plan(optimizer, FIRST, tuple(range(8)), Settings(lr=BASE_LR[optimizer]))
    for optimizer in ("sgd_momentum", "adam")
}
