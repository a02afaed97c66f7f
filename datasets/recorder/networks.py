"""Networks on one flat float32 parameter vector, with the gradient of every micro-batch.

A network maps a vector ``theta`` of shape ``(d,)`` to a softmax cross-entropy. The gradient is returned once per
micro-batch, shape ``(n_micro, d)``; their mean is the gradient of the whole batch, so the micro-batch norms that
a data-parallel logger would report come for free and describe exactly the gradient the optimizer sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
INT = NDArray[np.int64]


class Network(Protocol):
    """What the trainer asks of a network."""

    name: str
    width: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter arrays by name, in the order in which they lie in the flat vector."""

    def init(self, rng: np.random.Generator) -> F32:
        """A fresh parameter vector."""

    def micro_gradients(self, theta: F32, x: F32, y: INT) -> tuple[F32, F32]:
        """Mean loss ``(n_micro,)`` and gradient ``(n_micro, d)`` of ``x (n_micro, b, 64)``, ``y (n_micro, b)``."""

    def logits(self, theta: F32, x: F32) -> F32:
        """Logits ``(n, 10)`` of ``x (n, 64)``."""


def size(shapes: dict[str, tuple[int, ...]]) -> int:
    """Number of parameters."""
    return sum(math.prod(s) for s in shapes.values())


def unflatten(vector: F32, shapes: dict[str, tuple[int, ...]]) -> dict[str, F32]:
    """Views into a flat vector (or into ``(n, d)``: then each view carries the leading axis)."""
    out, start, lead = {}, 0, vector.shape[:-1]
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        out[name] = vector[..., start:stop].reshape(*lead, *shape)
        start = stop
    return out


def he_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> F32:
    """Weights with standard deviation sqrt(2 / fan-in) (He et al. 2015); biases, one axis only, are zero."""
    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    return (rng.standard_normal(shape) * np.sqrt(2.0 / shape[0])).astype(np.float32)


