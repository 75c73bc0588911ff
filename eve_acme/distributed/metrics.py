"""Metrics and health of a running program over HTTP, for Prometheus and for health checks.

    /metrics       Prometheus' text format
    /metrics.json  the same values as JSON
    /alive         200 as long as this process answers
    /health        200 while the run makes progress; 503 and one line that says why not, when no
                   episode, step or round was added for 60 s (or `/health?seconds=N`)

The endpoint is read-only.
"""

import http.server
import json
import socketserver
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from eve_acme.errors import UsageError
from eve_acme.experiments.status import StatusWindow

STALL_SECONDS = 60.0
"""A run without progress for so long is unhealthy, unless the request sets another limit."""

_STATUS = (
    ("episodes_total", "counter", "episodes", "Episodes that have ended"),
    ("env_steps_total", "counter", "env_steps", "Environment steps that reached replay"),
    ("rounds_total", "counter", "rounds", "Rounds of minibatches that were learnt"),
    ("posteriors_served_total", "counter", "posteriors_served", "Posteriors sent to actors"),
    ("episodes_planned", "gauge", "of_episodes", "Episodes after which the run ends"),
    ("n", "gauge", "n", "Observations of the posterior"),
    ("loss", "gauge", "loss", "Loss of the newest round"),
    ("posterior_spread", "gauge", "posterior_spread", "Standard deviation of a value"),
    ("effective_visits", "gauge", "effective_visits", "Median effective visits of an action"),
    ("replay_steps", "gauge", "replay_size", "Steps in replay"),
    ("replay_bytes", "gauge", "replay_bytes", "Bytes of the steps in replay"),
    ("recent_return", "gauge", "recent_return", "Mean return of the last episodes"),
    ("evaluation_return", "gauge", "evaluation", "Return of the evaluator's newest episode"),
)  # Name, type, field of status.json, help.
_RATES = {"episodes_per_second": "episodes", "env_steps_per_second": "env_steps"}
_RATES |= {"rounds_per_second": "rounds"}

Sample = tuple[str, str, str, float | Mapping[str, float]]
"""Name, type, help, and a value or a value for each node."""


def samples(
    window: StatusWindow, restarts: Mapping[str, int], minibatches_per_round: int
) -> list[Sample]:
    """Returns all values that are known now.

    Args:
      window: the last statuses of the run.
      restarts: number of restarts of each node.
      minibatches_per_round: converts rounds to minibatches.
    """
    status = window.latest or {}
    found: list[Sample] = [
        (name, kind, text, status[field])
        for name, kind, field, text in _STATUS
        if status.get(field) is not None
    ]
    if status.get("rounds") is not None:
        minibatches = status["rounds"] * minibatches_per_round
        found.append(("minibatches_total", "counter", "Minibatches that were learnt", minibatches))
    for name, field in _RATES.items():
        rate = window.rate(field)
        if rate is not None:
            found.append((name, "gauge", f"Growth of {field} over the last seconds", rate))
    found.append(("node_restarts_total", "counter", "Restarts of each node", restarts))
    troubles = len(status.get("trouble", ()))
    found.append(("troubles", "gauge", "Nodes that do not answer or make no progress", troubles))
    since = window.seconds_since_progress
    found.append(("seconds_since_progress", "gauge", "Since a step or round was added", since))
    return found


def prometheus_text(found: list[Sample]) -> str:
    """Formats the values in Prometheus' text format, version 0.0.4."""
    lines = []
    for name, kind, text, value in found:
        lines += [f"# HELP eve_{name} {text}", f"# TYPE eve_{name} {kind}"]
        if isinstance(value, Mapping):
            lines += [f'eve_{name}{{node="{node}"}} {count}' for node, count in value.items()]
        else:
            lines.append(f"eve_{name} {value}")
    return "\n".join(lines) + "\n"


def why_stalled(window: StatusWindow, seconds: float = STALL_SECONDS) -> str | None:
    """Returns one line that says why the run makes no progress; None if it makes progress.

    Args:
      window: the last statuses of the run.
      seconds: a run without progress for longer than this has stalled.
    """
    since = window.seconds_since_progress
    if window.latest is None:
        return f"starting for {since:.0f} s: the coordinator has written no status yet"
    if since <= seconds:
        return None
    troubles = "; ".join(window.latest["trouble"])
    return f"no episode, step or round for {since:.0f} s: {troubles or 'no node reports a problem'}"


class Endpoint:
    """The HTTP endpoint. The constructor binds the port; `serve` answers requests until `close`."""

    def __init__(self, host: str, port: int):
        """Binds the port.

        Args:
          host: the address to listen on.
          port: the port; 0 for a free one.

        Raises:
          UsageError: the port is out of range or cannot be bound.
        """
        if not 0 <= port < 2**16:
            raise UsageError(f"--metrics-port: got {port}, allowed is 0 (a free one) to 65535")
        try:
            self._server = _Server((host, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"--metrics-port: got {port} on {host!r}, allowed is a free port on an address of "
                f"this host ({error.strerror})"
            ) from None
        self.url = "http://{}:{}".format(*self._server.server_address[:2])

    def serve(
        self,
        window: StatusWindow,
        minibatches_per_round: int,
        restarts: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """Starts a thread that answers requests.

        Args:
          window: read at each request.
          minibatches_per_round: converts rounds to minibatches.
          restarts: returns the number of restarts of each node.
        """
        self._server.pages = {
            "/metrics": lambda _: (200, prometheus_text(current())),
            "/metrics.json": lambda _: (200, json.dumps(_by_name(current())) + "\n"),
            "/alive": lambda _: (200, "alive\n"),
            "/health": lambda query: _health(window, query),
        }

        def current() -> list[Sample]:
            return samples(window, restarts(), minibatches_per_round)

        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        """Frees the port."""
        if self._server.pages:
            self._server.shutdown()
        self._server.server_close()


Page = Callable[[dict[str, list[str]]], tuple[int, str]]


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    pages: dict[str, Page] = {}  # noqa: RUF012  Replaced, never changed.


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = 10  # An idle client does not block its thread forever.
    server: _Server

    def do_GET(self) -> None:
        """Sends the page of the request's path."""
        path, _, query = self.path.partition("?")
        page = self.server.pages.get(path)
        code, text = page(urllib.parse.parse_qs(query)) if page else (404, _known(self.server))
        self.send_response(code)
        kind = "application/json" if path.endswith(".json") else "text/plain; version=0.0.4"
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: Prometheus scrapes every few seconds."""


def _known(server: _Server) -> str:
    return f"allowed is one of {', '.join(server.pages)}\n"


def _by_name(found: list[Sample]) -> dict[str, Any]:
    return {name: dict(v) if isinstance(v, Mapping) else v for name, _, _, v in found}


def _health(window: StatusWindow, query: dict[str, list[str]]) -> tuple[int, str]:
    given = query.get("seconds", [str(STALL_SECONDS)])[-1]
    try:
        seconds = float(given)
    except ValueError:
        return 400, f"seconds: got {given!r}, allowed is a number\n"
    why = why_stalled(window, seconds)
    return (200, "the run makes progress\n") if why is None else (503, f"{why}\n")
