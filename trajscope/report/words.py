"""Words and marks that all renderers share; a mark never stands for a result by colour alone."""

from __future__ import annotations

__all__ = ["RESULT_MARKS", "SHOWN", "VERDICT_MARKS", "VERDICT_WORDS"]

#: Results of checks that a page shows at once; the others are folded.
SHOWN = ("fail", "watch", "info")

VERDICT_WORDS = {
    "healthy": "Healthy",
    "look closer": "Look closer",
    "not healthy": "Not healthy",
    "cannot tell": "Can't tell",
}
VERDICT_MARKS = {"healthy": "✓", "look closer": "!", "not healthy": "✕", "cannot tell": "–"}
RESULT_MARKS = {
    "fail": "✕",
    "watch": "!",
    "info": "i",
    "pass": "✓",
    "not observable": "–",
    "not enough history": "–",
    "cannot be seen in logs": "–",
}
