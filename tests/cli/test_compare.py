"""``trajscope compare``: groups from paths or from a key; the four forms of the report."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trajscope.cli import run as main


@pytest.fixture
def logs(tmp_path):
    rng = np.random.default_rng(0)
    for name, top, rows in (("new", 0.9, 80), ("old <b>", 0.5, 60)):
        for seed in range(6):
            folder = tmp_path / name / f"s{seed}"
            folder.mkdir(parents=True)
            t = np.arange(rows)
            y = top * (1 - np.exp(-t / 10)) + 0.01 * rng.normal(size=rows)
            lines = "".join(f"{i},{v:.5f}\n" for i, v in zip(t, y, strict=True))
            (folder / "metrics.csv").write_text("step,val/accuracy\n" + lines)
    return tmp_path


def test_groups_are_paths(logs, capsys):
    assert main(["compare", str(logs / "new"), f"old={logs / 'old <b>'}", "-q"]) == 0
    out = capsys.readouterr().out
    assert "beats old with probability 1.00" in out
    assert "at step 59, the last that all reach" in out


def test_reports(logs, tmp_path, capsys):
    paths = [str(logs / "new"), str(logs / "old <b>")]
    for suffix in ("html", "md", "json"):
        assert main(["compare", *paths, "-o", str(tmp_path / f"out.{suffix}"), "-q"]) == 0
    page = (tmp_path / "out.html").read_text()
    assert "<b>" not in page
    assert "old &lt;b&gt;" in page
    assert "<svg" in page
    assert not any(f"{attribute}http" in page for attribute in ('src="', 'href="', "url("))
    assert "&lt;b&gt;" in (tmp_path / "out.md").read_text()
    report = json.loads((tmp_path / "out.json").read_text())
    capsys.readouterr()
    assert main(["compare", *paths, "--json", "-q"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == report
    assert printed["table"][0]["probability"] == 1.0
    assert main(["compare", *paths, "-o", str(tmp_path / "again.html"), "-q"]) == 0
    assert (tmp_path / "again.html").read_text() == page


def test_by_a_key_that_is_not_there(logs, capsys):
    assert main(["compare", str(logs), "--by", "lr"]) == 2
    assert "no such configuration key" in capsys.readouterr().err


def test_bad_output(logs, capsys):
    assert main(["compare", str(logs), "-o", str(logs / "x.pdf")]) == 2
    assert ".html, .md or .json" in capsys.readouterr().err
