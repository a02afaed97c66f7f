r"""Lead time: how long before its onset a failure was foreseen, at a false-alarm rate that is known.

The threshold of an indicator is split-conformal (`trajscope._core.conformal`): from the largest confirmed scores of the
healthy calibration runs, so that a new healthy run alarms with probability *alpha* at most, whatever the dependence in
time. One alarm a run: the first after the warm-up. With onset :math:`T_{on}` and alarm :math:`T_w`,

.. math:: \text{lead} = T_{on} - T_w, \qquad \text{timely} \iff
          \max(T_{on} - \text{horizon},\, T_{inj}) \le T_w \le T_{on} - \text{min\_lead};

an earlier alarm (before the horizon, or before the injection) is a false one, a later one is late, none is a miss.
Misses stay in every figure: sensitivity, the median lead over all events (a miss lies below every lead), the restricted
mean (a miss counts 0), the survival curve :math:`G(l) = P(\text{lead} \ge l)`.

Sources: DEFINITIONS of this project (6); split conformal: Vovk, Gammerman & Shafer 2005; risk sets: Heagerty & Zheng
2005, Biometrics 61; time in warning and chance: Snyder et al. 2008, J. Neurosci. Methods 172.

Limits: exchangeability is by stratum. A stratum without enough calibration runs is "not certifiable"; its runs are
counted and enter nothing. Leads of fewer than one stride are not resolved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trajscope._core.conformal import needed_runs
from trajscope._core.resample import bca_interval, cluster_means
from trajscope._core.surrogates import as_generator
from trajscope.errors import InputError, NotEnoughData, nearest
from trajscope.history.labels import check_labels
from trajscope.inference._lead_cases import CALIBRATION, cases_of, frames_of, sides_of
from trajscope.inference._lead_judge import Judged
from trajscope.result import Result, make_provenance

__all__ = ["Comparison", "LeadTime", "lead_time"]

Floats = NDArray[np.float64]

#: Outcomes of runs about which an indicator says nothing.
UNJUDGED = ("not certifiable", "no score")


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """Paired difference between two indicators over the same events; returned by `LeadTime.compare`.

    Attributes
    ----------
    first, second : str
    n_events : int
    lead, lead_low, lead_high : float
        Difference of restricted mean leads (first minus second), steps, and its BCa interval over clusters.
    sensitivity, sensitivity_low, sensitivity_high : float
    verdict : {"leads", "trails", "cannot tell"}
        Whether the interval of the lead lies above zero, below it, or holds it.
    """

    first: str
    second: str
    n_events: int
    lead: float
    lead_low: float
    lead_high: float
    sensitivity: float
    sensitivity_low: float
    sensitivity_high: float
    verdict: str

    def to_frame(self) -> pd.DataFrame:
        """One row."""
        return pd.DataFrame([{k: v for k, v in self.to_dict().items() if k != "provenance"}])

    def summary(self) -> str:
        """One sentence."""
        word = {"leads": "leads", "trails": "trails", "cannot tell": "cannot be told apart from"}[self.verdict]
        return (
            f"{self.first} {word} {self.second}: restricted mean lead differs by {self.lead:+.3g} steps "
            f"[{self.lead_low:.3g}, {self.lead_high:.3g}], sensitivity by {self.sensitivity:+.3f} "
            f"[{self.sensitivity_low:.3f}, {self.sensitivity_high:.3f}], {self.n_events} events."
        )


@dataclass(frozen=True, eq=False)
class LeadTime(Result):
    """What `lead_time` found.

    Attributes
    ----------
    table : DataFrame
        One row an indicator; see `lead_time`.
    runs : DataFrame
        One row a run and indicator: ``split, event, outcome`` (``timely``, ``late``, ``too early``, ``missed``;
        ``alarm`` or ``quiet`` in a healthy run; ``not certifiable``, ``no score``),
        ``alarm_step, lead, threshold, largest``.
    curves : mapping of str to DataFrame
        ``roc`` (false-alarm rate, sensitivity), ``survival`` (lead, share), ``time_to_warning`` (Kaplan-Meier),
        ``risk_set`` (steps ahead, AUROC with interval), each with a column ``indicator``.
    alpha : float
    skipped : mapping of str to str
        Labelled run -> why it was left out.
    n_calibration, n_healthy, n_events : int
        Healthy calibration runs; test runs that were healthy; test runs with an event.
    """

    plot_name = "lead_time"

    table: pd.DataFrame
    runs: pd.DataFrame
    curves: Mapping[str, pd.DataFrame]
    alpha: float
    skipped: Mapping[str, str]
    n_calibration: int
    n_healthy: int
    n_events: int
    _cluster: Mapping[str, str] = field(default_factory=dict, repr=False)

    def to_frame(self) -> pd.DataFrame:
        """One row an indicator, the best sensitivity first."""
        return self.table

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        from trajscope.result import jsonable

        return {
            "table": jsonable(self.table.reset_index().to_dict("records")),
            "alpha": self.alpha,
            "n_calibration": self.n_calibration,
            "n_healthy": self.n_healthy,
            "n_events": self.n_events,
            "skipped": dict(self.skipped),
            "provenance": jsonable(self.provenance),
        }

    def summary(self) -> str:
        """What may be claimed, in a few sentences."""
        if not self.n_events:
            return "Cannot tell: no test run has an event."
        head = (
            f"{self.n_events} events and {self.n_healthy} healthy runs, thresholds from {self.n_calibration} healthy "
            f"runs at a false-alarm rate of {self.alpha:g} a run."
        )
        if (self.table["verdict"] == "not certifiable").all():
            return f"{head} Cannot tell: {needed_runs(self.alpha)} healthy calibration runs a stratum are needed."
        best = self.table.iloc[0]
        name = self.table.index[0]
        warns = self.table.index[self.table["verdict"] == "warns"].tolist()
        lead = "not reached" if math.isnan(best["median_lead"]) else f"{best['median_lead']:.4g} steps"
        text = (
            f"{head} The most sensitive indicator, {name}, warned of {best['timely']:.0f} in time = "
            f"{best['sensitivity']:.3f} [{best['sensitivity_low']:.3f}, {best['sensitivity_high']:.3f}] (chance "
            f"{best['chance']:.3f}), median lead {lead}; false alarms {best['false_alarms']:.0f} of "
            f"{best['n_healthy']:.0f} runs [{best['false_alarm_low']:.3f}, {best['false_alarm_high']:.3f}]."
        )
        more = f"{len(warns)} of {len(self.table)} indicators warn after correction (Holm, 5 %)"
        return f"{text} {more}{': ' + ', '.join(warns[:8]) if warns else ''}."

    def best(self, among: Sequence[str] | None = None) -> str:
        """The indicator with the highest sensitivity on *calibration* events (then the longest lead, then by name).

        Raises
        ------
        NotEnoughData
            If no calibration run has an event: choosing on the test runs would flatter the choice.
        """
        names = list(self.table.index) if among is None else list(among)
        for name in names:
            if name not in self.table.index:
                raise InputError(f"no indicator {name!r}. {nearest(name, self.table.index)}")
        seen = self.runs[
            (self.runs["split"] == CALIBRATION[0]) & self.runs["event"] & self.runs["indicator"].isin(names)
        ]
        seen = seen[~seen["outcome"].isin(UNJUDGED)]
        if seen.empty:
            raise NotEnoughData(
                "no calibration run has an event, so the best indicator cannot be chosen without the test"
            )
        timely = seen["outcome"] == "timely"
        score = pd.DataFrame({"hit": timely, "lead": seen["lead"].where(timely, 0.0), "indicator": seen["indicator"]})
        ranked = (
            score.groupby("indicator").mean().sort_index().sort_values(["hit", "lead"], ascending=False, kind="stable")
        )
        return str(ranked.index[0])

    def compare(
        self, first: str, second: str, *, n_boot: int = 4000, level: float = 0.95, rng: Any = None
    ) -> Comparison:
        """Paired difference of restricted mean lead and of sensitivity, over the same test events.

        Parameters
        ----------
        first, second : str
            Indicators.
        n_boot : int
            Cluster-bootstrap draws (seeds are drawn, with all their runs).
        level : float
        rng : int or numpy.random.Generator, optional
            Default 0.
        """
        for name in (first, second):
            if name not in self.table.index:
                raise InputError(f"no indicator {name!r}. {nearest(name, self.table.index)}")
        test = self.runs[(self.runs["split"] != CALIBRATION[0]) & self.runs["event"]]
        test = test[~test["outcome"].isin(UNJUDGED)]
        timely = test["outcome"] == "timely"
        lead = test.assign(v=test["lead"].where(timely, 0.0)).pivot(index="run", columns="indicator", values="v")
        hit = test.assign(v=timely.astype(float)).pivot(index="run", columns="indicator", values="v")
        both = [
            run
            for run in lead.index
            if {first, second} <= set(lead.columns) and lead.loc[run, [first, second]].notna().all()
        ]
        lead, hit = lead.loc[both], hit.loc[both]
        if lead.empty:
            raise NotEnoughData(f"{first} and {second} have no certified test event in common")
        difference = np.column_stack([(t[first] - t[second]).to_numpy(dtype=float) for t in (lead, hit)])
        clusters = [self._cluster[run] for run in lead.index]
        draws = cluster_means(difference, clusters, n_boot, as_generator(rng))
        owners = np.array(clusters)
        left = np.array([difference[owners != c].mean(axis=0) for c in np.unique(owners) if np.any(owners != c)])
        estimate = difference.mean(axis=0)
        ends = [bca_interval(estimate[j], draws[:, j], left[:, j] if left.size else [], level) for j in (0, 1)]
        few = np.unique(owners).size < 3
        verdict = "leads" if ends[0][0] > 0 and not few else "trails" if ends[0][1] < 0 and not few else "cannot tell"
        return Comparison(
            first, second, len(lead), float(estimate[0]), *ends[0], float(estimate[1]), *ends[1], verdict,
        )  # fmt: skip


def lead_time(
    scores: Any,
    labels: pd.DataFrame,
    *,
    alpha: float = 0.05,
    horizon: float | None = None,
    min_lead: float | None = None,
    warmup: float | None = None,
    persistence: int = 3,
    sides: Mapping[str, str] | str | None = None,
    n_boot: int = 2000,
    n_null: int = 1999,
    level: float = 0.95,
    rng: int | np.random.Generator | None = None,
) -> LeadTime:
    """Judge indicators as alarms over labelled runs.

    Parameters
    ----------
    scores : mapping of run to DataFrame, or DataFrame
        For each run a table indexed by step, one column an indicator, larger is worse (see `sides`); or one long table
        with the columns ``run``, ``step`` and the indicators. Results with ``.to_frame()`` such as those of
        `trajscope.early_warning` will do, unless they look ahead. Row *t* must use rows up to *t*.
    labels : DataFrame
        One row a run: ``run``; ``onset_step`` (null in a healthy run); optional ``outcome`` (``none`` is healthy; ``not
        learned``, ``cannot tell`` and ``undetermined`` are left out and counted), ``injection_step``, ``stratum``,
        ``seed``, ``split`` (``calibration`` or ``heldout`` in every row, or in none: then half of the healthy runs of a
        stratum, drawn at random, calibrate).
    alpha : float
        False alarms a run. 0.05 needs 19 healthy calibration runs a stratum, 0.1 needs 9.
    horizon, min_lead : float, optional
        Window of a timely alarm, steps. Default a tenth of the run; one stride of the score.
    warmup : float, optional
        Steps from the first one in which there is no alarm; default 5 % of the run, at least 50 rows.
    persistence : int
        Rows in a row that confirm an alarm.
    sides : mapping or str
        ``high`` (default), ``low`` or ``both`` for each indicator; two-sided about the median of the healthy
        calibration runs.
    n_boot, n_null : int
        Bootstrap draws (clusters: the runs of a seed, else runs) and draws of each null: enough that a p-value
        survives the correction over some forty indicators.
    level : float
        Coverage of the intervals.
    rng : int or numpy.random.Generator, optional
        Default 0.

    Returns
    -------
    LeadTime
        ``.to_frame()`` has a row an indicator:

        - ``threshold`` (NaN over several strata), ``without_score`` (runs that have no value of it; they enter none of
          its figures), ``n_calibration``, ``upper_rate`` (90 % bound of the false-alarm rate given those runs);
        - ``n_healthy, false_alarms, false_alarm_rate, false_alarm_low, false_alarm_high``;
        - ``n_events, timely, late, too_early, missed``, ``sensitivity, sensitivity_low, sensitivity_high``;
        - ``median_lead`` (NaN: fewer than half were foreseen), ``mean_lead, mean_lead_low, mean_lead_high`` (a miss
          counts 0);
        - ``auroc`` (largest score in the window against that of healthy runs at the same steps), ``partial_auc`` (area
          under sensitivity against false alarms a run, up to 0.1), ``time_in_warning``, ``chance``;
        - ``p_shift``, ``p_label``, ``p_holm`` (the larger of the two, corrected over the indicators), ``verdict``
          (``warns``, ``no better than chance``, ``not certifiable``).

    Raises
    ------
    InputError
        Scores or labels of the wrong form, values out of range.
    NotEnoughData
        No labelled run has scores.

    Examples
    --------
    >>> import pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> labels = pd.DataFrame({"run": [f"r{i}" for i in range(60)]})
    >>> labels["onset_step"] = [900.0 if i >= 40 else None for i in range(60)]
    >>> scores = {}
    >>> for i in range(60):
    ...     value = rng.normal(size=1000)
    ...     value[850:] += 6 * (i >= 40)
    ...     scores[f"r{i}"] = pd.DataFrame({"score": value})
    >>> found = lead_time(scores, labels)
    >>> float(found.to_frame().loc["score", "median_lead"]) > 40
    True
    """
    if not 0 < alpha < 1:
        raise InputError(f"alpha is {alpha!r}; a false-alarm rate between 0 and 1 is expected")
    for name, value in (("horizon", horizon), ("min_lead", min_lead), ("warmup", warmup)):
        if value is not None and not (isinstance(value, int | float | np.number) and value >= 0):
            raise InputError(f"{name} is {value!r}; a number of steps, 0 or more, is expected")
    if horizon is not None and min_lead is not None and min_lead > horizon:
        raise InputError(f"min_lead ({min_lead:g}) is beyond the horizon ({horizon:g}); no alarm could be timely")
    generator = as_generator(rng)
    table = check_labels(labels) if isinstance(labels, pd.DataFrame) else None
    if table is None:
        raise InputError(f"labels is a {type(labels).__name__}; a table with a column 'run' is expected")
    frames = frames_of(scores)
    names = list(dict.fromkeys(str(c) for frame in frames.values() for c in frame.columns))
    cases, skipped = cases_of(
        frames, table, sides=sides_of(names, sides), horizon=horizon, min_lead=min_lead, warmup=warmup,
        persistence=persistence, rng=generator,
    )  # fmt: skip
    if not cases:
        why = next(iter(skipped.items()), ("", "there are none"))
        raise NotEnoughData(f"none of the {len(table)} labelled runs can be used (first: {why[0]}: {why[1]})")
    rows: list[dict[str, Any]] = []
    per_run: list[pd.DataFrame] = []
    curves: dict[str, list[pd.DataFrame]] = {"roc": [], "survival": [], "time_to_warning": [], "risk_set": []}
    for name in names:
        judged = Judged(cases, name, alpha)
        per_run.append(judged.frame())
        rows.append(judged.row(n_boot, n_null, level, generator))
        for kind, curve in judged.curves(n_boot, level, generator).items():
            curves[kind].append(curve.assign(indicator=name))
    summary = pd.DataFrame(rows).set_index("indicator")
    summary["p_holm"] = _holm(summary[["p_shift", "p_label"]].max(axis=1, skipna=False).to_numpy())
    summary["verdict"] = [
        "not certifiable" if math.isnan(p) else "warns" if p <= 0.05 else "no better than chance"
        for p in summary["p_holm"]
    ]
    summary = summary.sort_values(["sensitivity", "mean_lead"], ascending=False, kind="stable", na_position="last")
    test = [c for c in cases if c.split != CALIBRATION[0]]
    parameters = {
        "alpha": alpha, "horizon": horizon, "min_lead": min_lead, "warmup": warmup, "persistence": persistence,
        "sides": sides, "n_boot": n_boot, "n_null": n_null, "level": level,
    }  # fmt: skip
    return LeadTime(
        summary,
        pd.concat(per_run, ignore_index=True),
        {kind: pd.concat(parts, ignore_index=True) for kind, parts in curves.items()},
        alpha,
        skipped,
        sum(c.split == CALIBRATION[0] and not c.event for c in cases),
        sum(not c.event for c in test),
        sum(c.event for c in test),
        {c.run: c.cluster for c in cases},
        provenance=make_provenance(
            "lead_time",
            parameters,
            *(c.scores[n] for c in cases for n in c.scores),
            seed=rng if isinstance(rng, int) else None,
        ),
    )


def _holm(p: Floats) -> Floats:
    """Holm's step-down correction; NaN stay NaN and are not counted."""
    out = np.full(p.size, np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    out[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(order.size, 0, -1)), 1.0)
    return out
