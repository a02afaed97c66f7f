"""Meta-states: a few numbers that say where a run is, learnt from healthy rows.

`PCAState`, `SlowFeatures` and `LinearStateSpace`, and the rivals that any of them has to beat:
`RawMahalanobis` and `BestChannel`. All are scikit-learn estimators with the same interface: ``fit`` on one run or a
list of runs, ``transform``, ``deviation`` (``D``, ``Q``, ``NIS``), ``summary``, ``plot``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from trajscope.metastate.align import align_states
    from trajscope.metastate.dimension import dimension
    from trajscope.metastate.parallel import parallel_analysis
    from trajscope.metastate.pca import PCAState
    from trajscope.metastate.reference import MIN_CHANNELS, Reference, baseline_rows
    from trajscope.metastate.rivals import BestChannel, RawMahalanobis
    from trajscope.metastate.slow import SlowFeatures
    from trajscope.metastate.statespace import LinearStateSpace

__all__ = [
    "MIN_CHANNELS",
    "BestChannel",
    "LinearStateSpace",
    "PCAState",
    "RawMahalanobis",
    "Reference",
    "SlowFeatures",
    "align_states",
    "baseline_rows",
    "dimension",
    "parallel_analysis",
]

_where: dict[str, list[str]] = {
    "align": ["align_states"],
    "parallel": ["parallel_analysis"],
    "pca": ["PCAState"],
    "reference": ["MIN_CHANNELS", "Reference", "baseline_rows"],
    "rivals": ["BestChannel", "RawMahalanobis"],
    "slow": ["SlowFeatures"],
    "statespace": ["LinearStateSpace"],
    "dimension": ["dimension"],
}
__getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs=_where)
