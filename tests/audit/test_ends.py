"""How the loss ends, jumps in short logs, and what was done on purpose."""

from __future__ import annotations

import numpy as np
import pytest

from trajscope.audit.ends import end_events, reset_events, short_events, soften
from trajscope.audit.events import Event
from trajscope.audit.run import audit
from trajscope.history import Run, RunData, named_channel

T = np.arange(1000.0)
SMOOTH = 0.3 + 2 * np.exp(-T / 150)


def noise(seed: int, n: int = 1000) -> np.ndarray:
    return 0.02 * np.random.default_rng(seed).normal(size=n)


def run(**channels: np.ndarray) -> Run:
    return Run(
        "r", RunData({k: named_channel(k, np.arange(float(len(v))), np.asarray(v, float)) for k, v in channels.items()})
    )


def test_an_explosion_needs_no_history() -> None:
    made = run(loss=np.r_[2.3, 2.0, 1.9, 1.8, 1.7, 1.8, 1.6, 1.7, 3.0, 40.0, 9e6])
    (event,) = end_events(made)
    assert (event.severity, event.kind, event.step) == ("fail", "divergence", 9)
    assert audit(made).verdict == "not healthy"
    assert not end_events(run(loss=np.r_[2.3, 2.0, 1.9, 1.8, 1.7, 1.8, 1.6, 1.7, 3.0, 40.0, 2.0]))


def test_a_descent_that_is_lost_is_dated_where_it_leaves_for_good() -> None:
    (event,) = end_events(run(loss=np.where(T < 700, SMOOTH, 2.1) + noise(0)))
    assert (event.severity, event.step) == ("fail", 700)
    assert "of its descent" in event.sentence


@pytest.mark.parametrize("seed", range(20))
def test_healthy_losses_end_quietly(seed: int) -> None:
    assert end_events(run(loss=SMOOTH + noise(seed))) == []
    assert end_events(run(loss=1 + noise(seed))) == []
    assert end_events(run(loss=np.r_[SMOOTH + noise(seed)][:30])) == []


def test_a_loss_that_comes_down_at_the_very_end_has_not_lost_its_descent() -> None:
    assert end_events(run(loss=np.where((T >= 700) & (T < 990), 2.1, SMOOTH) + noise(0))) == []


def test_losses_of_learned_values_may_grow() -> None:
    assert end_events(run(loss=0.01 + T / 100, eval_return=T)) == []


def test_a_short_log_has_its_own_rule() -> None:
    jump = named_channel("lm loss", np.arange(8.0), np.array([2.78, 2.77, 2.77, 7.3, 8.7, 7.6, 7.2, 6.8]))
    (event,) = short_events(jump)
    assert (event.step, event.severity) == (3, "watch")
    slow = named_channel("lm loss", np.arange(6.0), np.array([6.0, 6.1, 6.5, 7.2, 8.0, 9.0]))
    assert [e.step for e in short_events(slow)] == [5]
    falls = named_channel("lm loss", np.arange(20.0), 3 * np.exp(-np.arange(20.0) / 5) + 1)
    assert short_events(falls) == []
    assert short_events(named_channel("lm loss", T, SMOOTH)) == []


def test_a_reset_is_named_and_no_collapse() -> None:
    t = T % 500
    made = run(loss=(0.3 + 2 * np.exp(-t / 60)) * np.exp(noise(3)), lr=0.01 * (1 + np.cos(np.pi * t / 500)) / 2 + 1e-6)
    result = audit(made)
    assert [e.step for e in result.events if e.kind == "reset"] == [500]
    assert result.verdict == "look closer"
    assert "deliberate reset" in result.reasons[0]
    declared = audit(made, known_events=[500])
    assert all(e.severity == "info" for e in declared.events)


def test_a_spike_of_the_rate_is_no_reset() -> None:
    spike = (T >= 500) & (T < 520)
    loss = np.where((T >= 500) & (T < 600), 2.2, SMOOTH) + noise(4)
    made = run(loss=loss, lr=np.where(spike, 0.1, 0.01))
    assert reset_events(made, audit(made).events) == []


def test_what_lies_beside_a_known_event_is_information() -> None:
    fall = Event(503, "collapse", "val", "fail", "val collapses.")
    (soft,) = soften([fall], [500.0], 1.0, "a known event")
    assert (soft.severity, soft.sentence) == ("info", "val collapses, where a known event lies.")
    assert soften([fall], [400.0], 1.0, "a known event") == [fall]
    assert soften([fall], [510.0], 1.0, "a known event") == [fall]
