"""`covey view`: every run of a folder in the browser."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "view",
        help="look at runs in the browser, also while they train",
        description=(
            "Serve the runs of a folder to a browser on this machine: a list with held-out figures and paired "
            "differences, curves that move while a run trains, completions, findings and differences of configs. Tags "
            "and notes are all that it writes. It ends with Ctrl-C."
        ),
    )
    parser.add_argument("folder", nargs="?", default="out", metavar="FOLDER", help="of runs, or one run (out)")
    parser.add_argument("--port", type=int, metavar="N", help="of the address; 0 takes any free one (8420)")
    parser.add_argument("--no-open", action="store_true", help="open no browser")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.view.app import serve

    serve(Path(arguments.folder), arguments.port, announce=_announce, open_page=not arguments.no_open)
    sys.stdout.flush()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        os._exit(0)  # Python would wait for what is still being computed for requests that were cut off
    return 0


def _announce(address: str) -> None:
    print(address, flush=True)
    print("Ctrl-C ends it.", file=sys.stderr, flush=True)
