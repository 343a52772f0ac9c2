"""`covey`: the entry point. Parses, dispatches, and turns a `CoveyError` into one paragraph and an exit code."""

from __future__ import annotations

import argparse
import difflib
import logging
import sys
import time
from collections.abc import Sequence
from importlib import import_module

from covey._version import __version__
from covey.cli import config_arguments
from covey.cli.json_output import json_alone
from covey.cli.main_process import REPORT_SECONDS, is_main, process_label, skip_unless_main
from covey.cli.streams import lost_output, protect_streams
from covey.config.secrets import redact, redact_words
from covey.errors import ConfigError, CoveyError, EndedElsewhereError, printable

_COMMANDS = (
    *("init", "profile", "train", "sft", "launch", "eval", "compare", "view", "runs", "report", "audit", "vocab"),
    *("generate", "chat", "export", "expand-vocab", "push", "config", "doctor", "starter", "completion"),
)
"""In the order of `covey --help`; each is a module of `covey.cli.commands`, but for `sft`, which `train` has."""
_FORMER_NAMES = {"widen": "expand-vocab"}
_MULTI_PROCESS = ("train", "sft", "launch")
"""Commands that every process of several takes part in."""
_DESCRIPTION = "Group-relative policy optimisation of language models on answers that can be checked."
_EPILOGUE = """examples:
  covey train                                       train the starter model on arithmetic
  covey train environment=calculator                train an agent: the starter learns to call a calculator
  covey train dataset=gsm8k dataset.path=FILE       train on GSM8K's own JSONL
  covey init rows.jsonl                             look at rows of your own, and write a recipe for them
  covey profile my_recipe.yaml                      find out in minutes whether that could learn
  covey train my_recipe.yaml training.max_steps=50  train a recipe, one key overridden
  covey sft sft.rows=rows.jsonl model.name=MODEL    train on examples first
  covey train --multirun seed=1,2,3                 train once for each seed, and compare
  covey launch my_recipe.yaml --dry-run             what would be started on how many GPUs
  covey doctor my_recipe.yaml                       check a run before it starts
  covey view                                        look at all runs in the browser, also while they train
  covey runs                                        list them in the terminal
  covey report out/my-run                           make a page of a run
  covey audit rollouts.jsonl                        examine the rollouts of any trainer
  covey eval out/my-run evaluation=greedy           evaluate its final model
  covey vocab out/my-run                            what its reasoning tokens have learnt
  covey compare out/first out/second                compare two runs problem by problem
  covey config training.learning_rate=1e-5          print what a command would run
"""


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The main parser, and the parser of each command."""
    parser = argparse.ArgumentParser(
        prog="covey", description=_DESCRIPTION, epilog=_EPILOGUE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"covey {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (one for one in _COMMANDS if one not in commands.choices):  # a module may have two
        import_module(f"covey.cli.commands.{command.replace('-', '_')}").add_parser(commands)
    return parser, commands.choices


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Recipe, overrides and flags are kept in `words`, the whole command line in `given`."""
    command, *rest = words or ["--help"]
    command = _FORMER_NAMES.get(command, command)
    if not command.startswith("-") and command not in _COMMANDS:
        near = difflib.get_close_matches(command, _COMMANDS, n=2)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"The commands are {', '.join(_COMMANDS)}."
        raise ConfigError(f"There is no command {command}. {hint} `covey --help` explains them.")
    parser, commands = parsers()
    takes_words = command in commands and commands[command].get_default("words") is not None
    options, others = config_arguments.split_options(commands[command], rest) if takes_words else (rest, [])
    arguments = parser.parse_args([command, *options])
    arguments.words, arguments.given = others, [command, *rest]
    return arguments


class _Printable(logging.Formatter):
    """Warnings may quote names and files of any content."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    protect_streams()
    if logging.lastResort is not None:  # prints the warnings of commands that set up no log
        logging.lastResort.setFormatter(_Printable())
    try:
        words = sys.argv[1:] if argv is None else argv
        arguments = parse(words)
        sys.argv[1:] = redact_words(sys.argv[1:])  # `environment.json` and trackers record it
        if words[0] not in _MULTI_PROCESS and skip_unless_main(words[0]):
            return 0
        with json_alone(getattr(arguments, "as_json", False)):
            code = int(arguments.run(arguments))
        if code == 0 and (lost := lost_output()) is not None:
            raise CoveyError(f"Part of the output could not be written: {lost.strerror}. All else was done.")
        return code
    except EndedElsewhereError as error:
        return error.exit_code
    except CoveyError as error:
        if not error.reported_here and not is_main():  # whose error is mostly the same
            time.sleep(REPORT_SECONDS)
        print(f"covey: {process_label()}{redact(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        if is_main():
            print("covey: interrupted.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
