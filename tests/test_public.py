"""The public surface is frozen, and importing it is cheap."""

from __future__ import annotations

import subprocess
import sys

import trajscope

PUBLIC = {
    "InstabilityManifold",
    "LinearStateSpace",
    "PCAState",
    "Run",
    "SlowFeatures",
    "Trajectory",
    "align",
    "attribute_axis",
    "audit",
    "buffering",
    "calibrate",
    "change_points",
    "collapse",
    "compare",
    "dissociation",
    "early_warning",
    "errors",
    "first_mover",
    "identifiability",
    "lead_time",
    "response",
    "load_dataset",
    "read_run",
    "scan_runs",
    "score_runs",
    "simulate",
    "spikes",
    "testing",
    "x_grad",
    "x_inst",
}


def test_the_public_names_are_these() -> None:
    assert set(trajscope.__all__) == PUBLIC


def test_every_public_name_can_be_had() -> None:
    for name in PUBLIC:
        assert getattr(trajscope, name) is not None


def test_import_loads_nothing_heavy() -> None:
    code = (
        "import sys, trajscope, trajscope.cli;"
        "print([m for m in ('numpy', 'pandas', 'scipy', 'matplotlib', 'numba', 'sklearn') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
