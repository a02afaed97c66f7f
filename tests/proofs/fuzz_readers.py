"""Damaged logs of every format through every reader: no crash, no hang, no exception outside the tree, bounded memory.

Run: ``python tests/proofs/fuzz_readers.py [--minutes 10 | --seconds-per-reader 20 [--jobs 2] | --rounds 3600]
[--seed 0]``. The corpus is one generated log of each format and, where they are on the machine, small real logs. Each round takes the next log, damages it with the next seed and
asks for the whole contract (`trajscope.testing.check_reader`); then a damaged copy is read by all readers as a scan
would. Exit code 1 if anything was found.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import multiprocessing
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "readers"))

from log_samples import SAMPLES

from trajscope.errors import TrajscopeError
from trajscope.readers import Reader, readers, scan_runs
from trajscope.readers.base import ReaderFailure
from trajscope.testing import check_reader, damaged

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
#: CPU seconds after which a single round counts as a hang (of wall time ten times that) (samples are below `LARGEST` bytes), and the memory it may take.
PATIENCE = 60
LARGEST = 200_000
MEMORY = 2 << 20  # KiB above the start


class Hang(BaseException):
    """Raised by the alarm; no reader can swallow it."""


def _alarm(*_: object) -> None:
    raise Hang


def corpus(folder: Path, per_reader: int = 8) -> list[tuple[Reader, Path]]:
    """Readers with samples, generated and real."""
    by_name = {r.name: r for r in readers()}
    found: list[tuple[Reader, Path]] = []
    for name, make in SAMPLES.items():
        (folder / name).mkdir()
        if name in by_name:
            found.append((by_name[name], make(folder / name)))
    seen: collections.Counter[str] = collections.Counter()
    for run in scan_runs(SHARED) if SHARED.is_dir() else ():
        path, reader = Path(run.path), by_name[run.format]
        if reader.directory or type(reader).trees is not Reader.trees:  # take the place from which the run is found
            above = path.parents[:4]
            path = next((p for p in above if next(iter(scan_runs(p, format=reader.name)), None)), path)
        size = sum(f.stat().st_size for f in path.rglob("*")) if path.is_dir() else path.stat().st_size
        if seen[run.format] < per_reader and size < LARGEST and (reader, path) not in found:
            seen[run.format] += 1
            found.append((reader, path))
    return found


def scan_damaged(sample: Path, scratch: Path, seed: int) -> None:
    """A damaged copy through the front door, all readers at hand."""
    rng = np.random.default_rng(seed)
    place = scratch / sample.name
    if sample.is_dir():
        shutil.copytree(sample, place, copy_function=shutil.copyfile)
    else:
        place.write_bytes(sample.read_bytes())
    files = sorted(f for f in place.rglob("*") if f.is_file()) if place.is_dir() else [place]
    for _ in range(int(rng.integers(1, 4))):
        victim = files[int(rng.integers(len(files)))]
        victim.write_bytes(damaged(victim.read_bytes(), rng))
    for run in scan_runs(scratch):
        try:
            _ = run.data
        except ReaderFailure as failure:
            raise failure.__cause__ or failure from None
        except TrajscopeError:
            continue


def fuzz(name: str, seconds: float, rounds: int | None, seed: int) -> tuple[collections.Counter[str], dict[str, str]]:
    """Fuzz one reader (or, without a name, all in turn) for a time or for a number of rounds.

    Returns
    -------
    rounds : Counter
        Rounds of each reader.
    findings : dict of str to str
        What was found first where.
    """
    signal.signal(signal.SIGALRM, _alarm)
    signal.signal(signal.SIGPROF, _alarm)
    warnings.simplefilter("error")
    done: collections.Counter[str] = collections.Counter()
    findings: dict[str, str] = {}
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        logs = [found for found in corpus(Path(folder)) if name in ("", found[0].name)]
        while done.total() < rounds if rounds is not None else time.monotonic() < end:
            reader, sample = logs[seed % len(logs)]
            signal.setitimer(signal.ITIMER_PROF, PATIENCE)
            signal.alarm(10 * PATIENCE)
            problem = _round(reader, sample, seed)
            signal.alarm(0)
            signal.setitimer(signal.ITIMER_PROF, 0)
            if problem and problem not in findings:
                findings[problem] = f"seed {seed}, {sample}"
                print(f"seed {seed}: {problem} ({sample})", flush=True)
            done[reader.name] += 1
            seed += 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin
    if grown > MEMORY:
        findings[f"{name or 'all readers'}: memory grew by {grown >> 10} MiB"] = ""
    return done, findings


def _round(reader: Reader, sample: Path, seed: int) -> str:
    """The contract and a scan over damaged copies; what went wrong, empty where nothing did."""
    try:
        check_reader(reader, sample, n_damaged=3, seed=seed)
        with tempfile.TemporaryDirectory() as scratch:
            scan_damaged(sample, Path(scratch), seed)
    except Hang:
        return f"{reader.name}: hang"
    except Exception as error:
        trace = error.__cause__.__traceback__ if error.__cause__ else error.__traceback__
        where = traceback.extract_tb(trace)[-1]
        text = f"{reader.name}: {type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {error}"
        return re.sub(r"/\w+/tmp\w+", "TMP", text[:300])
    return ""


def main() -> int:
    """Fuzz until the time is over; print each finding once and a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=10, help="so long over all readers in turn")
    options.add_argument("--seconds-per-reader", type=float, help="instead: so long for each reader")
    options.add_argument("--rounds", type=int, help="instead: this many rounds, the same rounds every time")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--jobs", type=int, default=1, help="processes, with --seconds-per-reader")
    chosen = options.parse_args()
    if chosen.seconds_per_reader is not None:
        names = sorted(r.name for r in readers())
        seconds = chosen.seconds_per_reader
    else:
        names, seconds = [""], 60 * chosen.minutes
    rounds: collections.Counter[str] = collections.Counter()
    findings: dict[str, str] = {}
    with concurrent.futures.ProcessPoolExecutor(chosen.jobs, multiprocessing.get_context("spawn")) as pool:
        sessions = [pool.submit(fuzz, name, seconds, chosen.rounds, chosen.seed) for name in names]
        for session in concurrent.futures.as_completed(sessions):
            done, found = session.result()
            rounds.update(done)
            findings.update(found)
    for name, count in sorted(rounds.items()):
        print(f"{name:15}{count:6} rounds, {5 * count} readings")
    for problem, where in findings.items():
        print(f"FOUND {problem} ({where})")
    print(f"{rounds.total()} rounds, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
