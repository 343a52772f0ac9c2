"""The alias table: TRL's and open-r1's flat keys, older names that TRL and transformers have dropped, and the dotted
names of GRPO projects built on Hydra.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from covey.config.aliases import conversions as to
from covey.config.aliases.alias_result import ANYTHING, Alias, AliasResult
from covey.config.aliases.combined import KL_SWITCHES
from covey.config.groups.objectives import SETTINGS
from covey.config.groups.training import OWNED_ELSEWHERE, training_fields
from covey.config.keys import GROUPS, kinds
from covey.config.values import is_mapping_kind, members

_SAME = {
    "model": """attn_implementation trust_remote_code load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant
        chat_template mesh_shape reasoning_vocab_size reasoning_token_ids reasoning_start""",
    "rewards": """cosine_min_value_wrong cosine_max_value_wrong cosine_min_value_correct cosine_max_value_correct
        cosine_max_len repetition_n_grams repetition_max_penalty""",
    "dataset": "streaming system_prompt max_train_samples train_fraction",
    "evaluation": "early_stopping_patience early_stopping_threshold",
    "logging": "tags",
}
"""Flat names of keys that have the same name in one of Covey's groups."""
_PREFIXED = {
    "dataset_": ("dataset", "config revision prompt_column answer_column train_split test_split streaming"),
    "model.lora_": ("model.lora", "alpha dropout"),
    "model.model_kwargs.": ("model", "revision attn_implementation trust_remote_code load_in_8bit load_in_4bit"),
    "model.generation_kwargs.": ("training", "temperature top_p top_k min_p repetition_penalty"),
}
"""The same behind a prefix."""
_NAMES = {
    # TRL's ModelConfig
    "model.name": "model_name_or_path model_name",
    "model.revision": "model_revision",
    # data
    "dataset.config": "dataset_config_name",
    "dataset.answer_column": "dataset_solution_column dataset.solution_column",
    "dataset.train_split": "dataset_splits",
    "dataset.mixture.test_split_size": "test_split_size",
    "dataset.test_size": "dataset.max_val_samples",
    # the weight of the KL divergence
    "training.beta": "kl_coef kl_penalty_beta objective.beta objective.init_kl_coeff objective.init_kl_coef",
    # sampling
    "training.temperature": "gen_temperature",
    "training.top_p": "gen_top_p",
    "training.max_completion_length": "max_generation_steps max_new_tokens model.generation_kwargs.max_new_tokens",
    # programs
    "rewards.code.language": "code_language",
    # names that TRL has changed
    "training.vllm_max_model_length": "vllm_max_model_len max_model_len",
    "training.vllm_tensor_parallel_size": "tensor_parallel_size",
    "training.vllm_gpu_memory_utilization": "gpu_memory_utilization",
    "training.vllm_structured_outputs_regex": "vllm_guided_decoding_regex",
    "training.use_liger_kernel": "use_liger",
    "training.log_unique_prompts": "wandb_log_unique_prompts",
    "training.gradient_checkpointing_kwargs.use_reentrant": "gradient_checkpointing_use_reentrant",
    "training.loss_type": "grpo_loss_type",
    # names that transformers has changed
    "training.per_device_train_batch_size": "per_gpu_train_batch_size",
    "training.per_device_eval_batch_size": "per_gpu_eval_batch_size",
    "training.use_cpu": "no_cuda",
    "training.hub_model_id": "push_to_hub_model_id",
    "training.hub_token": "push_to_hub_token",
    "evaluation.before_training": "eval_on_start eval_before_train",
    # the hub, trackers, the run
    "training.hub_revision": "hub_model_revision",
    "training.push_to_hub": "push_to_hub_revision",
    "logging.project": "project_name",
    "training.report_to": "logging.report_to",
    "run_name": "exp_name",
    "logging.run_name": "wandb_run_name wandb_name",
    "output_dir": "checkpoint_dir",
    # the optimiser and the schedule of Hydra projects
    "training.adam_beta1": "optimizer.beta1",
    "training.adam_beta2": "optimizer.beta2",
    "training.adam_epsilon": "optimizer.eps",
    "training.learning_rate": "optimizer.lr",
    "training.optim": "optimizer.name",
    "training.lr_scheduler_type": "scheduler.name",
    "training.num_train_epochs": "num_epochs training.epochs",
    "training.save_steps": "save_interval_steps",
    "training.save_total_limit": "max_checkpoints_to_keep",
    "evaluation.every_steps": "eval_every_n_steps eval_interval_steps",
    "evaluation.num_samples": "num_passes evaluation.num_passes",
    # adapters under a Hydra project's names
    "model.lora.rank": "model.lora_r",
}
"""Covey's keys, and other names of each."""
_RENAMED = {
    **{name: f"{group}.{name}" for group, names in _SAME.items() for name in names.split()},
    **{start + name: f"{group}.{name}" for start, (group, names) in _PREFIXED.items() for name in names.split()},
    **{name: key for key, names in _NAMES.items() for name in names.split()},
}

