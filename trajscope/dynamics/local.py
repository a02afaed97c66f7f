r"""Local linear dynamics: a vector autoregression of every trailing window, and the same of whole data as modes.

In the window that ends with row *t* the rows follow :math:`x_s = c + A_t x_{s-1} + e_s`. The eigenvalues of
:math:`A_t` say how departures from the local level die out *per logged row*: modulus below 1 and near it, slowly
(critical slowing down); argument 0, back along a line; argument :math:`\pi`, by turns on either side (a flip, what
gradient descent does at the edge of stability); in between, round in circles. The recovery rate per step is
:math:`-\log|\lambda| / m` with *m* the steps between rows.

- **Observation noise** pulls least squares towards zero. Beside ``plain`` stands ``instrument``, with the row before as
  an instrument, free of white observation noise and wider for it. Where they disagree, believe the second.
  Where some direction is white noise the instrument is weak and would divide by noise: no value is given then.
- ``tls`` and ``fb`` (total-least-squares and forward-backward DMD) are there by name. They take all noise for sensor
  noise; on data driven by noise, as training is, they report modulus 1 whatever is true.
- **Stride.** What is logged every *m* steps has eigenvalues :math:`\lambda^m`; with an even *m* a flip looks like a
  monotone return, and *m* large makes everything look fast.
- **Scale.** Eigenvalues do not depend on units; non-normality does and is taken in units of each channel's sd in the
  window.
- **Causal.** Row *t* uses rows up to *t*. Windows end at the boundary of a segment; pairs across a gap are not made.

Estimators, intervals and bias: `trajscope.dynamics._var_stats`. A window that spans a change of level has a modulus
near 1 that is no slowing down: look at `change_points` first.

DMD (Schmid 2010) is the same regression in the leading *r* principal directions; its modes are the eigenvectors of *A*
lifted back. Source of the flip and of the stride rule: closed form, see `trajscope.simulate.linear_map`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope._core.rolling_var import eigenvalue_order, overall_products, sorted_eigenvalues
from trajscope.dynamics._rows import Rows, as_rows
from trajscope.dynamics._var_stats import (
    METHODS,
    WEAK,
    Estimate,
    estimate_windows,
    instrument_strength,
    window_matrices,
)
from trajscope.errors import InputError, NotEnoughData, nearest
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Dmd", "LocalDynamics", "dmd", "rolling_var"]

Floats = NDArray[np.float64]

SENSOR_NOISE = (
    "takes all noise to sit on the observations: in data driven by noise its moduli are near 1 whatever is true"
)
_COLUMNS = (
    "modulus", "low", "high", "angle", "corrected", "henrici", "henrici_low", "henrici_high", "abscissa",
    "abscissa_low", "abscissa_high", "count",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class LocalDynamics(Result):
    """Rolling VAR(1) of a trajectory; returned by `rolling_var`.

    Attributes
    ----------
    steps : ndarray, shape (n_windows,)
        Step of the last row of each window.
    estimates : mapping of str to Estimate
        Of each method: ``matrix``, ``eigenvalues``, ``modulus`` with ``low`` and ``high``, ``angle``, ``henrici``,
        ``abscissa``, ``count``.
    names : tuple of str
        Channels.
    window : int
        Rows of a window.
    stride : float
        Steps between rows.
    level : float
        Nominal coverage of the intervals.
    status : {"ok", "cannot tell"}
    reason : str
        Why it is not "ok".
    warnings : tuple of str
    """

    plot_name = "local"

    steps: NDArray[Any]
    estimates: Mapping[str, Estimate] = field(repr=False)
    names: tuple[str, ...]
    window: int
    stride: float
    level: float
    status: str
    reason: str
    warnings: tuple[str, ...]

    @property
    def main(self) -> Estimate:
        """The first method that was asked for."""
        return next(iter(self.estimates.values()))

    @property
    def eigenvalues(self) -> NDArray[np.complex128]:
        """Of the first method, shape (n_windows, n_channels), largest modulus first, per logged row."""
        return self.main.eigenvalues

    def recovery_rate(self, method: str | None = None) -> Floats:
        """Rate per step at which departures die out, :math:`-\\log|\\lambda|/m`; negative where they grow."""
        with np.errstate(divide="ignore"):
            rate: Floats = -np.log(self._of(method).modulus) / self.stride
        return rate

    def _of(self, method: str | None) -> Estimate:
        if method is None:
            return self.main
        if method not in self.estimates:
            raise InputError(f"{method!r} was not estimated. {nearest(method, self.estimates)}")
        return self.estimates[method]

    def to_frame(self) -> pd.DataFrame:
        """One row a window, indexed by step; columns ``<method>_<quantity>``, and ``<method>_recovery_rate``."""
        import pandas as pd

        columns: dict[str, Any] = {}
        for method, found in self.estimates.items():
            columns |= {f"{method}_{c}": getattr(found, c) for c in _COLUMNS}
            columns[f"{method}_recovery_rate"] = self.recovery_rate(method)
        return pd.DataFrame(columns, index=pd.Index(self.steps, name="step"))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: settings, and of each method the last window and the row of largest modulus."""
        out = {k: jsonable(getattr(self, k)) for k in ("names", "window", "stride", "level", "status", "reason")}
        out["warnings"] = list(self.warnings)
        out["n_windows"] = int(self.steps.size)
        for method, found in self.estimates.items():
            known = np.flatnonzero(np.isfinite(found.modulus))
            picks = {"last": known[-1], "largest": known[np.argmax(found.modulus[known])]} if known.size else {}
            out[method] = {
                key: {"step": jsonable(self.steps[i])}
                | {c: jsonable(getattr(found, c)[i]) for c in ("modulus", "low", "high", "angle")}
                for key, i in picks.items()
            }
        return out

    def summary(self) -> str:
        """A few sentences."""
        if self.status != "ok":
            return f"Local dynamics: cannot tell, {self.reason}."
        parts = []
        for method, found in self.estimates.items():
            known = np.flatnonzero(np.isfinite(found.modulus))
            if not known.size:
                why = "rows say too little about the next" if found.weak.any() else "no window could be fitted"
                parts.append(f"{method} cannot tell ({why})")
                continue
            i = known[-1]
            band = "" if math.isnan(found.low[i]) else f" [{found.low[i]:.3f}, {found.high[i]:.3f}]"
            parts.append(f"{method} {found.modulus[i]:.3f}{band}, angle {found.angle[i]:.2f}, at step {self.steps[i]}")
        text = (
            f"VAR(1) of {len(self.names)} channel{'s' * (len(self.names) != 1)} over {self.window} rows, one every"
            f" {self.stride:g} steps; dominant eigenvalue per row: {'; '.join(parts)}."
        )
        return " ".join([text, *(f"{w[0].upper()}{w[1:]}." for w in self.warnings)])


