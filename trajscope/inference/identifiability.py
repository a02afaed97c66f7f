r"""What may be said about a meta-state: is it a property of the runs, or of the fit?

Six parts, each pass, fail or cannot test, with its number, null and threshold:

1. *dimension*: parallel analysis (circular and phase surrogates), held-out prediction, and the number of directions
   that are found again in other runs agree within one, and the dimension claimed is one of theirs;
2. *structure*: the parameters are known up to an invertible map of the states, every state is observed and driven;
3. *refit*: fits on disjoint runs find the same space (held-out canonical correlations, principal angles);
4. *practical*: profile likelihoods of eigenvalues and noise share are closed;
5. *prediction*: in runs left out it forecasts the next row better than every channel's own past does;
6. *ablation*: the deviation D is not that of one channel.

A likelihood that two fits share is no evidence, nor is the agreement of refits from other starts on the same rows:
white noise passes that. Beside the parts stand the *axes* (can single coordinates be told apart?), refits from other
seeds, the Fisher spectrum and, where runs of other domains are given, whether the state of one is the state of another.

Definitions: trajscope's own. The equivalence class of linear state spaces is GL(k): see `_ident_structure`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trajscope._core.kalman import Model
from trajscope._core.surrogates import as_generator
from trajscope.errors import InputError
from trajscope.inference._ident_ablation import Ablation, ablation
from trajscope.inference._ident_axes import Axes, Seeds, axes_of, seed_refits
from trajscope.inference._ident_cross import Crossing, cross_domain
from trajscope.inference._ident_dimension import Dimension, dimension_rules
from trajscope.inference._ident_model import Reading, model_of
from trajscope.inference._ident_parts import Part, part_axes, part_cross, parts_of, statement_of
from trajscope.inference._ident_predict import Prediction, prediction
from trajscope.inference._ident_profile import Profile, profiles
from trajscope.inference._ident_progress import progress_line
from trajscope.inference._ident_refit import Repeat, repeatability
from trajscope.inference._ident_rows import Rows, prepare
from trajscope.inference._ident_structure import Structure, structure_of
from trajscope.result import Result, make_provenance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Identifiability", "Part", "identifiability"]

LOW_DIMENSIONAL = 3
"""States that may be called low-dimensional, if they are fewer than half of the channels too."""


@dataclass(frozen=True, eq=False)
class Identifiability(Result):
    """What may be said about a meta-state.

    Attributes
    ----------
    estimator : str
    n_components, n_channels, n_runs, n_rows : int
    parts : tuple of Part
        Six, in order.
    beside : tuple of Part
        Axes; other domains, where given.
    verdict : {"identifiable", "not identifiable", "cannot tell"}
        All parts pass; one fails; none fails but not all could be tested.
    low_dimensional : bool or None
        At most three states and fewer than half of the channels, part 1 passed; None where part 1 could not be tested.
    statement : str
        One paragraph: which subspace, axes and dimension, over which runs.
    repeat, dimension, structure, profiles, prediction, ablation, axes, seeds, cross
        Details of each part; a string says why there are none.
    """

    plot_name = "identifiability"

    estimator: str
    n_components: int
    n_channels: int
    n_runs: int
    n_rows: int
    parts: tuple[Part, ...]
    beside: tuple[Part, ...]
    verdict: str
    low_dimensional: bool | None
    statement: str
    repeat: Repeat | str = field(repr=False)
    dimension: Dimension | str = field(repr=False)
    structure: Structure | str = field(repr=False)
    profiles: list[Profile] | str = field(repr=False)
    prediction: Prediction | str = field(repr=False)
    ablation: Ablation | str = field(repr=False)
    axes: Axes | str = field(repr=False)
    seeds: Seeds | None = field(repr=False)
    cross: tuple[Crossing, ...] = field(repr=False)

    def to_frame(self, *, beside: bool = False) -> pd.DataFrame:
        """One row a part: ``part name verdict statistic null threshold measure flags note``.

        Parameters
        ----------
        beside : bool, default False
            Axes and other domains too (part 0).
        """
        import pandas as pd

        chosen = self.parts + (self.beside if beside else ())
        rows = [
            {
                "part": p.number, "name": p.name, "verdict": p.verdict, "statistic": p.statistic, "null": p.null,
                "threshold": p.threshold, "measure": p.measure, "flags": "; ".join(p.flags), "note": p.note,
            }
            for p in chosen
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def part(self, name: int | str) -> Part:
        """A part by number or name."""
        for p in self.parts + self.beside:
            if name in (p.number, p.name):
                return p
        known = [p.name for p in self.parts + self.beside]
        raise InputError(f"there is no part {name!r}; expected 1 to 6 or one of {known}.")

    def summary(self) -> str:
        """The statement, then a line a part."""
        lines = [self.statement, ""]
        for p in self.parts + self.beside:
            head = f"{p.number} {p.name}" if p.number else f"- {p.name}"
            lines.append(f"{head}: {p.verdict}. {p.note}" + "".join(f" Flag: {f}." for f in p.flags))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Statement and table, for notebooks."""
        table = self.to_frame(beside=True).to_html(index=False, float_format=lambda v: f"{v:.3g}")
        return f"<p>{escape(self.statement)}</p>{table}"


