"""What `change_points` does to series that have no change, and to series that have one.

Run: ``python tests/proofs/changepoints.py null [n ...]``, ``power``, ``channels``, ``tcpd`` or ``all``. Seeds are fixed; the
default is 1,000 series a line. Under the null a line holds the share of series with any change point and the upper
95 % point of a binomial with p = 0.05. In the family ``relaxation`` the drop itself is a change: only changes
before it, or later than 2.5 time constants after it, count.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import binom, norm

from trajscope.detect.changepoints import change_points

Floats = NDArray[np.float64]


def autoregression(n: int, phi: float, rng: np.random.Generator, *, heavy: bool = False) -> Floats:
    """Stationary AR(1) of unit marginal variance, normal or t(3) innovations."""
    e = rng.standard_t(3, n + 400) / np.sqrt(3) if heavy else rng.standard_normal(n + 400)
    return np.asarray(lfilter([1.0], [1.0, -phi], e)[400:] * np.sqrt(1 - phi**2))


def _relaxation(n: int, rng: np.random.Generator) -> Floats:
    t = np.arange(n)
    drop = n // 2
    curve = 10 * (1 + t / (n / 50)) ** -0.3 - 4 * (t >= drop) * (1 - np.exp(-(t - drop) / (n / 25)))
    return np.asarray(curve + autoregression(n, 0.5, rng))


NULLS: dict[str, Callable[[int, np.random.Generator], Floats]] = {
    "iid normal": lambda n, rng: rng.standard_normal(n),
    "t(3)": lambda n, rng: rng.standard_t(3, n),
    "AR(.5)": lambda n, rng: autoregression(n, 0.5, rng),
    "AR(.9)": lambda n, rng: autoregression(n, 0.9, rng),
    "power law, AR(.8)": lambda n, rng: 30 * (1 + np.arange(n) / (n / 100)) ** -0.5 + autoregression(n, 0.8, rng),
    "exponential, AR(.8)": lambda n, rng: 30 * np.exp(-np.arange(n) / (n / 5)) + autoregression(n, 0.8, rng),
    "steep power law, AR(.8)": lambda n, rng: 300 * (1 + np.arange(n)) ** -0.5 + autoregression(n, 0.8, rng),
    "power law, AR(.3) t(3)": lambda n, rng: (
        30 * (1 + np.arange(n) / (n / 100)) ** -0.5 + autoregression(n, 0.3, rng, heavy=True)
    ),
    "logarithm, AR(.5)": lambda n, rng: -5 * np.log1p(np.arange(n)) + autoregression(n, 0.5, rng),
    "cosine schedule, AR(.5)": lambda n, rng: 10 * np.cos(np.pi * np.arange(n) / n) + autoregression(n, 0.5, rng),
    "warm-up bump, AR(.5)": lambda n, rng: (
        5 * np.exp(-0.5 * ((np.arange(n) / n - 0.15) / 0.1) ** 2) + autoregression(n, 0.5, rng)
    ),
    "epochs, iid": lambda n, rng: 2 * np.sin(40 * np.pi * np.arange(n) / n) + rng.standard_normal(n),
    "relaxation, AR(.5)": _relaxation,
    "held for 10 rows": lambda n, rng: np.repeat(rng.standard_normal(n // 10), 10),
    "success of 0 and 1": lambda n, rng: rng.binomial(1, 0.3, n).astype(float),
    "rounded to 2 sd": lambda n, rng: np.round(rng.standard_normal(n) / 2),
    "zero in 70 %": lambda n, rng: rng.binomial(1, 0.3, n) * np.abs(rng.standard_normal(n)),
}


def null_table(sizes: list[int], repeats: int, names: list[str]) -> None:
    """Share of series with any change point."""
    bound = binom.ppf(0.95, repeats, 0.05) / repeats
    print(f"{repeats} series a line; a rate of 5 % stays below {bound:.3f} in 95 of 100 tables")
    for n in sizes:
        for name in names:
            began = time.process_time()
            kinds = {"level": 0, "slope": 0, "variance": 0}
            hits = 0
            for r in range(repeats):
                y = NULLS[name](n, np.random.default_rng([20261130, n, r]))
                found = change_points(y)
                which = list(zip(found.rows, found.intervals, found.kind, strict=True))
                if name.startswith("relaxation"):
                    which = [w for w in which if not n // 2 - n // 50 <= w[0] <= n // 2 + n // 10]
                hits += bool(which)
                for kind in {w[2] for w in which}:
                    kinds[kind] += 1
            each = ", ".join(f"{k} {v / repeats:.3f}" for k, v in kinds.items())
            cost = 1e3 * (time.process_time() - began) / repeats
            print(f"{n:6d}  {name:26s} any {hits / repeats:.3f}  ({each})  {cost:.1f} ms", flush=True)


def _with_change(kind: str, n: int, rng: np.random.Generator) -> tuple[Floats, int]:
    x = autoregression(n, 0.5, rng)
    at = int(rng.integers(int(0.2 * n), int(0.8 * n)))
    t = np.arange(n)
    if kind == "shift of 1.5 sd":
        return x + 1.5 * (t >= at), at
    if kind == "variance times 4":
        return x * np.where(t >= at, 2.0, 1.0), at
    at = n // 2 if kind.endswith("middle") else at
    slope = 10 / (n / 2)
    return x + slope * t - 0.5 * slope * np.maximum(t - at, 0), at


def kink_bound(n: int = 2000, phi: float = 0.5, reach: float = 50.0) -> None:
    """How often any unbiased placement of the kink of `_with_change` can be within `reach` rows.

    Cramer-Rao, exact for normal AR(1) noise of known memory: the derivative of the mean by the place of the kink,
    projected off level, slope and size (all three unknown), in whitened coordinates. The place of a normal estimate
    of that variance lies within `reach` rows with the probability printed.
    """
    t = np.arange(n, dtype=float)
    change = 10.0 / n  # half of the slope of 10 sd in n / 2 rows

    def white(v: Floats) -> Floats:
        return np.concatenate([v[:1], (v[1:] - phi * v[:-1]) / np.sqrt(1 - phi**2)])

    def sd(at: int) -> float:
        q, _ = np.linalg.qr(np.column_stack([white(v) for v in (np.ones(n), t / n, np.maximum(t - at, 0) / n)]))
        slope = white(change * (t >= at))
        slope -= q @ (q.T @ slope)
        return float(1 / np.sqrt(slope @ slope))

    middle = sd(n // 2)
    places = range(int(0.2 * n), int(0.8 * n), 10)
    near = np.mean([2 * norm.cdf(reach / sd(at)) - 1 for at in places])
    print(
        f"Cramer-Rao: the place of the kink in the middle has a sd of {middle:.1f} rows or more, so it is within"
        f" {reach:g} rows at most {2 * norm.cdf(reach / middle) - 1:.3f} of the time; anywhere in the middle 60 %:"
        f" {near:.3f}"
    )


def _best_possible(y: Floats, at: int, reach: int = 50) -> bool:
    """Whether least squares that is told there is one kink, and nothing else, finds it within `reach` rows."""
    n = y.shape[0]
    t = np.arange(n, dtype=float)
    line = np.column_stack([np.ones(n), t - t.mean()])
    q, _ = np.linalg.qr(line)
    places = np.arange(n // 20, n - n // 20, 4)
    kinks = np.maximum(t[None] - places[:, None], 0)
    kinks = kinks - (kinks @ q) @ q.T
    gain = (kinks @ y) ** 2 / np.sum(kinks**2, axis=1)
    return bool(abs(int(places[np.argmax(gain)]) - at) <= reach)


def power_table(repeats: int) -> None:
    """AR(.5) of unit marginal sd, 2,000 rows: found within 50 rows, location error, coverage of the intervals."""
    n = 2000
    for kind in ("shift of 1.5 sd", "variance times 4", "slope halves, middle", "slope halves, anywhere"):
        found_any, near, errors, covered, extra, oracle = 0, 0, [], 0, 0, 0
        for r in range(repeats):
            y, at = _with_change(kind, n, np.random.default_rng([7, r]))
            found = change_points(y)
            if kind.startswith("slope"):
                oracle += _best_possible(y, at)
            if not len(found):
                continue
            i = int(np.argmin(np.abs(found.rows - at)))
            distance = abs(int(found.rows[i]) - at)
            found_any += 1
            extra += len(found) - 1
            near += distance <= 50
            covered += bool(found.intervals[i][0] <= at < found.intervals[i][1])
            errors.append(distance)
        line = (
            f"{kind:24s} found {found_any / repeats:.3f}, within 50 rows {near / repeats:.3f}, median error"
            f" {np.median(errors):.0f}, interval covers {covered / max(found_any, 1):.3f}, others {extra / repeats:.3f}"
        )
        if kind.startswith("slope"):
            line += f"; least squares told of one kink: within 50 rows {oracle / repeats:.3f}"
        print(line, flush=True)


def tcpd_table() -> None:
    """F1 (margin 5) and covering on the univariate TCPD series handed out, and of ruptures' PELT beside."""
    if not (TCPD / "annotations.json").exists():
        print("the TCPD series are not on this machine")
        return
    methods = {
        "calibrated default": {},
        "sensitivity annotation": {"sensitivity": "annotation"},
        "ruptures PELT, 2 log n": {"method": "pelt"},
    }
    scores = {name: tcpd_scores(TCPD, **options) for name, options in methods.items()}
    scores["none at all"] = {name: _scores(marks, [], n) for name, marks, n, _ in tcpd_series(TCPD)}
    print(f"{'':24s} " + " ".join(f"{name[:12]:>12s}" for name in scores["none at all"]) + "         mean")
    for method, each in scores.items():
        f1, cover = np.mean(list(each.values()), axis=0)
        cells = " ".join(f"  {f:.3f}/{c:.3f}" for f, c in each.values())
        print(f"{method:24s} {cells}  {f1:.3f}/{cover:.3f}")


