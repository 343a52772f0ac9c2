"""`covey launch`: start a run with all its processes, here, as a Slurm job or on Ray, and supervise it."""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.advice import command
from covey.cli import config_arguments
from covey.cli.json_output import add_json, print_json
from covey.errors import ConfigError

if TYPE_CHECKING:
    from covey.config import Composed, Config
    from covey.launch.machine import Machine


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "launch",
        help="train on several GPUs or machines, through Slurm or Ray",
        description=(
            "Train as `covey train` does, with as many processes as there are GPUs, a vLLM server where the config "
            "asks for one, and supervision: a process that dies is restarted, or ends the run."
        ),
    )
    config_arguments.add_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the plan, or the job script; start nothing")
    parser.add_argument(
        "--plan",
        action="store_true",
        help="print the plan as a picture, and how busy sampling and learning would be",
    )
    parser.add_argument(
        "--times",
        metavar="RUN",
        help="with --plan or training.vllm_servers=auto: take the times of this run, which may be running",
    )
    parser.add_argument("--slurm", action="store_true", help="submit it as a Slurm job: launch.backend=slurm")
    parser.add_argument(
        "--render",
        choices=("skypilot", "slurm"),
        help="print the run as a manifest that holds its whole config (launch.image, launch.volume); start nothing",
    )
    parser.add_argument("--multirun", "-m", action="store_true", help="a sweep, as with `covey train --multirun`")
    add_json(parser, "with --plan: print the plan as JSON, for scripts")
    parser.set_defaults(run=run, supervised=False)


def run(arguments: argparse.Namespace) -> int:
    request = config_arguments.read_request(arguments)
    sweep = arguments.multirun or request.is_sweep
    if arguments.as_json and not arguments.plan and not sweep:
        raise ConfigError("--json goes with --plan, which it replaces; --dry-run prints the whole plan as YAML.")
    planned = arguments.dry_run or arguments.plan or arguments.render
    if arguments.cfg or arguments.info or (sweep and not arguments.slurm and not planned):
        from covey.cli.commands import train

        arguments.given = [word for word in arguments.given if word not in ("--slurm", "--dry-run")]
        return train.run(arguments)
    if sweep:
        raise ConfigError(
            "A sweep cannot be planned or submitted as a single run: `covey train --multirun … "
            "hydra/launcher=submitit_slurm` submits each of its runs as a Slurm job, and compares them at the end."
        )
    of_pod = "PET_NNODES" in os.environ and "LOCAL_RANK" not in os.environ  # for its launcher
    if (size := os.environ.get("WORLD_SIZE", "1")) != "1" and not of_pod and not planned:
        raise ConfigError(
            f"`covey launch` starts training processes of its own, but WORLD_SIZE={size} says that this is one of "
            "several that were started together. Run it by itself, or run `covey train` in their place."
        )
    from covey.launch.machine import this_machine
    from covey.launch.plan import make_plan, training_processes
    from covey.launch.slurm import job_id

    here = this_machine()

    def machine_of(config: Config) -> Machine:
        if config.launch.backend != "ray" or config.launch.gpus is not None or planned:
            return here
        from covey.launch.on_ray import machine_of_cluster

        return machine_of_cluster(config.launch.nodes)

    composed = request.compose(lambda config: training_processes(config, machine_of(config)))
    config = composed.config
    machine = machine_of(config)
    auto = config.training.vllm_servers == "auto"
    if arguments.times and not arguments.plan and not auto:
        raise ConfigError(
            "--times goes with --plan, which prints what these times promise, or with training.vllm_servers=auto, "
            "which they decide."
        )
    config_arguments.check_registered(config)
    config_arguments.print_notes(composed)
    config_arguments.print_without_effect(composed)
    backend = config.launch.backend
    if arguments.slurm and backend == "ray":
        raise ConfigError("--slurm and launch.backend=ray contradict each other: leave one out.")
    name = config_arguments.default_name(request.source, [config])
    job = job_id()
    if job is not None:  # a job that was pre-empted must find its run again
        name = f"{name.partition('-')[2].partition('-')[2]}-{job}"
    if auto and arguments.times:
        from covey.launch.servers import resolved

        config, notes = resolved(
            config, machine, Path(arguments.times), Path(config.output_dir) / (config.run_name or name)
        )
        composed = dataclasses.replace(composed, config=config, notes=(*composed.notes, *notes))
        for note in notes:
            print(f"· {note}", file=sys.stderr)
    if arguments.plan:
        from covey.launch.overview import as_table, as_values

        plan = make_plan(config, name, machine)
        times = Path(arguments.times) if arguments.times else _own_run(request.source, plan.run)
        if arguments.as_json:
            print_json(as_values(plan, config, times))
        else:
            print(as_table(plan, config, times, machine.cpus), end="")
        return 0
    if arguments.render:
        from covey.launch.manifests import render

        print(render(config, name, machine, arguments.render), end="")
        return 0
    if arguments.slurm or backend == "slurm":
        return _as_job(arguments, composed, name, machine)
    if arguments.dry_run:
        from covey.config.secrets import redact
        from covey.launch.plan import as_text

        print(redact(as_text(make_plan(config, name, machine))), end="")
        return 0
    return _start(arguments, config, name, machine)


