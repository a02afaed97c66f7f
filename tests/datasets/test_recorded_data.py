"""What is committed is what it says: twins, labels, checksums, and that the recorder makes it again."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import make_labels
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recorder import plans, store
from recorder.trainer import Digits, record_seed


@pytest.fixture(scope="session")
def labels(datasets: Path):
    return pq.read_table(datasets / "labels.parquet")


def files(datasets: Path) -> list[Path]:
    found = store.data_files(datasets)
    assert found
    return found


def test_twins_are_identical_to_the_bit_before_injection(datasets: Path, labels) -> None:
    injection = dict(zip(labels["run"].to_pylist(), labels["injection_step"].to_pylist(), strict=True))
    twin = dict(zip(labels["run"].to_pylist(), labels["twin"].to_pylist(), strict=True))
    where = dict(zip(labels["run"].to_pylist(), labels["file"].to_pylist(), strict=True))
    controls = {}
    for name in sorted({where[t] for t in twin.values() if t}):
        needed = {t for t in twin.values() if t and where[t] == name}
        controls |= {r: store.series(t) for r, t in store.read_tables(datasets / name) if r in needed}
    checked = 0
    for path in files(datasets):
        for run, table in store.read_tables(path):
            if twin[run]:
                own, other = store.series(table), controls[twin[run]]
                assert own.keys() <= other.keys(), run  # some runs keep fewer channels than their twins
                other = {channel: other[channel] for channel in own}
                assert store.series_equal(own, other, before=injection[run]), run
                assert not store.series_equal(own, other), f"{run} never left its twin"
                checked += 1
    assert checked == sum(t is not None for t in twin.values()) > 0


def test_labels_are_what_the_script_computes(datasets: Path, labels) -> None:
    again = make_labels.labels(datasets)
    assert again.schema.equals(labels.schema)
    for name in labels.column_names:
        if pa.types.is_floating(labels.schema.field(name).type):  # sums may round otherwise on another processor
            np.testing.assert_allclose(
                again[name].to_numpy(), labels[name].to_numpy(), rtol=1e-6, atol=1e-9, err_msg=name
            )
        else:
            assert again[name].equals(labels[name]), name


def test_checksums_cover_every_file(datasets: Path) -> None:
    lines = (datasets / "checksums.sha256").read_text().splitlines()
    listed = {line.split("  ")[1]: line.split("  ")[0] for line in lines}
    expected = {p.relative_to(datasets).as_posix() for p in files(datasets)} | {"labels.parquet"}
    assert listed.keys() == expected
    for name, digest in listed.items():
        assert hashlib.sha256((datasets / name).read_bytes()).hexdigest() == digest, name


def test_files_hold_one_row_group_a_run_in_order(datasets: Path) -> None:
    for path in files(datasets):
        meta = store.read_meta(path)
        runs = []
        for run, table in store.read_tables(path):
            assert table.schema.equals(store.SCHEMA)
            codes = table["run"].combine_chunks()
            assert len(codes.dictionary) == 1
            names, step = table["channel"].combine_chunks(), table["step"].to_numpy()
            assert names.dictionary.to_pylist() == sorted(names.dictionary.to_pylist())
            change = np.diff(names.indices.to_numpy())
            assert ((change == 1) | ((change == 0) & (np.diff(step) > 0))).all()
            runs.append(run)
        assert runs == sorted(meta["runs"])
        assert len(json.dumps(meta)) < 2_000_000


@pytest.mark.parametrize("arm", ["control", "lr_x100"])
def test_recorder_reproduces_an_arm(datasets: Path, arm: str) -> None:
    (plan,), data = plans.PLANS["adam"], Digits.load()
    made_with, here = store.read_meta(datasets / "digits/adam.parquet", "recorder"), store.versions()
    run = plan.run_id(0, arm)
    if made_with == here:
        # a process of its own, in which BLAS takes the kernels of the processor, as it did for the recording
        native = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_CORE")}
        command = [sys.executable, str(datasets / "record_digits.py"), "--check", run]
        told = subprocess.run(command, env=native, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stdout + told.stderr
    else:  # another processor rounds differently, and training amplifies it: only the first steps can agree
        log = record_seed(plan.net, plan.optimizer, plan.settings, 0, {arm: plan.arms[arm]}, data)[arm]
        committed = next(t for r, t in store.read_tables(datasets / "digits/adam.parquet") if r == run)
        for channel, (_, values) in store.series(committed).items():
            np.testing.assert_allclose(log.arrays()[channel][1][:5], values[:5], rtol=1e-3, atol=1e-4)


def test_recording_twice_gives_the_same_bits() -> None:
    (plan,), data = plans.PLANS["sgd_momentum"], Digits.load()
    arms = {name: plan.arms[name] for name in ("control", "grad_noise_10")}
    settings = plans.Settings(lr=0.05, steps=60, fork=30)
    first, second = (record_seed(plan.net, "sgd_momentum", settings, 3, arms, data) for _ in range(2))
    for arm in arms:
        assert store.series_equal(first[arm].arrays(), second[arm].arrays())
    # an arm does not depend on which other arms were recorded beside it
    alone = record_seed(plan.net, "sgd_momentum", settings, 3, {"grad_noise_10": arms["grad_noise_10"]}, data)
    assert store.series_equal(alone["grad_noise_10"].arrays(), first["grad_noise_10"].arrays())


def test_logged_norms_give_the_logged_cosine_of_momentum_and_gradient(datasets: Path) -> None:
    """DEFINITIONS 2.3: exact for heavy ball, so the recorded channels must agree with one another."""
    for run, table in store.read_tables(datasets / "digits/sgd_momentum.parquet"):
        if not run.endswith("s000-control"):
            continue
        channels = {c: v.astype(np.float64) for c, (_, v) in store.series(table).items()}
        m, n = channels["train/update_norm"] / channels["train/lr"], channels["train/grad_norm"]
        b = 0.9
        derived = (m[1:] ** 2 - b**2 * m[:-1] ** 2 - n[1:] ** 2) / (2 * b * m[:-1] * n[1:])
        np.testing.assert_allclose(derived, channels["train/momentum_cos"], atol=2e-5)
