"""`covey generate`: a model's completions of a prompt, or of every prompt in a file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.errors import ConfigError, RunDirectoryError
from covey.runlog.files import guard_disk, write_atomically

if TYPE_CHECKING:
    from covey.evaluation.chat import Answer


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "generate",
        help="generate completions of a prompt or a file of prompts",
        description=(
            "Complete one prompt, or every prompt of a file: one that training reads (jsonl, json, csv, parquet), or "
            "any other text with one prompt per line. For a file the output is JSON Lines: prompt and completion. The "
            "model of a run with tools or an environment calls them: the rows then hold the messages too, and the "
            "environment gets the other columns of the file."
        ),
    )
    parser.add_argument("model", metavar="MODEL", help="a model, a run directory or a checkpoint")
    parser.add_argument("file", nargs="?", metavar="FILE", help="a file of prompts")
    parser.add_argument("out", nargs="?", metavar="OUT", help="output file; stdout by default")
    parser.add_argument("--prompt", metavar="TEXT", help="one prompt, in place of a file")
    add_sampling(parser)
    parser.set_defaults(run=run)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the sampling options."""
    parser.add_argument("--system", metavar="TEXT", help="system prompt; a run brings its own")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy decoding (default)")
    parser.add_argument(
        "--max-tokens", type=int, help="longest completion in tokens (256; with tools the run's, if that is longer)"
    )
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> int:
    if (arguments.file is None) == (arguments.prompt is None):
        raise ConfigError("covey generate needs a file of prompts or --prompt TEXT, one of the two.")
    if arguments.prompt is not None and not arguments.prompt.strip():
        raise ConfigError("covey generate got an empty --prompt: write the question, as in --prompt '12 + 30'.")
    if arguments.out is not None and Path(arguments.out).is_dir():
        raise ConfigError(f"covey generate writes a file, and {arguments.out} is a folder: name a file in it.")
    rows = [{"prompt": arguments.prompt}] if arguments.file is None else _read(arguments.file, arguments.model)
    from rich.console import Console

    from covey.cli.show_messages import ShownMessages
    from covey.evaluation.chat import ChatModel

    shown = ShownMessages(Console(stderr=True), texts=True) if arguments.file is None else None
    options = (arguments.temperature, arguments.max_tokens)
    with ChatModel.of(arguments.model, arguments.system, *options, shown) as model:
        asked = [{**row, "prompt": model.conversation(row["prompt"])} for row in rows]
        answers = model.answer(asked, arguments.seed)
    if arguments.file is None:
        print(answers[0].text)
        return 0
    made = [_row(row["prompt"], answer) for row, answer in zip(rows, answers, strict=True)]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made)
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        _write(Path(arguments.out), text)
    return 0


def _row(prompt: Any, answer: Answer) -> dict[str, Any]:
    """A line of the output."""
    from covey.evaluation.played import plain_message

    found = {"prompt": prompt, "completion": answer.text}
    if (episode := answer.episode) is not None:
        messages = [plain_message(message) for message in (*episode.messages, *episode.completion)]
        counts = {"turns": episode.turns, "tool_calls": episode.calls, "tool_failures": episode.failures}
        found |= {"messages": messages, **counts, "episode": episode.ended}
    return found


def _write(out: Path, text: str) -> None:
    """Write the completions; print them if writing fails."""
    try:
        with guard_disk(out.name, out.absolute().parent, elsewhere="name another file"):
            write_atomically(out, text)
    except RunDirectoryError as error:
        sys.stdout.write(text)
        raise RunDirectoryError(f"{error} The completions are on the standard output.") from error


def _read(file: str, model: str) -> list[dict[str, Any]]:
    """The prompts of a file; of a run's model, their column may have the name that it has in the run's data."""
    from covey.config import load
    from covey.data.load import read_prompts
    from covey.evaluation.stored import find_target

    if not Path(file).expanduser().exists() and " " in file:
        raise ConfigError(f"There is no file {file}. A single prompt is given as --prompt TEXT.")
    recipe = find_target(model).recipe
    config = None if recipe is None else load(recipe=recipe)
    return read_prompts(file, *((config.dataset.prompt_column, config.environment) if config else ()))
