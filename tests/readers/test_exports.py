"""W&B's CSV exports and the Trainer's state files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trajscope.history import Run
from trajscope.readers import read_run, scan_runs


def codes(run: Run) -> list[str]:
    return [p.code for p in run.problems]


def quoted(rows: list[list[Any]]) -> str:
    return "\n".join(",".join(f'"{c}"' for c in row) for row in rows) + "\n"


def panel(path: Path, spread: float) -> Path:
    metrics = [f"{run} - train/loss{end}" for run in ("a", "group: b - c") for end in ("", "__MIN", "__MAX")]
    rows: list[list[Any]] = [["Step", *metrics]]
    for i in range(6):
        one = [1.5, 1.5 - spread, 1.5 + spread]
        rows.append([10 * i, *(one if i % 2 == 0 else [""] * 3), *([2.5, 2.5, 2.5] if i < 3 else [""] * 3)])
    path.write_text(quoted(rows))
    return path


def test_panel_gives_a_run_a_curve_and_drops_equal_extremes(tmp_path: Path) -> None:
    runs = {r.id: r for r in scan_runs(panel(tmp_path / "wandb.csv", 0.0))}
    assert sorted(runs) == ["wandb.csv#a", "wandb.csv#group: b - c"]
    first = runs["wandb.csv#a"]
    assert list(first.channels) == ["train/loss"]
    assert first.channels["train/loss"].steps.tolist() == [0, 20, 40]
    assert first.channels["train/loss"].n_missing == 0
    assert not first.sampled
    assert codes(first) == ["panel-export"]


def test_panel_of_buckets_is_sampled_and_keeps_the_extremes(tmp_path: Path) -> None:
    runs = {r.id: r for r in scan_runs(panel(tmp_path / "wandb.csv", 0.25))}
    assert list(runs["wandb.csv#a"].channels) == ["train/loss", "train/loss__MIN", "train/loss__MAX"]
    assert runs["wandb.csv#a"].channels["train/loss__MAX"].values.tolist() == [1.75] * 3
    assert runs["wandb.csv#a"].sampled
    assert not runs["wandb.csv#group: b - c"].sampled


def test_system_panel_with_extremes_only(tmp_path: Path) -> None:
    path = tmp_path / "wandb.csv"
    path.write_text(quoted([["Relative Time (Process)", "a - gpu__MIN", "a - gpu__MAX"], [0.5, 1, 2], [1.5, 3, 4]]))
    run = read_run(path)
    assert run.channels["gpu__MAX"].steps.tolist() == [0.5, 1.5]
    assert run.sampled


def test_runs_table_is_refused_as_series_and_gives_config_and_summary(tmp_path: Path) -> None:
    head = [
        "Name",
        "State",
        "Notes",
        "User",
        "Tags",
        "Created",
        "Runtime",
        "Sweep",
        "lr",
        "batch_size",
        "train/loss",
        "val/acc",
    ]
    one = [
        "golden-sun-1",
        "finished",
        "-",
        "u",
        "",
        "2024-01-01T00:00:00.000Z",
        "3600",
        "",
        "0.001",
        "32",
        "0.51",
        "0.9",
    ]
    two = ["icy-moon-2", "crashed", "-", "u", "", "2024-01-01T00:00:00.000Z", "60", "", "0.1", "32", "NaN", ""]
    path = tmp_path / "export.csv"
    path.write_text(quoted([head, one, two]))
    runs = list(scan_runs(path))
    assert [r.id for r in runs] == ["export.csv#golden-sun-1", "export.csv#icy-moon-2"]
    assert [r.n_points for r in runs] == [0, 0]
    assert (runs[0].config["lr"], runs[0].config["batch_size"]) == (0.001, 32)
    assert (runs[0].summary["train/loss"], runs[0].summary["State"]) == (0.51, "finished")
    assert runs[1].summary["train/loss"] != runs[1].summary["train/loss"]
    assert "val/acc" not in runs[1].summary
    assert codes(runs[0]) == ["runs-table"]


# --- trainer_state.json


def history(n: int, shift: float = 0.0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for i in range(1, n + 1):
        rows.append({"loss": 3.0 / i + shift, "grad_norm": 1.0, "learning_rate": 1e-4, "epoch": i / 10, "step": 10 * i})
        if i % 2 == 0:
            rows.append({"eval_g0_loss": 2.0 / i, "epoch": i / 10, "step": 10 * i})
            rows.append({"eval_g1_loss": 4.0 / i, "epoch": i / 10, "step": 10 * i})
    return rows


def state(path: Path, rows: list[dict[str, Any]], *, end: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if end:
        rows = [
            *rows,
            {"train_runtime": 12.3, "train_loss": 1.1, "total_flos": 1e15, "epoch": 1.0, "step": rows[-1]["step"]},
        ]
    content = {"epoch": 1.0, "global_step": rows[-1]["step"], "max_steps": 100, "log_history": rows}
    path.write_text(json.dumps(content, indent=2))
    return path


def test_trainer_state_rows_and_final_summary(tmp_path: Path) -> None:
    rows = history(6)
    rows[6]["loss"] = float("nan")
    rows[0]["grad_norm"] = float("inf")
    run = read_run(state(tmp_path / "trainer_state.json", rows, end=True))
    assert run.channels["loss"].counts == {"finite": 5, "nan": 1, "posinf": 0, "neginf": 0, "missing": 0}
    assert run.channels["grad_norm"].counts["posinf"] == 1
    assert run.channels["eval_g1_loss"].steps.tolist() == [20, 40, 60]
    assert run.summary["train_runtime"] == 12.3
    assert "train_loss" not in run.channels
    assert run.config == {"max_steps": 100}
    assert "hidden-nonfinite" in codes(run)


def test_checkpoints_of_one_run_are_one_run_and_the_longest_is_read(tmp_path: Path) -> None:
    for n in (2, 4, 10):
        state(tmp_path / "out" / f"checkpoint-{10 * n}" / "trainer_state.json", history(n))
    (run,) = scan_runs(tmp_path)
    assert run.id == "out"
    assert run.channels["loss"].steps.tolist() == [10 * i for i in range(1, 11)]
    assert "checkpoint-conflict" not in codes(run)


def test_checkpoint_of_another_branch_is_reported(tmp_path: Path) -> None:
    state(tmp_path / "checkpoint-40" / "trainer_state.json", [*history(2), *history(4, shift=0.5)[3:]])
    state(tmp_path / "trainer_state.json", history(6))
    (run,) = scan_runs(tmp_path)
    assert run.channels["loss"].values[3] == 0.75
    (note,) = [p for p in run.problems if p.code == "checkpoint-conflict"]
    assert (note.place, note.count, note.file) == ("step 30", 2, "checkpoint-40/trainer_state.json")


def test_cut_state_keeps_the_rows_that_are_whole(tmp_path: Path) -> None:
    path = state(tmp_path / "trainer_state.json", history(6))
    data = path.read_bytes()
    lengths = []
    for cut in range(0, len(data), 11):
        path.write_bytes(data[:cut])
        lengths.extend(len(run.channels["loss"]) if "loss" in run.channels else 0 for run in scan_runs(path))
    assert lengths == sorted(lengths)
    assert lengths[-1] == 6


@pytest.mark.parametrize(
    "text", ["{}", '{"log_history": 3, "global_step": 1}', '{"log_history": [1, null, {"step": "x"}]}', "{"]
)
def test_odd_states_never_raise(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(text)
    assert read_run(path).n_points == 0


def test_a_panel_that_was_saved_again_without_quotes(tmp_path: Path) -> None:
    path = tmp_path / "panel.csv"
    rows = "".join(f"{s},{s / 2},{s / 2 - 1},{s / 2 + 1}\n" for s in range(8))
    path.write_text("Step,run - loss,run - loss__MIN,run - loss__MAX\n" + rows)
    (run,) = scan_runs(path)
    assert (run.format, list(run.channels)) == ("wandb-csv", ["loss", "loss__MIN", "loss__MAX"])
    assert run.sampled
