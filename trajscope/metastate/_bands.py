r"""Bands of a state space that also know that its parameters were estimated.

Known parameters: the posterior covariance of the states, exact. Estimated ones: a parametric bootstrap. Runs as
long and as gappy as those that were fitted are simulated from the fit, the model is refitted on them (EM from the
fit itself), and each refit reads the rows in question anew; the variance of what the refits say about the channels
is added. What the states say about the channels, :math:`Cz`, does not depend on the coordinates of the states, so
refits need no alignment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.kalman import Model, kalman_filter, kalman_smoother, simulate_states
from trajscope._core.kalman_em import Panel, em_step

__all__ = ["channel_variance", "parameter_variance"]

Floats = NDArray[np.float64]

_ITERATIONS = 40
"""EM steps of a refit: it starts at the truth that it looks for."""


def channel_variance(covariance: Floats, loadings: Floats) -> Floats:
    """Variance of C z, shape (n_steps, n_channels), from state covariances (n_steps, k, k)."""
    return np.asarray(np.einsum("pi,tij,pj->tp", loadings, covariance, loadings, optimize=True))


def parameter_variance(
    x: Floats,
    model: Model,
    lengths: list[int],
    missing: Floats,
    *,
    causal: bool,
    n_boot: int,
    rng: np.random.Generator,
) -> Floats:
    """Variance over refits of what they say about the channels.

    Parameters
    ----------
    x : ndarray, shape (n_steps, n_channels)
        Rows to be read, standardised and centred.
    model : Model
    lengths : list of int
        Rows of each run that the model was fitted on.
    missing : ndarray, shape (n_channels,)
        Share of cells that were missing in them.
    n_boot : int, at least 2

    Returns
    -------
    ndarray, shape (n_steps, n_channels)
    """
    read: Any = kalman_filter if causal else kalman_smoother
    total, square = np.zeros(x.shape), np.zeros(x.shape)
    for _ in range(n_boot):
        runs, seen_sum, seen_count = [], np.zeros(x.shape[1]), np.zeros(x.shape[1])
        for n in lengths:
            made = simulate_states(model, n, rng) @ model.c.T + rng.normal(size=(n, x.shape[1])) * np.sqrt(model.r)
            gone = rng.random(made.shape) < missing
            gone[:, gone.all(axis=0)] = False
            mean = made.mean(axis=0, where=~gone)
            seen_sum += made.sum(axis=0, where=~gone)
            seen_count += (~gone).sum(axis=0)
            runs.append(np.where(gone, np.nan, made - mean))
        level = seen_sum / seen_count  # the level was estimated too
        panel, refit = Panel(runs), model
        for _ in range(_ITERATIONS):
            refit, _ = em_step(panel, refit)
        said = read(x - level, refit).mean @ refit.c.T + level
        total += said
        square += said**2
    mean = total / n_boot
    return np.asarray(np.maximum(square / n_boot - mean**2, 0.0) * n_boot / (n_boot - 1))
