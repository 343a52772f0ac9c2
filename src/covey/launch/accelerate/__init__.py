"""The accelerate config of a run, from a file here or one of the user's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from covey.config import Config
from covey.config.groups.mesh import Mesh, check_axis
from covey.config.values import show
from covey.config.yaml import check_yaml, yaml_problem
from covey.errors import ConfigError, one_line

__all__ = ["accelerate_config"]

KINDS = ("ddp", "fsdp2", "zero2", "zero3")
_FOLDER = Path(__file__).parent


def accelerate_config(
    config: Config, num_processes: int, num_machines: int, main_process_ip: str, main_process_port: int, on_gpus: bool
) -> dict[str, Any] | None:
    """The accelerate config for this many processes; None where one process trains without it.

    Args:
        config: the run's config; `launch.accelerate` names one of `KINDS` or a file.
        num_processes: over all machines.
        num_machines: the number of training nodes.
        main_process_ip: address of the first of them.
        main_process_port: port of the rendezvous.
        on_gpus: whether they have GPUs.

    Raises:
        ConfigError: no such file, no accelerate config, or one that needs GPUs (DeepSpeed, unless DS_ACCELERATOR=cpu).
    """
    chosen, mesh = config.launch.accelerate, Mesh.of(config.model.mesh_shape)
    if num_processes == 1 and (chosen is None or not on_gpus):
        return None
    if chosen is None:
        chosen = "fsdp2" if mesh.splits else "ddp"
    values, source = _read(chosen), f"launch.accelerate={chosen}"
    for axis in ("tp", "cp", "sp"):
        size = _mapping(values, "parallelism_config", source).get(f"parallelism_config_{axis}_size")
        check_axis(axis, size if isinstance(size, int) else 1, source)
    config.model.lora.check_merge(sharded=mesh.splits or _shards(values, source))
    on_cpu = os.environ.get("DS_ACCELERATOR") == "cpu"  # DeepSpeed's own variable
    if not on_gpus and values.get("distributed_type") == "DEEPSPEED" and not on_cpu:
        raise ConfigError(
            f"{source} is for DeepSpeed, which needs GPUs, and this run has none. Use ddp or fsdp2. To try it on "
            "the CPU all the same, set its environment variable DS_ACCELERATOR to cpu."
        )
    if num_processes == 1 and values.get("distributed_type") == "MULTI_GPU":
        values["distributed_type"] = "NO"  # accelerate refuses "several GPUs" with one process
    values |= {"num_processes": num_processes, "num_machines": num_machines, "main_process_port": main_process_port}
    if num_machines > 1:
        values |= {"main_process_ip": main_process_ip, "same_network": True, "rdzv_backend": "static"}
    precision = "fp16" if config.training.fp16 else "no" if config.training.bf16 is False else "bf16"
    values["mixed_precision"] = precision if on_gpus else "no"
    if mesh.splits:
        _lay_out(values, mesh, source, f"model.mesh_shape={show(config.model.mesh_shape)}")
    return values


def _shards(values: Mapping[str, Any], source: str) -> bool:
    """Whether an accelerate config shards the weights."""
    stage = _mapping(values, "deepspeed_config", source).get("zero_stage")
    return values["distributed_type"] == "FSDP" or (values["distributed_type"] == "DEEPSPEED" and str(stage) == "3")


def _lay_out(values: dict[str, Any], mesh: Mesh, source: str, shape: str) -> None:
    """Put the mesh into an accelerate config; a `ConfigError` if that lays out or shards the model otherwise."""
    layout = {"dp_replicate": mesh.dp, "dp_shard": mesh.fsdp, "tp": 1}
    planned = {f"parallelism_config_{axis}_size": size for axis, size in layout.items()}
    if values.get("parallelism_config") not in (None, {}, planned):
        raise ConfigError(
            f"{source} has a parallelism_config, and {shape} lays out the processes as well: remove one of the two."
        )
    if values["distributed_type"] == "DEEPSPEED":
        raise ConfigError(f"{source} shards the model by DeepSpeed, and {shape} by FSDP2: leave one of the two out.")
    if values["distributed_type"] != "FSDP":
        return
    if str(_mapping(values, "fsdp_config", source).get("fsdp_version", 1)) != "2":
        raise ConfigError(
            f"{shape} shards the model by FSDP2, and {source} sets FSDP 1: set fsdp_config.fsdp_version: 2 in it, or "
            "choose launch.accelerate=fsdp2."
        )
    values["parallelism_config"] = planned


def _mapping(values: Mapping[str, Any], name: str, source: str) -> Mapping[str, Any]:
    found = values.get(name) or {}
    if not isinstance(found, Mapping):
        raise ConfigError(f"{source}: {name} must be a mapping, not {show(found)}.")
    return found


def _read(chosen: str) -> dict[str, Any]:
    path = _FOLDER / f"{chosen}.yaml" if chosen in KINDS else Path(chosen).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
        check_yaml(text, f"launch.accelerate={chosen}")
        values = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(
            f"launch.accelerate={chosen} is none of {', '.join(KINDS)}, and no file that can be read "
            f"({error.strerror}). Name one of these, or the path of an accelerate config."
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        problem = yaml_problem(error) if isinstance(error, yaml.YAMLError) else one_line(error)
        raise ConfigError(f"launch.accelerate={chosen} is not YAML: {problem}.") from None
    if not isinstance(values, dict) or "distributed_type" not in values:
        raise ConfigError(
            f"launch.accelerate={chosen} is not an accelerate config: it has no key distributed_type. `accelerate "
            f"config` writes one; or name one of {', '.join(KINDS)}."
        )
    return dict(values)
