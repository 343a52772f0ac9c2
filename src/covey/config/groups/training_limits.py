"""Allowed values of TRL's fields beyond their types: choices of texts, and ranges of numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from covey.config.groups import snapshot
from covey.config.values import MAX_SECONDS, MAX_TOKENS, BadKeyError, check_choice, check_range, coerce, members, show

CHOICES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo", "sapo", "vespo"),
        "scale_rewards": ("group", "batch", "none"),
        "importance_sampling_level": ("token", "sequence"),
        "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
        "vllm_mode": ("server", "colocate"),
        "vllm_model_impl": ("vllm", "transformers"),
        "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
        "report_to": (
            *("all", "none", "azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte"),
            *("kubeflow", "mlflow", "neptune", "swanlab", "tensorboard", "trackio", "wandb"),
        ),
        "include_num_input_tokens_seen": ("all", "non_padding", "no", True, False),
        "include_for_metrics": ("inputs", "loss"),
        "debug": ("underflow_overflow", "tpu_metrics_debug"),
        "torch_compile_mode": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        "cache_implementation": (
            *("dynamic", "offloaded", "quantized", "static", "offloaded_static", "paged"),
            *("sliding_window", "hybrid", "hybrid_chunked", "offloaded_hybrid", "offloaded_hybrid_chunked"),
        ),
    }
)
"""The values of plain `str` fields of TRL and transformers, where the snapshot names no choices."""

_Range = Mapping[str, float]
_COUNT: _Range = {"low": 1}
_FROM_ZERO: _Range = {"low": 0}
_POSITIVE: _Range = {"above": 0}
_SHARE: _Range = {"low": 0, "high": 1}
_ANY: _Range = {}
_PART: _Range = {"above": 0, "high": 1}
_BELOW_ONE: _Range = {"low": 0, "below": 1}
_TOKENS: _Range = {"low": 1, "high": MAX_TOKENS}
_PORT: _Range = {"low": 1, "high": 65535}
_DIVISOR: _Range = {"low": 1e-6, "high": 1e6}  # logits are divided by it, and near zero they overflow

RANGES: Mapping[str, _Range] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
                *("generation_batch_size", "steps_per_generation", "num_iterations"),
                *("save_total_limit", "ref_model_sync_steps", "vllm_tensor_parallel_size"),
                *("num_generations_eval", "torch_empty_cache_steps", "eval_accumulation_steps"),
                *("dataloader_prefetch_factor", "ddp_bucket_cap_mb"),
            ),
            _COUNT,
        ),
        **dict.fromkeys(
            (
                *("learning_rate", "weight_decay", "warmup_steps", "max_grad_norm", "beta", "epsilon", "epsilon_high"),
                *(
                    "staleness",
                    "top_k",
                    "adam_epsilon",
                    "neftune_noise_alpha",
                    "eval_delay",
                    "router_aux_loss_coef",
                    "data_seed",
                ),
                *("num_completions_to_print", "entropy_coef_delta", "entropy_target"),
                *("off_policy_mask_threshold", "vespo_k_pos", "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg"),
                *("vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min"),
                "vllm_importance_sampling_cap",
            ),
            _FROM_ZERO,
        ),
        **dict.fromkeys(
            ("logging_steps", "save_steps", "delta", "sapo_temperature_neg", "sapo_temperature_pos"), _POSITIVE
        ),
        **dict.fromkeys(("min_p", "top_entropy_quantile", "ref_model_mixup_alpha", "label_smoothing_factor"), _SHARE),
        **dict.fromkeys(("top_p", "vllm_gpu_memory_utilization"), _PART),
        **dict.fromkeys(("adam_beta1", "adam_beta2"), _BELOW_ONE),
        **dict.fromkeys(("vllm_server_port", "vllm_group_port"), _PORT),
        **dict.fromkeys(("temperature", "repetition_penalty"), _DIVISOR),
        **dict.fromkeys(("reward_weights", "entropy_coef", "entropy_coef_min", "entropy_coef_max"), _ANY),
        "num_train_epochs": {"above": 0, "high": 1e9},
        **dict.fromkeys(("max_completion_length", "vllm_max_model_length", "pad_to_multiple_of"), _TOKENS),
        "num_generations": {"low": 2},
        "max_steps": {"low": -1},
        "local_rank": {"low": -1},
        "dataloader_num_workers": {"low": 0, "high": 1024},
        "ddp_timeout": {"low": 1, "high": MAX_SECONDS},
        "vllm_server_timeout": {"low": 0, "high": MAX_SECONDS},
    }
)
"""Ranges of all numeric fields (checked by a test), those without bounds included."""

_CHECKPOINT = ("use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop")
_ARGUMENTS = {"gradient_checkpointing_kwargs": _CHECKPOINT, "activation_checkpointing_kwargs": _CHECKPOINT}
_OF_THE_CALL = (
    *("conversation", "tools", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize"),
    *("padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
    "tokenizer_kwargs",
)
_ZERO_OR_WHOLE = ("logging_steps", "save_steps")
_FILES = ("accelerator_config", "fsdp_config", "deepspeed")
"""Mappings that may also be the name of a JSON file."""
_OPTIM_ARGS = re.compile(r"\s*\w+\s*=[^=,]+(,\s*\w+\s*=[^=,]+)*")


def check_limits(name: str, value: Any) -> Any:
    """The checked value of a field; a mapping written as JSON text becomes a mapping. Raises a `BadKeyError` if TRL,
    transformers or PyTorch would reject it later, or crash on it."""
    key, known = f"training.{name}", snapshot.fields()[name]
    if choices := known.choices or CHOICES.get(name, ()):
        check_choice(key, value.split() if name == "debug" and isinstance(value, str) else value, choices)
    check_range(key, value, **RANGES.get(name, {}))
    if name == "max_steps" and value == 0:
        raise BadKeyError(key, "=0 is out of range: it must be at least 1, or -1 to use training.num_train_epochs.")
    if name in _ZERO_OR_WHOLE and value > 1 and value != int(value):
        raise BadKeyError(
            key, f"={show(value)} is out of range: it must be an integer of steps, or a share of all steps below 1."
        )
    if name == "pad_to_multiple_of" and isinstance(value, str) and value not in ("auto", "none"):
        raise BadKeyError(key, f"={show(value)} is not possible: it must be an integer, auto or none.")
    if name == "optim_args" and value and not _OPTIM_ARGS.fullmatch(value):
        raise BadKeyError(key, f"={show(value)} cannot be read: write name=value pairs, such as 'rank=64,scale=0.5'.")
    if isinstance(value, str) and any(member.startswith("dict") for member in members(known.type)):
        value = _mapping(key, value, may_be_file=name in _FILES)
    if isinstance(value, dict):
        _check_inside(name, value)
    return value


def _check_inside(name: str, values: Mapping[str, Any]) -> None:
    """Check mappings of arguments: of the chat template, of sampling, of PyTorch's gradient checkpointing."""
    key, possible = f"training.{name}", _ARGUMENTS.get(name)
    for inner, value in values.items():
        if possible is not None and inner not in possible:
            raise BadKeyError(f"{key}.{inner}", f" is not an argument here: it must be one of {', '.join(possible)}.")
        if name == "chat_template_kwargs" and inner in _OF_THE_CALL:
            raise BadKeyError(f"{key}.{inner}", " is for the call, which TRL makes; no template reads it.")
        if name == "generation_kwargs" and inner in RANGES:
            check_range(f"{key}.{inner}", coerce(f"{key}.{inner}", value, _kind(inner)), **RANGES[inner])
        if name == "generation_kwargs" and inner.endswith("_token_id"):
            check_range(f"{key}.{inner}", coerce(f"{key}.{inner}", value, "int | list[int] | None"), low=0)


def _kind(name: str) -> str:
    kind = snapshot.fields()[name].type
    return kind if kind.endswith("None") else f"{kind} | None"


def _mapping(key: str, text: str, *, may_be_file: bool) -> Any:
    """The mapping in a JSON text."""
    if may_be_file and not text.lstrip().startswith("{"):
        return text
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        also = ", or the name of a JSON file" if may_be_file else ""
        raise BadKeyError(key, f"={show(text)} is not a mapping: write one, such as {{name: value}}{also}.")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
