"""Buffering: closed forms, calibration under the null, separation, and words that do not claim too much."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from trajscope.errors import InputError, NotEnoughData
from trajscope.inference.buffering import _trend, buffering, firth_slope, jonckheere


def table(p, n=25, seed=0, strata=1):
    rng = np.random.default_rng(seed)
    parts = []
    for s in range(strata):
        level = np.repeat(np.arange(len(p), dtype=float), n)
        parts.append(
            pd.DataFrame({"level": level, "collapsed": rng.random(level.size) < np.repeat(p, n), "stratum": f"s{s}"})
        )
    return pd.concat(parts, ignore_index=True)


def test_firth_of_a_two_by_two_table():
    """With one binary covariate Firth's estimate is the log odds ratio with a half added to each cell."""
    x = np.repeat([0.0, 1.0], [12, 10])
    y = np.concatenate([np.arange(12) < 3, np.arange(10) < 8])
    slope, low, high = firth_slope(x, y, np.zeros(22, dtype=int))
    assert slope == pytest.approx(np.log((8.5 / 2.5) / (3.5 / 9.5)), abs=1e-6)
    assert low < slope < high


def test_separation_is_finite():
    x = np.repeat([0.0, 1.0, 2.0], 8)
    slope, low, high = firth_slope(x, x > 0.5, np.zeros(24, dtype=int))
    assert np.isfinite(slope)
    assert 0 < low < slope < high


def test_large_samples_agree_with_plain_likelihood():
    import statsmodels.api as sm

    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, 3000).astype(float)
    codes = rng.integers(0, 2, 3000)
    y = rng.random(3000) < 1 / (1 + np.exp(-(-0.5 + 0.4 * codes - 0.3 * x)))
    plain = sm.Logit(y, np.column_stack([codes == 0, codes == 1, x]).astype(float)).fit(disp=0)
    slope, low, high = firth_slope(x, y, codes)
    assert slope == pytest.approx(plain.params[2], abs=2e-3)
    assert (low, high) == pytest.approx(tuple(plain.conf_int()[2]), abs=5e-3)


def test_trend_p_is_uniform_under_the_null():
    rejected = 0
    for seed in range(200):
        t = table([0.3, 0.3, 0.3, 0.3], n=8, seed=seed, strata=2)
        codes = (t["stratum"] == "s1").to_numpy().astype(int)
        rejected += (
            _trend(t["level"].to_numpy(), t["collapsed"].to_numpy(), codes, 199, np.random.default_rng(seed)) <= 0.05
        )
    assert stats.binom.ppf(0.001, 200, 0.03) <= rejected <= stats.binom.ppf(0.999, 200, 0.05)


def test_verdicts():
    assert buffering(table([0.9, 0.6, 0.4, 0.1]), n_null=499).verdict == "buffers"
    assert buffering(table([0.1, 0.3, 0.6, 0.9]), n_null=499).verdict == "harms"
    assert buffering(table([0.5] * 4, n=5), n_null=199).verdict == "cannot tell"
    assert buffering(table([0.5] * 4, n=900, seed=2), n_null=199).verdict == "no effect"
    bent = buffering(table([0.9, 0.3, 0.1, 0.3, 0.9], n=40), n_null=199)
    assert bent.p_quadratic < 1e-6
    assert bent.quadratic > 0
    assert "bends" in bent.reason
    none = buffering(table([0.0] * 4, n=10), n_null=99)
    assert (none.verdict, none.reason) == ("cannot tell", "no run collapsed")


def test_words_of_association():
    found = buffering(table([0.9, 0.6, 0.4, 0.1]), assigned=False, n_null=499)
    assert "goes with" in found.summary()
    assert "protects" not in found.summary()


def test_a_stratum_effect_is_no_effect_of_the_level():
    """One stratum has the high levels and collapses more: within strata nothing."""
    rng = np.random.default_rng(0)
    parts = []
    for s, (levels, p) in enumerate((([0, 1, 2], 0.1), ([2, 3, 4], 0.8))):
        level = np.repeat(np.array(levels, dtype=float), 40)
        parts.append(pd.DataFrame({"level": level, "collapsed": rng.random(120) < p, "stratum": str(s)}))
    found = buffering(pd.concat(parts), n_null=499)
    assert found.p_trend > 0.05
    assert found.low < 0 < found.high


def test_jonckheere():
    levels = np.repeat([0.0, 1.0, 2.0], 10)
    assert jonckheere(levels, levels, n_null=199)[0] == 1.0
    assert jonckheere(levels, -levels, n_null=199)[0] == -1.0
    rejected = sum(
        jonckheere(levels, np.random.default_rng(s).normal(size=30), n_null=99, rng=s)[1] <= 0.05 for s in range(200)
    )
    assert stats.binom.ppf(0.001, 200, 0.05) <= rejected <= stats.binom.ppf(0.999, 200, 0.05)
    t = table([0.5, 0.5, 0.5]).assign(depth=lambda d: d["level"] + np.random.default_rng(0).normal(size=len(d)))
    trend = buffering(t, n_null=199).outcomes.iloc[0]
    assert (trend["outcome"], trend["direction"]) == ("depth", "up")
    assert trend["p"] <= 0.01


@pytest.mark.parametrize(
    ("change", "kwargs", "error", "message"),
    [
        ({}, {"level": "levle"}, InputError, "Did you mean 'level'"),
        ({}, {"scale": "x"}, InputError, "scale"),
        ({}, {"scale": "log"}, InputError, "lowest level is 0"),
        ({"level": 1.0}, {}, InputError, "1 levels"),
        ({"level": "a"}, {}, InputError, "a number is expected"),
        ({}, {"outcomes": ["zzz"]}, InputError, "no column 'zzz'"),
    ],
)
def test_bad_arguments(change, kwargs, error, message):
    with pytest.raises(error, match=message):
        buffering(table([0.5] * 3).assign(**change), n_null=99, **kwargs)


def test_too_few():
    with pytest.raises(NotEnoughData, match="12"):
        buffering(table([0.5] * 3, n=3))


def test_plot_and_json():
    import json

    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    found = buffering(table([0.9, 0.6, 0.4, 0.1]), n_null=99)
    assert json.dumps(found.to_dict())
    ax = found.plot()
    assert "buffers" in ax.get_title(loc="left")
    plt.close(ax.figure)
