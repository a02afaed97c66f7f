r"""Part 4: how far each invariant of the dynamics is pinned down, by profile likelihood.

For a number :math:`\psi` of the model (an eigenvalue of A, the share of noise) the profile is the largest restricted
likelihood (`_ident_model`) of all models with that :math:`\psi`; the 95 % interval holds those whose likelihood lies
within 1.92 of the maximum. It is computed by Fisher scoring on the surface :math:`\psi = const`: with the information
*F*, the score *g* and the gradient *h* of :math:`\psi`, the step is :math:`F^+(g + \mu h)` with :math:`\mu` such that
the constraint holds to first order. Nothing depends on the coordinates of the states, so no normalisation is needed.

Eigenvalues: a real one as it is, a complex pair by its modulus, and those that lie within two standard errors of each
other by their mean (one by one they are no smooth function of the data, nor can they be told apart).

Shape: *finite*; *flat below* or *flat above* where the profile stays within 1.92 up to the end of the range on that
side; *flat* on both. Source: Raue et al. (2009), Bioinformatics 25, 1923.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from trajscope._core.kalman import Model
from trajscope._core.kalman_em import Panel, canonical
from trajscope.inference._ident_model import Reading, metric, restricted, step_to
from trajscope.inference._ident_rows import counted

__all__ = ["Profile", "climb", "profiles"]

Floats = NDArray[np.float64]

_STEPS = 15
_ROOTS = 5
_NEAR = 1e-4  # distance of a profile from the ends of its range, in its own units
_GAIN = 5e-3  # log-likelihood that a further step would gain at most


@dataclass(frozen=True, eq=False)
class Profile:
    """One profile likelihood.

    Attributes
    ----------
    name : str
    estimate, low, high : float
        With the 95 % interval; an end is that of the range where the profile is flat.
    values, deviance : ndarray
        Points and 2 (largest log-likelihood - profile), ascending in value.
    shape : {"finite", "flat below", "flat above", "flat"}
    level : float
        Deviance at the ends of the interval.
    """

    name: str
    estimate: float
    low: float
    high: float
    values: Floats
    deviance: Floats
    shape: str
    level: float


@dataclass(frozen=True, eq=False)
class _Target:
    """A number of the model, on a scale without ends."""

    name: str
    of: Callable[[Model], float]
    back: Callable[[float], float]
    ends: tuple[float, float]
    only_a: bool


def _noise_share(model: Model) -> float:
    signal = float(np.einsum("pi,ij,pj->", model.c, model.p0, model.c))
    return float(np.log(model.r.sum() / max(signal, 1e-300)))


def _expit(u: float) -> float:
    return float(1 / (1 + np.exp(-u)))


def _logit(v: float) -> float:
    return float(np.log(v / (1 - v)))


def _nearest(values: NDArray[Any], about: complex, n: int) -> NDArray[Any]:
    return values[np.argsort(np.abs(values - about), kind="stable")[:n]]


def _groups(values: NDArray[np.complex128], errors: Floats) -> list[list[int]]:
    """Indices of eigenvalues that are profiled together: complex pairs, and what lies within two standard errors."""
    groups: list[list[int]] = []
    for i in np.argsort(-np.abs(values), kind="stable"):
        for group in groups:
            near = any(abs(values[i] - values[j]) <= 2 * np.hypot(errors[i], errors[j]) for j in group)
            paired = any(abs(values[i] - values[j].conj()) < 1e-12 and abs(values[i].imag) > 0 for j in group)
            if near or paired:
                group.append(int(i))
                break
        else:
            groups.append([int(i)])
    return groups


def _eigen_errors(model: Model, inverse: Floats) -> tuple[NDArray[np.complex128], Floats]:
    """Eigenvalues and their standard errors to first order."""
    values, right = np.linalg.eig(model.a)
    try:
        left = np.linalg.inv(right).conj().T
    except np.linalg.LinAlgError:
        return values.astype(np.complex128), np.full(values.size, np.inf)
    n = model.k**2
    block = inverse[:n, :n]
    errors = []
    for i in range(values.size):
        h = np.outer(left[:, i].conj(), right[:, i]).ravel()
        errors.append(np.sqrt(max(float((h @ block @ h.conj()).real), 0.0)))
    return values.astype(np.complex128), np.array(errors)


def _targets(model: Model, inverse: Floats) -> list[_Target]:
    values, errors = _eigen_errors(model, inverse)
    out: list[_Target] = []
    for group in _groups(values, errors):
        n, about = len(group), complex(values[group].mean())
        label = "eigenvalue " + "+".join(str(i) for i in range(len(out) + 1, len(out) + 2))
        pair = n == 2 and abs(values[group[0]].imag) > 2 * errors[group[0]]
        if pair:
            where = complex(values[group[0]])

            def modulus(m: Model, where: complex = where) -> float:
                v = np.linalg.eigvals(m.a).astype(complex)
                return _logit(min(float(np.abs(_nearest(v, where, 1)[0])), 1 - 1e-12))

            out.append(
                _Target(label + " (modulus of a pair)", modulus, _expit, (_logit(1e-3), _logit(1 - _NEAR)), True)
            )
            continue

        def mean(m: Model, about: complex = about, n: int = n) -> float:
            v = _nearest(np.linalg.eigvals(m.a).astype(complex), about, n)
            return float(np.arctanh(np.clip(v.real.mean(), -1 + 1e-12, 1 - 1e-12)))

        many = f" (mean of {n})" if n > 1 else ""
        end = float(np.arctanh(1 - _NEAR))
        out.append(_Target(label + many, mean, lambda u: float(np.tanh(u)), (-end, end), True))
    ends = (_logit(_NEAR), _logit(1 - _NEAR))
    out.append(_Target("share of noise", _noise_share, _expit, ends, False))
    return out


def _gradient(model: Model, target: _Target, n_parameters: int, free_c: bool) -> Floats:
    """Of the target, by central differences (the model is cheap to move)."""
    out = np.zeros(n_parameters)
    for i in range(model.k**2 if target.only_a else n_parameters):
        move = np.zeros(n_parameters)
        move[i] = 1e-6
        up, down = step_to(model, move, free_c=free_c), step_to(model, -move, free_c=free_c)
        if up is not None and down is not None:
            out[i] = (target.of(up) - target.of(down)) / 2e-6
    return out


def climb(
    panel: Panel, model: Model, *, free_c: bool, target: _Target | None = None, value: float = 0.0
) -> tuple[float, Model, Floats]:
    """Largest restricted likelihood from a start, of all models or of those with a given value of the target.

    Returns
    -------
    log_likelihood, model, inverse
        The last is the pseudo-inverse of the Fisher information at the end.
    """
    n_rows = float(panel.count.mean())
    model = canonical(model) if free_c else model
    reached, slope = restricted(panel, model, free_c=free_c)
    inverse = metric(model, n_rows, free_c=free_c)
    for _ in range(_STEPS):
        pull, off, scale = slope, 0.0, 1.0
        if target is not None:
            h = _gradient(model, target, slope.size, free_c)
            w = inverse @ h
            scale = math.sqrt(max(float(h @ w), 1e-300))
            off = value - target.of(model)
            pull = slope + (off - float(w @ slope)) / scale**2 * h
        move = inverse @ pull
        gain = 0.5 * float(pull @ move) if target is None else 0.5 * float((slope - (w @ slope) / scale**2 * h) @ move)
        if gain < _GAIN and abs(off) < 1e-3 * scale:
            break
        share = min(1.0, 3.0 * scale / abs(off)) if off else 1.0
        for _ in range(8):
            new = step_to(model, share * move, free_c=free_c)
            if new is not None:
                new = canonical(new) if free_c else new
                got, new_slope = restricted(panel, new, free_c=free_c)
                # far from the constraint a step may cost likelihood, on it none may
                if np.isfinite(got) and (abs(off) > 1e-3 * scale or got >= reached - 1e-6):
                    model, reached, slope = new, got, new_slope
                    break
            share /= 2
        else:
            break
        inverse = metric(model, n_rows, free_c=free_c)
    return reached, model, inverse


def _one(
    panel: Panel, best: float, model: Model, inverse: Floats, target: _Target, free_c: bool, level: float
) -> Profile:
    h = _gradient(model, target, inverse.shape[0], free_c)
    error = float(np.sqrt(max(float(h @ inverse @ h), 1e-12)))
    centre = target.of(model)
    points, deviances = [centre], [0.0]
    bounds, flat = [], []
    root = float(np.sqrt(level))
    for side in (-1, 1):
        end = target.ends[0] if side < 0 else target.ends[1]
        known: list[tuple[float, float]] = [(0.0, 0.0)]  # distance, signed root of the deviance
        distance, most = root * error, max(abs(end - centre), 1e-9)
        start = model
        for _ in range(_ROOTS):
            distance = min(distance, most)
            at = centre + side * distance
            got, start, _ = climb(panel, start, free_c=free_c, target=target, value=at)
            reached = abs(target.of(start) - at)
            deviance = max(2 * (best - got), 0.0)
            if reached > 0.05 * distance:  # the surface could not be followed so far
                break
            points.append(at)
            deviances.append(deviance)
            known.append((distance, float(np.sqrt(deviance))))
            if abs(known[-1][1] - root) < 0.02 * root or (distance >= most and known[-1][1] < root):
                break
            distance = _next(known, root)
        over = [d for d, z in known if z >= root * 0.98]
        flat.append(not over)
        bounds.append(centre + side * (_crossing(known, root) if over else most))
    order = np.argsort(points, kind="stable")
    names = {(False, False): "finite", (True, False): "flat below", (False, True): "flat above", (True, True): "flat"}
    low, high = (float(np.clip(b, *target.ends)) for b in bounds)
    return Profile(
        target.name,
        target.back(centre),
        target.back(low),
        target.back(high),
        np.array([target.back(points[i]) for i in order]),
        np.array([deviances[i] for i in order]),
        names[flat[0], flat[1]],
        level,
    )


def _next(known: list[tuple[float, float]], root: float) -> float:
    """Next distance to try: on the line through the two points about the root, else further out."""
    below = max((k for k in known if k[1] < root), key=lambda k: k[0])
    above = min((k for k in known if k[1] >= root), key=lambda k: k[0], default=None)
    if above is None:
        d, z = below
        return d * float(np.clip(root / max(z, 1e-6), 1.2, 3.0)) * 1.05
    (d0, z0), (d1, z1) = below, above
    return d0 + (root - z0) / max(z1 - z0, 1e-9) * (d1 - d0)


def _crossing(known: list[tuple[float, float]], root: float) -> float:
    """Where the root of the deviance reaches the level, by interpolation."""
    ordered = sorted(known)
    distances, roots = np.array([k[0] for k in ordered]), np.maximum.accumulate([k[1] for k in ordered])
    if roots[-1] <= root:
        return float(distances[-1])
    i = int(np.argmax(roots > root))
    return float(np.interp(root, roots[i - 1 : i + 1], distances[i - 1 : i + 1]))


def profiles(
    reading: Reading,
    xs: list[Floats],
    *,
    level: float = 0.95,
    only: int | None = None,
    report: Callable[[str, int, int], None],
) -> list[Profile] | str:
    """Profiles of all eigenvalues and of the share of noise, or why they cannot be had."""
    panel = Panel(xs)
    try:
        best, model, inverse = climb(panel, reading.model, free_c=reading.free_c)
        targets = _targets(model, inverse)[:only]
        cut = float(chi2.ppf(level, 1))
        return [
            _one(panel, best, model, inverse, targets[i], reading.free_c, cut)
            for i in counted(len(targets), "profiles", report)
        ]
    except (np.linalg.LinAlgError, ValueError) as problem:
        return f"the likelihood has no interior maximum that could be followed ({problem})"
