"""Study of the instability manifold: do collapsing runs leave the stable set, in their own domain and in a new one?

Every domain's manifold is fitted on its healthy calibration runs (each condition standardised on its own baseline), its
boundary at `alpha` per run; where too few healthy runs are there to certify `alpha`, at the smallest rate that they
certify, which the table says. Judged on held-out runs alone, by the first crossing: before the injection in any run,
or anywhere in a control, it is a false alarm.

Beside it, at the same rate and by the same rules: the raw Mahalanobis distance (all components) and the best single
channel, chosen by the share of calibration collapses it finds (in a domain left out: on the others).

Leave one domain out: shape of the stable set, and best channel, from the other domains; the domain that is left out
gives its own healthy calibration runs as the baseline that rows are standardised on. Twice: with the boundary of the
other domains carried over, and with the boundary from the healthy runs of the new one, which fixes its rate.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trajscope._core.surrogates import as_generator
from trajscope.detect.manifold import COMMON, InstabilityManifold, subspace_similarity
from trajscope.errors import NotEnoughData
from trajscope.history.trajectory import Trajectory
from trajscope.inference._manifold_cases import Case, cases_of, crossings, fit_on, level_for, tally
from trajscope.inference.studies.base import GetRun, Study
from trajscope.result import Result, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ManifoldFigure", "study"]

MANIFOLD, RAW = "manifold", "raw Mahalanobis"
OWN, CARRIED, OWN_RATE = "own domain", "others, boundary carried over", "others, boundary from its healthy runs"
_DRAWN = 6


@dataclass(frozen=True, eq=False)
class ManifoldFigure(Result):
    """A fitted manifold with runs to draw on it.

    Attributes
    ----------
    manifold : InstabilityManifold
    runs : list of Trajectory
    groups : list of str
    unstable : list of bool
    injections : list of float
    title : str
    """

    plot_name = "manifold"

    manifold: InstabilityManifold
    runs: list[Trajectory]
    groups: list[str]
    unstable: list[bool]
    injections: list[float]
    title: str

    def to_frame(self) -> pd.DataFrame:
        """Signed distance of every run drawn, in long form."""
        import pandas as pd

        distances = self.manifold.signed_distance(self.runs, group=self.groups)
        frames = [
            pd.DataFrame({"run": r.run, "step": r.steps, "distance": d})
            for r, d in zip(self.runs, distances, strict=True)
        ]
        return pd.concat(frames, ignore_index=True)

    def to_dict(self) -> dict[str, Any]:
        """What is drawn, in a few words."""
        return {"title": self.title, "runs": [r.run for r in self.runs], "boundary": self.manifold.boundary_}

    def summary(self) -> str:
        """The manifold's own."""
        return self.manifold.summary()


