"""When TRL's fields have an effect: expressions of `covey.config.live`, and the fields that never have one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from covey.config.values import BadKeyError, show


def _each(names: str, live: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), live)


_CLIPPED = "training.loss_type in ('grpo', 'bnpo', 'dr_grpo', 'dapo', 'luspo')"
_CORRECTED = "training.use_vllm or training.staleness > 0 or rollout.own_engine"
_SERVER = "vllm in ('server', 'open', 'elsewhere')"
_OUR_ENGINE = "vllm in ('colocate', 'server', 'open')"

LIVE: Mapping[str, str] = MappingProxyType(
    {
        "num_train_epochs": "training.max_steps == -1",
        "warmup_steps": "training.lr_scheduler_type != 'constant'",
        "lr_scheduler_kwargs": "training.lr_scheduler_type not in ('constant', 'constant_with_warmup')",
        **_each("adam_beta1 adam_beta2 adam_epsilon", "has_betas"),
        "optim_args": "has_arguments",
        "optim_target_modules": "galore_or_apollo",
        "gradient_checkpointing_kwargs": "training.gradient_checkpointing",
        "activation_checkpointing_kwargs": "training.activation_checkpointing",
        "liger_kernel_config": "training.use_liger_kernel",
        "cache_implementation": "not training.use_vllm and not rollout.own_engine",
        "transformers_continuous_batching_config": "training.use_transformers_continuous_batching",
        "fsdp_config": "training.fsdp or launch.accelerate",
        "ds3_gather_for_generation": "deepspeed",
        **_each("bf16_full_eval fp16_full_eval", "deepspeed"),
        **_each(
            "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph",
            "not training.fsdp and not training.deepspeed",
        ),
        "epsilon": f"{_CLIPPED} or training.loss_type == 'cispo' and training.epsilon_high == None",
        "epsilon_high": f"{_CLIPPED} or training.loss_type == 'cispo'",
        "delta": _CLIPPED,
        **_each("sapo_temperature_neg sapo_temperature_pos", "training.loss_type == 'sapo'"),
        **_each("vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg", "training.loss_type == 'vespo'"),
        "importance_sampling_level": "training.loss_type != 'vespo' or training.beta != 0",
        "scale_rewards": "scaled and training.multi_objective_aggregation == 'sum_then_normalize'",
        "use_bias_correction_kl": "training.beta != 0 and objective.name != 'maxent'",
        **_each("ref_model_mixup_alpha ref_model_sync_steps", "training.sync_ref_model"),
        **_each("entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target", "training.use_adaptive_entropy"),
        **_each("async_order async_partial", "training.staleness > 0"),
        **_each("vllm_mode vllm_structured_outputs_regex", "training.use_vllm"),
        **_each("vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port", _SERVER),
        **_each("vllm_gpu_memory_utilization vllm_tensor_parallel_size", _OUR_ENGINE),
        **_each("vllm_max_model_length vllm_model_impl", _OUR_ENGINE),
        "vllm_enable_sleep_mode": "vllm in ('colocate', 'open')",
        "vllm_lora_sync": "training.use_vllm and model.lora.active",
        "vllm_importance_sampling_correction": _CORRECTED,
        **{
            f"vllm_importance_sampling_{name}": f"({_CORRECTED}) and training.vllm_importance_sampling_correction"
            " or logging.sampler_gap"
            for name in ("mode", "clip_max", "clip_min", "cap")
        },
        "logging_steps": "training.logging_strategy == 'steps'",
        "save_steps": "training.save_strategy == 'steps'",
        **_each("save_total_limit save_only_model save_on_each_node", "training.save_strategy != 'no'"),
        "metric_for_best_model": "training.save_strategy == 'best'",
        **_each("num_completions_to_print log_completions_hub_repo", "training.log_completions"),
        "log_unique_prompts": "training.log_completions and ('wandb' in trackers or 'trackio' in trackers)",
        "project": "trackers",
        **_each("trackio_space_id trackio_bucket_id trackio_static_space_id", "'trackio' in trackers"),
        **_each("hub_revision hub_strategy", "training.push_to_hub"),
        **_each("hub_model_id hub_private_repo", "training.push_to_hub or training.log_completions_hub_repo"),
        "dataloader_in_order": "training.dataloader_num_workers > 0",
    }
)
"""The condition of each field that has one; all others have an effect, or `NEVER` has."""

_EVALUATES = "Covey evaluates by itself (evaluation.*)"

NEVER: Mapping[str, str] = MappingProxyType(
    {
        **_each("eval_delay per_device_eval_batch_size prediction_loss_only eval_do_concat_batches", _EVALUATES),
        **_each("eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics", _EVALUATES),
        **_each("num_generations_eval label_names do_train do_predict", _EVALUATES),
        **_each("load_best_model_at_end greater_is_better", "evaluation.keep_best keeps the best checkpoint"),
        "disable_tqdm": "Covey has a display of its own",
        "average_tokens_across_devices": "GRPO's loss has normalisers of its own (training.loss_type)",
        "dataloader_drop_last": "GRPO's sampler yields whole batches only",
        "length_column_name": "GRPO's sampler draws whole groups of a prompt, whatever its length",
        "local_rank": "the launcher gives each process its rank (LOCAL_RANK)",
        "log_multimodal": "there are no images",
        "hub_always_push": "a finished run is pushed once, at its end",
        "auto_find_batch_size": "a smaller batch would cut groups",
    }
)
"""The fields without effect in any run, each with the reason."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "label_smoothing_factor": "it smooths the labels of cross-entropy, and the loss has none",
        "neftune_noise_alpha": "its noise would be in sampling and scoring too, another each time, so in the ratios",
        "train_sampling_strategy": "the sampler draws whole groups; training.shuffle_dataset=false keeps their order",
    }
)
"""The fields whose effect training cannot have as they describe it, each with the reason."""
ASKS_FOR_NOTHING = (None, 0.0, "random")
"""Their values that are accepted."""


def refuse_unfollowed(name: str, value: Any) -> None:
    """Raise a `BadKeyError` for a value of TRL's that training would not follow; what asks for nothing is accepted."""
    if name in REFUSED and value not in ASKS_FOR_NOTHING:
        raise BadKeyError(f"training.{name}", f"={show(value)} has no effect in GRPO: {REFUSED[name]}. Leave it out.")
