"""What is logged at every step, computed in float64 from the float32 vectors and stored as float32.

A cosine with a zero vector is logged as 0, as ``torch.nn.functional.cosine_similarity`` does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

LAST = 10  # gradients in the weighted mean pairwise cosine

# channel -> role as trajscope names it; empty where it has no name for it
ROLES: dict[str, str] = {
    "train/loss": "loss",
    "train/grad_norm": "grad_norm",
    "train/grad_cos": "grad_cos",
    "train/momentum_cos": "grad_cos",
    "train/grad_cos_last10": "grad_cos",
    "train/micro_count": "",
    "train/micro_mean_norm": "",
    "train/micro_sum_norm": "",
    "train/micro_sum_norm2": "",
    "train/update_norm": "update_norm",
    "train/param_norm": "param_norm",
    "train/lr": "lr",
    "val/loss": "val_loss",
    "val/accuracy": "val_accuracy",
}


def norm(vector: NDArray[np.float32] | NDArray[np.float64]) -> float:
    """Euclidean norm, summed in float64."""
    wide = vector.astype(np.float64, copy=False)
    return float(np.sqrt(wide @ wide))


def cosine(dot: float, norm_a: float, norm_b: float) -> float:
    """Cosine from a dot product and two norms; 0 where a norm is 0, NaN where a norm is not finite."""
    product = norm_a * norm_b
    return dot / product if product != 0 else 0.0


def pairwise_cosine(sum_norm: float, sum_square: float, norms: F64) -> float:
    """Norm-weighted mean pairwise cosine (|sum g|^2 - sum n^2) / ((sum n)^2 - sum n^2) of a set of vectors.

    Parameters
    ----------
    sum_norm : float
        Sum of the norms.
    sum_square : float
        Squared norm of the sum of the vectors.
    norms : array (k,)
        Norms of the vectors.
    """
    squares = float(norms @ norms)
    weight = sum_norm**2 - squares
    return (sum_square - squares) / weight if weight != 0 else 0.0


@dataclass
class GradientMemory:
    """The last ten gradients and their inner products."""

    vectors: deque[F64] = field(default_factory=lambda: deque(maxlen=LAST))
    gram: F64 = field(default_factory=lambda: np.zeros((0, 0)))

    def push(self, g: F64) -> tuple[float, float]:
        """Add a gradient; return the cosine with the one before and the pairwise cosine of the last ten.

        Both are NaN until there are two gradients: the caller leaves them out of the log.
        """
        k = min(len(self.vectors), LAST - 1)
        self.vectors.append(g)
        gram = np.empty((k + 1, k + 1))
        gram[:k, :k] = self.gram[len(self.gram) - k :, len(self.gram) - k :]
        gram[k, :] = gram[:, k] = [float(v @ g) for v in self.vectors]
        self.gram = gram
        if k == 0:
            return float("nan"), float("nan")
        norms = np.sqrt(np.diag(gram))
        return (
            cosine(gram[k, k - 1], norms[k], norms[k - 1]),
            pairwise_cosine(float(norms.sum()), float(gram.sum()), norms),
        )


@dataclass
class Log:
    """Rows of one run: channel -> steps and values."""

    steps: dict[str, list[int]] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, channel: str, step: int, value: float) -> None:
        self.steps.setdefault(channel, []).append(step)
        self.values.setdefault(channel, []).append(value)

    def arrays(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Channel -> (steps int64, values float32)."""
        with np.errstate(over="ignore"):
            return {
                c: (np.array(self.steps[c], np.int64), np.array(self.values[c]).astype(np.float32)) for c in self.steps
            }


def log_micro(log: Log, step: int, losses: F32, gradient: F32, grads: F32) -> None:
    """Loss and micro-batch channels: ``losses (n_micro,)``, ``grads (n_micro, d)`` and their mean ``gradient (d,)``."""
    wide = grads.astype(np.float64)
    micro = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    log.add("train/loss", step, float(losses.mean()))
    log.add("train/micro_count", step, len(grads))
    log.add("train/micro_mean_norm", step, norm(gradient))
    log.add("train/micro_sum_norm", step, float(micro.sum()))
    log.add("train/micro_sum_norm2", step, float(micro @ micro))


def log_gradient(log: Log, step: int, gradient: F32, momentum: F32, memory: GradientMemory) -> float:
    """Norm of the gradient that the optimizer is given, before clipping, and its cosines; returns the norm."""
    g = gradient.astype(np.float64)
    n = norm(g)
    log.add("train/grad_norm", step, n)
    successive, last10 = memory.push(g)
    if step > 0:
        m = momentum.astype(np.float64)
        log.add("train/grad_cos", step, successive)
        log.add("train/grad_cos_last10", step, last10)
        log.add("train/momentum_cos", step, cosine(float(m @ g), norm(m), n))
    return n
