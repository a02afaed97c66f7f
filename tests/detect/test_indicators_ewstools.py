"""The same numbers as ewstools, where definitions agree.

It runs in a process of its own: importing it puts an alias back into numpy.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import trajscope as ts
from trajscope.simulate import ar

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ewstools") is None, reason="ewstools, the other implementation, is not installed"
)

WINDOW, STRIDE = 80, 20
SAME = {
    "variance": "variance", "std": "sd", "cv": "cv", "skew": "skewness", "kurtosis": "kurtosis",
    "ac1": "lag1", "ac2": "lag2", "ac5": "lag5", "sample-entropy-2": "sample_entropy",
}  # fmt: skip

ORACLE = f"""
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np, pandas as pd, ewstools
x = np.load(sys.argv[1])
out = {{}}
for method in ("none", "Gaussian", "Lowess"):
    e = ewstools.TimeSeries(pd.Series(x[:, 0]))
    if method != "none":
        e.detrend(method)
    e.compute_var({WINDOW}); e.compute_std({WINDOW}); e.compute_cv({WINDOW})
    e.compute_skew({WINDOW}); e.compute_kurt({WINDOW})
    for lag in (1, 2, 5):
        e.compute_auto({WINDOW}, lag=lag)
    e.compute_entropy({WINDOW}, method="sample")
    e.compute_spectrum({WINDOW}, pspec_roll_offset={STRIDE})
    e.compute_smax()
    e.compute_ktau()
    for name in e.ews.columns:
        out[method + " " + name] = e.ews[name].to_numpy()
    out[method + " smax"] = e.ews_spec["smax"].to_numpy()
    out[method + " ktau"] = np.array([e.ktau["ac1"]])
many = ewstools.MultiTimeSeries(pd.DataFrame(x, columns=["a", "b", "c"]))
many.compute_covar({WINDOW}, leading_eval=True)
out["cov"] = many.ews.iloc[:, -1].to_numpy()
np.savez(sys.argv[2], **out)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ewstools")
    rng = np.random.default_rng(0)
    x = ar(260, 0.6, 3, rng=rng) + 5 + 0.01 * np.arange(260.0)[:, None]
    np.save(folder / "x.npy", x)
    made = subprocess.run(
        [sys.executable, "-c", ORACLE, str(folder / "x.npy"), str(folder / "out.npz")], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    with np.load(folder / "out.npz") as out:
        return x, dict(out)


@pytest.mark.parametrize("method", ["none", "Gaussian", "Lowess"])
def test_indicators_of_one_channel(data, method):
    x, out = data
    names = [*SAME.values(), "spectral_max"]
    detrend = None if method == "none" else method.lower()
    frame = ts.early_warning(x[:, 0], window=WINDOW, indicators=names, detrend=detrend).to_frame()
    for theirs, ours in SAME.items():
        expected = out[f"{method} {theirs}"]
        if ours == "sample_entropy":  # theirs has rows of windows only, NaN before
            expected = np.r_[np.full(260 - expected.size, np.nan), expected]
        assert np.array_equal(np.isnan(expected), frame[ours].isna()), ours
        assert np.nanmax(np.abs(frame[ours] - expected)) < 1e-10, ours
    smax = out[f"{method} smax"]
    at = np.arange(WINDOW - 1, 260, STRIDE)
    assert np.abs(frame["spectral_max"].to_numpy()[at] - smax).max() < 1e-10


def test_the_leading_eigenvalue_of_the_covariance(data):
    x, out = data
    frame = ts.early_warning(x, window=WINDOW, indicators="eig_cov", detrend=None).to_frame()
    assert np.nanmax(np.abs(frame.iloc[WINDOW - 1 :, 0].to_numpy() - out["cov"][WINDOW - 1 :])) < 1e-10


def test_tau_is_theirs_and_comes_with_a_p_value(data):
    x, out = data
    found = ts.early_warning(x[:, 0], window=WINDOW, indicators="lag1", detrend="gaussian")
    row = found.trend(n=19).to_frame().loc["lag1"]
    assert row["tau"] == pytest.approx(out["Gaussian ktau"][0], abs=1e-12)
    assert 0.05 <= row["p"] <= 1


def test_missing_cells_differ_on_purpose():
    # one missing cell: a convolution loses every row it reaches; ours weighs the rows that are there
    x = pd.Series(ar(200, 0.5, rng=1)[:, 0])
    x[100] = np.nan
    found = ts.early_warning(x, window=50, indicators="variance", detrend="gaussian").to_frame()["variance"]
    assert found.iloc[49:].notna().all()
