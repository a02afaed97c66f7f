"""Early-warning indicators: what changes in a channel's fluctuations before it loses stability.

`early_warning` computes them. `univariate` has the formulas of one channel (`entropy` and `spectrum` the longer ones),
`joint` those of several, `slowing` the score that puts them together, `detrend` the baselines, `inputs` what counts as
a gap, `given` the scores of others, `trend` the surrogate tests.
"""

from trajscope.detect.indicators.api import DEFAULT, early_warning
from trajscope.detect.indicators.result import ALL, ChannelNote, EarlyWarning
from trajscope.detect.indicators.trend import Trend

__all__ = ["ALL", "DEFAULT", "ChannelNote", "EarlyWarning", "Trend", "early_warning"]
