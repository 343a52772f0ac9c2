"""Options of launchers, of other commands of Covey and of other trainers (`peers.txt`), given to one that lacks them:
what does the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from covey.config.aliases.aliases import GROUP, PEERS

_STRATEGY = "launch.accelerate=ddp, fsdp2, zero2, zero3 or an accelerate config of your own"
_JOB = "a `covey launch` on each node, with launch.nodes, launch.node_rank and launch.master"
_DEVICE = (
    "training takes the first GPU that PyTorch sees (another with CUDA_VISIBLE_DEVICES=N before the command), `covey "
    "launch` takes all, and where there is none the CPU is used; training.use_cpu=true trains on the CPU"
)

OF_LAUNCHERS: Mapping[str, str] = MappingProxyType(
    {
        "config_file": "launch.accelerate={}",
        **dict.fromkeys(("num_processes", "nproc_per_node", "num_gpus"), "launch.num_processes={} (for each node)"),
        **dict.fromkeys(("gpus", "n_gpus", "n_gpus_per_node"), "launch.num_processes={} (for each node)"),
        **dict.fromkeys(("num_machines", "nnodes", "num_nodes"), "launch.nodes={} of `covey launch`"),
        **dict.fromkeys(("main_process_port", "master_port"), "launch.main_process_port={}"),
        **dict.fromkeys(("main_process_ip", "master_addr"), "launch.master={}"),
        **dict.fromkeys(("machine_rank", "node_rank"), "launch.node_rank={}"),
        **dict.fromkeys(("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "same_network", "standalone"), _JOB),
        "hostfile": _JOB,
        **dict.fromkeys(("multi_gpu", "use_deepspeed", "use_fsdp", "deepspeed_config_file", "zero_stage"), _STRATEGY),
        **dict.fromkeys(("zero3_init_flag", "fsdp_version", "fsdp_sharding_strategy"), _STRATEGY),
        **dict.fromkeys(("mixed_precision", "precision"), "training.bf16=true or training.fp16=true"),
        **dict.fromkeys(("gpu_ids", "include"), "CUDA_VISIBLE_DEVICES in the environment, or launch.gpus=N"),
        "cpu": "launch.gpus=0 or training.use_cpu=true",
        "max_restarts": "launch.server_restarts={} and launch.hang_restarts={}",
        **dict.fromkeys(("dynamo_backend", "dynamo_mode"), "training.torch_compile=true"),
    }
)
"""Of `accelerate launch`, `torchrun` and `deepspeed`, where they are no key of TRL or transformers."""

_OF_ACCELERATES_FILES = ("compute_environment", "distributed_type", "deepspeed_config", "main_training_function")

OF_COVEY: Mapping[str, str] = MappingProxyType(
    {
        "dry_run": "`covey launch --dry-run` prints what would be started, `covey config` the resolved config, and "
        "`covey doctor` checks the run, all with the same arguments",
        "slurm": "`covey launch --slurm` submits a run",
        "try": "`covey doctor --try` runs three steps",
        "diff": "`covey config --diff` shows what differs from the defaults",
        "doc": "`covey config --doc KEY` explains a key",
        **dict.fromkeys(("device", "cuda", "gpu", "device_map"), _DEVICE),
    }
)
"""Of other commands of Covey, and of other programs."""


def known_elsewhere(name: str, value: Any) -> str:
    """What does the same as an option of a launcher or another command, as the end of a sentence that begins with its
    name; empty for any other name."""
    name = GROUP.sub("", name)
    if name in OF_COVEY:
        return f" is not an option of this command: {OF_COVEY[name]}."
    if name in _OF_ACCELERATES_FILES:
        return " belongs in an accelerate config, not in a recipe: give that file as launch.accelerate=FILE."
    if name not in OF_LAUNCHERS:
        return ""
    values = value if isinstance(value, list) else [value]
    given = values[0] if len(values) == 1 and isinstance(values[0], str | int) and values[0] not in (True, "") else "…"
    return (
        " is an option of launchers (accelerate launch, torchrun, deepspeed), not of Covey. With `covey launch` it is "
        f"{OF_LAUNCHERS[name].format(given, given)}; `accelerate launch … -m covey train RECIPE` works as well."
    )


def meant(name: str) -> str:
    """The keys that an unknown name may mean, and what these hold, as the end of a sentence that begins with the name;
    empty where nothing is known."""
    entry = PEERS.get(name) or PEERS.get(GROUP.sub("", name)) or []
    if len(entry) != 2:
        return ""
    return f" is not a key that Covey knows. Did you mean {entry[0].replace(' ', ' or ')}? {entry[1]}"
