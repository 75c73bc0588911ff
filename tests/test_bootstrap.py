"""The ./eve script: copies of it install a tiny lock from a local wheel, without any network."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pip
import pytest

REAL_PIP = Path(pip.__path__[0])
SCRIPT = Path(__file__).resolve().parent.parent / "eve"
TOOLS = "bash awk df dirname env flock grep ln mkdir mv readlink rm sha256sum sleep tail uname"
PROGRAM = """
import os, sys
try:
    import tiny
    version = tiny.VERSION
except ImportError:
    version = None
print(sys.argv[1:], os.getcwd(), os.environ["TF_CPP_MIN_LOG_LEVEL"], version, sep="|")
"""
# A Python 3.10 that counts the venvs it makes, spares the seconds that ensurepip takes, and waits
# while `hold` exists.
QUICK_PYTHON = """#!/usr/bin/env bash
set -e
if [[ "$2 $3" == "-m venv" ]]; then
    echo made >>{calls}
    {python} -I -m venv --without-pip "$4"
    ln -s {pip} "$4/lib/python3.10/site-packages/pip"
    while [[ -e {hold} ]]; do sleep 0.05; done
else
    exec {python} "$@"
fi
"""
# Stands in for pip where a test is about the script and not about what pip answers.
QUICK_PIP = """
import pathlib, sys
if sys.argv[1] == "install":
    version = pathlib.Path("requirements.txt").read_text().split("==")[1].strip()
    pathlib.Path(__file__).parents[1].joinpath("tiny.py").write_text(f"VERSION = '{version}'")
