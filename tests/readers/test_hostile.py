"""Files that want more than to be read: links out of the root, paths in settings, markup in names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from trajscope.readers import read_run, scan_runs

OUTSIDE = "step,loss\n0,77\n1,78\n"
LOG = "step,loss\n0,1\n1,2\n"
NAMES = (
    "<script>alert(1)</script>",
    "\x1b]0;owned\x07",
    "../../etc/passwd",
    "a\u202eb",
    "{{7*7}}",
    "=cmd|' /C calc'!A0",
)


def test_a_link_to_a_table_outside_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.csv").write_text(OUTSIDE)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "more.csv").write_text(OUTSIDE)
    (root / "own.csv").write_text(LOG)
    (root / "metrics.csv").symlink_to(tmp_path / "secret.csv")
    (root / "deeper").symlink_to(tmp_path / "logs")
    scan = scan_runs(root)
    assert [r.id for r in scan] == ["own.csv"]
    assert sorted((p.code, p.file) for p in scan.problems) == [
        ("link-outside", "deeper"),
        ("link-outside", "metrics.csv"),
    ]


@pytest.mark.parametrize("name", ["hparams.yaml", "args.yaml", "hparams.json", "config.json"])
def test_settings_that_are_a_link_are_not_read(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text('{"password": "hunter2"}')
    (root / "metrics.csv").write_text(LOG)
    (root / name).symlink_to(tmp_path / "secret")
    (run,) = scan_runs(root)
    assert dict(run.config) == {}


@pytest.mark.parametrize("place", ["../secret.csv", "/etc/passwd", "file:///etc/passwd", "..\\secret.csv"])
def test_a_path_in_the_settings_is_text_and_leads_nowhere(tmp_path: Path, place: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.csv").write_text(OUTSIDE)
    settings = {"log_path": place, "metrics": place, "include": place, "artifact_uri": place}
    (root / "metrics.csv").write_text(LOG)
    (root / "config.json").write_text(json.dumps(settings))
    (root / "log.jsonl").write_text(
        "".join(json.dumps({"step": s, "loss": s, "config": settings, "log_path": place}) + "\n" for s in range(3))
    )
    (root / "trainer_state.json").write_text(
        json.dumps({"best_model_checkpoint": place, "log_history": [{"loss": 1.0, "step": 1}]})
    )
    trial = root / "trial"
    trial.mkdir()
    (trial / "result.json").write_text(
        "".join(json.dumps({"training_iteration": s, "timesteps_total": s, "config": settings}) + "\n" for s in (1, 2))
    )
    (trial / "params.json").write_text(json.dumps(settings))
    runs = list(scan_runs(root))
    assert len(runs) == 4
    values = np.concatenate([c.values for r in runs for c in r.channels.values()])
    assert values.size
    assert float(values.max()) < 77
    table = next(r for r in runs if r.id == "metrics.csv")
    assert table.config == settings


@pytest.mark.parametrize("name", NAMES)
def test_names_are_data_in_tables_records_and_arrays(tmp_path: Path, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    (tmp_path / "a.csv").write_text(f"step,{quoted}\n0,1\n1,2\n")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"step": s, name: s}) + "\n" for s in range(3)))
    (tmp_path / "c.csv").write_text("step,tag,value\n" + "".join(f"{s},{quoted},{s}\n" for s in range(3)))
    (tmp_path / "d.json").write_text(
        json.dumps({"global_step": 2, "log_history": [{"step": s, name: s / 2} for s in (1, 2)]})
    )
    before = sorted(tmp_path.iterdir())
    for file in before:
        run = read_run(file)
        assert [n for n in run.channels if n == name] == [name], file
    assert sorted(tmp_path.iterdir()) == before


def test_a_text_column_with_a_hostile_name_is_named_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,evil\x1b[31m<b>,loss\n0,x,1\n1,y,2\n2,z,3\n")
    run = read_run(tmp_path / "a.csv")
    assert run.channels["loss"].values.tolist() == [1.0, 2.0, 3.0]
    assert [p.message for p in run.problems] == ["Columns without numbers are no series: evil\x1b[31m<b>"]
