"""The arms of the digits recordings, by name."""

from __future__ import annotations

from recorder.perturb import DATA, OPTIMIZATION, PARAMETRIC, SIGNAL, Perturbation

CONTROL = "control"

FIRST: dict[str, Perturbation | None] = {
    CONTROL: None,
    "lr_x10": Perturbation(OPTIMIZATION, "lr_spike", 1, 10, 10),
    "lr_x30": Perturbation(OPTIMIZATION, "lr_spike", 2, 30, 10),
    "lr_x100": Perturbation(OPTIMIZATION, "lr_spike", 3, 100, 10),
    "label_noise_100": Perturbation(SIGNAL, "label_noise", 3, 1.0, 50),
    "data_noise_2": Perturbation(DATA, "data_noise", 2, 2.0, 50),
    "grad_noise_10": Perturbation(SIGNAL, "grad_noise", 2, 10.0, 50),
    "param_noise_1": Perturbation(PARAMETRIC, "param_noise", 2, 1.0, 1),
}
