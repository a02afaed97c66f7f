r"""Entropies over trailing windows: how predictable the order (permutation) or the course (sample) of the rows is.

Permutation entropy (Bandt & Pompe 2002, Phys. Rev. Lett. 88:174102): with :math:`p_\pi` the share of the triples of
successive rows in the window that have order :math:`\pi`, :math:`-\sum p_\pi \log p_\pi / \log 6`. Ties go to the
earlier row. Falls as a signal becomes smooth or regular.

Sample entropy (Richman & Moorman 2000, Am. J. Physiol. 278:H2039): with *B* pairs of templates of two rows within
*r* = 0.2 sd (divisor n) of the window (largest coordinate difference), and *A* of them still within *r* one row later,
:math:`-\log(A/B)`. All pairs are compared, :math:`O(w^2)` a value: choose ``every`` for long logs. NaN without a match.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from trajscope._core.rolling import trailing_count
from trajscope._core.rolling_moments import window_counts

__all__ = ["permutation_entropy", "sample_entropy"]

Floats = NDArray[np.float64]

_RADIUS = 0.2
_ORDERS = list(itertools.permutations(range(3)))


def permutation_entropy(z: Floats, window: int, linked: NDArray[np.bool_] | None = None) -> Floats:
    """Permutation entropy of order 3, between 0 and 1, of shape (m, n_steps); see the module.

    Examples
    --------
    >>> permutation_entropy(np.arange(10.0)[None], 8)[0, -1].item()
    0.0
    """
    m, n = z.shape
    out = np.full((m, n), np.nan)
    if n < 3 or window < 3:
        return out
    triples = np.lib.stride_tricks.sliding_window_view(z, 3, axis=1)
    order = np.argsort(triples, axis=-1, kind="stable")
    code = np.full((m, n), -1)
    code[:, 2:] = order @ np.array([9, 3, 1])
    code[:, 2:][np.isnan(triples).any(axis=-1)] = -1
    if linked is not None:
        code[:, ~linked] = -1
    counts = [window_counts(code == 9 * a + 3 * b + c, window - 2) for a, b, c in _ORDERS]
    total = sum(counts)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = [c / total for c in counts]
        entropy = -sum(np.where(p > 0, p * np.log(p), 0.0) for p in shares) / np.log(6.0)
    return np.where(total > 0, entropy + 0.0, np.nan)


def sample_entropy(z: Floats, window: int, rows: NDArray[np.intp]) -> Floats:
    """Sample entropy (m = 2, r = 0.2 sd) of shape (m, n_steps), at the given rows; see the module.

    Examples
    --------
    >>> regular = np.tile([0.0, 1.0], 30)[None]
    >>> round(float(sample_entropy(regular, 40, np.array([59]))[0, -1]), 2)
    0.0
    """
    m, n = z.shape
    out = np.full((m, n), np.nan)
    if window < 4:
        return out
    above = np.triu_indices(window - 2, 1)
    for k in range(m):
        seen = trailing_count(z[k], window, include=True)
        for t in rows:
            if seen[t] < 4:
                continue
            w = z[k, t - window + 1 : t + 1]
            radius = _RADIUS * np.nanstd(w)
            near = np.abs(w[:, None] - w[None, :]) <= radius  # False where either is missing
            both = near[:-1, :-1] & near[1:, 1:]  # templates of two rows
            alike = both[: window - 2, : window - 2][above]
            longer = alike & near[2:, 2:][above]
            n_alike, n_longer = np.count_nonzero(alike), np.count_nonzero(longer)
            if n_alike and n_longer:
                out[k, t] = -np.log(n_longer / n_alike) + 0.0
    return out
