"""Rolling VAR(1) and DMD: closed forms, the obvious regression, coverage, what is refused and what is warned of."""

from __future__ import annotations

import dynamics_systems as systems
import numpy as np
import pandas as pd
import pytest

from trajscope.dynamics import dmd, rolling_var
from trajscope.dynamics._var_stats import METHODS, estimate_windows, pope_bias
from trajscope.errors import InputError, NotEnoughData
from trajscope.history.trajectory import Trajectory
from trajscope.simulate import ar

A = np.array([[0.8, 0.3, 0.0], [0.0, 0.5, 0.1], [0.0, -0.2, 0.6]])


def test_matrix_of_the_last_window_is_least_squares_in_units_of_sd():
    x = systems.var(A, 400, 0)
    got = rolling_var(x, 200, methods="plain").main
    now, before = x[201:], x[200:-1]
    design = np.column_stack([np.ones(199), before])
    plain = np.linalg.lstsq(design, now, rcond=None)[0][1:].T
    sd = before.std(axis=0)
    np.testing.assert_allclose(got.matrix[-1], plain * sd[None, :] / sd[:, None], atol=1e-10)
    lam = np.linalg.eigvals(plain)
    assert got.modulus[-1] == pytest.approx(np.abs(lam).max())
    assert got.henrici[-1] == pytest.approx((got.matrix[-1] ** 2).sum() - (np.abs(lam) ** 2).sum())
    assert got.abscissa[-1] == pytest.approx(np.linalg.eigvalsh((got.matrix[-1] + got.matrix[-1].T) / 2)[-1])


def test_gradients_of_the_delta_method_against_finite_differences():
    """The standard error is that of the linear map A -> quantity: compare with the spread over small perturbations."""
    x = systems.var(A, 4000, 1)
    got = estimate_windows(x, 4000, ("plain",), rows=np.array([3999]))["plain"]
    matrix, n = got.matrix[0], got.count[0]
    z = x / x[:-1].std(axis=0)
    z = z - z.mean(axis=0)
    c0 = z[:-1].T @ z[:-1] / n
    e = z[1:] - z[:-1] @ matrix.T
    noise = e.T @ e / (n - 4)
    rng = np.random.default_rng(0)
    root_e, root_c = np.linalg.cholesky(noise), np.linalg.cholesky(np.linalg.inv(c0))
    step = 1e-4
    found = []
    for _ in range(4000):
        m = matrix + step * root_e @ rng.normal(size=(3, 3)) @ root_c.T
        lam = np.linalg.eigvals(m)
        henrici = (m**2).sum() - (np.abs(lam) ** 2).sum()
        found.append([np.abs(lam).max(), henrici, np.linalg.eigvalsh((m + m.T) / 2)[-1]])
    spread = np.std(found, axis=0) / step / np.sqrt(n)
    half = [
        (got.high - got.low) / 2,
        (got.henrici_high - got.henrici_low) / 2,
        (got.abscissa_high - got.abscissa_low) / 2,
    ]
    np.testing.assert_allclose([h[0] / 1.959964 for h in half], spread, rtol=0.06)


def test_pope_bias_of_one_channel_is_one_plus_three_rho():
    for rho in (-0.5, 0.0, 0.9):
        one = np.ones((1, 1, 1), dtype=complex)
        a = np.array([[[rho]]])
        got = pope_bias(a, np.ones((1, 1, 1)), a[:, :, 0].astype(complex), one, one)
        assert got[0, 0, 0] == pytest.approx(-(1 + 3 * rho))


@pytest.mark.parametrize(("rho", "n", "bias"), [(0.5, 50, -0.050), (0.9, 200, -0.0197)])
def test_bias_of_least_squares_and_its_correction(rho, n, bias):
    """METHODS known answers: -(1 + 3 rho)/n to first order."""
    x = ar(n, rho, 3000, rng=0).T.reshape(-1, 1)  # one series after the other, not linked
    ends = np.arange(n - 1, x.size, n)
    got = estimate_windows(x, n, ("plain",), linked=np.arange(x.size) % n > 0, rows=ends)["plain"]
    assert got.eigenvalues[:, 0].real.mean() - rho == pytest.approx(bias, rel=0.15)
    corrected = got.corrected
    if rho == 0.9:  # the modulus of small positive eigenvalues is no longer the eigenvalue
        assert abs(corrected.mean() - rho) < 0.35 * abs(bias)


@pytest.mark.parametrize("kind", ["ar", "rotation", "three"])
def test_intervals_cover(kind):
    """95 % nominal; a binomial bound on 300 draws for a coverage of 0.91 or more (the proof prints the values)."""
    turn = 0.9 * np.array([[np.cos(0.7), -np.sin(0.7)], [np.sin(0.7), np.cos(0.7)]])
    a = {"ar": np.array([[0.9]]), "rotation": turn, "three": A}[kind]
    truth = np.abs(np.linalg.eigvals(a)).max()
    hit = {"plain": 0, "instrument": 0}
    for seed in range(300):
        got = rolling_var(systems.var(a, 300, seed), 300, every=300)
        for m in hit:
            hit[m] += bool(got.estimates[m].low[-1] <= truth <= got.estimates[m].high[-1])
    assert min(hit.values()) >= 260  # P(X < 260 | p = 0.91) = 0.003


