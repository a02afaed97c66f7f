"""``trajscope study``: labels meet runs, and what is written; the studies themselves are tested where they live."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from types import ModuleType

import pandas as pd
import pytest

from trajscope.cli import run as main
from trajscope.inference.studies import Study
from trajscope.inference.studies.base import STUDIES, find_study
from trajscope.result import Result


@dataclass(frozen=True, eq=False)
class _Figure(Result):
    def plot(self, ax=None, **options):
        import matplotlib.pyplot as plt

        _, ax = plt.subplots()
        return ax


@pytest.fixture
def logs(tmp_path, monkeypatch):
    root = tmp_path / "logs"
    root.mkdir()
    for name in ("a", "b"):
        (root / f"{name}.csv").write_text("step,loss\n" + "".join(f"{i},{1 / (i + 1)}\n" for i in range(60)))

    def study(runs, labels, *, alpha, rng):
        table = pd.DataFrame({"run": labels["run"], "rows": [len(runs(r).channels["loss"]) for r in labels["run"]]})
        return Study("lead-time", {"main": table}, {"figure": _Figure()}, f"alpha {alpha}, seed {rng}")

    module = ModuleType("stub")
    module.study = study
    monkeypatch.setitem(sys.modules, "trajscope.inference.studies.lead_time", module)
    return root


def call(root, labels, *more):
    (root.parent / "l.csv").write_text(labels)
    return main(["study", "lead-time", str(root), "--labels", str(root.parent / "l.csv"), *more])


def test_writes_everything_twice_the_same(logs, capsys):
    out = logs.parent / "out"
    assert call(logs, "run\na.csv\nb.csv\n", "-o", str(out), "--alpha", "0.1") == 0
    first = {p.name: p.read_bytes() for p in out.iterdir()}
    assert set(first) == {"claim.md", "study.json", "main.csv", "figure.pdf", "figure.png"}
    assert first["main.csv"] == b"run,rows\na.csv,60\nb.csv,60\n"
    assert "alpha 0.1, seed 0" in capsys.readouterr().out
    assert call(logs, "run\na.csv\nb.csv\n", "-o", str(out), "--alpha", "0.1") == 0
    assert {p.name: p.read_bytes() for p in out.iterdir()} == first


def test_a_run_that_is_not_found_is_one_line(logs, capsys):
    assert call(logs, "run\na.csv\nbb.csv\n", "-o", str(logs.parent / "out"), "--json") == 4
    said = capsys.readouterr()
    assert "error: run 'bb.csv' of the labels was not found. Did you mean 'b.csv'?" in said.err
    assert json.loads(said.out)["tables"]["main"][0]["rows"] == 60


def test_none_found(logs, capsys):
    assert call(logs, "run\nz\n", "-o", str(logs.parent / "out")) == 5
    assert "none of its 1 runs" in capsys.readouterr().err


def test_output_is_a_file(logs, capsys):
    (logs.parent / "out").write_text("x")
    assert call(logs, "run\na.csv\n", "-o", str(logs.parent / "out")) == 2
    assert "a folder is expected" in capsys.readouterr().err


def test_unknown_study(capsys):
    assert main(["study", "leadtime", "x", "--labels", "l", "-o", "o"]) == 2
    from trajscope.errors import InputError

    with pytest.raises(InputError, match="Did you mean 'lead-time'"):
        find_study("leadtime")
    assert set(STUDIES) >= {"lead-time", "identifiability", "dissociation", "buffering", "manifold", "response"}
