"""Monitor files, evaluation archives, learning curves and RLlib trials."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trajscope.errors import InputError
from trajscope.history import Run
from trajscope.readers import arrays, read_run, scan_runs


def codes(run: Run) -> list[str]:
    return [p.code for p in run.problems]


# --- monitor


def monitor(path: Path, start: float, episodes: list[tuple[Any, ...]], names: str = "r,l,t") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "#" + json.dumps({"t_start": start, "env_id": "CartPole-v1"})
    path.write_text("\n".join([head, names, *(",".join(map(str, e)) for e in episodes)]) + "\n")
    return path


def test_monitor_steps_are_the_episodes_lengths_summed_over_environments_by_time(tmp_path: Path) -> None:
    monitor(tmp_path / "0.monitor.csv", 1.7e9, [(1.0, 10, 1.0), (2.0, 20, 5.0)])
    monitor(tmp_path / "1.monitor.csv", 1.7e9 + 0.5, [(3.0, 5, 1.0), (4.0, 7, 2.0)])
    (run,) = scan_runs(tmp_path)
    assert run.channels["r"].values.tolist() == [1.0, 3.0, 4.0, 2.0]
    assert run.channels["r"].steps.tolist() == [10, 15, 22, 42]
    assert run.channels["r"].wall_time is not None
    assert run.channels["r"].wall_time.tolist() == [1.7e9 + 1, 1.7e9 + 1.5, 1.7e9 + 2.5, 1.7e9 + 5]
    assert run.config == {"env_id": "CartPole-v1", "n_envs": 2}
    assert run.channels["r"].role == "return"
    assert len(run.segments) == 1


def test_monitors_started_far_apart_are_two_runs(tmp_path: Path) -> None:
    monitor(tmp_path / "0.monitor.csv", 1.7e9, [(1.0, 10, 1.0)] * 3)
    monitor(tmp_path / "1.monitor.csv", 1.7e9 + 86400, [(1.0, 10, 1.0)] * 3)
    assert len(list(scan_runs(tmp_path))) == 2


def test_monitor_extra_columns_and_glued_rows(tmp_path: Path) -> None:
    rows: list[tuple[Any, ...]] = [(1.0, 10, 1.0, True), (2.0, 10, 2.0, False), (3.0, 10, "3.04.0", 10, 3.5, True)]
    run = read_run(monitor(tmp_path / "monitor.csv", 1.7e9, [*rows, (5.0, 10, 5.0, True)], "r,l,t,is_success"))
    assert run.channels["is_success"].values.tolist() == [1.0, 0.0, 1.0]
    assert run.channels["r"].steps.tolist() == [10, 20, 30]
    assert "glued-row" in codes(run)


def test_monitor_half_line_and_missing_header_object(tmp_path: Path) -> None:
    path = monitor(tmp_path / "monitor.csv", 1.7e9, [(1.0, 10, 1.0), (2.0, 10, 2.0)])
    path.write_text(path.read_text() + "3.0,1")
    run = read_run(path)
    assert len(run.channels["r"]) == 2
    assert "half-line" in codes(run)
    path.write_text("r,l,t\n1.0,10,1.5\n2.0,10,2.5\n")
    assert read_run(path).channels["r"].wall_time is None


# --- evaluations.npz


def evaluations(path: Path, n: int = 6, k: int = 4) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    content = {
        "timesteps": np.arange(1, n + 1) * 1000,
        "results": rng.normal(size=(n, k)),
        "ep_lengths": rng.integers(5, 50, size=(n, k)),
        "successes": rng.random((n, k)) < 0.5,
    }
    np.savez(path, **content)
    return content


def test_evaluations_keep_every_episode_and_what_the_callback_logs(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.npz"
    content = evaluations(path)
    run = read_run(path)
    np.testing.assert_array_equal(run.channels["results/2"].values, content["results"][:, 2])
    np.testing.assert_allclose(run.channels["eval/mean_reward"].values, content["results"].mean(1))
    np.testing.assert_allclose(run.channels["eval/std_reward"].values, content["results"].std(1))
    np.testing.assert_allclose(run.channels["eval/success_rate"].values, content["successes"].mean(1))
    assert run.channels["eval/mean_ep_length"].steps.tolist() == content["timesteps"].tolist()
    assert run.channels["eval/mean_reward"].role == "eval_return"
    assert run.problems == ()


def test_pickles_are_refused_and_never_executed(tmp_path: Path) -> None:
    flag = tmp_path / "executed"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (flag.write_text, ("x",))

    path = tmp_path / "evaluations.npz"
    np.savez(path, timesteps=np.arange(3), results=np.array([Evil(), 1, 2], dtype=object))
    run = read_run(path)
    assert not flag.exists()
    assert run.n_points == 0
    assert [p.message for p in run.problems if p.code == "pickle-refused"] == [
        "results holds pickled Python objects, which are never loaded"
    ]
    np.save(tmp_path / "loss.npy", np.array([Evil()], dtype=object))
    assert "pickle-refused" in codes(read_run(tmp_path / "loss.npy"))
    assert not flag.exists()


def test_zip_bomb_is_not_inflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_BYTES", 1 << 16)
    path = tmp_path / "evaluations.npz"
    np.savez_compressed(path, timesteps=np.arange(10), results=np.zeros((10, 100000)))
    run = read_run(path)
    assert "too-large" in codes(run)
    assert run.n_points == 0
    body = path.read_bytes()
    lying = body.replace(np.int64(8 * 10**6 + 128).tobytes()[:4], np.int64(100).tobytes()[:4])
    path.write_bytes(lying)
    assert read_run(path).n_points == 0


def test_archive_cut_anywhere_gives_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.npz"
    content = evaluations(path)
    data = path.read_bytes()
    seen = set()
    for cut in range(100, len(data), 7):
        path.write_bytes(data[:cut])
        run = read_run(path)
        if "eval/mean_reward" in run.channels:
            kept = run.channels["results/0"]
            np.testing.assert_array_equal(kept.values, content["results"][: len(kept), 0])
            seen.add(len(kept))
    assert 6 in seen
    assert len(seen) > 1


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(4, 2000), byte=st.integers(0, 255))
def test_a_changed_byte_in_an_archive_never_raises(tmp_path: Path, position: int, byte: int) -> None:
    path = tmp_path / "evaluations.npz"
    evaluations(path)
    data = bytearray(path.read_bytes())
    data[position % len(data)] = byte
    path.write_bytes(bytes(data))
    for run in scan_runs(path):
        _ = run.channels


def test_member_paths_of_an_archive_lead_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.npz"
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("timesteps.npy", buffer.getvalue())
        archive.writestr("../../results.npy", buffer.getvalue())
    assert read_run(path).n_points == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["evaluations.npz"]


# --- learning curves


def test_curve_without_x_says_so_and_takes_a_stride(tmp_path: Path) -> None:
    path = tmp_path / "learning_curves" / "Ant" / "TD3_Ant-v1_0.npy"
    path.parent.mkdir(parents=True)
    np.save(path, np.linspace(0, 1, 11))
    (run,) = scan_runs(tmp_path)
    assert run.channels["eval_return"].steps.tolist() == list(range(11))
    assert "no-step-column" in codes(run)
    strided = read_run(path, step="5000")
    assert strided.channels["eval_return"].steps[-1] == 50000
    assert strided.problems == ()
    with pytest.raises(InputError, match="give the number of steps between its entries"):
        read_run(path, step="epoch")


def test_arrays_that_are_no_curves_are_passed_over_unless_named(tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.zeros(9))
    np.save(tmp_path / "images.npy", np.zeros((2, 3, 4)))
    np.save(tmp_path / "weights.npy", np.zeros((5, 2)))
    scan = scan_runs(tmp_path)
    assert list(scan) == []
    assert sorted(scan.ignored) == ["features.npy", "images.npy", "weights.npy"]
    assert sorted(read_run(tmp_path / "weights.npy", step="1").channels) == ["weights/0", "weights/1"]
    assert "not-a-scalar" in codes(read_run(tmp_path / "images.npy"))


# --- RLlib


def results(n: int) -> list[dict[str, Any]]:
    return [
        {
            "episode_reward_mean": float("nan") if i == 0 else float(i),
            "timesteps_total": 1000 * (i + 1), "training_iteration": i + 1, "time_this_iter_s": 1.5,
            "date": "2020-02-23", "timestamp": 1582447834 + i, "done": False, "pid": 3,
            "hist_stats": {"episode_reward": list(range(i))},
            "info": {"learner": {"default_policy": {"kl": 0.01 * i}}}, "config": {"lr": 0.1},
            **({"evaluation": {"episode_reward_mean": 2.0 * i}} if i % 3 == 2 else {}),
        }
        for i in range(n)
    ]  # fmt: skip


def trial(root: Path, rows: list[dict[str, Any]], table_rows: int) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "result.json").write_text("".join(json.dumps(r) + "\n" for r in rows))
    lines = ["episode_reward_mean,timesteps_total,training_iteration,time_this_iter_s,timestamp,done"]
    lines += [f"{i if i else 'nan'},{1000 * (i + 1)},{i + 1},1.5,{1582447834 + i},False" for i in range(table_rows)]
    (root / "progress.csv").write_text("\n".join(lines) + "\n")
    (root / "params.json").write_text('{"lr": 0.2, "gamma": 0.9}')
    return root


def test_result_json_is_preferred_and_progress_csv_checks_it(tmp_path: Path) -> None:
    (run,) = scan_runs(trial(tmp_path / "trial", results(9), 9))
    assert run.format == "rllib"
    reward = run.channels["episode_reward_mean"]
    assert reward.counts["nan"] == 1
    assert reward.steps.tolist() == [1000 * (i + 1) for i in range(9)]
    assert run.channels["evaluation/episode_reward_mean"].steps.tolist() == [3000, 6000, 9000]
    assert run.channels["info/learner/default_policy/kl"].role == "kl"
    assert run.config == {"lr": 0.2, "gamma": 0.9}
    assert "frozen-header" in codes(run)
    assert "second-file" not in codes(run)
    assert not {"pid", "done", "date", "timestamp"} & set(run.channels)


def test_results_that_only_the_table_has_are_added_and_conflicts_reported(tmp_path: Path) -> None:
    root = trial(tmp_path / "trial", results(6), 9)
    text = (root / "progress.csv").read_text().replace("\n3,4000", "\n77,4000")
    (root / "progress.csv").write_text(text)
    (run,) = scan_runs(root)
    reward = run.channels["episode_reward_mean"]
    assert reward.values.tolist()[3:] == [3, 4, 5, 6, 7, 8]
    (note,) = [p for p in run.problems if p.code == "second-file"]
    assert note.severity == "warning"
    assert "episode_reward_mean at step 4000" in note.message


def test_empty_or_cut_result_json_and_lost_header(tmp_path: Path) -> None:
    root = trial(tmp_path / "a", results(6), 6)
    (root / "result.json").write_text("")
    (run,) = scan_runs(root)
    assert len(run.channels["episode_reward_mean"]) == 6
    assert "empty-file" in codes(run)
    root = trial(tmp_path / "b", results(6), 6)
    (root / "progress.csv").write_text((root / "progress.csv").read_text().split("\n", 1)[1])
    (root / "result.json").write_text((root / "result.json").read_text()[:-40])
    (run,) = scan_runs(root)
    assert len(run.channels["episode_reward_mean"]) == 5
    assert {"missing-header", "half-line"} <= set(codes(run))


def test_dictionaries_in_cells_of_old_tables_are_opened(tmp_path: Path) -> None:
    info = "{'learner': {'vf_loss': 1.5, 'kl': nan, 'ok': True}, 'last': None, 'name': 'inf'}"
    rows = "".join(f'{i},{1000 * i},1.5,"{info}","{{\'lr\': 0.1}}"\n' for i in range(1, 4))
    path = tmp_path / "progress.csv"
    path.write_text("training_iteration,timesteps_total,time_this_iter_s,info,config\n" + rows)
    run = read_run(path)
    assert run.channels["info/learner/vf_loss"].values.tolist() == [1.5] * 3
    assert run.channels["info/learner/kl"].counts["nan"] == 3
    assert run.channels["info/last"].n_missing == 3
    assert run.config == {"lr": 0.1}


def test_params_that_are_a_link_are_not_followed(tmp_path: Path) -> None:
    root = trial(tmp_path / "trial", results(3), 3)
    secret = tmp_path / "secret.json"
    secret.write_text('{"key": "value"}')
    (root / "params.json").unlink()
    (root / "params.json").symlink_to(secret)
    (run,) = scan_runs(root)
    assert "key" not in run.config


def test_arrays_of_an_archive_that_are_not_read_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", timesteps=np.arange(3), loot=np.array([{}, 1], dtype=object))
    run = read_run(tmp_path / "a.npz")
    assert not run.channels
    assert [p.code for p in run.problems] == ["not-a-scalar", "no-scalars"]
    assert "loot" in run.problems[0].message


def episodes(first: int, n: int, every: float = 1.5) -> str:
    return "".join(f"{first + i},10,{(i + 1) * every}\n" for i in range(n))


def test_an_appended_monitor_keeps_the_order_of_its_sessions(tmp_path: Path) -> None:
    path = tmp_path / "0.monitor.csv"
    path.write_text('#{"t_start": 1700000000.0, "env_id": "X"}\nr,l,t\n' + episodes(0, 10) + episodes(10, 12))
    run = read_run(path)
    assert run.channels["r"].values.tolist() == list(range(22))
    assert run.channels["r"].steps.tolist() == list(range(10, 230, 10))
    wall = run.channels["r"].wall_time
    assert wall is not None
    assert (np.diff(wall) > 0).all()
    (problem,) = [p for p in run.problems if p.code == "appended-session"]
    assert (problem.place, problem.count) == ("line 13", 1)


def test_a_session_with_a_first_line_of_its_own_keeps_its_times(tmp_path: Path) -> None:
    path = tmp_path / "0.monitor.csv"
    later = '#{"t_start": 1700000100.0, "env_id": "X"}\nr,l,t\n'
    path.write_text(later.replace("100.0", "000.0") + episodes(0, 5) + later + episodes(5, 5))
    run = read_run(path)
    assert run.channels["r"].values.tolist() == list(range(10))
    wall = run.channels["r"].wall_time
    assert wall is not None
    assert wall.tolist() == [1.7e9 + 1.5 * (i + 1) for i in range(5)] + [1.7e9 + 100 + 1.5 * (i + 1) for i in range(5)]
    assert {p.code for p in run.problems} == {"repeated-header"}


def test_two_processes_on_one_file_are_no_sessions(tmp_path: Path) -> None:
    path = tmp_path / "0.monitor.csv"
    rows = [(i, 10, 1.5 * (i // 2 + 1) + (0.2 if i % 2 == 0 else 0.0)) for i in range(40)]
    body = "".join(f"{r},{length},{t}\n" for r, length, t in rows)
    path.write_text('#{"t_start": 1700000000.0, "env_id": "X"}\nr,l,t\n' + body)
    run = read_run(path)
    assert not [p for p in run.problems if p.code == "appended-session"]
    assert sorted(run.channels["r"].values.tolist()) == list(range(40))
