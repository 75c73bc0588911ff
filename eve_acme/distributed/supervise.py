"""Starts the nodes of a run as processes, restarts those that die, and leaves none behind.

A fork server that has imported all modules forks the processes, so a node starts in a fraction of
the seconds that importing JAX, TensorFlow and Acme takes. Each node exits when the launcher or the
fork server exits, so a killed launcher leaves no process behind.
"""

import collections
import contextlib
import ctypes
import dataclasses
import multiprocessing
import os
import pathlib
import select
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Set
from typing import Any

from eve_acme.distributed.node import Run
from eve_acme.distributed.program import ROLES
from eve_acme.errors import UsageError
from eve_acme.files import disk_full, is_disk_full

MOST_DEATHS = 5
"""The run ends if a node dies this many times within `DEATHS_SECONDS`."""
DEATHS_SECONDS = 60.0
REFUSED = 2
"""Exit code of a node whose input is bad; not restarted, since it would fail again."""
FULL = 3
"""Exit code of a node that found the disk full."""
END_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
_BEHIND = 10
"""Niceness of all nodes but the learner."""


@dataclasses.dataclass(frozen=True)
class NodeName:
    """The name of a node: its role, and its index among nodes of that role."""

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"


class GaveUp(RuntimeError):
    """The run cannot continue: a node died too often, or a restart would not help."""


def node_names(run: Run) -> list[NodeName]:
    """Returns the names of all nodes, in the order in which they start."""
    counts = {"actor": run.actors}
    return [NodeName(role, i) for role in ROLES for i in range(counts.get(role, 1))]


class Supervisor:
    """The processes of a run; use as a context manager."""

    def __init__(self, run: Run, addresses: dict[str, str], learner_cores: Set[int] = frozenset()):
        """Starts no process yet.

        Args:
          run: the run.
          addresses: see `program.bind`.
          learner_cores: cores reserved for the learning thread; may be empty.
        """
        self._run = run
        self._learner_cores = learner_cores
        self._addresses = addresses
        self._processes: dict[NodeName, Any] = {}
        self._ended: set[NodeName] = set()
        self._deaths: dict[NodeName, collections.deque[float]] = {}
        self.restarts: list[tuple[float, NodeName, int]] = []
        # The processes share one XLA compilation cache. It is deleted after the run, since it is
        # valid only for this kind of processor.
        self._compiled = run.directory / "compiled"
        self._clean()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["eve_acme.distributed.preload"])

    def __enter__(self) -> "Supervisor":
        for name in node_names(self._run):
            self._start(name)
        (self._run.directory / "pids").mkdir(exist_ok=True)
        self._write_pids()
        return self

    def __exit__(self, *unused: Any) -> None:
        self.end()
        self._clean()

    def _clean(self) -> None:
        """Removes temporary files, including those of an earlier run that was killed."""
        for folder in (self._compiled, self._run.directory / "tmp"):
            shutil.rmtree(folder, ignore_errors=True)

    def pid(self, name: NodeName) -> int:
        """Returns the id of the node's current process."""
        return self._processes[name].pid

    def restarts_by_node(self) -> dict[str, int]:
        """Returns the number of restarts of each node."""
        again = collections.Counter(str(name) for _, name, _ in self.restarts)
        return {str(name): again[str(name)] for name in node_names(self._run)}

    def look(self) -> bool:
        """Restarts nodes that died; returns True once the coordinator has ended the run.

        Raises:
          GaveUp: a node must not be restarted.
        """
        for name, process in list(self._processes.items()):
            if name in self._ended or process.exitcode is None:
                continue
            if process.exitcode == 0:
                self._ended.add(name)
            else:
                self._restart(name, process.exitcode)
        return NodeName("coordinator", 0) in self._ended

    def ask_to_end(self) -> None:
        """Tells the coordinator to save and to end the run."""
        self._signal(NodeName("coordinator", 0), signal.SIGTERM)

    def end(self) -> None:
        """Waits for all nodes to exit; sends SIGTERM, then SIGKILL, to those that do not."""
        self._wait(END_SECONDS)
        for number, seconds in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 20.0)):
            for name in self._processes:
                self._signal(name, number)
            self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in self._processes.values():
            process.join(timeout=max(0.0, deadline - time.monotonic()))

    def _signal(self, name: NodeName, number: int) -> None:
        process = self._processes[name]
        if process.exitcode is None:
            os.kill(process.pid, number)

    def _start(self, name: NodeName) -> None:
        process = self._context.Process(
            target=_node_process,
            args=(
                self._run,
                self._addresses,
                name,
                os.getpid(),
                str(self._compiled),
                self._learner_cores,
            ),
            name=str(name),
            daemon=False,
        )
        process.start()
        self._processes[name] = process

    def _restart(self, name: NodeName, code: int) -> None:
        deaths = self._deaths.setdefault(name, collections.deque(maxlen=MOST_DEATHS))
        deaths.append(time.monotonic())
        self.restarts.append((time.time(), name, code))
        log = self._run.directory / "logs" / f"{name}.log"
        if code == FULL:
            how = f"eve launch --resume {self._run.directory}"
            raise GaveUp(disk_full(self._run.directory, how))
        if code == REFUSED:
            raise GaveUp(f"{last_error(log)} ({name}; log: {log})")
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if len(deaths) == MOST_DEATHS and deaths[-1] - deaths[0] < DEATHS_SECONDS:
            raise GaveUp(
                f"{name} died {MOST_DEATHS} times within {DEATHS_SECONDS:.0f} s, last with {how}: "
                f"{last_error(log)} (log: {log})"
            )
        self._start(name)
        self._write_pids()

    def _write_pids(self) -> None:
        for name, process in self._processes.items():
            (self._run.directory / "pids" / str(name)).write_text(f"{process.pid}\n")


