"""`eve sweep`: an interrupted one goes on, finished runs are kept, other runs' folders refused."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from eve_acme.cli import sweep
from eve_acme.cli.main import main
from eve_acme.experiments import table
from eve_acme.files import read_sealed_json, write_sealed_json

ROOT = pathlib.Path(__file__).parents[2]
QUICK = ["--burn-in-episodes", "5", "--min-replay", "20", "--batches-per-step", "1"]


def test_an_interrupted_sweep_goes_on(tmp_path):
    words = ["sweep", "deep_sea:size=4", "--seeds", "0-1", "--jobs", "1", "--out", str(tmp_path)]
    rest = ["--", "--episodes", "400", *QUICK]
    process = subprocess.Popen(
        [sys.executable, "-m", "eve_acme.cli", *words, *rest],
        cwd=ROOT,
        start_new_session=True,
        # As a shell starts what is in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    setting = tmp_path / "eve-batches_per_step1-min_replay20"
    first = setting / "deep_sea-size4-seed0"
    deadline = time.monotonic() + 120
    while not (first / "config.json").exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=120) == 130
    assert (first / "checkpoint").exists()
    assert main([*words, *rest]) == 0
    for seed in (0, 1):
        folder = setting / f"deep_sea-size4-seed{seed}"
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["episodes"], summary["finished"]) == (400, True)
    before = (first / "summary.json").stat().st_mtime_ns
    assert main([*words, *rest]) == 0
    assert (first / "summary.json").stat().st_mtime_ns == before
    config = read_sealed_json(first / "config.json")
    config["config"]["omega"] = 7.0
    write_sealed_json(first / "config.json", config)
    assert main([*words, *rest]) == 2


def test_agents_settings_and_seeds_make_one_table(tmp_path, capsys):
    words = ["sweep", "deep_sea:size=4", "--seeds", "3,5", "--agents", "eve,random"]
    words += ["--settings", "default,omega=1e3", "--jobs", "2", "--out", str(tmp_path)]
    assert main([*words, "--", "--episodes", "12", *QUICK]) == 0
    frame = table.read(tmp_path)
    kinds = frame[["agent", "setting", "seed"]].drop_duplicates()
    quick = "batches_per_step=1 min_replay=20"
    assert sorted(map(tuple, kinds.to_numpy())) == [
        ("eve", quick, 3),
        ("eve", quick, 5),
        ("eve", f"omega=1000 {quick}", 3),
        ("eve", f"omega=1000 {quick}", 5),
        ("random", "default", 3),
        ("random", "default", 5),
    ]
    assert frame.groupby(["agent", "setting", "seed"])["episode"].max().eq(12).all()
    assert "| random | deep_sea:size=4 | 3,5 |" in capsys.readouterr().out


def test_a_sweep_goes_on_from_its_table_alone(tmp_path, monkeypatch):
    """As on another machine: finished runs of the table are not run again; longer ones are."""
    words = ["sweep", "deep_sea:size=4", "--agents", "random", "--jobs", "1", "--out"]
    assert main([*words, str(tmp_path), "--seeds", "0-1", "--", "--episodes", "12"]) == 0
    shutil.rmtree(tmp_path / "random-default")
    started = []
    monkeypatch.setattr(
        sweep, "_run_all", lambda runs, *_: (0, started.extend(run.plan.seed for run in runs))
    )
    assert main([*words, str(tmp_path), "--seeds", "0-2", "--", "--episodes", "12"]) == 0
    assert started == [2]
    assert main([*words, str(tmp_path), "--seeds", "0-2", "--", "--episodes", "13"]) == 0
    assert started == [2, 0, 1, 2]
    assert len(table.ends(table.read(tmp_path))) == 2


def test_a_damaged_table_without_runs_is_refused_and_kept(tmp_path, capsys):
    path = tmp_path / "table.csv.gz"
    path.write_bytes(b"\x1f\x8b damaged")
    assert main(["sweep", "deep_sea:size=4", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("eve: RESULTS: got") and error.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv.gz"]


def test_no_time_starts_nothing_and_says_what_is_left(tmp_path, capsys):
    words = ["sweep", "deep_sea:size=4", "--seeds", "0-2", "--hours", "1e-9"]
    assert main([*words, "--out", str(tmp_path / "new")]) == 0
    assert "3 runs" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()


def test_an_array_of_slurm_and_a_job_of_kubernetes_have_an_index_for_each_run(tmp_path):
    spec, script, job = (tmp_path / name for name in ("spec.toml", "array.sh", "job.json"))
    spec.write_text('tasks = ["exploration"]\nseeds = "0-2"\nagents = ["eve", "dqn"]\n')
    words = ["sweep", str(spec), "--out", "runs", "--slurm", str(script), "--kubernetes", str(job)]
    assert main(words) == 0
    assert f"--array=0-{62 * 3 * 2 - 1}\n" in script.read_text()
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
    assert json.loads(job.read_text())["spec"]["completions"] == 62 * 3 * 2


@pytest.mark.parametrize(
    "words, named",
    [
        (["--seeds", "0,0"], "seeds: got 0 twice"),
        (["--seeds", "0-99999999999"], "--seeds: got '0-99999999999'"),
        (["--seeds", "\uff11"], "--seeds"),
        (["--agents", "eve,eve"], "agents: got 'eve' twice"),
        (["--agents", "ppo"], "agents: got 'ppo'"),
        (["--settings", "best"], "settings: got 'best'"),
        (["--settings", "omega=x"], "omega"),
        (["--hours", "-1"], "--hours: got -1.0"),
        (["--only", "9", "--seeds", "0"], "--only: got 9"),
        (["--", "--seed", "3"], "--: got --seed"),
        (["--", "--out", "x"], "--: got --out"),
    ],
)
def test_bad_words_are_refused_in_one_line(words, named, tmp_path, capsys):
    out = tmp_path / "new"
    assert main(["sweep", "deep_sea:size=4", "--out", str(out), *words]) == 2
    assert not out.exists()
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


def test_a_task_twice_is_refused(tmp_path, capsys):
    assert main(["sweep", "catch/0", "catch/0", "--out", str(tmp_path / "new")]) == 2
    assert "tasks: got 'catch/0' twice" in capsys.readouterr().err
