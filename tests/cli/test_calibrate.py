"""``trajscope calibrate``, ``audit --thresholds`` and ``audit --replay`` over files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trajscope.cli import run as main
from trajscope.inference.calibrate import Thresholds


def write(path, seed, event=None):
    rng = np.random.default_rng(seed)
    t = np.arange(400)
    loss = np.log(0.4 + 2 * np.exp(-t / 100)) + 0.03 * rng.normal(size=400)
    grad = 1 + 0.1 * rng.normal(size=400)
    accuracy = 0.9 - 0.8 * np.exp(-t / 80) + 0.01 * rng.normal(size=400)
    if event is not None:
        loss[event:] += 1
        grad[event:] += 3
        accuracy[event:] -= 0.6
    rows = [f"{i},{np.exp(a):.6g},{b:.6g},{c:.6g}" for i, a, b, c in zip(t, loss, grad, accuracy, strict=True)]
    path.write_text("step,loss,grad_norm,val/accuracy\n" + "\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("calibrate")
    (root / "healthy").mkdir()
    for seed in range(20):
        write(root / "healthy" / f"run{seed:02d}.csv", seed)
    write(root / "bad.csv", 99, event=300)
    write(root / "good.csv", 98)
    assert main(["calibrate", str(root / "healthy"), "-o", str(root / "t.toml"), "-q"]) == 0
    return root


def test_thresholds_are_written(place, capsys):
    assert Thresholds.read(place / "t.toml").n_calibration == 20
    assert (
        main(["calibrate", str(place / "healthy"), "-o", str(place / "u.toml"), "--json", "--monitor", "loss_z"]) == 0
    )
    said = capsys.readouterr()
    assert [t["monitor"] for t in json.loads(said.out)["thresholds"]] == ["loss_z"]
    assert "20 of 20" in said.err


def test_too_few_healthy_runs(place, capsys):
    assert main(["calibrate", str(place / "good.csv"), "-o", str(place / "x.toml")]) == 5
    assert "19 are needed" in capsys.readouterr().err
    assert not (place / "x.toml").exists()


def test_audit_with_thresholds(place, capsys):
    out = place / "r.json"
    assert main(["audit", str(place / "bad.csv"), "--thresholds", str(place / "t.toml"), "-o", str(out)]) == 0
    said = capsys.readouterr()
    assert "alarms per 1,000 steps" in said.err
    summary = json.loads(out.read_text())
    alarms = [e for e in summary["events"] if e["kind"] == "alarm"]
    assert alarms
    assert all(300 < e["step"] <= 330 for e in alarms)
    check = next(c for c in summary["checks"] if c["id"] == "AL")
    assert check["result"] == "watch"
    assert "0.05 alarms a healthy run" in check["found"]


def test_replay_prints_in_order_and_is_silent_on_a_stable_run(place, capsys):
    assert main(["audit", str(place / "bad.csv"), "--replay", "--thresholds", str(place / "t.toml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    steps = [int(line.split("step ")[1].split(":")[0]) for line in lines]
    assert steps == sorted(steps)
    assert 300 < steps[0] <= 310
    assert main(["audit", str(place / "good.csv"), "--replay", "--thresholds", str(place / "t.toml"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == []
    assert "1 of them without an alarm" in said.err


def test_replay_alone_is_a_mistake(place, capsys):
    assert main(["audit", str(place / "bad.csv"), "--replay"]) == 2
    assert "--thresholds" in capsys.readouterr().err
    (place / "bad.toml").write_text("x = 1\n")
    assert main(["audit", str(place / "bad.csv"), "--thresholds", str(place / "bad.toml")]) == 2
    assert main(["audit", str(place / "bad.csv"), "--thresholds", str(place / "none.toml")]) == 3
