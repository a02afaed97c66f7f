"""Delimited text against pandas' C parser, JSON lines against pyarrow and json: CPU seconds, ratios in one run.

``python tests/benchmarks/bench_tables.py`` (one thread; set OMP_NUM_THREADS=1). The rivals only parse; trajscope reads
the file, finds out how it is written, checks its encoding, tells missing from NaN and assembles the run.
"""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.csv as pc
import pyarrow.json as pj

from trajscope.readers import read_run

ROWS, COLUMNS = 200_000, 10


def cpu(action: Callable[[], object], repeats: int = 5) -> float:
    """Least CPU time of several calls, the first (imports, caches) not counted."""
    action()
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        action()
        best = min(best, time.process_time() - start)
    return best


def tables(folder: Path) -> dict[str, Path]:
    """A dense and a sparse CSV file and a JSON lines file of the same numbers."""
    rng = np.random.default_rng(0)
    dense = pd.DataFrame({f"m{i}": rng.normal(size=ROWS) for i in range(COLUMNS - 1)})
    dense.insert(0, "step", np.arange(ROWS))
    sparse = dense.mask(rng.random(dense.shape) < np.r_[np.zeros(4), np.full(COLUMNS - 4, 0.8)])
    paths = {name: folder / name for name in ("dense.csv", "sparse.csv", "dense.jsonl")}
    dense.to_csv(paths["dense.csv"], index=False)
    sparse.to_csv(paths["sparse.csv"], index=False)
    with paths["dense.jsonl"].open("w") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in dense.to_dict("records"))
    return paths


def ours(path: Path) -> None:
    """Read a run."""
    _ = read_run(path).channels


def exact(path: Path) -> pd.DataFrame:
    """pandas with the precision that it calls round-trip; deprecated since the default is exact too (pandas 3)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pd.read_csv(path, float_precision="round_trip")


#: Parsers of delimited text. The first is under trajscope for large clean files, the last for all others.
RIVALS: dict[str, Callable[[Path], object]] = {
    "pandas C           ": pd.read_csv,
    "pandas C round_trip": exact,
    "pyarrow            ": lambda p: pc.read_csv(p, read_options=pc.ReadOptions(use_threads=False)),
}


def lines(path: Path) -> None:
    """The pure Python way."""
    with path.open() as stream:
        _ = [json.loads(line) for line in stream]


def main() -> None:
    """Print one line a file."""
    with tempfile.TemporaryDirectory() as folder:
        paths = tables(Path(folder))
        for name in ("dense.csv", "sparse.csv"):
            path = paths[name]
            mine = cpu(lambda p=path: ours(p))
            speed = ROWS * COLUMNS / mine / 1e6
            print(f"{name:12s} trajscope {mine:.3f} s ({speed:.1f} M cells/s)")
            for rival, parse in RIVALS.items():
                theirs = cpu(lambda p=path, f=parse: f(p))
                print(f"{'':12s} {rival} {theirs:.3f} s  ratio {theirs / mine:.2f}")
        path = paths["dense.jsonl"]
        block = pj.ReadOptions(use_threads=False, block_size=path.stat().st_size + 16)
        mine = cpu(lambda: ours(path))
        arrow = cpu(lambda: pj.read_json(path, read_options=block))
        python = cpu(lambda: lines(path), 2)
        print(f"dense.jsonl  trajscope {mine:.3f} s  pyarrow {arrow:.3f} s  ratio {arrow / mine:.2f}")
        print(f"             json.loads {python:.3f} s  ratio {python / mine:.2f}")


if __name__ == "__main__":
    main()
