"""trajscope's own Parquet: runs that were read, converted or recorded before, several a file.

Nothing is decided again: segments, dead branches, problems and roles come back as they were written
(`trajscope.history.parquet`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trajscope.errors import InputError, ReadError
from trajscope.history import RunData, parquet_run_ids, read_parquet_run
from trajscope.readers._parquet_footer import metadata_keys
from trajscope.readers.base import Reader, ReadOptions, Rejected

__all__ = ["READER", "ParquetReader"]


class ParquetReader(Reader):
    """Runs in the Parquet form of `trajscope convert`."""

    name = "parquet"
    title = "trajscope Parquet"
    priority = 90

    def can_read(self, path: Path, head: bytes) -> bool:
        """Whether the footer says that trajscope wrote runs into the file."""
        if head[:4] != b"PAR1":
            if path.suffix == ".parquet" and not head.strip(b"\0"):
                raise Rejected("an empty file called .parquet" if not head else "a Parquet file that holds only zeros")
            return False
        keys = metadata_keys(path)
        if keys is None:
            raise Rejected("a Parquet file that is damaged or cut short (its table of contents at the end is gone)")
        if b"trajscope.trajectory" in keys:
            raise Rejected("an aligned trajectory, not a run: open it with Trajectory.from_parquet")
        return b"trajscope" in keys

    def keys(self, files: Sequence[Path], options: ReadOptions) -> list[str]:
        """The runs in the file; unnamed where it is only one."""
        ids = parquet_run_ids(files[0])
        return ids if len(ids) > 1 else [""]

    def run_data(self, files: Sequence[Path], key: str, options: ReadOptions) -> RunData:
        """The run as it was written, restricted to the wanted channels."""
        try:
            data = read_parquet_run(files[0], key or None).data
        except InputError as problem:
            raise ReadError(f"{options.label(files[0])}: {problem}") from problem
        if not options.channels:
            return data
        return replace(
            data,
            channels={n: c for n, c in data.channels.items() if options.wants(n)},
            superseded={n: c for n, c in data.superseded.items() if options.wants(n)},
        )


READER = ParquetReader()
