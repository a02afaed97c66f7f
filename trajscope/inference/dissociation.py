r"""Do stable runs perform better? Association of final performance with measures of stability, and when it is absent.

Within each stratum (task, algorithm) Spearman's :math:`\rho` of performance *F* and stability *S*, both oriented so
that bigger is better; over strata the mean on Fisher's *z* weighted by *n* - 3. The interval is a BCa bootstrap that
draws clusters (seeds) within strata. With the equivalence margin 0.3:

================================  ======================================  ======================
95 % interval                     90 % interval                           verdict
================================  ======================================  ======================
excludes 0                        not inside :math:`\pm` 0.3              associated
excludes 0                        inside                                  negligible association
holds 0                           inside                                  dissociated
holds 0                           not inside                              inconclusive
================================  ======================================  ======================

"Not significant, so decoupled" is not a verdict. A measure that is unreliable looks dissociated from everything: where
the split-half reliability of *S* or *F* (Spearman-Brown) is below 0.7, "dissociated" becomes "inconclusive" and the
disattenuated :math:`\rho/\sqrt{r_S r_F}` (Spearman 1904) is given. Beside the combined row stand every stratum, the
pooled coefficient (where it disagrees, by name: Simpson), the combined one with one stratum left out, and without the
runs that failed (survivorship). Failed runs stay in.

Source: DEFINITIONS of this project (10); equivalence: Schuirmann 1987; BCa: Efron 1987.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import kendalltau

from trajscope._core.resample import bca_interval, proportion_interval
from trajscope._core.surrogates import as_generator
from trajscope.errors import InputError, NotEnoughData, nearest
from trajscope.inference._rank_bootstrap import Ranked, draw_weights, fisher_mean, left_out_weights
from trajscope.inference.measures import MEASURES, run_measures
from trajscope.result import Result, jsonable, make_provenance

__all__ = ["MARGIN", "Dissociation", "dissociation", "measure_table"]

Floats = NDArray[np.float64]

#: Correlations inside plus and minus this are negligible.
MARGIN = 0.3
#: Reliability below which the absence of an association says nothing.
RELIABLE = 0.7
#: Runs a stratum needs to take part.
LEAST = 8
#: Name of the row over all strata, and of the pooled one.
ALL, POOLED = "(within strata)", "(pooled)"


@dataclass(frozen=True, eq=False)
class Dissociation(Result):
    """What `dissociation` found.

    Attributes
    ----------
    table : DataFrame
        Columns ``measure, stratum, n, rho, low, high, low_90, high_90, tau, verdict, reason``, and for the row over all
        strata ``reliability_performance, reliability_stability, disattenuated``. Strata are followed by
        ``(within strata)``, ``(pooled)``, ``(without STRATUM)`` and ``(without failed runs)``.
    contrast : DataFrame
        Of the runs in the top quartile of performance in their stratum, how many are in the bottom quartile of
        stability; a quarter would be by chance.
    scores : DataFrame
        The runs, with ``stratum``, ``performance`` and the measures, oriented.
    skipped : mapping of str to str
    """

    plot_name = "dissociation"

    table: pd.DataFrame
    contrast: pd.DataFrame
    scores: pd.DataFrame
    performance: str
    skipped: Mapping[str, str] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """One row a measure and stratum."""
        return self.table

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "table": jsonable(self.table.to_dict("records")),
            "contrast": jsonable(self.contrast.to_dict("records")),
            "performance": self.performance,
            "skipped": dict(self.skipped),
            "provenance": jsonable(self.provenance),
        }

    def summary(self) -> str:
        """One sentence a measure."""
        lines = []
        for row in self.table[self.table["stratum"] == ALL].to_dict("records"):
            reason = f" ({row['reason']})" if row["reason"] else ""
            lines.append(
                f"{row['measure']}: {row['verdict']}{reason}, rho {row['rho']:.2f} "
                f"[{row['low']:.2f}, {row['high']:.2f}], {row['n']} runs."
            )
        return " ".join(lines)


def dissociation(
    source: Any,
    *,
    performance: str | None = None,
    stability: Sequence[str] | None = None,
    strata: str | Sequence[str] | None = "stratum",
    clusters: str | None = "seed",
    failed: str | None = None,
    bigger_is_stable: Mapping[str, bool] | None = None,
    reliability: Mapping[str, float] | None = None,
    margin: float = MARGIN,
    n_boot: int = 10_000,
    rng: int | np.random.Generator | None = None,
) -> Dissociation:
    """Association of final performance with measures of stability.

    Parameters
    ----------
    source : DataFrame, or sequence or mapping of Run
        A table with one row a run; or runs, of which `measure_table` makes one (strata are then those of a mapping's
        keys before the last ``/``, else one).
    performance : str, optional
        Column, or channel as in `trajscope.audit`; bigger is better. Default ``final``.
    stability : sequence of str, optional
        Columns; default those of `trajscope.inference.measures.MEASURES` that the table has.
    strata : str, or sequence of the length of the table, or None
        Column of the stratum; None: one stratum.
    clusters : str or None
        Column of what is drawn as a whole within a stratum (a seed); ignored where the table has none.
    failed : str, optional
        Column that is true for failed runs, for the row without them; default ``collapsed`` where it is there.
    bigger_is_stable : mapping of str to bool, optional
        Orientation of measures. Default: the measures of this package grow with instability, others with stability.
    reliability : mapping of str to float, optional
        Split-half reliability of ``performance`` and of measures, where it is known. Runs give their own.
    margin : float
        Of equivalence.
    n_boot : int
    rng : int or Generator, optional
        Default 0.

    Returns
    -------
    Dissociation

    Raises
    ------
    InputError
        For unknown columns or values out of range.
    NotEnoughData
        If no stratum has 8 runs with performance and a measure.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> table = pd.DataFrame({"final": rng.normal(size=120), "calm": rng.normal(size=120), "stratum": "a"})
    >>> found = dissociation(table, stability=["calm"], n_boot=2000)
    >>> found.to_frame().set_index("stratum").loc["(within strata)", "verdict"]
    'dissociated'
    """
    if not 0 < margin < 1:
        raise InputError(f"margin is {margin!r}; a correlation between 0 and 1 is expected")
    if n_boot < 100:
        raise InputError(f"n_boot is {n_boot!r}; 100 draws or more are expected")
    generator = as_generator(rng)
    known = dict(reliability or {})
    skipped: dict[str, str] = {}
    if not isinstance(source, pd.DataFrame):
        source, halves, skipped = measure_table(source, performance)
        known = {**halves, **known}
        performance = "final"
    table, measures, name = _columns(source, performance, stability, strata, clusters, failed, bigger_is_stable)
    if name != "performance" and name in known:
        known.setdefault("performance", known[name])
    rows: list[dict[str, Any]] = []
    contrasts = []
    for measure in measures:
        part = table[table["performance"].notna() & table[measure].notna()]
        big = part.groupby("stratum")["performance"].transform("size") >= LEAST
        part = part[big]
        if part.empty:
            skipped[measure] = f"no stratum has {LEAST} runs with it and with performance"
            continue
        rows += _rows(part, measure, margin, n_boot, generator, known)
        contrasts.append(_contrast(part, measure))
    if not rows:
        raise NotEnoughData(f"no stratum has {LEAST} runs with performance and a measure of stability")
    return Dissociation(
        pd.DataFrame(rows),
        pd.DataFrame(contrasts),
        table,
        name,
        skipped,
        provenance=make_provenance(
            "dissociation",
            {"performance": name, "stability": measures, "margin": margin, "n_boot": n_boot},
            table[["performance", *measures]].to_numpy(dtype=np.float64),
            seed=rng if isinstance(rng, int) else 0 if rng is None else None,
        ),
    )


def measure_table(runs: Any, performance: str | None = None) -> tuple[pd.DataFrame, dict[str, float], dict[str, str]]:
    """Performance and stability of runs as a table, the reliability of each over odd and even rows, and what failed.

    Parameters
    ----------
    runs : sequence of Run, or mapping of name to Run
    performance : str, optional
        As in `trajscope.audit`.
    """
    pairs = list(runs.items()) if isinstance(runs, Mapping) else [(r.id, r) for r in runs]
    rows: list[dict[str, Any]] = []
    odd: list[dict[str, Any]] = []
    even: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    for name, run in pairs:
        try:
            whole = run_measures(run, performance)
        except InputError as problem:
            skipped[str(name)] = str(problem)
            continue
        if math.isnan(whole.final):
            skipped[str(name)] = "no performance channel"
            continue
        rows.append({"run": str(name), "stratum": str(name).rpartition("/")[0], **vars(whole)})
        for half, first in ((odd, 0), (even, 1)):
            half.append(vars(run_measures(_every_second(run, first), performance)))
    table = pd.DataFrame(rows)
    reliable = {}
    if len(rows) >= LEAST:
        one, two = pd.DataFrame(odd), pd.DataFrame(even)
        for column in ("final", *MEASURES):
            both = one[column].notna() & two[column].notna()
            if both.sum() >= LEAST and one[column][both].nunique() > 1 and two[column][both].nunique() > 1:
                r = float(np.corrcoef(one[column][both].rank(), two[column][both].rank())[0, 1])
                reliable[column] = max(0.0, 2 * r / (1 + r)) if r > -1 else 0.0  # Spearman-Brown: of the whole
    return table, reliable, skipped


def _every_second(run: Any, first: int) -> Any:
    """The run with every second row of each channel."""
    return run.replace(channels={n: c.take(np.arange(first, len(c), 2)) for n, c in run.channels.items()})


def _columns(
    source: pd.DataFrame,
    performance: str | None,
    stability: Sequence[str] | None,
    strata: Any,
    clusters: str | None,
    failed: str | None,
    bigger_is_stable: Mapping[str, bool] | None,
) -> tuple[pd.DataFrame, list[str], str]:
    """The columns that are used, oriented and renamed."""

    def column(name: str, what: str) -> pd.Series[Any]:
        if name not in source:
            raise InputError(
                f"{what}: the table has no column {name!r}. {nearest(name, [str(c) for c in source.columns])}"
            )
        return source[name]

    name = performance or ("final" if "final" in source else "performance")
    measures = list(stability) if stability is not None else [m for m in MEASURES if m in source]
    if isinstance(stability, str) or not measures:
        raise InputError("stability: a sequence of columns, one or more, is expected")
    up = {m: m not in MEASURES for m in measures} | dict(bigger_is_stable or {})
    table = pd.DataFrame(index=source.index)
    table["performance"] = _numbers(column(name, "performance"))
    for m in measures:
        table[m] = _numbers(column(m, "stability")) * (1 if up[m] else -1)
    if strata is None or (isinstance(strata, str) and strata == "stratum" and "stratum" not in source):
        table["stratum"] = ""
    elif isinstance(strata, str):
        table["stratum"] = column(strata, "strata").astype(str)
    else:
        labels = np.asarray(strata)
        if labels.shape != (len(source),):
            raise InputError(f"strata has shape {labels.shape} for {len(source)} runs; one a run is expected")
        table["stratum"] = labels.astype(str)
    owners = (
        source[clusters].astype(str)
        if clusters is not None and clusters in source
        else pd.Series(range(len(source)), source.index).astype(str)
    )
    table["cluster"] = table["stratum"] + "/" + owners
    flag = failed or ("collapsed" if "collapsed" in source else None)
    table["failed"] = False if flag is None else column(flag, "failed").fillna(0).astype(bool)
    return table.reset_index(drop=True), measures, name


def _numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    numbers = pd.to_numeric(column, errors="coerce").astype(float)
    bad = numbers.isna() & column.notna()
    if bad.any():
        raise InputError(f"column {column.name!r}: {column[bad].iloc[0]!r} is not a number")
    return numbers


def _rows(
    part: pd.DataFrame, measure: str, margin: float, n_boot: int, rng: np.random.Generator, known: Mapping[str, float]
) -> list[dict[str, Any]]:
    """All rows of one measure."""
    strata = sorted(part["stratum"].unique())
    groups = [part[part["stratum"] == s] for s in strata]
    sizes = np.array([len(g) for g in groups], dtype=np.float64)
    seeds = rng.integers(2**63, size=len(groups) + 1)
    found = [_bootstrap(g, measure, n_boot, np.random.default_rng(s)) for g, s in zip(groups, seeds, strict=False)]
    rows = [_row(measure, s, g, f, margin) for s, g, f in zip(strata, groups, found, strict=True)]
    combined = _combine(found, sizes)
    whole = _row(measure, ALL, part, combined, margin)
    reliable = {k: known.get(k, math.nan) for k in ("performance", measure)}
    product = reliable["performance"] * reliable[measure]
    whole |= {
        "reliability_performance": reliable["performance"],
        "reliability_stability": reliable[measure],
        "disattenuated": float(np.clip(whole["rho"] / math.sqrt(product), -1, 1)) if product > 0 else math.nan,
    }
    low = [k for k, r in reliable.items() if r < RELIABLE]
    if whole["verdict"] == "dissociated" and low:
        whole["verdict"] = "inconclusive"
        whole["reason"] = f"low reliability of {' and '.join(low)}: absence of an association would show in any case"
    pooled = _row(measure, POOLED, part, _bootstrap(part, measure, n_boot, np.random.default_rng(seeds[-1])), margin)
    if len(strata) > 1:
        against = (pooled["low"] > 0 or pooled["high"] < 0) and not (
            pooled["rho"] * whole["rho"] > 0 and whole["verdict"] in ("associated", "negligible association")
        )
        if against:
            pooled["reason"] = "Simpson: the strata differ in both, and within them it is not so"
            whole["reason"] = "; ".join(
                filter(None, [whole["reason"], "Simpson: pooling the strata would say otherwise"])
            )
        rows += [whole, pooled]
        for i, s in enumerate(strata):
            rest = [f for j, f in enumerate(found) if j != i]
            left = _combine(rest, np.delete(sizes, i))
            rows.append(_row(measure, f"(without {s})", part[part["stratum"] != s], left, margin))
    else:
        rows.append(whole)
    alive = part[~part["failed"]]
    if 0 < len(alive) < len(part):
        kept = [g[~g["failed"]] for g in groups]
        kept = [g for g in kept if len(g) >= LEAST]
        if kept:
            parts = [
                _bootstrap(g, measure, n_boot, np.random.default_rng(s)) for g, s in zip(kept, seeds, strict=False)
            ]
            row = _row(
                measure,
                "(without failed runs)",
                pd.concat(kept),
                _combine(parts, np.array([float(len(g)) for g in kept])),
                margin,
            )
            if row["verdict"] != whole["verdict"]:
                row["reason"] = "survivorship: leaving out the failed runs changes the verdict"
            rows.append(row)
    return rows


@dataclass
class _Boot:
    rho: float
    draws: Floats
    left: list[Floats]  # leave-one-cluster-out values, one array a stratum
    sizes: Floats
    rhos: Floats


def _bootstrap(group: pd.DataFrame, measure: str, n_boot: int, rng: np.random.Generator) -> _Boot:
    ranked = Ranked(group["performance"].to_numpy(), group[measure].to_numpy())
    clusters = np.unique(group["cluster"].to_numpy(), return_inverse=True)[1]
    rho = float(ranked.spearman(np.ones((1, len(group))))[0])
    draws = np.concatenate([ranked.spearman(w) for w in draw_weights(clusters, n_boot, rng)])
    return _Boot(
        rho, draws, [ranked.spearman(left_out_weights(clusters))], np.array([float(len(group))]), np.array([rho])
    )


def _combine(parts: list[_Boot], sizes: Floats) -> _Boot:
    """Strata on Fisher's z; the jackknife leaves out a cluster of one stratum at a time."""
    rhos = np.array([p.rho for p in parts])
    rho = float(fisher_mean(rhos[None, :], sizes)[0])
    draws = fisher_mean(np.column_stack([p.draws for p in parts]), sizes)
    left = []
    for i, p in enumerate(parts):
        table = np.tile(rhos, (len(p.left[0]), 1))
        table[:, i] = p.left[0]
        left.append(fisher_mean(table, sizes))
    return _Boot(rho, draws, left, sizes, rhos)


