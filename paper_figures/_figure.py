"""What every figure of the paper shares: where its runs come from, and how it is written.

A figure writes ``NAME.pdf``, ``NAME.png``, ``NAME.txt`` (the caption, made of the numbers) and ``NAME_TABLE.csv`` for
the numbers that are drawn. The same data and versions give the same bytes.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.text import Text

import trajscope as ts
from trajscope.errors import InputError
from trajscope.history.run import Run
from trajscope.inference.studies import find_study
from trajscope.inference.studies.base import Study
from trajscope.plots.manifold import ManifoldData, draw_phase
from trajscope.plots.style import PAGE, style

#: Domains in the order in which they are shown.
DOMAINS = ("digits", "cartpole", "transformer")
NAMES = {"digits": "digits", "cartpole": "cart and pole", "transformer": "transformer", "halfcheetah": "HalfCheetah"}
SEED = 0
_SMALLEST = 5.0  # points


@dataclass
class Made:
    """A figure with the numbers behind it.

    Attributes
    ----------
    figure : Figure
    tables : dict of str to DataFrame
    claim : str
        What the source paper says.
    verdict : str
        ``supported``, ``not supported`` or ``cannot tell``, with the reason.
    caption : str
        What is drawn, with n, test and interval.
    """

    figure: Figure
    tables: dict[str, pd.DataFrame]
    claim: str
    verdict: str
    caption: str


@dataclass
class Runs:
    """Recorded runs of one or several domains; a run is read when it is asked for and kept."""

    domains: tuple[str, ...]
    labels: pd.DataFrame = field(init=False)

    def __post_init__(self) -> None:
        sets = [ts.load_dataset(name) for name in self.domains]
        self.labels = pd.concat([s.labels for s in sets], ignore_index=True)
        self._owner = {run: s for s in sets for run in s.runs()}
        self._read: dict[str, Run] = {}

    def __call__(self, run: str, /) -> Run:
        if run not in self._read:
            self._read[run] = self._owner[run].run(run)
        return self._read[run]

    def of(self, **columns: object) -> pd.DataFrame:
        """The labels in which every named column has the value."""
        table = self.labels
        for name, value in columns.items():
            table = table[table[name] == value]
        return table


def recorded(name: str) -> bool:
    """Whether a domain has been recorded."""
    try:
        ts.load_dataset(name)
    except InputError:
        return False
    return True


def study(name: str, runs: Runs) -> Study:
    """A study over recorded runs, with the seed of all figures."""
    return find_study(name)(runs, runs.labels, alpha=0.05, rng=SEED)


def page(height: float) -> Figure:
    """An empty figure as wide as a page (183 mm)."""
    return Figure(figsize=(PAGE, height), layout="constrained")


def letters(figure: Figure, axes: list[mpl.axes.Axes]) -> None:
    """Panel letters, bold, outside the upper left corner."""
    for letter, ax in zip("abcdefghijklmnop", axes, strict=False):
        ax.annotate(
            letter, (0, 1), (-4, 4), xycoords="axes fraction", textcoords="offset points", fontsize=8,
            fontweight="bold", ha="right", va="bottom",
        )  # fmt: skip


def phase(ax: mpl.axes.Axes, data: ManifoldData) -> None:
    """The phase picture of a manifold, with the label of its second axis in the corner, where nothing runs."""
    draw_phase(ax, data)
    for text in ax.texts:
        if text.get_text().startswith("across"):
            text.set_position((ax.get_xlim()[0], ax.get_ylim()[1]))


def interval(low: float, high: float, digits: int = 2) -> str:
    """As text, with the level of all figures."""
    return f"95 % interval {low:.{digits}f} to {high:.{digits}f}"


def write(name: str, made: Made, out: Path) -> list[Path]:
    """Write a figure, its caption and its numbers; returns the files."""
    small = [t for t in made.figure.findobj(Text) if t.get_visible() and t.get_text() and t.get_fontsize() < _SMALLEST]
    if small:
        raise ValueError(f"{name}: text of {small[0].get_fontsize()} pt ({small[0].get_text()!r})")
    out.mkdir(parents=True, exist_ok=True)
    files = [out / f"{name}.pdf", out / f"{name}.png", out / f"{name}.txt"]
    made.figure.savefig(files[0], metadata={"CreationDate": None, "Producer": None, "Creator": None})
    made.figure.savefig(files[1], metadata={"Software": None})
    parts = (f"Claim: {made.claim}", f"Verdict: {made.verdict}", made.caption)
    files[2].write_text("\n\n".join(textwrap.fill(" ".join(p.split()), 118) for p in parts) + "\n", encoding="utf-8")
    for table, frame in made.tables.items():
        files.append(out / f"{name}_{table}.csv")
        frame.to_csv(files[-1], index=False, lineterminator="\n", float_format="%.6g")
    return files


def main(script: str, make: Callable[[], Made]) -> None:
    """Run a script of this folder: ``python paper_figures/NAME.py -o out``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, default=Path("figures"))
    out = parser.parse_args().output
    with style(), mpl.rc_context({"font.sans-serif": ["DejaVu Sans"]}):  # ships with matplotlib: the same everywhere
        made = make()
        files = write(Path(script).stem.split("_")[0], made, out)
    for file in files:
        print(file)
