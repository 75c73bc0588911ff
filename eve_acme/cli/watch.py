"""`eve watch`: serves the page of a run, which may still be running, on the loopback address."""

import argparse
import http.server
import pathlib
from typing import Any

from eve_acme.errors import UsageError
from eve_acme.experiments import run_page

HOST = "127.0.0.1"
PORT = 8765
REFRESH_SECONDS = 5
READ_SECONDS = 5.0


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "watch",
        help="serve the page of a run on this machine, also during the run",
        description="Serves the page of the 'eve run' or 'eve launch' in DIR on "
        f"http://{HOST}:PORT/, rebuilt from its files at each request; browsers reload it every "
        f"{REFRESH_SECONDS} seconds. Serves nothing else. Ctrl-C stops it.",
        epilog="example:  eve watch runs/deep_sea-0-eve-seed0",
    )
    parser.add_argument("run", metavar="DIR")
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="P", help=f"0: a free one (default: {PORT})"
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command until it is interrupted."""
    directory = pathlib.Path(args.run)
    run_page.build(directory)
    with serving(directory, args.port) as server:
        print(f"{directory}: http://{HOST}:{server.server_port}/ (Ctrl-C stops it)", flush=True)
        server.serve_forever()
    return 0


def serving(directory: pathlib.Path, port: int) -> http.server.HTTPServer:
    """Returns a listening HTTP server of a run's page; raises UsageError."""
    if not 0 <= port < 2**16:
        raise UsageError(f"--port: got {port}, allowed is 0 to {2**16 - 1}")

    class Handler(_Handler):
        run = directory

    try:
        return http.server.HTTPServer((HOST, port), Handler)
    except OSError as error:
        raise UsageError(
            f"--port: got {port}, allowed is one that is free ({error.strerror})"
        ) from None


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers `GET /` with the page, and other requests with an error."""

    run: pathlib.Path
    timeout = READ_SECONDS  # The server has one thread: a silent client would block it.

    def do_GET(self) -> None:
        port = self.connection.getsockname()[1]
        # Refuses DNS rebinding: another site whose host name resolves to this address.
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self.send_error(403)
            return
        if self.path not in ("/", f"/{run_page.FILE}"):
            self.send_error(404)
            return
        try:
            data = run_page.build(self.run, REFRESH_SECONDS).encode()
        except UsageError as error:
            self.send_error(503, explain=str(error))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Does not log requests."""
