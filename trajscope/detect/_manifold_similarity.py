r"""Whether two domains leave their stable sets in the same directions.

The similarity of two collapse subspaces is the mean squared cosine of their principal angles: 1 for the same subspace,
*q/p* on average for random ones of dimension *q* in *p* channels. It means nothing without nulls, and two are given:

- *random*: uniform random subspaces of the same dimensions;
- *healthy*: subspaces of random windows of healthy rows, one from each domain, as long as the excursions and found in
  the same way. Channels are correlated in healthy rows too, so two domains may agree without any collapse.

Call two domains alike only where both p-values are small. The healthy null alone is no test of unrelated excursions:
windows of one domain vary less than unrelated planes do (tests/proofs/manifold.py, ``alike``). P-values are one-sided,
:math:`(1 + \#\{\text{null} \ge \text{value}\})/(B + 1)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.linalg import principal_angles
from trajscope._core.surrogates import as_generator
from trajscope.detect._manifold_shape import random_cos2, window_cos2
from trajscope.errors import InputError
from trajscope.result import Result, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Similarity", "subspace_similarity"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Similarity(Result):
    """Similarity of two subspaces beside its nulls; returned by `subspace_similarity`.

    Attributes
    ----------
    value : float
        Mean squared cosine of the principal angles.
    angles : ndarray, shape (min(k, m),)
        Principal angles in radians, ascending.
    dimensions : tuple of int
        (k, m), of n_channels.
    n_channels : int
    random_mean, random_95, random_p : float
        Mean, 95 % point and p-value under random subspaces.
    healthy_mean, healthy_95, healthy_p : float
        The same under healthy windows; NaN where a side has none.
    n_draws : int
    """

    value: float
    angles: Floats
    dimensions: tuple[int, int]
    n_channels: int
    random_mean: float
    random_95: float
    random_p: float
    healthy_mean: float
    healthy_95: float
    healthy_p: float
    n_draws: int

    def to_frame(self) -> pd.DataFrame:
        """One row a null."""
        import pandas as pd

        rows = [
            ("random subspaces", self.random_mean, self.random_95, self.random_p),
            ("healthy windows", self.healthy_mean, self.healthy_95, self.healthy_p),
        ]
        frame = pd.DataFrame(rows, columns=["null", "mean", "q95", "p"])
        frame.insert(0, "similarity", self.value)
        return frame

    def summary(self) -> str:
        """One or two sentences."""
        text = (
            f"Mean squared cosine {self.value:.2f} of subspaces of dimensions {self.dimensions[0]} and"
            f" {self.dimensions[1]} in {self.n_channels} channels; random ones average {self.random_mean:.2f}"
            f" (95 % point {self.random_95:.2f}, p = {self.random_p:.3g})"
        )
        if np.isnan(self.healthy_p):
            return text + "; no healthy windows to compare with."
        return (
            text
            + f", those of healthy windows {self.healthy_mean:.2f} ({self.healthy_95:.2f}, p = {self.healthy_p:.3g})."
        )


def subspace_similarity(
    a: Any, b: Any, *, n_draws: int = 999, rng: int | np.random.Generator | None = None
) -> Similarity:
    """Compare the directions in which two domains leave their stable sets.

    Parameters
    ----------
    a, b : InstabilityManifold fitted with unstable runs, or array_like of shape (n_channels, k)
        The same channels in the same order. Columns of an array span the subspace; it has no healthy windows.
    n_draws : int, default 999
        Draws from each null: the smallest p-value is then 0.001.
    rng : int, Generator or None, default None (seed 0)

    Returns
    -------
    Similarity

    Raises
    ------
    InputError
        Different channels, no collapse subspace, fewer than 19 draws.

    Examples
    --------
    >>> found = subspace_similarity(np.eye(8)[:, :2], np.eye(8)[:, 1:3])
    >>> found.value, bool(0.2 < found.random_mean < 0.3)
    (0.5, True)
    """
    if n_draws < 19:
        raise InputError(f"n_draws is {n_draws}; fewer than 19 cannot hold a 95 % point.")
    (u, u_healthy, u_names), (v, v_healthy, v_names) = _side(a, "a"), _side(b, "b")
    if u.shape[0] != v.shape[0] or (u_names and v_names and u_names != v_names):
        raise InputError(
            f"a has channels {u_names or u.shape[0]} and b has {v_names or v.shape[0]}; subspaces are compared on the"
            " same channels in the same order."
        )
    generator = as_generator(rng)
    angles = principal_angles(u, v)
    value = float(np.mean(np.cos(angles) ** 2))
    random = random_cos2(u.shape[0], (u.shape[1], v.shape[1]), n_draws, generator)
    healthy = (
        window_cos2(u_healthy, v_healthy, n_draws, generator)
        if u_healthy is not None and v_healthy is not None
        else np.full(n_draws, np.nan)
    )
    return Similarity(
        value, angles, (u.shape[1], v.shape[1]), u.shape[0], *_null(random, value), *_null(healthy, value), n_draws,
        provenance=make_provenance(
            "subspace_similarity", {"n_draws": n_draws}, u, v, seed=rng if isinstance(rng, int) else None
        ),
    )  # fmt: skip


def _side(side: Any, where: str) -> tuple[Floats, Floats | None, tuple[str, ...]]:
    """Subspace, healthy-window subspaces and channel names of one argument."""
    if hasattr(side, "collapse_subspace_"):
        if side.collapse_subspace_ is None:
            raise InputError(
                f"{where} has no collapse subspace: it was fitted without unstable runs, or none of them left the"
                " stable set."
            )
        return side.collapse_subspace_, side.healthy_subspaces_, tuple(getattr(side, "feature_names_in_", ()))
    try:
        basis = np.asarray(side, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{where} is neither a fitted InstabilityManifold nor a matrix of numbers ({error})."
        ) from None
    if basis.ndim != 2 or not basis.size or not np.isfinite(basis).all():
        raise InputError(f"{where} has shape {basis.shape}; expected a finite (n_channels, k) whose columns span it.")
    if np.linalg.matrix_rank(basis) < basis.shape[1]:
        raise InputError(f"{where}: its {basis.shape[1]} columns are not independent and span less than they say.")
    return basis, None, ()


def _null(draws: Floats, value: float) -> tuple[float, float, float]:
    """Mean, 95 % point and p-value; equality counts against the value, up to rounding."""
    if np.isnan(draws).any():
        return float("nan"), float("nan"), float("nan")
    at_least = int(np.count_nonzero(draws >= value - 1e-12))
    return float(draws.mean()), float(np.quantile(draws, 0.95)), (1 + at_least) / (draws.size + 1)
