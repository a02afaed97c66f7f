"""Finding runs: junk, links, siblings, copies, several runs in one place, and memory over thousands of runs."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tensorboard_files import NAME, scalar, write

from trajscope.errors import InputError, NoLogsFound, ReadError, SeveralRuns
from trajscope.history import Source
from trajscope.readers import Reader, read_run, readers, scan_runs
from trajscope.readers import scan as scan_module

LATER = "events.out.tfevents.1800000000.host.2.0"


def log(directory: Path, tag: str = "loss", steps: range = range(10), wall: float = 1.7e9, name: str = NAME) -> Path:
    """A small event file; the directory is made."""
    directory.mkdir(parents=True, exist_ok=True)
    return write(directory, [scalar(tag, float(s), s, wall + s) for s in steps], name)


def found(root: Path, **options: object) -> dict[str, list[str]]:
    return {run.id: sorted(run.channels) for run in scan_runs(root, **options)}


class TestWalk:
    def test_runs_are_lazy_sorted_and_named_by_their_directory(self, tmp_path):
        for name in ("b/seed1", "b/seed0", "a"):
            log(tmp_path / name)
        runs = list(scan_runs(tmp_path))
        assert [r.id for r in runs] == ["a", "b/seed0", "b/seed1"]
        assert all("not read yet" in repr(r) for r in runs)
        assert [r.id for r in scan_runs(tmp_path / "b" / "seed0")] == ["seed0"]

    def test_junk_is_listed_and_does_no_harm(self, tmp_path):
        log(tmp_path)
        (tmp_path / "model.pt").write_bytes(b"PK\x03\x04" + bytes(range(256)) * 40)
        (tmp_path / "events.out.tfevents.notes.txt").write_text("my notes")
        (tmp_path / "events.out.tfevents.dir").mkdir()
        (tmp_path / ".git").mkdir()
        (tmp_path / ".git" / NAME).write_bytes((tmp_path / NAME).read_bytes())
        os.mkfifo(tmp_path / "pipe.csv")  # opening it would wait for ever
        scan = scan_runs(tmp_path)
        [run] = scan
        assert run.n_points == 10
        assert set(scan.ignored) == {"model.pt", "events.out.tfevents.notes.txt", ".git/ (not searched)", "pipe.csv"}
        assert [(p.code, p.file) for p in scan.problems] == [("not-a-log", "events.out.tfevents.notes.txt")]

    def test_links_are_not_followed(self, tmp_path):
        root = tmp_path / "root"
        log(root / "run")
        log(tmp_path / "elsewhere")
        (root / "loop").symlink_to(root)
        (root / "run" / "self").symlink_to("self")
        (root / "out").symlink_to(tmp_path / "elsewhere")
        (root / "file.tfevents").symlink_to(tmp_path / "elsewhere" / NAME)
        scan = scan_runs(root)
        assert [r.id for r in scan] == ["run"]
        assert sorted(p.file for p in scan.problems if p.code == "link-outside") == ["file.tfevents", "out"]
        assert sorted(scan.ignored) == [
            "loop (link to a place inside the root)",
            "run/self (broken or circular link)",
        ]

    @pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
    def test_unreadable_places_are_problems(self, tmp_path):
        log(tmp_path / "a")
        (tmp_path / "b").mkdir(mode=0)
        scan = scan_runs(tmp_path)
        assert [r.id for r in scan] == ["a"]
        assert [p.code for p in scan.problems] == ["unreadable"]

    def test_a_scan_can_be_walked_twice(self, tmp_path):
        log(tmp_path)
        (tmp_path / "x.tfevents").write_text("text")
        scan = scan_runs(tmp_path)
        for _ in range(2):
            assert len(list(scan)) == 1
            assert len(scan.problems) == len(scan.ignored) == 1

    def test_names_in_other_scripts_and_with_markup(self, tmp_path):
        name = "läuf <b>é\x1b[31m 中"
        log(tmp_path / name)
        assert [r.id for r in scan_runs(tmp_path)] == [name]

    def test_nothing_there(self, tmp_path):
        assert list(scan_runs(tmp_path)) == []
        with pytest.raises(NoLogsFound, match="no logs found under"):
            read_run(tmp_path)
        with pytest.raises(NoLogsFound, match="no such file"):
            scan_runs(tmp_path / "absent")

    def test_bad_options(self, tmp_path):
        with pytest.raises(InputError, match="Did you mean 'tensorboard'"):
            scan_runs(tmp_path, format="tensorbord")
        with pytest.raises(InputError, match="Did you mean 'segments'"):
            scan_runs(tmp_path, resume="segment")

    def test_several_runs_must_be_told_apart(self, tmp_path):
        log(tmp_path / "a")
        log(tmp_path / "b")
        with pytest.raises(SeveralRuns, match=r"holds 2 runs \(a, b\)"):
            read_run(tmp_path)
        assert read_run(tmp_path, run="b").id == "b"
        with pytest.raises(InputError, match="holds no run 'c'"):
            read_run(tmp_path, run="c")


class TestSiblings:
    def test_train_and_validation_are_one_run(self, tmp_path):
        log(tmp_path / "run" / "train")
        log(tmp_path / "run" / "validation", steps=range(0, 10, 2), wall=1.7e9 + 0.5)
        [run] = scan_runs(tmp_path)
        assert run.id == "run"
        assert {n: len(c) for n, c in run.channels.items()} == {"train/loss": 10, "validation/loss": 5}
        assert [p.code for p in run.problems] == ["merged-siblings"]
        assert run.provenance["merged_siblings"] == ["train", "validation"]

    def test_a_resume_of_both_halves(self, tmp_path):
        for half in ("train", "validation"):
            log(tmp_path / half)
            log(tmp_path / half, steps=range(5, 12), wall=1.8e9, name=LATER)
        run = read_run(tmp_path)
        assert all(c.steps.tolist() == list(range(12)) for c in run.channels.values())
        assert {n: c.steps.tolist() for n, c in run.superseded.items()} == {
            "train/loss": [5, 6, 7, 8, 9],
            "validation/loss": [5, 6, 7, 8, 9],
        }

    @pytest.mark.parametrize(
        ("tag", "wall", "why"),
        [("score", 1.7e9, "other channels"), ("loss", 1.8e9, "another time")],
        ids=lambda x: str(x),
    )
    def test_what_does_not_belong_together_stays_apart(self, tmp_path, tag, wall, why):
        log(tmp_path / "train")
        log(tmp_path / "eval", tag, wall=wall)
        assert set(found(tmp_path)) == {"eval", "train"}, why

    def test_a_third_directory_does_not_break_the_pair(self, tmp_path):
        log(tmp_path / "run" / "train")
        log(tmp_path / "run" / "val")
        log(tmp_path / "run" / "test", "score", wall=1.9e9)
        assert found(tmp_path) == {"run": ["train/loss", "val/loss"], "run/test": ["score"]}

    def test_what_else_lies_in_them_is_not_lost(self, tmp_path):
        log(tmp_path / "train")
        log(tmp_path / "val")
        log(tmp_path / "train" / "worker1", "speed")
        (tmp_path / "val" / "junk.bin").write_bytes(bytes(range(256)))
        log(tmp_path, "own")
        scan = scan_runs(tmp_path)
        runs = {r.id: sorted(r.channels) for r in scan}
        assert runs == {
            f"{tmp_path.name}/train+val": ["train/loss", "val/loss"],
            tmp_path.name: ["own"],
            "train/worker1": ["speed"],
        }
        assert scan.ignored == ["val/junk.bin"]


class TestOneDirectory:
    def test_unrelated_runs_are_kept_apart(self, tmp_path):
        log(tmp_path)
        log(tmp_path, wall=1.71e9, name=LATER)
        run = read_run(tmp_path)
        assert [p.code for p in run.problems] == ["unrelated-runs"]
        assert [r.n_points for r in run.split()] == [10, 10]

    def test_copies_are_read_once(self, tmp_path):
        path = log(tmp_path)
        (tmp_path / (NAME + ".copy")).write_bytes(path.read_bytes())
        run = read_run(tmp_path)
        assert run.n_points == 10
        assert [(p.code, p.file) for p in run.problems] == [("duplicate-file", NAME + ".copy")]

    def test_the_same_bytes_in_two_runs_are_two_runs(self, tmp_path):
        log(tmp_path / "a")
        log(tmp_path / "b")
        assert [r.n_points for r in scan_runs(tmp_path)] == [10, 10]

    def test_an_evaluator_beside_the_trainer(self, tmp_path):
        log(tmp_path, steps=range(100))
        log(tmp_path, "eval/score", range(50, 100, 10), 1.8e9, LATER)
        run = read_run(tmp_path)
        assert {n: len(c) for n, c in run.channels.items()} == {"loss": 100, "eval/score": 5}
        assert not run.superseded


class TestFaults:
    class Broken(Reader):
        name = "broken"
        priority = 1000

        def can_read(self, path, head):
            return path.suffix == ".broken"

        def sources(self, files, key, options):
            return [Source("x", {"a": 1 / 0})]

    def test_a_bug_in_a_reader_is_one_sentence_and_hits_one_run(self, tmp_path, monkeypatch):
        everything = (self.Broken(), *readers())
        monkeypatch.setattr(scan_module, "readers", lambda: everything)
        (tmp_path / "x.broken").write_text("x")
        log(tmp_path / "good")
        runs = {r.id: r for r in scan_runs(tmp_path)}
        assert runs["good"].n_points == 10
        with pytest.raises(ReadError, match=r"the broken reader failed \(ZeroDivisionError"):
            _ = runs["x.broken"].channels

    def test_a_file_that_is_gone_when_it_is_read(self, tmp_path):
        path = log(tmp_path)
        [run] = scan_runs(tmp_path)
        path.unlink()
        with pytest.raises(ReadError, match=r"tfevents.*: cannot be read: No such file"):
            _ = run.channels


def test_memory_is_flat_over_thousands_of_runs(tmp_path):
    """The walk holds the runs of the directory it is in and nothing of those it has passed."""
    template = log(tmp_path / "template").read_bytes()
    root = tmp_path / "root"

    def peak(n: int) -> int:
        for i in range(n):
            (root / f"g{i % 50}" / f"run{i:05d}").mkdir(parents=True, exist_ok=True)
            (root / f"g{i % 50}" / f"run{i:05d}" / NAME).write_bytes(template)
        tracemalloc.start()
        count = sum(1 for _ in scan_runs(root, format="tensorboard"))
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == n
        return used

    # Twice, because the interpreter's table of interned path names grows in jumps of megabytes.
    few, many = (min(peak(n), peak(n)) for n in (100, 800))
    assert many < few + 800 * 50  # bytes a run; a Run alone takes ten times that


class TestSharedData:
    def test_junk_around_one_run(self, shared_data):
        scan = scan_runs(shared_data / "nasty" / "dirs" / "01_junk_around_one_run", format="tensorboard")
        [run] = scan
        assert run.n_points == 100
        assert "events.out.tfevents.notes.txt" in scan.ignored
        assert any(i.startswith("loop") for i in scan.ignored)

    def test_two_runs_months_apart_in_one_directory(self, shared_data):
        place = next((shared_data / "logs" / "tensorboard").rglob("sinv6/study_2/*/trial_1"))
        run = read_run(place)
        assert "unrelated-runs" in [p.code for p in run.problems]
        assert len(run.split()) == 2


def test_a_filter_may_be_one_pattern_and_says_when_nothing_matches(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("step,loss\n" + "\n".join(f"{i},{i}" for i in range(20)))
    assert list(read_run(path, channels="loss").channels) == ["loss"]
    run = read_run(path, channels="zzz")
    assert [p.code for p in run.problems][:1] == ["no-channel-matches"]


def test_what_is_neither_file_nor_directory_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NoLogsFound, match="neither a regular file nor a directory"):
        scan_runs("/dev/null")
    with pytest.raises(NoLogsFound, match="not a path"):
        scan_runs("x" * 100_000)
    other = tmp_path / "a.bin"
    other.write_bytes(bytes(range(256)))
    with pytest.raises(NoLogsFound, match="no reader takes this file"):
        read_run(other)


def test_contents_tell_every_channel_and_keep_no_run(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,loss,acc\n0,1.5,\n1,inf,0.5\n2,0.5,0.25\n")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "empty.csv").write_text("step,loss\n")
    (tmp_path / "c.wandb").write_bytes(b":W&B\xe1\xbe\x07")  # a version of the future
    log(tmp_path / "d")
    scan = scan_runs(tmp_path)
    frame = scan.contents()
    assert list(frame["run"]) == ["a.csv", "a.csv", "b/empty.csv", "d"]
    loss, acc, empty, event = frame.to_dict("records")
    assert (loss["channel"], loss["points"], loss["non_finite"], loss["low"], loss["high"]) == ("loss", 3, 1, 0.5, 1.5)
    assert (acc["missing"], acc["first_step"], acc["last_step"]) == (1, 1.0, 2.0)
    assert (empty["channel"], empty["points"], np.isnan(empty["first_step"])) == ("", 0, True)
    assert (event["format"], event["bytes"]) == ("tensorboard", (tmp_path / "d" / NAME).stat().st_size)
    assert [p.code for p in scan.problems] == ["not-a-log"]
    assert list(scan_runs(tmp_path / "a.csv").contents()["channel"]) == ["loss", "acc"]


def test_contents_name_a_run_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,loss\n0,1\n1,2,3\n2,1,2,3,4\n")
    frame = scan_runs(tmp_path, strict=True).contents()
    assert frame["error"].str.startswith("strict reading").tolist() == [True]
    assert frame["points"].tolist() == [0]
