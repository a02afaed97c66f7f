r"""Bring the states of two fits into the same coordinates, before any single coordinate is compared or drawn.

Data determine states up to an invertible linear map. `align_states` finds the map of a named class that fits best:

- ``"sign"``: flip signs (coordinates keep their order);
- ``"procrustes"``: rotation and reflection, :math:`\min_R |Z - Y R|_F`, :math:`R = U V^\top` of the singular
  vectors of :math:`Y^\top Z` (Schönemann 1966), after both are centred; with ``scale=True`` one factor too;
- ``"linear"``: least squares, the whole class that a state-space model leaves open.

Align on rows that serve no other purpose: the map is fitted, so agreement on the rows that fitted it is flattered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope.errors import InputError, NotEnoughData

__all__ = ["Alignment", "align_states"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Alignment:
    """A map from one set of state coordinates into another.

    Attributes
    ----------
    matrix : ndarray, shape (k, m)
    source_mean, target_mean : ndarray
    kind : str
    residual : float
        Share of the target's variance that the map leaves, on the rows it was fitted on.
    """

    matrix: Floats
    source_mean: Floats
    target_mean: Floats
    kind: str
    residual: float

    def apply(self, states: ArrayLike) -> Floats:
        """States of the source in the coordinates of the target."""
        y = _states(states, "states")
        if y.shape[1] != self.source_mean.size:
            raise InputError(f"states have {y.shape[1]} columns; this alignment was fitted on {self.source_mean.size}.")
        y = np.where(np.isfinite(y), y, np.nan)
        return np.asarray((y - self.source_mean) @ self.matrix + self.target_mean)


def _states(states: ArrayLike, what: str) -> Floats:
    try:
        out = np.asarray(states, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} is no matrix of numbers ({error}); expected shape (n_steps, n_states).") from error
    if out.ndim != 2:
        raise InputError(f"{what} has shape {out.shape}; expected (n_steps, n_states).")
    return out


def align_states(
    source: ArrayLike,
    target: ArrayLike,
    *,
    kind: Literal["sign", "procrustes", "linear"] = "procrustes",
    scale: bool = False,
) -> Alignment:
    """Fit the map that takes ``source`` to ``target``.

    Parameters
    ----------
    source, target : array_like, shape (n_steps, k) and (n_steps, m)
        States of the same rows; rows with NaN or Inf in either are left out. ``"sign"`` needs k = m.
    kind : {"sign", "procrustes", "linear"}, default "procrustes"
    scale : bool, default False
        With ``"procrustes"``, allow one common factor.

    Raises
    ------
    InputError
        Different numbers of rows, or of states where that matters.
    NotEnoughData
        Fewer complete rows than states.

    Examples
    --------
    >>> z = np.random.default_rng(0).normal(size=(50, 2))
    >>> turned = z @ np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> bool(np.allclose(align_states(turned, z).apply(turned), z))
    True
    """
    y, z = _states(source, "source"), _states(target, "target")
    if y.shape[0] != z.shape[0]:
        raise InputError(
            f"source has shape {y.shape} and target {z.shape}; expected the same rows, (n_steps, n_states)."
        )
    if kind not in ("sign", "procrustes", "linear"):
        raise InputError(f"kind is {kind!r}; expected 'sign', 'procrustes' or 'linear'.")
    if kind == "sign" and y.shape[1] != z.shape[1]:
        raise InputError(f"kind='sign' needs as many states on both sides, got {y.shape[1]} and {z.shape[1]}.")
    good = np.isfinite(y).all(axis=1) & np.isfinite(z).all(axis=1)
    if good.sum() <= max(y.shape[1], z.shape[1]):
        raise NotEnoughData(
            f"{int(good.sum())} rows have all states on both sides; aligning {y.shape[1]} with {z.shape[1]} states"
            " needs more."
        )
    y, z = y[good], z[good]
    y_mean, z_mean = y.mean(axis=0), z.mean(axis=0)
    y, z = y - y_mean, z - z_mean
    if kind == "sign":
        matrix = np.diag(np.where((y * z).sum(axis=0) < 0, -1.0, 1.0))
    elif kind == "linear":
        matrix = np.linalg.lstsq(y, z, rcond=None)[0]
    else:
        u, singular, vt = np.linalg.svd(y.T @ z, full_matrices=False)
        matrix = u @ vt
        if scale:
            matrix = matrix * (singular.sum() / max(float((y**2).sum()), 1e-300))
    left = float(((z - y @ matrix) ** 2).sum())
    whole = float((z**2).sum())
    return Alignment(np.asarray(matrix), y_mean, z_mean, kind, left / whole if whole > 0 else 0.0)
