"""The outcome of a run by trajscope's own collapse rule, read off its evaluations alone, without its twin."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope.detect.collapse import collapse


def outcome(steps: NDArray[np.int64], values: NDArray[np.float64], mode: str = "max") -> dict[str, Any]:
    """Columns ``outcome``, ``outcome_kind``, ``onset_step``, ``confirmed_step`` and ``recovered_step``.

    ``outcome`` is the class of recovery where performance fell (transient, lingering, irrecoverable, undetermined),
    else what the rule says instead (none, not learned, cannot tell). Of several falls it is the gravest.
    """
    found = collapse(values, steps, mode=mode)
    return {
        "outcome": found.kind if found.recovery == "none" else found.recovery,
        "outcome_kind": found.kind,
        "onset_step": _step(found.onset),
        "confirmed_step": _step(found.confirmed),
        "recovered_step": _step(found.recovered_step),
    }


def _step(value: float | None) -> int | None:
    return None if value is None else int(value)
