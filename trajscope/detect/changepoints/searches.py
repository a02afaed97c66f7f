"""The searches of ruptures by name, with the user's penalty.

Kept for comparison with published work: they know neither memory nor trends, have no error rate, and their penalty
is the caller's. Exact where ruptures can be (``jump=1``; its default of 5 makes an exact search inexact).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trajscope.errors import InputError, nearest

__all__ = ["SEARCHES", "search"]

SEARCHES = ("pelt", "binseg", "window", "bottomup", "kernel")


def search(
    y: NDArray[np.float64], method: str, penalty: float | None, *, model: str | None = None, min_size: int = 2
) -> tuple[list[int], float]:
    """Change points by one of ruptures' searches.

    Parameters
    ----------
    y : ndarray, (n, n_channels)
        Finite values.
    method : {"pelt", "binseg", "window", "bottomup", "kernel"}
    penalty : float or None
        None: ``2 C s^2 log n`` with ``s`` from the MAD of differences (right for independent normal noise only);
        for "kernel" with its bounded rbf kernel ``log n``.
    model : str, optional
        Cost model of ruptures; "l2" (kernel: "rbf") unless given.

    Returns
    -------
    rows : list of int
        First rows of the new regimes.
    penalty : float
        The one that was used.
    """
    import ruptures

    if method not in SEARCHES:
        raise InputError(f"method {method!r} is not known. {nearest(method, (*SEARCHES, 'auto'))}")
    n, c = y.shape
    if n < 2 * min_size:
        return [], float("nan") if penalty is None else float(penalty)
    if penalty is None:
        difference = np.diff(y, axis=0)
        spread = np.median(np.abs(difference - np.median(difference, axis=0)), axis=0) / 0.6745
        variance = float(np.mean(np.square(spread)) / 2)
        penalty = float(np.log(n)) if method == "kernel" else 2 * c * max(variance, 1e-300) * float(np.log(n))
    if not penalty > 0:
        raise InputError(f"penalty is {penalty}; expected a positive number.")
    if method == "kernel":
        found = ruptures.KernelCPD(kernel=model or "rbf", min_size=min_size).fit(y).predict(pen=penalty)
    else:
        cls = {
            "pelt": ruptures.Pelt,
            "binseg": ruptures.Binseg,
            "bottomup": ruptures.BottomUp,
            "window": ruptures.Window,
        }[method]
        options: dict[str, object] = {"model": model or "l2", "min_size": min_size, "jump": 1}
        if method == "window":
            options["width"] = int(min(100, max(n // 2, 2)))
        found = cls(**options).fit(y).predict(pen=penalty)
    return [int(r) for r in found if 0 < r < n], float(penalty)
