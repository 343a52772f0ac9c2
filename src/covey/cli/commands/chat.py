"""`covey chat`: chat with a model through its chat template, also in a pipe."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any

from covey.cli.commands.generate import add_sampling

if TYPE_CHECKING:
    from covey.evaluation.chat import Session


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "chat",
        help="chat with a model",
        description=(
            "Chat with a model, line by line. /new starts a new conversation, /help lists the commands, end of "
            "input (Ctrl-D) exits. The model "
            "of a run with tools or an environment calls them; calls and results are shown."
        ),
    )
    parser.add_argument("model", metavar="MODEL", help="a model, a run directory or a checkpoint")
    add_sampling(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from covey.cli.config_arguments import make_console
    from covey.cli.show_messages import ShownMessages
    from covey.evaluation.chat import ChatModel, Session

    console, options = make_console(), (arguments.temperature, arguments.max_tokens)
    shown = ShownMessages(console, texts=True)
    with ChatModel.of(arguments.model, arguments.system, *options, shown) as model:
        chat = Session(model, arguments.seed)
        interactive, command = sys.stdin.isatty(), "/new"
        if interactive:
            import readline  # noqa: F401 (`input` then has line editing and a history)

            _say(f"{arguments.model}: write to it, line by line. {_HELP}")
        while True:
            if command == "/new" and chat.begin():
                console.print(chat.observation, style="dim", markup=False, highlight=False, soft_wrap=True)
                _print(console, chat, None)
            try:
                line = (input("> ") if interactive else next(sys.stdin)).strip()
            except (EOFError, StopIteration):
                return 0
            command = line if _COMMAND.fullmatch(line) else ""
            if command == "/exit":
                return 0
            if command and command != "/new":
                _say(_HELP if command == "/help" else f"There is no command {command}. {_HELP}")
            elif line and not command:
                _print(console, chat, line)


def _say(text: str) -> None:
    """Print what is not part of the conversation."""
    print(text, file=sys.stderr, flush=True)


_COMMAND = re.compile(r"/[a-z]*")
"""A line that goes to nobody else: a word after a slash, alone."""
_HELP = "/new starts a new conversation, /help shows this, /exit or Ctrl-D ends."


def _print(console: Any, chat: Session, text: str | None) -> None:
    """Print the model's answer, or why there is none."""
    print(chat.answer(text), flush=True)
    if chat.ended is not None:
        why = _ENDED.get(chat.ended, chat.ended)
        console.print(f"({why}; /new starts again)", style="yellow", markup=False, highlight=False)


_ENDED = {
    "truncated": "cut at --max-tokens",
    "max_turns": "still calling tools at environment.max_turns",
    "timed_out": "the environment timed out",
    "crashed": "the environment crashed",
}
