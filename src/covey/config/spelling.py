"""The one table from the spellings of other tools to Covey's: TRL and open-r1's flat keys, older names that TRL and
transformers have since dropped, and the dotted names of GRPO projects that are built on Hydra.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from covey.config import conversions as to
from covey.config import snapshot
from covey.config.keys import GROUPS, kinds
from covey.config.landing import Landing, Spelling
from covey.config.together import KL_SWITCHES
from covey.config.training import OWNED_ELSEWHERE
from covey.config.values import is_mapping_kind

_RENAMED = {
    # TRL's ModelConfig
    "model_name_or_path": "model.name",
    "model_name": "model.name",
    "model_revision": "model.revision",
    "attn_implementation": "model.attn_implementation",
    "trust_remote_code": "model.trust_remote_code",
    "load_in_8bit": "model.load_in_8bit",
    "load_in_4bit": "model.load_in_4bit",
    "bnb_4bit_quant_type": "model.bnb_4bit_quant_type",
    "use_bnb_nested_quant": "model.use_bnb_nested_quant",
    "chat_template": "model.chat_template",
    "mesh_shape": "model.mesh_shape",
    "reasoning_vocab_size": "model.reasoning_vocab_size",
    "reasoning_token_ids": "model.reasoning_token_ids",
    "reasoning_start": "model.reasoning_start",
    # data
    "dataset_config": "dataset.config",
    "dataset_config_name": "dataset.config",
    "dataset_revision": "dataset.revision",
    "dataset_prompt_column": "dataset.prompt_column",
    "dataset_solution_column": "dataset.answer_column",
    "dataset_answer_column": "dataset.answer_column",
    "dataset.solution_column": "dataset.answer_column",
    "dataset_train_split": "dataset.train_split",
    "dataset_splits": "dataset.train_split",
    "dataset_test_split": "dataset.test_split",
    "dataset_streaming": "dataset.streaming",
    "streaming": "dataset.streaming",
    "test_split_size": "dataset.mixture.test_split_size",
    "system_prompt": "dataset.system_prompt",
    "max_train_samples": "dataset.max_train_samples",
    "dataset.max_val_samples": "dataset.test_size",
    "train_fraction": "dataset.train_fraction",
    # rewards
    "cosine_min_value_wrong": "rewards.cosine_min_value_wrong",
    "cosine_max_value_wrong": "rewards.cosine_max_value_wrong",
    "cosine_min_value_correct": "rewards.cosine_min_value_correct",
    "cosine_max_value_correct": "rewards.cosine_max_value_correct",
    "cosine_max_len": "rewards.cosine_max_len",
    "repetition_n_grams": "rewards.repetition_n_grams",
    "repetition_max_penalty": "rewards.repetition_max_penalty",
    # the weight of the KL divergence
    "init_kl_coeff": "training.beta",
    "init_kl_coef": "training.beta",
    "kl_penalty_beta": "training.beta",
    "kl_coef": "training.beta",
    "objective.init_kl_coeff": "training.beta",
    "objective.init_kl_coef": "training.beta",
    "objective.beta": "training.beta",
    # sampling
    "gen_temperature": "training.temperature",
    "gen_top_p": "training.top_p",
    "max_generation_steps": "training.max_completion_length",
    "max_new_tokens": "training.max_completion_length",
    # names that TRL has changed
    "vllm_max_model_len": "training.vllm_max_model_length",
    "vllm_guided_decoding_regex": "training.vllm_structured_outputs_regex",
    "use_liger": "training.use_liger_kernel",
    "wandb_log_unique_prompts": "training.log_unique_prompts",
    "gradient_checkpointing_use_reentrant": "training.gradient_checkpointing_kwargs.use_reentrant",
    "grpo_loss_type": "training.loss_type",
    # names that transformers has changed
    "per_gpu_train_batch_size": "training.per_device_train_batch_size",
    "per_gpu_eval_batch_size": "training.per_device_eval_batch_size",
    "no_cuda": "training.use_cpu",
    "push_to_hub_model_id": "training.hub_model_id",
    "push_to_hub_token": "training.hub_token",
    "overwrite_output_dir": "overwrite",
    "eval_on_start": "evaluation.before_training",
    "eval_before_train": "evaluation.before_training",
    # the hub, trackers, the run
    "hub_model_revision": "training.hub_revision",
    "push_to_hub_revision": "training.push_to_hub",
    "wandb_project": "logging.project",
    "project_name": "logging.project",
    "wandb_entity": "logging.entity",
    "wandb_run_group": "logging.group",
    "wandb_tags": "logging.tags",
    "wandb_notes": "logging.notes",
    "wandb_mode": "logging.mode",
    "tags": "logging.tags",
    "logging.report_to": "training.report_to",
    "exp_name": "run_name",
    "wandb_run_name": "run_name",
    "checkpoint_dir": "output_dir",
    "benchmarks": "evaluation.benchmarks",
    # the optimiser and the schedule of Hydra projects
    "optimizer.beta1": "training.adam_beta1",
    "optimizer.beta2": "training.adam_beta2",
    "optimizer.eps": "training.adam_epsilon",
    "optimizer.lr": "training.learning_rate",
    "optimizer.name": "training.optim",
    "scheduler.name": "training.lr_scheduler_type",
    "num_epochs": "training.num_train_epochs",
    "training.epochs": "training.num_train_epochs",
    "save_interval_steps": "training.save_steps",
    "max_checkpoints_to_keep": "training.save_total_limit",
    "eval_every_n_steps": "evaluation.every_steps",
    "eval_interval_steps": "evaluation.every_steps",
    "early_stopping_patience": "evaluation.early_stopping_patience",
    "early_stopping_threshold": "evaluation.early_stopping_threshold",
    "num_passes": "evaluation.num_samples",
    "evaluation.num_passes": "evaluation.num_samples",
    # adapters under a Hydra project's names
    "model.lora_alpha": "model.lora.alpha",
    "model.lora_dropout": "model.lora.dropout",
    "model.lora_r": "model.lora.rank",
}

_NO_KL = "0 means no control of the KL weight"
_GRPO_OR_MAXENT = {
    "grpo": {"objective.name": "grpo"},
    "maxent": {"objective.name": "maxent"},
    "maxent_listwise": {"objective.name": "maxent", "objective.maxent_fit": "listwise"},
}
_CONTROLLER = {"adaptive": {"objective.kl.controller": "adaptive"}, "fixed": {"objective.kl.controller": "fixed"}}
_SOURCE = Spelling("dataset.id", to.dataset_source)
_CALLED = Spelling("", to.inference_config, "str")
_SIZE, _FAMILY = (Spelling("model.name", to.nothing, "str", name) for name in ("model_size", "model_family"))
_STRATEGY = Spelling("evaluation.every_steps", to.nothing, "str", "eval_strategy")
_RANK = Spelling("model.lora.rank", to.lora_rank)
_TARGETS = Spelling("model.lora.target_modules", to.lora_targets)
_COSINE = Spelling("", to.cosine_schedule, "float")
_WARMUP = Spelling("training.warmup_steps", to.warmup_ratio)

_CONVERTED = {
    # Covey's own keys whose values have other spellings
    "model.dtype": Spelling("model.dtype", to.dtype, own=True),
    "callbacks": Spelling("callbacks", to.callbacks, own=True),
    "objective.kl": Spelling("objective.kl.controller", to.chosen(_CONTROLLER), own=True),
    # the model
    "torch_dtype": Spelling("model.dtype", to.dtype),
    "dtype": Spelling("model.dtype", to.dtype),
    "use_flash_attention_2": Spelling(
        "model.attn_implementation", to.when_true("model.attn_implementation", "flash_attention_2"), "bool"
    ),
    "model_family": _FAMILY,
    "model_size": _SIZE,
    "use_peft": Spelling("model.lora.enabled", to.nothing, "bool", "use_peft"),
    "lora_r": Spelling("model.lora.rank", fact="lora"),
    "lora_alpha": Spelling("model.lora.alpha", fact="lora"),
    "lora_dropout": Spelling("model.lora.dropout", fact="lora"),
    "lora_modules_to_save": Spelling("model.lora.modules_to_save", fact="lora"),
    "use_rslora": Spelling("model.lora.use_rslora", fact="lora"),
    "use_dora": Spelling("model.lora.use_dora", fact="lora"),
    "lora_target_modules": Spelling("model.lora.target_modules", to.lora_targets, fact="lora"),
    "model.lora_target_modules": _TARGETS,
    "lora_rank": _RANK,
    "model.lora_rank": _RANK,
    # data
    "dataset_name": _SOURCE,
    "dataset_id_or_path": _SOURCE,
    "dataset_path": Spelling("dataset.path", to.dataset_source),
    "dataset.name": _SOURCE,
    "dataset_configs": Spelling("dataset.config", to.only_one("dataset.config"), "list[str] | None"),
    "dataset_mixture": Spelling("dataset.mixture.datasets", to.mixture, "dict | None"),
    "datasets": Spelling("dataset.mixture.datasets", to.trl_datasets),
    "eval_dataset_name": Spelling("dataset.test_path", to.eval_dataset),
    "dataset.prompt_template": Spelling("dataset.user_prompt_template", to.prompt_template),
    "prompt_template": Spelling("dataset.user_prompt_template", to.named_template),
    "max_prompt_length": Spelling("dataset.max_prompt_length", to.max_prompt_length),
    "data_source": Spelling("", to.data_source, "str"),
    # rewards
    "reward_funcs": Spelling("rewards.funcs", to.reward_funcs),
    "reward_weights": Spelling("training.reward_weights", to.listed("training.reward_weights", None)),
    "max_completion_len": Spelling("rewards.soft_overlong_max_length", to.positive("rewards.soft_overlong_max_length")),
    "soft_punish_cache": Spelling("rewards.soft_overlong_cache", to.positive("rewards.soft_overlong_cache")),
    # sampling
    **{name: Spelling("training.top_k", to.top_k) for name in ("top_k", "gen_top_k", "vllm_top_k")},
    # the objective
    "objective": Spelling("objective.name", to.chosen(_GRPO_OR_MAXENT), fact="objective", own=True),
    **{
        name: Spelling(f"objective.maxent_{knob}", to.maxent(f"objective.maxent_{knob}"))
        for knob in ("tau", "q_temperature", "q_epsilon", "length_normalize_ref", "fit")
        for name in (f"maxent_{knob}", f"objective.{knob}")
    },
    **{
        name: Spelling(f"objective.kl.{part}", to.positive(f"objective.kl.{part}", _NO_KL), fact=part)
        for part in ("kl_target", "kl_horizon", "kl_ctl_step_size")
        for name in (part, f"objective.{part}")
    },
    **{name: Spelling("objective.kl.controller", to.nothing, "bool", name) for name in KL_SWITCHES},
    "train_grpo_objective": Spelling(
        "objective.name",
        to.chosen({True: {"objective.name": "grpo"}, False: {"objective.name": "maxent"}}),
        "bool",
        fact="train_grpo_objective",
    ),
    "training.objective": Spelling("objective.name", to.chosen(_GRPO_OR_MAXENT), fact="objective"),
    "adap_kl_ctrl": Spelling(
        "objective.kl.controller",
        to.chosen({True: _CONTROLLER["adaptive"], False: _CONTROLLER["fixed"]}),
        "bool",
    ),
    # how many steps, how many at a time
    "warmup_ratio": _WARMUP,
    "optimizer.warmup_ratio": _WARMUP,
    "scheduler.warmup_ratio": _WARMUP,
    "scheduler.warmup_steps_ratio": _COSINE,
    "scheduler.decay_steps_ratio": _COSINE,
    "micro_batch_size": Spelling("training.per_device_train_batch_size", to.micro_batch_size),
    "num_batches": Spelling("training.max_steps", to.num_batches),
    "num_test_batches": Spelling("evaluation.max_problems", to.num_test_batches),
    "scale_rewards": Spelling(
        "training.scale_rewards",
        to.chosen(
            {
                **{name: {"training.scale_rewards": name} for name in ("group", "batch", "none")},
                True: {"training.scale_rewards": "group"},
                False: {"training.scale_rewards": "none"},
            }
        ),
    ),
    "use_liger_loss": Spelling("", to.when_true("training.use_liger_kernel", True), "bool"),
    "log_level": Spelling("training.log_level", to.log_level, "int | str"),
    "adafactor": Spelling("", to.when_true("training.optim", "adafactor"), "bool"),
    "group_by_length": Spelling("", to.when_true("training.train_sampling_strategy", "group_by_length"), "bool"),
    "debug": Spelling("training.debug", to.kept_unless((True, False), "training.debug"), "str | list[str] | bool"),
    # evaluation
    "eval_strategy": _STRATEGY,
    "evaluation_strategy": _STRATEGY,
    "eval_steps": Spelling("evaluation.every_steps", to.nothing, "float | None", "eval_steps"),
    "do_eval": Spelling("evaluation.every_steps", to.nothing, "bool", "do_eval"),
    "inference_config": _CALLED,
    "evaluation.inference_config": _CALLED,
    # generation servers, trackers, the run
    "vllm_url": Spelling("training.vllm_server_base_url", to.vllm_url),
    "logging.run_name": Spelling("run_name", to.kept_unless((None,), "run_name")),
    "logging.enabled": Spelling("training.report_to", to.logging_enabled, "bool"),
    "wandb_disabled": Spelling("training.report_to", to.wandb_disabled, "bool"),
    "resume_from_checkpoint": Spelling("resume", to.resume, "str | bool | None"),
    # arguments for other people's loaders
    "model.model_kwargs.torch_dtype": Spelling("model.dtype", to.dtype),
    "model.model_kwargs.dtype": Spelling("model.dtype", to.dtype),
    "model.model_kwargs.revision": Spelling("model.revision"),
    "model.model_kwargs.attn_implementation": Spelling("model.attn_implementation"),
    "model.model_kwargs.trust_remote_code": Spelling("model.trust_remote_code"),
    "model.model_kwargs.load_in_8bit": Spelling("model.load_in_8bit"),
    "model.model_kwargs.load_in_4bit": Spelling("model.load_in_4bit"),
    **{
        f"model.generation_kwargs.{name}": Spelling(f"training.{field}")
        for name, field in {
            "max_new_tokens": "max_completion_length",
            "temperature": "temperature",
            "top_p": "top_p",
            "top_k": "top_k",
            "min_p": "min_p",
            "repetition_penalty": "repetition_penalty",
        }.items()
    },
}

_IGNORED = """
    # PPO's leftovers, which no GRPO trainer reads
    vf_coef value_loss_coef gamma lam gae_lambda cliprange cliprange_value clip_range clip_range_vf clip_range_high
    clip_delta ppo_clip_range ppo_ppo_clip_range whiten_rewards whiten_advantages advantage_normalization advantage_clip
    reward_normalization reward_clip score_clip horizon target_kl ppo_epochs num_ppo_epochs num_mini_batches
    kl_estimator kl_penalty missing_eos_penalty response_length stop_token
    # what TRL and transformers once took, and now always or never do
    logging_dir save_safetensors past_index fp16_opt_level fp16_backend half_precision_backend use_mps_device use_ipex
    jit_mode_eval torchdynamo ray_scope mp_parameters tpu_num_cores tpu_metrics_debug sharded_ddp xpu_backend
    dispatch_batches split_batches include_inputs_for_metrics include_tokens_per_second evaluate_during_training
    vllm_device vllm_dtype vllm_enable_prefix_caching ignore_bias_buffers lora_task_type tokenizer_name_or_path
    use_fast_tokenizer
    # what only one project's own code reads, and what is about its own machinery
    num_processes overwrite_hub_revision log_like_grpo disable_distributed_sampler log_grad_norm_after_clip
    log_kl_per_token max_reason_tokens return_reason zero3_save_16bit_model behavior_logprobs_source
    eval_dataset_split eval_dataset_config eval_dataset_prompt_column eval_dataset_solution_column code_language
    code_eval_scoring_mode piston_router_url
    code_eval_test_batch_size code_provider parallel_code_exec_per_proc e2b_router_url morph_router_url ioi_provider
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
    "hydra.",
    "hydra/",
    "info_seed_",
    "controller_",
    "span_kl_",
    "maxent_alpha_",
    "seed_paper_",
    "seed_grpo_",
)

