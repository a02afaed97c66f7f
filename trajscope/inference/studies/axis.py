"""Study of axis attribution: labelled events, weights from the calibration split, answers on the held-out split.

What is counted: a run's event is *detected* when its first joint departure lies at the injection or within ten rows
after it (for a ramp, within its duration). On those runs "cannot tell" counts as a wrong answer. Balanced accuracy is
the mean of the recalls of the axes; its interval is a bootstrap over seeds. A domain is held out by fitting the weights
on the calibration runs of the others. Two baselines stand beside it: which channels are logged at all, by logistic
regression, and the axis that is most common.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.resample import cluster_draws, percentile_interval, proportion_interval
from trajscope.errors import NotEnoughData, TrajscopeError
from trajscope.inference._axis_evidence import AXES, EVIDENCE, measure
from trajscope.inference._axis_model import PRIOR_MEAN, balance, fit_weights, probabilities
from trajscope.inference._axis_rows import first_departure, table_of
from trajscope.inference.axis import shipped_weights
from trajscope.inference.studies.base import GetRun, Study
from trajscope.result import Result, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Reliability", "measured", "study"]

Floats = NDArray[np.float64]

#: Rows after an injection within which a departure counts as its detection.
WITHIN = 10

_LR = next(i for i, e in enumerate(EVIDENCE) if e.name == "learning rate moved")
_BINS = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_DRAWS = 2000
NORMS = ("update_norm", "param_norm", "lr")
CANNOT = "cannot tell"


@dataclass(frozen=True, eq=False)
class Reliability(Result):
    """Confidence against accuracy; drawn as a reliability diagram.

    Attributes
    ----------
    confidence, accuracy, low, high : ndarray, shape (n_bins,)
        Mean confidence, share of right answers and its 95 % interval (Clopper-Pearson).
    n : ndarray of int, shape (n_bins,)
    """

    plot_name = "axis_reliability"

    confidence: Floats
    accuracy: Floats
    low: Floats
    high: Floats
    n: NDArray[np.int64]

    def to_frame(self) -> pd.DataFrame:
        """One row a bin."""
        import pandas as pd

        return pd.DataFrame(
            {"n": self.n, "confidence": self.confidence, "accuracy": self.accuracy, "low": self.low, "high": self.high}
        )

    @property
    def error(self) -> float:
        """Expected calibration error: mean gap between confidence and accuracy, weighted by runs."""
        return float(np.sum(self.n * np.abs(self.confidence - self.accuracy)) / max(self.n.sum(), 1))

    def summary(self) -> str:
        """One sentence."""
        return f"Expected calibration error {self.error:.3f} over {int(self.n.sum())} runs."


def measured(
    runs: GetRun, labels: pd.DataFrame, *, without: Collection[str] = ()
) -> tuple[pd.DataFrame, Floats, Floats, dict[str, str]]:
    """Evidence of labelled runs at their first departure and at their declared step.

    Parameters
    ----------
    runs : callable
        Run id -> Run.
    labels : DataFrame
        Columns run, axis, injection_step; optionally perturbation, severity, seed, split, domain, stratum, ramp,
        duration. Rows without an axis are controls.
    without : collection of str
        Roles that are taken out of the log before anything is looked at.

    Returns
    -------
    table : DataFrame
        One row a run: labels with ``cell``, ``departure``, ``detected``, ``early``.
    at_departure, at_injection : ndarray, shape (n_runs, n_evidence)
        NaN where absent, and everywhere where there is no such step.
    skipped : mapping
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    found: list[Floats] = []
    given: list[Floats] = []
    skipped: dict[str, str] = {}
    empty = np.full(len(EVIDENCE), np.nan)
    for label in labels.to_dict("records"):
        name = str(label["run"])
        try:
            run = runs(name)
            if without:
                run = run.replace(channels={n: c for n, c in run.channels.items() if c.role not in without})
            table = table_of(run)
            channels = frozenset(c.role for c in run.channels.values() if c.role and len(c))
        except TrajscopeError as problem:
            skipped[name] = str(problem)
            continue
        step, _ = first_departure(table)
        axis = label.get("axis")
        axis = None if pd.isna(axis) else str(axis)
        start = label.get("injection_step")
        start = math.nan if pd.isna(start) else float(start)
        ramp = bool(label["ramp"]) if "ramp" in label and not pd.isna(label["ramp"]) else False
        length = float(label["duration"]) if ramp and not pd.isna(label.get("duration")) else WITHIN * table.stride
        domain = label.get("domain")
        domain = str(label.get("stratum")).split("/")[0] if domain is None or pd.isna(domain) else str(domain)
        seed = label.get("seed")
        rows.append(
            {
                "run": name,
                "domain": domain,
                "axis": axis,
                "perturbation": str(label.get("perturbation")),
                "seed": -1 if seed is None or pd.isna(seed) else int(seed),
                "split": str(label.get("split")),
                "ramp": ramp,
                "departure": math.nan if step is None else step,
                "detected": step is not None and 0 <= step - start <= length,
                "early": step is not None and step < start,
                "channels": channels,
            }
        )
        found.append(measure(table, step)[0] if step is not None else empty)
        given.append(measure(table, start)[0] if math.isfinite(start) and axis is not None else empty)
    return pd.DataFrame(rows), np.array(found), np.array(given), skipped


