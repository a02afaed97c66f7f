"""The catalogue of checks: each rule on a run that trips it, one that does not, and one in which it cannot be seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trajscope.audit.checks import GUIDES, RESULTS, RULES
from trajscope.audit.checks.base import BLIND, run_rule
from trajscope.audit.checks.page import page
from trajscope.audit.near import near, warmup_end
from trajscope.audit.run import Audit, audit
from trajscope.config import Settings
from trajscope.history import Run, RunData, Segment, named_channel

N = 1000
T = np.arange(float(N))


def run(config: dict[str, Any] | None = None, segments: Any = None, wall: Any = None, **channels: Any) -> Run:
    """Channels by name; an array has a row a step, a pair has its own steps. ``__`` in a name is a slash."""
    made = {}
    for name, value in channels.items():
        name = name.replace("__", "/")
        steps, values = value if isinstance(value, tuple) else (np.arange(float(len(value))), value)
        made[name] = named_channel(name, steps, np.asarray(values, dtype=float), wall_time=wall)
    data = RunData(made, config=config or {}, segments=segments or ())
    return Run("made", data)


def noise(seed: int = 0, n: int = N) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=n)


LOSS = 0.3 + 2 * np.exp(-T / 150) + 0.02 * noise()
NORM = np.exp(0.1 * noise(1))


def with_(values: np.ndarray, at: Any, value: Any) -> np.ndarray:
    out = values.copy()
    out[at] = value
    return out


def evals(values: Any) -> tuple[np.ndarray, np.ndarray]:
    values = np.asarray(values, dtype=float)
    return np.arange(values.size) * (N // values.size), values


LEARNS = 0.9 - 0.8 * np.exp(-np.arange(50) / 8) + 0.003 * noise(2, 50)
OVER = np.r_[np.linspace(2.4, 0.6, 20), np.linspace(0.6, 1.4, 30)]
LONG = 0.9 - 0.8 * np.exp(-np.arange(200) / 20) + 0.003 * noise(6, 200)
LATE = np.r_[np.full(40, 0.3), np.full(10, 0.99)]
SWEEP = np.geomspace(1e-5, 1, N)
DESCENT = 2 * np.exp(-T / 100) + 0.3
RESTART = np.where(T < 500, DESCENT, 2 * np.exp(-(T - 500) / 100) + 0.3) * np.exp(0.01 * noise(3))
COSINE = np.where(T < 500, 1, 1) * 0.01 * (1 + np.cos(np.pi * (T % 500) / 500)) / 2 + 1e-6
SESSIONS = (Segment(0, "start", 0, 0, 499), Segment(1, "continuation", 0, 500, 999))
STEADY = {"train__loss": LOSS, "val__accuracy": evals(LEARNS)}

#: Rule -> (a run that trips it, the result there, a run that does not).
TABLE: dict[str, tuple[Callable[[], Run], str, Callable[[], Run]]] = {
    "F8": (lambda: run(val__accuracy=evals(np.r_[LONG[:150], np.full(50, 0.1)])), "fail", lambda: run(**STEADY)),
    "B12": (lambda: run(val__accuracy=evals(np.r_[LEARNS[:30], np.full(20, 0.1)])), "fail",
            lambda: run(**STEADY | {"train__loss": with_(LOSS, 500, 9)})),
    "CP": (lambda: run(train__loss=LOSS + 1.0 * (T > 600)), "watch", lambda: run(**STEADY)),
    "B5": (lambda: run(train__loss=with_(LOSS, 600, 5)), "watch", lambda: run(**STEADY)),
    "A1": (lambda: run(train__loss=with_(LOSS, slice(700, None), np.nan)), "fail", lambda: run(**STEADY)),
    "A2": (lambda: run(train__loss=LOSS[:700], train__grad_norm=NORM), "watch",
           lambda: run(train__loss=LOSS, train__grad_norm=NORM)),
    "A3": (lambda: run(train__grad_norm=with_(NORM, slice(300, 306), 0.77)), "watch",
           lambda: run(train__grad_norm=NORM)),
    "A4": (lambda: run(train__grad_norm=np.zeros(N)), "info", lambda: run(train__grad_norm=NORM)),
    "A5": (lambda: run(loss_scale=np.r_[np.full(500, 65536.0), 65536 / 2.0 ** np.arange(1, 6), np.full(495, 2048.0)]),
           "watch", lambda: run(loss_scale=np.full(N, 65536.0))),
    "A6": (lambda: run(skipped_steps=(np.arange(N) % 10 == 0) & (T > 500)), "watch",
           lambda: run(skipped_steps=np.zeros(N))),
    "A7": (lambda: run(train__loss=LOSS, wall=T + 9000 * (T > 500)), "info", lambda: run(train__loss=LOSS, wall=T)),
    "A8": (lambda: run(step_time=1 + 0.5 * (T > 900)), "info", lambda: run(step_time=np.ones(N) + 0.01 * noise())),
    "B1": (lambda: run(train__loss=LOSS * np.where((T > 600) & (T < 620), 4, 1)), "info",
           lambda: run(train__loss=LOSS)),
    "B2": (lambda: run(train__loss=np.full(N, 11.0) + noise()), "info", lambda: run(train__loss=LOSS)),
    "B3": (lambda: run(train__loss=with_(LOSS, 600, 5)), "info", lambda: run(train__loss=LOSS)),
    "B4": (lambda: run(train__loss=np.r_[LOSS, LOSS[900:], 9.0, LOSS[900:]]), "info",
           lambda: run(train__loss=np.r_[LOSS, LOSS[900:]])),
    "B6": (lambda: run(train__loss=with_(LOSS, 600, 50)), "info", lambda: run(train__loss=LOSS)),
    "B7": (lambda: run(train__loss=with_(LOSS, 600, 5)), "info", lambda: run(train__loss=0 * T + 2 + 0.01 * noise())),
    "B9": (lambda: run(train__loss=with_(LOSS, 600, -1)), "info", lambda: run(train__loss=LOSS)),
    "B10": (lambda: run(train__loss=LOSS[::-1]), "watch", lambda: run(train__loss=LOSS)),
    "B11": (lambda: run(val__accuracy=evals(0.5 + 0.2 * (-1.0) ** np.arange(50))), "info", lambda: run(**STEADY)),
    "B13": (lambda: run(train__loss=np.where(T > 800, 2.2, LOSS)), "watch", lambda: run(train__loss=LOSS)),
    "B16": (lambda: run(train__loss=with_(LOSS, slice(30, 40), 6)), "info", lambda: run(train__loss=LOSS)),
    "C1": (lambda: run(l1__grad_norm=900 * NORM, l2__grad_norm=NORM, l3__grad_norm=NORM), "info",
           lambda: run(l1__grad_norm=NORM, l2__grad_norm=NORM, l3__grad_norm=NORM)),
    "C2": (lambda: run(train__grad_norm=1e-9 * NORM), "watch", lambda: run(train__grad_norm=NORM)),
    "C3": (lambda: run(train__grad_norm=with_(NORM, 600, 90)), "info", lambda: run(train__grad_norm=NORM)),
    "C4": (lambda: run({"max_grad_norm": 0.5}, train__grad_norm=NORM), "info",
           lambda: run({"max_grad_norm": 5.0}, train__grad_norm=NORM)),
    "C5": (lambda: run(update_norm=with_(NORM, 600, 900), param_norm=np.full(N, 10.0)), "watch",
           lambda: run(update_norm=NORM, param_norm=np.full(N, 100.0))),
    "C6": (lambda: run(train__loss=with_(LOSS, 605, 5), update_norm=with_(NORM, 603, 9)), "info",
           lambda: run(train__loss=LOSS, update_norm=NORM)),
    "C8": (lambda: run(param_norm=np.linspace(1, 5, N)), "info", lambda: run(param_norm=np.linspace(1, 1.2, N))),
    "C9": (lambda: run(update_norm=with_(NORM, slice(600, 610), 0)), "watch", lambda: run(update_norm=NORM)),
    "C14": (lambda: run({"adam_eps": 1e-3, "n_parameters": 10**8}, grad_norm=NORM), "watch",
            lambda: run({"adam_eps": 1e-8, "n_parameters": 100}, grad_norm=NORM)),
    "C16": (lambda: run(grad_norm=np.where(T > 700, 1e12, NORM)), "watch", lambda: run(grad_norm=NORM)),
    "C17": (lambda: run(effective_rank=np.where(T > 850, 1.0, 60.0)), "watch",
            lambda: run(effective_rank=60 + noise())),
    "D1": (lambda: run(lr=np.full(N, 3.0)), "info", lambda: run(lr=np.full(N, 1e-3))),
    "D2": (lambda: run(lr=np.where(T > 500, 0.1, 0.01)), "info", lambda: run(lr=np.full(N, 0.01))),
    "D3": (lambda: run(lr=0.01 * np.minimum(T / 200, 1), train__loss=with_(LOSS, 300, 6)), "info",
           lambda: run(lr=0.01 * np.minimum(T / 200, 1), train__loss=LOSS)),
    "D4": (lambda: run(segments=SESSIONS, train__loss=LOSS), "info", lambda: run(train__loss=LOSS)),
    "D5": (lambda: run(segments=SESSIONS, train__loss=LOSS + 0.5 * (T >= 500)), "info",
           lambda: run(segments=SESSIONS, train__loss=LOSS)),
    "D6": (lambda: run(batch_size=np.where(T > 500, 64, 32)), "info", lambda: run(batch_size=np.full(N, 32))),
    "D7": (lambda: run(train__loss=RESTART, lr=COSINE), "info", lambda: run(train__loss=LOSS, lr=COSINE)),
    "D10": (lambda: run({"tokens_per_step": 1024}, tokens=512 * T), "info",
            lambda: run({"tokens_per_step": 512}, tokens=512 * T)),
    "D11": (lambda: run(lr=SWEEP, train__loss=1 + np.abs(np.log10(SWEEP) + 2)), "info",
            lambda: run(lr=np.full(N, 0.01), train__loss=LOSS)),
    "E1": (lambda: run(train__loss=LOSS - 0.0002 * T, val__loss=evals(OVER)), "watch",
           lambda: run(train__loss=LOSS, val__loss=evals(np.linspace(2, 0.4, 50)))),
    "E2": (lambda: run(train__accuracy=np.full(N, 0.99), val__accuracy=evals(np.full(50, 0.8))), "info",
           lambda: run(train__accuracy=np.full(N, 0.82), val__accuracy=evals(np.full(50, 0.8)))),
    "E3": (lambda: run(val__accuracy=evals(np.r_[LEARNS[:25], 0.5 + 0 * LEARNS[25:]])), "info",
           lambda: run(val__accuracy=evals(np.linspace(0.1, 0.9, 50)))),
    "E4": (lambda: run(val__accuracy=evals(np.full(50, 0.99))), "info", lambda: run(**STEADY)),
    "E6": (lambda: run(loss_cls_aux=with_(1 + 0.01 * noise(4), 600, 3), loss_bbox_aux=1 + 0.01 * noise(5)), "info",
           lambda: run(loss_cls_aux=1 + 0.01 * noise(4), loss_bbox_aux=1 + 0.01 * noise(5))),
    "E9": (lambda: run(train__loss=LOSS + 1.0 * (T > 600), val__loss=evals(np.linspace(2, 0.4, 100))), "info",
           lambda: run(train__loss=LOSS, val__loss=evals(np.linspace(2, 0.4, 100)))),
    "E10": (lambda: run(train__loss=2 - 0.2 * np.floor(T / 100) + 0.01 * noise(), epoch=T / 100), "info",
            lambda: run(train__loss=LOSS, epoch=T / 100)),
    "E11": (lambda: run(train__accuracy=np.full(N, 0.995), val__accuracy=evals(LATE)),
            "info", lambda: run(train__accuracy=np.full(N, 0.9), val__accuracy=evals(LEARNS))),
    "F1": (lambda: run(approx_kl=with_(0.01 * NORM, slice(600, 610), 3)), "watch", lambda: run(approx_kl=0.01 * NORM)),
    "F2": (lambda: run(clip_fraction=np.where(T > 700, 0.8, 0.1)), "watch", lambda: run(clip_fraction=np.full(N, 0.1))),
    "F4": (lambda: run(train__entropy=np.where(T > 700, 0.001, 0.6)), "watch",
           lambda: run(train__entropy=np.linspace(0.69, 0.4, N))),
    "F5": (lambda: run(explained_variance=np.where(T > 400, -0.3, 0.8)), "watch",
           lambda: run(explained_variance=np.full(N, 0.8))),
    "F6": (lambda: run(value_loss=with_(NORM, 600, 900)), "info", lambda: run(value_loss=NORM)),
    "F11": (lambda: run(exploration_rate=np.where(T > 500, 0.5, 0.1) + 0.001 * noise()), "info",
            lambda: run(exploration_rate=0.1 + 0.001 * noise())),
    "G4": (lambda: run(d_loss=np.where(T > 600, 1e-4, 0.7)), "watch", lambda: run(d_loss=0.7 + 0.01 * noise())),
    "DEN": (lambda: run(train__loss=(T * 50, LOSS)), "info", lambda: run(train__loss=LOSS)),
    "COV": (lambda: run(train__loss=LOSS), "info",
            lambda: run(train__loss=LOSS, lr=LOSS, grad_norm=NORM, val__loss=evals(LEARNS))),
}  # fmt: skip

#: Rules that describe, or speak of what was given to the audit: never a pass.
DESCRIBE = {
    "B8", "B14", "B15", "C7", "C12", "C13", "C15", "C18", "D8", "D9", "E5", "F3", "F7", "F9", "F10", "G1", "G2", "G3",
    "M1", "AL", "SRC", "R1",
}  # fmt: skip


def result(made: Run, id: str) -> Any:
    return next(c for c in audit(made).checks if c.id == id)


def test_the_table_covers_the_catalogue() -> None:
    seeing = {r.id for r in RULES if r.look is not None}
    assert seeing == set(TABLE) | DESCRIBE


@pytest.mark.parametrize("id", list(TABLE))
def test_a_run_that_trips_it_and_one_that_does_not(id: str) -> None:
    bad, expected, good = TABLE[id]
    tripped = result(bad(), id)
    assert (tripped.result, id) == (expected, id)
    calm = result(good(), id)
    assert (calm.result, id) == ("pass", id), calm.found


@pytest.mark.parametrize("rule", [r for r in RULES if r.needs], ids=lambda r: r.id)
def test_what_a_rule_needs_and_lacks_is_not_observable(rule: Any) -> None:
    facts = audit(run(banana=noise())).facts
    check = run_rule(rule, facts)
    assert check.result == "not observable"
    assert check.advice


def test_an_empty_run_has_every_check_and_no_pass_by_absence() -> None:
    checks = audit(run()).checks
    assert len(checks) == len(RULES)
    assert {c.result for c in checks} <= set(RESULTS)
    told = {c.id for c in checks if c.result == "pass"}
    assert told <= {"SRC", "D4", "D5", "A4"}  # of these nothing is absent: nothing was lost, nothing was resumed


def test_rows_that_logs_cannot_show_stay_and_say_what_to_log() -> None:
    blind = [c for c in audit(run(train__loss=LOSS)).checks if c.result == BLIND]
    assert {c.id for c in blind} == {r.id for r in RULES if r.look is None}
    assert all(c.advice for c in blind)


def test_every_question_of_the_guides_has_a_rule() -> None:
    ids = {r.id for r in RULES}
    assert len(ids) == len(RULES)
    assert all(rules and set(rules) <= ids for rules in GUIDES.values())
    catalogue = [
        *(f"A{i}" for i in range(1, 9)), *(f"B{i}" for i in range(1, 17)), *(f"C{i}" for i in range(1, 18)),
        *(f"D{i}" for i in range(1, 10)), *(f"E{i}" for i in range(1, 9)), *(f"F{i}" for i in range(1, 12)),
        "G1", "G2", "G3",
    ]  # fmt: skip
    assert set(catalogue) <= ids


def test_the_page_of_the_catalogue_is_up_to_date() -> None:
    file = Path(__file__).parents[2] / "docs" / "checks.md"
    assert file.read_text(encoding="utf-8") == page(), "run python -m trajscope.audit.checks.page > docs/checks.md"


def test_triage_of_a_spike_after_a_jump_of_the_rate() -> None:
    made = run(train__loss=with_(LOSS, slice(600, 640), 6), lr=np.where(T >= 599, 0.1, 0.01), grad_norm=NORM)
    t = audit(made).triage
    assert t.event is not None
    assert 599 <= t.event.step <= 601
    assert t.kinds[0].name == "optimization"
    assert any(n.kind == "learning rate" and n.p_value < 0.05 for n in t.near)
    assert "learning rate" in t.next_steps[0]
    assert t.branch[-1].endswith("Yes.")


def test_triage_of_values_that_are_no_numbers_and_of_a_calm_run() -> None:
    t = audit(run(train__loss=with_(LOSS, slice(700, None), np.nan), grad_norm=NORM)).triage
    assert t.kinds[0].name == "numerical"
    assert "loss scale" in t.next_steps[0]
    calm = audit(run(**STEADY)).triage
    assert calm.event is None
    assert calm.next_steps == ()
    fast = audit(run(train__loss=with_(LOSS, 600, 9)), settings=Settings(profile="fast")).triage
    assert fast.reason == "not computed in the fast profile"


def test_near_is_held_against_chance() -> None:
    made = run(train__loss=LOSS, epoch=T / 10)
    places = near(made, 502, (), (500.0,))
    by = {p.kind: p for p in places}
    assert by["epoch"].p_value > 0.3  # a boundary every ten rows
    assert by["known event"].p_value == pytest.approx(6 / 1001)
    assert warmup_end(run(lr=0.01 * np.minimum(T / 200, 1)).channels["lr"]) == 200
    assert warmup_end(run(lr=np.full(N, 0.1)).channels["lr"]) is None


def test_text_of_checks_is_plain() -> None:
    bad = audit(run(train__loss=with_(LOSS, slice(600, 640), 6), lr=np.where(T >= 599, 0.1, 0.01)))
    assert isinstance(bad, Audit)
    for check in bad.checks:
        assert not re.search(r"nan|None|array\(|np\.", check.found), check
