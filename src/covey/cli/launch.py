"""`covey launch`: start a run with all that belongs to it, here or as a Slurm job, and watch over it."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli import composing
from covey.errors import ConfigError

if TYPE_CHECKING:
    from covey.config import Composed
    from covey.launch.machine import Machine


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "launch",
        help="train on several GPUs or machines, or through Slurm",
        description=(
            "Train as `covey train` does, with as many processes as there are GPUs, a vLLM server where the config "
            "asks for one, and supervision: what dies is started again or ended with everything else."
        ),
    )
    composing.add_arguments(parser, "launch")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, or the job's script; start nothing")
    parser.add_argument("--slurm", action="store_true", help="hand the run in as a Slurm job (launch.slurm.*)")
    parser.add_argument("--multirun", "-m", action="store_true", help="a sweep, as `covey train --multirun` runs it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    request = composing.request(arguments)
    sweep = arguments.multirun or request.asks_for_sweep
    if arguments.cfg or arguments.info or (sweep and not arguments.slurm and not arguments.dry_run):
        from covey.cli import train

        arguments.given = [word for word in arguments.given if word not in ("--slurm", "--dry-run")]
        return train.run(arguments)
    if sweep:
        raise ConfigError(
            "A sweep is no single run to be planned or handed in: `covey train --multirun … "
            "hydra/launcher=submitit_slurm` makes a Slurm job of each of its runs, and compares them at the end."
        )
    if (size := os.environ.get("WORLD_SIZE", "1")) != "1" and not arguments.dry_run:
        raise ConfigError(
            f"`covey launch` starts training processes of its own, but WORLD_SIZE={size} says that this is one of "
            "several that were started together. Run it by itself, or run `covey train` in their place."
        )
    from covey.launch.machine import this_machine, this_place
    from covey.launch.plan import make_plan, training_processes
    from covey.launch.slurm import is_again, job_id

    machine = this_machine()
    composed = request.compose(partial(_world_size, training_processes, machine))
    config = composed.config
    for note in composed.notes:
        print(f"· {note}", file=sys.stderr)
    name = composing.default_name(request.recipe, [config])
    job = job_id()
    if job is not None:  # a job that was pre-empted must find its run again
        name = f"{name.partition('-')[2].partition('-')[2]}-{job}"
    if arguments.slurm:
        return _as_job(arguments, composed, name, machine)
    if arguments.dry_run:
        from covey.launch.show import as_text

        print(as_text(make_plan(config, name, machine)), end="")
        return 0
    composing.check_names(config)
    if is_again():  # whatever the first start was to do with an older run, it has done
        config = dataclasses.replace(config, resume="auto", overwrite=False)
    from covey.launch.execute import execute

    return execute(config, name, machine, this_place())


def _world_size(count: Any, machine: Machine, config: Any) -> int:
    return int(count(config, machine))


def _as_job(arguments: argparse.Namespace, composed: Composed, name: str, machine: Machine) -> int:
    """Print a Slurm job's script, or write it and hand it in."""
    from covey.launch.checks import check_layout
    from covey.launch.plan import make_plan
    from covey.launch.slurm import check_sbatch, render, submit
    from covey.runlog.files import write_atomically

    config = composed.config
    plan = make_plan(config, name, machine)
    for note in plan.notes:
        print(f"· {note}", file=sys.stderr)
    words = [word for word in arguments.given if word not in ("--slurm", "--dry-run")]
    if config.run_name is None:
        words.append(f"run_name={name}")
    if config.launch.gpus is None:  # what the login node has says nothing about the nodes
        words.append(f"launch.gpus={plan.gpus}")
        note = f"launch.gpus is not set: the job asks for {plan.gpus} GPUs of every node, as many as this machine has."
        print(f"· {note}", file=sys.stderr)
    script = render(
        config, plan.run.name, plan.gpus, [sys.executable, "-m", "covey.cli.main", "launch", *words], Path.cwd()
    )
    if arguments.dry_run:
        print(script, end="")
        return 0
    check_layout(config, plan)
    check_sbatch()
    composing.check_names(config)
    file = plan.logs / "job.sbatch"
    write_atomically(file, script)
    job = submit(file)
    print(
        f"Slurm job {job}: {file}\n  run:    {plan.run}\n  output: {Path(config.launch.log_dir) / f'slurm_{job}.out'}"
    )
    print(f"  logs:   {plan.logs}\n  to stop it with a checkpoint: scancel --batch --signal=TERM {job}")
    return 0
