"""The table of dissociation on runs that others logged: submissions to AlgoPerf, a task a stratum."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import trajscope as ts
from trajscope.inference.dissociation import ALL, dissociation, measure_table
from trajscope.inference.measures import MEASURES


@pytest.mark.filterwarnings("default")  # others' logs: overflow in what was logged is theirs
def test_a_verdict_for_every_measure_that_the_logs_hold(shared_data: Path) -> None:
    root = shared_data / "labelled" / "algoperf"
    names = pd.read_csv(root / "labels.csv")["run"]
    tasks = [name.split("__")[3].rsplit("_", 1)[0] for name in names]
    runs = {
        f"{task}/{name}": ts.read_run(root / f"{name}.measurements.csv")
        for task, name in zip(tasks, names, strict=True)
    }
    table, reliable, skipped = measure_table(runs)
    assert len(table) == 63
    assert not skipped
    found = dissociation(table, reliability=reliable, n_boot=500)
    whole = found.to_frame().set_index("stratum").loc[[ALL]].set_index("measure")
    assert set(whole.index) | set(found.skipped) == set(MEASURES)
    assert {"drawdown_cvar", "dispersion", "peak_instability", "loss_ratio", "collapsed"} <= set(whole.index)
    # one task alone has eight runs
    assert set(found.to_frame()["stratum"]) <= {"imagenet_vit", ALL, "(without failed runs)"}
    verdicts = {"associated", "negligible association", "dissociated", "inconclusive", "cannot tell"}
    assert set(found.to_frame()["verdict"]) <= verdicts
    assert (whole["n"] <= 25).all()
    assert whole["reliability_stability"].notna().all()
