"""`covey config`: print the config that a command would run, without running it and without PyTorch."""

from __future__ import annotations

import argparse
from typing import Any

from covey.cli import composing


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "config",
        help="print the resolved config",
        description="Print the config that `covey train` would run with the same arguments, as a recipe.",
    )
    composing.add_arguments(parser)
    parser.add_argument("--doc", metavar="KEY", help="explain one key instead: its type, default and meaning")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.config import document, to_yaml

    if arguments.doc:
        doc = document(arguments.doc)
        print(f"{doc.key}\n  type     {doc.type}\n  default  {doc.default}\n\n{doc.doc}")
        return 0
    print(to_yaml(composing.compose(arguments).config), end="")
    return 0
