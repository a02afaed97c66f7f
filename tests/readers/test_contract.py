"""Every registered reader keeps the contract, and the contract suite notices when one does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_samples import SAMPLES

from trajscope.errors import InputError, TrajscopeError
from trajscope.history import Problem, Series, Source
from trajscope.readers import Reader, Rejected, readers, scan_runs
from trajscope.testing import ContractViolation, check_reader, damaged

BY_NAME = {r.name: r for r in readers()}


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_reader(name, tmp_path):
    assert name in SAMPLES, "a new reader needs a sample in log_samples.py"
    assert check_reader(BY_NAME[name], SAMPLES[name](tmp_path)) >= 30


class Good(Reader):
    """A reader of lines ``step value`` under a line ``toy``."""

    name = "toy"
    title = "Toy log"

    def can_read(self, path, head):
        return head.startswith(b"toy\n")

    def sources(self, files, key, options):
        source = Source(options.label(files[0]))
        rows, bad = [], 0
        for line in files[0].read_bytes().split(b"\n")[1:-1]:
            try:
                step, value = line.split()
                rows.append((int(step) % 2**40, float(value)))
            except ValueError:
                bad += 1
        if bad:
            source.problems.append(Problem("bad-line", "warning", "Lines left out", source.file, count=bad))
        for channel in ("a", "b"):
            if rows and options.wants(channel):
                steps, values = (np.array(c) for c in zip(*rows, strict=True))
                source.series[channel] = Series(steps, values)
        return [source]


def spoiled(method, change):
    """A reader whose ``method`` has its answer changed."""

    def wrapped(self, *arguments):
        return change(self, getattr(Good, method)(self, *arguments), *arguments)

    return type("Spoiled", (Good,), {method: wrapped})()


def on_sources(edit):
    def change(reader, sources, *arguments):
        edit(sources[0], *arguments)
        return sources

    return spoiled("sources", change)


def as_text(source, *_):
    source.series["a"] = Series(np.arange(3), np.array(["x", "y", "z"]))


def uneven(source, *_):
    source.series["a"] = Series(np.arange(3), np.zeros(4))


def no_step(source, *_):
    source.series["a"] = Series(np.array([0.0, np.nan]), np.zeros(2))


def backwards(source, *_):
    source.series["a"] = Series(np.arange(2), np.zeros(2), None, np.array([5, 4]))


def shouting(source, *_):
    source.problems.append(Problem("Bad Line", "warning", "x"))


def unfiltered(source, *_):
    source.series["b"] = Series(np.arange(2), np.zeros(2))


def writing(source, files, *_):
    files[0].write_bytes(files[0].read_bytes() + b"9 9\n")


def fragile(source, files, *_):
    if not files[0].read_bytes().endswith(b"29 2.9\n"):
        raise KeyError("end")


@pytest.fixture
def sample(tmp_path):
    path = tmp_path / "log.toy"
    path.write_bytes(b"toy\n" + b"".join(b"%d %.1f\n" % (s, s / 10) for s in range(30)))
    return path


class TestSuite:
    def test_a_good_reader_passes(self, sample):
        assert check_reader(Good(), sample) == 60

    @pytest.mark.parametrize(
        ("reader", "words"),
        [
            (on_sources(as_text), "no numbers"),
            (on_sources(uneven), "one-dimensional"),
            (on_sources(no_step), "without a step"),
            (on_sources(backwards), "rows must not decrease"),
            (on_sources(shouting), "kebab-case"),
            (on_sources(unfiltered), "leave out every other channel"),
            (on_sources(writing), "different points|changed the files"),
            (on_sources(fragile), "reading ended in KeyError"),
            (spoiled("can_read", lambda *_: "yes"), "True or False"),
            (spoiled("can_read", lambda *_: False), "refuses the sample"),
            (spoiled("group", lambda reader, groups, files: groups * 2), "no file into two runs"),
            (spoiled("keys", lambda *_: ["x", "x"]), "distinct"),
            (type("Nameless", (Good,), {"title": ""})(), "title"),
            (type("Loud", (Good,), {"name": "TOY log"})(), "kebab-case"),
        ],
        ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
    )
    def test_a_bad_reader_is_told_what_is_wrong(self, sample, reader, words):
        with pytest.raises(ContractViolation, match=words):
            check_reader(reader, sample)

    def test_a_refusal_needs_a_reason(self, sample):
        def refuse(reader, answer, path, head):
            raise Rejected("no")

        with pytest.raises(ContractViolation, match="say why"):
            check_reader(spoiled("can_read", refuse), sample)

    def test_a_missing_sample(self, tmp_path):
        with pytest.raises(InputError, match="does not exist"):
            check_reader(Good(), tmp_path / "absent")

    @settings(max_examples=100, deadline=None)
    @given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
    def test_damage_is_damage_and_repeatable(self, data, seed):
        hurt = damaged(data, np.random.default_rng(seed))
        assert hurt != data
        assert hurt == damaged(data, np.random.default_rng(seed))


NAMES = ["a.csv", "progress.csv", "log.txt", "x.jsonl", "result.json", "events.out.tfevents.1", "run-a.wandb", "a.npz"]


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(NAMES), content=st.one_of(st.binary(max_size=400), st.text(max_size=200).map(str.encode)))
def test_any_bytes_under_any_name(tmp_path_factory, name, content):
    """Whatever lies there: runs, problems, or an error of the tree."""
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(content)
    said = []
    for place in (path, path.parent):
        for run in scan_runs(Path(place)):
            try:
                _ = run.data
            except TrajscopeError as problem:
                said.append(str(problem))
    assert not [text for text in said if "reader failed" in text]
