"""Assembly of runs: every resume rule on sources made for it, an oracle of dictionaries, and nothing ever lost."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajscope.errors import InputError
from trajscope.history import Channel, Problem, RunData, Series, Source, assemble


def series(steps: Any, offset: float = 0.0, *, clock: float | None = None, rows: Any = None) -> Series:
    steps = np.asarray(steps)
    wall = None if clock is None else clock + np.arange(steps.size, dtype=np.float64)
    return Series(steps, steps.astype(np.float64) + offset, wall, None if rows is None else np.asarray(rows))


def source(name: str, steps: Any, offset: float = 0.0, *, clock: float | None = None, **more: Any) -> Source:
    return Source(name, {"loss": series(steps, offset, clock=clock)}, started=clock, **more)


def codes(data: RunData) -> list[str]:
    return [p.code for p in data.problems]


def problem(data: RunData, code: str) -> Problem:
    [found] = [p for p in data.problems if p.code == code]
    return found


def points(channel: Channel) -> list[tuple[float, float]]:
    return list(zip(channel.steps.tolist(), channel.values.tolist(), strict=True))


class TestTwoFiles:
    def test_a_later_file_that_continues(self) -> None:
        data = assemble([source("a", range(10), clock=0), source("b", range(10, 15), 100.0, clock=1000)])
        assert data.channels["loss"].steps.tolist() == list(range(15))
        assert [s.kind for s in data.segments] == ["start", "continuation"]
        assert data.channels["loss"].segment.tolist() == [0] * 10 + [1] * 5
        assert codes(data) == ["resume"]
        assert not data.superseded

    def test_an_overlap_supersedes_from_its_first_step(self) -> None:
        data = assemble([source("a", range(1000), clock=0), source("b", range(700, 1500), 0.03, clock=1e5)])
        loss = data.channels["loss"]
        assert loss.steps.tolist() == list(range(1500))
        assert loss.values[699:702].tolist() == [699, 700.03, 701.03]
        assert data.superseded["loss"].steps.tolist() == list(range(700, 1000))
        found = problem(data, "resume-supersedes")
        assert (found.count, found.place, found.severity) == (300, "step 700", "warning")
        assert [(s.kind, s.first_step, s.last_step, s.file) for s in data.segments] == [
            ("start", 0, 699, "a"),
            ("supersedes", 700, 1499, "b"),
        ]

    def test_the_start_time_orders_files_not_their_names(self) -> None:
        data = assemble([source("a", range(700, 1500), 0.03, clock=1e5), source("b", range(1000), clock=0)])
        assert [s.file for s in data.segments] == ["b", "a"]
        assert data.channels["loss"].values[700] == 700.03

    def test_an_overlap_supersedes_every_channel(self) -> None:
        first = Source("a", {"loss": series(range(10)), "val": series([0, 4, 8])}, started=0)
        second = Source("b", {"loss": series(range(6, 12), 0.5)}, started=1)
        data = assemble([first, second])
        assert data.channels["val"].steps.tolist() == [0, 4]
        assert data.superseded["val"].steps.tolist() == [8]
        assert problem(data, "resume-supersedes").count == 5

    @pytest.mark.parametrize("begin", [0, -3])
    def test_a_counter_that_restarts_is_never_merged(self, begin: int) -> None:
        data = assemble([source("a", range(600), clock=0), source("b", range(begin, 400), 0.5, clock=1000)])
        assert [s.group for s in data.segments] == [0, 1]
        assert [s.kind for s in data.segments] == ["start", "restart"]
        assert len(data.channels["loss"]) == 600 + 400 - begin
        assert codes(data) == ["counter-restart"]

    def test_a_restart_long_after_is_another_run(self) -> None:
        data = assemble([source("a", range(600), clock=0), source("b", range(600), 0.5, clock=120 * 86400.0)])
        found = problem(data, "unrelated-runs")
        assert "120 days apart" in found.message
        assert [s.group for s in data.segments] == [0, 1]

    def test_offset_goes_on_counting(self) -> None:
        data = assemble(
            [source("a", range(0, 600, 2), clock=0), source("b", range(0, 400, 2), clock=1000)], resume="offset"
        )
        assert data.channels["loss"].steps.tolist() == list(range(0, 1000, 2))
        assert data.channels["loss"].values[300] == 0
        assert "600 was added" in problem(data, "counter-offset").message
        assert {s.group for s in data.segments} == {0}

    def test_segments_keeps_an_overlap_apart(self) -> None:
        data = assemble([source("a", range(10), clock=0), source("b", range(6, 12), clock=1000)], resume="segments")
        assert [s.group for s in data.segments] == [0, 1]
        assert len(data.channels["loss"]) == 16

    def test_keep_all_keeps_all_sorted(self) -> None:
        data = assemble(
            [source("a", range(10), clock=0), source("b", range(6, 12), 0.5, clock=1000)], resume="keep-all"
        )
        steps = data.channels["loss"].steps
        assert steps.tolist() == sorted([*range(10), *range(6, 12)])
        assert data.channels["loss"].values[6:8].tolist() == [6.0, 6.5]

    def test_supersede_holds_for_a_restart_too(self) -> None:
        data = assemble([source("a", range(10), clock=0), source("b", range(4), 0.5, clock=99)], resume="supersede")
        assert points(data.channels["loss"]) == [(s, s + 0.5) for s in range(4)]
        assert len(data.superseded["loss"]) == 10

    def test_behind_an_emptied_piece_the_run_goes_on(self) -> None:
        files = [
            source("a", range(100, 201), clock=0),
            source("b", range(50, 91), clock=900),
            source("c", range(95, 99), clock=990),
        ]
        data = assemble(files, resume="supersede")
        assert [s.kind for s in data.segments] == ["start", "supersedes", "continuation"]
        assert data.channels["loss"].steps.tolist() == [*range(50, 91), *range(95, 99)]

    def test_two_writers_at_the_same_time_are_interleaved(self) -> None:
        even, odd = source("a", range(0, 20, 2), clock=0), source("b", range(1, 20, 2), clock=0.5)
        data = assemble([even, odd])
        assert data.channels["loss"].steps.tolist() == list(range(20))
        assert data.channels["loss"].segment.tolist() == [0, 1] * 10
        assert codes(data) == ["interleaved-writers"]

    def test_interleaved_writers_that_log_the_same_steps(self) -> None:
        data = assemble([source("a", range(10), clock=0), source("b", range(10), 0.5, clock=0.5)])
        assert data.channels["loss"].n_duplicates == 10
        assert data.channels["loss"].values.tolist() == [s + 0.5 for s in range(10)]
        assert problem(data, "interleaved-writers").count == 10

    def test_a_third_file_may_resume_the_resume(self) -> None:
        files = [
            source("a", range(100), clock=0),
            source("b", range(50, 90), 0.1, clock=1e3),
            source("c", range(70, 120), 0.2, clock=2e3),
        ]
        data = assemble(files)
        expected = [*range(50), *(s + 0.1 for s in range(50, 70)), *(s + 0.2 for s in range(70, 120))]
        assert data.channels["loss"].values.tolist() == expected
        assert len(data.superseded["loss"]) == 50 + 20

    def test_steps_beyond_doubles_are_compared_exactly(self) -> None:
        big = 2**62
        data = assemble([source("a", np.array([big - 1, big])), source("b", np.array([big + 1, big + 2]))])
        assert data.channels["loss"].steps.tolist() == [big - 1, big, big + 1, big + 2]
        assert [s.kind for s in data.segments] == ["start", "continuation"]

    def test_fractional_steps(self) -> None:
        data = assemble([source("a", np.arange(0, 2, 0.25), clock=0), source("b", np.arange(1, 3, 0.25), clock=99)])
        np.testing.assert_array_equal(data.channels["loss"].steps, np.arange(0, 3, 0.25))
        assert len(data.superseded["loss"]) == 4


class TestDifferentChannels:
    """An evaluator that logs its own channels beside the trainer contradicts nothing."""

    @pytest.mark.parametrize("clock", [5.0, 1e6, None])
    @pytest.mark.parametrize("begin", [0, 500])
    def test_nothing_is_superseded(self, clock: float | None, begin: int) -> None:
        evaluator = Source("b", {"eval/acc": series(range(begin, 1000, 100), clock=clock)}, started=clock)
        data = assemble([source("a", range(1000), clock=None if clock is None else 0.0), evaluator])
        assert len(data.channels["loss"]) == 1000
        assert data.channels["eval/acc"].steps.tolist() == list(range(begin, 1000, 100))
        assert not data.superseded
        assert codes(data) == []
        assert [s.kind for s in data.segments] == ["start", "interleaved"]


class TestOneWriter:
    def test_duplicates_keep_the_last_write(self) -> None:
        s = Series(np.array([0, 1, 1, 2, 2, 2, 3]), np.array([0, 1, 1, 2, np.nan, 2.5, 3.0]))
        data = assemble([Source("a", {"loss": s})])
        assert points(data.channels["loss"]) == [(0, 0), (1, 1), (2, 2.5), (3, 3)]
        assert data.channels["loss"].n_duplicates == 3
        found = problem(data, "duplicate-steps")
        assert (found.count, found.severity) == (3, "info")
        assert "2 with another value" in found.message

    def test_equal_nans_are_no_conflict(self) -> None:
        s = Series(np.array([0, 0]), np.array([np.nan, np.nan]))
        assert "with the same value" in problem(assemble([Source("a", {"loss": s})]), "duplicate-steps").message

    def test_keep_all_keeps_duplicates(self) -> None:
        s = Series(np.array([0, 1, 1, 2]), np.array([0.0, 1, 9, 2]))
        data = assemble([Source("a", {"loss": s})], resume="keep-all")
        assert points(data.channels["loss"]) == [(0, 0), (1, 1), (1, 9), (2, 2)]
        assert data.channels["loss"].n_duplicates == 0

    @pytest.mark.parametrize("seed", range(5))
    def test_disorder_within_the_tolerance_is_sorted(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        n = 400
        steps = np.argsort(np.arange(n) + rng.uniform(-2.4, 2.4, n))  # nothing moves by more than five rows
        data = assemble([Source("a", {"loss": series(steps)})])
        assert points(data.channels["loss"]) == [(s, s) for s in range(n)]
        assert len(data.segments) == 1
        assert data.problems == ()

    def test_a_rewind_supersedes_within_the_file(self) -> None:
        steps = [*range(100), *range(60, 120)]
        values = np.arange(160.0)
        data = assemble([Source("a", {"loss": Series(np.array(steps), values)})])
        loss = data.channels["loss"]
        assert loss.steps.tolist() == list(range(120))
        assert loss.values.tolist() == [*range(60), *range(100, 160)]
        assert data.superseded["loss"].values.tolist() == list(range(60, 100))
        assert "rewinds at step 60" in problem(data, "resume-supersedes").message

    def test_a_short_rewind_that_repeats_itself_is_seen(self) -> None:
        data = assemble([source("a", [*range(10), *range(6, 15)])])
        assert [s.kind for s in data.segments] == ["start", "supersedes"]

    def test_the_reorder_tolerance_is_a_parameter(self) -> None:
        steps = [0, 1, 2, 3, 4, 5, 6, 20, 21, 22, 7, 23]
        assert len(assemble([source("a", steps)], reorder=10).segments) == 1
        assert len(assemble([source("a", steps)], reorder=2).segments) == 2

    def test_a_counter_that_restarts_in_one_file(self) -> None:
        data = assemble([source("a", [*range(20), *range(20)])])
        assert [s.group for s in data.segments] == [0, 1]
        assert codes(data) == ["counter-restart"]

    def test_a_mark_opens_a_segment(self) -> None:
        s = Source("a", {"loss": series(range(300))}, marks=[200])
        data = assemble([s])
        assert [(g.kind, g.first_step) for g in data.segments] == [("start", 0), ("continuation", 200)]
        assert len(data.channels["loss"]) == 300

    def test_a_mark_before_everything_opens_nothing(self) -> None:
        assert len(assemble([Source("a", {"loss": series(range(30))}, marks=[0])]).segments) == 1

    def test_channels_that_follow_a_rewind_open_no_second_piece(self) -> None:
        steps = [*range(100), *range(50, 150)]
        sparse = [(r, s) for r, s in enumerate(steps) if s % 10 == 0]
        data = assemble(
            [
                Source(
                    "a",
                    {
                        "loss": series(steps, rows=range(200)),
                        "val": series([s for _, s in sparse], rows=[r for r, _ in sparse]),
                    },
                )
            ]
        )
        assert len(data.segments) == 2
        assert data.channels["val"].steps.tolist() == list(range(0, 150, 10))

    def test_a_channel_that_goes_back_later_alone_opens_a_piece(self) -> None:
        early = series([*range(50), *range(30, 60)], rows=range(80))  # goes back at row 50, ends at row 79
        late_steps = [28, *range(40, 100, 4), *range(60, 120, 4)]
        late_rows = [40, *range(85, 100), *range(100, 115)]
        data = assemble([Source("a", {"early": early, "late": series(late_steps, rows=late_rows)})])
        assert len(data.segments) == 3
        assert data.superseded["late"].steps.tolist() == list(range(60, 100, 4))

    def test_missing_cells_are_counted_once(self) -> None:
        s = Series(np.array([*range(100), *range(50, 120)]), np.zeros(170), n_missing=7)
        data = assemble([Source("a", {"loss": s})])
        assert len(data.segments) == 2
        assert data.channels["loss"].n_missing == 7
        assert data.superseded["loss"].n_missing == 0

    def test_a_channel_of_empty_cells_only(self) -> None:
        empty = Series(np.zeros(0, np.int64), np.zeros(0), n_missing=5)
        data = assemble([Source("a", {"loss": series([*range(100), *range(50, 120)]), "val": empty})])
        assert (len(data.channels["val"]), data.channels["val"].n_missing) == (0, 5)

    def test_a_step_that_counts_nothing_is_replaced(self) -> None:
        steps = np.tile(np.arange(3), 3000)
        data = assemble([Source("a", {"loss": Series(steps, np.arange(9000.0))})])
        assert data.channels["loss"].values.tolist() == list(range(9000))
        assert data.channels["loss"].steps.tolist() == list(range(9000))
        assert problem(data, "no-counter").severity == "warning"

    def test_many_rewinds_are_told_in_a_few_lines(self) -> None:
        steps = np.concatenate([np.arange(k * 50, k * 50 + 100) for k in range(40)])
        data = assemble([Source("a", {"loss": series(steps)})])
        assert len(data.segments) == 40
        told = [p for p in data.problems if p.code == "resume-supersedes"]
        assert len(told) == 11
        assert sum(p.count for p in told) == 39 * 50


class TestFacts:
    def test_precision_and_wall_times_stay(self) -> None:
        a = Series(np.arange(3), np.float32([1, 2, 3]), np.array([10.0, 11, 12]))
        b = Series(np.arange(3, 5), np.float32([4, 5]))
        loss = assemble([Source("a", {"loss": a}), Source("b", {"loss": b})]).channels["loss"]
        assert loss.values.dtype == np.float32
        np.testing.assert_array_equal(loss.wall_time, [10, 11, 12, np.nan, np.nan])

    def test_config_summary_sampling_and_provenance(self) -> None:
        a = Source(
            "a", {"loss": series(range(3))}, config={"lr": 1}, summary={"best": 1}, sampled="500 rows", step_name="s"
        )
        b = Source("b", {"val": series(range(3, 5))}, config={"lr": 2, "bs": 8})
        data = assemble([a, b], provenance={"format": "x"})
        assert data.config == {"lr": 2, "bs": 8}
        assert data.summary == {"best": 1}
        assert data.channels["loss"].sampled
        assert not data.channels["val"].sampled
        assert problem(data, "sampled-source").file == "a"
        assert data.provenance["step"] == ["s", "step"]
        assert data.provenance["format"] == "x"
        assert data.provenance["files"] == ["a", "b"]

    def test_nothing_at_all(self) -> None:
        data = assemble([])
        assert (data.channels, data.segments, data.problems) == ({}, (), ())
        assert assemble([Source("a")]).channels == {}

    def test_an_unknown_policy(self) -> None:
        with pytest.raises(InputError, match=r"'superseed' is unknown. Did you mean 'supersede'"):
            assemble([], resume="superseed")

    def test_inputs_are_left_alone(self) -> None:
        s = series([3, 1, 2, 2, *range(100), *range(50, 80)])
        before = (s.steps.copy(), s.values.copy())
        for array in (s.steps, s.values):
            array.flags.writeable = False
        for policy in ("auto", "supersede", "segments", "keep-all", "offset"):
            assemble([Source("a", {"loss": s}), source("b", range(60, 70))], resume=policy)
        np.testing.assert_array_equal(s.steps, before[0])
        np.testing.assert_array_equal(s.values, before[1])


# ---------------------------------------------------------------------------------------------------------------------
# An oracle of dictionaries for sources without disorder: pieces are known beforehand, one value at a time is moved.


def oracle(stretches: list[dict[str, dict[int, float]]]) -> tuple[list[dict[str, dict[int, float]]], Counter[Any]]:
    """Live points of each group and the multiset of dead points, by the rules of the module's docstring."""
    groups: list[dict[str, dict[int, float]]] = []
    dead: Counter[Any] = Counter()
    for stretch in stretches:
        steps = [s for points_ in stretch.values() for s in points_]
        if not steps:
            continue
        live = [s for points_ in groups[-1].values() for s in points_] if groups else []
        if not live or min(steps) <= min(live):
            groups.append({})
        elif min(steps) <= max(live):
            for name, points_ in groups[-1].items():
                for s in [s for s in points_ if s >= min(steps)]:
                    dead[name, s, points_.pop(s)] += 1
        for name, points_ in stretch.items():
            groups[-1].setdefault(name, {}).update(points_)
    return groups, dead


