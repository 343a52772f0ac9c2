"""`covey`: the entry point. Parses, dispatches, and turns a `CoveyError` into one paragraph and an exit code."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from covey import __version__
from covey.cli import (
    chat,
    compare,
    composing,
    config,
    doctor,
    eval,
    export,
    generate,
    launch,
    push,
    report,
    starter,
    train,
    vocab,
    widen,
)
from covey.cli.several import is_main, leave_to_main, wait_for_main, which_process
from covey.errors import ConfigError, CoveyError, EndedElsewhereError

_COMMANDS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        *(train, launch, eval, compare, report, vocab),
        *(generate, chat, export, widen, push, config, doctor, starter),
    )
}
_TOGETHER = ("train", "launch")
"""Commands in which every process of several has a part."""
_DESCRIPTION = "Group-relative policy optimisation of language models on answers that can be checked."
_EPILOGUE = """examples:
  covey train                                       train the starter model on arithmetic
  covey train dataset=gsm8k dataset.path=FILE       train on GSM8K's own JSONL
  covey train my_recipe.yaml training.max_steps=50  train a recipe, one key overridden
  covey train --multirun seed=1,2,3                 train once for each seed, and compare
  covey launch my_recipe.yaml --dry-run             what would be started on how many GPUs
  covey doctor my_recipe.yaml                       look at a run before it starts
  covey report out/my-run                           make a page of a run
  covey eval out/my-run evaluation=greedy           evaluate its final model
  covey vocab out/my-run                            what its reasoning tokens have become
  covey compare out/first out/second                compare two runs problem by problem
  covey config training.learning_rate=1e-5          print what a command would run
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="covey", description=_DESCRIPTION, epilog=_EPILOGUE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"covey {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS.values():
        command.add_parser(commands)
    return parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read a command line. Recipe, overrides and flags stay as they are, in `words`; all that was given, in `given`."""
    command, *rest = words or ["--help"]
    _refuse_unknown(command)
    own, others = composing.part(command, rest) if command in composing.OPTIONS else (rest, [])
    arguments = build_parser().parse_args([command, *own])
    arguments.words, arguments.given = others, rest
    return arguments


def _refuse_unknown(command: str) -> None:
    """Name the nearest commands for a word that is none."""
    if command.startswith("-") or command in _COMMANDS:
        return
    near = difflib.get_close_matches(command, _COMMANDS, n=2)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"The commands are {', '.join(_COMMANDS)}."
    raise ConfigError(f"There is no command {command}. {hint} `covey --help` says what each does.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        words = sys.argv[1:] if argv is None else argv
        arguments = parse(words)
        if words[0] not in _TOGETHER and leave_to_main(words[0]):
            return 0
        return int(arguments.run(arguments))
    except EndedElsewhereError as error:
        return error.exit_code
    except CoveyError as error:
        if not error.told_here:
            wait_for_main()
        print(f"covey: {which_process()}{error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output went away (`covey config | head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        if is_main():
            print("covey: interrupted.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
