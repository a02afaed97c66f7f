"""Identifiability: systems with a known answer, and what must not pass."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from trajscope._core.kalman import Model, simulate_states
from trajscope.errors import InputError, NotEnoughData
from trajscope.inference._ident_structure import fisher_information, moment_jacobian, n_parameters, structure_of
from trajscope.inference.identifiability import identifiability
from trajscope.metastate import LinearStateSpace, PCAState, SlowFeatures
from trajscope.simulate import ar, state_space

QUICK = {"n_surrogates": 19, "n_boot": 19, "n_seeds": 2, "n_splits": 2}


def system(n_runs, n_steps, rates=(0.97, 0.85), p=10, seed=0):
    rng = np.random.default_rng(seed)
    model = state_space(50, rates, p, rng=rng)[2]
    return [simulate_states(model, n_steps, rng) @ model.c.T + rng.normal(size=(n_steps, p)) for _ in range(n_runs)]


def verdicts(found):
    return {p.name: p.verdict for p in found.parts + found.beside}


@pytest.fixture(scope="module")
def two_states():
    return identifiability(SlowFeatures(2), system(4, 500), **QUICK)


def test_a_two_state_system_passes_every_part(two_states):
    assert verdicts(two_states) == dict.fromkeys(
        ("dimension", "structure", "refit", "practical", "prediction", "ablation", "axes"), "pass"
    )
    assert two_states.verdict == "identifiable"
    assert two_states.low_dimensional
    rates = [p for p in two_states.profiles if p.name.startswith("eigen")]
    for profile, truth in zip(rates, (0.97, 0.85), strict=True):
        assert profile.low < truth < profile.high


def test_principal_components_of_equal_variance_are_a_plane_without_axes():
    found = verdicts(identifiability(PCAState(2), system(4, 400, p=8), **QUICK))
    assert found.pop("axes") == "fail"
    assert set(found.values()) == {"pass"}


def test_a_state_space_passes_as_well():
    found = identifiability(LinearStateSpace(1), system(3, 200, (0.9,), 5, seed=1), **QUICK)
    assert found.verdict == "identifiable"
    assert found.seeds is not None
    assert np.ptp(found.seeds.log_likelihood) < 1


def test_equal_slownesses_are_a_plane_without_axes():
    found = verdicts(identifiability(SlowFeatures(2), system(4, 500, (0.95, 0.95), 8, seed=1), **QUICK))
    assert found["refit"] == "pass"
    assert found["axes"] == "fail"


@pytest.mark.parametrize("kind", ["white", "red", "walks"])
def test_channels_that_share_nothing_fail(kind):
    rng = np.random.default_rng(3)
    make = {
        "white": lambda: rng.normal(size=(200, 6)),
        "red": lambda: ar(200, 0.97, 6, rng=rng),
        "walks": lambda: rng.normal(size=(200, 6)).cumsum(axis=0),
    }[kind]
    found = identifiability(PCAState(2), [make() for _ in range(3)], **QUICK)
    assert found.verdict == "not identifiable"
    told = verdicts(found)
    assert told["dimension"] == "fail"
    assert told["refit"] == "fail"
    assert told["prediction"] == "fail"
    assert not found.low_dimensional


def test_one_state_too_many_fails():
    found = verdicts(identifiability(SlowFeatures(3), system(3, 300, p=7), **QUICK))
    assert {name for name, verdict in found.items() if verdict == "fail"} >= {
        "dimension",
        "refit",
        "practical",
    }


class Blind(PCAState):
    """A second state that no channel shows."""

    def _fit_model(self, xs, covariance):
        super()._fit_model(xs, covariance)
        self.loadings_[:, 1:] = 0.0


def test_an_unobservable_state_fails_structure():
    found = identifiability(Blind(2), system(3, 200, p=5), **QUICK)
    assert found.part("structure").verdict == "fail"
    assert found.part("structure").statistic > 4
    assert found.part("refit").verdict != "pass"


def test_a_duplicate_is_flagged():
    xs = system(3, 150, p=5)
    found = identifiability(PCAState(2), [np.c_[x, x[:, 0]] for x in xs], **QUICK)
    assert found.ablation.duplicates == [("x0", "x5")]
    assert "duplicates: x0, x5" in found.part("ablation").flags


def test_a_state_of_one_channel_is_flagged():
    rng = np.random.default_rng(0)
    lone = [np.c_[x, 4 * ar(250, 0.97, rng=rng)] for x in system(3, 250, (0.9,), 6)]
    found = identifiability(PCAState(2, scale=None), lone, **QUICK)
    part = found.part("ablation")
    assert part.verdict == "fail"
    assert found.ablation.drivers == ["x6"]
    assert "driven by x6" in part.flags[0]


def test_one_run_cannot_be_split_and_blocks_are_labelled():
    x = system(1, 1200, (0.9, 0.8), 8)
    found = identifiability(PCAState(2), x, **QUICK)
    assert found.part(3).verdict == found.part(5).verdict == "cannot test"
    assert found.verdict == "cannot tell"
    blocks = identifiability(PCAState(2), x, split="block", **QUICK)
    assert blocks.part(3).verdict == "pass"
    assert "block split" in blocks.part(3).flags


def test_no_component_is_no_state():
    found = identifiability(PCAState(), [np.random.default_rng(i).normal(size=(200, 6)) for i in range(4)], **QUICK)
    assert found.n_components == 0
    assert found.verdict == "not identifiable"
    assert "found no state" in found.statement


def test_same_seed_same_numbers():
    xs = system(2, 80, p=4)
    first, second = (identifiability(PCAState(1), xs, rng=5, **QUICK).to_frame(beside=True) for _ in range(2))
    assert first.equals(second)


def test_result_forms(two_states):
    frame = two_states.to_frame()
    assert frame["part"].tolist() == [1, 2, 3, 4, 5, 6]
    assert {"part", "verdict", "statistic", "null", "threshold"} <= set(frame.columns)
    assert two_states.to_frame(beside=True).shape[0] == 7
    assert two_states.statement in two_states.summary()
    assert "<table" in two_states._repr_html_()
    assert two_states.to_dict()["verdict"] == "identifiable"
    with pytest.raises(InputError, match="no part 'nonsense'"):
        two_states.part("nonsense")


def test_the_state_of_another_domain():
    xs = system(6, 300, p=8)
    strange = system(3, 300, p=8, seed=9)
    found = identifiability(PCAState(2), xs[:3], other={"same": xs[3:], "strange": strange}, **QUICK)
    told = verdicts(found)
    assert told["carried to same"] == "pass"
    assert told["carried to strange"] == "fail"
    renamed = [pd.DataFrame(x, columns=[f"y{i}" for i in range(8)]) for x in xs[:2]]
    with pytest.raises(InputError, match="share 0 moving channels"):
        identifiability(PCAState(1), [x[:30] for x in xs[:2]], other={"renamed": renamed}, **QUICK)


def test_gaps_are_taken():
    rng = np.random.default_rng(0)
    xs = system(2, 250, p=5)
    for x in xs:
        x[rng.random(x.shape) < 0.1] = np.nan
    assert identifiability(PCAState(2), xs, **QUICK).part("refit").verdict == "pass"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "row"}, "split is 'row'"),
        ({"n_surrogates": 5}, "n_surrogates is 5"),
        ({"n_blocks": 1}, "n_blocks is 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        identifiability(PCAState(1), [np.random.default_rng(0).normal(size=(50, 4))], **options)


def test_bad_input():
    with pytest.raises(InputError, match="has no fit"):
        identifiability(3, [np.zeros((50, 4))])
    with pytest.raises(NotEnoughData, match="2 of 2 channels move"):
        identifiability(PCAState(1), [np.random.default_rng(0).normal(size=(50, 2))])


# ---- structure


def random_model(k, p, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(k, k))
    a *= 0.9 / np.abs(np.linalg.eigvals(a)).max()
    return Model.stationary(a, rng.normal(size=(p, k)), np.eye(k), np.ones(p))


@pytest.mark.parametrize(("k", "p", "n", "rank"), [(1, 10, 22, 21), (2, 10, 37, 33), (3, 10, 55, 46), (3, 20, 95, 86)])
def test_null_space_of_the_moments_is_that_of_the_coordinates(k, p, n, rank):
    size = np.linalg.svd(moment_jacobian(random_model(k, p)), compute_uv=False)
    assert n_parameters(k, p) == n
    assert (size > 1e-10 * size[0]).sum() == rank
    assert size[rank] < 1e-7 * size[rank - 1]


@pytest.mark.parametrize(
    ("a", "c", "null"),
    [
        (np.diag([0.9, 0.9]), np.repeat(np.arange(1.0, 11.0)[:, None], 2, axis=1), 16),
        (np.array([[0.9]]), np.ones((1, 1)), 1),
        (np.array([[0.0]]), np.ones((1, 1)), 2),
    ],
    ids=["doubled state", "AR(1) plus noise", "white"],
)
def test_null_spaces_that_are_known(a, c, null):
    model = Model.stationary(a, c, 0.3 * np.eye(len(a)), np.ones(len(c)))
    size = np.linalg.svd(moment_jacobian(model), compute_uv=False)
    assert n_parameters(*model.c.shape[::-1]) - (size > 1e-10 * size[0]).sum() == null


def test_jacobian_against_differences():
    model = random_model(2, 4)

    def moments(a, c, q, r):
        p = Model.stationary(a, c, q, r).p0
        c0 = c / np.sqrt(model.r)[:, None]
        out = [(c0 @ p @ c0.T + np.diag(r / model.r))[np.triu_indices(4)]]
        return np.concatenate(out + [(c0 @ np.linalg.matrix_power(a, j) @ p @ c0.T).ravel() for j in range(1, 5)])

    move = np.zeros((2, 2))
    move[0, 1] = 1e-6
    numeric = (
        moments(model.a + move, model.c, model.q, model.r) - moments(model.a - move, model.c, model.q, model.r)
    ) / 2e-6
    np.testing.assert_allclose(moment_jacobian(model)[:, 1], numeric, atol=1e-7)


def test_loadings_within_noise_are_no_state():
    model = state_space(10, rng=0)[2]
    weak = Model(model.a, model.c * np.array([1.0, 1e-3]), model.q, model.r, model.p0)
    assert structure_of(model, 1000.0).passed
    assert not structure_of(weak, 1000.0).passed
    assert structure_of(weak, 1000.0).unobserved == [1]


def test_information_of_an_autoregression():
    # a state seen without noise: the information in its rate is n / (1 - rate^2)
    model = Model.stationary(np.array([[0.8]]), np.ones((1, 1)), np.eye(1), np.full(1, 1e-9))
    information = fisher_information(model, 100.0, free_c=False)
    assert information[0, 0] == pytest.approx(100 / (1 - 0.64), rel=1e-3)
    assert information[1, 1] == pytest.approx(50, rel=1e-3)


def test_four_pictures(two_states):
    axes = two_states.plot()
    assert len(axes) == 4
    assert "held-out" in axes[0].get_xlabel()
    assert "claimed: 2" in axes[1].get_xlabel()
    one = identifiability(PCAState(1), system(1, 60, p=3), **QUICK)
    assert "cannot test" in [t.get_text() for t in one.plot()[0].texts]


def test_study_by_domain(monkeypatch):
    from functools import partial

    from trajscope.history.run import Run, RunData, named_channel
    from trajscope.inference.studies import identifiability as module

    monkeypatch.setattr(module, "identifiability", partial(identifiability, **QUICK))
    names = ("train/loss", "train/grad_norm", "train/update_norm", "train/param_norm")
    runs, rows = {}, []
    for domain in ("a", "b"):
        for i, x in enumerate(system(2, 80, p=4, seed=len(domain) + 3)):
            run = f"{domain}{i}"
            steps = np.arange(80.0)
            runs[run] = Run(
                run, RunData({n: named_channel(n, steps, np.exp(0.1 * v)) for n, v in zip(names, x.T, strict=True)})
            )
            rows.append({"run": run, "stratum": f"{domain}/net", "outcome": "none"})
    rows += [{**rows[0], "run": "hurt", "twin": "a0"}, {**rows[0], "run": "absent"}]
    found = module.study(runs.__getitem__, pd.DataFrame(rows))
    table = found.to_frame()
    assert set(table["domain"]) == {"a", "b"}
    assert {"PCAState"} <= set(table["estimator"])
    assert "absent" in found.skipped
    assert found.claim
    with pytest.raises(NotEnoughData, match="no domain has two healthy runs"):
        module.study(runs.__getitem__, pd.DataFrame(rows[:1]))