_NOT_DONE = """
    policy_entropy_bonus_coef info_seed_enabled controller_meta_enabled maxent_target_weight_entropy
    maxent_target_weight_entropy_start maxent_target_weight_entropy_final maxent_use_clip_objective
    vllm_stop_sequences vllm_guided_json vllm_guided_regex vllm_logit_bias gen_frequency_penalty gen_presence_penalty
    vllm_frequency_penalty vllm_presence_penalty eval_reward_funcs eval_reward_weights reference_model_name_or_path
    init_from_checkpoint lora_target_parameters bnb_4bit_quant_storage lora_module_path reward_model_name_or_path
    push_to_hub_organization dataset_validation_split fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap
    model_code_revision base_model_revision env seed_grpo_enabled truncate_completions_at_first_boxed_answer
    missing_boxed_answer_penalty greedy_eval_enabled eval_greedy_only_enabled dr_grpo_denominator_mode
"""

FOREIGN_GROUPS = frozenset(
    {"optimizer", "scheduler", "grpo", "generation", "script", "baseline", "maxent"}
    | {"baseline.training", "baseline.script", "baseline.model", "maxent.training", "maxent.script", "maxent.model"}
    | {"model.model_kwargs", "model.generation_kwargs"}
)
"""Keys of other tools that hold keys."""