def _start(arguments: argparse.Namespace, config: Config, name: str, machine: Machine) -> int:
    """Check and start this machine's part of the run, to its end; returns the exit code."""
    from covey.launch.execute import execute
    from covey.launch.machine import RESUME_COMMAND
    from covey.launch.nodes import this_seat
    from covey.launch.slurm import check_starter_job, job_id, was_requeued

    if note := check_starter_job(config, machine):
        print(f"· {note}", file=sys.stderr)
    config_arguments.check_names(config)
    resume = os.environ.pop(RESUME_COMMAND, "") or _resume_command(arguments, config, name)  # a job's is its submission
    if was_requeued():  # whatever the first start was to do with an older run, it has done
        config = dataclasses.replace(config, resume="auto", overwrite=False)
    else:
        config_arguments.check_run(config)
    if config.launch.backend == "ray":
        from covey.launch.on_ray import run_on_ray

        return run_on_ray(config, name, machine, resume)
    seat = this_seat(config)
    if seat.nodes > 1 and config.run_name is None and job_id() is None:
        raise ConfigError(f"launch.nodes={seat.nodes}: set run_name=NAME, the same on all nodes, by which they meet.")
    if seat.nodes == 1 and not _passes(config, name, machine):
        return 1
    return execute(config, name, machine, seat, resume)


def _own_run(source: str | Path | None, planned: Path) -> Path | None:
    """The run whose times are meant: the run directory that is the recipe, or an earlier start of the same run."""
    from covey.runlog.directory import RunDirectory

    folders = [Path(source)] if source is not None else []
    return next((folder for folder in (*folders, planned) if RunDirectory(folder).metrics.is_file()), None)


def _passes(config: Config, name: str, machine: Machine) -> bool:
    """Whether training would start; checked only where a vLLM server would have to be started first, for minutes.

    Another process does so: this one loads no PyTorch, and what has used a GPU keeps memory there.
    """
    from covey.config import to_yaml
    from covey.config.compose.build import flatten
    from covey.config.secrets import for_children
    from covey.launch.execute import check_plan
    from covey.launch.plan import make_plan
    from covey.launch.slurm import write_private
    from covey.runlog.directory import temporary_folder

    plan = make_plan(config, name, machine)
    if plan.server is None or not plan.server.is_ours:
        return True
    check_plan(config, plan, machine)
    with temporary_folder("covey-launch-") as folder:
        file = folder / "config.yaml"
        write_private(file, to_yaml(config))
        words = [sys.executable, "-m", "covey.cli.main", "doctor", "--quiet", "--config", str(file)]
        words.append(f"--processes={plan.num_processes}")
        environment = {**os.environ, **for_children(flatten(config))}
        return subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, check=False).returncode == 0


def _resume_command(arguments: argparse.Namespace, config: Config, name: str) -> str:
    """The command that resumes the run: the one given, with what it lacks to find the run and to keep it."""
    from covey.config.secrets import without_words
    from covey.launch.supervise import RESUMED

    words = without_words(arguments.given)
    if config.run_name is None:
        words.append(f"run_name={name}")
    if config.resume not in ("auto", True) or config.overwrite:
        words += RESUMED
    return command("", *words)


def _as_job(arguments: argparse.Namespace, composed: Composed, name: str, machine: Machine) -> int:
    """Print a Slurm job's script, or write and submit it."""
    from covey.config.compose.build import flatten
    from covey.config.secrets import for_children, without_words
    from covey.launch.machine import RESUME_COMMAND
    from covey.launch.plan import make_plan
    from covey.launch.slurm import check_sbatch, render, submit, write_private

    config = composed.config
    plan = make_plan(config, name, machine)
    for note in plan.notes:
        print(f"· {note}", file=sys.stderr)
    secrets = for_children(flatten(config))
    if secrets and any(option.startswith("--export") and "ALL" not in option for option in config.launch.slurm.options):
        raise ConfigError(
            "Secrets of the config (such as training.hub_token) reach a Slurm job by its environment, which "
            "launch.slurm.options=--export=… keeps from it: write --export=ALL,…, or log in on the nodes instead."
        )
    given = [word for word in arguments.given[1:] if word not in ("--slurm", "--dry-run")]
    if arguments.times:  # which have decided
        at = next(at for at, word in enumerate(given) if word.startswith("--times"))
        given[at : at + 1 + ("=" not in given[at])] = [f"training.vllm_servers={config.training.vllm_servers}"]
    words = without_words(given)
    if config.launch.backend != "local":
        words.append("launch.backend=local")
    if config.run_name is None:
        words.append(f"run_name={name}")
    if config.launch.gpus is None:  # the login node's GPUs tell nothing about the nodes
        words.append(f"launch.gpus={plan.gpus}")
        note = f"launch.gpus is not set: the job asks for {plan.gpus} GPUs per node, as many as this machine has."
        print(f"· {note}", file=sys.stderr)
    script = render(
        config, plan.run.name, plan.gpus, [sys.executable, "-m", "covey.cli.main", "launch", *words], Path.cwd()
    )
    if arguments.dry_run:
        from covey.config.secrets import redact

        print(redact(script), end="")
        return 0
    check_sbatch()
    config_arguments.check_names(config)
    file = plan.logs / "job.sbatch"
    write_private(file, script)  # lines of launch.slurm.setup may hold secrets
    job = submit(file, secrets | {RESUME_COMMAND: _resume_command(arguments, config, name)})
    print(
        f"Slurm job {job}: {file}\n  run:    {plan.run}\n  output: {Path(config.launch.log_dir) / f'slurm_{job}.out'}"
    )
    print(f"  logs:   {plan.logs}\n  to stop it with a checkpoint: scancel --batch --signal=TERM {job}")
    return 0
