"""How figures look: sizes, fonts, colours (Okabe & Ito 2008, safe for colour-blind readers), same bytes each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "COLUMN", "LOOKS", "PAGE", "literal", "log_axis", "style", "svg"]

MM = 1 / 25.4
#: Width of one column and of the page of a journal, in inches.
COLUMN, PAGE = 89 * MM, 183 * MM

COLOURS = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#999999",
}

#: Colour and line of so many curves in one picture: told apart without the colour too.
LOOKS = tuple(
    zip(
        ("blue", "vermilion", "green", "purple", "orange", "black"),
        ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1))),
        strict=True,
    )
)

_RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Arial", "Helvetica", "Liberation Sans", "DejaVu Sans"],
    "font.size": 7,
    "axes.labelsize": 7,
    "axes.titlesize": 7,
    "xtick.labelsize": 6,
    "ytick.labelsize": 6,
    "legend.fontsize": 6,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "trajscope",
    "text.parse_math": False,
}


@contextmanager
def style() -> Iterator[None]:
    """Draw inside this: our settings hold there and nowhere else, and no font that is missing makes noise."""
    import logging

    import matplotlib as mpl

    finder = logging.getLogger("matplotlib.font_manager")
    level = finder.level
    finder.setLevel(logging.ERROR)
    try:
        with mpl.rc_context(cast("Any", _RC)):
            yield
    finally:
        finder.setLevel(level)


def log_axis(ax: Axes, axis: str = "y") -> None:
    """Make an axis logarithmic with plain numbers at 1, 2 and 5 (no mathematics is parsed in our figures)."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    getattr(ax, f"set_{axis}scale")("log")
    target = getattr(ax, f"{axis}axis")
    low, high = sorted(getattr(ax, f"get_{axis}lim")())
    subs = (1.0,) if low <= 0 or high / low > 300 else (1.0, 2.0, 5.0)
    target.set_major_locator(LogLocator(subs=subs, numticks=8))
    target.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.4g}"))
    target.set_minor_locator(NullLocator())


def literal(text: str, most: int = 40) -> str:
    """Text from a log as a label: no control characters, cut in the middle where long."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown if len(shown) <= most else f"{shown[: most // 2 - 1]}\N{HORIZONTAL ELLIPSIS}{shown[-most // 2 + 1 :]}"


def svg(figure: Figure) -> str:
    """The figure as an SVG element without a date, with text as text."""
    buffer = StringIO()
    with style():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
