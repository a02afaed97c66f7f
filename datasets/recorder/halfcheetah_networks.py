"""Perceptrons of two hidden layers on slices of one flat float32 vector, in numpy to act and in torch to learn."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Shapes = dict[str, tuple[int, ...]]


def shapes(name: str, inputs: int, width: int, outputs: int, copies: int = 0) -> Shapes:
    """Weights and biases of a perceptron; with ``copies`` a leading axis of independent networks."""
    sizes = (inputs, width, width, outputs)
    lead = (copies,) if copies else ()
    out: Shapes = {}
    for k, (a, b) in enumerate(pairwise(sizes), 1):
        out[f"{name}_w{k}"] = (*lead, a, b)
        out[f"{name}_b{k}"] = (*lead, 1, b)
    return out


def fresh(shape: tuple[int, ...], rng: np.random.Generator, fan_in: int) -> F32:
    """Uniform within one over the root of the fan-in, weights and biases."""
    return (rng.uniform(-1, 1, shape) / np.sqrt(fan_in)).astype(np.float32)


def act(p: dict[str, F32], name: str, x: F32, tanh: bool = False) -> F32:
    """Output ``(n, outputs)`` in numpy."""
    for k in (1, 2):
        x = x @ p[f"{name}_w{k}"] + p[f"{name}_b{k}"]
        x = np.tanh(x) if tanh else np.maximum(x, 0)
    return x @ p[f"{name}_w3"] + p[f"{name}_b3"]


def run(p: dict[str, torch.Tensor], name: str, x: torch.Tensor, tanh: bool = False) -> torch.Tensor:
    """Output ``(n, outputs)`` in torch, ``(copies, n, outputs)`` where the weights have a leading axis."""
    copies = p[f"{name}_w1"].shape[0] if p[f"{name}_w1"].ndim == 3 else 0
    if copies:
        x = x.expand(copies, *x.shape)
    for k in (1, 2, 3):
        w, b = p[f"{name}_w{k}"], p[f"{name}_b{k}"]
        x = torch.baddbmm(b, x, w) if copies else torch.addmm(b, x, w)
        if k < 3:
            x = torch.tanh(x) if tanh else torch.relu(x)
    return x


def tensors(views: dict[str, F32], gradient: bool = True) -> dict[str, torch.Tensor]:
    """Tensors on the memory of the arrays: a change of the flat vector in place is seen by them."""
    return {name: torch.from_numpy(view).requires_grad_(gradient) for name, view in views.items()}


def gradient(loss: torch.Tensor, leaves: list[torch.Tensor]) -> F32:
    """Flat gradient of a loss, in the order of the leaves."""
    parts = torch.autograd.grad(loss, leaves)
    flat: F32 = torch.cat([g.reshape(-1) for g in parts]).numpy()
    return flat