def rolling_var(
    source: Any,
    window: int = 100,
    *,
    steps: ArrayLike | None = None,
    channels: Sequence[str] | None = None,
    methods: Sequence[str] | str = ("plain", "instrument"),
    every: int = 1,
    min_count: int | None = None,
    level: float = 0.95,
) -> LocalDynamics:
    """Fit a VAR(1) in every trailing window and read off how fast departures die out.

    Parameters
    ----------
    source : Trajectory, Run, DataFrame, or array_like of shape (n_steps,) or (n_steps, n_channels)
        Channels or meta-state. Rows in which one of the channels is missing or not finite are left out, and no pair
        is made across them.
    window : int, default 100
        Complete rows of a window, its last included.
    steps : array_like, optional
        Steps of an array; row numbers by default.
    channels : sequence of str, optional
        Channels to use; all by default. Rows are those in which all of them were logged.
    methods : sequence of str, default ("plain", "instrument")
        Of ``plain``, ``instrument``, ``tls``, ``fb``; the first one is `LocalDynamics.main`.
    every : int, default 1
        Windows at every so many rows, counted from the last.
    min_count : int, optional
        Pairs needed in a window; half of the window by default, never fewer than 2 k + 2 for k channels.
    level : float, default 0.95
        Coverage of the intervals, by the delta method; 0 gives none and is twice as fast.

    Returns
    -------
    LocalDynamics
        ``status`` is "cannot tell" where no window could be fitted.

    Raises
    ------
    InputError
        For what is not numeric, unknown methods or channels, options out of range.

    Notes
    -----
    Coverage of the 95 % interval of the modulus is printed by ``tests/proofs/dynamics.py``. It holds where one
    eigenvalue leads; where several nearly tie (white noise in many channels) the largest of them is biased up and the
    interval of the modulus misses. Intervals of Henrici's departure fail near 0, its smallest value.

    Examples
    --------
    >>> from trajscope.simulate import ar
    >>> found = rolling_var(ar(2000, 0.9, rng=0), 500)
    >>> bool(found.main.low[-1] < 0.9 < found.main.high[-1])
    True
    """
    chosen = (methods,) if isinstance(methods, str) else tuple(methods)
    if not chosen:
        raise InputError(f"methods is empty; expected some of {', '.join(METHODS)}.")
    for method in chosen:
        if method not in METHODS:
            raise InputError(f"there is no method {method!r}. {nearest(str(method), METHODS)}")
    if window < 4 or every < 1 or not 0 <= level < 1 or (min_count is not None and min_count < 1):
        raise InputError(
            f"options out of range: window {window} >= 4, every {every} >= 1, 0 <= level {level} < 1,"
            f" min_count {min_count} >= 1."
        )
    rows = as_rows(source, steps, channels)
    k = rows.x.shape[1]
    parts: dict[str, list[Estimate]] = {m: [] for m in chosen}
    places: list[NDArray[np.intp]] = []
    for piece in rows.pieces():
        at = np.arange(piece.stop - 1, piece.start - 1, -every)[::-1]
        places.append(at)
        found = estimate_windows(
            rows.x[piece], window, chosen, linked=rows.linked[piece], rows=at - piece.start, min_count=min_count,
            level=level,
        )  # fmt: skip
        for method, estimate in found.items():
            parts[method].append(estimate)
    if not places:
        empty = estimate_windows(np.empty((0, k)), window, chosen, level=level)
        parts, places = {m: [e] for m, e in empty.items()}, [np.empty(0, dtype=np.intp)]
    estimates = {m: _joined(found) for m, found in parts.items()}
    status, reason = _status(rows, estimates, window)
    return LocalDynamics(
        rows.steps[np.concatenate(places)], estimates, rows.names, window, rows.stride, level, status, reason,
        tuple(_warnings(rows, estimates)),
        provenance=make_provenance(
            "rolling_var",
            {
                "window": window, "channels": rows.names, "methods": chosen, "every": every, "min_count": min_count,
                "level": level,
            },
            rows.x, rows.steps,
        ),
    )  # fmt: skip


