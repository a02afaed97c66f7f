"""Checks of users: rules of the settings file, and plug-ins."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trajscope.audit.checks import Found, Rule
from trajscope.audit.checks.own import plugin_rules
from trajscope.audit.run import audit
from trajscope.config import OwnRule, Settings, load_settings
from trajscope.errors import ConfigError
from trajscope.history import Run, RunData, named_channel

T = np.arange(200.0)


def run(**channels: Any) -> Run:
    return Run("r", RunData({k: named_channel(k, T, np.asarray(v, dtype=float)) for k, v in channels.items()}))


def judged(rule: OwnRule, **channels: Any) -> tuple[str, Any]:
    result = audit(run(**channels), settings=Settings(rule=(rule,)))
    return result.verdict, next(c for c in result.checks if c.id == "U1")


NORM = 1 + 0.1 * np.sin(T)


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        ({"above": 50.0}, np.where((T > 99) & (T < 105), 60, NORM)),
        ({"below": 0.5}, np.where((T > 99) & (T < 105), 0.1, NORM)),
        ({"ratio": 5.0}, np.where((T > 99) & (T < 105), 8, NORM)),
    ],
)
def test_a_rule_trips_does_not_and_cannot_be_seen(condition: dict[str, float], values: np.ndarray) -> None:
    rule = OwnRule("Limit", role="grad_norm", rows=3, result="fail", **condition)  # type: ignore[arg-type]
    verdict, check = judged(rule, grad_norm=values)
    assert (verdict, check.result, check.steps) == ("not healthy", "fail", (100.0,))
    assert judged(rule, grad_norm=NORM)[1].result == "pass"
    assert judged(rule, grad_norm=np.where(T == 100, values, NORM))[1].result == "pass"
    absent = judged(rule, loss=NORM)[1]
    assert (absent.result, absent.advice) == ("not observable", "log the grad norm")


def test_a_known_event_explains_it() -> None:
    rule = OwnRule("Limit", channel="grad_norm", above=50, result="fail")
    result = audit(run(grad_norm=np.where(T == 100, 60, NORM)), settings=Settings(rule=(rule,)), known_events=[100])
    assert next(e for e in result.events if e.kind == "rule").severity == "info"


def test_rules_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        '[[rule]]\ntitle = "a"\nrole = "loss"\nabove = 3\n[[rule]]\ntitle = "b"\nchannel = "x"\nratio = 2\n'
    )
    settings, origins = load_settings(config=file, environ={}, folder=tmp_path)
    assert [r.title for r in settings.rule] == ["a", "b"]
    assert origins["rule"] == str(file)
    assert settings.hash != Settings().hash
    assert settings.to_dict()["rule"][0]["above"] == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("role = 'loss'\nabove = 1", "without a title"),
        ("title = 'a'\nabove = 1", "either channel or role"),
        ("title = 'a'\nrole = 'loss'\nchannel = 'x'\nabove = 1", "either channel or role"),
        ("title = 'a'\nrole = 'loss'", "one of above, below and ratio"),
        ("title = 'a'\nrole = 'loss'\nabove = 1\nbelow = 2", "one of above, below and ratio"),
        ("title = 'a'\nrole = 'loss'\nabove = 'x'", "expected a number"),
        ("title = 'a'\nrole = 'loss'\nabove = nan", "expected a number"),
        ("title = 'a'\nrole = 'loss'\nabove = 1\nrows = 0", "1 or more"),
        ("title = 'a'\nrole = 'loss'\nabove = 1\nresult = 'bad'", "result = 'bad'"),
        ("title = 'a'\nrole = 'loss'\nabov = 1", "'above'"),
    ],
)
def test_a_bad_rule_is_one_clear_error(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f"[[rule]]\n{text}\n")
    with pytest.raises(ConfigError, match=r"own\.toml.*rule") as caught:
        load_settings(config=file, environ={}, folder=tmp_path)
    assert words in str(caught.value)


def test_a_rule_is_no_environment_variable() -> None:
    with pytest.raises(ConfigError, match="tables"):
        load_settings(environ={"TRAJSCOPE_RULE": "x"})


def made(look: Any) -> Rule:
    return Rule("Z1", "Mine", "your own", "", (), "mine", "none", "me", "never", look)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(*loads: Any) -> None:
        entries = [SimpleNamespace(name=f"p{i}", value="mod:x", load=load) for i, load in enumerate(loads)]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
        plugin_rules.cache_clear()

    yield install
    plugin_rules.cache_clear()


def test_plugins_bring_rules_and_their_failure_is_a_row(plugins: Any) -> None:
    plugins(lambda: made(lambda f: Found("info", f"{len(f.run.channels)} channels")), lambda: [made(lambda f: 1 / 0)])
    rows = [c for c in audit(run(loss=NORM)).checks if c.id == "Z1"]
    assert {(c.result, c.found) for c in rows} == {
        ("info", "1 channels"),
        ("not observable", "the plug-in p1 failed: ZeroDivisionError: division by zero"),
    }


def test_a_plugin_that_is_broken_is_left_out(plugins: Any) -> None:
    plugins(lambda: [3])
    with pytest.warns(UserWarning, match="'p0'"):
        assert not [c for c in audit(run(loss=NORM)).checks if c.id == "Z1"]
