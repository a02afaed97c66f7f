"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

_SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Logs that other people made; they lie beside the checkout on some machines and are never part of it."""
    if not _SHARED.is_dir():
        pytest.skip("the shared sample data are not on this machine")
    return _SHARED
