"""What a Parquet file says about itself, read from its footer only; three formats ask for it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["footer", "metadata_keys"]


def footer(path: Path) -> Any:
    """The Arrow schema of a Parquet file, None where the file is none or is damaged."""
    try:
        state = path.stat()
    except OSError:
        return None
    return _footer(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)
def _footer(path: Path, modified: int, size: int) -> Any:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError, ValueError):
        return None


def metadata_keys(path: Path) -> frozenset[bytes] | None:
    """Keys of the file's own metadata, None where the footer cannot be read."""
    schema = footer(path)
    return None if schema is None else frozenset(schema.metadata or {})
