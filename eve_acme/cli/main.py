"""`eve`: parses the command line; reports bad input in one line with exit code 2."""

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

from eve_acme.errors import UsageError
from eve_acme.experiments import output

RUNTIME = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false --xla_cpu_enable_fast_math=true",
    "PJRT_NPROC": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Environment variables with which JAX's CPU runtime and NumPy are fastest here.

Minibatches of 12 are too small to share between threads. The first flag runs each operation on one
thread, PJRT_NPROC limits the threads of several operations, and OPENBLAS_NUM_THREADS those of
NumPy's products, which spin while they wait for each other. NumPy reads the last variable at its
import: `./eve` sets it for this process; child processes inherit it from here. Fast math lets XLA
reorder sums and fuse multiplication with addition; it still honours NaN and infinity.
"""
COMMANDS = (
    "run", "launch", "watch", "evaluate", "sweep", "report", "figure", "data", "spread", "probe",
    "bench", "chaos", "node", "cluster", "doctor",
)  # fmt: skip
"""Modules of `eve_acme.cli` with a function `add_parser`, in the order of `eve --help`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    for name, value in {**RUNTIME, "TF_CPP_MIN_LOG_LEVEL": "3"}.items():
        os.environ.setdefault(name, value)
    draw_as_locked()
    words = list(sys.argv[1:] if argv is None else argv)
    return output.quiet_if_unread(lambda: _command(words))


def draw_as_locked() -> None:
    """Makes PRNG keys and normals equal to those of JAX 0.4 in every version. From 0.5 on, JAX's
    default draws other numbers from the same key, so that a seed would result in another run."""
    import jax

    with contextlib.suppress(AttributeError):  # A version without this option.
        jax.config.update("jax_threefry_partitionable", False)


class Terminated(KeyboardInterrupt):
    """SIGTERM, in a command without a handler of its own; an exception, so that cleanup runs."""


def _terminate(number: int, frame: Any) -> None:
    raise Terminated


def _command(argv: list[str]) -> int:
    before = {}
    if threading.current_thread() is threading.main_thread():
        # SIGINT too, because shells start background jobs with SIGINT ignored.
        handlers = {signal.SIGTERM: _terminate, signal.SIGINT: signal.default_int_handler}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        _refuse_empty(argv)
        words, rest = _split(argv)
        parser = _parser()
        args = parser.parse_args(words)
        if rest and not getattr(args, "passes_rest", False):
            raise UsageError(f"--: got {rest}, allowed is nothing after -- for this command")
        args.rest, args.parse = rest, parser.parse_args
        return args.command(args)
    except UsageError as error:
        line = " ".join(str(error).split())
        if error.details:
            line += f"; traceback: {_keep(error.details)}"
        print(f"eve: {line}", file=sys.stderr)
        return 2
    except Terminated:
        return 143
    except KeyboardInterrupt:
        return 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _keep(details: str) -> str:
    """Writes a traceback to a new file; returns its path."""
    handle, path = tempfile.mkstemp(prefix="eve-traceback-", suffix=".txt")
    with open(handle, "w") as file:
        file.write(details)
    return path


def _refuse_empty(words: list[str]) -> None:
    """Raises UsageError if an argument or its value is empty, as from an unset shell variable."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        option = word.startswith("--") and equals
        if not (value if option else word).strip():
            before = words[i - 1] if i and words[i - 1].startswith("-") else "argument"
            raise UsageError(f"{name if option else before}: got {value!r}, allowed is a value")


def _parser() -> Any:
    from eve_acme.cli import options

    parser = options.Parser(
        prog="eve",
        description="Deep exploration by epistemic value estimation (EVE).",
        epilog="'./eve test' in a checkout runs the tests. 'eve run --help' explains every option.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f"eve_acme.cli.{name}").add_parser(commands)
    return parser


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Splits the arguments at `--`."""
    if "--" not in words:
        return words, []
    i = words.index("--")
    return words[:i], words[i + 1 :]
