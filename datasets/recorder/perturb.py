"""Perturbations: one axis at a time, from a declared step, for a declared duration.

A pulse acts with its full level for ``duration`` steps and is then gone. A ramp grows from nothing to its level over
``duration`` steps and stays there: the failure, if there is one, grows from within. Factors (learning rate, loss
scale) grow geometrically, amounts (noise) linearly. Chance comes from a generator of its own, so that the batches
after the event are those of the twin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from recorder.trainer import Trainer

F32 = NDArray[np.float32]
INT = NDArray[np.int64]
Rng = np.random.Generator

OPTIMIZATION, DATA, PARAMETRIC, SIGNAL = "optimization", "environment/data", "parametric", "learning signal"


@dataclass(frozen=True)
class Perturbation:
    """One arm.

    Attributes
    ----------
    axis, kind : str
        One of the four axes; a key of exactly one of the four tables below.
    severity : int
        Rank of the level among the arms of its kind, 1 is the mildest.
    level : float
        Factor or amount; its meaning stands at the function of that kind.
    duration : int
        Steps (1 for what is done once).
    ramp : bool
        Grows over ``duration`` steps and stays.
    """

    axis: str
    kind: str
    severity: int
    level: float
    duration: int
    ramp: bool = False

    def strength(self, offset: int) -> float | None:
        """Level at ``offset`` steps after the injection, None outside the event."""
        if offset < 0 or (not self.ramp and offset >= self.duration):
            return None
        if not self.ramp:
            return self.level
        share = min(1.0, (offset + 1) / self.duration)
        return float(self.level**share) if self.kind in FACTORS else self.level * share


@dataclass
class Event:
    """A perturbation on its way: when it starts, its own source of chance, a batch that it may hold."""

    perturbation: Perturbation
    start: int
    rng: np.random.Generator
    held: list[tuple[F32, INT]] = field(default_factory=list)

    def now(self, step: int) -> tuple[float | None, Perturbation]:
        return self.perturbation.strength(step - self.start), self.perturbation


FACTORS = {"lr_spike", "loss_scale"}


# --- done once, to the state -----------------------------------------------------------------------------------
def param_noise(t: Trainer, level: float, rng: Rng) -> None:
    """Gaussian noise, its sd ``level`` times the root mean square of each parameter array."""
    for view in t.parameter_views().values():
        rms = np.sqrt(np.mean(np.square(view, dtype=np.float64)))
        view += (level * rms * rng.standard_normal(view.shape)).astype(np.float32)


def param_scale(t: Trainer, level: float, rng: Rng) -> None:
    """All parameters times ``level``."""
    t.theta *= np.float32(level)


def layer_reinit(t: Trainer, level: float, rng: Rng) -> None:
    """Weights and biases of ``level`` layers, counted from the output, drawn anew."""
    names = list(t.net.shapes)[-2 * int(level) :]
    fresh = t.net.init(rng)
    for name, view in t.parameter_views(fresh).items():
        if name in names:
            t.parameter_views()[name][...] = view


def state_loss(t: Trainer, level: float, rng: Rng) -> None:
    """Optimizer state zeroed: 1 the momentum buffer, 2 every buffer but not the step counter, 3 the counter too."""
    names = t.optimizer.buffer_names[:1] if level == 1 else t.optimizer.buffer_names
    t.optimizer.reset(names, counter=level == 3)


STATE: dict[str, Callable[[Trainer, float, Rng], None]] = {
    "param_noise": param_noise,
    "param_scale": param_scale,
    "layer_reinit": layer_reinit,
    "state_loss": state_loss,
}


# --- to the batch ----------------------------------------------------------------------------------------------
def data_noise(x: F32, y: INT, level: float, rng: Rng, held: list[tuple[F32, INT]]) -> tuple[F32, INT]:
    """Gaussian noise of sd ``level`` on pixels in [0, 1]."""
    return x + (level * rng.standard_normal(x.shape)).astype(np.float32), y


def shift(x: F32, y: INT, level: float, rng: Rng, held: list[tuple[F32, INT]]) -> tuple[F32, INT]:
    """Images rolled ``level`` columns to the right."""
    return np.roll(x.reshape(len(x), 8, 8), int(level), axis=2).reshape(x.shape), y


def label_noise(x: F32, y: INT, level: float, rng: Rng, held: list[tuple[F32, INT]]) -> tuple[F32, INT]:
    """A share ``level`` of the labels replaced by uniform ones."""
    return x, np.where(rng.random(y.shape) < level, rng.integers(0, 10, y.shape), y)


def label_shuffle(x: F32, y: INT, level: float, rng: Rng, held: list[tuple[F32, INT]]) -> tuple[F32, INT]:
    """Labels permuted inside the batch (``level`` is not used; the severity is the duration)."""
    return x, rng.permutation(y)


def repeat_batch(x: F32, y: INT, level: float, rng: Rng, held: list[tuple[F32, INT]]) -> tuple[F32, INT]:
    """The first batch of the event again and again (``level`` is not used; the severity is the duration)."""
    if not held:
        held.append((x, y))
    return held[0]


Batch = Callable[[F32, INT, float, Rng, list[tuple[F32, INT]]], tuple[F32, INT]]
BATCH: dict[str, Batch] = {
    "data_noise": data_noise,
    "shift": shift,
    "label_noise": label_noise,
    "label_shuffle": label_shuffle,
    "repeat_batch": repeat_batch,
}


# --- to the gradient -------------------------------------------------------------------------------------------
def grad_noise(g: F32, level: float, rng: Rng) -> F32:
    """Isotropic Gaussian noise whose expected norm is ``level`` times the norm of the gradient."""
    norm = np.linalg.norm(g.astype(np.float64))
    return g + (level * norm / np.sqrt(g.size) * rng.standard_normal(g.shape)).astype(np.float32)


def loss_scale(g: F32, level: float, rng: Rng) -> F32:
    """Gradient times ``level``: a loss scale that was not divided out again; negative turns the sign."""
    return np.float32(level) * g


GRADIENT: dict[str, Callable[[F32, float, Rng], F32]] = {"grad_noise": grad_noise, "loss_scale": loss_scale}

# --- to a setting: lr_spike multiplies the learning rate, momentum and clip replace the value ---------------------
SETTING = {"lr_spike", "momentum", "clip"}
