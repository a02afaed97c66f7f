"""The study of the manifold on runs made for it: what counts as found, as false, and as left out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from trajscope.cli.study import command
from trajscope.detect.manifold import COMMON
from trajscope.errors import InputError, NotEnoughData
from trajscope.history.labels import check_labels
from trajscope.history.run import Run, RunData, named_channel
from trajscope.inference._manifold_cases import cases_of, level_for, tally
from trajscope.inference.studies.manifold import CARRIED, MANIFOLD, OWN, OWN_RATE, RAW, study

ROWS, EVENT = 120, 70


def channels(seed: int, event: bool, unit: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    after = (np.arange(ROWS) >= EVENT) * float(event)
    walk = 5 + 0.01 * np.cumsum(rng.normal(size=ROWS))
    return {
        "train/loss": unit * np.exp(-np.arange(ROWS) / 50 + 0.1 * rng.normal(size=ROWS) + 2 * after),
        "grad_norm": unit * np.exp(0.2 * rng.normal(size=ROWS) + 2 * after),
        "grad_cos": np.tanh(0.3 * rng.normal(size=ROWS)),
        "update_norm": 0.1 * np.exp(0.2 * rng.normal(size=ROWS) + 2 * after),
        "param_norm": walk,
    }


def audit_of() -> tuple[dict[str, Run], pd.DataFrame]:
    runs, rows = {}, []
    for domain, unit in (("a", 1.0), ("b", 50.0)):
        for seed in range(24):
            for kind in ("control", "spike"):
                if kind == "spike" and seed >= 8:
                    continue
                name, event = f"{domain}-{seed}-{kind}", kind == "spike"
                data = {
                    k: named_channel(k, np.arange(ROWS), v)
                    for k, v in channels(seed + 1000 * (domain == "b"), event, unit).items()
                }
                runs[name] = Run(name, RunData(data))
                rows.append(
                    {
                        "run": name, "stratum": f"{domain}/net", "seed": seed,
                        "axis": "optimization" if event else None,
                        "injection_step": EVENT if event else None, "outcome": "irrecoverable" if event else "none",
                        "onset_step": EVENT + 5 if event else None, "confirmed_step": EVENT + 9 if event else None,
                        "split": "heldout" if seed % 2 else "calibration",
                    }
                )  # fmt: skip
    return runs, check_labels(pd.DataFrame(rows))


@pytest.fixture(scope="module")
def made() -> tuple[dict[str, Run], pd.DataFrame]:
    return audit_of()


def test_the_main_table_counts_what_happened(made: tuple[dict[str, Run], pd.DataFrame]) -> None:
    runs, labels = made
    found = study(runs.__getitem__, labels, alpha=0.1, rng=0)
    table = found.to_frame().set_index(["domain", "trained", "method"])
    assert {"a", "b"} == {d for d, *_ in table.index}
    for domain in ("a", "b"):
        own = table.loc[(domain, OWN, MANIFOLD)]
        assert (own["collapsed"], own["found"], own["n_calibration"]) == (4, 4, 12)
        assert own["runs"] == 16
        assert own["median_delay_rows"] == 2
        assert own["median_lead_rows"] == 3
        assert own["false_alarms"] <= 5
        for trained in (CARRIED, OWN_RATE):
            assert (
                table.loc[(domain, trained, MANIFOLD), "found"] + table.loc[(domain, trained, MANIFOLD), "false_alarms"]
                >= 3
            )
        assert (domain, OWN, RAW) in table.index
        assert sum(m.startswith("best channel") for d, t, m in table.index if (d, t) == (domain, OWN)) == 1
    assert found.tables["similarity"].loc[0, "similarity"] > found.tables["similarity"].loc[0, "random_95"]
    assert found.tables["by_axis"]["found"].tolist() == [4, 4]
    assert set(found.tables["channels_on_calibration"]["channel"]) == set(COMMON)
    assert "a: 4 of 4 held-out collapses" in found.claim
    assert found.skipped == {}
    again = study(runs.__getitem__, labels, alpha=0.1, rng=0)
    assert again.to_dict() == found.to_dict()
    assert set(found.figures) == {"manifold_a", "manifold_b"}
    frame = found.figures["manifold_a"].to_frame()
    assert frame["run"].nunique() == 10  # four collapses, six of the controls


def test_runs_that_do_not_fit_are_named_or_left_out(made: tuple[dict[str, Run], pd.DataFrame]) -> None:
    runs, labels = made
    table = labels.astype(object).where(labels.notna(), None)
    table.loc[0, "outcome"] = "not learned"
    table.loc[table["run"] == "b-1-spike", "stratum"] = "b/other"
    alone = {"run": "grid-1", "stratum": "grid", "split": "calibration", "outcome": "none"}
    table = check_labels(pd.concat([table, pd.DataFrame([alone])], ignore_index=True))
    cases, skipped = cases_of(runs.__getitem__, table)
    assert "grid-1" not in {c.run for c in cases} | set(skipped)
    assert "not learned" in skipped["a-0-control"]
    assert "no healthy calibration run in its condition (b/other|" in skipped["b-1-spike"]
    assert {c.kind for c in cases} == {"control", "collapsed"}
    less = {k: c for k, c in runs["a-2-control"].channels.items() if k in ("train/loss", "grad_norm")}
    double = {**runs, "copy": Run("copy", RunData(less))}
    extra = pd.DataFrame([{**labels.loc[labels["run"] == "a-2-control"].iloc[0].to_dict(), "run": "copy"}])
    both = check_labels(pd.concat([labels, extra], ignore_index=True))
    assert {c.run for c in cases_of(double.__getitem__, both)[0]} == {
        c.run for c in cases_of(runs.__getitem__, labels)[0]
    }
    with pytest.raises(InputError, match="split 'half'"):
        cases_of(runs.__getitem__, labels.assign(split="half"))
    undeclared = cases_of(runs.__getitem__, labels.assign(split=pd.NA))[0]
    assert {c.run for c in undeclared if c.held_out} == {
        c.run for c in cases_of(runs.__getitem__, labels)[0] if c.held_out
    }
    with pytest.raises(NotEnoughData, match="belongs to an audit"):
        study(runs.__getitem__, labels[labels["axis"].isna()], alpha=0.1)


def record(kind: str, step: float, injection: float, onset: float = math.nan) -> dict[str, object]:
    early = step < injection
    hit = kind == "collapsed" and step >= injection
    return {
        "kind": kind, "crossing": step, "false_alarm": early, "found": hit,
        "lead": onset - step if hit else -math.inf, "lead_rows": onset - step if hit else -math.inf,
        "delay_rows": step - injection if hit else math.inf, "confirmed_after": hit and step <= onset + 3,
    }  # fmt: skip


def test_an_early_crossing_is_false_and_finds_nothing() -> None:
    counted = tally(
        [
            record("collapsed", 72, 70, 75),
            record("collapsed", 40, 70, 75),
            record("collapsed", math.nan, 70, 75),
            record("control", 90, math.inf),
            record("control", math.nan, math.inf),
            record("perturbed", 71, 70),
            record("perturbed", 10, 70),
        ]
    )
    assert (counted["found"], counted["collapsed"], counted["false_alarms"], counted["runs"]) == (1, 3, 3, 7)
    assert (counted["control_alarms"], counted["controls"]) == (1, 2)
    assert (counted["perturbed"], counted["perturbed_crossed"]) == (2, 1)
    assert counted["median_lead_rows"] == -math.inf
    assert counted["before_onset"] == pytest.approx(1 / 3)


def test_a_rate_that_cannot_be_certified_gives_way_to_the_smallest_that_can() -> None:
    assert level_for(0.05, 19) == 0.05
    assert level_for(0.05, 10) == pytest.approx(1 / 11)


def test_the_command_writes_tables_figures_and_claim(made: tuple[dict[str, Run], pd.DataFrame], tmp_path: Path) -> None:
    runs, labels = made
    for name, run in runs.items():
        folder = tmp_path / "logs" / name
        folder.mkdir(parents=True)
        table = pd.DataFrame({"step": np.arange(ROWS), **{k: c.values for k, c in run.channels.items()}})
        table.to_csv(folder / "metrics.csv", index=False)
    named = labels.assign(run=labels["run"] + "/metrics.csv")
    named.to_csv(tmp_path / "labels.csv", index=False)
    out = CliRunner().invoke(
        command,
        ["manifold", str(tmp_path / "logs"), "--labels", str(tmp_path / "labels.csv"), "-o", str(tmp_path / "out"),
         "--alpha", "0.1"],
        standalone_mode=False,
    )  # fmt: skip
    assert out.exception is None, out.output
    assert "4 of 4 held-out collapses" in out.output
    written = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"manifold.csv", "similarity.csv", "claim.md", "manifold_a.pdf", "manifold_b.png"} <= written
