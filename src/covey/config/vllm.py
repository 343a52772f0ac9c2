"""Where vLLM runs, and which adapters it takes alone, as far as the config decides it. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.config.groups.training import TrainingConfig, training_fields
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


AUTO = "auto"
"""The value of `training.vllm_servers` that leaves the number to `covey launch`."""
SERVERS = "COVEY_VLLM_SERVERS"
"""Environment variable of training processes: the addresses of the launcher's vLLM servers, where there are several; a
space between them."""


def server_addresses(training: TrainingConfig) -> list[str]:
    """The addresses of somebody else's servers in `vllm_server_base_url`."""
    given = training.vllm_server_base_url
    return [url.rstrip("/") for url in ([given] if isinstance(given, str) else given or [])]


def is_elsewhere(config: Config) -> bool:
    """Whether the server that the config names is somebody else's, which the launcher does not start."""
    training = config.training
    return bool(server_addresses(training)) or training.vllm_server_host not in LOCAL_HOSTS


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
        return float(training_fields()["vllm_gpu_memory_utilization"].default)
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


RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `max_lora_rank`; adapters may have lower ranks."""

SLOTS = 2
"""Adapters that the engine holds: the newest, and the one before it while requests still use that."""

_PLAIN_STARTS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Values of peft's `init_lora_weights` that set the adapter only; others change the base weights."""


def adapter_refusal(adapter: Mapping[str, Any]) -> str | None:
    """Why vLLM does not take an adapter alone; None if nothing in its config says so.

    Args:
        adapter: peft's config as a mapping, such as an `adapter_config.json`.
    """
    kind = adapter.get("peft_type") or "LORA"
    start = adapter.get("init_lora_weights", True)
    unsupported = {
        f"it is {kind}, not LoRA": str(getattr(kind, "value", kind)) != "LORA",
        "DoRA trains magnitudes besides it": adapter.get("use_dora"),
        f"modules_to_save={adapter.get('modules_to_save')} are trained in full": adapter.get("modules_to_save"),
        "rows of the embedding are trained besides it": adapter.get("trainable_token_indices"),
        "biases are trained besides it": adapter.get("lora_bias") or adapter.get("bias", "none") != "none",
        "it changes parameters that are no layer's (target_parameters)": adapter.get("target_parameters"),
        f"init_lora_weights={start} changes the base weights": isinstance(start, str) and start not in _PLAIN_STARTS,
        **{
            f"vLLM does not know {name}": adapter.get(name)
            for name in ("alora_invocation_tokens", "layer_replication", "use_bdlora", "use_qalora")
        },
    }
    for reason, holds in unsupported.items():
        if holds:
            return reason
    rank = highest_rank(adapter)
    return f"its rank {rank} is above {RANKS[-1]}" if rank > RANKS[-1] else None


def highest_rank(adapter: Mapping[str, Any]) -> int:
    """The highest rank of an adapter's layers."""
    return max(map(int, [adapter["r"], *(adapter.get("rank_pattern") or {}).values()]))


def lora_options(rank: int) -> dict[str, Any]:
    """The options of vLLM's engine for adapters up to this rank."""
    return {"enable_lora": True, "max_lora_rank": next(most for most in RANKS if most >= rank), "max_loras": SLOTS}


def served_rank(config: Config) -> tuple[int, str | None]:
    """The rank of the adapters that vLLM is to take alone, and why it takes none, as far as the config says.

    Returns:
        The rank, 0 with a reason.
    """
    lora, training = config.model.lora, config.training
    if training.vllm_lora_sync == "merge" or not lora.active:
        return 0, "training.vllm_lora_sync=merge" if lora.active else "the run trains no adapters (model.lora.rank)"
    adapter: dict[str, Any] = {
        "r": lora.effective_rank,
        "use_dora": lora.use_dora,
        "modules_to_save": lora.modules_to_save,
        "trainable_token_indices": config.model.reasoning_vocab_size,
    }
    if lora.path is not None:
        adapter = _saved(Path(lora.path).expanduser() / "adapter_config.json") or adapter
    reason = adapter_refusal(adapter)
    if config.model.load_in_4bit or config.model.load_in_8bit:
        reason = "vLLM's base weights are not quantised as the trainer's are"
    if training.vllm_mode == "colocate" and training.vllm_enable_sleep_mode:
        reason = "in sleep mode vLLM drops its base weights (training.vllm_enable_sleep_mode)"
    return (highest_rank(adapter), None) if reason is None else (0, reason)


def _saved(file: Path) -> dict[str, Any] | None:
    """A saved adapter's config; None if it cannot be read, which the run reports as it starts."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found | {"r": int(found["r"])}
    except (OSError, ValueError, TypeError, KeyError):
        return None


SAMPLING_GPU = "COVEY_SAMPLING_GPU"
"""Environment variable of training processes: the GPU, as CUDA_VISIBLE_DEVICES names it, that `covey launch` has left
to the rollout process."""


def samples_in_own_process(config: Config) -> bool:
    """Whether Covey's engine runs in a process of its own."""
    training = config.training
    return training.staleness > 0 and not training.use_vllm and config.rollout.own_engine is None


_MIXED_LAYERS = ("mamba", "ssm_", "linear_", "lru_", "conv_", "hybrid_", "block_types", "block_configs", "attn_type")
"""What keys of a `config.json` begin with where some layers are no attention, or each has heads of its own."""


def tensor_parallel_sizes(model: Mapping[str, Any]) -> list[int] | None:
    """The legal values of `vllm_tensor_parallel_size` by a model's `config.json`; None if that has no plain attention.

    vLLM splits the heads and the vocabulary, padded to a multiple of 64, evenly; it splits or copies key-value heads.
    """
    sizes = [model.get(key, 0) for key in ("num_attention_heads", "num_key_value_heads", "vocab_size")]
    layers = model.get("layer_types", [])
    kinds = {str(kind).partition("_")[0] for kind in (layers if isinstance(layers, list) else [layers])}
    other = "kv_lora_rank" in model or any(key.startswith(_MIXED_LAYERS) for key in model)
    if other or kinds - {"full", "sliding", "chunked"} or not all(type(size) is int for size in sizes):
        return None
    heads, shared, words = sizes
    even = [size for size in range(1, heads + 1) if not (heads % size or (words + -words % 64) % size)]
    return [size for size in even if not (shared % size and size % shared)] or None
