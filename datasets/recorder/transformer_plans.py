"""Recording plans of the transformer domain. Needs torch only to run them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from recorder.arms import CONTROL, Arms, event_config
from recorder.forking import seeds
from recorder.networks import size
from recorder.perturb import DATA, OPTIMIZATION, PARAMETRIC, SIGNAL, Perturbation
from recorder.transformer import MICRO, Settings, Transformer

RESOLUTION = 0.005  # floor of a twin's sd, in nats

HARM: Arms = {CONTROL: None, "lr_x100": Perturbation(OPTIMIZATION, "lr_spike", 3, 100, 10)}
OTHERS: Arms = {
    "lr_x10": Perturbation(OPTIMIZATION, "lr_spike", 1, 10, 10),
    "lr_x30": Perturbation(OPTIMIZATION, "lr_spike", 2, 30, 10),
    "momentum_0": Perturbation(OPTIMIZATION, "momentum", 1, 0.0, 30),
    "momentum_999": Perturbation(OPTIMIZATION, "momentum", 3, 0.999, 30),
    "state_loss_1": Perturbation(OPTIMIZATION, "state_loss", 1, 1, 1),
    "state_loss_2": Perturbation(OPTIMIZATION, "state_loss", 2, 2, 1),
    "state_loss_3": Perturbation(OPTIMIZATION, "state_loss", 3, 3, 1),
    "token_noise_20": Perturbation(DATA, "token_noise", 1, 0.2, 30),
    "token_noise_50": Perturbation(DATA, "token_noise", 2, 0.5, 30),
    "token_noise_100": Perturbation(DATA, "token_noise", 3, 1.0, 30),
    "label_shuffle_30": Perturbation(DATA, "label_shuffle", 3, 1, 30),
    "repeat_30": Perturbation(DATA, "repeat_batch", 3, 1, 30),
    "param_noise_03": Perturbation(PARAMETRIC, "param_noise", 1, 0.3, 1),
    "param_noise_1": Perturbation(PARAMETRIC, "param_noise", 2, 1.0, 1),
    "param_noise_3": Perturbation(PARAMETRIC, "param_noise", 3, 3.0, 1),
    "label_noise_20": Perturbation(SIGNAL, "label_noise", 1, 0.2, 30),
    "label_noise_50": Perturbation(SIGNAL, "label_noise", 2, 0.5, 30),
    "label_noise_100": Perturbation(SIGNAL, "label_noise", 3, 1.0, 30),
    "grad_noise_10": Perturbation(SIGNAL, "grad_noise", 2, 10.0, 30),
    "loss_sign": Perturbation(SIGNAL, "loss_scale", 3, -1.0, 10),
}
RAMPS: Arms = {
    f"ramp_{name}_{end}": Perturbation(axis, kind, severity, level, 150, ramp=True)
    for name, axis, kind, levels in (
        ("lr", OPTIMIZATION, "lr_spike", (3.0, 200.0)),
        ("token", DATA, "token_noise", (0.2, 1.0)),
        ("label", SIGNAL, "label_noise", (0.2, 1.0)),
    )
    for severity, (end, level) in enumerate(zip(("short", "full"), levels, strict=True), 1)
}
# Milder ramps, which stop short of failure
LOW: Arms = {
    "ramp_lr_low": Perturbation(OPTIMIZATION, "lr_spike", 1, 1.5, 150, ramp=True),
    "ramp_token_low": Perturbation(DATA, "token_noise", 1, 0.05, 150, ramp=True),
    "ramp_label_low": Perturbation(SIGNAL, "label_noise", 1, 0.05, 150, ramp=True),
}
# Wrong from the first step on
FROM_START: Arms = {
    "no_warmup_x1": Perturbation(OPTIMIZATION, "no_warmup", 1, 1.0, 300),
    "no_warmup_x3": Perturbation(OPTIMIZATION, "no_warmup", 2, 3.0, 300),
    "too_high_x10": Perturbation(OPTIMIZATION, "lr_spike", 1, 10.0, 300),
}
# All but the micro-batch channels
LEAN = (
    "train/grad_cos", "train/grad_cos_last10", "train/grad_norm", "train/loss", "train/lr", "train/momentum_cos",
    "train/param_norm", "train/update_norm", "val/loss",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Runs of one width and setting; see `recorder.plans.Plan`."""

    arms: Arms
    seeds: tuple[int, ...]
    settings: Settings = field(default_factory=Settings)
    purpose: str = "arms"
    channels: tuple[str, ...] = ()
    net: Transformer = field(default_factory=Transformer)

    def run_id(self, seed: int, arm: str) -> str:
        return f"transformer-{self.net.name}-adam-s{seed:03d}-{arm}"

    def config(self, seed: int, arm: str) -> dict[str, Any]:
        """What a user would find in the run's configuration, and the declared event."""
        s = self.settings
        return {
            "domain": "transformer",
            "purpose": self.purpose,
            "model": self.net.name,
            "width": self.net.width,
            "algorithm": "adam",
            "seed": seed,
            **asdict(s),
            "micro_batches": MICRO,
            "n_parameters": size(self.net.shapes),
            "resolution": RESOLUTION,
            **event_config(arm, self.arms[arm], s.fork, self.run_id(seed, CONTROL)),
        }


WIDTHS: Arms = HARM | {name: OTHERS[name] for name in ("lr_x10", "lr_x30", "label_noise_100")}
FILES: dict[str, tuple[Plan, ...]] = {
    "tf64": (Plan(HARM, seeds(0, 20)),),
    "tf64-more": (Plan(HARM, seeds(20, 32)), Plan({CONTROL: None}, seeds(32, 40))),
    "tf64-ramps": (Plan(RAMPS, seeds(0, 10), Settings(fork=100), "ramp"),),
    # Recorded on another machine than the rest: seeds, and so controls, of their own
    "tf64-low": (Plan({CONTROL: None} | LOW, seeds(40, 47), Settings(fork=100), "within", LEAN),),
    "tf64-start": (Plan({CONTROL: None} | FROM_START, seeds(50, 54), Settings(fork=0), "within", LEAN),),
    "tf32-tf128": tuple(Plan(WIDTHS, seeds(0, 3), purpose="width", net=Transformer(w)) for w in (32, 128)),
    "tf64-axes": (Plan(OTHERS, seeds(0, 3)),),
}
