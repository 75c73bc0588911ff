"""Emulates several hosts on one machine: network namespaces with addresses and names on one bridge.

For tests and `eve bench hosts`. The hosts cannot be reached from outside the machine.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]


def why_not() -> str | None:
    """Returns why this machine cannot create hosts; None if it can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and iproute2"
    name = f"eve{os.getpid()}-try"
    made = _ip("netns", "add", name, check=False)
    if made.returncode:
        return f"network namespaces are not permitted here ({made.stderr.strip()})"
    _ip("netns", "del", name, check=False)
    return None


class Hosts:
    """Hosts on 10.77.0.0/24 that resolve each other's names and those of their services."""

    def __init__(self, services: dict[str, list[str]]):
        """Assigns addresses; creates nothing yet.

        Args:
          services: for each host the names of the services on it.
        """
        self._prefix = f"eve{os.getpid()}-"
        self.names = list(services)
        self.addresses = {name: f"10.77.0.{i + 10}" for i, name in enumerate(services)}
        self._lines = ["127.0.0.1 localhost"]
        for host, others in services.items():
            self._lines.append(" ".join([self.addresses[host], host, *others]))

    def up(self) -> None:
        switch = self.namespace("switch")
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for i, name in enumerate(self.names):
            host = self.namespace(name)
            _ip("netns", "add", host)
            _ip("-n", host, "link", "set", "lo", "up")
            veth = ("type", "veth", "peer", "name", f"p{i}", "netns", switch)
            _ip("link", "add", "eth0", "netns", host, *veth)
            _ip("-n", switch, "link", "set", f"p{i}", "master", "br0", "up")
            _ip("-n", host, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
            _ip("-n", host, "link", "set", "eth0", "up")
            self._etc(name).mkdir(parents=True)
            (self._etc(name) / "hosts").write_text("\n".join(self._lines) + "\n")

    def down(self) -> None:
        """Deletes the hosts, also those that `up` created only in part."""
        for name in ("switch", *self.names):
            _ip("netns", "del", self.namespace(name), check=False)
            shutil.rmtree(self._etc(name), ignore_errors=True)

    def link(self, name: str, state: str) -> None:
        """Connects a host to the bridge or disconnects it.

        Args:
          name: the host.
          state: "up" or "down".
        """
        port = f"p{self.names.index(name)}"
        _ip("-n", self.namespace("switch"), "link", "set", port, state)

    def command(self, host: str, name: str, words: list[str]) -> list[str]:
        """Returns the command line that runs a command on a host.

        Args:
          host: the host.
          name: the host name that the command sees.
          words: the command and its arguments.
        """
        inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name]
        return ["ip", "netns", "exec", self.namespace(host), *inside, *words]

    def namespace(self, name: str) -> str:
        return self._prefix + name

    def _etc(self, name: str) -> pathlib.Path:
        return pathlib.Path("/etc/netns") / self.namespace(name)


class Nodes:
    """Runs each node of a run as one process on its host, with its log in a folder."""

    def __init__(self, hosts: Hosts, directory: pathlib.Path, words: list[str]):
        """Starts no process yet.

        Args:
          hosts: the hosts.
          directory: the folder of the logs.
          words: the arguments of 'eve launch' that describe the run.
        """
        self._hosts, self._directory, self._words = hosts, directory, words
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, host: str, role: str) -> None:
        words = [sys.executable, "-m", "eve_acme.cli", "node", "--role", role, "--"]
        with open(self._directory / f"{name}.log", "a") as log:
            self.processes[name] = subprocess.Popen(
                self._hosts.command(host, name, [*words, *self._words]),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def wait(self, name: str, seconds: float) -> int:
        return self.processes[name].wait(timeout=seconds)

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-2000:]}" for path in self._directory.glob("*.log")
        )


@contextlib.contextmanager
def made(services: dict[str, list[str]]) -> Iterator[Hosts]:
    """Creates hosts, and deletes them when the context ends."""
    hosts = Hosts(services)
    try:
        hosts.up()
        yield hosts
    finally:
        hosts.down()


def _ip(*words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)