def study(
    runs: GetRun, labels: pd.DataFrame, *, alpha: float = 0.05, rng: int | np.random.Generator | None = None
) -> Study:
    """Crossings on held-out runs, in the domain and with it left out, and similarity of collapse subspaces.

    Parameters
    ----------
    runs : callable
        Run id -> Run.
    labels : DataFrame
        Columns run, outcome, onset_step, confirmed_step, injection_step; optionally split, seed, domain, stratum,
        condition and what else sets conditions apart (`trajscope.inference._manifold_cases.cases_of`).
    alpha : float, default 0.05
        False-alarm rate per run.
    rng : int, Generator or None, default None (seed 0)

    Raises
    ------
    NotEnoughData
        No domain with a healthy calibration run.
    """
    import pandas as pd

    seed = int(as_generator(rng).integers(2**31))  # one for all fits: what is said of a domain depends on no other
    cases, skipped = cases_of(runs, labels)
    domains = {d: [c for c in cases if c.domain == d] for d in dict.fromkeys(c.domain for c in cases)}
    if not domains:
        raise NotEnoughData(
            "no labelled run belongs to an audit: that needs conditions with an injected event and with a healthy run"
            " that is not held out"
        )
    records: list[dict[str, Any]] = []
    table: list[dict[str, Any]] = []

    def judge(
        method: str, trained: str, domain: str, manifold: InstabilityManifold, columns: Sequence[str] = COMMON
    ) -> None:
        held_out = [c for c in domains[domain] if c.held_out]
        found = crossings(manifold, held_out, columns)
        records.extend({"method": method, "trained": trained, **r} for r in found)
        n = manifold.maxima_.size
        head = {"domain": domain, "trained": trained, "method": method, "level": manifold.alpha, "n_calibration": n}
        size = {"level_upper": manifold.upper_rate_, "boundary": manifold.threshold_}
        table.append({**head, **size, **tally(found)})

    fitted: dict[str, InstabilityManifold] = {}
    on_calibration: dict[str, dict[str, tuple[float, float]]] = {}
    for domain, members in domains.items():
        level = level_for(alpha, sum(c.kind == "control" and not c.held_out for c in members))
        fitted[domain] = fit_on(members, level, "auto", COMMON, seed)
        judge(MANIFOLD, OWN, domain, fitted[domain])
        judge(RAW, OWN, domain, fit_on(members, level, "all", COMMON, seed))
        tuning = [c for c in members if not c.held_out and c.kind == "collapsed"]
        single = {name: fit_on(members, level, "all", [name], seed) for name in COMMON if _logged(members, name)}
        on_calibration[domain] = {name: _worth(m, tuning, name) for name, m in single.items()}
        if tuning:
            best = max(single, key=lambda name: on_calibration[domain][name])
            judge(f"best channel ({best})", OWN, domain, single[best], [best])
    if len(domains) > 1:
        for domain, members in domains.items():
            others = [c for c in cases if c.domain != domain]
            votes = {
                name: tuple(np.mean([on_calibration[d][name] for d in domains if d != domain], axis=0))
                for name in COMMON
                if all(name in on_calibration[d] for d in domains)
            }
            best = max(votes, key=lambda name: votes[name])
            for method, k, columns in (
                (MANIFOLD, "auto", list(COMMON)),
                (RAW, "all", list(COMMON)),
                (f"best channel ({best})", "all", [best]),
            ):
                n = sum(c.kind == "control" and not c.held_out for c in others)
                base = fit_on(others, level_for(alpha, n), k, columns, seed)
                own = [c for c in members if c.kind == "control" and not c.held_out]
                rows, groups = [c.rows.select(columns) for c in own], [c.condition for c in own]
                judge(method, CARRIED, domain, base.adapt(rows, group=groups), columns)
                base = base.set_params(alpha=level_for(alpha, len(own)))
                judge(method, OWN_RATE, domain, base.adapt(rows, group=groups, recalibrate=True), columns)
    main = pd.DataFrame(table)
    similar = _similarities(fitted, seed)
    channels = pd.DataFrame(
        [
            {"domain": d, "channel": c, "share": share, "median_lead_rows": lead}
            for d, by_name in on_calibration.items()
            for c, (share, lead) in by_name.items()
        ]
    )
    return Study(
        "manifold",
        {
            "manifold": main,
            "similarity": similar,
            "by_axis": _by_axis(records),
            "channels_on_calibration": channels,
            "crossings": pd.DataFrame(records),
        },
        {f"manifold_{d}": _figure(d, fitted[d], members) for d, members in domains.items()},
        _claim(main, similar, alpha),
        skipped,
        provenance=make_provenance(
            "manifold", {"alpha": alpha}, *(c.rows.values for c in cases), seed=rng if isinstance(rng, int) else None
        ),
    )


def _logged(members: Sequence[Case], name: str) -> bool:
    """Whether a channel moves in the healthy calibration runs of a domain, in every condition."""
    column = COMMON.index(name)
    own = [c for c in members if c.kind == "control" and not c.held_out]
    return all(c.rows.mask[:, column].any() for c in own)


def _worth(manifold: InstabilityManifold, tuning: Sequence[Case], name: str) -> tuple[float, float]:
    """Share of the calibration collapses found, then median lead, by one channel."""
    found = tally(crossings(manifold, tuning, [name]))
    return float(found["share"]), float(found["median_lead_rows"])


