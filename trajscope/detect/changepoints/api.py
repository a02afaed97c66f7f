"""`change_points`: from arrays or a trajectory to dated changes with intervals, p-values and channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.surrogates import as_generator
from trajscope.detect.changepoints.annotate import annotated_changes
from trajscope.detect.changepoints.events import (
    Found,
    explanation,
    merge,
    on_input_rows,
    resumed_at,
    segments,
    step_interval,
)
from trajscope.detect.changepoints.inputs import Series, known_steps, read_kinds, read_number, read_series
from trajscope.detect.changepoints.locate import locate
from trajscope.detect.changepoints.noise import clip_spikes
from trajscope.detect.changepoints.pool import pooled_changes
from trajscope.detect.changepoints.prepare import prepare, tame
from trajscope.detect.changepoints.result import ChangePoints
from trajscope.detect.changepoints.searches import SEARCHES, search
from trajscope.detect.changepoints.single import Change, ChannelScan, Settings, scan_channel, subtract_changes
from trajscope.errors import InputError, nearest
from trajscope.result import make_provenance

__all__ = ["change_points"]

Floats = NDArray[np.float64]
_SHARES = {"level": 0.5, "slope": 0.25, "variance": 0.25}
_MIN_ROWS = 16
_LEAST_P = float(np.finfo(float).tiny)


def change_points(
    x: Any,
    steps: Any = None,
    *,
    channels: Sequence[str] | str | None = None,
    alpha: float = 0.05,
    kind: str | Sequence[str] = "auto",
    method: str = "auto",
    penalty: float | None = None,
    known_events: Any = None,
    sensitivity: str = "calibrated",
    onset_guard: bool = True,
    rng: int | np.random.Generator | None = None,
) -> ChangePoints:
    """Find where a training log changes: level, slope or variance, one channel or many.

    Parameters
    ----------
    x : array_like (n_steps,) or (n_steps, n_channels), a Trajectory, or a Channel
        NaN and Inf are missing; a trajectory's held cells are missing too. Each channel is judged on its own rows.
        Values that an array holds over several rows are judged once (``not_tested`` says so). The segments of a
        resumed trajectory are searched as one series, since most resumes change nothing; a change whose interval
        holds the first row of a segment is explained by the resume.
    steps : array_like, (n_steps,), optional
        Increasing positions of the rows; row numbers unless given.
    channels : str or sequence of str, optional
        Search only these.
    alpha : float
        Chance of any change point in a series that has none, over all scales, kinds and channels.
    kind : {"auto", "level", "slope", "variance"} or several of them
        What to look for; "auto" is all three.
    method : {"auto", "pelt", "binseg", "window", "bottomup", "kernel"}
        "auto" is trajscope's calibrated search; the others are the searches of ruptures with `penalty`.
    penalty : float, optional
        For the searches of ruptures.
    known_events : optional
        Steps, (step, note) pairs, a mapping or a table with a ``step`` column: a change whose interval holds one is
        marked explained, not dropped.
    sensitivity : {"calibrated", "annotation"}
        "annotation" marks what a person would mark on a short series; it has no error rate.
    onset_guard : bool
        Do not look closely at the beginning of a regime, where a relaxation is as curved as one likes. Off, the
        search treats both directions of time alike.
    rng : int, Generator or None
        For the permutation tests of short series; None is 0.

    Returns
    -------
    ChangePoints
        Possibly empty; what could not be judged stands in ``not_tested``.

    Raises
    ------
    InputError
        If the input or an option cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=400)
    >>> y[250:] += 3
    >>> found = change_points(y)
    >>> found.steps.tolist(), found.kind
    ([250], ('level',))
    """
    series = read_series(x, steps, channels)
    kinds = read_kinds(kind)
    alpha = read_number("alpha", alpha, 0, 1)
    if penalty is not None:
        penalty = read_number("penalty", penalty, 0)
    generator = as_generator(rng)
    if sensitivity not in ("calibrated", "annotation"):
        raise InputError(
            f"sensitivity {sensitivity!r} is not known. {nearest(str(sensitivity), ('calibrated', 'annotation'))}"
        )
    if method != "auto" and method not in SEARCHES:
        raise InputError(f"method {method!r} is not known. {nearest(str(method), (*SEARCHES, 'auto'))}")
    if penalty is not None and method == "auto":
        raise InputError(
            "penalty belongs to a search of ruptures; give method='pelt' (or another) with it, or leave it out."
        )
    known = known_steps(known_events)
    tamed, factors = tame(series)
    if method != "auto":
        found, notes, spikes = _named(tamed, method, penalty)
    elif sensitivity == "annotation":
        found, notes, spikes = _annotated(tamed)
    else:
        settings = Settings() if onset_guard else Settings(onset=1.0)
        found, notes, spikes = _calibrated(tamed, kinds, alpha, settings, generator)
    stretches = segments(tamed, found)
    if np.any(factors != 1):
        unit = dict(zip(series.names, factors.tolist(), strict=True))
        found = [f if f.kind == "variance" else replace(f, size=f.size * unit[f.channel]) for f in found]
        stretches = tuple(
            replace(s, level=s.level * unit[s.channel], slope=s.slope * unit[s.channel], sd=s.sd * unit[s.channel])
            for s in stretches
        )
    events = merge(found)
    provenance = make_provenance(
        "change_points",
        {
            "alpha": alpha,
            "kind": kinds,
            "method": method,
            "penalty": penalty,
            "known_events": known,
            "sensitivity": sensitivity,
            "onset_guard": onset_guard,
            "channels": series.names,
        },
        series.values,
        series.steps,
        seed=0 if rng is None else rng if isinstance(rng, int) else None,
    )
    intervals = np.array([step_interval(series, e) for e in events]).reshape(-1, 2)
    rows = np.array([e[0].row for e in events], dtype=np.int64)
    stride = float(np.median(np.diff(series.steps))) if series.steps.shape[0] > 1 else 1.0
    return ChangePoints(
        steps=series.steps[rows],
        rows=rows,
        intervals=intervals.astype(series.steps.dtype) if intervals.size else np.empty((0, 2), series.steps.dtype),
        p_values=np.array([max(min(c.p_value for c in e), _LEAST_P) for e in events], dtype=float),
        channels=tuple(tuple(dict.fromkeys(c.channel for c in e)) for e in events),
        kind=tuple(e[0].kind for e in events),
        sizes=np.array([e[0].size for e in events], dtype=float),
        explained=tuple(
            explanation(interval, float(series.steps[row]), known, stride) or resumed_at(series, event)
            for interval, row, event in zip(intervals, rows, events, strict=True)
        ),
        segments=stretches,
        not_tested=tuple(notes),
        spikes=spikes,
        data_steps=series.steps,
        data_values=series.values,
        names=series.names,
        alpha=alpha,
        method=method if sensitivity == "calibrated" else "annotation",
        provenance=provenance,
    )


def _calibrated(
    series: Series, kinds: tuple[str, ...], alpha: float, settings: Settings, rng: np.random.Generator
) -> tuple[list[Found], list[str], dict[str, NDArray[Any]]]:
    """Every channel alone, then the channels together on what is left."""
    series, notes = prepare(series)
    total = sum(_SHARES[k] for k in kinds)
    shares = {k: _SHARES[k] / total for k in kinds}
    n_channels = len(series.names)
    pooled = n_channels > 1 and "level" in kinds
    own_alpha = alpha * (0.75 if pooled else 1.0) / n_channels
    found: list[Found] = []
    spikes: dict[str, NDArray[Any]] = {}
    scans: dict[int, ChannelScan] = {}
    forward = bool(np.all(series.steps[1:] > series.steps[:-1]))  # not so where a resumed run counts anew
    for c, name in enumerate(series.names):
        own = series.own_rows(c)
        if own.shape[0] < _MIN_ROWS:
            notes.append(f"{name}: not enough history ({own.shape[0]} finite rows, {_MIN_ROWS} are needed).")
            continue
        y = series.values[own, c]
        steps = series.steps[own] if forward else own
        scan = scan_channel(y, alpha=own_alpha, shares=shares, settings=settings, steps=steps, rng=rng)
        scans[c] = scan
        spikes[name] = series.steps[own[scan.spikes]]
        notes.append(
            f"{name}: not enough history before step {series.steps[own[scan.first]]:g}"
            f" and after step {series.steps[own[-scan.first]]:g} to judge a change there."
        )
        found.extend(on_input_rows(change, name, own, series.steps.shape[0]) for change in scan.changes)
    if pooled and len(scans) > 1:
        found.extend(_together(series, scans, found, 0.25 * alpha, settings))
    return found, notes, spikes


def _together(
    series: Series, scans: dict[int, ChannelScan], found: list[Found], alpha: float, settings: Settings
) -> list[Found]:
    """Changes that only the channels together show, on the rows that they share."""
    finite = np.isfinite(series.values[:, list(scans)])
    most = finite.sum(axis=0).max()
    members = [c for c, count in zip(scans, finite.sum(axis=0), strict=True) if count >= 0.9 * most]
    common = np.flatnonzero(np.isfinite(series.values[:, members]).all(axis=1))
    if len(members) < 2 or common.shape[0] < _MIN_ROWS:
        return []
    rest, noises = [], []
    for c in members:
        own = series.own_rows(c)
        clipped, _ = clip_spikes(series.values[own, c])
        at = np.searchsorted(own, common)
        rest.append(subtract_changes(clipped, [m for m in scans[c].changes if m.kind != "variance"])[at])
        noises.append(replace(scans[c].noise, sd=scans[c].noise.sd[at]))
    known = sorted({int(np.searchsorted(common, f.row)) for f in found})
    out: list[Found] = []
    for change, moved in pooled_changes(rest, noises, known, alpha=alpha, settings=settings):
        place = on_input_rows(change, "", common, series.steps.shape[0])
        p_value = min(1.0, change.p_value / 0.25)
        out.extend(
            replace(place, channel=series.names[members[c]], p_value=p_value, size=size, z=z) for c, z, size in moved
        )
    return out


def _annotated(series: Series) -> tuple[list[Found], list[str], dict[str, NDArray[Any]]]:
    """What a person would mark, channel by channel (`annotate`)."""
    found = []
    for c, name in enumerate(series.names):
        own = series.own_rows(c)
        y = series.values[own, c]
        rows = annotated_changes(y)
        edges = [0, *rows, y.shape[0]]
        for i, row in enumerate(rows):
            start, stop = edges[i], edges[i + 2]
            pair = y[start:stop]
            variance = float(np.mean(np.square(np.diff(pair)))) / 2
            places = {k: locate(y, start, stop, k, variance, row, 2) for k in ("level", "slope")}
            kind = max(places, key=lambda k: places[k].gain)
            at = replace(places[kind], row=row)
            change = Change(
                row, min(at.low, row), max(at.high, row + 1), kind, float("nan"), at.size, 0.0, stop - start
            )
            found.append(on_input_rows(change, name, own, series.steps.shape[0]))
    return found, ["Marked as a person would: no p-values."], {}


def _named(
    series: Series, method: str, penalty: float | None
) -> tuple[list[Found], list[str], dict[str, NDArray[Any]]]:
    """A search of ruptures on the rows where all channels are finite."""
    common = np.flatnonzero(np.isfinite(series.values).all(axis=1))
    y = series.values[common]
    rows, used = search(y, method, penalty)
    edges = [0, *rows, y.shape[0]]
    found = []
    for i, row in enumerate(rows):
        before, after = y[edges[i] : row], y[row : edges[i + 2]]
        jump = after.mean(axis=0) - before.mean(axis=0)
        spread = np.sqrt(before.var(axis=0) / len(before) + after.var(axis=0) / len(after))
        z = np.divide(jump, spread, out=np.zeros_like(jump), where=spread > 0)
        lead = int(np.argmax(np.abs(z)))
        at = int(common[row])
        end = int(common[row + 1]) if row + 1 < len(common) else series.steps.shape[0]
        found.append(Found(series.names[lead], at, at, end, "level", float("nan"), float(jump[lead]), float(z[lead])))
    return found, [f"Search {method!r} with penalty {used:.6g}: no p-values, and intervals of one row."], {}
