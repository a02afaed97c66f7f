r"""Principal components of channels with gaps: the meta-state that explains most variance.

With the pooled covariance :math:`S = V \Lambda V^\top` of standardised rows, the states are :math:`z_t = V_k^\top
x_t`. Gaps:

- ``missing="pairwise"``: *S* from the rows in which both channels were seen (unbiased when cells are missing at
  random, one pass), then the closed form of probabilistic PCA (Tipping & Bishop 1999, eq. 7-8): :math:`W =
  V_k(\Lambda_k - \sigma^2 I)^{1/2}`, :math:`\sigma^2` the mean of the other eigenvalues.
- ``missing="em"``: maximum likelihood of the same model with gaps by EM (Ilin & Raiko 2010, sec. 3.3), started
  there. Use it where whole channels are rare or cells are missing for a reason that seen channels know.

A row with gaps is first completed by its conditional mean :math:`W E[u \mid x_{seen}]`,
:math:`E[u \mid x_{seen}] = (W_o^\top W_o + \sigma^2 I)^{-1} W_o^\top x_o`, then projected; a complete row is
projected as it is, so that without gaps this is ordinary PCA.

``robust=True``: eigenvectors of the spatial sign covariance :math:`E[x x^\top / |x|^2]` about the median,
eigenvalues from the MAD of the scores (Locantore et al. 1999): a row counts by its direction only, so no outlier
counts more than any other row.

Signs: the largest loading of a component is positive.
"""

from __future__ import annotations

import copy
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from trajscope._core.linalg import CHUNK, Moments, fix_signs, psd_eigh
from trajscope._core.rolling import MAD_TO_SD
from trajscope.errors import InputError
from trajscope.metastate._base import MetaState
from trajscope.metastate._runs import as_runs, check_channels
from trajscope.metastate.parallel import centre_run
from trajscope.metastate.reference import Reference

__all__ = ["PCAState", "complete_rows", "ppca_em", "ppca_from_covariance", "sign_pca"]

Floats = NDArray[np.float64]


def ppca_from_covariance(eigenvalues: Floats, vectors: Floats, k: int) -> tuple[Floats, float]:
    """Loadings W, shape (n_channels, k), and noise variance of probabilistic PCA, from an eigendecomposition."""
    rest = eigenvalues[k:]
    noise = float(rest.mean()) if rest.size else 0.0
    return vectors[:, :k] * np.sqrt(np.maximum(eigenvalues[:k] - noise, 0.0)), noise


def _posterior(x: Floats, seen: NDArray[np.bool_], w: Floats, noise: float) -> tuple[Floats, Floats]:
    """Mean (n, k) and the matrix whose inverse, times noise, is the covariance (n, k, k) of u given what was
    seen."""
    k = w.shape[1]
    outer = (w[:, :, None] * w[:, None, :]).reshape(w.shape[0], k * k)
    inner = (seen.astype(np.float64) @ outer).reshape(-1, k, k) + noise * np.eye(k)
    pull = np.where(seen, x, 0.0) @ w
    return np.asarray(np.linalg.solve(inner, pull[:, :, None])[:, :, 0], dtype=np.float64), inner


def complete_rows(x: Floats, w: Floats, noise: float) -> Floats:
    """Rows with their gaps filled by the conditional mean under ``x = W u + noise``; a row without any value stays
    NaN.

    Parameters
    ----------
    x : ndarray, shape (n_steps, n_channels)
    w : ndarray, shape (n_channels, k)
    noise : float
        Noise variance; a floor of 1e-9 of the largest signal variance is added so that few seen channels still
        decide.
    """
    out = x.copy()
    floor = 1e-9 * float((w**2).sum()) + 1e-300
    for start in range(0, x.shape[0], CHUNK):
        rows = out[start : start + CHUNK]
        seen = ~np.isnan(rows)
        if seen.all():
            continue
        # all rows of the chunk, also those that need nothing: a product over chosen rows would round differently
        # with what is chosen, so that a later row could change an earlier one in its last bit
        u, _ = _posterior(rows, seen, w, max(noise, floor))
        rows[:] = np.where(seen | ~seen.any(axis=1, keepdims=True), rows, u @ w.T)
    return out


