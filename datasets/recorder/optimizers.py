"""Optimizers on one flat vector. State is plain arrays, so that a fork copies it and a bad resume can lose it.

``step(gradient, lr)`` returns the change of the parameters; ``momentum`` is the buffer that the *next* gradient will
be compared with (the cosine of momentum and gradient is cos(m_{t-1}, g_t)).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass
class Optimizer:
    """Base: named buffers of shape ``(d,)``, a counter and the momentum coefficient."""

    d: int
    beta: float = 0.9
    count: int = 0
    buffers: dict[str, F32] = field(default_factory=dict)

    name: ClassVar[str] = ""
    buffer_names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        self.reset(self.buffer_names, counter=True)

    def reset(self, names: tuple[str, ...], *, counter: bool) -> None:
        """Zero the named buffers, as a resume that did not restore them would."""
        for name in names:
            self.buffers[name] = np.zeros(self.d, np.float32)
        if counter:
            self.count = 0

    @property
    def momentum(self) -> F32:
        return self.buffers["m"]

    def step(self, gradient: F32, lr: float) -> F32:
        raise NotImplementedError


class SGDMomentum(Optimizer):
    """Heavy ball: m = beta m + g, change -lr m (learning rate outside the buffer, no dampening, no Nesterov)."""

    name = "sgd_momentum"
    buffer_names = ("m",)

    def step(self, gradient: F32, lr: float) -> F32:
        m = np.float32(self.beta) * self.buffers["m"] + gradient
        self.buffers["m"] = m
        self.count += 1
        return np.float32(-lr) * m


class Adam(Optimizer):
    """Adam with bias correction (Kingma & Ba 2015), beta2 0.999, eps 1e-8, no weight decay."""

    name = "adam"
    buffer_names = ("m", "v")
    beta2 = 0.999
    eps = 1e-8

    def step(self, gradient: F32, lr: float) -> F32:
        self.count += 1
        b1, b2 = np.float32(self.beta), np.float32(self.beta2)
        m = b1 * self.buffers["m"] + (1 - b1) * gradient
        v = b2 * self.buffers["v"] + (1 - b2) * gradient * gradient
        self.buffers.update(m=m, v=v)
        m_hat = m / np.float32(1 - self.beta**self.count)
        v_hat = v / np.float32(1 - self.beta2**self.count)
        return np.float32(-lr) * m_hat / (np.sqrt(v_hat) + np.float32(self.eps))


class RMSpropMomentum(Optimizer):
    """RMSprop (decay 0.99, eps 1e-8) with a heavy-ball buffer on the scaled gradient, as torch's ``momentum=``."""

    name = "rmsprop"
    buffer_names = ("m", "v")
    decay = 0.99
    eps = 1e-8

    def step(self, gradient: F32, lr: float) -> F32:
        self.count += 1
        a = np.float32(self.decay)
        v = a * self.buffers["v"] + (1 - a) * gradient * gradient
        m = np.float32(self.beta) * self.buffers["m"] + gradient / (np.sqrt(v) + np.float32(self.eps))
        self.buffers.update(m=m, v=v)
        return np.float32(-lr) * m


OPTIMIZERS: dict[str, Any] = {cls.name: cls for cls in (SGDMomentum, Adam, RMSpropMomentum)}
