"""Reports: one summary, several renderings, nothing from a log is trusted, nothing is fetched."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trajscope._core.decimate import min_max
from trajscope.audit.run import Audit, audit
from trajscope.errors import InputError
from trajscope.history import Problem, Run, RunData, named_channel
from trajscope.plots import run_page
from trajscope.report import render
from trajscope.report.html import cohort_page

EVIL = "<img src=x onerror=alert(1)>"


def evil_run(n: int = 300) -> Run:
    """A run whose every text is an attack, and which collapses so that all of it is shown."""
    rng = np.random.default_rng(0)
    t = np.arange(n)
    loss = 0.1 + 2 * np.exp(-t / 30) + 0.01 * rng.standard_normal(n)
    loss[200:] = 3.0
    loss[250] = np.nan
    names = {f"loss {EVIL}": loss, "grad_norm $x_1$ |*_`": np.exp(rng.standard_normal(n))}
    channels = {k: named_channel(k, t, v) for k, v in names.items()}
    problem = Problem("x", "warning", f"lost {EVIL}", EVIL, EVIL)
    return Run(EVIL, RunData(channels, config={EVIL: EVIL}, problems=(problem,)), path=EVIL, format="test")


@pytest.fixture(scope="module")
def evil() -> Audit:
    return audit(evil_run(), performance=f"loss {EVIL}:min")


class Collect(HTMLParser):
    """Every tag and every attribute of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse(page: str) -> Collect:
    parser = Collect()
    parser.feed(page)
    return parser


def test_text_from_a_log_is_text_in_the_page(evil: Audit) -> None:
    page = parse(render(evil, ".html"))
    assert not [t for t, _ in page.tags if t in ("img", "iframe", "object", "link_")]
    scripts = [attrs for t, attrs in page.tags if t == "script"]
    assert [s.get("type") for s in scripts] == ["application/json", None]  # ours, and none with an address
    assert not any("src" in s for s in scripts)
    names = json.loads(re.search(r'id="values">(.*?)</script>', render(evil, ".html"), re.S)[1])["channels"]
    assert any(EVIL[:10] in c["name"] for c in names)
    assert not [a for _, attrs in page.tags for a in attrs if a.startswith("on")]
    assert EVIL in " ".join(page.text)


def test_the_page_fetches_nothing(evil: Audit) -> None:
    page = parse(render(evil, ".html"))
    for tag, attrs in page.tags:
        for name in ("src", "href", "xlink:href"):
            target = attrs.get(name)
            assert not target or target.startswith(("#", "data:")), (tag, target)
    assert not re.findall(r"url\((?!#)|@import", render(evil, ".html"))


def test_the_page_is_small_and_its_figures_have_text(evil: Audit) -> None:
    text = render(evil, ".html")
    assert len(text.encode()) < 1_000_000
    assert text.count("<svg") == text.count("</svg>") >= 1
    assert re.search(r"<text[^>]*>step</text>", text)


def test_the_same_audit_gives_the_same_bytes(evil: Audit) -> None:
    for kind in (".html", ".md", ".json"):
        assert render(evil, kind) == render(evil, kind)


def test_json_is_strict_and_versioned(evil: Audit) -> None:
    value = json.loads(render(evil, ".json"), parse_constant=pytest.fail)
    assert value["schema_version"] == 2
    assert value["verdict"] == evil.verdict
    assert {c["name"]: c["nan"] for c in value["channels"]}[f"loss {EVIL}"] == 1


def test_markdown_escapes_and_keeps_its_tables(evil: Audit) -> None:
    text = render(evil, ".md")
    assert "<img" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    checks = rows[: rows.index("| Channel | Role | Points | First step | Last step | NaN | +Inf | -Inf | Empty |")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in checks} == {6}


def test_all_renderings_say_the_same(evil: Audit) -> None:
    from trajscope.report.terminal import run_page as terminal

    assert "Not healthy" in render(evil, ".html")
    assert "Not healthy" in render(evil, ".md")
    assert terminal(evil)[0][0].startswith("✕ Not healthy")


def test_an_unknown_ending_is_refused(evil: Audit, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"report format '.docx' is unknown"):
        evil.write(tmp_path / "a.docx")
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_anything_has_a_page() -> None:
    result = audit(Run("empty", RunData({}), format="test"))
    for kind in (".html", ".md", ".json"):
        assert "empty" in render(result, kind)


def test_a_million_rows_stay_a_small_page_and_keep_the_spike() -> None:
    n = 1_000_000
    t = np.arange(n)
    loss = 1 + np.exp(-t / 1e5)
    loss[654_321] = 40.0
    run = Run("long", RunData({"loss": named_channel("loss", t, loss)}))
    empty = audit(Run("e", RunData({})))
    facts = replace(empty.facts, run=run)
    result = replace(empty, run=run, verdict="cannot tell", reasons=("x",), performance="loss:min", facts=facts)
    panel = run_page.panels(result)[0]
    assert panel.y.max() == 40.0
    assert panel.x.size <= 4 * 800


@pytest.mark.parametrize("seed", range(5))
def test_decimation_keeps_the_extremes_of_every_bin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, bins = int(rng.integers(5_000, 20_000)), 50
    x = np.sort(rng.integers(0, 10 * n, n))
    y = rng.standard_normal(n)
    y[rng.random(n) < 0.05] = np.nan
    rows = min_max(x, y, bins)
    assert np.all(np.diff(rows) > 0)
    assert rows.size <= 4 * bins
    edges = x[0] + (x[-1] - x[0]) * np.arange(bins + 1) / bins
    for low, high in itertools.pairwise(edges):
        inside = (x >= low) & (x < high) if high < edges[-1] else x >= low
        if np.isfinite(y[inside]).any():
            kept = rows[inside[rows]]
            assert np.nanmax(y[kept]) == np.nanmax(y[inside])
            assert np.nanmin(y[kept]) == np.nanmin(y[inside])


def test_the_index_page_escapes_and_sorts() -> None:
    rows = [
        {"run": "b", "verdict": "healthy", "reason": "r", "first_event": None, "link": "runs/b.html"},
        {"run": EVIL, "verdict": "not healthy", "reason": EVIL, "first_event": 12_300.0, "link": ""},
    ]
    text = cohort_page(rows, [(EVIL, EVIL)])
    assert "<img" not in text
    assert text.index("12,300") < text.index("runs/b.html")


def test_the_index_sorts_links_and_draws() -> None:
    rows = [
        {"run": f"r{i} {EVIL}", "verdict": v, "reason": EVIL, "first_event": 40.0, "link": f"index_runs/r{i}.html",
         "axis": "optimization", "curve": "0,2 100,22"}
        for i, v in enumerate(("healthy", "not healthy", "cannot tell"))
    ]  # fmt: skip
    text = cohort_page(rows, [("x", EVIL)])
    page = parse(text)
    assert EVIL not in text
    assert [a["href"] for t, a in page.tags if t == "a"] == [f"index_runs/r{i}.html" for i in (1, 2, 0)]
    assert sum(t == "polyline" for t, _ in page.tags) == 3
    assert "Step 40: the first event of 3 runs" in text
    many = cohort_page([{**rows[0], "run": f"r{i}"} for i in range(5100)], [])
    assert "The 5000 worst are shown" in many
    assert len(many.encode()) < 5_000_000