def ppca_em(
    runs: list[Floats], w: Floats, noise: float, *, max_iter: int = 200, tol: float = 1e-7
) -> tuple[Floats, float, list[float]]:
    """Maximum likelihood of probabilistic PCA with gaps.

    Parameters
    ----------
    runs : list of ndarray, each (n_steps, n_channels), centred
    w, noise
        Start, as from `ppca_from_covariance`.
    tol : float, default 1e-7
        Stop when the log-likelihood gains less than this share.

    Returns
    -------
    w, noise, log_likelihood
        The last is the path, one value an iteration; it never falls.
    """
    p, k = w.shape
    path: list[float] = []
    noise = max(noise, 1e-9 * float((w**2).sum()) + 1e-12)
    n_cells = sum(int((~np.isnan(x)).sum()) for x in runs)
    for _ in range(max_iter):
        uu, xu, xx = np.zeros((p, k * k)), np.zeros((p, k)), np.zeros(p)
        loglik = -0.5 * n_cells * np.log(2 * np.pi)
        for x in runs:
            for start in range(0, x.shape[0], CHUNK):
                rows = x[start : start + CHUNK]
                seen = ~np.isnan(rows)
                mask, filled = seen.astype(np.float64), np.where(seen, rows, 0.0)
                u, inner = _posterior(rows, seen, w, noise)
                second = noise * np.linalg.inv(inner) + u[:, :, None] * u[:, None, :]
                uu += mask.T @ second.reshape(-1, k * k)
                xu += filled.T @ u
                xx += (filled**2).sum(axis=0)
                # Sylvester: log|W_o W_o' + s I| = (n_o - k) log s + log|W_o'W_o + s I|
                loglik -= 0.5 * float((mask.sum() - k * rows.shape[0]) * np.log(noise))
                loglik -= 0.5 * float(np.linalg.slogdet(inner)[1].sum())
                loglik -= 0.5 * float((filled**2).sum() - (u * (filled @ w)).sum()) / noise
        path.append(float(loglik))
        if len(path) > 1 and path[-1] - path[-2] <= tol * abs(path[-2]):
            break
        gram = uu.reshape(p, k, k) + 1e-12 * np.eye(k)
        w = np.asarray(np.linalg.solve(gram, xu[:, :, None])[:, :, 0], dtype=np.float64)
        fit = 2 * (w * xu).sum() - np.einsum("pi,pij,pj->", w, uu.reshape(p, k, k), w)
        noise = max(float(xx.sum() - fit) / n_cells, 1e-12)
    return w, noise, path


def sign_pca(runs: list[Floats]) -> tuple[Floats, Floats]:
    """Eigenvalues and eigenvectors of spherical PCA of centred rows: each row counts by its direction only."""
    rows = np.concatenate(runs)
    seen = ~np.isnan(rows)
    filled, mask = np.where(seen, rows, 0.0), seen.astype(np.float64)
    n = seen.sum(axis=1)
    # a row with gaps is scaled as if its missing cells were like the seen ones
    size = np.sqrt((filled**2).sum(axis=1) * (rows.shape[1] / np.maximum(n, 1)))
    direction = filled[size > 0] / size[size > 0, None]
    pairs = np.maximum(mask.T @ mask, 1)
    spread, vectors = psd_eigh(direction.T @ direction / pairs)
    # eigenvalues of the sign covariance are too even; they fill gaps once, then the scores' own do
    for _ in range(2):
        scores = complete_rows(rows, *ppca_from_covariance(spread, vectors, max(1, spread.size - 1))) @ vectors
        scores = scores[~np.isnan(scores).any(axis=1)]
        mad = MAD_TO_SD * np.median(np.abs(scores - np.median(scores, axis=0)), axis=0)
        order = np.argsort(-mad, kind="stable")
        spread, vectors = mad[order] ** 2, vectors[:, order]
    return spread, vectors * fix_signs(vectors)


