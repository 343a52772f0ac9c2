"""`covey profile`: whether a run could learn its problems, in minutes."""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from covey.advice import command
from covey.cli import config_arguments
from covey.cli.json_output import add_json, print_json
from covey.config import Config
from covey.errors import ConfigError
from covey.runlog.files import check_writable


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "profile",
        help="find out in minutes whether a run could learn its problems",
        description=(
            "Sample groups of completions as training would, for a few minutes (profile.minutes), and say whether to "
            "learn, to warm up the model first, or to change prompt, grader or problems; with pass@k, groups without "
            "signal, outcomes, lengths, speed and memory."
        ),
    )
    config_arguments.add_arguments(parser)
    parser.usage = "covey profile [options] MODEL|RUN|RECIPE [key=value | group=option | --flag value] …"
    parser.add_argument("--keep", metavar="LOW-HIGH", help="write the rows of which this share is right, as in 0.1-0.9")
    parser.add_argument("--out", metavar="FILE", help="of --keep: where the rows go, as they were read, in JSON lines")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    request = config_arguments.read_request(arguments)
    bounds = re.fullmatch(r"(0|1|0?\.\d+|1\.0)-(0|1|0?\.\d+|1\.0)", arguments.keep or "0-1")
    if bounds is None or bool(arguments.keep) != bool(arguments.out) or float(bounds[1]) > float(bounds[2]):
        raise ConfigError("Rows are kept by --keep LOW-HIGH --out FILE, as in --keep 0.1-0.9 --out rows.jsonl.")
    keep = (float(bounds[1]), float(bounds[2]), Path(arguments.out)) if arguments.out else None
    if keep is not None:
        _check_new(keep[2])
    from covey.config.compose.recipe import holds_rows
    from covey.evaluation.stored import find_target

    name = str(request.recipe)
    is_recipe = request.recipe is None or name.endswith((".yaml", ".yml")) or holds_rows(name)
    target = find_target(request.compose().config.model.name if is_recipe else name)
    words, recipe = target.words(*request.overrides), request.recipe if is_recipe else target.recipe
    composed = replace(request, recipe=recipe, overrides=words).compose()
    example = command("profile {run} dataset=gsm8k", run=target.label)
    target.check_data(composed.config, [*composed.origins, *request.overrides], example)
    config_arguments.print_notes(composed)
    config_arguments.check_paths(config_arguments.data_paths(composed.config))
    console = config_arguments.make_console(stderr=arguments.as_json)
    found = measure(composed.config, target, console, keep)
    if arguments.as_json:
        print_json(found)
    elif found["problems"] < found["wanted"]:
        of = f"{found['problems']:,} of {found['wanted']:,} problems"
        console.print(f"The time allowed {of}: profile.minutes=N gives it more.", highlight=False, soft_wrap=True)
    data = composed.config.dataset
    if found.get("kept") and data.task and (data.user_prompt_template or data.system_prompt):
        keys = "dataset.user_prompt_template and dataset.system_prompt"
        print(f"covey: The rows hold whole prompts: train on them without {keys}.", file=sys.stderr)
    for name, value in found.items() if not arguments.as_json else ():
        console.print(f"{name}: {_text(value, name) or '?'}".replace("_", " "), markup=False, highlight=False)
    return 0


def _check_new(file: Path) -> None:
    """Raise a `CoveyError` unless this file can be made: what is there is not replaced."""
    if file.exists():
        raise ConfigError(f"--out {file} is there, and nothing is overwritten: name another file.")
    try:
        file.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {file} cannot be made ({error.strerror}): name another file.") from error
    check_writable("the rows that are kept", file.absolute().parent)


def measure(config: Config, target: Any, console: Any, keep: tuple[float, float, Path] | None = None) -> dict[str, Any]:
    """What `covey.evaluation.profile.profile` finds, and the memory to train."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoConfig

    from covey.evaluation.profile import profile
    from covey.model.load import check_model, source_options
    from covey.training.checks.data import check_memory

    before = f"Loading; sampling takes at most {config.profile.minutes:g} minutes, or one round of problems"
    with config_arguments.sampling_progress(console, before) as show:
        found = profile(config, target, show, keep)
    model = AutoConfig.from_pretrained(check_model(config.model), **source_options(config.model))
    known: Any = SimpleNamespace(config=config, model=model, prompts=[range(found["longest_prompt"])])
    return {"memory": next(iter(check_memory(known))).result} | found


def _text(value: Any, name: str) -> str:
    from covey.evaluation.estimators import Estimate
    from covey.evaluation.figures import estimate_text

    if isinstance(value, dict):
        shown = {key: one for key, one in value.items() if name != "outcomes" or one.value}
        return ", ".join(f"{key} {_text(one, name)}" for key, one in shown.items())
    if isinstance(value, Estimate):
        return estimate_text(value, name)
    return f"{value:,.3g}" if isinstance(value, float) else str(value)
