"""Proximal policy optimization (Schulman et al. 2017) in numpy on the cart and pole, every update logged.

One update is a rollout of 64 steps of 16 carts (1,024 environment steps) and four epochs over it in minibatches of 256,
by Adam, gradients clipped at norm 0.5. A row of the log is one update and its step is the number of environment steps
before it; episode returns stand at the environment step at which their episode ended, not averaged. Norms and cosines
of a row are means over the 16 minibatch gradients of the update; ``train/update_norm`` is the distance the parameters
moved over the whole update; ``train/grad_cos_last10`` is of the last ten minibatch gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recorder.cartpole import CartPoles
from recorder.forking import fork
from recorder.monitor import GradientMemory, Log, cosine, norm
from recorder.networks import size, unflatten
from recorder.optimizers import Adam
from recorder.perturb import STATE, Event, Perturbation

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

CARTS, HORIZON, EPOCHS, MINIBATCH = 16, 64, 4, 256
PER_UPDATE = CARTS * HORIZON
GAMMA, LAMBDA, CLIP, VALUE_WEIGHT, MAX_NORM = 0.99, 0.95, 0.2, 0.5, 0.5
REWARD_SCALE = 0.05  # of the reward that is learned from; returns are logged unscaled
EVALUATION_EPISODES = 16

ROLES: dict[str, str] = {
    "rollout/episode_return": "return",
    "eval/return": "eval_return",
    "train/loss": "loss",
    "train/policy_loss": "policy_loss",
    "train/value_loss": "value_loss",
    "train/entropy": "entropy",
    "train/approx_kl": "kl",
    "train/clip_fraction": "clip_fraction",
    "train/explained_variance": "explained_variance",
    "train/td_error": "td_error",
    "train/grad_norm": "grad_norm",
    "train/grad_cos": "grad_cos",
    "train/grad_cos_last10": "grad_cos",
    "train/momentum_cos": "grad_cos",
    "train/update_norm": "update_norm",
    "train/param_norm": "param_norm",
    "train/lr": "lr",
}

# Kinds that act on the rollout or on the settings; those on the state are `recorder.perturb.STATE`
KINDS = {
    "lr_spike": "learning rate times the level",
    "entropy_bonus": "level added to the weight of the entropy bonus",
    "obs_noise": "Gaussian noise of sd `level` on what the policy sees while it collects",
    "action_noise": "a share `level` of the actions replaced by random ones while it collects",
    "force_drift": "force of a push times (1 + level), in training and evaluation",
    "reward_scale": "reward times the level; -1 turns its sign",
    "reward_drift": "reward times (1 + level)",
    "reward_noise": "Gaussian noise of sd `level` on each reward of 1",
    "advantage_noise": "Gaussian noise of sd `level` on the normalised advantages",
}


@dataclass(frozen=True)
class ActorCritic:
    """Two networks of one hidden tanh layer each, value first, policy last, on one flat vector."""

    width: int = 64

    @property
    def name(self) -> str:
        return f"ac{self.width}"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        h = self.width
        return {
            "v1": (4, h), "c1": (h,), "v2": (h, 1), "c2": (1,),
            "w1": (4, h), "b1": (h,), "w2": (h, 2), "b2": (2,),
        }  # fmt: skip

    def init(self, rng: np.random.Generator) -> F32:
        gain = {"v1": 1.0, "v2": 1.0, "w1": 1.0, "w2": 0.01}
        parts = [
            gain.get(name, 0.0) * rng.standard_normal(shape) / np.sqrt(shape[0]) for name, shape in self.shapes.items()
        ]
        return np.concatenate([p.ravel() for p in parts]).astype(np.float32)

    def policy(self, p: dict[str, F32], obs: F32) -> tuple[F32, F32]:
        """Log-probabilities ``(n, 2)`` and the hidden layer."""
        hidden = np.tanh(obs @ p["w1"] + p["b1"])
        logits = hidden @ p["w2"] + p["b2"]
        logits = logits - logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), hidden

    def value(self, p: dict[str, F32], obs: F32) -> tuple[F32, F32]:
        """Values ``(n,)`` and the hidden layer."""
        hidden = np.tanh(obs @ p["v1"] + p["c1"])
        return (hidden @ p["v2"] + p["c2"])[:, 0], hidden

    def loss(
        self, theta: F32, obs: F32, action: NDArray[np.int64], old: F32, advantage: F32, target: F32, bonus: float
    ) -> tuple[dict[str, float], F32]:
        """Parts of the loss of a minibatch and the gradient of the whole."""
        p = unflatten(theta, self.shapes)
        (log_p, hidden), (value, hidden_v) = self.policy(p, obs), self.value(p, obs)
        n, rows = len(obs), np.arange(len(obs))
        prob, log_ratio = np.exp(log_p), log_p[rows, action] - old
        ratio = np.exp(log_ratio)
        plain, clipped = ratio * advantage, np.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage
        entropy = -(prob * log_p).sum(axis=1)
        parts = {
            "policy_loss": float(-np.minimum(plain, clipped).mean()),
            "value_loss": float(np.mean((value - target) ** 2)),
            "entropy": float(entropy.mean()),
            "approx_kl": float(np.mean(ratio - 1 - log_ratio)),
            "clip_fraction": float(np.mean(np.abs(ratio - 1) > CLIP)),
        }
        parts["loss"] = parts["policy_loss"] + VALUE_WEIGHT * parts["value_loss"] - bonus * parts["entropy"]

        gradient = np.empty_like(theta)
        g = unflatten(gradient, self.shapes)
        onehot = np.zeros_like(prob)
        onehot[rows, action] = 1
        through = np.where(plain <= clipped, -plain, 0) / n  # the clipped branch has no slope
        back = through[:, None] * (onehot - prob) + bonus / n * prob * (log_p + entropy[:, None])
        _dense(g, ("w2", "b2"), hidden, back)
        _dense(g, ("w1", "b1"), obs, (back @ p["w2"].T) * (1 - hidden**2))
        back_v = (2 * VALUE_WEIGHT / n * (value - target))[:, None]
        _dense(g, ("v2", "c2"), hidden_v, back_v)
        _dense(g, ("v1", "c1"), obs, (back_v @ p["v2"].T) * (1 - hidden_v**2))
        return parts, gradient


def _dense(g: dict[str, F32], names: tuple[str, str], inputs: F32, back: F32) -> None:
    g[names[0]][...] = inputs.T @ back
    g[names[1]][...] = back.sum(axis=0)


@dataclass(frozen=True)
class Settings:
    """What the runs of one recording have in common; steps count updates here."""

    lr: float = 3e-4
    updates: int = 160
    fork: int = 60
    entropy_bonus: float = 0.0
    eval_every: int = 2


@dataclass
class Trainer:
    """The whole state of a run; ``copy.deepcopy`` is a checkpoint."""

    net: ActorCritic
    settings: Settings
    theta: F32
    optimizer: Adam
    carts: CartPoles
    rng: np.random.Generator  # actions and minibatches
    eval_seed: int
    update: int = 0
    running: F64 = field(default_factory=lambda: np.zeros(CARTS))
    memory: GradientMemory = field(default_factory=GradientMemory)

    @classmethod
    def start(cls, net: ActorCritic, settings: Settings, seed: int) -> Trainer:
        rng = np.random.default_rng(seed)
        optimizer = Adam(d=size(net.shapes))
        return cls(
            net, settings, net.init(rng), optimizer, CartPoles(CARTS, np.random.default_rng([seed, 1])), rng, seed
        )

    def parameter_views(self, vector: F32 | None = None) -> dict[str, F32]:
        return unflatten(self.theta if vector is None else vector, self.net.shapes)

    def advance(self, log: Log, until: int, event: Event | None = None) -> None:
        """Train up to update ``until`` (exclusive), logging every update."""
        with np.errstate(all="ignore"):  # a run that overflows is recorded, not stopped
            while self.update < until:
                self._update(log, event)
                self.update += 1

    def _update(self, log: Log, event: Event | None) -> None:
        step = self.update * PER_UPDATE
        kind, level = "", 1.0
        if event is not None:
            now, p = event.now(self.update)
            if now is not None:
                kind, level = p.kind, now
                if kind in STATE and self.update == event.start:
                    STATE[kind](self, level, event.rng)
        noise = event.rng if event is not None else None
        force = 1.0 + level if kind == "force_drift" else 1.0
        if self.update % self.settings.eval_every == 0:
            log.add("eval/return", step, self.evaluate(force))
        obs, action, old, advantage, target, td, value = self._collect(log, step, kind, level, noise, force)
        residual = target - value
        spread = float(np.var(target))
        log.add("train/explained_variance", step, 1 - float(np.var(residual)) / spread if spread > 0 else 0.0)
        log.add("train/td_error", step, float(np.mean(np.abs(td))))
        lr = self.settings.lr * (level if kind == "lr_spike" else 1.0)
        bonus = self.settings.entropy_bonus + (level if kind == "entropy_bonus" else 0.0)
        before, rows, last10 = self.theta, [], float("nan")
        for _ in range(EPOCHS):
            for part in self.rng.permutation(PER_UPDATE).reshape(-1, MINIBATCH):
                a = advantage[part]
                a = (a - a.mean()) / (a.std() + np.float32(1e-8))
                if kind == "advantage_noise" and noise is not None:
                    a = a + (level * noise.standard_normal(len(a))).astype(np.float32)
                parts, gradient = self.net.loss(self.theta, obs[part], action[part], old[part], a, target[part], bonus)
                g = gradient.astype(np.float64)
                n = norm(g)
                successive, last10 = self.memory.push(g)
                m = self.optimizer.momentum.astype(np.float64)
                parts |= {"grad_norm": n, "grad_cos": successive, "momentum_cos": cosine(float(m @ g), norm(m), n)}
                rows.append(parts)
                if n > MAX_NORM:
                    gradient = gradient * np.float32(MAX_NORM / n)
                self.theta = self.theta + self.optimizer.step(gradient, lr)
        for name in rows[0]:
            values = [row[name] for row in rows]
            # the very first gradient of a run has none before it
            log.add(f"train/{name}", step, float(np.mean(values[1:] if step == 0 and name == "grad_cos" else values)))
        log.add("train/grad_cos_last10", step, last10)
        log.add("train/update_norm", step, norm(self.theta - before))
        log.add("train/param_norm", step, norm(before))
        log.add("train/lr", step, lr)

    def _collect(
        self, log: Log, step: int, kind: str, level: float, noise: np.random.Generator | None, force: float
    ) -> tuple[NDArray, ...]:
        """A rollout, flattened: what was seen, done, its log-probability, advantage, target, TD error, value."""
        p = self.parameter_views()
        shape = (HORIZON, CARTS)
        seen = np.empty((*shape, 4), np.float32)
        action, old = np.empty(shape, np.int64), np.empty(shape, np.float32)
        reward, going = np.ones(shape), np.empty(shape, bool)
        for t in range(HORIZON):
            seen[t] = self.carts.state
            if kind == "obs_noise" and noise is not None:
                seen[t] += (level * noise.standard_normal((CARTS, 4))).astype(np.float32)
            log_p, _ = self.net.policy(p, seen[t])
            action[t] = self.rng.random(CARTS) < np.exp(log_p[:, 1])
            if kind == "action_noise" and noise is not None:
                swap = noise.random(CARTS) < level
                action[t] = np.where(swap, noise.integers(0, 2, CARTS), action[t])
            old[t] = log_p[np.arange(CARTS), action[t]]
            reached, fell, ended = self.carts.step(action[t], force)
            self.running += 1
            if kind == "reward_scale":
                reward[t] *= level
            elif kind == "reward_drift":
                reward[t] *= 1 + level
            elif kind == "reward_noise" and noise is not None:
                reward[t] += level * noise.standard_normal(CARTS)
            reward[t] *= REWARD_SCALE
            if ended.any():  # the episode was cut off, not lost: what would have come counts
                reward[t, ended] += GAMMA * self.net.value(p, reached[ended].astype(np.float32))[0]
            going[t] = ~(fell | ended)
            for k in np.flatnonzero(~going[t]):
                log.add("rollout/episode_return", step + t * CARTS + int(k) + 1, float(self.running[k]))
                self.running[k] = 0
        value = self.net.value(p, seen.reshape(-1, 4))[0].reshape(shape)
        following = np.concatenate([value[1:], self.net.value(p, self.carts.state.astype(np.float32))[0][None]])
        td = (reward + GAMMA * going * following - value).astype(np.float32)
        advantage, ahead = np.empty(shape, np.float32), np.zeros(CARTS, np.float32)
        for t in reversed(range(HORIZON)):
            ahead = td[t] + np.float32(GAMMA * LAMBDA) * going[t] * ahead
            advantage[t] = ahead
        flat = (seen.reshape(-1, 4), action, old, advantage, advantage + value, td, value)
        return tuple(a if a.ndim == 2 and a.shape[1] == 4 else a.ravel() for a in flat)

    def evaluate(self, force: float) -> float:
        """Mean return of 16 episodes of the most likely action, from starts drawn anew for each evaluation."""
        p = self.parameter_views()
        carts = CartPoles(EVALUATION_EPISODES, np.random.default_rng([self.eval_seed, 2, self.update]))
        total, alive = np.zeros(EVALUATION_EPISODES), np.ones(EVALUATION_EPISODES, bool)
        while alive.any():
            log_p, _ = self.net.policy(p, carts.state.astype(np.float32))
            _, fell, ended = carts.step(log_p.argmax(axis=1), force)
            total += alive
            alive &= ~(fell | ended)
        return float(total.mean())


def record_seed(
    net: ActorCritic, settings: Settings, seed: int, arms: dict[str, Perturbation | None]
) -> dict[str, Log]:
    """Train one trunk to the fork and every arm from there; an arm of None is the control, the twin of the others."""
    trunk, shared = Trainer.start(net, settings, seed), Log()
    trunk.advance(shared, settings.fork)
    return fork(trunk, shared, arms, settings.fork, seed, lambda t, log, event: t.advance(log, settings.updates, event))