class PCAState(MetaState):
    """Principal components of one or several runs, with gaps.

    Parameters
    ----------
    n_components : int or "auto", default "auto"
        ``"auto"``: parallel analysis against circular shifts (95 %); may give 0.
    reference : {"level", "trend", "siblings", "auto"} or fitted Reference, default "level"
        What rows are measured against; see `trajscope.metastate.reference`. Channels that have a trend in a healthy
        run need ``"siblings"`` or ``"trend"`` (``"auto"`` chooses by the number of runs).
    scale : {"mad", "std", None}, default "mad"
        Frozen scale of every channel: channels in different units cannot be compared without one.
    missing : {"pairwise", "em"}, default "pairwise"
        How gaps enter; pairwise is one pass, EM is maximum likelihood.
    robust : bool, default False
        Spherical PCA about the median.
    rng : int, Generator or None, default None (seed 0)
        For the surrogates of ``"auto"``.

    Attributes
    ----------
    n_components_ : int
    loadings_ : ndarray, shape (n_channels, n_components)
        Orthonormal columns, in standardised units; rows of channels that never move are 0.
    eigenvalues_ : ndarray, shape (n_channels,)
        Of the covariance of standardised rows, descending.
    explained_ : ndarray, shape (n_components,)
        Share of the variance.
    noise_variance_ : float
        Mean of the eigenvalues that were left out.
    mean_ : ndarray, shape (n_channels,)
        Level of the baseline in the units of the channels.
    reference_ : Reference
    bounds_ : dict
        95 % points of D and Q on the baseline.
    mu_, state_covariance_ : ndarray
        Mean and covariance of the states on the baseline, from which D is measured.
    parallel_ : ParallelAnalysis or None

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> common = rng.normal(size=(400, 1))
    >>> x = common @ np.ones((1, 5)) + 0.5 * rng.normal(size=(400, 5))
    >>> state = PCAState().fit(x)
    >>> state.n_components_
    1
    >>> list(state.deviation(x).columns)
    ['D', 'Q']
    """

    def __init__(
        self,
        n_components: int | Literal["auto"] = "auto",
        *,
        reference: Any = "level",
        scale: Literal["mad", "std"] | None = "mad",
        missing: Literal["pairwise", "em"] = "pairwise",
        robust: bool = False,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        self.n_components = n_components
        self.reference = reference
        self.scale = scale
        self.missing = missing
        self.robust = robust
        self.rng = rng

    @property
    def _robust_level(self) -> bool:  # type: ignore[override]
        return self.robust

    def _needs_rows(self) -> bool:
        return isinstance(self.n_components, str) or self.missing == "em" or self.robust

    def _fit_model(self, xs: list[Floats], covariance: Floats) -> None:
        if self.missing not in ("pairwise", "em"):
            raise InputError(f"missing is {self.missing!r}; expected 'pairwise' or 'em'.")
        used = np.flatnonzero(self.reference_.used)
        k = self._dimension(xs, used.size)
        if self.robust:
            values, vectors = sign_pca([x[:, used] - self.centre_[used] for x in xs])
        else:
            values, vectors = psd_eigh(covariance[np.ix_(used, used)])
        self.log_likelihood_path_: list[float] = []
        if self.missing == "em" and k:
            w, noise = ppca_from_covariance(values, vectors, k)
            own = [centre_run(x[:, used]) for x in xs]
            w, noise, self.log_likelihood_path_ = ppca_em(own, w, noise)
            left, singular, _ = np.linalg.svd(w, full_matrices=True)
            head = singular**2 + noise
            rest = np.full(used.size - k, noise)
            values, vectors = np.concatenate([head, rest]), left * fix_signs(left)
        p = self.n_features_in_
        self.n_components_ = k
        self.loadings_ = np.zeros((p, k))
        self.loadings_[used] = vectors[:, :k]
        self.eigenvalues_ = np.concatenate([values, np.zeros(p - used.size)])
        total = float(values.sum())
        self.explained_ = values[:k] / total if total > 0 else np.zeros(k)
        w, self.noise_variance_ = ppca_from_covariance(values, vectors, k)
        self._w = np.zeros((p, k))
        self._w[used] = w

    def _states(self, x: Floats, causal: bool) -> Floats:
        used = self.reference_.used
        if self.n_components_ == 0:
            return np.zeros((x.shape[0], 0))
        whole = used.all()
        filled = complete_rows(x if whole else x[:, used], self._w[used], self.noise_variance_)
        return np.asarray(filled @ self.loadings_[used])

    def fit(self, X: Any, y: Any = None) -> Self:
        """As in the base; what `partial_fit` has taken in so far is forgotten."""
        self.__dict__.pop("_stream", None)
        return super().fit(X, y)

    fit.__doc__ = MetaState.fit.__doc__

    def partial_fit(self, X: Any, y: Any = None, *, new_run: bool = False) -> Self:
        """Take in the next rows of a series that does not fit in memory.

        The result after the last call equals `fit` on all rows at once (to rounding); only bounds and baseline
        moments of the states come from evenly spaced rows kept along the way, at most 10,000.

        Parameters
        ----------
        X : as in `fit`
            The next rows; a list holds whole runs.
        new_run : bool, default False
            Whether X opens another run.

        Raises
        ------
        InputError
            ``n_components="auto"``, ``missing="em"``, ``robust`` or ``scale="mad"``: these need all rows at once.
        NotEnoughData
            No channel has moved so far; the rows are kept, go on with the next ones.
        """
        reference_ready = isinstance(self.reference, Reference)
        if self._needs_rows() or (not reference_ready and (self.reference != "level" or self.scale == "mad")):
            raise InputError(
                "partial_fit sees each row once: it needs n_components as a number, missing='pairwise', no robust,"
                " and reference='level' with scale='std' or None (or a fitted Reference)."
            )
        runs = as_runs(X)
        if not hasattr(self, "_stream"):
            self._set_channels(runs)
            self._stream = _Stream(self.n_features_in_)
        else:
            check_channels(self, runs)
        for i, run in enumerate(runs):
            rows = self.reference.residual(run) if reference_ready else run.x
            self._stream.add(rows, new_run or i > 0)
        moments, kept = self._stream.result()
        if reference_ready:
            self.reference_ = self.reference
            sd = np.ones(self.n_features_in_)
        else:
            self.reference_ = Reference("level", self.scale).fit(runs, moments)
            sd = self.reference_.sd
            kept = (kept - self.reference_.level) / sd
        self.centre_ = np.nan_to_num(moments.mean()) if reference_ready else np.zeros(self.n_features_in_)
        self.mean_ = self.reference_.level + self.centre_ * self.reference_.sd
        used = self.reference_.used
        self.n_channels_used_, self.parallel_ = int(used.sum()), None
        self._fit_model([], np.where(np.outer(used, used), moments.covariance() / np.outer(sd, sd), 0.0))
        self._n_features_out = self.n_components_
        kept = np.where(used, kept, np.nan)
        self._calibrate([kept])
        return self


class _Stream:
    """Moments of all rows so far and evenly spaced rows for calibration (the spacing doubles as rows come in)."""

    most = 10_000

    def __init__(self, n_channels: int) -> None:
        self.moments = Moments(n_channels)
        self.kept: list[Floats] = []
        self.step, self.position = 1, 0

    def add(self, x: Floats, new_run: bool) -> None:
        if new_run:
            self.moments.close_run()
        self.moments.add(x)
        first = -self.position % self.step
        self.kept.append(x[first :: self.step].copy())
        self.position += x.shape[0]
        while sum(k.shape[0] for k in self.kept) > self.most:
            self.kept = [np.concatenate(self.kept)[::2]]
            self.step *= 2

    def result(self) -> tuple[Moments, Floats]:
        moments = copy.deepcopy(self.moments)
        moments.close_run()
        return moments, np.concatenate(self.kept)
