r"""Groups of runs side by side: bands, who ends better, and in what the failed runs differ.

* **Bands** (`trajscope.inference._compare_bands`): median of each channel over the runs that are there at a step, with
  an order-statistic interval; runs of unequal lengths are neither prolonged nor cut.
* **Probability of improvement** (Agarwal et al. 2021): :math:`P(X > Y) + \frac12 P(X = Y)` for final performance, by
  stratum, with a bootstrap interval that draws runs within strata and a permutation p-value (Mann & Whitney 1947),
  Holm's correction over the pairs. Given twice where lengths differ: each run at its own end, and all of them at the
  last step that every run reached, which is the only fair one where more training helps.
* **Configuration keys** (`trajscope.inference._config_keys`) that differ between failed and healthy runs, with the keys
  that cannot be told apart from them.

Failed runs stay in: one that ends non-finite is worse than every other. A verdict is given where the interval excludes
one half and the corrected p-value is small, else "cannot tell".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope._core.surrogates import as_generator
from trajscope.detect._inputs import performance_series
from trajscope.detect.collapse import collapse
from trajscope.errors import InputError, NotEnoughData, TrajscopeError, nearest
from trajscope.history.run import Run
from trajscope.inference._compare_bands import bands
from trajscope.inference._config_keys import KeyDifference, flat_config, key_differences
from trajscope.inference.measures import TAIL
from trajscope.inference.profiles import interquartile_mean, probability_of_improvement, stratified_interval
from trajscope.result import Result, jsonable, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "compare"]

#: Name of the key that stands for the group itself.
GROUP = "(group)"
#: Channels for which bands are made where none are named, the performance channel first.
_BAND_ROLES = ("loss", "val_loss", "grad_norm", "entropy", "kl")
_COMMON, _END = "last common step", "own end"


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """What `compare` found.

    Attributes
    ----------
    table : DataFrame
        A row a pair of groups and point of comparison: ``first, second, at, step, n_first, n_second, iqm_first,
        iqm_second, probability, low, high, p, p_holm, verdict, reason``. ``iqm`` is the interquartile mean of the
        performance as logged; ``probability`` that a run of ``first`` is better than one of ``second``.
    bands : DataFrame
        Columns ``channel, group, step, n, ended, median, low, high, covers, quartile_1, quartile_3``.
    runs : DataFrame
        Columns ``run, group, stratum, last_step, evaluations, final, final_common, outcome, failed``.
    keys : tuple of KeyDifference
    keys_left_out, skipped : mapping of str to str
        Key, run -> why.
    performance : str
        Channel with its direction.
    """

    plot_name = "compare"

    table: pd.DataFrame
    bands: pd.DataFrame
    runs: pd.DataFrame
    keys: tuple[KeyDifference, ...]
    keys_left_out: Mapping[str, str]
    performance: str
    skipped: Mapping[str, str] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """One row a pair of groups and point of comparison."""
        return self.table

    def keys_frame(self) -> pd.DataFrame:
        """One row a configuration key."""
        import pandas as pd

        columns = list(KeyDifference.__dataclass_fields__)
        rows = [asdict(k) | {n: ", ".join(getattr(k, n)) for n in ("together", "explained_by")} for k in self.keys]
        return pd.DataFrame(rows, columns=columns)

    def groups_frame(self) -> pd.DataFrame:
        """One row a group: ``group, runs, failed, shortest, longest, iqm``."""
        import pandas as pd

        rows = []
        for group, part in self.runs.groupby("group", sort=False):
            rows.append({
                "group": group, "runs": len(part), "failed": int(part["failed"].sum()),
                "shortest": float(part["last_step"].min()), "longest": float(part["last_step"].max()),
                "iqm": _iqm(part["final"].to_numpy(), self.performance),
            })  # fmt: skip
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "performance": self.performance,
            "groups": jsonable(self.groups_frame().to_dict("records")),
            "table": jsonable(self.table.to_dict("records")),
            "keys": [jsonable(asdict(k)) for k in self.keys],
            "keys_left_out": dict(self.keys_left_out),
            "runs": jsonable(self.runs.to_dict("records")),
            "bands": jsonable(self.bands.to_dict("records")),
            "skipped": dict(self.skipped),
            "summary": self.summary(),
            "provenance": jsonable(self.provenance),
        }

    def sentences(self) -> list[str]:
        """What was found: groups, lengths, who ends better, keys."""
        groups = self.groups_frame()
        counts = ", ".join(f"{g['group']} {g['runs']} ({g['failed']} failed)" for g in groups.to_dict("records"))
        out = [f"{len(self.runs)} runs judged by {self.performance}: {counts}."]
        short, long = float(self.runs["last_step"].min()), float(self.runs["last_step"].max())
        if short < long:
            out.append(f"The runs end between step {short:g} and {long:g}.")
        for row in self.table.to_dict("records"):
            where = (
                "at the own end of each" if row["at"] == _END else f"at step {row['step']:g}, the last that all reach"
            )
            interval = "" if math.isnan(row["low"]) else f" [{row['low']:.2f}, {row['high']:.2f}]"
            out.append(
                f"{row['first']} beats {row['second']} with probability {row['probability']:.2f}{interval} {where}: "
                f"{row['verdict']} (n = {row['n_first']} and {row['n_second']}, p = {row['p_holm']:.2g} after Holm)"
                + (f"; {row['reason']}." if row["reason"] else ".")
            )
        failed = int(self.runs["failed"].sum())
        if not self.keys:
            which = (
                "no run failed" if not failed else "every run failed" if failed == len(self.runs) else "no key varies"
            )
            out.append(f"Configurations of failed and healthy runs are not compared: {which}.")
        elif not any(k.differs for k in self.keys):
            out.append(
                f"None of {len(self.keys)} configuration keys differs between {failed} failed and the healthy runs."
            )
        for k in self.keys:
            if k.differs:
                name = "A" if k.kind == "number" else "V"
                out.append(
                    f"{k.key}: failed runs {k.failed}, healthy runs {k.healthy} ({name} = {k.effect:.2f}, "
                    f"p = {k.p_holm:.2g} after Holm); {k.reason}."
                )
        return out

    def summary(self) -> str:
        """The sentences as one paragraph."""
        return " ".join(self.sentences())


def compare(
    groups: Mapping[str, Sequence[Run]],
    *,
    performance: str | None = None,
    channels: Sequence[str] | None = None,
    strata: str | None = None,
    failed: Mapping[str, bool] | None = None,
    level: float = 0.95,
    alpha: float = 0.05,
    n_boot: int = 2000,
    n_null: int = 4999,
    rng: int | np.random.Generator | None = None,
) -> Comparison:
    """Compare groups of runs.

    Parameters
    ----------
    groups : mapping of str to sequence of Run
    performance : str, optional
        ``NAME``, ``NAME:max`` or ``NAME:min``; default by role, the same for all runs.
    channels : sequence of str, optional
        Of the bands; default performance, losses, gradient norm, entropy and KL.
    strata : str, optional
        Configuration key (nested ones joined by a dot) that names the task: only runs of one task are compared.
    failed : mapping of run id to bool, optional
        What is known of the outcome; default by `trajscope.collapse` (collapse, divergence or non-finite).
    level : float
        Coverage of intervals.
    alpha : float
        Family-wise level over configuration keys.
    n_boot, n_null : int
        Draws of the bootstrap, permutations.
    rng : int or Generator, optional
        Default 0.

    Returns
    -------
    Comparison

    Raises
    ------
    InputError
        If runs are judged by different channels, or a name is unknown.
    NotEnoughData
        If fewer than two runs have a performance channel.

    Examples
    --------
    >>> from trajscope.history.run import RunData, named_channel
    >>> def made(name, top, n):
    ...     t = np.arange(n)
    ...     return Run(name, RunData({"val/accuracy": named_channel("val/accuracy", t, top - np.exp(-t / 9))}))
    >>> found = compare({
    ...     "a": [made(f"a{i}", 0.9 + 0.01 * i, 60 + i) for i in range(6)],
    ...     "b": [made(f"b{i}", 0.5 + 0.01 * i, 80) for i in range(6)],
    ... })
    >>> found.to_frame()[["at", "probability", "verdict"]].values.tolist()
    [['own end', 1.0, 'a'], ['last common step', 1.0, 'a']]
    """
    if not isinstance(groups, Mapping) or not groups:
        raise InputError("groups: a mapping of names to sequences of runs, with a group or more, is expected")
    if not 0 < level < 1 or not 0 < alpha < 1:
        raise InputError(f"level {level!r} and alpha {alpha!r} lie between 0 and 1")
    if n_boot < 100 or n_null < 99:
        raise InputError(f"n_boot {n_boot!r} and n_null {n_null!r}: 100 draws and 99 permutations or more are expected")
    generator = as_generator(rng)
    skipped: dict[str, str] = {}
    kept, label = _judged(groups, performance, skipped)
    runs = _runs_table(kept, label, strata, failed)
    name, mode = label.rpartition(":")[::2]
    wanted = list(dict.fromkeys([name, *(channels or _default_channels(kept))]))
    present = {c for own in kept.values() for r in own for c in r.channels}
    for channel in channels or ():
        if channel not in present:
            raise InputError(f"channels: no run has a channel {channel!r}. {nearest(channel, present)}")
    import pandas as pd

    frames = [bands(kept, channel, level) for channel in wanted]
    configs = [flat_config(r.config) for own in kept.values() for r in own]
    if len(kept) > 1:
        configs = [{**c, GROUP: g} for c, g in zip(configs, runs["group"], strict=True)]
    keys, left_out = key_differences(
        configs, runs["failed"].to_numpy(dtype=bool), alpha=alpha, n_null=n_null, rng=generator
    )
    return Comparison(
        _pairs(runs, mode, level, n_boot, n_null, generator),
        pd.concat(frames, ignore_index=True),
        runs,
        tuple(keys),
        left_out,
        label,
        skipped,
        provenance=make_provenance(
            "compare",
            {
                "performance": label,
                "strata": strata,
                "level": level,
                "alpha": alpha,
                "n_boot": n_boot,
                "n_null": n_null,
            },
            runs["final"].to_numpy(dtype=np.float64),
            seed=rng if isinstance(rng, int) else 0 if rng is None else None,
        ),
    )


def _judged(
    groups: Mapping[str, Sequence[Run]], performance: str | None, skipped: dict[str, str]
) -> tuple[dict[str, list[Run]], str]:
    """The runs that can be read and have performance, and the channel that all of them are judged by."""
    kept: dict[str, list[Run]] = {}
    labels: dict[str, str] = {}
    refusal: InputError | None = None
    for group, runs in groups.items():
        own: list[Run] = []
        for run in runs:
            try:
                series, mode = performance_series(run, performance)
                if not series.values.size:
                    raise NotEnoughData(f"channel {series.name!r} is empty")
            except TrajscopeError as problem:
                skipped[run.id] = str(problem)
                refusal = problem if isinstance(problem, InputError) and performance else refusal
                continue
            labels.setdefault(f"{series.name}:{mode}", run.id)
            own.append(run)
        if own:
            kept[str(group)] = own
    if not kept and refusal is not None:
        raise refusal
    if len(labels) > 1:
        shown = ", ".join(f"{label} (as in {run})" for label, run in list(labels.items())[:4])
        raise InputError(f"the runs would be judged by different channels: {shown}. Name one with performance=")
    if sum(len(own) for own in kept.values()) < 2:
        raise NotEnoughData(f"{sum(map(len, kept.values()))} runs have a performance channel; two or more are needed")
    return kept, next(iter(labels))


def _default_channels(kept: Mapping[str, list[Run]]) -> list[str]:
    found: dict[str, int] = {}
    for own in kept.values():
        for run in own:
            for name, channel in run.channels.items():
                if channel.role in _BAND_ROLES and len(channel):
                    found.setdefault(name, _BAND_ROLES.index(channel.role))
    return sorted(found, key=lambda n: (found[n], n))[:5]


def _runs_table(
    kept: Mapping[str, list[Run]], label: str, strata: str | None, failed: Mapping[str, bool] | None
) -> pd.DataFrame:
    """One row a run; performance as logged, NaN in ``final`` for one that ends non-finite."""
    import pandas as pd

    series = [(g, r, performance_series(r, label)[0]) for g, own in kept.items() for r in own]
    common = min(float(s.steps[-1]) for _, _, s in series)
    rows = []
    for group, run, s in series:
        task = ""
        if strata is not None:
            config = flat_config(run.config)
            if strata not in config:
                raise InputError(
                    f"strata: run {run.id!r} has no configuration key {strata!r}. {nearest(strata, config)}"
                )
            task = str(config[strata])
        judged = collapse(run, performance=label)
        bad = judged.kind in ("collapse", "divergence", "non-finite")
        rows.append({
            "run": run.id, "group": group, "stratum": task, "last_step": float(s.steps[-1]),
            "evaluations": int(s.values.size), "final": _final(s.values),
            "common": common, "final_common": _final(s.values[s.steps <= common]), "outcome": judged.kind,
            "failed": bool(failed.get(run.id, bad)) if failed is not None else bad,
        })  # fmt: skip
    return pd.DataFrame(rows)


def _final(values: NDArray[np.float64]) -> float:
    """Mean of the last tenth; NaN where it is not finite or there is nothing."""
    if not values.size:
        return math.nan
    tail = values[-max(1, round(TAIL * values.size)) :]
    return float(tail.mean()) if np.isfinite(tail).all() else math.nan


def _iqm(final: NDArray[np.float64], label: str) -> float:
    """Interquartile mean of performance as logged; the worst value there is for runs that end non-finite."""
    worst = -math.inf if label.endswith("max") else math.inf
    return interquartile_mean(np.where(np.isnan(final), worst, final))


def _pairs(
    runs: pd.DataFrame, mode: str, level: float, n_boot: int, n_null: int, rng: np.random.Generator
) -> pd.DataFrame:
    import pandas as pd

    columns = [
        "first", "second", "at", "step", "n_first", "n_second", "iqm_first", "iqm_second", "probability", "low", "high",
        "p", "p_holm", "verdict", "reason",
    ]  # fmt: skip
    names = list(dict.fromkeys(runs["group"]))
    unequal = runs["last_step"].nunique() > 1
    points = [(_END, "final")] + ([(_COMMON, "final_common")] if unequal else [])
    rows: list[dict[str, Any]] = []
    for at, column in points:
        own: list[dict[str, Any]] = []
        for first, second in itertools.combinations(names, 2):
            a, b = (runs[runs["group"] == g] for g in (first, second))
            own.append(
                {"first": first, "second": second, "at": at, "step": math.nan if at == _END else runs["common"].iloc[0]}
                | _pair(a, b, column, mode, level, n_boot, n_null, rng)
            )
        for rank, row in enumerate(sorted(own, key=lambda r: r["p"])):
            row["p_holm"] = min(1.0, (len(own) - rank) * row["p"])
        running = 0.0
        for row in sorted(own, key=lambda r: r["p"]):
            running = row["p_holm"] = max(running, row["p_holm"])
            if row["p_holm"] < 1 - level and not row["low"] <= 0.5 <= row["high"]:
                row["verdict"] = row["first"] if row["probability"] > 0.5 else row["second"]
        rows += own
    return pd.DataFrame(rows, columns=columns)


def _pair(
    a: pd.DataFrame, b: pd.DataFrame, column: str, mode: str, level: float, n_boot: int, n_null: int,
    rng: np.random.Generator,
) -> dict[str, Any]:  # fmt: skip
    """One pair of groups at one point."""
    sign = 1.0 if mode == "max" else -1.0
    tasks = sorted(set(a["stratum"]) & set(b["stratum"]))
    reasons = []
    if len(tasks) < len(set(a["stratum"]) | set(b["stratum"])):
        reasons.append("tasks that only one of them has are left out")
    a, b = a[a["stratum"].isin(tasks)], b[b["stratum"].isin(tasks)]
    out: dict[str, Any] = {
        "n_first": len(a), "n_second": len(b), "iqm_first": math.nan, "iqm_second": math.nan, "probability": math.nan,
        "low": math.nan, "high": math.nan, "p": 1.0, "verdict": "cannot tell",
    }  # fmt: skip
    if not tasks:
        return out | {"reason": "they have no task in common"}
    x, y = (
        {t: np.nan_to_num(sign * part[part["stratum"] == t][column].to_numpy(), nan=-np.inf) for t in tasks}
        for part in (a, b)
    )
    out["iqm_first"], out["iqm_second"] = sign * interquartile_mean(x), sign * interquartile_mean(y)
    out["probability"] = probability_of_improvement(x, y)
    if min(len(v) for v in (*x.values(), *y.values())) < 3:
        reasons.append("fewer than three runs in a group (of a task): no interval")
        return out | {"reason": "; ".join(reasons)}
    out["low"], out["high"] = stratified_interval(probability_of_improvement, x, y, n_boot=n_boot, level=level, rng=rng)
    out["p"] = _permutation(x, y, out["probability"], n_null, rng)
    return out | {"reason": "; ".join(reasons)}


def _permutation(
    x: Mapping[str, NDArray[np.float64]], y: Mapping[str, NDArray[np.float64]], seen: float, n: int,
    rng: np.random.Generator,
) -> float:  # fmt: skip
    """Two-sided p of the probability of improvement, groups permuted within tasks."""
    from scipy.stats import rankdata

    null = np.zeros(n)
    for task, own in x.items():
        ranks = rankdata(np.concatenate([own, y[task]]))
        drawn = ranks[np.argsort(rng.random((n, ranks.size)), axis=1)[:, : own.size]].sum(axis=1)
        null += (drawn - own.size * (own.size + 1) / 2) / (own.size * y[task].size) / len(x)
    return float((1 + np.sum(np.abs(null - 0.5) >= abs(seen - 0.5) - 1e-12)) / (n + 1))
