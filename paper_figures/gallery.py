"""Write docs/figures.md from a folder of made figures: ``python paper_figures/gallery.py FOLDER``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parents[1] / "docs"
WIDTH = 1400  # pixels: twice the width at which a page shows it
INTRO = """# Figures

Made from the recorded runs by `trajscope figures -o figures` (minutes; a checkout is needed), which also writes the numbers
behind each as CSV. Each tests one claim of "Training instability in deep learning follows low-dimensional dynamical
principles" ([2601.13160](https://arxiv.org/abs/2601.13160)) on small networks; the verdicts below are made of the numbers,
and are about these runs.
"""


def entry(caption: Path) -> tuple[str, str, str]:
    """Claim, the one word of the verdict, and the section of the page for the figure of a caption."""
    number = caption.stem.removeprefix("fig")
    claim, verdict, text = (" ".join(part.split()) for part in caption.read_text(encoding="utf-8").split("\n\n"))
    claim, verdict = claim.removeprefix("Claim: "), verdict.removeprefix("Verdict: ")
    body = (
        f"## Figure {number}\n\n**Claim**: {claim}\n\n**Verdict**: {verdict}\n\n"
        f"![Figure {number}](images/{caption.stem}.png)\n\n{text}\n"
    )
    return claim, re.split(r"; by | by | from one | \(|: ", verdict)[0], body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    captions = sorted(parser.parse_args().folder.glob("fig*.txt"))
    rows, bodies = ["| figure | claim of the paper | here |\n|---|---|---|"], []
    for caption in captions:
        claim, word, body = entry(caption)
        number = caption.stem.removeprefix("fig")
        rows.append(f"| [{number}](#figure-{number}) | {claim} | {word} |")
        bodies.append(body)
        image = Image.open(caption.with_suffix(".png")).convert("RGB")
        image.thumbnail((WIDTH, WIDTH), Image.Resampling.LANCZOS)
        image.quantize(64, dither=Image.Dither.NONE).save(DOCS / "images" / f"{caption.stem}.png", optimize=True)
    (DOCS / "figures.md").write_text("\n".join([INTRO, "\n".join(rows) + "\n", *bodies]), encoding="utf-8")
    print(DOCS / "figures.md")


if __name__ == "__main__":
    main()