def study(
    runs: GetRun, labels: pd.DataFrame, *, alpha: float = 0.05, rng: int | np.random.Generator | None = None
) -> Study:
    """Attribute the events of labelled runs and compare with their declared axes.

    Parameters
    ----------
    runs : callable
    labels : DataFrame
        See `measured`. Without runs of ``split`` "calibration" the shipped weights are used on all.
    alpha : float
        1 - coverage of the intervals.
    rng : int or Generator, optional
        Default 0.

    Returns
    -------
    Study
        Tables ``accuracy`` (one row a question), ``confusion``, ``kinds``, ``detection``, ``reliability``,
        ``weights``.

    Raises
    ------
    NotEnoughData
        If fewer than two axes have a detected event.
    """
    import pandas as pd

    generator = np.random.default_rng(0 if rng is None else rng)
    frame, found, given, skipped = measured(runs, labels)
    known = frame["axis"].isin(AXES).to_numpy() if len(frame) else np.zeros(0, dtype=bool)
    hit = frame["detected"].to_numpy(dtype=bool) & known if len(frame) else known
    if frame.loc[hit, "axis"].nunique() < 2:
        raise NotEnoughData(
            f"the labels hold {int(known.sum())} runs with one of the axes {', '.join(AXES)}, and detected events of "
            f"{frame.loc[hit, 'axis'].nunique() if len(frame) else 0}; events of at least two axes are needed"
        )
    fits = hit & (frame["split"] == "calibration").to_numpy()
    test = known & ~(frame["split"] == "calibration").to_numpy() if fits.any() else known
    ask = _Asker(frame, alpha, generator)
    plain, with_lr = found.copy(), found
    plain[:, _LR] = np.nan
    at_step = given.copy()
    at_step[:, _LR] = np.nan

    def weights(x: Floats, rows: NDArray[np.bool_]) -> Floats:
        return ask.fit(x, rows) if rows.any() else shipped_weights()

    seen = test & hit
    pulses = seen & ~frame["ramp"].to_numpy(dtype=bool)
    main = ask.answers(plain, weights(plain, fits))
    table = [
        ask.row("held-out seeds", "no", seen, test, main),
        ask.row("held-out seeds", "yes", seen, test, ask.answers(with_lr, weights(with_lr, fits))),
        ask.row("held-out seeds, no ramps", "no", pulses, test, main),
        ask.row("held-out seeds, step given", "no", test, test, ask.answers(at_step, weights(plain, fits))),
    ]
    bare, bare_found, _, _ = measured(runs, labels, without=NORMS)
    blind = (bare["detected"] & bare["axis"].isin(AXES)).to_numpy(dtype=bool) & test
    table.append(
        _Asker(bare, alpha, generator).row(
            "held-out seeds, no update or parameter norm",
            "no",
            blind,
            test,
            ask.answers(bare_found, weights(plain, fits)),
        )
    )
    for domain in sorted(frame["domain"].unique()):
        inside = (frame["domain"] == domain).to_numpy()
        if not (fits & ~inside).any() or not (seen & inside).any():
            continue
        for name, x in (("no", plain), ("yes", with_lr)):
            fitted = ask.answers(x, weights(x, fits & ~inside))
            table.append(ask.row(f"held-out domain {domain}", name, seen & inside, test & inside, fitted))
        bare_weights = ask.fit(plain, fits & ~inside, mean=0.0)
        fitted = ask.answers(plain, bare_weights)
        table.append(
            ask.row(f"held-out domain {domain}, unfitted evidence off", "no", seen & inside, test & inside, fitted)
        )
    if fits.any():
        table.append(ask.row("baseline: channel presence", "-", seen, test, ask.presence(fits)))
        for domain in sorted(frame["domain"].unique()):
            inside = (frame["domain"] == domain).to_numpy()
            if (fits & ~inside).any() and (seen & inside).any():
                answers = ask.presence(fits & ~inside)
                table.append(
                    ask.row(f"baseline: channel presence, {domain}", "-", seen & inside, test & inside, answers)
                )
        table.append(ask.row("baseline: most common axis", "-", seen, test, ask.common(fits)))
    accuracy = pd.DataFrame(table)
    reliability = _reliability(main[0][seen], main[1][seen], frame.loc[seen, "axis"].to_numpy(), alpha)
    first = accuracy.iloc[0]
    claim = (
        f"Of {int(test.sum())} labelled events {int(seen.sum())} were detected; on those, without the learning rate, "
        f"the axis was named with balanced accuracy {first['balanced accuracy']:.2f} "
        f"({1 - alpha:.0%} interval {first['low']:.2f} to {first['high']:.2f}, bootstrap over "
        f"{frame.loc[seen, 'seed'].nunique()} seeds; chance 0.25), 'cannot tell' counted as wrong "
        f"(coverage {first['coverage']:.2f}). " + reliability.summary() + " Attribution from channels is advisory: it "
        "names the axis whose marks a log carries, not a cause."
    )
    tables = {
        "accuracy": accuracy,
        "confusion": _confusion(frame.loc[seen, "axis"].to_numpy(), main[0][seen]),
        "kinds": _kinds(frame[seen], main[0][seen]),
        "detection": _detection(frame, known),
        "reliability": reliability.to_frame(),
        "weights": pd.DataFrame({"evidence": [e.name for e in EVIDENCE], "weight": weights(with_lr, fits)}),
    }
    return Study(
        "axis",
        tables,
        {"reliability": reliability},
        claim,
        skipped,
        provenance=make_provenance(
            "study axis", {"alpha": alpha, "within": WITHIN}, found, seed=rng if isinstance(rng, int) else 0
        ),
    )


