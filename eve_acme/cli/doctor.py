"""`eve doctor`: checks the installation and the machine, and says how to repair them."""

import argparse
import importlib
import os
import pathlib
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from eve_acme.experiments import plan as plan_lib

FREE_GIGABYTES = 1.0
OPEN_FILES = 1024
PROCESSES = 256
PARTS = {
    "Acme": ("eve_acme.agent", "acme"),
    "Reverb": ("reverb",),
    "Launchpad": ("launchpad",),
}
"""From each package's name to the modules to import, in this order."""
AUTOGROUP = pathlib.Path("/proc/sys/kernel/sched_autogroup_enabled")

OK, WARNING, BAD = "ok", "note", "BAD"


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
      kind: OK, WARNING (works, but could be better) or BAD.
      name: subject of the check.
      text: the result.
      advice: how to repair or improve it; empty if not needed.
    """

    kind: str
    name: str
    text: str
    advice: str = ""


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "doctor",
        help="check the installation and the machine",
        description="Lists the installed packages; checks that Acme, Reverb and Launchpad load, "
        "and the ports, disk, cores and limits of this machine; gives advice on each problem. "
        "Exits with code 1 if a problem keeps 'eve run' or 'eve launch' from working, else 0.",
    )
    parser.set_defaults(command=doctor)


def doctor(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    del args
    findings = [finding for check in CHECKS for finding in check()]
    for finding in findings:
        print(f"{finding.kind:<5} {finding.name:<12} {finding.text}")
        if finding.advice:
            print(f"{'':<18} -> {finding.advice}")
    bad = sum(finding.kind == BAD for finding in findings)
    print("no problems" if not bad else f"problems: {bad}")
    return 1 if bad else 0


def _python() -> Iterator[Finding]:
    text = f"{platform.python_version()} ({sys.executable}), {platform.system()} "
    good = sys.version_info[:2] == (3, 10)
    advice = "" if good else "eve launch and --engine acme need Python 3.10"
    yield Finding(OK if good else WARNING, "Python", text + platform.machine(), advice)


def _packages() -> Iterator[Finding]:
    found = {n: v for n, v in plan_lib.versions().items() if v is not None and n != "python"}
    yield Finding(OK, "packages", ", ".join(f"{n} {v}" for n, v in found.items()))


def _devices() -> Iterator[Finding]:
    try:
        import jax

        devices = ", ".join(map(str, jax.devices()))
        yield Finding(OK, "JAX", f"devices {devices}; by default {jax.default_backend()}")
    except Exception as error:  # A broken installation may raise anything.
        yield Finding(BAD, "JAX", _line(error), "pip install jax, or ./eve for the exact lock")


def _parts() -> Iterator[Finding]:
    for name, modules in PARTS.items():
        try:
            for module in modules:
                importlib.import_module(module)
            yield Finding(OK, name, "loads")
        except Exception as error:  # A broken installation may raise anything.
            advice = "Python 3.10 on Linux x86_64, and pip install '.[acme]' or ./eve"
            yield Finding(BAD, name, f"does not load: {_line(error)}", advice)


def _ports() -> Iterator[Finding]:
    try:
        with socket.socket() as server, socket.socket() as client:
            server.bind(("localhost", 0))
            server.listen()
            client.settimeout(5.0)
            client.connect(server.getsockname())
            yield Finding(OK, "ports", f"localhost answers (tried {server.getsockname()[1]})")
    except OSError as error:
        advice = "eve launch connects its processes over localhost: check /etc/hosts and firewall"
        yield Finding(BAD, "ports", f"localhost: {_line(error)}", advice)


def _disk() -> Iterator[Finding]:
    for name, place in (("disk", os.getcwd()), ("temporary", os.environ.get("TMPDIR", "/tmp"))):
        try:
            free = shutil.disk_usage(place).free / 2**30
        except OSError as error:
            yield Finding(BAD, name, _line(error), f"create the folder {place}")
            continue
        text = f"{free:.1f} GB free at {place}"
        if not os.access(place, os.W_OK | os.X_OK):
            yield Finding(BAD, name, f"{place} cannot be written", "use another folder")
        elif free * 1024 < plan_lib.FREE_MEGABYTES:
            yield Finding(BAD, name, text, f"{plan_lib.FREE_MEGABYTES} MB are needed")
        elif free < FREE_GIGABYTES:
            yield Finding(WARNING, name, text, "checkpoints of a long run may need more")
        else:
            yield Finding(OK, name, text)


def _cores() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    advice = "" if cores >= 2 else "eve launch is faster with two or more"
    text = f"{cores} of {os.cpu_count()} for this process"
    yield Finding(WARNING if advice else OK, "cores", text, advice)


def _autogroup() -> Iterator[Finding]:
    try:
        on = AUTOGROUP.read_text().strip() == "1"
    except OSError:
        yield Finding(OK, "autogroup", "this kernel has none")
        return
    if on:
        advice = f"the learner's priority has effect within its session only: echo 0 > {AUTOGROUP}"
        yield Finding(WARNING, "autogroup", "on", advice)
    else:
        yield Finding(OK, "autogroup", "off: the learner's priority has effect")


def _limits() -> Iterator[Finding]:
    for name, limit, least, letter in (
        ("open files", resource.RLIMIT_NOFILE, OPEN_FILES, "n"),
        ("processes", resource.RLIMIT_NPROC, PROCESSES, "u"),
    ):
        soft, _ = resource.getrlimit(limit)
        none = soft == resource.RLIM_INFINITY
        good = none or soft >= least
        advice = "" if good else f"many actors need more: ulimit -{letter} {least}"
        text = "no limit" if none else f"at most {soft}"
        yield Finding(OK if good else WARNING, name, text, advice)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _python, _packages, _devices, _parts, _ports, _disk, _cores, _autogroup, _limits,
)  # fmt: skip
