"""`covey chat`: talk to a model, with its chat template; also through a pipe."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from covey.cli.generate import add_sampling


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "chat",
        help="talk to a model",
        description="Talk to a model, line by line. /new begins a new conversation, an end of input (Ctrl-D) leaves.",
    )
    parser.add_argument("model", metavar="MODEL", help="a model, a run directory or a checkpoint")
    add_sampling(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.evaluation.talk import Talker

    talker = Talker.of(arguments.model, arguments.system, arguments.temperature, arguments.max_tokens)
    messages: list[dict[str, str]] = []
    asking = sys.stdin.isatty()
    while True:
        if asking:
            print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return 0
        if line.strip() == "/new":
            messages = []
        elif line.strip():
            messages = messages or talker.conversation("")[:-1]
            messages.append({"role": "user", "content": line.strip()})
            (answer,) = talker.answer([messages], arguments.seed)
            messages.append({"role": "assistant", "content": answer})
            print(answer, flush=True)