@st.composite
def histories(draw: Any) -> list[dict[str, dict[int, float]]]:
    """Stretches, each strictly increasing in every channel, that go back far enough to be told from disorder."""
    value = itertools.count()
    stretches = []
    for _ in range(draw(st.integers(1, 5))):
        begin, length = draw(st.integers(0, 60)), draw(st.integers(13, 40))
        stride = draw(st.integers(1, 4))
        stretch = {"loss": {s: float(next(value)) for s in range(begin, begin + length)}}
        stretch["val"] = {s: float(next(value)) for s in range(begin, begin + length, stride)}
        stretches.append(stretch)
    return stretches


def check(data: RunData, stretches: list[dict[str, dict[int, float]]]) -> None:
    groups, dead = oracle(stretches)
    group_of = [s.group for s in data.segments]
    for name in ("loss", "val"):
        channel = data.channels[name]
        got: dict[int, dict[float, float]] = {}
        for step, value, segment in zip(channel.steps, channel.values, channel.segment, strict=True):
            got.setdefault(group_of[segment], {})[step] = value
        assert list(got.values()) == [g[name] for g in groups if g.get(name)]
        for steps in got.values():
            assert list(steps) == sorted(steps)
    found = Counter((n, s, v) for n, c in data.superseded.items() for s, v in points(c))
    assert found == dead


