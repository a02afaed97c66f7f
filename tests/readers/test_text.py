"""Text logs: the shapes of known trainers, source code in front, several ranks, progress bars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trajscope.readers import read_run, scan_runs
from trajscope.readers._textlines import read_line

Write = Callable[[str, str], Path]

CODE = '''"""A training script."""
import torch
step = 0
lr = 0.1
def loss(x, weight=0.5): return weight * x  # step: 1 loss: 99
for step in range(10):
    optimizer = Adam(lr=0.02, betas=(0.9, 0.95))
    print(f"step:{step}/{10} val_loss:{loss:.4f}")
'''


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write text to a file of the temporary directory."""

    def inner(name: str, content: str) -> Path:
        path = tmp_path / name
        path.write_text(content)
        return path

    return inner


def megatron(i: int, loss: str = "", rank: str = "") -> str:
    return (
        f"{rank} iteration {i:8d}/  500000 | consumed samples: {256 * i:12d} | elapsed time per iteration (ms): 12.5 |"
        f" learning rate: 1.600E-05 | global batch size: 256 |{loss or f' lm loss: {9 / i:.6E} |'} loss scale: 4096.0 |"
        f" grad norm: 1.25 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


@pytest.mark.parametrize(
    ("line", "step", "pairs"),
    [
        (
            "step:919/6000 val_loss:4.3 train_time:285ms step_avg:nanms",
            {"step": 919},
            ["val_loss", "train_time", "step_avg"],
        ),
        ("s:0 tel:10.97", {"s": 0}, ["tel"]),
        ("s:1 trl:10.9 lr:0.001 norm:1.5", {"s": 1}, ["trl", "lr", "norm"]),
        ("iter 10: loss 4.2345, time 100.00ms, mfu 3.25%", {"iter": 10}, ["loss", "time", "mfu"]),
        ("step 250: train loss 2.1, val loss 2.2", {"step": 250}, ["train loss", "val loss"]),
        (
            "step    1/19560 | loss 11.009 (+nanz)| norm 15.34 (+nanz)| lr 8.57e-07 | 2953.30 ms | 47.1% bf16 MFU"
            " | 177529 tok/s",
            {"step": 1},
            ["loss", "norm", "lr", "step_time_ms", "tok/s"],
        ),
        ("step    1/74: train loss 4.367631 (80.639 ms)", {"step": 1}, ["train loss"]),
        (
            "2023/06/05 20:10:13 - mmengine - INFO - Epoch(train)   [2][3/6]  lr: 4.0e-08  eta: 4:59:11  loss: 0.42",
            {"epoch": 2, "iter": 3},
            ["lr", "loss"],
        ),
        ("[2024-01-01 00:00:00,123] [INFO] step=5, loss=0.25, skipped=0", {"step": 5}, ["loss", "skipped"]),
        ("Epoch 3 step 1,500 loss: 0.5 ppl: 11,633", {"epoch": 3, "step": 1500}, ["loss", "ppl"]),
        ("{'loss': 0.5, 'learning_rate': 1e-05, 'epoch': 0.01}", {"epoch": 0.01}, ["loss", "learning_rate"]),
        (
            "Epoch 1:  50%|#####     | 50/100 [00:01<00:01, 49.0it/s, loss=0.5, v_num=3]",
            {"iter": 50, "epoch": 1},
            ["loss", "v_num"],
        ),
        ("    train/Perplexity=11,633", {}, ["train/Perplexity"]),
    ],
)
def test_one_line(line: str, step: dict[str, float], pairs: list[str]) -> None:
    found = read_line(line)
    assert found is not None
    assert found.step == step
    assert list(found.pairs) == pairs


@pytest.mark.parametrize("line", [*CODE.splitlines(), "", "no numbers here", "eta: 2:04:44", "x" * 5000])
def test_code_and_prose_are_no_step_lines(line: str) -> None:
    found = read_line(line)
    assert found is None or not (found.step and found.pairs)


def test_source_code_in_front_of_a_log_is_passed_over(write: Write) -> None:
    log = "".join(
        f"step:{i}/100 train_loss:{3 - i / 100:.4f} train_time:{100 * i}ms step_avg:nanms\n" for i in range(101)
    )
    run = read_run(write("a.txt", CODE * 300 + "====\n" + log + "step:100/100 val_loss:2.5 train_time:1ms\n"))
    assert run.channels["train_loss"].steps.tolist() == list(range(101))
    assert run.channels["train_loss"].values[0] == 3.0
    assert run.channels["val_loss"].values.tolist() == [2.5]
    assert run.channels["step_avg"].counts["nan"] == 101
    assert set(run.channels) == {"train_loss", "train_time", "step_avg", "val_loss"}
    assert "other-lines" in [p.code for p in run.problems]


def test_megatron_with_skipped_iterations_and_validation(write: Write) -> None:
    lines = [megatron(i) for i in range(1, 20)]
    lines[5] = megatron(6, loss=" ")
    lines.append(" validation loss at iteration 19 | lm loss value: 4.5E+00 | lm loss PPL: 9.1E+01 |")
    run = read_run(write("train.log", "\n".join(["Building model", *lines]) + "\n"))
    assert run.channels["lm loss"].steps.tolist() == [i for i in range(1, 20) if i != 6]
    assert run.channels["grad norm"].steps.tolist() == list(range(1, 20))
    assert run.channels["val/lm loss value"].steps.tolist() == [19]
    assert run.channels["val/lm loss value"].role == "val_loss"
    assert run.provenance["step"] == ["iteration"]


def test_ranks_that_say_the_same_are_copies_and_others_are_kept(write: Write) -> None:
    lines = []
    for i in range(1, 11):
        lines += [megatron(i, rank="7:"), megatron(i, rank="3:")]
    lines.append("3:  iteration 11/ 500000 | consumed samples: 1 | lm loss: 5.0E+00 |")
    run = read_run(write("train.log", "\n".join(lines) + "\n"))
    assert len(run.channels["lm loss"]) == 11
    assert not any(name.startswith("rank") for name in run.channels)
    assert "several-ranks" in [p.code for p in run.problems]
    other = [f"{r}: step 1{k} loss: {k + r / 10}" for k in range(5) for r in (0, 1)]
    run = read_run(write("b.log", "\n".join(other) + "\n"))
    assert run.channels["loss"].values.tolist() == [k + 0.1 for k in range(5)]
    assert run.channels["rank0/loss"].values.tolist() == [float(k) for k in range(5)]


def test_olmo_blocks_with_thousands_separators(write: Write) -> None:
    blocks = "".join(
        f"2025-12-12 11:05:{i:02d}.850\thost-03:0\tolmo.train:979\tINFO\t[step={i}/15000,epoch=0]\n"
        f"    optim/total_grad_norm=0.2{i}\n    train/Perplexity=11,63{i}\n    throughput/total_tokens=4,194,304\n"
        for i in range(1, 6)
    )
    noise = '  File "api.py", line 85, in f\nSignalException: Process 9724 got signal: 15\n' * 2
    run = read_run(write("training.log", "INFO Building model\n" + blocks + noise))
    assert run.channels["train/Perplexity"].values.tolist() == [11631, 11632, 11633, 11634, 11635]
    assert run.channels["train/Perplexity"].steps.tolist() == [1, 2, 3, 4, 5]
    assert run.channels["optim/total_grad_norm"].role == "grad_norm"
    wall = run.channels["train/Perplexity"].wall_time
    assert wall is not None
    np.testing.assert_allclose(np.diff(wall), 1.0)


def test_blocks_under_an_epoch_line(write: Write) -> None:
    blocks = "".join(
        f"Epoch: {e}/30\nTime Taken: 30.1s - LR: 9.9e-05\nTrain Loss: {3 / e}\nValid Loss: {4 / e}\n---\n"
        for e in (1, 2, 3)
    )
    run = read_run(write("a.log", "lr: 0.1\nbatch_size: 128\n" + blocks))
    assert run.channels["Train Loss"].values.tolist() == [3, 1.5, 1]
    assert run.channels["Valid Loss"].steps.tolist() == [1, 2, 3]
    assert set(run.channels) == {"Time Taken", "LR", "Train Loss", "Valid Loss"}


def test_mmengine_iterations_count_over_epochs(write: Write) -> None:
    lines = []
    for e in (1, 2):
        lines += [
            f"2023/06/05 20:1{e}:1{i} - mmengine - INFO - Epoch(train)   [{e}][{i}/3]  lr: 1e-03  loss: 0.{i}"
            for i in (1, 2, 3)
        ]
        lines.append(f"2023/06/05 20:1{e}:20 - mmengine - INFO - Epoch(val) [{e}][2/2]    coco/AP: 0.{e}  time: 0.1")
    run = read_run(write("20230605.log", "\n".join(lines) + "\n"))
    assert run.channels["loss"].steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert run.channels["val/coco/AP"].steps.tolist() == [3, 6]


def test_progress_bar_keeps_the_last_word_on_each_step(write: Write) -> None:
    bars = "".join(f"Epoch {e}: step {s} loss={3 - s}.{k}\r" for e in (0,) for s in (1, 2, 3) for k in (1, 2, 5))
    run = read_run(write("a.log", bars + "\n"))
    assert run.channels["loss"].values.tolist() == [2.5, 1.5, 0.5]


def test_progress_bars_of_several_epochs_count_on(write: Write) -> None:
    bars = "".join(
        f"Epoch {e}: {i:3d}%|##   | {i}/100 [00:01<00:01, 49.0it/s, loss={3 - e}.{i // 10}]\r"
        for e in range(3)
        for i in (10, 50, 100)
    )
    run = read_run(write("a.log", "Sanity check\n" + bars + "\n"))
    assert run.channels["loss"].steps.tolist() == [10, 50, 100, 110, 150, 200, 210, 250, 300]


def test_dictionaries_printed_by_a_trainer(write: Write) -> None:
    lines = [
        f"{{'loss': {3 - i / 10}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': {i / 4}}}" for i in range(1, 9)
    ]
    run = read_run(write("train.out", "\n".join(["Running training", *lines]) + "\n"))
    assert run.channels["loss"].steps.tolist() == [i / 4 for i in range(1, 9)]
    assert run.channels["grad_norm"].role == "grad_norm"


def test_restart_in_a_log_opens_a_segment(write: Write) -> None:
    once = "".join(f"step:{i} loss:{i}.5\n" for i in range(20))
    run = read_run(write("a.log", once + once))
    assert [s.kind for s in run.segments] == ["start", "restart"]


def test_prose_code_and_requirement_files_are_no_logs(write: Write) -> None:
    write("requirements.txt", "numpy==1.26\ntorch>=2.0\n")
    write("script.txt", CODE * 20)
    path = write("README", "Step 1: install. Step 2: run.\n")
    assert list(scan_runs(path.parent)) == []


LOG = "".join(f"step:{i} loss:{3 - i / 10:.3f} lr:0.01\n" for i in range(12)).encode()


def test_truncation_keeps_the_lines_before(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    for cut in range(60, len(LOG)):
        path.write_bytes(LOG[:cut])
        run = read_run(path)
        complete = LOG[:cut].count(b"\n")
        assert run.channels["loss"].values.tolist()[:complete] == [round(3 - i / 10, 3) for i in range(complete)]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)))
