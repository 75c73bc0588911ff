"""`eve report`: the table of many runs, in the terminal or as one HTML page with all figures."""

import argparse
import pathlib
from typing import Any

from eve_acme.experiments import overview, results_page, table
from eve_acme.files import write_atomically, writing


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "report",
        help="print a table of finished runs, or write an HTML page with their figures",
        description="Reads the tables and runs of RESULTS (folders of 'eve run', 'eve launch' and "
        "'eve sweep', or table.csv.gz files) and prints, for each agent and task, the episode at "
        "which each seed was solved at both of bsuite's thresholds, the share of episodes with the "
        "treasure, the return, and bsuite's own score for runs of a bsuite id. With --html, "
        "writes one page that opens offline: all figures that the data allow, scores with "
        "intervals, the runs, and the notes (*.md, *.toml, *.txt) beside the tables.",
        epilog="example:  eve report results/exploration --html report.html",
    )
    parser.add_argument("results", nargs="+", metavar="RESULTS")
    parser.add_argument("--html", metavar="FILE", help="write this HTML page instead")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    frame = table.read_all(args.results)
    if args.html is None:
        print(overview.markdown(frame))
        return 0
    text = results_page.report(frame, tuple(pathlib.Path(name) for name in args.results))
    with writing("--html", args.html):
        write_atomically(pathlib.Path(args.html), text.encode())
    print(args.html)
    return 0
