"""TensorBoard reader: encodings, damage, and agreement with TensorBoard's own loader."""

from __future__ import annotations

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard_files import NAME, many, record, records, scalar, tensor, version, write

from trajscope.errors import NoLogsFound, ReadError
from trajscope.readers import ReadOptions, read_run, scan_runs
from trajscope.readers.tensorboard import READER
from trajscope.readers.tensorboard import walk as walk_module
from trajscope.readers.tensorboard.checksum import HARDWARE, by_instruction, by_tables
from trajscope.readers.tensorboard.crc import TABLES, crc32c, find_headers, mask, masked_many
from trajscope.readers.tensorboard.walk import decode, glance

BOTH = pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])


def slow_crc(data: bytes) -> int:
    """CRC-32C from its definition: polynomial division, bit by bit."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 * (state & 1))
    return state ^ 0xFFFFFFFF


def codes(run) -> list[str]:
    return [p.code for p in run.problems]


class TestChecksum:
    def test_known_answers(self):
        # RFC 3720, appendix B.4.
        assert crc32c(bytes(32)) == 0x8A9136AA
        assert crc32c(b"\xff" * 32) == 0x62A8AB43
        assert crc32c(bytes(range(32))) == 0x46DD794E

    @pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8, 9, 100, 2048, 2049, 3000, 5000])
    def test_every_way_agrees_with_the_definition(self, length):
        data = np.random.default_rng(length).integers(0, 256, length + 5, dtype=np.uint8)
        expected = slow_crc(data[5:].tobytes())
        assert crc32c(data[5:].tobytes()) == expected
        where = np.array([5], dtype=np.int64), np.array([length], dtype=np.int64)
        assert int(masked_many(data, *where)[0]) == mask(expected)
        for compiled in (by_tables, by_instruction) if HARDWARE else (by_tables,):
            assert int(compiled(data, 5, length, TABLES)) == mask(expected)

    def test_many_at_once(self):
        rng = np.random.default_rng(0)
        data = rng.integers(0, 256, 10_000, dtype=np.uint8)
        lengths = rng.integers(0, 300, 500)
        starts = rng.integers(0, 9_000, 500)
        found = masked_many(data, starts, lengths)
        expected = [mask(crc32c(data[s : s + n].tobytes())) for s, n in zip(starts, lengths, strict=True)]
        assert found.tolist() == expected

    def test_headers_are_found_wherever_they_stand(self):
        noise = np.random.default_rng(1).integers(0, 256, 100, dtype=np.uint8).tobytes()
        data = noise + record(b"abc") + noise + record(b"x" * 70_000)
        found = find_headers(np.frombuffer(data, dtype=np.uint8))
        assert found.tolist() == [100, 100 + 19 + 100]


@BOTH
class TestEncodings:
    def test_simple_values_keep_precision_step_and_time(self, tmp_path, compiled):
        steps = [0, 1, -5, 2**53 + 1, 2**62]
        path = write(tmp_path, [scalar("loss", 0.1 * i, s, 1e9 + i) for i, s in enumerate(steps)])
        series = decode(path, compiled=compiled).series["loss"]
        assert series.steps.tolist() == steps
        assert series.steps.dtype == np.int64
        assert series.values.dtype == np.float32
        np.testing.assert_array_equal(series.values, np.float32(0.1) * np.arange(5, dtype=np.float32))
        np.testing.assert_array_equal(series.wall_time, 1e9 + np.arange(5))
        assert series.row.tolist() == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize(
        ("fields", "value", "dtype"),
        [
            ({"dtype": 1, "tensor_content": struct.pack("<f", 0.1)}, np.float32(0.1), "float32"),
            ({"dtype": 1, "float_val": [0.1]}, np.float32(0.1), "float32"),
            ({"dtype": 2, "tensor_content": struct.pack("<d", 0.1)}, 0.1, "float64"),
            ({"dtype": 2, "double_val": [-0.1]}, -0.1, "float64"),
            ({"dtype": 3, "tensor_content": struct.pack("<i", -7)}, -7, "int64"),
            ({"dtype": 3, "int_val": [-7]}, -7, "int64"),
            ({"dtype": 4, "tensor_content": b"\xff"}, 255, "int64"),
            ({"dtype": 5, "tensor_content": struct.pack("<h", -3)}, -3, "int64"),
            ({"dtype": 6, "tensor_content": b"\xff"}, -1, "int64"),
            ({"dtype": 9, "tensor_content": struct.pack("<q", 2**62 + 1)}, 2**62 + 1, "int64"),
            ({"dtype": 9, "int64_val": [-(2**62)]}, -(2**62), "int64"),
            ({"dtype": 10, "bool_val": [True]}, 1, "int64"),
            ({"dtype": 10, "tensor_content": b"\x01"}, 1, "int64"),
            ({"dtype": 14, "half_val": [0x3FC0]}, 1.5, "float32"),
            ({"dtype": 17, "tensor_content": b"\xff\xff"}, 65535, "int64"),
            ({"dtype": 19, "half_val": [0x3E00]}, 1.5, "float32"),
            ({"dtype": 19, "tensor_content": struct.pack("<e", -2.25)}, -2.25, "float32"),
            ({"dtype": 22, "uint32_val": [2**32 - 1]}, 2**32 - 1, "int64"),
            ({"dtype": 23, "uint64_val": [2**64 - 1]}, 2**64 - 1, "uint64"),
            ({"dtype": 1}, 0.0, "float32"),
        ],
    )
    def test_tensors_of_every_dtype(self, tmp_path, compiled, fields, value, dtype):
        series = decode(write(tmp_path, [tensor("x", 3, **fields)]), compiled=compiled).series["x"]
        assert series.values.dtype == dtype
        assert series.values[0] == value
        assert series.steps.tolist() == [3]

    def test_one_element_is_a_scalar_and_said(self, tmp_path, compiled):
        path = write(tmp_path, [tensor("x", 0, dtype=1, shape=(1, 1), float_val=[2.0])])
        found = decode(path, compiled=compiled)
        assert found.series["x"].values.tolist() == [2.0]
        assert found.ones == ["x"]

    def test_several_elements_are_none(self, tmp_path, compiled):
        events = [
            tensor("vec", 0, dtype=1, shape=(3,), float_val=[1.0, 2.0, 3.0]),
            tensor("same", 0, dtype=1, shape=(2, 2), float_val=[1.0]),  # one value stands for all four
            tensor("none", 0, dtype=1, shape=(0,)),
            tensor("huge", 0, dtype=1, shape=(2**62, 2**62, 4), float_val=[1.0]),
            tensor("text", 0, dtype=7, shape=(1,), string_val=[b"a"]),
        ]
        found = decode(write(tmp_path, events), compiled=compiled)
        assert found.series == {}
        assert found.passed_over() == {
            "tensors with several elements": (4, ["vec", "same", "none", "huge"]),
            "text": (1, ["text"]),
        }

    def test_a_tag_that_changes_its_encoding_is_one_series(self, tmp_path, compiled):
        events = [scalar("a", i, i) if i % 3 else tensor("a", i, dtype=2, double_val=[i]) for i in range(9)]
        found = decode(write(tmp_path, events), compiled=compiled)
        assert found.series["a"].steps.tolist() == list(range(9))
        assert found.series["a"].values.dtype == np.float64
        assert found.series["a"].row.tolist() == list(range(1, 10))
        assert found.mixed == ["a"]

    def test_non_finite_values_are_points(self, tmp_path, compiled):
        values = [np.nan, np.inf, -np.inf, np.finfo(np.float32).max]
        series = decode(write(tmp_path, [scalar("a", v, i) for i, v in enumerate(values)]), compiled=compiled).series
        np.testing.assert_array_equal(series["a"].values, np.array(values, dtype=np.float32))

    def test_a_tag_that_is_no_utf8_survives(self, tmp_path, compiled):
        found = decode(write(tmp_path, [scalar(b"l\xff\xfess", 1.0)]), compiled=compiled)
        assert list(found.series) == ["l\\xff\\xfess"]

    def test_node_name_stands_in_for_a_missing_tag(self, tmp_path, compiled):
        event = Event(wall_time=1.0, step=1)
        event.summary.value.add(node_name="old/style", simple_value=2.0)
        assert list(decode(write(tmp_path, [event.SerializeToString()]), compiled=compiled).series) == ["old/style"]

    def test_fields_in_any_order(self, tmp_path, compiled):
        value = b"\x15" + struct.pack("<f", 4.0) + b"\x0a\x01a"
        payload = (
            b"\x2a" + bytes([len(value) + 2, 0x0A, len(value)]) + value + b"\x10\x07" + b"\x09" + struct.pack("<d", 5)
        )
        series = decode(write(tmp_path, [payload]), compiled=compiled).series["a"]
        assert (series.steps[0], series.values[0], series.wall_time[0]) == (7, 4.0, 5.0)

    def test_hyperparameters_become_the_configuration(self, tmp_path, compiled):
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        wanted = {"lr": 0.001, "opt": "adam", "nesterov": True}
        event = Event(wall_time=1.0, summary=hparams_pb(wanted, trial_id="x"))
        found = decode(write(tmp_path, [event.SerializeToString(), scalar("a", 1)]), compiled=compiled)
        assert found.findings.config == wanted
        assert list(found.series) == ["a"]
        assert found.passed_over() == {}

    def test_session_starts_are_marks(self, tmp_path, compiled):
        start = Event(step=2, session_log=SessionLog(status=SessionLog.START)).SerializeToString()
        stop = Event(step=2, session_log=SessionLog(status=SessionLog.STOP)).SerializeToString()
        found = decode(write(tmp_path, [scalar("a", 1), stop, start, scalar("a", 2, 2)]), compiled=compiled)
        assert found.findings.marks == [3]

    def test_filter_is_applied_before_decoding(self, tmp_path, compiled):
        path = write(tmp_path, [many({"a/x": 1, "b/x": 2}, i) for i in range(4)])
        found = decode(path, ReadOptions(channels=("a/*",)).wants, compiled=compiled)
        assert list(found.series) == ["a/x"]

    def test_many_tags_and_values_in_one_event(self, tmp_path, compiled):
        names = {f"layer{i}/norm": float(i) for i in range(3000)}
        path = write(tmp_path, [many(names, s) for s in range(30)])
        found = decode(path, compiled=compiled)
        assert len(found.series) == 3000
        assert all(s.steps.tolist() == list(range(30)) for s in found.series.values())
        assert all((found.series[n].values == v).all() for n, v in names.items())

    def test_one_event_larger_than_the_buffers(self, tmp_path, compiled, monkeypatch):
        monkeypatch.setattr("trajscope.readers.tensorboard.compiled.CAPACITY", 50)
        wide = {f"t{i}": i for i in range(70)}
        found = decode(
            write(tmp_path, [many({"a": s, "b": s} if s % 9 else wide, s) for s in range(90)]), compiled=compiled
        )
        assert len(found.series) == 72
        assert found.series["t69"].values.tolist() == [69.0] * 10
        assert found.series["b"].steps.tolist() == [s for s in range(90) if s % 9]


@BOTH
class TestMedia:
    """What is no scalar passes by framing: its checksum is not even computed when it is large."""

    @staticmethod
    def image(size: int, tag: str = "img") -> bytes:
        event = Event(wall_time=1.0, step=1)
        event.summary.value.add(tag=tag).image.encoded_image_string = bytes(size)
        return event.SerializeToString()

    @pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
    def test_images_are_counted_and_passed(self, tmp_path, compiled, size):
        path = write(tmp_path, [scalar("a", 1, 0), self.image(size), scalar("a", 2, 1)])
        found = decode(path, compiled=compiled)
        assert found.series["a"].values.tolist() == [1.0, 2.0]
        assert found.rows == 4
        assert not found.findings.bad_crc
        # One that leaves the window is passed over before its tag is entered.
        assert found.framed == (size > 1 << 20)
        assert found.passed_over() == ({} if size > 1 << 20 else {"images": (1, ["img"])})

    @pytest.mark.parametrize("size", [100_000, 3_000_000])
    def test_a_scalar_behind_a_large_image_in_one_event_is_found(self, tmp_path, compiled, size):
        event = Event(wall_time=1.0, step=1)
        event.summary.value.add(tag="img").image.encoded_image_string = bytes(size)
        event.summary.value.add(tag="a", simple_value=5.0)
        found = decode(write(tmp_path, [event.SerializeToString()]), compiled=compiled)
        assert found.series["a"].values.tolist() == [5.0]

    def test_nothing_is_taken_from_a_large_record_with_a_wrong_checksum(self, tmp_path, compiled):
        event = Event(wall_time=1.0, step=1)
        event.summary.value.add(tag="img").image.encoded_image_string = bytes(100_000)
        event.summary.value.add(tag="a", simple_value=5.0)
        path = write(tmp_path, [event.SerializeToString(), scalar("b", 1)])
        data = bytearray(path.read_bytes())
        data[50_000] ^= 1
        path.write_bytes(data)
        found = decode(path, compiled=compiled)
        assert list(found.series) == ["b"]
        assert len(found.findings.bad_crc) == 1


def sample(path: Path) -> tuple[bytes, list[int]]:
    """A small file and the offsets at which its records end."""
    payloads = [version(), *(scalar("loss" if i % 2 else "a/longer tag", i, i) for i in range(12))]
    ends = np.cumsum([len(p) + 16 for p in payloads]).tolist()
    path.write_bytes(records(payloads))
    return path.read_bytes(), ends


def points(found) -> set[tuple[str, int, float]]:
    return {
        (name, int(s), float(v))
        for name, part in found.series.items()
        for s, v in zip(part.steps, part.values, strict=True)
    }


@BOTH
class TestDamage:
    def test_cut_at_every_byte(self, tmp_path, compiled):
        path = tmp_path / NAME
        data, ends = sample(path)
        everything = points(decode(path, compiled=compiled))
        for cut in range(len(data)):
            path.write_bytes(data[:cut])
            found = decode(path, compiled=compiled)
            whole = sum(e <= cut for e in ends)
            assert points(found) == {p for p in everything if p[1] < whole - 1}
            assert (found.tail is None) == (cut in {0, *ends})

    def test_every_byte_flipped(self, tmp_path, compiled):
        path = tmp_path / NAME
        data, ends = sample(path)
        everything = points(decode(path, compiled=compiled))
        for place in range(len(data)):
            path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
            found = decode(path, compiled=compiled)
            hit = sum(e <= place for e in ends)
            assert points(found) == {p for p in everything if p[1] != hit - 1}
            said = [o for o, _ in found.findings.bad_crc + found.resyncs] + ([found.tail[1]] if found.tail else [])
            assert said == [[0, *ends][hit]]

    def test_bytes_lost_or_added_in_the_middle(self, tmp_path, compiled):
        path = tmp_path / NAME
        data, ends = sample(path)
        everything = points(decode(path, compiled=compiled))
        for place in range(ends[3], ends[6]):
            hit = sum(e <= place for e in ends)
            for damaged in (data[:place] + data[place + 5 :], data[:place] + b"\0\1\2\0" + data[place:]):
                path.write_bytes(damaged)
                found = decode(path, compiled=compiled)
                kept = points(found)
                assert kept <= everything
                assert {p for p in everything if p[1] not in (hit - 1, hit)} <= kept
                assert len(found.resyncs) == 1

    def test_a_cut_record_does_not_swallow_what_was_written_after_it(self, tmp_path, compiled):
        """A process dies inside a record; another one goes on in the same file."""
        path = tmp_path / NAME
        data, ends = sample(path)
        everything = points(decode(path, compiled=compiled))
        for cut in (ends[9] - 3, ends[9] - 30, ends[8] + 14, ends[8] + 5):
            path.write_bytes(data[:cut] + data[ends[9] :])
            assert points(decode(path, compiled=compiled)) == {p for p in everything if p[1] != 8}

    def test_zero_tail(self, tmp_path, compiled):
        path = tmp_path / NAME
        data, _ = sample(path)
        for zeros in (5, 12, 4096, 3 << 20):
            path.write_bytes(data + bytes(zeros))
            found = decode(path, compiled=compiled)
            assert len(points(found)) == 12
            assert found.tail == ("zero", len(data), zeros)

    def test_zeros_in_the_middle_do_not_end_the_file(self, tmp_path, compiled):
        path = tmp_path / NAME
        data, ends = sample(path)
        path.write_bytes(data[: ends[4]] + bytes(2 << 20) + data[ends[4] :])
        found = decode(path, compiled=compiled)
        assert len(points(found)) == 12
        assert found.resyncs == [(ends[4], 2 << 20)]

    def test_a_sound_record_that_is_no_event(self, tmp_path, compiled):
        path = tmp_path / NAME
        path.write_bytes(record(version()) + record(b"\xff\xff\xff") + record(scalar("a", 1)))
        found = decode(path, compiled=compiled)
        assert list(found.series) == ["a"]
        assert [o for o, _ in found.findings.malformed] == [len(record(version()))]

    def test_a_length_beyond_every_memory(self, tmp_path, compiled):
        length = struct.pack("<Q", 2**60)
        path = tmp_path / NAME
        bomb = length + struct.pack("<I", mask(crc32c(length)))
        path.write_bytes(record(version()) + record(scalar("a", 1)) + bomb + record(scalar("a", 2, 1)))
        found = decode(path, compiled=compiled)
        assert found.series["a"].values.tolist() == [1.0, 2.0]
        path.write_bytes(record(scalar("a", 1)) + struct.pack("<QI", 2**64 - 1, mask(crc32c(b"\xff" * 8))) + b"xxxxx")
        found = decode(path, compiled=compiled)
        assert found.series["a"].values.tolist() == [1.0]
        assert found.tail is not None

    def test_compressed_and_cut_at_every_byte(self, tmp_path, compiled):
        path = tmp_path / (NAME + ".gz")
        plain = tmp_path / NAME
        data, _ = sample(plain)
        squeezed = gzip.compress(data)
        everything = points(decode(plain, compiled=compiled))
        for cut in range(len(squeezed) + 1):
            path.write_bytes(squeezed[:cut])
            found = points(decode(path, compiled=compiled))
            assert found == {p for p in everything if p[1] < len(found)}
        path.write_bytes(squeezed + gzip.compress(record(scalar("later", 1))))
        assert len(points(decode(path, compiled=compiled))) == 13

    def test_a_zip_bomb_is_stopped(self, tmp_path, compiled, monkeypatch):
        monkeypatch.setattr("trajscope.readers.tensorboard.stream.MAX_UNFOLDED", 1 << 21)
        path = tmp_path / (NAME + ".gz")
        plain = tmp_path / NAME
        path.write_bytes(gzip.compress(sample(plain)[0] + bytes(16 << 20)))
        found = decode(path, compiled=compiled)
        assert found.trouble == "limit"
        assert len(points(found)) == 12


@pytest.mark.parametrize("pieces", [1, 5])
def test_windows_do_not_matter(tmp_path, monkeypatch, pieces):
    """The same file through windows of a few hundred bytes."""
    path = write(tmp_path, [many({"a": i, "b/long": -i}, i) for i in range(200)])
    expected = points(decode(path, compiled=False))
    monkeypatch.setattr("trajscope.readers.tensorboard.stream.CHUNK", 64 * pieces)
    for compiled in (False, True):
        assert points(decode(path, compiled=compiled)) == expected


payload_bytes = st.one_of(
    st.binary(max_size=60),
    st.builds(scalar, st.sampled_from(["a", "b/c", "éü"]), st.floats(width=32), st.integers(-(2**63), 2**63 - 1)),
    st.builds(
        lambda dtype, shape, raw, ints: tensor("t", 1, dtype=dtype, shape=shape, tensor_content=raw, int_val=ints),
        st.sampled_from([0, 1, 2, 3, 5, 7, 9, 10, 14, 19, 22, 23]),
        st.lists(st.integers(0, 2), max_size=2),
        st.sampled_from([b"", b"\1", b"\1\2", b"\1\2\3\4", bytes(range(8))]),
        st.lists(st.integers(-(2**31), 2**31 - 1), max_size=2),
    ),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(payload_bytes, max_size=6), st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=3))
def test_both_decoders_agree_on_anything(tmp_path_factory, payloads, flips):
    data = bytearray(records([version(), *payloads]))
    for place, change in flips:
        if place < len(data):
            data[place] ^= change
    path = tmp_path_factory.mktemp("agree") / NAME
    path.write_bytes(data)
    one, two = (decode(path, compiled=c) for c in (False, True))
    assert list(one.series) == list(two.series)
    for name, series in one.series.items():
        for left, right in zip(vars(series).values(), vars(two.series[name]).values(), strict=True):
            np.testing.assert_array_equal(left, right)
    assert repr(one.findings) == repr(two.findings)  # in which NaN equals NaN
    assert (one.resyncs, one.tail, one.rows) == (two.resyncs, two.tail, two.rows)
    assert one.registry.skipped == two.registry.skipped


def test_small_files_never_wait_for_the_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(walk_module, "_decoded_plainly", 0)
    monkeypatch.setattr(walk_module, "COMPILE_FROM", 1000)
    monkeypatch.setitem(sys.modules, "trajscope.readers.tensorboard.compiled", None)
    path = write(tmp_path, [scalar("a", 1)])
    decode(path)
    monkeypatch.setattr(walk_module, "_decoded_plainly", 1000)
    with pytest.raises(ImportError):  # once enough was read, the compiled one is asked for
        decode(path)


class TestReader:
    def test_claims(self, tmp_path):
        sound = records([version()])
        for name, content, expected in [
            (NAME, sound, True),
            ("renamed.bin", sound, True),
            ("data.tfrecord", record(b"something else"), False),
            (NAME + ".profile-empty", sound, False),
            (NAME, b"", True),
            (NAME, bytes(5000), True),
            (NAME, sound[:7], True),
            (NAME, b"\xff" + sound[1:] + records([scalar("a", 1)]), True),
            (NAME + ".gz", gzip.compress(sound), True),
        ]:
            path = tmp_path / name
            path.write_bytes(content)
            assert READER.can_read(path, content[:4096]) is expected, (name, content[:20])

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (b"notes on the run", "text file"),
            (b"no\n", "text file"),
            (np.random.default_rng(0).bytes(3000), "no record"),
            (b"\x1f\x8bnonsense nonsense", "damaged gzip"),
        ],
    )
    def test_refusals_say_why(self, tmp_path, content, reason):
        (tmp_path / "x.tfevents.1").write_bytes(content)
        with pytest.raises(NoLogsFound, match=reason):
            read_run(tmp_path)

    def test_every_loss_is_a_problem_with_place_and_count(self, tmp_path):
        path = tmp_path / NAME
        data, ends = sample(path)
        damaged = bytearray(data + bytes(100))
        damaged[ends[4] + 20] ^= 1
        damaged[ends[6] + 20] ^= 1
        damaged[ends[9] + 2] ^= 1
        path.write_bytes(damaged)
        run = read_run(path)
        assert run.n_points == 9
        said = {p.code: (p.place, p.count, p.severity) for p in run.problems}
        assert said == {
            "bad-crc": (f"byte {ends[4]}", 2, "warning"),
            "resync": (f"byte {ends[9]}", 1, "warning"),
            "zero-tail": (f"byte {len(data)}", 100, "warning"),
        }
        with pytest.raises(ReadError, match="strict"):
            read_run(path, strict=True)

    def test_two_sessions_in_one_directory(self, tmp_path):
        write(tmp_path, [scalar("a", i, i) for i in range(10)])
        write(
            tmp_path, [scalar("a", -i, i, 1.8e9 + i) for i in range(7, 15)], "events.out.tfevents.1800000000.host.2.0"
        )
        run = read_run(tmp_path)
        assert run.channels["a"].values.tolist() == [*range(7), *(-i for i in range(7, 15))]
        assert run.superseded["a"].steps.tolist() == [7, 8, 9]

    def test_empty_files(self, tmp_path):
        (tmp_path / NAME).write_bytes(b"")
        run = read_run(tmp_path)
        assert codes(run) == ["empty-file"]
        assert not run.channels
        (tmp_path / NAME).write_bytes(records([version()]))
        assert codes(read_run(tmp_path)) == ["no-scalars"]

    def test_names_full_of_markup_pass_as_data(self, tmp_path):
        name = "<script>alert(1)</script>\x1b[31m\u202e/../../etc/passwd"
        assert list(read_run(write(tmp_path, [scalar(name, 1)])).channels) == [name]

    def test_glance_sees_both_ends(self, tmp_path):
        path = write(tmp_path, [scalar("early" if i < 500 else "late", i, i) for i in range(2000)])
        seen = glance(path)
        assert seen is not None
        assert seen.channels == {"early", "late"}
        assert (seen.first, seen.last) == (1.7e9, 1.7e9 + 1999)

    def test_glance_of_a_file_without_scalars(self, tmp_path):
        assert glance(write(tmp_path, [])) is None

    def test_siblings_need_the_same_channels_at_the_same_time(self, tmp_path):
        def layout(name: str, tags: tuple[str, str], later: float) -> bool:
            files = {}
            for half, tag, shift in (("train", tags[0], 0.0), ("validation", tags[1], later)):
                (tmp_path / name / half).mkdir(parents=True)
                events = [scalar(tag, i, i, 1.7e9 + shift + i) for i in range(5)]
                files[half] = [write(tmp_path / name / half, events)]
            return READER.siblings(files)

        assert layout("pair", ("loss", "loss"), 0.5)
        assert not layout("names", ("loss", "score"), 0.5)
        assert not layout("times", ("loss", "loss"), 86400.0)


class TestSharedData:
    def test_equal_to_event_accumulator(self, shared_data):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util import tensor_util

        files = [f for f in sorted((shared_data / "logs" / "tensorboard").rglob("*tfevents*")) if f.is_file()]
        assert len(files) > 50
        for path in files:
            if path.stat().st_size > 100_000:
                continue  # the accumulator takes minutes for all
            loader = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
            loader.Reload()
            expected = {
                t: [(e.step, e.wall_time, e.value) for e in loader.Scalars(t)] for t in loader.Tags()["scalars"]
            }
            for tag in loader.Tags()["tensors"]:
                arrays = [(e.step, e.wall_time, tensor_util.make_ndarray(e.tensor_proto)) for e in loader.Tensors(tag)]
                if arrays[0][2].dtype.kind in "fiub" and arrays[0][2].size == 1:
                    expected[tag] = [(s, w, float(v)) for s, w, v in arrays]
            found = decode(path)
            assert set(found.series) == set(expected)
            for tag, rows in expected.items():
                series = found.series[tag]
                steps, walls, values = zip(*rows, strict=True)
                np.testing.assert_array_equal(series.steps, steps)
                np.testing.assert_array_equal(series.wall_time, walls)
                np.testing.assert_array_equal(series.values.astype(float), values)

    @pytest.mark.parametrize(
        ("case", "n_points", "expected"),
        [
            ("01_truncated_in_payload", 999, ["truncated-tail"]),
            ("02_truncated_in_header", 1000, ["truncated-tail"]),
            ("03_bad_data_crc_middle", 999, ["bad-crc"]),
            ("05_empty_file", 0, ["empty-file"]),
            ("06_version_record_only", 0, ["no-scalars"]),
            ("07_resume_overlap", 1500, ["resume-supersedes"]),
            ("08_counter_restarts_at_zero", 1000, ["counter-restart"]),
            ("10_nan_inf", 700, []),
            ("11_tensor_scalars_all_dtypes", 500, ["not-a-scalar", "one-element-tensor"]),
            ("12_same_tag_simple_then_tensor", 200, ["mixed-encoding"]),
            ("13_duplicate_file", 1000, ["duplicate-file"]),
            ("17_extreme_steps", 3, []),
            ("19_mixed_hparams_text_histo_image", 20, ["skipped-records"] * 3),
            ("20_gzipped", 1000, []),
            ("21_zero_filled_tail", 1000, ["zero-tail"]),
        ],
    )
    def test_nasty_cases(self, shared_data, case, n_points, expected):
        run = read_run(shared_data / "nasty" / "tb" / case)
        assert run.n_points == n_points
        assert codes(run) == expected
        assert len(run.channels) == {"05": 0, "06": 0, "11": 10}.get(case[:2], 1)

    def test_nasty_details(self, shared_data):
        nasty = shared_data / "nasty" / "tb"
        loss = read_run(nasty / "10_nan_inf").channels["train/loss"]
        assert loss.counts == {"finite": 597, "nan": 101, "posinf": 1, "neginf": 1, "missing": 0}
        assert loss.steps[~np.isfinite(loss.values)][0] == 300
        assert sorted(read_run(nasty / "17_extreme_steps").channels["x"].steps.tolist()) == [-5, 2**53 + 1, 2**62]
        assert dict(read_run(nasty / "19_mixed_hparams_text_histo_image").config) == {"lr": 0.001, "opt": "adam"}
        overlap = read_run(nasty / "07_resume_overlap")
        assert overlap.segments[1].first_step == 700
        assert len(overlap.superseded["train/loss"]) == 300
        session = read_run(nasty / "23_session_log_start")
        assert session.segments[1].first_step == 200
        assert len(session.channels["train/loss"]) + len(session.superseded["train/loss"]) == 600

    def test_nasty_files_that_are_none(self, shared_data):
        quiet = scan_runs(shared_data / "nasty" / "tb" / "18_profile_empty")
        assert list(quiet) == []
        assert (quiet.problems, quiet.ignored) == ([], [])
        garbage = scan_runs(shared_data / "nasty" / "tb" / "25_garbage_not_an_event_file")
        assert list(garbage) == []
        assert [p.code for p in garbage.problems] == ["not-a-log", "not-a-log"]