Answers = tuple[NDArray[Any], Floats]


@dataclass(frozen=True, eq=False)
class _Asker:
    """Answers of a fitted rule, and one row of the accuracy table for each question."""

    frame: pd.DataFrame
    alpha: float
    rng: np.random.Generator
    least: float = 0.4

    def fit(self, x: Floats, rows: NDArray[np.bool_], mean: float = PRIOR_MEAN) -> Floats:
        chosen = self.frame[rows]
        cells = list(zip(chosen["domain"], chosen["perturbation"], strict=True))
        axes = chosen["axis"].tolist()
        return fit_weights(x[rows], [AXES.index(a) for a in axes], balance(axes, cells), mean=mean)

    def answers(self, x: Floats, weights: Floats) -> Answers:
        p = probabilities(x, weights)
        sure = p.max(axis=1)
        names = np.array(AXES, dtype=object)[p.argmax(axis=1)]
        names[(sure < self.least) | np.isnan(x).all(axis=1)] = CANNOT
        return names, sure

    def presence(self, fits: NDArray[np.bool_]) -> Answers:
        """Logistic regression on which roles are logged, axes weighted alike."""
        from sklearn.linear_model import LogisticRegression

        roles = sorted(set().union(*self.frame["channels"]))
        x = np.array([[role in have for role in roles] for have in self.frame["channels"]], dtype=float)
        model = LogisticRegression(class_weight="balanced", max_iter=1000)
        model.fit(x[fits], self.frame.loc[fits, "axis"].to_numpy(dtype=str))
        p = model.predict_proba(x)
        return model.classes_.astype(object)[p.argmax(axis=1)], p.max(axis=1)

    def common(self, fits: NDArray[np.bool_]) -> Answers:
        axis = self.frame.loc[fits, "axis"].value_counts().idxmax()
        n = len(self.frame)
        return np.full(n, axis, dtype=object), np.full(n, np.nan)

    def row(self, question: str, lr: str, seen: NDArray[np.bool_], events: NDArray[np.bool_], got: Answers) -> Any:
        truth, said = self.frame.loc[seen, "axis"].to_numpy(), got[0][seen]
        seeds = self.frame.loc[seen, "seed"].to_numpy()
        draws = [_balanced(truth[i], said[i]) for i in cluster_draws(seeds, _DRAWS, self.rng)] if seen.any() else []
        low, high = percentile_interval(draws, 1 - self.alpha)
        recalls = {a: float(np.mean(said[truth == a] == a)) if (truth == a).any() else math.nan for a in AXES}
        return {
            "question": question,
            "lr": lr,
            "events": int(events.sum()),
            "detected": int(seen.sum()),
            "axes": len(set(truth)),
            "balanced accuracy": _balanced(truth, said),
            "low": low,
            "high": high,
            "coverage": float(np.mean(said != CANNOT)) if said.size else math.nan,
            "right where answered": float(np.mean((said == truth)[said != CANNOT]))
            if any(said != CANNOT)
            else math.nan,
            **recalls,
        }


