"""The HalfCheetah recorder; only where torch, gymnasium and mujoco (``[record]``) are installed."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gymnasium")
pytest.importorskip("mujoco")

from recorder import halfcheetah_batch as batch  # noqa: E402
from recorder import halfcheetah_offpolicy as offpolicy  # noqa: E402
from recorder import halfcheetah_plans as plans  # noqa: E402
from recorder.halfcheetah import Cheetah, learned  # noqa: E402
from recorder.halfcheetah_networks import gradient, tensors  # noqa: E402
from recorder.monitor import Log  # noqa: E402
from recorder.perturb import STATE  # noqa: E402
from recorder.store import read_tables, run_table, series, series_equal, write_runs  # noqa: E402


def test_copies_of_the_environment_go_on_as_it_does() -> None:
    rng = np.random.default_rng(0)
    first = Cheetah(np.random.default_rng(1))
    torques = rng.uniform(-2, 2, (1300, 6)).astype(np.float32)
    torques[1100, 2] = np.nan
    for action in torques[:990]:
        first.step(action)
    others = [copy.deepcopy(first), pickle.loads(pickle.dumps(first))]
    for action in torques[990:]:
        reached, reward, over = first.step(action)
        for other in others:
            found, other_reward, other_over = other.step(action)
            assert found.tobytes() == reached.tobytes()
            assert (other_reward, other_over) == (reward, over)
        if over:  # a restart draws from a source of chance that was copied too
            assert len({cheetah.reset().tobytes() for cheetah in (first, *others)}) == 1


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer random steps and shorter evaluations."""
    monkeypatch.setattr("recorder.halfcheetah_offpolicy.RANDOM_STEPS", 200)
    monkeypatch.setattr("recorder.halfcheetah_offpolicy.EVAL_EVERY", 200)
    monkeypatch.setattr("recorder.halfcheetah_ppo.EPOCHS", 1)
    monkeypatch.setattr("recorder.halfcheetah.LIMIT", 250)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("algorithm", list(plans.ALGORITHMS))
def test_arms_leave_one_state(algorithm: str) -> None:
    unit = plans.PACE[algorithm].unit
    start = max(unit, 300)
    trainer, log = plans.ALGORITHMS[algorithm](0, width=16), Log()
    trainer.advance(log, start)
    trunk = batch.Trunk({plans.LEARNED: pickle.dumps((trainer, log))})
    runs = {
        arm: batch.record_arm(algorithm, 0, arm, trunk, tail=max(unit, 200))[0].arrays()
        for arm in ("control", "lr_x10", "obs_noise_1", "param_noise_1")
    }
    again = batch.record_arm(algorithm, 0, "obs_noise_1", trunk, tail=max(unit, 200))[0].arrays()
    trainer.advance(log, start + max(unit, 200))
    assert series_equal(log.arrays(), runs["control"])  # as if it had never been stopped
    assert series_equal(again, runs["obs_noise_1"])
    for arm in runs.keys() - {"control"}:
        assert series_equal(runs[arm], runs["control"], before=start)
        assert not series_equal(runs[arm], runs["control"])
    steps, lr = runs["lr_x10"]["train/lr"]
    np.testing.assert_allclose(lr[steps >= start], 10 * trainer.lr, rtol=1e-6)
    np.testing.assert_allclose(lr[steps < start], trainer.lr, rtol=1e-6)


def test_density_of_the_squashed_policy() -> None:
    trainer = offpolicy.SAC(0, width=8)
    p, obs = tensors(trainer.parameter_views()), torch.randn(offpolicy.BATCH, 17)
    action, density = trainer._draw(p, obs)
    out = offpolicy.run(p, "pi", obs)
    normal = torch.distributions.Normal(out[:, :6], out[:, 6:].clamp(*offpolicy.LOG_SD).exp())
    squashed = torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform())
    torch.testing.assert_close(density, squashed.log_prob(action).sum(dim=1), atol=1e-3, rtol=1e-3)