_NO_KL = "0 means no control of the KL weight"
_OBJECTIVE = {
    **{name: {"objective.name": name} for name in SETTINGS},
    "maxent_listwise": {"objective.name": "maxent", "objective.maxent_fit": "listwise"},
}
_CONTROLLER = {"adaptive": {"objective.kl.controller": "adaptive"}, "fixed": {"objective.kl.controller": "fixed"}}
_SOURCE = Alias("dataset.id", to.dataset_source)
_CALLED = Alias("", to.inference_config, "str")
_SIZE, _FAMILY = (Alias("model.name", to.nothing, "str", name) for name in ("model_size", "model_family"))
_STRATEGY = Alias("evaluation.every_steps", to.nothing, "str", "eval_strategy")
_RANK = Alias("model.lora.rank", to.lora_rank)
_TURNS = Alias("environment.max_turns", to.max_turns, "int | None")
_TARGETS = Alias("model.lora.target_modules", to.lora_targets)
_COSINE = Alias("", to.cosine_schedule, "float")
_FLASH = Alias("model.attn_implementation", to.when_true("model.attn_implementation", "flash_attention_2"), "bool")
_REWARDS = Alias("rewards.funcs", to.reward_funcs)
_PROMPT = Alias("dataset.max_prompt_length", to.max_prompt_length)
_WARMUP = Alias("training.warmup_steps", to.warmup_ratio)