TCPD = Path(__file__).parents[3] / "shared" / "data" / "changepoints"
Marks = dict[str, list[int]]


def tcpd_series(root: Path) -> Iterator[tuple[str, Marks, int, Floats]]:
    """Name, annotations, length and values of each univariate series."""
    annotations = json.loads((root / "annotations.json").read_text())
    for path in sorted(root.glob("*.json")):
        data = json.loads(path.read_text())
        if "series" in data and data["n_dim"] == 1:
            values = np.array(data["series"][0]["raw"], dtype=float)
            yield data["name"], annotations[data["name"]], int(data["n_obs"]), values


def tcpd_scores(root: Path, **options: Any) -> dict[str, tuple[float, float]]:
    """F1 and covering by series of `change_points` with these options."""
    return {
        name: _scores(marks, change_points(y, **options).rows.tolist(), n) for name, marks, n, y in tcpd_series(root)
    }


def _scores(marks: Marks, found: list[int], n: int, margin: int = 5) -> tuple[float, float]:
    """F1 and covering of van den Burg & Williams (2020, arXiv 2003.06222), section 4: 0 is a change point of all."""
    mine = {0, *found}
    sets = [{0, *m} for m in marks.values()]
    union = set().union(*sets)
    precision = len(_matched(union, mine, margin)) / len(mine)
    recall = float(np.mean([len(_matched(s, mine, margin)) / len(s) for s in sets]))
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return f1, float(np.mean([_covering(s, mine, n) for s in sets]))


