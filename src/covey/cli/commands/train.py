"""`covey train`: train with a live display, and print a summary at the end."""

from __future__ import annotations

import argparse
import json
import os
from io import StringIO
from typing import Any

from covey.cli import config_arguments
from covey.cli.json_output import add_json, print_json
from covey.cli.main_process import is_main
from covey.launch.machine import RESUME_COMMAND, keep_one_gpu


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train a model",
        description="Train with GRPO. Without arguments: the starter model on arithmetic, in minutes, without a GPU.",
    )
    config_arguments.add_arguments(parser)
    parser.add_argument(
        *("--multirun", "-m"),
        action="store_true",
        help="a sweep: key=a,b or group=a,b or key=range(1,4) runs every combination, one after the other or where "
        "hydra/launcher=… sends them, and compares them at the end",
    )
    add_json(parser, "print the figures at the end as JSON, and everything else on stderr")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    request = config_arguments.read_request(arguments)
    sweep = arguments.multirun or request.is_sweep
    if arguments.cfg or arguments.info:
        from covey.cli.hydra_views import show

        return show(request, arguments.cfg, arguments.info, sweep=sweep)
    if sweep:
        from covey.cli.sweep import run_sweep

        return run_sweep(request, arguments.given, as_json=arguments.as_json)
    composed = request.compose()
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
    with composed.naming_places():
        result = run_training(composed.config, name, console)
    end_run(result, composed.config, console, resume=os.environ.pop(RESUME_COMMAND, None))
    if arguments.as_json and result.main:
        run = result.run
        summary = json.loads(run.summary.read_bytes()) if run.summary.is_file() else None
        print_json({"run": run.root, "finished": result.finished, "step": result.step, "summary": summary})
    return 0 if result.signal is None else 128 + result.signal
