"""SAC (Haarnoja et al. 2018) and TD3 (Fujimoto et al. 2018) on HalfCheetah-v5, one update an environment step.

The first 1,000 steps act at random. A row of the log is 100 environment steps and stands at the first of them: losses,
TD error and gradient norms are means over its 100 updates, cosines over its last ten (``train/grad_cos_last10`` is of
these ten), ``train/update_norm`` is how far all parameters moved over the row. ``train/grad_norm`` and the cosines are
of the two critics. Update k is at environment step 1,000 + k.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from recorder.halfcheetah import OBSERVED, TORQUES, Cheetah, evaluate
from recorder.halfcheetah_networks import Shapes, act, fresh, gradient, run, shapes, tensors
from recorder.monitor import LAST, GradientMemory, Log, cosine, norm
from recorder.networks import size, unflatten
from recorder.optimizers import Adam
from recorder.perturb import STATE, Event

F32 = NDArray[np.float32]

GAMMA, TAU, BATCH, ROW, RANDOM_STEPS = 0.99, 0.005, 128, 100, 1000
MEMORY = 70_000  # transitions kept: all of a run
DELAY, EXPLORE, SMOOTH, SMOOTH_LIMIT = 2, 0.1, 0.2, 0.5  # TD3
LOG_SD = (-5.0, 2.0)  # SAC
EVAL_EVERY = 500
UNIT = 1  # environment steps in a duration of 1


@dataclass
class Replay:
    """All transitions so far: observation, action, reward, what was reached; no episode ends but by its length."""

    n: int = 0
    rows: F32 = field(default_factory=lambda: np.zeros((MEMORY, 2 * OBSERVED + TORQUES + 1), np.float32))

    def add(self, obs: F32, action: F32, reward: float, reached: F32) -> None:
        self.rows[self.n] = np.concatenate([obs, action, [np.float32(reward)], reached])
        self.n += 1

    def draw(self, rng: np.random.Generator) -> tuple[torch.Tensor, ...]:
        rows = torch.from_numpy(self.rows[rng.integers(0, self.n, BATCH)])
        seen, reward, reached = rows[:, : OBSERVED + TORQUES], rows[:, OBSERVED + TORQUES], rows[:, -OBSERVED:]
        return seen, seen[:, :OBSERVED], reward, reached


class OffPolicy:
    """The whole state of a run; ``copy.deepcopy`` is a checkpoint."""

    algorithm = ""
    outputs = TORQUES

    def __init__(self, seed: int, width: int = 128, lr: float = 1e-3) -> None:
        self.seed, self.width, self.lr = seed, width, lr
        self.rng = np.random.default_rng(seed)
        self.critic = shapes("q", OBSERVED + TORQUES, width, 1, copies=2)
        self.actor = shapes("pi", OBSERVED, width, self.outputs)
        self.shapes: Shapes = self.critic | self.actor
        self.cut = size(self.critic)
        self.theta = np.concatenate(
            [fresh(s, self.rng, OBSERVED if "1" in n else width).ravel() for n, s in self.shapes.items()]
        )
        self.target = self.theta.copy()
        self.critic_adam, self.actor_adam = Adam(d=self.cut), Adam(d=len(self.theta) - self.cut)
        self.cheetah = Cheetah(np.random.default_rng([seed, 1]))
        self.replay, self.step = Replay(), 0

    @property
    def name(self) -> str:
        return f"mlp{self.width}"

    def parameter_views(self, vector: F32 | None = None) -> dict[str, F32]:
        return unflatten(self.theta if vector is None else vector, self.shapes)

    def policy(self, obs: F32) -> F32:
        """Action ``(n, 6)`` without exploration."""
        action: F32 = np.tanh(act(self.parameter_views(), "pi", obs)[:, :TORQUES])
        return action

    def explore(self, obs: F32) -> F32:
        """Action with exploration, ``(6,)``."""
        raise NotImplementedError

    def targets(
        self, p: dict[str, torch.Tensor], far: dict[str, torch.Tensor], reward: torch.Tensor, reached: torch.Tensor
    ) -> torch.Tensor:
        """What the critics learn; ``far`` are the slow copies of the parameters."""
        raise NotImplementedError

    def improve(self, p: dict[str, torch.Tensor], obs: torch.Tensor, lr: float) -> dict[str, float]:
        """Update the policy; what to log."""
        raise NotImplementedError

    def advance(self, log: Log, until: int, event: Event | None = None) -> None:
        """Train up to environment step ``until`` (exclusive, a multiple of a row), logging every row."""
        with np.errstate(all="ignore"):  # a run that overflows is recorded, not stopped
            while self.step < until:
                if event is not None and self.step == event.start and event.perturbation.kind in STATE:
                    STATE[event.perturbation.kind](self, event.perturbation.level, event.rng)
                if self.step % EVAL_EVERY == 0:
                    returns = evaluate(self.policy, self.seed, self.step)
                    log.add("eval/return", self.step, float(returns.mean()))
                    log.add("eval/return_sd", self.step, float(returns.std(ddof=1)))
                self._row(log, event)

    def _row(self, log: Log, event: Event | None) -> None:
        start, before, memory = self.step, self.theta.copy(), GradientMemory()
        p, far = tensors(self.parameter_views()), tensors(self.parameter_views(self.target), gradient=False)
        found: dict[str, list[float]] = defaultdict(list)
        lr = self.lr
        for k in range(ROW):
            kind, level = "", 1.0
            if event is not None:
                now, perturbation = event.now(self.step)
                if now is not None:
                    kind, level = perturbation.kind, now
            lr = self.lr * (level if kind == "lr_spike" else 1.0)
            self._act(log, kind, level, event)
            if self.step >= RANDOM_STEPS:
                for channel, value in self._update(p, far, lr, memory if k >= ROW - LAST else None).items():
                    found[channel].append(value)
            self.step += 1
        if not found:
            return
        for channel, values in found.items():
            log.add(f"train/{channel}", start, values[-1] if channel == "grad_cos_last10" else float(np.mean(values)))
        log.add("train/loss", start, float(np.mean(found["value_loss"])) + float(np.mean(found["policy_loss"])))
        log.add("train/update_norm", start, norm(self.theta - before))
        log.add("train/param_norm", start, norm(before))
        log.add("train/lr", start, lr)

    def _act(self, log: Log, kind: str, level: float, event: Event | None) -> None:
        def seen(obs: F32) -> F32:
            if kind == "obs_noise" and event is not None:
                return obs + (level * event.rng.standard_normal(OBSERVED)).astype(np.float32)
            return obs

        obs = seen(self.cheetah.obs)
        action = self.rng.uniform(-1, 1, TORQUES).astype(np.float32) if self.step < RANDOM_STEPS else self.explore(obs)
        reached, reward, over = self.cheetah.step(action)
        self.replay.add(obs, action, reward * level if kind == "reward_scale" else reward, seen(reached))
        if over:
            log.add("rollout/episode_return", self.step + 1, self.cheetah.total)
            self.cheetah.reset()

    def _update(
        self, p: dict[str, torch.Tensor], far: dict[str, torch.Tensor], lr: float, memory: GradientMemory | None
    ) -> dict[str, float]:
        seen, obs, reward, reached = self.replay.draw(self.rng)
        with torch.no_grad():
            target = self.targets(p, far, reward, reached)
        q = run(p, "q", seen)[..., 0]
        error = q - target
        loss = (error**2).mean(dim=1).sum()
        flat = gradient(loss, [p[name] for name in self.critic])
        spread = float(target.var())
        found = {
            "value_loss": loss.item(),
            "td_error": float(error.detach().abs().mean()),
            "q": float(q.detach().mean()),
            "explained_variance": 1 - float(error.detach()[0].var()) / spread if spread > 0 else 0.0,
            "grad_norm": norm(flat),
        }
        if memory is not None:
            g, m = flat.astype(np.float64), self.critic_adam.momentum.astype(np.float64)
            successive, last10 = memory.push(g)
            found["momentum_cos"] = cosine(float(m @ g), norm(m), found["grad_norm"])
            if len(memory.vectors) > 1:
                found |= {"grad_cos": successive, "grad_cos_last10": last10}
        self.theta[: self.cut] += self.critic_adam.step(flat, lr)
        found |= self.improve(p, obs, lr)
        self.target += np.float32(TAU) * (self.theta - self.target)
        return found

    def _descend(self, loss: torch.Tensor, p: dict[str, torch.Tensor], lr: float) -> dict[str, float]:
        """One step of the policy."""
        flat = gradient(loss, [p[name] for name in self.actor])
        self.theta[self.cut :] += self.actor_adam.step(flat, lr)
        return {"policy_loss": loss.item(), "policy_grad_norm": norm(flat)}


class TD3(OffPolicy):
    """Twin delayed deep deterministic policy gradient."""

    algorithm = "td3"

    def explore(self, obs: F32) -> F32:
        noise = EXPLORE * self.rng.standard_normal(TORQUES).astype(np.float32)
        return np.clip(self.policy(obs[None])[0] + noise, -1, 1).astype(np.float32)

    def targets(
        self, p: dict[str, torch.Tensor], far: dict[str, torch.Tensor], reward: torch.Tensor, reached: torch.Tensor
    ) -> torch.Tensor:
        noise = torch.from_numpy(self.rng.standard_normal((BATCH, TORQUES), np.float32))
        action = torch.tanh(run(far, "pi", reached)) + (SMOOTH * noise).clamp(-SMOOTH_LIMIT, SMOOTH_LIMIT)
        ahead = run(far, "q", torch.cat([reached, action.clamp(-1, 1)], dim=1))[..., 0]
        return reward + GAMMA * ahead.amin(dim=0)

    def improve(self, p: dict[str, torch.Tensor], obs: torch.Tensor, lr: float) -> dict[str, float]:
        if self.step % DELAY:
            return {}
        action = torch.tanh(run(p, "pi", obs))
        return self._descend(-run(p, "q", torch.cat([obs, action], dim=1))[0].mean(), p, lr)


class SAC(OffPolicy):
    """Soft actor-critic with a temperature that aims at an entropy of minus the number of torques."""

    algorithm = "sac"
    outputs = 2 * TORQUES

    def __init__(self, seed: int, width: int = 128, lr: float = 1e-3) -> None:
        super().__init__(seed, width, lr)
        self.log_alpha, self.alpha_adam = np.zeros(1, np.float32), Adam(d=1)

    def explore(self, obs: F32) -> F32:
        out = act(self.parameter_views(), "pi", obs[None])[0]
        sd = np.exp(np.clip(out[TORQUES:], *LOG_SD))
        action: F32 = np.tanh(out[:TORQUES] + sd * self.rng.standard_normal(TORQUES).astype(np.float32))
        return action

    def _draw(self, p: dict[str, torch.Tensor], obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = run(p, "pi", obs)
        noise = torch.from_numpy(self.rng.standard_normal((BATCH, TORQUES), np.float32))
        log_sd = out[:, TORQUES:].clamp(*LOG_SD)
        action = torch.tanh(out[:, :TORQUES] + log_sd.exp() * noise)
        density = -0.5 * noise**2 - log_sd - 0.5 * np.log(2 * np.pi) - torch.log(1 - action**2 + 1e-6)
        return action, density.sum(dim=1)

    def targets(
        self, p: dict[str, torch.Tensor], far: dict[str, torch.Tensor], reward: torch.Tensor, reached: torch.Tensor
    ) -> torch.Tensor:
        action, density = self._draw(p, reached)
        ahead = run(far, "q", torch.cat([reached, action], dim=1))[..., 0].amin(dim=0)
        return reward + GAMMA * (ahead - float(np.exp(self.log_alpha[0])) * density)

    def improve(self, p: dict[str, torch.Tensor], obs: torch.Tensor, lr: float) -> dict[str, float]:
        alpha = float(np.exp(self.log_alpha[0]))
        action, density = self._draw(p, obs)
        value = run(p, "q", torch.cat([obs, action], dim=1))[..., 0].amin(dim=0)
        found = self._descend((alpha * density - value).mean(), p, lr)
        entropy = -float(density.detach().mean())
        self.log_alpha += self.alpha_adam.step(np.array([entropy + TORQUES], np.float32), lr)
        return found | {"entropy": entropy, "alpha": alpha}
