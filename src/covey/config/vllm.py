"""Where vLLM runs, as far as the config alone decides it. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.config.groups import snapshot
from covey.config.schema import Config

LOCAL_HOSTS = ("0.0.0.0", "127.0.0.1", "localhost", "::", "::1")  # the first is TRL's default, for this machine
LARGE_SHARE = 0.5
"""Of a GPU's memory: with more of it, vLLM leaves the training on the same GPU too little."""

_OF_A_SERVER = (
    *("launch.vllm_model", "launch.server_timeout", "launch.server_restarts"),
    *("training.vllm_server_base_url", "training.vllm_server_host", "training.vllm_server_port"),
    *("training.vllm_server_timeout", "training.vllm_group_port"),
)


def server_where_addressed(values: Mapping[str, Any]) -> list[str]:
    """Choose `vllm_mode=server` for a run that names a server's address and no mode. Returns a note.

    Args:
        values: the merged values, of which `training` is changed.
    """
    training = values.get("training") or {}
    named = [key for key in ("vllm_server_base_url", "vllm_server_host") if training.get(key) is not None]
    if training.get("use_vllm") not in (True, "true") or training.get("vllm_mode") is not None or not named:
        return []
    training["vllm_mode"] = "server"
    return [f"training.vllm_mode=server, as training.{named[0]}={training[named[0]]} is the address of a server"]


def is_elsewhere(config: Config) -> bool:
    """Whether the server that the config names is somebody else's, which the launcher does not start."""
    training = config.training
    return training.vllm_server_base_url is not None or training.vllm_server_host not in LOCAL_HOSTS


def leaves_place_open(config: Config) -> bool:
    """Whether vLLM gets GPUs of its own only where there are enough."""
    return bool(config.training.use_vllm and config.launch.vllm_own_gpu and "vllm_mode" not in config.training.values)


def colocated_share(config: Config) -> float | None:
    """The share of each training GPU's memory that vLLM takes in the training processes; None without it there.

    A larger share that was meant for a GPU of vLLM's own becomes TRL's default.
    """
    training = config.training
    if not training.use_vllm or training.vllm_mode != "colocate":
        return None
    share = float(training.vllm_gpu_memory_utilization)
    if leaves_place_open(config) and share > LARGE_SHARE and not training.vllm_enable_sleep_mode:
        return float(snapshot.fields()["vllm_gpu_memory_utilization"].default)
    return share


def notes_on_sharing(config: Config) -> list[str]:
    """What a run is told whose vLLM was to have a GPU of its own, and runs in the training processes."""
    if not leaves_place_open(config):
        return []
    found = [
        "vLLM shares the GPU with training (training.vllm_mode=colocate): it gets one of its own from `covey launch`, "
        "where there are two or more."
    ]
    share, asked = colocated_share(config), config.training.vllm_gpu_memory_utilization
    if share != asked:
        found.append(
            f"training.vllm_gpu_memory_utilization={asked:g} was meant for that GPU: vLLM takes {share:g} of the "
            "shared one. Set training.vllm_mode=colocate as well to keep it."
        )
    set_here = {f"training.{name}" for name in config.training.values}
    set_here |= {"launch.vllm_model"} if config.launch.vllm_model else set()
    unused = [key for key in _OF_A_SERVER if key in set_here]
    return found + [f"Without effect there: {', '.join(unused)}."] * bool(unused)
