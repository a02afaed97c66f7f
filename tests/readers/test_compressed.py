"""Text logs behind ``.gz``: the same run as the plain file, damage, and bombs."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import log_samples
import numpy as np
import pytest

from trajscope.errors import ReadError
from trajscope.readers import read_run, scan_runs

PACKABLE = ["delimited", "jsonlines", "text", "monitor", "trainer-state", "wandb-csv", "rllib"]


@pytest.mark.parametrize("name", PACKABLE)
def test_compressed_is_the_same_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "plain").mkdir()
    log_samples.SAMPLES[name](tmp_path / "plain")
    for path in [p for p in (tmp_path / "plain").rglob("*") if p.is_file()]:
        packed = tmp_path / "packed" / path.relative_to(tmp_path / "plain").with_name(f"{path.name}.gz")
        packed.parent.mkdir(parents=True, exist_ok=True)
        packed.write_bytes(gzip.compress(path.read_bytes()))
    pairs = list(zip(scan_runs(tmp_path / "plain"), scan_runs(tmp_path / "packed"), strict=True))
    assert pairs
    for plain, run in pairs:
        assert (run.format, list(run.channels)) == (plain.format, list(plain.channels))
        for key, channel in plain.channels.items():
            np.testing.assert_array_equal(run.channels[key].values, channel.values)
            np.testing.assert_array_equal(run.channels[key].steps, channel.steps)


def test_a_packed_copy_beside_the_plain_log_is_named(tmp_path: Path) -> None:
    content = b'{"training_iteration": 1, "timesteps_total": 10, "episode_reward_mean": 1.5}\n' * 2
    (tmp_path / "result.json").write_bytes(content)
    (tmp_path / "result.json.gz").write_bytes(gzip.compress(content))
    run = read_run(tmp_path)
    assert [(p.code, p.file) for p in run.problems if p.code == "packed-copy"] == [("packed-copy", "result.json.gz")]


def test_packed_checkpoints_are_one_run(tmp_path: Path) -> None:
    for last in (2, 4):
        rows = [{"step": s, "epoch": s / 4, "loss": 1 / (s + 1)} for s in range(1, last + 1)]
        path = tmp_path / f"checkpoint-{last}" / "trainer_state.json.gz"
        path.parent.mkdir()
        path.write_bytes(gzip.compress(json.dumps({"global_step": last, "log_history": rows}).encode()))
    assert len(read_run(tmp_path).channels["loss"]) == 4


def test_web_export_is_named_after_the_plain_file(tmp_path: Path) -> None:
    path = tmp_path / "run-a-tag-loss.csv.gz"
    path.write_bytes(gzip.compress(b"Wall time,Step,Value\n1.7e9,0,2\n1.7e9,1,1\n"))
    assert list(read_run(path).channels) == ["loss"]


def test_cut_at_every_byte_loses_only_what_is_gone(tmp_path: Path) -> None:
    body = "step,loss\n" + "".join(f"{i},{1 / (i + 1)!r}\n" for i in range(200))
    packed = gzip.compress(body.encode())
    whole = [1 / (i + 1) for i in range(200)]
    path = tmp_path / "a.csv.gz"
    for cut in [*range(0, len(packed), 41), len(packed) - 8, len(packed) - 1]:
        path.write_bytes(packed[:cut])
        run = read_run(path)
        found = run.channels["loss"].values.tolist() if "loss" in run.channels else []
        assert found == whole[: len(found)]
        if cut:
            assert "truncated-tail" in {p.code for p in run.problems}
        else:
            assert "empty-file" in {p.code for p in run.problems}
        if cut == len(packed) - 8:
            assert found == whole


def test_a_changed_byte_keeps_what_comes_before_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    body = "step,loss\n" + "".join(f"{i},{v!r}\n" for i, v in enumerate(rng.random(400).tolist()))
    packed = bytearray(gzip.compress(body.encode()))
    packed[-6] ^= 1  # the checksum
    path = tmp_path / "a.csv.gz"
    path.write_bytes(packed)
    run = read_run(path)
    assert len(run.channels["loss"]) == 400
    assert "damaged-file" in {p.code for p in run.problems}


def test_members_follow_each_other_and_zeros_may_pad(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"step,loss\n0,1\n") + gzip.compress(b"1,2\n2,3\n") + bytes(64))
    run = read_run(path)
    assert run.channels["loss"].values.tolist() == [1.0, 2.0, 3.0]
    assert not [p for p in run.problems if p.severity != "info"]


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("bomb.csv.gz", b"step,loss\n0,1\n1,2\n"),
        ("bomb.jsonl.gz", b'{"step": 0, "loss": 1}\n{"step": 1, "loss": 1}\n'),
        ("bomb.log.gz", b"step=0 loss=1\nstep=1 loss=2\n"),
    ],
)
def test_a_bomb_is_refused_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, start: bytes
) -> None:
    monkeypatch.setattr("trajscope.readers._gzip.MAX_UNFOLDED", 1 << 22)
    path = tmp_path / name
    path.write_bytes(gzip.compress(start + b" " * (64 << 20), compresslevel=1))
    read_run_once(path)  # imports
    tracemalloc.start()
    with pytest.raises(ReadError, match=r"bomb\.\w+\.gz: unfolds to more than \d+ MiB") as caught:
        read_run(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert peak < 48 << 20  # far below the 64 MiB that it would unfold to


def read_run_once(path: Path) -> None:
    with pytest.raises(ReadError):
        read_run(path)


def test_something_else_called_gz_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(b"\x1f\x8bnonsense")
    (tmp_path / "b.csv").write_bytes(b"step,loss\n0,1\n1,2\n")
    scan = scan_runs(tmp_path)
    assert [r.id for r in scan] == ["b.csv"]
    assert [(p.code, p.file) for p in scan.problems] == [("not-a-log", "a.csv.gz")]
    (tmp_path / "weights.tar.gz").write_bytes(gzip.compress(bytes(4096)))
    list(scan)
    assert scan.ignored == ["a.csv.gz", "weights.tar.gz"]
    assert len(scan.problems) == 1


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz", "a.log.gz", "monitor.csv.gz", "a.gz"])
def test_a_changed_byte_anywhere_never_fails_outside_the_tree(tmp_path: Path, name: str) -> None:
    packed = gzip.compress(b"step,loss\n" + b"".join(b"%d,%d.5\n" % (i, i * i % 97) for i in range(40)), mtime=0)
    path = tmp_path / name
    for position in range(0, len(packed), 3):
        path.write_bytes(packed[:position] + bytes([packed[position] ^ 0x41]) + packed[position + 1 :])
        for run in scan_runs(path):
            _ = run.channels


@pytest.mark.parametrize(
    ("name", "line"), [("a.csv", "{0},{0}.123456789\n"), ("a.log", "step={0} loss={0}.123456789\n")]
)
@pytest.mark.parametrize("lost", range(1, 60, 7))
def test_no_number_is_cut_short_where_a_packed_log_breaks_off(tmp_path: Path, name: str, line: str, lost: int) -> None:
    head = "step,loss\n" if name == "a.csv" else ""
    packed = gzip.compress((head + "".join(line.format(i) for i in range(500))).encode())
    (tmp_path / f"{name}.gz").write_bytes(packed[: -8 - lost])
    run = read_run(tmp_path / f"{name}.gz")
    loss = run.channels["loss"]
    assert 0 < loss.values.size <= 500
    np.testing.assert_array_equal(loss.values, [float(f"{s}.123456789") for s in loss.steps])
