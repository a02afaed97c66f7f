"""Which configuration keys differ between failed and healthy runs, and which of them cannot be told apart.

Keys of numbers: :math:`A = P(\\text{key of a failed run} > \\text{key of a healthy one}) + \\frac12 P(\\text{equal})`.
Other keys: Cramer's V of key and failure. p-values are of permutations of the failures over the runs, Holm's
correction over the keys. Then the failures are permuted within the levels of each other key. Where nothing is left, the
two are confounded: they cannot be told apart if either is (nearly) a function of the other, else that key explains it.

A difference of configurations is an association: nobody assigned them unless the reader knows better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

__all__ = ["KeyDifference", "flat_config", "key_differences"]

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]

#: Correlation ratio (or rank correlation) from which two keys go together.
TOGETHER = 0.9
#: Levels above which a number is cut at its quartiles where failures are permuted within it.
LEVELS = 6
_BATCH = 500


@dataclass(frozen=True)
class KeyDifference:
    """One key.

    Attributes
    ----------
    key : str
    kind : {"number", "word"}
    n : int
        Runs that have it.
    effect : float
        A (numbers, 0.5 is none) or Cramer's V (words, 0 is none).
    p, p_holm : float
    differs : bool
    failed, healthy : str
        Median (numbers) or commonest value with its share.
    together : tuple of str
        Keys that cannot be told apart from it.
    explained_by : tuple of str
        Keys within whose levels the difference is gone.
    reason : str
    """

    key: str
    kind: str
    n: int
    effect: float
    p: float
    p_holm: float
    differs: bool
    failed: str
    healthy: str
    together: tuple[str, ...]
    explained_by: tuple[str, ...]
    reason: str


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by a dot; lists as text.

    >>> flat_config({"optimizer": {"lr": 0.1}, "layers": [64, 64]})
    {'optimizer.lr': 0.1, 'layers': '[64, 64]'}
    """
    out: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            out |= flat_config(value, f"{name}.")
        else:
            out[name] = value if value is None or isinstance(value, bool | int | float | str) else str(value)
    return out


def key_differences(
    configs: Sequence[Mapping[str, Any]], failed: NDArray[np.bool_], *, alpha: float, n_null: int, rng: Any
) -> tuple[list[KeyDifference], dict[str, str]]:
    """Compare the configurations of failed and healthy runs.

    Parameters
    ----------
    configs : sequence of mapping
        Flat, one a run.
    failed : (n_runs,) bool array
    alpha : float
        Family-wise level.
    n_null : int
        Permutations.
    rng : numpy.random.Generator

    Returns
    -------
    differences : list of KeyDifference
        Those that differ first, then by p.
    left_out : dict of str to str
        Key -> why it is not compared.
    """
    keys = list(dict.fromkeys(k for c in configs for k in c))
    columns: dict[str, _Column] = {}
    left_out: dict[str, str] = {}
    for key in keys:
        column = _column([c.get(key) for c in configs])
        if isinstance(column, str):
            left_out[key] = column
        else:
            columns[key] = column
    if not columns or failed.all() or not failed.any():
        return [], left_out
    n = failed.size
    everyone = np.zeros(n, dtype=np.intp)
    p = {k: _p(c, failed, everyone, n_null, rng) for k, c in columns.items()}
    holm = _holm(p)
    names = list(columns)
    out = []
    for key, column in columns.items():
        differs = holm[key] < alpha
        together: list[str] = []
        explained: list[str] = []
        if differs:
            for other in names:
                if other == key:
                    continue
                tied = _go_together(column, columns[other])
                if not tied and holm[other] >= alpha:
                    continue
                if _p(column, failed, columns[other].strata, n_null, rng) >= alpha:
                    (together if tied else explained).append(other)
        out.append(_difference(key, column, failed, p[key], holm[key], differs, together, explained))
    return sorted(
        out, key=lambda d: (not d.differs, d.p, -abs(d.effect - (0.5 if d.kind == "number" else 0)))
    ), left_out


@dataclass(frozen=True)
class _Column:
    kind: str
    values: list[Any]
    known: NDArray[np.bool_]
    ranks: Floats  # of numbers, NaN where there is none; of words the codes
    codes: Codes  # of distinct values
    strata: Codes  # codes, numbers of many levels cut at quartiles


def _column(values: list[Any]) -> _Column | str:
    """A key as ranks and codes, or why it says nothing."""
    given = [v for v in values if v is not None]
    if not given:
        return "null in every run"
    number = all(isinstance(v, int | float) and not isinstance(v, bool) for v in given)
    texts = ["" if v is None else repr(v) for v in values]
    if len(set(texts)) == 1:
        return "the same in every run"
    if not number and len(set(texts)) == len(values):
        return "a different word in every run"
    codes = np.unique(texts, return_inverse=True)[1].astype(np.intp)
    if not number:
        return _Column("word", values, np.ones(len(values), dtype=bool), codes.astype(float), codes, codes)
    x = np.array([math.nan if v is None else float(v) for v in values])
    known = ~np.isnan(x)
    if np.unique(x[known]).size == 1:  # given or not is all that differs
        codes = known.astype(np.intp)
        return _Column("word", values, np.ones(len(values), dtype=bool), codes.astype(float), codes, codes)
    ranks = np.full(x.size, np.nan)
    ranks[known] = rankdata(x[known])
    strata = codes
    if np.unique(codes).size > LEVELS:
        cuts = np.quantile(x[known], [0.25, 0.5, 0.75])
        strata = np.where(known, np.searchsorted(cuts, x), 4).astype(np.intp)
    return _Column("number", values, known, ranks, codes, strata)


