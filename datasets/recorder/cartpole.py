"""Cart and pole (Barto, Sutton & Anderson 1983), many at once, with the constants and limits of CartPole-v0.

State: cart position and velocity, pole angle and angular velocity. Actions push left or right with a fixed force; an
episode ends when the pole leans more than 12 degrees, the cart is 2.4 away or 200 steps are done. Reward 1 a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

GRAVITY, CART, POLE, HALF_LENGTH, TICK = 9.8, 1.0, 0.1, 0.5, 0.02
FORCE, FAR, LEAN, LIMIT = 10.0, 2.4, 12 * np.pi / 180, 200


@dataclass
class CartPoles:
    """``n`` independent carts; each restarts by itself."""

    n: int
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.state = self._fresh(self.n)
        self.age = np.zeros(self.n, np.int64)

    def _fresh(self, n: int) -> F64:
        return self.rng.uniform(-0.05, 0.05, (n, 4))

    def step(self, action: NDArray[np.int64], force: float = 1.0) -> tuple[F64, NDArray[np.bool_], NDArray[np.bool_]]:
        """Push all carts; return the states reached, who fell and who reached the limit of steps.

        Carts whose episode ended are put back to a fresh start in ``state``; the states returned are those before that.
        """
        _, v, angle, spin = np.ascontiguousarray(self.state.T)
        push = np.where(action == 1, FORCE, -FORCE) * force
        sin, cos, mass = np.sin(angle), np.cos(angle), CART + POLE
        inner = (push + POLE * HALF_LENGTH * spin**2 * sin) / mass
        turn = (GRAVITY * sin - cos * inner) / (HALF_LENGTH * (4 / 3 - POLE * cos**2 / mass))
        slide = inner - POLE * HALF_LENGTH * turn * cos / mass
        reached = self.state + TICK * np.array([v, slide, spin, turn]).T
        self.age += 1
        fell = (np.abs(reached[:, 0]) > FAR) | (np.abs(reached[:, 2]) > LEAN)
        ended = ~fell & (self.age >= LIMIT)
        over = fell | ended
        self.state = reached.copy()
        if over.any():
            self.state[over] = self._fresh(int(over.sum()))
            self.age[over] = 0
        return reached, fell, ended
