"""`covey report`: a page of one run, or a comparison of several."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="make a page of a run, or compare runs",
        description=(
            "Write report.html into a run directory: curves, findings and completions in one file that needs no "
            "network. With several runs: comparison.html, the same curves overlaid, the differences of "
            "their configs, and their answers to the same problems."
        ),
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directory: output_dir/run_name")
    parser.add_argument("--out", metavar="FILE", help="the page to write, instead of the usual place")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    runs = [Path(name) for name in arguments.runs]
    target = Path(arguments.out) if arguments.out else None
    if len(runs) == 1:
        from covey.report.page import write_report

        page = write_report(runs[0], target)
    else:
        from covey.report.compare import write_comparison

        page = write_comparison(runs, target)
    print(page)
    return 0
