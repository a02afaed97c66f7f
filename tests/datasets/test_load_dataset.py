"""`load_dataset`: where it looks, what it verifies, what it says when it cannot."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from recorder import store

from trajscope.errors import InputError, NoLogsFound, ReadError
from trajscope.history.datasets import load_dataset


@pytest.fixture
def small(tmp_path: Path, datasets: Path) -> Path:
    """A data folder with the labels and one file of the recorded runs."""
    import pyarrow.parquet as pq

    (tmp_path / "digits").mkdir()
    shutil.copy(datasets / "digits/adam.parquet", tmp_path / "digits")
    labels = pq.read_table(datasets / "labels.parquet")
    keep = np.array([f == "digits/adam.parquet" for f in labels["file"].to_pylist()])
    pq.write_table(labels.filter(keep), tmp_path / "labels.parquet")
    store.write_checksums(tmp_path)
    return tmp_path


def test_runs_are_the_recorded_values(datasets: Path) -> None:
    digits = load_dataset("digits", datasets)
    run_id = "digits-mlp64-adam-s001-lr_x30"
    assert digits.runs() == sorted(digits.runs())
    run = digits.run(run_id)
    table = next(t for r, t in store.read_tables(datasets / "digits/adam.parquet") if r == run_id)
    recorded = store.series(table)
    assert set(run.channels) == set(recorded)
    for name, (steps, values) in recorded.items():
        assert run.channels[name].values.dtype == np.float32
        np.testing.assert_array_equal(run.channels[name].steps, steps)
        np.testing.assert_array_equal(run.channels[name].values, values)
    assert run.channels["val/accuracy"].role == "val_accuracy"
    assert run.config["injection_step"] == 400
    row = digits.labels.set_index("run").loc[run_id]
    assert row["twin"] == "digits-mlp64-adam-s001-control"
    assert row["split"] == "heldout"
    assert digits.labels["injection_step"].dtype == "Int64"


def test_environment_and_checkout(small: Path, datasets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAJSCOPE_DATA", raising=False)
    assert load_dataset("digits").root == datasets
    monkeypatch.setenv("TRAJSCOPE_DATA", str(small))
    assert load_dataset("digits").root == small
    assert set(load_dataset("digits").labels["algorithm"]) == {"adam"}
    assert load_dataset("digits", datasets).root == datasets


def test_absent_data_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoLogsFound, match=r"data_dir.*record_digits\.py"):
        load_dataset("digits", tmp_path)
    monkeypatch.setenv("TRAJSCOPE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(NoLogsFound, match="TRAJSCOPE_DATA"):
        load_dataset("digits")


def test_unknown_names(small: Path) -> None:
    with pytest.raises(InputError, match=r"no dataset 'digit'\. Did you mean 'digits'\?"):
        load_dataset("digit", small)
    with pytest.raises(InputError, match="scan_runs"):
        load_dataset("demo", small)
    with pytest.raises(InputError, match=r"no run 'digits-mlp64-adam-s001-lr_x31'\. Did you mean"):
        load_dataset("digits", small).run("digits-mlp64-adam-s001-lr_x31")


def test_damaged_files_are_refused(small: Path) -> None:
    path = small / "digits/adam.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ReadError, match=r"adam\.parquet: SHA-256 .* expected .* changed"):
        load_dataset("digits", small)
    path.unlink()
    with pytest.raises(ReadError, match=r"adam\.parquet: missing"):
        load_dataset("digits", small)
    (small / "checksums.sha256").unlink()
    with pytest.raises(ReadError, match="cannot be verified"):
        load_dataset("digits", small)
