"""`eve sweep`: an interrupted one goes on, finished runs are kept, other runs' folders refused."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from eve_acme.cli.main import main

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
    first = tmp_path / "deep_sea-size4-seed0"
    deadline = time.monotonic() + 120
    while not (first / "config.json").exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=120) == 130
    assert (first / "checkpoint").exists()
    assert main([*words, *rest]) == 0
    for seed in (0, 1):
        folder = tmp_path / f"deep_sea-size4-seed{seed}"
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["episodes"], summary["finished"]) == (400, True)
    before = (first / "summary.json").stat().st_mtime_ns
    assert main([*words, *rest]) == 0
    assert (first / "summary.json").stat().st_mtime_ns == before
    assert main([*words, *rest, "--omega", "7"]) == 2
