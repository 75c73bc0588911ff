"""Output that nobody reads any more."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from eve_acme.cli.main import main

ROOT = pathlib.Path(__file__).parents[2]
QUICK = ["--burn-in-episodes", "5", "--min-replay", "20", "--batches-per-step", "1", "--quiet"]


@pytest.mark.parametrize("unread", ["stdout", "stderr"])
def test_output_that_nobody_reads_ends_a_run_quietly_with_all_its_files(tmp_path, unread):
    """As `eve run | head` and `eve run 2>&1 | head` do: 128 and 13, the number of SIGPIPE."""
    out = tmp_path / "run"
    code = (
        "import sys; from eve_acme.cli import main; from eve_acme.experiments import output\n"
        "output.LINE_SECONDS = 0.0\n"
        "sys.exit(main.main(sys.argv[1:]))"
    )
    words = ["run", "deep_sea:size=3", "--episodes", "30", "--out", str(out), *QUICK]
    words = [word for word in words if word != "--quiet" or unread == "stdout"]
    reading, writing = os.pipe()
    os.close(reading)
    other = "stderr" if unread == "stdout" else "stdout"
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        **{unread: writing, other: subprocess.PIPE},
        text=True,
        timeout=120,
    )
    os.close(writing)
    assert done.returncode == 128 + 13
    assert not done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["finished"] == (unread == "stdout")
    assert (out / "checkpoint").exists() and (out / "results.csv").exists()
    assert main(["run", "--resume", str(out), "--episodes", "31", "--quiet"]) == 0