def _p(column: _Column, failed: NDArray[np.bool_], strata: Codes, n_null: int, rng: np.random.Generator) -> float:
    """Permutation p of the difference, failures permuted within strata."""
    own = column.known
    flag, groups = failed[own], strata[own]
    if flag.all() or not flag.any():
        return 1.0
    score = column.ranks[own][:, None] if column.kind == "number" else _indicator(column.codes[own])
    # expected under the permutation, stratum by stratum
    expected = np.zeros(score.shape[1])
    for g in np.unique(groups):
        inside = groups == g
        expected += flag[inside].mean() * score[inside].sum(axis=0)
    weight = 1 / np.maximum(score.sum(axis=0), 1e-12)

    def size(sums: Floats) -> Floats:
        return np.asarray(np.sum((sums - expected) ** 2 * weight, axis=-1))

    seen = size(flag.astype(float) @ score)
    order = np.argsort(groups, kind="stable")
    hits = 0
    for start in range(0, n_null, _BATCH):
        count = min(_BATCH, n_null - start)
        keys = groups[None, :] + rng.random((count, flag.size))
        drawn = np.empty((count, flag.size))
        # the ranks of groups + U(0, 1) permute within groups alone
        np.put_along_axis(drawn, np.argsort(keys, axis=1), np.broadcast_to(flag[order], keys.shape), axis=1)
        hits += int(np.sum(size(drawn @ score) >= seen - 1e-9))
    return (1 + hits) / (n_null + 1)


def _indicator(codes: Codes) -> Floats:
    return np.asarray(codes[:, None] == np.unique(codes)[None, :], dtype=np.float64)


def _holm(p: Mapping[str, float]) -> dict[str, float]:
    out, running = {}, 0.0
    for i, (key, value) in enumerate(sorted(p.items(), key=lambda kv: kv[1])):
        running = max(running, min(1.0, (len(p) - i) * value))
        out[key] = running
    return out


def _go_together(a: _Column, b: _Column) -> bool:
    """Whether one of two keys is (nearly) a function of the other."""
    both = a.known & b.known
    if both.sum() < 4:
        return False
    if a.kind == "number" and b.kind == "number":
        x, y = rankdata(a.ranks[both]), rankdata(b.ranks[both])
        if np.ptp(x) > 0 and np.ptp(y) > 0 and abs(np.corrcoef(x, y)[0, 1]) >= TOGETHER:
            return True
    return _determined(a.codes[both], b.codes[both]) or _determined(b.codes[both], a.codes[both])


def _determined(a: Codes, b: Codes) -> bool:
    """Whether a is a function of b, where b repeats its values."""
    levels, group = np.unique(b, return_inverse=True)
    if levels.size > b.size / 2 or np.unique(a).size == 1:
        return False
    same = sum(np.bincount(a[group == g]).max() for g in range(levels.size))
    commonest = np.bincount(a).max()
    return bool(a.size > commonest and (same - commonest) / (a.size - commonest) >= TOGETHER)


def _difference(
    key: str, column: _Column, failed: NDArray[np.bool_], p: float, holm: float, differs: bool,
    together: list[str], explained: list[str],
) -> KeyDifference:  # fmt: skip
    own, flag = column.known, failed[column.known]
    if column.kind == "number":
        r, bad = rankdata(column.ranks[own]), int(flag.sum())
        pairs = bad * int((~flag).sum())
        effect = float((r[flag].sum() - bad * (bad + 1) / 2) / pairs) if pairs else math.nan
        x = np.array([float(v) for v, k in zip(column.values, own, strict=True) if k])
        bad_shown, good_shown = (f"median {np.median(x[f]):.4g}" if f.any() else "none" for f in (flag, ~flag))
    else:
        table = np.array(
            [[np.sum(flag[column.codes == c]), np.sum(~flag[column.codes == c])] for c in np.unique(column.codes)]
        )
        expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
        effect = float(math.sqrt(np.sum((table - expected) ** 2 / expected) / table.sum()))
        bad_shown, good_shown = (
            _commonest([v for v, f in zip(column.values, failed, strict=True) if f == want]) for want in (True, False)
        )
    parts = []
    if together:
        parts.append(f"confounded: cannot be told apart from {', '.join(together)}")
    if explained:
        parts.append(f"gone within levels of {', '.join(explained)}")
    if differs and not parts:
        parts.append("not confounded with another key of these runs")
    return KeyDifference(
        key,
        column.kind,
        int(own.sum()),
        effect,
        p,
        holm,
        differs,
        bad_shown,
        good_shown,
        tuple(together),
        tuple(explained),
        "; ".join(parts),
    )


def _commonest(values: list[Any]) -> str:
    names: dict[str, int] = {}
    for v in values:
        names[str(v)] = names.get(str(v), 0) + 1
    best = max(sorted(names), key=lambda k: names[k])
    return f"{best} ({names[best]} of {len(values)})"
