"""Alignment against a slow loop over rows and channels, and the rules of the mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajscope.errors import InputError
from trajscope.history import CODES, Channel, Run, RunData, Segment, Series, Source, Trajectory, align, assemble


def run_of(channels: dict[str, Any], segments: tuple[Segment, ...] = (), name: str = "r") -> Run:
    made = {
        n: c if isinstance(c, Channel) else Channel(n, np.asarray(c[0]), np.asarray(c[1])) for n, c in channels.items()
    }
    return Run(name, RunData(made, segments=segments))


def code_of(value: float) -> int:
    if np.isnan(value):
        return CODES["nan"]
    if np.isinf(value):
        return CODES["posinf" if value > 0 else "neginf"]
    return CODES["finite"]


def slow(run: Run) -> tuple[np.ndarray, ...]:
    """A row for each (group, step); per cell the logged value, else the last one of its channel if it may be held."""
    group_of = [s.group for s in run.segments] or [0]
    channels = [c for c in run.channels.values() if len(c)]
    rows = sorted(
        {(group_of[g], s) for c in channels for s, g in zip(c.steps.tolist(), c.segment.tolist(), strict=True)}
    )
    values = np.full((len(rows), len(channels)), np.nan)
    codes = np.full((len(rows), len(channels)), CODES["not logged"])
    segments = np.zeros(len(rows), dtype=int)
    newest = {}
    for i, (group, step) in enumerate(rows):
        here = [
            int(g)
            for c in channels
            for s, g in zip(c.steps, c.segment, strict=True)
            if s == step and group_of[g] == group
        ]
        newest[group] = max([newest.get(group, -1), *here])
        segments[i] = newest[group]
    for k, channel in enumerate(channels):
        logged = {
            (group_of[g], s): (v, g)
            for s, v, g in zip(channel.steps.tolist(), channel.values.tolist(), channel.segment.tolist(), strict=True)
        }
        for i, (group, step) in enumerate(rows):
            if (group, step) in logged:
                values[i, k] = logged[group, step][0]
                codes[i, k] = code_of(values[i, k])
                continue
            before = [s for g, s in logged if g == group and s < step]
            if before:
                value, segment = logged[group, max(before)]
                if segment == segments[i] and np.isfinite(value):
                    values[i, k] = value
    return values, codes, np.array([s for _, s in rows]), segments


def same_as_slow(run: Run) -> Trajectory:
    fast = align(run)
    values, codes, steps, segments = slow(run)
    np.testing.assert_array_equal(fast.steps, steps)
    np.testing.assert_array_equal(fast.values, values)
    np.testing.assert_array_equal(fast.codes, codes)
    np.testing.assert_array_equal(fast.mask, codes != CODES["not logged"])
    np.testing.assert_array_equal(fast.segment, segments)
    return fast


VALUES = st.sampled_from([0.0, 1.0, -2.5, np.nan, np.inf, -np.inf, 7.0, 8.0])


@st.composite
def runs(draw: Any) -> Run:
    files = []
    for i in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, 20))
        channels = {}
        for name in draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True)):
            steps = sorted(draw(st.sets(st.integers(begin, begin + 25), max_size=12)))
            values = draw(st.lists(VALUES, min_size=len(steps), max_size=len(steps)))
            channels[name] = Series(np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64))
        files.append(Source(f"f{i}", channels))
    return Run("r", assemble(files, resume=draw(st.sampled_from(["auto", "segments", "supersede", "offset"]))))


@settings(max_examples=200, deadline=None)
@given(runs())
def test_align_equals_the_slow_loop(run: Run) -> None:
    same_as_slow(run)


def test_a_held_value_is_shown_and_never_observed() -> None:
    t = same_as_slow(run_of({"loss": (range(40), np.arange(40.0)), "val": ([0, 10, 20, 30], [5.0, 6.0, 7.0, 8.0])}))
    val = t.names.index("val")
    assert t.values[9, val] == 5.0
    assert t.mask[:, val].sum() == 4
    assert np.isfinite(t.observed[:, val]).sum() == 4
    assert t.stride == (1.0, 10.0)


def test_a_value_that_is_not_finite_is_never_held() -> None:
    t = same_as_slow(run_of({"x": ([0, 2, 4], [1.0, np.nan, np.inf]), "y": (range(6), np.zeros(6))}))
    np.testing.assert_array_equal(t.values[:, 0], [1, 1, np.nan, np.nan, np.inf, np.nan])
    assert t.codes[:, 0].tolist() == [0, 4, 1, 4, 2, 4]
    assert t.mask[:, 0].tolist() == [True, False, True, False, True, False]
    np.testing.assert_array_equal(t.observed[:, 0], [1, np.nan, np.nan, np.nan, np.nan, np.nan])


def test_nothing_is_held_over_a_resume() -> None:
    first = Source(
        "a", {"x": Series(np.arange(10), np.zeros(10)), "val": Series(np.array([0, 8]), np.array([1.0, 2.0]))}
    )
    second = Source("b", {"x": Series(np.arange(10, 20), np.ones(10)), "val": Series(np.array([15]), np.array([3.0]))})
    t = same_as_slow(Run("r", assemble([first, second])))
    assert t.values[9, 1] == 2.0
    assert np.isnan(t.values[10:15, 1]).all()
    assert t.values[19, 1] == 3.0
    assert t.segment.tolist() == [0] * 10 + [1] * 10


def test_groups_stand_one_behind_the_other() -> None:
    data = assemble(
        [Source("a", {"x": Series(np.arange(5), np.zeros(5))}), Source("b", {"x": Series(np.arange(3), np.ones(3))})]
    )
    t = same_as_slow(Run("r", data))
    assert t.steps.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert t.segment.tolist() == [0] * 5 + [1] * 3


def test_a_chosen_order_of_channels_and_an_empty_one() -> None:
    run = run_of({"a": (range(3), range(3)), "none": ([], []), "b": (range(2), range(2))})
    assert align(run).names == ("a", "b")
    t = align(run, ["b", "none", "a"])
    assert t.names == ("b", "none", "a")
    assert np.isnan(t.values[:, 1]).all()
    assert not t.mask[:, 1].any()
    assert np.isnan(t.stride[1])


def test_roles_names_and_run_are_carried() -> None:
    loss = Channel("loss", np.arange(2), np.zeros(2), role="loss")
    t = align(run_of({"loss": loss}, name="run/7"))
    assert (t.roles, t.names, t.run, t.x) == (("loss",), ("loss",), "run/7", "step")


def test_steps_stay_exact() -> None:
    big = 2**62
    t = align(run_of({"a": ([big, big + 1], [1.0, 2.0]), "b": ([big + 1], [3.0])}))
    assert t.steps.dtype == np.int64
    assert t.steps.tolist() == [big, big + 1]
    assert t.mask.tolist() == [[True, False], [True, True]]


def test_fractional_and_whole_steps_together() -> None:
    t = align(run_of({"a": ([0.5, 1.5], [1.0, 2.0]), "b": ([0, 1], [3, 4])}))
    assert t.steps.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert t.mask.tolist() == [[False, True], [True, False], [False, True], [True, False]]


def test_steps_that_repeat_show_the_last_write() -> None:
    files = [Source("a", {"x": Series(np.array([0, 1, 1, 2]), np.array([0.0, 1.0, 9.0, 2.0]))})]
    t = align(Run("r", assemble(files, resume="keep-all")))
    assert t.steps.tolist() == [0, 1, 2]
    assert t.values[:, 0].tolist() == [0, 9, 2]


class TestAxes:
    def run(self) -> Run:
        step = np.arange(6)
        wall = np.array([10.0, 11, 12, 13, 14, 15])
        return run_of(
            {
                "loss": Channel("loss", step, np.arange(6.0), wall_time=wall),
                "tokens": ([1, 3, 5], [100, 300, 500]),
                "val": Channel("val", np.array([2, 4]), np.array([5.0, 6.0]), wall_time=np.array([12.5, 14.5])),
            }
        )

    def test_tokens_label_the_rows(self) -> None:
        t = align(self.run(), ["loss", "val"], x="tokens")
        assert t.x == "tokens"
        assert t.steps.tolist() == [100, 100, 300, 300, 500]
        assert t.values[:, 0].tolist() == [1, 2, 3, 4, 5]
        np.testing.assert_array_equal(t.values[:, 1], [np.nan, 5, 5, 6, 6])

    def test_wall_time_is_that_of_the_last_logger(self) -> None:
        t = align(self.run(), ["loss", "val"], x="wall_time")
        assert t.steps.tolist() == [10, 11, 12.5, 13, 14.5, 15]

    def test_rows_at_which_the_axis_goes_back_are_dropped(self) -> None:
        run = run_of({"loss": (range(5), range(5)), "samples": (range(5), [0, 10, 5, 20, np.nan])})
        t = align(run, ["loss"], x="samples")
        assert t.steps.tolist() == [0, 10, 20]
        assert t.values[:, 0].tolist() == [0, 1, 3]

    def test_an_axis_that_does_not_exist(self) -> None:
        with pytest.raises(InputError, match=r"no channel 'token' for the x axis. Did you mean 'tokens'"):
            align(self.run(), x="token")

    def test_an_axis_that_labels_nothing(self) -> None:
        with pytest.raises(InputError, match="logs no wall_time at any step"):
            align(run_of({"loss": (range(5), range(5))}), x="wall_time")


class TestTrajectory:
    def test_unknown_channels_are_named(self) -> None:
        run = run_of({"loss": (range(3), range(3))})
        with pytest.raises(InputError, match=r"no channel 'los'. Did you mean 'loss'"):
            align(run, ["los"])
        with pytest.raises(InputError, match=r"no channel 'los'. Did you mean 'loss'"):
            align(run).select(["los"])

    def test_select(self) -> None:
        t = align(run_of({"a": (range(3), [1, np.nan, 3]), "b": ([0, 2], [4.0, 5.0])}))
        s = t.select(["b", "a"])
        assert s.names == ("b", "a")
        np.testing.assert_array_equal(s.values, t.values[:, ::-1])
        np.testing.assert_array_equal(s.codes, t.codes[:, ::-1])
        np.testing.assert_array_equal(s.mask, t.mask[:, ::-1])
        assert s.stride == t.stride[::-1]

    def test_to_frame(self) -> None:
        t = align(run_of({"a": (range(3), range(3)), "b": ([1], [7.0])}))
        frame = t.to_frame()
        assert frame.index.name == "step"
        assert frame.columns.tolist() == ["a", "b"]
        np.testing.assert_array_equal(frame["b"], [np.nan, 7, 7])
        np.testing.assert_array_equal(t.to_frame(held=False)["b"], [np.nan, 7, np.nan])

    def test_a_plain_matrix(self) -> None:
        values = np.array([[1.0, np.nan], [np.inf, 2.0]])
        t = Trajectory(values, np.arange(2), ("a", "b"))
        assert t.mask.tolist() == [[True, False], [True, True]]
        assert t.codes.tolist() == [[0, 4], [2, 0]]
        assert t.roles == ("", "")
        assert len(t) == 2

    @pytest.mark.parametrize(("shape", "names"), [((2, 3), ("a", "b")), ((3, 2), ("a", "b")), ((2,), ("a", "b"))])
    def test_a_shape_that_does_not_fit(self, shape: tuple[int, ...], names: tuple[str, ...]) -> None:
        with pytest.raises(
            InputError, match=r"trajectory values have shape .* expected \(n_steps, n_channels\) = \(2, 2\)"
        ):
            Trajectory(np.zeros(shape), np.arange(2), names)

    def test_a_run_without_points(self, tmp_path: Path) -> None:
        t = align(run_of({"a": ([], [])}))
        assert t.values.shape == (0, 0)
        t.to_parquet(tmp_path / "t.parquet")
        assert Trajectory.from_parquet(tmp_path / "t.parquet").values.shape == (0, 0)

    def test_the_run_is_left_alone(self) -> None:
        steps, values = np.arange(5), np.arange(5.0)
        run = run_of({"a": (steps, values), "b": ([1], [7.0])})
        for c in run.channels.values():
            c.steps.flags.writeable = c.values.flags.writeable = False
        align(run)
        assert values.tolist() == [0, 1, 2, 3, 4]
