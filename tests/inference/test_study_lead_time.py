"""The study of lead times on a simulated cohort whose warning channel, lead and coordination are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from trajscope.errors import NotEnoughData
from trajscope.history.run import Run, RunData, named_channel
from trajscope.inference.studies.lead_time import MEASURES, coordination, study
from trajscope.report.study import write_study
from trajscope.simulate import ar

ONSET, ROWS = 300, 400


def simulate(seed, ill, stride):
    """Gradient norms grow for 30 rows before the loss of an ill run rises at ONSET; healthy runs are noise about it."""
    rng = np.random.default_rng(seed)
    t, noise = np.arange(ROWS), ar(ROWS, 0.3, 4, rng=rng)
    grow = np.clip((t - ONSET + 30) / 10, 0, 4) * ill
    parts = {
        "loss": np.exp(0.05 * noise[:, 0] + ill * (t >= ONSET)),
        "grad_norm": np.exp(0.1 * noise[:, 1] + grow),
        "update_norm": np.exp(0.1 * noise[:, 2] + grow - 3),
        "param_norm": np.exp(2 + 0.01 * noise[:, 3]),
    }
    channels = {n: named_channel(n, t * stride, v) for n, v in parts.items()}
    channels["val/accuracy"] = named_channel("val/accuracy", t * stride, 0.9 - 0.5 * ill * (t >= ONSET))
    return Run(f"r{seed}", RunData(channels))


def cohort():
    runs, rows = {}, []
    for domain, stride in (("slow", 10), ("quick", 1)):
        for k in range(44):
            seed = k + 1000 * stride
            ill = k >= 32
            runs[f"r{seed}"] = simulate(seed, ill, stride)
            rows.append(
                {
                    "run": f"r{seed}",
                    "domain": domain,
                    "stratum": f"{domain}/a",
                    "seed": k % 22,
                    "split": "calibration" if k < 22 or k >= 38 else "heldout",
                    "outcome": "irrecoverable" if ill else "none",
                    "onset_step": float(ONSET * stride) if ill else None,
                    "ramp": ill,
                }
            )
    for row in rows:
        row["purpose"] = "arms"
    runs["grid"] = runs[rows[0]["run"]]
    rows.append({**rows[0], "run": "grid", "purpose": "grid"})
    rows.append({**rows[-2], "run": "gone"})
    rows.append({**rows[0], "run": "recovered", "axis": "optimization"})
    return runs, pd.DataFrame(rows)


@pytest.fixture(scope="module")
def found():
    from trajscope.errors import ReadError

    runs, labels = cohort()

    def read(name):
        if name not in runs:
            raise ReadError(f"{name}: no such run")
        return runs[name]

    return study(read, labels, alpha=0.05, rng=3)


def test_the_channel_that_warns_is_found_with_its_lead_and_in_strides_where_domains_are_pooled(found):
    table = found.tables["lead_time"]
    assert set(table["domain"]) == {"slow", "quick", "all"}
    assert set(table["origin"]) == {"from within"}
    assert set(table["alpha"]) == {0.05, 0.1}
    own = table[(table["alpha"] == 0.05) & (table["indicator"] == "grad_z")].set_index("domain")
    assert own["timely"].tolist() == own["n_events"].tolist()
    assert own.loc["all", "n_events"] == own.loc["slow", "n_events"] + own.loc["quick", "n_events"] == 12
    assert 15 <= own.loc["quick", "median_lead"] <= 30
    assert own.loc["slow", "median_lead"] == pytest.approx(10 * own.loc["quick", "median_lead"], abs=50)
    assert 15 <= own.loc["all", "median_lead"] <= 30


def test_meta_states_are_scored_and_compared_in_pairs(found):
    table = found.tables["lead_time"]
    assert {"manifold", "pca D", "lds NIS", "raw", "joint"} <= set(table["indicator"])
    versus = found.tables["meta_against_single"]
    assert set(versus["verdict"]) <= {"leads", "trails", "cannot tell"}
    assert {"meta-state - single channel", "meta-state - rule of practice"} <= set(versus["comparison"])
    assert (versus["lead_low"] <= versus["lead_high"]).all()


def test_what_is_left_out_is_named_and_the_claim_gives_counts(found, tmp_path):
    assert found.skipped["gone"] == "gone: no such run"
    assert found.skipped["recovered"] == "neither an event nor a healthy run"
    assert found.skipped["grid"] == "1 healthy calibration runs of its settings; 9 are needed"
    assert "of 6 in time" in found.claim
    assert "3 labelled runs were not used" in found.claim
    assert "strides" in found.claim
    written = {p.name for p in write_study(found, tmp_path / "out")}
    assert {"claim.md", "lead_time.csv", "coordination.csv", "lead_all_from_within.pdf"} <= written
    assert "- not used, gone: no such run: gone" in (tmp_path / "out/claim.md").read_text()


def test_coordination_beside_a_healthy_run_at_the_same_step(found):
    table = found.tables["coordination"].set_index(["domain", "measure"])
    one = table.loc[("quick", "correlation")]
    assert one["difference"] == pytest.approx(one["mean"] - one["healthy_mean"])
    assert one["healthy_significant"] <= 3  # independent channels: a null true by construction, twelve runs at 5 %


def test_coordination_of_independent_channels_fires_at_its_level():
    found = [coordination(simulate(s, False, 1), 300, n=99, rng=s) for s in range(80)]
    for name in MEASURES:
        assert sum(f[f"p_{name}"] <= 0.05 for f in found) <= binom.ppf(0.998, 80, 0.05)


def test_too_few_healthy_runs_is_said():
    runs, labels = cohort()
    few = labels[(labels["split"] == "heldout") | labels["onset_step"].notna()]
    with pytest.raises(NotEnoughData, match="healthy"):
        study(runs.__getitem__, few, alpha=0.05, rng=0)
