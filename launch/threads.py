"""The program as threads of this process, by Launchpad's own `local_mt`."""

import signal
import threading
from typing import Any

from eve_acme.launch.nodes import base
from eve_acme.launch.nodes.base import Run
from eve_acme.launch.view import View


def run(run: Run, quiet: bool) -> int:
    """Runs it until it has ended; gives the exit code. Nothing is started again here."""
    import launchpad as lp

    from eve_acme.launch.program import make_program

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
            shown = threading.Thread(target=_show, args=(view, done), daemon=True)
            shown.start()
            manager.wait()
            done.set()
            shown.join()
    finally:
        done.set()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 + received[0] if received else 0


def _show(view: View, done: threading.Event) -> None:
    while not done.wait(0.2):
        view.update()
