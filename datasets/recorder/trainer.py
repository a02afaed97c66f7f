"""Training with every step logged, and forking: all arms of a seed leave from one copied state.

Row t describes the parameters that enter update t and that update. Evaluation is done before update t wherever t is
a multiple of ``eval_every``; the first one, at step 0, is of the untrained network.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from recorder.forking import fork
from recorder.monitor import GradientMemory, Log, log_gradient, log_micro, norm
from recorder.networks import Network, evaluate, size, unflatten
from recorder.optimizers import OPTIMIZERS, Optimizer
from recorder.perturb import BATCH, GRADIENT, STATE, Event, Perturbation

F32 = NDArray[np.float32]
INT = NDArray[np.int64]

SPLIT_SEED = 20160  # of the training/validation split, the same for every run
N_VALIDATION = 450
MICRO = 8  # micro-batches in a batch


@dataclass(frozen=True)
class Digits:
    """scikit-learn's digits (1,797 images of 8 x 8), pixels in [0, 1], split once."""

    x: F32
    y: INT
    x_val: F32
    y_val: INT

    @classmethod
    def load(cls) -> Digits:
        raw = load_digits()
        order = np.random.default_rng(SPLIT_SEED).permutation(len(raw.data))
        x = (raw.data[order] / 16).astype(np.float32)
        y = raw.target[order].astype(np.int64)
        n = N_VALIDATION
        return cls(x[n:], y[n:], x[:n], y[:n])


@dataclass(frozen=True)
class Settings:
    """What the runs of one recording have in common."""

    lr: float
    steps: int = 1000
    fork: int = 400
    batch: int = 64
    beta: float = 0.9
    eval_every: int = 5
    clip: float = float("inf")
    grad_noise: float = 0.0  # relative, at every step of the run: an assigned noise level


@dataclass
class Trainer:
    """The whole state of a run; ``copy.deepcopy`` is a checkpoint."""

    net: Network
    optimizer: Optimizer
    settings: Settings
    theta: F32
    rng: np.random.Generator
    noise_rng: np.random.Generator
    step: int = 0
    order: INT = field(default_factory=lambda: np.zeros(0, np.int64))
    memory: GradientMemory = field(default_factory=GradientMemory)

    @classmethod
    def start(cls, net: Network, optimizer: str, settings: Settings, seed: int) -> Trainer:
        rng = np.random.default_rng(seed)
        opt = OPTIMIZERS[optimizer](d=size(net.shapes), beta=settings.beta)
        return cls(net, opt, settings, net.init(rng), rng, np.random.default_rng([seed, 1]))

    def parameter_views(self, vector: F32 | None = None) -> dict[str, F32]:
        return unflatten(self.theta if vector is None else vector, self.net.shapes)

    def next_batch(self, data: Digits) -> tuple[F32, INT]:
        """The next batch of the current epoch; what is left at its end is dropped."""
        if len(self.order) < self.settings.batch:
            self.order = self.rng.permutation(len(data.y))
        rows, self.order = self.order[: self.settings.batch], self.order[self.settings.batch :]
        return data.x[rows], data.y[rows]

    def advance(self, data: Digits, log: Log, until: int, event: Event | None = None) -> None:
        """Train up to step ``until`` (exclusive), logging every step."""
        with np.errstate(all="ignore"):  # a run that overflows is recorded, not stopped
            while self.step < until:
                self._update(data, log, event)
                self.step += 1

    def _update(self, data: Digits, log: Log, event: Event | None) -> None:
        s, t = self.settings, self.step
        level, p = event.now(t) if event else (None, None)
        if event and level is not None and p and p.kind in STATE and t == event.start:
            STATE[p.kind](self, level, event.rng)
        if t % s.eval_every == 0:
            loss, accuracy = evaluate(self.net, self.theta, data.x_val, data.y_val)
            log.add("val/loss", t, loss)
            log.add("val/accuracy", t, accuracy)

        x, y = self.next_batch(data)
        if event and level is not None and p and p.kind in BATCH:
            x, y = BATCH[p.kind](x, y, level, event.rng, event.held)
        losses, grads = self.net.micro_gradients(self.theta, x.reshape(MICRO, -1, x.shape[-1]), y.reshape(MICRO, -1))
        gradient = grads.mean(axis=0)
        log_micro(log, t, losses, gradient, grads)
        if s.grad_noise:
            gradient = GRADIENT["grad_noise"](gradient, s.grad_noise, self.noise_rng)
        if event and level is not None and p and p.kind in GRADIENT:
            gradient = GRADIENT[p.kind](gradient, level, event.rng)
        n = log_gradient(log, t, gradient, self.optimizer.momentum, self.memory)
        lr, self.optimizer.beta, clip = s.lr, s.beta, s.clip
        if level is not None and p:
            lr = s.lr * level if p.kind == "lr_spike" else s.lr
            self.optimizer.beta = level if p.kind == "momentum" else s.beta
            clip = level if p.kind == "clip" else s.clip
        if n > clip:
            gradient = gradient * np.float32(clip / n)
        change = self.optimizer.step(gradient, lr)
        log.add("train/lr", t, lr)
        log.add("train/update_norm", t, norm(change))
        log.add("train/param_norm", t, norm(self.theta))
        self.theta = self.theta + change


def record_seed(
    net: Network,
    optimizer: str,
    settings: Settings,
    seed: int,
    arms: dict[str, Perturbation | None],
    data: Digits,
) -> dict[str, Log]:
    """Train one trunk to the fork and every arm from there; an arm of None is the control, the twin of the others."""
    trunk, shared = Trainer.start(net, optimizer, settings, seed), Log()
    trunk.advance(data, shared, settings.fork)
    return fork(
        trunk, shared, arms, settings.fork, seed, lambda t, log, event: t.advance(data, log, settings.steps, event)
    )
