r"""The instability manifold: the stable set of healthy runs, its boundary with a guarantee, and how runs leave it.

Rows are standardised, :math:`x_t = (y_t - r_t)/s` (`trajscope.metastate.reference`), each group of runs on its own
baseline. Healthy rows give whitened meta-state coordinates and the radius :math:`r_t` of a row, the Mahalanobis
distance under a model with few components (`_manifold_shape` has the equations). A row is *confirmed* at the smallest
radius of the last *q* rows,

.. math:: R_t = \min(r_{t-q+1}, \ldots, r_t),

and the stable set is the ball :math:`R \le h` in these coordinates. The signed distance is

.. math:: d_t = R_t - h ,

**positive outside, negative inside**, in standard deviations of the baseline along the ray through the row. (It is not
scikit-learn's ``decision_function``, where outliers are negative; none is offered, lest the signs be mixed up.)

*h* is the conformal level of the per-run maxima of :math:`R` (`trajscope._core.conformal`): a new healthy run crosses
with probability *alpha* at most, whatever the dependence in time. `fit` measures every healthy run against reference
and shape of the *others*, so that it is as new as the runs to come; `calibrate` takes runs that no fit has seen, for
which the guarantee is exact. Fewer than 1/alpha - 1 healthy runs: not certifiable; the distance is then measured from
the largest R of any healthy run, and no crossing is claimed.

Causal: row *t* uses rows up to *t*. A value that was logged and is not finite is an event: its radius is infinite. The
first rows (`warmup_`) are not judged.

Source: trajscope's definition (DEFINITIONS 8); the paper that names the manifold (arXiv 2601.13160) gives no formula.
Limits: the boundary is an ellipsoid, and "outside" means unlike the healthy runs, not "about to collapse": a harmless
change of regime crosses too.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Hashable, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from trajscope._core.conformal import conformal_threshold, needed_runs, upper_rate
from trajscope._core.surrogates import as_generator
from trajscope.detect._manifold_channels import COMMON, manifold_channels, not_finite
from trajscope.detect._manifold_parts import Baseline, Crossing, Watch, flags_of, items_of, warmup_rows
from trajscope.detect._manifold_shape import Sums, directions, healthy_windows, shape_of
from trajscope.detect._manifold_similarity import Similarity, subspace_similarity
from trajscope.detect.alarms import persistent
from trajscope.errors import InputError, NotEnoughData, nearest
from trajscope.metastate._base import FREEZE_MARGIN
from trajscope.metastate._runs import RunData, as_runs, check_channels, is_many
from trajscope.metastate.parallel import parallel_analysis
from trajscope.metastate.reference import Kind

__all__ = ["COMMON", "Crossing", "InstabilityManifold", "Similarity", "manifold_channels", "subspace_similarity"]

Floats = NDArray[np.float64]

_N_WINDOWS = 500
_SHORTEST_WINDOW = 20


class InstabilityManifold(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Stable set of healthy runs, signed distance to its boundary along other runs, and where they leave it.

    Parameters
    ----------
    n_components : int, "auto" or "all", default "auto"
        Meta-state coordinates beside the distance off them. ``"auto"``: parallel analysis against circular shifts; may
        be 0. ``"all"``: every channel, which is the raw Mahalanobis distance.
    alpha : float, default 0.05
        False-alarm rate per run that the boundary guarantees; 19 healthy runs certify it (9 for 0.1).
    reference : {"auto", "siblings", "trend", "level"}, default "auto"
        What rows are measured against; ``"auto"`` is ``"siblings"`` from five healthy runs of a group on, else
        ``"trend"``.
    scale : {"mad", "std"}, default "mad"
        Frozen scale of every channel.
    persistence : int, default 3
        Rows q that have to be outside in a row; one spike is no crossing.
    warmup : int or None, default None
        First rows that are not judged. None: 5 % of the median healthy run, at least 50 rows, at most a third of it.
    collapse_dim : int, default 2
        Dimension of the collapse subspace.
    rng : int, Generator or None, default None (seed 0)
        For the surrogates of ``"auto"`` and the healthy windows.

    Attributes
    ----------
    n_components_ : int
    loadings_ : ndarray, shape (n_channels, n_components)
        Orthonormal directions in standardised channels.
    threshold_ : float
        Conformal level h; inf where alpha is not certifiable.
    boundary_ : float
        Radius that distances are measured from: `threshold_`, else the largest confirmed radius of a healthy run.
    certified_ : bool
    maxima_ : ndarray, shape (n_calibration_runs,)
        Largest confirmed radius of each healthy run.
    upper_rate_ : float
        Upper 90 % bound of the false-alarm rate given these runs.
    warmup_ : int
    collapse_subspace_ : ndarray of shape (n_channels, collapse_dim), or None
        Directions of the unstable runs' rows outside; None without unstable runs or if none left.
    collapse_share_ : ndarray, shape (collapse_dim,), or None
        Share of (unit) excursions along each.
    healthy_subspaces_ : ndarray of shape (500, n_channels, collapse_dim), or None
        The same of random windows of healthy rows: the null of `subspace_similarity`.
    groups_ : tuple
        Groups with a baseline.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> healthy = [rng.normal(size=(200, 4)) for _ in range(20)]
    >>> manifold = InstabilityManifold().fit(healthy)
    >>> run = rng.normal(size=(200, 4))
    >>> manifold.first_crossing(run).status
    'inside'
    >>> run[120:] += 9
    >>> manifold.first_crossing(run).step
    122.0
    """

    def __init__(
        self,
        n_components: int | Literal["auto", "all"] = "auto",
        *,
        alpha: float = 0.05,
        reference: Kind = "auto",
        scale: Literal["mad", "std"] = "mad",
        persistence: int = 3,
        warmup: int | None = None,
        collapse_dim: int = 2,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.reference = reference
        self.scale = scale
        self.persistence = persistence
        self.warmup = warmup
        self.collapse_dim = collapse_dim
        self.rng = rng

    # ---- fitting

    def fit(self, X: Any, y: Any = None, *, unstable: Any = None, groups: Sequence[Hashable] | None = None) -> Self:
        """Learn the stable set from healthy runs, and the directions in which unstable runs leave it.

        Parameters
        ----------
        X : array, DataFrame or trajectory of shape (n_steps, n_channels), or a list of them
            Runs. NaN (and cells of a trajectory that were only carried forward) are missing.
        y : array_like of bool, shape (n_runs,), optional
            True for unstable runs; all are healthy by default. Ignored where X is one array.
        unstable : list of runs, optional
            Unstable runs beside those of X, all of which are healthy then. With several groups use `y`.
        groups : sequence, shape (n_runs,), optional
            Runs of one group (domain, task, algorithm) share a baseline; all one group by default. Boundary and shape
            are common to all groups.

        Raises
        ------
        InputError
            Different channels, options out of range, lengths that do not match, a group without a healthy run.
        NotEnoughData
            No row after the warm-up, or no channel that moves.
        """
        if not 0 < self.alpha < 1:
            raise InputError(f"alpha is {self.alpha!r}; a false-alarm rate between 0 and 1 is expected.")
        if isinstance(self.collapse_dim, bool) or not isinstance(self.collapse_dim, int) or self.collapse_dim < 1:
            raise InputError(f"collapse_dim is {self.collapse_dim!r}; a number of directions, 1 or more, is expected.")
        items = items_of(X) + ([] if unstable is None else items_of(unstable))
        runs = as_runs(items if len(items) > 1 else items[0])
        flags, names = flags_of(X, y, len(items), groups)
        events = [not_finite(item) for item in items]
        healthy = [i for i, bad in enumerate(flags) if not bad]
        self._set_channels(runs)
        lengths = [runs[i].x.shape[0] for i in healthy]
        self.warmup_ = warmup_rows(self.warmup, float(np.median(lengths)))
        own = [runs[i] for i in healthy]
        self.baselines_, rows = self._baselines(own, [names[i] for i in healthy], self._roles(X))
        self.groups_ = tuple(self.baselines_)
        lost = [g for g in names if g not in self.baselines_]
        if lost:
            raise InputError(f"group {lost[0]!r} has no healthy run; its baseline cannot be learnt from unstable ones.")
        judged = [x[self.warmup_ :] for x in rows]
        self._learn(judged)
        self._calibrate(rows, [events[i] for i in healthy], leave_out=True)
        bad = [i for i, flag in enumerate(flags) if flag]
        self._explain([self._rows(runs[i], names[i]) for i in bad], judged)
        return self

    def _baselines(
        self, runs: list[RunData], names: list[Hashable], roles: tuple[str, ...]
    ) -> tuple[dict[Hashable, Baseline], list[Floats]]:
        """Baseline of every group, and the standardised rows of every run, each as if it were new."""
        baselines: dict[Hashable, Baseline] = {}
        rows: dict[int, Floats] = {}
        for group in dict.fromkeys(names):
            members = [i for i, name in enumerate(names) if name == group]
            own = [runs[i] for i in members]
            baselines[group] = Baseline.fit(own, roles, self.reference, self.scale)
            rows |= dict(zip(members, baselines[group].left_out(own), strict=True))
        return baselines, [rows[i] for i in range(len(runs))]

    def _set_channels(self, runs: list[RunData]) -> None:
        self.n_features_in_ = runs[0].x.shape[1]
        if runs[0].names:
            self.feature_names_in_ = np.asarray(runs[0].names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _roles(self, X: Any) -> tuple[str, ...]:
        """Roles of the channels; arrays have none and are read as they are."""
        roles = getattr(X[0] if is_many(X) else X, "roles", None)
        return tuple(roles) if isinstance(roles, tuple) else ("",) * self.n_features_in_

    def _learn(self, rows: list[Floats]) -> None:
        """Shape from standardised healthy rows."""
        self._sums = [Sums.of(x) for x in rows]
        self._total = self._sums[0]
        for one in self._sums[1:]:
            self._total = self._total + one
        moment = self._total.moment()
        self.used_ = np.asarray(np.diag(moment) > 0)
        n_used = int(self.used_.sum())
        if n_used == 0:
            raise NotEnoughData(
                f"no channel moves in the healthy rows after the warm-up of {self.warmup_} rows; longer runs or a"
                " smaller warmup are needed."
            )
        if self.n_components == "auto":
            k = parallel_analysis([x[:, self.used_] for x in rows], rng=self.rng).n_components
        elif self.n_components == "all":
            k = n_used
        elif isinstance(self.n_components, bool) or not isinstance(self.n_components, int | np.integer):
            raise InputError(f"n_components is {self.n_components!r}; expected a whole number, 'auto' or 'all'.")
        elif not 0 <= self.n_components <= n_used:
            raise InputError(f"n_components is {self.n_components}; expected 0 to {n_used}, the channels that move.")
        else:
            k = int(self.n_components)
        self.shape_ = shape_of(moment, self.used_, k)
        self.n_components_ = k
        self.loadings_ = self.shape_.vectors
        self._n_features_out = k + 1

    def _calibrate(self, rows: list[Floats], events: list[NDArray[np.bool_]], leave_out: bool) -> None:
        """Boundary from standardised healthy runs; ``leave_out``: each against the shape of the others."""
        maxima, largest = [], 0.0
        for i, (x, event) in enumerate(zip(rows, events, strict=True)):
            shape = self.shape_
            if leave_out and len(rows) > 1:
                shape = shape_of((self._total - self._sums[i]).moment(), self.used_, self.n_components_)
            radius = self._events(shape.radius(x), event)
            maxima.append(float(persistent(radius, self.persistence).max(initial=-np.inf)))
            finite = radius[np.isfinite(radius)]
            largest = max(largest, float(finite.max(initial=0.0)))
        self.maxima_ = np.asarray(maxima)
        if not (self.maxima_ > -np.inf).any():
            raise NotEnoughData(
                f"no healthy run has {self.persistence} rows in a row after the warm-up of {self.warmup_}; longer runs"
                " or a smaller warmup or persistence are needed."
            )
        self.threshold_ = conformal_threshold(self.maxima_, self.alpha)
        self.certified_ = bool(np.isfinite(self.threshold_))
        finite = self.maxima_[np.isfinite(self.maxima_)]
        self.boundary_ = self.threshold_ if self.certified_ else float(finite.max(initial=0.0))
        self.upper_rate_ = upper_rate(self.maxima_.size, self.alpha)
        self.freeze_bound_ = FREEZE_MARGIN * largest

    def _explain(self, unstable: list[Floats], healthy: list[Floats]) -> None:
        """Directions of excursions, and of healthy windows as long."""
        outside = [x[self.warmup_ :] for x in unstable]
        outside = [x[self.shape_.radius(x) > self.boundary_] for x in outside]
        outside = [x for x in outside if x.shape[0]]
        self.n_excursions_ = len(outside)
        self.collapse_subspace_: Floats | None = None
        self.collapse_share_: Floats | None = None
        self.healthy_subspaces_: Floats | None = None
        if not outside:
            return
        k = min(self.collapse_dim, self.n_features_in_)
        self.collapse_subspace_, self.collapse_share_ = directions(outside, k)
        length = max(int(np.median([x.shape[0] for x in outside])), _SHORTEST_WINDOW)
        self.healthy_subspaces_ = healthy_windows(healthy, length, k, _N_WINDOWS, as_generator(self.rng))

    # ---- other baselines, other calibration runs

    def adapt(self, X: Any, *, group: Any, recalibrate: bool = False) -> InstabilityManifold:
        """A copy that also knows other groups: their baselines are learnt, shape and boundary stay.

        Parameters
        ----------
        X : list of runs
            Healthy runs of those groups.
        group : hashable or list of them
            The group of each run, or one for all.
        recalibrate : bool, default False
            Take the boundary from these runs too (each measured against the reference of the others), so that the
            false-alarm rate is that of the new groups.
        """
        runs = self._checked(X)
        names = list(group) if isinstance(group, list) else [group] * len(runs)
        if len(names) != len(runs):
            raise InputError(f"group has {len(names)} entries for {len(runs)} runs; one a run, or one for all.")
        out = copy.copy(self)
        learnt, rows = self._baselines(runs, names, self._roles(X))
        out.baselines_ = {**self.baselines_, **learnt}
        out.groups_ = tuple(out.baselines_)
        if recalibrate:
            out._calibrate(rows, [not_finite(item) for item in items_of(X)], leave_out=False)
        return out

    def calibrate(self, X: Any, *, group: Any = None) -> InstabilityManifold:
        """A copy whose boundary comes from healthy runs that the fit has not seen: split-conformal, exact.

        Parameters
        ----------
        X : list of runs
        group : hashable or list of them, optional
            Their group; not needed where there is but one.
        """
        runs = self._checked(X)
        out = copy.copy(self)
        rows = [self._rows(r, g) for r, g in zip(runs, self._groups_of(group, len(runs)), strict=True)]
        out._calibrate(rows, [not_finite(item) for item in items_of(X)], leave_out=False)
        out.freeze_bound_ = self.freeze_bound_  # belongs to the reference, which stays
        return out

    # ---- measuring

    def _checked(self, X: Any) -> list[RunData]:
        check_is_fitted(self, "threshold_")
        runs = as_runs(X)
        check_channels(self, runs)
        return runs

    def _groups_of(self, group: Any, n: int) -> list[Hashable]:
        """The group of each of n runs."""
        if group is None:
            if len(self.groups_) > 1:
                raise InputError(f"say which group the runs belong to: group= one of {list(self.groups_)}.")
            return [self.groups_[0]] * n
        names = list(group) if isinstance(group, list) else [group] * n
        if len(names) != n:
            raise InputError(f"group has {len(names)} entries for {n} runs; one a run, or one for all, is expected.")
        for one in names:
            if one not in self.baselines_:
                raise InputError(
                    f"group {one!r} has no baseline. {nearest(str(one), map(str, self.groups_))}"
                    " Use adapt for a new one."
                )
        return names

    def _rows(self, run: RunData, group: Hashable) -> Floats:
        return self.baselines_[group].standardise(run, Watch(self.shape_, self.freeze_bound_))

    def _events(self, radius: Floats, event: NDArray[np.bool_]) -> Floats:
        out = np.where(event, np.inf, radius)
        out[: self.warmup_] = np.nan
        return out

    def _each(self, X: Any, group: Any) -> list[tuple[RunData, Floats, NDArray[np.bool_]]]:
        runs = self._checked(X)
        names = self._groups_of(group, len(runs))
        return [
            (run, self._rows(run, name), event)
            for run, name, event in zip(runs, names, [not_finite(item) for item in items_of(X)], strict=True)
        ]

    def transform(self, X: Any, group: Any = None) -> Any:
        """Meta-state coordinates along runs, causally.

        Parameters
        ----------
        X : as in `fit`
        group : hashable or list of them, optional
            The group of each run; not needed where there is but one.

        Returns
        -------
        ndarray of shape (n_steps, n_components + 1), or a list of them if X is a list of runs
            Whitened coordinates z, and last the distance q off them; their Euclidean length is the radius. NaN in a row
            in which nothing was seen. Coordinates are known up to a rotation only where eigenvalues are close.
        """
        out = [self.shape_.coordinates(x) for _, x, _ in self._each(X, group)]
        return out if is_many(X) else out[0]

    def signed_distance(self, X: Any, group: Any = None) -> Any:
        """Signed distance to the boundary along runs, causally: positive outside, negative inside.

        Parameters
        ----------
        X, group : as in `transform`

        Returns
        -------
        ndarray of shape (n_steps,), or a list of them if X is a list of runs
            In sd of the baseline. NaN where it is not known: during the warm-up and where one of the last q rows has
            no value. +inf where q rows in a row were not finite.
        """
        out = [self._distance(x, event) for _, x, event in self._each(X, group)]
        return out if is_many(X) else out[0]

    def _distance(self, x: Floats, event: NDArray[np.bool_]) -> Floats:
        confirmed = persistent(self._events(self.shape_.radius(x), event), self.persistence)
        return np.where(np.isneginf(confirmed), np.nan, confirmed - self.boundary_)

    def first_crossing(self, X: Any, group: Any = None) -> Any:
        """Where runs first leave the stable set.

        Parameters
        ----------
        X, group : as in `transform`

        Returns
        -------
        Crossing, or a list of them if X is a list of runs
        """
        out = [self._crossing(run, self._distance(x, event)) for run, x, event in self._each(X, group)]
        return out if is_many(X) else out[0]

    def _crossing(self, run: RunData, distance: Floats) -> Crossing:
        outside = np.flatnonzero(distance > 0)
        first = int(outside[0]) if outside.size else None
        candidate = None if first is None else float(run.steps[first])
        known = distance[~np.isnan(distance)]
        if not known.size:
            reason = f"no {self.persistence} rows in a row were seen after the warm-up of {self.warmup_} rows."
            return Crossing(None, float("nan"), "cannot tell", None, reason)
        at = float(known.max()) if first is None else float(distance[first])
        if self.certified_:
            return Crossing(candidate, at, "inside" if first is None else "crossed", candidate)
        n = self.maxima_.size
        reason = f"{n} healthy runs; a rate of {self.alpha:g} needs {needed_runs(self.alpha)}."
        return Crossing(None, at, "not certifiable", candidate, reason)

    # ---- telling

    def summary(self) -> str:
        """The fitted manifold in a few plain sentences."""
        check_is_fitted(self, "threshold_")
        n = self.maxima_.size
        lines = [
            f"InstabilityManifold: {self.n_components_} coordinates of {int(self.used_.sum())} channels and the"
            f" distance off them; {n} healthy runs in {len(self.groups_)} group{'s' * (len(self.groups_) != 1)}."
        ]
        if self.certified_:
            lines.append(
                f"Boundary at radius {self.threshold_:.2f}: a new healthy run crosses with probability {self.alpha:g}"
                f" at most (upper 90 % bound given these runs {self.upper_rate_:.2f})."
            )
        else:
            lines.append(
                f"Not certifiable at a false-alarm rate of {self.alpha:g} per run: that needs"
                f" {needed_runs(self.alpha)} healthy runs. Distances are measured from the largest radius seen,"
                f" {self.boundary_:.2f}."
            )
        if self.collapse_subspace_ is not None and self.collapse_share_ is not None:
            names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(self.n_features_in_)])
            top = np.argsort(-np.abs(self.collapse_subspace_[:, 0]))[:3]
            shown = ", ".join(f"{names[i]} {self.collapse_subspace_[i, 0]:+.2f}" for i in top)
            lines.append(
                f"{self.n_excursions_} unstable runs left it; {self.collapse_subspace_.shape[1]} directions hold"
                f" {self.collapse_share_.sum():.0%} of their excursions, the first along {shown}."
            )
        return "\n".join(lines)

    def plot(self, X: Any = None, ax: Any = None, **options: Any) -> Any:
        """The manifold with trajectories: coordinates and signed distance (`trajscope.plots.manifold`)."""
        check_is_fitted(self, "threshold_")
        return importlib.import_module("trajscope.plots.manifold").plot(self, X, ax=ax, **options)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
