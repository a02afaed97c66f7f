"""``config.yaml`` and ``wandb-summary.json``, as every W&B client writes them beside its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trajscope.readers._yaml import read_yaml

__all__ = ["saved_config", "saved_summary"]

_LIMIT = 16 * 1024 * 1024


def saved_summary(directory: Path) -> dict[str, Any]:
    """The last values by name; empty where there is no such file, or none that can be read."""
    try:
        found = json.loads(_content(directory / "wandb-summary.json") or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def saved_config(directory: Path) -> dict[str, Any]:
    """The settings (``name: {value: ...}``) by name; empty where there is no such file, or none that can be read."""
    found = read_yaml(_content(directory / "config.yaml").decode("utf-8", "replace"))
    if not isinstance(found, dict):
        return {}
    return {k: v["value"] for k, v in found.items() if k != "_wandb" and isinstance(v, dict) and "value" in v}


def _content(path: Path) -> bytes:
    """A regular file of reasonable size; a link is not followed."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _LIMIT:
            return b""
        return path.read_bytes()
    except OSError:
        return b""
