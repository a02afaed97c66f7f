"""Score tables: the same from every executor, resumed without loss or doubles, and a row for whatever goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import trajscope as ts
from trajscope.batch import child as child_module
from trajscope.batch.columns import TABLES, markdown, schema
from trajscope.batch.limits import RunTimeout, bounded
from trajscope.batch.listing import Item, Spool
from trajscope.batch.score import Progress, score_runs
from trajscope.batch.store import Store
from trajscope.cli import run as main
from trajscope.config import Settings
from trajscope.errors import InputError, MissingExtra, NoLogsFound, ReadError

from .conftest import write_log

#: What differs between two calls by nature.
MEASURED = ["seconds", "peak_memory_mb"]


def frames(table):
    return [table.to_frame().drop(columns=MEASURED), table.events(), table.config()]


def same(one, two):
    for a, b in zip(frames(one), frames(two), strict=True):
        pd.testing.assert_frame_equal(a, b)


def test_a_row_a_run_with_the_declared_columns(logs, tmp_path):
    table = score_runs(logs, out=tmp_path / "s")
    frame = table.to_frame()
    assert len(frame) == table.n_runs == 12
    assert frame["status"].eq("ok").all()
    assert set(frame.loc[frame["collapsed"] == 1, "run"]) == {
        f"group{s % 3}/run{s:02d}.{'csv' if s % 2 else 'jsonl'}" for s in (0, 5, 10)
    }
    for name in TABLES:
        for file in (tmp_path / "s" / name).glob("*.parquet"):
            assert pq.read_schema(file).equals(schema(name), check_metadata=False)
    direct = pd.read_parquet(tmp_path / "s" / "runs")
    assert sorted(direct["run"]) == frame["run"].tolist()
    assert len(pd.read_parquet(tmp_path / "s" / "events")) == len(table.events())


def test_other_readers_of_parquet_see_the_same(logs, tmp_path):
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    table = score_runs(logs, out=tmp_path / "s")
    runs = sorted(polars.read_parquet(tmp_path / "s" / "runs" / "*.parquet")["run"].to_list())
    assert runs == table.to_frame()["run"].tolist()
    query = f"select run from read_parquet('{tmp_path}/s/runs/*.parquet') where collapsed = 1"  # noqa: S608
    assert len(duckdb.sql(query).fetchall()) == 3


@pytest.mark.parametrize("profile", ["fast", "full"])
def test_an_audit_in_the_profile_gives_the_rows_numbers(logs, tmp_path, profile):
    row = score_runs(logs, out=tmp_path / "s", profile=profile).to_frame().set_index("run").loc["group0/run00.jsonl"]
    run = ts.read_run(logs / "group0" / "run00.jsonl")
    audit = ts.audit(run, settings=Settings(profile=profile))
    assert row["verdict"] == audit.verdict == "not healthy"
    assert row["onset_step"] == audit.collapse.onset
    assert row["deficit_sd"] == audit.deficit
    assert row["n_events"] == len(audit.events)
    assert row["config_hash"] == audit.settings.hash
    left = audit.meta.left
    assert row["meta_left_step"] == left or (left is None and np.isnan(row["meta_left_step"]))


def test_a_pool_gives_the_same_table(logs, tmp_path):
    one = score_runs(logs, out=tmp_path / "a")
    two = score_runs(logs, out=tmp_path / "b", workers=2, shard_size=2)
    same(one, two)


def test_a_second_call_does_only_what_is_new(logs, tmp_path):
    first = score_runs(logs, out=tmp_path / "s", limit=5, shard_size=2)
    assert (first.n_runs, first.n_new) == (5, 5)
    rest = score_runs(logs, out=tmp_path / "s", shard_size=2)
    assert (rest.n_runs, rest.n_new, rest.n_known) == (12, 7, 5)
    nothing = score_runs(logs, out=tmp_path / "s")
    assert (nothing.n_new, nothing.n_known) == (0, 12)
    same(nothing, score_runs(logs, out=tmp_path / "other"))


def test_a_changed_run_is_scored_anew_and_its_old_rows_go(logs, tmp_path):
    first = score_runs(logs, out=tmp_path / "s")
    write_log(logs / "group1" / "run01.csv", 50)  # now it collapses
    write_log(logs / "group9" / "run99.csv", 99)
    second = score_runs(logs, out=tmp_path / "s")
    assert (second.n_new, second.n_known, second.n_runs) == (2, 11, 13)
    now = second.to_frame().set_index("run").loc["group1/run01.csv"]
    assert first.n_runs == 12
    assert now["collapsed"] == 1
    assert not second.to_frame()["run"].duplicated().any()
    same(second, score_runs(logs, out=tmp_path / "other"))


def test_a_folder_keeps_one_meaning(logs, tmp_path):
    score_runs(logs, out=tmp_path / "s", limit=1)
    with pytest.raises(InputError, match=r"made otherwise.*config_hash"):
        score_runs(logs, out=tmp_path / "s", settings=Settings(alpha=0.01))
    with pytest.raises(InputError, match=r"made otherwise.*reading"):
        score_runs(logs, out=tmp_path / "s", channels=["loss"])
    manifest = tmp_path / "s" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"trajscope": "', '"trajscope": "9.'))
    with pytest.raises(InputError, match=r"trajscope '9\."):
        score_runs(logs, out=tmp_path / "s")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="no score table"):
        score_runs(logs, out=tmp_path / "full")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="that is a file"):
        score_runs(logs, out=tmp_path / "file")


def test_what_a_killed_call_left_half_written_is_cleared(logs, tmp_path):
    score_runs(logs, out=tmp_path / "s", limit=3)
    (tmp_path / "s" / "runs" / "shard-00.partial").write_bytes(b"half")
    (tmp_path / "s" / "events" / "shard-deadbeef.parquet").write_bytes(b"")  # events of a shard that never got its runs
    os.remove(tmp_path / "s" / "events" / "shard-deadbeef.parquet")
    assert score_runs(logs, out=tmp_path / "s").n_runs == 12
    assert not list((tmp_path / "s").rglob("*.partial"))


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_files_are_rows(logs, tmp_path, workers):
    (logs / "bad.npz").write_bytes(b"PK\x03\x04 not a zip")
    (logs / "run.parquet").write_bytes(b"PAR1 cut off")
    table = score_runs(logs, out=tmp_path / "s", workers=workers)
    frame = table.to_frame()
    assert len(frame) + len(table.problems) >= 13
    failures = [json.loads(line) for line in (tmp_path / "s" / "failures.jsonl").read_text().splitlines()]
    assert len(failures) == table.n_failed + len(table.problems)
    assert all(f["error"] for f in failures)
    assert frame["status"].eq("ok").sum() == 12


def test_runs_that_hang_die_or_take_everything_are_rows(logs, tmp_path, evil):
    whats = ("sleep", "deaf", "kill", "memory", "bug")
    for what in whats:
        (logs / f"{what}.evil").write_text(what)
    child_module.GRACE, before = 1.0, child_module.GRACE
    try:
        table = score_runs(logs, out=tmp_path / "s", workers=2, time_limit=12.0, memory_limit_mb=2000, shard_size=4)
    finally:
        child_module.GRACE = before
    frame = table.to_frame().set_index("run")
    expected = {"sleep": "timeout", "deaf": "timeout", "kill": "killed", "memory": "memory", "bug": "bug"}
    assert {w: frame.loc[f"{w}.evil", "status"] for w in whats} == expected
    assert frame["status"].eq("ok").sum() == 12
    assert len(frame) == 17
    assert "signal 9" in frame.loc["kill.evil", "error"]
    assert "KeyError" in frame.loc["bug.evil", "error"]
    details = [json.loads(line) for line in (tmp_path / "s" / "failures.jsonl").read_text().splitlines()]
    assert "Traceback" in next(d for d in details if d["run"] == "bug.evil")["traceback"]
    healthy = frame[frame["status"] == "ok"].reset_index()[["run", "verdict"]]
    plain = score_runs(logs, out=tmp_path / "p", format="jsonlines").to_frame()
    assert set(plain["run"]) <= set(healthy["run"])


def test_a_time_limit_holds_in_this_process_too(logs, tmp_path, evil):
    (logs / "sleep.evil").write_text("sleep")
    (logs / "memory.evil").write_text("memory")
    frame = score_runs(logs, out=tmp_path / "s", time_limit=5.0, memory_limit_mb=2000).to_frame().set_index("run")
    assert frame.loc["sleep.evil", "status"] == "timeout"
    assert frame.loc["memory.evil", "status"] == "memory"
    assert frame["status"].eq("ok").sum() == 12


def test_limits_are_taken_back():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS), signal.getsignal(signal.SIGALRM)
    with pytest.raises(RunTimeout), bounded(0.05, 500):
        time.sleep(5)
    assert (resource.getrlimit(resource.RLIMIT_AS), signal.getsignal(signal.SIGALRM)) == before
    with bounded(None, None):
        pass


def _children(pid: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stream:
                    text = stream.read()
            except OSError:
                continue
            if int(text.rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_worker_that_is_killed_costs_nothing_else(logs, tmp_path):
    for seed in range(20, 60):
        write_log(logs / f"run{seed}.csv", seed)
    killed = []

    def assassin():
        while len(killed) < 2:
            for pid in _children(os.getpid()):
                with open(f"/proc/{pid}/cmdline", "rb") as stream:
                    if b"trajscope.batch.child" in stream.read() and pid not in killed:
                        time.sleep(0.7)
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
                        break
            time.sleep(0.05)

    thread = threading.Thread(target=assassin, daemon=True)
    thread.start()
    table = score_runs(logs, out=tmp_path / "s", workers=2, shard_size=6)
    thread.join(timeout=10)
    frame = table.to_frame()
    assert len(killed) == 2
    assert not frame["run"].duplicated().any()
    assert len(frame) == 52
    assert set(frame["status"]) <= {"ok", "killed"}
    assert frame["status"].eq("killed").sum() <= 2


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_kill_of_the_driver_loses_only_what_is_in_flight(logs, tmp_path):
    for seed in range(20, 80):
        write_log(logs / f"run{seed}.csv", seed)
    command = [
        sys.executable,
        "-m",
        "trajscope",
        "score",
        str(logs),
        "-o",
        str(tmp_path / "s"),
        "--shard-size",
        "4",
        "-q",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(list((tmp_path / "s" / "runs").glob("*.parquet"))) < 2:
        time.sleep(0.02)
    process.kill()
    process.wait()
    there = len(Store(tmp_path / "s").read("runs"))
    assert there >= 8
    table = score_runs(logs, out=tmp_path / "s")
    assert table.n_known == there
    assert table.n_runs == 72
    assert not table.to_frame()["run"].duplicated().any()


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 120 kB; only root can make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=120k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("cannot mount a small file system here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="no mount")
def test_a_full_disk(logs, tmp_path, tiny_disk, capsys):
    (tiny_disk / "ballast").write_bytes(b"x" * 20_000)
    (tiny_disk / "s").mkdir()
    assert main(["score", str(logs), "-o", str(tiny_disk / "s"), "--shard-size", "1"]) == 4
    said = capsys.readouterr().err
    assert "No space left" in said
    (tiny_disk / "ballast").unlink()
    subprocess.run(["mount", "-o", "remount,size=4m", str(tiny_disk)], check=True)
    table = score_runs(logs, out=tiny_disk / "s")
    assert table.n_runs == 12
    same(table, score_runs(logs, out=tmp_path / "other"))


def test_progress_counts(logs, tmp_path):
    seen: list[Progress] = []
    score_runs(logs, out=tmp_path / "s", shard_size=5, progress=lambda p: seen.append(replace(p)))
    assert [p.items for p in seen] == [5, 10, 12]
    assert seen[-1].total == seen[-1].scored == 12
    assert seen[-1].eta == 0
    assert seen[-1].rate > 0


def test_spool_keeps_order_and_bounds():
    with Spool(most=3, size=100) as spool:
        for n in range(8):
            spool.add(Item(f"i{n}", "r", "f", False, 60 if n == 4 else 10))
        shards = [[i.key for i in shard] for shard in spool.shards()]
    assert shards == [["i0", "i1", "i2"], ["i3", "i4", "i5"], ["i6", "i7"]]
    assert spool.items == 8


def test_dry_run_and_limit_write_nothing_more(logs, tmp_path):
    table = score_runs(logs, out=tmp_path / "s", dry_run=True)
    assert (table.n_new, table.n_runs) == (12, 0)
    assert not (tmp_path / "s").exists()
    assert "12 items would be scored" in table.summary()


def test_still_written(logs, tmp_path):
    old = logs / "group1" / "run01.csv"
    os.utime(old, (1e9, 1e9))
    frame = score_runs(logs, out=tmp_path / "s").to_frame().set_index("run")
    assert not frame.loc["group1/run01.csv", "still_written"]
    assert frame["still_written"].sum() == 11


def test_several_roots(logs, tmp_path):
    frame = score_runs([logs / "group0", logs / "group1"], out=tmp_path / "s").to_frame()
    assert len(frame) == 8
    assert frame["root"].nunique() == 2


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"workers": 0}, InputError, "workers is 0"),
        ({"workers": True}, InputError, "workers"),
        ({"executor": "tcp//x"}, InputError, "executor 'tcp//x'"),
        ({"executor": 3}, InputError, "executor is 3"),
        ({"shard_size": 0}, InputError, "shard_size"),
        ({"limit": -1}, InputError, "limit"),
        ({"format": "cvs"}, InputError, "format 'cvs'"),
    ],
)
def test_bad_arguments(logs, tmp_path, kwargs, error, message):
    with pytest.raises(error, match=message):
        score_runs(logs, out=tmp_path / "s", **kwargs)


def test_nothing_there(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoLogsFound, match="no logs found"):
        score_runs(tmp_path / "empty", out=tmp_path / "s")
    with pytest.raises(NoLogsFound, match="no such file"):
        score_runs(tmp_path / "missing", out=tmp_path / "s")


def test_command(logs, tmp_path, capsys):
    assert main(["score", str(logs), "-o", str(tmp_path / "s"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["n_runs"] == 12
    assert "12 of 12" in said.err
    (logs / "cut.parquet").write_bytes(b"PAR1")
    assert main(["score", str(logs), "-o", str(tmp_path / "s"), "-q", "--profile", "full"]) == 2
    assert "made otherwise" in capsys.readouterr().err
    assert main(["score", str(logs), "-o", str(tmp_path / "t"), "--scheduler", "tcp://x:1", "--workers", "2"]) == 2
    assert main(["score", str(tmp_path / "none"), "-o", str(tmp_path / "t")]) == 3


def test_the_documentation_lists_the_columns():
    page = ts.__path__[0] + "/../docs/score.md"
    with open(page, encoding="utf-8") as stream:
        text = stream.read()
    for table in TABLES:
        assert markdown(table) in text


def test_remote_memory(logs, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for file in sorted(logs.rglob("*")):
        if file.is_file():
            system.pipe_file(f"/bucket/{file.relative_to(logs).as_posix()}", file.read_bytes())
    try:
        remote = score_runs("memory://bucket", out=tmp_path / "r")
        local = score_runs(logs, out=tmp_path / "l")
        a, b = (t.to_frame().drop(columns=[*MEASURED, "root", "fingerprint", "still_written"]) for t in (remote, local))
        pd.testing.assert_frame_equal(a, b)
        again = score_runs("memory://bucket", out=tmp_path / "r")
        assert again.n_new == 0
        write_log(tmp_path / "new.csv", 55)
        system.pipe_file("/bucket/group1/run01.csv", (tmp_path / "new.csv").read_bytes())
        changed = score_runs("memory://bucket", out=tmp_path / "r")
        assert changed.n_new == 1  # one folder
        assert changed.n_runs == 12
        assert changed.to_frame().set_index("run").loc["group1/run01.csv", "collapsed"] == 1
        with pytest.raises(NoLogsFound):
            score_runs("memory://nothing", out=tmp_path / "n")
    finally:
        system.rm("/bucket", recursive=True)


def test_remote_needs_what_is_installed(tmp_path):
    pytest.importorskip("fsspec")
    with pytest.raises((MissingExtra, InputError), match="nosuch"):
        score_runs("nosuch://bucket", out=tmp_path / "s")


def test_no_scheduler_answers(logs, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")

    def refuse(*args, **kwargs):
        raise OSError("timed out")

    monkeypatch.setattr(distributed, "Client", refuse)
    with pytest.raises(ReadError, match="no Dask scheduler answers"):
        score_runs(logs, out=tmp_path / "s", executor="tcp://127.0.0.1:1")
