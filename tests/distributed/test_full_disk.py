"""A disk that fills up under a running program: one line, what was saved is safe, it resumes."""

import os
import subprocess

import pytest
from programs import TINY, check_accounts, finish, start, status, wait_for


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=260m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("a disk of its own needs root")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_disk_that_fills_up(disk):
    out, filler = disk / "run", disk / "filler"
    process = start(*TINY, "--episodes", "100000", "--quiet", "--out", str(out))
    try:
        wait_for(lambda: (status(out) or {}).get("rounds"))
        with open(filler, "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while file.write(bytes(4096)):
                pass
        text = finish(process, 60)
    finally:
        process.kill()
    assert process.returncode == 1, text
    (line,) = [line for line in text.splitlines() if line.startswith("eve: ") and "full" in line]
    assert f"the disk of '{out}' is full" in line and f"eve launch --resume {out}" in line
    assert "Traceback" not in text
    filler.unlink()
    process = start("--resume", str(out), "--episodes", "100000", "--steps", "400", "--quiet")
    text = finish(process)
    assert process.returncode == 0, text
    assert check_accounts(out)["env_steps"] >= 400
