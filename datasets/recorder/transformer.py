"""A character-level transformer in torch, trained by Adam with warm-up and cosine decay, every step logged.

The text is the help topics that ship with Python (``pydoc_data.topics``). A batch is eight sequences, each its own
micro-batch; their gradients come from one vectorised pass. Everything but that pass (optimizer, monitor, perturbations)
is shared with the digits recordings. Row t describes the parameters that enter update t and that update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pydoc_data.topics import topics

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import grad_and_value, vmap
from torch.nn import functional

from recorder.forking import fork
from recorder.monitor import GradientMemory, Log, log_gradient, log_micro, norm
from recorder.networks import size, unflatten
from recorder.optimizers import Adam
from recorder.perturb import GRADIENT, STATE, Event, Perturbation

F32 = NDArray[np.float32]
INT = NDArray[np.int64]

MICRO = 8  # sequences in a batch
CHARACTERS = "\n" + "".join(chr(c) for c in range(32, 127))
LAYERS, HEAD = 4, 32  # blocks; width of an attention head
VALIDATION_SHARE, VALIDATION_BATCH = 0.1, 32
TEXT_KINDS = {
    "token_noise": "a share `level` of the input characters replaced by random ones",
    "label_noise": "a share `level` of the targets replaced by random ones",
    "label_shuffle": "targets permuted inside the batch",
    "repeat_batch": "the first batch of the event again and again",
}


@dataclass(frozen=True)
class Text:
    """The characters as numbers, cut once into a training and a validation part."""

    train: INT
    validation: INT

    @classmethod
    def load(cls) -> Text:
        index = {c: k for k, c in enumerate(CHARACTERS)}
        text = "\n".join(topics[name] for name in sorted(topics))
        codes = np.array([index[c] for c in text if c in index], np.int64)
        cut = int(len(codes) * (1 - VALIDATION_SHARE))
        return cls(codes[:cut], codes[cut:])


@dataclass(frozen=True)
class Settings:
    """What the runs of one recording have in common."""

    lr: float = 5e-3
    steps: int = 300
    fork: int = 150
    warmup: int = 30
    context: int = 64
    beta: float = 0.9
    eval_every: int = 3

    def schedule(self, step: int) -> float:
        """Linear warm-up, then a cosine to a tenth."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        share = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * (0.55 + 0.45 * math.cos(math.pi * share))


