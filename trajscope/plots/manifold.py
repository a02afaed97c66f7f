"""The instability manifold with trajectories: where runs are relative to its boundary, and when they leave.

Left, every row at its radius: along the direction in which unstable runs leave (to the right), and across it everything
else. Radius and that direction are drawn exactly, so that the boundary is one half-circle: a row is outside it if and
only if its radius is. Beyond the boundary radii are compressed, r' = 1 + log(r/h), with rings that say how far. Right,
the signed distance over the run, in the same compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trajscope.errors import InputError
from trajscope.metastate._runs import is_many
from trajscope.plots.style import COLOURS, COLUMN, PAGE, literal, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trajscope.detect.manifold import InstabilityManifold

__all__ = ["ManifoldData", "draw_distance", "draw_phase", "figure_data", "plot"]

Floats = NDArray[np.float64]

_CLOUD = 1500
_RINGS = (1, 3, 10, 30, 100, 300, 1000)


@dataclass(frozen=True, eq=False)
class ManifoldData:
    """What is drawn. Radii are in units of the boundary.

    Attributes
    ----------
    along, across : list of ndarray
        Two coordinates of each run's rows; their length is the radius.
    steps : list of ndarray
    relative : list of ndarray
        Confirmed radius over the boundary: 1 on it.
    crossing : list of int or None
        Row of the first crossing.
    unstable : list of bool
    injections : list of float
        Steps to be marked; NaN or infinite for none.
    boundary : float
    certified : bool
    alpha : float
    n_healthy : int
    direction : str
        What `along` goes along.
    title : str
    """

    along: list[Floats]
    across: list[Floats]
    steps: list[NDArray[Any]]
    relative: list[Floats]
    crossing: list[int | None]
    unstable: list[bool]
    injections: list[float]
    boundary: float
    certified: bool
    alpha: float
    n_healthy: int
    direction: str
    title: str


def figure_data(
    manifold: InstabilityManifold,
    X: Any,
    *,
    group: Any = None,
    unstable: Sequence[bool] | None = None,
    injections: Sequence[float] | None = None,
    title: str = "",
) -> ManifoldData:
    """Coordinates and distances of runs.

    Parameters
    ----------
    manifold : InstabilityManifold
        Fitted.
    X : run or list of runs
    group : as in `InstabilityManifold.transform`
    unstable : sequence of bool, optional
        How each run is drawn; by default whether it crosses.
    injections : sequence of float, optional
        Steps to be marked.
    """
    each = manifold._each(X, group)
    h = manifold.boundary_
    if not h > 0:
        raise InputError("the boundary has no size (no healthy row was judged); a manifold cannot be drawn.")
    pole, direction = _pole(manifold)
    along, across, steps, relative, crossing = [], [], [], [], []
    for run, x, event in each:
        white = manifold.shape_.whitened(x)
        radius = np.sqrt((white**2).sum(axis=1))
        first = white @ pole / h
        rest = np.sqrt(np.maximum((radius / h) ** 2 - first**2, 0.0))
        first[: manifold.warmup_], rest[: manifold.warmup_] = np.nan, np.nan
        distance = manifold._distance(x, event)
        outside = np.flatnonzero(distance > 0)
        along.append(first)
        across.append(rest)
        steps.append(run.steps)
        relative.append(distance / h + 1)
        crossing.append(int(outside[0]) if outside.size else None)
    out = np.concatenate([a[np.hypot(a, b) > 1] for a, b in zip(along, across, strict=True)])
    if out.size and np.sign(out).sum() < 0:  # an eigenvector has no sign: most of what is outside goes to the right
        along = [-a for a in along]
    n = len(each)
    return ManifoldData(
        along, across, steps, relative, crossing,
        [c is not None for c in crossing] if unstable is None else list(unstable),
        [float("nan")] * n if injections is None else list(injections),
        h, manifold.certified_, manifold.alpha, int(manifold.maxima_.size), direction, title,
    )  # fmt: skip


def _pole(manifold: InstabilityManifold) -> tuple[Floats, str]:
    """Unit vector among whitened channels and what it is: the first direction of excursions, else a component."""
    if manifold.collapse_subspace_ is not None:
        vector = manifold.shape_.whitened(manifold.collapse_subspace_[:, :1].T)[0]
        name = "along the excursions"
    elif manifold.n_components_:
        vector, name = manifold.loadings_[:, 0], "along the first component"
    else:
        vector = (np.arange(manifold.n_features_in_) == np.argmax(manifold.used_)).astype(np.float64)
        name = "along the first channel"
    return np.asarray(vector / np.linalg.norm(vector)), name


def squeeze(ratio: Floats) -> Floats:
    """Radii over the boundary as drawn: themselves up to 1, then 1 + log."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(ratio > 1, 1 + np.log(np.minimum(ratio, 1e6)), ratio)