def test_any_bytes_called_log_never_raise(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(content + b"\nstep:1 loss:2\nstep:2 loss:1\n")
    for run in scan_runs(path):
        _ = run.channels


def test_nanogpt_evaluations_stand_at_their_own_step(write: Write) -> None:
    lines = ["step 0: train loss 10.9, val loss 10.8"]
    lines += [f"iter {i}: loss {3 - i / 10:.4f}, time {100 + i:.2f}ms, mfu 30.00%" for i in range(20)]
    run = read_run(write("a.log", "\n".join([*lines, "step 20: train loss 3.1, val loss 3.2"]) + "\n"))
    assert run.channels["val loss"].steps.tolist() == [0, 20]
    assert run.channels["loss"].steps.tolist() == list(range(20))
    assert "step" not in run.channels


@pytest.mark.parametrize(
    ("line", "first", "channel"),
    [
        ("Train Epoch: {e} [{b}/640 ({p}%)]\tLoss: {v:.6f}", 1, "Loss"),
        ("Epoch: [{e}][{b:3d}/640]\tTime  0.1 ( 0.2)\tLoss {v:.4e} ({v:.4e})\tAcc@1  50.00 ( 50.00)", 0, "Loss"),
        ("Epoch: [{e}]  [{b:4d}/640]  eta: 0:27:35  lr: 0.000001  loss: {v:.4f} ({v:.4f})  time: 0.2", 0, "loss"),
        ("Epoch {e}: [{b}/640] loss: {v:.4f}", 1, "loss"),
    ],
)
def test_positions_inside_epochs_count_on(write: Write, line: str, first: int, channel: str) -> None:
    text = [line.format(e=first + e, b=b, p=b // 6, v=3 - b / 1000) for e in range(2) for b in range(0, 640, 64)]
    run = read_run(write("train.log", "\n".join(text) + "\n"))
    assert run.channels[channel].steps.tolist() == list(range(0, 1280, 64))
    np.testing.assert_allclose(run.channels[channel].values[:10], [3 - b / 1000 for b in range(0, 640, 64)], atol=1e-3)


def test_a_loss_that_is_nan_is_read_where_the_line_holds_no_digit(write: Write) -> None:
    text = "".join(f"[step={s}/9,epoch=0]\n    train/loss={'nan' if s > 2 else 1.5}\n    x=-inf\n" for s in range(1, 5))
    run = read_run(write("train.log", text))
    assert run.channels["train/loss"].counts["nan"] == 2
    assert run.channels["x"].counts["neginf"] == 4


def test_colours_of_a_terminal_are_passed_over(write: Write) -> None:
    lines = [f"\x1b[36mstep\x1b[0m: {s}, \x1b[1;32mloss\x1b[0m: {3 - s / 10:.4f}" for s in range(8)]
    run = read_run(write("a.log", "\n".join(lines) + "\n"))
    np.testing.assert_allclose(run.channels["loss"].values, [3 - s / 10 for s in range(8)])


def test_a_step_in_brackets_before_spaced_pairs(write: Write) -> None:
    lines = [f"[Epoch {e}] train loss {3 - e / 10:.3f}, val loss {4 - e / 10:.3f}" for e in range(8)]
    run = read_run(write("a.log", "\n".join(lines) + "\n"))
    assert {n: len(c) for n, c in run.channels.items()} == {"train loss": 8, "val loss": 8}