_CONVERTED = {
    # Covey's own keys, whose values other tools write differently
    "model.dtype": Alias("model.dtype", to.dtype, native=True),
    "callbacks": Alias("callbacks", to.callbacks, native=True),
    "objective.kl": Alias("objective.kl.controller", to.chosen(_CONTROLLER), native=True),
    # the model
    "torch_dtype": Alias("model.dtype", to.dtype),
    "dtype": Alias("model.dtype", to.dtype),
    **dict.fromkeys(("flash_attention", "flash_attn", "use_flash_attention_2"), _FLASH),
    "model_family": _FAMILY,
    "model_size": _SIZE,
    "use_peft": Alias("model.lora.enabled", to.nothing, "bool", "use_peft"),
    "lora_r": Alias("model.lora.rank", canonical="lora"),
    "lora_alpha": Alias("model.lora.alpha", canonical="lora"),
    "lora_dropout": Alias("model.lora.dropout", canonical="lora"),
    "lora_modules_to_save": Alias("model.lora.modules_to_save", canonical="lora"),
    "use_rslora": Alias("model.lora.use_rslora", canonical="lora"),
    "use_dora": Alias("model.lora.use_dora", canonical="lora"),
    "lora_target_modules": Alias("model.lora.target_modules", to.lora_targets, canonical="lora"),
    "model.lora_target_modules": _TARGETS,
    "target_modules": _TARGETS,
    "lora_rank": _RANK,
    "model.lora_rank": _RANK,
    # data
    "dataset_name": _SOURCE,
    "dataset_id_or_path": _SOURCE,
    "dataset_path": Alias("dataset.path", to.dataset_source),
    "dataset.name": _SOURCE,
    "prompt_data": _SOURCE,
    "dataset_configs": Alias("dataset.config", to.dataset_configs, "list[str] | None"),
    "dataset_mixture": Alias("dataset.mixture.datasets", to.mixture, "dict | None"),
    "datasets": Alias("dataset.mixture.datasets", to.trl_datasets),
    "eval_dataset_name": Alias("dataset.test_path", to.eval_dataset),
    "dataset.prompt_template": Alias("dataset.user_prompt_template", to.prompt_template),
    "prompt_template": Alias("dataset.user_prompt_template", to.named_template),
    **dict.fromkeys(("max_prompt_length", "max_prompt_len", "prompt_max_len"), _PROMPT),
    "data_source": Alias("", to.data_source, "str"),
    # rewards
    "code_eval_scoring_mode": Alias("", to.scoring_mode, "str"),
    "code_provider": Alias("", to.code_provider, "str"),
    "reward_model_name_or_path": Alias("rewards.model.name", to.reward_model, "str | None"),
    **dict.fromkeys(("reward_funcs", "reward_fn", "reward_func", "reward_function", "reward_functions"), _REWARDS),
    "reward_weights": Alias("training.reward_weights", to.reward_weights),
    "max_completion_len": Alias("rewards.soft_overlong_max_length", to.positive("rewards.soft_overlong_max_length")),
    "soft_punish_cache": Alias("rewards.soft_overlong_cache", to.positive("rewards.soft_overlong_cache")),
    # sampling
    **{name: Alias("training.top_k", to.top_k) for name in ("top_k", "gen_top_k", "vllm_top_k")},
    # environments
    "max_tool_calling_iterations": _TURNS,
    "training.max_tool_calling_iterations": _TURNS,
    "environment.factory": Alias("environment.factory", to.factory, native=True),
    "environment_factory": Alias("environment.factory", to.factory),
    "tools": Alias("environment.tools", to.tools, "list[str] | str"),
    "rollout_func": Alias("environment.rollout_func", to.rollout_func),
    # the objective
    "objective": Alias("objective.name", to.chosen(_OBJECTIVE), canonical="objective", native=True),
    **{
        name: Alias(f"objective.{owner}_{item.name}", to.setting_of(owner, f"objective.{owner}_{item.name}"))
        for owner, settings in SETTINGS.items()
        for item in dataclasses.fields(settings)
        for name in (f"{owner}_{item.name}", *([f"objective.{item.name}"] if owner == "maxent" else []))
        if name not in kinds()
    },
    **{
        name: Alias(f"objective.kl.{part}", to.positive(f"objective.kl.{part}", _NO_KL), canonical=part)
        for part in ("kl_target", "kl_horizon", "kl_ctl_step_size")
        for name in (part, f"objective.{part}")
    },
    **{name: Alias("objective.kl.controller", to.nothing, "bool", name) for name in KL_SWITCHES},
    "train_grpo_objective": Alias(
        "objective.name",
        to.chosen({True: {"objective.name": "grpo"}, False: {"objective.name": "maxent"}}),
        "bool",
        canonical="train_grpo_objective",
    ),
    "training.objective": Alias("objective.name", to.chosen(_OBJECTIVE), canonical="objective"),
    "adap_kl_ctrl": Alias(
        "objective.kl.controller", to.chosen({True: _CONTROLLER["adaptive"], False: _CONTROLLER["fixed"]}), "bool"
    ),
    # how many steps, how many at a time
    "optimizer": Alias("", to.choice_of("optim"), "str"),
    "scheduler": Alias("", to.choice_of("lr_scheduler_type"), "str"),
    "warmup_ratio": _WARMUP,
    "lr_warmup_ratio": _WARMUP,
    "optimizer.warmup_ratio": _WARMUP,
    "scheduler.warmup_ratio": _WARMUP,
    "scheduler.warmup_steps_ratio": _COSINE,
    "scheduler.decay_steps_ratio": _COSINE,
    "micro_batch_size": Alias("training.per_device_train_batch_size", to.micro_batch_size),
    "num_batches": Alias("training.max_steps", to.num_batches),
    "num_test_batches": Alias("evaluation.max_problems", to.num_test_batches),
    "scale_rewards": Alias(
        "training.scale_rewards",
        to.chosen(
            {
                **{name: {"training.scale_rewards": name} for name in ("group", "batch", "none")},
                True: {"training.scale_rewards": "group"},
                False: {"training.scale_rewards": "none"},
            }
        ),
    ),
    "use_liger_loss": Alias("", to.when_true("training.use_liger_kernel", True), "bool"),
    "log_level": Alias("training.log_level", to.log_level, "int | str"),
    "adafactor": Alias("", to.when_true("training.optim", "adafactor"), "bool"),
    "group_by_length": Alias("", to.when_true("training.train_sampling_strategy", "group_by_length"), "bool"),
    "debug": Alias("training.debug", to.kept_unless((True, False), "training.debug"), "str | list[str] | bool"),
    # evaluation
    "benchmarks": Alias("evaluation.benchmarks", to.benchmarks),
    "eval_strategy": _STRATEGY,
    "evaluation_strategy": _STRATEGY,
    "eval_steps": Alias("evaluation.every_steps", to.nothing, "float | None", "eval_steps"),
    "do_eval": Alias("evaluation.every_steps", to.nothing, "bool", "do_eval"),
    "inference_config": _CALLED,
    "evaluation.inference_config": _CALLED,
    # generation servers, trackers, the run
    "logging.mode": Alias("logging.mode", to.tracker_mode, native=True),
    "wandb_mode": Alias("logging.mode", to.tracker_mode),
    **{
        f"wandb_{name}": Alias(f"logging.{key}", to.of_wandb(f"logging.{key}"))
        for name, key in {"run_group": "group", **{key: key for key in ("project", "entity", "tags", "notes")}}.items()
    },
    "vllm_url": Alias("", to.vllm_url, "str"),
    "vllm_device": Alias("launch.vllm_own_gpu", to.vllm_device, "str"),
    "logging.enabled": Alias("training.report_to", to.logging_enabled, "bool"),
    "wandb_disabled": Alias("training.report_to", to.wandb_disabled, "bool"),
    "resume_from_checkpoint": Alias("resume", to.resume, "str | bool | None"),
    "overwrite_output_dir": Alias("", to.overwrite_output_dir, "bool"),
    # arguments for other people's loaders
    "model.model_kwargs.torch_dtype": Alias("model.dtype", to.dtype),
    "model.model_kwargs.dtype": Alias("model.dtype", to.dtype),
}

