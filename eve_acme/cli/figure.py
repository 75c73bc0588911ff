"""`eve figure`: draws one figure of stored results, as PNG and SVG."""

import argparse
import pathlib
from typing import Any

import pandas as pd

from eve_acme.errors import UsageError
from eve_acme.experiments import plan, table
from eve_acme.experiments.figures import FIGURES, Request, draw, style
from eve_acme.files import write_atomically, writing


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "figure",
        help="draw a figure of stored results",
        description="Draws one figure from the tables and runs of RESULTS (folders of 'eve sweep', "
        "'eve run' or 'eve launch', or table.csv.gz files) into DIR/NAME.png and DIR/NAME.svg "
        "(with --task, --size and --threshold in their names). "
        "NAME is radar (bsuite's tags), scores (bsuite's experiments, with intervals), failures "
        "(bad episodes of a Deep Sea), sizes and encodings (episodes to solve), ablations, "
        "sensitivity, curves (returns on one task), or spread (of a folder of 'eve probe').",
        epilog="example:  eve figure sizes results/sizes --out figures",
    )
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join(FIGURES)}")
    parser.add_argument("results", nargs="+", metavar="RESULTS")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument(
        "--agents",
        metavar="A,A",
        help="agents, or agents with a setting such as 'eve paper', to show (default: all, of "
        "EVE's settings the presets)",
    )
    parser.add_argument("--task", help="of curves and sensitivity (default: that with most runs)")
    parser.add_argument("--size", type=int, metavar="N", help="of failures (default: 30)")
    parser.add_argument(
        "--threshold",
        choices=("20", "10"),
        default="20",
        help="per cent of good episodes that solve a Deep Sea, for radar and scores: the paper's "
        "(default) or bsuite's since October 2022",
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if args.name not in FIGURES:
        raise UsageError(f"NAME: got {args.name!r}, allowed is one of {', '.join(FIGURES)}")
    request = Request(
        frame=_frame(args),
        folders=tuple(pathlib.Path(name) for name in args.results),
        agents=tuple(args.agents.split(",")) if args.agents else (),
        task=args.task,
        size=args.size,
        threshold=f"{args.threshold} %",
    )
    files = style.save(draw(args.name, request))
    directory = pathlib.Path(args.out)
    with writing("--out", args.out):
        directory.mkdir(parents=True, exist_ok=True)
        for suffix, data in files.items():
            path = directory / f"{_stem(args)}.{suffix}"
            write_atomically(path, data)
            print(path)
    return 0


def _stem(args: argparse.Namespace) -> str:
    """Returns the stem of the files' names: the figure's name and the selection."""
    chosen = [args.name]
    chosen += [plan.folder_name(args.task)] if args.task else []
    chosen += [str(args.size)] if args.size else []
    return "-".join([*chosen, *(["10"] if args.threshold == "10" else [])])


def _frame(args: argparse.Namespace) -> pd.DataFrame:
    """Reads the table of the results; empty for `spread`, which reads files of `eve probe`."""
    if args.name == "spread":
        for name in args.results:
            if not pathlib.Path(name).is_dir():
                raise UsageError(f"RESULTS: got {name!r}, allowed is a folder")
        return table.empty()
    return table.read_all(args.results)
