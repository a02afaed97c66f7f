"""Study of lead times: what warned of the failures, how early, at a false-alarm rate that is known.

For each domain, and for all pooled; failures that were injected and failures that grew from within apart; at the rate
`alpha` and at twice that. Truth: where the labels carry ``harmed`` and ``first_departure`` (from a twin), these; else
``outcome`` and ``onset_step``. Runs that were perturbed and not harmed, or failed unperturbed, are neither events nor
healthy, and are counted. Where labels carry ``purpose``, runs are compared with healthy ones of the same (of their
twin's): a grid over learning rates is no sibling of a control.

Beside the table of indicators:

* **meta-state against single channel**: the best of each, chosen on calibration runs, paired over the test events;
* **coordination**: do the channels move together before an onset? Mean absolute correlation over pairs, the share of
  variance along the first direction and the drift in the rows before the onset, against shifting each channel
  circularly and independently over the rows before. Channels of one run are never independent, so the same is asked
  of a healthy run of the same condition (of the same seed, where there is one) at the same step, and the difference
  is what counts.

Pooled over domains, lead is counted in strides: a step of reinforcement learning is not a step of a classifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.conformal import needed_runs
from trajscope._core.resample import cluster_means, percentile_interval
from trajscope._core.surrogates import as_generator, fill_gaps
from trajscope.errors import NotEnoughData, TrajscopeError
from trajscope.history import Run
from trajscope.history.trajectory import align
from trajscope.inference._lead_cases import CALIBRATION
from trajscope.inference._lead_scores import META, ORACLES, RULES, add_joint, run_scores, single_channels, state_scores
from trajscope.inference.lead_time import LeadTime, lead_time
from trajscope.inference.studies.base import GetRun, Study
from trajscope.result import make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["coordination", "study"]

Floats = NDArray[np.float64]

#: Rows before an onset in which the channels are asked whether they move together.
BEFORE = 40
MEASURES = ("correlation", "first", "drift")
#: Roles whose movements are compared: dynamics, no performance and no schedule.
MOVING = (
    "loss", "grad_norm", "update_norm", "param_norm", "grad_cos", "policy_loss", "value_loss", "entropy", "kl"
)  # fmt: skip
_HEALTHY = ("none", "healthy", "control")


def study(
    runs: GetRun, labels: pd.DataFrame, *, alpha: float = 0.05, rng: int | np.random.Generator | None = None
) -> Study:
    """Run the study; see the module.

    Parameters
    ----------
    runs : callable
        Run id -> Run.
    labels : DataFrame
        As `trajscope.history.labels.read_labels` gives it; ``split`` (or halves drawn at random), and where there are
        ``domain``, ``ramp``, ``harmed``, ``first_departure``, these are used.
    alpha : float
        False alarms a run.

    Raises
    ------
    NotEnoughData
        If no stratum has enough healthy calibration runs for twice `alpha`, or none has an event.
    """
    import pandas as pd

    generator = as_generator(rng)
    cases, skipped = _cases(labels, generator)
    enough = _strata(cases, needed_runs(min(0.5, 2 * alpha)), skipped)
    cases = cases[cases["stratum"].isin(enough)].reset_index(drop=True)
    if not cases["onset_step"].notna().any():
        raise NotEnoughData("no run of a stratum with enough healthy calibration runs has an event")
    scores: dict[str, pd.DataFrame] = {}
    notes: list[dict[str, Any]] = []
    together: list[dict[str, Any]] = []
    for stratum, part in cases.groupby("stratum", sort=True):
        _score(str(stratum), part, runs, scores, notes, together, skipped, generator)
    rows, paired = [], []
    figures: dict[str, LeadTime] = {}
    domains = sorted(cases["domain"].unique())
    for domain in [*domains, *(["all"] if len(domains) > 1 else [])]:
        inside = cases if domain == "all" else cases[cases["domain"] == domain]
        for origin in ("injected", "from within"):
            chosen = inside[(inside["origin"] == origin) | inside["onset_step"].isna()]
            if not chosen["onset_step"].notna().any():
                continue
            for level in (alpha, min(0.5, 2 * alpha)):
                found = _lead(scores, chosen, level, generator, in_strides=domain == "all")
                rows.append(found.table.reset_index().assign(domain=domain, origin=origin, alpha=level))
                paired.extend(_paired(found, domain, origin, level, generator))
                if level == alpha:
                    figures[f"lead_{domain}_{origin.replace(' ', '_')}"] = found
    table = pd.concat(rows, ignore_index=True)
    first = ["domain", "origin", "alpha", "indicator"]
    table = table[[*first, *(c for c in table if c not in first)]]
    versus = pd.DataFrame(paired)
    joint = pd.DataFrame(together)
    tables = {
        "lead_time": table,
        "meta_against_single": versus,
        "coordination": _summarise(joint, generator),
        "not_computed": pd.DataFrame(notes),
    }
    return Study(
        "lead-time",
        {k: v for k, v in tables.items() if len(v) or k == "lead_time"},
        figures,
        _claim(table, versus, tables["coordination"], alpha, len(skipped)),
        skipped,
        provenance=make_provenance("study lead-time", {"alpha": alpha}, seed=rng if isinstance(rng, int) else None),
    )


def _cases(labels: pd.DataFrame, rng: np.random.Generator) -> tuple[pd.DataFrame, dict[str, str]]:
    """Labels as events and healthy runs, with domain and origin."""
    import pandas as pd

    rows, skipped = [], {}
    purposes = dict(zip(labels["run"], labels["purpose"], strict=True)) if "purpose" in labels else {}
    for record in labels.to_dict("records"):
        row = {str(k): (None if v is None or v is pd.NA or v != v else v) for k, v in record.items()}
        run = str(row["run"])
        touched = row.get("axis") or row.get("perturbation")
        if "harmed" in row and "first_departure" in row:
            event, onset = bool(row.get("harmed")), row.get("first_departure")
            healthy = not touched and row.get("outcome") in (None, *_HEALTHY)
        else:
            event = row.get("onset_step") is not None and row.get("outcome") in (
                "irrecoverable",
                "lingering",
                "transient",
                "collapse",
                None,
            )
            onset = row.get("onset_step")
            healthy = not touched and row.get("outcome") in (None, *_HEALTHY)
        if not event and not healthy:
            skipped[run] = "neither an event nor a healthy run"
            continue
        if event and onset is None:
            skipped[run] = "an event without a date"
            continue
        # a run counts beside the runs of its own settings: those of its twin, where it has one
        settings = purposes.get(row.get("twin") or run)
        stratum = "/".join(str(v) for v in (row.get("stratum"), settings) if v)
        rows.append(
            {
                "run": run,
                "stratum": stratum,
                "domain": str(row.get("domain") or stratum.split("/")[0] or "runs"),
                "seed": row.get("seed"),
                "split": row.get("split"),
                "outcome": "collapse" if event else "none",
                "onset_step": float(onset) if event and onset is not None else None,
                "injection_step": row.get("injection_step") if event else None,
                "origin": ("from within" if row.get("ramp") else "injected") if event else "none",
            }
        )
    table = pd.DataFrame(rows)
    if not len(table):
        raise NotEnoughData("the labels hold neither an event nor a healthy run")
    if table["split"].isna().all():
        half = rng.permutation(len(table)) % 2
        table["split"] = np.where(half, CALIBRATION[0], "heldout")
    table["onset_step"] = pd.to_numeric(table["onset_step"])
    table["injection_step"] = pd.to_numeric(table["injection_step"])
    return table, skipped


def _strata(cases: pd.DataFrame, needed: int, skipped: dict[str, str]) -> list[str]:
    """Strata with an event and enough healthy calibration runs; the runs of the others are named."""
    quiet = cases[(cases["split"] == CALIBRATION[0]) & cases["onset_step"].isna()]
    counts = quiet.groupby("stratum").size()
    eventful = set(cases.loc[cases["onset_step"].notna(), "stratum"])
    enough = [str(s) for s, n in counts.items() if n >= needed and s in eventful]
    for _, row in cases[~cases["stratum"].isin(enough)].iterrows():
        n = int(counts.get(row["stratum"], 0))
        skipped[row["run"]] = (
            f"{n} healthy calibration runs of its settings; {needed} are needed"
            if n < needed
            else "no run of its settings has an event"
        )
    return enough


def _score(
    stratum: str,
    part: pd.DataFrame,
    runs: GetRun,
    scores: dict[str, pd.DataFrame],
    notes: list[dict[str, Any]],
    together: list[dict[str, Any]],
    skipped: dict[str, str],
    rng: np.random.Generator,
) -> None:
    """Scores of one stratum, and how its channels moved before each onset."""
    read: dict[str, Run] = {}
    for row in part.to_dict("records"):
        try:
            run = runs(row["run"])
            _ = run.data
        except TrajscopeError as problem:
            skipped[row["run"]] = str(problem)
            continue
        read[row["run"]] = run
        injection = row["injection_step"]
        scores[row["run"]] = run_scores(
            run, float(injection) if injection == injection and injection is not None else np.inf
        )
    known = part[part["run"].isin(read)]
    healthy = known.loc[(known["split"] == CALIBRATION[0]) & known["onset_step"].isna(), "run"].tolist()
    seeds = {r["run"]: str(r["seed"]) for r in known.to_dict("records")}
    quiet = known.loc[known["onset_step"].isna(), "run"].tolist()
    for row in known[known["onset_step"].notna()].to_dict("records"):
        found = coordination(read[row["run"]], row["onset_step"], rng=rng)
        other = next((run for run in quiet if seeds[run] == seeds[row["run"]]), quiet[0])
        beside = coordination(read[other], row["onset_step"], rng=rng)
        if found and beside:
            entry = {"domain": row["domain"], "origin": row["origin"], "run": row["run"], "cluster": seeds[row["run"]]}
            together.append({**entry, **found, **{f"healthy_{k}": v for k, v in beside.items()}})
    own = {name: scores[name] for name in read}
    add_joint(own, healthy)
    states, missing = state_scores(read, seeds, healthy, int(rng.integers(2**31)))
    for name, table in states.items():
        scores[name] = own[name].join(table, how="outer")
    notes += [{"stratum": stratum, "score": k, "reason": v} for k, v in missing.items()]


def _lead(
    scores: Mapping[str, pd.DataFrame],
    cases: pd.DataFrame,
    alpha: float,
    rng: np.random.Generator,
    *,
    in_strides: bool,
) -> LeadTime:
    used = {run: scores[run] for run in cases["run"] if run in scores}
    labels = cases[cases["run"].isin(used)].drop(columns=["domain", "origin"])
    if in_strides:
        strides = {run: float(np.median(np.diff(table.index.to_numpy()))) for run, table in used.items()}
        used = {run: table.set_axis(table.index / strides[run], axis=0) for run, table in used.items()}
        own = labels["run"].map(strides)
        labels = labels.assign(**{c: labels[c] / own for c in ("onset_step", "injection_step")})
    # an injected failure is watched from its injection on; one that grew from within has no moment before which an
    # alarm would be false, other than the start of its ramp
    return lead_time(used, labels, alpha=alpha, horizon=float("inf"), rng=int(rng.integers(2**31)))


def _paired(found: LeadTime, domain: str, origin: str, alpha: float, rng: np.random.Generator) -> list[dict[str, Any]]:
    """The best meta-state against the best single channel, each chosen on calibration runs."""
    certified = [str(n) for n in found.table.index[found.table["verdict"] != "not certifiable"]]
    meta = [n for n in certified if n in META]
    single = single_channels(certified)
    rules = [n for n in certified if n in RULES]
    out = []
    pairs = (
        ("meta-state", meta, "single channel", single),
        ("meta-state", meta, "rule of practice", rules),
        ("joint", ["joint"], "single channel", single),
        ("joint", ["joint"], "rule of practice", rules),
    )
    for one, first, two, second in pairs:
        try:
            a, b = found.best([n for n in first if n in certified]), found.best(second)
            versus = found.compare(a, b, rng=int(rng.integers(2**31)))
        except (NotEnoughData, KeyError, IndexError):
            continue
        out.append(
            {
                "domain": domain,
                "origin": origin,
                "alpha": alpha,
                "comparison": f"{one} - {two}",
                **{str(k): v for k, v in versus.to_frame().iloc[0].to_dict().items()},
            }
        )
    return out


def coordination(run: Run, onset: float, *, n: int = 199, rng: Any = None) -> dict[str, float]:
    """Whether the channels of a run move together in the rows before an onset.

    One logged channel a role, none computed from another. ``correlation`` is the mean absolute correlation of their
    changes over pairs, ``first`` the share of the first direction, ``drift`` the mean squared correlation of a channel
    with time. Each comes with its expectation and its p-value under independent circular shifts over the last
    6 `BEFORE` rows. Empty where fewer than three channels have three times `BEFORE` rows.
    """
    generator = as_generator(rng)
    named = [c[0].name for role in MOVING if (c := [c for c in run.by_role(role) if len(c)])]
    if len(named) < 3:
        return {}
    t = align(run, named)
    past = t.steps < onset
    values = np.where(t.mask, t.values, np.nan)[past]
    keep = [j for j in range(values.shape[1]) if np.isfinite(values[:, j]).mean() > 0.9 and np.nanstd(values[:, j]) > 0]
    if len(keep) < 3 or len(values) < 3 * BEFORE:
        return {}
    x = values[:, keep][-6 * BEFORE :]
    size = np.nanmedian(np.abs(np.where(np.isfinite(x), x, np.nan)), axis=0).clip(min=1e-12)
    level = np.asarray(fill_gaps(np.arcsinh(x / size)))[1:]
    moves = np.diff(np.asarray(fill_gaps(np.arcsinh(x / size))), axis=0)
    time = np.arange(BEFORE) - (BEFORE - 1) / 2

    def measure(change: Floats, held: Floats) -> tuple[float, float, float]:
        r = np.corrcoef(change[-BEFORE:].T)
        r = np.where(np.isfinite(r), r, 0.0)
        np.fill_diagonal(r, 1.0)
        window = held[-BEFORE:] - held[-BEFORE:].mean(axis=0)
        trend = (time @ window) ** 2 / (time @ time * np.maximum(np.sum(window**2, axis=0), 1e-300))
        pairs = np.abs(r[np.triu_indices(len(r), 1)])
        return float(pairs.mean()), float(np.linalg.eigvalsh(r)[-1] / len(r)), float(trend.mean())

    seen = measure(moves, level)
    null = np.array([measure(*_shifted(moves, level, generator)) for _ in range(n)])
    p = (1 + np.sum(null >= np.array(seen), axis=0)) / (n + 1)
    centre = null.mean(axis=0)
    out: dict[str, float] = {}
    for j, name in enumerate(MEASURES):
        out |= {name: seen[j], f"expected_{name}": float(centre[j]), f"p_{name}": float(p[j])}
    return out


def _shifted(moves: Floats, level: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Each column shifted circularly by its own number of rows."""
    shifts = rng.integers(0, len(moves), size=(1, moves.shape[1]))
    rows = (np.arange(len(moves))[:, None] - shifts) % len(moves)
    return np.take_along_axis(moves, rows, axis=0), np.take_along_axis(level, rows, axis=0)