_IGNORED = """
    # PPO's keys, which no GRPO trainer reads
    vf_coef value_loss_coef gamma lam gae_lambda cliprange cliprange_value clip_range clip_range_vf clip_range_high
    clip_delta ppo_clip_range ppo_ppo_clip_range whiten_rewards whiten_advantages advantage_normalization advantage_clip
    reward_normalization reward_clip score_clip horizon target_kl ppo_epochs num_ppo_epochs num_mini_batches
    kl_estimator kl_penalty missing_eos_penalty response_length stop_token
    critic_learning_rate lambd critic_warmup
    # what is always done here, or needs no key
    packing_samples pad_to_sequence_len sample_packing dataset_prepared_path use_remove_padding
    # former keys of TRL and transformers, now always or never done
    logging_dir save_safetensors past_index fp16_opt_level fp16_backend half_precision_backend use_mps_device use_ipex
    jit_mode_eval torchdynamo ray_scope mp_parameters tpu_num_cores tpu_metrics_debug sharded_ddp xpu_backend
    dispatch_batches split_batches include_inputs_for_metrics include_tokens_per_second evaluate_during_training
    vllm_dtype vllm_enable_prefix_caching ignore_bias_buffers lora_task_type tokenizer_name_or_path
    use_fast_tokenizer
    # keys that only one project's own code reads
    num_processes overwrite_hub_revision log_like_grpo disable_distributed_sampler log_grad_norm_after_clip
    log_kl_per_token max_reason_tokens return_reason zero3_save_16bit_model behavior_logprobs_source
    eval_dataset_split eval_dataset_config eval_dataset_prompt_column eval_dataset_solution_column
    piston_router_url code_eval_test_batch_size parallel_code_exec_per_proc e2b_router_url morph_router_url ioi_provider
    dataset.ignore_sufficient_disk_space_check dataset.val_split reference_model_revision
    maxent_logprob_chunk_size maxent_reference_logprobs_source maxent_trl_reference_scoring
    maxent_allow_stale_reference_logprobs maxent_score_tail_tokens maxent_policy_entropy maxent_policy_entropy_mode
    maxent_score_slice_prefetch maxent_prompt_cache_size maxent_share_reference_model maxent_tau_lr maxent_tau_min
    maxent_tau_max maxent_tau_warmup_steps maxent_clip_objective_coef maxent_clip_adv_baseline maxent_clip_range
    maxent_allow_empty_weight_fallback maxent_target_weight_entropy_horizon
    maxent_length_normalize_policy maxent_reference_ema_enabled maxent_alpha
    vllm_max_completion_rounds vllm_retry_sleep vllm_backfill_with_model vllm_backfill_local vllm_return_logprobs
    vllm_request_logprobs vllm_force_logprobs vllm_logprob_fail_after vllm_logprob_fallback vllm_client_tag_fail_fast
    vllm_sync_interval_steps vllm_sync_weights vllm_request_timeout vllm_max_retries vllm_backoff
    vllm_request_id_prefix vllm_rounds_cfg gen_best_of vllm_best_of
    generation.eos_tokens intermediate_checkpoint_dir
    train_data_dir test_data_dir log_dir flush_every_n_steps experiment_name evaluation.step evaluation.verbose
    evaluation.checkpoint_dir command hydra optimizer scheduler grpo generation model.model_kwargs.device_map
    model.model_kwargs.low_cpu_mem_usage model.model_kwargs.use_cache model.generation_kwargs.do_sample
    model.generation_kwargs.pad_token_id
"""
_IGNORED_BELOW = (
    "critic.",
    "hydra.",
    "hydra/",
    "info_seed_",
    "controller_",
    "span_kl_",
    "maxent_alpha_",
    "seed_paper_",
    "seed_grpo_",
)

