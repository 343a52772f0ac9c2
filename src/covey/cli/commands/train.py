"""`covey train` and `covey sft`: train with a live display, and print a summary at the end."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from covey.advice import command
from covey.cli import config_arguments
from covey.cli.config_arguments import Request
from covey.cli.json_output import add_json, print_json
from covey.cli.main_process import is_main
from covey.config import Composed, Flag, differences, load
from covey.config.compose.group_files import CONF, Roots
from covey.config.compose.recipe import holds_rows, read_yaml
from covey.config.groups.dataset import without_suffix
from covey.config.groups.training import READ_BY_SFT
from covey.errors import ConfigError
from covey.launch.machine import RESUME_COMMAND, keep_one_gpu
from covey.runlog.directory import RunDirectory, temporary_folder


def add_parser(commands: Any) -> None:
    grpo = "Train with GRPO. Without arguments: the starter model on arithmetic, in minutes, without a GPU."
    sft = "Supervised training on sft.rows=FILE, with prompt and completion, or messages; or on the right completions "
    sft += "of a run, sft.rows=RUN. The run directory is like that of `covey train`."
    for name, what, text in (("train", "train a model", grpo), ("sft", "train on examples, before GRPO", sft)):
        parser = commands.add_parser(name, help=what, description=text)
        config_arguments.add_arguments(parser)
        parser.add_argument(
            *("--multirun", "-m"),
            action="store_true",
            help="a sweep: key=a,b or group=a,b or key=range(1,4) runs every combination, one after the other or where "
            "hydra/launcher=… sends them, and compares them at the end",
        )
        add_json(parser, "print the figures at the end as JSON, and everything else on stderr")
        parser.set_defaults(run=run, supervised=name == "sft")


def run(arguments: argparse.Namespace) -> int:
    request = config_arguments.read_request(arguments)
    if arguments.supervised:
        request = _supervised(request)
    sweep = arguments.multirun or request.is_sweep
    if arguments.cfg or arguments.info:
        from covey.cli.hydra_views import show

        return show(request, arguments.cfg, arguments.info, sweep=sweep)
    if sweep:
        from covey.cli.sweep import run_sweep

        return run_sweep(request, arguments.given, as_json=arguments.as_json)
    composed, recipe = _composed(request)
    if is_main():
        config_arguments.print_without_effect(composed)
    config_arguments.check_names(composed.config)
    if is_main():
        config_arguments.check_run(composed.config)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else forked workers warn about it
    if os.environ.get("WORLD_SIZE", "1") != "1":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns needlessly in every process
    from rich.console import Console

    console = Console(stderr=arguments.as_json) if is_main() else Console(file=StringIO(), quiet=True)
    for note in (*composed.notes, *filter(None, [keep_one_gpu()])):
        console.print(f"· {note}", markup=False, highlight=False, soft_wrap=True)
    from covey.training.end import end_run
    from covey.training.run import run_training

    name = config_arguments.default_name(request.source, [composed.config])
    run = RunDirectory(Path(composed.config.output_dir) / (composed.config.run_name or name))
    try:
        with composed.naming_places():
            result = run_training(composed.config, name, console)
    finally:
        if recipe and is_main() and run.config.is_file():
            run.recipe.write_text(recipe, encoding="utf-8")
    end_run(result, composed.config, console, resume=os.environ.pop(RESUME_COMMAND, None))
    if arguments.as_json and result.main:
        summary = json.loads(run.summary.read_bytes()) if run.summary.is_file() else None
        print_json({"run": result.run.root, "finished": result.finished, "step": result.step, "summary": summary})
    return 0 if result.signal is None else 128 + result.signal


def _supervised(request: Request) -> Request:
    """The request with the defaults of supervised training below what is typed: `training=sft`, in place of the
    schedule of a recipe for GRPO; and where no data are named, those of the run that has the examples, or none. Raises
    a `ConfigError` without `sft.rows`."""
    from covey.cli.sweep.expand import expand

    first = expand(request.overrides, Roots.of(request.config_dirs))[0]  # of a sweep
    composed = replace(request, overrides=first.overrides, hydra=()).compose()
    rows = composed.config.sft.rows
    if rows is None:
        raise ConfigError(
            "covey sft needs sft.rows: a file with prompt and completion, or messages; or a run, whose right "
            "completions are learnt, as in `covey sft sft.rows=out/my-run`."
        )
    typed = {*composed.origins, *(str(word).lstrip("+").partition("=")[0] for word in request.overrides)}
    named = {key.partition(".")[0] for key in typed if key in _NAMING or key.startswith("dataset.mixture")}
    words: list[str | Flag] = ["training=sft"] if composed.defaults_tree else []  # a whole config has all it needs
    if words and request.source is not None and ", line " not in composed.origins["sft.rows"]:
        words += [f"training.{key}={value}" for key, value in read_yaml(CONF / "training" / "sft.yaml").items()]
    run = RunDirectory(Path(rows).expanduser())
    if request.source is None and run.config.is_file():
        own = {"model", "dataset", "rewards", "evaluation"} - named
        for key, value, _ in differences(load(recipe=run.config), load()):
            taken = (key.partition(".")[0] in own and "lora" not in key) or key.removeprefix("training.") in READ_BY_SFT
            if taken and key not in typed:
                words.append(Flag(key, (value if isinstance(value, str) else json.dumps(value),)))
    elif request.source is None and "dataset" not in named:
        words.append("dataset=none")
        if is_main():
            print("· No data are named (dataset=NAME), so nothing is evaluated.", file=sys.stderr)
    return replace(request, overrides=(*words, *request.overrides))


_NAMING = frozenset(
    {"model", "model.name", "dataset", "dataset.path", "dataset.id", "dataset.task", "rewards", "rewards.funcs"}
)
"""What names a model, data or rewards: the others of its group are then not those of a run."""


def _composed(request: Request) -> tuple[Composed, str]:
    """The config; and the recipe that `covey init` would write, where rows are given in place of one."""
    rows = str(request.recipe)
    if not holds_rows(rows):
        return request.compose(), ""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from covey.training.proposal import propose

    found = propose(rows, None, request.overrides)
    if found.needs_model or found.needs_reward:
        lacks = "the starter knows sums alone, so a model has to be named" if found.needs_model else ""
        lacks = lacks or "no rule can check its answers, so the reward has to be yours"
        init = command("init {file} --model {model}", file=rows, model=found.keys["model.name"])
        raise ConfigError(f"{rows} needs a recipe: {lacks}. `{init}` writes one to start from.")
    of_this_call = ("run_name", "output_dir", "resume", "overwrite", "stop_after_steps")
    text = replace(found, keys={key: value for key, value in found.keys.items() if key not in of_this_call}).recipe()
    with temporary_folder("covey-init-") as folder:
        file = folder / f"{without_suffix(rows)}.yaml"
        file.write_text(text, encoding="utf-8")
        return request.with_recipe(str(file)).compose(), text
