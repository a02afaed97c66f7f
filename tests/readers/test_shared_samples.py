"""Real and damaged samples beside the checkout: counts against an independent parse, outcomes as their README asks."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trajscope.history import Run
from trajscope.readers import read_run, scan_runs

Counts = dict[str, tuple[int, int, int]]  # points, NaN, infinite
MISSING = {"", "None"}


def counts_of(run: Run) -> Counts:
    found = {}
    for name, c in run.channels.items():
        n = c.counts
        found[name] = (len(c), n["nan"], n["posinf"] + n["neginf"])
    return found


def tally(pairs: Iterable[tuple[str, float]]) -> Counts:
    found: dict[str, list[int]] = {}
    for name, value in pairs:
        row = found.setdefault(name, [0, 0, 0])
        row[0] += 1
        row[1] += math.isnan(value)
        row[2] += math.isinf(value)
    return {name: (a, b, c) for name, (a, b, c) in found.items()}


def table_counts(path: Path, delimiter: str = ",") -> tuple[int, Counts]:
    """Rows and counts by column, by the csv module and float()."""
    csv.field_size_limit(1 << 24)
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter=delimiter))
    pairs = []
    for row in rows:
        for name, cell in row.items():
            try:
                if cell not in MISSING:
                    pairs.append((name, float(cell.rstrip("%"))))
            except ValueError:
                continue
    return len(rows), tally(pairs)


def flatten(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flatten(f"{name}/{key}" if name else key, inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def index(root: Path) -> dict[str, int]:
    """Rows of each file as the samples' own index says."""
    lines = (root / "logs" / "INDEX.tsv").read_text().splitlines()[1:]
    return {cells[0]: int(cells[2]) for cells in (line.split("\t") for line in lines)}


def files(root: Path, *patterns: str) -> list[Path]:
    return sorted(f for p in patterns for f in (root / "logs").glob(p))


def points(run: Run) -> int:
    return max((len(c) for c in run.channels.values()), default=0)


def same(found: Counts, expected: Counts, path: Path) -> None:
    shared = {name: expected[name] for name in found if name in expected}
    assert shared
    assert {name: found[name] for name in shared} == shared, path


def test_delimited_counts(shared_data: Path) -> None:
    rows_of = index(shared_data)
    found = files(
        shared_data, "csv_algoperf/**/*.csv", "csv_lightning/**/*.csv", "csv_rl/**/*.csv", "tsv_spinningup/**/*.txt"
    )
    assert len(found) > 30
    infinite = 0
    for path in found:
        rows, expected = table_counts(path, "\t" if path.suffix == ".txt" else ",")
        run = read_run(path, resume="keep-all")
        counts = counts_of(run)
        same(counts, expected, path)
        step = run.provenance["step"][0]
        assert set(expected) - set(counts) == {step}, path
        assert rows == rows_of[path.relative_to(shared_data).as_posix()]
        infinite += sum(c for _, _, c in counts.values())
    assert infinite > 30


def test_algoperf_repeated_steps_are_duplicates_and_no_resumes(shared_data: Path) -> None:
    for run in scan_runs(shared_data / "logs" / "csv_algoperf"):
        assert len(run.segments) == 1, run.id
        assert not len(run.superseded), run.id


