r"""How many dimensions: rules side by side, and whether they agree.

- *parallel, circular*: leading correlation eigenvalues above those of channels rotated each by its own offset (95 %)
- *parallel, phase*: the same with random Fourier phases
- *parallel, differenced*: circular, on differences: what a common trend alone makes disappears here (so does what is
  slow)
- *parallel, detrended*: circular, on residuals of the causal local-linear forecast
- *held-out prediction*: one-step log score of a state space on runs (or the last third of one) that it was not fitted
  on
- *element-wise CV*: error of PCA on cells that were left out one by one (ekf; Camacho & Ferrer 2012)
- *broken stick*: eigenvalue shares above those of a stick broken at random, :math:`b_k = \frac1p\sum_{i=k}^p
  \frac1i`
- *participation ratio*: :math:`(\sum\lambda)^2/\sum\lambda^2`: no test, an effective number

Row-wise cross-validation of PCA is left out: it always prefers more components. The rules ask different questions,
so they may differ for a reason; a spread of more than one between the three that test for common dynamics (parallel
circular, parallel phase, held-out) is said in words and means that the dimension is not settled by these data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import t

from trajscope._core.kalman import kalman_filter
from trajscope._core.linalg import Moments, participation_ratio, psd_eigh
from trajscope._core.surrogates import as_generator
from trajscope.errors import InputError, NotEnoughData
from trajscope.metastate._runs import as_runs
from trajscope.metastate.parallel import ParallelAnalysis, centre_run, correlation_eigenvalues, parallel_analysis
from trajscope.metastate.pca import complete_rows, ppca_from_covariance
from trajscope.metastate.reference import Reference, local_linear_forecast
from trajscope.result import Result, make_provenance

__all__ = ["DimensionReport", "Heldout", "broken_stick", "dimension", "elementwise_cv", "heldout_dimension"]

Floats = NDArray[np.float64]

_TESTS = ("parallel, circular", "parallel, phase", "held-out prediction")
_BLOCKS = 10


@dataclass(frozen=True)
class Heldout:
    """One-step predictive scores by dimension.

    Attributes
    ----------
    n_components : int
        The smallest dimension that does not predict worse than the best (paired over blocks, one-sided 5 %).
    scores : ndarray, shape (tried,)
        Mean log density per seen held-out cell for 0, 1, 2, ... components.
    errors : ndarray, shape (tried,)
        Standard error of the difference from the best, over blocks of held-out rows.
    """

    n_components: int
    scores: Floats
    errors: Floats


def broken_stick(n_channels: int) -> Floats:
    """Expected shares, descending, of a stick broken at random in ``n_channels`` pieces.

    Examples
    --------
    >>> broken_stick(2)
    array([0.75, 0.25])
    """
    return np.asarray(np.cumsum(1.0 / np.arange(n_channels, 0, -1))[::-1] / n_channels)


def _leading(above: NDArray[np.bool_]) -> int:
    return int(above.size if above.all() else np.argmin(above))


def heldout_dimension(
    runs: list[Floats],
    *,
    most: int | None = None,
    n_starts: int = 2,
    max_iter: int = 50,
    rng: int | np.random.Generator | None = None,
) -> Heldout:
    """Dimension of a state space by prediction of rows that took no part in the fit.

    Parameters
    ----------
    runs : list of ndarray, each (n_steps, n_channels)
        With two runs or more, five folds (or as many as there are runs) of whole runs; with one, its first two
        thirds are fitted and its last third predicted.
    most : int, optional
        Largest dimension tried, default min(n_channels, 8); the search ends early when two in a row do not help.
    """
    from trajscope.metastate.statespace import fit_em

    p = runs[0].shape[1]
    most = min(p, 8) if most is None else min(most, p)
    if most < 0:
        raise InputError(f"most is {most}; expected at least 0.")
    runs = [centre_run(r) for r in runs]
    if len(runs) == 1:
        x = runs[0]
        cut = 2 * x.shape[0] // 3
        if cut < 4 or x.shape[0] - cut < 2:
            raise NotEnoughData(f"one run of {x.shape[0]} rows is too short to hold a third of it out; 6 rows or more.")
        folds = [([x[:cut]], [x[cut:]])]
    else:
        parts = np.arange(len(runs)) % min(5, len(runs))
        folds = [
            (
                [r for r, f in zip(runs, parts, strict=True) if f != i],
                [r for r, f in zip(runs, parts, strict=True) if f == i],
            )
            for i in range(parts.max() + 1)
        ]
    folds = [fold for fold in map(_learnable, folds) if fold[0][0].shape[1]]
    if not folds:
        raise NotEnoughData("no channel moves in the rows that would be fitted; nothing can be held out.")
    most = min(most, *(train[0].shape[1] for train, _ in folds))
    scores: list[Floats] = []
    cells: Floats = np.zeros(0)
    for k in range(most + 1):
        blocks = []
        for train, test in folds:
            model, *_ = fit_em(train, k, n_starts=n_starts, max_iter=max_iter, tol=1e-6, rng=as_generator(rng))
            blocks += [_block_scores(x, model) for x in test]
        table = np.concatenate(blocks)
        scores.append(table[:, 0])
        cells = table[:, 1]
        best = int(np.argmax([s.sum() for s in scores]))
        if k - best >= 2:
            break
    table = np.array(scores) / max(1.0, cells.sum())
    gain = table[best] - table
    n = table.shape[1]
    errors = np.sqrt(n * gain.var(axis=1, ddof=1)) if n > 1 else np.zeros(len(scores))
    close = gain.sum(axis=1) <= t.ppf(0.95, max(n - 1, 1)) * errors
    return Heldout(int(np.argmax(close)), table.sum(axis=1), errors)


def _learnable(fold: tuple[list[Floats], list[Floats]]) -> tuple[list[Floats], list[Floats]]:
    """A fold without the channels that do not move in its training rows: no model could say how far they go."""
    moves = np.diag(Moments.of(fold[0]).covariance()) > 0
    return [r[:, moves] for r in fold[0]], [r[:, moves] for r in fold[1]]


def _block_scores(x: Floats, model: Any) -> Floats:
    """Log score and number of seen cells of consecutive blocks of one held-out run."""
    out = kalman_filter(x, model)
    edges = np.linspace(0, x.shape[0], min(_BLOCKS, x.shape[0]) + 1).astype(int)[:-1]
    return np.stack([np.add.reduceat(out.log_likelihood, edges), np.add.reduceat(out.n_seen, edges)], axis=1)


def elementwise_cv(
    runs: list[Floats], *, folds: int = 5, most: int | None = None, rng: int | np.random.Generator | None = None
) -> Floats:
    """Mean squared error of PCA on left-out cells (of unit-variance channels), for 0, 1, 2, ... components.

    Parameters
    ----------
    runs : list of ndarray, each (n_steps, n_channels)
    folds : int, default 5
        Seen cells are split at random; each fold is predicted from the rest of its row.

    Returns
    -------
    ndarray, shape (most + 1,)
    """
    x = np.concatenate([centre_run(r) for r in runs])
    with np.errstate(invalid="ignore"):
        x = x / np.maximum(np.sqrt(np.diag(Moments.of([x]).covariance())), 1e-300)
    p = x.shape[1]
    most = min(p - 1, 10) if most is None else most
    seen = ~np.isnan(x)
    fold = as_generator(rng).integers(0, folds, size=x.shape)
    total, cells = np.zeros(most + 1), 0
    for f in range(folds):
        out = seen & (fold == f)
        kept = np.where(out, np.nan, x)
        values, vectors = psd_eigh(Moments.of([kept]).covariance())
        cells += int(out.sum())
        truth = x[out]
        for k in range(most + 1):
            w, noise = ppca_from_covariance(values, vectors, k)
            guess = complete_rows(kept, w, noise)[out] if k else np.zeros_like(truth)
            # a row of which nothing is left is predicted by the mean
            total[k] += float(((truth - np.nan_to_num(guess)) ** 2).sum())
    return total / max(cells, 1)


@dataclass(frozen=True, eq=False)
class DimensionReport(Result):
    """What each rule says about the number of dimensions.

    Attributes
    ----------
    table : DataFrame
        Indexed by rule; columns ``n_components`` (float: the participation ratio is none), ``tests`` (whether the
        rule takes part in the verdict) and ``detail``.
    agree : bool
        The testing rules differ by at most one.
    n_components : int
        Parallel analysis against circular shifts: the package's default.
    """

    plot_name = "metastate_dimension"

    table: pd.DataFrame
    n_components: int
    agree: bool
    parallel: ParallelAnalysis
    heldout: Heldout | None

    def to_frame(self) -> pd.DataFrame:
        """One row a rule."""
        return self.table.copy()

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        rules = {str(k): float(v) for k, v in self.table["n_components"].items()}
        return {"n_components": self.n_components, "agree": self.agree, "rules": rules}

    def summary(self) -> str:
        """The verdict in a sentence, then the rules."""
        said = self.table.loc[self.table["tests"], "n_components"].dropna()
        low, high = int(said.min()), int(said.max())
        if self.agree:
            span = f"{low}" if low == high else f"{low} to {high}"
            lines = [f"Dimension {span}: the testing rules agree within one."]
        else:
            lines = [f"Dimension not settled by these data: the testing rules say {low} to {high}."]
        lines += [f"  {rule}: {row['n_components']:.4g} ({row['detail']})" for rule, row in self.table.iterrows()]
        return "\n".join(lines)


def dimension(
    X: Any,
    *,
    n_surrogates: int = 199,
    heldout: bool = True,
    most: int | None = None,
    rng: int | np.random.Generator | None = None,
) -> DimensionReport:
    """Number of dimensions by several rules, side by side.

    Parameters
    ----------
    X : array, DataFrame or trajectory (n_steps, n_channels), or a list of them
        Baseline rows; NaN where nothing was logged. Channels that never move are left out.
    n_surrogates : int, default 199
    heldout : bool, default True
        Fit state spaces to compare held-out prediction (the slow part).
    most : int, optional
        Largest dimension for held-out prediction.
    rng : int, Generator or None, default None (seed 0)

    Returns
    -------
    DimensionReport

    Raises
    ------
    NotEnoughData
        Fewer than two channels that move.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(300, 1)) + rng.normal(size=(300, 6))
    >>> dimension(x, heldout=False).n_components
    1
    """
    runs = as_runs(X)
    reference = Reference("level", "std").fit(runs)
    used = reference.used
    xs = [reference.residual(r)[:, used] for r in runs]
    p = int(used.sum())
    if p < 2:
        raise NotEnoughData("one channel moves on these rows; there is no dimension to choose with fewer than two.")
    generator = as_generator(rng)
    seeds = [int(s) for s in generator.integers(0, 2**31, size=6)]
    rows: dict[str, tuple[float, bool, str]] = {}

    def parallel(name: str, data: list[Floats], surrogate: str, seed: int) -> ParallelAnalysis:
        out = parallel_analysis(data, n_surrogates=n_surrogates, surrogate=surrogate, rng=seed)
        lead = f"first eigenvalue {out.eigenvalues[0]:.2f}, threshold {out.thresholds[0]:.2f}"
        rows[name] = (float(out.n_components), name in _TESTS, lead)
        return out

    main = parallel("parallel, circular", xs, "circular", seeds[0])
    parallel("parallel, phase", xs, "phase", seeds[1])
    parallel("parallel, differenced", [np.diff(x, axis=0) for x in xs if x.shape[0] > 1], "circular", seeds[2])
    detrended = [x - local_linear_forecast(x)[0] for x in xs]
    parallel("parallel, detrended", detrended, "circular", seeds[3])
    held = None
    if heldout:
        held = heldout_dimension(xs, most=most, rng=seeds[4])
        best = int(np.argmax(held.scores))
        detail = f"best score {held.scores[best]:.4f} a cell at {best}, {held.scores[0]:.4f} at 0"
        rows["held-out prediction"] = (float(held.n_components), True, detail)
    errors = elementwise_cv(xs, rng=seeds[5])
    rows["element-wise CV"] = (float(np.argmin(errors)), False, f"left-out variance {errors.min():.3f} of 1")
    eigenvalues = np.clip(correlation_eigenvalues(xs), 0, None)
    shares = eigenvalues / eigenvalues.sum()
    rows["broken stick"] = (float(_leading(shares > broken_stick(p))), False, f"first share {shares[0]:.3f}")
    rows["participation ratio"] = (participation_ratio(eigenvalues), False, f"of {p} channels")

    table = pd.DataFrame.from_dict(rows, orient="index", columns=["n_components", "tests", "detail"])
    table.index.name = "rule"
    said = table.loc[table["tests"].astype(bool), "n_components"]
    table["tests"] = table["tests"].astype(bool)
    parameters = {"n_surrogates": n_surrogates, "heldout": heldout, "most": most}
    seed = rng if isinstance(rng, int) else (0 if rng is None else None)
    return DimensionReport(
        table,
        main.n_components,
        bool(said.max() - said.min() <= 1),
        main,
        held,
        provenance=make_provenance("dimension", parameters, *[r.x for r in runs], seed=seed),
    )
