"""Sharding of weights over processes: FSDP2 for `model.mesh_shape`, on CPUs too, and saving the full weights.

Source: `fully_shard`, https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html; accelerate's
`ParallelismConfig` and `FullyShardedDataParallelPlugin`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config.groups.mesh import Mesh
from covey.errors import ConfigError, RunDirectoryError

if TYPE_CHECKING:
    from accelerate import PartialState


def asks_for_fsdp() -> bool:
    """Whether an accelerate config sets FSDP, by the environment."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"


def splits_weights(mesh: Mesh) -> bool:
    """Whether weights are sharded: by the mesh, or by the accelerate config (FSDP, DeepSpeed's ZeRO-3)."""
    deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
    zero3 = deepspeed and os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3"
    return mesh.fsdp > 1 or asks_for_fsdp() or zero3


ACCELERATE = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
"""Prefixes of accelerate's environment variables. A run that shards its model sets some of them, which must not reach
the next run of the same program."""


@contextmanager
def environment_kept(*names: str) -> Iterator[None]:
    """Restore afterwards all environment variables with these prefixes."""
    before = {name: value for name, value in os.environ.items() if name.startswith(names)}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith(names)]:
            if name not in before:
                del os.environ[name]
        os.environ.update(before)


def mesh_arguments(mesh: Mesh, *, fsdp_set: bool) -> dict[str, Any]:
    """The arguments of transformers' `TrainingArguments` for a mesh; none without sharding.

    Args:
        mesh: checked against the number of processes.
        fsdp_set: whether FSDP is configured already, by `training.fsdp` or an accelerate config.

    Raises:
        ConfigError: the accelerate config uses FSDP 1, which has no mesh.
    """
    if mesh.fsdp == 1:
        return {}
    from accelerate.parallelism_config import ParallelismConfig

    found: dict[str, Any] = {
        "parallelism_config": ParallelismConfig(dp_replicate_size=mesh.dp, dp_shard_size=mesh.fsdp)
    }
    if asks_for_fsdp() and os.environ.get("FSDP_VERSION", "1") != "2":
        raise ConfigError(
            "model.mesh_shape shards the model by FSDP2, and the accelerate config that started this run sets FSDP "
            "1: set fsdp_config.fsdp_version: 2 in it."
        )
    if not fsdp_set:
        found |= {
            "fsdp": True,
            "fsdp_config": {
                "version": 2,
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",  # one shard per layer of the model
                "reshard_after_forward": True,
                "state_dict_type": "FULL_STATE_DICT",  # full weights in every checkpoint
            },
        }
    return found


def check_layout(checkpoint: Path, *, shards: bool) -> None:
    """Check that a checkpoint has the sharding layout of this run.

    Args:
        checkpoint: to resume from.
        shards: whether this run shards the model by FSDP.

    Raises:
        RunDirectoryError: only one of the two is sharded.
    """
    written = any(checkpoint.glob("pytorch_model_fsdp*"))
    if written == shards:
        return
    there, here = ("sharded (FSDP)", "replicated") if written else ("replicated", "sharded (FSDP)")
    raise RunDirectoryError(
        f"{checkpoint} was written by a run with a {there} model, and that of this run is {here}, so its optimiser "
        "cannot be read. Start the run with the same model.mesh_shape or accelerate config as then, or start a new one "
        f"from its weights: model.name={checkpoint} and another run_name."
    )


def let_cpus_shard(state: PartialState) -> None:
    """Enable FSDP on CPUs.

    Accelerate uses FSDP on accelerators only and silently replicates on a CPU, although PyTorch can shard there. Only
    its distributed type has to be changed.
    """
    from accelerate.utils import DistributedType

    if state.distributed_type == DistributedType.MULTI_CPU:
        state._shared_state["distributed_type"] = DistributedType.MULTI_GPU


@contextmanager
def full_weights() -> Iterator[None]:
    """Context manager: a model that FSDP shards is saved with full weights, whatever its checkpoints hold."""
    from accelerate.state import AcceleratorState
    from torch.distributed.fsdp import StateDictType

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
