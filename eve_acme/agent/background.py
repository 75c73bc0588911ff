"""A call in a thread of its own, which the caller can leave.

Reverb and Courier wait in C++, where Python hears neither signals nor the SystemExit by which Acme
ends a worker. Whoever waits here hears both.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any

HEAR_SECONDS = 0.2
"""How often a caller that waits is back in Python."""


class Background:
    """One daemon thread, which does not keep the interpreter alive, for calls one by one.

    It ends with the object.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable, *args: Any) -> Any:
        """Calls the function in the thread; gives what it gives, or raises what it raises."""
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
        del call, function, args, answer  # What was asked for is not kept alive while waiting.