def _summarise(table: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """How many events show coordination (5 % would by chance), how many healthy runs, and by how much they differ."""
    import pandas as pd

    rows = []
    if len(table):
        for (domain, origin), part in table.groupby(["domain", "origin"]):
            for name in MEASURES:
                hits, n = int((part[f"p_{name}"] <= 0.05).sum()), len(part)
                difference = (part[name] - part[f"healthy_{name}"]).to_numpy(dtype=np.float64)
                low, high = percentile_interval(cluster_means(difference, part["cluster"].to_numpy(), 4000, rng))
                rows.append(
                    {
                        "domain": domain,
                        "origin": origin,
                        "measure": name,
                        "n": n,
                        "significant": hits,
                        "healthy_significant": int((part[f"healthy_p_{name}"] <= 0.05).sum()),
                        "mean": float(part[name].mean()),
                        "healthy_mean": float(part[f"healthy_{name}"].mean()),
                        "difference": float(difference.mean()),
                        "low": low,
                        "high": high,
                    }
                )
    return pd.DataFrame(rows)


def _claim(table: pd.DataFrame, versus: pd.DataFrame, together: pd.DataFrame, alpha: float, skipped: int) -> str:
    """One paragraph from the tables alone."""
    sentences = []
    real = table[(table["alpha"] == alpha) & ~table["indicator"].isin(ORACLES)]
    for (domain, origin), part in real.groupby(["domain", "origin"], sort=False):
        known = part[part["verdict"] != "not certifiable"]
        where = f"{domain}, failures {origin}"
        if known.empty:
            sentences.append(f"{where}: cannot tell, no stratum certifies a rate of {alpha:g}.")
            continue
        best = known.sort_values(["sensitivity", "mean_lead"], ascending=False, kind="stable").iloc[0]
        unit = "strides" if domain == "all" else "steps"
        median = "not reached" if np.isnan(best["median_lead"]) else f"{best['median_lead']:.4g} {unit}"
        sentences.append(
            f"{where}: {best['indicator']} warned of {best['timely']:.0f} of {best['n_events']:.0f} in time "
            f"[{best['sensitivity_low']:.2f}, {best['sensitivity_high']:.2f}], median lead {median}, with "
            f"{best['false_alarms']:.0f} false alarms in {best['n_healthy']:.0f} healthy runs (chance "
            f"{best['chance']:.2f}; {'' if best['verdict'] == 'warns' else 'not '}better than chance after correction)."
        )
    words = {"leads": "leads", "trails": "trails", "cannot tell": "cannot be told from"}
    for row in versus.to_dict("records"):
        if row["alpha"] != alpha or row["comparison"] != "meta-state - single channel":
            continue
        unit = "strides" if row["domain"] == "all" else "steps"
        interval = f"{row['lead']:+.3g} {unit} [{row['lead_low']:.3g}, {row['lead_high']:.3g}]"
        sentences.append(
            f"{row['domain']}, {row['origin']}: the best meta-state ({row['first']}) {words[str(row['verdict'])]} the "
            f"best single channel ({row['second']}), restricted mean lead {interval}."
        )
    for row in together.to_dict("records"):
        if row["measure"] != "correlation":
            continue
        verdict = "more" if row["low"] > 0 else "less" if row["high"] < 0 else "cannot tell whether more or less"
        sentences.append(
            f"{row['domain']}, {row['origin']}: channels move together in the rows before {row['significant']} of "
            f"{row['n']} onsets and in {row['healthy_significant']} healthy runs at the same steps; mean correlation "
            f"{verdict} than there: {row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]."
        )
    sentences.append(
        f"Thresholds hold for runs like the healthy calibration runs; {skipped} labelled runs were not used. The best "
        "indicator of many on the test runs is an optimistic choice; the paired comparisons choose on calibration runs."
    )
    return " ".join(sentences)
