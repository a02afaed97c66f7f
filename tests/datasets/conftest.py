"""The recorder is run as scripts, so its folder goes on the path as it would be there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

DATASETS = Path(__file__).resolve().parents[2] / "datasets"
sys.path.insert(0, str(DATASETS))


@pytest.fixture(scope="session")
def datasets() -> Path:
    return DATASETS
