"""The arms of the digits recordings, by name."""

from __future__ import annotations

import math
from typing import Any

from recorder.perturb import DATA, OPTIMIZATION, PARAMETRIC, SIGNAL, Perturbation

CONTROL = "control"
Arms = dict[str, Perturbation | None]

LR: Arms = {
    "lr_x10": Perturbation(OPTIMIZATION, "lr_spike", 1, 10, 10),
    "lr_x30": Perturbation(OPTIMIZATION, "lr_spike", 2, 30, 10),
    "lr_x100": Perturbation(OPTIMIZATION, "lr_spike", 3, 100, 10),
}
FIRST: Arms = {
    CONTROL: None,
    **LR,
    "label_noise_100": Perturbation(SIGNAL, "label_noise", 3, 1.0, 50),
    "data_noise_2": Perturbation(DATA, "data_noise", 2, 2.0, 50),
    "grad_noise_10": Perturbation(SIGNAL, "grad_noise", 2, 10.0, 50),
    "param_noise_1": Perturbation(PARAMETRIC, "param_noise", 2, 1.0, 1),
}
# The other kinds, and the other severities of the kinds in FIRST
AXES: Arms = {
    "momentum_0": Perturbation(OPTIMIZATION, "momentum", 1, 0.0, 50),
    "momentum_99": Perturbation(OPTIMIZATION, "momentum", 2, 0.99, 50),
    "momentum_999": Perturbation(OPTIMIZATION, "momentum", 3, 0.999, 50),
    "state_loss_1": Perturbation(OPTIMIZATION, "state_loss", 1, 1, 1),
    "state_loss_2": Perturbation(OPTIMIZATION, "state_loss", 2, 2, 1),
    "state_loss_3": Perturbation(OPTIMIZATION, "state_loss", 3, 3, 1),
    "data_noise_1": Perturbation(DATA, "data_noise", 1, 1.0, 50),
    "data_noise_4": Perturbation(DATA, "data_noise", 3, 4.0, 50),
    "label_shuffle_10": Perturbation(DATA, "label_shuffle", 1, 1, 10),
    "label_shuffle_30": Perturbation(DATA, "label_shuffle", 2, 1, 30),
    "label_shuffle_100": Perturbation(DATA, "label_shuffle", 3, 1, 100),
    "shift_1": Perturbation(DATA, "shift", 1, 1, 50),
    "shift_2": Perturbation(DATA, "shift", 2, 2, 50),
    "shift_4": Perturbation(DATA, "shift", 3, 4, 50),
    "repeat_20": Perturbation(DATA, "repeat_batch", 1, 1, 20),
    "repeat_50": Perturbation(DATA, "repeat_batch", 2, 1, 50),
    "repeat_150": Perturbation(DATA, "repeat_batch", 3, 1, 150),
    "param_noise_03": Perturbation(PARAMETRIC, "param_noise", 1, 0.3, 1),
    "param_noise_3": Perturbation(PARAMETRIC, "param_noise", 3, 3.0, 1),
    "param_scale_03": Perturbation(PARAMETRIC, "param_scale", 1, 0.3, 1),
    "param_scale_3": Perturbation(PARAMETRIC, "param_scale", 2, 3.0, 1),
    "param_scale_10": Perturbation(PARAMETRIC, "param_scale", 3, 10.0, 1),
    "reinit_1": Perturbation(PARAMETRIC, "layer_reinit", 1, 1, 1),
    "reinit_2": Perturbation(PARAMETRIC, "layer_reinit", 2, 2, 1),
    "label_noise_30": Perturbation(SIGNAL, "label_noise", 1, 0.3, 50),
    "label_noise_60": Perturbation(SIGNAL, "label_noise", 2, 0.6, 50),
    "grad_noise_3": Perturbation(SIGNAL, "grad_noise", 1, 3.0, 50),
    "grad_noise_30": Perturbation(SIGNAL, "grad_noise", 3, 30.0, 50),
    "loss_scale_10": Perturbation(SIGNAL, "loss_scale", 1, 10.0, 10),
    "loss_scale_100": Perturbation(SIGNAL, "loss_scale", 2, 100.0, 10),
    "loss_sign": Perturbation(SIGNAL, "loss_scale", 3, -1.0, 10),
}
# Momentum is all the state there is: the second and third loss of state would be the first
AXES_SGD: Arms = {name: arm for name, arm in AXES.items() if name not in {"state_loss_2", "state_loss_3"}}

# Clipping is on from the start; these take it away for a while
CLIP_OFF: Arms = {
    CONTROL: None,
    "clip_off_10": Perturbation(OPTIMIZATION, "clip", 1, float("inf"), 10),
    "clip_off_50": Perturbation(OPTIMIZATION, "clip", 2, float("inf"), 50),
    "clip_off_200": Perturbation(OPTIMIZATION, "clip", 3, float("inf"), 200),
}


def event_config(arm: str, perturbation: Perturbation | None, start: int, twin: str, unit: int = 1) -> dict[str, Any]:
    """The declared event as it stands in a run's configuration; ``unit`` is the number of steps in a duration of 1."""
    if perturbation is None:
        return {"arm": arm, "severity": 0, "ramp": False}
    p = perturbation
    return {
        "arm": arm,
        "axis": p.axis,
        "perturbation": p.kind,
        "severity": p.severity,
        "level": p.level if math.isfinite(p.level) else None,
        "duration": p.duration * unit,
        "ramp": p.ramp,
        "injection_step": start * unit,
        "twin": twin,
    }


def ramps(lr: tuple[float, float], data: tuple[float, float], grad: tuple[float, float], steps: int) -> Arms:
    """Ramps over ``steps`` steps, each to a level that stops short of failure and to one that does not."""
    arms: Arms = {"ramp_label_short": Perturbation(SIGNAL, "label_noise", 1, 0.4, steps, ramp=True)}
    arms["ramp_label_full"] = Perturbation(SIGNAL, "label_noise", 2, 1.0, steps, ramp=True)
    for kind, axis, levels in (
        ("lr_spike", OPTIMIZATION, lr),
        ("data_noise", DATA, data),
        ("grad_noise", SIGNAL, grad),
    ):
        for severity, (name, level) in enumerate(zip(("short", "full"), levels, strict=True), 1):
            arms[f"ramp_{kind.split('_')[0]}_{name}"] = Perturbation(axis, kind, severity, level, steps, ramp=True)
    return arms
