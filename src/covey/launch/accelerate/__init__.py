"""How training is spread over processes: accelerate's config, from one of the files here or one of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from covey.config import Config
from covey.config.mesh import Mesh
from covey.errors import ConfigError

KINDS = ("ddp", "fsdp2", "zero2", "zero3")
_FOLDER = Path(__file__).parent


def accelerate_config(
    config: Config, num_processes: int, num_machines: int, main_process_ip: str, main_process_port: int, on_gpus: bool
) -> dict[str, Any] | None:
    """The accelerate config for so many processes; None where one process trains and nothing asks for more.

    Args:
        config: the run's config; `launch.accelerate` names one of `KINDS` or a file.
        num_processes: over all machines.
        num_machines: those that train.
        main_process_ip: address of the first of them.
        main_process_port: where the processes meet.
        on_gpus: whether they have GPUs.

    Raises:
        ConfigError: no such file, or it holds no accelerate config; or it needs GPUs.
    """
    chosen = config.launch.accelerate
    if num_processes == 1 and (chosen is None or not on_gpus):
        return None
    if chosen is None:
        chosen = "fsdp2" if _shards(config) else "ddp"
    values = _read(chosen)
    if not on_gpus and values.get("distributed_type") == "DEEPSPEED":
        raise ConfigError(
            f"launch.accelerate={chosen} is for DeepSpeed, which needs GPUs, and this run has none. Use ddp or fsdp2."
        )
    if num_processes == 1 and values.get("distributed_type") == "MULTI_GPU":
        values["distributed_type"] = "NO"  # accelerate refuses "several GPUs" with one process
    values |= {"num_processes": num_processes, "num_machines": num_machines, "main_process_port": main_process_port}
    if num_machines > 1:
        values |= {"main_process_ip": main_process_ip, "same_network": True, "rdzv_backend": "static"}
    values["mixed_precision"] = _precision(config, on_gpus)
    mesh = Mesh.of(config.model.mesh_shape)
    if mesh.splits:
        layout = {"dp_replicate": mesh.dp, "dp_shard": mesh.fsdp, "tp": mesh.tp}
        planned = {f"parallelism_config_{axis}_size": size for axis, size in layout.items()}
        if values.get("parallelism_config") not in (None, {}, planned):
            raise ConfigError(
                f"launch.accelerate={chosen} has a parallelism_config, and model.mesh_shape={config.model.mesh_shape} "
                "says how the processes are laid out as well: leave one of the two out."
            )
        if values.get("distributed_type") == "FSDP":
            values["parallelism_config"] = planned
    return values


def _read(chosen: str) -> dict[str, Any]:
    path = _FOLDER / f"{chosen}.yaml" if chosen in KINDS else Path(chosen).expanduser()
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"launch.accelerate={chosen} is none of {', '.join(KINDS)}, and no file that can be read "
            f"({error.strerror}). Name one of these, or the path of an accelerate config."
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"launch.accelerate={chosen} is no YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(values, dict) or "distributed_type" not in values:
        raise ConfigError(
            f"launch.accelerate={chosen} is no accelerate config: it has no key distributed_type. `accelerate config` "
            f"writes one; or name one of {', '.join(KINDS)}."
        )
    return dict(values)


def _shards(config: Config) -> bool:
    """Whether the device mesh splits the model."""
    return Mesh.of(config.model.mesh_shape).splits


def _precision(config: Config, on_gpus: bool) -> str:
    """What the training config says, as accelerate writes it; TRL trains in bfloat16 unless told otherwise."""
    if not on_gpus:
        return "no"
    if config.training.fp16:
        return "fp16"
    return "no" if config.training.bf16 is False else "bf16"
