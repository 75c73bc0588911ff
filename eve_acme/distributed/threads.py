"""The program as threads of this process, by Launchpad's own `local_mt`."""

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
    """Runs it until it has ended; gives the exit code. Nothing is started again here."""
    # All that nodes need, before there are threads: two that import the same packages at once in
    # another order block each other, and Python ends one of them with a _DeadlockError.
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
            signal.signal(number, stop)  # Instead of Launchpad's, which cannot end a lock wait.
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
    """A node died, and nobody starts it again: the others save what they have, and all is over."""
    from eve_acme.distributed.program import leave

    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # With it Launchpad would kill this process.
    base.finish_all()
    others = threading.Thread(target=manager.wait, kwargs={"raise_error": False}, daemon=True)
    others.start()
    others.join(SECONDS_TO_SAVE)
    print(
        f"eve: a node died ({type(error).__name__}: {error}), and threads are not started again; "
        f"what was learnt is in {run.state}, to go on: eve launch --resume {run.directory}",
        file=sys.stderr,
    )
    leave(1)  # A thread that waits for the dead one would keep the interpreter from ending.
