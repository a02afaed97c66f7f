"""Logs to score, and a reader whose files hang, kill their process or ask for too much memory."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

_READER = """
import ctypes, os, time
from trajscope.readers.base import Reader

class Evil(Reader):
    name = "evil"
    title = "Files that misbehave"
    priority = 1000

    def can_read(self, path, head):
        return path.suffix == ".evil"

    def sources(self, files, key, options):
        what = files[0].read_text().strip()
        if what == "sleep":
            time.sleep(600)
        if what == "deaf":  # never comes back to Python, so that no alarm is heard
            ctypes.PyDLL(None).sleep(600)
        if what == "kill":
            os.kill(os.getpid(), 9)
        if what == "memory":
            return bytearray(10 * 2**30)
        if what == "bug":
            raise KeyError("oops")
        return []

READER = Evil()
"""


def write_log(path: Path, seed: int, rows: int = 120, kind: str = "csv") -> None:
    """A small run: loss, accuracy, gradient norm; seeds divisible by 5 collapse."""
    rng = np.random.default_rng(seed)
    t = np.arange(rows)
    loss = 2 * np.exp(-t / 20) + 0.3 + 0.02 * rng.normal(size=rows)
    accuracy = 0.9 - 0.8 * np.exp(-t / 15) + 0.01 * rng.normal(size=rows)
    if seed % 5 == 0:
        loss[70:] += 3
        accuracy[70:] -= 0.7
    names = ("loss", "val/accuracy", "grad_norm")
    table = np.stack([loss, accuracy, 1 + 0.1 * rng.normal(size=rows)], axis=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "csv":
        lines = [",".join(("step", *names))] + [
            f"{i}," + ",".join(f"{v:.6g}" for v in row) for i, row in enumerate(table)
        ]
    else:
        lines = [
            json.dumps({"step": i, **dict(zip(names, map(float, row), strict=True))}) for i, row in enumerate(table)
        ]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Twelve runs in two formats and folders, with a file that is no log."""
    root = tmp_path / "logs"
    for seed in range(12):
        kind = "csv" if seed % 2 else "jsonl"
        write_log(root / f"group{seed % 3}" / f"run{seed:02d}.{kind}", seed, kind=kind)
    (root / "notes.md").write_text("# not a log\n")
    return root


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plug-in reader for ``*.evil``, known to every process that is started from here."""
    folder = tmp_path / "plugin"
    (folder / "evil_reader-1.0.dist-info").mkdir(parents=True)
    (folder / "evil_reader.py").write_text(_READER)
    (folder / "evil_reader-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: evil-reader\nVersion: 1.0\n"
    )
    (folder / "evil_reader-1.0.dist-info" / "entry_points.txt").write_text(
        "[trajscope.readers]\nevil = evil_reader:READER\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(folder))
    from trajscope.readers.load import readers

    readers.cache_clear()
    yield folder
    readers.cache_clear()
    sys.modules.pop("evil_reader", None)
