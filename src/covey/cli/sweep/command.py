"""`covey train --multirun`, from the command line to the tables at the end."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from covey.advice import command
from covey.cli.config_arguments import Request, make_console
from covey.cli.json_output import print_json
from covey.cli.sweep.display import SweepDisplay, as_table
from covey.cli.sweep.launch import (
    SweepLaunchError,
    check_hydra,
    check_launcher,
    is_default_launcher,
    launch,
    launch_on_ray,
)
from covey.cli.sweep.plan import SweepPlan, make_plan
from covey.cli.sweep.runner import COMMAND, JobRunner, describe_end
from covey.config import to_yaml
from covey.config.compose.build import flatten
from covey.config.secrets import for_children, job_variable, redact
from covey.errors import ConfigError
from covey.report.sweep import JobResult, read_results, write_tables
from covey.runlog.directory import RunDirectory
from covey.runlog.files import guard_disk, write_atomically
from covey.runlog.sweep import FAILED, FINISHED, RUNNING, WAITING
from covey.workers.signals import STOPS, signal_handler


def run_sweep(
    request: Request, given: Sequence[str], command: Sequence[str] = COMMAND, *, as_json: bool = False
) -> int:
    """Run every job of a sweep that has not finished yet, and compare them all.

    Args:
        request: what the command line asks for.
        given: the command and its words, to print how to resume.
        command: what runs one config; `--config FILE` is appended.
        as_json: print the results as JSON on stdout, and everything else on stderr.

    Returns:
        The exit code: 1 when a job failed, 128 and the signal when one ended the sweep.

    Raises:
        CoveyError: a job that cannot be run; none is started then.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "--multirun starts processes of its own, but WORLD_SIZE says that this is one of several that were "
            "launched together. Start the sweep with plain `covey train --multirun`."
        )
    check_hydra(request.hydra)
    check_launcher(request.hydra, request.config_dirs)
    plan = make_plan(request)
    if (backend := next(iter(plan.configs.values())).launch.backend) == "slurm":
        raise ConfigError(
            "launch.backend=slurm is for a single run: a sweep's jobs are submitted by hydra/launcher=submitit_slurm."
        )
    console = make_console(stderr=as_json)
    for note in plan.notes:
        _print(console, f"· {note}")
    runner = JobRunner(plan.directory.root, command)
    launch_error: SweepLaunchError | None = None
    with RunDirectory(plan.directory.root).lock():
        _write(plan)
        _announce(plan, console)
        try:
            # Ctrl-C and SIGTERM end the running job with a checkpoint, and the sweep.
            stopping = signal_handler(STOPS, runner.stop)
            with stopping, SweepDisplay(plan.directory, plan.sweep, list(plan.configs), console):
                if plan.to_run and backend == "ray":
                    launch_on_ray(runner, next(iter(plan.configs.values())), plan.to_run, request.hydra)
                elif plan.to_run:
                    launch(runner, plan.to_run, plan.directory.launcher, request.hydra, request.config_dirs)
        except SweepLaunchError as error:
            launch_error = error
        except KeyboardInterrupt:
            runner.stopped_by = runner.stopped_by or signal.SIGINT
        results = read_results(plan.directory, plan.sweep)
        for sheet in write_tables(plan.directory, plan.sweep, results):
            console.print(f"\n{sheet.title}", style="bold", highlight=False)
            console.print(as_table(sheet))
            for note in sheet.notes:
                _print(console, note)
    if as_json:
        print_json([{"path": plan.directory.run(one.job).root, **dataclasses.asdict(one)} for one in results])
    return _close(plan, results, request, given, runner.stopped_by, launch_error, console)


def _write(plan: SweepPlan) -> None:
    """Write the table of the jobs, each job's config, and the state of finished jobs."""
    directory = plan.directory
    with guard_disk("the sweep", directory.root):
        for job in plan.sweep.jobs:
            if job.number not in plan.configs:
                continue
            write_atomically(directory.config(job), to_yaml(plan.configs[job.number]))
            for name, value in for_children(flatten(plan.configs[job.number])).items():
                os.environ[job_variable(name, job.number)] = value  # read by the job's process
            state = directory.state(job)
            if job.number in plan.finished and state.state != FINISHED:
                directory.write_state(job, state.ended(FINISHED, 0))
            elif job.number not in plan.finished:  # also a job left "running" by a dead process
                directory.write_state(job, dataclasses.replace(state, state=WAITING, since=None))
    directory.write(plan.sweep)


def _announce(plan: SweepPlan, console: Console) -> None:
    count = len(plan.configs)
    done = f", {len(plan.finished)} of them finished before" if plan.finished else ""
    over = f" over {', '.join(plan.sweep.keys)}" if plan.sweep.keys else ""
    _print(console, f"{count} {'job' if count == 1 else 'jobs'}{over}{done} · {plan.directory.root}")


def _close(
    plan: SweepPlan,
    results: Sequence[JobResult],
    request: Request,
    given: Sequence[str],
    stopped_by: int | None,
    launch_error: SweepLaunchError | None,
    console: Console,
) -> int:
    """Print which jobs failed and why, the paths written, and how to resume; returns the exit code."""
    jobs = sorted((one for one in results if one.job.number in plan.configs), key=lambda one: one.job.number)
    failed = [one for one in jobs if one.state.state == FAILED]
    for one in failed:
        output = plan.directory.output(one.job)
        _print(console, f"{one.job.name} {describe_end(one.state)}: {_last_line(output)}\n  output: {output}")
    if launch_error is not None:
        _print(console, str(launch_error))
    _print(console, f"Written: {plan.directory.markdown}, {plan.directory.csv}")
    unfinished = [one.job.name for one in jobs if one.state.state in (WAITING, RUNNING)]
    if stopped_by is not None and unfinished and not is_default_launcher(request.hydra):
        _print(console, f"Jobs submitted to the launcher stay there; cancel them there: {', '.join(unfinished)}.")
    if stopped_by is not None or any(one.state.state != FINISHED for one in jobs):
        _print(console, f"To resume the unfinished jobs: {_resume_command(plan, given)}")
    if stopped_by is not None:
        return 128 + stopped_by
    return 1 if failed or launch_error is not None else 0


def _resume_command(plan: SweepPlan, given: Sequence[str]) -> str:
    """The command that resumes this sweep: the same one, with the sweep's name where that was a timestamp."""
    words = list(given)
    name = plan.directory.root.name
    if not any(name in word for word in words):
        words.append(f"run_name={name}")
    return command("", *words)


def _last_line(output: Path) -> str:
    """The last line that is not empty, which for a `CoveyError` is its message."""
    text = output.read_text(encoding="utf-8", errors="replace") if output.is_file() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:1000] if lines else "it printed nothing"


def _print(console: Console, text: str) -> None:
    console.print(redact(text), markup=False, highlight=False, soft_wrap=True)
