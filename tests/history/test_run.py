"""Run and Channel: lazy content, roles, groups, and errors that name what was meant."""

from __future__ import annotations

import numpy as np
import pytest

from trajscope.errors import InputError, ReadError
from trajscope.history import (
    Channel,
    Problem,
    Run,
    RunData,
    Segment,
    Series,
    Source,
    align,
    assemble,
    named_channel,
    value_counts,
)


def small(name: str = "r") -> Run:
    channels = {
        "train/loss": named_channel(
            "train/loss", np.arange(5), np.array([3.0, np.nan, np.inf, -np.inf, 1.0]), n_missing=2
        ),
        "loss": Channel("loss", np.arange(3), np.ones(3), role="loss", role_confidence=0.5),
        "grad_norm": named_channel("grad_norm", np.array([0, 4]), np.array([1.0, 2.0])),
    }
    return Run(name, RunData(channels, {"lr": 0.1}, {"best": 1.0}, (Segment(0, "start", 0, 0.0, 4.0),)), format="csv")


class TestChannel:
    def test_counts_keep_four_kinds_apart(self) -> None:
        assert small().channels["train/loss"].counts == {"finite": 2, "nan": 1, "posinf": 1, "neginf": 1, "missing": 2}
        assert value_counts(np.array([1, 2])) == {"finite": 2, "nan": 0, "posinf": 0, "neginf": 0}
        assert value_counts(np.zeros(0)) == {"finite": 0, "nan": 0, "posinf": 0, "neginf": 0}

    @pytest.mark.parametrize(
        ("steps", "stride"), [([0, 10, 20, 21], 10.0), ([5], None), ([], None), ([1, 1, 1], None), ([0, 5, 0, 5], 5.0)]
    )
    def test_stride(self, steps: list[int], stride: float | None) -> None:
        found = Channel("x", np.array(steps, dtype=np.int64), np.zeros(len(steps))).stride
        assert np.isnan(found) if stride is None else found == stride

    @pytest.mark.parametrize("field", ["values", "wall_time", "segment"])
    def test_arrays_of_another_length_are_refused(self, field: str) -> None:
        arrays = {"values": np.zeros(3), field: np.zeros(2)}
        with pytest.raises(InputError, match=rf"channel 'x': {field} has shape \(2,\), expected \(3,\)"):
            Channel("x", np.arange(3), **arrays)

    def test_take(self) -> None:
        c = Channel("x", np.arange(4), np.arange(4.0), wall_time=np.arange(4.0) + 9, n_missing=3)
        part = c.take(c.steps > 1)
        assert part.steps.tolist() == [2, 3]
        assert part.wall_time is not None
        assert part.wall_time.tolist() == [11, 12]
        assert part.segment.tolist() == [0, 0]
        assert c.take(np.array([3, 0])).values.tolist() == [3, 0]
        assert len(c) == 4