def test_parameters_are_one_vector() -> None:
    trainer = offpolicy.TD3(0, width=8)
    p = tensors(trainer.parameter_views())
    seen = torch.randn(5, 23)
    q = offpolicy.run(p, "q", seen)
    assert q.shape == (2, 5, 1)
    by_hand = seen
    for k in (1, 2, 3):
        by_hand = by_hand @ p[f"q_w{k}"][1] + p[f"q_b{k}"][1]
        by_hand = torch.relu(by_hand) if k < 3 else by_hand
    torch.testing.assert_close(q[1], by_hand)
    leaves = [p[name] for name in trainer.critic]
    assert gradient(q.sum(), leaves).shape == (trainer.cut,)
    trainer.theta += 1  # in place: what the tensors show
    torch.testing.assert_close(p["pi_b3"].detach().numpy(), trainer.parameter_views()["pi_b3"])
    torch.testing.assert_close(
        trainer.policy(np.zeros((1, 17), np.float32)),
        torch.tanh(offpolicy.run(p, "pi", torch.zeros(1, 17))).detach().numpy(),
    )


def test_learned_is_five_sd_above_the_start() -> None:
    assert not learned([0.0, 900.0, 900.0], [10.0] * 3)  # too few evaluations
    assert learned([0.0, 0.0, 900.0, 900.0, 900.0], [10.0] * 5)
    assert not learned([0.0, 0.0, 900.0, 900.0, 900.0], [10.0, 10.0, 200.0, 200.0, 200.0])
    assert not learned([0.0, 0.0, 100.0, 0.0, 0.0], [10.0] * 5)


def test_plan_is_ordered_and_known() -> None:
    jobs = list(plans.jobs())
    assert len(jobs) == len(set(jobs)) == 3 * 5 * 9
    known = STATE.keys() | {"lr_spike", "obs_noise", "reward_scale"}
    for algorithm, _, arm in jobs:
        p = plans.perturbation(algorithm, arm)
        assert (p is None) == (arm == "control")
        assert p is None or p.kind in known
    for pace in plans.PACE.values():  # the control reaches as far as every arm
        assert max(pace.moments().values()) <= pace.least
        assert all(step % pace.unit == 0 for step in pace.moments().values())


def test_thinning_is_of_training_rows_by_the_step_alone() -> None:
    log = Log()
    for step in range(0, 20_000, 100):
        log.add("train/loss", step, step)
        log.add("eval/return", step, step)
    kept = series(batch.thin(run_table("r", log), "sac", 15_000))
    assert len(kept["eval/return"][0]) == 200
    steps = kept["train/loss"][0]
    assert set(np.diff(steps[steps <= 5000])) == set(np.diff(steps[steps >= 12_000])) == {100}
    assert set(np.diff(steps[(steps >= 5000) & (steps <= 12_000)])) == {500}
    assert len(batch.thin(run_table("r", log), "ppo", 15_000)) == 400


def test_collecting_keeps_what_is_there_and_takes_a_seed_as_a_whole(tmp_path: Path) -> None:
    def part(folder: Path, seed: int, arm: str, value: float) -> None:
        run, log = plans.run_id("ppo", 64, seed, arm), Log()
        log.add("train/loss", 0, value)
        write_runs(folder / f"{run}.parquet", [(run, run_table(run, log))], {run: {"steps": 50_000}}, {})

    here, there, out = tmp_path / "here", tmp_path / "there", tmp_path / "out"
    for arm in ("control", "lr_x10"):
        part(here, 0, arm, 1.0)
    part(here, 1, "control", 1.0)
    batch.collect(here, out)
    part(there, 0, "control", 2.0)  # less than there is: stays out
    for arm in ("control", "lr_x30"):
        part(there, 1, arm, 2.0)
    part(there, 2, "lr_x10", 2.0)  # without its control
    batch.collect(there, out)
    found = {run[-14:]: table["value"][0].as_py() for run, table in read_tables(out / "ppo.parquet")}
    values = dict(sorted((k.split("s00")[1], v) for k, v in found.items()))
    assert values == {"0-control": 1.0, "0-lr_x10": 1.0, "1-control": 2.0, "1-lr_x30": 2.0}
    assert batch.collect(there, out) == []
