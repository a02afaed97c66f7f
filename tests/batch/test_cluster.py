"""The same table from a real Dask cluster and from a real S3 server, both on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request

import pandas as pd
import pytest

from trajscope.batch.score import score_runs

from .conftest import write_log
from .test_score import MEASURED, same

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages that are met here


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _until(ready, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if ready():
            return
        time.sleep(0.1)
    raise TimeoutError


@pytest.fixture
def cluster(tmp_path):
    """A scheduler and two worker processes of one thread each."""
    pytest.importorskip("distributed")
    port = _free_port()
    address = f"tcp://127.0.0.1:{port}"
    env = {**os.environ, "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path, "env": env}
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    scheduler = subprocess.Popen([*command, "--no-dashboard"], **quiet)
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nworkers", "2", "--nthreads", "1"]
    workers = subprocess.Popen([*command, "--no-dashboard"], **quiet)
    from distributed import Client

    try:
        with Client(address, timeout="60s", set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield address, scheduler
    finally:
        for process in (workers, scheduler):
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def test_dask_gives_the_same_table_and_survives_bad_runs(logs, tmp_path, evil, cluster):
    (logs / "kill.evil").write_text("kill")
    dask = score_runs(logs, out=tmp_path / "d", executor=cluster[0], shard_size=3)
    assert dask.to_frame().set_index("run").loc["kill.evil", "status"] == "killed"
    assert dask.n_failed == 1
    same(dask, score_runs(logs, out=tmp_path / "p", workers=2))


def test_a_scheduler_that_goes_away(logs, tmp_path, cluster):
    for seed in range(20, 120):
        write_log(logs / f"run{seed}.csv", seed)
    address, scheduler = cluster
    gone = []

    def stop(state):
        if not gone:
            scheduler.kill()
            gone.append(state.items)

    first = score_runs(logs, out=tmp_path / "s", executor=address, shard_size=4, progress=stop)
    assert first.unfinished
    assert first.n_runs >= 4
    assert "start the call again" in first.summary()
    second = score_runs(logs, out=tmp_path / "s", workers=2)
    assert second.n_known == first.n_runs
    assert second.n_runs == 112
    same(second, score_runs(logs, out=tmp_path / "other", workers=2))


def test_s3(logs, tmp_path, monkeypatch):
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    import fsspec

    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")

    def up():
        try:
            return urllib.request.urlopen(url, timeout=1).status == 200
        except OSError:
            return False

    try:
        _until(up)
        options = {"endpoint_url": url, "skip_instance_cache": True}
        system = fsspec.filesystem("s3", **options)
        system.mkdir("bucket")
        for file in sorted(logs.rglob("*")):
            if file.is_file():
                system.pipe_file(f"bucket/logs/{file.relative_to(logs).as_posix()}", file.read_bytes())
        call = {"out": tmp_path / "r", "storage_options": options, "workers": 2}
        remote = score_runs("s3://bucket/logs", **call)
        a, b = (
            t.to_frame().drop(columns=[*MEASURED, "root", "fingerprint", "still_written"])
            for t in (remote, score_runs(logs, out=tmp_path / "l"))
        )
        pd.testing.assert_frame_equal(a, b)
        assert score_runs("s3://bucket/logs", **call).n_new == 0
        system.pipe_file("bucket/logs/group1/run01.csv", (logs / "group1" / "run07.csv").read_bytes())
        assert score_runs("s3://bucket/logs", **call).n_new == 1
    finally:
        server.terminate()
        server.wait(timeout=10)
