"""Recording plans of the digits domain: which seeds, arms and settings go into which file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from recorder.arms import AXES, AXES_SGD, CLIP_OFF, CONTROL, FIRST, LR, Arms, event_config, ramps
from recorder.forking import seeds
from recorder.networks import CNN, MLP, Network, size
from recorder.trainer import MICRO, N_VALIDATION, Settings

# Learning rates at which each optimizer learns digits in about 100 steps and its control stays quiet to the end
BASE_LR = {"sgd_momentum": 0.05, "adam": 0.003, "rmsprop": 0.0003}

# What the larger collections log; the others log everything in `recorder.monitor.ROLES`
CORE = (
    "train/loss",
    "train/grad_norm",
    "train/grad_cos",
    "train/lr",
    "val/loss",
    "val/accuracy",
)


@dataclass(frozen=True)
class Plan:
    """Runs of one network, optimizer and setting.

    Attributes
    ----------
    optimizer : str
        Name in `recorder.optimizers.OPTIMIZERS`.
    arms : mapping
        Arm name -> perturbation, None for the control.
    seeds : tuple of int
    settings : Settings
    purpose : str
        Collection: ``arms``, ``ramp``, ``width``, ``clip``, ``grid`` or ``buffering``.
    variant : str
        Part of the run id that tells settings apart; empty for the base settings of an optimizer.
    channels : tuple of str
        What is kept; empty for everything.
    net : Network
    """

    optimizer: str
    arms: Arms
    seeds: tuple[int, ...]
    settings: Settings
    purpose: str = "arms"
    variant: str = ""
    channels: tuple[str, ...] = ()
    net: Network = field(default_factory=MLP)

    def run_id(self, seed: int, arm: str) -> str:
        parts = ["digits", self.net.name, self.optimizer, self.variant, f"s{seed:03d}", arm]
        return "-".join(part for part in parts if part)

    def config(self, seed: int, arm: str) -> dict[str, Any]:
        """What a user would find in the run's configuration, and the declared event."""
        s = self.settings
        unset = {f.name for f in fields(s) if f.name in ("clip", "grad_noise") and getattr(s, f.name) == f.default}
        return {
            "domain": "digits",
            "purpose": self.purpose,
            "model": self.net.name,
            "width": self.net.width,
            "algorithm": self.optimizer,
            "seed": seed,
            **{k: v for k, v in asdict(s).items() if k not in unset},
            "micro_batches": MICRO,
            "n_parameters": size(self.net.shapes),
            "n_validation": N_VALIDATION,
            **event_config(arm, self.arms[arm], s.fork, self.run_id(seed, CONTROL)),
        }


def base(optimizer: str, **changes: Any) -> Settings:
    """Settings of the controls of an optimizer."""
    return Settings(**{"lr": BASE_LR[optimizer], **changes})


def only(*names: str) -> Arms:
    return {name: FIRST[name] for name in names}


def grid(optimizer: str) -> tuple[Plan, ...]:
    """Twelve learning rates, from far too low to far too high, times nine seeds."""
    plans = []
    for k in range(12):
        lr = float(f"{BASE_LR[optimizer] * 10 ** (-1.7 + 0.32 * k):.3g}")
        settings = base(optimizer, lr=lr, steps=600, fork=600)
        plans.append(Plan(optimizer, only(CONTROL), seeds(0, 9), settings, "grid", f"lr{lr:g}", CORE))
    return tuple(plans)


def buffering() -> tuple[Plan, ...]:
    """Five levels of gradient noise, assigned for the whole run; the same insult at each."""
    arms = only(CONTROL, "lr_x30")
    return tuple(
        Plan(
            "sgd_momentum",
            arms,
            seeds(0, 20),
            base("sgd_momentum", steps=600, fork=300, grad_noise=level),
            "buffering",
            f"noise{level:g}",
            CORE,
        )
        for level in (0.0, 0.5, 1.0, 2.0, 4.0)
    )


WIDTHS = only(CONTROL, *LR, "label_noise_100")
RAMPS = {
    "sgd_momentum": ramps(lr=(4, 200), data=(0.3, 3), grad=(3, 60), steps=600),
    "adam": ramps(lr=(4, 200), data=(0.3, 3), grad=(3, 1000), steps=600),
}
LATER = {"sgd_momentum": only(CONTROL, "lr_x30", "lr_x100"), "adam": only(CONTROL, "lr_x100")}
LATER["rmsprop"] = LATER["adam"]

PLANS: dict[str, tuple[Plan, ...]] = {
    o: (Plan(o, FIRST, seeds(0, 8), base(o)),) for o in ("sgd_momentum", "adam", "rmsprop")
}
PLANS |= {
    f"{o}-lr": (Plan(o, LATER[o], seeds(8, 32), base(o)), Plan(o, only(CONTROL), seeds(32, 40), base(o))) for o in LATER
}
PLANS |= {
    "sgd_momentum-axes": (Plan("sgd_momentum", AXES_SGD, seeds(8, 11), base("sgd_momentum")),),
    "adam-axes": (Plan("adam", AXES, seeds(8, 11), base("adam")),),
}
PLANS |= {f"{o}-ramps": (Plan(o, arms, seeds(8, 13), base(o, fork=200), "ramp"),) for o, arms in RAMPS.items()}
PLANS |= {
    f"{o}-widths": tuple(Plan(o, WIDTHS, seeds(8, 11), base(o), "width", net=MLP(w)) for w in (16, 256))
    for o in ("sgd_momentum", "adam")
}
PLANS |= {f"{o}-cnn": (Plan(o, FIRST, seeds(0, 4), base(o), net=CNN()),) for o in ("sgd_momentum", "adam")}
PLANS |= {f"{o}-grid": grid(o) for o in BASE_LR}
PLANS["sgd_momentum-buffering"] = buffering()
PLANS["sgd_momentum-clip"] = (
    Plan("sgd_momentum", CLIP_OFF, seeds(8, 11), base("sgd_momentum", lr=1.0, clip=0.05), "clip", "clip"),
)
