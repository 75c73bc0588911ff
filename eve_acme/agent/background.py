"""Runs blocking calls in a thread, so that signals and SystemExit can interrupt the caller.

Reverb and Courier block in C++, where Python handles neither signals nor the SystemExit by which
Acme stops a worker. `Background.call` blocks in Python and handles both.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any

HEAR_SECONDS = 0.2
"""Poll interval of a blocked caller; Python handles signals between polls."""


class Background:
    """Runs calls one at a time in a daemon thread, which does not keep the interpreter alive.

    The thread ends when the object is deleted.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable, *args: Any) -> Any:
        """Calls `function(*args)` in the thread; returns its result or raises its exception."""
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._calls,), daemon=True)
            self._thread.start()
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._calls.put((function, args, answer))
        while True:
            try:
                result, error = answer.get(timeout=HEAR_SECONDS)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            return result

    def __del__(self) -> None:
        self._calls.put(None)


def _serve(calls: "queue.SimpleQueue[Any]") -> None:
    while (call := calls.get()) is not None:
        function, args, answer = call
        try:
            answer.put((function(*args), None))
        except BaseException as error:
            answer.put((None, error))
        del call, function, args, answer  # Frees the arguments before `get` blocks again.