@settings(max_examples=150, deadline=None)
@given(histories())
def test_files_without_clocks_follow_the_oracle(stretches: list[dict[str, dict[int, float]]]) -> None:
    files = [
        Source(f"f{i}", {n: Series(np.array(list(p)), np.array(list(p.values()))) for n, p in stretch.items()})
        for i, stretch in enumerate(stretches)
    ]
    check(assemble(files), stretches)


@settings(max_examples=150, deadline=None)
@given(histories())
def test_marked_stretches_of_one_file_follow_the_oracle(stretches: list[dict[str, dict[int, float]]]) -> None:
    logged: dict[str, list[tuple[int, float, int]]] = {"loss": [], "val": []}
    marks, row = [], 0
    for stretch in stretches:
        marks.append(row)
        for step in stretch["loss"]:
            for name in ("loss", "val"):
                if step in stretch[name]:
                    logged[name].append((step, stretch[name][step], row))
            row += 1
    columns = {n: [np.array(c) for c in zip(*rows, strict=True)] for n, rows in logged.items()}
    one = Source("f", {n: Series(s, v, None, r) for n, (s, v, r) in columns.items()}, marks=marks)
    check(assemble([one]), stretches)


@st.composite
def anything(draw: Any) -> list[Source]:
    """Sources with any disorder, duplicates, rewinds, clocks and marks."""
    files = []
    for i in range(draw(st.integers(1, 3))):
        channels = {}
        for name in draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, unique=True)):
            steps = np.array(draw(st.lists(st.integers(-5, 40), max_size=60)), dtype=np.int64)
            if draw(st.booleans()):
                steps = np.sort(steps)
            clock = None
            if draw(st.booleans()):
                clock = draw(st.sampled_from([0.0, 30.0, 1e6])) + np.arange(steps.size, dtype=np.float64)
            channels[name] = Series(steps, i * 1e6 + np.arange(steps.size, dtype=np.float64), clock)
        marks = draw(st.lists(st.integers(0, 60), max_size=2))
        files.append(Source(f"f{i}", channels, draw(st.none() | st.floats(0, 1e6)), marks))
    return files


