"""The command line: outputs, exit codes, and one sentence for every kind of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from trajscope.cli import run
from trajscope.history import read_parquet_run


def log(path: Path, n: int = 200, *, fall: int | None = None) -> Path:
    """A CSV log of a run that learns, and on request loses everything at a step."""
    rng = np.random.default_rng(0)
    step = np.arange(n) * 10
    accuracy = 0.9 - 0.8 * np.exp(-np.arange(n) / 20) + rng.normal(0, 0.004, n)
    loss = 0.1 + 2.2 * np.exp(-np.arange(n) / 20) * np.exp(rng.normal(0, 0.05, n))
    if fall is not None:
        accuracy[fall:] = 0.1 + rng.normal(0, 0.004, n - fall)
        loss[fall:] = 2.3 * np.exp(rng.normal(0, 0.05, n - fall))
    rows = [f"{s},{a:.6f},{x:.6f},0.01" for s, a, x in zip(step, accuracy, loss, strict=True)]
    path.write_text("step,val_accuracy,train_loss,lr\n" + "\n".join(rows) + "\n")
    return path


def call(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = run([str(a) for a in args])
    out = capsys.readouterr()
    assert "Traceback" not in out.err
    return code, out.out, out.err


def test_inspect_lists_channels_roles_and_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "inspect", log(tmp_path / "a.csv"))
    assert code == 0
    assert "val_accuracy" in out
    assert "val_accuracy (0.80)" in out
    assert "steps 0 to 1990" in out


def test_inspect_json_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "inspect", "--json", "-q", log(tmp_path / "a.csv"))
    assert code == 0
    listed = json.loads(out)["runs"][0]["channels"]
    assert {c["name"]: c["points"] for c in listed} == {"val_accuracy": 200, "train_loss": 200, "lr": 200}


def test_audit_of_one_run_writes_each_kind_of_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = log(tmp_path / "a.csv", fall=120)
    for ending in ("html", "md", "json"):
        code, out, err = call(capsys, "audit", source, "-o", tmp_path / f"r.{ending}")
        assert code == 0
        assert "Not healthy" in out
        assert "report:" in err
        assert (tmp_path / f"r.{ending}").stat().st_size > 1000
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "not healthy"
    assert not list(tmp_path.glob("*.partial"))


def test_audit_of_several_runs_writes_an_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").mkdir()
    log(tmp_path / "logs" / "good.csv")
    log(tmp_path / "logs" / "bad.csv", fall=100)
    code, out, _ = call(capsys, "audit", tmp_path / "logs", "-o", tmp_path / "out")
    assert code == 0
    assert "Healthy: good.csv" in out
    index = (tmp_path / "out" / "index.html").read_text()
    assert index.index("bad.csv") < index.index("good.csv")
    assert (tmp_path / "out" / "index_runs" / "bad.csv.html").is_file()


def test_fail_on_is_a_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = log(tmp_path / "bad.csv", fall=100), log(tmp_path / "good.csv")
    assert call(capsys, "audit", bad, "--fail-on", "not healthy")[0] == 10
    assert call(capsys, "audit", bad, "--fail-on", "look closer")[0] == 10
    assert call(capsys, "audit", good, "--fail-on", "look closer")[0] == 0


def test_convert_keeps_every_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "convert", log(tmp_path / "a.csv"), "-o", tmp_path / "a.parquet")
    assert code == 0
    assert "1 runs, 600 points" in err
    assert read_parquet_run(tmp_path / "a.parquet").n_points == 600


def test_a_path_list_from_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    names = "\n".join(str(log(tmp_path / f"{n}.csv")) for n in "ab")
    monkeypatch.setattr("sys.stdin", io.StringIO(names))
    code, out, _ = call(capsys, "inspect", "-")
    assert code == 0
    assert "a.csv" in out
    assert "b.csv" in out


def test_readers_and_config_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert "tensorboard" in call(capsys, "readers")[1]
    assert json.loads(call(capsys, "readers", "--json")[1])[0]["name"]
    assert "alpha" in call(capsys, "config")[1]
    assert json.loads(call(capsys, "config", "--json")[1])["origins"]["alpha"] == "default"


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["inspect", "nowhere"], 3, "no such file or directory"),
        (["inspect"], 2, "Missing argument"),
        (["inspct"], 2, "Did you mean 'inspect'?"),
        (["audit", "nowhere", "--alpha", "7"], 2, "alpha = 7.0 is out of range"),
        (["audit", "nowhere", "--role", "x"], 2, "expected NAME=ROLE"),
        (["inspect", ".", "--format", "tensorbord"], 2, "Did you mean 'tensorboard'?"),
    ],
)
def test_usage_errors(
    args: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    got, out, err = call(capsys, *args)
    assert got == code
    assert message in err
    assert out == ""


def test_an_empty_directory_and_an_empty_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = call(capsys, "audit", tmp_path / "empty", "-o", tmp_path / "r.html")
    assert code == 3
    assert "no logs found under" in err
    assert not (tmp_path / "r.html").exists()
    (tmp_path / "empty.csv").touch()
    code, out, _ = call(capsys, "audit", tmp_path / "empty.csv")
    assert code == 0
    assert "Can't tell" in out


def test_a_text_file_that_claims_to_be_an_event_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "events.out.tfevents.x").write_text("not an event file\n" * 20)
    code, _, err = call(capsys, "inspect", tmp_path / "d")
    assert code == 3
    assert "events.out.tfevents.x" in err


def test_a_table_without_steps_is_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "people.csv").write_text("name,age\n" + "\n".join(f"p{i},{20 + i}" for i in range(30)))
    code, _, err = call(capsys, "inspect", tmp_path / "d")
    assert code == 3
    assert "no logs found" in err


@pytest.mark.parametrize("n", [1, 3, 12])
def test_a_very_short_run_cannot_be_judged(n: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "audit", log(tmp_path / "a.csv", n))
    assert code == 0
    assert "Can't tell" in out


def test_a_channel_that_is_never_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("step,loss\n" + "\n".join(f"{i},nan" for i in range(80)))
    code, out, _ = call(capsys, "audit", tmp_path / "a.csv")
    assert code == 0
    assert "Not healthy" in out
    assert "80 NaN" in out


def test_an_output_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = log(tmp_path / "a.csv")
    assert call(capsys, "convert", source, "-o", tmp_path / "a.txt")[0] == 2
    assert call(capsys, "audit", source, "-o", tmp_path / "a.docx")[0] == 2
    (tmp_path / "file").touch()
    code, _, err = call(capsys, "audit", source, "-o", tmp_path / "file" / "r.html")
    assert code == 2
    assert "file" in err


def test_names_from_a_log_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("step,loss\x1b[31mred\n" + "\n".join(f"{i},{1 / (i + 1)}" for i in range(60)))
    code, out, err = call(capsys, "inspect", tmp_path / "a.csv")
    assert code == 0
    assert "\x1b" not in out + err


def test_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(capsys, "demo")
    assert code == 0
    assert (tmp_path / "trajscope-demo" / "index.html").is_file()
    assert "Healthy: control" in out
    assert "Not healthy: lr_x100" in out
    assert call(capsys, "demo", "--run", "lr_x300")[0] == 2


def test_known_events_are_no_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loss = 0.3 + 0.02 * np.random.default_rng(0).normal(size=600)
    loss[400] = 5.0
    source, events = tmp_path / "a.csv", tmp_path / "known" / "events.csv"
    source.write_text("step,train/loss\n" + "".join(f"{i},{v}\n" for i, v in enumerate(loss)))
    events.parent.mkdir()
    events.write_text("run,step,kind,note\n*,400,data,new shard\nelsewhere,1,x,y\n")
    plain = call(capsys, "audit", source, "--json")
    told = call(capsys, "audit", source, "--json", "--events", events)
    found = [[e["severity"] for e in json.loads(r[1])["events"] if e["kind"] == "spike"] for r in (plain, told)]
    assert found == [["watch"], ["info"]]
    assert "known events of 'elsewhere' belong to none" in told[2]
    for text, message in (
        ("run,step\n*,soon\n", "step is 'soon'"),
        ("a,b\n1,2\n", "no column 'run'"),
        ("", "not a table"),
    ):
        events.write_text(text)
        code, _, err = call(capsys, "audit", source, "--events", events)
        assert code in (2, 3)
        assert message in err


def sibling(path: Path, seed: int, shift: float = 0.0) -> Path:
    """A CSV log of a healthy run, its loss raised by ``shift`` from step 300 on."""
    rng = np.random.default_rng(seed)
    loss = (1 + 0.03 * rng.normal() + np.exp(-np.arange(400) / 60)) * np.exp(0.03 * rng.normal(size=400))
    loss[300:] += shift
    path.write_text("step,train/loss\n" + "".join(f"{i},{v}\n" for i, v in enumerate(loss)))
    return path


def test_a_band_of_healthy_siblings_is_a_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "healthy"
    folder.mkdir()
    for seed in range(6):
        sibling(folder / f"{seed}.csv", seed)
    good, bad = sibling(tmp_path / "good.csv", 50), sibling(tmp_path / "bad.csv", 51, shift=0.5)
    code, out, err = call(capsys, "audit", bad, "--reference", folder, "--fail-on", "not healthy")
    assert code == 10
    assert "leaves the band of 6 healthy runs at step 30" in out
    assert "reference: 6 healthy runs, train/loss; a level extrapolated" in err
    assert call(capsys, "audit", good, "--reference", folder, "--fail-on", "not healthy")[0] == 0
    code, _, err = call(capsys, "audit", good, "--reference", good)
    assert code == 5
    assert "4 are needed" in err


def test_rules_of_the_settings_file_are_applied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[[rule]]\ntitle = "Too high"\nrole = "loss"\nabove = 1.2\nrows = 5\nresult = "fail"\n')
    bad = sibling(tmp_path / "bad.csv", 51, shift=0.5)
    code, out, _ = call(capsys, "audit", bad, "--config", file, "--fail-on", "not healthy", "--json")
    assert code == 10
    assert json.loads(out)["checks"][0]["id"] == "U1"
    assert "Too high" in call(capsys, "config", "--config", file, "--json")[1]
    file.write_text('[[rule]]\ntitle = "Too high"\nrole = "loss"\nabove = 1.2\nrow = 5\n')
    code, _, err = call(capsys, "audit", bad, "--config", file)
    assert code == 2
    assert "'rows'" in err
