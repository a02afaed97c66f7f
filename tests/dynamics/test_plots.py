"""Every figure of this room: drawn, the same bytes twice, also for what cannot be told."""

from __future__ import annotations

import dynamics_systems as systems
import matplotlib as mpl
import numpy as np
import pytest

from trajscope.dynamics import (
    delay_embedding,
    finite_time_lyapunov,
    intrinsic_dimension,
    lyapunov,
    recurrence,
    rolling_var,
)
from trajscope.plots.style import svg
from trajscope.simulate import ar

mpl.use("Agg")


def results() -> dict:
    x = ar(600, 0.9, 2, rng=0)
    return {
        "local": rolling_var(x, methods=("plain", "instrument", "tls", "fb")),
        "local, none": rolling_var(np.ones(300)),
        "local, empty": rolling_var([]),
        "divergence": lyapunov(systems.logistic(600)),
        "divergence, none": lyapunov(x),
        "divergence, short": lyapunov(np.arange(9.0)),
        "finite time": finite_time_lyapunov(x, n_surrogates=2),
        "finite time, long": finite_time_lyapunov(ar(2500, 0.5, rng=0), n_surrogates=0),
        "finite time, none": finite_time_lyapunov(np.ones(50)),
        "recurrence": recurrence(x),
        "recurrence, none": recurrence(np.ones(50)),
        "intrinsic": intrinsic_dimension(x, n_boot=5),
        "intrinsic, none": intrinsic_dimension(np.tile([[0.0, 1.0], [1.0, 0.0]], (50, 1)), n_boot=0),
        "delay": delay_embedding(systems.henon(600)),
        "delay, none": delay_embedding(np.ones(300)),
    }


@pytest.mark.parametrize("name", list(results()))
def test_drawn_with_the_same_bytes(name):
    import matplotlib.pyplot as plt

    result = results()[name]
    drawn = []
    for _ in range(2):
        figure = result.plot().figure
        drawn.append(svg(figure))
        plt.close(figure)
    assert drawn[0] == drawn[1]
    if name.endswith(", none") and "plot_name" in dir(result) and result.plot_name in ("divergence", "recurrence"):
        assert "cannot tell" in drawn[0]
