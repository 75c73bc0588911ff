"""The programs in launch/ do what they say."""

import pathlib
import subprocess
import sys

import pytest
from programs import check_accounts

FOLDER = pathlib.Path(__file__).parents[1] / "launch"


def _run(name, *words, cwd):
    return subprocess.run(
        [sys.executable, str(FOLDER / name), *words],
        cwd=cwd,
        env={"PYTHONPATH": str(FOLDER.parent), "PATH": "/usr/bin:/bin", "HOME": str(cwd)},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.acme
def test_a_local_run_ends_with_its_results(tmp_path):
    done = _run("local.py", "deep_sea:size=4", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = check_accounts(tmp_path / "runs" / "local")
    assert summary["finished"] and summary["task"] == "deep_sea:size=4" and summary["actors"] == 2


def test_a_node_teaches_and_refuses_a_role_that_is_none(tmp_path):
    assert "--role" in _run("node.py", "--help", cwd=tmp_path).stdout
    done = _run("node.py", "chief", "catch/0", cwd=tmp_path)
    assert done.returncode == 2 and "--role: got 'chief'" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_sweeps_tasks_are_tasks():
    sys.path.insert(0, str(FOLDER))
    try:
        import sweep
    finally:
        sys.path.remove(str(FOLDER))
    from eve_acme.experiments import tasks

    assert [tasks.parse(name).encoding for name in sweep.TASKS] == ["index", "two_hot", "rotated"]
