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
from collections.abc import Callable
from typing import Any, NamedTuple

from eve_acme.experiments import plan as plan_lib
from eve_acme.experiments.plan import versions

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


def _python() -> list[Finding]:
    text = f"{platform.python_version()} ({sys.executable}), {platform.system()} "
    text += platform.machine()
    if sys.version_info[:2] == (3, 10):
        return [Finding(OK, "Python", text)]
    return [Finding(WARNING, "Python", text, "eve launch and --engine acme need Python 3.10")]


def _packages() -> list[Finding]:
    found = {name: version for name, version in versions().items() if version is not None}
    found.pop("python")
    return [Finding(OK, "packages", ", ".join(f"{n} {v}" for n, v in found.items()))]


def _devices() -> list[Finding]:
    try:
        import jax

        devices = ", ".join(map(str, jax.devices()))
        return [Finding(OK, "JAX", f"devices {devices}; by default {jax.default_backend()}")]
    except Exception as error:  # A broken installation may raise anything.
        return [Finding(BAD, "JAX", _line(error), "pip install jax, or ./eve for the exact lock")]


def _parts() -> list[Finding]:
    findings = []
    for name, modules in PARTS.items():
        try:
            for module in modules:
                importlib.import_module(module)
            findings.append(Finding(OK, name, "loads"))
        except Exception as error:  # A broken installation may raise anything.
            advice = "Python 3.10 on Linux x86_64, and pip install '.[acme]' or ./eve"
            findings.append(Finding(BAD, name, f"does not load: {_line(error)}", advice))
    return findings


def _ports() -> list[Finding]:
    try:
        with socket.socket() as server, socket.socket() as client:
            server.bind(("localhost", 0))
            server.listen()
            client.settimeout(5.0)
            client.connect(server.getsockname())
            port = server.getsockname()[1]
        return [Finding(OK, "ports", f"localhost answers (tried {port})")]
    except OSError as error:
        advice = "eve launch connects its processes over localhost: check /etc/hosts and firewall"
        return [Finding(BAD, "ports", f"localhost: {_line(error)}", advice)]


def _disk() -> list[Finding]:
    findings = []
    for name, place in (("disk", os.getcwd()), ("temporary", os.environ.get("TMPDIR", "/tmp"))):
        try:
            free = shutil.disk_usage(place).free / 2**30
        except OSError as error:
            findings.append(Finding(BAD, name, _line(error), f"create the folder {place}"))
            continue
        text = f"{free:.1f} GB free at {place}"
        if not os.access(place, os.W_OK | os.X_OK):
            findings.append(Finding(BAD, name, f"{place} cannot be written", "use another folder"))
        elif free * 1024 < plan_lib.FREE_MEGABYTES:
            findings.append(Finding(BAD, name, text, f"{plan_lib.FREE_MEGABYTES} MB are needed"))
        elif free < FREE_GIGABYTES:
            findings.append(Finding(WARNING, name, text, "checkpoints of a long run may need more"))
        else:
            findings.append(Finding(OK, name, text))
    return findings


def _cores() -> list[Finding]:
    cores = len(os.sched_getaffinity(0))
    text = f"{cores} of {os.cpu_count()} for this process"
    if cores >= 2:
        return [Finding(OK, "cores", text)]
    return [Finding(WARNING, "cores", text, "eve launch is faster with two or more")]


def _autogroup() -> list[Finding]:
    try:
        on = AUTOGROUP.read_text().strip() == "1"
    except OSError:
        return [Finding(OK, "autogroup", "this kernel has none")]
    if not on:
        return [Finding(OK, "autogroup", "off: the learner's priority has effect")]
    advice = "the learner's priority has effect within its session only: echo 0 > " + str(AUTOGROUP)
    return [Finding(WARNING, "autogroup", "on", advice)]


def _limits() -> list[Finding]:
    findings = []
    limits = (
        ("open files", resource.RLIMIT_NOFILE, OPEN_FILES, "n"),
        ("processes", resource.RLIMIT_NPROC, PROCESSES, "u"),
    )
    for name, limit, least, letter in limits:
        soft, _ = resource.getrlimit(limit)
        if soft == resource.RLIM_INFINITY or soft >= least:
            text = "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft}"
            findings.append(Finding(OK, name, text))
        else:
            advice = f"many actors need more: ulimit -{letter} {least}"
            findings.append(Finding(WARNING, name, f"at most {soft}", advice))
    return findings


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


CHECKS: tuple[Callable[[], list[Finding]], ...] = (
    _python, _packages, _devices, _parts, _ports, _disk, _cores, _autogroup, _limits,
)  # fmt: skip
