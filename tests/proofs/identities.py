"""x_grad without a logged cosine: every identity against what the recorded runs logged, on held-out seeds.

    OMP_NUM_THREADS=1 python tests/proofs/identities.py

For each domain, optimizer and source of coherence (recorded runs with events, odd seeds):

- error: median over runs of the median absolute error against the identity's *own* estimand where that was recorded
  (momentum: cosine of buffer and gradient; Adam: norm-weighted mean pairwise cosine of the last ten gradients). The
  worker identity is the definition of its estimand, nothing independent of it was recorded. Beside it what rounding of
  its inputs to float32 explains, and what four printed digits would cost.
- rank correlation with the cosine of successive gradients, row by row and over means of 20 rows (PPO: 5), median.
- changes found: a *true* change is a perturbed run whose mean successive cosine in the 20 rows (PPO: 5) after the event
  departs from its same-seed twin's by more than any of the controls' departs from its own rows before, calibration
  seeds (no audit sees the twin). The identity finds it if its own step across the event is larger than that of every
  calibration control; "false" is the share of held-out controls in which it claims one.
- rule: `x_grad`'s own dated departure (either way) within 100 rows of the event in such runs, and at any time after it in
  controls.

Nothing is tuned on the held-out runs; the number of rows was fixed before.
"""

# ruff: noqa: E402 - threads are fixed before numpy is loaded
from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import warnings
from typing import Any

import numpy as np
from scipy.stats import spearmanr

import trajscope as ts
from trajscope._core.resample import proportion_interval
from trajscope.dynamics.coherence import adam_coherence, momentum_cosine, x_grad

SOURCES = ("logged", "momentum", "adam", "workers", "descent")
OWN = {"momentum": "train/momentum_cos", "adam": "train/grad_cos_last10"}
CASES = (
    ("digits", "sgd_momentum"), ("digits", "adam"), ("digits", "rmsprop"), ("transformer", "adam"), ("cartpole", "ppo"),
)  # fmt: skip