def _by_axis(records: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Held-out collapses found in their own domain, by axis of what was done to the run."""
    import pandas as pd

    own = [r for r in records if r["method"] == MANIFOLD and r["trained"] == OWN and r["kind"] == "collapsed"]
    keys = sorted({(r["domain"], r["axis"]) for r in own})
    rows = []
    for domain, axis in keys:
        found = tally([r for r in own if (r["domain"], r["axis"]) == (domain, axis)])
        names = ("collapsed", "found", "before_onset", "by_confirmation", "median_lead_rows", "median_delay_rows")
        rows.append({"domain": domain, "axis": axis, **{name: found[name] for name in names}})
    return pd.DataFrame(rows)


def _similarities(fitted: dict[str, InstabilityManifold], seed: int) -> pd.DataFrame:
    """Pairs of domains: similarity of collapse subspaces with both nulls."""
    import pandas as pd

    rows = []
    for a, b in itertools.combinations(fitted, 2):
        if fitted[a].collapse_subspace_ is None or fitted[b].collapse_subspace_ is None:
            continue
        s = subspace_similarity(fitted[a], fitted[b], rng=seed)
        rows.append(
            {
                "a": a, "b": b, "similarity": s.value,
                "random_mean": s.random_mean, "random_95": s.random_95, "random_p": s.random_p,
                "healthy_mean": s.healthy_mean, "healthy_95": s.healthy_95, "healthy_p": s.healthy_p,
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _figure(domain: str, manifold: InstabilityManifold, members: Sequence[Case]) -> ManifoldFigure:
    """A few held-out collapses, spread over the perturbations, and as many controls."""
    chosen: list[Case] = []
    for kind in ("control", "collapsed"):
        pool = [c for c in members if c.held_out and c.kind == kind]
        at = np.linspace(0, len(pool) - 1, min(_DRAWN, len(pool))).astype(int)
        chosen += [pool[i] for i in dict.fromkeys(at.tolist())]
    return ManifoldFigure(
        manifold,
        [c.rows for c in chosen],
        [c.condition for c in chosen],
        [c.kind == "collapsed" for c in chosen],
        [c.injection for c in chosen],
        domain,
    )


def _claim(main: pd.DataFrame, similar: pd.DataFrame, alpha: float) -> str:
    """What may be said."""
    parts = []
    for r in main[(main["method"] == MANIFOLD) & (main["trained"] == OWN)].to_dict("records"):
        rate = (
            f"{r['level']:.0%}"
            if r["level"] == alpha
            else f"{r['level']:.1%} (as low as {r['n_calibration']} runs certify)"
        )
        parts.append(
            f"{r['domain']}: {r['found']} of {r['collapsed']} held-out collapses crossed at or after the injection"
            f" ({r['share']:.0%}, 95 % interval {r['share_low']:.0%} to {r['share_high']:.0%}) at a nominal {rate}"
            f" of false alarms per run; found were {r['false_alarms']} in {r['runs']} runs ({r['false_rate']:.1%},"
            f" {r['false_low']:.1%} to {r['false_high']:.1%}), {r['control_alarms']} in {r['controls']} controls."
            f" {r['by_confirmation']:.0%} had crossed when the collapse was confirmed, {r['before_onset']:.0%} before"
            f" its onset; median lead {r['median_lead_rows']:.0f} rows, {r['median_delay_rows']:.0f} rows after the"
            " injection (confirming takes 2)."
        )
    rivals = main[(main["method"] != MANIFOLD) & (main["trained"] == OWN)].to_dict("records")
    said = "; ".join(f"{r['domain']}, {r['method']}: {r['share']:.0%}, {r['false_rate']:.1%} false" for r in rivals)
    parts.append(f"Rivals at the same rate: {said}.")
    for trained, words in ((CARRIED, "boundary carried over"), (OWN_RATE, "rate fixed on its own healthy runs")):
        rows = main[(main["method"] == MANIFOLD) & (main["trained"] == trained)].to_dict("records")
        if rows:
            said = "; ".join(f"{r['domain']} {r['share']:.0%} found, {r['false_rate']:.1%} false" for r in rows)
            parts.append(f"Left out of the fit, {words}: {said}.")
    for r in similar.to_dict("records"):
        if r["random_p"] > 0.05:
            words = "not more alike than random subspaces"
        elif r["healthy_p"] > 0.05:
            words = "more alike than random subspaces, not than healthy-window ones"
        else:
            words = "more alike than random and healthy-window subspaces"
        parts.append(
            f"Collapse subspaces of {r['a']} and {r['b']}: mean squared cosine {r['similarity']:.2f}, random"
            f" {r['random_mean']:.2f} (p = {r['random_p']:.3g}), healthy windows {r['healthy_mean']:.2f}"
            f" (p = {r['healthy_p']:.3g}): {words}."
        )
    parts.append(
        "Outside the stable set means unlike healthy runs of the same condition; runs that were perturbed and did not"
        " collapse cross too, and after an injection this table does not count them as false."
    )
    return " ".join(parts)
