r"""Evidence to confidence: an additive model with one weight a piece of evidence.

With evidence :math:`x_e \in [-1, 1]` (absent evidence counts 0) and the signs and shares :math:`S_{e,a}` with which it
speaks for axis *a*,

.. math:: P(a \mid x) \propto \exp\Bigl(\sum_e w_e\, S_{e,a}\, x_e\Bigr), \qquad w_e \ge 0.

Weights are the posterior mode under normal priors of mean :math:`w_0` and sd :math:`\sigma`, with runs weighted so that
the axes count alike and, within an axis, every domain and kind of event does. So no axis is favoured beforehand, an
evidence that the fitting runs never show keeps :math:`w_0`, and none can speak against what it is said to speak for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope.inference._axis_evidence import AXES, EVIDENCE

__all__ = ["PRIOR_MEAN", "PRIOR_SD", "SHARES", "balance", "fit_weights", "probabilities"]

Floats = NDArray[np.float64]

#: Signs and shares, one row an evidence, one column an axis.
SHARES: Floats = np.array([e.weights for e in EVIDENCE], dtype=np.float64)

PRIOR_MEAN, PRIOR_SD = 2.0, 1.0

#: Weight of one axis in the fit, in runs: so many independent kinds of event it stands for.
_AXIS_RUNS = 30.0


def probabilities(x: ArrayLike, weights: ArrayLike) -> Floats:
    """Probability of each axis.

    Parameters
    ----------
    x : array_like, shape (..., n_evidence)
        NaN where absent.
    weights : array_like, shape (n_evidence,)

    Returns
    -------
    ndarray, shape (..., 4)
    """
    logits = np.nan_to_num(np.asarray(x, dtype=np.float64)) * np.asarray(weights) @ SHARES
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    out: Floats = shifted / shifted.sum(axis=-1, keepdims=True)
    return out


def balance(axes: Sequence[str], cells: Sequence[object]) -> Floats:
    """Weights of runs: axes alike, cells (domain and kind of event) within an axis alike.

    >>> balance(["a", "a", "a", "b"], [1, 1, 2, 1]).tolist()
    [7.5, 7.5, 15.0, 30.0]
    """
    pairs = list(zip(axes, cells, strict=True))
    per_axis = {a: len({c for b, c in pairs if b == a}) for a in set(axes)}
    return np.array([_AXIS_RUNS / (per_axis[a] * pairs.count((a, c))) for a, c in pairs])


def fit_weights(
    x: ArrayLike, axis: ArrayLike, run_weights: ArrayLike, *, mean: float = PRIOR_MEAN, sd: float = PRIOR_SD
) -> Floats:
    """Weights of the evidence from runs whose axis is known.

    Parameters
    ----------
    x : array_like, shape (n_runs, n_evidence)
        NaN where absent.
    axis : array_like of int, shape (n_runs,)
        Index into the four axes.
    run_weights : array_like, shape (n_runs,)
    mean, sd : float
        Of the prior of every weight.

    Returns
    -------
    ndarray, shape (n_evidence,)
        At least 0. The objective is convex, so the mode is unique.
    """
    from scipy.optimize import minimize

    values = np.nan_to_num(np.asarray(x, dtype=np.float64))
    truth = np.eye(len(AXES))[np.asarray(axis)]
    scale = np.asarray(run_weights, dtype=np.float64)

    def objective(w: Floats) -> tuple[float, Floats]:
        p = probabilities(values, w)
        loss = -float(scale @ np.log(np.maximum((p * truth).sum(axis=1), 1e-300)))
        slope = (values * (((p - truth) * scale[:, None]) @ SHARES.T)).sum(axis=0)
        return loss + float(np.sum((w - mean) ** 2)) / (2 * sd**2), slope + (w - mean) / sd**2

    bounds = [(0.0, None)] * len(EVIDENCE)
    found = minimize(objective, np.full(len(EVIDENCE), mean), jac=True, method="L-BFGS-B", bounds=bounds)
    out: Floats = found.x
    return out
