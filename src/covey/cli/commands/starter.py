"""`covey starter`: train a starter model again."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.advice import command
from covey.cli.json_output import add_json, print_json
from covey.config.groups.dataset import TASKS
from covey.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from covey.model.starter.coldstart import ColdStart


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "starter",
        help="train the starter model again from scratch",
        description=(
            "Train the starter model from random weights: about a million parameters, cold-started on a mixture of "
            "careful, hasty and sloppy answers to arithmetic, seeded. The shipped model was made with the defaults, in "
            "under an hour on two cores. With --agent, the one that can call a calculator, which continues from the "
            "shipped starter's weights, in half of that time. With --task, a smaller one for a task with several right "
            "answers, in ten minutes: `covey train model.name=FOLDER dataset=TASK` goes on from it."
        ),
    )
    parser.usage = "covey starter [options] [FOLDER] [dataset.KEY=VALUE …]"
    parser.epilog = (
        "FOLDER is ./starter, ./starter_agent or ./starter_TASK by default. With --task, keys of its dataset make "
        "other problems, as in `covey starter FOLDER --task countdown dataset.difficulty.max_digits=1`."
    )
    parser.add_argument(
        "--task", choices=TASKS, default="arithmetic", help="the task that it starts to learn (default: arithmetic)"
    )
    parser.add_argument("--agent", action="store_true", help="train the one that can call a calculator")
    parser.add_argument("--steps", type=int, help="optimiser steps, instead of the default")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and documents (default: 0)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing model")
    add_json(parser)
    parser.set_defaults(run=run, words=())


def run(arguments: argparse.Namespace) -> int:
    task = None if arguments.task == "arithmetic" else arguments.task
    folders = [word for word in arguments.words if "=" not in word]
    words = [word for word in arguments.words if "=" in word]
    if task is not None and arguments.agent:
        raise ConfigError(f"--agent is for arithmetic, not for --task {task}: leave one of the two out.")
    keys = [word for word in words if task is None or not word.startswith("dataset.")]
    if stray := [*(word for word in folders if word.startswith("-")), *folders[1:], *keys]:
        raise ConfigError(
            f"{stray[0]} is not possible here: covey starter takes one folder, its options (see --help), and with "
            f"--task {' or '.join(TASKS[1:])} keys of that dataset, such as dataset.difficulty.max_operands=3."
        )
    name = "starter_agent" if arguments.agent else f"starter_{task}" if task else "starter"
    target = Path(folders[0] if folders else name)
    if target.exists() and (not target.is_dir() or any(target.iterdir())) and not arguments.overwrite:
        raise ConfigError(f"{target} exists already. Give another folder, or --overwrite to replace it.")
    if arguments.steps is not None and arguments.steps < 1:
        raise ConfigError(f"--steps {arguments.steps} is not a number of steps: give 1 or more.")
    from covey.config import load

    config = load([f"dataset={task}", *words]) if task else None
    from rich.console import Console

    console = Console(stderr=arguments.as_json)
    from covey.evaluation.starter import measure_agent, measure_starter, measure_task
    from covey.model.starter.coldstart import AGENT, TASK_STARTS, ColdStart, save_starter

    settings = replace(AGENT if arguments.agent else ColdStart(), seed=arguments.seed)
    if config is not None:
        settings = replace(TASK_STARTS[str(task)], dataset=config.dataset, seed=arguments.seed)
    settings = replace(settings, steps=arguments.steps or settings.steps)
    model, tokenizer = _trained(settings, console)
    with console.status("Measuring it on held-out problems …"):
        if config is not None:
            figures: Any = measure_task(model, tokenizer, config, words, seed=arguments.seed)
        else:
            measure = measure_agent if arguments.agent else measure_starter
            figures = measure(model, tokenizer, seed=arguments.seed)
    save_starter(model, tokenizer, figures.card(settings, model.num_parameters()), target)
    if arguments.as_json:
        print_json({"folder": target, "figures": figures if config is None else figures.estimates})
    else:
        console.print(figures.table())
    proposed = command("train model=starter model.name={folder}", folder=target)  # the group brings its own tuning
    if arguments.agent:
        proposed = command("train model=starter_agent model.name={folder} environment=calculator", folder=target)
    elif task:
        proposed = command("train model.name={folder} dataset={task}", *words, folder=target, task=task)
    console.print(f"Written to {target}. Train it with: {proposed}", highlight=False, soft_wrap=True)
    return 0


def _trained(settings: ColdStart, console: Console) -> tuple[Any, Any]:
    """The model and its tokenizer, trained with a progress bar; without a terminal, with lines."""
    from rich import progress as bars

    from covey.training.trl.sft import train_starter

    loss = bars.TextColumn("loss {task.fields[loss]:.3f}")
    columns = (bars.TextColumn("cold start"), bars.BarColumn(), bars.MofNCompleteColumn(), loss)
    times = (bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
    with bars.Progress(*columns, *times, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=settings.steps, loss=float("nan"))

        def show(step: int, loss: float) -> None:
            progress.update(bar, completed=step, loss=loss)
            if progress.disable and (step % max(1, settings.steps // 20) == 0 or step == settings.steps):
                console.print(f"cold start: step {step}/{settings.steps}, loss {loss:.3f}", highlight=False)

        return train_starter(settings, on_step=show)
