"""Small systems with known truth, and slow obvious oracles."""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

from trajscope._core.kalman import Model, spectral_radius


def ar(rng: np.random.Generator, n: int, rho: float, p: int = 1) -> np.ndarray:
    """Stationary AR(1) channels of variance 1, (n, p)."""
    noise = rng.normal(size=(n, p))
    noise[0] /= np.sqrt(1 - rho**2)
    return lfilter([np.sqrt(1 - rho**2)], [1, -rho], noise, axis=0)


def orthonormal(rng: np.random.Generator, p: int, k: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(p, k)))[0]


def two_state(rng: np.random.Generator, n: int, rates=(0.97, 0.85), p: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """States with their own rates in p channels at signal-to-noise 1: x (n, p), z (n, k)."""
    z = np.hstack([ar(rng, n, r) for r in rates])
    k = len(rates)
    return z @ orthonormal(rng, p, k).T * np.sqrt(p / k) + rng.normal(size=(n, p)), z


def random_model(rng: np.random.Generator, k: int, p: int) -> Model:
    a = rng.normal(size=(k, k))
    a *= rng.uniform(0.3, 0.97) / spectral_radius(a)
    root = rng.normal(size=(k, k))
    return Model.stationary(a, rng.normal(size=(p, k)), root @ root.T + 0.2 * np.eye(k), rng.uniform(0.2, 2.0, p))


def simulate(rng: np.random.Generator, model: Model, n: int) -> tuple[np.ndarray, np.ndarray]:
    """x (n, p) and z (n, k) of a model."""
    w = rng.normal(size=(n, model.k)) @ np.linalg.cholesky(model.q).T
    z = np.empty((n, model.k))
    z[0] = np.linalg.cholesky(model.p0) @ rng.normal(size=model.k)
    for t in range(1, n):
        z[t] = model.a @ z[t - 1] + w[t]
    return z @ model.c.T + rng.normal(size=(n, model.r.size)) * np.sqrt(model.r), z


def punch(rng: np.random.Generator, x: np.ndarray, share: float) -> np.ndarray:
    """A copy with a share of cells missing."""
    out = x.copy()
    out[rng.random(x.shape) < share] = np.nan
    return out


def joint_gaussian(x: np.ndarray, model: Model) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Smoothed means, covariances, lagged covariances and log-likelihood from the joint normal of everything."""
    n, k = x.shape[0], model.k
    prior = np.zeros((n * k, n * k))
    p = model.p0
    for t in range(n):
        block = p
        for s in range(t, n):
            prior[s * k : (s + 1) * k, t * k : (t + 1) * k] = block
            prior[t * k : (t + 1) * k, s * k : (s + 1) * k] = block.T
            block = model.a @ block
        p = model.a @ p @ model.a.T + model.q
    seen = ~np.isnan(x.ravel())
    c = np.kron(np.eye(n), model.c)[seen]
    y = x.ravel()[seen]
    f = c @ prior @ c.T + np.diag(np.tile(model.r, n)[seen])
    gain = prior @ c.T @ np.linalg.inv(f)
    mean, cov = (gain @ y).reshape(n, k), prior - gain @ c @ prior
    block = np.array([cov[t * k : (t + 1) * k, t * k : (t + 1) * k] for t in range(n)])
    lagged = np.array([cov[t * k : (t + 1) * k, (t + 1) * k : (t + 2) * k] for t in range(n - 1)]).reshape(-1, k, k)
    loglik = -0.5 * (y.size * np.log(2 * np.pi) + np.linalg.slogdet(f)[1] + y @ np.linalg.solve(f, y))
    return mean, block, lagged, float(loglik)


def textbook_filter(x: np.ndarray, model: Model) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Filtered means, log-likelihood and NIS row by row, as in any textbook."""
    mean, cov = np.zeros(model.k), model.p0
    means, logliks, nis = [], [], []
    for t, row in enumerate(x):
        if t:
            mean, cov = model.a @ mean, model.a @ cov @ model.a.T + model.q
        seen = ~np.isnan(row)
        if seen.any():
            c = model.c[seen]
            f = c @ cov @ c.T + np.diag(model.r[seen])
            e = row[seen] - c @ mean
            gain = cov @ c.T @ np.linalg.inv(f)
            nis.append(e @ np.linalg.solve(f, e))
            logliks.append(-0.5 * (seen.sum() * np.log(2 * np.pi) + np.linalg.slogdet(f)[1] + nis[-1]))
            mean, cov = mean + gain @ e, cov - gain @ c @ cov
        else:
            nis.append(np.nan)
            logliks.append(0.0)
        means.append(mean)
    return np.array(means), np.array(logliks), np.array(nis)