"""

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 10) or not sys.platform.startswith("linux"),
    reason="./eve installs on Python 3.10 and Linux only",
)


def make_wheel(folder: Path, version: str, requires: str = "") -> None:
    """Writes the wheel of a package `tiny` with one constant in it."""
    info = f"tiny-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n"
    files = {
        "tiny.py": f"VERSION = '{version}'\n",
        f"{info}/METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"tiny-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)


class Checkout:
    """The real script, a lock of one package, and a program that tells what it sees."""

    def __init__(self, folder: Path, pip_package: Path) -> None:
        self.root = folder / "a checkout"
        self.calls, self.hold = folder / "calls", folder / "hold"
        self.stamp = self.root / ".venv" / "complete"
        self.tools, self.home, self.wheels = folder / "bin", folder / "home", folder / "wheels"
        for path in (self.tools, self.home, self.wheels, self.root / "eve_acme" / "cli"):
            path.mkdir(parents=True)
        for tool in TOOLS.split():
            (self.tools / tool).symlink_to(str(shutil.which(tool)))
        self.script = Path(shutil.copy(SCRIPT, self.root))
        (self.root / "eve_acme" / "cli" / "__main__.py").write_text(PROGRAM)
        make_wheel(self.wheels, "1.0")
        self.lock("tiny==1.0")
        self.python = folder / "quick_python"
        names = {
            "python": sys._base_executable,  # type: ignore[attr-defined]
            "pip": pip_package,
            "calls": self.calls,
            "hold": self.hold,
        }
        quoted = {name: shlex.quote(str(path)) for name, path in names.items()}
        self.python.write_text(QUICK_PYTHON.format(**quoted))
        self.python.chmod(0o755)
        self.env = {
            "HOME": str(self.home),
            "PATH": str(self.tools),
            "EVE_PYTHON": str(self.python),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": self.wheels.as_uri(),
        }

    def lock(self, text: str) -> None:
        (self.root / "requirements.txt").write_text(text + "\n")

    def start(self, *args: str, script: Path | None = None, cwd: Path | None = None, **env: str):
        return subprocess.Popen(
            [str(script or self.script), *args],
            cwd=cwd or self.home,
            env={**self.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args: str, **options) -> tuple[int, str, list[str]]:
        """Exit code, standard output, lines of standard error."""
        process = self.start(*args, **options)
        out, err = process.communicate(timeout=60)
        return process.returncode, out.strip(), err.splitlines()

    def venvs_made(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    package = tmp_path / "pip"
    package.mkdir()
    (package / "__main__.py").write_text(QUICK_PIP)
    return Checkout(tmp_path, package)


def wait_for(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.02)


def test_first_call_installs_and_later_ones_go_straight_on(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, REAL_PIP)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = elsewhere / "eve-link"
    link.symlink_to(checkout.script)

    code, out, err = checkout.run("go", "--out", "a b")
    assert (code, out) == (0, f"['go', '--out', 'a b']|{checkout.home}|3|1.0")
    assert "2 to 4 minutes, 2 GB" in err[0]
    assert "Successfully installed tiny-1.0" in (checkout.root / ".venv/install.log").read_text()

    code, out, err = checkout.run("again", script=link, cwd=elsewhere, TF_CPP_MIN_LOG_LEVEL="1")
    assert (code, out, err) == (0, f"['again']|{elsewhere}|1|1.0", [])
    assert checkout.venvs_made() == 1


def test_a_changed_lock_installs_anew(checkout: Checkout) -> None:
    assert checkout.run()[1].endswith("|1.0")
    checkout.lock("tiny==2.0")
    assert checkout.run()[1].endswith("|2.0")
    assert checkout.venvs_made() == 2


def test_a_failed_install_shows_why_and_leaves_no_stamp(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, REAL_PIP)
    (checkout.wheels / "tiny-3.0-py3-none-any.whl").write_text("no zip file")
    checkout.lock("tiny==3.0")
    code, out, err = checkout.run()
    assert (code, out) == (2, "")
    assert "installation failed" in err[-1] and str(checkout.root / ".venv/install.log") in err[-1]
    assert any(line.startswith("ERROR: Wheel 'tiny'") for line in err)
    assert not checkout.stamp.exists()


def test_a_missing_dependency_in_the_lock_is_an_error(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, REAL_PIP)
    make_wheel(checkout.wheels, "4.0", requires="absent")
    checkout.lock("tiny==4.0")
    code, out, err = checkout.run()
    assert (code, out) == (2, "")
    assert "tiny 4.0 requires absent, which is not installed." in err
    assert not checkout.stamp.exists()


def test_unreachable_index_is_told_in_one_line(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, REAL_PIP)
    del checkout.env["PIP_NO_INDEX"], checkout.env["PIP_FIND_LINKS"]
    code, _, err = checkout.run(PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="1")
    assert code == 2
    assert [line for line in err if "fetching" not in line][1:] == [err[-1]]
    assert "the package index cannot be reached: check the network" in err[-1]
    assert not checkout.stamp.exists()


def test_a_full_disk_is_told_before_anything_is_installed(checkout: Checkout) -> None:
    (checkout.tools / "df").unlink()
    (checkout.tools / "df").write_text("#!/bin/sh\necho head\necho /dev/x 9 9 2097152 1% /\n")
    (checkout.tools / "df").chmod(0o755)
    code, _, err = checkout.run()
    assert code == 2
    assert len(err) == 1 and "only 2048 MB free" in err[0] and "3 GB needed" in err[0]
    assert checkout.venvs_made() == 0


@pytest.mark.parametrize("broken", ["no stamp", "no interpreter", "old stamp"])
def test_a_half_made_venv_is_repaired(checkout: Checkout, broken: str) -> None:
    interpreter = checkout.root / ".venv" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to("/nowhere/python" if broken == "no interpreter" else sys.executable)
    leftover = checkout.root / ".venv" / "leftover"
    leftover.touch()
    if broken != "no stamp":
        digest = hashlib.sha256((checkout.root / "requirements.txt").read_bytes()).hexdigest()
        digest = digest if broken == "no interpreter" else digest[::-1]
        checkout.stamp.write_text(f"python 3.10, requirements.txt {digest}  -\n")
    code, out, _ = checkout.run()
    assert (code, out.split("|")[-1]) == (0, "1.0")
    assert not leftover.exists()


def test_without_python_one_line_says_what_to_do(checkout: Checkout) -> None:
    del checkout.env["EVE_PYTHON"]
    shim = checkout.tools / "python3.10"
    shim.write_text("#!/bin/sh\necho 'shim: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    code, out, err = checkout.run("go")
    assert (code, out, len(err)) == (2, "", 1)
    assert err[0].startswith("eve: Python 3.10 not found: install it")
    assert not (checkout.root / ".venv").exists()


def test_a_wrong_eve_python_is_named(checkout: Checkout) -> None:
    code, _, err = checkout.run(EVE_PYTHON="/bin/false")
    assert (code, len(err)) == (2, 1)
    assert "EVE_PYTHON=/bin/false does not run as Python 3.10" in err[0]


@pytest.mark.parametrize("place", ["path", "home", "pyenv on path", "uv"])
def test_python_is_found(checkout: Checkout, tmp_path: Path, place: str) -> None:
    del checkout.env["EVE_PYTHON"]
    pyenv = checkout.home / ".pyenv" if place == "home" else tmp_path / "some pyenv"
    if place == "path":
        (checkout.tools / "python3.10").symlink_to(checkout.python)
    elif place == "uv":
        fake = f'#!/bin/sh\n[ "$*" = "python find 3.10" ] && echo "{checkout.python}"\n'
        (checkout.tools / "uv").write_text(fake)
        (checkout.tools / "uv").chmod(0o755)
    else:
        version = pyenv / "versions" / "3.10.99" / "bin"
        version.mkdir(parents=True)
        (version / "python3.10").symlink_to(checkout.python)
    if place == "pyenv on path":
        (pyenv / "bin").mkdir()
        (pyenv / "bin" / "pyenv").write_text("#!/bin/sh\nexit 1\n")
        (pyenv / "bin" / "pyenv").chmod(0o755)
        checkout.env["PATH"] += f":{pyenv / 'bin'}"
    code, out, _ = checkout.run()
    assert (code, out.split("|")[-1]) == (0, "1.0")


def test_two_first_calls_at_once_install_once(checkout: Checkout) -> None:
    checkout.hold.touch()
    first = checkout.start("first")
    wait_for(checkout.venvs_made)
    second = checkout.start("second")
    assert "waiting for it" in second.stderr.readline()
    checkout.hold.unlink()
    results = [process.communicate(timeout=60) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0]
    assert [out.split("|")[-1].strip() for out, _ in results] == ["1.0", "1.0"]
    assert checkout.venvs_made() == 1


def test_after_kill_9_the_next_call_waits_for_what_still_installs(checkout: Checkout) -> None:
    checkout.hold.touch()
    process = checkout.start()
    wait_for(checkout.venvs_made)
    process.kill()
    assert process.wait(timeout=10) == -signal.SIGKILL
    assert not checkout.stamp.exists()
    second = checkout.start()
    assert "waiting for it" in second.stderr.readline()
    checkout.hold.unlink()
    out, _ = second.communicate(timeout=60)
    assert (second.returncode, out.split("|")[-1].strip()) == (0, "1.0")


def test_ctrl_c_on_a_terminal_stops_all_of_it_and_the_next_call_starts_afresh(
    checkout: Checkout,
) -> None:
    checkout.hold.touch()
    terminal, inside = pty.openpty()
    # Who runs the tests in the background ignores Ctrl-C, and so would all of their children.
    env, setsid = (shutil.which(name) or name for name in ("env", "setsid"))
    process = subprocess.Popen(
        [env, "--default-signal=INT", setsid, "--ctty", str(checkout.script)],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env=checkout.env,
    )
    os.close(inside)
    shown = b""
    while b"packages" not in shown.partition(b"eve: fetching")[2]:  # It shows how far it is.
        shown += os.read(terminal, 4096)
    wait_for(checkout.venvs_made)
    os.write(terminal, b"\x03")
    with contextlib.suppress(OSError):  # what reading from a closed terminal raises
        while text := os.read(terminal, 4096):
            shown += text
    os.close(terminal)
    assert process.wait(timeout=60) == 130
    assert shown.endswith(b"interrupted; the next call starts afresh\r\n")

    checkout.hold.unlink()
    code, out, err = checkout.run()
    assert (code, out.split("|")[-1]) == (0, "1.0")
    assert not any("waiting for it" in line for line in err)
    assert checkout.venvs_made() == 2


def test_the_newest_of_everything_needs_a_later_python(checkout: Checkout) -> None:
    """And neither the lock's environment nor one of its own is begun without it."""
    code, out, err = checkout.run("test", "--newest")
    assert (code, out, len(err)) == (2, "", 1) and "no Python after 3.10 found" in err[0]
    assert not list(checkout.root.glob(".venv*"))