def _matched(truth: set[int], found: set[int], margin: int) -> set[int]:
    """Marks that have a found change within the margin, each found change used once."""
    left, out = set(found), set()
    for mark in sorted(truth):
        near = [f for f in left if abs(f - mark) <= margin]
        if near:
            left.remove(min(near, key=lambda f: abs(f - mark)))
            out.add(mark)
    return out


def _covering(truth: set[int], found: set[int], n: int) -> float:
    """Mean over the true segments, by length, of the best overlap (Jaccard) with a found one."""
    total = 0.0
    theirs = list(pairwise(sorted(found | {n})))
    for a, b in pairwise(sorted(truth | {n})):
        best = max(max(0, min(b, d) - max(a, c)) / (max(b, d) - min(a, c)) for c, d in theirs)
        total += (b - a) * best
    return total / n


def relaxation_table(repeats: int, n: int = 1000) -> None:
    """A fall in the middle that takes its time: found within 60 rows, how late it is dated, what else is found."""
    t = np.arange(n)
    for size, tau in ((8.0, 40.0), (4.0, 40.0), (4.0, 20.0)):
        late, extra = [], 0
        for r in range(repeats):
            curve = -size * (t >= n // 2) * (1 - np.exp(-(t - n // 2) / tau))
            found = change_points(curve + autoregression(n, 0.5, np.random.default_rng([5, r])))
            near = [int(row) - n // 2 for row in found.rows if abs(row - n // 2) < 60]
            late += near[:1]
            extra += len(found) - len(near[:1])
        print(
            f"relaxes by {size:g} sd, tau {tau:g}   found {len(late) / repeats:.3f}, median lateness"
            f" {np.median(late):.0f} rows, others {extra / repeats:.3f}",
            flush=True,
        )


def channels_table(repeats: int) -> None:
    """Twenty channels of AR(.5), 1,500 rows: a null, one channel moves by 2 sd, all move by 0.6 sd."""
    for name, size, moved in (("null", 0.0, 0), ("one of 20 by 2 sd", 2.0, 1), ("all 20 by 0.6 sd", 0.6, 20)):
        any_found = near = right = covered = 0
        for r in range(repeats):
            rng = np.random.default_rng([11, r])
            y = np.column_stack([autoregression(1500, 0.5, rng) for _ in range(20)])
            y[900:, :moved] += size
            found = change_points(y)
            any_found += len(found) > 0
            hit = [c for row, c in zip(found.rows, found.channels, strict=True) if abs(row - 900) <= 50]
            covered += bool(hit) and any(low <= 900 < high for low, high in found.intervals)
            near += bool(hit)
            right += any("x0" in c for c in hit)
        print(
            f"{name:20s} any {any_found / repeats:.3f}, within 50 rows {near / repeats:.3f},"
            f" names x0 {right / repeats:.3f}, interval covers {covered / max(near, 1):.3f}",
            flush=True,
        )


def main() -> None:
    """Print the tables that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["null", "power", "channels", "tcpd", "all"])
    parser.add_argument("sizes", nargs="*", type=int, default=[200, 1000, 5000, 20000])
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--families", nargs="*", default=list(NULLS))
    options = parser.parse_args()
    if options.what in ("null", "all"):
        null_table(options.sizes, options.repeats, options.families)
    if options.what in ("power", "all"):
        power_table(options.repeats)
        kink_bound()
        relaxation_table(options.repeats)
    if options.what in ("tcpd", "all"):
        tcpd_table()
    if options.what in ("channels", "all"):
        channels_table(max(options.repeats // 5, 1))


if __name__ == "__main__":
    main()
