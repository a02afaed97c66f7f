"""The folder of a score table: what is in it, what is done, and writing that never leaves half a shard.

``manifest.json`` says what the rows mean (version, schema, settings, roots). A shard is one file in each of ``runs/``,
``events/`` and ``config/``, written under another name and renamed, ``runs/`` last: a shard is done when that file is
there. Its metadata lists the items in it with their fingerprints.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trajscope.batch.columns import SCHEMA_VERSION, TABLES, schema
from trajscope.batch.row import Terms
from trajscope.batch.shard import Rows
from trajscope.errors import InputError, ReadError

__all__ = ["Done", "Store"]

_DONE = b"trajscope.done"
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Done:
    """An item that has rows: its fingerprint, its shard, its runs."""

    fingerprint: str
    shard: str
    runs: tuple[str, ...]


class Store:
    """A score table on disk.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    # ---- what the rows mean

    def open(self, terms: Terms, reading: Mapping[str, Any]) -> None:
        """Make the folder, or check that it holds rows of the same meaning.

        Raises
        ------
        InputError
            If the folder holds rows made otherwise, or files that are no score table.
        """
        wanted = {
            "schema_version": SCHEMA_VERSION,
            "trajscope": terms.version,
            "config_hash": terms.settings.hash,
            "settings": terms.settings.to_dict(),
            "reading": {k: list(v) if isinstance(v, tuple) else v for k, v in reading.items()},
        }
        if self.path.is_file():
            raise InputError(f"{self.path}: that is a file; a folder for the tables is expected")
        manifest = self.path / _MANIFEST
        if manifest.is_file():
            try:
                there = json.loads(manifest.read_text(encoding="utf-8"))
            except ValueError as problem:
                raise InputError(f"{manifest}: not readable ({problem}); use another folder") from problem
            differ = [k for k in wanted if there.get(k) != wanted[k] and k != "settings"]
            if differ:
                shown = "; ".join(f"{k} {there.get(k)!r}, now {wanted[k]!r}" for k in differ)
                raise InputError(
                    f"{self.path}: holds rows made otherwise ({shown}); rows are never mixed: use another folder"
                )
            return
        if self.path.is_dir() and any(self.path.iterdir()):
            raise InputError(f"{self.path}: not empty and no score table (no {_MANIFEST}); use another folder")
        self.path.mkdir(parents=True, exist_ok=True)
        for table in TABLES:
            (self.path / table).mkdir(exist_ok=True)
        _write_text(manifest, json.dumps(wanted, indent=1, sort_keys=True) + "\n")

    # ---- what is done

    def done(self) -> dict[tuple[str, str], Done]:
        """Items that have rows, by root and key."""
        found: dict[tuple[str, str], Done] = {}
        for file in sorted((self.path / "runs").glob("*.parquet")):
            try:
                metadata = pq.read_schema(file).metadata or {}
                entries = json.loads(metadata[_DONE])
            except (OSError, KeyError, ValueError, pa.ArrowInvalid) as problem:
                raise ReadError(f"{file}: not a shard of a score table ({problem}); move it away") from problem
            for root, key, fingerprint, runs in entries:
                found[root, key] = Done(fingerprint, file.stem, tuple(runs))
        for table in TABLES:  # what a killed call left behind
            for stale in (self.path / table).glob("*.partial"):
                stale.unlink()
        return found

    def drop(self, items: Iterable[tuple[tuple[str, str], Done]]) -> None:
        """Take the rows of items out of their shards, before they are scored anew."""
        by_shard: dict[str, set[tuple[str, str]]] = {}
        runs: dict[str, set[tuple[str, str]]] = {}
        for (root, key), done in items:
            by_shard.setdefault(done.shard, set()).add((root, key))
            runs.setdefault(done.shard, set()).update((root, run) for run in done.runs)
        for shard, gone in by_shard.items():
            rows = Rows()
            tables = {t: self._read(t, shard) for t in TABLES}
            rows.runs, rows.events, rows.config = (
                [r for r in tables[t].to_pylist() if (r["root"], r["run"]) not in runs[shard]] for t in TABLES
            )
            entries = json.loads((pq.read_schema(self._file("runs", shard)).metadata or {})[_DONE])
            rows.done = [(e[0], e[1], e[2], e[3]) for e in entries if (e[0], e[1]) not in gone]
            if rows.done:
                self._put(shard, rows, order=("runs", "events", "config"))
            else:
                for table in TABLES:
                    self._file(table, shard).unlink(missing_ok=True)

    # ---- rows

    def write(self, rows: Rows) -> str:
        """Write one shard; its name."""
        text = json.dumps([d[:3] for d in rows.done])
        shard = f"shard-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:16]}"
        self._put(shard, rows, order=("config", "events", "runs"))
        return shard

    def _put(self, shard: str, rows: Rows, order: tuple[str, ...]) -> None:
        for table in order:
            form = schema(table)
            if table == "runs":
                form = form.with_metadata({_DONE: json.dumps(rows.done).encode()})
            data = pa.Table.from_pylist(_clean(getattr(rows, table)), schema=form)
            target = self._file(table, shard)
            partial = target.with_suffix(".partial")
            try:
                pq.write_table(data, partial, compression="zstd")
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)

    def _file(self, table: str, shard: str) -> Path:
        return self.path / table / f"{shard}.parquet"

    def _read(self, table: str, shard: str) -> pa.Table:
        return pq.read_table(self._file(table, shard))

    def read(self, table: str, columns: list[str] | None = None) -> pa.Table:
        """A whole table, in no particular order."""
        files = sorted((self.path / table).glob("*.parquet"))
        form = schema(table)
        if columns is not None:
            form = pa.schema([form.field(c) for c in columns])
        if not files:
            return form.empty_table()
        return pa.concat_tables([pq.read_table(f, columns=columns).replace_schema_metadata(None) for f in files])

    def write_failures(self, details: Mapping[str, str], unread: Iterable[str] = ()) -> int:
        """``failures.jsonl``: a line for each run without a score, and for what claims to be a log and is none.

        Parameters
        ----------
        details : mapping of str to str
            Tracebacks of bugs, by run.
        unread : iterable of str
            What the listing could not take for a run, a sentence each.

        Returns
        -------
        int
            Runs without a score.
        """
        table = self.read("runs", ["run", "root", "status", "error"])
        failed = [r for r in table.to_pylist() if r["status"] != "ok"]
        failed.sort(key=lambda r: (r["root"], r["run"]))
        rows = [r | ({"traceback": details[r["run"]]} if r["run"] in details else {}) for r in failed]
        rows += [{"run": None, "root": None, "status": "no run", "error": text} for text in unread]
        _write_text(self.path / "failures.jsonl", "".join(json.dumps(r, ensure_ascii=True) + "\n" for r in rows))
        return len(failed)


def _clean(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows whose text Parquet can hold: names that are no Unicode are shown escaped."""
    return [{k: _text(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows]


def _text(value: str) -> str:
    return value.encode("utf-8", errors="backslashreplace").decode() if not value.isascii() else value


def _write_text(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
