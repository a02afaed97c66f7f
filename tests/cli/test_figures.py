"""``trajscope figures``: which scripts run, what is said where one fails, and what they read."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from trajscope.cli import run as main

FOLDER = Path(__file__).parents[2] / "paper_figures"


@pytest.fixture
def scripts(tmp_path):
    folder = tmp_path / "scripts"
    folder.mkdir()
    body = (
        "import sys, pathlib\nout = pathlib.Path(sys.argv[2])\nout.mkdir(exist_ok=True)\n"
        "(out / '{0}.csv').write_text('1')\nprint(out / '{0}.csv')\n"
    )
    (folder / "fig1_one.py").write_text(body.format("fig1"))
    (folder / "fig10_ten.py").write_text(body.format("fig10"))
    (folder / "fig2_bad.py").write_text("raise SystemExit('no such data')\n")
    (folder / "_shared.py").write_text("")
    return folder


def test_only(scripts, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["figures", "--scripts", str(scripts), "-o", str(out), "--only", "10", "fig1", "-q", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"1": [str(out / "fig1.csv")], "10": [str(out / "fig10.csv")]}


def test_one_that_fails_leaves_the_others(scripts, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["figures", "--scripts", str(scripts), "-o", str(out)]) == 4
    said = capsys.readouterr()
    assert "figure 2 was not made: no such data" in said.err
    assert sorted(p.name for p in out.iterdir()) == ["fig1.csv", "fig10.csv"]


def test_names(scripts, capsys):
    assert main(["figures", "--scripts", str(scripts), "--list"]) == 0
    assert capsys.readouterr().out.split() == ["fig1_one", "fig2_bad", "fig10_ten"]
    assert main(["figures", "--scripts", str(scripts), "fig1_on"]) == 2
    assert "Did you mean 'fig1_one'" in capsys.readouterr().err


def test_without_a_checkout(tmp_path, capsys):
    assert main(["figures", "--scripts", str(tmp_path / "none")]) == 3
    assert "checkout" in capsys.readouterr().err


@pytest.mark.parametrize("script", sorted(FOLDER.glob("fig*.py")), ids=lambda p: p.stem)
def test_scripts_read_recorded_data_alone(script):
    tree = ast.parse(script.read_text())
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    assert {"Made", "main", "make"} <= names | {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    assert not names & {"simulate", "open", "read_run", "scan_runs"}