_UNSUPPORTED = """
    policy_entropy_bonus_coef info_seed_enabled controller_meta_enabled maxent_target_weight_entropy
    maxent_target_weight_entropy_start maxent_target_weight_entropy_final maxent_use_clip_objective
    vllm_stop_sequences vllm_guided_json vllm_guided_regex vllm_logit_bias gen_frequency_penalty gen_presence_penalty
    vllm_frequency_penalty vllm_presence_penalty eval_reward_funcs eval_reward_weights reference_model_name_or_path
    init_from_checkpoint lora_target_parameters bnb_4bit_quant_storage lora_module_path
    push_to_hub_organization dataset_validation_split fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap
    model_code_revision base_model_revision env seed_grpo_enabled truncate_completions_at_first_boxed_answer
    missing_boxed_answer_penalty greedy_eval_enabled eval_greedy_only_enabled dr_grpo_denominator_mode
"""

FOREIGN_GROUPS = frozenset(
    {"optimizer", "scheduler", "grpo", "generation", "script", "baseline", "maxent", "trl"}
    | {"baseline.training", "baseline.script", "baseline.model", "maxent.training", "maxent.script", "maxent.model"}
    | {"model.model_kwargs", "model.generation_kwargs"}
)
"""Other tools' config groups."""

_WRAPPERS = ("baseline.", "maxent.", "script.", "trl.")
_KWARGS = {
    "model.model_kwargs.": "training.model_init_kwargs.",
    "model.generation_kwargs.": "training.generation_kwargs.",
}


