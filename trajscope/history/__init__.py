"""Runs, channels and trajectories: what was logged, and on request one matrix of it."""

from trajscope.history.assemble import RESUME_POLICIES, Series, Source, assemble
from trajscope.history.parquet import parquet_run_ids, read_parquet_run, write_runs
from trajscope.history.roles import ROLES, guess_role
from trajscope.history.run import Channel, Problem, Run, RunData, Segment, named_channel, value_counts
from trajscope.history.trajectory import CODES, Trajectory, align

__all__ = [
    "CODES",
    "RESUME_POLICIES",
    "ROLES",
    "Channel",
    "Problem",
    "Run",
    "RunData",
    "Segment",
    "Series",
    "Source",
    "Trajectory",
    "align",
    "assemble",
    "guess_role",
    "named_channel",
    "parquet_run_ids",
    "read_parquet_run",
    "value_counts",
    "write_runs",
]