@settings(max_examples=300, deadline=None)
@given(anything(), st.sampled_from(["auto", "supersede", "segments", "keep-all", "offset"]))
def test_no_point_is_ever_lost(files: list[Source], policy: str) -> None:
    data = assemble(files, resume=policy)
    written: Counter[str] = Counter()
    for f in files:
        for name, s in f.series.items():
            written[name] += s.steps.size
    group_of = np.array([s.group for s in data.segments] or [0])
    for name, count in written.items():
        channel = data.channels.get(name)
        live = 0 if channel is None else len(channel)
        dead = len(data.superseded[name]) if name in data.superseded else 0
        dropped = 0 if channel is None else channel.n_duplicates
        assert live + dead + dropped == count
        if policy == "keep-all":
            assert (dead, dropped) == (0, 0)
        if channel is None:
            continue
        values = [v for c in (channel, data.superseded.get(name)) if c is not None for v in c.values.tolist()]
        assert len(set(values)) == len(values)
        for group in np.unique(group_of[channel.segment]) if live else []:
            steps = channel.steps[group_of[channel.segment] == group]
            if policy != "keep-all":
                assert np.all(np.diff(steps) > 0)
            else:
                assert np.all(np.diff(steps) >= 0)


@settings(max_examples=60, deadline=None)
@given(anything())
def test_the_last_write_of_a_live_step_wins(files: list[Source]) -> None:
    for f in files:
        f.started, f.marks = None, ()
    only = files[:1]
    data = assemble(only)
    if len(data.segments) > 1:
        return
    for name, s in only[0].series.items():
        last = dict(zip(s.steps.tolist(), s.values.tolist(), strict=True))
        if last:
            assert dict(points(data.channels[name])) == last