def identifiability(
    estimator: Any,
    runs: Any,
    *,
    other: Mapping[str, Any] | None = None,
    split: Literal["run", "block"] = "run",
    n_blocks: int = 4,
    n_splits: int = 5,
    n_surrogates: int | None = None,
    n_boot: int | None = None,
    n_seeds: int = 4,
    progress: bool | None = None,
    rng: int | np.random.Generator | None = None,
) -> Identifiability:
    """Test in six parts whether a meta-state is identified by the runs.

    Parameters
    ----------
    estimator : PCAState, SlowFeatures, LinearStateSpace, or one with their interface
        Not changed; a fitted one is fitted anew. Its ``n_components`` is the dimension that is claimed.
    runs : array, DataFrame or trajectory of shape (n_steps, n_channels), or a list of them
        Healthy (baseline) rows; NaN where nothing was logged. Parts 3 and 5 need two runs or more.
    other : mapping of str to runs, optional
        Runs of other domains, with the same channels: is the state of these runs the state of those?
    split : {"run", "block"}, default "run"
        What halves are made of. Blocks of one run are not independent; the result says that they were used.
    n_blocks : int, default 4
        Blocks a run is cut into with ``split="block"``.
    n_splits : int, default 5
        Random halvings.
    n_surrogates : int, optional
        Of each kind (circular shifts, phases); at least 19. Default 39, or 19 for an estimator that iterates.
    n_boot : int, optional
        Simulated data sets behind the gap test of axes; at least 19. Default 99, or 39 for one that iterates.
    n_seeds : int, default 4
        Refits of the same rows from other seeds (no evidence; reported).
    progress : bool, optional
        Show a bar on standard error; by default where that is a terminal.
    rng : int, Generator or None, default None (seed 0)

    Returns
    -------
    Identifiability

    Raises
    ------
    InputError
        No such estimator or option, runs with different channels.
    NotEnoughData
        No run with 20 rows, fewer than three channels that move.

    Examples
    --------
    >>> from trajscope.metastate import PCAState
    >>> rng = np.random.default_rng(0)
    >>> found = identifiability(PCAState(2), [rng.normal(size=(200, 5)) for _ in range(4)], n_surrogates=19, n_boot=19)
    >>> found.verdict, found.part("refit").verdict
    ('not identifiable', 'fail')
    """
    slow = hasattr(estimator, "max_iter")
    n_surrogates = (19 if slow else 39) if n_surrogates is None else n_surrogates
    n_boot = (39 if slow else 99) if n_boot is None else n_boot
    for name, value, least in (
        ("n_splits", n_splits, 1),
        ("n_surrogates", n_surrogates, 19),
        ("n_boot", n_boot, 19),
        ("n_seeds", n_seeds, 2),
    ):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise InputError(f"{name} is {value!r}; expected a whole number of {least} or more.")
    rows = prepare(estimator, runs, split, n_blocks)
    streams = as_generator(rng).spawn(6)
    with progress_line(progress) as report:
        repeat = repeatability(
            estimator, rows, n_splits=n_splits, n_surrogates=n_surrogates, rng=streams[0], report=report
        )
        again = repeat.dimension if isinstance(repeat, Repeat) else None
        dimension = dimension_rules(rows, again, n_surrogates=n_surrogates, rng=streams[1], report=report)
        reading = _read(rows)
        structure: Structure | str
        found: list[Profile] | str
        axes: Axes | str
        if isinstance(reading, str):
            structure = found = reading
            axes = "the state cannot be read as a state space"
        else:
            structure = structure_of(_padded(reading.model, rows.k), float(sum(x.shape[0] for x in rows.xs)))
            found = profiles(reading, rows.xs, report=report)
            tested = repeat if isinstance(repeat, Repeat) else None
            axes = axes_of(estimator, rows, reading.model, tested, n_boot=n_boot, rng=streams[2], report=report)
        ahead = prediction(estimator, rows, rng=streams[3], report=report)
        dropped = ablation(estimator, rows, report=report)
        seeds = seed_refits(estimator, rows, n_seeds=n_seeds, report=report)
        crossed = tuple(
            cross_domain(estimator, rows, name, theirs, n_surrogates=n_surrogates, rng=streams[4], report=report)
            for name, theirs in (other or {}).items()
        )
    parts = parts_of(rows.k, dimension, structure, repeat, found, ahead, dropped)
    beside = (part_axes(axes), *(part_cross(c) for c in crossed))
    verdicts = [p.verdict for p in parts]
    verdict = (
        "not identifiable" if "fail" in verdicts else "cannot tell" if "cannot test" in verdicts else "identifiable"
    )
    low = dimension.passed and 1 <= rows.k <= LOW_DIMENSIONAL and 2 * rows.k < rows.n_channels
    parameters = {
        "estimator": repr(estimator), "split": split, "n_blocks": n_blocks, "n_splits": n_splits,
        "n_surrogates": n_surrogates, "n_boot": n_boot, "n_seeds": n_seeds,
    }  # fmt: skip
    return Identifiability(
        type(estimator).__name__,
        rows.k,
        rows.n_channels,
        len(rows.xs),
        sum(x.shape[0] for x in rows.xs),
        parts,
        beside,
        verdict,
        low,
        statement_of(type(estimator).__name__, rows, parts, beside, verdict, repeat, found, axes),
        repeat,
        dimension,
        structure,
        found,
        ahead,
        dropped,
        axes,
        seeds,
        crossed,
        provenance=make_provenance(
            "identifiability", parameters, *rows.xs, seed=0 if rng is None else rng if isinstance(rng, int) else None
        ),
    )


def _read(rows: Rows) -> Reading | str:
    """The estimator on all runs as a state space, or why that cannot be had."""
    if rows.k == 0:
        return "the estimator found no component"
    try:
        return model_of(rows.fitted, rows.xs)
    except (np.linalg.LinAlgError, ValueError) as problem:
        return f"no state space could be fitted to its states ({problem})"


def _padded(model: Model, k: int) -> Model:
    """With states that no channel shows, as many as the loadings lack dimensions."""
    lost = k - model.k
    if lost <= 0:
        return model
    a, q = np.zeros((k, k)), np.eye(k)
    a[: model.k, : model.k], q[: model.k, : model.k] = model.a, model.q
    return Model.stationary(a, np.pad(model.c, ((0, 0), (0, lost))), q, model.r)