def _row(measure: str, stratum: str, part: pd.DataFrame, boot: _Boot, margin: float) -> dict[str, Any]:
    left = np.concatenate(boot.left) if boot.left else np.zeros(0)
    low, high = bca_interval(boot.rho, boot.draws, left, 0.95)
    low90, high90 = bca_interval(boot.rho, boot.draws, left, 0.90)
    taus = [
        float(kendalltau(g["performance"], g[measure]).statistic)
        for _, g in ([("", part)] if stratum == POOLED else part.groupby("stratum"))
    ]
    counts = np.array([float(len(part))] if stratum == POOLED else part.groupby("stratum").size().to_numpy(dtype=float))
    verdict, reason = _verdict(low, high, low90, high90, margin)
    return {
        "measure": measure, "stratum": stratum, "n": len(part), "rho": boot.rho, "low": low, "high": high,
        "low_90": low90, "high_90": high90, "tau": float(fisher_mean(np.array(taus)[None, :], counts)[0]),
        "verdict": verdict, "reason": reason,
    }  # fmt: skip


def _verdict(low: float, high: float, low90: float, high90: float, margin: float) -> tuple[str, str]:
    if math.isnan(low) or math.isnan(high):
        return "cannot tell", "performance or stability does not vary"
    zero = low <= 0 <= high
    inside = -margin < low90 and high90 < margin
    if zero:
        return ("dissociated", "") if inside else ("inconclusive", "too few runs to tell")
    return ("negligible association", "") if inside else ("associated", "")


def _contrast(part: pd.DataFrame, measure: str) -> dict[str, Any]:
    """Top quartile of performance against bottom quartile of stability, within strata."""
    ranks = part.groupby("stratum")[["performance", measure]].rank(pct=True)
    top, bottom = ranks["performance"] > 0.75, ranks[measure] <= 0.25
    hits, n = int((top & bottom).sum()), int(top.sum())
    low, high = proportion_interval(hits, n)
    return {
        "measure": measure,
        "top_quartile": n,
        "of_them_least_stable": hits,
        "share": hits / n if n else math.nan,
        "low": low,
        "high": high,
    }
