"""Which adapters vLLM takes alone, as far as their config says, and the options with which it does. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.config.schema import Config

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
