"""Weights in shards over processes: FSDP2 as `model.mesh_shape` asks for it, on the CPU too, and saved whole.

Source: `fully_shard`, https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html; accelerate's
`ParallelismConfig` and `FullyShardedDataParallelPlugin`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.parallelism_config import ParallelismConfig
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import StateDictType

from covey.config.mesh import Mesh
from covey.errors import ConfigError, RunDirectoryError


def asks_for_fsdp() -> bool:
    """Whether an accelerate config has asked for FSDP, in the environment."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def splits_weights(mesh: Mesh) -> bool:
    """Whether no process holds all weights: by the mesh, or by the accelerate config (FSDP, DeepSpeed's ZeRO-3)."""
    deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
    zero3 = deepspeed and os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3"
    return mesh.fsdp > 1 or asks_for_fsdp() or zero3


@contextmanager
def launcher_environment() -> Iterator[None]:
    """Within, accelerate's environment variables are its own; afterwards they are again what the launcher set.

    A run that shards its model sets some of them, and the next run of the same program would shard as well.
    """
    names = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
    before = {name: value for name, value in os.environ.items() if name.startswith(names)}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith(names)]:
            if name not in before:
                del os.environ[name]
        os.environ.update(before)


def mesh_arguments(mesh: Mesh, *, fsdp_set: bool) -> dict[str, Any]:
    """What transformers' `TrainingArguments` are given for a mesh; nothing where it is copies of the model only.

    Args:
        mesh: checked against the number of processes.
        fsdp_set: whether FSDP is configured already, by `training.fsdp` or an accelerate config.

    Raises:
        ConfigError: it is configured already in a form that cannot be laid out in a mesh.
    """
    if mesh.fsdp == 1:
        return {}
    found: dict[str, Any] = {
        "parallelism_config": ParallelismConfig(dp_replicate_size=mesh.dp, dp_shard_size=mesh.fsdp)
    }
    if asks_for_fsdp() and os.environ.get("FSDP_VERSION", "1") != "2":
        raise ConfigError(
            "model.mesh_shape shards the model by FSDP2, and the accelerate config that started this run asks for FSDP "
            "1: set fsdp_config.fsdp_version: 2 in it."
        )
    if not fsdp_set:
        found |= {
            "fsdp": True,
            "fsdp_config": {
                "version": 2,
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",  # one shard per layer, as the model names its layers
                "reshard_after_forward": True,
                "state_dict_type": "FULL_STATE_DICT",  # whole weights in every checkpoint
            },
        }
    return found


def check_layout(checkpoint: Path, *, shards: bool) -> None:
    """Check that a checkpoint is of a model that lies in its processes as this run's does.

    Args:
        checkpoint: to go on from.
        shards: whether this run shards the model by FSDP.

    Raises:
        RunDirectoryError: one of the two shards, and the other does not.
    """
    written = any(checkpoint.glob("pytorch_model_fsdp*"))
    if written == shards:
        return
    there, here = ("in shards (FSDP)", "whole") if written else ("whole", "in shards (FSDP)")
    raise RunDirectoryError(
        f"{checkpoint} was written by a run whose processes hold the model {there}, and those of this run hold it "
        f"{here}: its optimiser cannot be read. Start the run as it was started then (model.mesh_shape, or its "
        f"accelerate config), or begin a new one from its weights: model.name={checkpoint} and another run_name."
    )


def let_cpus_shard(state: PartialState) -> None:
    """Have FSDP on the CPU too, if it is asked for.

    Accelerate's FSDP is there for accelerators only, and trains with copies on a CPU without saying so, though PyTorch
    can shard there. All that stands in the way is the kind of processes that accelerate has noted.
    """
    if state.distributed_type == DistributedType.MULTI_CPU:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


@contextmanager
def whole_weights() -> Iterator[None]:
    """Within, a model that FSDP holds in shards is saved whole, whatever its checkpoints are made of."""
    plugin = getattr(AcceleratorState(), "fsdp_plugin", None)
    if plugin is None:
        yield
        return
    before = plugin.state_dict_type
    plugin.state_dict_type = StateDictType.FULL_STATE_DICT
    try:
        yield
    finally:
        plugin.state_dict_type = before
