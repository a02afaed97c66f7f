"""`early_warning`: indicators of a channel, of several, or of a run, stamped at the last row they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajscope._core.surrogates import as_generator
from trajscope.detect.indicators.detrend import CAUSAL, METHODS, residuals
from trajscope.detect.indicators.given import given_scores
from trajscope.detect.indicators.inputs import SCALES, Channel, Links, Source, as_source, links, put_on_scale
from trajscope.detect.indicators.joint import JOINT, joint
from trajscope.detect.indicators.result import ALL, ChannelNote, EarlyWarning
from trajscope.detect.indicators.univariate import WEIGHTED, WINDOWED, compute, knows, windows_of
from trajscope.errors import InputError, nearest
from trajscope.result import make_provenance

if TYPE_CHECKING:
    pass

__all__ = ["DEFAULT", "early_warning"]

Floats = NDArray[np.float64]

DEFAULT = (
    "variance",
    "lag1",
    "lag2",
    "cv",
    "skewness",
    "kurtosis",
    "return_rate",
    "lag_ratio",
    "spectral_low",
    "dev_modulus",
    "dev_angle",
)
"""What is computed unless said otherwise: everything that costs a constant time a row."""

_DEFAULT_JOINT = ("eig_cov", "maf", "mean_lag1")

_SPAN = 1.0
"""Default span of a baseline, in windows."""


def early_warning(
    x: Any,
    steps: ArrayLike | None = None,
    *,
    window: int = 100,
    indicators: Sequence[str] | str | None = None,
    detrend: str | None = "ewma",
    span: float | None = None,
    channels: Sequence[str] | str | None = None,
    scale: str | None = None,
    role: str | None = None,
    min_count: int | None = None,
    every: int = 1,
    low_frequency: float = 0.05,
    bias: bool = False,
    state: Any = None,
    scores: Any = None,
    rng: int | np.random.Generator | None = None,
) -> EarlyWarning:
    r"""Indicators of an approaching loss of stability over trailing windows.

    The value of row *t* uses the ``window`` rows that end with *t*, less a baseline that uses no later row either. No
    window, baseline or pair of rows reaches across a gap, a hole or a segment (`trajscope.detect.indicators.inputs`).

    Parameters
    ----------
    x : array_like (n_steps,) or (n_steps, n_channels), DataFrame, Channel, Trajectory or Run
        NaN is missing. Of a trajectory or run, each channel is judged on the rows in which it was logged.
    steps : array_like, shape (n_steps,), optional
        Ascending; row numbers (or the index of a frame) by default.
    window : int, default 100
        Rows of the channel, 4 or more. 100 rows tell a lag-1 autocorrelation of 0.5 from one of 0.7 with a power of
        80 % at 5 % (:math:`n \ge (z_a + z_b)^2 (1 - \bar\rho^2) / (\rho_1 - \rho_0)^2`); `EarlyWarning.resolvable` says
        what other windows can tell. Never a share of the run: that would look ahead.
    indicators : sequence of str, optional
        Names, see `trajscope.detect.indicators`; default the eleven of constant cost and, for several channels,
        ``eig_cov``, ``maf`` and ``mean_lag1``.
    detrend : {"ewma", "local", "gaussian", "lowess", None}, default "ewma"
        Baseline (`trajscope.detect.indicators.detrend`). The Gaussian and LOWESS see later rows: the result is
        labelled not causal and no alarm can be made of it.
    span : float, optional
        Rows of the baseline. Default one window: slower drifts go, what happens inside a window stays. For ``gaussian``
        and ``lowess`` 20 % of the rows, and a number up to 1 is a share of them.
    channels : sequence of str or str, optional
        Which channels; default all.
    scale : {"none", "log", "asinh", "role"}, optional
        Default ``"role"`` (positive heavy-tailed roles on their logarithm, signed ones on asinh), which leaves arrays
        as they are.
    role : str, optional
        Overrides the role of the channels.
    min_count : int, optional
        Finite cells a window must hold; default half of it.
    every : int, default 1
        Rows between values of the costly indicators: spectral_max, sample_entropy, mean_shift, slowing, and those of
        several channels together.
    low_frequency : float, default 0.05
        Upper end of the band of ``spectral_low``, cycles a row: slower than 20 rows.
    bias : bool, default False
        Skewness and kurtosis without correction for the size of the window.
    state : meta-state estimator, optional
        Fitted; its ``deviation(x)`` adds ``D``, ``Q`` and, where it has one, ``NIS``. An
        `InstabilityManifold` adds ``distance``.
    scores : DataFrame, or mapping of str to (n_steps,) array, Series or result, optional
        Ready-made causal scores that pass through under their names: ``x_grad``, ``x_inst``, ``D``, ...
    rng : int or numpy.random.Generator, optional
        Default 0. Chance enters in `EarlyWarning.trend` alone, where it is the default.

    Returns
    -------
    EarlyWarning
        ``.to_frame()`` is indexed by step. One channel: a column an indicator, named so. Several: columns with two
        levels (indicator, channel), so that ``frame["lag1"]`` is a table with a column a channel; indicators of all
        channels together, and scores that were passed through, stand under the channel ``"(all)"``. Rows before the
        first whole window of a stretch are NaN.

    Raises
    ------
    InputError
        Wrong shapes or options, unknown names.

    Notes
    -----
    Indicators of two or more channels together use the rows that all of them logged.

    Examples
    --------
    >>> from trajscope.simulate import linear_map
    >>> x = linear_map(2000, np.linspace(0.2, 0.97, 2000), rng=1)
    >>> found = early_warning(x, window=250, indicators=["lag1", "dev_angle"])
    >>> frame = found.to_frame()
    >>> bool(frame["lag1"].iloc[-1] > 0.8 > 0.4 > frame["lag1"].iloc[300]), frame["dev_angle"].iloc[-1].item()
    (True, 0.0)
    """
    _check_options(window, detrend, span, scale, every, low_frequency, min_count)
    method = detrend or "none"
    source = as_source(x, steps, channels, role)
    single = len(source.channels) == 1
    passed = given_scores(source, x, state, scores)
    own, together = _names(indicators, single, passed)
    as_generator(rng)  # refuses what is no seed
    n = source.steps.size
    columns: dict[tuple[str, str], Floats] = {}
    notes: list[ChannelNote] = []
    kept: list[tuple[Channel, Floats, Floats, Links]] = []
    memory = round(_span(span, window, method, n)) if method in ("ewma", "local") else 0
    options: dict[str, Any] = {
        "min_count": min_count, "memory": memory, "bias": bias, "low_frequency": low_frequency,
    }  # fmt: skip
    for channel in source.channels:
        values, on = put_on_scale(channel.values, channel.role, scale or "role", min(window, 100))
        chain = links(channel.steps, channel.segment)
        z = residuals(values[None], method, _span(span, window, method, values.size), chain.bounds)
        windows = windows_of(z, values[None], chain, window, every=every, **options)
        for name, found in compute(own, windows).items():
            column = np.full(n, np.nan)
            column[channel.rows] = np.where(windows.whole, found[0], np.nan)
            columns[name, channel.name] = column
        notes.append(
            ChannelNote(
                channel.name, channel.role, on, chain.stride, chain.irregular, len(chain.bounds),
                int(values.size), int(np.count_nonzero(np.isnan(values))),
            )
        )  # fmt: skip
        kept.append((channel, values, z[0], chain))
    columns |= _together(source, kept, together, window, min_count, every)
    columns |= {(name, ALL): column for name, column in passed.items()}
    return EarlyWarning(
        columns=columns,
        steps=source.steps,
        x=source.x,
        channels=tuple(notes),
        indicators=(*own, *(t for t in together if t not in own), *passed),
        window=window,
        detrend=method,
        span=_span(span, window, method, n),
        causal=method in CAUSAL,
        every=every,
        series={c.name: (c.rows, values, z) for c, values, z, _ in kept},
        options=options,
        links={c.name: chain for c, _, _, chain in kept},
        rng=rng,
        provenance=make_provenance(
            "early_warning",
            {
                "window": window, "indicators": (*own, *together), "detrend": detrend, "span": span,
                "channels": channels, "scale": scale, "role": role, "min_count": min_count, "every": every,
                "low_frequency": low_frequency, "bias": bias, "state": type(state).__name__ if state else None,
                "scores": sorted(passed),
            },
            source.steps,
            *(c.values for c in source.channels),
            seed=rng if isinstance(rng, int) else 0 if rng is None else None,
        ),
    )  # fmt: skip


def _check_options(
    window: Any, detrend: Any, span: Any, scale: Any, every: Any, low_frequency: Any, min_count: Any
) -> None:
    if isinstance(window, bool) or not isinstance(window, int | np.integer) or window < 4:
        hint = " A share of the run would make early values depend on how long the run went on." if (
            isinstance(window, float) and 0 < window <= 1
        ) else ""  # fmt: skip
        raise InputError(f"window is {window!r}; expected a number of rows, 4 or more.{hint}")
    if detrend is not None and detrend not in METHODS:
        raise InputError(f"detrend is {detrend!r}. {nearest(str(detrend), METHODS)}")
    if scale is not None and scale not in SCALES:
        raise InputError(f"scale is {scale!r}. {nearest(str(scale), SCALES)}")
    if span is not None:
        if not (isinstance(span, int | float | np.number) and not isinstance(span, bool) and span > 0):
            raise InputError(f"span is {span!r}; expected a number of rows above 0.")
        if detrend in CAUSAL and span < 3:
            raise InputError(
                f"span is {span!r}; a causal baseline needs 3 rows or more (a share of the run would look ahead)."
            )
    if isinstance(every, bool) or not isinstance(every, int | np.integer) or every < 1:
        raise InputError(f"every is {every!r}; expected a number of rows, 1 or more.")
    if not (isinstance(low_frequency, int | float | np.number) and 0 < low_frequency <= 0.5):
        raise InputError(f"low_frequency is {low_frequency!r}; expected cycles a row, above 0 and at most 0.5.")
    if min_count is not None and not (
        isinstance(min_count, int | np.integer) and not isinstance(min_count, bool) and 3 <= min_count <= window
    ):
        raise InputError(f"min_count is {min_count!r}; expected 3 to window ({window}).")


def _names(
    indicators: Sequence[str] | str | None, single: bool, passed: Mapping[str, Floats]
) -> tuple[list[str], list[str]]:
    """Indicators of single channels, and of all channels together."""
    if indicators is None:
        return list(DEFAULT), [] if single else list(_DEFAULT_JOINT)
    wanted = [indicators] if isinstance(indicators, str) else list(indicators)
    own, together = [], []
    for name in dict.fromkeys(wanted):
        if name in passed:
            continue
        alone, many = isinstance(name, str) and knows(name), name in JOINT
        if not (alone or many):
            every = [*WINDOWED, *JOINT, "lag1", "lag2", *(f"ew_{w}" for w in (*WEIGHTED, "lag1"))]
            raise InputError(f"there is no indicator {name!r}. {nearest(str(name), every)}")
        if alone:
            own.append(name)
        if many and not (single and alone):
            together.append(name)
    return own, together


def _span(span: float | None, window: int, method: str, n: int) -> float:
    if method in ("gaussian", "lowess"):
        share = 0.2 if span is None else span
        return share * n if share <= 1 else share
    return float(_SPAN * window if span is None else span)


def _together(
    source: Source,
    kept: list[tuple[Channel, Floats, Floats, Links]],
    names: list[str],
    window: int,
    min_count: int | None,
    every: int,
) -> dict[tuple[str, str], Floats]:
    """Columns of the indicators of all channels, on the rows that all of them logged."""
    if not names:
        return {}
    rows = kept[0][0].rows
    for channel, *_ in kept[1:]:
        rows = np.intersect1d(rows, channel.rows, assume_unique=True)
    first = kept[0][0]
    chain = links(source.steps[rows], first.segment[np.searchsorted(first.rows, rows)])
    z = np.stack([zs[np.searchsorted(c.rows, rows)] for c, _, zs, _ in kept], axis=1)
    whole = np.ones(rows.size, dtype=bool)
    for k in range(z.shape[1]):
        whole &= chain.whole(np.ascontiguousarray(z[:, k]), window, min_count)
    at = np.flatnonzero(whole)
    at = at[(chain.age(rows.size)[at] - window) % every == 0]
    out = {}
    for name, found in joint(names, z, window, chain.hop, at).items():
        column = np.full(source.steps.size, np.nan)
        column[rows] = found
        out[name, ALL] = column
    return out