def test_observation_noise_fools_plain_and_sensor_noise_methods_call_noise_critical():
    """METHODS finding 7: the lag-2/lag-1 instrument is right, plain too low, TLS and FB near 1."""
    true = np.zeros((3, 3))
    true[0, 0] = 0.8
    true[1:, 1:] = 0.95 * np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])
    x = systems.var(true, 40_000, 0)
    x = x + np.random.default_rng(1).normal(size=x.shape) * x.std(axis=0) * 0.7
    got = rolling_var(x, 40_000, methods=METHODS, every=40_000)
    modulus = {m: e.modulus[-1] for m, e in got.estimates.items()}
    assert modulus["instrument"] == pytest.approx(0.95, abs=0.01)
    assert modulus["plain"] < 0.75
    assert min(modulus["tls"], modulus["fb"]) > 0.97
    assert sum("takes all noise" in w for w in got.warnings) == 2
    assert any("observation noise is likely" in w for w in rolling_var(x[:4000], 1000, every=50).warnings)


def test_a_flip_has_angle_pi_and_an_even_stride_hides_it():
    x = ar(4000, -0.95, rng=0)[:, 0]
    whole = rolling_var(x, 2000, methods="plain")
    assert whole.main.angle[-1] == pytest.approx(np.pi)
    assert whole.warnings == ()
    thinned = rolling_var(x[::2], 1000, steps=np.arange(0, 4000, 2), methods="plain")
    assert thinned.main.angle[-1] == 0.0
    assert thinned.stride == 2
    assert "even stride" in thinned.warnings[0]
    np.testing.assert_allclose(thinned.main.modulus[-1], 0.95**2, atol=0.03)
    np.testing.assert_allclose(thinned.recovery_rate()[-1], -np.log(0.95), atol=0.02)


def test_heavy_ball_is_sqrt_beta_until_it_is_not():
    """|eig| = sqrt(beta) inside (1 - sqrt b)^2 < eta lam < (1 + sqrt b)^2, exact."""
    beta = 0.9
    for product in (0.1, 1.0, 3.5):
        x, v, out = 1.0, 0.0, []
        for _ in range(60):
            v = beta * v - product * x
            x = x + v
            out.append([x, v])
        lam = dmd(np.array(out)).eigenvalues
        np.testing.assert_allclose(np.abs(lam), np.sqrt(beta), atol=1e-6)


def test_weak_instruments_give_no_value_instead_of_a_large_one():
    noise = np.random.default_rng(0).normal(size=(600, 3))
    got = rolling_var(noise, 200)
    inst = got.estimates["instrument"]
    assert inst.weak[250:].mean() > 0.9
    assert np.nanmax(inst.modulus[250:], initial=0.0) < 1.5
    assert np.isfinite(got.estimates["plain"].modulus[250:]).all()
    assert "cannot tell" in got.summary()


def trajectory(x: np.ndarray, segment: np.ndarray, steps: np.ndarray) -> Trajectory:
    return Trajectory(x, steps, tuple(f"c{i}" for i in range(x.shape[1])), segment=segment.astype(np.int16))


def test_windows_end_at_segments_and_pairs_at_gaps():
    x = systems.var(np.array([[0.7]]), 300, 3)
    segment = np.repeat([0, 1], 150)
    got = rolling_var(trajectory(x, segment, np.arange(300)), 100, methods="plain")
    alone = rolling_var(x[150:], 100, methods="plain")
    np.testing.assert_array_equal(got.main.modulus[150:], alone.main.modulus)
    steps = np.arange(300)
    steps[200:] += 1000
    gap = rolling_var(x, 100, steps=steps, methods="plain")
    assert gap.main.count[220] == 98  # one pair fewer: that across the gap
    holes = x.copy()
    holes[210] = np.nan
    missing = rolling_var(holes, 100, methods="plain")
    assert missing.steps.size == 299
    assert 210 not in missing.steps
    assert missing.main.count[-1] == 98


def test_rows_are_causal_and_inputs_untouched():
    x = systems.var(A, 300, 0)
    before = x.copy()
    full = rolling_var(x, 80).to_frame()
    np.testing.assert_array_equal(x, before)
    poisoned = x.copy()
    poisoned[200:] = 1e6
    pd.testing.assert_frame_equal(rolling_var(poisoned, 80).to_frame().iloc[:200], full.iloc[:200], check_exact=True)
    # the chunks of eigenvalue routines may differ in the last bits
    pd.testing.assert_frame_equal(rolling_var(x[:150], 80).to_frame(), full.iloc[:150], rtol=1e-9)
    thin = rolling_var(x, 80, every=50)
    np.testing.assert_array_equal(thin.steps, [49, 99, 149, 199, 249, 299])