def _balanced(truth: NDArray[Any], said: NDArray[Any]) -> float:
    """Mean recall of the axes that occur."""
    right = truth == said
    recalls = [float(right[truth == a].mean()) for a in AXES if (truth == a).any()]
    return float(np.mean(recalls)) if recalls else math.nan


def _confusion(truth: NDArray[Any], said: NDArray[Any]) -> pd.DataFrame:
    import pandas as pd

    rows = [{"declared": a, **{b: int(np.sum((truth == a) & (said == b))) for b in (*AXES, CANNOT)}} for a in AXES]
    return pd.DataFrame(rows)


def _kinds(frame: pd.DataFrame, said: NDArray[Any]) -> pd.DataFrame:
    """How often each kind of event was given each axis."""
    import pandas as pd

    keys = ["domain", "axis", "perturbation", "ramp"]
    parts = []
    for key, rows in frame.assign(said=said).groupby(keys, sort=True):
        counts = {b: int((rows["said"] == b).sum()) for b in (*AXES, CANNOT)}
        parts.append(
            {**dict(zip(keys, key, strict=True)), "n": len(rows), **{f"said {b}": n for b, n in counts.items()}}
        )
    return pd.DataFrame(parts)


def _detection(frame: pd.DataFrame, known: NDArray[np.bool_]) -> pd.DataFrame:
    """Detected events and departures before them by domain, and departures of controls, with the split."""
    import pandas as pd

    rows = []
    for key, part in frame.assign(known=known).groupby(["domain", "split"], sort=True):
        domain, split = key if isinstance(key, tuple) else (key, "")
        events, controls = part[part["known"]], part[~part["known"] & part["axis"].isna()]
        alarms = int(controls["departure"].notna().sum())
        low, high = proportion_interval(alarms, len(controls))
        rows.append(
            {
                "domain": domain,
                "split": split,
                "events": len(events),
                "detected": int(events["detected"].sum()),
                "departed before": int(events["early"].sum()),
                "controls": len(controls),
                "controls that depart": alarms,
                "low": low,
                "high": high,
            }
        )
    return pd.DataFrame(rows)


def _reliability(said: NDArray[Any], sure: Floats, truth: NDArray[Any], alpha: float) -> Reliability:
    answered = said != CANNOT
    right, sure = (said == truth)[answered], sure[answered]
    where = np.clip(np.digitize(sure, _BINS) - 1, 0, len(_BINS) - 2)
    rows: list[tuple[float, float, float, float, int]] = []
    for b in range(len(_BINS) - 1):
        inside = where == b
        n = int(inside.sum())
        if n:
            hits = int(right[inside].sum())
            rows.append((float(sure[inside].mean()), hits / n, *proportion_interval(hits, n, 1 - alpha), n))
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [()] * 5
    confidence, share, low, high = (np.array(c, dtype=np.float64) for c in columns[:4])
    return Reliability(confidence, share, low, high, np.array(columns[4], dtype=np.int64))