def _joined(parts: list[Estimate]) -> Estimate:
    if len(parts) == 1:
        return parts[0]
    return Estimate(**{f: np.concatenate([getattr(p, f) for p in parts]) for f in Estimate.__dataclass_fields__})


def _status(rows: Rows, estimates: Mapping[str, Estimate], window: int) -> tuple[str, str]:
    if any(np.isfinite(e.modulus).any() for e in estimates.values()):
        return "ok", ""
    n, k = rows.x.shape
    needed = max(window // 2, 2 * k + 2) + 1
    if n < needed:
        return "cannot tell", f"{n} complete rows, at least {needed} are needed for {k} channels and this window"
    if rows.linked.mean() < 0.5:
        return "cannot tell", (
            f"only {rows.linked.sum()} of {n} rows follow the one before at the commonest stride ({rows.stride:g}"
            " steps): rows are irregular"
        )
    flat = [name for name, c in zip(rows.names, rows.x.T, strict=True) if np.ptp(c) == 0]
    if flat:
        return "cannot tell", f"channel {flat[0]!r} does not vary"
    return "cannot tell", "channels are collinear in every window"


def _warnings(rows: Rows, estimates: Mapping[str, Estimate]) -> list[str]:
    found = []
    m = rows.stride
    if m == m and m != 1:
        even = float(m).is_integer() and int(m) % 2 == 0
        found.append(
            f"rows are {m:g} steps apart, so eigenvalues are those of one step to the power {m:g}"
            + ("; an even stride shows a flip (-1) as +1" if even else "")
        )
    found += [f"{method} {SENSOR_NOISE}" for method in ("tls", "fb") if method in estimates]
    if {"plain", "instrument"} <= set(estimates):
        plain, other = estimates["plain"], estimates["instrument"]
        known = np.isfinite(plain.high) & np.isfinite(other.low)
        # half of overlapping windows: no test, a hint where to look; where the instrument was mostly too weak, the
        # windows in which it was not are those in which it came out high
        if known.sum() > 0.5 * np.isfinite(plain.high).sum() and np.median((other.modulus - plain.high)[known]) > 0:
            found.append("the instrument lies above the interval of plain in most windows: observation noise is likely")
    return found


@dataclass(frozen=True, eq=False)
class Dmd(Result):
    """Dynamic mode decomposition; returned by `dmd`.

    Attributes
    ----------
    eigenvalues : ndarray of complex, shape (rank,)
        Per logged row, largest modulus first.
    modes : ndarray of complex, shape (n_channels, rank)
        Eigenvectors lifted to the channels, of unit length.
    matrix : ndarray, shape (rank, rank)
        In principal coordinates.
    growth, frequency : ndarray, shape (rank,)
        Per step: :math:`\\log|\\lambda|/m` and :math:`|\\arg\\lambda|/(2\\pi m)` cycles.
    explained : float
        Share of the variance in the leading ``rank`` directions.
    method, names, stride, warnings
        As in `LocalDynamics`.
    """

    eigenvalues: NDArray[np.complex128]
    modes: NDArray[np.complex128] = field(repr=False)
    matrix: Floats = field(repr=False)
    growth: Floats
    frequency: Floats
    explained: float
    method: str
    names: tuple[str, ...]
    stride: float
    warnings: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """One row a mode."""
        import pandas as pd

        lam = self.eigenvalues
        table = {
            "modulus": np.abs(lam), "angle": np.angle(lam), "growth": self.growth, "frequency": self.frequency,
        }  # fmt: skip
        return pd.DataFrame(table, index=pd.RangeIndex(lam.size, name="mode"))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, eigenvalues as real and imaginary parts."""
        return {
            "eigenvalues": [[float(v.real), float(v.imag)] for v in self.eigenvalues],
            **{
                k: jsonable(getattr(self, k)) for k in ("growth", "frequency", "explained", "method", "names", "stride")
            },
            "warnings": list(self.warnings),
        }

    def summary(self) -> str:
        """One sentence, and the warnings."""
        lead = self.eigenvalues[0]
        text = (
            f"DMD ({self.method}) in {self.eigenvalues.size} directions ({self.explained:.0%} of the variance):"
            f" dominant eigenvalue {abs(lead):.3f} at angle {abs(np.angle(lead)):.2f} per row of {self.stride:g} steps."
        )
        return " ".join([text, *(f"{w[0].upper()}{w[1:]}." for w in self.warnings)])


def dmd(
    source: Any,
    rank: int | None = None,
    *,
    method: str = "plain",
    steps: ArrayLike | None = None,
    channels: Sequence[str] | None = None,
) -> Dmd:
    """Dynamic modes of a whole trajectory, about its mean.

    Parameters
    ----------
    source, steps, channels
        As in `rolling_var`.
    rank : int, optional
        Principal directions kept; all that are not negligible (1e-8 of the largest variance) by default.
    method : {"plain", "instrument", "tls", "fb"}, default "plain"

    Raises
    ------
    NotEnoughData
        Fewer than 2 rank + 2 pairs of rows, or channels that do not vary.
    InputError
        For an unknown method or a rank out of range.

    Examples
    --------
    >>> t = np.arange(200)
    >>> found = dmd(np.column_stack([np.cos(0.3 * t), np.sin(0.3 * t)]))
    >>> found.eigenvalues.round(3).tolist() == np.exp([0.3j, -0.3j]).round(3).tolist()
    True
    """
    if method not in METHODS:
        raise InputError(f"there is no method {method!r}. {nearest(str(method), METHODS)}")
    rows = as_rows(source, steps, channels)
    n, k = rows.x.shape
    if rank is not None and not 1 <= rank <= k:
        raise InputError(f"rank is {rank}; expected 1 to the number of channels, {k}.")
    if n < 4:
        raise NotEnoughData(f"{n} complete rows; at least 4 are needed for a mode, and 2 rank + 3 for rank modes.")
    centred = rows.x - rows.x.mean(axis=0)
    _, size, axes = np.linalg.svd(centred, full_matrices=False)
    variance = size**2
    most = int(np.count_nonzero(variance > 1e-8 * variance[0])) if variance[0] > 0 else 0
    r = min(most, rank or k)
    if r == 0:
        raise NotEnoughData("no channel varies; modes need something that moves.")
    lag = 2 if method == "instrument" else 1
    scores = centred @ axes[:r].T
    pairs = [(0, 0), (0, 1), (1, 1)] + ([(0, 2), (1, 2)] if lag == 2 else [])
    count, products = overall_products(scores, pairs, linked=rows.linked)
    if count < 2 * r + 2:
        raise NotEnoughData(
            f"{count:.0f} pairs of successive rows for {r} directions; at least {2 * r + 2} are needed. Lower the"
            " rank or log every step."
        )
    unit = np.sqrt(np.diagonal(products[1, 1]))
    scaled = {p: (s / np.outer(unit, unit))[None] for p, s in products.items()}
    if method == "instrument" and not instrument_strength(scaled)[0] > WEAK / np.sqrt(count):
        raise NotEnoughData(
            "some direction of a row says nothing about the next, so that the instrument divides by noise; take"
            " method='plain' or a lower rank."
        )
    matrix = window_matrices(method, scaled)[0] * unit[:, None] / unit[None, :]
    if not np.isfinite(matrix).all():
        raise NotEnoughData("the regression has no solution (collinear directions); lower the rank.")
    lam = sorted_eigenvalues(matrix[None])[0]
    values, vectors = np.linalg.eig(matrix)
    order = eigenvalue_order(values.astype(np.complex128)[None])[0]
    modes = axes[:r].T @ vectors[:, order].astype(np.complex128)
    with np.errstate(divide="ignore"):
        growth = np.log(np.abs(lam)) / rows.stride
    return Dmd(
        lam, modes / np.linalg.norm(modes, axis=0), matrix, growth, np.abs(np.angle(lam)) / (2 * np.pi * rows.stride),
        float(variance[:r].sum() / variance.sum()), method, rows.names, rows.stride,
        tuple(_warnings(rows, {method: None} if method in ("tls", "fb") else {})),  # type: ignore[dict-item]
        provenance=make_provenance(
            "dmd", {"rank": rank, "method": method, "channels": rows.names}, rows.x, rows.steps
        ),
    )  # fmt: skip