def on(steps: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values on other steps, NaN where there are none."""
    out = np.full(steps.size, np.nan)
    _, i, j = np.intersect1d(steps, at, return_indices=True)
    out[i] = values[j]
    return out


def means(values: np.ndarray, rows: int) -> np.ndarray:
    n = values.size // rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(values[: n * rows].reshape(n, rows), axis=1)


def step_across(steps: np.ndarray, values: np.ndarray, event: float, rows: int) -> float:
    """Mean of the finite rows after the event less that of those before."""
    good = np.isfinite(values)
    steps, values = steps[good], values[good]
    k = int(np.searchsorted(steps, event))
    if k < rows or values.size - k < rows:
        return np.nan
    return float(values[k : k + rows].mean() - values[k - rows : k].mean())


def after(steps: np.ndarray, values: np.ndarray, event: float, rows: int) -> float:
    good = np.isfinite(values)
    steps, values = steps[good], values[good]
    k = int(np.searchsorted(steps, event))
    return float(values[k : k + rows].mean()) if values.size - k >= rows else np.nan


def rank(a: np.ndarray, b: np.ndarray) -> float:
    good = np.isfinite(a) & np.isfinite(b)
    if good.sum() < 10 or np.ptp(a[good]) == 0 or np.ptp(b[good]) == 0:
        return np.nan
    return float(spearmanr(a[good], b[good])[0])


def inputs(run: Any) -> tuple[np.ndarray, list[np.ndarray]] | None:
    by_role = {c.role: c for c in run.channels.values() if c.role in ("update_norm", "lr", "grad_norm")}
    if len(by_role) < 3:
        return None
    found = [by_role[r] for r in ("update_norm", "lr", "grad_norm")]
    return found[0].steps, [np.asarray(c.values, dtype=np.float64) for c in found]


def rounding(source: str, run: Any, digits: int | None) -> float:
    """Median change of the identity when its inputs are rounded again, to float32's spacing or to decimal digits."""
    got = inputs(run)
    if got is None or source not in OWN:
        return np.nan
    _, values = got
    rng = np.random.default_rng(0)
    if digits is None:
        other = [v * (1 + rng.uniform(-1, 1, v.size) * 2.0**-24) for v in values]
    else:
        other = [np.array([float(f"{x:.{digits}g}") for x in v]) for v in values]

    def both(v: list[np.ndarray]) -> np.ndarray:
        if source == "momentum":
            return momentum_cosine(*v, float(run.config["beta"]))
        return adam_coherence(*v, float(run.config["n_parameters"]))

    return float(np.nanmedian(np.abs(both(values) - both(other))))


def examine(domain: str, algorithm: str) -> list[dict[str, Any]]:
    data = ts.load_dataset(domain)
    labels = data.labels
    labels = labels[(labels.algorithm == algorithm) & (labels.purpose == "arms")]
    rows = 5 if domain == "cartpole" else 20
    control = labels.arm == "control"
    default = float(labels[~control].injection_step.median())
    held, calibration = labels[labels.split == "heldout"], labels[labels.split == "calibration"]
    runs = {r: data.run(r) for r in labels.run}
    out = []
    base: dict[str, Any] = {}  # the successive cosine of every run
    for name, run in runs.items():
        base[name] = x_grad(run, source="logged")

    def null(source: str) -> float:
        steps = []
        for r in calibration[calibration.arm == "control"].itertuples():
            got = x_grad(runs[r.run], source=source)
            steps.append(abs(step_across(got.steps, got.values, default, rows)) if got.steps.size else np.nan)
        return float(np.nanmax(steps)) if np.isfinite(steps).any() else np.nan

    limit_logged = null("logged")
    for source in SOURCES:
        reason = x_grad(runs[held.run.iloc[0]], source=source)
        entry: dict[str, Any] = {"domain": domain, "optimizer": algorithm, "source": source, "status": reason.status}
        if reason.status == "unavailable":
            entry["reason"] = reason.reason
            out.append(entry)
            continue
        entry["reason"] = reason.reason
        limit = null(source)
        errors, single, printed, raw, smooth = [], [], [], [], []
        found = true = false = controls = rule = rule_false = 0
        strides = []
        for r in held.itertuples():
            run = runs[r.run]
            got, cos = x_grad(run, source=source), base[r.run]
            mine = on(cos.steps, got.steps, got.values)
            if source in OWN:
                own = run.channels[OWN[source]]
                errors.append(np.nanmedian(np.abs(on(own.steps, got.steps, got.values) - own.values)))
                single.append(rounding(source, run, None))
                printed.append(rounding(source, run, 4))
            raw.append(rank(mine, cos.values))
            smooth.append(rank(means(mine, rows), means(cos.values, rows)))
            stride = float(np.median(np.diff(got.steps)))
            strides.append(stride)
            event = default if r.arm == "control" else float(r.injection_step)
            claimed = abs(step_across(got.steps, got.values, event, rows)) > limit
            dates = [d for d in (got.drop, got.rise) if d is not None and d >= event]
            if r.arm == "control":
                controls += 1
                false += claimed
                rule_false += bool(dates)
            else:
                twin = base.get(r.twin)
                if twin is None:
                    continue
                gap = after(cos.steps, cos.values, event, rows) - after(twin.steps, twin.values, event, rows)
                if abs(gap) > limit_logged:
                    true += 1
                    found += claimed
                    rule += any(d <= event + 100 * stride for d in dates)
        low, high = proportion_interval(found, true)
        entry |= {
            "runs": len(held), "error": np.nanmedian(errors) if errors else np.nan,
            "float32": np.nanmedian(single) if single else np.nan,
            "printed": np.nanmedian(printed) if printed else np.nan, "rank": np.nanmedian(raw),
            "rank_means": np.nanmedian(smooth), "true": true, "found": found, "low": low, "high": high,
            "false": false, "controls": controls, "rule": rule, "rule_false": rule_false,
        }  # fmt: skip
        out.append(entry)
    return out


def smoothing() -> None:
    """Calibration seeds: what judging the mean of rows, where single rows scatter too much, changes."""
    print("\nLogged cosine, calibration seeds: a departure after the event in harmed runs, any departure in controls")
    for domain, algorithm in CASES:
        data = ts.load_dataset(domain)
        labels = data.labels
        labels = labels[(labels.algorithm == algorithm) & (labels.purpose == "arms") & (labels.split == "calibration")]
        controls = [data.run(r) for r in labels[labels.arm == "control"].run]
        harmed = labels[(labels.arm != "control") & labels.harmed.fillna(False).astype(bool)]
        cells = []
        for name, options in (("single rows", {"smooth": 1}), ("default", {})):
            found = 0
            for r in harmed.itertuples():
                got = x_grad(data.run(r.run), source="logged", **options)
                dates = [d for d in (got.drop, got.rise) if d is not None]
                found += bool(dates) and min(dates) >= r.injection_step
            judged = [x_grad(run, source="logged", **options) for run in controls]
            false = sum(g.drop is not None or g.rise is not None for g in judged)
            cells.append(f"{name}: {found}/{len(harmed)}, controls {false}/{len(controls)}")
        print(f"  {domain:<12}{algorithm:<14}{'   '.join(cells)}")


def main() -> None:
    print(__doc__)
    head = (
        f"{'domain':<12}{'optimizer':<14}{'source':<10}{'runs':>5}{'error':>10}{'float32':>9}{'4 digits':>9}{'rank':>7}"
        f"{'rank/20':>8}  {'changes found':<26}{'false':>8}{'rule found':>12}{'rule false':>12}"
    )
    print(head)
    print("-" * len(head))
    reasons = []
    for domain, algorithm in CASES:
        for e in examine(domain, algorithm):
            start = f"{domain:<12}{algorithm:<14}{e['source']:<10}"
            if e["status"] == "unavailable":
                print(f"{start}  unavailable: {e['reason'][:90]}")
                continue
            if e["reason"]:
                reasons.append(f"{domain}, {algorithm}, {e['source']}: {e['status']}, {e['reason']}")
            share = f"{e['found']}/{e['true']} [{e['low']:.2f}, {e['high']:.2f}]" if e["true"] else "no true change"
            cells = [f"{e[k]:.1e}" if np.isfinite(e[k]) else "-" for k in ("error", "float32", "printed")]
            false = f"{e['false']}/{e['controls']}"
            print(
                f"{start}{e['runs']:>5}{cells[0]:>10}{cells[1]:>9}{cells[2]:>9}{e['rank']:>7.2f}{e['rank_means']:>8.2f}"
                f"  {share:<26}{false:>8}{e['rule']:>8}/{e['true']:<3}{e['rule_false']:>8}/{e['controls']:<3}"
            )
    for text in reasons:
        print(text)
    smoothing()


if __name__ == "__main__":
    main()