def test_stride_is_that_of_the_complete_rows_of_a_trajectory():
    x = systems.var(A[:2, :2], 1000, 0)
    x[np.arange(1000) % 5 != 0, 1] = np.nan
    got = rolling_var(x, 100)
    assert got.stride == 5
    assert got.steps.size == 200
    assert "power 5" in got.summary()


@pytest.mark.parametrize(
    ("x", "why"),
    [
        (np.zeros(0), "0 complete rows"),
        (np.arange(5.0), "5 complete rows"),
        (np.ones(300), "does not vary"),
        (np.full((300, 2), np.nan), "0 complete rows"),
        (np.column_stack([np.arange(300.0) % 7, np.arange(300.0) % 7]), "collinear"),
    ],
)
def test_cannot_tell(x, why):
    got = rolling_var(x)
    assert got.status == "cannot tell"
    assert why in got.reason
    assert why in got.summary()
    assert len(got.to_frame()) == got.steps.size
    got.to_dict()


def test_irregular_rows_are_said():
    rng = np.random.default_rng(0)
    steps = np.cumsum(rng.integers(1, 50, 400))
    assert "irregular" in rolling_var(rng.normal(size=400), steps=steps).reason


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rolling_var(["a", "b"]), "not numeric"),
        (lambda: rolling_var(np.zeros((3, 3, 3))), "shape"),
        (lambda: rolling_var(np.zeros(9) + 1j), "complex"),
        (lambda: rolling_var(np.zeros(9), methods="ols"), "no method 'ols'"),
        (lambda: rolling_var(np.zeros(9), methods=()), "methods is empty"),
        (lambda: rolling_var(np.zeros(9), window=2), "out of range"),
        (lambda: rolling_var(np.zeros(9), steps=np.zeros(9)), "increase"),
        (lambda: rolling_var(np.zeros(9), steps=np.zeros(8)), "one number a row"),
        (lambda: rolling_var(pd.DataFrame({"loss": [1.0]}), channels=["los"]), "Did you mean 'loss'"),
        (lambda: dmd(np.zeros((9, 2)), rank=3), "rank is 3"),
        (lambda: dmd(np.zeros((9, 2)), method="x"), "no method 'x'"),
        (lambda: rolling_var(np.arange(300.0) % 7).recovery_rate("fb"), "was not estimated"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_dmd_refuses_what_holds_no_modes():
    with pytest.raises(NotEnoughData, match="complete rows"):
        dmd(np.zeros(3))
    with pytest.raises(NotEnoughData, match="no channel varies"):
        dmd(np.zeros((30, 2)))
    with pytest.raises(NotEnoughData, match="pairs"):
        dmd(np.random.default_rng(0).normal(size=(8, 6)))


def test_dmd_of_known_modes_and_another_implementation():
    t = np.arange(200)
    modes = np.random.default_rng(0).normal(size=(6, 3))
    x = np.column_stack([np.cos(0.3 * t), np.sin(0.3 * t), 0.97**t - (0.97**t).mean()]) @ modes.T
    got = dmd(x, rank=3)
    # about the mean, the decaying mode is affine: the regression keeps its eigenvalue
    np.testing.assert_allclose(np.abs(got.eigenvalues), [1, 1, 0.97], atol=1e-6)
    np.testing.assert_allclose(got.frequency[:2], 0.3 / (2 * np.pi), atol=1e-9)
    assert got.modes.shape == (6, 3)
    assert got.explained == pytest.approx(1.0)
    from deeptime.decomposition import DMD

    # an estimator without intercept: give both centred data, so that differences are of order 1/n
    y = systems.var(A, 5000, 0)
    y -= y.mean(axis=0)
    theirs = DMD().fit((y[:-1], y[1:])).fetch_model().eigenvalues
    np.testing.assert_allclose(np.sort(np.abs(theirs)), np.sort(np.abs(dmd(y).eigenvalues)), atol=2e-3)


def test_total_least_squares_and_forward_backward_against_frozen_numbers_of_pydmd():
    """Moduli by PyDMD 2025.8.1 on these rows: DMD(svd_rank=-1, tlsq_rank=2), FbDMD(svd_rank=-1), DMD(svd_rank=-1)."""
    x = systems.var(np.array([[0.9, 0.2], [-0.2, 0.9]]), 2000, 5)
    x -= x.mean(axis=0)
    for method, modulus in (("tls", 1.00022699), ("fb", 1.00021798), ("plain", 0.92569412)):
        np.testing.assert_allclose(np.abs(dmd(x, method=method).eigenvalues), modulus, atol=5e-5)