_WRAPPERS = ("baseline.", "maxent.", "script.")
_KWARGS = {
    "model.model_kwargs.": "training.model_init_kwargs.",
    "model.generation_kwargs.": "training.generation_kwargs.",
}


@cache
def table() -> Mapping[str, Spelling]:
    """Every foreign name there is, with what it stands for."""
    fields = {name: f"training.{name}" for name in snapshot.fields() if name not in OWNED_ELSEWHERE}
    idle = {name: Spelling(convert=_ignored, kind="list[str]") for name in _words(_IGNORED)}
    asked = {name: Spelling(convert=_not_done, kind="list[str]") for name in _words(_NOT_DONE)}
    named = {name: Spelling(key) for name, key in {**fields, **_RENAMED}.items()}
    return MappingProxyType({**named, **idle, **asked, **_CONVERTED})


@cache
def look_up(name: str) -> Spelling | None:
    """What a name stands for, Covey's own keys included; None when nobody knows it."""
    found = table().get(name)
    if found is not None:
        return found
    if name in kinds() or name in GROUPS or _inside_mapping(name):
        return Spelling(name, own=True)
    for prefix, target in _KWARGS.items():
        if name.startswith(prefix):
            return Spelling(target + name.removeprefix(prefix))
    if name.startswith(_IGNORED_BELOW):
        return Spelling(convert=_ignored, kind="list[str]")
    group, _, rest = name.partition(".")
    if f"{group}." in _WRAPPERS and rest:
        return look_up(rest)
    if group == "model" and "." not in rest:
        inside = table().get(rest)
        idle = inside is not None and inside.convert in (_ignored, _not_done)
        return inside if inside is not None and (idle or inside.key.startswith("model.")) else None
    if group in ("training", "grpo", "optimizer", "generation") and rest:
        return look_up(rest) if rest in snapshot.fields() or rest in table() else None
    head, _, inside_name = name.partition(".")
    if inside_name and head in snapshot.fields() and is_mapping_kind(snapshot.fields()[head].type):
        return Spelling(f"training.{name}")
    return None


def _inside_mapping(name: str) -> bool:
    """Whether the name is a key inside a mapping that is passed on as it is."""
    parts = name.split(".")
    parents = (".".join(parts[:length]) for length in range(1, len(parts)))
    return any(parent in kinds() and is_mapping_kind(kinds()[parent]) for parent in parents)


def _words(text: str) -> list[str]:
    """The names in a text whose lines may be comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return " ".join(lines).split()


def _ignored(value: object) -> Landing:
    return Landing(ignored=True)


def _not_done(value: object) -> Landing:
    """Nothing is asked for by the values that mean "off"."""
    return Landing(ignored=True) if value in (None, False, 0, "", [], "none") else Landing(not_done=True)
