"""Whatever comes in: a result that says so, or an error from our tree; never a warning, never another exception."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from trajscope.dynamics import (
    delay_embedding,
    dmd,
    finite_time_lyapunov,
    intrinsic_dimension,
    lyapunov,
    recurrence,
    rolling_var,
    x_grad,
    x_inst,
)
from trajscope.errors import TrajscopeError

_x = np.random.default_rng(0).normal(size=160)
BAD = {
    "empty": [],
    "scalar": 3.0,
    "none": None,
    "text": "abc",
    "texts": ["a"] * 50,
    "objects": [object()] * 10,
    "ragged": [[1, 2], [3]],
    "three axes": np.zeros((4, 4, 4)),
    "complex": _x + 1j,
    "bool": _x > 0,
    "all missing": np.full(160, np.nan),
    "some infinite": np.where(np.arange(160) % 20 == 3, np.inf, _x),
    "every other missing": np.where(np.arange(160) % 2 == 1, np.nan, _x),
    "masked": np.ma.masked_array(_x, _x > 1),
    "constant": np.full(160, 7.0),
    "zero": np.zeros(160),
    "tiny": _x * 1e-300,
    "huge": _x * 1e300,
    "far away": _x + 1e12,
    "spike": np.where(np.arange(160) == 80, 1e9, _x),
    "two rows": [1.0, 2.0],
    "line": np.arange(160.0),
    "growing": 1.2 ** np.arange(160.0),
    "by turns": np.tile([1.0, -1.0], 80),
    "step": np.repeat([0.0, 1.0], 80),
    "quantised": np.round(_x),
    "twice the same": np.column_stack([_x, _x]),
    "one constant": np.column_stack([_x, np.ones(160)]),
    "one missing": np.column_stack([_x, np.full(160, np.nan)]),
    "wide": np.random.default_rng(1).normal(size=(20, 40)),
    "frame": pd.DataFrame({"a": _x, "b": _x**2}),
    "frame of text": pd.DataFrame({"a": ["x"] * 20}),
    "frame, no columns": pd.DataFrame(),
    "frame by date": pd.DataFrame({"a": _x}, index=pd.date_range("2020", periods=160)),
}
CALLS = {
    "rolling_var": lambda x: rolling_var(x, 40, methods=("plain", "instrument", "tls", "fb")),
    "dmd": dmd,
    "dmd, instrument": lambda x: dmd(x, method="instrument"),
    "dmd, fb": lambda x: dmd(x, method="fb"),
    "finite_time_lyapunov": lambda x: finite_time_lyapunov(x, 40, 5, n_surrogates=1),
    "lyapunov": lyapunov,
    "recurrence": lambda x: recurrence(x, n_surrogates=1),
    "intrinsic_dimension": lambda x: intrinsic_dimension(x, n_boot=3),
    "delay_embedding": lambda x: delay_embedding(x, most=3),
    "x_inst": x_inst,
    "x_grad": lambda x: x_grad({"grad_cos": x}),
    "x_grad, momentum": lambda x: x_grad({"update_norm": x, "lr": x, "grad_norm": x}, optimizer="sgd"),
    "x_grad, adam": lambda x: x_grad({"update_norm": x, "lr": x, "grad_norm": x}, optimizer="adam"),
}


@pytest.mark.parametrize("call", list(CALLS))
def test_never_another_exception(call):
    for name, x in BAD.items():
        try:
            result = CALLS[call](x)
        except TrajscopeError:
            continue
        text = result.summary()
        assert " nan" not in text, (name, text)
        result.to_frame()
        result.to_dict()
