"""trajscope: explain a finished training run from its logs.

Offline only: it reads the logs of finished training runs, builds multichannel time series, and says what happened,
when, which channel moved first and how sure that is. Every public name is imported when it is first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(
    __name__,
    submodules=["errors", "simulate", "testing"],
    submod_attrs={
        "audit.run": ["audit"],
        "batch.score": ["score_runs"],
        "history.datasets": ["load_dataset"],
        "history.run": ["Run"],
        "history.trajectory": ["Trajectory", "align"],
        "readers.scan": ["read_run", "scan_runs"],
        "detect.changepoints": ["change_points"],
        "detect.collapse": ["collapse"],
        "detect.first_mover": ["first_mover"],
        "detect.manifold": ["InstabilityManifold"],
        "detect.indicators": ["early_warning"],
        "detect.spikes": ["spikes"],
        "metastate": ["LinearStateSpace", "PCAState", "SlowFeatures"],
        "inference.buffering": ["buffering"],
        "inference.calibrate": ["calibrate"],
        "inference.compare": ["compare"],
        "inference.dissociation": ["dissociation"],
        "inference.identifiability": ["identifiability"],
        "inference.lead_time": ["lead_time"],
        "inference.response": ["response"],
        "dynamics.coherence": ["x_grad"],
        "dynamics.instability": ["x_inst"],
        "inference.axis": ["attribute_axis"],
    },
)
