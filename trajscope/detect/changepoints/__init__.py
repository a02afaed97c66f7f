"""Change points: levels, slopes and variances that break, told from noise with memory and from smooth trends."""

from trajscope.detect.changepoints.api import change_points
from trajscope.detect.changepoints.result import ChangePoints, Segment

__all__ = ["ChangePoints", "Segment", "change_points"]
