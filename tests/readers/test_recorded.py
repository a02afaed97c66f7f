"""Logs that the libraries themselves wrote (or their documented writers, see data/README.md): every point, in place."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from trajscope.history import Run
from trajscope.readers import read_run, scan_runs

DATA = Path(__file__).parent / "data"


def loss(s: float) -> float:
    return 2.5 * math.exp(-s / 10) + 0.5


def check(run: Run, name: str, steps: list[int], values: list[float], rtol: float = 0.0) -> None:
    channel = run.channels[name]
    assert channel.steps.tolist() == steps
    np.testing.assert_allclose(channel.values, values, rtol=rtol)


def test_stable_baselines3_progress() -> None:
    run = read_run(DATA / "sb3" / "progress.csv")
    assert run.provenance["step"] == ["time/total_timesteps"]
    assert run.channels["rollout/ep_rew_mean"].steps.tolist() == list(range(128, 1025, 128))
    assert run.channels["eval/mean_reward"].steps.tolist() == [256, 512, 768, 1024]
    assert len(run.channels["train/loss"]) == 7


def test_stable_baselines3_evaluations_agree_with_its_log() -> None:
    run = read_run(DATA / "sb3" / "evaluations.npz")
    logged = read_run(DATA / "sb3" / "progress.csv").channels
    for name in ("eval/mean_reward", "eval/mean_ep_length"):
        assert run.channels[name].steps.tolist() == logged[name].steps.tolist()
        np.testing.assert_allclose(run.channels[name].values, logged[name].values, rtol=1e-6)
    assert {n for n in run.channels if n.startswith("results/")} == {"results/0", "results/1", "results/2"}


def test_stable_baselines3_monitors_are_one_run() -> None:
    (run,) = [r for r in scan_runs(DATA / "sb3") if r.format == "monitor"]
    rows = [line for k in (0, 1) for line in (DATA / "sb3" / f"{k}.monitor.csv").read_text().splitlines()[2:]]
    assert len(run.channels["r"]) == len(rows) == 36
    assert run.channels["l"].steps[-1] == sum(int(line.split(",")[1]) for line in rows)
    assert run.config == {"env_id": "CartPole-v1", "n_envs": 2}


def test_lightning() -> None:
    run = read_run(DATA / "lightning")
    check(run, "train_loss", list(range(40)), [math.nan if s == 30 else loss(s) for s in range(40)])
    check(run, "val_loss", [9, 19, 29, 39], [*(loss(s) + 0.1 for s in (9, 19, 29)), math.inf])
    assert run.config == {"batch_size": 32, "lr": 0.1}


def test_timm_rows_without_evaluation_are_not_shifted() -> None:
    run = read_run(DATA / "timm" / "summary.csv")
    check(run, "train_loss", list(range(15)), [loss(e) for e in range(15)])
    check(run, "lr", list(range(15)), [0.1 / (1 + e) for e in range(15)])
    check(run, "eval_loss", list(range(12)), [loss(e) + 0.1 for e in range(12)])
    check(run, "eval_top1", list(range(12)), [60.0 + e for e in range(12)])
    assert run.channels["eval_top1"].n_missing == 3


def test_transformers() -> None:
    run = read_run(DATA / "transformers" / "trainer_state.json")
    check(run, "loss", list(range(1, 31)), [round(loss(s), 4) for s in range(1, 31)])
    assert run.channels["grad_norm"].steps[np.isinf(run.channels["grad_norm"].values)].tolist() == [2]
    check(run, "eval_g0_loss", [10, 20, 30], [loss(s) for s in (10, 20, 30)])
    assert run.channels["eval_g1_loss"].counts["nan"] == 3
    assert run.summary["train_runtime"] == 12.5
    assert "hidden-nonfinite" in {p.code for p in run.problems}


def test_tensorboard_reducer_is_sampled() -> None:
    run = read_run(DATA / "tensorboard_reducer" / "reduced.csv")
    assert list(run.channels) == ["train/loss/mean", "lr/mean", "train/loss/std", "lr/std"]
    check(run, "train/loss/mean", list(range(25)), [loss(s) for s in range(25)])
    check(run, "train/loss/std", list(range(25)), [0.5 / (1 + s) for s in range(25)])
    assert ["10,000 points" in p.message for p in run.problems if p.code == "sampled-source"] == [True]


def test_ultralytics_appended_run_is_a_segment() -> None:
    run = read_run(DATA / "ultralytics" / "results.csv")
    assert [s.kind for s in run.segments] == ["start", "restart"]
    check(run, "train/box_loss", [*range(1, 11)] * 2, [loss(e) for e in range(10)] * 2, 1e-5)
    counts = run.channels["val/box_loss"].counts
    assert (counts["finite"], counts["nan"], counts["posinf"]) == (18, 1, 1)


def test_detectron2() -> None:
    run = read_run(DATA / "detectron2" / "metrics.json")
    steps = list(range(19, 400, 20))
    check(run, "total_loss", steps, [math.nan if s == 199 else loss(s / 40) for s in steps])
    check(run, "bbox/AP", [199, 399], [19.9, 39.9])


def test_fairseq() -> None:
    run = read_run(DATA / "fairseq" / "train.log")
    check(run, "loss", list(range(1, 31)), [loss(u) for u in range(1, 31)], 1e-5)
    check(run, "valid_loss", [10, 20, 30], [loss(u) + 0.1 for u in (10, 20, 30)], 1e-5)
    assert run.channels["gnorm"].counts["nan"] == 1
    check(run, "train_loss", [10, 20, 30], [loss(u - 5) for u in (10, 20, 30)], 1e-5)
    clock = re.findall(r"(?m)^([\d-]+ [\d:]+) \| INFO \| train_inner", (DATA / "fairseq" / "train.log").read_text())
    wall = run.channels["loss"].wall_time
    assert wall is not None
    assert wall.tolist() == [datetime.fromisoformat(f"{t}+00:00").timestamp() for t in clock]


def test_llama_factory() -> None:
    path = DATA / "llamafactory" / "trainer_log.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    run = read_run(path)
    for name, steps in (("loss", range(5, 101, 5)), ("eval_loss", (50, 100))):
        check(run, name, list(steps), [r[name] for r in records if name in r])


@pytest.mark.parametrize(
    ("name", "channel", "steps", "scale"),
    [
        ("megatron", "lm loss", [i for i in range(1, 21) if i != 3], 1),
        ("neox", "lm_loss", list(range(10, 201, 10)), 10),
        ("llmc_main", "trl", list(range(30)), 1),
    ],
)
def test_text_logs(name: str, channel: str, steps: list[int], scale: int) -> None:
    run = read_run(DATA / "text" / f"{name}.log")
    check(run, channel, steps, [loss(s / scale) for s in steps], 1e-3)


def test_text_logs_in_detail() -> None:
    megatron = read_run(DATA / "text" / "megatron.log").channels
    assert megatron["grad norm"].steps[np.isnan(megatron["grad norm"].values)].tolist() == [7]
    assert megatron["number of skipped iterations"].values.sum() == 1
    check(read_run(DATA / "text" / "llmc_main.log"), "tel", [0, 10, 20], [loss(s) + 0.1 for s in (0, 10, 20)], 1e-4)
    olmo = read_run(DATA / "text" / "olmo.log").channels
    assert olmo["throughput/total_tokens"].values.tolist() == [4_194_304.0 * s for s in range(1, 16)]
    np.testing.assert_allclose(
        olmo["train/CrossEntropyLoss"].values, [*(loss(s) for s in range(1, 15)), math.nan], atol=1e-3
    )
    assert olmo["eval/validation/CrossEntropyLoss"].steps.tolist() == [15]
