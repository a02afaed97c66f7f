"""Verdicts of the parts from their numbers, and the paragraph that says what they amount to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trajscope.inference._ident_ablation import LEAST_RANK, Ablation
from trajscope.inference._ident_axes import Axes
from trajscope.inference._ident_cross import Crossing
from trajscope.inference._ident_dimension import Dimension
from trajscope.inference._ident_predict import Prediction
from trajscope.inference._ident_profile import Profile
from trajscope.inference._ident_refit import LEAST_CORRELATION, Repeat
from trajscope.inference._ident_rows import Rows
from trajscope.inference._ident_structure import Structure

__all__ = ["Part", "part_axes", "part_cross", "parts_of", "statement_of"]

Verdict = Literal["pass", "fail", "cannot test"]

NAN = float("nan")


@dataclass(frozen=True)
class Part:
    """One part of the report.

    Attributes
    ----------
    number : int
        1 to 6; 0 for what stands beside them.
    name : str
    verdict : {"pass", "fail", "cannot test"}
    statistic, null, threshold : float
        What was measured, what it is where there is nothing to find, and what it has to exceed; NaN where there is
        none.
    measure : str
        What the statistic is.
    note : str
        One sentence.
    flags : tuple of str
    """

    number: int
    name: str
    verdict: Verdict
    statistic: float
    null: float
    threshold: float
    measure: str
    note: str
    flags: tuple[str, ...] = ()


def _untested(number: int, name: str, measure: str, why: str) -> Part:
    return Part(number, name, "cannot test", NAN, NAN, NAN, measure, f"Cannot test: {why}.")


def _told(passed: bool) -> Verdict:
    return "pass" if passed else "fail"


def parts_of(
    k: int,
    dimension: Dimension,
    structure: Structure | str,
    repeat: Repeat | str,
    found: list[Profile] | str,
    ahead: Prediction | str,
    dropped: Ablation | str,
) -> tuple[Part, ...]:
    """The six parts, in order."""
    return (
        _dimension(dimension),
        _structure(structure, k),
        _refit(repeat, k),
        _profiles(found),
        _prediction(ahead),
        _ablation(dropped),
    )


def _dimension(d: Dimension) -> Part:
    said = ", ".join(f"{name} {n}" for name, n in d.rules.items())
    spread = max(d.rules.values()) - min(d.rules.values())
    note = f"{d.claimed} claimed; {said}."
    flags: tuple[str, ...] = ()
    if d.stability.size:
        best = int(np.argmax(d.stability))
        note += f" Runs drawn anew: {best} in {d.stability[best]:.0%}."
        if d.stability[best] < 0.8:
            flags = (f"the dimension depends on which runs are in ({best} in {d.stability[best]:.0%} of samples)",)
    if min(d.rules.values()) == 0:
        note += " A rule sees nothing that channels share."
    elif spread > 1:
        note += " The rules are more than one apart: these data do not settle the dimension."
    return Part(1, "dimension", _told(d.passed), float(spread), NAN, 1.0, "spread of the rules", note, flags)


def _structure(s: Structure | str, k: int) -> Part:
    name, measure = "structure", "null space of the moments' Jacobian"
    if isinstance(s, str):
        return _untested(2, name, measure, s)
    note = f"Known up to GL({k})" if s.passed else f"Null space {s.null_space}, {k * k} would be GL({k}) alone"
    note += f"; weakest state {s.signal.min():.2g} against {s.edge[np.argmin(s.signal)]:.2g} for noise"
    note += f"; information over {s.sloppiness:.1f} decades."
    if s.unobserved:
        note += f" No channel shows state {', '.join(str(j + 1) for j in s.unobserved)} beyond noise."
    return Part(2, name, _told(s.passed), float(s.null_space), float(k * k), float(k * k), measure, note)


def _refit(r: Repeat | str, k: int) -> Part:
    name, measure = "refit", "weakest held-out canonical correlation"
    if isinstance(r, str):
        return _untested(3, name, measure, r)
    every = [s for v in r.null.values() for s in v]
    mean = float(np.mean([s.canonical.min() for s in every]))
    null_cos2 = float(np.mean([s.cos2 for s in every]))
    mcc = float(np.mean([s.mcc for s in r.splits])) - float(np.mean([s.mcc for s in every]))
    first = float(np.mean([s.canonical.max() for s in r.splits])) - float(np.mean([s.canonical.max() for s in every]))
    moved = float(np.mean([s.eigenvalues for s in r.splits]))
    what = "runs" if r.split == "run" else "blocks of runs, which are not independent"
    note = (
        f"Halves of {r.n_pieces} {what}: {r.dimension} of {k} directions found again; cos2 {r.cos2:.2f} (null"
        f" {null_cos2:.2f}, 95 % {r.cos2_threshold:.2f}); over the null, first canonical correlation {first:+.2f} and"
        f" MCC {mcc:+.2f}; eigenvalues differ by {moved:.3f}."
    )
    flags = ("block split",) if r.split == "block" else ()
    threshold = max(LEAST_CORRELATION, r.kth_threshold)
    return Part(3, name, _told(r.passed), r.kth, mean, threshold, measure, note, flags)


def _profiles(found: list[Profile] | str) -> Part:
    name, measure = "practical", "profiles that are closed"
    if isinstance(found, str):
        return _untested(4, name, measure, found)
    closed = sum(p.shape == "finite" for p in found)
    note = "; ".join(
        f"{p.name} {p.estimate:.3f} [{p.low:.3f}, {p.high:.3f}]" + ("" if p.shape == "finite" else f" {p.shape}")
        for p in found
    )
    n = float(len(found))
    return Part(4, name, _told(closed == len(found)), float(closed), NAN, n, measure, note + ".")


def _prediction(a: Prediction | str) -> Part:
    name, measure = "prediction", "held-out log score over the better rival, a cell"
    if isinstance(a, str):
        return _untested(5, name, measure, a)
    note = (
        f"Score {a.state:.3f}; each channel's own past {a.autoregression:.3f}, random walk {a.random_walk:.3f};"
        f" gain {a.gain:+.4f}, at least {a.low:+.4f} (95 %, {a.n} held-out parts)."
    )
    return Part(5, name, _told(a.passed), a.gain, 0.0, a.gain - a.low, measure, note)


def _ablation(a: Ablation | str) -> Part:
    name, measure = "ablation", "smallest rank correlation of D"
    if isinstance(a, str):
        return _untested(6, name, measure, a)
    values = np.nan_to_num(a.rank_correlation)
    worst = int(np.argmin(values))
    note = f"Smallest without {a.names[worst]}: {values[worst]:.2f}; largest leverage {a.leverage.max():.2f}"
    note += f" ({a.names[int(np.argmax(a.leverage))]})."
    flags = tuple(f"duplicates: {', '.join(g)}" for g in a.duplicates)
    if a.drivers:
        flags += (f"a direction of the state is driven by {', '.join(a.drivers)} alone",)
    return Part(6, name, _told(a.passed), float(values[worst]), NAN, LEAST_RANK, measure, note, flags)


def part_axes(a: Axes | str) -> Part:
    """Beside the parts: single axes."""
    name, measure = "axes", "smallest gap over its limit"
    if isinstance(a, str):
        return _untested(0, name, measure, a)
    if not a.gaps.size:
        note = "One state: its axis is the space."
        return Part(0, name, _told(a.passed), NAN, NAN, NAN, measure, note)
    worst = int(np.argmax(a.p_values - 1e-9 * a.gaps))
    note = (
        f"By {a.by}: gap of axes {worst + 1} and {worst + 2} {a.gaps[worst]:.2f}, p = {a.p_values[worst]:.3f} if they"
        f" were equal; single states found again with correlations from {a.found_again.min():.2f}."
    )
    ratio = float((a.gaps / np.maximum(a.limits, 1e-300))[worst])
    return Part(0, name, _told(a.passed), ratio, NAN, 1.0, measure, note)


def part_cross(c: Crossing) -> Part:
    """Beside the parts: another domain."""
    name, measure = f"carried to {c.other}", "cos2 of the subspaces"
    if c.problem:
        return _untested(0, name, measure, c.problem)
    note = (
        f"{len(c.channels)} channels; carried state {c.carried:+.4f} a cell over the channels' own past (at least"
        f" {c.carried_low:+.4f}), its own {c.own:+.4f}."
    )
    return Part(0, name, _told(c.passed), c.cos2, c.null, max(LEAST_CORRELATION, c.threshold), measure, note)


_PLAIN = {"identifiable": "is identified", "not identifiable": "is not identified", "cannot tell": "cannot be told"}


def statement_of(
    estimator: str,
    rows: Rows,
    parts: tuple[Part, ...],
    beside: tuple[Part, ...],
    verdict: str,
    repeat: Repeat | str,
    found: list[Profile] | str,
    axes: Axes | str,
) -> str:
    """One paragraph: what may be said, over which runs, and what may not."""
    total = sum(x.shape[0] for x in rows.xs)
    over = f"over {len(rows.xs)} run{'s' * (len(rows.xs) != 1)} ({total} rows, {rows.n_channels} channels)"
    by = {p.name: p for p in parts}
    if rows.k == 0:
        return f"{estimator} found no state {over}: the channels share nothing that a meta-state could carry."
    states = f"{rows.k} state{'s' * (rows.k != 1)}"
    said = [f"{estimator} with {states} {over}: the meta-state {_PLAIN[verdict]}."]
    failed = [p.name for p in parts if p.verdict == "fail"]
    untested = [p.name for p in parts if p.verdict == "cannot test"]
    if failed:
        said.append(f"It fails {' and '.join(filter(None, [', '.join(failed[:-1]), failed[-1]]))}.")
    if untested:
        said.append(f"Not tested: {', '.join(untested)}.")
    if isinstance(repeat, Repeat):
        where = "disjoint runs" if repeat.split == "run" else "other blocks of the same runs"
        if repeat.passed:
            said.append(
                f"The space that the states span may be spoken of: fits on {where} agree on it (weakest held-out"
                f" canonical correlation {repeat.kth:.2f}, null {max(repeat.kth_threshold, 0):.2f})."
            )
        else:
            said.append(
                f"The space is not one: fits on {where} agree on {repeat.dimension} of {rows.k} directions only."
            )
    else:
        said.append(f"Whether other runs have the same space is not known ({repeat}).")
    if isinstance(axes, Axes) and rows.k > 1:
        if axes.passed:
            said.append(f"Its axes, ordered by {axes.by}, may be named one by one.")
        else:
            said.append("Its axes may not be named: any rotation of them would do as well.")
    if by["dimension"].verdict == "fail":
        said.append("The dimension is not settled at this number.")
    if isinstance(found, list):
        rates = [p for p in found if p.name.startswith("eigenvalue")]
        text = ", ".join(f"{p.estimate:.3f} [{p.low:.3f}, {p.high:.3f}]" for p in rates if p.shape == "finite")
        if text:
            said.append(f"Eigenvalues of its dynamics a row: {text} (95 %).")
    for p in beside[1:]:
        does = {"pass": "holds", "fail": "does not hold", "cannot test": "could not be tested"}[p.verdict]
        said.append(f"That it is the state of {p.name.removeprefix('carried to ')} {does}.")
    flags = [f for p in parts for f in p.flags]
    if flags:
        said.append(f"Mind: {'; '.join(flags)}.")
    return " ".join(said)