def last_error(log: pathlib.Path) -> str:
    """Returns the last line of a node's log."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1].strip()[:300] if lines else "it printed nothing"


def _node_process(
    run: Run,
    addresses: dict[str, str],
    name: NodeName,
    launcher: int,
    compiled: str,
    learner_cores: Set[int],
) -> None:
    """Runs a node; the entry point of its process.

    Args:
      run: the run.
      addresses: see `program.bind`.
      name: the node.
      launcher: process id of the launcher; the node exits with it.
      compiled: folder of XLA's compilation cache.
      learner_cores: cores reserved for the learning thread.
    """
    os.sched_setaffinity(0, os.sched_getaffinity(0) - learner_cores)
    _keep_below(run.directory / "tmp")
    os.setsid()  # So that Ctrl-C reaches the launcher only.
    if name.role != "learner":
        os.nice(_BEHIND)
        threading.Thread(target=_stand_back, daemon=True).start()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # When the fork server dies.
    threading.Thread(target=_die_with, args=(launcher,), daemon=True).start()
    from eve_acme.distributed import node as base
    from eve_acme.distributed import program

    base.share_compiled(compiled)
    base.LEARNER_CORES[:] = learner_cores
    program.redirect_output(run.directory / "logs" / f"{name}.log")
    signal.signal(signal.SIGTERM, lambda *_: base.finish_all())
    try:
        program.run_node(run, addresses, name.role, name.index)
    except UsageError as error:
        print(error.details, error, sep="\n", flush=True)
        program.leave(REFUSED)
    except BaseException as error:
        if is_disk_full(error):
            os._exit(FULL)  # The log cannot be written either.
        traceback.print_exc()
        program.leave(1)
    program.leave(0)


def _keep_below(folder: pathlib.Path) -> None:
    """Makes this process, including C++, create temporary files below a folder of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def _stand_back(path: pathlib.Path = pathlib.Path("/proc/self/autogroup")) -> None:
    """Lowers the scheduling priority of this session.

    With few cores all nodes wait for the learner. A node that preempts a thread of the learner
    which holds the GIL stalls the whole learner. Linux may schedule by session instead of by
    process, and every node has its own session: see autogroup in sched(7). The kernel accepts such
    a write from non-root users only ten times a second in total, hence the retries.
    """
    for _ in range(100):
        try:
            path.write_text(str(_BEHIND))
            return
        except BlockingIOError:
            time.sleep(0.1)
        except OSError:
            return


def _die_with(launcher: int) -> None:
    """Blocks until the launcher exits, then exits this process."""
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(launcher)], [], [])
    os._exit(1)
