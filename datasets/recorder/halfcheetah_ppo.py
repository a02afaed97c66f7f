"""PPO (Schulman et al. 2017) on HalfCheetah-v5, every update logged, as `recorder.ppo` logs the cart and pole.

One update is a rollout of 500 steps of 4 environments (2,000 environment steps) and ten epochs over it in minibatches
of 100, so 200 gradient steps, by Adam, gradients clipped at norm 0.5. Observations are normalised by their running
mean and sd. Norms and cosines of a row are means over the gradient steps of the update; ``train/update_norm`` is the
distance the parameters moved over all of it; ``train/grad_cos_last10`` is of the last ten gradients.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from recorder.halfcheetah import OBSERVED, TORQUES, Cheetah, evaluate
from recorder.halfcheetah_networks import Shapes, act, fresh, gradient, run, shapes, tensors
from recorder.monitor import GradientMemory, Log, cosine, norm
from recorder.networks import size, unflatten
from recorder.optimizers import Adam
from recorder.perturb import STATE, Event
from recorder.ppo import CLIP, GAMMA, LAMBDA, MAX_NORM, VALUE_WEIGHT

F32 = NDArray[np.float32]

CHEETAHS, HORIZON, EPOCHS, MINIBATCH = 4, 500, 10, 100
UNIT = CHEETAHS * HORIZON  # environment steps in an update, and in a duration of 1
REWARD_SCALE = 0.1  # of the reward that is learned from; returns are logged unscaled
FIRST_LOG_SD, SMALL, SEEN_LIMIT = -0.5, 0.01, 10.0


class PPO:
    """The whole state of a run; ``copy.deepcopy`` is a checkpoint. ``step`` counts environment steps."""

    algorithm = "ppo"

    def __init__(self, seed: int, width: int = 64, lr: float = 3e-4) -> None:
        self.seed, self.width, self.lr = seed, width, lr
        self.rng = np.random.default_rng(seed)
        self.shapes: Shapes = (
            shapes("v", OBSERVED, width, 1) | shapes("pi", OBSERVED, width, TORQUES) | {"log_sd": (1, TORQUES)}
        )
        self.theta = np.concatenate(
            [fresh(s, self.rng, OBSERVED if "1" in n else width).ravel() for n, s in self.shapes.items()]
        )
        views = self.parameter_views()
        views["pi_w3"] *= np.float32(SMALL)
        views["log_sd"][...] = FIRST_LOG_SD
        self.adam = Adam(d=size(self.shapes))
        chance = np.random.default_rng([seed, 1])
        self.cheetahs = [Cheetah(chance) for _ in range(CHEETAHS)]
        self.seen_n, self.seen_mean, self.seen_var = 0, np.zeros(OBSERVED), np.ones(OBSERVED)
        self.memory, self.step = GradientMemory(), 0

    @property
    def name(self) -> str:
        return f"mlp{self.width}"

    def parameter_views(self, vector: F32 | None = None) -> dict[str, F32]:
        return unflatten(self.theta if vector is None else vector, self.shapes)

    def normal(self, obs: F32) -> F32:
        """Observations in running sd from their running mean."""
        z = (obs - self.seen_mean) / np.sqrt(self.seen_var + 1e-8)
        return np.clip(z, -SEEN_LIMIT, SEEN_LIMIT).astype(np.float32)

    def policy(self, obs: F32) -> F32:
        """Mean action ``(n, 6)``."""
        return act(self.parameter_views(), "pi", self.normal(obs), tanh=True)

    def advance(self, log: Log, until: int, event: Event | None = None) -> None:
        """Train up to environment step ``until`` (exclusive, a multiple of an update), logging every update."""
        with np.errstate(all="ignore"):  # a run that overflows is recorded, not stopped
            while self.step < until:
                self._update(log, event)
                self.step += UNIT

    def _update(self, log: Log, event: Event | None) -> None:
        kind, level = "", 1.0
        if event is not None:
            now, perturbation = event.now(self.step // UNIT)
            if now is not None:
                kind, level = perturbation.kind, now
                if kind in STATE:
                    STATE[kind](self, level, event.rng)
        returns = evaluate(self.policy, self.seed, self.step)
        log.add("eval/return", self.step, float(returns.mean()))
        log.add("eval/return_sd", self.step, float(returns.std(ddof=1)))
        obs, raw, action, old, advantage, target, td = self._collect(log, kind, level, event)
        spread = float(np.var(target))
        residual = advantage  # target minus value
        log.add("train/explained_variance", self.step, 1 - float(np.var(residual)) / spread if spread > 0 else 0.0)
        log.add("train/td_error", self.step, float(np.mean(np.abs(td))))
        lr = self.lr * (level if kind == "lr_spike" else 1.0)
        before, rows, last10 = self.theta.copy(), [], float("nan")
        data = [torch.from_numpy(a) for a in (obs, action, old, advantage, target)]
        p = tensors(self.parameter_views())
        for _ in range(EPOCHS):
            for part in self.rng.permutation(UNIT).reshape(-1, MINIBATCH):
                index = torch.from_numpy(part)
                parts, flat = self._loss(p, *(a[index] for a in data))
                g, m = flat.astype(np.float64), self.adam.momentum.astype(np.float64)
                n = norm(g)
                successive, last10 = self.memory.push(g)
                rows.append(
                    parts | {"grad_norm": n, "grad_cos": successive, "momentum_cos": cosine(float(m @ g), norm(m), n)}
                )
                self.theta += self.adam.step(flat * np.float32(MAX_NORM / n) if n > MAX_NORM else flat, lr)
        for name in rows[0]:
            values = [row[name] for row in rows]
            # the very first gradient of a run has none before it
            first = self.step == 0 and name == "grad_cos"
            log.add(f"train/{name}", self.step, float(np.mean(values[1:] if first else values)))
        log.add("train/grad_cos_last10", self.step, last10)
        log.add("train/update_norm", self.step, norm(self.theta - before))
        log.add("train/param_norm", self.step, norm(before))
        log.add("train/lr", self.step, lr)
        self._count(raw)

    def _loss(
        self,
        p: dict[str, torch.Tensor],
        obs: torch.Tensor,
        action: torch.Tensor,
        old: torch.Tensor,
        advantage: torch.Tensor,
        target: torch.Tensor,
    ) -> tuple[dict[str, float], F32]:
        """Parts of the loss of a minibatch and the flat gradient of the whole."""
        log_sd = p["log_sd"]
        z = (action - run(p, "pi", obs, tanh=True)) / log_sd.exp()
        log_p = (-0.5 * z**2 - log_sd - 0.5 * np.log(2 * np.pi)).sum(dim=1)
        a = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_ratio = log_p - old
        ratio = log_ratio.exp()
        policy_loss = -torch.minimum(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a).mean()
        value_loss = ((run(p, "v", obs, tanh=True)[:, 0] - target) ** 2).mean()
        loss = policy_loss + VALUE_WEIGHT * value_loss
        flat = gradient(loss, list(p.values()))
        with torch.no_grad():
            parts = {
                "policy_loss": float(policy_loss),
                "value_loss": float(value_loss),
                "entropy": float((log_sd + 0.5 * np.log(2 * np.pi * np.e)).sum()),
                "approx_kl": float((ratio - 1 - log_ratio).mean()),
                "clip_fraction": float(((ratio - 1).abs() > CLIP).float().mean()),
                "loss": float(loss),
            }
        return parts, flat

    def _collect(self, log: Log, kind: str, level: float, event: Event | None) -> tuple[F32, ...]:
        """A rollout, flattened: what was seen (normalised, raw), done, log-probability, advantage, target, TD error."""
        p = self.parameter_views()
        sd = np.exp(p["log_sd"][0])
        shape = (HORIZON, CHEETAHS)
        raw, seen = np.empty((*shape, OBSERVED), np.float32), np.empty((*shape, OBSERVED), np.float32)
        action = np.empty((*shape, TORQUES), np.float32)
        reward, cut, beyond = np.empty(shape, np.float32), np.zeros(shape, bool), np.zeros(shape, np.float32)
        for t in range(HORIZON):
            raw[t] = [c.obs for c in self.cheetahs]
            if kind == "obs_noise" and event is not None:
                raw[t] += (level * event.rng.standard_normal(raw[t].shape)).astype(np.float32)
            seen[t] = self.normal(raw[t])
            noise = self.rng.standard_normal((CHEETAHS, TORQUES)).astype(np.float32)
            action[t] = act(p, "pi", seen[t], tanh=True) + sd * noise
            for k, cheetah in enumerate(self.cheetahs):
                reached, reward[t, k], over = cheetah.step(action[t, k])
                if over:  # the episode was cut off, not lost: what would have come counts
                    cut[t, k], beyond[t, k] = True, act(p, "v", self.normal(reached[None]), tanh=True)[0, 0]
                    log.add("rollout/episode_return", self.step + t * CHEETAHS + k + 1, cheetah.total)
                    cheetah.reset()
        flat_seen = seen.reshape(-1, OBSERVED)
        z = (action - act(p, "pi", flat_seen, tanh=True).reshape(action.shape)) / sd
        old = (-0.5 * z**2 - np.log(sd) - np.float32(0.5 * np.log(2 * np.pi))).sum(axis=2)
        value = act(p, "v", flat_seen, tanh=True)[:, 0].reshape(shape)
        last = act(p, "v", self.normal(np.stack([c.obs for c in self.cheetahs])), tanh=True)[:, 0]
        following = np.where(cut, beyond, np.concatenate([value[1:], last[None]]))
        scale = REWARD_SCALE * (level if kind == "reward_scale" else 1.0)
        td = (scale * reward + GAMMA * following - value).astype(np.float32)
        advantage, ahead = np.empty(shape, np.float32), np.zeros(CHEETAHS, np.float32)
        for t in reversed(range(HORIZON)):
            ahead = td[t] + np.float32(GAMMA * LAMBDA) * ~cut[t] * ahead
            advantage[t] = ahead
        flat = [a.ravel() for a in (old.astype(np.float32), advantage, advantage + value, td)]
        return flat_seen, raw.reshape(-1, OBSERVED), action.reshape(-1, TORQUES), *flat

    def _count(self, raw: F32) -> None:
        """Add a rollout to the running mean and variance of what is observed."""
        n, mean, var = len(raw), raw.mean(axis=0, dtype=np.float64), raw.var(axis=0, dtype=np.float64)
        total, shift = self.seen_n + n, mean - self.seen_mean
        spread = self.seen_var * self.seen_n + var * n + shift**2 * self.seen_n * n / total
        self.seen_mean, self.seen_var, self.seen_n = self.seen_mean + shift * n / total, spread / total, total