def _reach(data: ManifoldData) -> float:
    """Largest radius over the boundary that is drawn, and at least twice it."""
    radii = np.concatenate([np.hypot(a, b) for a, b in zip(data.along, data.across, strict=True)])
    return float(min(radii[np.isfinite(radii)].max(initial=2.0), 1e6))


def _rings(reach: float) -> list[int]:
    rings = [r for r in _RINGS if r <= reach]
    if rings == [1]:
        return [1, 2]
    return rings if len(rings) <= 4 else [r for r in rings if r in (1, 10, 100, 1000)]


def draw_phase(ax: Axes, data: ManifoldData) -> Axes:
    """Rows of every run about the stable set."""
    from matplotlib.patches import Wedge

    reach = _reach(data)
    top = float(squeeze(np.array([reach]))[0]) * 1.04
    ax.add_patch(Wedge((0, 0), 1, 0, 180, facecolor=COLOURS["sky"], alpha=0.25, linewidth=0, zorder=0))
    angle = np.linspace(0, np.pi, 181)
    for ring in _rings(reach):
        size = float(squeeze(np.array([float(ring)]))[0])
        own = ring == 1
        ax.plot(
            size * np.cos(angle),
            size * np.sin(angle),
            color=COLOURS["black" if own else "grey"],
            linewidth=1.0 if own else 0.4,
            linestyle="-" if own and data.certified else (0, (4, 2)),
            zorder=3 if own else 0,
        )
        if not own:
            ax.text(
                size * np.cos(2.2), size * np.sin(2.2), f"{ring}\N{MULTIPLICATION SIGN}", fontsize=5, ha="center",
                va="center", color="0.3", bbox={"facecolor": "white", "linewidth": 0, "pad": 0.4}, zorder=4,
            )  # fmt: skip
    labelled: set[str] = set()
    left = "first crossing" if data.certified else "first row beyond"
    for i in np.argsort(data.unstable, kind="stable"):
        bad = data.unstable[i]
        radius = np.hypot(data.along[i], data.across[i])
        with np.errstate(invalid="ignore", divide="ignore"):
            factor = np.where(radius > 0, squeeze(radius) / radius, 0.0)
        x, y = data.along[i] * factor, data.across[i] * factor
        every = max(1, x.size * len(data.along) // (_CLOUD * 4))
        name = "unstable run" if bad else "healthy run"
        label = None if name in labelled else name
        ax.plot(
            x[::every], y[::every],
            "-" if bad else ".",
            color=COLOURS["vermilion" if bad else "blue"],
            linewidth=0.35, markersize=1.2, alpha=0.8 if bad else 0.35, label=label, zorder=2, rasterized=x.size > 5000,
        )  # fmt: skip
        row = data.crossing[i]
        if row is not None:
            ax.plot(
                x[row], y[row], "D", color="white", markeredgecolor=COLOURS["black"], markeredgewidth=0.6,
                markersize=2.8, zorder=5, label=None if left in labelled else left,
            )  # fmt: skip
            labelled.add(left)
        labelled.add(name)
    ax.axhline(0, color="0.6", linewidth=0.5, zorder=1)
    ax.set_xlim(-top, top)
    ax.set_ylim(-0.03 * top, top)
    ax.set_aspect("equal", adjustable="box")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.text(top, -0.02 * top, f"{data.direction} \N{RIGHTWARDS ARROW}", fontsize=6, ha="right", va="top")
    ax.text(0.02 * top, top, "across \N{UPWARDS ARROW}", fontsize=6, ha="left", va="top")
    handles, names = ax.get_legend_handles_labels()
    order = sorted(range(len(names)), key=lambda i: ("healthy run", "unstable run", left).index(names[i]))
    ax.legend(
        [handles[i] for i in order],
        [names[i] for i in order],
        loc="upper left", bbox_to_anchor=(0.0, -0.08), ncols=3, frameon=False, markerscale=2, handlelength=1.2,
        columnspacing=1.0, borderaxespad=0.0,
    )  # fmt: skip
    return ax


def draw_distance(ax: Axes, data: ManifoldData) -> Axes:
    """Signed distance over the steps of every run."""
    ceiling = float(np.log10(_reach(data)))
    for i in np.argsort(data.unstable, kind="stable"):
        bad = data.unstable[i]
        y = squeeze(np.where(np.isposinf(data.relative[i]), _reach(data), data.relative[i]))
        ax.plot(
            data.steps[i], y, color=COLOURS["vermilion" if bad else "blue"], linewidth=0.5, alpha=0.9 if bad else 0.5,
            linestyle="-" if bad else (0, (3, 1)), zorder=2,
        )  # fmt: skip
        row = data.crossing[i]
        if row is not None:
            ax.plot(
                data.steps[i][row], y[row], "D", color="white", markeredgecolor=COLOURS["black"], markeredgewidth=0.6,
                markersize=2.8, zorder=4,
            )  # fmt: skip
    ax.axhspan(0, 1, facecolor=COLOURS["sky"], alpha=0.25, linewidth=0, zorder=0)
    ax.axhline(1, color=COLOURS["black"], linewidth=1.0, linestyle="-" if data.certified else (0, (4, 2)), zorder=3)
    for step in sorted({s for s in data.injections if np.isfinite(s)}):
        ax.axvline(step, color="0.4", linewidth=0.6, linestyle=":", zorder=1)
        ax.annotate("event", (step, 1), xycoords=("data", "axes fraction"), xytext=(2, -1), textcoords="offset points",
                    fontsize=5, va="top", color="0.3")  # fmt: skip
    rings = [0.5, *_rings(_reach(data))]
    ticks = [0.0, *(float(squeeze(np.array([float(r)]))[0]) for r in rings)]
    distance = [-data.boundary, *((r - 1) * data.boundary for r in rings)]
    ax.set_yticks(ticks, [f"{d:+.0f}" if abs(d) >= 10 else f"{d:+.1f}" if d else "0" for d in distance])
    ax.set_ylim(0, 1 + ceiling * float(np.log(10)) * 1.04)
    ax.set_xlabel("step")
    ax.set_ylabel("signed distance, sd (positive outside)")
    return ax


def plot(
    source: Any,
    X: Any = None,
    ax: Any = None,
    *,
    group: Any = None,
    unstable: Sequence[bool] | None = None,
    injections: Sequence[float] | None = None,
    width: str = "page",
    title: str = "",
) -> Any:
    """Draw a manifold with trajectories.

    Parameters
    ----------
    source : InstabilityManifold, or what carries one with its runs
    X : run or list of runs
        Needed with an estimator.
    ax : axes, optional
        Draws the phase picture alone into it.
    group, unstable, injections, title : as in `figure_data`
    width : {"page", "column"}, default "page"
        183 mm with both pictures side by side, or 89 mm with one above the other.

    Returns
    -------
    Figure with two axes; the axes alone where `ax` was given
    """
    if hasattr(source, "manifold"):
        source, X, group, unstable, injections, title = (
            source.manifold, source.runs, source.groups, source.unstable, source.injections, source.title
        )  # fmt: skip
    if X is None:
        raise InputError("there is nothing to draw on the manifold: give a run or a list of runs, plot(X).")
    if width not in ("page", "column"):
        raise InputError(f"width is {width!r}; expected 'page' (183 mm) or 'column' (89 mm).")
    data = figure_data(
        source, X if is_many(X) else [X], group=group, unstable=unstable, injections=injections, title=title
    )
    with style():
        if ax is not None:
            return draw_phase(ax, data)
        from matplotlib.figure import Figure

        wide = width == "page"
        figure = Figure(figsize=(PAGE, 2.5) if wide else (COLUMN, 4.3), layout="constrained")
        axes = figure.subplots(1, 2) if wide else figure.subplots(2, 1, height_ratios=[1.0, 1.1])
        draw_phase(axes[0], data)
        draw_distance(axes[1], data)
        level = (
            f"{data.alpha:.3g} false alarms a run"
            if data.certified
            else f"not certifiable with {data.n_healthy} healthy runs"
        )
        name = literal(data.title) + ": " if data.title else ""
        axes[0].set_title(f"{name}boundary at radius {data.boundary:.1f} ({level})", loc="left")
        return figure
