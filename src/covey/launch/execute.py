"""Carrying a plan out on this machine: what can be wrong is found first, then its processes run under supervision."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path

import yaml

from covey.config import Config, to_yaml
from covey.errors import ConfigError
from covey.launch.checks import check_plan
from covey.launch.machine import Machine, Place
from covey.launch.plan import Plan, Ports, make_plan
from covey.launch.ports import free_port
from covey.launch.process import adopt
from covey.launch.progress import STACKS
from covey.launch.show import as_text
from covey.launch.slurm import job_id, requeue
from covey.launch.supervise import Ending, Patience, Supervisor
from covey.launch.tell import Teller
from covey.runlog.directory import RunDirectory
from covey.runlog.files import write_atomically

_MANY_NODES_PORT = 29500  # processes on other machines cannot be told which port is free here


def execute(config: Config, run_name: str, machine: Machine, place: Place) -> int:
    """Start what a run needs on this machine, and wait for its end. Returns the exit code of training.

    Args:
        config: the run's config.
        run_name: its name where the config gives none.
        machine: what this machine has.
        place: which of the run's machines it is.

    Raises:
        CoveyError: the plan does not fit this machine (then nothing was started), or a process could not be kept up.
    """
    alone = len(place.hosts) == 1
    if len(place.hosts) != config.launch.nodes:
        raise ConfigError(
            f"launch.nodes={config.launch.nodes}, but this runs on {len(place.hosts)}. Several machines are started "
            "through Slurm: `covey launch --slurm` hands the run in."
        )
    plan = make_plan(config, run_name, machine, place, _free_ports(config) if alone else _fixed_ports(config))
    notes = check_plan(config, plan, machine, alone=alone)
    adopt()
    if not alone:
        return _run(config, plan, place.node, notes)
    with RunDirectory(plan.logs).lock():
        return _run(config, plan, place.node, notes)


def _run(config: Config, plan: Plan, node: int, notes: list[str]) -> int:
    mark = _EndMark(plan.logs)
    if node == 0:
        _write(config, plan)
    else:
        _await(plan.config_file, since=time.time() - 60)
    with Teller(plan.launcher_log) as teller:
        for note in (*plan.notes, *notes):
            teller.say(note)
        teller.note(as_text(plan))
        supervisor = Supervisor(
            plan,
            node,
            _patience(config),
            teller,
            ended_elsewhere=mark.read,
        )
        ending = Ending(1)
        try:
            ending = supervisor.run()
        finally:
            if node == 0:
                mark.write(ending.code)
        teller.note(f"training ended with exit code {ending.code}")
        back_into_queue(config, ending, node, teller)
    if node > 0 and ending.signal is not None and ending.clean:
        return 0  # the first node speaks for the run; a task that fails has Slurm kill it before it has
    return ending.code


def back_into_queue(config: Config, ending: Ending, node: int, teller: Teller) -> None:
    """After Slurm's warning before the time limit, have the job go on later."""
    job = job_id()
    if ending.signal != signal.SIGUSR1 or ending.code == 0 or job is None or node != 0:
        return
    if not ending.clean:
        teller.say(f"Slurm job {job} is not put back into the queue: training failed when it was asked to stop.")
        return
    if not config.launch.slurm.requeue:
        teller.say(f"Slurm job {job} stays out of the queue (launch.slurm.requeue=false); hand it in to go on.")
        return
    teller.say(f"the time limit is near: Slurm job {job} goes back into the queue.")
    trouble = requeue(job)
    if trouble is not None:
        teller.say(f"Slurm does not take job {job} back: {trouble}. Hand it in again to go on.")


class _EndMark:
    """The file by which the node that trains tells one that only serves that it is done."""

    def __init__(self, logs: Path) -> None:
        step = "-".join(os.environ.get(name, "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"))
        self._path = logs / f"ended-{step}"

    def read(self) -> int | None:
        try:
            return int(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def write(self, code: int) -> None:
        if "SLURM_STEP_ID" in os.environ:
            write_atomically(self._path, str(code))


def _write(config: Config, plan: Plan) -> None:
    """Write the files that the processes read."""
    told = dataclasses.replace(config, run_name=plan.run.name)
    for file in plan.logs.glob(STACKS):
        file.unlink(missing_ok=True)
    if plan.accelerate is not None:
        write_atomically(plan.accelerate_file, yaml.safe_dump(dict(plan.accelerate), sort_keys=False))
    write_atomically(plan.config_file, to_yaml(told))


def _await(file: Path, since: float) -> None:
    """Wait for a file that another node writes."""
    deadline = time.monotonic() + 60
    while not (file.exists() and file.stat().st_mtime >= since):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"The first node has not written {file} within a minute: launch.log_dir must be a folder that all "
                "nodes share."
            )
        time.sleep(0.2)


def _patience(config: Config) -> Patience:
    launch = config.launch
    return Patience(**{item.name: getattr(launch, item.name) for item in dataclasses.fields(Patience)})


def _free_ports(config: Config) -> Ports:
    training = config.training
    server = free_port(int(training.vllm_server_port))
    group = free_port(int(training.vllm_group_port), {server})
    return Ports(server, group, free_port(config.launch.main_process_port or _MANY_NODES_PORT, {server, group}))


def _fixed_ports(config: Config) -> Ports:
    job = int(os.environ.get("SLURM_JOB_ID", "0") or 0)  # two jobs that share a node shall not meet
    return dataclasses.replace(Ports.of(config), main=_MANY_NODES_PORT + job % 2000)
