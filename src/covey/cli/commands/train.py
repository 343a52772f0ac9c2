"""`covey train`: train with a live display, and print a summary at the end."""

from __future__ import annotations

import argparse
import os
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli import config_arguments
from covey.cli.main_process import is_main
from covey.errors import CoveyError
from covey.runlog.directory import RunDirectory

if TYPE_CHECKING:
    from covey.config import Config
    from covey.training.run import RunResult


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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    request = config_arguments.read_request(arguments)
    sweep = arguments.multirun or request.is_sweep
    if arguments.cfg or arguments.info:
        from covey.cli.hydra_views import show

        return show(request, arguments.cfg, arguments.info, sweep=sweep)
    if sweep:
        from covey.cli.sweep import run_sweep

        return run_sweep(request, arguments.given)
    composed = request.compose()
    config_arguments.check_names(composed.config)
    if composed.config.run_name is not None and is_main():
        RunDirectory(Path(composed.config.output_dir) / composed.config.run_name).refuse_locked()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else forked workers warn about it
    if os.environ.get("WORLD_SIZE", "1") != "1":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns needlessly in every process
    from rich.console import Console

    console = Console() if is_main() else Console(file=StringIO(), quiet=True)
    for note in composed.notes:
        console.print(f"· {note}", markup=False, highlight=False, soft_wrap=True)
    with console.status("Loading PyTorch …"):
        from covey.training.run import run_training
    name = config_arguments.default_name(request.recipe, [composed.config])
    return _report(run_training(composed.config, name, console), composed.config, console)


def _report(result: RunResult, config: Config, console: Any) -> int:
    from covey.report.end_of_run import write_end_of_run
    from covey.report.evaluations import evaluation_rows
    from covey.report.summary import before_and_after, summary_line
    from covey.training.display.live_display import before_after_table, print_summary
    from covey.training.publish.hub import push_finished

    run = result.run
    if not result.main:
        return 0 if result.signal is None else 128 + result.signal
    if result.trained or not run.report.exists():  # a run finished earlier is left as it is
        for problem in write_end_of_run(run, finished=result.finished):
            console.print(f"· {problem}", markup=False, highlight=False, soft_wrap=True)
    if not result.finished:
        hint = "The same command resumes from it."
        if config.run_name is None:  # the same command would take a new timestamp for its name
            name = f"output_dir={config.output_dir} run_name={run.root.name}"
            hint = f"To resume from it: covey train --config {run.config} {name}"
        text = f"Stopped after step {result.step}, with a checkpoint. {hint}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return 0 if result.signal is None else 128 + result.signal
    rows = []
    try:
        rows = before_and_after(run)
    except CoveyError as error:  # the model does not depend on it
        console.print(f"· {error}", markup=False, highlight=False, soft_wrap=True)
    after = evaluation_rows(run)
    paths = [("report", run.report), ("curves", run.curves)] if run.report.exists() else []
    paths += [("model", run.final_model), ("metrics", run.metrics), ("completions", run.completions), ("log", run.log)]
    print_summary(console, before_after_table(rows) if rows else None, paths)
    for row in after:
        text = f"  {row.set_name} ({row.state}, {row.problems} problems, {row.sampling}): {row.text}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if result.trained:
        push_finished(config, run, console)
        console.print(summary_line(result.step, result.training_seconds, result.peak_memory_bytes), highlight=False)
    return 0
