"""Weights of the evidence, fitted on the calibration split of the recorded runs. Written by ``tests/proofs/axis.py``.

Do not edit by hand: ``python tests/proofs/axis.py --write`` makes this file again.
"""

#: Evidence -> fitted weight.
WEIGHTS: dict[str, float] = {
    "learning rate moved": 2.135,
    "update outgrew gradient": 2.130,
    "policy moved far": 2.060,
    "update alone": 2.295,
    "update fell behind": 1.472,
    "momentum lost": 2.073,
    "loss scale moved": 2.000,
    "parameters jumped": 2.611,
    "evaluation at once": 2.638,
    "batch at once": 2.247,
    "gradient for its loss": 0.269,
    "batch agrees": 2.063,
    "same step in siblings": 2.000,
    "behaviour at once": 2.513,
    "value side alone": 1.902,
    "gradient alone": 2.283,
    "gradient not of its batch": 2.816,
    "gradient turned": 2.000,
}

#: What the weights were fitted on.
FITTED_ON: dict[str, object] = {
    "split": "calibration (even seeds)",
    "events": 548,
    "domains": "cartpole, digits, transformer",
    "prior_mean": 2.0,
    "prior_sd": 1.0,
    "level": 10.0,
}