def test_rllib_counts(shared_data: Path) -> None:
    for path in files(shared_data, "csv_rllib/**/progress.csv"):
        _, expected = table_counts(path)
        same(counts_of(read_run(path, resume="keep-all")), expected, path)
    for path in files(shared_data, "jsonl_rllib/**/result.json"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        bare = [{k: v for k, v in r.items() if k not in ("config", "hist_stats")} for r in records]
        expected = tally(p for r in bare for p in flatten("", r))
        counts = counts_of(read_run(path, resume="keep-all"))
        same(counts, expected, path)
        assert set(expected) - set(counts) <= {"timesteps_total", "timestamp", "pid"}


def test_rllib_table_agrees_with_result_json(shared_data: Path, tmp_path: Path) -> None:
    (table,) = files(shared_data, "csv_rllib/set01/halfcheetah-sac/progress.csv")
    (result,) = files(shared_data, "jsonl_rllib/set01/halfcheetah-sac/result.json")
    for f in (table, result):
        (tmp_path / f.name).write_bytes(f.read_bytes())
    (run,) = scan_runs(tmp_path)
    assert len(run.channels["episode_reward_mean"]) == 587
    assert [p.message for p in run.problems if p.code == "second-file" and p.severity == "warning"] == []


def test_dictionaries_in_rllib_tables_agree_with_result_json(shared_data: Path) -> None:
    for path in files(shared_data, "csv_rllib/set01/pong-speedrun/**/progress.csv"):
        other = read_run(
            shared_data / "logs/jsonl_rllib" / path.relative_to(shared_data / "logs/csv_rllib").with_name("result.json")
        )
        run = read_run(path)
        assert set(other.channels) == set(run.channels)
        for name, channel in other.channels.items():
            np.testing.assert_allclose(run.channels[name].values, channel.values, rtol=1e-6)
            assert run.channels[name].steps.tolist() == channel.steps.tolist()


def test_json_line_counts(shared_data: Path) -> None:
    for path in files(shared_data, "jsonl_detr/**/log.txt"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        run = read_run(path)
        same(counts_of(run), tally(p for r in records for p in flatten("", r)), path)
        boxes = np.array([r["test_coco_eval_bbox"] for r in records])
        np.testing.assert_array_equal(run.channels["test_coco_eval_bbox/0"].values, boxes[:, 0])
    for path in files(shared_data, "jsonl_mmengine/**/*.json"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        train = [r for r in records if "iter" in r]
        counts = counts_of(read_run(path, resume="keep-all"))
        same(counts, tally(p for r in train for p in flatten("", r)), path)
        held_out = [{f"val/{k}": v for k, v in r.items()} for r in records if "iter" not in r]
        same(counts, tally(p for r in held_out for p in r.items()), path)


def test_trainer_state_counts(shared_data: Path) -> None:
    (path,) = files(shared_data, "json_hf_trainer_state/**/*.json")
    rows = [r for r in json.loads(path.read_text())["log_history"] if "train_runtime" not in r]
    same(counts_of(read_run(path, resume="keep-all")), tally(p for r in rows for p in r.items()), path)


def test_monitor_counts(shared_data: Path) -> None:
    rows_of = index(shared_data)
    runs = list(scan_runs(shared_data / "logs" / "csv_sb3_monitor"))
    assert len(runs) == 9
    for run in runs:
        folder = Path(run.path).parent.relative_to(shared_data).as_posix()
        assert len(run.channels["r"]) == sum(n for f, n in rows_of.items() if f.startswith(folder + "/")), run.id
        total = sum(
            float(line.split(",")[1])
            for f in Path(run.path).parent.glob("*.csv")
            for line in f.read_text().splitlines()[2:]
        )
        assert float(run.channels["r"].steps[-1]) == total


def test_array_counts(shared_data: Path) -> None:
    for path in files(shared_data, "npz_sb3_evaluations/**/*.npz"):
        with np.load(path) as content:
            run = read_run(path)
            assert run.channels["eval/mean_reward"].steps.tolist() == content["timesteps"].tolist()
            np.testing.assert_array_equal(run.channels["results/1"].values, content["results"][:, 1])
    for path in files(shared_data, "npy_td3/**/*.npy"):
        np.testing.assert_array_equal(read_run(path).channels["eval_return"].values, np.load(path))


def test_text_counts(shared_data: Path) -> None:
    for name, rows in index(shared_data).items():
        if not name.startswith("logs/text/") or not rows:
            continue
        run = read_run(shared_data / name, resume="keep-all")
        if "set02" in name:
            assert points(run) in (rows, rows - 1), name  # the last block may hold its head only
            continue
        losses = sum(len(c) for c in run.channels.values() if c.name in ("val_loss", "train_loss", "tel", "trl"))
        assert losses == rows, name


def test_panel_counts(shared_data: Path) -> None:
    for path in files(shared_data, "wandb_csv/set01/*.csv", "wandb_csv/set02/*.csv"):
        _, expected = table_counts(path)
        for run in scan_runs(path, resume="keep-all"):
            key = run.id.split("#", 1)[1]
            counts = {f"{key} - {name}": v for name, v in counts_of(run).items()}
            same(counts, expected, path)
    (path,) = files(shared_data, "wandb_csv/set03/*.csv")
    (run,) = scan_runs(path)
    assert run.n_points == 0
    assert run.config["learning_rate"] == 0.00002
    assert run.summary["train/loss"] == 0.20203346014022827


# --- damaged samples: (file, points by channel, problem codes that must be there)

NASTY: list[tuple[str, dict[str, int], set[str]]] = [
    ("csv/01_semicolon_decimal_comma.csv", {"train_loss": 50, "lr": 50}, set()),
    ("csv/02_utf16_bom.csv", {"train_loss": 50}, set()),
    ("csv/03_utf8_bom_crlf.csv", {"train_loss": 50}, set()),
    ("csv/04_duplicate_columns.csv", {"loss": 50, "loss#2": 50, "loss#3": 50}, {"duplicate-column"}),
    ("csv/07_tensorboard_ui_export.csv", {"07_tensorboard_ui_export": 50}, {"sampled-source"}),
    ("csv/08_header_repeated_after_resume.csv", {"loss": 40, "val_loss": 40}, {"repeated-header", "resume-supersedes"}),
    ("csv/10_padded_header_yolo.csv", {"train/box_loss": 50, "val/box_loss": 50}, set()),
    ("csv/11_value_spellings.csv", {"value": 11}, {"bad-cell", "overflow", "wrapped-number"}),
    ("csv/12_thousands_separator.csv", {"perplexity": 50}, {"thousands-separator"}),
    ("csv/13_lightning_sparse.csv", {"train_loss_step": 50, "train_loss_epoch": 5, "val_loss": 5, "epoch": 50}, set()),
    ("csv/14_keras_append_epoch_reset.csv", {"loss": 40}, {"counter-restart"}),
    ("csv/16_latin1.csv", {"Verlust für Größe": 50}, {"mixed-encoding"}),
    ("csv/17_half_last_line.csv", {"loss": 50, "lr": 50}, {"half-line"}),
    ("csv/18_nul_tail.csv", {"loss": 50}, {"zero-tail"}),
    ("csv/19_empty.csv", {}, {"empty-file"}),
    ("csv/20_header_only.csv", {}, set()),
    ("csv/21_no_header.csv", {"c1": 50, "c2": 50}, set()),
    ("csv/23_unnamed_index_and_runtime.csv", {"loss": 50, "_runtime": 50}, set()),
    ("csv/25_tab_separated.txt", {"AverageEpRet": 50, "StdEpRet": 50, "Epoch": 50}, set()),
    ("csv/28_quoted_commas_newlines.csv", {"loss": 5}, {"not-a-scalar"}),
    ("json/01_half_last_line.jsonl", {"loss": 50}, {"half-line"}),
    ("json/02_nan_inf.jsonl", {"loss": 7}, set()),
    (
        "json/03_nested_lists_strings.jsonl",
        {"loss/total": 50, "loss/parts/0": 50, "loss/parts/1": 50, "info/learner/default/kl": 50},
        set(),
    ),
    ("json/05_array_of_objects.json", {"loss": 50}, set()),
    (
        "json/07_trainer_state_nan.json",
        {"loss": 6, "learning_rate": 6, "grad_norm": 6, "epoch": 6, "eval_loss": 1},
        {"hidden-nonfinite"},
    ),
    ("json/08_resume_overlap.jsonl", {"loss": 60}, {"resume-supersedes"}),
    ("json/10_log_prefix_per_line.jsonl", {"loss": 50, "epoch": 50}, set()),
]


@pytest.mark.parametrize(("name", "expected", "codes"), NASTY)
def test_damaged_sample(shared_data: Path, name: str, expected: dict[str, int], codes: set[str]) -> None:
    run = read_run(shared_data / "nasty" / name)
    assert {c.name: len(c) for c in run.channels.values()} == expected
    assert codes <= {p.code for p in run.problems}


def test_damaged_samples_in_detail(shared_data: Path) -> None:
    nasty = shared_data / "nasty"
    value = read_run(nasty / "csv" / "11_value_spellings.csv").channels["value"].counts
    assert value == {"finite": 4, "nan": 2, "posinf": 3, "neginf": 2, "missing": 6}
    loss = read_run(nasty / "json" / "02_nan_inf.jsonl").channels["loss"].counts
    assert loss == {"finite": 1, "nan": 2, "posinf": 3, "neginf": 1, "missing": 1}
    state = read_run(nasty / "json" / "07_trainer_state_nan.json")
    assert state.channels["loss"].steps[np.isnan(state.channels["loss"].values)].tolist() == [40, 50, 60]
    assert state.summary["train_runtime"] == 12.3
    scan = scan_runs(nasty / "csv")
    runs = {r.id: r for r in scan}
    assert scan.ignored == ["26_not_a_log_dataset.csv"]
    assert {r for r in runs if r.startswith("27_")} == {"27_long_format.csv#r0", "27_long_format.csv#r1"}
    assert [r.n_points for i, r in runs.items() if i.startswith("06_")] == [0, 0]
    named = read_run(nasty / "csv" / "26_not_a_log_dataset.csv")
    assert len(named.channels["sepal_length"]) == 3
