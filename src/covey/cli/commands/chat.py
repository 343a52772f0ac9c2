"""`covey chat`: chat with a model through its chat template, also in a pipe."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from covey.cli.commands.generate import add_sampling


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "chat",
        help="chat with a model",
        description="Chat with a model, line by line. /new starts a new conversation, end of input (Ctrl-D) exits.",
    )
    parser.add_argument("model", metavar="MODEL", help="a model, a run directory or a checkpoint")
    add_sampling(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.evaluation.chat import ChatModel

    model = ChatModel.of(arguments.model, arguments.system, arguments.temperature, arguments.max_tokens)
    messages: list[dict[str, str]] = []
    interactive = sys.stdin.isatty()
    while True:
        if interactive:
            print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return 0
        if line.strip() == "/new":
            messages = []
        elif line.strip():
            messages = messages or model.conversation("")[:-1]
            messages.append({"role": "user", "content": line.strip()})
            (answer,) = model.answer([messages], arguments.seed)
            messages.append({"role": "assistant", "content": answer})
            print(answer, flush=True)
