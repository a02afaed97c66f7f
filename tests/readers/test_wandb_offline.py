"""W&B run files: values, steps, damage at every byte, sessions of one run, and W&B's own file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wandb_files import exit_record, history, item, log, message, number, plain

from trajscope.errors import NoLogsFound
from trajscope.history import Run
from trajscope.readers import ReadOptions, read_run, scan_runs
from trajscope.readers._wandb_framing import BLOCK, MAGIC
from trajscope.readers.wandb_offline import READER

DATA = Path(__file__).parent / "data" / "trackers" / "wandb"


def read(tmp_path: Path, content: bytes, **options: Any) -> Run:
    path = tmp_path / "run-abc.wandb"
    path.write_bytes(content)
    return read_run(path, **options)


def codes(run: Run) -> set[str]:
    return {p.code for p in run.problems}


class TestValues:
    def test_rows_become_series(self, tmp_path: Path) -> None:
        run = read(tmp_path, log([*plain(100), exit_record()]))
        loss = run.channels["loss"]
        assert loss.steps.dtype == np.int64
        assert loss.steps.tolist() == list(range(100))
        assert loss.values.tolist() == [s / 10 for s in range(100)]
        assert loss.wall_time is not None
        assert loss.wall_time.tolist() == [1.7e9 + s for s in range(100)]
        assert list(run.channels) == ["loss"]
        assert run.problems == ()
        assert run.summary["_run"]["exit_code"] == 0

    def test_missing_nan_and_infinities_are_four_things(self, tmp_path: Path) -> None:
        texts = ["1.5", "NaN", '"NaN"', "Infinity", '"Infinity"', "-Infinity", '"-Infinity"', "null", '"nan"']
        run = read(tmp_path, log([history({"_step": s}, loss=t) for s, t in enumerate(texts)]))
        assert run.channels["loss"].counts == {"finite": 1, "nan": 3, "posinf": 2, "neginf": 2, "missing": 1}

    def test_values_are_exact(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        values = np.concatenate(
            [rng.normal(size=500), 10.0 ** rng.uniform(-300, 300, 500), [5e-324, 1.7976931348623157e308]]
        )
        run = read(tmp_path, log([history({"x": v, "_step": s}) for s, v in enumerate(values.tolist())]))
        np.testing.assert_array_equal(run.channels["x"].values, values)

    def test_large_integers_stay_exact(self, tmp_path: Path) -> None:
        values = [2**53 + 1, 2**62 + 1, -(2**63), 5]
        run = read(tmp_path, log([history({"tokens": v, "_step": s}) for s, v in enumerate(values)]))
        assert run.channels["tokens"].values.dtype == np.int64
        assert run.channels["tokens"].values.tolist() == values

    def test_integers_too_large_for_any_type_become_floats(self, tmp_path: Path) -> None:
        run = read(tmp_path, log([history({"n": 10**30, "_step": 0}), history({"n": 2**60, "_step": 1})]))
        assert run.channels["n"].values.tolist() == [1e30, 2.0**60]

    def test_numbers_beyond_a_float_are_infinite_and_counted(self, tmp_path: Path) -> None:
        texts = ["1e400", "-1" + "0" * 400, "Infinity", "-Infinity", '"Infinity"', '{"in": 1e400}', '{"in": Infinity}']
        run = read(tmp_path, log([history({"_step": s}, x=t) for s, t in enumerate(texts)]))
        assert run.channels["x"].values.tolist() == [np.inf, -np.inf, np.inf, -np.inf, np.inf]
        found = {p.message.partition(":")[0]: p.count for p in run.problems if p.code == "overflow"}
        assert found == {"x": 2, "x.in": 1}

    def test_large_steps_stay_exact(self, tmp_path: Path) -> None:
        steps = [2**53 + 1, 2**53 + 2, 2**62 + 1]
        run = read(tmp_path, log([history({"x": 1.0, "_step": s}) for s in steps]))
        assert run.channels["x"].steps.tolist() == steps

    def test_nested_keys_join_with_dots(self, tmp_path: Path) -> None:
        rows = [message(2, item(("a", "b"), "1.5") + item(("c",), "2") + item("_step", "0"))]
        run = read(tmp_path, log([*rows, history({"a": {"b": 2.5, "d": {"e": None, "f": 7}}, "_step": 1})]))
        assert run.channels["a.b"].values.tolist() == [1.5, 2.5]
        assert run.channels["c"].values.tolist() == [2.0]
        assert run.channels["a.d.f"].values.tolist() == [7.0]
        assert run.channels["a.d.e"].n_missing == 1

    def test_what_is_no_scalar_is_counted(self, tmp_path: Path) -> None:
        image = {"_type": "image-file", "path": "x.png"}
        row = {"loss": 1.0, "image": image, "text": "hello", "list": [1, 2, 3], "_step": 0}
        run = read(tmp_path, log([history(row)]))
        assert list(run.channels) == ["loss"]
        [found] = [p for p in run.problems if p.code == "not-a-scalar"]
        assert found.count == 3

    def test_parts_of_media_that_were_spread_over_keys_are_no_channels(self, tmp_path: Path) -> None:
        parts = (
            item(("img", "_type"), '"image-file"')
            + item(("img", "width"), "64")
            + item("loss", "1")
            + item("_step", "3")
        )
        run = read(tmp_path, log([message(2, parts)]))
        assert list(run.channels) == ["loss"]

    def test_booleans_count_as_one_and_zero(self, tmp_path: Path) -> None:
        run = read(tmp_path, log([history({"ok": s > 1, "_step": s}) for s in range(4)]))
        assert run.channels["ok"].values.tolist() == [0, 0, 1, 1]
        assert "boolean-values" in codes(run)

    @pytest.mark.parametrize(
        "name", ["<script>alert(1)</script>", "\x1b[31mred", "a,b\n c", "größe", "../../etc/passwd"]
    )
    def test_names_pass_through_as_data(self, tmp_path: Path, name: str) -> None:
        assert list(read(tmp_path, log([history({name: 1.0, "_step": 0})])).channels) == [name]

    def test_a_name_that_is_no_utf8(self, tmp_path: Path) -> None:
        broken = message(1, message(1, b"lo\xffss") + message(16, b"1")) + item("_step", "0")
        assert list(read(tmp_path, log([message(2, broken)])).channels) == ["lo\ufffdss"]

    def test_only_wanted_channels_are_decoded(self, tmp_path: Path) -> None:
        rows = [
            history({"train/loss": 1.0, "val/loss": {"_type": "x"}, "_step": s, "_timestamp": 5.0}) for s in range(20)
        ]
        run = read(tmp_path, log(rows), channels=["train/*"])
        assert list(run.channels) == ["train/loss"]
        assert run.channels["train/loss"].wall_time is not None
        assert "not-a-scalar" not in codes(run)

    def test_a_wanted_channel_inside_an_object(self, tmp_path: Path) -> None:
        rows = [history({"a": {"b": 1.5, "c": 2.5}, "d": {"_type": "x"}, "_step": s}) for s in range(20)]
        run = read(tmp_path, log(rows), channels=["a.c"])
        assert list(run.channels) == ["a.c"]
        assert run.channels["a.c"].values.tolist() == [2.5] * 20
        assert "not-a-scalar" not in codes(run)

    def test_many_channels_and_few_rows(self, tmp_path: Path) -> None:
        rows = [history({**{f"m{k}": k + s / 10 for k in range(300)}, "_step": s}) for s in range(3)]
        run = read(tmp_path, log(rows))
        assert len(run.channels) == 300
        assert run.channels["m299"].values.tolist() == [299.0, 299.1, 299.2]


class TestSteps:
    def test_the_step_field_serves_where_there_is_no_item(self, tmp_path: Path) -> None:
        run = read(tmp_path, log([history({"x": 1.0}, s) for s in (0, 10, 300)]))
        assert run.channels["x"].steps.tolist() == [0, 10, 300]

    def test_rows_without_any_step_are_counted_on(self, tmp_path: Path) -> None:
        run = read(tmp_path, log([history({"x": 1.0}, 7), history({"x": 2.0}), history({"x": 3.0})]))
        assert run.channels["x"].steps.tolist() == [7, 8, 9]
        [found] = [p for p in run.problems if p.code == "no-step"]
        assert found.count == 2

    def test_another_metric_can_be_the_step(self, tmp_path: Path) -> None:
        run = read(tmp_path, log([history({"x": 1.0, "tokens": 100 * s, "_step": s}) for s in range(5)]), step="tokens")
        assert run.channels["x"].steps.tolist() == [0, 100, 200, 300, 400]
        assert run.provenance["step"] == ["tokens"]

    def test_the_order_of_items_does_not_matter(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(1)
        records = []
        for s in range(50):
            items = [item("a", str(s)), item("b", str(2 * s)), item("_step", str(s)), item("_timestamp", "1.5e9")]
            records.append(message(2, b"".join(items[i] for i in rng.permutation(4))))
        run = read(tmp_path, log(records))
        assert run.channels["b"].values.tolist() == [2 * s for s in range(50)]
        assert run.channels["b"].steps.tolist() == list(range(50))


class TestFacts:
    def test_configuration_summary_and_run(self, tmp_path: Path) -> None:
        update = message(1, message(1, b"lr") + message(16, b"0.1"))
        settings_ = message(1, message(1, b"_wandb") + message(16, b"{}")) + message(
            1, message(1, b"bs") + message(16, b"8")
        )
        run_record = message(17, message(1, b"abc") + message(3, b"proj") + message(4, settings_) + message(8, b"nice"))
        summary = [message(3, item("best", str(v)) + item(("_wandb", "runtime"), "3")) for v in (1, 2)]
        run = read(tmp_path, log([run_record, message(5, update), *plain(3), *summary, exit_record(255)]))
        assert dict(run.config) == {"lr": 0.1, "bs": 8}
        assert run.summary["best"] == 2
        assert run.summary["_run"] == {"id": "abc", "project": "proj", "name": "nice", "exit_code": 255}

    def test_sidecars_add_what_the_log_lacks(self, tmp_path: Path) -> None:
        here = tmp_path / "run-20260101_000000-abc"
        (here / "files").mkdir(parents=True)
        (here / "run-abc.wandb").write_bytes(log([*plain(3), exit_record()]))
        (here / "files" / "config.yaml").write_text(
            "wandb_version: 1\n_wandb:\n  value: {}\nlr:\n  desc: null\n  value: 0.5\n"
        )
        (here / "files" / "wandb-summary.json").write_text('{"loss": 0.2, "_wandb": {"runtime": 3}}')
        scan = scan_runs(tmp_path)
        [run] = scan
        assert (dict(run.config), run.summary["loss"]) == ({"lr": 0.5}, 0.2)
        assert scan.ignored == []

    @pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"{", b"[1]", b"a: &x [*x]", b"- - - -", b""])
    def test_damaged_sidecars_harm_nothing(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "files").mkdir()
        for name in ("config.yaml", "wandb-summary.json"):
            (tmp_path / "files" / name).write_bytes(content)
        assert len(read(tmp_path, log(plain(3))).channels["loss"]) == 3

    def test_a_sidecar_that_is_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "secret.json").write_text('{"secret": 1}')
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "wandb-summary.json").symlink_to(tmp_path / "secret.json")
        assert "secret" not in read(tmp_path, log(plain(3))).summary

    def test_other_records_are_skipped_and_counted(self, tmp_path: Path) -> None:
        run = read(
            tmp_path, log([*plain(2), *[message(7, b"x" * 50)] * 3, *[message(13, b"out")] * 2, message(99, b"?")])
        )
        [found] = [p for p in run.problems if p.code == "skipped-records"]
        assert found.count == 5
        assert "2 output and 3 stats" in found.message


class TestSessions:
    def make(self, root: Path, day: str, run_id: str, rows: list[bytes]) -> None:
        here = root / f"run-202601{day}_000000-{run_id}"
        here.mkdir(parents=True)
        (here / f"run-{run_id}.wandb").write_bytes(log(rows))

    def clocked(self, first: int, n: int, clock: float, offset: float = 0.0) -> list[bytes]:
        return [history({"loss": s + offset, "_step": s, "_timestamp": clock + s}) for s in range(first, first + n)]

    def test_directories_of_one_id_are_one_run(self, tmp_path: Path) -> None:
        self.make(tmp_path / "wandb", "03", "xyz", self.clocked(80, 40, 2e9, 0.5))
        self.make(tmp_path / "wandb", "01", "xyz", self.clocked(0, 100, 1e9))
        self.make(tmp_path / "wandb", "02", "other", self.clocked(0, 10, 1.5e9))
        runs = {r.id: r for r in scan_runs(tmp_path)}
        assert list(runs) == [
            "wandb/run-20260101_000000-xyz/run-xyz.wandb",
            "wandb/run-20260102_000000-other/run-other.wandb",
        ]
        run = runs["wandb/run-20260101_000000-xyz/run-xyz.wandb"]
        assert [s.kind for s in run.segments] == ["start", "supersedes"]
        assert run.channels["loss"].steps.tolist() == list(range(120))
        assert run.channels["loss"].values[80] == 80.5
        assert run.superseded["loss"].steps.tolist() == list(range(80, 100))

    def test_a_session_that_goes_on(self, tmp_path: Path) -> None:
        self.make(tmp_path, "01", "xyz", self.clocked(0, 10, 1e9))
        self.make(tmp_path, "02", "xyz", self.clocked(10, 10, 2e9))
        [run] = scan_runs(tmp_path)
        assert [s.kind for s in run.segments] == ["start", "continuation"]

    def test_one_session_can_be_read_alone(self, tmp_path: Path) -> None:
        self.make(tmp_path, "01", "xyz", self.clocked(0, 10, 1e9))
        self.make(tmp_path, "02", "xyz", self.clocked(5, 10, 2e9))
        assert len(read_run(tmp_path / "run-20260102_000000-xyz").channels["loss"]) == 10


class TestDamage:
    def test_a_killed_run(self, tmp_path: Path) -> None:
        whole = log(plain(2000))
        run = read(tmp_path, whole[: 2 * BLOCK])
        n = len(run.channels["loss"])
        assert 900 < n < 2000
        assert run.channels["loss"].steps.tolist() == list(range(n))
        assert codes(run) == {"truncated-tail", "no-exit-record"}
        assert all(p.severity == "info" for p in run.problems)

    @pytest.mark.parametrize("zeros", [1, 6, 7, 4096, 3 * BLOCK])
    def test_a_tail_of_zeros(self, tmp_path: Path, zeros: int) -> None:
        run = read(tmp_path, log(plain(50)) + bytes(zeros))
        assert len(run.channels["loss"]) == 50
        [found] = [p for p in run.problems if p.code == "zero-tail"]
        assert found.severity == "info"

    @pytest.mark.parametrize(("content", "severity"), [(b"", "warning"), (MAGIC, "info"), (MAGIC[:3], "info")])
    def test_a_file_without_records(self, tmp_path: Path, content: bytes, severity: str) -> None:
        run = read(tmp_path, content)
        assert len(run.channels) == 0
        assert [p.severity for p in run.problems if p.code == "empty-file"] == [severity]

    @pytest.mark.parametrize("content", [b":W&B\0\0\0junkjunk", b"PK\x03\x04", b"x"])
    def test_a_file_of_another_kind(self, tmp_path: Path, content: bytes) -> None:
        with pytest.raises(NoLogsFound, match=r"not a \.wandb file"):
            read(tmp_path, content)

    def test_a_version_of_the_future(self, tmp_path: Path) -> None:
        with pytest.raises(NoLogsFound, match="version 9; only version 0"):
            read(tmp_path, MAGIC[:6] + b"\x09")

    def test_a_flipped_byte_costs_one_record(self, tmp_path: Path) -> None:
        whole = bytearray(log(plain(300)))
        at = whole.index(b"loss", 5000)
        whole[at] ^= 0x20
        run = read(tmp_path, bytes(whole))
        assert len(run.channels["loss"]) == 299
        [found] = [p for p in run.problems if p.code == "bad-crc"]
        assert found.severity == "warning"
        assert found.place.startswith("byte ")

    def test_a_damaged_length_costs_little(self, tmp_path: Path) -> None:
        whole = bytearray(log(plain(300)))
        record = whole.index(b"\x0a\x0c\x0a\x04loss", 5000)
        header = whole.rindex(b"\x01\x12", 0, record) - 6
        whole[header + 5] ^= 0x10
        run = read(tmp_path, bytes(whole))
        assert len(run.channels["loss"]) == 299

    def test_a_block_of_garbage_costs_its_records(self, tmp_path: Path) -> None:
        whole = bytearray(log(plain(2000)))
        rng = np.random.default_rng(0)
        whole[BLOCK : 2 * BLOCK] = rng.integers(0, 256, BLOCK, dtype=np.uint8).tobytes()
        run = read(tmp_path, bytes(whole))
        steps = run.channels["loss"].steps
        assert steps[0] == 0
        assert steps[-1] == 1999
        assert 2000 - BLOCK / 60 < len(steps) < 2000

    def test_a_hole_of_zeros_is_passed_over(self, tmp_path: Path) -> None:
        whole = bytearray(log(plain(2000)))
        whole[BLOCK : 2 * BLOCK] = bytes(BLOCK)
        run = read(tmp_path, bytes(whole))
        assert run.channels["loss"].steps[-1] == 1999
        assert "bad-crc" in codes(run)

    def test_cut_anywhere_nothing_earlier_is_lost(self, tmp_path: Path) -> None:
        whole = log([*plain(6), message(3, item("s", "1")), message(17, message(1, b"abc")), exit_record(3)])
        ends = [len(log(plain(k))) for k in range(7)]
        for cut in range(len(whole)):
            path = tmp_path / "run-abc.wandb"
            path.write_bytes(whole[:cut])
            [source] = READER.sources([path], "", ReadOptions(path))
            expected = sum(cut >= end for end in ends[1:])
            got = source.series["loss"].values.tolist() if "loss" in source.series else []
            assert got == [s / 10 for s in range(expected)], cut

    def test_a_byte_flipped_anywhere_costs_at_most_its_record(self, tmp_path: Path) -> None:
        whole = log(plain(8))
        ends = np.array([len(log(plain(k))) for k in range(9)])
        for at in range(len(MAGIC), len(whole)):
            damaged = bytearray(whole)
            damaged[at] ^= 0xFF
            path = tmp_path / "run-abc.wandb"
            path.write_bytes(bytes(damaged))
            [source] = READER.sources([path], "", ReadOptions(path))
            hit = int(np.searchsorted(ends, at, side="right")) - 1
            assert source.series["loss"].values.tolist() == [s / 10 for s in range(8) if s != hit], at
            assert source.problems

    @settings(max_examples=150, deadline=None)
    @given(st.binary(max_size=300), st.integers(0, 40))
    def test_any_payload_in_good_chunks(self, tmp_path_factory: pytest.TempPathFactory, junk: bytes, cut: int) -> None:
        path = tmp_path_factory.mktemp("w") / "run-abc.wandb"
        records = [*plain(3), message(2, junk), junk, *[message(k, junk) for k in (3, 5, 17, 18)]]
        records.append(message(2, history({"x": 1.0, "_step": 9})[2:][: max(0, 30 - cut)]))
        path.write_bytes(log(records))
        [source] = READER.sources([path], "", ReadOptions(path))
        assert source.series["loss"].values.tolist()[:3] == [0.0, 0.1, 0.2]

    @settings(max_examples=100, deadline=None)
    @given(st.binary(max_size=3000))
    def test_any_bytes_behind_the_header(self, tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
        path = tmp_path_factory.mktemp("w") / "run-abc.wandb"
        path.write_bytes(MAGIC + junk)
        READER.sources([path], "", ReadOptions(path))

    def test_numbers_that_are_too_long_end_quietly(self, tmp_path: Path) -> None:
        endless = number(2**64 - 1)
        records = [message(2, b"\x0a" + endless + b"x"), b"\x12" + endless, message(2, b"\xff" * 40), *plain(20)]
        assert len(read(tmp_path, log(records)).channels["loss"]) == 20


class TestOracle:
    def naive(self, content: bytes) -> dict[str, list[tuple[int, float]]]:
        """A record at a time, a byte at a time."""

        def varint(data: bytes, i: int) -> tuple[int, int]:
            value = shift = 0
            while True:
                value |= (data[i] & 127) << shift
                shift += 7
                i += 1
                if data[i - 1] < 128:
                    return value, i

        def fields(data: bytes) -> list[tuple[int, bytes]]:
            out, i = [], 0
            while i < len(data):
                tag, i = varint(data, i)
                length, i = varint(data, i)
                if tag & 7 == 2:
                    out.append((tag >> 3, data[i : i + length]))
                    i += length
            return out

        position, rest, rows = 7, b"", []
        while position < len(content):
            room = BLOCK - position % BLOCK
            if room < 7:
                position += room
                continue
            length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
            rest += content[position + 7 : position + 7 + length]
            position += 7 + length
            if kind in (1, 4):
                rows.append(rest)
                rest = b""
        out: dict[str, list[tuple[int, float]]] = {}
        for row in rows:
            for field, body in fields(row):
                if field == 2:
                    pairs = [dict(fields(entry)) for f, entry in fields(body) if f == 1]
                    values = {p[1].decode(): json.loads(p[16]) for p in pairs}
                    step = values.pop("_step")
                    for name, value in values.items():
                        out.setdefault(name, []).append((step, value))
        return out

    @pytest.mark.parametrize("width", [1, 30, 3000])
    def test_records_over_blocks_equal_a_naive_reader(self, tmp_path: Path, width: int) -> None:
        rng = np.random.default_rng(width)
        rows = [
            history(
                {**{f"m{k}": float(v) for k, v in enumerate(rng.normal(size=rng.integers(1, width + 1)))}, "_step": s}
            )
            for s in range(60)
        ]
        content = log(rows)
        run = read(tmp_path, content)
        expected = self.naive(content)
        assert set(run.channels) == set(expected)
        for name, pairs in expected.items():
            assert list(zip(run.channels[name].steps, run.channels[name].values, strict=True)) == pairs

    def test_batches_do_not_show(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        content = log([*plain(300, big=2**60), history({"late": 1.0, "_step": 300})])
        whole = read(tmp_path, content)
        monkeypatch.setattr("trajscope.readers.wandb_offline._BATCH", 500)
        parts = read(tmp_path, content)
        assert list(parts.channels) == list(whole.channels)
        for name, channel in whole.channels.items():
            np.testing.assert_array_equal(parts.channels[name].values, channel.values)
            np.testing.assert_array_equal(parts.channels[name].steps, channel.steps)


def test_a_file_that_wandb_wrote() -> None:
    [run] = scan_runs(DATA)
    s = np.arange(30)
    expected = 2.5 * np.exp(-s / 10) + 0.5
    expected[[20, 21, 22]] = np.nan, np.inf, -np.inf
    loss = run.channels["train/loss"]
    assert loss.n_missing == 1
    assert loss.steps.tolist() == [10 * k for k in range(30) if k != 5]
    np.testing.assert_allclose(loss.values, np.delete(expected, 5), rtol=1e-15)
    assert run.channels["count"].values.tolist() == [2**60 + k for k in range(30)]
    assert run.channels["nested.deep.b"].values.tolist() == [-k for k in range(30)]
    assert run.channels["val/loss"].steps.tolist() == [0, 100, 200]
    assert set(run.channels) == {"train/loss", "count", "flag", "nested.a", "nested.deep.b", "val/loss", "_runtime"}
    assert dict(run.config) == {"lr": 0.1, "net": {"layers": [64, 64], "act": "relu"}}
    assert run.summary["_run"]["exit_code"] == 0
    assert codes(run) == {"not-a-scalar", "boolean-values"}


@pytest.mark.parametrize(
    ("name", "rows", "code"),
    [
        ("01_good", 1000, ""),
        ("02_killed_at_block_boundary", 496, "truncated-tail"),
        ("04_header_only", 0, "empty-file"),
        ("05_zero_tail", 1000, "zero-tail"),
        ("07_empty", 0, "empty-file"),
    ],
)
def test_nasty_files(shared_data: Path, name: str, rows: int, code: str) -> None:
    run = read_run(shared_data / "nasty" / "wandb" / f"{name}.wandb")
    assert (len(run.channels["train/loss"]) if rows else len(run.channels)) == rows
    assert not code or code in codes(run)
    if rows == 1000:
        assert math.isnan(run.channels["train/loss"].values[700])
        assert run.channels["train/loss"].counts["nan"] == 1


def test_recorded_files(shared_data: Path) -> None:
    """History rows of every recorded file, as the index that came with them says (columns file, bytes, rows)."""
    root = shared_data / "logs"
    checked = 0
    for line in (root / "INDEX.tsv").read_text().splitlines():
        file, _, rows, *_ = line.split("\t")
        if not file.endswith(".wandb"):
            continue
        path = shared_data / file
        [source] = READER.sources([path], "", ReadOptions(path))
        logged = np.unique(np.concatenate([np.zeros(0), *(s.rows() for s in source.series.values())]))
        assert logged.size == int(rows), file
        checked += 1
    assert checked >= 15
