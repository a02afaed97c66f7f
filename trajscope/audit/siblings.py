"""A run beside healthy siblings, as events."""

from __future__ import annotations

from trajscope.audit.events import Event, number
from trajscope.errors import NotEnoughData
from trajscope.history import Run
from trajscope.inference.reference import ReferenceBand

__all__ = ["reference_events"]


def reference_events(run: Run, band: ReferenceBand) -> list[Event]:
    """Where a run leaves the band of its references: a place to look; where it ends outside, a failure."""
    try:
        test = band.test(run)
    except NotEnoughData:
        return []
    if not test.outside:
        return []
    end = " and ends outside" if test.ends_outside else ""
    text = f"{test.channel} leaves the band of {len(band.names)} healthy runs at step {number(test.step)}{end}"
    return [
        Event(
            test.step,
            "reference",
            test.channel,
            "fail" if test.ends_outside else "watch",
            f"{text} (at most {test.statistic:.1f} of their sd; healthy runs stay below {test.threshold:.1f}).",
            strength=test.statistic,
            detail={"threshold": test.threshold, "ends_outside": test.ends_outside, "share": test.share},
        )
    ]