def initial_vector(shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> F32:
    """All arrays drawn by `he_normal`, in order, as one vector."""
    return np.concatenate([he_normal(rng, shape).ravel() for shape in shapes.values()])


def cross_entropy(logits: F32, y: INT) -> tuple[F32, F32]:
    """Loss of each row and ``softmax - onehot``, for logits ``(..., 10)`` and labels ``(...)``."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    exp = np.exp(shifted)
    total = exp.sum(axis=-1, keepdims=True)
    hit = y[..., None]
    loss = np.log(total) - np.take_along_axis(shifted, hit, axis=-1)
    residual = exp / total
    np.put_along_axis(residual, hit, np.take_along_axis(residual, hit, axis=-1) - np.float32(1), axis=-1)
    return loss[..., 0], residual


def evaluate(net: Network, theta: F32, x: F32, y: INT) -> tuple[float, float]:
    """Mean loss and accuracy on a data set."""
    logits = net.logits(theta, x)
    loss, _ = cross_entropy(logits, y)
    finite = bool(np.isfinite(logits).all())
    # argmax of a row of NaN is 0: without this a broken network would score the share of zeros
    return float(loss.mean()), float((logits.argmax(axis=1) == y).mean()) if finite else float("nan")


@dataclass(frozen=True)
class MLP:
    """64 pixels, one hidden ReLU layer, ten classes."""

    width: int = 64

    @property
    def name(self) -> str:
        return f"mlp{self.width}"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"w1": (64, self.width), "b1": (self.width,), "w2": (self.width, 10), "b2": (10,)}

    def init(self, rng: np.random.Generator) -> F32:
        return initial_vector(self.shapes, rng)

    def logits(self, theta: F32, x: F32) -> F32:
        p = unflatten(theta, self.shapes)
        hidden = np.maximum(x @ p["w1"] + p["b1"], 0)
        out: F32 = hidden @ p["w2"] + p["b2"]
        return out

    def micro_gradients(self, theta: F32, x: F32, y: INT) -> tuple[F32, F32]:
        p = unflatten(theta, self.shapes)
        hidden = np.maximum(x @ p["w1"] + p["b1"], 0)
        loss, residual = cross_entropy(hidden @ p["w2"] + p["b2"], y)
        residual /= np.float32(y.shape[1])
        grads = np.empty((len(x), len(theta)), np.float32)
        g = unflatten(grads, self.shapes)
        g["w2"][...] = hidden.transpose(0, 2, 1) @ residual
        g["b2"][...] = residual.sum(axis=1)
        back = (residual @ p["w2"].T) * (hidden > 0)
        g["w1"][...] = x.transpose(0, 2, 1) @ back
        g["b1"][...] = back.sum(axis=1)
        return loss.mean(axis=1), grads


@dataclass(frozen=True)
class CNN:
    """Two 3 x 3 convolutions (``width / 2`` and ``width`` channels, ReLU), 2 x 2 mean pooling, ten classes."""

    width: int = 32

    @property
    def name(self) -> str:
        return f"cnn{self.width}"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        half = self.width // 2
        return {
            "w1": (9, half),
            "b1": (half,),
            "w2": (9 * half, self.width),
            "b2": (self.width,),
            "w3": (4 * self.width, 10),
            "b3": (10,),
        }

    def init(self, rng: np.random.Generator) -> F32:
        return initial_vector(self.shapes, rng)

    def _forward(self, p: dict[str, F32], x: F32) -> tuple[F32, ...]:
        """Patches and activations of a batch of shape ``(..., 64)``; convolutions are products with patches."""
        lead = x.shape[:-1]
        patches1 = _patches(x.reshape(-1, 8, 8, 1)).reshape(*lead, 36, 9)
        hidden1 = np.maximum(patches1 @ p["w1"] + p["b1"], 0)
        patches2 = _patches(hidden1.reshape(-1, 6, 6, hidden1.shape[-1])).reshape(*lead, 16, -1)
        hidden2 = np.maximum(patches2 @ p["w2"] + p["b2"], 0)
        pooled = hidden2.reshape(*lead, 2, 2, 2, 2, self.width).mean(axis=(-4, -2)).reshape(*lead, -1)
        return patches1, hidden1, patches2, hidden2, pooled

    def logits(self, theta: F32, x: F32) -> F32:
        p = unflatten(theta, self.shapes)
        out: F32 = self._forward(p, x)[-1] @ p["w3"] + p["b3"]
        return out

    def micro_gradients(self, theta: F32, x: F32, y: INT) -> tuple[F32, F32]:
        p = unflatten(theta, self.shapes)
        patches1, hidden1, patches2, hidden2, pooled = self._forward(p, x)
        loss, residual = cross_entropy(pooled @ p["w3"] + p["b3"], y)
        n_micro, b = y.shape
        residual /= np.float32(b)
        grads = np.empty((n_micro, len(theta)), np.float32)
        g = unflatten(grads, self.shapes)
        g["w3"][...] = pooled.transpose(0, 2, 1) @ residual
        g["b3"][...] = residual.sum(axis=1)
        spread = (residual @ p["w3"].T / np.float32(4)).reshape(n_micro, b, 2, 1, 2, 1, self.width)
        back2 = np.broadcast_to(spread, (n_micro, b, 2, 2, 2, 2, self.width)).reshape(hidden2.shape) * (hidden2 > 0)
        _weight_gradient(g["w2"], g["b2"], patches2, back2)
        back1 = _unpatch((back2 @ p["w2"].T).reshape(n_micro * b, 4, 4, 9, -1)).reshape(hidden1.shape)
        _weight_gradient(g["w1"], g["b1"], patches1, back1 * (hidden1 > 0))
        return loss.mean(axis=1), grads


def _patches(images: F32) -> F32:
    """All 3 x 3 patches of images ``(n, s, s, c)`` as ``(n, s - 2, s - 2, 9 c)``."""
    s = images.shape[1] - 2
    return np.concatenate([images[:, i : i + s, j : j + s] for i in range(3) for j in range(3)], axis=-1)


def _unpatch(back: F32) -> F32:
    """Adjoint of `_patches`: add patches ``(n, s, s, 9, c)`` up to images ``(n, s + 2, s + 2, c)``."""
    n, s, _, _, c = back.shape
    images = np.zeros((n, s + 2, s + 2, c), back.dtype)
    for k in range(9):
        i, j = divmod(k, 3)
        images[:, i : i + s, j : j + s] += back[:, :, :, k]
    return images


def _weight_gradient(weight: F32, bias: F32, patches: F32, back: F32) -> None:
    """Write the gradient of a convolution, per micro-batch."""
    n_micro = len(back)
    flat, flat_back = patches.reshape(n_micro, -1, patches.shape[-1]), back.reshape(n_micro, -1, back.shape[-1])
    weight[...] = flat.transpose(0, 2, 1) @ flat_back
    bias[...] = flat_back.sum(axis=1)
