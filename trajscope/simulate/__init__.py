"""Runs with known truth."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "series": [
            "SimulatedLog",
            "ar",
            "fold",
            "linear_map",
            "neimark_sacker",
            "ornstein_uhlenbeck",
            "state_space",
            "training_log",
            "with_gaps",
        ]
    },
)
