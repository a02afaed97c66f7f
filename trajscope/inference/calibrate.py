r"""Thresholds of monitors from a user's own healthy runs, and the alarms they raise.

Each monitor's threshold is the split-conformal one of its largest confirmed scores :math:`M_{ij}` (run *i*, monitor
*j*). A run that is watched by several monitors at once may alarm by any of them, so the threshold in force is the
*joint* one. With :math:`m_{ij} = \operatorname{asinh} M_{ij}`, the median :math:`a_j` and the largest :math:`t_j` of
each monitor,

.. math:: U_i = \max_j \frac{m_{ij} - a_j^{(-i)}}{t_j^{(-i)} - a_j^{(-i)}}, \qquad
          h_j = \sinh\bigl(a_j + (t_j - a_j)\, h(U)\bigr),

where *(-i)* leaves run *i* out and *h(U)* is the conformal threshold of the :math:`U_i`: by how much a run exceeds all
that the others showed, in any monitor (after Westfall & Young 1993, by run; leaving out as in the jackknife+: Barber et
al. 2021, Ann. Stat. 49). A healthy run then raises any alarm at all with a probability of about *alpha*; the proof
covers 2 *alpha*, the tests measure it.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.conformal import conformal_threshold, needed_runs, upper_rate
from trajscope.detect.alarms import first_alarm, largest, persistent
from trajscope.errors import InputError, NotEnoughData, ReadError, nearest
from trajscope.history import Run
from trajscope.inference.monitors import MONITORS, monitor_scores
from trajscope.result import Result, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SCHEMA_VERSION", "MonitorAlarm", "Threshold", "Thresholds", "applies", "calibrate", "run_alarms"]

Floats = NDArray[np.float64]

SCHEMA_VERSION = 1

#: Monitors that are watched by default: rules of practice are rivals, not ours, and `lr_jump` is what somebody did.
WATCHED = tuple(m for m in MONITORS if m not in ("lr_jump", "sigma_skip", "loss_ratio"))


@dataclass(frozen=True)
class Threshold:
    """Threshold of one monitor.

    Attributes
    ----------
    monitor : str
    value : float
        In force: any alarm of all monitors together at `alpha` a run. Infinite: this monitor never alarms.
    alone : float
        Of this monitor watched alone.
    n_calibration : int
        Healthy runs that have a score of it.
    """

    monitor: str
    value: float
    alone: float
    n_calibration: int


@dataclass(frozen=True)
class MonitorAlarm:
    """One alarm.

    Attributes
    ----------
    monitor : str
    step : float
        The row that confirmed it.
    score, threshold : float
    certified : bool
        False beyond the length of the calibration runs, where the false-alarm rate is not known.
    """

    monitor: str
    step: float
    score: float
    threshold: float
    certified: bool

    def sentence(self) -> str:
        """For a person."""
        more = "" if self.certified else "; beyond the calibration runs, so at an unknown false-alarm rate"
        return f"{self.monitor} is at {self.score:.4g}, its threshold is {self.threshold:.4g}{more}"


@dataclass(frozen=True, eq=False)
class Thresholds(Result):
    """Thresholds of all monitors; returned by `calibrate`, kept in a TOML file.

    Attributes
    ----------
    thresholds : tuple of Threshold
    alpha : float
        False-alarm rate a run, of all monitors together.
    n_calibration : int
    upper_rate : float
        90 % upper bound of that rate, given the calibration runs.
    persistence : int
        Rows that confirm an alarm.
    warmup : float
        Steps from the first in which nothing alarms.
    run_length : float
        Steps of the shortest calibration run: up to there the rate is known.
    alarms_per_1000 : float
        Alarms of the calibration runs themselves per 1,000 steps watched, each judged by thresholds from the others.
    sources : mapping of str to str
        What a monitor was made of, where that can differ (the source of ``x_grad``, the channel of ``fall``); a run in
        which it is made of something else is not judged by it.
    skipped : mapping of str to str
        Runs that could not be used, and why.
    """

    thresholds: tuple[Threshold, ...]
    alpha: float
    n_calibration: int
    upper_rate: float
    persistence: int
    warmup: float
    run_length: float
    alarms_per_1000: float
    sources: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def certified(self) -> bool:
        """Whether there were enough runs for `alpha`."""
        return self.n_calibration >= needed_runs(self.alpha)

    def to_frame(self) -> pd.DataFrame:
        """One row a monitor."""
        import pandas as pd

        return pd.DataFrame([vars(t) for t in self.thresholds]).set_index("monitor")

    def summary(self) -> str:
        """One or two sentences."""
        if not self.certified:
            return (
                f"Not certifiable: {self.n_calibration} healthy runs, {needed_runs(self.alpha)} are needed for a "
                f"false-alarm rate of {self.alpha:g} a run."
            )
        return (
            f"{len(self.thresholds)} monitors, false-alarm rate {self.alpha:g} a run in all (90 % bound "
            f"{self.upper_rate:.3f}) from {self.n_calibration} healthy runs of at least {self.run_length:g} steps; "
            f"those runs raise {self.alarms_per_1000:.3g} alarms per 1,000 steps."
        )

    def write(self, path: str | Path) -> Path:
        """Write the thresholds as TOML."""
        path = Path(path)
        head = {
            "schema_version": SCHEMA_VERSION,
            "alpha": self.alpha,
            "n_calibration": self.n_calibration,
            "upper_rate": self.upper_rate,
            "persistence": self.persistence,
            "warmup": self.warmup,
            "run_length": self.run_length,
            "alarms_per_1000": self.alarms_per_1000,
        }
        lines = ["# Thresholds of trajscope's monitors: trajscope audit --thresholds THIS_FILE", *_toml(head)]
        lines += ["", "[sources]", *_toml(self.sources)]
        for t in self.thresholds:
            lines += ["", f"[monitor.{t.monitor}]"]
            lines += _toml({"value": t.value, "alone": t.alone, "n_calibration": t.n_calibration})
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    @staticmethod
    def read(path: str | Path) -> Thresholds:
        """Read thresholds that `write` wrote.

        Raises
        ------
        ReadError
            If the file cannot be read or is no TOML.
        InputError
            If something is missing, unknown or of the wrong type in it.
        """
        path = Path(path)
        try:
            with path.open("rb") as stream:
                table = tomllib.load(stream)
        except OSError as problem:
            raise ReadError(
                f"{path}: cannot be opened ({problem.strerror}); a thresholds file is expected"
            ) from problem
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise ReadError(f"{path}: not valid TOML ({problem})") from problem
        if table.get("schema_version") != SCHEMA_VERSION:
            raise InputError(f"{path}: schema_version {table.get('schema_version')!r}; {SCHEMA_VERSION} is expected")
        monitors = table.get("monitor")
        if not isinstance(monitors, dict) or not monitors:
            raise InputError(f"{path}: holds no [monitor.NAME]; write it with `trajscope calibrate`")
        sources = table.get("sources", {})
        if not isinstance(sources, dict):
            raise InputError(f"{path}: sources = {sources!r}; a table is expected")
        kept = []
        for name, entry in monitors.items():
            if name not in MONITORS:
                raise InputError(f"{path}: monitor {name!r} is unknown. {nearest(name, MONITORS)}")
            where = f"{path}: [monitor.{name}]"
            kept.append(
                Threshold(
                    name,
                    _real(entry, "value", where),
                    _real(entry, "alone", where),
                    int(_real(entry, "n_calibration", where)),
                )
            )
        where = str(path)
        return Thresholds(
            tuple(kept),
            _real(table, "alpha", where),
            int(_real(table, "n_calibration", where)),
            _real(table, "upper_rate", where),
            int(_real(table, "persistence", where)),
            _real(table, "warmup", where),
            _real(table, "run_length", where),
            _real(table, "alarms_per_1000", where),
            {str(k): str(v) for k, v in sources.items()},
        )


def _toml(values: Mapping[str, Any]) -> list[str]:
    def text(value: Any) -> str:
        if isinstance(value, float) and not math.isfinite(value):
            return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        return json.dumps(value)

    return [f"{k} = {text(v)}" for k, v in values.items()]


def _real(table: Any, name: str, where: str) -> float:
    value = table.get(name) if isinstance(table, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where}: {name} = {value!r}; a number is expected")
    return float(value)


def calibrate(
    runs: Sequence[Run] | Mapping[str, pd.DataFrame],
    *,
    alpha: float = 0.05,
    monitors: Sequence[str] | None = None,
    persistence: int = 3,
    warmup: float | None = None,
    performance: str | None = None,
) -> Thresholds:
    """Thresholds at a known false-alarm rate from healthy runs.

    Parameters
    ----------
    runs : sequence of Run, or mapping of run to scores
        Runs that somebody judged healthy, of the kind that will be watched; or what `monitor_scores` gave for them.
    alpha : float
        False alarms a run, of all monitors together. 0.05 needs 19 runs.
    monitors : sequence of str, optional
        Default all but the rules of practice and ``lr_jump``.
    persistence : int
        Rows in a row that confirm an alarm.
    warmup : float, optional
        Steps from the first in which nothing alarms; default 50 strides of the densest score.
    performance : str, optional
        For the monitor ``fall``.

    Returns
    -------
    Thresholds

    Raises
    ------
    NotEnoughData
        If no run has a score, or fewer runs than `alpha` needs: an infinite threshold would watch nothing.
    InputError
        For an unknown monitor.
    """
    wanted = WATCHED if monitors is None else tuple(monitors)
    for name in wanted:
        if name not in MONITORS:
            raise InputError(f"monitor {name!r} is unknown. {nearest(str(name), MONITORS)}")
    needed = needed_runs(alpha)
    skipped: dict[str, str] = {}
    tables: dict[str, pd.DataFrame] = {}
    pairs = runs.items() if isinstance(runs, Mapping) else ((r.id, r) for r in runs)
    for name, item in pairs:
        table = (
            monitor_scores(item, wanted, performance=performance)
            if isinstance(item, Run)
            else item[[m for m in wanted if m in item]]
        )
        if len(table) < 2:
            skipped[name] = "no monitor has a score"
            continue
        tables[name] = table
    if len(tables) < needed:
        raise NotEnoughData(
            f"{len(tables)} healthy runs can be used; {needed} are needed for a false-alarm rate of {alpha:g} a run"
            + (f" ({len(skipped)} left out, first: {next(iter(skipped.items()))})" if skipped else "")
        )
    strides = [float(np.median(np.diff(t.index.to_numpy(dtype=np.float64)))) for t in tables.values()]
    start = 50 * float(np.median(strides)) if warmup is None else float(warmup)
    maxima = np.full((len(tables), len(wanted)), np.nan)
    lengths = []
    for i, table in enumerate(tables.values()):
        steps = table.index.to_numpy(dtype=np.float64)
        lengths.append(float(steps[-1] - steps[0]))
        for j, monitor in enumerate(wanted):
            if monitor in table:
                confirmed = persistent(table[monitor].to_numpy(dtype=np.float64), persistence)
                maxima[i, j] = largest(steps, confirmed, steps[0] + start, np.inf)
    sources: dict[str, str] = {}
    for monitor in sorted({m for t in tables.values() for m in t.attrs.get("sources", {}) if m in wanted}):
        found = sorted({str(t.attrs["sources"][monitor]) for t in tables.values() if monitor in t})
        sources[monitor] = found[0]
        if len(found) > 1:  # they do not measure the same
            maxima[:, wanted.index(monitor)] = np.nan
            skipped[f"monitor {monitor}"] = f"the runs have it from different sources ({', '.join(found)})"
            del sources[monitor]
    used = [j for j in range(len(wanted)) if np.count_nonzero(~np.isnan(maxima[:, j])) == len(tables)]
    for j in range(len(wanted)):
        if j not in used and f"monitor {wanted[j]}" not in skipped and not np.isnan(maxima[:, j]).all():
            n = int(np.count_nonzero(np.isnan(maxima[:, j])))
            skipped[f"monitor {wanted[j]}"] = f"{n} of {len(tables)} runs have no score of it"
    if not used:
        raise NotEnoughData("no monitor has a score in every run")
    maxima = maxima[:, used]
    names = [wanted[j] for j in used]
    values = _joint(maxima, alpha)
    again = 0
    for i in range(len(maxima)):
        others = np.delete(maxima, i, axis=0)
        again += int(np.sum(maxima[i] > _joint(others, alpha))) if len(others) >= needed else 0
    watched = sum(length - start for length in lengths)
    per_1000 = 1000 * again / watched if watched > 0 and len(maxima) > needed else math.nan
    return Thresholds(
        tuple(
            Threshold(name, float(values[j]), conformal_threshold(maxima[:, j], alpha), len(maxima))
            for j, name in enumerate(names)
        ),
        alpha,
        len(maxima),
        upper_rate(len(maxima), alpha),
        persistence,
        start,
        min(lengths),
        per_1000,
        sources,
        skipped,
        provenance=make_provenance(
            "calibrate", {"alpha": alpha, "monitors": wanted, "persistence": persistence, "warmup": warmup}, maxima
        ),
    )


def _joint(maxima: Floats, alpha: float) -> Floats:
    """Thresholds at which any monitor alarms in a share `alpha` of healthy runs; see the module."""
    scores = np.arcsinh(maxima)
    h = conformal_threshold(_beyond(scores).max(axis=1), alpha)
    centre, reach = _units(scores)
    with np.errstate(over="ignore"):  # beyond every float: such a monitor alarms at infinity alone
        values: Floats = np.sinh(centre + reach * h)
    return values


def _beyond(scores: Floats) -> Floats:
    """Each run in units of the others, as a new run will be: 1 is the largest of all that they showed."""
    out = np.empty(scores.shape)
    for i in range(len(scores)):
        centre, reach = _units(np.delete(scores, i, axis=0))
        out[i] = (scores[i] - centre) / reach
    return out


def _beyond_all(scores: Floats, maxima: Floats) -> Floats:
    """Largest monitor of each row in units of healthy maxima: rows by monitors in, a score a row out."""
    centre, reach = _units(np.arcsinh(maxima))
    units = (np.arcsinh(scores) - centre) / reach
    out = np.full(len(scores), np.nan)
    some = ~np.isnan(units).all(axis=1)
    out[some] = np.nanmax(units[some], axis=1)
    return out


def _units(scores: Floats) -> tuple[Floats, Floats]:
    """Median of each monitor, and how far its largest value lies above; what never was finite counts as 0."""
    finite = np.where(np.isfinite(scores), scores, np.nan)
    finite[:, np.isnan(finite).all(axis=0)] = 0.0
    centre = np.nanmedian(finite, axis=0)
    return centre, np.maximum(np.nanmax(finite, axis=0) - centre, 1e-3 * np.maximum(np.abs(centre), 1e-3))


def applies(threshold: Threshold, scores: pd.DataFrame, thresholds: Thresholds) -> bool:
    """Whether a run's scores hold what the threshold was made of."""
    if threshold.monitor not in scores:
        return False
    made_of = thresholds.sources.get(threshold.monitor)
    return made_of is None or scores.attrs.get("sources", {}).get(threshold.monitor) == made_of


def run_alarms(run: Run, thresholds: Thresholds, *, scores: pd.DataFrame | None = None) -> list[MonitorAlarm]:
    """The first alarm of each monitor in one run, by step.

    Parameters
    ----------
    run : Run
    thresholds : Thresholds
    scores : DataFrame, optional
        What `monitor_scores` gives for it, where it is there already.
    """
    names = [t.monitor for t in thresholds.thresholds]
    table = monitor_scores(run, names) if scores is None else scores
    if not len(table):
        return []
    steps = table.index.to_numpy(dtype=np.float64)
    start = steps[0] + thresholds.warmup
    found = []
    for t in thresholds.thresholds:
        if not applies(t, table, thresholds):
            continue
        confirmed = persistent(table[t.monitor].to_numpy(dtype=np.float64), thresholds.persistence)
        alarm = first_alarm(steps, confirmed, t.value, start)
        if alarm is not None:
            certified = alarm.step - steps[0] <= thresholds.run_length
            found.append(MonitorAlarm(t.monitor, alarm.step, alarm.score, t.value, certified))
    return sorted(found, key=lambda a: (a.step, a.monitor))
