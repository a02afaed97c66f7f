"""Systems with known answers, for the tests and proofs of this room."""

from __future__ import annotations

import numpy as np

LOG2 = float(np.log(2))


def var(a: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Stationary VAR(1) with unit noise."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n + 300, a.shape[0]))
    noise = rng.normal(size=x.shape)
    for t in range(1, x.shape[0]):
        x[t] = a @ x[t - 1] + noise[t]
    return x[300:]


def logistic(n: int, x: float = 0.3) -> np.ndarray:
    out = [x]
    for _ in range(n - 1):
        out.append(4 * out[-1] * (1 - out[-1]))
    return np.array(out)


def henon(n: int) -> np.ndarray:
    out = [0.1, 0.1]
    for _ in range(n + 98):
        out.append(1 - 1.4 * out[-1] ** 2 + 0.3 * out[-2])
    return np.array(out[100:])


def logistic_step(x: np.ndarray) -> np.ndarray:
    return 4 * x * (1 - x)


def logistic_jacobian(x: np.ndarray) -> np.ndarray:
    return (4 - 8 * x)[:, :, None]


def henon_step(x: np.ndarray) -> np.ndarray:
    return np.stack([1 - 1.4 * x[:, 0] ** 2 + x[:, 1], 0.3 * x[:, 0]], axis=1)


def henon_jacobian(x: np.ndarray) -> np.ndarray:
    j = np.zeros((len(x), 2, 2))
    j[:, 0, 0], j[:, 0, 1], j[:, 1, 0] = -2.8 * x[:, 0], 1.0, 0.3
    return j


def lorenz_field(x: np.ndarray) -> np.ndarray:
    a, b, c = x.T
    return np.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c], axis=1)


def lorenz_jacobian(x: np.ndarray) -> np.ndarray:
    j = np.zeros((len(x), 3, 3))
    j[:, 0, 0], j[:, 0, 1] = -10.0, 10.0
    j[:, 1, 0], j[:, 1, 1], j[:, 1, 2] = 28 - x[:, 2], -1.0, -x[:, 0]
    j[:, 2, 0], j[:, 2, 1], j[:, 2, 2] = x[:, 1], x[:, 0], -8 / 3
    return j


def rossler_field(x: np.ndarray) -> np.ndarray:
    a, b, c = x.T
    return np.stack([-b - c, a + 0.2 * b, 0.2 + c * (a - 5.7)], axis=1)


def rossler_jacobian(x: np.ndarray) -> np.ndarray:
    j = np.zeros((len(x), 3, 3))
    j[:, 0, 1] = j[:, 0, 2] = -1.0
    j[:, 1, 0], j[:, 1, 1] = 1.0, 0.2
    j[:, 2, 0], j[:, 2, 2] = x[:, 2], x[:, 0] - 5.7
    return j


def orbit(field, x0: list[float], dt: float, n: int, skip: int, sub: int) -> np.ndarray:
    """Sampled every dt, integrated by Runge-Kutta in ``sub`` steps each."""
    x, h, out = np.array([x0]), dt / sub, []
    for _ in range(n + skip):
        for _ in range(sub):
            a = field(x)
            b = field(x + h / 2 * a)
            c = field(x + h / 2 * b)
            x = x + h / 6 * (a + 2 * b + 2 * c + field(x + h * c))
        out.append(x[0])
    return np.array(out[skip:])


def sphere(n: int, d: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(n, d + 1))
    return x / np.linalg.norm(x, axis=1, keepdims=True)