@dataclass(frozen=True)
class Transformer:
    """Pre-norm decoder with learned positions; the output layer is tied to the embedding."""

    width: int = 64
    context: int = 64

    @property
    def name(self) -> str:
        return f"tf{self.width}"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        d = self.width
        shapes: dict[str, tuple[int, ...]] = {"embed": (len(CHARACTERS), d), "position": (self.context, d)}
        for k in range(LAYERS):
            shapes |= {
                f"{k}.norm1": (d,), f"{k}.qkv": (d, 3 * d), f"{k}.out": (d, d),
                f"{k}.norm2": (d,), f"{k}.up": (d, 4 * d), f"{k}.down": (4 * d, d),
            }  # fmt: skip
        return shapes | {"norm": (d,), "bias": (len(CHARACTERS),)}

    def init(self, rng: np.random.Generator) -> F32:
        """Normal: embeddings of sd 0.08, weights 0.5 / sqrt(fan-in), less where they end a branch; norms are 1."""
        parts = []
        for name, shape in self.shapes.items():
            if len(shape) == 1:
                parts.append(np.full(shape, 1.0 if "norm" in name else 0.0))
            else:
                sd = 0.08 if name in ("embed", "position") else 0.5 / math.sqrt(shape[0])
                sd /= math.sqrt(2 * LAYERS) if name.endswith(("out", "down")) else 1
                parts.append(sd * rng.standard_normal(shape))
        return np.concatenate([p.ravel() for p in parts]).astype(np.float32)

    def loss(self, p: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of sequences ``(n, context)``."""
        d, heads = self.width, self.width // HEAD
        h = p["embed"][x] + p["position"]
        for k in range(LAYERS):
            a = functional.layer_norm(h, (d,)) * p[f"{k}.norm1"]
            q, key, v = (a @ p[f"{k}.qkv"]).unflatten(-1, (3, heads, HEAD)).unbind(-3)
            q, key, v = (t.transpose(-3, -2) for t in (q, key, v))
            score = (q @ key.transpose(-1, -2)) / math.sqrt(HEAD) + self._mask()
            mixed = (score.softmax(dim=-1) @ v).transpose(-3, -2).flatten(-2)
            h = h + mixed @ p[f"{k}.out"]
            a = functional.layer_norm(h, (d,)) * p[f"{k}.norm2"]
            h = h + functional.gelu(a @ p[f"{k}.up"]) @ p[f"{k}.down"]
        h = functional.layer_norm(h, (d,)) * p["norm"]
        logits = h @ p["embed"].T + p["bias"]
        return functional.cross_entropy(logits.flatten(0, -2), y.flatten())

    def _mask(self) -> torch.Tensor:
        return torch.full((self.context, self.context), float("-inf")).triu(1)

    def tensors(self, theta: F32) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in unflatten(theta, self.shapes).items()}

    def micro_gradients(self, theta: F32, x: INT, y: INT) -> tuple[F32, F32]:
        """Loss ``(n_micro,)`` and gradient ``(n_micro, d)``, one sequence a micro-batch."""
        one = grad_and_value(lambda p, a, b: self.loss(p, a[None], b[None]))
        grads, losses = vmap(one, in_dims=(None, 0, 0))(self.tensors(theta), torch.from_numpy(x), torch.from_numpy(y))
        flat = torch.cat([grads[name].flatten(1) for name in self.shapes], dim=1)
        return losses.numpy(), flat.numpy()


@dataclass
class Trainer:
    """The whole state of a run; ``copy.deepcopy`` is a checkpoint."""

    net: Transformer
    optimizer: Adam
    settings: Settings
    theta: F32
    rng: np.random.Generator
    step: int = 0
    memory: GradientMemory = field(default_factory=GradientMemory)

    @classmethod
    def start(cls, net: Transformer, settings: Settings, seed: int) -> Trainer:
        rng = np.random.default_rng(seed)
        return cls(net, Adam(d=size(net.shapes), beta=settings.beta), settings, net.init(rng), rng)

    def parameter_views(self, vector: F32 | None = None) -> dict[str, F32]:
        return unflatten(self.theta if vector is None else vector, self.net.shapes)

    def advance(self, text: Text, log: Log, until: int, event: Event | None = None) -> None:
        """Train up to step ``until`` (exclusive), logging every step."""
        with np.errstate(all="ignore"):  # a run that overflows is recorded, not stopped
            while self.step < until:
                self._update(text, log, event)
                self.step += 1

    def evaluate(self, text: Text) -> float:
        """Loss on a fixed set of validation sequences, evenly spread over the part held out."""
        last = len(text.validation) - self.settings.context - 1
        starts = np.linspace(0, last, VALIDATION_BATCH).astype(np.int64)
        x, y = windows(text.validation, starts, self.settings.context)
        with torch.no_grad():
            return self.net.loss(self.net.tensors(self.theta), torch.from_numpy(x), torch.from_numpy(y)).item()

    def _update(self, text: Text, log: Log, event: Event | None) -> None:
        s, t = self.settings, self.step
        kind, level = "", 1.0
        if event is not None:
            now, p = event.now(t)
            if now is not None:
                kind, level = p.kind, now
                if kind in STATE and t == event.start:
                    STATE[kind](self, level, event.rng)
        if t % s.eval_every == 0:
            log.add("val/loss", t, self.evaluate(text))
        x, y = windows(text.train, self.rng.integers(0, len(text.train) - s.context - 1, MICRO), s.context)
        if event is not None and kind in TEXT_KINDS:
            x, y = corrupt(x, y, kind, level, event)
        losses, grads = self.net.micro_gradients(self.theta, x, y)
        gradient = grads.mean(axis=0)
        log_micro(log, t, losses, gradient, grads)
        if event is not None and kind in GRADIENT:
            gradient = GRADIENT[kind](gradient, level, event.rng)
        log_gradient(log, t, gradient, self.optimizer.momentum, self.memory)
        lr = s.schedule(max(t, s.warmup) if kind == "no_warmup" else t) * (
            level if kind in ("lr_spike", "no_warmup") else 1.0
        )
        self.optimizer.beta = level if kind == "momentum" else s.beta
        change = self.optimizer.step(gradient, lr)
        log.add("train/lr", t, lr)
        log.add("train/update_norm", t, norm(change))
        log.add("train/param_norm", t, norm(self.theta))
        self.theta = self.theta + change


def windows(codes: INT, starts: INT, context: int) -> tuple[INT, INT]:
    """Sequences from the given starts and the same shifted by one character."""
    rows = starts[:, None] + np.arange(context + 1)
    taken = codes[rows]
    return np.ascontiguousarray(taken[:, :-1]), np.ascontiguousarray(taken[:, 1:])


def corrupt(x: INT, y: INT, kind: str, level: float, event: Event) -> tuple[INT, INT]:
    """A perturbation of the batch; see `TEXT_KINDS`."""
    rng = event.rng
    if kind == "repeat_batch":
        if not event.held:
            event.held.append((x, y))
        return event.held[0]
    if kind == "label_shuffle":
        return x, rng.permutation(y.ravel()).reshape(y.shape)
    swap, other = rng.random(x.shape) < level, rng.integers(0, len(CHARACTERS), x.shape)
    return (np.where(swap, other, x), y) if kind == "token_noise" else (x, np.where(swap, other, y))


def record_seed(
    net: Transformer, settings: Settings, seed: int, arms: dict[str, Perturbation | None], text: Text
) -> dict[str, Log]:
    """Train one trunk to the fork and every arm from there; an arm of None is the control, the twin of the others."""
    torch.set_num_threads(1)
    trunk, shared = Trainer.start(net, settings, seed), Log()
    trunk.advance(text, shared, settings.fork)
    return fork(
        trunk, shared, arms, settings.fork, seed, lambda t, log, event: t.advance(text, log, settings.steps, event)
    )