GROUP = re.compile(r"^(training|trainer|data|algorithm|actor_rollout_ref\.(actor(\.optim)?|rollout|model))\.")
"""Groups whose keys are found by their last name: verl's, and `training`."""

_LINES = Path(__file__).with_name("peers.txt").read_text(encoding="utf-8").splitlines()
PEERS = {name: line.split(" | ")[1:] for line in _LINES if line[0] != "#" for name in line.split(" | ")[0].split()}
"""What other trainers call a key, by `peers.txt`: the key, or those that it may be and what they hold."""
SAME = {name: entry[0] for name, entry in PEERS.items() if len(entry) == 1}
"""The one key that a name means, with a value that `aliases.py` may convert."""


@cache
def table() -> Mapping[str, Alias]:
    """Every alias by name."""
    fields = {name: f"training.{name}" for name in training_fields() if name not in OWNED_ELSEWHERE}
    ignored = {name: Alias(convert=_ignored, kind=ANYTHING) for name in _words(_IGNORED)}
    unsupported = {name: Alias(convert=_unsupported, kind=ANYTHING) for name in _words(_UNSUPPORTED)}
    named = {name: Alias(key) for name, key in {**SAME, **fields, **_RENAMED}.items()}
    return MappingProxyType({**named, **ignored, **unsupported, **_CONVERTED})


@cache
def look_up(name: str) -> Alias | None:
    """The alias of this name, or an entry for a key of Covey's own; None for an unknown name."""
    found = table().get(name)
    if found is not None:
        return found
    if name in kinds() or name in GROUPS or _inside_mapping(name):
        return Alias(name, native=True)
    for prefix, target in _KWARGS.items():
        if name.startswith(prefix):
            return Alias(target + name.removeprefix(prefix))
    if name.startswith(_IGNORED_BELOW):
        return Alias(convert=_ignored, kind=ANYTHING)
    if (last := GROUP.sub("", name)) in table() and not name.startswith("training."):
        return table()[last]
    group, _, rest = name.partition(".")
    if f"{group}." in _WRAPPERS and rest:
        return look_up(rest)
    if group == "model" and "." not in rest:
        inside = table().get(rest)
        no_key = inside is not None and inside.convert in (_ignored, _unsupported)
        return inside if inside is not None and (no_key or inside.key.startswith("model.")) else None
    if group in ("training", "grpo", "optimizer", "generation") and rest:
        return look_up(rest) if rest in training_fields() or rest in table() else None
    head, _, inside_name = name.partition(".")
    if inside_name and head in training_fields() and is_mapping_kind(training_fields()[head].type):
        return Alias(f"training.{name}")
    return None


def is_peers(name: str) -> bool:
    """Whether the name of a key is in no project whose recipes are read here, so that the user is told its meaning."""
    last = GROUP.sub("", name)
    return last in SAME or (last != name and not name.startswith("training."))


def kind_of(name: str) -> str | None:
    """The type of the value that a key or alias takes, as text; empty where any will do, None for an unknown name."""
    known = look_up(name)
    return None if known is None else known.type


def keeps_text(name: str) -> bool:
    """Whether a key or an alias takes nothing but text, and keeps it as it was typed."""
    known = look_up(name)
    wants = set(members(known.type)) if known is not None and known.convert is None else set()
    return "str" in wants and wants <= {"str", "None"}


def _inside_mapping(name: str) -> bool:
    """Whether the name is a key inside a mapping that is passed on as it is."""
    parts = name.split(".")
    parents = (".".join(parts[:length]) for length in range(1, len(parts)))
    return any(parent in kinds() and is_mapping_kind(kinds()[parent]) for parent in parents)


def _words(text: str) -> list[str]:
    """The names in a text whose lines may be comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return " ".join(lines).split()


def _ignored(value: object) -> AliasResult:
    return AliasResult(ignored=True)


def _unsupported(value: object) -> AliasResult:
    """Values that mean "off" ask for nothing."""
    return AliasResult(ignored=True) if value in (None, False, 0, "", [], "none") else AliasResult(unsupported=True)
