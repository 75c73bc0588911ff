"""Runs the program as threads of this process, with Launchpad's `local_mt`."""

import signal
import sys
import threading
from typing import Any

from eve_acme.distributed import node as base
from eve_acme.distributed.metrics import Endpoint
from eve_acme.distributed.node import Run
from eve_acme.experiments.view import View

SECONDS_TO_SAVE = 8


def run(run: Run, quiet: bool, endpoint: Endpoint | None = None) -> int:
    """Runs the program until it ends. Nodes that die are not restarted.

    Args:
      run: the run.
      quiet: whether to show no progress.
      endpoint: serves metrics; None for none.

    Returns:
      The exit code.
    """
    # Imports all packages before any thread starts: two threads that import the same packages in a
    # different order deadlock, and Python raises a _DeadlockError in one of them.
    from eve_acme.distributed import preload  # noqa: F401  isort: skip
    import launchpad as lp

    from eve_acme.distributed.program import make_program

    base.log_apart(run.directory / "logs")
    received: list[int] = []

    def stop(number: int, frame: Any) -> None:
        del frame
        received.append(number)
        base.finish_first()

    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    done = threading.Event()
    try:
        manager = lp.launch(make_program(run), launch_type="local_mt")
        for number in before:
            signal.signal(number, stop)  # Launchpad's handler cannot interrupt a lock wait.
        with View(run.directory, run.plan.config.samples_per_insert, quiet) as view:
            shown = threading.Thread(target=_show, args=(view, done, stop), daemon=True)
            shown.start()
            if endpoint is not None:
                view.say(f"metrics: {endpoint.url}/metrics")
                endpoint.serve(view.window, run.plan.config.batches_per_step)
            try:
                manager.wait()
            except Exception as error:
                _give_up(run, manager, error)
            done.set()
            shown.join()
    finally:
        done.set()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 + received[0] if received else 0


def _show(view: View, done: threading.Event, stop: Any) -> None:
    while not done.wait(0.2):
        view.update()
        if view.unread:
            stop(signal.SIGPIPE, None)
            return


def _give_up(run: Run, manager: Any, error: Exception) -> None:
    """Handles the death of a node: the other nodes save, then the process exits with code 1."""
    from eve_acme.distributed.program import leave

    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # Launchpad's SIGALRM would kill this process.
    base.finish_all()
    others = threading.Thread(target=manager.wait, kwargs={"raise_error": False}, daemon=True)
    others.start()
    others.join(SECONDS_TO_SAVE)
    print(
        f"eve: a node died ({type(error).__name__}: {error}), and local_mt restarts no node; the "
        f"state of the run is in {run.state}; to continue: eve launch --resume {run.directory}",
        file=sys.stderr,
    )
    leave(1)  # A thread blocked on the dead node would keep the interpreter from exiting.
