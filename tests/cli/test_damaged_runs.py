"""Damaged or edited run folders are refused by the name of the file that does not fit."""

import json
import pickle
import shutil

import numpy as np
import pytest

from eve_acme import files, saved
from eve_acme.cli.main import main
from eve_acme.distributed import audit
from eve_acme.distributed.node import Run
from eve_acme.experiments.plan import from_directory
from eve_acme.replay import journal
from eve_acme.types import New

QUICK = ["--burn-in-episodes", "1", "--min-replay", "5", "--batches-per-step", "1", "--quiet"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    command = ["run", "deep_sea/0", "--episodes", "3", "--out", str(directory)]
    assert main([*command, *QUICK]) == 0
    return directory


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run", symlinks=True)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def remove(path):
    path.unlink()


DAMAGE = (truncate, empty, flip, remove)
READ = ("config.json", "checkpoint/engine.pkl", "checkpoint/recorder.pkl", "checkpoint/agent.npz")


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", [*READ, "checkpoint/checksums.json"])
def test_a_resume_names_the_file(run, name, damage, capfd):
    damage(run / name)
    assert main(["run", "--resume", str(run), "--episodes", "4"]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("eve: --resume: ") and str(run / name) in line


EDITS = [
    dict(task="deep_sea/1"),
    dict(seed="0"),
    pytest.param(dict(engine="acme"), marks=pytest.mark.acme),
    dict(seed=1),
]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("sealed", [False, True])
def test_an_edited_config_is_refused(run, edit, sealed, capfd):
    path = run / "config.json"
    config = {**json.loads(path.read_text()), **edit}
    if sealed:  # As whoever knows the checksum would have it.
        config.pop(files.CHECKSUM)
        files.write_sealed_json(path, config)
    else:
        path.write_text(json.dumps(config))
    assert main(["run", "--resume", str(run), "--episodes", "4"]) == 2
    *_, line = capfd.readouterr().err.splitlines()  # Reverb's server prints lines of its own.
    assert line.startswith("eve: --resume: ")
    allowed = ("allowed is a value of type int", "belongs to 'deep_sea/0 eve embedded seed 0")
    assert any(word in line for word in allowed) if sealed else "damaged or edited" in line


@pytest.mark.parametrize("damage", DAMAGE[:3])
@pytest.mark.parametrize("name", ["summary.json", "results.csv"])
def test_a_report_leaves_out_what_is_damaged(run, name, damage, capfd):
    damage(run / name)
    if name == "results.csv" and damage is not empty:
        assert main(["report", str(run)]) in (0, 2)  # Half of the rows are rows.
        assert "Traceback" not in capfd.readouterr().err
        return
    assert main(["report", str(run)]) == 2
    first, last = capfd.readouterr().err.splitlines()
    assert first.startswith(f"skipped {run / 'summary.json'}: ") and last.startswith("eve: RESULTS")


@pytest.mark.parametrize("damage", DAMAGE[:3])
def test_a_damaged_agent_is_refused(run, damage):
    path = run / "checkpoint" / saved.FILE
    damage(path)
    with pytest.raises(files.Damaged, match=r"agent\.npz"):
        saved.load(run)


def test_a_sweep_names_a_damaged_summary(run, tmp_path, capfd):
    out = tmp_path / "sweep"
    copy = out / "eve-batches_per_step1-min_replay5-burn_in_episodes1" / "deep_sea-0-seed0"
    shutil.copytree(run, copy, symlinks=True)
    truncate(copy / "summary.json")
    words = ["sweep", "deep_sea/0", "--seeds", "0", "--out", str(out), "--", "--episodes", "3"]
    assert main([*words, *QUICK[:-1]]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert "summary.json: damaged" in line


@pytest.fixture
def launched(finished, tmp_path):
    """A launched run of four episodes of ten steps, of which three are in replay and counted."""
    run = Run(from_directory(finished), actors=1, directory=tmp_path)
    belongs = run.plan.identity
    replay = journal.Journal(run.state / "replay.journal", belongs)
    counter = journal.Journal(run.state / "counter.journal", belongs)
    for index in range(3):
        new = New(*([None] * len(New._fields)))._replace(returns=np.zeros(10))
        replay.append((journal.TRAJECTORY, new))
        replay.append((journal.EPISODE, (0, index, {"length": 10})))
        counter.append(("ticket", 0, index, index))
        counter.append(("report", 0, index, {"length": 10}))
    replay.close()
    counter.close()
    (run.state / "learner").mkdir()
    data = pickle.dumps({"n": 31})
    files.write_sealed(run.state / "learner" / "000000000030.pkl", data, belongs)
    return run


def _reports(run):
    records = journal.records(run.state / "counter.journal")
    return [(actor, index) for kind, actor, index, _ in records if kind == "report"]


def test_whole_accounts_are_left_alone(launched):
    before = (launched.state / "counter.journal").read_bytes()
    assert audit.reconcile(launched) is None
    assert (launched.state / "counter.journal").read_bytes() == before


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_replay_is_refused(launched, damage):
    damage(launched.state / "replay.journal")
    with pytest.raises(files.Damaged, match=r"replay\.journal"):
        audit.reconcile(launched)


def test_damage_to_a_learner_is_refused(launched):
    flip(launched.state / "learner" / "000000000030.pkl")
    with pytest.raises(files.Damaged, match=r"030\.pkl: damaged"):
        audit.reconcile(launched)


def test_after_a_power_cut_the_counter_has_what_replay_has(launched):
    """Cut at each record, and in mid-record: counter and replay agree, whichever lost more."""
    shutil.rmtree(launched.state / "learner")
    counter, replay = (launched.state / f"{n}.journal" for n in ("counter", "replay"))
    whole = {path: path.read_bytes() for path in (counter, replay)}
    for path in (counter, replay):
        ends = [end for end, _ in journal.read(path)]
        for end in (*ends, *(end - 3 for end in ends)):
            for other, data in whole.items():
                other.write_bytes(data)
            path.write_bytes(whole[path][:end])
            audit.reconcile(launched)
            kept = [v[:2] for kind, v in journal.records(replay) if kind == journal.EPISODE]
            assert _reports(launched) == kept
            assert audit.reconcile(launched) is None
