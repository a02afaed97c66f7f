"""Record one HalfCheetah run after another, each saved as it ends; trunks are kept and never trained twice."""

from __future__ import annotations

import copy
import pickle
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from recorder.arms import CONTROL
from recorder.halfcheetah import learned
from recorder.halfcheetah_plans import ALGORITHMS, EVAL_EVERY, LEARNED, PACE, config, jobs, moment, perturbation, run_id
from recorder.monitor import Log
from recorder.perturb import Event
from recorder.store import assemble, read_meta, run_table, write_runs

Roles = dict[str, str]
THINNED_FROM, KEPT_BEFORE, THINNED_TO = 5000, 3000, 500  # environment steps


@dataclass
class Trunk:
    """Moment -> pickled trainer and log there; and whether the last moment came by learning, not by the limit."""

    states: dict[str, bytes] = field(default_factory=dict)
    has_learned: bool = False

    def at(self, when: str) -> tuple[Any, Log]:
        """A copy of its own of the whole state and of the log."""
        trainer, log = pickle.loads(self.states[when])  # noqa: S301 - made above
        return trainer, log


def train_trunk(algorithm: str, seed: int) -> Trunk:
    """Train until it has learned, keeping the state at each moment at which an arm may leave."""
    pace, trunk = PACE[algorithm], Trunk()
    trainer, log = ALGORITHMS[algorithm](seed), Log()
    at = {step: when for when, step in pace.moments().items()}
    while True:
        trainer.advance(log, trainer.step + EVAL_EVERY[algorithm])
        if trainer.step in at:
            trunk.states[at[trainer.step]] = pickle.dumps((trainer, log))
        trunk.has_learned = learned(log.values["eval/return"], log.values["eval/return_sd"])
        if trainer.step >= pace.most or (trainer.step >= pace.least and trunk.has_learned):
            trunk.states[LEARNED] = pickle.dumps((trainer, log))
            return trunk


def record_arm(algorithm: str, seed: int, arm: str, trunk: Trunk, tail: int | None = None) -> tuple[Log, Any, int]:
    """Leave the trunk with an arm; its log, its trainer at the end and the step at which it left."""
    pace = PACE[algorithm]
    trainer, log = trunk.at(moment(arm))
    log, start, event = copy.deepcopy(log), trainer.step, None
    p = perturbation(algorithm, arm)
    if p is not None:
        event = Event(p, start // pace.unit, np.random.default_rng([seed, crc32(arm.encode())]))
    trainer.advance(log, start + (pace.tail if tail is None else tail), event)
    return log, trainer, start


def record_all(parts: Path, folder: Path, made_with: dict[str, str], roles: Roles) -> None:
    """Every run that is not there yet, most wanted first; a seed that is whole in ``folder`` is left alone."""
    parts.mkdir(parents=True, exist_ok=True)
    wanted = list(jobs())
    whole = Counter((algorithm, f"s{seed:03d}") for algorithm, seed, _ in wanted)
    have = Counter((a, _seed(run)) for a in ALGORITHMS for run in _runs(folder / f"{a}.parquet"))
    for done, (algorithm, seed, arm) in enumerate(wanted, 1):
        key = (algorithm, f"s{seed:03d}")
        if have[key] < whole[key] and not list(parts.glob(f"*-{algorithm}-s{seed:03d}-{arm}.parquet")):
            trunk = _trunk(parts, algorithm, seed)
            log, trainer, start = record_arm(algorithm, seed, arm, trunk)
            run = run_id(algorithm, trainer.width, seed, arm)
            configs = {run: config(algorithm, trainer, seed, arm, start, trunk.has_learned)}
            write_runs(parts / f"{run}.parquet", [(run, run_table(run, log))], configs, made_with, roles)
        print(f"{done} of {len(wanted)}: {algorithm} seed {seed} {arm}", file=sys.stderr, flush=True)


def _trunk(parts: Path, algorithm: str, seed: int) -> Trunk:
    path = parts / f"trunk-{algorithm}-{seed:03d}.pickle"
    if path.exists():
        found: Trunk = pickle.loads(path.read_bytes())  # noqa: S301 - made below
        return found
    trunk = train_trunk(algorithm, seed)
    partial = path.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(trunk))
    partial.replace(path)
    return trunk


def thin(table: pa.Table, algorithm: str, learned_at: int) -> pa.Table:
    """Of SAC's and TD3's trunk between step 5,000 and 3,000 before it is left, keep every fifth row of training.

    By the step alone, so that twins stay identical. Evaluations and episode returns are kept.
    """
    if algorithm == "ppo":
        return table
    step, channel = table["step"].to_numpy(), np.array(table["channel"].to_pylist(), dtype=str)
    between = (step > THINNED_FROM) & (step < learned_at - KEPT_BEFORE) & (step % THINNED_TO != 0)
    return table.filter(pa.array(~(between & np.char.startswith(channel, "train/"))))


def collect(parts: Path, folder: Path) -> list[Path]:
    """Join the runs that are there into one file an algorithm, thinned; an arm without its control waits.

    What ``folder`` holds already stays, except that a seed is taken as a whole from where more of it is: another
    machine rounds differently, and twins must be of one.
    """
    written = []
    for algorithm in ALGORITHMS:
        path = folder / f"{algorithm}.parquet"
        found = sorted(parts.glob(f"halfcheetah-*-{algorithm}-s*.parquet"))
        at = {_seed(p.stem): learned_at(read_meta(p), algorithm) for p in found if p.stem.endswith(f"-{CONTROL}")}
        have, new = Counter(map(_seed, _runs(path))), Counter(_seed(p.stem) for p in found)
        fresh = {seed for seed in at if new[seed] > have[seed]}

        def chosen(
            part: Path, run: str, table: pa.Table, *, path: Path = path, a: str = algorithm,
            at: dict[str, int] = at, fresh: set[str] = fresh,
        ) -> pa.Table | None:  # fmt: skip
            if part == path:
                return None if _seed(run) in fresh else table
            return thin(table, a, at[_seed(run)])

        if fresh:
            mine = [p for p in found if _seed(p.stem) in fresh]
            assemble([*mine, *([path] if path.exists() else [])], path, chosen)
            written.append(path)
    return written


def _runs(path: Path) -> list[str]:
    """Runs that a file of the data holds; none where it is not there."""
    return list(read_meta(path)["runs"]) if path.exists() else []


def learned_at(meta: dict[str, Any], algorithm: str) -> int:
    """Step at which the arms left the trunk, from the configuration of a control."""
    (entry,) = (e for run, e in meta["runs"].items() if run.endswith(f"-{CONTROL}"))
    return int(entry["config"]["steps"]) - PACE[algorithm].tail


def _seed(run: str) -> str:
    return run.split("-")[3]