class TestRun:
    def test_content_is_read_once_and_only_when_touched(self) -> None:
        calls = []

        def load() -> RunData:
            calls.append(1)
            return small().data

        run = Run("lazy", load, format="csv")
        assert "not read yet" in repr(run)
        assert not calls
        assert run.n_points == 10
        assert run.config == {"lr": 0.1}
        assert calls == [1]
        assert repr(run) == "<Run 'lazy': csv, 3 channels, 10 points>"

    def test_an_error_of_the_reader_reaches_whoever_touches(self) -> None:
        def load() -> RunData:
            raise ReadError("the disk is gone")

        run = Run("lazy", load)
        for _ in range(2):
            with pytest.raises(ReadError, match="the disk is gone"):
                _ = run.channels

    def test_an_unknown_channel_names_the_nearest(self) -> None:
        run = small()
        with pytest.raises(KeyError, match=r"run 'r' has no channel 'grad_nrm'. Did you mean 'grad_norm'"):
            run.channels["grad_nrm"]
        with pytest.raises(KeyError, match="Valid names: 'grad_norm', 'loss', 'train/loss'"):
            run.channels["zzz"]
        assert "loss" in run.channels
        assert "zzz" not in run.channels
        assert run.channels.get("zzz") is None

    def test_content_cannot_be_changed_from_outside(self) -> None:
        run = small()
        with pytest.raises(TypeError):
            run.config["lr"] = 1  # type: ignore[index]
        with pytest.raises(TypeError):
            run.channels["new"] = run.channels["loss"]  # type: ignore[index]

    def test_roles_by_confidence(self) -> None:
        assert [c.name for c in small().by_role("loss")] == ["train/loss", "loss"]
        assert small().by_role("entropy") == []

    def test_with_roles(self) -> None:
        run = small()
        other = run.with_roles({"loss": "val_loss"})
        assert (other.channels["loss"].role, other.channels["loss"].role_confidence) == ("val_loss", 1.0)
        assert run.channels["loss"].role == "loss"
        assert other.id == "r"
        with pytest.raises(InputError, match=r"no channel 'los' to give a role. Did you mean 'loss'"):
            run.with_roles({"los": "loss"})

    def test_replace(self) -> None:
        run = small()
        other = run.replace(id="s", config={"lr": 1})
        assert (other.id, other.config, run.config) == ("s", {"lr": 1}, {"lr": 0.1})
        assert other.format == "csv"

    def test_sampled(self) -> None:
        assert not small().sampled
        assert Run("r", RunData({"x": Channel("x", np.arange(1), np.ones(1), sampled=True)})).sampled

    def test_to_frame(self) -> None:
        frame = small().to_frame()
        assert frame.columns.tolist() == ["segment", "step", "wall_time", "channel", "value"]
        assert len(frame) == 10
        assert frame["channel"].value_counts().to_dict() == {"train/loss": 5, "loss": 3, "grad_norm": 2}
        assert Run("r", RunData()).to_frame().columns.tolist() == frame.columns.tolist()


class TestSplit:
    def test_a_run_of_one_group_is_itself(self) -> None:
        run = small()
        assert run.split() == [run]

    def test_each_restart_is_a_run(self) -> None:
        files = [
            Source("a", {"x": Series(np.arange(5), np.zeros(5)), "only a": Series(np.arange(2), np.zeros(2))}),
            Source("b", {"x": Series(np.arange(3), np.ones(3))}),
            Source("c", {"x": Series(np.arange(2, 6), np.full(4, 2.0))}),
        ]
        run = Run("r", assemble(files))
        first, second = run.split()
        assert (first.id, second.id) == ("r#1", "r#2")
        assert first.channels["x"].values.tolist() == [0] * 5
        assert list(second.channels) == ["x"]
        assert second.channels["x"].values.tolist() == [1, 1, 2, 2, 2, 2]
        assert second.superseded["x"].steps.tolist() == [2]
        assert list(first.superseded) == []
        assert [s.kind for s in second.segments] == ["restart", "supersedes"]
        assert first.n_points + second.n_points == run.n_points

    def test_the_parts_can_be_aligned(self) -> None:
        files = [Source(f, {"x": Series(np.arange(4), np.arange(4.0) + k)}) for k, f in enumerate("ab")]
        files.append(Source("c", {"x": Series(np.arange(2, 6), np.full(4, 9.0))}))
        for run, values in zip(Run("r", assemble(files)).split(), ([0, 1, 2, 3], [1, 2, 9, 9, 9, 9]), strict=True):
            trajectory = align(run)
            assert trajectory.steps.tolist() == list(range(len(values)))
            assert trajectory.values[:, 0].tolist() == values

    def test_a_part_can_be_split_no_further(self) -> None:
        files = [Source(f, {"x": Series(np.arange(4), np.arange(4.0))}) for f in "abc"]
        parts = Run("r", assemble(files)).split()
        assert len(parts) == 3
        assert [len(p.split()) for p in parts] == [1, 1, 1]


class TestProblem:
    def test_it_says_where(self) -> None:
        assert str(Problem("c", "info", "Cut", "f", "byte 3")) == "Cut (f, byte 3)"
        assert str(Problem("c", "info", "Cut")) == "Cut"

    def test_an_unknown_severity(self) -> None:
        with pytest.raises(InputError, match=r"'warn' is unknown. Did you mean 'warning'"):
            Problem("c", "warn", "Cut")
