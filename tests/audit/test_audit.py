"""The audit: each verdict on a run made for it, calibration on healthy runs, answers that do not depend on order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from trajscope.audit.checks import RESULTS, RULES
from trajscope.audit.run import audit
from trajscope.config import Settings
from trajscope.errors import InputError
from trajscope.history import Run, RunData, Series, Source, assemble, named_channel


def make(n: int = 400, seed: int = 0, **changes: Any) -> Run:
    """A run that learns: accuracy every 5 steps, loss and gradient norm every step; ``edit`` changes the arrays."""
    rng = np.random.default_rng(seed)
    t = np.arange(n)
    arrays = {
        "train/loss": (t, 0.05 + 2.2 * np.exp(-t / (n / 10)) * np.exp(0.1 * rng.standard_normal(n))),
        "train/grad_norm": (t, np.exp(0.2 * rng.standard_normal(n)) * (0.5 + np.exp(-t / (n / 10)))),
        "val/accuracy": (t[::5], 0.95 - 0.85 * np.exp(-t[::5] / (n / 12)) + 0.004 * rng.standard_normal(t[::5].size)),
        "train/lr": (t, np.full(n, 0.01)),
    }
    arrays["train/loss"] = (t, arrays["train/loss"][1] * np.exp(0.1 * rng.standard_normal(n)))
    for name, edit in changes.get("edit", {}).items():
        steps, values = arrays[name]
        arrays[name] = (steps, edit(steps, values.copy()))
    for name in changes.get("drop", ()):
        del arrays[name]
    return Run("made", RunData({k: named_channel(k, s, v) for k, (s, v) in arrays.items()}), format="test")


def after(step: float, value: float) -> Any:
    """Set everything from a step on to a value, with a little noise of its own."""

    def edit(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
        late = steps >= step
        values[late] = value + 0.01 * value * np.random.default_rng(1).standard_normal(late.sum())
        return values

    return edit


def between(low: float, high: float, value: float) -> Any:
    """Set the values between two steps."""

    def edit(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
        values[(steps >= low) & (steps < high)] = value
        return values

    return edit


def test_a_run_that_learns_is_healthy() -> None:
    result = audit(make())
    assert result.verdict == "healthy"
    assert result.performance == "val/accuracy:max"
    assert not [e for e in result.events if e.severity != "info"]


def test_a_run_that_loses_everything_is_not_healthy_and_dated() -> None:
    result = audit(make(n=1000, edit={"val/accuracy": after(500, 0.1), "train/loss": after(498, 2.3)}))
    assert result.verdict == "not healthy"
    assert result.collapse is not None
    assert result.collapse.onset == 500
    assert {e.step for e in result.events if e.severity == "fail"} == {498, 500}  # the loss first
    assert "val/accuracy" in result.reasons[0]


def test_a_dip_that_recovers_asks_for_a_look_and_is_dated() -> None:
    result = audit(make(edit={"val/accuracy": between(250, 300, 0.2)}))
    assert result.verdict == "look closer"
    assert next(e.step for e in result.events if e.severity == "watch") == 250


def test_a_level_that_never_comes_back_is_not_healthy_without_a_collapse() -> None:
    result = audit(make(edit={"val/accuracy": after(250, 0.75), "train/loss": between(250, 255, 5.0)}))
    assert result.collapse is not None
    assert result.collapse.kind == "none"
    assert result.deficit > 3
    assert result.verdict == "not healthy"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_loss_that_stays_non_finite_is_not_healthy(value: float) -> None:
    result = audit(make(edit={"train/loss": lambda s, v: np.where(s >= 300, value, v)}))
    assert result.verdict == "not healthy"
    assert "non-finite at step 300" in result.reasons[0]
    assert next(c for c in result.checks if c.id == "A1").result == "fail"


def test_a_passing_nan_asks_for_a_look_and_a_skipped_step_does_not() -> None:
    assert audit(make(edit={"train/loss": between(200, 202, np.nan)})).verdict == "look closer"
    assert audit(make(edit={"train/grad_norm": between(200, 201, np.inf)})).verdict == "healthy"


def test_what_is_not_logged_cannot_be_judged() -> None:
    none = audit(make(drop=["val/accuracy", "train/loss"]))
    assert none.verdict == "cannot tell"
    assert "No channel measures performance" in none.reasons[0]
    only = audit(make(drop=["train/loss", "train/grad_norm"]))
    assert only.verdict == "cannot tell"
    assert "Neither a training loss" in only.reasons[0]
    assert next(c for c in none.checks if c.id == "F8").result == "not observable"


def test_too_few_rows_cannot_be_called_healthy() -> None:
    result = audit(make(n=45))
    assert result.verdict == "cannot tell"


def test_a_sampled_source_cannot_be_called_healthy() -> None:
    run = make()
    sources = [
        Source("f", {c.name: Series(c.steps, c.values) for c in run.channels.values()}, sampled="one row in ten")
    ]
    result = audit(Run("s", assemble(sources)))
    assert result.verdict == "cannot tell"
    assert "sample" in result.reasons[0]


def test_a_known_event_is_not_a_failure() -> None:
    spike = make(edit={"train/loss": between(200, 201, 50.0)})
    assert audit(spike).verdict == "look closer"
    assert audit(spike, known_events=[200]).verdict == "healthy"


def test_a_jump_of_the_learning_rate_is_named() -> None:
    result = audit(make(edit={"train/lr": between(200, 210, 0.3)}))
    sentences = [e.sentence for e in result.events if e.kind == "lr"]
    assert sentences == [
        "The learning rate jumps by x30 at step 200.",
        "The learning rate jumps by /30 at step 210.",
    ]
    assert result.verdict == "healthy"


def test_a_restarted_counter_is_judged_part_by_part() -> None:
    good, bad = make(), make(edit={"val/accuracy": after(250, 0.1)})
    sources = [
        Source(f"f{i}", {c.name: Series(c.steps, c.values) for c in r.channels.values()}, started=float(i))
        for i, r in enumerate((bad, good))
    ]
    result = audit(Run("r", assemble(sources)))
    assert [p.verdict for p in result.parts] == ["not healthy", "healthy"]
    assert result.verdict == "not healthy"
    assert "this is part 1" in result.reasons[-1]
    assert len(result.to_dict()["parts"]) == 2


def test_the_performance_channel_can_be_named_and_misnamed() -> None:
    result = audit(make(), performance="train/loss:min")
    assert result.performance == "train/loss:min"
    with pytest.raises(InputError, match="Did you mean 'train/loss'"):
        audit(make(), performance="train/los:min")
    with pytest.raises(InputError, match="no channel 'x' to give a role"):
        audit(make(), roles={"x": "loss"})


def test_the_same_run_gives_the_same_answer_and_is_not_changed() -> None:
    run = make(edit={"val/accuracy": after(250, 0.1)})
    before = {n: c.values.copy() for n, c in run.channels.items()}
    assert audit(run).to_dict() == audit(run).to_dict()
    for name, values in before.items():
        np.testing.assert_array_equal(run.channels[name].values, values)


def test_channel_order_and_shifted_steps_do_not_matter() -> None:
    run = make(edit={"val/accuracy": after(250, 0.1)})
    turned = run.replace(channels=dict(reversed(list(run.channels.items()))))
    assert audit(turned).verdict == audit(run).verdict
    assert audit(turned).reasons == audit(run).reasons


def test_checks_come_worst_first_and_every_result_is_a_known_word() -> None:
    checks = audit(make(edit={"val/accuracy": after(250, 0.1)})).checks
    order = [RESULTS.index(c.result) for c in checks]
    assert order == sorted(order)
    assert len(checks) == len(RULES)
    assert len({c.id for c in checks}) == len(checks)


def test_at_most_five_lines_tell_what_happened() -> None:
    wild = {"train/loss": lambda s, v: np.where(s % 37 == 30, 40.0, v), "val/accuracy": after(250, 0.1)}
    assert 1 <= len(audit(make(edit=wild)).what_happened()) <= 5
    assert audit(make()).what_happened()[0] == "Nothing that stands out."


def test_healthy_runs_are_called_healthy() -> None:
    """The share of healthy runs that are not called healthy is at most 5 %, up to the binomial error of 60 runs."""
    verdicts = [audit(make(seed=s)).verdict for s in range(60)]
    wrong = sum(v != "healthy" for v in verdicts)
    assert wrong <= binom.ppf(0.99, 60, 0.05)


def test_settings_are_in_the_provenance() -> None:
    result = audit(make(), settings=Settings(alpha=0.01))
    assert result.provenance.parameters["alpha"] == 0.01
    assert result.to_dict()["settings_hash"] == Settings(alpha=0.01).hash
