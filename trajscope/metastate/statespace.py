r"""Linear-Gaussian state space: the meta-state as something that has dynamics of its own.

.. math:: z_{t+1} = A z_t + w_t, \quad x_t = C z_t + v_t, \qquad w \sim N(0, Q),\; v \sim N(0, R),\; R\
\text{diagonal},

fitted by maximum likelihood with EM (`trajscope._core.kalman_em`): exact with any cell missing, several runs at
once, *A* stable. Observation noise is told apart from dynamics, which is what a regression of scores on their past
cannot do (it takes noise for damping).

The likelihood is the same for :math:`T z` with any invertible *T*. Reported is the canonical form: stationary
covariance of the states *I*, :math:`C^\top R^{-1} C` diagonal and descending (a state comes first if the channels
say more about it), largest loading positive. What data determine: eigenvalues of *A*, the space spanned by *C*,
and, per row,

.. math:: \mathrm{NIS}_t = e_t^\top F_t^{-1} e_t,\qquad e_t = x_t - C z_{t|t-1},\; F_t = C P_{t|t-1} C^\top + R,

which is :math:`\chi^2` with as many degrees of freedom as channels were seen, if the model holds.

Starts: principal components with a regression on their past; directions of largest lag-1 autocovariance; random
rotations of the first. Each gets a few iterations, the best is carried on. Source of the algorithm: Shumway &
Stoffer (1982); canonical form and invariants: `docs/meta_states.md`.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.utils.validation import check_is_fitted

from trajscope._core.kalman import (
    Filtered,
    Model,
    filter_from,
    kalman_filter,
    kalman_smoother,
    spectral_radius,
)
from trajscope._core.kalman_em import Panel, canonical, em_step, expectations
from trajscope._core.linalg import Moments, psd_eigh
from trajscope._core.surrogates import as_generator
from trajscope.errors import InputError
from trajscope.metastate._bands import channel_variance, parameter_variance
from trajscope.metastate._base import MetaState
from trajscope.metastate._runs import RunData, is_many
from trajscope.metastate.parallel import centre_run
from trajscope.metastate.pca import complete_rows, ppca_from_covariance
from trajscope.metastate.reference import Watch

__all__ = ["LinearStateSpace", "fit_em", "starting_models"]

Floats = NDArray[np.float64]

_SHORT = 10  # iterations that every start gets before the best goes on
_CALIBRATION_ROWS = 50_000


def starting_models(runs: list[Floats], k: int, n_starts: int, rng: np.random.Generator) -> list[Model]:
    """Models to start EM from; runs are centred, shape (n_steps, n_channels)."""
    p = runs[0].shape[1]
    covariance = Moments.of(runs).covariance()
    variance = np.maximum(np.diag(covariance), 1e-12)
    if k == 0:
        empty = np.zeros((0, 0))
        return [Model(empty, np.zeros((p, 0)), empty, variance, empty)]
    values, vectors = psd_eigh(covariance)
    w, noise = ppca_from_covariance(values, vectors, k)
    floor = max(1e-9 * values[0], 1e-12)  # runs in which nothing moves have a start too
    filled = [complete_rows(x, w, noise) for x in runs]
    filled = [np.nan_to_num(x) for x in filled]
    n_moves = max(1, sum(x.shape[0] - 1 for x in filled))
    lag1 = sum((x[1:].T @ x[:-1] for x in filled), np.zeros((p, p))) / n_moves

    def model(basis: Floats) -> Model:
        """States: what scores on an orthonormal basis share; A: their regression on the past, inside the unit
        circle.

        White noise of the channels adds to the variance of scores, not to their lagged covariance: taken off the
        one and left out of the other, it does not look like damping.
        """
        own = basis.T @ covariance @ basis
        size, axes = np.linalg.eigh((own + own.T) / 2)
        own = (axes * np.maximum(size - noise, 0.1 * np.maximum(size, floor))) @ axes.T
        a = np.linalg.solve(own, (basis.T @ lag1 @ basis).T).T
        radius = spectral_radius(a)
        a = a if radius < 0.95 else a * (0.95 / radius)
        q = own - a @ own @ a.T
        smallest, turn = np.linalg.eigh((q + q.T) / 2)
        q = (turn * np.maximum(smallest, 0.05 * np.trace(own) / k)) @ turn.T
        left = variance - np.einsum("pi,ij,pj->p", basis, own, basis)
        return Model.stationary(a, basis, q, np.maximum(left, 0.1 * variance))

    models = [model(vectors[:, :k])]
    if n_starts > 1:
        _, slow = psd_eigh((lag1 + lag1.T) / 2)
        models.append(model(slow[:, :k]))
    for _ in range(n_starts - 2):
        mixed = vectors * np.sqrt(values + 1e-3 * values[0]) @ rng.normal(size=(p, k))
        models.append(model(np.linalg.qr(mixed)[0]))
    return models


def fit_em(
    runs: list[Floats], k: int, *, n_starts: int, max_iter: int, tol: float, rng: np.random.Generator
) -> tuple[Model, list[float], bool, Floats]:
    """Maximum likelihood by EM from several starts.

    Returns
    -------
    model, path, converged, start_log_likelihoods
        ``path`` holds the log-likelihood before each iteration and at the end; it never falls.
    """
    panel = Panel(runs)
    cells = max(1.0, float(panel.count.sum()))
    candidates = []
    starts = starting_models(runs, k, n_starts, rng)
    for model in starts:
        path = []
        if len(starts) > 1:
            for _ in range(min(_SHORT, max_iter)):
                model, value = em_step(panel, model)
                path.append(value)
        candidates.append((expectations(panel, model).log_likelihood, path, model))
    reached = np.array([c[0] for c in candidates])
    _, path, model = candidates[int(np.argmax(reached))]
    converged = False
    for _ in range(len(path), max_iter):
        new, value = em_step(panel, model)
        if path and value - path[-1] <= tol * cells:
            converged = True
            break
        path.append(value)
        model = new
    path.append(expectations(panel, model).log_likelihood)
    return model, path, converged, reached


class LinearStateSpace(MetaState):
    """Linear-Gaussian state space of one or several runs, with gaps, by maximum likelihood.

    Parameters
    ----------
    n_components : int, "auto" or "heldout", default "auto"
        ``"auto"``: parallel analysis against circular shifts. ``"heldout"``: the dimension with the best one-step
        predictive score on runs (of a single run: its last third) that took no part in the fit.
    reference, scale : as in `PCAState`
    n_starts : int, default 3
        Principal components, lag-1 directions, then random rotations: EM finds a local maximum.
    max_iter : int, default 200
    tol : float, default 1e-7
        EM stops when an iteration gains less than this log-likelihood per seen cell.
    rng : int, Generator or None, default None (seed 0)

    Attributes
    ----------
    A_, Q_ : ndarray, shape (k, k)
        Dynamics and noise of the states, canonical form (the stationary covariance is I).
    C_ : ndarray, shape (n_channels, k)
        Loadings in the units of the channels; `loadings_` are the same in standardised units.
    R_ : ndarray, shape (n_channels,)
        Noise variances in the units of the channels.
    eigenvalues_ : ndarray of complex, shape (k,)
        Of A, by falling modulus. With a logging stride of m steps these are the m-th powers of those per step.
    spectral_radius_ : float
    explained_ : ndarray, shape (k,)
        Share of each state in the variance of the standardised channels.
    log_likelihood_path_ : list of float
        Per iteration, standardised units; it never falls.
    converged_, n_iter_, start_log_likelihoods_
    bounds_ : dict
        95 % points of D, Q and NIS on the baseline.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> z = np.zeros(600)
    >>> for t in range(1, 600):
    ...     z[t] = 0.9 * z[t - 1] + rng.normal()
    >>> x = z[:, None] + rng.normal(size=(600, 4))
    >>> model = LinearStateSpace(1).fit(x)
    >>> bool(abs(model.spectral_radius_ - 0.9) < 0.05)
    True
    """

    _memory = True
    _rules = "'auto' or 'heldout'"

    def __init__(
        self,
        n_components: int | Literal["auto", "heldout"] = "auto",
        *,
        reference: Any = "level",
        scale: Literal["mad", "std"] | None = "mad",
        n_starts: int = 3,
        max_iter: int = 200,
        tol: float = 1e-7,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        self.n_components = n_components
        self.reference = reference
        self.scale = scale
        self.n_starts = n_starts
        self.max_iter = max_iter
        self.tol = tol
        self.rng = rng

    # ---- fitting

    def _fit_model(self, xs: list[Floats], covariance: Floats) -> None:
        counts = (self.n_starts, self.max_iter)
        if not all(isinstance(v, int | np.integer) for v in counts) or self.n_starts < 1 or self.max_iter < 0:
            raise InputError(
                f"n_starts is {self.n_starts!r} and max_iter {self.max_iter!r}; expected at least 1 and at least 0,"
                " whole numbers."
            )
        used = self.reference_.used
        runs = [centre_run(x[:, used]) for x in xs]
        if isinstance(self.n_components, str) and self.n_components == "heldout":
            from trajscope.metastate.dimension import heldout_dimension

            k = heldout_dimension(runs, n_starts=self.n_starts, rng=self.rng).n_components
        else:
            k = self._dimension(xs, int(used.sum()))
        model, path, self.converged_, self.start_log_likelihoods_ = fit_em(
            runs, k, n_starts=self.n_starts, max_iter=self.max_iter, tol=self.tol, rng=as_generator(self.rng)
        )
        self.log_likelihood_path_ = path
        self.n_iter_ = len(path) - 1
        self._lengths = [x.shape[0] for x in runs]
        self._missing = np.isnan(np.concatenate(runs)).mean(axis=0)
        self._take(model)

    def _take(self, model: Model) -> None:
        """Publish a model of the channels in use, in canonical form."""
        used = np.flatnonzero(self.reference_.used)
        model = canonical(model)
        self._model = model
        k, p, sd = model.k, self.n_features_in_, self.reference_.sd
        self.n_components_ = k
        self.A_, self.Q_ = model.a, model.q
        self.loadings_ = np.zeros((p, k))
        self.loadings_[used] = model.c
        self.C_ = self.loadings_ * sd[:, None]
        self.R_ = np.zeros(p)
        self.R_[used] = model.r * sd[used] ** 2
        values = np.linalg.eigvals(model.a) if k else np.zeros(0, dtype=complex)
        self.eigenvalues_ = values[np.argsort(-np.abs(values), kind="stable")].astype(complex)
        self.spectral_radius_ = spectral_radius(model.a)
        total = float((model.c**2).sum() + model.r.sum())
        self.explained_ = (model.c**2).sum(axis=0) / total

    def em_step(self, X: Any) -> Self:
        """One EM iteration on X, in place; `log_likelihood` of X does not fall. Fits a start first if nothing is
        fitted.

        Returns
        -------
        self
        """
        if not hasattr(self, "n_components_"):
            most, self.max_iter = self.max_iter, 0
            try:
                self.fit(X)
            finally:
                self.max_iter = most
        runs = self._runs_like_fitted(X)
        xs = [self.reference_.residual(r) for r in runs]
        panel = Panel([centre_run(x[:, self.reference_.used]) for x in xs])
        model, value = em_step(panel, self._model)
        self.log_likelihood_path_ = [*self.log_likelihood_path_[:-1], value]
        self.log_likelihood_path_.append(expectations(panel, model).log_likelihood)
        self.n_iter_ += 1
        self._take(model)
        self._calibrate(xs)
        return self

    def _calibrate(self, xs: list[Floats]) -> None:
        """As in the base, on the first 50,000 rows: a filter cannot skip rows, and memory has a bound."""
        kept, left = [], _CALIBRATION_ROWS
        for x in xs:
            kept.append(x[:left])
            left -= x.shape[0]
            if left <= 0:
                break
        super()._calibrate(kept)

    # ---- states

    def _filtered(self, x: Floats) -> Filtered:
        used = self.reference_.used
        return kalman_filter(x if used.all() else x[:, used], self._model)

    def _states(self, x: Floats, causal: bool) -> Floats:
        if causal:
            return self._filtered(x).mean
        used = self.reference_.used
        return kalman_smoother(x if used.all() else x[:, used], self._model).mean

    def _read(self, x: Floats) -> tuple[Floats, dict[str, Floats]]:
        out = self._filtered(x)
        return out.mean, {"NIS": out.nis}

    def _watch(self) -> Watch:
        return _FilterWatch(self)

    def bands(
        self,
        X: Any,
        *,
        causal: bool = False,
        level: float = 0.95,
        of: Literal["states", "channels"] = "states",
        n_boot: int = 0,
    ) -> Any:
        """Pointwise bands of the states, or of what the states say about the channels (without observation noise).

        Parameters
        ----------
        X : as in `fit`
        causal : bool, default False
            Filter instead of smoother.
        level : float, default 0.95
            Probability that a band holds the true value, the parameters taken as known unless ``n_boot`` is given.
        of : {"states", "channels"}, default "states"
            Channel bands are in standardised units (NaN for channels that were set aside) and, unlike state bands,
            do not depend on the coordinates of the states.
        n_boot : int, default 0
            Refits of a parametric bootstrap that add the uncertainty of the parameters (channel bands only); 20 to
            50 are enough for a variance. Worth its time where runs are short or channels say little about the
            states.

        Returns
        -------
        DataFrame, or a list of them if X is a list of runs
            Indexed by step; columns are pairs (state or channel, "low" | "mean" | "high").
        """
        if not 0 < level < 1:
            raise InputError(f"level is {level}; expected a probability between 0 and 1.")
        if of not in ("states", "channels"):
            raise InputError(f"of is {of!r}; expected 'states' or 'channels'.")
        if n_boot and (n_boot < 2 or of != "channels"):
            raise InputError(
                f"n_boot is {n_boot} with of={of!r}; expected 0, or at least 2 with of='channels': the states of refits"
                " have coordinates of their own."
            )
        width = float(norm.ppf(0.5 + level / 2))
        out = [self._bands(r, causal, width, of, n_boot) for r in self._runs_like_fitted(X)]
        return out if is_many(X) else out[0]

    def _bands(self, run: RunData, causal: bool, width: float, of: str, n_boot: int) -> pd.DataFrame:
        x = self._prepared(run)[:, self.reference_.used]
        out = (kalman_filter if causal else kalman_smoother)(x, self._model)
        mean, names = out.mean, [f"z{j + 1}" for j in range(self.n_components_)]
        variance = np.diagonal(out.covariance, axis1=1, axis2=2)
        if of == "channels":
            mean, names = out.mean @ self.loadings_.T, self._channel_names()
            variance = channel_variance(out.covariance, self.loadings_)
            if n_boot:
                variance[:, self.reference_.used] += parameter_variance(
                    x,
                    self._model,
                    self._lengths,
                    self._missing,
                    causal=causal,
                    n_boot=n_boot,
                    rng=as_generator(self.rng),
                )
            mean[:, ~self.reference_.used] = np.nan  # of a channel without a scale nothing is known
        half = width * np.sqrt(np.maximum(variance, 0.0))
        table = np.stack([mean - half, mean, mean + half], axis=2).reshape(mean.shape[0], -1)
        columns = pd.MultiIndex.from_product([names, ["low", "mean", "high"]])
        return pd.DataFrame(table, index=pd.Index(run.steps, name="step"), columns=columns)

    # ---- likelihood

    def log_likelihood(self, X: Any, *, centre: Literal["run", "fitted"] = "run") -> float:
        """Log-likelihood of all seen cells, in the units of the channels; the sum over runs.

        Parameters
        ----------
        X : as in `fit`
        centre : {"run", "fitted"}, default "run"
            ``"run"``: every run about its own mean, as in `fit`, the function that EM climbs. ``"fitted"``: about
            the fitted level.
        """
        if centre not in ("run", "fitted"):
            raise InputError(f"centre is {centre!r}; expected 'run' or 'fitted'.")
        used = self.reference_.used if hasattr(self, "reference_") else None
        runs = self._runs_like_fitted(X)
        xs = [
            (centre_run(self.reference_.residual(r)) if centre == "run" else self._prepared(r, freeze=False))[:, used]
            for r in runs
        ]
        panel = Panel(xs)
        value = expectations(panel, self._model).log_likelihood
        return value - float((panel.count * np.log(self.reference_.sd[used])).sum())

    def predictive_score(self, X: Any) -> float:
        """Mean log density of a seen cell given the rows before it (one-step, causal, about the fitted level)."""
        check_is_fitted(self, "n_components_")
        total, cells = 0.0, 0
        used = self.reference_.used
        for run in self._runs_like_fitted(X):
            x = self._prepared(run, freeze=False)
            total += float(self._filtered(x).log_likelihood.sum())
            seen = (~np.isnan(x[:, used])).sum(axis=0)
            total -= float((seen * np.log(self.reference_.sd[used])).sum())
            cells += int(seen.sum())
        return total / cells if cells else float("nan")

    def score(self, X: Any, y: Any = None) -> float:
        """`predictive_score`, under the name that scikit-learn's model selection looks for."""
        return self.predictive_score(X)

    def _more_summary(self) -> list[str]:
        if self.n_components_ == 0:
            return []
        eig = ", ".join(f"{abs(v):.3f} at {np.degrees(np.angle(v)):.0f}°" for v in self.eigenvalues_ if v.imag >= 0)
        state = "converged" if self.converged_ else "stopped before it converged"
        return [f"Eigenvalues of A: {eig}. EM {state} after {self.n_iter_} iterations."]


class _FilterWatch:
    """A `Watch` that filters along: whether D of the filtered state exceeds the freeze bound."""

    def __init__(self, model: LinearStateSpace) -> None:
        self.model = model
        self.start = (np.zeros(model.n_components_), model._model.p0)

    def _filter(self, x: Floats) -> Filtered:
        rows = (x - self.model.centre_)[:, self.model.reference_.used]
        return filter_from(rows, self.model._model, *self.start)

    def outside(self, x: Floats) -> NDArray[np.bool_]:
        """Whether D exceeds the freeze bound."""
        if self.model.n_components_ == 0:
            return np.zeros(x.shape[0], dtype=bool)
        return np.asarray(self.model._distance(self._filter(x).mean) > self.model.freeze_bound_)

    def advance(self, x: Floats) -> None:
        """Move the filter over these rows."""
        if self.model.n_components_ == 0:
            return
        out, a = self._filter(x), self.model._model.a
        self.start = (a @ out.mean[-1], a @ out.covariance[-1] @ a.T + self.model._model.q)
