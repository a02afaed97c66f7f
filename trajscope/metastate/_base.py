r"""The interface that all meta-state estimators share: reference, calibration on the baseline, deviation.

`fit` turns the baseline rows into :math:`x_t = (y_t - r_t)/s_c` (`reference`), removes each run's own mean, and
learns the model. New rows are measured against the *fitted* level: a run that lies elsewhere as a whole must not be
centred away. With states :math:`z_t`, their baseline mean :math:`\mu` and covariance :math:`S`,

.. math:: D_t = \sqrt{(z_t - \mu)^\top S^{-1} (z_t - \mu)}, \qquad Q_t = |x_t - C z_t|^2 .

Both are invariant under an invertible linear map of the states, which is all that data determine. *Q* is scaled to
all channels (n_channels / n_seen) where a row has gaps. `deviation` is causal: row *t* uses rows up to *t*. A row
in which nothing was logged has NaN, and so has *D* where the model has no component.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from trajscope._core.linalg import Moments
from trajscope.errors import InputError, NotEnoughData
from trajscope.metastate._runs import RunData, as_runs, check_channels, is_many
from trajscope.metastate.parallel import ParallelAnalysis, parallel_analysis
from trajscope.metastate.reference import Reference, Watch

__all__ = ["MetaState"]

Floats = NDArray[np.float64]

MIN_ROWS = 2
FREEZE_MARGIN = 1.25
"""A trend reference is frozen while D exceeds the largest D of the baseline this many times (see `reference`)."""
_CALIBRATION_ROWS = 5_000
"""Baseline rows, evenly spaced, from which bounds are taken where rows do not depend on each other."""


class MetaState(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base class; see `trajscope.metastate`. Subclasses implement `_fit_model`, `_states` and `_rebuild`."""

    n_components: Any
    reference: Any
    scale: Literal["mad", "std"] | None
    rng: int | np.random.Generator | None

    reference_: Reference
    loadings_: Floats
    n_components_: int
    parallel_: ParallelAnalysis | None
    _memory = False  # True where the state of a row depends on earlier rows
    _robust_level = False
    _rules = "'auto'"  # what else than a number n_components may be

    # ---- fitting

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the meta-state on baseline rows.

        Parameters
        ----------
        X : array, DataFrame or trajectory of shape (n_steps, n_channels), or a list of them
            Baseline rows. NaN (and cells of a trajectory that were only carried forward) are missing.
        y : ignored

        Raises
        ------
        InputError
            Not a real two-dimensional array, runs with different channels, ``n_components`` out of range.
        NotEnoughData
            Fewer than two rows, no channel that moves, or none that moves within a run.
        """
        runs = as_runs(X)
        self._set_channels(runs)
        self._check_rows(runs)
        moments = None
        if not isinstance(self.reference, Reference):
            reference = Reference(self.reference, self.scale, robust=self._robust_level)
            if reference.kind == "level":
                moments = Moments.of([r.x for r in runs])
            self.reference_ = reference.fit(runs, moments)
        else:
            self.reference_ = self.reference
            self._check_reference()
        self._learn(runs, moments)
        return self

    def _check_rows(self, runs: list[RunData]) -> None:
        rows = sum(r.x.shape[0] for r in runs)
        if rows < MIN_ROWS:
            raise NotEnoughData(
                f"{type(self).__name__} got n_samples = {rows} ({rows} sample) and needs at least {MIN_ROWS} rows"
                " to see anything vary."
            )

    def _learn(self, runs: list[RunData], moments: Moments | None) -> None:
        """From a fitted reference on: covariance, dimension, model, baseline of D and Q."""
        used = self.reference_.used
        level = self.reference_.kind == "level"
        thin = _thin_runs(runs) if level and not self._memory else runs
        every = self._needs_rows() or moments is None
        xs = [self.reference_.residual(r) for r in (runs if every else thin)]
        if moments is not None:
            sd = self.reference_.sd
            covariance = moments.covariance() / np.outer(sd, sd)
            self.centre_ = np.where(used, (moments.mean() - self.reference_.level) / sd, 0.0)
        else:
            own = Moments.of(xs)
            covariance, self.centre_ = own.covariance(), np.nan_to_num(own.mean())
        if not (np.diag(covariance)[used] > 0).any():
            raise NotEnoughData(
                f"no channel moves within a run once reference {self.reference_.kind!r} is taken off; longer runs are"
                " needed."
            )
        if self._robust_level:
            self.centre_ = np.zeros_like(self.centre_)
        self.n_channels_used_ = int(used.sum())
        self.mean_ = self.reference_.level + self.centre_ * self.reference_.sd
        self.parallel_ = None
        self._fit_model(xs, np.where(np.outer(used, used), covariance, 0.0))
        self._n_features_out = self.n_components_
        self._calibrate([self.reference_.residual(r) for r in thin] if every and thin is not runs else xs)

    def _needs_rows(self) -> bool:
        """Whether `_fit_model` looks at rows, not at the covariance alone."""
        return True

    def _fit_model(self, xs: list[Floats], covariance: Floats) -> None:
        raise NotImplementedError

    def _set_channels(self, runs: list[RunData]) -> None:
        self.n_features_in_ = runs[0].x.shape[1]
        if runs[0].names:
            self.feature_names_in_ = np.asarray(runs[0].names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _check_reference(self) -> None:
        if not hasattr(self.reference_, "sd"):
            raise InputError("the Reference that was passed in is not fitted; call its fit(runs) first.")
        if self.reference_.sd.shape[0] != self.n_features_in_:
            raise InputError(
                f"the Reference was fitted on {self.reference_.sd.shape[0]} channels and X has {self.n_features_in_}."
            )

    def _dimension(self, xs: list[Floats], most: int) -> int:
        """``n_components`` as a number: given, or by parallel analysis on the channels in use."""
        used = self.reference_.used
        if isinstance(self.n_components, str):
            if self.n_components != "auto":
                raise InputError(f"n_components is {self.n_components!r}; expected a whole number or {self._rules}.")
            self.parallel_ = parallel_analysis([x[:, used] for x in xs], rng=self.rng)
            return min(self.parallel_.n_components, most)
        k = self.n_components
        if isinstance(k, bool) or not isinstance(k, int | np.integer):
            raise InputError(f"n_components is {k!r}; expected a whole number or {self._rules}.")
        if not 0 <= k <= most:
            raise InputError(
                f"n_components is {k}; expected 0 to {most}: {self.n_channels_used_} of"
                f" {self.n_features_in_} channels move."
            )
        return int(k)

    # ---- states

    def _states(self, x: Floats, causal: bool) -> Floats:
        """States of one run from standardised, centred rows, shape (n_steps, n_components)."""
        raise NotImplementedError

    def _rebuild(self, z: Floats) -> Floats:
        """What the states say about the channels, shape (n_steps, n_channels)."""
        return z @ self.loadings_.T

    def _runs_like_fitted(self, X: Any) -> list[RunData]:
        check_is_fitted(self, "n_components_")
        runs = as_runs(X)
        check_channels(self, runs)
        return runs

    def _prepared(self, run: RunData, freeze: bool = True) -> Floats:
        """Standardised rows about the fitted level; a trend reference is held while rows depart (``freeze``)."""
        watch = self._watch() if freeze and self.reference_.kind == "trend" else None
        x = self.reference_.residual(run, watch)
        x -= self.centre_
        return x

    def transform(self, X: Any, causal: bool = False) -> Any:
        """States of new rows.

        Parameters
        ----------
        X : as in `fit`
        causal : bool, default False
            True: the state at row t uses rows up to t only. False: all rows of the run may serve (only a
            state-space model makes use of them; elsewhere both are the same).

        Returns
        -------
        ndarray of shape (n_steps, n_components), or a list of them if X is a list of runs
        """
        out = [self._states(self._prepared(r), causal) for r in self._runs_like_fitted(X)]
        return out if is_many(X) else out[0]

    def deviation(self, X: Any) -> pd.DataFrame:
        """How far each row lies from the baseline, causally.

        Returns
        -------
        DataFrame
            Indexed by step (by run and step for a list of runs), columns ``D`` (distance within the meta-state),
            ``Q`` (squared distance off it) and, for a state-space model, ``NIS`` (normalised innovation squared).
            `bounds_` holds the 95 % points on the baseline.
        """
        runs = self._runs_like_fitted(X)
        frames = []
        for run in runs:
            columns = self._measure(self._prepared(run))
            frames.append(pd.DataFrame(columns, index=pd.Index(run.steps, name="step")))
        if not is_many(X):
            return frames[0]
        return pd.concat(frames, keys=range(len(frames)), names=["run", "step"])

    def _read(self, x: Floats) -> tuple[Floats, dict[str, Floats]]:
        """Causal states of standardised, centred rows, and further columns of `deviation`."""
        return self._states(x, True), {}

    def _measure(self, x: Floats) -> dict[str, Floats]:
        z, more = self._read(x)
        return {"D": self._distance(z), "Q": self._off(x, z), **more}

    def _distance(self, z: Floats) -> Floats:
        if self.n_components_ == 0:
            return np.full(z.shape[0], np.nan)
        return np.asarray(np.sqrt((((z - self.mu_) @ self._whiten.T) ** 2).sum(axis=1)))

    def _off(self, x: Floats, z: Floats) -> Floats:
        error = x - self._rebuild(z)
        seen = ~np.isnan(error)
        n = seen.sum(axis=1)
        total = np.where(seen, error, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(n > 0, (total**2).sum(axis=1) * (self.n_channels_used_ / n), np.nan)

    def _calibrate(self, xs: list[Floats]) -> None:
        """Mean and covariance of the causal states on the baseline, and the 95 % points of D, Q (and NIS)."""
        for x in xs:
            x -= self.centre_
        read = [self._read(x) for x in xs]
        z = np.concatenate([states for states, _ in read])
        good = ~np.isnan(z).any(axis=1)
        k = self.n_components_
        self.mu_ = np.zeros(k)
        self._whiten = np.eye(k)
        self.state_covariance_ = np.eye(k)
        if k and good.sum() > 1:
            self.mu_ = z[good].mean(axis=0)
            self.state_covariance_ = np.atleast_2d(np.cov(z[good].T, bias=True))
            values, vectors = np.linalg.eigh(self.state_covariance_)
            # a state that does not move on the baseline has no scale; a floor keeps D finite
            self._whiten = (vectors / np.sqrt(np.maximum(values, 1e-12 * max(values[-1], 1e-300)))).T
        columns = {
            "D": [self._distance(states) for states, _ in read],
            "Q": [self._off(x, states) for x, (states, _) in zip(xs, read, strict=True)],
            **{name: [more[name] for _, more in read] for name in read[0][1]},
        }
        self.bounds_ = {}
        for name, parts in columns.items():
            values = np.concatenate(parts)
            values = values[~np.isnan(values)]
            self.bounds_[name] = float(np.quantile(values, 0.95)) if values.size else float("nan")
            if name == "D":
                self.freeze_bound_ = FREEZE_MARGIN * float(values.max()) if values.size else float("inf")

    def _watch(self) -> Watch:
        """Tells whether D exceeds the freeze bound (freezes a trend reference)."""
        return _Memoryless(self)

    # ---- telling

    def _channel_names(self) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        return [str(n) for n in names] if names is not None else [f"x{i}" for i in range(self.n_features_in_)]

    def summary(self) -> str:
        """The fitted model in a few plain sentences."""
        check_is_fitted(self, "n_components_")
        names = self._channel_names()
        k = self.n_components_
        how = " by parallel analysis" if self.parallel_ is not None else ""
        lines = [
            f"{type(self).__name__}: {k} component{'s' * (k != 1)}{how} of {self.n_channels_used_} channels,"
            f" against reference {self.reference_.kind!r}."
        ]
        if k == 0:
            lines.append("The channels share nothing that a meta-state could carry; D is not defined.")
        explained = getattr(self, "explained_", None)
        for j in range(k):
            order = np.argsort(-np.abs(self.loadings_[:, j]))[:3]
            top = ", ".join(f"{names[i]} {self.loadings_[i, j]:+.2f}" for i in order if self.loadings_[i, j] != 0)
            share = f"{explained[j]:.1%} of the variance; " if explained is not None else ""
            lines.append(f"Component {j + 1}: {share}largest loadings {top}.")
        aside = [n for n, u in zip(names, self.reference_.used, strict=True) if not u]
        if aside:
            lines.append(f"Set aside because they never move on the baseline: {', '.join(aside)}.")
        return "\n".join(lines + self._more_summary())

    def _more_summary(self) -> list[str]:
        return []

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Loadings of every component; returns the axes."""
        check_is_fitted(self, "n_components_")
        return importlib.import_module("trajscope.plots.metastate").plot(self, ax=ax, **options)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class _Memoryless:
    """A `Watch` over a model in which rows do not depend on each other."""

    def __init__(self, model: MetaState) -> None:
        self.model = model

    def outside(self, x: Floats) -> NDArray[np.bool_]:
        """Whether D exceeds the freeze bound."""
        z = self.model._states(x - self.model.centre_, True)
        return np.asarray(self.model._distance(z) > self.model.freeze_bound_)

    def advance(self, x: Floats) -> None:
        """Nothing to remember."""


def _thin_runs(runs: list[RunData]) -> list[RunData]:
    """Evenly spaced rows of all runs, at most about `_CALIBRATION_ROWS`."""
    step = max(1, sum(r.x.shape[0] for r in runs) // _CALIBRATION_ROWS)
    return runs if step == 1 else [RunData(r.x[::step], r.steps[::step], r.names) for r in runs]
