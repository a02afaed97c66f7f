"""First mover: order, ties, the null, and saying that it cannot tell."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom

from trajscope.detect.first_mover import first_mover
from trajscope.errors import InputError
from trajscope.simulate import ar


def channels(leads: dict[str, int | None], n: int = 500, at: int = 300, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    out = {}
    for name, lead in leads.items():
        x = 10 + rng.normal(size=n)
        if lead is not None:
            x[at - lead :] += 30
        out[name] = x
    return out


def test_order_is_found_with_intervals():
    found = first_mover(channels({"update": 9, "loss": 5, "grad": 0, "calm": None}), event=300)
    assert (found.verdict, found.first) == ("first", ("update",))
    assert [m.channel for m in found.moves] == ["update", "loss", "grad", "calm"]
    assert [m.rank for m in found.moves] == [1, 2, 3, None]
    assert [m.step for m in found.moves] == [291, 295, 300, None]
    assert all(m.low < m.high for m in found.moves if m.moved)
    assert found.moves[0].direction == "up"
    assert found.p_value <= 0.05
    assert "update moved first" in found.summary()
    assert len(found.to_frame()) == 4


def test_moves_in_one_row_are_tied():
    found = first_mover(channels({"a": 4, "b": 4, "c": 0}), event=300)
    assert (found.verdict, set(found.first)) == ("cannot tell", {"a", "b"})
    assert "within one interval" in found.reason


def test_a_coarse_stride_ties():
    fine = channels({"a": 4, "b": 7})
    coarse = (np.arange(0, 500, 10), fine["b"][::10])  # left between 290 and 300: no telling against 296
    found = first_mover({"a": (np.arange(500), fine["a"]), "b": coarse}, event=300, before=100, after=20)
    assert found.verdict == "cannot tell"
    assert set(found.first) == {"a", "b"}


def test_an_order_that_happens_anywhere_means_nothing():
    rng = np.random.default_rng(0)
    wild = {k: 10 + rng.standard_cauchy(600) for k in "abc"}
    found = first_mover(wild, event=300)
    assert found.verdict == "cannot tell"
    assert found.p_value > 0.05


def test_false_orders_are_rare():
    rng = np.random.default_rng(1)
    hit = 0
    for _ in range(40):
        run = {k: rng.normal(size=400) for k in "abcd"}
        hit += first_mover(run, event=float(rng.integers(200, 350)), n_null=39).verdict == "first"
    assert hit <= binom.ppf(0.999, 40, 0.05)


def test_nothing_moved_too_short_and_nan():
    assert "no channel left" in first_mover(channels({"a": None, "b": None}), event=300).reason
    short = {"a": np.arange(8.0), "b": np.arange(8.0)}
    assert "fewer than two" in first_mover(short, event=6).reason
    both = channels({"a": None, "b": None})
    both["a"][296:] = np.nan
    found = first_mover(both, event=300)
    assert found.first == ("a",)
    assert found.moves[0].step == 296


def test_run_wrapper_leaves_clocks_out():
    data = channels({"update": 9, "loss": 2})
    run = SimpleNamespace(
        channels={
            k: SimpleNamespace(name=k, steps=np.arange(500), values=v, role="loss" if k == "loss" else "update_norm")
            for k, v in data.items()
        }
        | {"t": SimpleNamespace(name="t", steps=np.arange(500), values=np.arange(500.0), role="elapsed")}
    )
    found = first_mover(run, 300)
    assert {m.channel for m in found.moves} == {"update", "loss"}
    assert found.to_dict() == first_mover(run, 300).to_dict()


def test_bad_arguments():
    data = channels({"a": 1, "b": 0})
    with pytest.raises(InputError, match="no channel 'x'"):
        first_mover(data, 300, channels=["x"])
    with pytest.raises(InputError, match="event is nan"):
        first_mover(data, float("nan"))
    with pytest.raises(InputError, match="out of range"):
        first_mover(data, 300, c=0)
    with pytest.raises(InputError, match="mapping of channel names"):
        first_mover([1, 2], 300)
    with pytest.raises(InputError, match="each side"):
        first_mover(data, 300, before=-1)


@pytest.mark.parametrize(("phi", "ramp"), [(0.0, 0), (0.5, 0), (0.5, 12)])
def test_intervals_cover_the_beginning_and_ties_stay_ties(phi, ramp):
    covered = judged = wrong = 0
    for seed in range(25):
        rng = np.random.default_rng([seed, ramp])
        x = 10 + ar(500, phi, 3, rng=rng)
        t = np.arange(500)
        x += 15 * (np.clip((t - 299) / ramp, 0, 1) if ramp else t >= 300)[:, None]
        found = first_mover(dict(zip("abc", x.T, strict=True)), event=300, n_null=39, rng=seed)
        covered += sum(m.low < 300 <= m.high for m in found.moves if m.moved)
        judged += sum(m.moved for m in found.moves)
        wrong += found.verdict == "first"
    assert judged >= 70
    assert covered >= binom.ppf(0.001, judged, 0.95)
    assert wrong <= binom.ppf(0.999, 25, 0.05)


def test_an_exit_that_noise_makes_elsewhere_too_is_not_first():
    data = channels({"a": None, "b": 0, "c": 0})
    at = np.random.default_rng(3).choice(np.arange(110, 500), 12, replace=False)
    data["a"][at] += 40  # single rows, anywhere
    data["a"][280] += 40
    found = first_mover(data, event=300)
    assert found.verdict == "cannot tell"
    assert "random times" in found.reason


def test_plot_shows_a_row_a_channel():
    found = first_mover(channels({"update": 9, "loss": 5, "<b>$x$": 0, "calm": None}), event=300)
    ax = found.plot()
    assert [t.get_text().split(" ")[0] for t in ax.get_yticklabels()][:2] == ["update", "loss"]
    assert "moved first" in ax.get_title(loc="left")
    assert set(found.traces) == {"update", "loss", "<b>$x$", "calm"}
